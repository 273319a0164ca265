"""Time as a value that tests can hold: wall clock, monotonic clock and waiting."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from logging import Logger
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, final
from weakref import WeakKeyDictionary

# Linux's CLOCK_MONOTONIC does not count system suspend, so a membership would look fresh after it;
# macOS's does.
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


SLACK_S: Final = 0.25
"""Waits of ``_LONG_S`` and more end at whole multiples of this, so that what is idle wakes up
together."""

_LONG_S: Final = 0.5
_ROUNDING_S: Final = 0.01

A = TypeVar("A")
T = TypeVar("T")


class Clock(Protocol):
    """What the product may know of time."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since the epoch: for record timestamps, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back and count the time a machine sleeps: for deadlines and
        rates."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        ...


@final
class SystemClock:
    """The real clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return monotonic seconds; all processes of one machine share them."""
        return time.clock_gettime(_MONOTONIC)

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``, and for long waits up to ``SLACK_S`` more."""
        await asyncio.sleep(with_slack_s(self, seconds))


def with_slack_s(clock: Clock, seconds: float) -> float:
    """Return how long to wait so that long waits end together: at least ``seconds`` (short of 10
    ms), ``SLACK_S`` more at most."""
    if seconds < _LONG_S:
        return seconds
    now = clock.monotonic()
    return math.ceil((now + seconds - _ROUNDING_S) / SLACK_S) * SLACK_S - now


SYSTEM_CLOCK: Final = SystemClock()


@final
class PerClock(Generic[T]):
    """One value for all that have the same clock: a process has one clock and so one value, a test
    has its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[Clock, T] = WeakKeyDictionary()

    def __call__(self, clock: Clock) -> T:
        """Return the value of ``clock``, made when it is first asked for."""
        if clock not in self._values:
            self._values[clock] = self._make()
        return self._values[clock]


def until_tick_s(clock: Clock, period_s: float) -> float:
    """Return the seconds until the next whole multiple of ``period_s`` that is not just about now.

    What reads something every second does it at the same instant everywhere on the machine: an idle
    process wakes up once a second for all of it.
    """
    left_s = period_s - clock.monotonic() % period_s
    return left_s if left_s > period_s / 10 else left_s + period_s


async def tick(clock: Clock, period_s: float) -> None:
    """Wait for the next whole multiple of ``period_s``, see ``until_tick_s``."""
    await clock.sleep(until_tick_s(clock, period_s))


async def look_each(
    clock: Clock, period_s: float, look: Callable[[], Awaitable[None]], log: Logger, what: str
) -> None:
    """Look each ``period_s`` until cancelled: whatever a look raises is logged, once for as long as
    it is the same, and ends nothing."""
    said = ""
    while True:
        await clock.sleep(period_s)
        try:
            await look()
        except Exception as error:
            text = repr(error)
            if text != said:
                log.exception("%s, tried again every_s=%.0f", what, period_s)
            said = text
        else:
            said = ""


@final
class _Wait(asyncio.Future[None]):
    """A future of one waiting task, which continues inside of the call of ``end``, not a turn of
    the loop later."""

    # Two fields, not one bound call: that would refer to itself, and cycles are collected rarely.
    _wake: Callable[["_Wait"], object]
    _context: Context

    def add_done_callback(
        self, fn: Callable[["_Wait"], object], /, *, context: Context | None = None
    ) -> None:
        """Called by the task that begins to wait."""
        self._wake, self._context = fn, context or copy_context()

    def cancel(self, msg: object = None) -> bool:
        """Called by the task that is cancelled, which must not continue inside of this call."""
        is_new = super().cancel(msg)
        if is_new:
            self.get_loop().call_soon(self._wake, self, context=self._context)
        return is_new

    def end(self) -> None:
        """Let the task continue; never from within a task."""
        if not self.done():
            self.set_result(None)
            self._context.run(self._wake, self)


@final
class Arrival:
    """What one task waits for again and again, with a limit that rarely ends the wait: one timer
    serves many waits."""

    __slots__ = ("_due", "_looks_at", "_loop", "_timer", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._looks_at = 0.0

    def wait(self, timeout_s: float) -> Awaitable[None]:
        """Return what ends with ``now`` or ``set`` from now on, at most so many real seconds later;
        awaited at once, by one task."""
        self._due = self._loop.time() + timeout_s
        if self._timer is None or self._looks_at > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._look_at(self._due)
        self._waiter = waiter = _Wait(loop=self._loop)
        return waiter

    def set(self) -> None:
        """End the wait, in the next turn of the loop."""
        if self._waiter is not None:
            self._loop.call_soon(self._waiter.end)

    def now(self) -> None:
        """End the wait: the task that waits continues inside of this call, which comes from a
        callback of the loop and not from a task."""
        if self._waiter is not None:
            self._waiter.end()

    def _look_at(self, instant_s: float) -> None:
        self._looks_at = instant_s
        self._timer = self._loop.call_at(instant_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._due:
            self._look_at(self._due)
        else:
            self._waiter.end()


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for ``event``; False when that takes longer than ``timeout_s`` of real time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_or_stop(clock: Clock, seconds: float, stop: asyncio.Event) -> bool:
    """Wait ``seconds`` or until ``stop`` is set; return whether it was set."""
    if stop.is_set():
        return True
    if isinstance(clock, SystemClock):  # which needs no tasks for it
        return await set_within(stop, with_slack_s(clock, seconds))
    sleeper = asyncio.ensure_future(clock.sleep(seconds))
    stopper = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({sleeper, stopper}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeper.cancel()
        stopper.cancel()
    return stop.is_set()


async def cancelled(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancel tasks, and wait until they have ended, however that is; None is one that never
    began."""
    begun = [it for it in tasks if it is not None]
    for each in begun:
        each.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Closes(Protocol):
    """Has connections or tasks until it is closed."""

    async def close(self) -> None: ...


ClosesT = TypeVar("ClosesT", bound=Closes)


@asynccontextmanager
async def closing(opened: ClosesT) -> AsyncGenerator[ClosesT]:
    """Close ``opened`` at the end of the block, however that is."""
    try:
        yield opened
    finally:
        await opened.close()


async def together(*works: Coroutine[object, object, T]) -> list[T]:
    """Return what each returns; endless loops return nothing. With an error of one, or the end of
    this call, none of them continues."""
    running = [asyncio.ensure_future(it) for it in works]
    try:
        return await asyncio.gather(*running)
    finally:
        await cancelled(*running)


async def each_of(items: Iterable[A], ask: Callable[[A], Awaitable[T]], *, at_once: int) -> list[T]:
    """Return what ``ask`` returns of each item, ``at_once`` of them at a time; ends as
    ``together``."""
    turns = asyncio.Semaphore(at_once)

    async def one(item: A) -> T:
        async with turns:
            return await ask(item)

    return await together(*map(one, items))


async def or_stop(work: Awaitable[T], stop: asyncio.Event) -> T | None:
    """Wait for ``work``; None, and it is cancelled, when ``stop`` is set first."""
    running = asyncio.ensure_future(work)
    stopper = asyncio.ensure_future(stop.wait())
    waits: set[asyncio.Future[T] | asyncio.Future[Literal[True]]] = {running, stopper}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        stopper.cancel()
        if not running.done():
            await cancelled(running)
