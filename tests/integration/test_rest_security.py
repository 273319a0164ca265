"""REST of real workers as strangers meet it: who is let in, who may change what, what no request brings in."""

import base64
import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final
from urllib.parse import urlsplit

import pytest

from tests.certificates import PASSWORD, Authority
from tests.integration.connect_process import DISTRIBUTED, write_worker
from tests.integration.mirror_process import Flow, Mirror, run_to_end, running, until, write_flow
from tests.kit.regions import Pair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

START_S: Final = 90.0
BODY_BYTES: Final = 4_000
CANARIES: Final = ("canary-ann", "canary-bob", "canary-token", "canary-jaas", PASSWORD)
"""Nothing that a worker says or logs has one of these."""

FILE_PROVIDER: Final = "org.apache.kafka.common.config.provider.FileConfigProvider"
JNDI: Final = "com.sun.security.auth.module.JndiLoginModule required x='y';"
ANN: Final = {"Authorization": "Basic " + base64.b64encode(b"ann:canary-ann").decode()}
BOB: Final = {"Authorization": "Basic " + base64.b64encode(b"bob:canary-bob").decode()}
TOKEN: Final = {"Authorization": "Bearer canary-token"}
JSON: Final = {"Content-Type": "application/json"}
UNTRUE: Final[tuple[dict[str, str], ...]] = (
    {},
    {"Authorization": "Basic " + base64.b64encode(b"ann:canary-bob").decode()},
    {"Authorization": "Basic " + base64.b64encode(b"eve:").decode()},
    {"Authorization": "Basic ann:canary-ann"},
    {"Authorization": "Bearer ann"},
    {"Authorization": "Bearer"},
    {"Authorization": "canary-token"},
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str

    @property
    def message(self) -> str:
        return str(cast("dict[str, object]", json.loads(self.text))["message"])


def ask(
    url: str,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    body: object = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Ask once on a connection of its own; ``body`` is sent as JSON, bytes as they are."""
    where = urlsplit(url)
    assert where.port is not None
    host = "127.0.0.1" if where.hostname == "0.0.0.0" else str(where.hostname)  # noqa: S104 - as it is shown
    line = (
        http.client.HTTPConnection(host, where.port, timeout=60)
        if tls is None
        else http.client.HTTPSConnection(host, where.port, timeout=60, context=tls)
    )
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        line.request(method, path, sent, {**(JSON if sent else {}), **(headers or {})})
        response = line.getresponse()
        answer = Answer(response.status, response.read().decode())
    finally:
        line.close()
    assert not [word for word in CANARIES if word in answer.text], (method, path)
    return answer


def listening(worker: Mirror) -> tuple[list[str], str]:
    """Return the public URLs and the internal one."""
    line = worker.wait_for_log(r"rest listens public=", START_S)
    found = re.search(r"public=(\S+) internal=(\S+)", line)
    assert found
    return found[1].split(","), found[2]


@final
class Guarded:
    """A worker with all kinds of authentication, over https for others and http for this machine."""

    def __init__(self, flow: Flow, worker: Mirror, folder: Path, authority: Authority) -> None:
        self.worker, self._folder, self._authority = worker, folder, authority
        (self.https, self.http), self.internal = listening(worker)
        self.flow = f"/flows/{flow.source_alias}-%3E{flow.target_alias}"
        self.way_back: dict[str, object] = {
            "source": flow.target_alias,
            "target": flow.source_alias,
        }
        self.pair = f"/{flow.source_alias}/{flow.target_alias}"
        self.connector = f"{self.pair}/connectors/MirrorSourceConnector"
        until(self._running, START_S, "the connector runs", alive=worker)

    def _running(self) -> bool:
        answer = ask(self.http, "GET", f"{self.connector}/status", ANN)
        return answer.status == 200 and '"RUNNING"' in answer.text

    def client(
        self, name: str = "", *, authority: Authority | None = None, days: int = 30
    ) -> ssl.SSLContext:
        """A client that trusts the worker; with a certificate if it has a name."""
        context = ssl.create_default_context(cadata=self._authority.pem())
        if name:
            issued = (authority or self._authority).issue(name, days=days)
            file = self._folder / f"{name}.pem"
            file.write_text(issued.chain_pem() + issued.key_pem())
            context.load_cert_chain(file)
        return context

    def state(self) -> tuple[str, ...]:
        """Everything a refused request must leave as it is, once what was accepted before is done."""
        until(self._running, START_S, "the connector runs", alive=self.worker)
        paths = (f"{self.connector}/config", f"{self.flow}/history", f"{self.connector}/status",
                 f"{self.pair}/connectors", "/connectors")  # fmt: skip
        return tuple(ask(self.http, "GET", path, ANN).text for path in paths)

    def config(self) -> dict[str, str]:
        answer = ask(self.http, "GET", f"{self.connector}/config", ANN)
        return cast("dict[str, str]", json.loads(answer.text))


@pytest.fixture(scope="module")
def guarded(regions: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority()
    (folder / "users").write_text("ann = canary-ann\nbob = canary-bob\n")
    (folder / "tokens").write_text("robot = canary-token\n")
    (folder / "provided").write_text(f"word={PASSWORD}\n")
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    flow = write_flow(
        folder,
        *regions,
        "guarded-.*",
        {
            "config.providers": "file",
            "config.providers.file.class": FILE_PROVIDER,
            "{source}.sasl.jaas.config": f'{jaas} username="m" password="canary-jaas";',
            "listeners": "https://0.0.0.0:0, http://127.0.0.1:0",
            "listeners.https.ssl.keystore.type": "PKCS12",
            "listeners.https.ssl.keystore.location": str(
                authority.issue("worker").pkcs12(folder / "worker.p12")
            ),
            "listeners.https.ssl.keystore.password": f"${{file:{folder / 'provided'}:word}}",
            "listeners.https.ssl.truststore.type": "PKCS12",
            "listeners.https.ssl.truststore.location": str(
                authority.truststore(folder / "trust.p12")
            ),
            "listeners.https.ssl.truststore.password": PASSWORD,
            "listeners.https.ssl.client.auth": "requested",
            "rest.basic.auth.file": str(folder / "users"),
            "rest.bearer.tokens.file": str(folder / "tokens"),
            "rest.read.only.users": "bob",
            "rest.max.body.bytes": str(BODY_BYTES),
        },
    )
    with running(flow.file, ready=False) as worker:
        yield Guarded(flow, worker, folder, authority)
        said = worker.log()
        assert not [word for word in CANARIES if word in said]
        assert "Traceback" not in said


def test_passwords_tokens_and_certificates_are_let_in_and_nobody_else(guarded: Guarded) -> None:
    client = guarded.client()
    for headers in (ANN, BOB, TOKEN):
        assert ask(guarded.https, "GET", "/", headers, tls=client).status == 200
        assert ask(guarded.http, "GET", "/", headers).status == 200
    for headers in UNTRUE:
        # Those without a user share the tries of their address, so not each asks for everything.
        paths = ("/", "/health", "/flows", "/openapi.json", "/nothing/here", "/admin/loggers")
        for path in paths if headers in UNTRUE[:3] else paths[1:4]:
            answer = ask(guarded.https, "GET", path, headers, tls=client)
            assert (answer.status, answer.message) == (401, "User cannot access the resource.")
    assert ask(guarded.http, "GET", "/health").status == 401
    assert ask(guarded.https, "GET", "/", tls=guarded.client("carol")).status == 200


def test_a_certificate_counts_only_if_the_truststore_says_so(guarded: Guarded) -> None:
    foreign = guarded.client("mallory", authority=Authority("Other"))
    expired = guarded.client("old", days=-2)
    for context in (foreign, expired):
        with pytest.raises(OSError, match=r".*"):
            ask(guarded.https, "GET", "/", tls=context)
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(guarded.https, "GET", "/", ANN, tls=ssl.create_default_context())
    with pytest.raises((OSError, http.client.HTTPException), match=r".*"):
        ask(guarded.https, "GET", "/", ANN)
    assert ask(guarded.https, "GET", "/", ANN, tls=guarded.client()).status == 200


def test_readers_change_nothing_however_they_came_in(guarded: Guarded) -> None:
    before, bob = guarded.state(), guarded.client("bob")
    changes: tuple[tuple[str, str, object], ...] = (
        ("POST", f"{guarded.flow}/pause", None),
        ("PATCH", guarded.flow, {"config": {"topics": "none"}}),
        ("PUT", f"{guarded.connector}/stop", None),
        ("POST", f"{guarded.connector}/restart?includeTasks=true", None),
        ("DELETE", guarded.connector, None),
        ("DELETE", f"{guarded.connector}/offsets", None),
        ("POST", "/connectors", {"name": "x", "config": {}}),
        ("PUT", "/admin/loggers/root", {"level": "DEBUG"}),
    )
    for method, path, body in changes:
        answer = ask(guarded.http, method, path, BOB, body=body)
        assert (answer.status, "bob may only read" in answer.message) == (403, True), path
        assert ask(guarded.https, method, path, tls=bob, body=body).status == 403
        assert ask(guarded.http, method, path, body=body).status == 401
    assert guarded.state() == before
    assert ask(guarded.http, "GET", guarded.flow, BOB).status == 200
    assert ask(guarded.http, "POST", f"{guarded.flow}/pause?dry_run=true", TOKEN).status == 200


def test_a_too_long_body_is_never_read_for_strangers_nor_kept_for_friends(guarded: Guarded) -> None:
    body = b'"' + b"x" * BODY_BYTES + b'"'
    assert ask(guarded.http, "POST", "/connectors", body=body).status == 401
    answer = ask(guarded.http, "POST", "/connectors", ANN, body=body)
    assert answer.status == 413
    assert answer.message == f"Request body is longer than {BODY_BYTES} bytes (rest.max.body.bytes)"
    lied = ANN | {"Content-Length": "1000000000000"}
    assert ask(guarded.http, "POST", "/connectors", lied, body=b"{}").status == 413


PROVIDED: Final = "${file:/etc/passwd:root}"
BROUGHT_IN: Final = {
    "source.cluster.plugin.library.paths": "/tmp/own.so",  # noqa: S108 - never opened
    "source.cluster.sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
    "source.cluster.ssl.truststore.location": "/etc/passwd",
    "target.cluster.bootstrap.servers": "elsewhere:9092",
    "producer.override.sasl.jaas.config": JNDI,
    "topics": PROVIDED,
    "config.providers.env.class": "x",
    "replication.policy.class": "antigravity:geohash",
    "a\u0085b": "1",
    "some.file": "/etc/passwd",
    "topics.exclude": "x\u0000y",
    "connector.class": "os:system",
    "header.converter": "os:system",
}
"""One of each rule; ``unit/config/test_rest_settings`` has the others."""


def test_no_request_brings_in_code_files_addresses_or_providers(guarded: Guarded) -> None:
    before, config = guarded.state(), guarded.config()
    for change in ({key: value} for key, value in BROUGHT_IN.items()):
        added = {"name": "own", "config": config | {"name": "own"} | change}
        asked: tuple[tuple[str, str, object], ...] = (
            ("PUT", f"{guarded.connector}/config", config | change),
            ("PATCH", f"{guarded.connector}/config", change),
            ("PATCH", guarded.flow, {"config": change}),
            ("PATCH", f"{guarded.flow}?dry_run=true", {"config": change}),
            ("POST", f"{guarded.pair}/connectors", added),
            ("POST", "/flows?dry_run=true", guarded.way_back | {"config": change}),
        )
        for method, path, body in asked:
            answer = ask(guarded.http, method, path, ANN, body=body)
            assert answer.status == 400, (change, method, path, answer.text)
            assert "root:" not in answer.text
    assert guarded.state() == before
    guarded.worker.check_running()


def test_what_get_showed_may_be_put_back_with_its_hidden_secrets(guarded: Guarded) -> None:
    shown = guarded.config()
    assert "[hidden]" in shown.values()
    answer = ask(guarded.http, "PUT", f"{guarded.connector}/config", ANN, body=shown)
    assert answer.status == 200
    assert guarded.config() == shown


def test_the_internal_listener_serves_no_user_whoever_it_is(guarded: Guarded) -> None:
    # The certificate of the public https listener is good for the internal one, so it has https too.
    assert guarded.internal.startswith("https://")
    peer = guarded.client()
    for headers in ({}, ANN, TOKEN):
        for method, path in (
            ("GET", "/"),
            ("GET", "/flows"),
            ("GET", f"{guarded.pair}/mm2py/node-snapshot"),
            ("DELETE", guarded.connector),
            ("POST", f"{guarded.connector}/tasks"),
            ("PUT", f"{guarded.connector}/fence"),
        ):
            assert ask(guarded.internal, method, path, headers, tls=peer).status == 403
    assert ask(guarded.http, "POST", f"{guarded.connector}/tasks", ANN, body=[]).status == 405


# ---- without authentication ----


def test_without_authentication_only_this_machine_rules_unless_the_user_insists(
    regions: Pair, tmp_path: Path
) -> None:
    given = {"listeners": "http://0.0.0.0:0"}
    closed, wide = (write_flow(tmp_path, *regions, "open-.*", given) for _ in range(2))
    with (
        Mirror(closed.file, name="closed") as one,
        Mirror(wide.file, "--insecure", name="wide") as two,
    ):
        (own, *more), _ = listening(one)
        assert more == []
        assert own.startswith("http://127.0.0.1:")
        assert ask(own, "GET", "/health").status == 200
        _told_apart_from_web_pages(own)
        (said,) = one.lines("is reachable from other machines without authentication")
        assert "rest.basic.auth.file or rest.bearer.tokens.file" in said
        assert "--insecure" in said
        (others,), _ = listening(two)
        assert others.startswith("http://0.0.0.0:")
        assert ask(others, "GET", "/flows").status == 200
        assert two.lines("every client that reaches it may change everything")


def _told_apart_from_web_pages(url: str) -> None:
    assert ask(url, "GET", "/", {"Host": "rebound.example.com"}).status == 403
    for page in ({"Origin": "http://example.com"}, {"Origin": "null"},
                 {"Sec-Fetch-Site": "cross-site"}):  # fmt: skip
        assert ask(url, "PUT", "/admin/loggers/root", page, body={"level": "INFO"}).status == 403


def test_what_rest_cannot_be_served_with_is_said_in_one_line_and_the_flows_run(
    regions: Pair, tmp_path: Path
) -> None:
    store = Authority().issue("worker").pkcs12(tmp_path / "worker.p12")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        cases = {
            "password": (
                {
                    "listeners": "https://127.0.0.1:0",
                    "ssl.keystore.type": "PKCS12",
                    "listeners.https.ssl.keystore.location": str(store),
                    "listeners.https.ssl.keystore.password": "canary-wrong",
                    "listeners.https.ssl.keystore.type": "PKCS12",
                },
                r"listeners: ssl\.keystore\.password does not open .*worker.p12, or the file is damaged",
            ),
            "nobody": (
                {"rest.basic.auth.file": str(tmp_path / "nowhere")},
                r"rest\.basic\.auth\.file: properties file .*nowhere does not exist; check the path",
            ),
            "taken": (
                {"listeners": f"http://127.0.0.1:{port}"},
                rf"REST cannot listen at 127.0.0.1:{port}: Address already in use; .*`listeners`",
            ),
        }
        for name, (properties, wanted) in cases.items():
            flow = write_flow(tmp_path, *regions, "closed-.*", properties)
            with Mirror(flow.file, name=name) as worker:
                said = worker.wait_for_log("REST is not served, the flows run without it", START_S)
                assert re.search(wanted, said), said
                assert "canary-wrong" not in worker.log()
                assert "Traceback" not in worker.log()
                worker.wait_for_log("connector state=RUNNING", START_S)


def complaint(said: str) -> str:
    """Return the one line that says why a program ended; before it there may be what it read in its file."""
    *log, line = said.splitlines()
    assert all(re.match(r"\S+ \S+ (INFO|WARNING) ", each) for each in log), said
    return line


def test_a_file_that_cannot_be_served_is_refused_by_line(regions: Pair, tmp_path: Path) -> None:
    flow = write_flow(tmp_path, *regions, "never", {"rest.read.only.users": "bob"})
    number = len(flow.file.read_text().splitlines())
    done = run_to_end(flow.file)
    assert done.returncode == 1
    wanted = f"{flow.file}:{number}: rest.read.only.users names users, but authentication is off"
    assert wanted in complaint(done.stderr)


def test_a_taken_internal_listener_is_refused_in_one_line(regions: Pair, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        flow = write_flow(tmp_path, *regions, "never", {"internal.listener": address})
        done = run_to_end(flow.file)
    assert done.returncode == 1
    wanted = "Address already in use; choose another port in `internal.listener`"
    assert wanted in complaint(done.stderr)


def test_an_ordinary_worker_never_starts_where_anybody_rules(regions: Pair, tmp_path: Path) -> None:
    file = write_worker(tmp_path, regions[1], {"listeners": "http://0.0.0.0:0"})
    worker = Mirror(file, program=DISTRIBUTED)
    try:
        assert worker.wait(START_S) == 1
        assert "which other machines reach, and no authentication is set" in worker.log()
        assert "or start with --insecure" in worker.log()
    finally:
        worker.__exit__(None, None, None)
    with Mirror(file, "--insecure", program=DISTRIBUTED) as open_to_all:
        line = open_to_all.wait_for_log("rest listens public=http://0.0.0.0:", START_S)
        found = re.search(r"public=(\S+)", line)
        assert found
        assert ask(found[1].split(",")[0], "GET", "/connectors").status == 200
