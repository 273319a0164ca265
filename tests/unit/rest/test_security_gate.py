import asyncio
import base64
import logging
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.config.rest_settings import RestSettings
from mm2py.rest.credentials import Caller, Credentials
from mm2py.rest.listener_tls import CERTIFICATE_NAME
from mm2py.rest.security import LOGIN_TRIES, MOST_LOGINS, Gate, GateRules, gate_for
from mm2py.testing.clock import FakeClock

RULES = GateRules(max_body_bytes=100)
USERS = Credentials(
    {"ann": "canary-pa:ss", "bob": "b"},
    {"robot": "canary-token"},
    read_only=["bob"],
)
NOBODY = Credentials({}, {})
FORBIDDEN = {"error_code": 401, "message": "User cannot access the resource."}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer who asked, and how long the body was."""
    caller = scope["mm2py.caller"]
    assert isinstance(caller, Caller)
    body = await Request(scope, receive).body()
    answer = {"name": caller.name, "operator": caller.operator, "body": len(body)}
    await JSONResponse(answer)(scope, receive, send)


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
    # Some clients always send an empty user and password (kcr 7.1).
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
@pytest.mark.parametrize("path", ["/", "/health", "/admin/loggers", "/nowhere", "/flows"])
def test_who_is_not_known_gets_a_401_and_nothing_else(headers: dict[str, str], path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = ask(Gate(echo, USERS, RULES), method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.json() == FORBIDDEN
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
    assert answer.status_code == 403
    assert answer.json()["error_code"] == 403
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
    by_name = Credentials({}, {}, certificates=True, read_only=["viewer"])
    gate = Gate(echo, by_name, RULES)
    assert b'"viewer","operator":false' in served(gate, scope_of({CERTIFICATE_NAME: "viewer"}))[1]["body"]  # fmt: skip
    assert served(gate, scope_of({}))[0]["status"] == 401
    not_asked = Gate(echo, USERS, RULES)
    assert served(not_asked, scope_of({CERTIFICATE_NAME: "ann"}))[0]["status"] == 401


def test_a_body_that_is_too_long_is_refused_before_anybody_reads_it() -> None:
    gate = Gate(echo, NOBODY, RULES)
    assert ask(gate, "POST", body=b"x" * 100).json()["body"] == 100
    answer = ask(gate, "POST", body=b"x" * 101)
    assert answer.status_code == 413
    assert answer.json() == {
        "error_code": 413,
        "message": "Request body is longer than 100 bytes (rest.max.body.bytes)",
    }


def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    more = {"type": "http.request", "body": b"x" * 60, "more_body": True}
    scope = {**scope_of({}), "method": "POST", "mm2py.caller": Caller("a", operator=True)}
    limit = Gate(echo, NOBODY, RULES)
    assert served(limit, scope, more, more)[0]["status"] == 413
    last = {**more, "body": b"y" * 40, "more_body": False}
    assert b'"body":100' in served(limit, scope, more, last)[1]["body"]
    # Nothing reaches the application; a client that is gone does not get the answer either.
    assert served(limit, scope, more, {"type": "http.disconnect"})[0]["status"] == 400


def test_a_stranger_cannot_make_us_hold_a_body() -> None:
    scope = {**scope_of({}), "method": "POST"}
    # The refusal comes although the body never does.
    assert served(Gate(echo, USERS, RULES), scope, {"type": "http.disconnect"})[0]["status"] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8084"},
        {"Origin": "http://127.0.0.1:port"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:8083", "Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("credentials", [NOBODY, USERS])
def test_a_page_of_another_site_changes_nothing(
    headers: dict[str, str], credentials: Credentials
) -> None:
    gate = Gate(echo, credentials, RULES)
    headers = {**headers, **basic("ann", "canary-pa:ss")}
    assert ask(gate, "POST", headers=headers).status_code == 403
    assert ask(gate, "GET", headers=headers).status_code == 200


def test_a_page_of_this_port_under_another_name_of_this_machine_may_change_things() -> None:
    gate = Gate(echo, NOBODY, RULES)
    for page in ("localhost", "[::1]", "127.0.0.2"):
        headers = {"Origin": f"http://{page}:8083", "Sec-Fetch-Site": "cross-site"}
        assert ask(gate, "POST", headers=headers).status_code == 200
        other_port = {"Origin": f"http://{page}:8084", "Sec-Fetch-Site": "cross-site"}
        assert ask(gate, "POST", headers=other_port).status_code == 403
        elsewhere = {**headers, "Host": "worker:8083"}
        assert ask(gate, "POST", headers=elsewhere).status_code == 403


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


def test_our_own_page_may_change_things() -> None:
    for headers in (
        {"Origin": "http://127.0.0.1:8083", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://worker", "Host": "worker:80"},
        {"Origin": "https://WORKER:443", "Host": "worker"},
    ):
        assert ask(Gate(echo, NOBODY, RULES), "POST", headers=headers).status_code == 200


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


def test_any_name_may_be_used_where_callers_sign_in_or_the_worker_is_insecure(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users.properties"
    users.write_text("ann=canary-pa\n")
    for props in ({"rest.basic.auth.file": str(users)}, {"rest.insecure": "true"}):
        settings = RestSettings.of_worker(props)
        gate = gate_for(settings, Credentials.read(settings))(echo)
        headers = {"Host": "worker.example", **basic("ann", "canary-pa")}
        assert ask(gate, headers=headers).status_code == 200


def test_admin_endpoints_can_be_switched_off() -> None:
    gate = gate_for(RestSettings.of_worker({"admin.listeners": ""}), NOBODY)(echo)
    for path in ("/admin/loggers", "http://127.0.0.1:8083//admin/", "/admin"):
        answer = ask(gate, path=path)
        assert answer.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
    assert ask(gate, path="/connectors/admin").status_code == 200


def test_who_changed_what_is_logged_and_no_secret_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mm2py.rest.security")
    gate = Gate(echo, USERS, RULES)
    operator = basic("ann", "canary-pa:ss")
    ask(gate, "PUT", "/connectors/c/pause", headers=operator)
    ask(gate, "GET", "/connectors", headers=operator)
    ask(gate, "PUT", "/connector-plugins/p/config/validate", headers=operator)
    ask(gate, "PUT", "/connectors/c/pause", headers=basic("ann", "canary-wrong"))
    assert [it.getMessage() for it in caplog.records if it.levelno == logging.INFO] == [
        "rest change caller=ann method=PUT path=/connectors/c/pause status=200",
        "rest change caller=ann method=PUT path=/connector-plugins/p/config/validate status=200",
    ]
    assert "canary" not in caplog.text


def test_only_http_passes() -> None:
    gate = Gate(echo, NOBODY, RULES)
    sent = served(gate, {"type": "websocket", "path": "/"})
    assert sent == [{"type": "websocket.close", "code": 1008}]
