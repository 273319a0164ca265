"""Plans a restore: what an archive has, where it goes, and what refuses it.

Flow: heads and chains of manifests -> ``ArchivedLog`` per partition -> what the flow has copied and
what the target's logs have -> ``Plan`` -> the driver and the lanes of a backfill, whose source is
the archive (``archive_task``). Into the flow's own copies it is a backfill of the flow, which
continues after it; other names are a flow of their own (``renamed_flow``), with positions and a map
of their own, so that a restore that was interrupted continues there too.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from mm2py.client.connect.admin import Admin, ListedOffset, TopicDescription
from mm2py.clock import Clock
from mm2py.errors import ConfigError, PartitionError, ProtocolError
from mm2py.mirror.backfills import SettingChange
from mm2py.mirror.failovers import quarantine_topic
from mm2py.mirror.producer_ids import MirrorProducer, ProducerOrigins, Suppression
from mm2py.mirror.start_positions import Boundary
from mm2py.observability.logging import some_of
from mm2py.protocol.topics import NewTopic, is_another_topic
from mm2py.types import LATEST, FlowName, TopicPartition
from mm2py_jobs.archive.archive_format import (
    ArchivedTopic,
    FileManifest,
    Shape,
    head_of,
    noted_ranges,
    offset_at,
    range_by_names,
    records_ahead,
    topic_of,
    topics_in,
)
from mm2py_jobs.archive.archive_store import ArchiveStore, each
from mm2py_jobs.archive.last_copied import LAST, Reach, copied_reach
from mm2py_jobs.archive.restore_ends import UNKNOWN, archived_records, restored_chain
from mm2py_jobs.copy.expiry import expiring, refused_expiry, value_of
from mm2py_jobs.copy.known_maps import Passed
from mm2py_jobs.copy.plan import PartitionPlan, Plan, Refusal
from mm2py_jobs.copy.restored_flows import is_renamed
from mm2py_jobs.copy.survey import Known, is_held, paused_alone, why_passed
from mm2py_jobs.copy.target_settings import REASONS, changed_settings
from mm2py_jobs.log.log_ends import listed_offsets


@final
class Rename:
    """``--rename 'REGEX=REPLACEMENT'``: names of topics that match as a whole; ``$1`` is a group.

    Raises:
        ConfigError: it is not written so.
    """

    def __init__(self, text: str | None) -> None:
        self._pattern, self._replacement = None, ""
        if text is None:
            return
        pattern, equals, replacement = text.partition("=")
        try:
            self._pattern = re.compile(pattern)
            self._replacement = re.sub(r"\$(\d+)", r"\\g<\1>", replacement)
            re.compile(pattern).sub(self._replacement, "")
        except re.error as error:
            raise ConfigError(f"--rename {text}: {error}") from error
        if not equals or not replacement:
            raise ConfigError(f"--rename {text}: write REGEX=REPLACEMENT")

    def name(self, topic: str, otherwise: str) -> str:
        """Return the new name of a topic, or ``otherwise`` if it does not match."""
        match = None if self._pattern is None else self._pattern.fullmatch(topic)
        return otherwise if match is None else match.expand(self._replacement)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLog:
    """One partition of an archive: offsets ``begins`` to ``end`` (exclusive), and the topic that it
    is restored into.

    ``lost``: offsets that it has not, or not any more; ``ahead``: records that a killed run has
    left behind its end, which are not restored; ``is_cut``: ``end`` is the one that was asked for
    (``--to``), and ``left_out`` are the archived records from there on.
    """

    topic: ArchivedTopic
    partition: int
    target_topic: str
    begins: int
    end: int
    records: int
    bytes: int
    lost: int
    ahead: int = 0
    mirrors: Sequence[tuple[int, str, str, int]] = ()
    broken: str = ""
    """Why nothing of it can be restored now."""
    is_cut: bool = False
    left_out: int = 0
    has_end: bool = True
    """Whether ``end`` is known: what is damaged may hide a time."""

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.partition)


_ALL: Final = Boundary()


def read_archive(
    store: ArchiveStore,
    topics: Callable[[str], bool],
    name: Callable[[str], str],
    to: Boundary = _ALL,
) -> list[ArchivedLog]:
    """Return what there is of the chosen topics up to an end; ``name`` gives the topic that one is
    restored into.

    Raises:
        ConfigError: there is no such archive, its shape cannot be restored, or two topics get the
            same name.
    """
    head = head_of(store)
    if head.shape is not Shape.BATCHES:
        raise ConfigError(
            f"{store.path} is an archive of the shape {head.shape}, which is for queries",
            remedy="restore from one that was made with --shape batches",
        )
    chosen = each(partial(topic_of, store), filter(topics, topics_in(store)))
    if not chosen:
        raise ConfigError(f"{store.path} has none of the topics that are meant")
    targets: dict[str, str] = {}
    for topic in chosen:
        other = targets.setdefault(name(topic.topic), topic.topic)
        if other != topic.topic:
            raise ConfigError(
                f"--rename gives {other} and {topic.topic} the same name {name(topic.topic)}"
            )
    partitions = each(partial(_partitions, store), chosen)
    return each(
        lambda it: _read_log(store, *it, to),
        (
            (topic, name(topic.topic), number, noted.get(number))
            for topic, (count, noted) in zip(chosen, partitions, strict=True)
            for number in range(count)
        ),
    )


def _partitions(
    store: ArchiveStore, topic: ArchivedTopic
) -> tuple[int, Mapping[int, tuple[int, int]]]:
    """Return how many partitions a topic has, and how far they were."""
    noted = noted_ranges(store, topic.topic)
    last = max(_last_partition(store, topic.topic), *noted, -1)
    return max(topic.partitions, 1 + last), noted


def _read_log(
    store: ArchiveStore,
    topic: ArchivedTopic,
    target: str,
    number: int,
    noted: tuple[int, int] | None,
    to: Boundary,
) -> ArchivedLog:
    tp = TopicPartition(topic.topic, number)
    try:
        chain, begins, end, is_cut, left_out = restored_chain(store, tp, to)
        ahead = 0 if is_cut else records_ahead(store, tp, end)
    except (ConfigError, PartitionError, ProtocolError) as error:
        return _broken(store, topic, tp, target, noted, str(error), to)
    return ArchivedLog(
        topic=topic,
        partition=number,
        target_topic=target,
        begins=begins,
        end=end,
        records=sum(it.records for it in chain),
        bytes=sum(it.size_bytes for it in chain),
        lost=sum(min(it.first, end) - it.begins for it in chain)
        + _missing(topic, number, noted, chain, is_cut=is_cut),
        ahead=ahead,
        mirrors=[mirror for it in chain for mirror in it.mirrors],
        is_cut=is_cut,
        left_out=left_out,
    )


def _broken(
    store: ArchiveStore,
    topic: ArchivedTopic,
    tp: TopicPartition,
    target: str,
    noted: tuple[int, int] | None,
    cause: str,
    to: Boundary,
) -> ArchivedLog:
    """Return a partition whose manifests are damaged, or lack one: its lane says so, and the flow
    copies nothing behind the gap meanwhile."""
    begins, end = range_by_names(store, tp)
    end = max(end, 0 if noted is None else noted[1])
    is_cut = to.offset is not None and begins < to.offset < end
    return ArchivedLog(
        topic=topic,
        partition=tp.partition,
        target_topic=target,
        begins=begins,
        end=to.offset if to.offset is not None and is_cut else end,
        records=0,
        bytes=0,
        lost=0,
        broken=cause,
        is_cut=is_cut,
        left_out=UNKNOWN if is_cut else 0,
        has_end=to.timestamp is None,
    )


def _missing(
    topic: ArchivedTopic,
    partition: int,
    noted: tuple[int, int] | None,
    chain: Sequence[FileManifest],
    *,
    is_cut: bool,
) -> int:
    """Return how many offsets files had that are gone from either end, as where a bucket deletes
    what is old."""
    begins = topic.begins.get(str(partition), -1 if noted is None else noted[0])
    if begins < 0:
        return 0
    first, end = (chain[0].begins, chain[-1].end) if chain else (begins, begins)
    ends = topic.ends.get(str(partition), 0), 0 if noted is None else noted[1]
    return max(0, first - begins) + (0 if is_cut else max(0, max(ends) - end))


def _last_partition(store: ArchiveStore, topic: str) -> int:
    folders = [name for name in store.names(f"topic={topic}") if name.startswith("partition=")]
    return max((int(folder.removeprefix("partition=")) for folder in folders), default=-1)


_SHOWN: Final = 5

_KEPT_CONFIGS: Final = "cleanup.policy", "max.message.bytes"
_MADE_WITH: Final = f"the archive's partitions, {' and '.join(_KEPT_CONFIGS)}, and retention.ms=-1"

_KEEP_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Of topics that are made here: retention would delete old records as they come. The operator sets
it afterwards."""


