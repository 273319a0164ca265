"""A task that copies batches, with transforms: its batches are opened, each record passes the chain, what is left is packed again.

Flow: ``CopyTask.poll`` -> records -> ``TransformChain`` -> new batches with holes, one lane per target partition -> ``Outgoing``;
what became of each source batch -> ``SourceOrder``. Transforms see what Java's see: the topic that the replication policy
names, and bytes. The copies in that topic keep their exact offsets, dropped records are holes; records that a transform sends
elsewhere have no offsets that anything translates. The chain runs on a thread of the task's own, since transforms may block.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.context import PartitionState, TaskContext
from mm2py.api.records import SinkRecord, SourceOffset, SourcePartition, SourceRecord
from mm2py.api.task import BatchSourceTask, CopiedLogs, Delivery, Outgoing, TakesOver
from mm2py.errors import FatalError, PartitionError, ProtocolError
from mm2py.observability.logging import some_of
from mm2py.protocol.record_batch import CODEC_MASK, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, Record, decode_batch
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.converters.registry import RecordConverters
from mm2py.runtime.plugins.transforms.chain import TransformChain, seen_headers, sent_headers
from mm2py.runtime.tasks.errant_records import ErrantRecords, Operation, Stage
from mm2py.runtime.tasks.record_task import new_batch
from mm2py.runtime.tasks.source_order import Part, SourceOrder
from mm2py.types import TopicPartition

__all__ = ["CopyTask", "TransformedTask"]

log = logging.getLogger(__name__)

WORK_S: Final = 1.0
"""The contract of ``poll``: transforms that take longer are waited for by the next one."""

END_S: Final = 1.0
"""How long a transform that is at work may delay the end of its task."""

SHOWN_TOPICS: Final = 5


class _Packed(NamedTuple):
    """A record and where it goes."""

    target: TopicPartition
    record: NewRecord


class CopyTask(BatchSourceTask, TakesOver, CopiedLogs, Protocol):
    """What is wrapped: a task whose source partitions are logs, each with one target partition (``MirrorSourceTask``)."""


@dataclass(slots=True)
class _Made:
    """What transforms made of the batches of one source partition."""

    source: TopicPartition
    home: TopicPartition
    lanes: dict[TopicPartition, list[RecordBatch]]
    parts: list[Part] = field(default_factory=list[Part])
    dropped: int = 0
    error: PartitionError | None = None
    """A batch that cannot be read; nothing behind it was looked at."""


@dataclass(slots=True)
class _Work:
    """The result of one turn of the thread."""

    made: list[_Made] = field(default_factory=list[_Made])
    spent: list[RecordBatch] = field(default_factory=list[RecordBatch])
    """Batches whose buffers are not needed any more."""
    error: Exception | None = None
    """A record that nothing behind may pass (``errors.tolerance=none``)."""


@final
class TransformedTask(BatchSourceTask):
    """Implements ``CopyTask`` over another one.

    Args:
        task: reads the source and follows its positions.
        chain: what each record passes.
        converters: turn what transforms made of keys, values and headers into bytes, where that is not bytes.
        errant: ``errors.*``.
        order: learns what became of each source batch.
    """

    def __init__(
        self,
        task: CopyTask,
        chain: TransformChain,
        *,
        converters: RecordConverters,
        errant: ErrantRecords,
        order: SourceOrder,
        context: TaskContext,
    ) -> None:
        self._task, self._chain = task, chain
        self._converters, self._errant = converters, errant
        self._order, self._context = order, context
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transforms")
        self._working: asyncio.Future[_Work] | None = None
        self._error: Exception | None = None
        self._dropped = 0
        self._routed: dict[str, int] = {}
        self._reported = (0, 0)

    async def start(self) -> None:
        """Start the task."""
        await self._task.start()

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        """Copy these too."""
        await self._task.take_over(partitions)

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        """Return what transforms left of the next batches."""
        if self._error is not None:
            raise self._error
        if self._working is None:
            fetched = await self._task.poll(budget_bytes)
            if not any(batches for _, _, batches in fetched):
                return fetched
            loop, context = asyncio.get_running_loop(), copy_context()  # the task's name in the log
            self._working = loop.run_in_executor(
                self._thread, lambda: context.run(self._transform_all, fetched)
            )
        working = self._working
        await asyncio.wait({working}, timeout=WORK_S)
        if not working.done():
            return ()
        self._working, work = None, working.result()
        # What was finished before a record that ends the task is copied, and its position stored.
        self._error = work.error
        return self._taken(work)

    def delivered(self, delivery: Delivery) -> None:
        """Pass it on."""
        self._task.delivered(delivery)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Read none of these."""
        self._task.hold(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again."""
        self._task.release(partitions)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Read nothing of it any more."""
        self._task.failed(partition, error)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        """Return the key of its stored position."""
        return self._task.source_partition(partition)

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        """Return its stored form."""
        return self._task.source_offset(partition, position)

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Ask the source where logs begin."""
        return await self._task.log_starts(partitions)

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        """Return the copy's partition, where no transform sends a record elsewhere."""
        return self._task.target_of(partition)

    async def commit(self) -> None:
        """Report what was dropped and sent elsewhere since the task started."""
        self._report()
        await self._task.commit()

    async def stop(self) -> None:
        """End the thread, the transforms and the task."""
        self._errant.stopping.set()
        working, self._working = self._working, None
        if working is not None and not (await asyncio.wait({working}, timeout=END_S))[0]:
            log.warning("a transform is still at work and is left behind")
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._chain.close()
        await self._task.stop()

    # -- on the event loop ------------------------------------------------------------------------

    def _taken(self, work: _Work) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for made in work.made:
            # The partition's own target is first, also without batches: the worker opens its meter with that.
            for target, batches in made.lanes.items():
                outgoing.append(Outgoing(made.source, target, batches))
                if target != made.home:
                    count = sum(batch.count for batch in batches)
                    self._routed[target.topic] = self._routed.get(target.topic, 0) + count
            for part in made.parts:
                self._order.handed_out(made.source, made.home, part)
            self._dropped += made.dropped
            if made.error is not None:
                self._unreadable(made.source, made.error)
        for batch in work.spent:
            if batch.lease is not None:
                batch.lease.release()
        return outgoing

    def _unreadable(self, source: TopicPartition, error: PartitionError) -> None:
        self._task.failed(source, error)
        self._context.partition_state(source, PartitionState.FAILED, error)

    def _report(self) -> None:
        routed, skipped = (
            sum(self._routed.values()),
            self._errant.counters.total_records_skipped,
        )
        dropped = max(0, self._dropped - skipped)
        if (dropped, routed) != self._reported:
            self._reported = dropped, routed
            text = f"{dropped} records were dropped since the task started"
            if routed:
                names = some_of(sorted(self._routed), SHOWN_TOPICS)
                text += (
                    f", {routed} went to other topics ({names}): offsets of groups are not translated for these,"
                    " and nothing keeps their settings in step"
                )
            self._context.report_finding("transforms", text, count=dropped + routed, harms=False)
        if skipped:
            text = f"{skipped} records were left out since the task started (errors.tolerance=all)"
            self._context.report_finding("errant records", text, count=skipped, harms=False)

    # -- on the thread ----------------------------------------------------------------------------

    def _transform_all(self, fetched: Sequence[Outgoing]) -> _Work:
        work = _Work()
        for source, home, batches in fetched:
            made = _Made(source, home, {home: []})
            work.made.append(made)
            for batch in batches:
                if work.error is None and made.error is None:
                    self._transform(work, made, batch)
                else:
                    work.spent.append(batch)
        return work

    def _transform(self, work: _Work, made: _Made, batch: RecordBatch) -> None:
        """Pack what the chain leaves of one batch; a batch that it leaves as it is stays as it is."""
        home, kept = made.home, _Kept()
        seen, last, unchanged = 0, -1, True
        try:
            for offset, record in _records(batch):
                given = _given(made.source, home, offset, record)
                left = self._chain.apply(given)
                if left is given:
                    kept.add(home, offset, record)
                else:
                    unchanged = False
                    packed = None if left is None else self._packed(left)
                    if packed is None:
                        made.dropped += 1
                    else:
                        self._check_route(home, packed.target)
                        kept.add(packed.target, offset, packed.record)
                seen, last = seen + 1, offset
        except ProtocolError as error:
            made.error = _unreadable(made.source, batch, error)
        except FatalError as error:
            work.error = error
        if unchanged and seen == batch.count:
            made.lanes[home].append(batch)
        else:
            work.spent.append(batch)
            codec = Codec(batch.attributes & CODEC_MASK)
            for target, (offsets, records) in kept.by_target.items():
                made.lanes.setdefault(target, []).append(new_batch(offsets, records, codec))
        if seen:
            counts = {it: len(offsets) for it, (offsets, _) in kept.by_target.items()}
            made.parts.append(Part(counts, seen - counts.get(home, 0), last))

    def _check_route(self, home: TopicPartition, target: TopicPartition) -> None:
        if target != home and not self._chain.routes:
            raise FatalError(
                f"a transform sent a record of {home} to {target}, and each says that it does not",
                remedy="take keeps_partition out of its class",
            )

    def _packed(self, left: SinkRecord) -> _Packed | None:
        """Return the bytes of a record that a transform made, None where ``errors.tolerance`` leaves it out."""
        operation = Operation(Stage.VALUE_CONVERTER, type(self._converters.value).__name__)
        return self._errant.attempt(operation, left, self._pack)

    def _pack(self, left: SinkRecord) -> _Packed:
        if not _is_placed(left.topic, left.partition, left.timestamp_ms):
            raise DataError(
                f"a transform left topic={left.topic!r} partition={left.partition!r} timestamp={left.timestamp_ms!r}",
                remedy="a record needs the name of a topic, a partition and a timestamp",
            )
        encoded = self._converters.encoded(
            SourceRecord(
                source_partition={},
                source_offset={},
                topic=left.topic,
                partition=left.partition,
                key=left.key,
                value=left.value,
                headers=sent_headers(left.headers),
            )
        )
        record = NewRecord(encoded.key, encoded.value, encoded.headers, left.timestamp_ms)
        return _Packed(TopicPartition(left.topic, left.partition), record)


class _Kept:
    """What is left of one batch, by target partition: source offsets and records."""

    def __init__(self) -> None:
        self.by_target: dict[TopicPartition, tuple[list[int], list[NewRecord | Record]]] = {}

    def add(self, target: TopicPartition, offset: int, record: NewRecord | Record) -> None:
        """Add a record behind those of the same target partition."""
        found = self.by_target.get(target)
        if found is None:
            found = self.by_target[target] = [], []
        found[0].append(offset)
        found[1].append(record)


def _records(batch: RecordBatch) -> Iterator[tuple[int, Record]]:
    """Return the records of a batch with their source offsets, which its runs know."""
    offsets = (offset for first, count in batch.runs for offset in range(first, first + count))
    return zip(offsets, decode_batch(memoryview(batch.data)).records, strict=True)


def _given(source: TopicPartition, home: TopicPartition, offset: int, record: Record) -> SinkRecord:
    return SinkRecord(
        home.topic,
        home.partition,
        record.key,
        record.value,
        seen_headers(record.headers),
        record.timestamp,
        offset,
        source.topic,
        source.partition,
    )


def _unreadable(source: TopicPartition, batch: RecordBatch, cause: ProtocolError) -> PartitionError:
    error = PartitionError(
        f"a batch cannot be read, so transforms cannot be applied: {cause}",
        topic=source.topic,
        partition=source.partition,
        offset=batch.base_offset,
        remedy="set the partition's position behind it, or copy it without transforms",
    )
    error.__cause__ = cause
    return error


def _is_placed(topic: object, partition: object, timestamp_ms: object) -> bool:
    named = isinstance(topic, str) and bool(topic)
    return named and type(partition) is int and partition >= 0 and type(timestamp_ms) is int
