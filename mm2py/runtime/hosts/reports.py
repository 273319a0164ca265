"""What a task host calls at its worker: states, losses, meters and log lines of its tasks.

Flow: task -> ``LedgerRelay`` -> ``TaskReports`` of the worker -> its ledger -> ``written`` ->
positions may pass; ``FlowMeter`` -> ``MeterRelay`` -> the worker's meters; ``LogRecord`` ->
``PipeLogHandler`` -> ``HostReports.log_line``.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, TypeVar, final

from mm2py.api.context import EventSink, LossEvent
from mm2py.client.connect.broker_errors import BrokerError, errors_of
from mm2py.clock import Clock, set_within
from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.mirror.ledger import ReportedEvents
from mm2py.observability.checkpoint_ages import CheckpointAges
from mm2py.observability.logging import SecretMask, current_scope, log_scope
from mm2py.observability.metrics import (
    Figure,
    Finding,
    FlowMeter,
    Oversized,
    PartitionMeter,
    PartitionSnapshot,
)
from mm2py.runtime.hosts.pipe import LONGEST_LINE, Channel, Failure
from mm2py.runtime.tasks.lifecycle import Status, one_line
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.types import State, TaskId, TopicPartition

log = logging.getLogger(__name__)

LEDGER_WAIT_S: Final = 1.0
"""Longest wait for the whole ledger before its unwritten partitions are named."""

AGES_EVERY: Final = 5
"""Ages change with each record, and few look at them: they are sent with each fifth report."""

_NEVER: Final = (-1, -1)
_T = TypeVar("_T")

ANSWER_WITHIN_S: Final = 10.0
"""The worker itself waits up to 5 s for its ledger to be read."""


@final
class HostReports:
    """What a host calls at its worker, on channel 0.

    Args:
        version: of this program; the host's must be the same.
    """

    def __init__(self, version: str, clock: Clock) -> None:
        self._version, self._clock = version, clock
        self.greeted: Final = asyncio.Event()
        """Set when the host runs, or has ended."""

    def serve(self, channel: Channel) -> None:
        channel.serve(self.started, self.lives, self.broker_errors, self.log_line)

    def started(self, version: str, pid: int) -> None:
        """Note that the host runs; ``ProtocolError``: it is of another version."""
        # A starter spawned after an upgrade in place loads another version than this one.
        if version != self._version:
            raise ProtocolError(f"it is of version {version}, this process of {self._version}")
        log.info("task host started pid=%d", pid)
        self.greeted.set()

    def lives(self) -> None:
        """Sign of life: nothing else was sent for a while."""

    def broker_errors(self, errors: tuple[tuple[BrokerError, int], ...]) -> None:
        """Add what the host's clients counted since its last report."""
        errors_of(self._clock).add_all(errors)

    def log_line(self, level: str, logger: str, scope: str, text: str) -> None:
        """Log a host's line here, under its own scope; the handlers mask it once more."""
        number = logging.getLevelNamesMapping().get(level, logging.INFO)
        target = logging.getLogger(logger)
        if target.isEnabledFor(number):
            inner = scope.strip().removeprefix("[").removesuffix("]")
            with log_scope(*([inner] if inner else [])):
                target.log(number, "%s", text)


