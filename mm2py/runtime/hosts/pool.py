"""Task hosts in child processes: started on need, watched, and shared by all flows of a worker.

Flow: ``HostPool.pick`` -> ``HostLink`` (one child) -> requests and posts; its messages -> the flow whose
channel they carry. A child that ends, or is silent for too long, is told to every flow that used it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Final, Protocol, final

from mm2py.clock import Clock
from mm2py.errors import FatalError, Mm2pyError, ProtocolError, RequestTimedOutError
from mm2py.runtime.hosts.frames import Message
from mm2py.runtime.hosts.messages import Bye, Done, Hello, LogLevel, LogLine, ToHost
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.reports import write_line

__all__ = ["HostLink", "HostPool", "HostProcess", "HostUser"]

log = logging.getLogger(__name__)

HELLO_WITHIN_S: Final = 30.0
BYE_WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 5.0
SILENT_LOOKS: Final = 6
"""A host speaks every 4 seconds at least. Looks are counted, not seconds: this process may have been frozen itself."""


class HostProcess(Protocol):
    """The child as a process."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def kill(self) -> None:
        """End it at once; nothing happens when it has ended."""
        ...

    async def ended(self) -> str:
        """Wait for its end and say how: ``signal 9``, ``code 1``."""
        ...


class HostUser(Protocol):
    """A flow that uses a host."""

    def received(self, link: "HostLink", message: Message) -> None:
        """A message came on the flow's channel."""
        ...

    def host_ended(self, link: "HostLink", error: Mm2pyError) -> None:
        """The host is gone, and with it every task it ran."""
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
        self._version = version
        self._clock = clock
        self._ids = count(1)
        self._channels = count(1)
        self._users: dict[int, HostUser] = {}
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._heard = False
        self._greeted = asyncio.Event()
        self._why = ""
        self._leaving = False
        self.tasks = 0
        """How many tasks it was given, the light ones not counted."""
        self.alive = True
        self.own = False
        """Whether it was started for one task alone."""
        self._running = asyncio.create_task(self._run(), name=f"task host {process.pid}")

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def greeted(self) -> None:
        """Wait until the child runs.

        Raises:
            FatalError: it does not.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(HELLO_WITHIN_S):
                await self._greeted.wait()
        if not self._greeted.is_set():
            self.kill("it did not start")
            await self.gone()
        if not self.alive:
            raise self._error()

    def attach(self, user: HostUser) -> int:
        """Return a channel for a flow."""
        number = next(self._channels)
        self._users[number] = user
        return number

    def detach(self, channel: int) -> None:
        """Forget a flow."""
        self._users.pop(channel, None)

    def post(self, channel: int, message: ToHost) -> None:
        """Send a message that has no answer."""
        self._pipe.send(channel, message)

    async def request(
        self, channel: int, make: Callable[[int], ToHost], *, timeout_s: float | None = None
    ) -> None:
        """Send a message and wait until it was carried out.

        Raises:
            RequestTimedOutError: no answer in time.
            FatalError: the host could not do it, or is gone.
        """
        if not self.alive:
            raise self._error()
        number = next(self._ids)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._pipe.send(channel, make(number))
        try:
            async with asyncio.timeout(timeout_s):
                cause = await answer
        except TimeoutError:
            raise RequestTimedOutError(
                f"task host {self.pid} did not answer within {timeout_s:g} s"
            ) from None
        finally:
            self._waiting.pop(number, None)
        if cause is not None:
            raise FatalError(cause)

    def kill(self, why: str) -> None:
        """End the child at once."""
        if self.alive and not self._why:
            self._why = why
            log.error("task host is killed pid=%d cause=%s", self.pid, why)
        self._process.kill()

    def hang_up(self) -> None:
        """Close the pipe: the child takes it that this process is gone, commits and ends."""
        self._pipe.hang_up()

    async def gone(self) -> None:
        """Wait until the child has ended and every flow was told."""
        await asyncio.wait({self._running})

    async def leave(self) -> None:
        """Let the child end in order; what is left after a while is killed."""
        self._leaving = True
        with suppress(Mm2pyError):
            await self.request(0, Bye, timeout_s=BYE_WITHIN_S)
        if self.alive:
            done, _ = await asyncio.wait({self._running}, timeout=BYE_WITHIN_S)
            if not done:
                self.kill("it did not end")
        await self.gone()

    async def _run(self) -> None:
        watch = asyncio.create_task(self._watch())
        try:
            await self._listen()
        except ProtocolError as damage:
            self.kill(str(damage))
        except Exception:
            log.exception("what a task host said could not be taken in pid=%d", self.pid)
            self.kill("this process has a defect")
        finally:
            watch.cancel()
        how = await self._process.ended()
        await self._pipe.close()
        self.alive = False
        self._why = f"ended with {how}" + (f" ({self._why})" if self._why else "")
        (log.info if self._leaving else log.error)("task host %s pid=%d", self._why, self.pid)
        self._greeted.set()
        error = self._error()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(str(error))
        for user in tuple(self._users.values()):
            user.host_ended(self, error)
        self._users.clear()

    async def _listen(self) -> None:
        while (envelope := await self._pipe.receive()) is not None:
            self._heard = True
            channel, message = envelope
            match message:
                case Hello():
                    if message.version != self._version:
                        raise ProtocolError(
                            f"it is of version {message.version}, this process of {self._version}"
                        )
                    log.info("task host started pid=%d", self.pid)
                    self._greeted.set()
                case Done():
                    answer = self._waiting.get(message.id)
                    if answer is not None and not answer.done():
                        answer.set_result(message.error)
                case LogLine():
                    write_line(message)
                case _:
                    user = self._users.get(channel)
                    if user is not None:
                        user.received(self, message)

    async def _watch(self) -> None:
        silent = 0
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if silent >= SILENT_LOOKS:
                self.kill(f"no sign of life for {SILENT_LOOKS * LOOK_EVERY_S:.0f} s")
                return

    def _error(self) -> FatalError:
        return FatalError(f"task host {self.pid} {self._why}")


@final
class HostPool:
    """The children of one worker.

    Args:
        processes: most of them at a time, those that were started for one task not counted.
        spawn: starts one.
    """

    def __init__(self, processes: int, spawn: Callable[[], Awaitable[HostLink]]) -> None:
        self._processes = max(1, processes)
        self._spawn = spawn
        self._links: list[HostLink] = []
        self._levels: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._first: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the hosts that run."""
        return tuple(link.pid for link in self._links if link.alive)

    def start(self) -> None:
        """Start one host beside whatever else is being started; its failure shows with the first task."""
        if self._first is None:
            self._first = asyncio.create_task(self._start_first(), name="first task host")

    async def pick(self, *, own: bool = False, light: bool = False) -> HostLink:
        """Return the host with the fewest tasks, a new one while there may be more.

        ``own``: always a new one. ``light``: the task needs no core, so no process is started for it beside others.

        Raises:
            FatalError: none can be started.
        """
        async with self._turn:
            alive = [link for link in self._alive() if not link.own]
            least = min(alive, key=lambda link: link.tasks, default=None)
            if own:
                least = await self._open()
                least.own = True
            elif least is None or (least.tasks and not light and len(alive) < self._processes):
                least = await self._open()
            least.tasks += not light
        # Outside of the turn: several may be starting at a time.
        try:
            await least.greeted()
        except Mm2pyError:
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
            link.post(0, LogLevel(namespace, level))

    async def close(self) -> None:
        """End every host in order."""
        self._closed = True
        if self._first is not None:
            await asyncio.wait({self._first})
        async with self._turn:
            await asyncio.gather(*(link.leave() for link in self._alive()), *self._leaving)

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
            link = await self._spawn()
        except OSError as error:
            raise FatalError(
                f"a task host cannot be started: {error}",
                remedy="see the limits of processes and open files",
            ) from error
        for namespace, level in self._levels.items():
            link.post(0, LogLevel(namespace, level))
        self._links.append(link)
        return link
