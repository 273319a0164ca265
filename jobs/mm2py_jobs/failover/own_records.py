"""Which records of a target are its own beside copies with the same names, and so where the flow
back begins.

Flow: the flow's map -> ``holes_of``: target offsets in which it has no copies -> without what
mirrors wrote -> where the flow passed source offsets without the map, another program may have
copied these there: compared with the source's records -> ``OwnRecords``. What is nowhere on the
source is the target's own; where that does not show, a range is named and not guessed.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import each_of
from mm2py.errors import FatalError, PartitionError, ProtocolError, RetriableError, ServerError
from mm2py.mirror.offset_lookup import beginning_of
from mm2py.mirror.offset_map_pages import Mark
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.types import TopicPartition
from mm2py_jobs.copy.expiry import value_of
from mm2py_jobs.copy.known_maps import KnownMap
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import LogEnds, log_ends
from mm2py_jobs.log.mirror_producers import producer_of
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_jobs.verify.log_entries import LogEntry, entries_of

MOST_HOLES: Final = 1_000
"""Gaps between copies that are searched in a partition; after so many the flow back begins at the
next one, and drops copies itself."""
HOLE_BYTES: Final = 64 * 1024
"""Of one read: each commit of an exactly-once flow leaves a gap of one marker."""
MOST_COMPARED: Final = 5_000_000
"""Offsets of both logs that one search compares, some 10 s of a core: clients may wait for it."""
RECENT: Final = 200_000
"""Source records in memory: a program that was killed copies its last ones again."""
_AT_ONCE: Final = 32
"""Partitions whose gaps are searched at the same time: clients wait for a failover."""


class Hole(NamedTuple):
    """Target offsets in which the map has no copies.

    ``passed``: first and end of the source offsets that another program may have copied there;
    ``cut``: the source has lost some of them since.
    """

    first: int
    end: int
    passed: tuple[int, int] = (0, 0)
    cut: bool = False

    @property
    def may_have_copies(self) -> bool:
        return self.passed[0] < self.passed[1]


class Unclear(NamedTuple):
    """Target offsets of which it does not show whose records they are, and why."""

    first: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class OwnRecords:
    """The first record of the target's own from a place on, else the end of the copies.

    ``source``: the partition that is copied there; ``skipped``: first and end of its offsets that
    were passed, and that no program copied.
    """

    source: TopicPartition
    first: int
    unclear: list[Unclear] = field(default_factory=list[Unclear])
    skipped: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def may_begin(self) -> int:
        """The first record that is the target's own for all that shows: no group is past it."""
        return min([self.first, *(it.first for it in self.unclear)])


def holes_of(
    known: KnownMap, at: int, *, position: int = -1, end: int = 0
) -> tuple[list[Hole], int]:
    """Return the holes from target offset ``at`` on, and the end of the copies: ``end``, where
    another program may have copied behind the map's last ones, up to the stored ``position``."""
    segments, holes, nothing = known.segments_to(position), list[Hole](), Hole(0, 0)
    # Where the first page has expired, both logs have deleted what lay below the others.
    begins = beginning_of(segments[0][0]).source if segments and 0 in known.pages else 0
    passed = nothing._replace(passed=(0, begins))
    for segment, limit in segments:
        if segment.mark is Mark.UNKNOWN:
            first, last = passed.passed if passed.may_have_copies else (segment.source, 0)
            both = min(first, segment.source), max(last, segment.source_end)
            cut = passed.cut or limit < segment.source_end
            passed = nothing._replace(passed=both, cut=cut)
        elif segment.mark is Mark.COPIED:
            if segment.target > at:
                holes.append(passed._replace(first=at, end=segment.target))
            # No other program copies what lies behind an anchor: there the flow continued.
            passed, at = nothing, max(at, segment.target_end)
    if passed.may_have_copies and at < end:
        return [*holes, passed._replace(first=at, end=end)], end
    return holes, at


@dataclass(frozen=True, slots=True)
class _Look:
    """A target partition that is searched."""

    source: TopicPartition
    copy: TopicPartition
    holes: Sequence[Hole]
    end: int
    source_id: bytes = NO_TOPIC_ID
    """Of the topic that was copied."""

    @property
    def is_compared(self) -> bool:
        return any(it.may_have_copies for it in self.holes)


