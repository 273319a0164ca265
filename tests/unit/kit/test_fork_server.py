"""Workers that are forked from a loaded process behave as the program does: words, output, exit codes, signals."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit.fork_server import Forked, ForkServer

pytestmark = pytest.mark.timeout(90)
"""The server loads all that a worker needs."""


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer()


def started(server: ForkServer, folder: Path, *words: str) -> tuple[Forked, Path]:
    log = folder / "log"
    log.touch()
    entry = "mm2py_workers.entry:connect_mirror_maker"
    return server.start(entry, ["connect-mirror-maker-py", *words], log), log


def test_a_forked_worker_reads_its_words_and_environment_and_ends_with_its_exit_code(
    server: ForkServer, tmp_path: Path
) -> None:
    process, log = started(server, tmp_path, "--no-such-option")
    assert process.wait(60) == 2
    assert process.poll() == 2
    assert log.read_text().startswith("connect-mirror-maker-py: ")
    other, log = started(server, tmp_path, str(tmp_path / "no-such-file"))
    assert other.wait(60) == 1
    assert "no-such-file" in log.read_text()


def test_a_forked_worker_has_a_session_of_its_own_and_its_death_is_reported(
    server: ForkServer, tmp_path: Path
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = a, b\na.bootstrap.servers = 127.0.0.1:9\n"
                    "b.bootstrap.servers = 127.0.0.1:9\na->b.enabled = true\na->b.topics = t\n")  # fmt: skip
    process, _ = started(server, tmp_path, str(file))
    assert os.getpgid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # it is gone


def test_the_exit_code_of_a_process_is_not_that_of_a_later_one_with_the_same_id(
    tmp_path: Path,
) -> None:
    here, there = socket.socketpair()
    server = ForkServer()
    server._control, server._owner = here, os.getpid()  # pyright: ignore[reportPrivateUsage]
    there.sendall(b"[7, null]\n")
    first = server.start("", [], tmp_path / "log")
    there.sendall(b"[7, 3]\n[7, null]\n")
    second = server.start("", [], tmp_path / "log")
    assert second.poll() is None
    there.sendall(b"[7, 0]\n")
    assert (first.wait(5), second.wait(5)) == (3, 0)
    here.close()
    there.close()
