"""Starts workers and commands without loading them again: a process that has loaded what they need forks one per request.

Flow: ``FORKS.start`` -> the server, which is started on first use -> fork -> the function of the console script -> its exit code
comes back. A worker of it differs from one that is run as a program in what is loaded when it begins, so tests of memory and of what
is loaded run the program. The server ends with the process that asks.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, cast, final

from mm2py.rest.job_routes import ROUTES
from mm2py.runtime.plugins.plugins import GROUP as CONNECTORS

_CHUNK: Final = 1 << 16
_ANSWERS_WITHIN_S: Final = 90.0
_TURN_S: Final = 0.1
"""Threads that wait for different processes take turns at reading what the server reports."""


@final
class Forked:
    """A process of the server, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, server: "ForkServer") -> None:
        self.pid = pid
        self.code: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code (negative: a signal), None while it runs."""
        return self._server.code_of(self, 0.0)

    def wait(self, timeout: float) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        deadline = time.monotonic() + timeout
        while (code := self._server.code_of(self, _TURN_S)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


@final
class ForkServer:
    """The side of the tests; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._received = b""
        self._running: dict[int, Forked] = {}
        """By process id: the system gives the id of an ended process to another one."""
        self._started: list[Forked] = []

    def start(
        self,
        entry: str,
        words: Sequence[str],
        log: Path,
        out: Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Forked:
        """Run an entry point (``module:function``) with the words of a command line, in this environment and what is added to it.

        It has a session of its own; what it prints goes to the file or FIFO, what is for standard output to ``out`` where that is
        given.
        """
        request = {
            "entry": entry,
            "words": list(words),
            "log": str(log),
            "out": str(out or log),
            "environ": {**os.environ, **(environ or {})},
        }
        with self._lock:
            control = self._connected()
            control.sendall(json.dumps(request).encode() + b"\n")
            deadline = time.monotonic() + _ANSWERS_WITHIN_S
            while not self._started:
                assert time.monotonic() < deadline, "the fork server does not answer"
                self._read(_TURN_S)
            return self._started.pop()

    def code_of(self, process: Forked, wait_s: float) -> int | None:
        """Return the exit code of a process, None while it runs; read for at most ``wait_s``."""
        with self._lock:
            if process.code is None:
                self._read(wait_s)
            return process.code

    def _connected(self) -> socket.socket:
        if self._control is None or self._owner != os.getpid():
            here, there = socket.socketpair()
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.kit.fork_server", str(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                    cwd=Path(__file__).parents[2],
                )
            self._control, self._owner = here, os.getpid()
            atexit.register(self._close)
        return self._control

    def _close(self) -> None:
        if self._control is not None and self._process is not None and self._owner == os.getpid():
            self._control.close()
            self._process.wait()

    def _read(self, wait_s: float) -> None:
        assert self._control is not None
        while select.select([self._control], [], [], wait_s)[0]:
            data = self._control.recv(_CHUNK)
            assert data, "the fork server has ended"
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                pid, code = cast("tuple[int, int | None]", json.loads(line))
                if code is None:
                    self._running[pid] = Forked(pid, self)
                    self._started.append(self._running[pid])
                else:
                    ended = self._running.pop(pid, None)
                    if ended is not None:  # else it was killed before it could report its start
                        ended.code = code
            wait_s = 0.0


FORKS: Final = ForkServer()


def _serve(control: socket.socket) -> dict[str, object]:
    """Fork for each request; return one in the process that was forked for it. Ends the server with the tests."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, _noted)
    received = b""
    both: list[socket.socket | int] = [control, woken]
    while True:
        readable, _, _ = select.select(both, [], [])
        if woken in readable:
            os.read(woken, _CHUNK)
            _report_ends(control)
        if control not in readable:
            continue
        data = control.recv(_CHUNK)
        if not data:
            sys.exit(0)
        *lines, received = (received + data).split(b"\n")
        for line in lines:
            if os.fork():
                continue
            os.setsid()  # before it is reported: its group may be signalled at once
            control.sendall(json.dumps([os.getpid(), None]).encode() + b"\n")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (woken, wakes):
                os.close(end)
            control.close()
            return cast("dict[str, object]", json.loads(line))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A child has ended: the wake-up descriptor of signals says so."""


def _report_ends(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        control.sendall(json.dumps([pid, code]).encode() + b"\n")


def _run(request: Mapping[str, object]) -> NoReturn:
    """Become the process that was asked for."""
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "log")):
        file = os.open(str(request[name]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, stream.fileno())
        os.close(file)
    os.environ.clear()
    os.environ.update(cast("dict[str, str]", request["environ"]))
    sys.argv = cast("list[str]", request["words"])
    module, _, function = str(request["entry"]).partition(":")
    getattr(importlib.import_module(module), function)()
    sys.exit(0)


def _load() -> None:
    """Import what a worker and a command do, that of HTTP too; starts no thread."""
    for module in ("connect_distributed", "connect_mirror_maker", "rest_wiring"):
        importlib.import_module(f"mm2py_workers.{module}")
    importlib.import_module("mm2py_cli.app")
    for group in (ROUTES, CONNECTORS):
        for point in entry_points(group=group):
            point.load()
    gc.freeze()  # a collection in a forked process would copy every page


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