async def own_records(
    clusters: FailoverClusters,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None = None,
) -> Mapping[TopicPartition, OwnRecords]:
    """Search target partitions that the flow has copies in.

    Args:
        clusters: both.
        begins: where each search begins.
        ends: up to where there may be copies behind those of the map; without, partitions that
            have no map are left out.

    Raises:
        SourceAwayError: the source does not answer.
    """
    if not begins:
        return {}
    logs = await log_ends(clusters.target, list(begins), read_committed=False)
    starts = {copy: max(at, logs[copy].start) for copy, at in begins.items()}
    looks, stored = dict[TopicPartition, _Look](), await clusters.known()
    for source, known in stored.maps.items():
        if (copy := clusters.copy_of(source)) in starts and known.segments():
            holes, end = holes_of(
                known, starts[copy], position=stored.resume(source), end=(ends or {}).get(copy, 0)
            )
            looks[copy] = _Look(source, copy, holes, end, known.newest.source_id)
    for source in stored.positions if ends else ():
        if ends and (copy := clusters.copy_of(source)) in ends.keys() - looks.keys():
            hole = Hole(starts[copy], max(starts[copy], ends[copy]), (0, stored.resume(source)))
            looks[copy] = _Look(source, copy, [hole], hole.end, stored.incarnation(source))
    for copy, it in looks.items():
        there = [hole for hole in it.holes if hole.first < logs[copy].end]  # else it was cut
        looks[copy] = replace(
            it, holes=[hole._replace(end=min(hole.end, logs[copy].end)) for hole in there]
        )
    search = _Search(clusters, await clusters.target_looping())
    await search.ask([it for it in looks.values() if it.is_compared])
    found = await each_of(looks.values(), search.find, at_once=_AT_ONCE)
    return dict(zip(looks, found, strict=True))


