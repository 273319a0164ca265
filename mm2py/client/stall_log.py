"""Logs that partitions of a cluster cannot be read or written for now: per kind of cause, not per
partition.

Flow: ``stalled`` / ``moving`` per partition -> one line when a kind of cause has lasted for its
grace time, one a minute while it lasts, one when the last of its partitions makes progress again. A
kind is an error class, or the error code of a broker: an unreachable broker is one cause for a
thousand partitions.

The cost of an event does not depend on the number of stalled partitions.
"""

import asyncio
import logging
from collections.abc import Collection
from contextvars import copy_context
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import ConnectionFailedError, Mm2pyError, RequestTimedOutError, ServerError
from mm2py.protocol import error_codes as codes
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

COLLECT_S: Final = 0.5
"""Partitions that stall (or recover) within this time share one line."""

LEADER_CHANGE_S: Final = 5.0
"""Grace time for a partition without a known leader: its topic is new, or the leader is moving."""

REPEAT_S: Final = 60.0
EXAMPLES: Final = 2

_LEADER_CHANGES: Final = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.UNKNOWN_TOPIC_ID,
    }
)


@dataclass(frozen=True, slots=True)
class StallWords:
    """Texts of the log lines of one side."""

    refuses: str
    unreachable: str
    again: str


SOURCE: Final = StallWords(
    "source partitions cannot be read", "source cannot be reached", "the source is read again"
)
TARGET: Final = StallWords(
    "target refuses partitions", "target cannot be reached", "target takes partitions again"
)


def is_leader_change(error: Exception) -> bool:
    """Whether an error is normal for up to ``LEADER_CHANGE_S``, during a leader change."""
    cause = _root(error)
    return isinstance(cause, ServerError) and cause.code in _LEADER_CHANGES


@dataclass(slots=True)
class _Kind:
    error: Exception
    since: dict[TopicPartition, float] = field(default_factory=dict[TopicPartition, float])
    """Partitions that are stalled by it now, the oldest first."""
    logged_s: float | None = None
    open: int = 0
    """Partitions that were logged and are still stalled."""
    moved: dict[TopicPartition, None] = field(default_factory=dict[TopicPartition, None])
    ended_s: float = 0.0


