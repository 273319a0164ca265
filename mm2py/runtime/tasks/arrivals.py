"""Acknowledgements of the target, batched for a moment, and their order where transforms route
records.

Flow: ``add`` per acknowledged batch -> runs of equal shift grow -> ``report(Delivery)`` per source
partition. A batch costs a few integer steps here; positions, meters and offset syncs cost once per
report. A caller that needs the present state (a commit, a failure) calls ``flush`` first.

With transforms, ``SourceOrder`` comes before: each source batch is a ``Part`` whose records leave
in one partition queue per target partition. Parts are passed on in source order once every record
before them is acknowledged or dropped, so that no position and no page of the offset map passes a
record that a transform sent elsewhere and that has not arrived there.

Invariants of ``SourceOrder``, tests of the same names:

1. A part is done when all of its records are acknowledged and every part of its source partition
   before it is done.
2. Records are counted, not compared by offset: a source topic that was recreated begins at 0.
3. A batch that joins the records of several parts counts part by part: what is between them comes
   in its place, so that a mark of the source is not put behind the wrong records.
4. ``pass_on`` passes on all copies that have arrived before a part with records for other targets:
   a producer id that is stored next hides them from a start.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.task import Delivery, Run
from mm2py.client.send.tail import part_of
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

GATHER_S: Final = 0.05
"""How long an acknowledgement may wait to be reported: shorter than any commit interval."""


@final
class _LandedRuns:
    """What arrived of one source partition; the last run is still growing."""

    __slots__ = (
        "at_ms", "base", "count", "first", "newest_ms", "next_source", "next_target", "runs",
        "size_bytes", "target",
    )  # fmt: skip

    def __init__(self, target: TopicPartition) -> None:
        self.target = target
        self.runs: list[Run] = []
        self.first = self.base = 0
        self.count = 0
        self.next_source = self.next_target = -1
        self.size_bytes = 0
        self.newest_ms = self.at_ms = -1

    def delivery(self, source: TopicPartition, passed: int = 0, through: int = -1) -> Delivery:
        if self.count:
            self.runs.append(Run(self.first, self.count, self.base))
        size, newest = self.size_bytes, self.newest_ms
        runs = tuple(self.runs)
        return Delivery(source, self.target, runs, size, newest, passed, through, self.at_ms)


@final
class Arrivals:
    """Gathers acknowledgements and passes them on, in source order per partition, each once.

    ``report(delivery)`` must not raise. Without ``by_itself`` it reports at ``flush`` alone. With
    ``now_ms`` a report says when the newest record was acknowledged.
    """

    def __init__(
        self,
        report: Callable[[Delivery], None],
        *,
        by_itself: bool = True,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._report = report
        self._now_ms = now_ms
        self._by_itself = by_itself
        self._landed: dict[TopicPartition, _LandedRuns] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        """Note one batch; ``base_offset`` is where its first record is on the target, -1 where the
        broker did not say. Hot path."""
        # One lookup on the hot path; ``_begin`` is called 20 times a second at most.
        landed = self._landed.get(source) or self._begin(source, target)
        for first, count in batch.runs:
            # Nearly every run of a dense partition continues the last one: no object is made for
            # it.
            if first == landed.next_source and base_offset == landed.next_target:
                landed.count += count
            else:
                if landed.count:
                    landed.runs.append(Run(landed.first, landed.count, landed.base))
                landed.first, landed.count, landed.base = first, count, base_offset
            if base_offset >= 0:
                base_offset += count
            landed.next_source, landed.next_target = first + count, base_offset
        landed.size_bytes += len(batch.data)
        # The newest record decides the latency; -1 (no timestamp) never does.
        if batch.max_timestamp > landed.newest_ms:
            landed.newest_ms = batch.max_timestamp
            if self._now_ms is not None:
                landed.at_ms = self._now_ms()

    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None:
        """Report records without a copy on ``target`` after what was gathered: everything up to
        source offset ``through`` is done."""
        # Gathered copies come first, in one report: a position must not pass them.
        landed = self._landed.pop(source, None) or _LandedRuns(target)
        self._report(landed.delivery(source, records, through))

    def _begin(self, source: TopicPartition, target: TopicPartition) -> _LandedRuns:
        landed = self._landed[source] = _LandedRuns(target)
        if self._timer is None and self._by_itself:
            # ``call_later`` is lighter than a task, and runs between two callbacks.
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)
        return landed

    @property
    def waiting(self) -> bool:
        """Whether ``flush`` would report anything."""
        return bool(self._landed)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Swapped first: a report may lead to the next acknowledgement.
        gathered, self._landed = self._landed, {}
        for source, landed in gathered.items():
            self._report(landed.delivery(source))

    def close(self) -> None:
        """Discard what was not reported: the task is over, and those records will be copied
        again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._landed.clear()


# ---- the order of source partitions where transforms route records


MOST_PARTS: Final = 1_000
"""With this many unfinished parts a source partition is held until the target partition that they
wait for accepts its records."""


class Part(NamedTuple):
    """What transforms made of one source batch.

    ``records``: how many of them left for each target partition; ``passed``: how many have no copy
    in the partition's own target, because they were dropped or left for another one; ``through``:
    source offset of the last one, ``first`` of the first.
    """

    records: Mapping[TopicPartition, int]
    passed: int
    through: int
    first: int = -1


