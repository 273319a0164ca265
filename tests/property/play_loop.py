"""Event loops for plays, where time is virtual: the same seed gives the same play.

``PlayLoop`` has processes that interleave at random, freeze and die. Flow: a callback belongs to the process whose
context it was scheduled in (``PROCESS``) -> one queue per process, in order -> a random process that is not frozen
runs next. When none can run, time jumps to the next timer. ``CourseLoop`` has a network for clients of fake brokers.
"""

import asyncio
import errno
import heapq
import os
import random
import selectors
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Final

import pytest

from mm2py.clock import SystemClock

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
    """``Clock`` of a loop whose time is virtual."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0))


class _Network(selectors.DefaultSelector):
    """Sockets of one process. What is sent has arrived at once; it is noticed some turns later, as chance has it."""

    now = 1_000.0
    turn_s = 0.000_05
    """How long a turn of the loop takes."""
    late = 0.0
    """Share of what is ready that is not noticed in this turn."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise AssertionError("nothing is left to do, and the course is not over")
        self.now += self.turn_s if events else max(self.turn_s, timeout or 0)
        return [it for it in events if random.random() >= self.late]


class CourseLoop(asyncio.SelectorEventLoop):
    """Runs courses over fake brokers: neither threads nor the kernel's network, and no time but its own.

    The product reads it with ``SYSTEM_CLOCK``. Tests with the mark ``course`` run in it.
    """

    def __init__(self) -> None:
        self._network = _Network()
        super().__init__(self._network)
        self._servers: dict[int, tuple[asyncio.Server, Callable[[], asyncio.BaseProtocol]]] = {}
        self._patch, clock = pytest.MonkeyPatch(), PlayClock(self)
        for name, read in (("monotonic", clock.monotonic), ("now_ms", clock.now_ms)):
            self._patch.setattr(SystemClock, name, staticmethod(read))

    def begin(self, seed: int) -> None:
        """Let all chance that is not the course's own be that of its seed: jitter, and how fast its network is."""
        random.seed(f"of {seed}")
        self._network.late = random.choice((0, 0.25, 0.5))
        self._network.turn_s = random.choice((0.000_02, 0.000_2))

    # ---- asyncio's part

    def time(self) -> float:
        return self._network.now

    def close(self) -> None:
        self._patch.undo()
        super().close()

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *args: Any, **options: Any
    ) -> asyncio.Server:
        server = await super().create_server(protocol_factory, *args, **options)
        self._servers[server.sockets[0].getsockname()[1]] = server, protocol_factory
        return server

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await asyncio.sleep(random.choice((0, 0.000_2)))
        server, protocol_factory = self._servers[address[1]]
        if not server.is_serving():
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        near, far = socket.socketpair()
        with near:
            near.setblocking(False)
            os.dup2(near.fileno(), sock.fileno(), inheritable=False)
        await asyncio.shield(self.connect_accepted_socket(protocol_factory, far))

    def run_in_executor(  # type: ignore[override]  # typeshed has type variables for the arguments
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        done = self.create_future()
        done.set_result(func(*args))
        return done


def course_of(seed: int) -> random.Random:
    """Begin a course in the loop that runs; return its chance."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CourseLoop)
    loop.begin(seed)
    return random.Random(seed)