@final
class _Search:
    def __init__(self, clusters: FailoverClusters, looping: Collection[int]) -> None:
        self._clusters, self._looping = clusters, looping
        self._target = RangeReader(clusters.target, read_committed=False, fetch_bytes=HOLE_BYTES)
        self._logs: Mapping[TopicPartition, LogEnds] = {}
        self._unlike: dict[TopicPartition, str] = {}
        """Why the source's records say nothing about copies."""
        self._left, self._turn = MOST_COMPARED, asyncio.Lock()

    async def ask(self, looks: Sequence[_Look]) -> None:
        """Ask both clusters about what is compared."""
        if not looks:
            return
        (alias, other), topics = self._clusters.name, {it.source.topic for it in looks}
        try:
            async with self._clusters.source() as source:
                there = await Admin(source).describe_topics(topics)
                here = await Admin(source).describe_topic_configs(there)
                named = [it.source for it in looks if it.source.topic in there]
                self._logs = await log_ends(source, named, read_committed=False)
            copies = await Admin(self._clusters.target).describe_topic_configs(
                {it.copy.topic for it in looks}
            )
        except ServerError as error:
            if isinstance(error, RetriableError):
                raise
            self._unlike = dict.fromkeys((it.copy for it in looks), error.message)
            return
        for it in looks:
            topic, copy = it.source.topic, it.copy.topic
            ours = {entry.name: entry for entry in here.get(topic, ())}
            theirs = {entry.name: entry for entry in copies.get(copy, ())}
            if topic not in there or is_another_topic(it.source_id, there[topic].topic_id):
                self._unlike[it.copy] = f"{topic} of {alias} is not the topic that was copied"
            elif "compact" in value_of(ours, "cleanup.policy"):
                self._unlike[it.copy] = f"{alias} compacts {topic}, and may have removed them"
            elif value_of(theirs, "message.timestamp.type") == "LogAppendTime":
                self._unlike[it.copy] = f"{other} stamps the records of {copy} itself"

    async def find(self, look: _Look) -> OwnRecords:
        """Search the holes in order."""
        own = OwnRecords(look.source, look.end)
        for number, hole in enumerate(look.holes):
            if number == MOST_HOLES:
                return replace(own, first=hole.first)
            first = await self._first_foreign(look.copy, hole)
            if hole.may_have_copies:
                async with self._turn:  # one at a time: source records are in memory
                    first = await self._compared(look, hole, first, own)
            if first >= 0:
                return replace(own, first=first)
        return own

    async def _first_foreign(self, copy: TopicPartition, hole: Hole) -> int:
        """Return the first record of a hole that no mirror wrote, -1 for none."""
        async for batches in self._target.read(copy, hole.first, hole.end):
            for batch in batches:
                if producer_of(batch) not in self._looping:
                    return max(hole.first, batch.base_offset)
        return -1

    async def _compared(self, look: _Look, hole: Hole, first: int, own: OwnRecords) -> int:
        """Return the first record of a hole that is nowhere on the source, -1 for none; ``first``
        is one that no mirror wrote. Adds to ``own`` what does not show."""
        log = self._logs.get(look.source, LogEnds(0, 0))
        passed = max(hole.passed[0], log.start), hole.passed[1]
        self._left -= hole.end - hole.first + max(0, passed[1] - passed[0])
        why = self._unlike.get(look.copy, "")
        if not why and (hole.cut or passed[1] > log.end):
            why = f"{self._clusters.name.source} has lost records that were passed"
        if not why and self._left < 0:
            why = f"more than {MOST_COMPARED:,} offsets would have to be compared"
        if not why:
            try:
                async with self._clusters.source() as source:
                    return await self._alone(look, hole, passed, source, own)
            except (FatalError, PartitionError, ProtocolError) as error:
                why = error.message
        if first >= 0:
            own.unclear.append(Unclear(first, hole.end, why))
        return -1

    async def _alone(
        self,
        look: _Look,
        hole: Hole,
        passed: tuple[int, int],
        source: Cluster,
        own: OwnRecords,
    ) -> int:
        """As ``_compared``, where both sides can be read."""
        alone, unclear, has_copies = -1, (-1, -1), False
        # What the source has deleted lies before the first common record: records keep their order.
        is_whole = passed[0] == hole.passed[0]
        may_tell = is_whole and hole.passed[0] > 0 and passed[1] - passed[0] <= RECENT
        reading = RangeReader(source, read_committed=False).read(look.source, *passed)
        async with aclosing(reading) as pieces:
            records = _PassedRecords(pieces)
            async for entry in self._entries(look.copy, hole):
                if entry is None or await records.has(entry, to_end=is_whole):
                    is_whole = is_whole or entry is not None
                    has_copies = True
                elif not is_whole:
                    unclear = (entry.offset if unclear[0] < 0 else unclear[0], entry.offset + 1)
                elif alone < 0:
                    alone = entry.offset
                if alone >= 0 and (has_copies or not may_tell):
                    break
        if unclear[0] >= 0:
            why = f"{self._clusters.name.source} has deleted records that were passed"
            own.unclear.append(Unclear(*unclear, why))
        elif may_tell and not has_copies:
            own.skipped.append(hole.passed)
        return alone

    async def _entries(self, copy: TopicPartition, hole: Hole) -> AsyncGenerator[LogEntry | None]:
        """Yield the records of a hole, None for a batch of a mirror."""
        reader = RangeReader(self._clusters.target, read_committed=False)
        async for batches in reader.read(copy, hole.first, hole.end):
            for batch in batches:
                if producer_of(batch) in self._looping:
                    yield None
                    continue
                for entry in entries_of(batch):
                    if hole.first <= entry.offset < hole.end:
                        yield entry


@final
class _PassedRecords:
    """The records of a source range, by their contents; ``RECENT`` of them in memory."""

    def __init__(self, pieces: AsyncGenerator[list[LogBatch]]) -> None:
        self._pieces = pieces
        self._recent: dict[int, None] = {}

    async def has(self, entry: LogEntry, *, to_end: bool) -> bool:
        """Whether a record is among those in memory, or after them; looks no further than
        ``RECENT`` unless ``to_end``."""
        content = hash((entry.timestamp, entry.body))
        while content not in self._recent:
            if not to_end and len(self._recent) >= RECENT:
                return False
            batches = await anext(self._pieces, None)
            if batches is None:
                return False
            for batch in batches:
                for it in entries_of(batch):
                    self._recent[hash((it.timestamp, it.body))] = None
            for old in list(islice(self._recent, max(0, len(self._recent) - RECENT))):
                del self._recent[old]
        return True


async def has_records(
    source: Cluster,
    tp: TopicPartition,
    ranges: Sequence[tuple[int, int]],
    looping: Collection[int],
) -> bool:
    """Whether there is a record in these ranges that the flow would copy, or one that cannot be
    read; ``looping`` are producers whose batches it drops."""
    reader = RangeReader(source, read_committed=False, fetch_bytes=HOLE_BYTES)
    try:
        for first, end in ranges:
            async for batches in reader.read(tp, first, end):
                if any(producer_of(it) not in looping for it in batches):
                    return True
    except (PartitionError, ProtocolError):
        return True
    return False
