"""A task that copies batches, with transforms: its batches are opened, each record passes the
chain, what is left is packed again.

Flow: ``CopyTask.poll`` -> records -> ``TransformChain`` -> new batches with holes, one lane per
target partition -> ``Outgoing``; what became of each source batch -> ``SourceOrder``. Transforms
see what Java's see: the topic that the replication policy names, and bytes. The copies in that
topic keep their exact offsets, dropped records are holes; records that a transform sends elsewhere
have no offsets that anything translates. The chain runs on a thread of the task's own, since
transforms may block.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.context import PartitionState, TaskContext
from mm2py.api.records import SinkRecord, SourceOffset, SourcePartition, quick_record
from mm2py.api.task import (
    BatchSourceTask,
    CopiedLogs,
    Delivery,
    Outgoing,
    ReadsAgain,
    TakesOver,
)
from mm2py.clock import or_stop
from mm2py.errors import (
    FatalError,
    Mm2pyError,
    PartitionError,
    ProtocolError,
    TransactionAbortedError,
)
from mm2py.observability.logging import cause_text, some_of
from mm2py.protocol.record_batch import CODEC_MASK, Codec, RecordBatch
from mm2py.protocol.records import open_batch, record_body, record_fields
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.converters.registry import RecordConverters
from mm2py.runtime.plugins.transforms.chain import TransformChain, seen_headers
from mm2py.runtime.tasks.arrivals import Part, SourceOrder
from mm2py.runtime.tasks.errant_records import LONG_S, ErrantRecords, Stage
from mm2py.runtime.tasks.record_task import WORK_S, end_work, packed_batch
from mm2py.runtime.tasks.task_transactions import TaskTransactions
from mm2py.runtime.tasks.worker_task import WorkerTask
from mm2py.types import TopicPartition, is_topic_name

log = logging.getLogger(__name__)

SHOWN_TOPICS: Final = 5


class _Packed(NamedTuple):
    """A record's bytes from its key on, and where it goes."""

    target: TopicPartition
    timestamp_ms: int
    body: bytes


class CopyTask(BatchSourceTask, TakesOver, CopiedLogs, Protocol):
    """What is wrapped: a task whose source partitions are logs, each with one target partition
    (``MirrorSourceTask``)."""


@dataclass(slots=True)
class _Made:
    """What transforms made of the batches of one source partition."""

    source: TopicPartition
    home: TopicPartition
    lanes: dict[TopicPartition, list[RecordBatch]]
    parts: list[Part] = field(default_factory=list[Part])
    dropped: int = 0
    error: PartitionError | None = None
    """A batch that cannot be read; no later one was processed."""


@dataclass(slots=True)
class _WorkResult:
    """The result of one turn of the thread."""

    made: list[_Made] = field(default_factory=list[_Made])
    spent: list[RecordBatch] = field(default_factory=list[RecordBatch])
    """Batches whose receive buffers can be released."""
    error: Exception | None = None
    """A record that no later one may overtake (``errors.tolerance=none``)."""


