"""How far a quiet partition is covered beyond its last record: markers, aborted data and holes
after it.

Flow: batches handed out and delivered, position of the reader once a second -> offset up to which
nothing is left to copy. Without it a restart would start at the last record, and what retention
took meanwhile of markers and aborted data would look like lost records.
"""

from collections.abc import Collection, Mapping
from typing import final

from mm2py.types import TopicPartition


@final
class CoveredPositions:
    """Decides when the reader's position is a safe one.

    A position is stored at the check after the one that observed it: with a complete fetch between
    them all that was read below it has been handed out. The partition was not held meanwhile, and
    every record that was handed out is delivered. It need not rest: what mirrors write to the
    source is read and dropped without end.
    """

    def __init__(self) -> None:
        self._under_way: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Take positions that come from stored offsets; negative ones are not known yet."""
        self._last |= {tp: position - 1 for tp, position in positions.items() if position >= 0}

    def began(self, source: TopicPartition, position: int) -> None:
        """The first offset of a partition without a stored one is known, before its records."""
        self._last[source] = position - 1

    def handed_out(self, source: TopicPartition, records: int) -> None:
        """Records left for the target."""
        self._under_way[source] = self._under_way.get(source, 0) + records

    def delivered(self, source: TopicPartition, records: int, last_offset: int) -> None:
        """Records arrived; ``last_offset`` is the last of them."""
        self._under_way[source] = self._under_way.get(source, 0) - records
        self._last[source] = last_offset

    def taken_back(self, source: TopicPartition, records: int) -> None:
        """Records that were handed out last will be handed out again; the partition is held."""
        self._under_way[source] -= records

    def held(self, partitions: Collection[TopicPartition], *, on: bool) -> None:
        """A held partition keeps back what was read of it: its position is no evidence."""
        for source in partitions:
            self._seen.pop(source, None)
        if on:
            self._held.update(partitions)
        else:
            self._held.difference_update(partitions)

    def restarted(self, source: TopicPartition) -> None:
        """The source's offsets are others from now on: truncated, or another incarnation."""
        self._seen.pop(source, None)
        self._last[source] = -1

    def under_way(self, source: TopicPartition) -> int:
        """Return how many records were handed out and not delivered."""
        return self._under_way.get(source, 0)

    def look(self, source: TopicPartition, position: int) -> int:
        """Return the offset up to which ``source`` is covered if that has changed, else -1."""
        if position < 0 or source in self._held:
            return -1
        before = self._seen.get(source)
        self._seen[source] = position
        last = self._last.setdefault(source, position - 1)
        # A record under way may still be refused: nothing behind it is safe.
        if before is None or self._under_way.get(source, 0):
            return -1
        # The lower one: the source may have been cut between the two looks.
        covered = min(before, position) - 1
        if covered <= last:
            return -1
        self._last[source] = covered
        return covered
