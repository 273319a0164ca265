"""What is compared with what: ranges of source offsets and of their copies, fixed on the driver.

Flow: log ends of the target, then the exact offset map, then log ends of the source -> ``plan_partition`` -> ``PartitionPlan`` as JSON
for a task. In this order every copy that is compared has its source record in the range. Reads no data.

What the map has in its place: where the copy began, what was copied again after a source's log was cut, what was passed by
another program. Without a map (a mirror of another kind) equal offsets are taken to be the same record at the start.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple, Self, cast, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.fetch.range_reader import LogEnds, log_ends
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ProtocolError
from mm2py.mirror.offset_lookup import valid_segments
from mm2py.mirror.offset_map import (
    Mark,
    Page,
    Segment,
    decode_page,
    decode_page_key,
    offset_map_topic,
)
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.records import Record
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.spark.flow_sides import FlowSides
from mm2py.spark.log_entries import OffsetRange
from mm2py.types import ClusterAlias, TopicPartition

__all__ = [
    "CopiedPiece",
    "KnownMap",
    "PartitionPlan",
    "VerifyPlan",
    "plan_partition",
    "plan_verify",
]


class CopiedPiece(NamedTuple):
    """``records`` source offsets from ``source`` on are at ``target`` on."""

    source: int
    records: int
    target: int


NOTHING: Final = OffsetRange(0, 0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What a task compares of one partition; ``lost`` is what the map has behind the end of the target's log."""

    topic: str
    partition: int
    target_topic: str
    source_ranges: tuple[OffsetRange, ...]
    target_ranges: tuple[OffsetRange, ...]
    pieces: tuple[CopiedPiece, ...] = ()
    covered: int | None = None
    source_compacts: bool = False
    target_compacts: bool = False
    lost: OffsetRange = NOTHING
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """Its copy."""
        return TopicPartition(self.target_topic, self.partition)

    @property
    def offsets(self) -> int:
        """How many offsets are read."""
        return sum(end - first for first, end in (*self.source_ranges, *self.target_ranges))

    def expected(self, source_offset: int) -> int:
        """Return where the map has a source offset; -1 unknown."""
        at = bisect_right(self.pieces, source_offset, key=lambda it: it.source) - 1
        if at < 0 or source_offset >= self.pieces[at].source + self.pieces[at].records:
            return -1
        return self.pieces[at].target + source_offset - self.pieces[at].source

    def to_json(self) -> dict[str, object]:
        """Return it for a task."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Self:
        """Read what ``to_json`` returned, after JSON."""
        document = dict(found)
        for name, kind in (
            ("source_ranges", OffsetRange),
            ("target_ranges", OffsetRange),
            ("pieces", CopiedPiece),
        ):
            rows = cast("Sequence[Sequence[int]]", document[name])
            document[name] = tuple(kind(*row) for row in rows)
        document["lost"] = OffsetRange(*cast("Sequence[int]", document["lost"]))
        document["notes"] = tuple(cast("Sequence[str]", document["notes"]))
        return cls(**document)  # type: ignore[arg-type] # the members are those of to_json


@final
@dataclass(slots=True)
class KnownMap:
    """The whole map of one partition."""

    pages: dict[int, Page] = field(default_factory=dict[int, Page])

    def put(self, page: Page) -> None:
        """Take a page; it ends all with higher numbers."""
        self.pages = {number: it for number, it in self.pages.items() if number < page.number}
        self.pages[page.number] = page

    @property
    def newest(self) -> Page:
        """The page that grows."""
        return self.pages[max(self.pages)]

    def segments(self) -> list[tuple[Segment, int]]:
        """Return the segments with the source offset that ends each, in the order of the target's log."""
        found = [it for number in sorted(self.pages) for it in self.pages[number].segments]
        return valid_segments(tuple(found))


class VerifyPlan(NamedTuple):
    """All partitions, and what is not compared with the reason."""

    partitions: list[PartitionPlan]
    not_compared: list[str]
    clusters: tuple[str, str]


async def plan_verify(flow: FlowSides, source: Cluster, target: Cluster) -> VerifyPlan:
    """Fix what is compared.

    Raises:
        Mm2pyError: a cluster cannot be asked.
    """
    topics = flow.chosen(await Admin(source).list_topics())
    described = await Admin(source).describe_topics(topics)
    copies = await Admin(target).describe_topics(flow.copy_of(it) for it in topics)
    pairs: dict[TopicPartition, TopicPartition] = {}
    not_compared: list[str] = []
    for topic in topics:
        copy = copies.get(flow.copy_of(topic))
        for number in sorted(described[topic].partitions):
            if copy is None or number not in copy.partitions:
                not_compared.append(f"{topic}-{number} has no copy on {flow.flow.target}")
            else:
                pairs[TopicPartition(topic, number)] = TopicPartition(copy.name, number)
    target_ends = await log_ends(target, list(pairs.values()), read_committed=True)
    maps = await _maps(target, flow.flow.source)
    source_ends = await log_ends(source, list(pairs), read_committed=flow.read_committed)
    source_configs = await Admin(source).describe_topic_configs({it.topic for it in pairs})
    target_configs = await Admin(target).describe_topic_configs({it.topic for it in pairs.values()})
    partitions: list[PartitionPlan] = []
    for tp, copy_tp in pairs.items():
        known = maps.get(tp)
        ids = (known.newest.target_id, copies[copy_tp.topic].topic_id) if known else ()
        if NO_TOPIC_ID not in ids and len(set(ids)) > 1:
            not_compared.append(f"{tp}: {copy_tp.topic} was created again, its copy begins anew")
            continue
        partitions.append(
            plan_partition(
                tp,
                copy_tp,
                source_ends[tp],
                target_ends[copy_tp],
                known,
                source_compacts=_compacts(source_configs.get(tp.topic, ())),
                target_compacts=_compacts(target_configs.get(copy_tp.topic, ())),
            )
        )
    return VerifyPlan(partitions, not_compared, (source.cluster_id, target.cluster_id))


