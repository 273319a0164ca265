"""The gate in front of the public API: users and roles, every endpoint, limits of bodies and logins, headers of answers."""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.config.rest_settings import RestSettings
from mm2py.errors import ConfigError
from mm2py.rest.app import DIALECT, public_app
from mm2py.rest.credentials import Caller, RestCredentials
from mm2py.rest.listener_tls import CERTIFICATE_NAME
from mm2py.rest.security import LOGIN_TRIES, MOST_LOGINS, Gate, GateRules, gate_for
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName
from tests.unit.rest.rest_fakes import SOURCE, FakeHerder, Reply, echo, flow, parts_of, state
from tests.unit.rest.rest_fakes import ask as ask_app

RULES = GateRules(max_body_bytes=100)
USERS = RestCredentials(
    {"ann": "canary-pa:ss", "bob": "b"}, {"robot": "canary-token"}, read_only=["bob"]
)
NOBODY = RestCredentials({}, {})
FORBIDDEN = {"error_code": 401, "message": "User cannot access the resource."}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def ask(
    gate: ASGIApp,
    method: str = "GET",
    path: str = "/connectors",
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8083") as http:
            return await http.request(method, path, headers=headers, content=body)

    return asyncio.run(main())


def test_without_authentication_everybody_is_an_anonymous_operator() -> None:
    gate = Gate(echo, NOBODY, RULES)
    # Some clients always send an empty user and password.
    for headers in ({}, {"Authorization": "Basic Og=="}, {"Authorization": "Basic !"}):
        answer = ask(gate, "POST", headers=headers, body=b"{}")
        assert answer.json() == {"name": "anonymous", "operator": True, "body": 2}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic Og=="},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Digest x"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer canary-toke"},
        {"Authorization": "Bearer canary-pa:ss"},
        {"Authorization": "Basic " + base64.b64encode(b"ann").decode()},
        basic("ann", ""),
        basic("ann", "b"),
        basic("robot", "canary-token"),
        basic("nobody", "b"),
        basic("nobody", "\ufffd"),
        basic("", "b"),
    ],
)
def test_who_is_not_known_gets_a_401_and_nothing_else(headers: dict[str, str]) -> None:
    for method, path in (("GET", "/"), ("POST", "/flows"), ("OPTIONS", "/nowhere")):
        answer = ask(Gate(echo, USERS, RULES), method, path, headers=headers)
        assert (answer.status_code, answer.json()) == (401, FORBIDDEN)
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("headers", "name", "operator"),
    [
        (basic("ann", "canary-pa:ss"), "ann", True),
        (basic("bob", "b"), "bob", False),
        ({"authorization": "bearer  canary-token "}, "robot", True),
        ({"authorization": "bASIC " + base64.b64encode(b"bob:b").decode()}, "bob", False),
    ],
)
def test_the_caller_is_known_by_password_or_token(
    headers: dict[str, str], name: str, operator: bool
) -> None:
    answer = ask(Gate(echo, USERS, RULES), headers=headers)
    assert answer.json() == {"name": name, "operator": operator, "body": 0}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "MERGE"])
def test_a_reader_changes_nothing(method: str) -> None:
    answer = ask(Gate(echo, USERS, RULES), method, headers=basic("bob", "b"))
    assert answer.status_code == answer.json()["error_code"] == 403
    assert "bob may only read" in answer.json()["message"]


def scope_of(state: dict[str, str]) -> Scope:
    return {"type": "http", "method": "GET", "path": "/", "headers": [], "state": state}


def served(app: ASGIApp, scope: Scope, *messages: Message) -> list[Message]:
    """Return what an application sends to one request, whose body is ``messages``."""
    arriving = list(messages or ({"type": "http.request", "body": b""},))
    sent: list[Message] = []

    async def receive() -> Message:
        return arriving.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def main() -> None:
        await app(scope, receive, send)

    asyncio.run(main())
    return sent


