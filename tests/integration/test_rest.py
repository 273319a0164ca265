"""REST of real workers: clients of Connect, loggers, and strangers that flood it."""

import base64
import contextlib
import http.client
import json
import os
import re
import secrets
import select
import signal
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx
import pytest

from mm2py.rest.app import DIALECT
from tests.integration.mirror_process import COMMAND, Flow, Mirror, until
from tests.integration.setups import Setup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAIT_S: Final = 90.0
CANARY: Final = "canary" + secrets.token_hex(4)
JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SENT: Final = "sent" + secrets.token_hex(4)
"""A secret that only requests bring along."""
SOURCE: Final = "MirrorSourceConnector"
OPERATOR, READER, BEARER = (
    {"Authorization": f"Basic {base64.b64encode(f'ann:{CANARY}-ann'.encode()).decode()}"},
    {"Authorization": f"Basic {base64.b64encode(f'bob:{CANARY}-bob'.encode()).decode()}"},
    {"Authorization": f"Bearer {CANARY}-token"},
)
STRANGER: Final = {"Authorization": f"Bearer {SENT}-no-token"}
PLUGIN: Final = f"/connector-plugins/{SOURCE}/config"
BAD_CONFIG: Final = {
    "connector.class": SOURCE,
    "tasks.max": "zero",
    "source.cluster.sasl.jaas.config": f"{JAAS} username='u' password='{SENT}';",
    "producer.override.sasl.jaas.config": f"{JAAS} password='{SENT}';",
    "ssl.keystore.password": SENT,
    "my.api.secret": SENT,
}


def properties(folder: Path) -> dict[str, str]:
    """Return secrets in every place that takes some; brokers here ask for none of them."""
    (folder / "users").write_text(f"ann = {CANARY}-ann\nbob = {CANARY}-bob\n")
    (folder / "tokens").write_text(f"robot = {CANARY}-token\n")
    (folder / "provided").write_text(f"word={CANARY}-provided\n")
    return {
        "config.providers": "file",
        "config.providers.file.class": (
            "org.apache.kafka.common.config.provider.FileConfigProvider"
        ),
        "{source}.sasl.jaas.config": f'{JAAS} username="m" password="{CANARY}-jaas";',
        "{target}.sasl.jaas.config": (
            f'{JAAS} username="m" password="${{file:{folder / "provided"}:word}}";'
        ),
        "{source}.ssl.keystore.password": f"{CANARY}-store",
        "{target}.ssl.key.password": f"{CANARY}-key",
        "{source}.consumer.ssl.truststore.password": f"{CANARY}-trust",
        "rest.basic.auth.file": str(folder / "users"),
        "rest.bearer.tokens.file": str(folder / "tokens"),
        "rest.read.only.users": "bob",
        "tasks.max": "2",
    }


@pytest.fixture
def flow(setup: Setup) -> Flow:
    return setup.flow("loud-.*", properties(setup.folder))


@pytest.fixture
def workers(flow: Flow) -> Iterator[tuple[Mirror, Mirror]]:
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        for worker in (one, two):
            worker.wait_for_log("rest listens", WAIT_S)
        yield one, two


def ask(
    worker: Mirror, method: str, path: str, headers: dict[str, str], body: object = None
) -> tuple[int, str]:
    """Ask once; no answer may hold a secret of the file, nor one that a request brought."""
    said = worker.wait_for_log("rest listens").split("public=")[1].split()[0].split(",")[0]
    line = http.client.HTTPConnection("127.0.0.1", urlsplit(said).port or 0, timeout=100)
    given = {"Content-Type": "application/json", **headers}
    try:
        line.request(method, path, None if body is None else json.dumps(body), given)
        response = line.getresponse()
        text = response.read().decode() + str(response.getheaders())
    finally:
        line.close()
    assert CANARY not in text, (method, path)
    assert SENT not in text, (method, path, text)
    return response.status, text


def until_running(worker: Mirror, flow: Flow) -> None:
    path = f"/{flow.source_alias}/{flow.target_alias}/connectors/{SOURCE}/status"
    until(
        lambda: '"state":"RUNNING"' in ask(worker, "GET", path, OPERATOR)[1], WAIT_S, alive=worker
    )


