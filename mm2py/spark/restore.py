"""Restore: an archive's batches back into topics, in order, once each.

Flow: chains of manifests on the driver -> topics made where they are missing -> lanes of whole partitions -> each task compares what the
target has with the archive (``compare``), and sends what follows through the Sender -> one report. Nothing is kept about a
restore: what is in the target's log is what was restored, so a run that was killed continues where the log ends.

Invariants, tests of the same names:

1. A record is sent only behind a target log that has exactly the archive's records before it.
2. Each acknowledgement is at the offset that follows the one before it; another one ends the partition with both numbers.
3. A file whose digest is not its manifest's sends nothing.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.range_reader import RangeReader, log_ends
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import Identical, KeptProducer, LogEnd, writer_at
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import producer_settings
from mm2py.errors import ConfigError, PartitionError
from mm2py.protocol.batch_stage import classify
from mm2py.protocol.log_batches import LogBatch
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import NewTopic
from mm2py.spark.archive_format import (
    FileManifest,
    Shape,
    archived_batches,
    chain_of,
    head_of,
    topic_of,
)
from mm2py.spark.archive_store import ArchiveStore
from mm2py.spark.compare import compare
from mm2py.spark.dealing import answers_of
from mm2py.spark.differences import CompareRules
from mm2py.spark.flow_sides import FlowSides
from mm2py.spark.log_entries import LogSide, OffsetRange, entries_of
from mm2py.spark.reading import connected
from mm2py.spark.session import OpenSession
from mm2py.types import TopicPartition

__all__ = ["Rename", "restore_flow", "run_lane"]

_BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Of a partition that waits for its acknowledgement."""

_FLUSH_S: Final = 120.0


class _Part(NamedTuple):
    """One partition of the archive and where it is restored to."""

    topic: str
    partition: int
    target_topic: str
    records: int
    topic_id: str

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.partition)


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
        found = None if self._pattern is None else self._pattern.fullmatch(topic)
        return otherwise if found is None else found.expand(self._replacement)


def restore_flow(
    flow: FlowSides,
    root: str,
    rename: Rename,
    topics: Callable[[str], bool],
    open_spark: Callable[[], OpenSession],
) -> dict[str, object]:
    """Restore the archive at ``root`` into the flow's target; return the report.

    Raises:
        ConfigError: there is no such archive, or its shape cannot be restored.
        PartitionError: a target has other records than the archive, or the archive is damaged.
    """
    store = ArchiveStore(root)
    parts = asyncio.run(_plan(flow, store, rename, topics))
    waiting = [it for it in parts if it.records]
    answers: list[dict[str, object]] = []
    if waiting:
        with open_spark() as opened:
            common = {"target": flow.target, "alias": flow.flow.target, "path": root}
            answers = answers_of(
                opened,
                run_lane,
                waiting,
                lambda it: it.records,
                lambda lane: common | {"partitions": lane},
                name=f"restore {flow.flow}",
            )
    answers.sort(key=lambda it: (str(it["target_topic"]), int(str(it["partition"]))))
    return {
        "flow": str(flow.flow),
        "path": root,
        "records": sum(int(str(it["records"])) for it in answers),
        "restored_records": sum(int(str(it["restored_records"])) for it in answers),
        "partitions": answers,
    }


async def _plan(
    flow: FlowSides, store: ArchiveStore, rename: Rename, topics: Callable[[str], bool]
) -> list[_Part]:
    head = head_of(store)
    if head.shape is not Shape.BATCHES:
        raise ConfigError(
            f"{store.path} is an archive of the shape {head.shape}, which is for queries",
            remedy="restore from one that was made with --shape batches",
        )
    names = [it.removeprefix("topic=") for it in store.names("") if it.startswith("topic=")]
    chosen = [topic_of(store, it) for it in names if topics(it)]
    if not chosen:
        raise ConfigError(f"{store.path} has none of the topics that are meant")
    parts: list[_Part] = []
    wanted: list[NewTopic] = []
    for topic in chosen:
        target = rename.name(topic.topic, flow.copy_of(topic.topic))
        folders = [it for it in store.names(f"topic={topic.topic}") if it.startswith("partition=")]
        numbers = sorted(int(it.removeprefix("partition=")) for it in folders)
        for number in numbers:
            chain = chain_of(store, TopicPartition(topic.topic, number))
            records = sum(it.records for it in chain)
            parts.append(_Part(topic.topic, number, target, records, topic.topic_id))
        partitions = max([topic.partitions, *(number + 1 for number in numbers)])
        configs = {key: text for key, text in topic.configs.items() if key in _KEPT_CONFIGS}
        wanted.append(NewTopic(target, partitions, -1, configs | _KEEP_ALL))
    async with connected(flow.target, alias=flow.flow.target) as target_cluster:
        await _make_topics(Admin(target_cluster), wanted)
    return parts


