"""Starts a task host as a child process and ends it.

Flow: command + one end of a socket pair -> ``spawn_host`` -> ``HostLink`` over the other end. Never a fork of
this process: a child begins afresh, with the loop, connections and locks of nobody.
"""

import signal
import socket
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, final

from mm2py.clock import Clock
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.pool import HostLink

__all__ = ["ENDS", "ChildProcess", "spawn_host"]

EXIT_WITHIN_S: Final = 5.0
"""Between the end of the pipe and the end of the process; longer ones are killed."""
LOOK_EVERY_S: Final = 0.02

ENDS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that the worker answers for its children; a child begins with them blocked."""


@final
class ChildProcess:
    """A child as ``HostLink`` sees it.

    ``Popen`` and a few looks, because asyncio's own children cost a thread each on Python 3.11.
    """

    def __init__(self, process: subprocess.Popen[bytes], clock: Clock) -> None:
        self._process = process
        self._clock = clock

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()

    async def ended(self) -> str:
        """Wait for its end and say how; called when it closed its pipe."""
        deadline = self._clock.monotonic() + EXIT_WITHIN_S
        while (code := self._process.poll()) is None:
            if self._clock.monotonic() > deadline:
                self._process.kill()
            await self._clock.sleep(LOOK_EVERY_S)
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
    return HostLink(pipe, ChildProcess(process, clock), version=version, clock=clock)


@contextmanager
def _ends_held_back() -> Generator[None]:
    """A terminal and a service manager signal the whole group: a child is born deaf to it, until it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
