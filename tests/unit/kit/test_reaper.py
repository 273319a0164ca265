"""A process that is killed leaves nothing behind of what it has started."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_OWNER = """\
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
def test_a_killed_process_leaves_no_child_of_its_children_behind(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(folder)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as owner:
        assert owner.stdout is not None
        started = [int(pid) for pid in owner.stdout.readline().split()]
        owner.send_signal(signal.SIGKILL)
    assert len(started) == 2
    deadline = time.monotonic() + 25
    while folder.exists() or any(map(is_running, started)):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.05)
