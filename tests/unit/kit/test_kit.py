"""What the tests stand on: Kafka's jars and Java, forked workers, what a killed process leaves, lines, a fake log, repeats."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Final

import pytest

from mm2py.errors import ConfigError
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES
from mm2py_jobs.spark.java import find_java
from tests.kit.fakes.broker_log import PartitionLog
from tests.kit.fork_server import Forked, ForkServer
from tests.kit.hermetic import ROOT
from tests.kit.kafka.jars import Jar, fetch, fetch_jars
from tests.kit.kafka.region import Region
from tests.kit.lane import QUARTERS, quarter_of
from tests.kit.lines.delay_proxy import DelayProxy, Way

pytestmark = pytest.mark.timeout(300)

# -- Kafka's jars, and Java

CONTENT = b"not really a jar"


def repository(root: Path, *names: str) -> tuple[list[Jar], str]:
    jars = [Jar(f"org.example.x:{name}:1.0", hashlib.sha256(CONTENT).hexdigest()) for name in names]
    for jar in jars:
        path = root / jar.repository_path
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
    return jars, root.as_uri()


def test_jars_are_fetched_once_a_damaged_one_anew_and_one_of_another_hash_is_refused(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "one-1.0.jar").write_bytes(b"half")
    jars, address = repository(tmp_path / "repo", "one", "two")
    paths = fetch(jars, cache, address)
    assert [it.name for it in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert {it.read_bytes() for it in paths} == {CONTENT}
    assert fetch(jars, cache, "file:///nowhere") == paths
    (wrong,), address = repository(tmp_path / "other", "three")
    (tmp_path / "other" / wrong.repository_path).write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"three-1\.0\.jar has sha256 .* the pinned list says"):
        fetch([wrong], cache, address)
    assert set(cache.iterdir()) == set(paths), "nothing is left behind"


def test_an_unpacked_kafka_replaces_the_pinned_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libs").mkdir()
    monkeypatch.setenv("MM2PY_KAFKA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"holds no libs/kafka_2\.\*\.jar"):
        fetch_jars("broker")
    (tmp_path / "libs" / "kafka_2.13-4.3.0.jar").touch()
    assert [path.name for path in fetch_jars("tools")] == ["kafka_2.13-4.3.0.jar"]


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "found"),
    [("21.0.2", ("home", 21)), ("1.8.0_302", ("path", 17)), ("11.0.2", ("path", 17))],
)
def test_java_home_wins_over_the_path_unless_it_is_too_old(
    tmp_path: Path, version: str, found: tuple[str, int]
) -> None:
    fake_java(tmp_path / "home", version)
    path = str(fake_java(tmp_path / "path", "17.0.1").parent)
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path})
    assert (java.executable, java.major) == (tmp_path / found[0] / "bin" / "java", found[1])


def test_one_line_says_what_was_tried_and_what_to_install(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError) as refused:
        find_java({"MM2PY_JAVA": str(old)})
    assert str(refused.value) == (
        f"no Java 17 or newer (MM2PY_JAVA={old}: Java 11); install Java 17 or newer (Debian, Ubuntu: "
        "openjdk-17-jre-headless) or the JRE wheel (pip install 'mm2py[jre]')"
    )
    with pytest.raises(ConfigError, match=r"MM2PY_JAVA=.*/gone: not there"):
        find_java({"MM2PY_JAVA": str(tmp_path / "gone")})


def test_a_nearly_full_disk_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"region full: only \d+ MiB are free in .*TMPDIR"):
        Region("full", folder=tmp_path, min_free_bytes=1 << 62).start()
    assert list(tmp_path.iterdir()) == []


# -- workers that are forked from a loaded process, and what a killed process leaves


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer()


def started(server: ForkServer, folder: Path, *words: str) -> tuple[Forked, Path]:
    log = folder / "log"
    log.touch()
    entry = "mm2py_workers.entry:connect_mirror_maker"
    return server.start(entry, ["connect-mirror-maker-py", *words], log), log


def test_a_forked_worker_has_its_words_its_session_and_its_exit_code(
    server: ForkServer, tmp_path: Path
) -> None:
    process, log = started(server, tmp_path, "--no-such-option")
    assert (process.wait(90), process.poll()) == (2, 2)
    assert log.read_text().startswith("connect-mirror-maker-py: ")
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = a, b\nbootstrap.servers = 127.0.0.1:9\na->b.enabled = true\n")
    process, _ = started(server, tmp_path, str(file))
    assert os.getpgid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(90) == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # it is gone


def test_the_exit_code_of_a_process_is_not_that_of_a_later_one_of_its_id(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    server = ForkServer()
    server._control, server._owner = here, os.getpid()  # pyright: ignore[reportPrivateUsage]
    there.sendall(b"[7, null]\n")
    first = server.start("", [], tmp_path / "log")
    there.sendall(b"[7, 3]\n[7, null]\n")
    second = server.start("", [], tmp_path / "log")
    assert second.poll() is None
    there.sendall(b"[7, 0]\n")
    assert (first.wait(90), second.wait(90)) == (3, 0)
    here.close()
    there.close()


OWNER = """\
import pathlib, subprocess, sys
from tests.kit.kafka.reaper import REAPER
REAPER.watch_folder(pathlib.Path(sys.argv[1]))
subprocess.run(["sh", "-c", "sleep 600 & echo $! $$; wait"])
"""


def is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # empty: nobody waited for its end
    except OSError:
        return False


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems show no environment of processes"
)
def test_a_killed_process_leaves_no_child_of_children_and_no_disk_behind(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    # A small disk where that is allowed: left mounted, it would fail the next runs at their end.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        children = [int(pid) for pid in owner.stdout.readline().split()]
        owner.send_signal(signal.SIGKILL)
    assert len(children) == 2
    deadline = time.monotonic() + 90
    while folder.exists() or any(map(is_running, children)):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.05)


# -- the line of the chaos tests


class Echo(BaseRequestHandler):
    """Sends back what it gets."""

    def handle(self) -> None:
        try:
            while data := self.request.recv(65536):
                self.request.sendall(data)
        except OSError:
            return


@pytest.fixture
def echo() -> Iterator[int]:
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ask(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    assert connection.recv(len(data)) == data


@pytest.mark.parametrize("way", list(Way))
def test_a_line_is_late_stalls_one_way_and_is_reset(echo: int, way: Way) -> None:
    with DelayProxy() as line:
        port = line.front(echo)
        line.set_round_trip(0.1)
        with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
            began = time.monotonic()
            ask(connection, b"ping")
            assert time.monotonic() - began >= 0.1
            line.set_round_trip(0)
            line.stall(way)
            connection.sendall(b"during")
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(90)
            line.heal()
            assert connection.recv(6) == b"during"
            line.reset()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
            ask(connection, b"after")


# -- the log of the fake broker, which judges sequences as Kafka does


def batch(count: int = 1, *, epoch: int = 0, sequence: int = 0) -> bytes:
    """A signed batch of ``count`` records; the fake never looks inside."""
    data = bytearray(HEADER_BYTES + 10 * count)
    HEADER.pack_into(data, 0, 0, len(data) - 12, -1, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    sign(data, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return bytes(data)


@pytest.mark.parametrize(
    ("batches", "codes", "stored"),
    [
        ([batch(3), batch(3, sequence=3), batch(3, sequence=6)], [0, 0, 0], [0, 3, 6]),
        ([batch(3), batch(3, sequence=4), batch(3, sequence=2), batch(4)], [0, 45, 45, 45], [0]),
        ([batch(sequence=1000), batch(), batch(sequence=1001)], [0, 45, 0], [0, 1]),
        ([batch(), batch(epoch=1, sequence=1), batch(epoch=1), batch()], [0, 45, 0, 47], [0, 1]),
    ],
    ids=["consecutive", "gap, overlap, restart", "the first may have any", "a new epoch fences"],
)
def test_the_fake_log_judges_sequences(
    batches: list[bytes], codes: list[int], stored: list[int]
) -> None:
    log = PartitionLog()
    assert [log.append(data, 5).error_code for data in batches] == codes
    assert [HEADER.unpack_from(it.data)[0] for it in log.batches] == stored


def test_the_fake_log_knows_the_last_five_batches_by_their_offset_and_time() -> None:
    log = PartitionLog()
    batches = [batch(sequence=n) for n in range(6)]
    for data in batches:
        log.append(data, 5)
    assert [log.append(batches[n], 5) for n in range(1, 6)] == [(0, n, 5) for n in range(1, 6)]
    assert (log.append(batches[0], 5).error_code, log.end) == (45, 6)


# ---- a failed test is repeated alone: one that fails once is flaky, one that fails twice is red


ONCE: Final = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "the machine was busy"
"""
ALWAYS: Final = "def test_fails():\n    assert not 'wrong'\n"
BEHIND: Final = """
import pytest
@pytest.fixture
def broker():
    yield
    raise AssertionError("a broker is left behind")
def test_leaves_something(broker): pass
"""
HANGS: Final = """
import pytest, threading
@pytest.mark.timeout(0.3)
def test_hangs(): threading.Event().wait()
"""
STANDS: Final = """
import asyncio, pytest
from tests.kit import lane
lane.AGAIN_S = 0.3
@pytest.mark.timeout(0.3)
def test_stands():
    async def run():
        async def works():
            while True:
                pass
        task = asyncio.create_task(works())  # in which the first time limit ends
        await asyncio.wait([task])
        await asyncio.Event().wait()
    asyncio.run(run())
"""
SKIPS: Final = """
import pytest
from pathlib import Path
def test_skips():
    seen = Path(__file__).with_name("seen")
    if seen.exists(): pytest.skip("the tool is gone")
    seen.touch()
    assert not 'wrong'
"""
QUARANTINED: Final = """
import pytest
@pytest.mark.quarantine("the broker forgets it", "2026-11-28")
def test_unsteady(): assert not 'wrong'
def test_well(): pass
"""
LOGS: Final = """
import logging
def test_leaves_a_level_and_a_handler():
    logging.getLogger("mm2py").setLevel("DEBUG")
    logging.getLogger().addHandler(left := logging.NullHandler())
    left.name = "left"
def test_finds_none():
    assert logging.getLogger("mm2py").level == 0
    assert "left" not in [it.name for it in logging.getLogger().handlers]
"""
PLAIN: Final = " ".join(
    f"-p no:{it}" for it in ("schemathesis", "hypothesispytest", "randomly", "anyio")
)
"""Each takes longer to load than these tests."""
FLAKY: Final = "flaky: test_it.py::test_fails_once (call: AssertionError: the machine"
NINE: Final = "".join(f"def test_{it}(): assert 0\n" for it in range(9))


