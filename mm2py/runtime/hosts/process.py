"""Task hosts as child processes, forked by a starter process: their start, and their end
(docs/adr/0001-task-hosts.md).

Flow: ``HostStarter.fork_now`` before the worker has a loop, a thread or a connection -> the
starter, which has loaded what a host needs -> one fork per host with an end of its pipe
(``SCM_RIGHTS``) -> ``HostLink`` over the other end. A host thus has a loop, connections and locks
of its own, and starts in a hundredth of the time that loading takes. A starter that was killed, and
its hosts with it, is replaced by one that loads everything again.

When the worker is gone: the starter ends with it -> SIGUSR1 from the kernel to the hosts -> libc's
``alarm`` -> SIGALRM; pipe closed -> a thread -> exit.
"""

import asyncio
import ctypes
import gc
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn, final

from mm2py.clock import Clock
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.pool import HostLink

log = logging.getLogger(__name__)

EXIT_WITHIN_S: Final = 5.0
"""Between the end of the pipe and the end of the process; then it is killed."""

START_WITHIN_S: Final = 30.0
"""A starter that does not answer for this long is frozen or starved, and is replaced."""

ORPHAN_ENDS_AFTER_S: Final = 10.0
"""``HostService`` has 2 s for the tasks of a lost worker; connections may close slowly."""
PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15

ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that only the worker handles: a terminal and a service manager signal the whole process
group, hosts included."""

_EVENT: Final = struct.Struct("!iii")
"""From the starter: process id or 0, ``_STARTED`` or ``_ENDED``, and errno or exit code (negative:
a signal)."""
_STARTED: Final = 0
_ENDED: Final = 1


@final
class ChildProcess:
    """A host as ``HostLink`` sees it; ``unreported``: its starter does not report its end."""

    def __init__(self, pid: int, unreported: Callable[[], None]) -> None:
        self.pid: Final = pid
        self._unreported = unreported
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        if not self._code.done():
            # The starter reaps it, so the number may be gone already.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def exited(self, code: int) -> None:
        """Its end was reported."""
        if not self._code.done():
            self._code.set_result(code)

    async def ended(self) -> str:
        """Wait for its end and return how it ended; called after it closed its pipe."""
        # First the host is killed, then its starter counts as dead.
        for beyond in (self.kill, self._unreported):
            try:
                async with asyncio.timeout(EXIT_WITHIN_S):
                    code = await asyncio.shield(self._code)
            except TimeoutError:
                beyond()
            else:
                return f"signal {-code}" if code < 0 else f"code {code}"
        return f"signal 9: its end was not seen within {2 * EXIT_WITHIN_S:g} s"


@final
class HostStarter:
    """The worker's side of the process that forks its task hosts.

    Args:
        command: starts such a process, which calls ``serve_starts`` with the number of a
            descriptor, its last argument.
        version: of this program; a host's must be the same.
    """

    def __init__(self, command: Sequence[str], *, version: str, clock: Clock) -> None:
        self._command, self._version, self._clock = tuple(command), version, clock
        self._control: socket.socket | None = None
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = b""
        self._asked: deque[asyncio.Future[ChildProcess]] = deque()
        self._children: dict[int, ChildProcess] = {}

    def fork_now(self, run: Callable[[int], None]) -> None:
        """Fork the starter from this process, which must have no thread and no event loop yet.

        ``run`` serves one host, given the descriptor of its pipe.
        """
        _flush_output()
        # Before the fork: a collection writes to the header of every object, which would unshare
        # the loaded modules' pages.
        gc.freeze()
        # A parent may have left SIGCHLD ignored; then waitpid would find no child.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        here, there = socket.socketpair()
        with _signals_blocked():
            pid = os.fork()
            if not pid:
                here.close()
                serve_starts(there, run)
        there.close()
        self._control, self._pid = here, pid

    async def spawn(self) -> HostLink:
        """Start a host; ``OSError``: the process cannot be started."""
        here, there = socket.socketpair()
        with there:
            pipe = await HostPipe.over(here)
            try:
                child = await self._started(there.fileno())
            except BaseException:
                # A host that was forked after all sees its pipe closed and ends.
                pipe.hang_up()
                raise
        return HostLink(pipe, child, version=self._version, clock=self._clock)

    def close(self) -> None:
        if self._control is not None:
            self._lost(self._control)

    async def _started(self, descriptor: int) -> ChildProcess:
        control = self._control
        if control is None:
            control = self._start_another()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(control, self._take_events, control)
        answer: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        try:
            # SCM_RIGHTS: the host inherits its end without the worker being forked itself, which
            # has threads and connections.
            socket.send_fds(control, [b"+"], [descriptor])
        except OSError:
            answer.cancel()
            self._lost(control)
            raise
        # A host that was asked for begins: a caller that is cancelled closes its pipe, and it ends.
        try:
            async with asyncio.timeout(START_WITHIN_S):
                return await answer
        except TimeoutError:
            self._lost(control)
            raise OSError(f"no process was forked within {START_WITHIN_S:g} s") from None

    def _start_another(self) -> socket.socket:
        here, there = socket.socketpair()
        with there, _signals_blocked():
            there.set_inheritable(True)
            # Not ``fork``: a forked copy could hold locks of this process's threads.
            self._pid = os.posix_spawn(
                self._command[0], [*self._command, str(there.fileno())], os.environ
            )
        self._control = here
        return here

    def _take_events(self, control: socket.socket) -> None:
        data = control.recv(65536)
        if not data:
            log.error("the process that starts task hosts has ended, they end with it")
            self._lost(control)
            return
        self._received += data
        # A stream socket may deliver half an event.
        whole = len(self._received) // _EVENT.size * _EVENT.size
        events, self._received = self._received[:whole], self._received[whole:]
        # Starts are answered in the order they were asked for; ends carry their process id.
        for pid, kind, code in _EVENT.iter_unpack(events):
            if kind == _ENDED:
                if (child := self._children.pop(pid, None)) is not None:
                    child.exited(code)
            else:
                answer, child = self._asked.popleft(), None
                if pid:
                    child = self._children[pid] = ChildProcess(pid, self._silent)
                if answer.cancelled():
                    continue
                if child is None:
                    answer.set_exception(OSError(code, os.strerror(code)))
                else:
                    # The child, not its number: the next event may be its end already.
                    answer.set_result(child)

    def _silent(self) -> None:
        if self._control is not None:
            log.error("the process that starts task hosts does not answer, it is replaced")
            self._lost(self._control)

    def _lost(self, control: socket.socket) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(control)
        control.close()
        self._control, self._loop, self._received = None, None, b""
        with suppress(ProcessLookupError, ChildProcessError):  # it was waited for elsewhere
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(OSError("the process that starts task hosts has ended"))
        self._asked.clear()
        for child in self._children.values():
            # PDEATHSIG reaches them too; where it does not exist (no Linux) this does it.
            child.kill()
            child.exited(-signal.SIGKILL)
        self._children.clear()


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or never opened: None
            stream.flush()


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block signals to the process group during a fork, until the child ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the starter


def serve_starts(control: socket.socket, run: Callable[[int], None]) -> NoReturn:
    """Fork a host per descriptor that comes over ``control``, and report ends; never returns.

    Synchronous and without threads, so that a fork copies no lock that is held. ``run`` is called
    in the host.
    """
    # Ctrl-C goes to the whole foreground group: only the worker may decide when the others end.
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # For ``ps -o comm``: the command line is the worker's.
        library.prctl(PR_SET_NAME, b"mm2py-starter")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    wake, woken = socket.socketpair()
    woken.settimeout(0)
    # A self-pipe: a signal between ``poll`` calls would be missed otherwise.
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    # A handler must exist, or no byte is written to the wake-up descriptor.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    gc.freeze()  # for a starter that was not forked: what is loaded stays shared with the hosts
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == wake.fileno():
                wake.recv(4096)
                _report_ends(control)
                continue
            try:
                data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except ConnectionError:
                data, descriptors = b"", []
            if not data:
                os._exit(0)
            _fork_host(control, (wake, woken), descriptors[0], run)


def _fork_host(
    control: socket.socket,
    wakes: Sequence[socket.socket],
    descriptor: int,
    run: Callable[[int], None],
) -> None:
    try:
        # Safe here: one thread, no event loop, no connection.
        pid = os.fork()
    except OSError as error:
        control.sendall(_EVENT.pack(0, _STARTED, error.errno or 0))
    else:
        if not pid:
            # The host's own signals must not wake the starter.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (control, *wakes):
                inherited.close()
            _run_host(descriptor, run)
        control.sendall(_EVENT.pack(pid, _STARTED, 0))
    os.close(descriptor)


def _run_host(descriptor: int, run: Callable[[int], None]) -> NoReturn:
    code = 1
    try:
        run(descriptor)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the process's edge
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _flush_output()
        # No ``atexit`` and no finalizers of what was loaded in the starter.
        os._exit(code)


def _report_ends(control: socket.socket) -> None:
    # Several children may have ended under one SIGCHLD.
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with suppress(ConnectionError):
            control.sendall(_EVENT.pack(pid, _ENDED, os.waitstatus_to_exitcode(status)))


# ---- in the host


def end_with_worker(descriptor: int, *, after_s: float = ORPHAN_ENDS_AFTER_S) -> None:
    """End this process some time after the worker at the other end of ``descriptor`` has gone.

    It needs no help of a plug-in. On Linux also while one holds the interpreter lock, when no
    thread and no signal handler of Python runs: the kernel signals the end of the starter, which
    ends with the worker, and the handler is the C library's function ``alarm``. It takes the number
    of SIGUSR1, which is 10, for its seconds; SIGALRM then has no handler. Elsewhere only the thread
    watches, which has to wait for that lock.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal(signal.SIGUSR1, ctypes.cast(library.alarm, ctypes.c_void_p))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1, signal.SIGALRM))
        library.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        library.prctl(PR_SET_NAME, b"mm2py-host")
    threading.Thread(target=_watch, args=(os.dup(descriptor), after_s), daemon=True).start()


def _watch(descriptor: int, after_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # the end of the pipe is always reported
    poll.poll()
    time.sleep(after_s)
    os._exit(1)