class InOrder(Protocol):
    """Receives finished parts in source order (``Arrivals``)."""

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None: ...
    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None: ...


class _Copies(NamedTuple):
    """Copies that are acknowledged, and how many copies there are up to their end."""

    end: int
    batch: RecordBatch
    base_offset: int


@dataclass(slots=True, eq=False)
class _SourceState:
    """One source partition."""

    home: TopicPartition
    sent: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    arrived: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    parts: deque[Part] = field(default_factory=deque[Part])
    """With how many records must have arrived in each target partition for them."""
    landed: deque[_Copies] = field(default_factory=deque[_Copies])
    """Those that were not passed on."""
    done: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """Records in parts that are done, by target partition."""


@final
class SourceOrder:
    """The order of all source partitions of one task."""

    def __init__(self) -> None:
        self._sources: dict[TopicPartition, _SourceState] = {}
        self._then: InOrder | None = None

    def follow(self, then: InOrder) -> None:
        self._then = then

    def handed_out(self, source: TopicPartition, home: TopicPartition, part: Part) -> None:
        """Note a part that is about to be sent; called in source order."""
        state = self._sources.get(source)
        if state is None:
            state = self._sources[source] = _SourceState(home)
        for target, count in part.records.items():
            state.sent[target] = state.sent.get(target, 0) + count
        due = {target: state.sent[target] for target in part.records}
        # Cumulative counts per target: one comparison each tells whether a part is done, however
        # its batches are cut (2).
        state.parts.append(part._replace(records=due))

    def arrived(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> bool:
        """Note one acknowledged batch; return whether it is of the source partition's own
        target."""
        state = self._sources[source]
        end = state.arrived[target] = state.arrived.get(target, 0) + batch.count
        if target == state.home:
            state.landed.append(_Copies(end, batch, base_offset))
        self.advance(source)
        return target == state.home

    def advance(self, source: TopicPartition) -> None:
        """Pass finished parts on, also those that had nothing to send."""
        state = self._sources.get(source)
        if state is None:
            return
        parts, arrived = state.parts, state.arrived
        # Only the first part may be done: the order of the source is kept whatever target is faster
        # (1).
        while parts and all(arrived.get(it, 0) >= due for it, due in parts[0].records.items()):
            part = parts.popleft()
            state.done |= part.records
            then = self._pass_copies(source, state, state.done.get(state.home, 0))
            if part.passed:
                then.passes(source, state.home, part.passed, part.through)

    def pass_on(self) -> None:
        """Pass on copies of parts that are not done, where all of a part's records have one home
        (4)."""
        for source, state in self._sources.items():
            if state.parts and set(state.parts[0].records) == {state.home}:
                self._pass_copies(source, state, state.arrived.get(state.home, 0))

    def returnable(self, source: TopicPartition, records: int) -> tuple[int, int] | None:
        """Return where the parts begin that are not done, and of how many records they were made;
        None unless ``records`` are all that is left of them."""
        state = self._sources.get(source)
        if state is None or not state.parts:
            return None
        # Copies that are on their way or wait; anything else than ``records`` means that a part of
        # them has left.
        left = sum(state.sent.values()) - sum(state.done.values())
        made = left + sum(part.passed for part in state.parts)
        return (state.parts[0].first, made) if left == records else None

    def give_back(self, source: TopicPartition) -> None:
        """Forget the parts that are not done: they are made again."""
        state = self._sources[source]
        # As if these parts had never been handed out.
        state.sent = dict(state.done)
        state.parts.clear()

    @property
    def is_done(self) -> bool:
        """Whether all that was handed out is acknowledged or dropped."""
        return not any(state.parts for state in self._sources.values())

    def is_torn(self, failed: Collection[TopicPartition]) -> bool:
        """Whether a part arrived incompletely or before its predecessor, failed partitions aside.

        No position covers it then.
        """
        return any(
            count > state.done.get(target, 0)
            for source, state in self._sources.items()
            if source not in failed
            for target, count in state.arrived.items()
        )

    def overdue(self) -> Iterator[tuple[TopicPartition, TopicPartition]]:
        """Return source partitions with many unfinished parts, each with a target partition that
        they wait for."""
        for source, state in self._sources.items():
            if len(state.parts) >= MOST_PARTS:
                due = state.parts[0].records.items()
                yield source, next(it for it, count in due if state.arrived.get(it, 0) < count)

    def _pass_copies(self, source: TopicPartition, state: _SourceState, done: int) -> InOrder:
        assert self._then is not None, "follow() was called"
        landed = state.landed
        while landed and (first := landed[0].end - landed[0].batch.count) < done:
            end, batch, base_offset = landed.popleft()
            # It joined records of several parts (3).
            if end > done:
                behind = base_offset + done - first if base_offset >= 0 else -1
                rest = part_of(batch, done - first, end - done, behind)
                rest.batch.data = batch.data  # its bytes count once
                landed.appendleft(_Copies(end, *rest))
                batch, _ = part_of(batch, 0, done - first, base_offset)
            self._then.add(source, state.home, batch, base_offset)
        return self._then
