"""Offset syncs: the record, Java's rule when to write one, and the queue that writes them.

Flow: delivered ``Run`` -> ``OffsetSyncState`` (which records) -> ``OffsetSyncEmitter`` (queue per partition, one
request under way) -> the offset-syncs topic, partition 0 (Java's ``OffsetSync``, ``OffsetSyncWriter``,
``PartitionState``). Reading syncs back (translation of group offsets) is not done here.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.task import Run
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.mirror.kafka_struct import decode_string, encode_string
from mm2py.protocol.records import NewRecord
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

SYNCS_PER_REQUEST: Final = 200
"""At most 56 KB even with the longest topic names, which any offset-syncs topic takes."""

MIN_SPACING_S: Final = 0.5
"""Java has no such pause, but pays one request per sync, at most ten at a time, and drops what comes meanwhile."""

EVERY_SYNC: Final = 64
"""Syncs by lag of one partition that are written in one request without being thinned out."""

MOST_WAITING: Final = 4096
"""Gaps and rewinds of one partition that may wait: the topic cannot be written for long."""

_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_NONE: Final = -1


class OffsetSync(NamedTuple):
    """``upstream`` of a source partition is ``downstream`` of its copy."""

    partition: TopicPartition
    upstream: int
    downstream: int


def encode_offset_sync(sync: OffsetSync) -> tuple[bytes, bytes]:
    """Return key and value."""
    key = encode_string(sync.partition.topic) + _PARTITION.pack(sync.partition.partition)
    return key, _OFFSETS.pack(sync.upstream, sync.downstream)


def decode_offset_sync(key: bytes, value: bytes) -> OffsetSync:
    """Read a sync; ``ProtocolError`` for short records."""
    topic, position = decode_string(key, 0)
    if len(key) < position + _PARTITION.size or len(value) < _OFFSETS.size:
        raise ProtocolError(f"offset sync is short: key={len(key)} value={len(value)} bytes")
    (partition,) = _PARTITION.unpack_from(key, position)
    upstream, downstream = _OFFSETS.unpack_from(value)
    return OffsetSync(TopicPartition(topic, partition), upstream, downstream)


class OffsetSyncState:
    """Java's emission rule for one source partition and task lifetime, in closed form for a run of equal shift.

    A record gets a sync when it is the first, at a gap or rewind of either side, and ``offset.lag.max`` + 1
    target offsets behind the last sync; beyond Java, also where the shift changes, which is where translation
    would lose precision.
    """

    __slots__ = ("_downstream", "_step", "_synced", "_upstream")

    def __init__(self, lag_max: int) -> None:
        self._step = lag_max + 1
        self._upstream = _NONE
        self._downstream = _NONE
        self._synced = _NONE

    def observe_run(self, run: Run) -> tuple[bool, range]:
        """Note a run; return whether its first record gets a sync for what it is, and the indexes by lag."""
        first, count, downstream = run
        # Behind a continuous upstream, any other step than one downstream is a rewind or a new shift.
        breaks = (
            self._synced == _NONE
            or first - self._upstream != 1
            or downstream - self._downstream != 1
        )
        if breaks:
            self._synced = downstream
        # Inside a run both offsets grow by one, so only the lag rule is left.
        by_lag = range(self._synced + self._step - downstream, count, self._step)
        if by_lag:
            self._synced = downstream + by_lag[-1]
        self._upstream = first + count - 1
        self._downstream = downstream + count - 1
        return breaks, by_lag


class _Due(NamedTuple):
    """So many ``syncs``, each ``offset.lag.max`` + 1 offsets behind the one before."""

    upstream: int
    downstream: int
    syncs: int
    by_lag: bool
    """Not for what the record is: may be left out in the middle of a run."""


@final
class _Waiting:
    """Syncs of one partition that are not sent yet, in order."""

    __slots__ = ("_due", "_partition", "_step")

    def __init__(self, partition: TopicPartition, step: int) -> None:
        self._partition = partition
        self._step = step
        self._due: list[_Due] = []

    def add(self, new: _Due) -> None:
        due = self._due
        if due and due[-1].by_lag and new.by_lag:
            upstream, downstream, count, _ = due[-1]
            ahead = count * self._step
            if (upstream + ahead, downstream + ahead) == new[:2]:
                due[-1] = _Due(upstream, downstream, count + new.syncs, by_lag=True)
                return
        due.append(new)
        if len(due) > MOST_WAITING:
            del due[1:-1:2]

    def take(self, most: int) -> list[OffsetSync]:
        """Return the oldest of what is written, at most so many."""
        chosen = self._chosen()
        self._due = chosen[most:]
        return [OffsetSync(self._partition, due.upstream, due.downstream) for due in chosen[:most]]

    def __bool__(self) -> bool:
        return bool(self._due)

    def _chosen(self) -> list[_Due]:
        """Leave out syncs by lag of which there are many, more of them the further they are behind the newest.

        Readers keep syncs whose distance to the newest doubles from one to the next; here it grows by an eighth.
        """
        step = self._step
        every = sum(due.syncs for due in self._due if due.by_lag) <= EVERY_SYNC
        newest = self._due[-1].upstream + (self._due[-1].syncs - 1) * step
        kept: list[_Due] = []
        distance = -math.inf
        for upstream, downstream, count, by_lag in reversed(self._due):
            index = count - 1
            while index >= 0:
                at = index * step
                behind = abs(newest - upstream - at)
                if every or not by_lag or abs(behind - distance) > behind // 8:
                    kept.append(_Due(upstream + at, downstream + at, 1, by_lag))
                    distance = behind
                index -= 1 if every else max(1, behind // 8 // step)
        kept.reverse()
        return kept


class SyncWriter(Protocol):
    """The part of ``RecordWriter`` that writes syncs."""

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> object:
        """Write without waiting; ``done`` gets the base offset or what went wrong."""
        ...


@final
class OffsetSyncEmitter:
    """Queues and writes the syncs of one task.

    What the rule chooses is written in order, also what was observed before ``open``; only in the middle of long
    runs syncs are left out while they wait for the request before. Requests begin at least ``MIN_SPACING_S``
    apart, so that a backlog does not turn every batch into a request. A sync that the broker refuses is lost,
    as in Java: the next one supersedes it.
    """

    def __init__(self, writer: SyncWriter, topic: str, *, lag_max: int, clock: Clock) -> None:
        self._writer = writer
        self._to = TopicPartition(topic, 0)
        self._lag_max = lag_max
        self._clock = clock
        self._states: dict[TopicPartition, OffsetSyncState] = {}
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._delayed: dict[TopicPartition, Run] = {}
        self._in_flight = 0
        self._next_send = -math.inf
        self._failures = 0
        self._open = False
        self._closed = False
        self._free = asyncio.Event()
        """No request is under way."""

    def observe(self, partition: TopicPartition, runs: Sequence[Run]) -> None:
        """Note what was acknowledged of ``partition``, in source order, and send what is due."""
        if self._closed or not runs:
            return
        state = self._states.get(partition)
        if state is None:
            state = self._states[partition] = OffsetSyncState(self._lag_max)
        run, last = runs[0], -1
        for run in runs:
            breaks, by_lag = state.observe_run(run)
            last = by_lag[-1] if by_lag else 0 if breaks else -1
            if breaks:
                self._wait(partition, run, range(1), by_lag=False)
            if by_lag:
                self._wait(partition, run, by_lag, by_lag=True)
        if last == run.records - 1:
            self._delayed.pop(partition, None)
        else:
            self._delayed[partition] = run
        if self._waiting and self._clock.monotonic() >= self._next_send:
            self._send()

    def open(self) -> None:
        """The writer works: send what waits."""
        self._open = True
        self._send()

    def promote_delayed(self) -> None:
        """Send the exact last offset of every partition whose newest sync is older (task commit)."""
        if self._closed:
            return
        for partition, run in self._delayed.items():
            self._wait(partition, run, range(run.records - 1, run.records), by_lag=True)
        self._delayed.clear()
        self._send()

    async def flush(self, timeout_s: float) -> None:
        """Write everything that waits, at most for ``timeout_s``; nothing while the writer does not work."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open and (self._waiting or self._in_flight):
                    self._send()
                    await self._free.wait()

    def close(self) -> None:
        """Write nothing any more."""
        self._closed = True
        self._waiting.clear()
        self._delayed.clear()

    def _wait(self, partition: TopicPartition, run: Run, indexes: range, *, by_lag: bool) -> None:
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = _Waiting(partition, self._lag_max + 1)
        first = indexes[0]
        waiting.add(
            _Due(run.source_offset + first, run.target_offset + first, len(indexes), by_lag)
        )

    def _send(self) -> None:
        """Send the next request, unless one is under way."""
        if not self._open or self._in_flight or not self._waiting:
            return
        syncs: list[OffsetSync] = []
        while self._waiting and len(syncs) < SYNCS_PER_REQUEST:
            partition = next(iter(self._waiting))
            waiting = self._waiting.pop(partition)
            syncs += waiting.take(SYNCS_PER_REQUEST - len(syncs))
            if waiting:
                self._waiting[partition] = waiting  # behind the other partitions
        self._in_flight = len(syncs)
        self._free.clear()
        self._next_send = self._clock.monotonic() + MIN_SPACING_S
        now_ms = self._clock.now_ms()
        records = [NewRecord(*encode_offset_sync(sync), timestamp=now_ms) for sync in syncs]
        self._writer.post(self._to, records, self._answered)

    def _answered(self, result: int | Exception) -> None:
        count, self._in_flight = self._in_flight, 0
        if isinstance(result, Exception):
            if not self._failures:
                log.warning(
                    "offset syncs are refused topic=%s: %s; until it is cured translated group offsets are coarse",
                    self._to.topic,
                    result,
                )
            self._failures += count
        elif self._failures:
            log.info(
                "offset syncs are written again topic=%s lost=%d", self._to.topic, self._failures
            )
            self._failures = 0
        self._free.set()
        if count == SYNCS_PER_REQUEST:
            self._send()
