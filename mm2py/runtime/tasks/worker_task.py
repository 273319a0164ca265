"""The loop of one source task: poll, send, acknowledge, commit.

Flow: ``task.poll`` -> ``sender.enqueue_all`` -> acknowledgement -> position + ``task.delivered``;
every ``offset.flush.interval.ms`` positions -> store. Back-pressure: no poll without room in
``buffer.memory``; a source partition whose target cannot drain is held on its own, and returns what
was not sent. Without the flow's permit nothing is polled, sent or committed. A paused task polls
nothing; what it has sent is acknowledged and committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mm2py.api.context import PartitionState
from mm2py.api.task import (
    BatchSourceTask,
    CopiedLogs,
    Delivery,
    Outgoing,
    Paced,
    ReadsAgain,
    TakesOver,
)
from mm2py.client.pacing import throttle_note
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.resume import OtherContentsError
from mm2py.client.stall_log import TARGET, StallLog
from mm2py.clock import Clock, or_stop, until_tick_s, wait_or_stop
from mm2py.errors import (
    Mm2pyError,
    OversizedRecordError,
    PartitionError,
    RetriableError,
    TargetMovedError,
)
from mm2py.observability.logging import cause_text, some_of
from mm2py.observability.metrics import PartitionMeter
from mm2py.protocol.record_batch import RecordBatch
from mm2py.runtime.patience import Patience
from mm2py.runtime.tasks.arrivals import Arrivals
from mm2py.runtime.tasks.held_partitions import HeldPartitions
from mm2py.runtime.tasks.lifecycle import Lifecycle, Status
from mm2py.runtime.tasks.offset_committer import (
    LostPositions,
    OffsetCommitter,
    overwrite_late,
)
from mm2py.runtime.tasks.offset_maps import LostCopies, MapPruning
from mm2py.runtime.tasks.own_offsets import OwnTopicOffsets
from mm2py.runtime.tasks.target_sender import SenderFactory
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.runtime.tasks.task_transactions import LEDGER_S, TaskTransactions, TransactionCommits
from mm2py.types import State, TopicPartition

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 2.0
"""How long a cancelled task may take to close its connections."""


FEW_RECORDS: Final = 100
FEW_WAIT_INTERVALS: Final = 5
FEW_WAIT_S: Final = 5.0
"""With few uncommitted records (a crash would copy only those again) positions are written at each
fifth interval, at most this late."""

LAST_COMMIT_S: Final = 0.5
"""Least time for the last commit of a transaction, and between two tries of the last commit without
one."""

SHOWN: Final = 5

THROTTLE: Final = "quota of the target"
WAITS: Final = "waits"
COMMITS: Final = "offset commits"
TAKE_OVER: Final = "positions of what is taken over"
TOLD_AFTER_S: Final = 10.0
"""A start or read that has failed for so long is a finding: the state does not show it."""

FULL_FOR_S: Final = 0.5
"""How long memory may be full before partitions are held; a target that accepts batches frees
memory sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """How a worker treats its tasks (worker and connector properties)."""

    buffer_memory_bytes: int = 32 << 20
    linger_ms: int = 0
    offset_flush_interval_ms: int = 1_000
    graceful_timeout_ms: int = 5_000
    fail_on_partition_failure: bool = False
    target_name: str = "target cluster"
    offsets_topic: str = ""
    """Name of the topic of positions; empty where they are in a file."""


