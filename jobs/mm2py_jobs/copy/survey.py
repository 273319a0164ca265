"""Asks both clusters what a backfill would copy and what refuses it; changes nothing.

Flow: source topics of the flow -> ends and sizes of their logs; target topics, their ends and
configs; stored positions and the offset map -> a range per partition, or why it is refused ->
``Plan``.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar, final

from mm2py.api.records import SourceOffset
from mm2py.client.connect.admin import Admin, ConfigOp, ListedOffset, TopicDescription
from mm2py.client.fetch.log_reader import LogReader, RecordHandler
from mm2py.clock import Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.java_regex import PatternList
from mm2py.errors import Mm2pyError, ProtocolError, UnsupportedVersionError
from mm2py.mirror.backfills import CopyAgain, SettingChange
from mm2py.mirror.ledger import (
    IncarnationRecord,
    QuarantinedRanges,
    UnknownLedgerRecord,
    decode_ledger_record,
    ledger_topic,
)
from mm2py.mirror.offset_lookup import Beginning, beginning_of
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import Page, offset_map_topic
from mm2py.mirror.offset_ranges import outside
from mm2py.mirror.source_offsets import (
    NO_EPOCH,
    committed_epoch,
    committed_topic_id,
    mirrored_partition,
    next_offset,
    not_a_position,
    parse_source_offset_key,
    parse_source_offset_value,
)
from mm2py.mirror.start_positions import Boundary
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.records import Record
from mm2py.protocol.topics import NO_TOPIC_ID, EpochEnd, is_another_topic
from mm2py.types import EARLIEST, LATEST, FlowName, TopicPartition
from mm2py_jobs.copy.expiry import expiring, refused_expiry, value_of
from mm2py_jobs.copy.known_maps import KnownMap, KnownMaps, Passed, passed_over
from mm2py_jobs.copy.plan import PartitionPlan, Plan, Refusal
from mm2py_jobs.copy.target_settings import REASONS, changed_settings, smaller_batches
from mm2py_jobs.log.log_ends import LogEnds, listed_offsets

log = logging.getLogger(__name__)

T = TypeVar("T")

_RECREATED: Final = (
    "its topic was deleted and created again on the source since it was compared: the target may "
    "have the only copies of the former one; it was left alone: verify it again"
)


@dataclass(frozen=True, slots=True)
class SurveyedTopics:
    """Source topics of the flow with the names of their copies."""

    flow: FlowName
    copies: Mapping[str, str]
    offsets_topic: str
    read_committed: bool = False
    names: FlowName | None = None
    """The aliases in the keys of positions, where they are not the flow's."""
    synced: Callable[[Sequence[ConfigEntry]], Sequence[ConfigOp]] = lambda _entries: ()
    """What config sync makes of a source topic's configs; nothing where it is off."""
    unlisted: Callable[[Iterable[str]], Collection[str]] = lambda _copied: ()
    """Topics that are to be copied and that the source does not list, of those that the flow names
    and of copied ones."""
    held: frozenset[TopicPartition] = frozenset()
    """Topics (partition -1) and partitions that were paused alone: nothing copies them until they
    are resumed."""

    def holds(self, partition: TopicPartition) -> bool:
        """Whether a source partition is paused, alone or with its topic."""
        return is_held(partition, self.held)


def paused_alone(flow: FlowName, topic: str) -> str:
    """Return why a job leaves out what was paused alone, and how it is resumed."""
    return f"paused alone; mm2py flow resume '{flow}' --topic {topic} lets it be copied"


def is_held(partition: TopicPartition, held: frozenset[TopicPartition]) -> bool:
    """Whether a partition is among those that were paused alone, or its topic is."""
    return not held.isdisjoint({partition, partition._replace(partition=-1)})


