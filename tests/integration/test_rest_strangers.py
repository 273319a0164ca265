"""A worker whose internal listener strangers flood: memory, answers, and a task host that has to start again."""

import contextlib
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.mirror_process import COMMAND, Mirror, until, write_flow
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

START_S: Final = 90.0
STRANGERS: Final = 200
BODY_BYTES: Final = 15 * 1024 * 1024
DESCRIPTORS: Final = 160
GROWTH_BYTES: Final = 32 * 1024 * 1024
"""Of 3 GB that are offered. The first second takes most of it: what a worker has not needed before is loaded, and only then trimmed."""
LASTING_BYTES: Final = 12 * 1024 * 1024

ANSWER_S: Final = 30.0
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


def test_a_flood_on_the_internal_listener_costs_neither_memory_nor_answers_nor_task_hosts(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: Callable[[KafkaAddress, str], None],
    tmp_path: Path,
) -> None:
    topic = unique("flood")
    create_topic(region_a, topic)
    flow = write_flow(
        tmp_path,
        region_a,
        region_b,
        topic,
        {"listeners": "http://127.0.0.1:0", "task.host.processes": "1"},
    )
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
                lambda: resident_bytes(worker.pid) - before < LASTING_BYTES,
                START_S,
                "memory of the flood to be given back",
                alive=worker,
            )
            until(
                lambda: len(worker.lines("task host started pid=")) > 1,
                START_S,
                "a new host",
                alive=worker,
            )
        assert len(worker.log()) < 200_000
        assert worker.stop() == 0