@final
class TransformedTask(BatchSourceTask):
    """Implements ``CopyTask`` over another one.

    Args:
        task: reads the source and follows its positions.
        chain: what each record passes.
        converters: turn what transforms made of keys, values and headers into bytes, where that is
            not bytes.
        errant: ``errors.*``.
        order: learns what became of each source batch.
        is_internal: whether a topic holds the state of mirrors; no record is sent there.
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
        is_internal: Callable[[str], bool],
    ) -> None:
        self._task, self._chain = task, chain
        self._converters, self._errant = converters, errant
        self._order, self._context = order, context
        self._is_internal = is_internal
        self._converted_by = converters.value.java_class
        self._targets: set[TopicPartition] = set()
        """Target partitions that records may be sent to."""
        # One thread: transforms see the records of a partition in order, and need no locks.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transforms")
        self._working: asyncio.Future[_WorkResult] | None = None
        self._in_work: set[TopicPartition] = set()
        self._began_s, self._waits_for = 0.0, ""
        self._error: Exception | None = None
        self._over = False
        self._dropped = 0
        self._routed: dict[str, int] = {}
        self._reported = (0, 0)

    async def start(self) -> None:
        await self._task.start()

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        await self._task.take_over(partitions)

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        # Raised by the poll after the one that returned what precedes it.
        if self._error is not None:
            raise self._error
        if self._working is None:
            fetched = await self._task.poll(budget_bytes)
            # Empty lists open meters; no thread is needed for that.
            if not any(batches for _, _, batches in fetched):
                return fetched
            self._in_work = {source for source, _, _ in fetched}
            self._began_s = self._context.clock.monotonic()
            loop, context = asyncio.get_running_loop(), copy_context()  # the task's name in the log
            self._working = loop.run_in_executor(
                self._thread, lambda: context.run(self._transform_all, fetched)
            )
        working = self._working
        await asyncio.wait({working}, timeout=WORK_S)
        self._report_work(is_over=working.done())
        if not working.done():
            return ()
        self._working, work = None, working.result()
        # What was finished before a record that ends the task is copied, and its position stored.
        self._error = work.error
        return self._taken(work)

    def delivered(self, delivery: Delivery) -> None:
        self._task.delivered(delivery)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self._task.hold(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._task.release(partitions)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        self._task.failed(partition, error)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        return self._task.source_partition(partition)

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        return self._task.source_offset(partition, position)

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return await self._task.log_starts(partitions)

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        """Return the copy's partition, where no transform sends a record elsewhere."""
        return self._task.target_of(partition)

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        """Take back all that waits, where nothing of it has left and no transform sends records
        elsewhere: it is made again."""
        back = self._order.returnable(partition, records)
        is_in_work = self._working is not None and partition in self._in_work
        if (
            back is None
            or is_in_work
            # Records that went to another target may be there already, and would be doubled.
            or self._chain.routes
            or not isinstance(self._task, ReadsAgain)
            or not self._task.read_again(partition, *back)
        ):
            return False
        self._order.give_back(partition)
        return True

    @property
    def is_short(self) -> bool:
        return isinstance(self._task, ReadsAgain) and self._task.is_short

    async def commit(self) -> None:
        """Report what was dropped and sent elsewhere since the task started."""
        self._report()
        await self._task.commit()

    async def stop(self) -> None:
        self._over = True
        self._errant.stopping.set()
        working, self._working = self._working, None
        if working is not None:
            await end_work(working)
        # A transform that hangs must not hang the end of the task; its process ends with the
        # worker.
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._chain.close()
        await self._task.stop()

    # -- on the event loop ------------------------------------------------------------------------

    def _taken(self, work: _WorkResult) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for made in work.made:
            # The partition's own target is first, also without batches: the worker opens its meter
            # with that. Parts are noted after the lanes but before the worker sends: ``handed_out``
            # comes before any ``arrived``.
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
        # Released on the event loop, as all leases are.
        for batch in work.spent:
            if batch.lease is not None:
                batch.lease.release()
        return outgoing

    def _unreadable(self, source: TopicPartition, error: PartitionError) -> None:
        self._task.failed(source, error)
        self._context.partition_state(source, PartitionState.FAILED, error)

    def _report_work(self, *, is_over: bool) -> None:
        """Report what is waited for, where that takes long."""
        text = "" if is_over else self._errant.tried_again
        harms = bool(text)
        if not (is_over or harms) and self._context.clock.monotonic() - self._began_s >= LONG_S:
            text = "transforms have been running for long on one batch of records"
        if text != self._waits_for:
            self._waits_for = text
            self._context.report_finding("transforms at work", text, harms=harms)

    def _report(self) -> None:
        routed, skipped = sum(self._routed.values()), self._errant.skipped
        dropped = max(0, self._dropped - skipped)
        if (dropped, routed) != self._reported:
            self._reported = dropped, routed
            text = f"{dropped} records were dropped since the task started"
            if routed:
                names = some_of(sorted(self._routed), SHOWN_TOPICS)
                text += (
                    f", {routed} are for other topics ({names}): offsets of groups are not "
                    "translated for these, and nothing keeps their settings in step"
                )
            self._context.report_finding("transforms", text, count=dropped + routed, harms=False)
        if skipped:
            text = f"{skipped} records were left out since the task started (errors.tolerance=all)"
            self._context.report_finding("errant records", text, count=skipped, harms=False)

    # -- on the thread ----------------------------------------------------------------------------

    def _transform_all(self, fetched: Sequence[Outgoing]) -> _WorkResult:
        # A partition stands there several times, where several answers of it came.
        work, unreadable = _WorkResult(), set[TopicPartition]()
        for source, home, batches in fetched:
            self._targets.add(home)
            made = _Made(source, home, {home: []})
            work.made.append(made)
            for batch in batches:
                # Later batches of this partition, or of any after a fatal record: their buffers are
                # released unread.
                if work.error is not None or source in unreadable or self._over:
                    work.spent.append(batch)
                    continue
                self._transform(work, made, batch)
                if made.error is not None:
                    unreadable.add(source)
        return work

    def _transform(self, work: _WorkResult, made: _Made, batch: RecordBatch) -> None:
        """Pack what the chain leaves of one batch; unchanged batches are forwarded."""
        home, source, kept = made.home, made.source, _KeptRecords()
        add, apply = kept.add, self._chain.apply
        seen, last, unchanged = 0, -1, True
        try:
            payload, stamps, spans = open_batch(memoryview(batch.data))
            for offset, stamp, span in zip(_offsets(batch), stamps, spans, strict=True):
                if self._over:
                    break  # the result is not needed any more; a slow transform must not keep its process alive
                key, value, headers = record_fields(payload, span)
                seen_by_name = seen_headers(headers) if headers else ()
                fields = *home, key, value, seen_by_name, stamp, offset, *source, None
                given = quick_record(fields)
                left = apply(given)
                # The same object: its bytes are taken as they are, without being encoded again.
                if left is given:
                    add(home, offset, stamp, payload[span.start : span.end])
                else:
                    unchanged = False
                    packed = None if left is None else self._packed(left)
                    if packed is None:
                        made.dropped += 1
                    else:
                        self._check_route(home, packed.target)
                        add(packed.target, offset, packed.timestamp_ms, packed.body)
                seen, last = seen + 1, offset
        except ProtocolError as error:
            made.error = _unreadable(made.source, batch, error)
        except FatalError as error:
            work.error = error
        # The whole batch leaves as it came, compressed and with its receive buffer.
        if unchanged and seen == batch.count:
            made.lanes[home].append(batch)
        else:
            work.spent.append(batch)
            # As the source had compressed it; Java compresses by the producer's
            # ``compression.type``.
            codec = Codec(batch.attributes & CODEC_MASK)
            for target, records in kept.by_target.items():
                made.lanes.setdefault(target, []).append(packed_batch(*records, codec))
        # Of a batch that broke off, the part before the error.
        if seen:
            counts = {it: len(offsets) for it, (offsets, _, _) in kept.by_target.items()}
            made.parts.append(Part(counts, seen - counts.get(home, 0), last, batch.runs[0][0]))

    def _check_route(self, home: TopicPartition, target: TopicPartition) -> None:
        # Positions and the offset map rely on it: without the check a wrong promise would lose
        # records silently.
        if target != home and not self._chain.routes:
            raise FatalError(
                f"a transform sent a record of {home} to {target}, but all declare keeps_partition",
                remedy="take keeps_partition out of its class",
            )

    def _packed(self, left: SinkRecord) -> _Packed | None:
        """Return the bytes of a record that a transform made, None where ``errors.tolerance``
        leaves it out."""
        return self._errant.attempt(Stage.VALUE_CONVERTER, self._converted_by, left, self._pack)

    def _pack(self, left: SinkRecord) -> _Packed:
        target = TopicPartition(left.topic, left.partition)
        if target not in self._targets:
            self._check_target(target)
            self._targets.add(target)
        if type(left.timestamp_ms) is not int:
            raise DataError(
                f"a transform left timestamp={left.timestamp_ms!r}",
                remedy="a record needs a timestamp in ms",
            )
        encoded = self._converters.encoded_parts(left.key, left.value, left.headers)
        return _Packed(target, left.timestamp_ms, record_body(*encoded))

    def _check_target(self, target: TopicPartition) -> None:
        topic, partition = target
        if not _may_exist(*target):
            raise DataError(
                f"a transform left topic={topic!r} partition={partition!r}",
                remedy="a record needs a partition and a topic that may exist: letters, digits, "
                ". _ -, at most 249",
            )
        if self._is_internal(topic):
            raise DataError(
                f"a transform sent it to {topic}, which holds the state of a mirror",
                remedy="let it name another topic",
            )