@dataclass(frozen=True, slots=True)
class Known:
    """Copies of the flow so far: stored positions, and newest pages of the offset map.

    ``incarnations`` are the topic ids that positions belong to by the ledger, ``ids`` those that
    are stored with them, which count before; ``epochs`` are the leader epochs of the records before
    them.
    """

    positions: Mapping[TopicPartition, int]
    pages: Mapping[TopicPartition, Page]
    incarnations: Mapping[TopicPartition, bytes] = field(
        default_factory=dict[TopicPartition, bytes]
    )
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    ids: Mapping[TopicPartition, bytes] = field(default_factory=dict[TopicPartition, bytes])
    begins: Mapping[TopicPartition, Beginning] = field(
        default_factory=dict[TopicPartition, Beginning]
    )
    """Where whole maps begin."""
    maps: Mapping[TopicPartition, KnownMap] = field(default_factory=dict[TopicPartition, KnownMap])
    """Whole maps, where they were asked for."""
    quarantined: Mapping[TopicPartition, Sequence[tuple[int, int]]] = field(
        default_factory=dict[TopicPartition, Sequence[tuple[int, int]]]
    )
    """What failovers have kept in quarantine: first offset and exclusive end."""

    def resume(self, partition: TopicPartition) -> int:
        """Return where the copy of a partition continues, -1 where there is none."""
        return self._continued(partition, PartitionMap(self.pages.get(partition)))

    def _continued(self, partition: TopicPartition, known: PartitionMap) -> int:
        return known.resume(
            self.positions.get(partition, -1),
            self.ids.get(partition, NO_TOPIC_ID),
            self.epochs.get(partition, NO_EPOCH),
        )

    def resume_in(self, partition: TopicPartition, topic_id: bytes) -> int:
        """Return where the copy of this incarnation of a topic continues, -1 where there is none of
        it."""
        page, position = self.pages.get(partition), self.positions.get(partition, -1)
        known = PartitionMap(page)
        if known.follows(position, self.ids.get(partition, NO_TOPIC_ID)):
            return -1 if is_another_topic(known.source_id, topic_id) else known.covered
        if is_another_topic(self.incarnation(partition) or known.source_id, topic_id):
            return -1
        if is_another_topic(known.source_id, topic_id):
            known = PartitionMap()
        return self._continued(partition, known)

    def incarnation(self, partition: TopicPartition) -> bytes:
        """Return the id of the topic that the stored position is in, empty where that is not
        known."""
        return self.ids.get(partition) or self.incarnations.get(partition) or b""

    def epoch(self, partition: TopicPartition, position: int) -> int:
        """Return the leader epoch of the record before a position, -1 where it is not known."""
        page = self.pages.get(partition)
        if position == self.positions.get(partition, -1) and partition in self.epochs:
            return self.epochs[partition]
        return page.epoch if page is not None and page.covered == position else -1

    def copied(
        self, partition: TopicPartition, topic_id: bytes, log: LogEnds, ended: EpochEnd | None
    ) -> int:
        """Return below which offset of a source log everything is copied, as the Fetcher that
        continues finds it out.

        What was copied of another incarnation does not count, nor what lies above a place where the
        log was cut.

        Args:
            partition: of the source.
            topic_id: of its topic now, zeros where the source has none.
            log: where it begins and ends.
            ended: where its leader's log has the end of ``epoch``; None where that was not asked.
        """
        position = self.resume_in(partition, topic_id)
        if ended is not None and ended.end_offset >= 0:
            # KIP-320: the leader answers for the newest epoch that it has up to the one that was
            # asked. An earlier one means that the record before the position was cut, at the least.
            is_later = self.epoch(partition, position) > ended.leader_epoch
            position = min(ended.end_offset, position - 1 if is_later else position)
        elif position > log.end:
            # A log that ends before: cut where the topic is the same one (KIP-516), else a new one,
            # of which nothing is copied. Brokers before 2.8 have no ids.
            is_same = topic_id != NO_TOPIC_ID and self.incarnation(partition) == topic_id
            position = log.end if is_same else log.start
        return max(log.start, position)

    def target_end(self, partition: TopicPartition) -> int:
        """Return the target offset after the newest copy of a partition, -1 where it is not
        known."""
        page = self.pages.get(partition)
        return page.segments[-1].target_end if page is not None and page.segments else -1

    def passed(self, partition: TopicPartition, log_end: int = 0) -> Sequence[Passed]:
        """Return what the position was set past, or another program copied, as far as the whole map
        shows no copies; ``log_end`` of the target."""
        known = self.maps.get(partition)
        if known is None or is_another_topic(self.incarnation(partition), known.newest.source_id):
            return ()
        return passed_over(known, self.resume(partition), log_end)

    def is_quarantined(self, partition: TopicPartition, passed: Passed) -> bool:
        """Whether a failover has kept all of what was passed."""
        kept = self.quarantined.get(partition, ())
        return not any(outside(passed.first, passed.end, kept))

    @property
    def without_map(self) -> Collection[TopicPartition]:
        """Partitions with a stored position and no map: it was carried over, or the map was
        lost."""
        return {it for it, position in self.positions.items() if position} - self.pages.keys()

    def has(self, partition: TopicPartition) -> bool:
        """Whether the flow has copied anything of a partition."""
        return partition in self.positions or partition in self.pages