class WorkerTask:
    """One running task; ``start`` launches its loop, ``stop`` ends it in order."""

    def __init__(  # noqa: PLR0913 - one keyword per part of the loop
        self,
        task: BatchSourceTask,
        *,
        context: WorkerTaskContext,
        sender: SenderFactory,
        committer: OffsetCommitter,
        settings: TaskSettings,
        on_status: Callable[[Status], None],
        acknowledged: Callable[[TopicPartition, int], None] | None = None,
        on_topic: Callable[[str], None] | None = None,
        permit: Permit = UNLIMITED,
        transactions: TaskTransactions | None = None,
        own_offsets: OwnTopicOffsets | None = None,
    ) -> None:
        self._task, self._context = task, context
        self._committer, self._settings = committer, settings
        self._clock: Clock = context.clock
        self._lifecycle = Lifecycle("task", on_status)
        # A record task keeps its own order of acknowledgements; a batch task's is the Sender's.
        self._acknowledged = acknowledged or committer.acknowledged
        self._maps = context.maps
        self._sender = sender(
            self._delivered,
            self._refused,
            self._stalled,
            self._doubted,
            context.maps.copied,
        )
        self._sender.watch_throttles(self._show_throttles)
        self._transactions, self._own_offsets = transactions, own_offsets
        # Of the second ones a lane begins without a batch: a loss waits for what is on the target.
        self._uncommitted, self._asked = list[Delivery](), list[TopicPartition]()
        # In a transaction readers see records later, after its commit.
        self._arrivals = Arrivals(
            self._report,
            by_itself=transactions is None,
            now_ms=self._clock.now_ms if transactions is None else None,
        )
        self._maps.note_arrived = self._note_arrived
        self._meters: dict[TopicPartition, PartitionMeter] = {}
        self._sources: dict[TopicPartition, set[TopicPartition]] = {}
        """By target partition; several share one only with transforms."""
        self._holds = HeldPartitions(
            task,
            self._sender,
            settings.buffer_memory_bytes,
            lambda: context.partitions,
            context.clock,
        )
        # Known to the plug-in before ``start``, which sizes its fetches by them.
        context.buffer_bytes, context.linger_ms, context.commit_s = (
            settings.buffer_memory_bytes,
            settings.linger_ms,
            0.0 if transactions is None else transactions.interval_s,
        )
        self._held = self._holds.full
        self._topics: set[str] = set()
        self._on_topic = on_topic
        # What the task still returns of the second ones, all of which have failed, is dropped.
        self._failed, self._unsent = set[TopicPartition](), set[TopicPartition]()
        self._stalls = StallLog(TARGET, self._clock)
        self._permit = permit
        self._paused = self._told_wait = self._starved = self._polls = False
        self._room = asyncio.Event()
        self._end_watch = permit.watch(self._room.set)
        self._stop = asyncio.Event()
        self._error: Exception | None = None
        self._commits_at_failure = False
        """Whether it ends because of partitions: what precedes their failures is as good as
        ever."""
        self._deadline = float("inf")
        self._running: asyncio.Task[None] | None = None
        # What is being taken over, beside the polls.
        self._taken: Collection[TopicPartition] = ()
        self._taking: asyncio.Task[None] | None = None
        self._commits: TransactionCommits | None = None
        if transactions is not None:
            # A producer that was fenced, or a transaction that was aborted, cannot be repaired
            # within the task.
            transactions.transactions.on_broken(self._crash)
            self._commits = TransactionCommits(
                transactions,
                self._commit_transaction,
                lambda: (
                    permit.valid
                    and bool(self._arrivals.waiting or committer.waits or context.maps.changed)
                ),
                idle_s=settings.offset_flush_interval_ms / 1000,
                clock=self._clock,
                report=partial(context.report_finding, COMMITS),
            )
        context.listen(self)

    @property
    def status(self) -> Status:
        return self._lifecycle.status

    def start(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=self._context.task_id)

    async def stop(self, timeout_s: float) -> None:
        """Stop polling, flush, commit and close; what is left after ``timeout_s`` is cut off."""
        running = self._running
        if running is None or running.done():
            return
        self._deadline = self._clock.monotonic() + timeout_s
        self._stop.set()
        self._room.set()
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
        if not done:
            log.warning(
                "task did not stop in time and is cut off timeout_s=%.1f; what is not committed"
                " will be copied again",
                timeout_s,
            )
            running.cancel()
            # ``wait``, not ``wait_for``: a plug-in that swallows the cancel must not hold up the
            # worker.
            done, _ = await asyncio.wait({running}, timeout=CLOSE_TIMEOUT_S)
            if not done:  # the plug-in goes on: it must write nothing beside its successor
                await self._sender.close()

    def pause(self, *, paused: bool) -> None:
        """Stop polling, or continue; a task paused before its start opens nothing until then
        (Connect)."""
        self._paused = paused
        self._holds.pause_all(paused=paused)
        if self._polls:
            self._look_at_holds()
        self._room.set()

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self._holds.pause(partitions)
        if self._polls:
            self._look_at_holds()

    def pace(self, bytes_per_s: int) -> None:
        if isinstance(self._task, Paced):
            self._task.pace(bytes_per_s)

    def keep_out(self, partitions: frozenset[TopicPartition]) -> bool:
        """Copy none of these source partitions; return False where the task must be started again
        for that.

        A partition that is not kept out any more is taken over.
        """
        context = self._context
        # Partitions that were read have batches in flight, which only a stop of the task flushes
        # and commits in order.
        copied = (context.known - context.left_out).union(self._taken)
        context.kept_out = partitions
        self._room.set()
        return not (copied & partitions)

    def partition_failed(self, partition: TopicPartition, error: Exception) -> None:
        """Handle a failure that the task reported; batches it returned before may still be
        acknowledged."""
        # What precedes the failure counts: reported before the partition is frozen.
        self._arrivals.flush()
        self._after_failure(partition, error)

    def partition_covered(self, partition: TopicPartition, offset: int) -> None:
        """Commit a position after the last record: the task has nothing in flight before it."""
        if partition not in self._failed:
            self._maps.cover(partition, offset)
            self._committer.acknowledged(partition, offset)

    def gap_refused(self, partition: TopicPartition, error: Exception) -> None:
        """Stop a partition that lost records, as ``gap.policy=fail`` asks."""
        self._arrivals.flush()
        if self._context.note_state(partition, PartitionState.FAILED, error):
            self._failed.add(partition)
            self._unsent.add(partition)
            self._task.failed(partition, error)
            self._after_failure(partition, error)

    def gap_asked(self, partition: TopicPartition) -> None:
        """Begin the lane of a partition, which looks at the target's log."""
        self._asked.append(partition)

    # ---------------------------------------------------------------- the loop

    async def _run(self) -> None:
        commits: asyncio.Task[None] | None = None
        try:
            try:
                # As Java's ``WorkerTask.doRun``: a task paused before its start opens nothing until
                # it is resumed.
                await self._while_paused()
                if await self._start():
                    self._polls = True
                    self._look_at_holds()
                    self._lifecycle.to(State.RUNNING)
                    commits = asyncio.create_task(self._commit_and_look())
                    await self._loop()
            except Exception as error:  # noqa: BLE001 - the worker loop's edge: fails the task visibly
                self._lifecycle.to(State.FAILED, error)
            # Before the drain: a periodic commit beside the last one would take its positions.
            for beside in (commits, self._taking):
                if beside is not None:
                    beside.cancel()
            # A task that never started has nothing to write, and its sender may have no producer id
            # yet.
            if commits is not None:
                await self._drain()
        # Also at a cancel in ``stop``, which arrives wherever the code above awaits.
        finally:
            for beside in (commits, self._taking):
                if beside is not None:
                    beside.cancel()
            await self._close()
            # FAILED stays visible until the task is restarted (``Lifecycle``, rule 4).
            if self.status.state is not State.FAILED:
                self._lifecycle.to(State.UNASSIGNED)

    async def _start(self) -> bool:
        patience = Patience(self._clock, self._settings.target_name, self._stop)
        start = self._sender.start if self._transactions is None else self._start_transactions
        if not await self._patiently(start, patience):
            return False
        patience = Patience(self._clock, "the task's start", self._stop)
        return await self._patiently(self._task.start, patience)

    async def _start_transactions(self) -> None:
        """Start transactions, or return at a stop: fencing waits for the herder, which may itself
        wait for this task to end."""
        assert self._transactions is not None
        self._context.report_finding("transactions", self._transactions.remark)
        # Without this the herder waits for this task's end, and this task for the herder's fencing.
        await or_stop(self._transactions.start(), self._stop)

    async def _patiently(self, attempt: Callable[[], Awaitable[None]], patience: Patience) -> bool:
        while not self._stop.is_set():
            try:
                await attempt()
            except RetriableError as error:
                await self._try_later(patience, error)
            else:
                self._succeeded(patience)
                return True
        return False

    async def _try_later(self, patience: Patience, error: RetriableError) -> None:
        """Wait until the next attempt; a lasting failure is reported with its cause."""
        await patience.wait(error)
        lasting = patience.lasting(TOLD_AFTER_S)
        if lasting:
            self._told_wait = True
            self._context.report_finding(WAITS, f"{lasting}: {error}")

    def _succeeded(self, patience: Patience) -> None:
        patience.succeeded()
        if self._told_wait:
            self._told_wait = False
            self._context.report_finding(WAITS, "")

    async def _loop(self) -> None:
        poll, room_bytes = self._poll, self._holds.room_bytes
        patience = Patience(self._clock, "the source", self._stop)
        while not self._stop.is_set():
            # Errors of callbacks (Sender, permit, plug-in) are raised here: a callback has no
            # caller that could handle them.
            if self._error is not None:
                raise self._error
            if self._paused:
                self._lifecycle.to(await self._while_paused())
                continue
            if self._context.left_out or self._asked or self._holds.resting:
                self._begin_waiting()
            budget = room_bytes()
            # ``was_valid`` is the cached answer: the exact one costs a clock read per turn, and the
            # Sender checks before each request.
            if not budget or not self._permit.was_valid:
                await self._wait_for_room()
                continue
            try:
                outgoing = await poll(budget)
            except RetriableError as error:
                await self._try_later(patience, error)
                continue
            if patience.failures:
                self._succeeded(patience)
            if outgoing:
                self._send(outgoing)
            # What the Sender has may keep all receive buffers, with room by its own count.
            elif self._held and isinstance(self._task, ReadsAgain) and self._task.is_short:
                self._hold_above_share()
            del outgoing  # a reference kept during the next poll would pin receive buffers that are acknowledged meanwhile

    def _poll(self, budget_bytes: int) -> Awaitable[Sequence[Outgoing]]:
        return self._task.poll(budget_bytes)

    def _begin_waiting(self) -> None:
        if self._context.left_out:
            self._take_over()
        self._holds.read_rested()
        asked, self._asked = self._asked, []
        if asked and isinstance(self._task, CopiedLogs):
            self._send([Outgoing(it, self._task.target_of(it), ()) for it in asked])

    def _take_over(self) -> None:
        """Start to copy partitions that were kept out until now; their positions may not be
        readable for long, which holds no other up."""
        returned = self._context.left_out - self._context.kept_out
        is_idle = self._taking is None or self._taking.done()
        if returned and is_idle and self._permit.was_valid and isinstance(self._task, TakesOver):
            # Noted before the task is created, so that ``keep_out`` in between sees them as copied.
            self._taken = returned
            take = partial(self._take, self._task, returned)
            self._taking = asyncio.create_task(self._run_visibly(take))

    async def _take(self, task: TakesOver, returned: Collection[TopicPartition]) -> None:
        patience = Patience(self._clock, TAKE_OVER, self._stop)
        try:
            while not await self._is_taken(task, returned, patience):
                # Reserved again while their positions were being read: leave them to the lane.
                if self._stop.is_set() or self._context.kept_out.intersection(returned):
                    return
        finally:
            # Before ``taken_over``, without an await between: no moment in which they are neither.
            self._taken = ()
            self._context.report_finding(TAKE_OVER, "")
        self._context.taken_over(returned)
        # The task did not have those yet that were paused meanwhile.
        self._task.hold([it for it in returned if it in self._holds.paused])
        self._look_at_holds()

    async def _is_taken(
        self, task: TakesOver, returned: Collection[TopicPartition], patience: Patience
    ) -> bool:
        try:
            await task.take_over(returned)
        except RetriableError as error:
            await patience.wait(error)
            if patience.lasting(TOLD_AFTER_S):
                self._context.report_finding(TAKE_OVER, str(error))
            return False
        patience.succeeded()
        return True

    async def _while_paused(self) -> State:
        while self._paused and self._error is None and not self._stop.is_set():
            self._lifecycle.to(State.PAUSED)
            self._room.clear()
            await self._room.wait()
        return State.PAUSED if self._paused else State.RUNNING

    async def _wait_for_room(self) -> None:
        # Lets ``_delivered`` check for room; while there is plenty, acknowledgements do not pay for
        # the check.
        self._starved = True
        self._room.clear()
        # Checked again after clear(): an acknowledgement between the two would be missed.
        if (
            not self._has_room()
            and not self._stop.is_set()
            and not await wait_or_stop(self._clock, FULL_FOR_S, self._room)
            and self._permit.was_valid
        ):
            self._hold_above_share()
        self._starved = False

    def _hold_above_share(self) -> None:
        """Hold partitions that fill the memory; those whose target takes nothing return their
        batches, so that the others continue (ARCHITECTURE, invariant 16)."""
        self._holds.hold_above_share(
            (source, target) for target, them in self._sources.items() for source in them
        )

    def _has_room(self) -> bool:
        if self._error is not None:
            return True
        return self._paused or (self._permit.was_valid and self._holds.room_bytes() > 0)

    # ---------------------------------------------------------------- hot path, both ways

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        if self._unsent:
            outgoing = self._without_failed(outgoing)
        meters, now_ms = self._meters, self._clock.now_ms()
        for source, _, batches in outgoing:
            if source not in meters:
                self._open_meters(outgoing)
            if batches and (newest_ms := batches[-1].max_timestamp) >= 0:
                meters[source].age.note(now_ms - newest_ms, now_ms)
        self._sender.enqueue_all(outgoing)
        # After all were handed over: each backlog is judged with the others in it.
        self._holds.hold_full(outgoing)

    def _without_failed(self, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Leave out what the task had ready before it learned of a failure; its buffers go back to
        the pool."""
        kept: list[Outgoing] = []
        for it in outgoing:
            if it.source not in self._unsent:
                kept.append(it)
                continue
            for batch in it.batches:
                if batch.lease is not None:
                    batch.lease.release()
        return kept

    def _delivered(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        self._arrivals.add(source, target, batch, base_offset)
        if self._held:
            self._holds.drained(source, target)
        if self._starved and self._has_room():
            self._room.set()

    def _doubted(self, source: TopicPartition, first: int, last: int, error: Exception) -> None:
        # Without transforms the contents are the source's: it has lost those records.
        if not isinstance(error, OtherContentsError):
            self._context.report_doubt(source, first, last, error)

    def _note_arrived(self) -> None:
        self._arrivals.flush()

    def _report(self, delivery: Delivery) -> None:
        source, runs, passed = delivery.source, delivery.runs, delivery.passed
        last, landed = delivery.last, self._maps.of(source)
        # The map first: a position that is taken later must never be ahead of it (invariant 4).
        for run in runs:
            loss = landed.add(*run)
            if loss is not None:
                self._context.report_target_loss(source, loss)
        if passed:
            landed.passed(passed, last + 1)
        self._acknowledged(source, last)
        # KIP-618: ``commitRecord`` is called after the transaction, never for a record that may be
        # aborted.
        if self._commits is not None:
            self._uncommitted.append(delivery)
        else:
            self._landed(delivery)

    def _landed(self, delivery: Delivery) -> None:
        """Count and report records that readers of the target can see: in a transaction, only after
        its commit."""
        source, runs, newest = delivery.source, delivery.runs, delivery.max_timestamp_ms
        meter = self._meters[source]
        if runs and delivery.target.topic not in self._topics:
            self._first_record(delivery.target.topic)
        for run in runs:
            meter.records += run.records
        meter.bytes += delivery.size_bytes
        if newest >= 0:
            at_ms = delivery.at_ms
            meter.note_copied(newest, at_ms if at_ms >= 0 else self._clock.now_ms())
        try:
            self._task.delivered(delivery)
        except Exception as error:  # noqa: BLE001 - plug-in code at the worker's edge: fails the task
            self._crash(error)

    def _first_record(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics.add(topic)
            if self._on_topic is not None:
                self._on_topic(topic)

    def _look_at_holds(self) -> None:
        before = set(self._holds.paused)
        self._holds.look(self._context.known)
        for source in before.symmetric_difference(self._holds.paused):
            self._context.meter(source).paused = source in self._holds.paused

    # ---------------------------------------------------------------- failures

    def _refused(self, source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        """Handle a partition that the Sender has failed: no later record of it may count as
        copied."""
        self._arrivals.flush()
        self._committer.failed(source)
        self._failed.add(source)
        self._unsent.add(source)
        self._holds.forget(source)
        self._stalls.forget(target)
        # The lane no longer knows what is in the log; only a start reads its tail.
        if isinstance(error, TargetMovedError):
            self._crash(error)  # the next start finds the position in the target's log
            return
        if not isinstance(error, Mm2pyError):
            error = PartitionError(
                f"cannot be written to {target}: {error}",
                topic=source.topic,
                partition=source.partition,
            )
        if isinstance(error, PartitionError) and self._context.restart not in error.remedy:
            remedy, then = error.remedy or "remove the cause", self._context.retry_note(error)
            error.remedy = (
                f"{remedy}, {then or 'then'}: {self._context.restart} --topic {error.topic}"
            )
        # False where it had failed already: one failure, one report.
        if self._context.note_state(source, PartitionState.FAILED, error):
            self._context.report_failure(source, error)
            if isinstance(error, OversizedRecordError):
                self._context.report_oversized(source, target, error)
            self._task.failed(source, error)
            self._after_failure(source, error)

    def _stalled(self, target: TopicPartition, error: Exception | None) -> None:
        """Note that the target rejects a partition for now and the Sender retries, or that it
        accepts it again (``error`` is None)."""
        if error is None:
            self._stalls.moving(target)
        else:
            self._stalls.stalled(target, error)
            # The loop may wait for memory that only this partition's return frees.
            self._room.set()
        for source in self._sources.get(target, set()) - self._failed:
            self._show_stall(source, target, error)

    def _show_stall(
        self, source: TopicPartition, target: TopicPartition, error: Exception | None
    ) -> None:
        self._context.note_refusal(source, error)
        if error is not None:
            self._holds.hold_stalled(source, target)

    def _show_throttles(self, left_s: Mapping[int, float]) -> None:
        cluster = self._settings.target_name
        text = throttle_note("what is written", cluster, left_s, "producer_byte_rate")
        self._context.report_finding(THROTTLE, text, harms=False)

    def _after_failure(self, source: TopicPartition, error: Exception) -> None:
        self._room.set()
        # Java fails the task at the first record that is refused (``errors.tolerance=none``); here
        # only the last partition does.
        if not self._settings.fail_on_partition_failure:
            if self._context.failed < self._context.partitions:
                return
            error = PartitionError(
                f"all {self._context.partitions} partitions of the task failed, the last one"
                f" because: {error}",
                topic=source.topic,
                partition=source.partition,
                remedy=f"cure the causes above, then: {self._context.restart}",
            )
        self._commits_at_failure = self._error is None
        self._crash(error)

    def _crash(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._room.set()

    # ---------------------------------------------------------------- positions and the end

    async def _commit_and_look(self) -> None:
        """Store positions, and look after the offset maps of tasks that have them."""
        maps, task, sender = self._maps, self._task, self._sender
        permit, clock = self._permit, self._clock
        # One of two clocks: the flush interval, or the transaction's.
        runs = [self._commit_positions if self._commits is None else self._commits.run]
        # Only a mirror's partitions have maps; a record task of a plug-in has neither.
        if isinstance(task, CopiedLogs):
            found, committer = self._context.stored, self._committer
            if maps.kept is not None:
                runs.append(MapPruning(maps, task, sender, permit=permit, clock=clock).run)
                overwrite = partial(overwrite_late, committer, maps, found, clock=clock)
                runs.append(partial(overwrite, lambda: self._context.left_out))
            if maps.copied is not None:
                runs.append(LostCopies(maps, task, sender, permit=permit, clock=clock).run)
            if topic := self._settings.offsets_topic:
                runs.append(LostPositions(topic, sender, found, committer, clock=clock).run)
        await asyncio.gather(*map(self._run_visibly, runs))

    async def _run_visibly(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - the worker's edge: fails the task visibly
            self._crash(error)

    async def _commit_positions(self) -> None:
        interval_s = self._settings.offset_flush_interval_ms / 1000
        longest_s = max(interval_s, min(FEW_WAIT_INTERVALS * interval_s, FEW_WAIT_S))
        committed_at = self._clock.monotonic()
        while not await wait_or_stop(
            self._clock, until_tick_s(self._clock, interval_s), self._stop
        ):
            late_s = self._clock.monotonic() - committed_at
            if not self._permit.valid or (
                # Half an interval of tolerance: ticks are not exact.
                late_s < longest_s - interval_s / 2 and self._committer.has_few(FEW_RECORDS)
            ):
                continue
            await self._commit()
            committed_at = self._clock.monotonic()

    async def _commit(self) -> bool:
        """Store positions; False where that failed, and they stay pending."""
        self._arrivals.flush()
        if not await self._committer.commit():
            return False
        await self._commit_task()
        return True

    async def _commit_transaction(self) -> None:
        """Commit what is acknowledged of the open transaction, with its positions."""
        assert self._transactions is not None
        # The Produce requests first: EndTxn with a batch in flight would leave its outcome open.
        await self._settle(self._transactions)
        # Nothing may be committed without its position, and positions wait for the ledger.
        # (5) The ledger is on its own producer, outside of the transaction.
        while not await self._context.flush_events(LEDGER_S):
            if self._error is not None:
                raise self._error
        # After ``settle``: its acknowledgements belong to this commit, what comes later does not.
        self._arrivals.flush()
        landed, self._uncommitted = self._uncommitted, []
        # With transactions this adds maps and positions and ends the transaction; the next line
        # ends one that has no position.
        await self._committer.commit()
        await self._transactions.commit()
        # Only now can readers see the records (2).
        for delivery in landed:
            self._landed(delivery)
        await self._commit_task()

    async def _settle(self, parts: TaskTransactions) -> None:
        await parts.transactions.settle()

    async def _commit_task(self) -> None:
        try:
            await self._task.commit()
        except Exception as error:  # noqa: BLE001 - a plug-in's own code
            # As in Connect this is only logged: the positions are stored already.
            log.warning("task commit failed cause=%s", cause_text(error))

    async def _drain(self) -> None:
        try:
            # Without a permit no position may be written: there is nothing to wait for.
            # The partitions may have another owner, whose positions these would set back.
            if self._permit.valid:
                await self._write_last()
        finally:  # also where a target that is silent kept it until it was cut off
            if self._commits is None and self._committer.pending:
                log.warning(
                    "positions are not stored partitions=%s; the next start looks for what was "
                    "copied after the stored ones",
                    some_of([str(it) for it in sorted(self._committer.pending)], SHOWN),
                )

    async def _write_last(self) -> None:
        # A task that failed by itself has no deadline yet: Connect's graceful time bounds it too.
        graceful_s = self._settings.graceful_timeout_ms / 1000
        remaining = max(0.0, min(self._deadline - self._clock.monotonic(), graceful_s))
        if (
            self._commits is not None
            and self._lifecycle.status.state is State.FAILED
            and not self._commits_at_failure
        ):
            return  # as in Connect: the transaction is aborted, and its records are copied again
        until_s = self._clock.monotonic() + remaining
        # Opening a lane reads the target's log, for which there is no time at the end; such batches
        # were never sent.
        self._sender.drop_unopened()
        # A fifth of the time is kept for the last commit.
        is_flushed = await self._sender.flush(remaining * 0.8)
        if not is_flushed:
            log.warning(
                "not everything was acknowledged before the end bytes=%d; it will be copied again",
                self._sender.buffered_bytes,
            )
        # Positions after a lost range wait for its ledger record (ARCHITECTURE, invariant 7).
        # Before the positions, not beside them.
        await self._context.flush_events(remaining * 0.1)
        try:
            if self._commits is None:
                await self._store_last(until_s)
                # Else the next start would take its own last position for one that was set by hand.
                await self._maps.settle(self._context.known - self._failed if is_flushed else ())
            else:
                await self._commits.finish(max(remaining * 0.2, LAST_COMMIT_S))
        except Exception as error:  # noqa: BLE001 - the worker's edge: the task ends here anyway
            log.warning("last commit failed cause=%s", cause_text(error))

    async def _store_last(self, until_s: float) -> None:
        """Store the last positions, for as long as the stop may take."""
        while not await self._commit():
            if self._clock.monotonic() + LAST_COMMIT_S >= until_s or not self._permit.valid:
                return
            await self._clock.sleep(LAST_COMMIT_S)

    async def _close(self) -> None:
        closes: list[Callable[[], Awaitable[None]]] = [self._task.stop, self._sender.close]
        # The commit first: it uses the sender and the writer that are closed after it.
        if self._commits is not None:
            closes.insert(0, self._commits.close)
        if self._transactions is not None:
            closes.append(self._transactions.close)
        if self._own_offsets is not None:
            closes.append(self._own_offsets.close)
        for close in closes:
            try:
                await close()
            # A cancel in one close must not leave the other sockets open.
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the others are closed too
                log.warning("closing a task's part failed cause=%s", cause_text(error))
        self._end_watch()
        self._arrivals.close()
        self._stalls.close()
        self._context.close()

    def _open_meters(self, outgoing: Sequence[Outgoing]) -> None:
        """Open the meters of new partitions; a record task may return thousands at once."""
        partitions = self._context.known
        for source, target, _ in outgoing:
            if source in self._meters:
                continue  # also of what transforms sent to another target partition
            meter = self._context.meter(source)
            meter.target = target
            self._meters[source] = meter
            self._sources.setdefault(target, set()).add(source)
            if self._transactions is not None:
                self._transactions.check_target(target.topic)
            self._context.seen(source)
        if not partitions.issuperset(source for source, _, _ in outgoing):
            # A task that did not ask for its positions: they are paused as soon as they are known.
            self._look_at_holds()
