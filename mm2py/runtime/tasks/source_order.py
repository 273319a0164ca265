"""Puts acknowledgements of several target partitions back into the order of their source partition.

Flow: transforms made a ``Part`` of each source batch -> its records leave in one lane per target partition -> acknowledged ->
``Arrivals``, part by part, when every record before them is acknowledged or dropped. So a position, and the offset map, never
pass a record that a transform sent elsewhere and that has not arrived there.

Invariants, tests of the same names:

1. A part is done when all of its records are acknowledged and every part of its source partition before it is done.
2. Records are counted, not compared by offset: a source topic that was created again begins at 0.
3. A batch that joins the records of several parts counts when the last of them is done.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, final

from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

MOST_PARTS: Final = 1_000
"""From so many unfinished parts on a source partition is not read before the target partition they wait for has taken its records."""


class Part(NamedTuple):
    """What became of one source batch.

    ``records``: how many of them left for each target partition; ``passed``: how many have no copy in the partition's own
    target, because they were dropped or left for another one; ``through``: source offset of the last one.
    """

    records: Mapping[TopicPartition, int]
    passed: int
    through: int


class InOrder(Protocol):
    """Takes what is done, in source order (``Arrivals``)."""

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        """Take one batch of copies."""
        ...

    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None:
        """Take records without a copy on ``target``, up to source offset ``through``."""
        ...


class _Due(NamedTuple):
    """A part, and how many records of the source partition must have arrived in each target partition for it."""

    records: Mapping[TopicPartition, int]
    passed: int
    through: int


class _Landed(NamedTuple):
    """Copies that are acknowledged, and how many copies there are up to their end."""

    end: int
    batch: RecordBatch
    base_offset: int


class _Source:
    """One source partition."""

    __slots__ = ("arrived", "done", "home", "landed", "parts", "passed", "released", "sent")

    def __init__(self, home: TopicPartition) -> None:
        self.home = home
        self.sent: dict[TopicPartition, int] = {}
        self.arrived: dict[TopicPartition, int] = {}
        self.parts: deque[_Due] = deque()
        self.landed: deque[_Landed] = deque()
        self.done = 0  # copies in parts that are done
        self.released = 0  # copies that were passed on
        self.passed = 0  # records of parts that are done, which were not passed on


@final
class SourceOrder:
    """The order of all source partitions of one task."""

    def __init__(self) -> None:
        self._sources: dict[TopicPartition, _Source] = {}
        self._then: InOrder | None = None

    def follow(self, then: InOrder) -> None:
        """Name what takes what is done."""
        self._then = then

    def handed_out(self, source: TopicPartition, home: TopicPartition, part: Part) -> None:
        """Note what is about to leave; in source order."""
        state = self._sources.get(source)
        if state is None:
            state = self._sources[source] = _Source(home)
        for target, count in part.records.items():
            state.sent[target] = state.sent.get(target, 0) + count
        due = {target: state.sent[target] for target in part.records}
        state.parts.append(_Due(due, part.passed, part.through))

    def arrived(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> bool:
        """Note one acknowledged batch; return whether it is of the source partition's own target."""
        state = self._sources[source]
        end = state.arrived[target] = state.arrived.get(target, 0) + batch.count
        if target == state.home:
            state.landed.append(_Landed(end, batch, base_offset))
        self.advance(source)
        return target == state.home

    def advance(self, source: TopicPartition) -> None:
        """Pass on what is done: also after parts that had nothing to send."""
        state = self._sources.get(source)
        if state is None:
            return
        parts, arrived = state.parts, state.arrived
        while parts and all(arrived.get(it, 0) >= due for it, due in parts[0].records.items()):
            part = parts.popleft()
            state.done = part.records.get(state.home, state.done)
            state.passed += part.passed
            self._release(source, state, part.through)

    @property
    def is_done(self) -> bool:
        """Whether all that was handed out is acknowledged or dropped."""
        return not any(state.parts for state in self._sources.values())

    def overdue(self) -> Iterator[tuple[TopicPartition, TopicPartition]]:
        """Return source partitions with many unfinished parts, each with a target partition that they wait for."""
        for source, state in self._sources.items():
            if len(state.parts) >= MOST_PARTS:
                due = state.parts[0].records.items()
                yield source, next(it for it, count in due if state.arrived.get(it, 0) < count)

    def _release(self, source: TopicPartition, state: _Source, through: int) -> None:
        assert self._then is not None, "follow() was called"
        while state.landed and state.landed[0].end <= state.done:
            end, batch, base_offset = state.landed.popleft()
            state.released = end
            self._then.add(source, state.home, batch, base_offset)
        if state.passed and state.released == state.done:
            passed, state.passed = state.passed, 0
            self._then.passes(source, state.home, passed, through)