async def known_copies(
    target: Admin,
    flow: SurveyedTopics,
    partitions: Collection[TopicPartition],
    clock: Clock,
    *,
    whole: bool = False,
) -> Known:
    """Read stored positions and the offset map, also the ``whole`` maps of these partitions; topics
    that do not exist hold nothing."""
    reader = CopiesReader(
        target, flow.flow, flow.offsets_topic, clock, names=flow.names, whole=whole
    )
    copies = await reader.read()
    positions = {tp: position for tp, position in copies.positions.items() if tp in partitions}
    maps = {tp: it for tp, it in copies.maps.items() if tp in partitions}
    return replace(copies, positions=positions, maps=maps)


async def copied_now(
    source: Admin,
    known: Known,
    ids: Mapping[str, bytes],
    logs: Mapping[TopicPartition, LogEnds],
) -> Mapping[TopicPartition, int]:
    """Return the offsets below which the source's present logs are copied, after recreation and
    truncation; ``ids`` of its topics. ``RetriableError``: a leader does not answer."""
    epochs = {
        tp: epoch
        for tp in logs
        if (epoch := known.epoch(tp, known.resume_in(tp, ids[tp.topic]))) >= 0
    }
    ended: Mapping[TopicPartition, EpochEnd] = {}
    with suppress(UnsupportedVersionError):  # before 2.0
        ended = await source.epoch_ends(epochs) if epochs else {}
    return {tp: known.copied(tp, ids[tp.topic], log, ended.get(tp)) for tp, log in logs.items()}


