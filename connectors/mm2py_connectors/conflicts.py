"""Conflicting writes of two regions that copy a compacted topic to each other under the same name.

Flow: batches of the source as they are classified -> keys of local records, kept for a while -> a
mirror's record of the same key after one of them, that was written before ours had arrived over
there -> one conflict.

Two records of a key conflict when neither writer could know of the other. Then both logs have them,
in different order: each region ends with the other's value, for good, since neither copies anything
back. In this log ours comes first; over there it comes second if the mirror's record is older than
the arrival of ours. Each flow of the pair sees every conflict once. The clock of the other region's
writers decides, so an offset between the clocks shifts the border.

Bounds: ``MOST_KEYS`` keys are kept per task, those that have arrived for ``KEPT_S``;
``MOST_RECORDS_PER_S`` records are checked per task. Beyond them the count is a lower bound.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import HEADER, RecordBatch
from mm2py.protocol.records import record_keys
from mm2py.types import TopicPartition

MOST_KEYS: Final = 50_000
KEPT_S: Final = 60.0
MOST_RECORDS_PER_S: Final = 20_000
_SAME_ARRIVAL_MS: Final = 100
_COUNT: Final = 12
_BASE_OFFSET: Final = 0


@dataclass(slots=True)
class _Partition:
    """Local records by the hash of their key, and when they arrived on the other side."""

    offsets: dict[int, int] = field(default_factory=dict[int, int])
    kept: deque[tuple[int, int, float]] = field(default_factory=deque[tuple[int, int, float]])
    """Hash, offset and when it was read, in the order of offsets."""
    arrived: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """Offset up to which all arrived, and when (ms since the epoch)."""

    def arrived_ms(self, offset: int) -> int | None:
        """Return when the record at ``offset`` arrived, None if it has not."""
        at = bisect_left(self.arrived, offset, key=lambda mark: mark[0])
        return self.arrived[at][1] if at < len(self.arrived) else None


@final
class ConflictWatch:
    """Counts conflicts on compacted topics of one task.

    Args:
        topics: the compacted ones.
    """

    def __init__(self, topics: Collection[str], clock: Clock) -> None:
        self._topics, self._clock = frozenset(topics), clock
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._keys = 0
        self._second, self._looked_at = 0, 0

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> int:
        """Take the batches of one answer, local and mirrored; return conflicts among them."""
        if tp.topic not in self._topics:
            return 0
        known = self._partitions.setdefault(tp, _Partition())
        steps: list[tuple[int, int, Callable[[], int]]] = []
        steps += [(it.base_offset, it.count, partial(self._keep, known, it)) for it in copied]
        steps += [
            (header[_BASE_OFFSET], header[_COUNT], partial(self._compare, known, data))
            for data in looped
            for header in [HEADER.unpack_from(data)]
        ]
        # Which came first is the whole question.
        steps.sort(key=lambda step: step[0])
        return sum(step() for _, count, step in steps if self._may_look_at(count))

    def delivered(self, tp: TopicPartition, last_offset: int) -> None:
        """Local records up to ``last_offset`` are on the target."""
        known = self._partitions.get(tp)
        if known is None:
            return
        now_ms = self._clock.now_ms()
        # Marks close together become one: its time is a little late, which errs towards a conflict.
        if known.arrived and now_ms - known.arrived[-1][1] < _SAME_ARRIVAL_MS:
            known.arrived.pop()
        known.arrived.append((last_offset, now_ms))
        self._forget(known)

    def restarted(self, tp: TopicPartition) -> None:
        """The partition's offsets are others from now on."""
        known = self._partitions.pop(tp, None)
        if known is not None:
            self._keys -= len(known.kept)

    def _may_look_at(self, records: int) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._looked_at = second, 0
        self._looked_at += records
        return self._looked_at <= MOST_RECORDS_PER_S

    def _keep(self, known: _Partition, batch: RecordBatch) -> int:
        now = self._clock.monotonic()
        for offset, (_, key) in zip(_offsets(batch), _keys(batch.data), strict=False):
            if key is None:
                continue
            known.offsets[hash(key)] = offset
            known.kept.append((hash(key), offset, now))
            self._keys += 1
        self._forget(known)
        while self._keys > MOST_KEYS:
            self._drop_oldest(max(self._partitions.values(), key=lambda it: len(it.kept)))
        return 0

    def _compare(self, known: _Partition, data: memoryview) -> int:
        conflicts = 0
        for stamp, key in _keys(data):
            offset = None if key is None else known.offsets.pop(hash(key), None)
            if offset is not None:
                arrived_ms = known.arrived_ms(offset)
                # Written there before the local record had arrived: neither writer saw the other's.
                conflicts += arrived_ms is None or stamp < arrived_ms
        return conflicts

    def _forget(self, known: _Partition) -> None:
        """Drop what arrived so long ago that no record written before then is still on its way."""
        before = self._clock.monotonic() - KEPT_S
        newest = known.arrived[-1][0] if known.arrived else -1
        while known.kept and known.kept[0][2] < before and known.kept[0][1] <= newest:
            self._drop_oldest(known)
        oldest = known.kept[0][1] if known.kept else newest
        while len(known.arrived) > 1 and known.arrived[0][0] < oldest:
            known.arrived.popleft()

    def _drop_oldest(self, known: _Partition) -> None:
        key, offset, _ = known.kept.popleft()
        self._keys -= 1
        # A newer record of the key has its own place.
        if known.offsets.get(key) == offset:
            del known.offsets[key]


def _offsets(batch: RecordBatch) -> Iterable[int]:
    for first, count in batch.runs:
        yield from range(first, first + count)


def _keys(data: memoryview | bytearray) -> Iterable[tuple[int, bytes | None]]:
    try:
        return record_keys(data)
    except ProtocolError:
        return ()  # the target judges it