@final
class TaskReports:
    """What a flow's tasks on one host call at the worker, on the flow's channel.

    Args:
        reports: where the flow's tasks report to in the worker.
        changed: called when a task changed its state.
    """

    def __init__(self, reports: FlowReports, changed: Callable[[TaskId, Status], None]) -> None:
        self._reports, self._changed = reports, changed

    def serve(self, channel: Channel, scope: str) -> None:
        channel.serve(
            self.status_changed,
            self.measured,
            self.found,
            self.figured,
            self.checkpointed,
            self.outgrown,
            self.topic_used,
            self.happened,
            self.written,
            self.incarnations,
            self.note_incarnation,
            self.fence,
            self.verify,
            scope=scope,
        )

    def status_changed(self, task: TaskId, state: State, failure: Failure | None) -> None:
        """Pass a task's state on; the failure is that of a FAILED one."""
        self._changed(task, Status(state, None if failure is None else failure.error()))

    def measured(
        self, partitions: tuple[PartitionSnapshot, ...], gone: tuple[PartitionSnapshot, ...]
    ) -> None:
        """Take the changed meters; ``gone`` are ended tasks' last counts, from before."""
        self._reports.meter.apply(partitions, gone)

    def found(self, findings: tuple[Finding, ...]) -> None:
        """Take findings that are new, changed or, without a text, withdrawn."""
        for finding in findings:
            self._reports.meter.note_finding(finding)

    def figured(self, figures: tuple[Figure, ...]) -> None:
        """Take figures that are new, changed or, without a value, withdrawn."""
        for figure in figures:
            self._reports.meter.note_figure(figure)

    def checkpointed(self, ages: tuple[CheckpointAges, ...]) -> None:
        """Take how long newer checkpoints took."""
        for each in ages:
            self._reports.meter.checkpoints.take(each)

    def outgrown(self, partition: Oversized) -> None:
        """Watch the limit that a partition failed for; its state was ``measured`` before."""
        if self._reports.meter.on_oversized is not None:
            self._reports.meter.on_oversized(partition)

    def topic_used(self, task: TaskId, topic: str) -> None:
        """Note that the task's first record of a target topic was acknowledged."""
        self._reports.on_topic(task, topic)

    def happened(self, event: LossEvent) -> None:
        """Write an event to the loss ledger; until ``written`` the host holds its positions."""
        self._reports.events.report(event)

    async def written(self) -> tuple[TopicPartition, ...]:
        """Wait for the ledger, 1 s at most; return partitions with unwritten events."""
        await self._reports.events.flush(LEDGER_WAIT_S)
        return tuple(self._reports.events.unwritten())

    async def incarnations(self) -> tuple[tuple[TopicPartition, bytes], ...]:
        """Return which topic id stored positions belong to, where that is known."""
        return tuple((await self._reports.events.incarnations()).items())

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Keep which topic id the stored position of a partition belongs to."""
        self._reports.events.note_incarnation(partition, topic_id)

    async def fence(self, task: TaskId) -> None:
        """Fence the producers of earlier configs of a task's connector."""
        await self._reports.guard.fence(task)

    async def verify(self, task: TaskId, generation: int) -> None:
        """Confirm that a task that has its producer may start."""
        await self._reports.guard.verify(task, generation)