@final
class CopiesReader:
    """Reads how far a flow has copied, again and again: each time only what is new.

    Args:
        target: of the flow, connected.
        flow: whose copies they are.
        offsets_topic: where its worker stores positions.
        names: the aliases in the keys of positions; None: the flow's.
        whole: keep whole maps, not only what a copy needs to continue.
    """

    def __init__(
        self,
        target: Admin,
        flow: FlowName,
        offsets_topic: str,
        clock: Clock,
        *,
        names: FlowName | None = None,
        whole: bool = False,
    ) -> None:
        self._target, self._flow, self._clock = target, flow, clock
        self._maps, self._whole = KnownMaps(whole=whole), whole
        source, self._names = flow.source, names or flow
        self._takes: Mapping[str, RecordHandler] = {
            offsets_topic: self._take_position,
            offset_map_topic(source): self._maps.take,
            ledger_topic(source): self._take_ledger,
        }
        self._readers: dict[str, LogReader] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._incarnations: dict[TopicPartition, bytes] = {}
        self._quarantined = QuarantinedRanges()
        self._epochs: dict[TopicPartition, int] = {}
        self._ids: dict[TopicPartition, bytes] = {}
        self._damaged: set[TopicPartition] = set()

    async def read(self) -> Known:
        """Read to the ends of now; topics that do not exist hold nothing.

        Raises:
            PartitionError: what is stored as a position is none.
            RetriableError: not now; a later call continues.
        """
        missing = self._takes.keys() - self._readers.keys()
        for topic in await self._target.describe_topics(missing) if missing else ():
            self._readers[topic] = LogReader(
                self._target.cluster, topic, clock=self._clock, waits_for_transactions=True
            )
        # In this order: a flow that copies writes its map before the position.
        for topic, take in self._takes.items():
            if topic in self._readers:
                await self._readers[topic].read_to_end(take)
        if self._damaged:
            raise not_a_position(min(self._damaged))
        maps = self._maps.known()
        firsts = {tp: page.segments for tp, it in maps.items() if (page := it.pages.get(0))}
        return Known(
            dict(self._positions),
            {tp: it.newest for tp, it in maps.items() if not it.newest.only_begins},
            dict(self._incarnations),
            dict(self._epochs),
            dict(self._ids),
            {tp: beginning_of(segments[0]) for tp, segments in firsts.items() if segments},
            maps if self._whole else {},
            dict(self._quarantined.ranges),
        )

    async def close(self) -> None:
        """End a read that is under way."""
        for reader in self._readers.values():
            await reader.close()

    def _take_position(self, _partition: int, record: Record) -> None:
        try:
            connector, decoded = parse_source_offset_key(bytes(record.key or b""))
        except ProtocolError:
            return  # another connector's, or another program's
        partition = mirrored_partition(decoded)
        of_flow = connector == SOURCE_NAME and decoded.get("cluster") == self._names.source
        if not of_flow or partition is None:
            return
        value = None if record.value is None else bytes(record.value)
        stored: SourceOffset | None = {}
        with suppress(ProtocolError):
            stored = parse_source_offset_value(value)
        position, epoch = next_offset(stored), committed_epoch(stored)
        topic_id = committed_topic_id(stored)
        self._damaged.discard(partition)
        if stored is not None and position < 0:
            self._damaged.add(partition)
        for known in (self._positions, self._epochs, self._ids):
            known.pop(partition, None)
        if position >= 0:
            self._positions[partition] = position
        if epoch != NO_EPOCH:
            self._epochs[partition] = epoch
        if topic_id != NO_TOPIC_ID:
            self._ids[partition] = topic_id

    def _take_ledger(self, _partition: int, record: Record) -> None:
        value = None if record.value is None else bytes(record.value)
        decoded = decode_ledger_record(record.key, value)
        if isinstance(decoded, UnknownLedgerRecord) or decoded.flow != str(self._flow):
            return
        self._quarantined.take(decoded)
        if isinstance(decoded, IncarnationRecord):
            self._incarnations[decoded.partition] = decoded.topic_id


class BeginsAgain(NamedTuple):
    """Where the copy of a partition begins again: an offset of the source topic with this id;
    ``again`` is what happens to its copies."""

    source_offset: int
    topic_id: bytes
    again: CopyAgain


