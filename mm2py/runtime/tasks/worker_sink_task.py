"""One running sink task: its thread, its state and its context.

Flow: ``start`` -> a thread with the ``SinkLoop`` -> states and progress come back to the event loop
-> status, meters. The thread is a daemon: a plug-in that never returns ends with the process, which
runs this task alone.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextvars import copy_context
from typing import Final, final

from mm2py.api.context import EventKind, EventSink, LossEvent, PartitionState, SourceGap
from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock, set_within
from mm2py.config.framework import LossPolicies
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.observability.logging import cause_text
from mm2py.observability.metrics import UNKNOWN, Finding, FlowMeter
from mm2py.runtime.patience import attempt
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.lifecycle import Lifecycle, Status
from mm2py.runtime.tasks.sink_loop import (
    STANDSTILL_S,
    ConsumerFactory,
    Prepare,
    SinkLoop,
    SinkObserver,
    SinkProgress,
    SinkSettings,
)
from mm2py.runtime.tasks.task_context import NoLedger, log_gap, policy_of
from mm2py.types import State, TopicPartition

log = logging.getLogger(__name__)

LEDGER_S: Final = 12.0
"""Longer than the worker waits for its ledger to be read."""
WRITTEN_S: Final = 0.2
"""How long a commit waits for the ledger; then those positions wait for the next one."""


@final
class WorkerSinkContext(SinkTaskContext):
    """Implements ``SinkTaskContext``; ``belong_to`` sets the loop once it exists."""

    def __init__(self, task_id: str, clock: Clock, errant: ErrantRecords) -> None:
        self._task_id, self._clock, self._errant = task_id, clock, errant
        self._loop: SinkLoop | None = None

    def belong_to(self, loop: SinkLoop) -> None:
        self._loop = loop

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def task_id(self) -> str:
        return self._task_id

    @property
    def assignment(self) -> Collection[TopicPartition]:
        return frozenset(self._looped.owned)

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._looped.rewind(offsets)

    def hold(self, partitions: Collection[TopicPartition], cause: str = "") -> None:
        self._looped.hold(partitions, cause)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._looped.release(partitions)

    def retry_after(self, delay_ms: int) -> None:
        self._looped.retry_after(delay_ms)

    def request_commit(self) -> None:
        self._looped.request_commit()

    def report(self, record: SinkRecord, error: Exception) -> None:
        self._errant.put_failed(record, error)

    @property
    def _looped(self) -> SinkLoop:
        if self._loop is None:
            raise FatalError("the context of a sink task is used before the task starts")
        return self._loop


@final
class WorkerSinkTask(SinkObserver):
    """Runs one sink task; the same face as ``WorkerTask`` for its host.

    Args:
        context: lent to the task already.
        errant: closed after the task, as what ``end_prepare`` ends.
        on_topic: called at the first record of each topic that the task reads (Connect's active
            topics).
        events: the loss ledger, None where the task's records are not copies.
    """

    def __init__(  # noqa: PLR0913 - one keyword per part of the task
        self,
        task: SinkTask,
        consumer: ConsumerFactory,
        *,
        context: WorkerSinkContext,
        settings: SinkSettings,
        errant: ErrantRecords,
        prepare: Prepare | None,
        end_prepare: Callable[[], None],
        meter: FlowMeter,
        on_status: Callable[[Status], None],
        on_topic: Callable[[str], None],
        events: EventSink | None = None,
        permit: Permit = UNLIMITED,
    ) -> None:
        self._name, self._clock = context.task_id, context.clock
        self._loop = SinkLoop(
            task,
            consumer,
            settings,
            self,
            clock=context.clock,
            prepare=prepare,
            settle=errant.flush,
            permit=permit,
        )
        # One event ends the loop and its retries.
        errant.stopping = self._loop.stopping
        context.belong_to(self._loop)
        self._errant, self._meter, self._on_topic = errant, meter, on_topic
        self._ledger = NoLedger() if events is None else events
        self._named: set[TopicPartition] = set()
        """Partitions with losses that are not known to be in the ledger; of the thread."""
        self._end_prepare = end_prepare
        self._silent_s = settings.commit_s + STANDSTILL_S
        self._silence: asyncio.TimerHandle | None = None
        self._lifecycle = Lifecycle("task", on_status)
        self._topics: set[str] = set()
        self._left_out = 0
        self._metered: set[TopicPartition] = set()
        self._events: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stopped, self._done = asyncio.Event(), asyncio.Event()

    @property
    def status(self) -> Status:
        return self._lifecycle.status

    def start(self) -> None:
        if self._events is None:
            self._events = asyncio.get_running_loop()
            self._opening = asyncio.create_task(self._open(), name=self._name)

    async def _open(self) -> None:
        try:
            if not await attempt(
                "the dead letter queue", self._errant.open, self._stopped, self._clock
            ):
                self._ended(None)
                return
        except Mm2pyError as error:
            self._ended(error)
            return
        # Lines of the thread carry the scope of the task.
        # A new thread begins with an empty context; log scopes are context variables.
        body = copy_context().run
        # A daemon thread, not an executor: the interpreter waits for executor threads at exit.
        threading.Thread(target=body, args=(self._run,), name=self._name, daemon=True).start()

    async def stop(self, timeout_s: float) -> None:
        """Put and commit what was read, then leave the group; what is left after ``timeout_s`` is
        cut off."""
        if self._events is None:
            return
        self._stopped.set()
        self._loop.stopping.set()
        if not await set_within(self._done, timeout_s):
            log.warning(
                "task did not stop in time and is cut off timeout_s=%.1f; what is not committed is "
                "read again, and its partitions come back with the end of its process",
                timeout_s,
            )
            self._wait_no_more()
            self._lifecycle.to(State.UNASSIGNED)

    def pause(self, *, paused: bool) -> None:
        """Stop reading, or continue; the task stays in its group."""
        self._loop.paused = paused

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self._loop.user_held = partitions

    def keep_out(self, _partitions: frozenset[TopicPartition]) -> bool:
        """Nothing to do: what a backfill copies is kept from a flow's batch tasks alone."""
        return True

    # ---- the thread

    def _run(self) -> None:
        error: Exception | None = None
        log.info("sink task started pid=%d", os.getpid())
        try:
            self._loop.run()
        except Exception as failure:  # noqa: BLE001 - the thread's edge: fails the task visibly
            error = failure
        # After the task: it may still put records into the dead letter queue while it ends.
        for end in (self._end_prepare, self._errant.close):
            try:
                end()
            except Exception as failure:  # noqa: BLE001 - the thread's edge: the task still ends in order
                log.warning("the task did not end in order cause=%s", cause_text(failure))
        self._tell(self._ended, error)

    def state(self, state: State) -> None:
        self._tell(self._to, state)

    def progress(self, made: Mapping[TopicPartition, SinkProgress]) -> None:
        self._tell(self._measure, made)

    def standstill(self, cause: str) -> None:
        """Show the flow as DEGRADED while nothing is acknowledged."""
        self._tell(self._note_harm, "acknowledgements", cause)

    def lost(self, gap: SourceGap) -> None:
        self._named.add(gap.partition)
        self._tell(self._note_lost, gap)

    def unwritten(self) -> Collection[TopicPartition]:
        if self._named:
            assert self._events is not None
            # Through the event loop, behind ``_note_lost`` of this thread: calls keep their order.
            answer = asyncio.run_coroutine_threadsafe(self._unwritten(), self._events)
            try:
                self._named &= answer.result(2 * WRITTEN_S)
            except TimeoutError:
                # The partitions stay withheld, which only delays their positions.
                answer.cancel()
        return self._named

    def incarnations(self) -> Mapping[TopicPartition, bytes]:
        assert self._events is not None
        answer = asyncio.run_coroutine_threadsafe(self._ledger.incarnations(), self._events)
        try:
            return answer.result(LEDGER_S)
        except TimeoutError:
            answer.cancel()
            raise RetriableError("the loss ledger does not answer") from None

    def began(self, partition: TopicPartition, topic_id: bytes) -> None:
        self._tell(self._ledger.note_incarnation, partition, topic_id)

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        assert self._events is not None
        try:
            # The only way from the thread to the loop; nothing of the loop's objects is touched
            # here.
            self._events.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the event loop is closed: the process ends
            log.info("the event loop is closed already")

    # ---- on the event loop

    def _to(self, state: State) -> None:
        self._lifecycle.to(state)
        if state is State.RUNNING:
            self._heard()

    async def _unwritten(self) -> frozenset[TopicPartition]:
        """Called after ``_note_lost`` of all that was named."""
        await self._ledger.flush(WRITTEN_S)
        return frozenset(self._ledger.unwritten())

    def _note_lost(self, gap: SourceGap) -> None:
        kind = EventKind(gap.cause)
        event = LossEvent(
            kind=kind,
            partition=gap.partition,
            first_offset=gap.first_offset,
            last_offset=gap.last_offset,
            policy=policy_of(LossPolicies(), kind),
            cause=gap.detail,
            task=self._name,
        )
        if self._ledger.report(event):
            log_gap(gap)

    def _heard(self) -> None:
        """Wait for the next progress: a commit that gets no answer, or a plug-in, may hold the
        thread for minutes."""
        self._note_harm("thread", "")
        self._wait_no_more()
        assert self._events is not None
        self._silence = self._events.call_later(self._silent_s, self._note_silence)

    def _wait_no_more(self) -> None:
        if self._silence is not None:
            self._silence.cancel()

    def _note_silence(self) -> None:
        # A lag that nobody updates would look as if the task kept up.
        for partition in self._metered:
            meter = self._meter.partition(partition)
            meter.report_lag(UNKNOWN, meter.newest_ms, self._clock.now_ms())
        self._note_harm(
            "thread",
            f"nothing was heard of the task for {self._silent_s:.0f} s: a call to a broker or to "
            "its plug-in has not returned",
        )

    def _note_harm(self, what: str, text: str) -> None:
        self._meter.note_finding(
            Finding(task=self._name, what=what, text=text, count=1, harms=True)
        )

    def _ended(self, error: Exception | None) -> None:
        self._wait_no_more()
        self._forget(self._metered.copy())
        self._meter.forget_findings(self._name)
        if error is not None:
            self._lifecycle.to(State.FAILED, error)
        else:
            self._lifecycle.to(State.UNASSIGNED)
        self._done.set()

    def _measure(self, made: Mapping[TopicPartition, SinkProgress]) -> None:
        self._heard()
        now_ms = self._clock.now_ms()
        self._forget({it for it in self._metered - made.keys() if it not in self._loop.owned})
        self._note_left_out()
        for partition, progress in made.items():
            meter = self._meter.partition(partition)
            if partition not in self._metered:
                self._metered.add(partition)
                meter.task = self._name
            meter.records += progress.records
            meter.bytes += progress.size_bytes
            meter.paused = self._loop.is_paused(partition)
            meter.cause = progress.held
            meter.state = (PartitionState.HELD if progress.held else PartitionState.RUNNING).value
            # Unknown never replaces unknown: the first known lag starts the figure.
            if progress.lag_records >= 0 or meter.lag_records >= 0:
                meter.report_lag(progress.lag_records, progress.newest_ms, now_ms, progress.end)
            if progress.records and partition.topic not in self._topics:
                self._topics.add(partition.topic)
                self._on_topic(partition.topic)

    def _note_left_out(self) -> None:
        left_out = self._errant.skipped
        if left_out == self._left_out:
            return
        self._left_out = left_out
        text = (
            f"{left_out} records are left out since the task started (errors.tolerance=all), "
            f"{self._errant.kept} sent to the dead letter queue"
        )
        self._meter.note_finding(
            Finding(task=self._name, what="errant records", text=text, count=left_out, harms=False)
        )

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._meter.forget(partition)
            self._metered.discard(partition)