def test_a_verified_certificate_names_the_caller_where_certificates_count() -> None:
    by_name = RestCredentials({}, {}, certificates=True, read_only=["viewer"])
    gate = Gate(echo, by_name, RULES)
    assert b'"viewer","operator":false' in served(gate, scope_of({CERTIFICATE_NAME: "viewer"}))[1]["body"]  # fmt: skip
    assert served(gate, scope_of({}))[0]["status"] == 401
    not_asked = Gate(echo, USERS, RULES)
    assert served(not_asked, scope_of({CERTIFICATE_NAME: "ann"}))[0]["status"] == 401


def test_a_body_that_is_too_long_is_refused_before_anybody_reads_it_also_without_a_length() -> None:
    limit = Gate(echo, NOBODY, RULES)
    assert ask(limit, "POST", body=b"x" * 100).json()["body"] == 100
    answer = ask(limit, "POST", body=b"x" * 101)
    message = "Request body is longer than 100 bytes (rest.max.body.bytes)"
    assert answer.json() == {"error_code": answer.status_code, "message": message}
    assert answer.status_code == 413
    more = {"type": "http.request", "body": b"x" * 60, "more_body": True}
    scope = {**scope_of({}), "method": "POST", "mm2py.caller": Caller("a", operator=True)}
    assert served(limit, scope, more, more)[0]["status"] == 413
    last = {**more, "body": b"y" * 40, "more_body": False}
    assert b'"body":100' in served(limit, scope, more, last)[1]["body"]
    # Nothing reaches the application; a client that is gone does not get the answer either.
    assert served(limit, scope, more, {"type": "http.disconnect"})[0]["status"] == 400
    # The refusal of a stranger comes although the body never does.
    stranger = {**scope_of({}), "method": "POST"}
    gone: Message = {"type": "http.disconnect"}
    assert served(Gate(echo, USERS, RULES), stranger, gone)[0]["status"] == 401


OURS, CROSS = "http://127.0.0.1:8083", {"Sec-Fetch-Site": "cross-site"}
NAMES_OF_HERE = ("localhost", "[::1]", "127.0.0.2")
PAGES = [
    (403, {"Origin": "http://evil.example"}),
    (403, {"Origin": "null"}),
    (403, {"Origin": "http://127.0.0.1:8084"}),
    (403, {"Origin": "http://127.0.0.1:port"}),
    (403, {"Origin": "https://127.0.0.1"}),
    (403, CROSS),
    (403, {"Sec-Fetch-Site": "same-site"}),
    (403, {"Origin": OURS, **CROSS}),
    (200, {"Origin": OURS, "Sec-Fetch-Site": "same-origin"}),
    (200, {"Origin": "http://worker", "Host": "worker:80"}),
    (200, {"Origin": "https://WORKER:443", "Host": "worker"}),
    *((200, {"Origin": f"http://{it}:8083", **CROSS}) for it in NAMES_OF_HERE),
    *((403, {"Origin": f"http://{it}:8084", **CROSS}) for it in NAMES_OF_HERE),
    *((403, {"Origin": f"http://{it}:8083", **CROSS, "Host": "w:8083"}) for it in NAMES_OF_HERE),
]


@pytest.mark.parametrize("credentials", [NOBODY, USERS])
@pytest.mark.parametrize(("status", "headers"), PAGES)
def test_only_a_page_of_this_port_under_any_name_of_this_machine_changes_things(
    status: int, headers: dict[str, str], credentials: RestCredentials
) -> None:
    gate = Gate(echo, credentials, RULES)
    headers = {**headers, **basic("ann", "canary-pa:ss")}
    assert ask(gate, "POST", headers=headers).status_code == status
    assert ask(gate, "GET", headers=headers).status_code == 200