def level(worker: Mirror, name: str) -> str:
    status, text = ask(worker, "GET", f"/admin/loggers/{name}", READER)
    found = cast("dict[str, Any]", json.JSONDecoder().raw_decode(text)[0])
    return str(found["level"]) if status == 200 else ""


def until_level(worker: Mirror, name: str, word: str) -> None:
    what = f"{name} at {word} on {worker.name}"
    until(lambda: level(worker, name) == word, WAIT_S, what, alive=worker)


def everything(flow: Flow) -> list[tuple[str, str, object]]:
    """Return requests to every endpoint, good ones and bad ones; none stops the flow for good."""
    pair = f"/{flow.source_alias}/{flow.target_alias}"
    one = f"/flows/{flow.source_alias}-%3E{flow.target_alias}"
    long = f"{flow.source_alias}-%3E{flow.target_alias}.{SOURCE}"
    found: list[tuple[str, str, object]] = []
    for method, path, _ in DIALECT:
        for prefix, name in ((pair, SOURCE), ("", long), (pair, "nobody")):
            target = path.replace("{connector}", name).replace("{task}", "0")
            target = target.replace("{plugin}", SOURCE).replace("{logger}", "root")
            if method != "DELETE" or name == "nobody":
                found.append((method, prefix + target, BAD_CONFIG if method != "GET" else None))
    bad = {"name": "x", "config": BAD_CONFIG}
    found += [
        ("GET", f"{pair}/connectors?expand=info&expand=status", None),
        ("POST", f"{pair}/connectors", bad),
        ("PUT", f"{PLUGIN}/validate", BAD_CONFIG),
        ("PUT", f"{pair}{PLUGIN}/validate", {**BAD_CONFIG, "tasks.max": "1"}),
        ("PATCH", one, {"config": BAD_CONFIG}),
        ("PATCH", f"{one}?dry_run=true", {"config": {"my.api.secret": SENT}}),
        ("PATCH", one, {"config": {"topics": "louder-.*|(", "a.password": SENT}}),
        ("POST", f"{one}/restart", None),
        ("GET", "/lag", None),
        ("GET", "/openapi.json", None),
    ]
    parts = ("", "/partitions", "/topics", "/lag", "/history", "/config")
    return [*found, *(("GET", one + what, None) for what in parts), ("GET", "/flows", None)]


def test_levels_of_the_cluster_reach_both_workers_and_no_secret_is_told_at_the_loudest(
    workers: tuple[Mirror, Mirror], flow: Flow
) -> None:
    one, two = workers
    for worker in workers:
        until_running(worker, flow)
    pair = f"/{flow.source_alias}/{flow.target_alias}"
    for name, word in (("mm2py.runtime", "WARN"), ("root", "TRACE")):
        path = f"{pair}/admin/loggers/{name}?scope=cluster"
        status, text = ask(one, "PUT", path, OPERATOR, {"level": word})
        assert status == 204, text
        for worker in workers:
            until_level(worker, name, word)
    assert (
        ask(one, "PUT", f"{pair}/admin/loggers/root?scope=cluster", READER, {"level": "INFO"})[0]
        == 403
    )
    for worker in workers:
        for method, path, body in everything(flow):
            for who in (OPERATOR, READER, BEARER, STRANGER):
                if who in (READER, STRANGER) or method == "GET" or worker is two:
                    status, text = ask(worker, method, path, who, body)
                    assert status != 500 or "rebalance is expected" in text, (method, path, text)
    for worker in workers:
        said = worker.log()
        assert CANARY not in said
        assert SENT not in said
        assert worker.stop() == 0


