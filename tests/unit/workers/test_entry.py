"""A stop signal that arrives while a command is still being loaded ends it quietly."""

import subprocess
import sys

import pytest

# The first import of ours behind the entry point sends the signal, as a terminal would at that moment.
SIGNALLED = """
import os, signal, sys
from mm2py_workers import entry

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("mm2py"):
            os.kill(os.getpid(), signal.{number})
        return None

sys.meta_path.insert(0, Finder())
entry.{command}()
"""


@pytest.mark.parametrize(
    "command", ["connect_mirror_maker", "connect_distributed", "connect_standalone", "mm2py"]
)
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_the_imports_ends_the_process_without_a_trace(
    command: str, number: str, code: int
) -> None:
    program = SIGNALLED.format(command=command, number=number)
    done = subprocess.run([sys.executable, "-c", program], timeout=25, capture_output=True)
    assert (done.returncode, done.stderr) == (code, b"")


def test_the_console_scripts_begin_there() -> None:
    """Their own first import must load nothing that takes long."""
    program = "import sys; from mm2py_workers import entry; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], timeout=25, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in loaded if name.startswith("mm2py")}
    assert ours == {"mm2py_workers", "mm2py_workers.entry"}
    assert "asyncio" not in loaded


def test_a_worker_that_asks_no_other_loads_nothing_for_terminals_and_no_http_client() -> None:
    """They are megabytes of each of its processes."""
    program = "import sys, mm2py_workers.connect_mirror_maker, mm2py_workers.rest_wiring; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"rich", "httpx", "pygments", "tests.kit.kafka"} & set(loaded)