@final
class GuardRelay(StartGuard):
    """Asks the worker.

    Args:
        channel: the flow's, where the worker serves ``TaskReports``.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def fence(self, task: TaskId) -> None:
        await self._channel.ask(TaskReports.fence, task)

    async def verify(self, task: TaskId, generation: int) -> None:
        await self._channel.ask(TaskReports.verify, task, generation)


@final
class LedgerRelay(EventSink):
    """Implements ``EventSink`` of a flow on a host; the worker writes.

    Args:
        channel: the flow's, where the worker serves ``TaskReports``.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reported = ReportedEvents()
        self._events = 0
        self._unwritten: dict[TopicPartition, int] = {}
        """Number of the newest event of each partition that waits for the ledger."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._confirming: asyncio.Task[None] | None = None
        self._noted: dict[TopicPartition, bytes] = {}

    def report(self, event: LossEvent) -> bool:
        """Send an event; False when the same range was reported before."""
        if not self._reported.take(event):
            return False
        self._events += 1
        # Before the event leaves: from here on no position after it is stored.
        self._unwritten[event.partition] = self._events
        self._idle.clear()
        self._channel.post(TaskReports.happened, event)
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm())
        return True

    def unwritten(self) -> Collection[TopicPartition]:
        return self._unwritten

    async def flush(self, timeout_s: float) -> bool:
        return await set_within(self._idle, timeout_s)

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                stored = dict(await self._channel.ask(TaskReports.incarnations))
        except TimeoutError:
            log.warning(
                "the worker did not answer within %.0f s, a recreated topic may go unnoticed",
                ANSWER_WITHIN_S,
            )
            stored = {}
        # Our own notes have arrived before (the channel keeps the order), and a failover may have
        # written a newer id since.
        return self._noted | stored

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        if self._noted.get(partition) != topic_id:
            self._noted[partition] = topic_id
            self._channel.post(TaskReports.note_incarnation, partition, topic_id)

    async def _confirm(self) -> None:
        while self._unwritten:
            # Taken before the question: later events are not part of the answer.
            asked = self._events
            try:
                held_back = frozenset(await self._channel.ask(TaskReports.written))
            except Mm2pyError:
                return  # the worker has closed the flow: its positions stay where they are
            # Events that were reported while the worker waited are not part of its answer.
            self._unwritten = {
                partition: number
                for partition, number in self._unwritten.items()
                if number > asked or partition in held_back
            }
        self._idle.set()


@final
class MeterRelay:
    """Finds what changed in a flow's meters since it was last sent.

    Args:
        meter: the flow's meter in this process.
        channel: the flow's, where the worker serves ``TaskReports``.
    """

    def __init__(self, meter: FlowMeter, clock: Clock, channel: Channel) -> None:
        self._meter = meter
        self._clock = clock
        self._channel = channel
        self._sent: dict[TopicPartition, tuple[object, ...]] = {}
        self._aged: dict[TopicPartition, tuple[int, int]] = {}
        self._turn = 0
        self._found: dict[tuple[str, str], Finding] = {}
        self._figures: dict[tuple[str, str], Figure] = {}
        self._gone: list[PartitionSnapshot] = []
        meter.on_forget = self._forgotten
        meter.on_oversized = self._outgrown

    def _has_aged(self, meter: PartitionMeter) -> bool:
        aged = (meter.age.noted_ms, meter.latency.noted_ms)
        if self._aged.get(meter.source, _NEVER) == aged:
            return False
        self._aged[meter.source] = aged
        return True

    def send(self) -> bool:
        """Send what changed; whether there was anything."""
        now_ms = self._clock.now_ms()
        changed: list[PartitionSnapshot] = []
        ages = not self._turn % AGES_EVERY
        self._turn += 1
        for meter in self._meter.partitions:
            # Times and rates change without an event; the worker computes its own.
            lasting: tuple[object, ...] = (
                meter.records,
                meter.looped,
                meter.conflicts,
                meter.lag_records,
                meter.newest_ms,
                meter.state,
                meter.cause,
                meter.paused,
                meter.target,
                meter.task,
                meter.forecast,
            )
            is_aged = ages and self._has_aged(meter)
            # A thousand idle partitions cost a comparison each, not a message.
            if is_aged or self._sent.get(meter.source) != lasting:
                self._sent[meter.source] = lasting
                changed.append(meter.snapshot(now_ms, ages=is_aged))
        gone, self._gone = self._gone, []
        if changed or gone:
            self._channel.post(TaskReports.measured, tuple(changed), tuple(gone))
        findings = {(it.task, it.what): it for it in self._meter.findings}
        found = _changed(self._found, findings, lambda it: replace(it, text=""))
        if found:
            self._channel.post(TaskReports.found, found)
        figures = {(it.task, it.name): it for it in self._meter.figures}
        figured = _changed(self._figures, figures, lambda it: replace(it, value=None))
        if figured:
            self._channel.post(TaskReports.figured, figured)
        self._found, self._figures = findings, figures
        checkpoints = self._meter.checkpoints.changed() if ages else ()
        if checkpoints:
            self._channel.post(TaskReports.checkpointed, checkpoints)
        return bool(changed or gone or found or figured or checkpoints)

    def _outgrown(self, partition: Oversized) -> None:
        self.send()  # the worker watches only what it knows to be FAILED
        self._channel.post(TaskReports.outgrown, partition)

    def _forgotten(self, meter: PartitionMeter) -> None:
        self._sent.pop(meter.source, None)
        self._aged.pop(meter.source, None)
        if not self._gone:
            # All of a task's partitions in one report, before the answer that it stopped.
            asyncio.get_running_loop().call_soon(self.send)
        self._gone.append(meter.snapshot(self._clock.now_ms()))


def _changed(
    sent: Mapping[tuple[str, str], _T],
    now: Mapping[tuple[str, str], _T],
    withdrawn: Callable[[_T], _T],
) -> tuple[_T, ...]:
    gone = (withdrawn(it) for key, it in sent.items() if key not in now)
    return (*gone, *(it for key, it in now.items() if sent.get(key) != it))


# ---- log lines


@final
class PipeLogHandler(logging.Handler):
    """Sends every log line of the host to the worker.

    Args:
        channel: channel 0, where the worker serves ``HostReports``.
        mask: what must never appear.
    """

    def __init__(self, channel: Channel, mask: SecretMask) -> None:
        super().__init__()
        self._channel = channel
        self._mask = mask

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line; never raises into the code that logs, which may be a plug-in's."""
        try:
            text = record.getMessage()
        except Exception as failure:  # noqa: BLE001 - its arguments are a plug-in's
            text = f"{record.msg!r} cannot be formatted: {type(failure).__name__}: {failure}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            kind = "" if isinstance(error, Mm2pyError) else f"{type(error).__name__}: "
            text = f"{text}: {kind}{one_line(error)}"
        if self._channel.pipe.clogged:
            return  # a frozen worker must not make its hosts grow: the line is dropped
        self._channel.post(
            HostReports.log_line,
            level=record.levelname,
            logger=record.name,
            scope=self._mask.apply(current_scope()),
            # Masked here as well: the line travels through a pipe and another process.
            text=self._mask.apply(text)[:LONGEST_LINE],
        )