def _compacts(entries: Sequence[ConfigEntry]) -> bool:
    return any(it.name == "cleanup.policy" and "compact" in (it.value or "") for it in entries)


async def _maps(target: Cluster, source: ClusterAlias) -> dict[TopicPartition, KnownMap]:
    """Read the exact maps of the flow; none where there is no such topic."""
    topic, maps = offset_map_topic(source), dict[TopicPartition, KnownMap]()
    if topic not in await Admin(target).describe_topics([topic]):
        return maps

    def take(_partition: int, record: Record) -> None:
        try:
            partition, number = decode_page_key(record.key)
            page = decode_page(number, record.value) if record.value is not None else None
        except ProtocolError:
            return  # of a later version; what it is about is compared as if it were not mapped
        known = maps.setdefault(partition, KnownMap())
        if page is None:
            known.pages.pop(number, None)
        else:
            known.put(page)

    reader = LogReader(target, topic, clock=SYSTEM_CLOCK)
    try:
        await reader.read_to_end(take)
    finally:
        await reader.close()
    return {partition: known for partition, known in maps.items() if known.pages}


def plan_partition(
    source: TopicPartition,
    target: TopicPartition,
    source_log: LogEnds,
    target_log: LogEnds,
    known: KnownMap | None,
    *,
    source_compacts: bool = False,
    target_compacts: bool = False,
) -> PartitionPlan:
    """Decide which ranges are compared; a copy with the name of its source may have other writers, which are left out."""
    segments = known.segments() if known is not None else []
    if known is None or not segments:
        found = _without_map(source_log, target_log)
    else:
        found = _Ranges(source_log, target_log, segments)
        found.build(exact=source.topic == target.topic)
    return PartitionPlan(
        topic=source.topic,
        partition=source.partition,
        target_topic=target.topic,
        source_ranges=tuple(OffsetRange(*it) for it in found.source if it[0] < it[1]),
        target_ranges=tuple(OffsetRange(*it) for it in found.target if it[0] < it[1]),
        pieces=tuple(sorted(found.pieces)),
        covered=None if known is None or not segments else known.newest.covered,
        source_compacts=source_compacts,
        target_compacts=target_compacts,
        lost=found.lost,
        notes=tuple(found.notes),
    )


@final
class _Ranges:
    """Ranges of both sides in the order of the target's log, as the map has them."""

    def __init__(
        self, source: LogEnds, target: LogEnds, segments: Sequence[tuple[Segment, int]]
    ) -> None:
        self._source_log, self._target_log = source, target
        self._segments = segments
        self.source: list[list[int]] = []
        self.target: list[list[int]] = []
        self.pieces: list[CopiedPiece] = []
        self.lost = NOTHING
        self.notes: list[str] = []

    def build(self, *, exact: bool) -> None:
        """Fill the ranges; ``exact``: only what was copied, not what lies between or behind it."""
        breaks = True
        for segment, limit in self._segments:
            if segment.mark is Mark.UNKNOWN:
                self.notes.append(
                    f"source offsets {segment.source} to {limit} were passed by another program and are not compared"
                )
                breaks = True
            elif segment.mark is Mark.COPIED and not segment.is_anchor:
                breaks = not self._add(segment, limit, breaks=breaks or exact) and breaks
        first = self._segments[0][0]
        source, target = self._source_log, self._target_log
        if not exact:
            if first.is_anchor and first.source >= source.start and first.target >= target.start:
                self._begin(first)
            if self.source:
                self.source[-1][1] = max(self.source[-1][1], source.end)
                self.target[-1][1] = target.end

    def _begin(self, anchor: Segment) -> None:
        if self.source:
            self.source[0][0] = min(self.source[0][0], anchor.source)
            self.target[0][0] = min(self.target[0][0], anchor.target)
        else:
            self.source.append([anchor.source, self._source_log.end])
            self.target.append([anchor.target, self._target_log.end])

    def _add(self, segment: Segment, limit: int, *, breaks: bool) -> bool:
        shift = segment.target - segment.source
        first = max(segment.source, self._source_log.start, self._target_log.start - shift)
        end = min(limit, self._source_log.end)
        copied = min(end, self._target_log.end - shift)
        if copied < end:
            begin = max(copied, first) if self.lost is NOTHING else self.lost.first
            self.lost = OffsetRange(begin, max(end, self.lost.end))
        if first >= copied:
            return False
        self.pieces.append(CopiedPiece(first, copied - first, first + shift))
        if breaks or first < self.source[-1][1]:
            self.source.append([first, copied])
            self.target.append([first + shift, copied + shift])
        else:
            self.source[-1][1] = copied
            self.target[-1][1] = copied + shift
        return True


def _without_map(source: LogEnds, target: LogEnds) -> _Ranges:
    found = _Ranges(source, target, ())
    first = max(source.start, target.start)
    found.source, found.target = [[first, source.end]], [[first, target.end]]
    found.notes.append(
        f"there is no exact offset map: compared from offset {first} on, which is taken to be the same record on both sides"
    )
    return found
