"""Task hosts in child processes: started on need, watched, and shared by all flows of a worker.

Flow: ``HostPool.pick`` -> ``HostLink`` (one child) -> calls over its pipe. A child that ends, or is
silent for too long, is reported to every flow that used it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Protocol, final

from mm2py.clock import Clock, set_within, tick
from mm2py.errors import FatalError, Mm2pyError, ProtocolError
from mm2py.runtime.hosts.pipe import Channel, HostPipe
from mm2py.runtime.hosts.reports import HostReports
from mm2py.runtime.hosts.service import HostService

log = logging.getLogger(__name__)

HELLO_WITHIN_S: Final = 30.0
BYE_WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 5.0
SILENT_LOOKS: Final = 6
"""A host sends something every 4 seconds. Checks are counted, not seconds: this process may have
been frozen itself."""


class HostProcess(Protocol):
    """The child as a process."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """End it at once; nothing happens when it has ended."""
        ...

    async def ended(self) -> str:
        """Wait for its end and return how it ended: ``signal 9``, ``code 1``."""
        ...


@final
class HostLink:
    """The worker's side of one child.

    Args:
        pipe: to the child.
        process: the child.
        version: of this program; the child's must be the same.
    """

    def __init__(self, pipe: HostPipe, process: HostProcess, *, version: str, clock: Clock) -> None:
        self._pipe = pipe
        self._process = process
        self.pid: Final = process.pid
        self._clock = clock
        self._numbers = count(1)
        self._users: dict[int, Callable[[HostLink, Mm2pyError], None]] = {}
        self._reports = HostReports(version, clock)
        self._why = ""
        self._leaving = False
        self.host: Final = pipe.channel(0)
        """Where the child serves ``HostService``."""
        self.silent_s = 0.0
        """For how long it has sent nothing, checked every 5 seconds."""
        self.tasks = 0
        """Number of its tasks, light ones not counted."""
        self.alive = True
        self.own = False
        """Whether it was started for one task alone."""
        self._reports.serve(self.host)
        self._running = asyncio.create_task(self._run(), name=f"task host {process.pid}")

    async def greeted(self) -> None:
        """Wait until the child runs; ``FatalError``: it does not."""
        if not await set_within(self._reports.greeted, HELLO_WITHIN_S):
            self.kill(f"it did not start within {HELLO_WITHIN_S:g} s")
            await self.gone()
        if not self.alive:
            raise self._error()

    def attach(self, ended: Callable[["HostLink", Mm2pyError], None]) -> Channel:
        """Return a flow's channel; ``ended`` is called when the child is gone, with its tasks."""
        number = next(self._numbers)
        self._users[number] = ended
        return self._pipe.channel(number)

    def detach(self, channel: Channel) -> None:
        channel.close()
        self._users.pop(channel.number, None)

    def kill(self, why: str) -> None:
        if self.alive and not self._why:
            self._why = why
            log.error("task host is killed pid=%d cause=%s", self.pid, why)
        self._process.kill()

    def hang_up(self) -> None:
        """Close the pipe: the child takes that for the end of this process, commits and ends."""
        self._pipe.hang_up()

    async def gone(self) -> None:
        """Wait until the child has ended and every flow was notified."""
        await asyncio.wait({self._running})

    async def leave(self) -> None:
        """Let the child end in order; one that does not end is killed."""
        self._leaving = True
        with suppress(TimeoutError, Mm2pyError):
            async with asyncio.timeout(BYE_WITHIN_S):
                await self.host.ask(HostService.end)
        self.hang_up()
        await self.gone()

    # ---- the child's life

    async def _run(self) -> None:
        watch = asyncio.create_task(self._watch())
        try:
            # Ends with the pipe: the child has closed it, or is dead.
            await self._pipe.listen()
        except ProtocolError as damage:
            self.kill(str(damage))
        except Exception:
            log.exception("a report of a task host could not be processed pid=%d", self.pid)
            # A report that cannot be processed leaves counts and states that cannot be trusted.
            self.kill("this process has a defect")
        finally:
            watch.cancel()
        how = await self._process.ended()
        await self._pipe.close()
        self.alive = False
        self._why = f"ended with {how}" + (f" ({self._why})" if self._why else "")
        in_order = self._leaving and how == "code 0"
        (log.info if in_order else log.error)("task host %s pid=%d", self._why, self.pid)
        # Waiters for the greeting are released: it will never come.
        self._reports.greeted.set()
        error = self._error()
        # Before the flows are notified: their callbacks must find every call failed.
        self._pipe.fail(error)
        for ended in tuple(self._users.values()):
            try:
                ended(self, error)
            except Exception:  # those of the other flows must not look as if they ran
                log.exception("the end of a task host could not be processed pid=%d", self.pid)
        self._users.clear()

    async def _watch(self) -> None:
        silent = received = 0
        while True:
            await tick(self._clock, LOOK_EVERY_S)
            silent = 0 if self._pipe.received != received else silent + 1
            self.silent_s = silent * LOOK_EVERY_S
            received = self._pipe.received
            if silent >= SILENT_LOOKS:
                self.kill(f"no sign of life for {SILENT_LOOKS * LOOK_EVERY_S:.0f} s")
                return

    def _error(self) -> FatalError:
        return FatalError(f"task host {self.pid} {self._why}")