@final
class Survey:
    """Plans a backfill of one flow.

    Args:
        source, target: administration of both clusters, connected.
        flow: its topics.
    """

    def __init__(self, source: Admin, target: Admin, flow: SurveyedTopics, *, clock: Clock) -> None:
        self._source, self._target, self._flow, self._clock = source, target, flow, clock

    async def plan_again(self, copies: Mapping[TopicPartition, BeginsAgain]) -> Plan:
        """Return the plan for partitions that are copied again, each from an offset to its end
        now."""
        whole = await self.plan("", Boundary(), Boundary(), accepts_expiry=True)
        now = await self._source.describe_topics({it.topic for it in copies})
        new = [
            it
            for it in copies
            if it.topic in now and is_another_topic(copies[it].topic_id, now[it.topic].topic_id)
        ]
        planned = [
            replace(
                partition,
                start=copies[partition.source].source_offset,
                again=copies[partition.source].again,
            )
            for partition in whole.partitions
            if partition.source in copies and partition.source not in new
        ]
        described = await self._target.describe_topics({it.target_topic for it in planned})
        settings, notes, short = await self._settings(planned, described)
        refused = [it for it in whole.refused if TopicPartition(it.topic, it.partition) in copies]
        refused += (
            Refusal(*it, paused_alone(self._flow.flow, it.topic))
            for it in sorted(copies)
            if self._flow.holds(it)
        )
        refused += (Refusal(*it, _RECREATED) for it in new)
        there = {it.source for it in planned} | {
            TopicPartition(it.topic, it.partition) for it in refused
        }
        refused += (
            Refusal(*copy, f"the flow {self._flow.flow} does not copy it")
            for copy in copies
            if copy not in there
        )
        refused += (Refusal(*tp, reason) for tp, reason in short.items())
        return replace(
            whole, partitions=tuple(planned), refused=tuple(refused), settings=settings, notes=notes
        )

    async def plan(
        self,
        topics: str,
        start: Boundary,
        end: Boundary,
        *,
        accepts_expiry: bool = False,
        has_end: bool = True,
    ) -> Plan:
        """Return the plan for the flow's topics that match ``topics``, a Java pattern; empty: all.

        Partitions of which the target would delete records after the run are refused, unless that
        is accepted; of a job that ``has_end`` also ``_gone_logs``.
        """
        chosen = _matching(topics, self._flow.copies)
        if not chosen:
            what = f"topics that match {topics}" if topics else "topics"
            refusal = Refusal(topics, -1, f"the flow {self._flow.flow} copies no {what}")
            return Plan(flow=str(self._flow.flow), partitions=(), refused=(refusal,))
        sources = await self._source.describe_topics(chosen)
        copies = await self._target.describe_topics(chosen.values())
        partitions = [
            TopicPartition(name, number)
            for name, topic in sorted(sources.items())
            for number in topic.partitions
        ]
        ranges, refused = await self._ranges(partitions, start, end)
        known = await known_copies(self._target, self._flow, partitions, self._clock, whole=True)
        refused |= await self._target_refusals(partitions, chosen, copies, known)
        if has_end:
            passed = {
                tp: last
                for tp, (_, last, low) in ranges.items()
                if tp not in refused and low < last <= known.resume(tp)
            }
            refused |= await self._gone_logs(passed, sources, known)
        sizes = await self._sizes(sources)
        planned: list[PartitionPlan] = []
        for partition in partitions:
            if partition in refused or self._flow.holds(partition):
                continue
            first, last, log_start = ranges[partition]
            begin = max(known.resume(partition), log_start) if known.has(partition) else first
            share = max(0, last - begin) / max(1, last - log_start)
            planned.append(
                PartitionPlan(
                    topic=partition.topic,
                    partition=partition.partition,
                    target_topic=chosen[partition.topic],
                    start=min(begin, last),
                    end=last,
                    bytes=int(sizes.get(partition, 0) * min(1.0, share)),
                    resumes=known.has(partition),
                )
            )
        settings, notes, short = await self._settings(planned, copies)
        missing = [
            Refusal(name, -1, "the source has no such topic")
            for name in chosen
            if name not in sources
        ]
        hidden = await self._source.denied_topics(
            self._flow.unlisted({tp.topic for tp in known.pages})
        )
        missing += (Refusal(name, -1, str(it)) for name, it in _matching(topics, hidden).items())
        return Plan(
            flow=str(self._flow.flow),
            partitions=tuple(planned),
            refused=(
                *missing,
                *(Refusal(*it, reason) for it, reason in sorted(refused.items())),
                *(() if accepts_expiry else refused_expiry(short)),
            ),
            settings=settings,
            reasons=REASONS,
            notes=(
                *notes,
                *self._left_out(partitions),
                *_in_front(ranges, known),
                *_passed(ranges, known, self._flow.copies),
            ),
        )

    def _left_out(self, partitions: Sequence[TopicPartition]) -> tuple[str, ...]:
        held = filter(self._flow.holds, partitions)
        names = sorted({str(it) if it in self._flow.held else it.topic for it in held})
        return (
            (f"left out: {', '.join(names)} ({paused_alone(self._flow.flow, 'NAME')})",)
            if names
            else ()
        )

    async def _settings(
        self, planned: Sequence[PartitionPlan], copies: Mapping[str, TopicDescription]
    ) -> tuple[tuple[SettingChange, ...], tuple[str, ...], dict[TopicPartition, str]]:
        """Return settings to change, notes, and why copies of which partitions would expire when
        they are put back."""
        settings, notes = await changed_settings(self._target, planned, copies)
        partitions: dict[str, list[PartitionPlan]] = {}
        for it in planned:
            if it.target_topic in copies and it.start < it.end:
                partitions.setdefault(it.target_topic, []).append(it)
        sources = {name: its[0].topic for name, its in partitions.items()}
        configs = await self._source.describe_topic_configs(set(sources.values()))
        now = await self._target.describe_topic_configs(sources)
        for name, source in sources.items():
            notes += smaller_batches(name, now.get(name, ()), configs.get(source, ()))
        changes: list[SettingChange] = []
        refused: dict[TopicPartition, str] = {}
        for change in settings:
            name, entries = change.name, {it.name: it for it in now.get(change.topic, ())}
            of_source = configs.get(sources[change.topic], ())
            synced = {it.name: it for it in self._flow.synced(of_source)}.get(name)
            kept = value_of(entries, name)
            if synced is not None:
                kept = synced.value or kept
                change = replace(change, before=synced.value)  # noqa: PLW2901 - the same change
                of = f"{name}={kept} of its source" if synced.value else f"the default {name}"
                notes += (f"{change.topic} has {of} after the run, by config sync",)
            changes.append(change)
            refused |= await expiring(
                name,
                kept,
                entries,
                partitions[change.topic],
                self._older,
                source_keeps=value_of({it.name: it for it in of_source}, name),
            )
        return tuple(changes), notes, refused

    async def _older(
        self, planned: Sequence[PartitionPlan], retention_ms: int
    ) -> dict[TopicPartition, int]:
        """Return how many offsets of each range have records that are older than that."""
        oldest = self._clock.now_ms() - retention_ms
        offsets = await listed_offsets(
            self._source, self._clock, dict.fromkeys((it.source for it in planned), max(0, oldest))
        )
        return {it.source: _before(it, offsets[it.source]) for it in planned}

    async def _ranges(
        self, partitions: Sequence[TopicPartition], start: Boundary, end: Boundary
    ) -> tuple[dict[TopicPartition, tuple[int, int, int]], dict[TopicPartition, str]]:
        """Return (first, end, log start) of each partition, and those whose ends are not known."""
        committed = self._flow.read_committed
        lists = [
            await listed_offsets(self._source, self._clock, dict.fromkeys(partitions, EARLIEST)),
            await listed_offsets(
                self._source,
                self._clock,
                dict.fromkeys(partitions, LATEST),
                read_committed=committed,
            ),
        ]
        by_time: list[Mapping[TopicPartition, ListedOffset]] = []
        for boundary in (start, end):
            asked = (
                {} if boundary.timestamp is None else dict.fromkeys(partitions, boundary.timestamp)
            )
            by_time.append(await listed_offsets(self._source, self._clock, asked) if asked else {})
        ranges: dict[TopicPartition, tuple[int, int, int]] = {}
        refused: dict[TopicPartition, str] = {}
        for partition in partitions:
            answers = [it[partition] for it in (*lists, *by_time) if partition in it]
            error = next((it.error for it in answers if it.error), None)
            if error is not None:
                refused[partition] = (
                    f"the source does not tell where its log begins and ends: {error}"
                )
                continue
            low, high = (found[partition].offset for found in lists)
            at = [it[partition].offset if partition in it else -1 for it in by_time]
            first = start.placed(at[0], low, high, low)
            last = end.placed(at[1], low, high, high)
            if start.offset is not None and start.offset > high:
                refused[partition] = (
                    f"--from offset:{start.offset} is behind the source's end {high}"
                )
                continue
            ranges[partition] = first, max(first, last), low
        return ranges, refused

    async def _target_refusals(
        self,
        partitions: Sequence[TopicPartition],
        chosen: Mapping[str, str],
        copies: Mapping[str, TopicDescription],
        known: Known,
    ) -> dict[TopicPartition, str]:
        refused: dict[TopicPartition, str] = {}
        there: dict[TopicPartition, TopicPartition] = {}
        for partition in partitions:
            copy = copies.get(chosen[partition.topic])
            if copy is None:
                continue  # it is made with the source's partitions
            if copy.error is not None:
                refused[partition] = f"target topic {copy.name} cannot be described: {copy.error}"
            elif partition.partition not in copy.partitions:
                refused[partition] = (
                    f"target topic {copy.name} has {len(copy.partitions)} partitions, none of this "
                    "number: add partitions, or start the flow, which does"
                )
            else:
                there[partition] = TopicPartition(copy.name, partition.partition)
        ends = await listed_offsets(
            self._target, self._clock, dict.fromkeys(there.values(), LATEST)
        )
        for partition, copy_of in there.items():
            log_ends = ends[copy_of]
            if log_ends.error is not None:
                refused[partition] = (
                    f"the end of {copy_of} on the target is not known: {log_ends.error}"
                )
            elif log_ends.offset > 0 and not known.has(partition):
                refused[partition] = (
                    f"target partition {copy_of} is not empty (its log ends at "
                    f"{log_ends.offset}) and this flow has"
                    " copied nothing into it: history cannot be put in front of what is there"
                )
        return refused

    async def _gone_logs(
        self,
        passed: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicDescription],
        known: Known,
    ) -> dict[TopicPartition, str]:
        """Return of which partitions only the flow's position is behind the range, which is of a
        log that is not there any more: they would be done at once."""
        starts, ends = [
            await listed_offsets(self._source, self._clock, dict.fromkeys(passed, at))
            for at in (EARLIEST, LATEST)
        ]
        logs = {
            tp: LogEnds(starts[tp].offset, ends[tp].offset)
            for tp in passed
            if starts[tp].error is None and ends[tp].error is None
        }
        ids = {name: it.topic_id for name, it in topics.items()}
        copied = await copied_now(self._source, known, ids, logs)
        return {
            tp: f"the flow has copied it up to offset {known.resume(tp)}, of a log that is not "
            "there any more: its topic was created again,"
            f" or the log was cut; let the flow copy what is there now from offset {at} on, then "
            "run this again"
            for tp, at in copied.items()
            if at < passed[tp]
        }

    async def _sizes(self, topics: Mapping[str, TopicDescription]) -> Mapping[TopicPartition, int]:
        try:
            return await self._source.partition_sizes(
                {name: topic.partitions for name, topic in topics.items()}
            )
        except Mm2pyError as error:
            log.warning(
                "sizes of the source's logs are not known, lanes are dealt without cause=%s", error
            )
            return {}


