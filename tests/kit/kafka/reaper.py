"""Ends what a process that died had started: pids and folders -> a watching process -> SIGKILL, removal.

The watcher reads lines from a pipe whose other end only the watched process holds, so it sees the end of
it however it died; a death signal of the kernel would follow the *thread* that started the child.
On Linux all descendants end that were started since, also those of a worker that ended before: they inherit
``STARTED_BY``. Elsewhere those that were named. Ordinary stops do not pass here.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, final

STARTED_BY: Final = "MM2PY_TESTS_PID"
"""Environment variable of processes that tests start: which process runs the tests."""

_EXIT_TIMEOUT_S: Final = 10.0
_SWEEPS: Final = 3


@final
class Reaper:
    """Tells the watcher what to end; starts the watcher on first use. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watcher: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def watch_process(self, pid: int) -> None:
        """Kill ``pid`` when this process is gone."""
        self._tell(f"+{pid}")

    def forget_process(self, pid: int) -> None:
        """The process has ended and was waited for."""
        self._tell(f"-{pid}")

    def watch_folder(self, folder: Path) -> None:
        """Remove ``folder``, also one that was mounted, when this process is gone."""
        self._tell(f"f{folder}")

    def forget_folder(self, folder: Path) -> None:
        """The folder was removed."""
        self._tell(f"u{folder}")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._watcher is None or self._owner != os.getpid():
                self._watcher = self._start()
                self._owner = os.getpid()
                atexit.register(self._at_exit)
            pipe = self._watcher.stdin
            if pipe is not None:
                # A watcher that someone killed costs the safety net, never the brokers.
                with contextlib.suppress(BrokenPipeError):
                    pipe.write(line.encode() + b"\n")
                    pipe.flush()

    def _at_exit(self) -> None:
        """Close the pipe: the watcher ends what was left running, then itself."""
        with self._lock:
            watcher = self._watcher
            if watcher is None or self._owner != os.getpid():
                return  # a forked child leaves its parent's brokers alone
            self._watcher = None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            watcher.communicate(timeout=_EXIT_TIMEOUT_S)

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        os.environ[STARTED_BY] = str(os.getpid())
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )


REAPER: Final = Reaper()


def _watch(owner: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        verb, value = line[0], line[1:].rstrip("\n")
        if verb == "+":
            pids.add(int(value))
        elif verb == "-":
            pids.discard(int(value))
        elif verb == "f":
            folders.add(value)
        else:
            folders.discard(value)
    for _ in range(_SWEEPS):  # they may start others meanwhile
        pids |= _started_by(owner)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        pids.clear()  # the system may give their ids to others
        time.sleep(0.1)
    for folder in folders:
        if os.path.ismount(folder):
            subprocess.run(["umount", "-l", folder])
        shutil.rmtree(folder, ignore_errors=True)


def _started_by(owner: str) -> set[int]:
    mark, found = f"{STARTED_BY}={owner}".encode(), set[int]()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in environ.read_bytes().split(b"\0"):
                found.add(int(environ.parent.name))
    return found - {os.getpid()}


if __name__ == "__main__":
    _watch(sys.argv[1])
