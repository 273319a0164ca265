"""A task host as a child process: its start, its end, and its end when the worker is gone.

Flow: command + one end of a socket pair -> ``spawn_host`` -> ``HostLink`` over the other end. Never a fork of this
process: a child begins afresh, with a loop, connections and locks of its own. In the child: worker gone -> SIGUSR1
from the kernel -> libc's ``alarm`` -> SIGALRM; pipe closed -> a thread -> exit.
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, final

from mm2py.clock import Clock
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.pool import HostLink

__all__ = ["ENDS", "ChildProcess", "end_with_worker", "spawn_host"]

EXIT_WITHIN_S: Final = 5.0
"""Between the end of the pipe and the end of the process; longer ones are killed."""

ORPHAN_ENDS_AFTER_S: Final = 10.0
"""``HostService`` has 2 s for the tasks of a worker that is gone, and connections may be slow to close."""
PR_SET_PDEATHSIG: Final = 1

ENDS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that the worker answers for its children; a child begins with them blocked."""


@final
class ChildProcess:
    """A child as ``HostLink`` sees it.

    ``Popen``, because asyncio's own children cost a thread each on Python 3.11, all the time that they run.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()

    async def ended(self) -> str:
        """Wait for its end and return what kind it was; called when it closed its pipe."""
        try:
            code = await asyncio.to_thread(self._process.wait, EXIT_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            return f"signal 9: it did not exit within {EXIT_WITHIN_S:g} s"
        return f"signal {-code}" if code < 0 else f"code {code}"


async def spawn_host(command: Sequence[str], *, version: str, clock: Clock) -> HostLink:
    """Start ``command`` with the number of its pipe's descriptor as last argument.

    Raises:
        OSError: the process cannot be started.
    """
    here, there = socket.socketpair()
    with there:
        # Before the child: from its start to its link nothing may be cancelled.
        pipe = await HostPipe.over(here)
        number = there.fileno()
        try:
            with _ends_held_back():
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - it takes a millisecond; our own command
                    [*command, str(number)], pass_fds=(number,), stdin=subprocess.DEVNULL
                )
        except BaseException:
            pipe.hang_up()
            raise
    return HostLink(pipe, ChildProcess(process), version=version, clock=clock)


@contextmanager
def _ends_held_back() -> Generator[None]:
    """A terminal and a service manager signal the whole group: a child is born deaf to it, until it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the child


def end_with_worker(descriptor: int, *, after_s: float = ORPHAN_ENDS_AFTER_S) -> None:
    """End this process, whatever a plug-in does, when the worker at the other end of ``descriptor`` is gone for a while.

    On Linux also while a plug-in holds the interpreter lock, when no thread and no signal handler of Python runs: the
    kernel signals the end of the worker (more exactly, of its thread that started this process), and the handler is
    the C library's function ``alarm``. It takes the number of SIGUSR1, which is 10, for its seconds; SIGALRM then has
    no handler. Elsewhere only the thread watches, which has to wait for that lock.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal(signal.SIGUSR1, ctypes.cast(library.alarm, ctypes.c_void_p))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1, signal.SIGALRM))
        library.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    threading.Thread(target=_watch, args=(os.dup(descriptor), after_s), daemon=True).start()


def _watch(descriptor: int, after_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # the end of the pipe is always reported
    poll.poll()
    time.sleep(after_s)
    os._exit(1)