@final
class StallLog:
    """Stalls of one task on one cluster.

    Its lines have the log scope of its creator, whichever callback reports a stall.
    """

    def __init__(self, words: StallWords, clock: Clock) -> None:
        self._words, self._clock = words, clock
        self._kinds: dict[str, _Kind] = {}
        self._stalled: dict[TopicPartition, _Kind] = {}
        self._logged: dict[TopicPartition, _Kind] = {}  # the kind whose line counted a partition
        self._context = copy_context()
        self._timer: asyncio.Task[None] | None = None
        self._due_s = float("inf")

    def stalled(self, partition: TopicPartition, error: Exception) -> None:
        """Report that a partition makes no progress and is retried without end; repeats are
        cheap."""
        name = _kind_of(error)
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _Kind(error)
        elif self._stalled.get(partition) is kind:
            return
        before = self._stalled.get(partition)
        if before is not None:
            del before.since[partition]
        # The first of a new stall names the cause; later ones of its kind are counted.
        if not kind.since:
            kind.error = error
        now = self._clock.monotonic()
        kind.since[partition] = now
        self._stalled[partition] = kind
        if kind.logged_s is not None:
            self._count(partition, kind)
        elif len(kind.since) == 1:
            self._look_at(now + _grace_s(kind.error))

    def moving(self, partition: TopicPartition) -> None:
        """Report that a partition makes progress again."""
        self._leave(partition, moved=True)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that failed, which is logged elsewhere."""
        self._leave(partition, moved=False)

    def close(self) -> None:
        """Log the recoveries that are due and forget the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for kind in self._kinds.values():
            if not kind.open and kind.moved:
                self._context.run(self._log_end, kind)
        self._kinds.clear()
        self._stalled.clear()
        self._logged.clear()

    # ---- counting

    def _leave(self, partition: TopicPartition, *, moved: bool) -> None:
        kind = self._stalled.pop(partition, None)
        if kind is not None:
            del kind.since[partition]
        kind = self._logged.pop(partition, None)
        if kind is not None:
            if moved:
                kind.moved[partition] = None
            self._closed(kind)

    def _count(self, partition: TopicPartition, kind: _Kind) -> None:
        before = self._logged.get(partition)
        if before is kind:
            return
        self._logged[partition] = kind
        kind.moved.pop(partition, None)
        kind.open += 1
        if before is not None:
            self._closed(before)

    def _closed(self, kind: _Kind) -> None:
        kind.open -= 1
        if not kind.open:
            kind.ended_s = self._clock.monotonic()
            self._look_at(kind.ended_s + COLLECT_S)

    # ---- lines

    def _look_at(self, instant_s: float) -> None:
        if instant_s >= self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = instant_s
        # In the creator's context: its log scope names
        # flow and task, the caller's may be another's.
        self._timer = asyncio.get_running_loop().create_task(
            self._wait(instant_s), context=self._context, name="stall-log"
        )

    async def _wait(self, instant_s: float) -> None:
        while (left_s := instant_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._timer, self._due_s = None, float("inf")
        now = self._clock.monotonic()
        next_s = min((self._look(*it, now) for it in tuple(self._kinds.items())), default=now)
        if self._kinds:
            self._look_at(max(next_s, now + COLLECT_S))

    def _look(self, name: str, kind: _Kind, now: float) -> float:
        """Log what is due of a kind; return when to check again."""
        if kind.logged_s is None and not kind.since:
            del self._kinds[name]
            return float("inf")
        if kind.logged_s is None:
            due = next(iter(kind.since.values())) + _grace_s(kind.error)
        elif kind.open or not kind.moved:
            due = kind.logged_s + REPEAT_S
        else:
            due = kind.ended_s + COLLECT_S
        if due > now:
            return due
        if kind.since:
            self._log_stalled(kind, now)
            return now + REPEAT_S
        if kind.open:  # its partitions are stalled by another cause that is not logged yet
            kind.logged_s = now
            return now + REPEAT_S
        if kind.moved:
            self._log_end(kind)
        del self._kinds[name]
        return float("inf")

    def _log_stalled(self, kind: _Kind, now: float) -> None:
        kind.logged_s = now
        for partition in kind.since:
            self._count(partition, kind)
        unreachable = isinstance(_root(kind.error), ConnectionFailedError | RequestTimedOutError)
        log.warning(
            "%s, retrying without end partitions=%d (%s) since_s=%.0f cause=%s",
            self._words.unreachable if unreachable else self._words.refuses,
            len(kind.since),
            _examples(kind.since),
            now - next(iter(kind.since.values())),
            kind.error,
        )

    def _log_end(self, kind: _Kind) -> None:
        log.info(
            "%s partitions=%d (%s) cause_was=%s",
            self._words.again,
            len(kind.moved),
            _examples(kind.moved),
            kind.error,
        )


def _root(error: BaseException) -> BaseException:
    """Return the cause of an error: for a retry that timed out, the reason for the retries."""
    while not isinstance(error, ServerError) and isinstance(error.__cause__, Mm2pyError):
        error = error.__cause__
    return error


def _grace_s(error: Exception) -> float:
    return LEADER_CHANGE_S if is_leader_change(error) else COLLECT_S


def _kind_of(error: Exception) -> str:
    root = _root(error)
    return f"error code {root.code}" if isinstance(root, ServerError) else type(root).__name__


def _examples(partitions: Collection[TopicPartition]) -> str:
    # The first by name, so that the line of the recovery
    # names the same ones as the line of the stall.
    shown = ", ".join(map(str, nsmallest(EXAMPLES, partitions)))
    return f"{shown}, ..." if len(partitions) > EXAMPLES else shown