def run(folder: Path, body: str, *words: str) -> tuple[int, str]:
    """Run pytest over one file in a tree of its own."""
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.kit.lane"]\n')
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {PLAIN}\n")
    (folder / "test_it.py").write_text(body)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MM2PY_CACHE": str(folder)}
    environ = {it: value for it, value in environ.items() if not it.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_it.py", "--repeats", "8", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("processes", "bodies", "code", "said"),
    [
        (0, [ONCE, LOGS], 0, [FLAKY, "2 passed"]),
        (2, [ONCE, QUARANTINED], 0, [FLAKY, "quarantine: test_it.py::test_unsteady: failed"]),
        (
            0,
            [ALWAYS, BEHIND, HANGS, STANDS, SKIPS],
            1,
            [
                "failed twice: test_it.py::test_fails (call: AssertionError",
                "failed twice: test_it.py::test_leaves_something (teardown: Assertion",
                "failed twice: test_it.py::test_hangs (call: Failed: Timeout",
                "failed twice: test_it.py::test_stands (call: Failed: Timeout",
                "failed twice: test_it.py::test_skips",
            ],
        ),
        (0, [NINE], 1, ["9 tests failed, more than 8"]),
    ],
    ids=["flaky and logs", "flaky and quarantine", "failed twice", "nine"],
)
def test_what_fails_is_repeated_alone_and_named(
    tmp_path: Path, processes: int, bodies: list[str], code: int, said: list[str]
) -> None:
    ended, printed = run(tmp_path, "\n".join(bodies), "-n", str(processes))
    assert (ended, [it for it in said if it not in printed]) == (code, []), printed
    assert printed.count("flaky: ") == said.count(FLAKY), printed


def test_a_file_that_cannot_be_imported_is_not_hidden_by_a_flaky_test(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    ended, printed = run(tmp_path, ONCE, "-n", "2", "test_broken.py")
    assert (ended != 0, "test_broken.py" in printed) == (True, True), printed


def test_every_file_is_in_one_quarter_and_each_has_some() -> None:
    files = [str(it.relative_to(ROOT)) for it in (ROOT / "tests").rglob("test_*.py")]
    assert {quarter_of(name) for name in files} == set(range(QUARTERS))
