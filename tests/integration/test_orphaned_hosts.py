"""A task host ends after its worker, also while a plug-in blocks it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.mirror_process import until
from tests.integration.test_task_hosts import runs

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PLUGIN = """
import re, time
from pathlib import Path

class Blocking:
    java_class = "org.example.Blocking"

    def __init__(self, config):
        pass

    def open_task(self, config, context):
        Path(__file__).with_name(config["how"]).touch()
        if config["how"] == "sleeps":
            time.sleep(600)
        re.match("(a+)+$", "a" * 64 + "b")  # for ages, without the interpreter lock ever being free
"""


def install(folder: Path) -> None:
    """Make a package of a third party with the connector."""
    (folder / "blocking_plugin.py").write_text(PLUGIN)
    about = folder / "blocking_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: blocking-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[mm2py.connectors]\nBlocking = blocking_plugin:Blocking\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_hosts_whose_plug_in_blocks_end_after_a_killed_worker(tmp_path: Path) -> None:
    install(tmp_path)
    hows = ("sleeps", "holds_the_interpreter_lock")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.integration.host_worker", *hows]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        hosts = [int(pid) for pid in worker.stdout.readline().split()]
        try:
            assert len(hosts) == 2
            until(lambda: all((tmp_path / how).exists() for how in hows), 90, "both block")
            assert all(map(runs, hosts))
        finally:
            worker.kill()
    try:
        until(lambda: not any(map(runs, hosts)), 90, "hosts end")
    finally:
        for pid in filter(runs, hosts):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_sleeps_ends_after_the_other_end_of_its_pipe() -> None:
    script = """
import os, sys, time
from mm2py.runtime.hosts.process import end_with_worker

sys.platform = "another"
end_with_worker(0, after_s=0.01)
print("watches", flush=True)
time.sleep(600)
"""
    here, there = socket.socketpair()
    with (
        there,
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=there.fileno(), stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        there.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "watches\n"
        assert process.poll() is None
        here.close()
        assert process.wait(20) == 1