def test_wrong_credentials_are_logged_with_the_address_and_not_for_every_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="mm2py.rest.security")
    clock = FakeClock()
    gate = Gate(echo, USERS, RULES, clock=clock)
    assert ask(gate).status_code == 401  # as a probe of a load balancer
    assert caplog.records == []
    for _ in range(5):
        assert ask(gate, headers=basic("ann", "canary-wrong")).status_code == 401
    asyncio.run(clock.advance(11))
    ask(gate, headers=basic("ann", "canary-wrong"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(" ")[2] for line in lines] == ["failures=1", "failures=5"]
    assert all("rest login failed client=127.0.0.1:" in line for line in lines)
    assert not [line for line in lines if "canary" in line or "ann" in line]


def test_wrong_passwords_of_a_user_are_limited_and_others_are_let_in() -> None:
    clock = FakeClock()
    gate = Gate(echo, USERS, RULES, clock=clock)
    wrong, right = basic("ann", "canary-wrong"), basic("ann", "canary-pa:ss")
    for _ in range(LOGIN_TRIES):
        assert ask(gate, headers=wrong).status_code == 401
    refused = ask(gate, headers=right)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3")
    assert ask(gate, headers=basic("bob", "b")).status_code == 200
    assert ask(gate, headers={"Authorization": "Bearer canary-token"}).status_code == 200
    asyncio.run(clock.advance(4))
    assert ask(gate, headers=right).status_code == 200
    assert ask(gate, headers=wrong).status_code == 401
    assert ask(gate, headers=wrong).status_code == 429


def test_logins_that_failed_are_remembered_within_bounds() -> None:
    gate = Gate(echo, USERS, RULES, clock=FakeClock())
    for number in range(MOST_LOGINS + 1):
        ask_now = basic(f"user{number}", "x")
        assert ask(gate, headers=ask_now).status_code == 401
    for _ in range(LOGIN_TRIES):
        assert ask(gate, headers=basic("user0", "x")).status_code == 401
    assert ask(gate, headers=basic("user0", "x")).status_code == 429


def test_pages_of_allowed_origins_may_change_things() -> None:
    for origins in ("https://ui.example, http://other", "*"):
        settings = RestSettings.of_worker({"access.control.allow.origin": origins})
        gate = gate_for(settings, NOBODY)(echo)
        headers = {"Origin": "https://UI.example", "Sec-Fetch-Site": "cross-site"}
        assert ask(gate, "POST", headers=headers).status_code == 200
        stranger = ask(gate, "POST", headers={"Origin": "https://ui.example.evil"})
        assert stranger.status_code == (200 if origins == "*" else 403)


def test_a_foreign_name_for_our_address_is_refused_where_nobody_signs_in() -> None:
    gate = gate_for(
        RestSettings.of_worker({"rest.advertised.host.name": "Worker-1"}), NOBODY
    )(echo)  # fmt: skip
    for host in ("worker-1:8083", "localhost", "127.0.0.1:1", "[::1]:8083", "a.localhost"):
        assert ask(gate, headers={"Host": host}).status_code == 200
    for host in ("evil.example:8083", "localhost.evil.example", "[", "evil:x@127.0.0.1.evil"):
        answer = ask(gate, headers={"Host": host})
        assert answer.status_code == 403
        assert "rest.advertised.host.name" in answer.json()["message"]


def test_any_name_may_be_used_where_callers_sign_in_or_it_is_insecure(tmp_path: Path) -> None:
    users = tmp_path / "users.properties"
    users.write_text("ann=canary-pa\n")
    for props in ({"rest.basic.auth.file": str(users)}, {"rest.insecure": "true"}):
        settings = RestSettings.of_worker(props)
        gate = gate_for(settings, RestCredentials.read(settings))(echo)
        headers = {"Host": "worker.example", **basic("ann", "canary-pa")}
        assert ask(gate, headers=headers).status_code == 200


def test_admin_endpoints_can_be_switched_off() -> None:
    gate = gate_for(RestSettings.of_worker({"admin.listeners": ""}), NOBODY)(echo)
    for path in (
        "/admin/loggers", "http://127.0.0.1:8083//admin/", "/admin", "/A/B/admin/loggers/x",
        "/pairs/admin/B/admin/loggers",
    ):  # fmt: skip
        answer = ask(gate, path=path)
        assert answer.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
    for path in ("/connectors/admin", "/connectors/x/admin", "/A/admin/health", "/pairs/A/admin"):
        assert ask(gate, path=path).status_code == 200


def test_who_changed_what_is_logged_and_no_secret_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mm2py.rest.security")
    gate = Gate(echo, USERS, RULES)
    operator = basic("ann", "canary-pa:ss")
    ask(gate, "PUT", "/connectors/c/pause", headers=operator)
    ask(gate, "GET", "/connectors", headers=operator)
    ask(gate, "PUT", "/connector-plugins/p/config/validate", headers=operator)
    ask(gate, "PUT", "/connectors/c/pause", headers=basic("ann", "canary-wrong"))
    ask(gate, "POST", "/flows/f/pause?topic=a.b&token=canary&dry_run=true", headers=operator)
    assert [it.getMessage() for it in caplog.records if it.levelno == logging.INFO] == [
        "rest change caller=ann method=PUT path=/connectors/c/pause status=200",
        "rest change caller=ann method=PUT path=/connector-plugins/p/config/validate status=200",
        "rest change caller=ann method=POST path=/flows/f/pause?topic=a.b&dry_run=true status=200",
    ]
    assert "canary" not in caplog.text


def test_only_http_passes() -> None:
    gate = Gate(echo, NOBODY, RULES)
    sent = served(gate, {"type": "websocket", "path": "/"})
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- credentials ------------------------------------------------------------------------------------


def read(folder: Path, users: str = "", tokens: str = "", read_only: str = "") -> RestCredentials:
    props = {"rest.read.only.users": read_only}
    for key, text in (("rest.basic.auth.file", users), ("rest.bearer.tokens.file", tokens)):
        if text:
            path = folder / key
            path.write_text(text)
            props[key] = str(path)
    return RestCredentials.read(RestSettings.of_worker(props))


def test_users_are_those_of_connects_properties_file(tmp_path: Path) -> None:
    found = read(tmp_path, "# operators\nann = canary-a\nbob:canary-b\n", "robot=canary-c", "robot")
    assert found.required
    assert found.caller("Bearer canary-c", None) == Caller("robot", operator=False)
    assert found.caller("Basic Ym9iOmNhbmFyeS1i", None) == Caller("bob", operator=True)
    assert found.secrets == {"canary-a", "canary-b", "canary-c"}
    assert "canary" not in repr(found)


@pytest.mark.parametrize(
    ("users", "tokens", "read_only", "text"),
    [
        ("# nobody\n", "", "", "names no user"),
        ("ann=\n", "", "", ":1 has no secret"),
        ("ann=a\n=canary\n", "", "", ":2 has no name"),
        ("", "a=canary\nb=canary\n", "", "two names have the same token"),
        ("ann=canary\n", "", "anne", "names anne, whom no file knows"),
    ],
)
def test_a_file_that_would_let_the_wrong_ones_in_is_refused(
    tmp_path: Path, users: str, tokens: str, read_only: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, users, tokens, read_only)
    assert text in caught.value.message
    assert caught.value.remedy
    assert "canary" not in str(caught.value)


def test_a_missing_file_is_refused_by_the_name_of_its_property(tmp_path: Path) -> None:
    missing = RestSettings.of_worker({"rest.bearer.tokens.file": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=r"rest\.bearer\.tokens\.file: .* does not exist"):
        RestCredentials.read(missing)


# -- rest secured -----------------------------------------------------------------------------------

FLOW = flow("A", "B")
FILE = {"source.cluster.bootstrap.servers": "a:9092", "topics": "${env:TOPICS}"}
READS = [*(("GET", path) for method, path, _ in DIALECT if method == "GET"), ("GET", "/metrics")]
CHANGES = [(method, path) for method, path, _ in DIALECT if method != "GET"]
JSON = {"Content-Type": "application/json"}


def refusal(which: FlowName | None, name: str, config: ConnectorConfig) -> str | None:
    del name
    problems = remote_problems(
        config, dedicated=which is not None, file_texts=FILE, providers=("allowed",)
    )
    return refusal_text(problems)


Ask = Callable[..., Reply]


@pytest.fixture
def request_as(tmp_path: Path) -> Ask:
    """Return what sends one request as a user ("" for nobody) to a worker that has the connector ``c``."""
    (tmp_path / "users").write_text("ann=canary-ann\nbob=canary-bob\n")
    props = {"rest.basic.auth.file": str(tmp_path / "users"), "rest.read.only.users": "bob"}
    settings = RestSettings.of_worker(props)
    gate = gate_for(settings, RestCredentials.read(settings))
    config = {"connector.class": SOURCE, "db.password": "canary-stored", "name": "c"}

    def request(
        user: str, method: str, target: str, *, body: object = None, content: bytes | None = None
    ) -> Reply:
        name = FLOW if target.startswith("/A/B") else None
        herder = FakeHerder(name, configs={"c": {**config}}, states={"c": state("c")})
        herders: Mapping[FlowName | None, Herder] = {name: herder}
        parts = parts_of(herders, dedicated=name is not None, remote_refusal=refusal)
        headers = JSON | (basic(user, f"canary-{user}") if user else {})
        app = public_app(replace(parts, gate=gate))
        return ask_app(app, method, target, body=body, content=content, headers=headers)

    return request


def filled(path: str) -> str:
    return path.replace("{connector}", "c").replace("{task:int}", "0").replace("{plugin}", SOURCE)


@pytest.mark.parametrize(("method", "path"), [*READS, *CHANGES])
def test_no_endpoint_answers_a_stranger_and_head_needs_credentials_too(
    request_as: Ask, method: str, path: str
) -> None:
    for target in (filled(path), "/A/B" + filled(path), filled(path) + "/"):
        reply = request_as("", method, target, content=b"{}")
        assert (reply.status, reply.message) == (401, "User cannot access the resource.")
    assert request_as("", "HEAD", "/connectors").status == 401
    assert request_as("bob", "HEAD", "/connectors").status == 200


@pytest.mark.parametrize(("method", "path"), READS)
def test_a_reader_sees_no_secret_anywhere(request_as: Ask, method: str, path: str) -> None:
    for query in ("", "?expand=info&expand=status"):
        reply = request_as("bob", method, filled(path) + query)
        assert reply.status in (200, 404)
        assert b"canary" not in reply.content


def test_an_operator_of_an_ordinary_worker_reads_back_what_was_put(request_as: Ask) -> None:
    reply = request_as("ann", "GET", "/connectors/c/config")
    assert reply.json["db.password"] == "canary-stored"
    hidden = request_as("ann", "GET", "/A/B/connectors/c/config")
    assert hidden.json["db.password"] == "[hidden]"


@pytest.mark.parametrize(
    "more",
    [
        {"topics": "${env:AWS_SECRET_ACCESS_KEY}"},
        {"source.cluster.plugin.library.paths": "/opt/canary.so"},
        {"producer.override.sasl.oauthbearer.token.endpoint.url": "file:///canary"},
        {"config.providers": "env"},
        {"admin.override.sasl.jaas.config": "canary.Module required;"},
    ],
)
@pytest.mark.parametrize("prefix", ["", "/A/B"])
def test_a_config_of_a_request_is_judged_before_the_herder_sees_it(
    request_as: Ask, prefix: str, more: dict[str, str]
) -> None:
    config = {"connector.class": SOURCE, "name": "c", **more}
    for method, path, body in (
        ("POST", "/connectors", {"name": "c", "config": config}),
        ("PUT", "/connectors/c/config", config),
        ("PATCH", "/connectors/c/config", more),
    ):
        reply = request_as("ann", method, prefix + path, body=body)
        assert reply.status == 400
        assert reply.message.startswith(
            "Configuration may not be set over REST: " + next(iter(more))
        )
        assert b"canary" not in reply.content


# -- response headers -------------------------------------------------------------------------------

ORIGIN = "https://ui.example"
CORS = {"access.control.allow.origin": ORIGIN}
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "DELETE"}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    status = 404 if scope["path"] == "/nowhere" else 200
    headers = {"X-Frame-Options": "SAMEORIGIN", "X-Own": "1", "Vary": "Accept"}
    await Response(b"body", status, headers)(scope, receive, send)


def gate_of(props: dict[str, str], users: dict[str, str] | None = None) -> ASGIApp:
    settings = RestSettings.of_worker(props)
    return gate_for(settings, RestCredentials(users or {}, {}), clock=FakeClock())(app)


def cors(answer: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.startswith("access-control")}


def test_the_origin_is_echoed_and_every_answer_varies_by_it() -> None:
    for allowed in (ORIGIN, "*"):
        gate = gate_of({"access.control.allow.origin": allowed})
        answer = ask(gate, "GET", headers={"Origin": ORIGIN})
        assert cors(answer) == {"access-control-allow-origin": ORIGIN}
        assert answer.headers["vary"] == "Accept, Origin"
        assert ask(gate, "GET", headers={}).headers["vary"] == "Accept, Origin"
        assert cors(ask(gate, "GET", headers={})) == {}


def test_a_foreign_origin_and_any_without_the_key_get_the_plain_answer() -> None:
    evil = {"Origin": "https://evil"}
    for props, headers in ((CORS, evil), (CORS, {**PREFLIGHT, **evil}), ({}, PREFLIGHT)):
        answer = ask(gate_of(props), "OPTIONS", headers=headers)
        assert (answer.status_code, cors(answer)) == (200, {})
    assert ask(gate_of({}), "OPTIONS", headers=PREFLIGHT).headers["vary"] == "Accept"


def test_a_preflight_is_answered_on_any_path_with_the_status_of_the_request_itself() -> None:
    gate = gate_of({**CORS, "access.control.allow.methods": "GET,PUT"})
    for path, status in (("/connectors", 200), ("/nowhere", 404)):
        answer = ask(gate, "OPTIONS", path, headers=PREFLIGHT)
        assert answer.status_code == status
        assert cors(answer) == {
            "access-control-allow-origin": ORIGIN,
            "access-control-allow-methods": "GET,PUT",
            "access-control-allow-headers": "Content-Type",
            "access-control-max-age": "60",
        }


def test_a_preflight_of_an_allowed_origin_needs_no_credentials_and_permits_to_send_them() -> None:
    gate = gate_of(CORS, {"ann": "a"})
    answer = ask(gate, "OPTIONS", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert cors(answer)["access-control-allow-origin"] == ORIGIN
    assert cors(answer)["access-control-allow-headers"] == "Content-Type, Authorization"
    for headers in ({**PREFLIGHT, "Origin": "https://evil"}, {"Origin": ORIGIN}, {}):
        assert ask(gate, "OPTIONS", headers=headers).status_code == 401
    assert ask(gate, "GET", headers=PREFLIGHT).status_code == 401


def test_rules_put_headers_on_every_answer_refusals_included() -> None:
    rules = "set X-Frame-Options: DENY, add X-Own: 2, setDate Expires: 1000, add X-New: a"
    gate = gate_of({"response.http.headers.config": rules}, {"ann": "a"})
    refused = ask(gate, "GET", headers={})
    assert refused.status_code == 401
    assert refused.headers["x-new"] == "a"
    answer = ask(gate, "GET", headers={"Authorization": "Basic YW5uOmE="})
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers.get_list("x-own") == ["1", "2"]
    assert answer.headers["expires"].endswith(" GMT")
