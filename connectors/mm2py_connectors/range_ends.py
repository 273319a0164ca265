"""Up to where a task of a job copies its partitions, and what becomes of one whose end is gone.

Flow: batches read -> ``below_end`` -> handed out -> delivered -> ``take_ended``. The source was cut
or created again, ``lost`` -> what was read of the old log is delivered and its position stored ->
``take_gone``. A task without ends has an empty one. Knows no reader.

Invariants, tests of the same names:

1. Nothing of a log is handed out that is not the one that the end was in.
2. What was read of the old log is delivered, and its position stored, before the partition is given
   up: the live flow continues there.
3. A partition whose log stays below its end for ``SHORT_S`` is given up too: nothing waits for
   records that may never come.
"""

from collections.abc import Mapping
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import PartitionError
from mm2py.mirror.backfills import RANGE_GONE
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition
from mm2py_connectors.covered_positions import CoveredPositions

SHORT_S: Final = 60.0
"""A new leader may not know for a moment up to where all replicas have the log."""

ENOUGH_COMMITS: Final = 2
"""The first one may have begun before the last record was delivered."""


@final
class RangeEnds:
    """The ends of the partitions of one task.

    Args:
        ends: source offsets after the last record, by partition.
        covered: knows what is under way.
    """

    def __init__(
        self, ends: Mapping[TopicPartition, int], covered: CoveredPositions, clock: Clock
    ) -> None:
        self._ends, self._covered, self._clock = ends, covered, clock
        self.are_set: Final = bool(ends)
        self._read_up: set[TopicPartition] = set()
        self._gone: dict[TopicPartition, int] = {}
        """Records of the old log that are still to be handed out."""
        self._because: dict[TopicPartition, str] = {}
        self._commits: dict[TopicPartition, int] = {}
        """How often positions were stored since the last record of the old log was delivered."""
        self._short_since: dict[TopicPartition, float] = {}
        self._to_drop: list[TopicPartition] = []

    def is_over(self, source: TopicPartition) -> bool:
        """Whether nothing of it is read any more, and what was read cannot be read again."""
        return source in self._read_up or source in self._gone

    def is_gone(self, source: TopicPartition) -> bool:
        """Whether the log of the end is gone; offsets of the new one are not comparable."""
        return source in self._gone

    def take_drops(self) -> list[TopicPartition]:
        """Return the partitions that need not be read any more, once."""
        dropped, self._to_drop = self._to_drop, []
        return dropped

    def below_end(self, source: TopicPartition, batches: list[RecordBatch]) -> list[RecordBatch]:
        """Return the batches of the right log (1) that begin below the partition's end."""
        if source in self._gone:
            batches = self._of_old_log(source, batches)
        end = self._ends.get(source)
        # The end may lie in a batch or in a hole after it.
        if end is None or not batches or batches[-1].last_offset < end - 1:
            return batches
        self._gone.pop(source, None)
        self._to_drop.append(source)
        for batch in batches:
            # A batch that contains the end goes whole: batches are not cut.
            if batch.base_offset >= end and batch.lease is not None:
                batch.lease.release()
        self._read_up.add(source)
        return [batch for batch in batches if batch.base_offset < end]

    def _of_old_log(self, source: TopicPartition, batches: list[RecordBatch]) -> list[RecordBatch]:
        kept: list[RecordBatch] = []
        for batch in batches:
            # Counted, not compared by offset: the new log's offsets may be the same numbers.
            if self._gone[source]:
                self._gone[source] -= batch.count
                kept.append(batch)
            elif batch.lease is not None:
                batch.lease.release()
        if not self._gone[source]:
            self._to_drop.append(source)
        return kept

    def lost(self, source: TopicPartition, waiting: int, detail: str) -> None:
        """The log was cut or replaced; ``waiting`` records were read and not handed out."""
        if source not in self._ends or source in self._read_up or source in self._gone:
            return
        self._gone[source], self._because[source] = waiting, detail
        if not waiting:
            self._to_drop.append(source)

    def look(self, source: TopicPartition, log_end: int) -> None:
        """Take where a log ends now (3)."""
        end = self._ends.get(source, -1)
        if log_end >= end:
            self._short_since.pop(source, None)
            return
        now = self._clock.monotonic()
        if now - self._short_since.setdefault(source, now) >= SHORT_S:
            self.lost(source, 0, f"the source's log ends at {log_end}, below {end}")

    def committed(self) -> None:
        """Positions were stored."""
        for source in self._commits:
            self._commits[source] += 1

    def take_ended(self) -> list[tuple[TopicPartition, int]]:
        """Return what was read up to its end, once the last record below it is delivered: covered
        up to the end, with holes after it."""
        ended = [it for it in self._read_up if not self._covered.under_way(it)]
        self._read_up.difference_update(ended)
        return [(source, self._ends[source] - 1) for source in ended]

    def take_gone(self) -> list[tuple[TopicPartition, PartitionError]]:
        """Return what is given up now (2), with the reason."""
        for source, left in self._gone.items():
            if source in self._because and not left and not self._covered.under_way(source):
                self._commits.setdefault(source, 0)
        ready = [it for it, commits in self._commits.items() if commits >= ENOUGH_COMMITS]
        for source in ready:
            del self._commits[source]
        return [
            (
                source,
                PartitionError(
                    f"{RANGE_GONE}: {self._because.pop(source)}",
                    topic=source.topic,
                    partition=source.partition,
                    remedy="the flow copies what the topic has now; mm2py backfill run ends the "
                    "job",
                ),
            )
            for source in ready
        ]
