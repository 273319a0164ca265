"""An event loop for plays: virtual time, processes whose callbacks interleave at random, freeze and die.

Flow: a callback belongs to the process whose context it was scheduled in (``PROCESS``) -> one queue per process, in
order -> a random process that is not frozen runs next. When none can run, time jumps to the next timer. The same seed
gives the same play.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Final

PROCESS: Final = ContextVar("process", default="")
"""Name of the process that code runs in; empty for the world around them, which never freezes."""

BURST: Final = 4
"""Longest run of callbacks of one process before another one may run."""


class PlayLoop(asyncio.BaseEventLoop):
    """Runs one play; ``on_step`` is called between any two callbacks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.on_step: Callable[[], None] = lambda: None
        self.steps = 0
        self._queues: dict[str, deque[asyncio.Handle]] = {}
        self._frozen: set[str] = set()
        self._now = 1_000.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, str]] = []
        self._numbers = count()
        self._name, self._burst = "", 0
        self.set_exception_handler(lambda _loop, _context: None)

    # ---- processes

    def freeze(self, name: str) -> None:
        """Run nothing of a process until ``thaw``, if ever; its timers pass meanwhile."""
        self._frozen.add(name)

    def thaw(self, name: str) -> None:
        """Run what has gathered."""
        self._frozen.discard(name)

    def thaw_all(self) -> None:
        """Run everything again, so that all tasks can be cancelled at the end of the play."""
        self._frozen.clear()

    # ---- asyncio's part

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # typeshed has type variables for the arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(context.get(PROCESS, ""), handle)
        return handle

    def call_at(  # type: ignore[override]  # as above
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        name = context.get(PROCESS, "")
        heapq.heappush(self._timers, (when, next(self._numbers), handle, name))
        return handle

    def call_later(  # type: ignore[override]  # as above
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled ones are skipped when they are due."""

    def _enqueue(self, name: str, handle: asyncio.Handle) -> None:
        self._queues.setdefault(name, deque()).append(handle)

    def _run_once(self) -> None:
        queue = self._next_queue()
        while queue is None:
            self._pass_time()
            queue = self._next_queue()
        handle = queue.popleft()
        if not handle.cancelled():
            handle._run()
        self.steps += 1
        self.on_step()

    def _next_queue(self) -> deque[asyncio.Handle] | None:
        if self._burst > 0 and self._name not in self._frozen:
            self._burst -= 1
            queue = self._queues.get(self._name)
            if queue:
                return queue
        names = [name for name, queue in self._queues.items() if queue and name not in self._frozen]
        if not names:
            return None
        self._name = names[0] if len(names) == 1 else self.random.choice(names)
        self._burst = self.random.randrange(BURST)
        return self._queues[self._name]

    def _pass_time(self) -> None:
        """Go to the next timer, and take all that are due then."""
        if not self._timers:
            raise AssertionError("nothing is left to do, and the play is not over")
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle, name = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._enqueue(name, handle)


class PlayClock:
    """``Clock`` of a ``PlayLoop``."""

    def __init__(self, loop: PlayLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0))
