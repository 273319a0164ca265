"""Offset syncs: the record, Java's rule when to write one, and the queue that writes them.

Flow: delivered ``Run`` -> ``OffsetSyncState`` (which records) -> pending map -> at most ten in flight ->
the offset-syncs topic, partition 0 (Java's ``OffsetSync``, ``OffsetSyncWriter``, ``PartitionState``).
Reading syncs back (translation of group offsets) is not done here.
"""

import logging
import math
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.task import Run
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.mirror.kafka_struct import decode_string, encode_string
from mm2py.protocol.records import NewRecord
from mm2py.types import TopicPartition

__all__ = [
    "MAX_IN_FLIGHT_SYNCS",
    "OffsetSync",
    "OffsetSyncEmitter",
    "OffsetSyncState",
    "SyncWriter",
    "decode_offset_sync",
    "encode_offset_sync",
]

log = logging.getLogger(__name__)

MAX_IN_FLIGHT_SYNCS: Final = 10
"""As Java (``OffsetSyncWriter.MAX_OUTSTANDING_OFFSET_SYNCS``)."""

MIN_SPACING_S: Final = 0.02
"""Java has no such pause, but pays one request per sync; 50 requests a second lose no precision that
readers keep, since they thin syncs out exponentially."""

_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_NONE: Final = -1


class OffsetSync(NamedTuple):
    """``upstream`` of a source partition stands at ``downstream`` of its copy."""

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
    """Java's emission rule for one source partition and task lifetime.

    ``observe`` is the rule record by record; ``observe_run`` is its closed form for a run of equal shift.
    """

    __slots__ = ("_downstream", "_flagged", "_lag_max", "_synced", "_upstream")

    def __init__(self, lag_max: int) -> None:
        self._lag_max = lag_max
        self._upstream = _NONE
        self._downstream = _NONE
        self._synced = _NONE
        self._flagged = False

    @property
    def last_synced_downstream(self) -> int:
        """Downstream offset of the last sync that the rule chose, -1 for none."""
        return self._synced

    def observe(self, upstream: int, downstream: int) -> bool:
        """Note one acknowledged record; whether a sync is due, until ``reset``."""
        if (
            self._synced == _NONE
            or downstream - (self._synced + 1) >= self._lag_max
            or upstream - self._upstream != 1
            or downstream < self._downstream
        ):
            self._synced = downstream
            self._flagged = True
        self._upstream = upstream
        self._downstream = downstream
        return self._flagged

    def reset(self) -> None:
        """Forget that a sync was due; called when it was queued."""
        self._flagged = False

    def observe_run(self, run: Run) -> tuple[int, ...]:
        """Return the indexes inside ``run`` that get a sync: none, one or two, ascending.

        The first record gets one for the reasons of ``observe`` and also when the shift changes, which is
        where translation would lose precision. Of the records that the lag rule selects behind it only the
        last counts: the pending map would overwrite the others.
        """
        first, count, downstream = run
        last = downstream + count - 1
        synced, step = self._synced, self._lag_max + 1
        # Behind a continuous upstream, any other step than one downstream is a rewind or a new shift.
        head = (
            first - self._upstream != 1
            or downstream - self._downstream != 1
            or synced == _NONE
            or downstream - synced >= step
        )
        if head:
            synced = downstream
        # Inside a run both offsets grow by one, so only the lag rule is left: every lag + 1 offsets.
        by_lag = (last - synced) // step * step
        synced += by_lag
        self._synced = synced
        self._upstream = first + count - 1
        self._downstream = last
        if by_lag:
            return (0, synced - downstream) if head else (synced - downstream,)
        return (0,) if head else ()


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

    Both queues are ordered by source partition; the latest value wins and keeps its place. A sync that the
    broker refuses is lost, as in Java: the next one supersedes it. Requests are at least
    ``MIN_SPACING_S`` apart, so that a backlog does not turn every batch into a request to the source.
    """

    def __init__(self, writer: SyncWriter, topic: str, *, lag_max: int, clock: Clock) -> None:
        self._writer = writer
        self._to = TopicPartition(topic, 0)
        self._lag_max = lag_max
        self._clock = clock
        self._states: dict[TopicPartition, OffsetSyncState] = {}
        self._pending: dict[TopicPartition, OffsetSync] = {}
        self._delayed: dict[TopicPartition, Run] = {}
        self._in_flight = 0
        self._next_send = -math.inf
        self._failures = 0
        self._open = False
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Syncs handed to the writer and not answered."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Syncs that wait for a permit; delayed ones do not count."""
        return len(self._pending)

    def observe(self, partition: TopicPartition, runs: Sequence[Run]) -> None:
        """Note what was acknowledged of ``partition``, in source order, and send what is due."""
        if self._closed or not runs:
            return
        state = self._states.get(partition)
        if state is None:
            state = self._states[partition] = OffsetSyncState(self._lag_max)
        due: list[OffsetSync] = []
        run, index = runs[0], -1
        for run in runs:
            index = -1
            for index in state.observe_run(run):
                due.append(OffsetSync(partition, run[0] + index, run[2] + index))
        if due:
            self._pending[partition] = due.pop()
        if index == run[1] - 1:
            self._delayed.pop(partition, None)
        else:
            self._delayed[partition] = run
        if self._pending and self._clock.monotonic() >= self._next_send:
            self._fire(due)

    def open(self) -> None:
        """The writer works: send what waits. Until then syncs are only noted."""
        self._open = True
        if not self._closed:
            self._fire([])

    def promote_delayed(self) -> None:
        """Send the exact last offset of every partition that has none queued (task commit)."""
        if self._closed:
            return
        for partition, (first, count, target) in self._delayed.items():
            last = count - 1
            self._pending[partition] = OffsetSync(partition, first + last, target + last)
        self._delayed.clear()
        self._fire([])

    def forget(self, partition: TopicPartition) -> None:
        """Drop what waits for ``partition``: it was given up."""
        self._pending.pop(partition, None)
        self._delayed.pop(partition, None)

    def close(self) -> None:
        """Write nothing any more."""
        self._closed = True
        self._pending.clear()
        self._delayed.clear()

    def _fire(self, earlier: Sequence[OffsetSync]) -> None:
        """Send pending syncs as permits allow; ``earlier`` ones of the same delivery if there is room."""
        if not self._open:
            return
        syncs: list[OffsetSync] = []
        permits = MAX_IN_FLIGHT_SYNCS - self._in_flight
        while self._pending and len(syncs) < permits:
            syncs.append(self._pending.pop(next(iter(self._pending))))
        room = permits - len(syncs)
        # Readers take the latest record of a partition as the newest, so the earlier ones go first.
        syncs[:0] = earlier[len(earlier) - room :] if 0 < room < len(earlier) else earlier[:room]
        if not syncs:
            return
        self._in_flight += len(syncs)
        self._next_send = self._clock.monotonic() + MIN_SPACING_S
        now_ms = self._clock.now_ms()
        records = [NewRecord(*encode_offset_sync(sync), timestamp=now_ms) for sync in syncs]
        self._writer.post(self._to, records, lambda result: self._answered(len(syncs), result))

    def _answered(self, count: int, result: int | Exception) -> None:
        self._in_flight -= count
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