def _matching(topics: str, of: Mapping[str, T]) -> Mapping[str, T]:
    """Return what there is of topics that match one of the Java patterns, as in the property
    ``topics``; empty: all."""
    if not topics:
        return of
    patterns = PatternList.of(topics)
    return {name: it for name, it in of.items() if patterns.matches(name)}


def _in_front(
    ranges: Mapping[TopicPartition, tuple[int, int, int]], known: Known
) -> tuple[str, ...]:
    """Return notes of what lies in a range before the flow's first copy, with nothing before that
    on the target."""
    return tuple(
        f"{tp}: the flow began at offset {begins.source} of it; what lies below, from {first} on, "
        "is not copied: history cannot be put in front of copies"
        for tp, (first, _, _) in sorted(ranges.items())
        if (begins := known.begins.get(tp)) and not begins.target and first < begins.source
    )


def _passed(
    ranges: Mapping[TopicPartition, tuple[int, int, int]],
    known: Known,
    copies: Mapping[str, str],
) -> tuple[str, ...]:
    """Return notes of what lies in a range and may have no copy, though the position is after
    it."""
    return tuple(
        why_passed(tp, it)
        for tp, (first, end, _) in sorted(ranges.items())
        for it in known.passed(tp)
        if it.first < end
        and it.end > first
        and it.may_lack_copies(tp, tp._replace(topic=copies[tp.topic]))
    )


def why_passed(partition: TopicPartition, passed: Passed) -> str:
    """Return a note of source offsets before a position that a job does not copy."""
    return (
        f"{partition}: offsets {passed.first} to {passed.end - 1} were passed (the position was "
        "set, a failover kept them in quarantine, or another program copied them): those without a "
        "copy are not copied now"
    )


def _before(part: PartitionPlan, boundary: ListedOffset) -> int:
    """Return how many offsets of a range are before a boundary; -1 as its offset: all of them."""
    if boundary.error is not None:
        return 0
    end = part.end if boundary.offset < 0 else min(part.end, boundary.offset)
    return max(0, end - part.start)
