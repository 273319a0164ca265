"""What is compared with what: ranges of source offsets and of their copies, fixed on the driver.

Flow: the exact offset map, then log ends of the target, then those of the source ->
``plan_partition`` -> ``VerifyPartition``, cut into ``parts`` -> as JSON for tasks. In this order
every copy that the map has is in the target's log, and every copy that is compared has its source
record in the range. Reads no data.

What the map has in its place: where the copy began, what was copied again after a source's log was
cut, what was passed by another program. Without a map (a mirror of another kind) a task looks for
the first record that both logs have.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple, Self, cast, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.failovers import quarantine_topic
from mm2py.mirror.offset_lookup import beginning_of
from mm2py.mirror.offset_map_pages import Mark, Page, Segment
from mm2py.mirror.offset_ranges import outside
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import is_another_topic, named_id
from mm2py.types import TopicPartition
from mm2py_jobs.copy.known_maps import KnownMap, not_copied
from mm2py_jobs.copy.survey import CopiesReader, Known
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.log.log_ends import LogEnds, log_ends
from mm2py_jobs.verify.log_entries import OffsetRange


class Stretch(NamedTuple):
    """A range of the source and the range of the target that has its copies, in order."""

    source: OffsetRange
    target: OffsetRange

    @property
    def offsets(self) -> int:
        return sum(max(0, end - first) for first, end in self)


class CopiedPiece(NamedTuple):
    """``records`` source offsets from ``source`` on are at ``target`` on."""

    source: int
    records: int
    target: int


NOTHING: Final = OffsetRange(0, 0)

_OPEN_TRIES: Final = 10
_OPEN_WAIT_S: Final = 0.5
"""Transactions of clients on the target that are open are waited for so often, each time so
long."""

NO_MAP: Final = (
    "there is no exact offset map: compared from the first record on that both logs have"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartition:
    """What is compared of one partition, in the order of the target's log.

    ``lost`` is what the map has after the end of the target's log; ``lost_before`` what the target
    had lost before further copies came, and the source still has. ``part`` counts the tasks that
    share the partition. The copies could be deleted and made again from source offset
    ``renew_from``, -1: they cannot, ``not_renewable`` has the reason. ``unstable`` is what the
    source has from an open transaction on, which no reader of committed records gets; ``hidden``:
    source offsets whose copies lie above an open transaction on the target; ``unvouched``: those
    whose copies, if there are any, another program wrote, so that no map says where they are. Other
    writers' records above one are ``extra`` in the first run after its end: no reader of committed
    records gets them before, and a note would follow each transaction of the flow itself.
    ``topic_id`` is the source topic's, in hexadecimal, ``target_id`` that of its copy.
    """

    topic: str
    partition: int
    target_topic: str
    stretches: tuple[Stretch, ...]
    part: int = 0
    pieces: tuple[CopiedPiece, ...] = ()
    covered: int | None = None
    source_compacts: bool = False
    target_compacts: bool = False
    lost: OffsetRange = NOTHING
    lost_before: tuple[OffsetRange, ...] = ()
    source_log: OffsetRange = NOTHING
    target_log: OffsetRange = NOTHING
    unstable: OffsetRange = NOTHING
    hidden: OffsetRange = NOTHING
    unvouched: tuple[OffsetRange, ...] = ()
    renew_from: int = -1
    not_renewable: str = ""
    topic_id: str = ""
    target_id: str = ""
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.partition)

    @property
    def offsets(self) -> int:
        return sum(stretch.offsets for stretch in self.stretches)

    @property
    def source_ranges(self) -> list[OffsetRange]:
        return [
            stretch.source
            for stretch in self.stretches
            if stretch.source.first < stretch.source.end
        ]

    @property
    def target_ranges(self) -> list[OffsetRange]:
        return [
            stretch.target
            for stretch in self.stretches
            if stretch.target.first < stretch.target.end
        ]

    def from_map(self) -> "VerifyPartition":
        """Return it without what no map vouches for, as the user wants it; a note has what is left
        out."""
        left = ", ".join(f"{first} to {end}" for first, end in self.unvouched)
        notes = (f"source offsets {left} are left out (--from map)",) if left else ()
        return replace(self, unvouched=(), notes=(*self.notes, *notes))

    def without_quarantined(
        self, kept: Sequence[tuple[int, int]], kept_in: str
    ) -> "VerifyPartition":
        """Return it with a note of what failovers have kept in place of copying it, of what no map
        vouches for: that has no copies."""
        left = tuple(OffsetRange(*it) for whole in self.unvouched for it in outside(*whole, kept))
        accepted = [it for whole in self.unvouched for it in outside(*whole, left)]
        if not accepted:
            return self
        note = (
            f"source offsets {', '.join(f'{first} to {end}' for first, end in accepted)} were not "
            f"copied before a failover, which was accepted: their records are in {kept_in}"
        )
        return replace(self, unvouched=left, notes=(*self.notes, note))

    def expected(self, source_offset: int) -> int:
        """Return where the map has a source offset; -1 unknown."""
        at = bisect_right(self.pieces, source_offset, key=lambda it: it.source) - 1
        if at < 0 or source_offset >= self.pieces[at].source + self.pieces[at].records:
            return -1
        return self.pieces[at].target + source_offset - self.pieces[at].source

    def parts(self, offsets: int) -> "list[VerifyPartition]":
        """Cut it into parts of about so many offsets of both sides, each at a record whose copy the
        map has.

        What compacts is not cut: whether a record may be gone is decided by the whole log after it.
        Nor is what has no map.
        """
        if self.source_compacts or self.target_compacts or self.offsets <= offsets:
            return [self]
        by_target = sorted(self.pieces, key=lambda it: it.target)
        found: list[VerifyPartition] = []
        stretches: list[Stretch] = []
        room = offsets
        for stretch in self.stretches:
            rest = stretch
            while rest.offsets > room:
                cut = _cut(rest, by_target, room // 2)
                if cut is None:
                    break
                first, rest = cut
                # All that the source has before a cut was copied.
                found.append(self._part(len(found), [*stretches, first], first.source.end))
                stretches, room = [], offsets
            stretches.append(rest)
            room = max(2, room - rest.offsets)
        return [*found, self._part(len(found), stretches, self.covered)]

    def _part(
        self, number: int, stretches: Sequence[Stretch], covered: int | None
    ) -> "VerifyPartition":
        ranges = [stretch.target for stretch in stretches]
        pieces = tuple(
            piece
            for piece in self.pieces
            if any(
                piece.target < end and first < piece.target + piece.records for first, end in ranges
            )
        )
        return replace(
            self, part=number, stretches=tuple(stretches), covered=covered, pieces=pieces, notes=()
        )

    def keeping_offsets(self) -> "VerifyPartition":
        """Return it where copies must have the offsets of their records: what was deleted cannot be
        made again at these."""
        reason = (
            "offsets.identical=require: copies that are made again behind deleted ones have other "
            "offsets, which stops the partition; set it to prefer for the repair, or delete topic "
            f"{self.target_topic} for it to be copied anew"
        )
        return self if self.renew_from < 0 else replace(self, renew_from=-1, not_renewable=reason)

    def held_from(self, source: int, target: int) -> "VerifyPartition":
        """Return what is left where the logs begin at these offsets by now: from the first record
        on that both still have."""
        left: list[Stretch] = []
        for ours, theirs in self.stretches:
            if ours.first >= source and theirs.first >= target:
                left.append(Stretch(ours, theirs))
                continue
            both: list[tuple[int, int]] = []
            for piece in self.pieces:
                shift = piece.target - piece.source
                least = max(piece.target, theirs.first, target)
                first = max(piece.source, ours.first, source, least - shift)
                end = min(piece.source + piece.records, ours.end, theirs.end - shift)
                if first < end:
                    both.append((first + shift, first))
            if both:
                at, first = min(both)
                left.append(Stretch(OffsetRange(first, ours.end), OffsetRange(at, theirs.end)))
        return replace(self, stretches=tuple(left))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, members: Mapping[str, object]) -> Self:
        """Read what ``to_json`` returned, after JSON."""
        document = dict(members)
        stretches = cast("Sequence[Sequence[Sequence[int]]]", document["stretches"])
        document["stretches"] = tuple(
            Stretch(*(OffsetRange(*it) for it in row)) for row in stretches
        )
        pieces = cast("Sequence[Sequence[int]]", document["pieces"])
        document["pieces"] = tuple(CopiedPiece(*piece) for piece in pieces)
        for name in ("lost", "source_log", "target_log", "unstable", "hidden"):
            document[name] = OffsetRange(*cast("Sequence[int]", document[name]))
        for name in ("lost_before", "unvouched"):
            ranges = cast("Sequence[Sequence[int]]", document[name])
            document[name] = tuple(OffsetRange(*it) for it in ranges)
        document["notes"] = tuple(cast("Sequence[str]", document["notes"]))
        return cls(**document)  # type: ignore[arg-type] # the members are those of to_json


def _cut(
    stretch: Stretch, by_target: Sequence[CopiedPiece], target_offsets: int
) -> tuple[Stretch, Stretch] | None:
    """Cut a stretch at a copy that is so far behind its start, or at the next one behind that;
    None: there is none."""
    (source_first, source_end), (target_first, target_end) = stretch
    wanted = target_first + max(1, target_offsets)
    at = max(0, bisect_right(by_target, wanted, key=lambda it: it.target) - 1)
    for piece in by_target[at : at + 2]:
        target = max(wanted, piece.target)
        source = piece.source + target - piece.target
        inside = target < min(piece.target + piece.records, target_end)
        if inside and source_first < source < source_end:
            return (
                Stretch(OffsetRange(source_first, source), OffsetRange(target_first, target)),
                Stretch(OffsetRange(source, source_end), OffsetRange(target, target_end)),
            )
    return None


class VerifyPlan(NamedTuple):
    """All partitions, and what is not compared with the reason."""

    partitions: list[VerifyPartition]
    not_compared: list[str]
    clusters: tuple[str, str]


async def plan_verify(flow: FlowSides, source: Cluster, target: Cluster) -> VerifyPlan:
    """Fix what is compared.

    Raises:
        Mm2pyError: a cluster cannot be asked.
    """
    listed = await Admin(source).list_topics()
    copied = await _copies(flow, target)
    maps = copied.maps
    hidden = await Admin(source).denied_topics(flow.unlisted(listed, {tp.topic for tp in maps}))
    topics = flow.chosen(listed, hidden)
    described = await Admin(source).describe_topics(topics)
    copies = await Admin(target).describe_topics(flow.copy_of(it) for it in topics)
    pairs: dict[TopicPartition, TopicPartition] = {}
    not_compared = [f"{topic}: {error}" for topic, error in sorted(hidden.items())]
    for topic in topics:
        copy = copies.get(flow.copy_of(topic))
        for number in sorted(described[topic].partitions):
            if copy is not None and number in copy.partitions:
                pairs[TopicPartition(topic, number)] = TopicPartition(copy.name, number)
            elif copy is not None and copy.error is not None:
                not_compared.append(f"{topic}-{number}: its copy cannot be described: {copy.error}")
            else:
                not_compared.append(f"{topic}-{number} has no copy on {flow.flow.target}")
    target_watermarks, target_ends = await _target_ends(target, pairs, maps)
    # Before the last stable offsets: what is written between both questions is no open transaction.
    watermarks = await log_ends(source, list(pairs), read_committed=False, waits=True)
    source_ends = (
        await log_ends(source, list(pairs), read_committed=True)
        if flow.read_committed
        else watermarks
    )
    source_configs = await Admin(source).describe_topic_configs({pair.topic for pair in pairs})
    target_configs = await Admin(target).describe_topic_configs(
        {pair.topic for pair in pairs.values()}
    )
    partitions: list[VerifyPartition] = []
    for tp, copy_tp in pairs.items():
        known = maps.get(tp)
        ids = described[tp.topic].topic_id, copies[copy_tp.topic].topic_id
        if known and (reason := created_again(tp, copy_tp, source_ends[tp], known.newest, ids)):
            not_compared.append(f"{tp}: {reason}")
            continue
        planned = plan_partition(
            tp,
            copy_tp,
            source_ends[tp],
            target_ends[copy_tp],
            known,
            position=copied.resume(tp),
            watermarks=(watermarks[tp].end, target_watermarks[copy_tp].end),
            cleanup=(
                _cleanup(source_configs.get(tp.topic, ())),
                _cleanup(target_configs.get(copy_tp.topic, ())),
            ),
        )
        kept_in = quarantine_topic(flow.flow.source, tp.topic)
        planned = planned.without_quarantined(copied.quarantined.get(tp, ()), kept_in)
        if flow.keeps_offsets:
            planned = planned.keeping_offsets()
        partitions.append(replace(planned, topic_id=ids[0].hex(), target_id=ids[1].hex()))
    return VerifyPlan(partitions, not_compared, (source.cluster_id, target.cluster_id))


async def _copies(flow: FlowSides, target: Cluster) -> Known:
    topic = parse_config(WorkerConfig, flow.target).offset_storage_topic
    return await CopiesReader(
        Admin(target), flow.flow, topic, target.clock, names=flow.names, whole=True
    ).read()


def created_again(
    source: TopicPartition,
    target: TopicPartition,
    source_log: LogEnds,
    newest: Page,
    ids: tuple[bytes, bytes],
) -> str:
    """Return why a map says nothing of the topics that are there now, which have these ids; empty
    if it is theirs, or nothing is on the source."""
    if is_another_topic(newest.target_id, named_id(target.topic, ids[1])):
        return f"{target.topic} was created again, its copy begins anew"
    if source_log.start < source_log.end and is_another_topic(newest.source_id, ids[0]):
        return (
            f"{source.topic} was created again on the source, and the flow has copied nothing "
            "of it yet: what is there are copies of the former topic"
        )
    return ""


async def _target_ends(
    target: Cluster,
    pairs: Mapping[TopicPartition, TopicPartition],
    maps: Mapping[TopicPartition, KnownMap],
) -> tuple[Mapping[TopicPartition, LogEnds], Mapping[TopicPartition, LogEnds]]:
    """Return the ends of the copies' logs, then those of committed records, when no transaction of
    a client hides copies any more."""
    copies = list(pairs.values())
    watermarks = await log_ends(target, copies, read_committed=False, waits=True)
    copied = {
        copy: max((it.target_end for it, _ in maps[tp].segments()), default=0)
        for tp, copy in pairs.items()
        if tp in maps
    }
    ends = await log_ends(target, copies, read_committed=True)
    for _ in range(_OPEN_TRIES):
        if all(ends[it].end >= min(copied[it], watermarks[it].end) for it in copied):
            break
        await target.clock.sleep(_OPEN_WAIT_S)
        ends = await log_ends(target, copies, read_committed=True)
    return watermarks, ends


def _cleanup(entries: Sequence[ConfigEntry]) -> str:
    return next(
        (entry.value or "" for entry in entries if entry.name == "cleanup.policy"), "delete"
    )


def plan_partition(
    source: TopicPartition,
    target: TopicPartition,
    source_log: LogEnds,
    target_log: LogEnds,
    known: KnownMap | None,
    *,
    position: int = -1,
    watermarks: tuple[int, int] = (-1, -1),
    cleanup: tuple[str, str] = ("delete", "delete"),
) -> VerifyPartition:
    """Decide which ranges are compared; a copy with the name of its source may have other writers,
    which are left out. ``position``: where the copy continues, which the map may not know yet."""
    segments = known.segments_to(position) if known is not None else []
    if known is None or not segments:
        ranges = _without_map(source_log, target_log)
    else:
        ranges = _MapRanges(source_log, target_log, segments, watermarks[1])
        ranges.build(exact=source.topic == target.topic)
    if source.topic == target.topic:
        renew_from, reason = -1, f"other programs write to {target} too: correct it there"
    elif ranges.hidden != NOTHING:
        renew_from, reason = (
            -1,
            f"a transaction is open on {target}, below copies: it has to end first",
        )
    elif "delete" not in cleanup[1]:
        # DeleteRecords (KIP-107) of such a log is refused with POLICY_VIOLATION.
        policy = (
            f"cleanup.policy={cleanup[1]} of {target.topic} does not let its records be deleted"
        )
        renew_from, reason = -1, f"{policy}: add delete to it for the repair"
    else:
        renew_from, reason = _renewable(source_log, target_log, segments, target)
        if renew_from >= 0:
            renew_from = min([renew_from, *(it.first for it in ranges.lost_before)])
    return VerifyPartition(
        topic=source.topic,
        partition=source.partition,
        target_topic=target.topic,
        stretches=tuple(
            Stretch(OffsetRange(*one), OffsetRange(*other))
            for one, other in zip(ranges.source, ranges.target, strict=True)
        ),
        pieces=tuple(sorted(ranges.pieces)),
        covered=None
        if known is None or not segments
        else ranges.covered(max(known.newest.covered, position)),
        source_compacts="compact" in cleanup[0],
        target_compacts="compact" in cleanup[1],
        lost=ranges.lost,
        lost_before=tuple(ranges.lost_before),
        source_log=OffsetRange(source_log.start, source_log.end),
        target_log=OffsetRange(target_log.start, target_log.end),
        unstable=OffsetRange(source_log.end, watermarks[0])
        if watermarks[0] > source_log.end
        else NOTHING,
        hidden=ranges.hidden,
        unvouched=tuple(ranges.unvouched),
        renew_from=renew_from,
        not_renewable=reason,
        notes=tuple(ranges.notes),
    )


def _renewable(
    source: LogEnds,
    target: LogEnds,
    segments: Sequence[tuple[Segment, int]],
    copy: TopicPartition,
) -> tuple[int, str]:
    """Return where a copy would begin again that has all that the target has now; -1 with the
    reason if the source does not have it."""
    copies = [it for it, _ in segments if it.mark is Mark.COPIED]
    if not copies:
        return -1, f"there is no exact offset map: whose the records of {copy} are is not known"
    if target.start < copies[0].target:
        foreign = f"records of {copy} below offset {copies[0].target} are of another writer"
        return -1, f"{foreign}, deleting the copies would delete them too"
    there = [it for it in copies if it.target_end > target.start]
    first = min(
        (it.source + max(0, target.start - it.target) for it in there), default=source.start
    )
    if first < source.start:
        gone = (
            f"the source has deleted its offsets {first} to {source.start}, of which {copy} "
            "has the only copies"
        )
        return -1, f"{gone}: they would be lost"
    return first, ""


@final
class _MapRanges:
    """Ranges of both sides in the order of the target's log, as the map has them."""

    def __init__(
        self,
        source: LogEnds,
        target: LogEnds,
        segments: Sequence[tuple[Segment, int]],
        watermark: int = -1,
    ) -> None:
        self._source_log, self._target_log = source, target
        self._segments = segments
        self._watermark = max(watermark, target.end)
        self.source: list[list[int]] = []
        self.target: list[list[int]] = []
        self.pieces: list[CopiedPiece] = []
        self.lost = NOTHING
        self.hidden = NOTHING
        self.lost_before: list[OffsetRange] = []
        self.unvouched: list[OffsetRange] = []
        self.notes: list[str] = []

    def build(self, *, exact: bool) -> None:
        """Fill the ranges; ``exact``: only what was copied, not what lies between or after it."""
        breaks = True
        self._look_below()
        for at, (segment, limit) in enumerate(self._segments, 1):
            if segment.mark is Mark.UNKNOWN:
                if at > 1:
                    self._leave(segment.source, limit)
                breaks = True
            elif segment.mark is Mark.COPIED and not segment.is_anchor:
                breaks = not self._add(segment, limit, breaks=breaks or exact) and breaks
            elif segment.mark is Mark.TARGET_LOST and segment.target >= self._target_log.start:
                self._add_lost(at, breaks=breaks or exact)
        first = self._segments[0][0]
        source, target = self._source_log, self._target_log
        if not exact:
            if first.is_anchor and first.source >= source.start and first.target >= target.start:
                self._begin(first)
            self._extend(self.covered(source.end))

    def _extend(self, end: int) -> None:
        """Let the last range be up to the ends of the logs. What another program copied after the
        last copy is none of it."""
        last, passed = self._segments[-1]
        if last.mark is Mark.UNKNOWN:
            if passed < end:
                self.source.append([max(passed, self._source_log.start), end])
                self.target.append([self._target_log.end, self._target_log.end])
        elif self.source:
            self.source[-1][1] = max(self.source[-1][1], end)
            self.target[-1][1] = self._target_log.end

    def _look_below(self) -> None:
        """Note what the source has below the beginning of the map: not copied, where the copy
        begins with the map too."""
        begins = beginning_of(self._segments[0][0])
        if self._target_log.start < begins.target:
            self._leave(self._source_log.start, begins.source)
            if not self.unvouched:
                self.notes.append(
                    f"target offsets {self._target_log.start} to {begins.target} lie below the "
                    "beginning of the offset map and are not"
                    " compared: another writer's, or copies of what the source has deleted"
                )
        elif self._source_log.start < begins.source:
            self.notes.append(
                f"source offsets {self._source_log.start} to {begins.source} lie below the "
                "beginning of the offset map, and"
                " the copy has nothing before it: they were not to be copied"
            )

    def _leave(self, first: int, end: int) -> None:
        """Leave out source offsets of which the map does not say where they are."""
        first, end = max(first, self._source_log.start), min(end, self._source_log.end)
        if first < end:
            self.unvouched.append(OffsetRange(first, end))

    def covered(self, end: int) -> int:
        """Return how far below a source offset copies can be read."""
        return end if self.hidden is NOTHING else min(end, self.hidden.first)

    def _begin(self, anchor: Segment) -> None:
        if self.source:
            self.source[0][0] = min(self.source[0][0], anchor.source)
            self.target[0][0] = min(self.target[0][0], anchor.target)
        else:
            self.source.append([anchor.source, self.covered(self._source_log.end)])
            self.target.append([anchor.target, self._target_log.end])

    def _add_lost(self, behind: int, *, breaks: bool) -> None:
        segment, limit = self._segments[behind - 1]
        first, end = max(segment.source, self._source_log.start), min(limit, self._source_log.end)
        for lost in not_copied(first, end, self._segments[behind:]):
            self.lost_before.append(OffsetRange(*lost))
            if breaks:  # else it is inside of a stretch
                self.source.append([*lost])
                self.target.append([segment.target, segment.target])

    def _add(self, segment: Segment, limit: int, *, breaks: bool) -> bool:
        shift = segment.target - segment.source
        first = max(segment.source, self._source_log.start, self._target_log.start - shift)
        end = min(limit, self._source_log.end)
        copied = min(end, self._target_log.end - shift)
        there = max(copied, min(end, self._watermark - shift))
        if (above := max(first, copied)) < there:
            begin = above if self.hidden is NOTHING else self.hidden.first
            self.hidden = OffsetRange(begin, max(there, self.hidden.end))
        if there < end:
            begin = max(there, first) if self.lost is NOTHING else self.lost.first
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


def _without_map(source: LogEnds, target: LogEnds) -> _MapRanges:
    ranges = _MapRanges(source, target, ())
    first = max(source.start, target.start)
    ranges.source, ranges.target = [[first, source.end]], [[first, target.end]]
    ranges.notes.append(NO_MAP)
    return ranges