class _KeptRecords:
    """What is left of one batch, by target partition: source offsets, timestamps and bytes of
    records."""

    def __init__(self) -> None:
        self.by_target: dict[TopicPartition, tuple[list[int], list[int], list[bytes]]] = {}

    def add(self, target: TopicPartition, offset: int, timestamp_ms: int, body: bytes) -> None:
        lists = self.by_target.get(target)
        if lists is None:
            lists = self.by_target[target] = [], [], []
        offsets, stamps, bodies = lists
        offsets.append(offset)
        stamps.append(timestamp_ms)
        bodies.append(body)


def _offsets(batch: RecordBatch) -> Iterator[int]:
    """Return the source offsets of the records of a batch, which its runs know."""
    return (offset for first, count in batch.runs for offset in range(first, first + count))


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


def _may_exist(topic: object, partition: object) -> bool:
    return is_topic_name(topic) and type(partition) is int and partition >= 0


# ---- the loop of such a task


REST_S: Final = 10.0
"""How long a fatal record waits for its predecessors' acknowledgements."""

PART_PAUSE_S: Final = 0.05
"""Interval for re-checking progress and the permit."""


@final
class OrderedWorkerTask(WorkerTask):
    """The loop of a ``TransformedTask``: what differs because records are dropped or sent to other
    target partitions.

    After each hand-over it advances parts without a copy, lets topics that a transform has named be
    created, and holds source partitions that wait for another one's target. ``follow`` comes before
    ``start``.
    """

    _order: SourceOrder
    _sends: asyncio.Event
    """Cleared while a commit waits for the rest of its transaction."""
    _stuck: dict[TopicPartition, Exception]
    """Target partitions that accept nothing now, with the cause."""

    def follow(self, order: SourceOrder) -> None:
        """Set the order in which source batches are reported as done."""
        self._order = order
        order.follow(self._arrivals)
        self._sends = asyncio.Event()
        self._sends.set()
        self._stuck = {}

    def gap_refused(self, partition: TopicPartition, error: Exception) -> None:
        """Send what the chain still has of it: that was read before the gap, and of a topic that is
        gone it cannot be read again."""
        before = partition in self._unsent
        super().gap_refused(partition, error)
        if not before:
            self._unsent.discard(partition)

    async def _poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        try:
            outgoing = await super()._poll(budget_bytes)
        # The positions of what precedes the fatal record are stored first, so that a restart begins
        # at it.
        except FatalError:
            await self._finish()
            raise
        # A commit waits for its transaction to drain: nothing new may join it.
        if not self._sends.is_set():
            await or_stop(self._sends.wait(), self._stop)
        return outgoing

    async def _finish(self) -> None:
        """Store the position before a fatal record, unless the target does not accept the records
        before it."""
        until_s = self._clock.monotonic() + REST_S
        while (
            not (self._order.is_done or self._stop.is_set()) and self._clock.monotonic() < until_s
        ):
            await self._clock.sleep(PART_PAUSE_S)
        if self._commits is None or not self._order.is_done:
            return  # outside of transactions every task commits at its end
        try:
            await self._commits.finish(REST_S)
        except Exception as error:  # noqa: BLE001 - the task ends here anyway, of another cause
            log.warning("last commit failed cause=%s", cause_text(error))

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        super()._send(outgoing)
        routed: set[str] = set()
        for source, target, _ in outgoing:
            sources = self._sources.setdefault(target, set())
            if not sources:
                if self._transactions is not None:
                    self._transactions.check_target(target.topic)
                routed.add(target.topic)
            if source not in sources:
                sources.add(source)
                # The target was refused before this source sent anything there.
                if target in self._stuck:
                    self._show_stall(source, target, self._stuck[target])
            # Parts whose records were all dropped have no acknowledgement that would advance them.
            self._order.advance(source)
        if routed:
            self._sender.let_create(routed)
        for source, target in self._order.overdue():
            self._holds.hold_stalled(source, target)

    def _delivered(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        # Routed records: counted here, since ``_landed`` only sees those of the partition's own
        # target.
        if not self._order.arrived(source, target, batch, base_offset):
            self._first_record(target.topic)
            meter = self._meters[source]
            meter.records += batch.count
            meter.bytes += len(batch.data)
            if batch.max_timestamp >= 0:
                meter.note_copied(batch.max_timestamp, self._clock.now_ms())
        if self._held:
            # Several sources may be held by one target that they share.
            self._holds.drained_at(target)
        if self._starved and self._has_room():
            self._room.set()

    def _doubted(self, source: TopicPartition, first: int, last: int, error: Exception) -> None:
        self._context.report_doubt(source, first, last, error)

    def _note_arrived(self) -> None:
        self._order.pass_on()
        super()._note_arrived()

    def _stalled(self, target: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self._stuck.pop(target, None)
        else:
            self._stuck[target] = error
        super()._stalled(target, error)

    def _show_stall(
        self, source: TopicPartition, target: TopicPartition, error: Exception | None
    ) -> None:
        if error is None:  # it may wait for another one
            waits = (it for it in self._stuck if source in self._sources.get(it, ()))
            target = next(waits, target)
            error = self._stuck.get(target)
        if error is not None and target != self._meters[source].target:
            error = Mm2pyError(
                f"a transform sends records to {target}, which takes none: {error}",
                remedy="where it does not exist create the topic, or add the partition",
            )
        super()._show_stall(source, target, error)

    async def _settle(self, parts: TaskTransactions) -> None:
        """Wait until everything handed over is acknowledged: no position may lie inside of what
        transforms made of one batch.

        What is left where the target takes nothing waits for another transaction, if nothing of it
        arrived in this one.
        """
        self._sends.clear()
        left_out = False
        try:
            # ``settle`` alone would wait for what is sent; parts that are not sent yet belong to
            # the same positions.
            while not parts.transactions.broken and not await self._sender.flush(PART_PAUSE_S):
                if self._error is not None:
                    raise self._error
                if left_out := self._is_only_stuck:
                    break
                await self._clock.sleep(PART_PAUSE_S)
        finally:
            self._sends.set()
        await super()._settle(parts)
        # Something of a part arrived during the last wait: committing would make a half visible.
        if left_out and self._order.is_torn(self._failed):
            raise TransactionAbortedError(
                "the target took a part of what transforms made of one batch, and not the rest: "
                "it is copied again"
            )

    @property
    def _is_only_stuck(self) -> bool:
        left = sum(map(self._sender.backlog_bytes, self._stuck))
        return left == self._sender.buffered_bytes and not self._order.is_torn(self._failed)