START_S: Final = 90.0
STRANGERS: Final = 200
BODY_BYTES: Final = 15 * 1024 * 1024
DESCRIPTORS: Final = 160
GROWTH_BYTES: Final = 32 * 1024 * 1024
"""Of 3 GB that are offered. The first second takes most of it: what a worker has not needed before is loaded, and only then trimmed."""
LASTING_BYTES: Final = 12 * 1024 * 1024
ANSWER_S: Final = 90.0
FLOOD_S: Final = 8.0
JAVA: Final = (
    "X-Connect-Authorization: eA==\r\nX-Connect-Request-Signature-Algorithm: HmacSHA256\r\n"
)
OURS: Final = (
    "X-Mm2py-Authorization: eA==\r\nX-Mm2py-Caller: w;operator\r\nX-Mm2py-Stamp: 1;2;3;4\r\n"
)
LIMITED: Final = ("bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$0" "$@"', COMMAND)


def resident_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) * 1024


def settled_bytes(worker: Mirror) -> int:
    """Memory once the worker, which has just started, no longer grows by itself."""
    seen = [0]

    def has_settled() -> bool:
        seen.append(resident_bytes(worker.pid))
        return len(seen) > 5 and max(seen[-5:]) - min(seen[-5:]) < 1024 * 1024

    until(has_settled, START_S, "memory settles", alive=worker)
    return seen[-1]


def pump(lines: list[socket.socket], until_s: float) -> None:
    """Send bodies as fast as the worker takes them, on every line that it has not closed."""
    chunk = b"x" * 65_536
    left = {line.fileno(): (line, BODY_BYTES - 1) for line in lines}
    while left and time.monotonic() < until_s:
        _, writable, _ = select.select([], list(left), [], 0.2)
        for number in writable:
            line, missing = left.pop(number)
            with contextlib.suppress(OSError):
                sent = line.send(chunk[:missing])
                if missing > sent:
                    left[number] = line, missing - sent


@contextmanager
def strangers(address: tuple[str, int], pair: str) -> Generator[list[socket.socket]]:
    """Open idle connections, and twelve unfinished bodies of each kind; yields those with bodies."""
    lines: list[socket.socket] = []
    bodies: list[socket.socket] = []
    heads = [
        ("/flows", ""),
        ("/flows", OURS),
        (f"{pair}/connectors/MirrorSourceConnector/tasks", JAVA),
    ]
    try:
        lines.extend(socket.create_connection(address) for _ in range(STRANGERS))
        for path, headers in heads * 12:
            line = socket.create_connection(address)
            lines.append(line)
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_BYTES}\r\n{headers}\r\n"
            )
            with contextlib.suppress(OSError):
                line.sendall(head.encode())
                line.setblocking(False)
                bodies.append(line)
        yield bodies
    finally:
        for line in lines:
            line.close()


@pytest.mark.faults
def test_a_flood_on_the_internal_listener_costs_no_memory_answer_or_host(setup: Setup) -> None:
    topic = setup.topic("flood")
    flow = setup.flow(topic, {"listeners": "http://127.0.0.1:0", "task.host.processes": "1"})
    with Mirror(flow.file, program=LIMITED) as worker, httpx.Client(timeout=ANSWER_S) as client:
        line = worker.wait_for_log(r"rest listens public=", START_S)
        worker.wait_ready(START_S)
        found = re.search(r"public=(\S+) internal=(\S+)", line)
        assert found
        public, internal = str(found[1]), str(found[2])
        where = urlsplit(internal)
        assert where.hostname
        assert where.port
        host_pid = int(re.findall(r"pid=(\d+)", worker.wait_for_log("task host started pid="))[0])

        def answers() -> bool:
            return client.get(f"{public}flows").status_code == 200

        until(answers, START_S, "REST answers", alive=worker)
        before = settled_bytes(worker)
        with strangers(
            (where.hostname, where.port), f"/{flow.source_alias}/{flow.target_alias}"
        ) as bodies:
            os.kill(host_pid, signal.SIGKILL)
            end = time.monotonic() + FLOOD_S
            while time.monotonic() < end:
                pump(bodies, time.monotonic() + 0.5)
                assert answers()
                assert resident_bytes(worker.pid) - before < GROWTH_BYTES
            until(
                lambda: resident_bytes(worker.pid) - before < LASTING_BYTES, START_S, alive=worker
            )
            until(lambda: len(worker.lines("task host started pid=")) > 1, START_S, alive=worker)
        assert len(worker.log()) < 200_000
        assert worker.stop() == 0