class Starter(Protocol):
    """Starts children (``mm2py.runtime.hosts.process.HostStarter``)."""

    async def spawn(self) -> HostLink: ...
    def close(self) -> None: ...


@final
class HostPool:
    """The children of one worker.

    Args:
        processes: most of them at a time, those that were started for one task not counted.
        starter: starts them; closed with the pool.
    """

    def __init__(self, processes: int, starter: Starter) -> None:
        self._processes = max(1, processes)
        self._starter = starter
        self._links: list[HostLink] = []
        self._levels: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._first: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(link.pid for link in self._links if link.alive)

    def start(self) -> None:
        """Start one host concurrently; its failure is reported by the first task."""
        if self._first is None:
            self._first = asyncio.create_task(self._start_first(), name="first task host")

    async def pick(self, *, own: bool = False, light: bool = False) -> HostLink:
        """Return the host with the fewest tasks, a new one while there may be more.

        ``own``: always a new one. ``light``: the task needs no core, so no process is started for
        it beside others. ``FatalError``: none can be started.
        """
        async with self._turn:
            alive = [link for link in self._alive() if not link.own]
            least = min(alive, key=lambda link: link.tasks, default=None)
            if own:
                least = await self._open()
                least.own = True
            elif least is None or (least.tasks and not light and len(alive) < self._processes):
                least = await self._open()
            # Before the turn ends: the next caller has to see the host as taken.
            least.tasks += not light
        # Outside of the turn: several may be starting at a time.
        try:
            await least.greeted()
        # A cancel too: the count would keep the host busy for ever.
        except BaseException:
            self.release(least, light=light)
            raise
        return least

    def release(self, link: HostLink, *, light: bool = False) -> None:
        """A task of a host has ended; one that was started for it ends too."""
        link.tasks -= not light
        if link.own and link.alive:
            leaving = asyncio.create_task(link.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def set_level(self, namespace: str, level: str) -> None:
        """Change the level of a logger in every host, of now and later."""
        self._levels[namespace] = level
        for link in self._alive():
            link.host.post(HostService.set_level, namespace, level)

    async def close(self) -> None:
        self._closed = True
        # Waited for, not cancelled: a fork that is cut off would leave a child without an owner.
        if self._first is not None:
            await asyncio.wait({self._first})
        async with self._turn:
            await asyncio.gather(*(link.leave() for link in self._alive()), *self._leaving)
            self._starter.close()

    def _alive(self) -> list[HostLink]:
        self._links = [link for link in self._links if link.alive]
        return self._links

    async def _start_first(self) -> None:
        async with self._turn:
            if not self._links:
                # The error comes again with the first task, which then fails with it.
                with suppress(Mm2pyError):
                    await self._open()

    async def _open(self) -> HostLink:
        if self._closed:
            raise FatalError("task hosts are closed")
        try:
            link = await self._starter.spawn()
        except OSError as error:
            raise FatalError(
                f"a task host cannot be started: {error}",
                remedy="see the limits of processes and open files",
            ) from error
        # Levels that were set before it was started.
        for namespace, level in self._levels.items():
            link.host.post(HostService.set_level, namespace, level)
        self._links.append(link)
        return link
