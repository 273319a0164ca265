"""Pacing of requests and of waits at the broker: quota (KIP-219), byte rate, holds, turns. No I/O.

Flow: ``throttle_ms`` of a response -> ``Throttle.honour`` -> ``Throttle.remaining_s``; bytes read
-> ``ByteRate.spend`` -> ``ByteRate.room_bytes`` and ``ByteRate.delay_s``; partitions held and
released -> ``LongPoll.wait_ms``. Callers do the sleeping.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Generator, Hashable, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import RetriableError

_BURST_S: Final = 0.25
"""How much of a rate may be saved up while nothing is read."""

_LOOK_AGAIN_S: Final = 1.0

_HELD_PART: Final = 10
"""A Fetch waits for at most a tenth of the time since a partition was held (``LongPoll``)."""

_SHORTEST_WAIT_MS: Final = 10

WITHHELD_S: Final = 60.0
"""After so long without anything a quota is reported."""


def quota_holds(node_id: int, client_id: str) -> RetriableError:
    """Return the error to report of reads that a broker has withheld for ``WITHHELD_S``."""
    return RetriableError(
        f"a quota of broker {node_id} has held back all that is read for {WITHHELD_S:.0f} s",
        remedy=f"raise consumer_byte_rate of client {client_id} or of its user: a batch that is "
        "larger than the rate"
        " allows in all windows of the quota (ten seconds) is never returned",
    )


SHOWN_S: Final = 5.0
"""A quota that is kept pauses for moments; only what lasts longer than this is shown."""


QUOTAS_EVERY_S: Final = 5.0
"""Interval of checks of the cluster's quotas, while one of them throttles a connection for longer
than that."""


def throttle_note(what: str, cluster: str, left_s: Mapping[int, float], quota: str) -> str:
    """Return a note on brokers that throttle, with node id and seconds left; empty for short times.

    ``what`` is held back by them, ``quota`` the name of the quota (``producer_byte_rate``).
    """
    long = {node_id: left for node_id, left in left_s.items() if left > SHOWN_S}
    if not long:
        return ""
    nodes = ", ".join(f"broker {node_id}: {math.ceil(long[node_id])} s" for node_id in sorted(long))
    return (
        f"a quota of {cluster} holds back {what}; time left: {nodes} (throttle_time_ms); mm2py "
        f"doctor names the quota, {quota} of the flow's clients raises it"
    )


@final
class Throttle:
    """The throttle of one connection, as in Java's ``ClusterConnectionStates``.

    The broker mutes the connection (KIP-219): it reads nothing until then, so a request sent
    earlier only ages.
    """

    __slots__ = ("_clock", "_until", "withheld_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0
        self.withheld_since: float | None = None
        """Since when every response has been withheld, None when the last one was not."""

    def honour(self, throttle_ms: int, *, withheld: bool = False) -> None:
        """Apply the ``throttle_time_ms`` of a response; a shorter one never ends a longer one.

        ``withheld``: the response has nothing of what was asked for, so it does not say either that
        there is nothing.
        """
        if throttle_ms <= 0:
            self.withheld_since = None
            return
        now = self._clock.monotonic()
        if not withheld:
            self.withheld_since = None
        elif self.withheld_since is None:
            self.withheld_since = now
        # Responses of other requests on the connection may carry shorter times.
        self._until = max(self._until, now + throttle_ms / 1000)

    def lift(self) -> None:
        """Forget the announced time: the connection that it was announced on is closed."""
        self._until = 0.0

    def withheld_s(self) -> float:
        """Return for how long every response has been withheld, 0 when the last one was not."""
        since = self.withheld_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def is_reportable(self) -> bool:
        """Whether that has lasted for ``WITHHELD_S``; ``quota_holds`` is the error to report."""
        return self.withheld_s() > WITHHELD_S

    def remaining_s(self) -> float:
        """Return for how long nothing may be sent, 0 when not throttled."""
        if not self._until:
            return 0.0
        left = self._until - self._clock.monotonic()
        if left <= 0:
            self._until = left = 0.0
        return left


@final
class ByteRate:
    """A token bucket: bytes are spent after they were read, so a large response is paid for by a
    pause."""

    __slots__ = ("_burst", "_clock", "_tokens", "_updated", "bytes_per_s")

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        if bytes_per_s <= 0:
            raise ValueError("a byte rate must be above zero")
        self._clock = clock
        self.bytes_per_s = bytes_per_s
        # At least one byte: the room would never be positive.
        self._burst = max(1.0, bytes_per_s * _BURST_S)
        self._tokens = self._burst
        self._updated = clock.monotonic()

    def change(self, bytes_per_s: float) -> None:
        """Read at another rate from now on; what was read is paid for, what was saved up at most
        once."""
        self._refill()
        self.bytes_per_s, self._burst = bytes_per_s, max(1.0, bytes_per_s * _BURST_S)
        self._tokens = min(self._tokens, self._burst)

    def spend(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._refill()
        # May go below zero: the size of an answer is known only afterwards.
        self._tokens -= size_bytes

    def room_bytes(self) -> int:
        """Return how much may be requested now; if not positive, wait ``delay_s`` first."""
        self._refill()
        return int(self._tokens)

    def delay_s(self) -> float:
        """Return how long to wait until half a burst may be requested, 0 if anything may be
        requested now.

        At most a second: the rate may be another one then.
        """
        if self.room_bytes() > 0:
            return 0.0
        return min(_LOOK_AGAIN_S, (self._burst / 2 - self._tokens) / self.bytes_per_s)

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self.bytes_per_s)
        self._updated = now


@final
class LongPoll:
    """How long a Fetch may wait at the broker while some partitions are held and left out of it.

    A tenth of the time since the last one was held: a release takes effect within a tenth of the
    hold's length, and long holds cost few additional polls.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}  # in order of time

    def hold(self, partition: Hashable) -> None:
        """Note that a partition is left out from now on; idempotent."""
        self._since.setdefault(partition, self._clock.monotonic())

    def release(self, partition: Hashable) -> None:
        """Note that a partition is fetched again, or no longer assigned."""
        self._since.pop(partition, None)

    def wait_ms(self, longest_ms: int) -> int:
        """Return how long the next Fetch may wait, at most ``longest_ms``."""
        if not self._since:
            return longest_ms
        # A dict keeps the order of insertion: the last one was held last.
        held_ms = (self._clock.monotonic() - next(reversed(self._since.values()))) * 1000
        return min(longest_ms, max(_SHORTEST_WAIT_MS, int(held_ms) // _HELD_PART))


@final
class CallDeadlines:
    """Deadlines of one call, stopped while a request of it waits for its turn."""

    def __init__(self) -> None:
        self._left_s: dict[asyncio.Timeout, float] = {}
        self._waiting = 0

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncGenerator[None]:
        """Raise TimeoutError after so long, None for never."""
        if seconds is None:
            yield
            return
        # Entered while a turn is waited for: its time begins when that is over.
        async with asyncio.timeout(None if self._waiting else seconds) as deadline:
            self._left_s[deadline] = seconds
            try:
                yield
            finally:
                del self._left_s[deadline]

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Stop the time of all deadlines; several requests may wait at once."""
        now = asyncio.get_running_loop().time
        if not self._waiting:
            for deadline in self._left_s:
                due = deadline.when()
                # ``reschedule`` of an expired one raises RuntimeError.
                if due is not None and not deadline.expired():
                    self._left_s[deadline] = due - now()
                    deadline.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                for deadline, left_s in self._left_s.items():
                    if not deadline.expired():
                        deadline.reschedule(now() + left_s)


_patience: Final[ContextVar[CallDeadlines | None]] = ContextVar("patience", default=None)


@contextmanager
def patience() -> Generator[CallDeadlines]:
    """Return the deadlines of the present call, also in the tasks that it starts."""
    # A context variable: tasks that the call starts inherit it.
    outer = _patience.get()
    if outer is not None:
        yield outer
        return
    token = _patience.set(made := CallDeadlines())
    try:
        yield made
    finally:
        _patience.reset(token)


@final
class _Line:
    """Queue for an address, and the times of the last requests to it."""

    __slots__ = ("first", "turns")

    def __init__(self, most: int) -> None:
        self.first = asyncio.Lock()
        self.turns: deque[float] = deque(maxlen=most)


@final
class RequestPace:
    """Turns of what only asks: at most ``per_s`` requests to an address within any second,
    whichever client shares it."""

    __slots__ = ("_clock", "_lines", "_per_s")

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s, self._clock = per_s, clock
        self._lines: dict[str, _Line] = {}

    async def turn(self, address: str) -> None:
        """Wait until one more request may be sent to an address; turns are given in the order of
        the calls, and none to a cancelled one."""
        line = self._lines.setdefault(address, _Line(self._per_s))
        turns = line.turns
        with patience() as deadlines, deadlines.suspended():
            # First come, first served: asyncio's Lock wakes its waiters in order.
            async with line.first:
                # Full: the oldest of the last ``per_s`` turns must be a second old.
                while len(turns) == self._per_s:
                    pause_s = turns[0] + 1 - self._clock.monotonic()
                    if pause_s <= 0:
                        break
                    await self._clock.sleep(pause_s)
                turns.append(self._clock.monotonic())
