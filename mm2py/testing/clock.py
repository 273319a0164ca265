"""A clock that moves when a test advances it: sleepers wake in order of their deadlines.

Flow: code under test sleeps -> ``advance`` -> every due sleeper runs until it sleeps again.
"""

import asyncio
import heapq
from collections.abc import Sized
from itertools import count
from typing import Final, final

_SETTLE_ROUNDS: Final = 20
"""Most loop rounds that let woken code run to its next wait; enough for chains of awaits in one
process."""


@final
class FakeClock:
    """A ``Clock`` for tests; wall clock and monotonic clock move together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self._monotonic = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return round(self._now_ms)

    def monotonic(self) -> float:
        return self._monotonic

    @property
    def sleepers(self) -> int:
        """How many callers wait in ``sleep``."""
        return sum(1 for _, _, waiter in self._sleepers if not waiter.done())

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by ``seconds``; zero or less yields once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), waiter))
        await waiter

    def jump(self, seconds: float) -> None:
        """Move time on without waking a sleeper yet, as a process that was frozen finds it."""
        self._move_to(self._monotonic + seconds)

    async def advance(self, seconds: float) -> None:
        """Move time on, waking sleepers one deadline at a time and letting them run between."""
        await self.settle()
        end = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            deadline, _, waiter = heapq.heappop(self._sleepers)
            self._move_to(deadline)
            if not waiter.done():
                waiter.set_result(None)
                await self.settle()
        self._move_to(end)
        await self.settle()

    async def settle(self) -> None:
        """Let everything that can run without time or network do so."""
        # What a loop of asyncio runs next. Empty after a round, nothing can run: the round asked
        # sockets, too.
        ready: Sized | None = getattr(asyncio.get_running_loop(), "_ready", None)
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return

    def _move_to(self, monotonic: float) -> None:
        if monotonic > self._monotonic:
            self._now_ms += (monotonic - self._monotonic) * 1000
            self._monotonic = monotonic
