"""A source task whose source is an archive: what a lane of a restore runs in place of
MirrorSource's task.

Flow: chain of manifests -> file by file, each compared with its digest -> batches in order -> the
worker sends them as a mirror's -> ``delivered``. Positions, offset map, sequences, recognition of
what a former attempt sent, and the permit are the worker's, so that a restore resumes, is fenced
and is handed over as a backfill.

Invariants, tests of the same names:

1. Records leave in the order of the chain, from the stored position on, and none after the end,
   which may lie within a batch.
2. A file whose digest is not its manifest's sends nothing, and fails its partition alone.
3. A partition is covered up to its end only when all that was handed out is delivered.
4. Records that do not follow each other on the target end their partition, with both offsets.
5. A partition of which the archive does not have all that was planned, any more, fails before it is
   passed for restored.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import Connector
from mm2py.api.context import ConnectorContext, PartitionState, TaskContext
from mm2py.api.records import SourcePartition
from mm2py.api.task import BatchSourceTask, Delivery, Outgoing
from mm2py.client.pacing import ByteRate
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR
from mm2py.config.definitions import parse_config
from mm2py.errors import FatalError, Mm2pyError, PartitionError
from mm2py.mirror.source_offsets import mirror_source_partition, next_offset
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_source_config import FlowRate
from mm2py_jobs.archive.archive_file import GROUP_BYTES
from mm2py_jobs.archive.archive_format import FileManifest, archived_batches, chain_of
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.copy.archive_order import ARCHIVE, TaskArchive
from mm2py_jobs.log.log_batches import LogBatch, cut

POLL_S: Final = 0.2


@final
class ArchiveConnector(Connector):
    """Opens tasks that read an archive; topics and task configs are the restore's own work."""

    java_class: ClassVar[str] = MIRROR_SOURCE_CONNECTOR

    def __init__(self, config: Mapping[str, str]) -> None:
        self._alias = config["source.cluster.alias"]

    async def start(self, context: ConnectorContext) -> None:
        """Nothing runs beside the tasks."""
        del context

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return none: lanes have their own."""
        del max_tasks
        return ()

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> BatchSourceTask:
        limit = parse_config(FlowRate, config).flow_max_bytes_per_second
        rate = ByteRate(limit, context.clock) if limit > 0 else None
        return ArchiveTask(TaskArchive.parse(config[ARCHIVE]), self._alias, context, rate)

    async def stop(self) -> None:
        """Nothing is open."""


@final
class ArchiveTask(BatchSourceTask):
    """Restores a fixed set of partitions; restart-safe.

    Args:
        archive: what, from where to where.
        alias: of the source cluster, in the keys of positions.
        context: lent by the worker.
        rate: of the task, None without a limit.
    """

    def __init__(
        self, archive: TaskArchive, alias: str, context: TaskContext, rate: ByteRate | None = None
    ) -> None:
        self._archive, self._alias, self._context = archive, alias, context
        self._rate = rate
        self._store = ArchiveStore(archive.path)
        self._logs: dict[TopicPartition, _LaneLog] = {}
        self._held: set[TopicPartition] = set()
        self._loads: dict[TopicPartition, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Resume after the stored positions, or begin where the archive does."""
        archive, partitions = self._archive, list(self._archive.ends)
        stored = await self._context.committed_offsets(
            [self.source_partition(it) for it in partitions]
        )
        for partition, offset in zip(partitions, stored, strict=True):
            position, topic = next_offset(offset), archive.topics[partition.topic]
            self._context.report_incarnation(partition, bytes.fromhex(topic.topic_id))
            name = TopicPartition(topic.name, partition.partition)
            first = max(position, archive.begins.get(partition, -1))
            end = archive.ends[partition]
            try:
                # What is damaged behind the end is not needed.
                chain = await asyncio.to_thread(chain_of, self._store, name, until=end)
                _check_whole(name, chain, first, end)
            except Mm2pyError as error:
                self._context.partition_state(partition, PartitionState.FAILED, error)
                continue
            target = TopicPartition(topic.target, partition.partition)
            self._logs[partition] = _LaneLog(partition, target, chain, position, end)

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        """Return the next batches of the first partition that has any; empty while a file is
        read."""
        for it in self._logs.values():
            if it.is_delivered():
                self._context.report_covered(it.source, it.end - 1)
        log = next((it for it in self._logs.values() if it.wants_to_send(self._held)), None)
        wait_s = 0.0 if self._rate is None else self._rate.delay_s()
        if log is None or wait_s:
            await self._context.clock.sleep(min(wait_s or POLL_S, POLL_S))
            return ()
        if not log.batches or log.source in self._loads:
            await self._load(log)
            if log.source in self._loads:
                return ()
        if self._rate is not None:
            budget_bytes = min(budget_bytes, self._rate.room_bytes())
        batches = log.take(budget_bytes)
        if self._rate is not None:
            self._rate.spend(sum(len(batch.data) for batch in batches))
        return [Outgoing(log.source, log.target, batches)] if batches else ()

    async def _load(self, log: "_LaneLog") -> None:
        """Read the next file in a thread: a lease is renewed meanwhile, however slow the store
        is."""
        loading = self._loads.get(log.source)
        if loading is None:
            loading = asyncio.create_task(asyncio.to_thread(log.load, self._store))
            self._loads[log.source] = loading
        done, _ = await asyncio.wait({loading}, timeout=POLL_S)
        if not done:
            return
        del self._loads[log.source]
        try:
            loading.result()
        except Mm2pyError as error:
            self._fail(log, error)

    def delivered(self, delivery: Delivery) -> None:
        """Note where records landed; in source order per partition."""
        log = self._logs.get(delivery.source)
        if log is None:
            return
        for run in delivery.runs:
            if log.target_next not in (-1, run.target_offset):
                error = PartitionError(
                    f"records were stored at offset {run.target_offset} of {log.target}, "
                    f"expected {log.target_next}:"
                    " another program writes to it",
                    topic=log.source.topic,
                    partition=log.source.partition,
                    offset=run.source_offset,
                    remedy="stop the other writer, delete the topic, and restore again",
                )
                self._fail(log, error)
                return
            log.target_next = run.target_offset + run.records
            log.under_way -= run.records

    def _fail(self, log: "_LaneLog", error: Mm2pyError) -> None:
        self._logs.pop(log.source, None)
        self._context.partition_state(log.source, PartitionState.FAILED, error)

    def pace(self, bytes_per_s: int) -> None:
        if self._rate is not None:
            self._rate.change(bytes_per_s)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self._held.update(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._held.difference_update(partitions)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Read nothing of it any more; the worker has logged why."""
        del error
        self._logs.pop(partition, None)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        """Return the key of its stored position: the one that the flow's own task has."""
        return mirror_source_partition(self._alias, partition)

    async def commit(self) -> None:
        """Nothing follows stored positions."""

    async def stop(self) -> None:
        """Wait for files that are being read."""
        loads, self._loads = self._loads, {}
        await asyncio.gather(*loads.values(), return_exceptions=True)


def _check_whole(tp: TopicPartition, chain: Sequence[FileManifest], first: int, end: int) -> None:
    there = (chain[0].first, chain[-1].end) if chain else (end, 0)
    if (first >= 0 and there[0] > first) or there[1] < end:
        raise PartitionError(
            f"offsets {max(0, first)} to {end} were to be restored, the archive has {there[0]} "
            f"to {there[1]}",
            topic=tp.topic,
            partition=tp.partition,
            offset=max(0, first),
            remedy="files are gone from the archive; copy it anew from where it was kept, or "
            "cancel the restore",
        )


@final
class _LaneLog:
    """One partition's files from a position on, one open at a time."""

    def __init__(
        self,
        source: TopicPartition,
        target: TopicPartition,
        chain: Sequence[FileManifest],
        position: int,
        end: int,
    ) -> None:
        self.source, self.target, self.end = source, target, end
        self._position = position
        self._files = self._wanted(chain)
        self._reading: Iterator[LogBatch] | None = None
        self.batches: deque[RecordBatch] = deque()
        self.under_way = 0
        self.target_next = -1
        self._covered = False

    def wants_to_send(self, held: Collection[TopicPartition]) -> bool:
        """Whether anything is left that may be handed out now."""
        return bool(self.batches or self._files) and self.source not in held

    def is_delivered(self) -> bool:
        """Whether all of it is on the target; True once."""
        if self._covered or self.batches or self._files or self.under_way:
            return False
        self._covered = True
        return True

    def load(self, store: ArchiveStore) -> None:
        """Read about ``GROUP_BYTES`` of the next file; where it was joined with others before it
        was opened, of the one that has it."""
        manifest = self._files[0]
        first, size = max(self._position, manifest.first), 0
        name = TopicPartition(manifest.topic, manifest.partition)
        if self._reading is None:
            self._reading = archived_batches(store, manifest)
        try:
            for batch in self._reading:
                if batch.last_offset >= first and batch.base_offset < self.end:
                    self.batches.extend(cut(name, batch, first, self.end))
                    self._position = max(self._position, batch.last_offset + 1)
                    size += len(batch.data)
                    if size >= GROUP_BYTES:
                        return
        except FatalError:
            self._reading = None
            chain = chain_of(store, name, until=self.end)
            if manifest in chain:
                raise
            _check_whole(self.source, chain, max(self._position, manifest.first), self.end)
            self._files = self._wanted(chain)
            return
        self._reading = None
        self._files.popleft()
        self._position = max(self._position, manifest.end)

    def _wanted(self, chain: Sequence[FileManifest]) -> deque[FileManifest]:
        return deque(it for it in chain if self._position < it.end and it.begins < self.end)

    def take(self, budget_bytes: int) -> list[RecordBatch]:
        """Return batches of about a size, at least one if there are any."""
        taken: list[RecordBatch] = []
        size = 0
        while self.batches and size < budget_bytes:
            batch = self.batches.popleft()
            taken.append(batch)
            size += len(batch.data)
            self.under_way += batch.count
        return taken