@final
class Restore:
    """Plans the restore of some logs under the positions of one flow, and makes their topics.

    Args:
        flow: the flow itself, or its ``renamed_flow``.
        logs: of the archive.
        target: administration of the target.
        store: the archive.
        suppression: of the flow.
        held: what was paused alone.
    """

    def __init__(
        self,
        flow: FlowName,
        logs: Sequence[ArchivedLog],
        target: Admin,
        store: ArchiveStore,
        clock: Clock,
        suppression: Suppression,
        held: frozenset[TopicPartition],
    ) -> None:
        self.flow = flow
        self.is_renamed = is_renamed(flow)
        self.logs = {self._key(log): log for log in logs}
        self._target, self._store, self._clock = target, store, clock
        self._suppression, self._held = suppression, held
        self._made: Mapping[TopicPartition, ListedOffset] = {}
        """Where the logs end that were made here."""
        self.emptied: set[TopicPartition] = set()
        """Of which the last plan found the target empty behind a position."""
        self.cut_off: set[TopicPartition] = set()
        """Of which the archive has no longer what follows the target's copies."""
        self.ends: dict[TopicPartition, int] = {}
        """Where the target's logs ended at the last plan."""
        self.passed: set[TopicPartition] = set()
        """Of which the position was set past records that the target has no copies of."""
        self.beyond: set[TopicPartition] = set()
        """Of which the target has more than is to be restored."""
        self._copied: dict[TopicPartition, Reach | None] = {}
        """Which records before a position without a topic id have copies."""
        self._same: set[str] = set()
        """Topics of which a partition shows it: they are created again as a whole."""

    def _key(self, log: ArchivedLog) -> TopicPartition:
        return log.target if self.is_renamed else log.source

    async def plan(self, known: Known, *, accepts_expiry: bool = False) -> Plan:
        """Return ranges and refusals; ``known`` are the positions and maps of the flow.

        Partitions of which the target would delete records after the run are refused, unless that
        is accepted.
        """
        logs = {key: it for key, it in self.logs.items() if it.end > it.begins}
        self.emptied.clear()
        self.cut_off.clear()
        self.passed.clear()
        self.beyond.clear()
        copies = await self._target.describe_topics({it.target_topic for it in logs.values()})
        refused = self._too_small(copies)
        there = {
            it.target: LATEST
            for key, it in logs.items()
            if it.target_topic in copies and key not in refused and it.target not in self._made
        }
        ends = {**self._made, **await listed_offsets(self._target, self._clock, there)}
        planned: list[PartitionPlan] = []
        for key, log in logs.items():
            if key in refused:
                continue
            log_ends = ends.get(log.target)
            if log_ends is not None and log_ends.error is not None:
                refused[key] = (
                    f"the end of {log.target} on the target is not known: {log_ends.error}"
                )
                continue
            end = self.ends[key] = 0 if log_ends is None else log_ends.offset
            held = not self.is_renamed and is_held(key, self._held)
            refusal = self._refusal(key, log, known, end)
            if end and not refusal and self._has_no_id(key, known):
                refusal = await self._refusal_of_others(key, log, known.resume(key))
            refusal = refusal or self._refusal_of_passed(key, log, known)
            refusal = refusal or await self._refusal_of_end(key, log, known, end)
            if refusal and not end:
                self.emptied.add(key)
            elif refusal and 0 <= known.resume(key) < log.begins:
                self.cut_off.add(key)
            reason = paused_alone(self.flow, key.topic) if held else refusal
            if reason:
                refused[key] = reason
                continue
            at = max(known.resume(key) if end else -1, log.begins)
            planned.append(
                PartitionPlan(
                    topic=key.topic,
                    partition=key.partition,
                    target_topic=log.target_topic,
                    start=min(at, log.end),
                    end=log.end,
                    bytes=log.bytes * (log.end - min(at, log.end)) // (log.end - log.begins),
                    resumes=end > 0,
                    left_out=log.left_out,
                )
            )
        settings, notes = await changed_settings(self._target, planned, copies, _MADE_WITH)
        short = {} if accepts_expiry else await self._expiring(settings, planned)
        return Plan(
            flow=str(self.flow),
            partitions=tuple(planned),
            refused=(
                *(Refusal(*key, reason) for key, reason in sorted(refused.items())),
                *refused_expiry(short),
            ),
            settings=settings,
            reasons=REASONS,
            notes=(
                *notes,
                *(f"not restored: {it.broken}" for it in logs.values() if it.broken),
                *self._unknown(planned),
                *self._passed_by(planned, known),
            ),
        )

    def _has_no_id(self, key: TopicPartition, known: Known) -> bool:
        """Whether a position says nothing of the topic that it is in."""
        return not self.is_renamed and not known.incarnation(key) and key not in known.pages

    async def _refusal_of_others(self, key: TopicPartition, log: ArchivedLog, position: int) -> str:
        """Return why a log cannot be restored behind copies whose topic is not known, empty where
        nothing shows that it is another one."""
        if key.topic in self._same:
            return ""
        if key not in self._copied:
            self._copied[key] = await copied_reach(
                self._target.cluster, log.target, self._store, log.source, position
            )
        found = self._copied[key]
        if found is None:
            return ""
        if found.copied >= 0:
            self._same.add(key.topic)
            return ""
        return (
            f"{log.target} on the target has none of the records that the archive has before the "
            f"stored position {position} (the last {LAST:,} were looked for), which has no topic "
            "id (as one of Java's MirrorMaker 2, or set over REST): they are copies of another "
            "topic of that name, use --rename; or the position was set past records that were not "
            "copied: set it to the last one that was (PATCH "
            ".../connectors/MirrorSourceConnector/offsets), then restore"
        )

    def _refusal_of_passed(self, key: TopicPartition, log: ArchivedLog, known: Known) -> str:
        """Return why a log cannot be restored behind a position that was set past records; empty
        where they may have copies, or copies lie behind them."""
        passed = [
            it
            for it in self._archived(known.passed(key, self.ends[key]), log)
            if not it.room and it.end == known.resume(key)
        ]
        if self.is_renamed or not passed:
            return ""
        self.passed.add(key)
        (first, end, _), *_ = passed
        remedy = (
            f"set it to {first - 1}, the last one that was (PATCH "
            ".../connectors/MirrorSourceConnector/offsets), then restore, or "
            if first
            else ""
        )
        if known.is_quarantined(key, passed[0]):
            kept_in = quarantine_topic(self.flow.source, key.topic)
            return (
                f"before a failover offsets {first} to {end - 1} were not copied to {log.target}, "
                f"which was accepted, and the stored position is {end}: their records are in "
                f"{kept_in}; to have them there too, {remedy}use --rename"
            )
        return (
            f"the stored position {end} was set past records from offset {first} on, which the "
            f"archive has and which were not copied to {log.target}: {remedy}use --rename"
        )

    async def _refusal_of_end(
        self, key: TopicPartition, log: ArchivedLog, known: Known, end: int
    ) -> str:
        """Return why a copy could not end where it is to; empty where it can."""
        if not log.has_end:
            return f"where it ends is not known: {log.broken}; name another end (offset:N)"
        if not log.is_cut or not end:
            return ""
        position = known.resume(key)
        is_beyond = position > log.end
        unstored = end - max(0, known.target_end(key)) if self.is_renamed else 0
        if unstored > 0 and not is_beyond:
            # A killed run has sent them behind its last position.
            tp, first = log.source, max(position, log.begins)
            with suppress(ConfigError, PartitionError, ProtocolError):  # which its lane reports
                is_beyond = unstored > await asyncio.to_thread(
                    archived_records, self._store, tp, first, log.end
                )
        if not is_beyond:
            return ""
        self.beyond.add(key)
        return (
            f"{log.target} on the target has copies of records from offset {log.end} on, where "
            "--to ends it (its position is "
            f"{position}): a restore removes nothing; use --rename, or delete that topic first"
        )

    @staticmethod
    def _archived(passed: Sequence[Passed], log: ArchivedLog) -> list[Passed]:
        return [it for it in passed if it.first < log.end and it.end > log.begins]

    def _passed_by(self, planned: Sequence[PartitionPlan], known: Known) -> list[str]:
        """Return what the archive has before the range of a plan and may have no copy."""
        notes: list[str] = []
        for it in planned:
            log, found = self.logs[it.source], self._copied.get(it.source)
            passed = [*known.passed(it.source, self.ends[it.source])]
            if found is not None and found.copied < found.end:
                passed.append(Passed(found.copied, found.end, 0))
            notes += (
                f"{why_passed(it.source, one)}, else use --rename"
                for one in self._archived(passed, log)
                if one.may_lack_copies(it.source, log.target) and not self.is_renamed
            )
        return notes

    def _unknown(self, planned: Sequence[PartitionPlan]) -> list[str]:
        """Return what is not known of positions that the plan continues behind."""
        unknown = [
            str(it.source)
            for it in planned
            if it.topic not in self._same
            and it.source in self._copied
            and self._copied[it.source] is None
        ]
        if not unknown:
            return []
        return [
            f"{some_of(unknown, _SHOWN)}: the stored position has no topic id (as one of Java's "
            "MirrorMaker 2), and the copies do not show whether they are of the archived topic: "
            "had it been created again, records would be missing"
        ]

    async def _expiring(
        self, settings: Sequence[SettingChange], planned: Sequence[PartitionPlan]
    ) -> dict[TopicPartition, str]:
        configs = await self._target.describe_topic_configs({setting.topic for setting in settings})
        causes: dict[TopicPartition, str] = {}
        for setting in settings:
            entries = {entry.name: entry for entry in configs[setting.topic]}
            ranges = [
                part
                for part in planned
                if part.target_topic == setting.topic and part.start < part.end
            ]
            kept = value_of(entries, setting.name)
            causes |= await expiring(setting.name, kept, entries, ranges, self._older)
        return causes

    async def _older(
        self, ranges: Sequence[PartitionPlan], retention_ms: int
    ) -> dict[TopicPartition, int]:
        oldest = self._clock.now_ms() - retention_ms
        whole = [it for it in ranges if not self.logs[it.source].broken]

        def young(part: PartitionPlan) -> int:
            tp = TopicPartition(self.logs[part.source].topic.topic, part.partition)
            return offset_at(self._store, tp, oldest, part.end)

        ends = await asyncio.to_thread(each, young, whole)
        return {
            it.source: max(0, min(it.end, end) - it.start)
            for it, end in zip(whole, ends, strict=True)
        }

    def stale(self, plan: Plan, known: Known) -> list[TopicPartition]:
        """Return partitions of a restore under other names whose topic was deleted since: they
        begin anew."""
        return [
            partition.source
            for partition in plan.partitions
            if not partition.resumes and known.has(partition.source)
        ]

    def _too_small(self, copies: Mapping[str, TopicDescription]) -> dict[TopicPartition, str]:
        return {
            key: f"topic {log.target_topic} has {len(copies[log.target_topic].partitions)} "
            "partitions, the archive more:"
            " add partitions, or restore into another topic with --rename"
            for key, log in self.logs.items()
            if log.target_topic in copies
            and log.partition not in copies[log.target_topic].partitions
        }

    def _refusal(self, key: TopicPartition, log: ArchivedLog, known: Known, end: int) -> str:
        """Return why a log cannot be restored after what the target has, empty where it can."""
        position = known.resume(key)
        page = known.pages.get(key)
        if not end:
            copied_nothing = (
                position == log.begins
                if page is None
                else not page.number and all(it.is_anchor for it in page.segments)
            )
            if position < 0 or self.is_renamed or copied_nothing:
                return ""
            return (
                f"the flow {self.flow} has copied it up to offset {position}, but {log.target} "
                "is empty: reset the flow's"
                " offsets of it (DELETE .../connectors/MirrorSourceConnector/offsets), then restore"
            )
        there = f"{log.target} on the target is not empty (its log ends at {end})"
        if position < 0:
            return (
                f"{there} and nothing was restored or copied into it: restore into another topic "
                "with --rename, or delete that one first"
            )
        copied = known.incarnation(key) if page is None else page.source_id
        if is_another_topic(copied, bytes.fromhex(log.topic.topic_id)):
            return f"{there} and has copies of another topic of that name: use --rename"
        if position < log.begins:
            return (
                f"{there} and has copies up to offset {position}, the archive begins at "
                f"{log.begins}: what is between would be missing"
            )
        return "" if self.is_renamed else self._doubling(log, position, there)

    def _doubling(self, log: ArchivedLog, position: int, there: str) -> str:
        """Refuse what the flow would not copy from a position on: the target has written it
        itself."""
        cluster = self._target.cluster
        origins = ProducerOrigins(
            everything=self._suppression is Suppression.ALL,
            target=cluster.alias,
            target_cluster=cluster.cluster_id,
        )
        for number, source, source_cluster, _ in log.mirrors:
            origins.learn(
                MirrorProducer(producer_id=number, source=source, source_cluster=source_cluster)
            )
        looping = origins.known.looping
        last = max((last for number, *_, last in log.mirrors if number in looping), default=-1)
        if position > last or self._suppression is Suppression.OFF:
            return ""
        return (
            f"{there}, and what the archive has from offset {position} to {last} includes records "
            "that a mirror copied to the source and the flow does not copy (loop.suppression): "
            "they would be doubled; let the flow copy the others, or restore into another topic "
            "with --rename"
        )

    async def make_topics(self) -> None:
        """Make the topics that are missing; ``ConfigError``: one cannot be made."""
        partitions: dict[str, int] = {}
        for log in self.logs.values():
            before = partitions.get(log.target_topic, 0)
            partitions[log.target_topic] = max(before, log.partition + 1)
        there = await self._target.describe_topics(partitions)
        missing = {
            log.target_topic: _configs(log.topic.configs)
            for log in self.logs.values()
            if log.target_topic not in there
        }
        created = await self._target.create_topics(
            [NewTopic(name, partitions[name], -1, configs) for name, configs in missing.items()]
        )
        for name, error in created.items():
            if error is not None:
                raise ConfigError(f"topic {name} cannot be created: {error}")
        # Until brokers have made thousands of logs, they show no topic that is created after them.
        made = (TopicPartition(it, number) for it in missing for number in range(partitions[it]))
        self._made = await listed_offsets(self._target, self._clock, dict.fromkeys(made, LATEST))


def _configs(archived: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in archived.items() if key in _KEPT_CONFIGS} | _KEEP_ALL