_KEPT_CONFIGS: Final = frozenset({"cleanup.policy", "max.message.bytes"})

_KEEP_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Of topics that are made here: retention would delete old records as they come. The operator sets it afterwards."""


async def _make_topics(admin: Admin, wanted: Sequence[NewTopic]) -> None:
    there = await admin.describe_topics([it.name for it in wanted])
    for topic in wanted:
        found = there.get(topic.name)
        if found is not None and len(found.partitions) < topic.partitions:
            raise ConfigError(
                f"topic {topic.name} has {len(found.partitions)} partitions, the archive {topic.partitions}",
                remedy="add partitions, or restore into another topic with --rename",
            )
    missing = [it for it in wanted if it.name not in there]
    for name, error in (await admin.create_topics(missing)).items():
        if error is not None:
            raise ConfigError(f"topic {name} cannot be created: {error}")


# ---- in a task


def run_lane(lane: Mapping[str, object]) -> dict[str, object]:
    """Restore the partitions of a lane; runs in a Spark task."""
    return asyncio.run(_run_lane(lane))


async def _run_lane(lane: Mapping[str, object]) -> dict[str, object]:
    store, properties = ArchiveStore(str(lane["path"])), cast("Mapping[str, str]", lane["target"])
    answers: list[dict[str, object]] = []
    async with connected(properties, alias=str(lane["alias"])) as target:
        for row in cast("Sequence[tuple[str, int, str, int, str]]", lane["partitions"]):
            restore = _PartitionRestore(store, target, properties, _Part(*row))
            answers.append(await restore.run())
    return {"partitions": answers}


@final
class _PartitionRestore:
    """Restores one partition: compares what is there, sends the rest."""

    def __init__(
        self, store: ArchiveStore, target: Cluster, properties: Mapping[str, str], part: _Part
    ) -> None:
        self._store, self._cluster, self._properties = store, target, properties
        self._part, self._chain = part, chain_of(store, part.source)
        self._acknowledged = -1
        self._error: Exception | None = None
        self._moved = asyncio.Event()

    async def run(self) -> dict[str, object]:
        """Restore the partition.

        Raises:
            PartitionError: the target or the archive is not as it has to be; names the offset.
            Mm2pyError: the target cannot be read or written.
        """
        part = self._part
        ends = (await log_ends(self._cluster, [part.target], read_committed=False))[part.target]
        there, following = await self._compare(ends.start, ends.end)
        self._acknowledged = ends.end
        if following >= 0:
            await self._send(following, ends.end)
        restored = self._acknowledged - ends.end
        return {
            "topic": part.topic,
            "partition": part.partition,
            "target_topic": part.target_topic,
            "records": there + restored,
            "restored_records": restored,
            "target_from": ends.start,
            "target_to": self._acknowledged,
            "source_to": self._chain[-1].end,
            "source_topic_id": part.topic_id,
            "source_runs": self._runs(),
            "lost_in_archive": sum(it.first - it.begins for it in self._chain),
        }

    async def _compare(self, start: int, end: int) -> tuple[int, int]:
        """Return how many records are restored already, and the source offset of the next one, -1 for none (1)."""
        if start == end:
            return 0, self._chain[0].first if end == 0 else self._refuse(start, end, "was emptied")
        if start > 0:
            self._refuse(start, end, "has lost its first records")
        log = LogSide(self._log(end), digests=False)
        found = await compare(
            LogSide(self._archived(), digests=False), log, CompareRules(covered=None)
        )
        if found.differences or found.matched != end:
            first = found.differences[0] if found.differences else None
            at = (
                ""
                if first is None
                else f", {first.kind} at source offset {first.source_offset}, target offset {first.target_offset}"
            )
            self._refuse(start, end, f"has other records than the archive{at}")
        return found.matched, found.behind

    def _refuse(self, start: int, end: int, why: str) -> int:
        target = self._part.target
        raise PartitionError(
            f"{target} of {self._cluster} has offsets {start} to {end} and {why}",
            topic=self._part.topic,
            partition=self._part.partition,
            remedy="restore into another topic with --rename, or delete that one first",
        )

    async def _log(self, end: int) -> AsyncGenerator[tuple[OffsetRange, list[LogBatch]]]:
        reader = RangeReader(self._cluster, read_committed=False)
        async for batches in reader.read(self._part.target, 0, end):
            yield OffsetRange(0, end), batches

    async def _archived(self) -> AsyncGenerator[tuple[OffsetRange, list[LogBatch]]]:
        for manifest in self._chain:
            yield (
                OffsetRange(manifest.first, manifest.end),
                list(archived_batches(self._store, manifest)),
            )

    async def _send(self, following: int, end: int) -> None:
        last = await writer_at(self._cluster, self._part.target, end - 1) if end else None
        copies = _Copies(end, -1 if last is None else last.producer_id)
        settings = producer_settings(self._properties, scope=f"restore of {self._part.target}")
        sender = Sender(
            self._cluster,
            settings,
            clock=SYSTEM_CLOCK,
            on_delivered=self._delivered,
            on_failed=self._failed,
            copied=copies,
        )
        await sender.start()
        try:
            for batches in self._batches_from(following):
                sender.enqueue(self._part.source, self._part.target, batches)
                while sender.buffered_bytes > _BACKLOG_BYTES and self._error is None:
                    self._moved.clear()
                    await self._moved.wait()
                await asyncio.sleep(0)
                if self._error is not None:
                    break
            while sender.buffered_bytes and self._error is None:
                await sender.flush(_FLUSH_S)
        finally:
            await sender.close()
        if self._error is not None:
            raise self._error

    def _runs(self) -> list[tuple[int, int]]:
        """Return the source offsets of what was restored, as stretches of (first, count): it lies without holes."""
        runs: list[tuple[int, int]] = []
        for manifest in self._chain:
            for batch in archived_batches(self._store, manifest):
                for first, count in _offsets_of(batch, manifest.first):
                    if runs and sum(runs[-1]) == first:
                        runs[-1] = runs[-1][0], runs[-1][1] + count
                    else:
                        runs.append((first, count))
        return runs

    def _batches_from(self, following: int) -> Iterator[list[RecordBatch]]:
        manifests = (it for it in self._chain if it.end > following)
        for manifest in manifests:
            wanted = max(following, manifest.first)
            for batch in archived_batches(self._store, manifest):
                if batch.last_offset >= wanted:
                    yield _sendable(batch, wanted, manifest)

    def _delivered(
        self, _source: TopicPartition, target: TopicPartition, batch: RecordBatch, base: int
    ) -> None:
        if base != self._acknowledged and self._error is None:
            self._error = PartitionError(
                f"a batch was stored at offset {base} of {target}, expected {self._acknowledged}: something else"
                " writes to it",
                topic=self._part.topic,
                partition=self._part.partition,
                offset=batch.base_offset,
                remedy="stop the other writer, delete the topic, and restore again",
            )
        self._acknowledged = base + batch.count
        self._moved.set()

    def _failed(self, _source: TopicPartition, _target: TopicPartition, error: Exception) -> None:
        self._error = self._error or error
        self._moved.set()


def _offsets_of(batch: LogBatch, wanted: int) -> list[tuple[int, int]]:
    if batch.is_dense:
        first = max(batch.base_offset, wanted)
        return [(first, batch.last_offset + 1 - first)]
    return [(it.offset, 1) for it in entries_of(batch) if it.offset >= wanted]


def _sendable(batch: LogBatch, wanted: int, manifest: FileManifest) -> list[RecordBatch]:
    """Return an archived batch as the Sender takes it: what the target would refuse is changed, as when mirroring."""
    if batch.runs:
        return [
            RecordBatch(
                batch.data,
                batch.base_offset,
                batch.last_offset,
                batch.count,
                batch.max_timestamp,
                -1,
                batch.attributes,
                batch.runs,
                None,
            )
        ]
    staged = classify(batch.data, wanted, None)
    if staged.problem is not None:
        raise PartitionError(
            staged.problem.text,
            topic=manifest.topic,
            partition=manifest.partition,
            offset=batch.base_offset,
        )
    return staged.batches


@final
class _Copies:
    """What the Sender asks about earlier copies: it continues the sequences of the log's last batch."""

    identical = Identical.PREFER

    def __init__(self, end: int, producer_id: int) -> None:
        self._end, self._producer_id = end, producer_id

    def target_end(self, source: TopicPartition, topic_id: bytes) -> int:
        """Return where the log ended when it was compared."""
        del source, topic_id
        return self._end

    def producer(self, source: TopicPartition) -> KeptProducer:
        """Return the producer of the last batch there; -1 for an empty log."""
        del source
        return KeptProducer(self._producer_id, -1)

    async def begin(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Nothing is kept: the log itself is."""
