"""The ``TaskHost`` of one flow over child processes.

Flow: worker -> ``ChildTaskHost`` -> a host of the pool -> task; states, meters, losses and topics come back.
A host that ends makes its tasks FAILED; whoever restarts them gets another host.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, RequestTimedOutError
from mm2py.observability.logging import log_scope
from mm2py.runtime.hosts.frames import Message
from mm2py.runtime.hosts.messages import (
    CloseFlow,
    FirstRecord,
    FlowSpec,
    Hold,
    Incarnation,
    IncarnationsAnswer,
    IncarnationsQuestion,
    LeaseUntil,
    LedgerEntry,
    LedgerOk,
    Meters,
    OpenFlow,
    PauseTask,
    Resume,
    StartTask,
    StopTask,
    Suspend,
    TaskStatus,
    ToHost,
)
from mm2py.runtime.hosts.pool import HostLink, HostPool
from mm2py.runtime.hosts.reports import status_of
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import TaskSpec, TaskWatcher
from mm2py.types import State, TaskId, TopicPartition

__all__ = ["ChildTaskHost", "FlowReports"]

log = logging.getLogger(__name__)

CUT_OFF_S: Final = 5.0
"""A host cuts a task off by itself; one that does not say so this long after the deadline is killed."""

LEDGER_LOOK_S: Final = 1.0
LEDGER_PAUSE_S: Final = 0.05

NOT_STARTED: Final = Status(State.UNASSIGNED)


@dataclass(slots=True)
class _Hosted:
    """One task; without a link its host is gone, or never was there."""

    link: HostLink | None = None
    light: bool = False
    status: Status = NOT_STARTED


@final
class ChildTaskHost:
    """Implements ``TaskHost``; see there.

    Args:
        pool: the worker's children.
        spec: the flow.
        watcher: hears of the tasks' states.
        reports: hears of everything else.
        graceful_s: how long a task may take to stop where nobody says.
        own: whether a task gets a host of its own, so that its plug-in cannot disturb others.
        light: whether a task is no reason to start another host.
    """

    def __init__(
        self,
        pool: HostPool,
        spec: FlowSpec,
        watcher: TaskWatcher,
        reports: FlowReports,
        *,
        graceful_s: float,
        clock: Clock,
        own: Callable[[TaskSpec], bool] = lambda _spec: False,
        light: Callable[[TaskSpec], bool] = lambda _spec: False,
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._watcher = watcher
        self._reports = reports
        self._graceful_s = graceful_s
        self._own = own
        self._light = light
        self._clock = clock
        self._tasks: dict[TaskId, _Hosted] = {}
        self._turns: dict[TaskId, asyncio.Lock] = {}
        self._channels: dict[HostLink, int] = {}
        self._suspended = spec.suspended
        self._held: frozenset[TopicPartition] = frozenset()
        self._lease_ends: float | None = None
        self._lease_ms = 0
        self._unwritten: list[tuple[HostLink, LedgerEntry]] = []
        self._work: set[asyncio.Task[None]] = set()

    async def start_task(self, spec: TaskSpec) -> None:
        """Launch a task on the host with the fewest; failures are states."""
        async with self._turn(spec.id):
            await self._end(spec.id, self._graceful_s)
            hosted = self._tasks[spec.id] = _Hosted(light=self._light(spec))
            try:
                link = hosted.link = await self._pool.pick(own=self._own(spec), light=hosted.light)
                channel = await self._channel(link)
                await link.request(channel, lambda number: StartTask(number, spec))
            except Mm2pyError as error:
                self._failed(spec.id, hosted, error)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        """Stop a task in order and forget it."""
        async with self._turn(task):
            await self._end(task, timeout_s)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        """Stop or go on polling; a failed task stays as it is."""
        async with self._turn(task):
            hosted = self._tasks.get(task)
            if hosted is not None and hosted.link in self._channels:
                channel = self._channels[hosted.link]
                try:
                    await hosted.link.request(
                        channel, lambda number: PauseTask(number, task, paused)
                    )
                except Mm2pyError as error:
                    self._failed(task, hosted, error)

    def status(self, task: TaskId) -> Status | None:
        """State of a task."""
        hosted = self._tasks.get(task)
        return None if hosted is None else hosted.status

    def tasks(self) -> tuple[TaskId, ...]:
        """Tasks the host knows."""
        return tuple(self._tasks)

    def suspend(self) -> None:
        """Suspend every task, those that start later included."""
        self._suspended = True
        self._post(Suspend())

    def resume(self) -> None:
        """Let every task go on; who says so has proof of the membership, which is a lease too."""
        self._suspended = False
        if self._lease_ends is not None and self._lease_ends <= self._clock.monotonic():
            self.lease(self._lease_ms)
        self._post(Resume())

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Let every task read all but these."""
        self._held = partitions
        self._post(Hold(partitions))

    def lease(self, valid_ms: int) -> None:
        """Membership is proven for so long; hosts watch it themselves, for this process may freeze."""
        self._lease_ms = valid_ms
        self._lease_ends = self._clock.monotonic() + valid_ms / 1000
        self._post(LeaseUntil(self._lease_ends))

    async def close(self) -> None:
        """Stop all tasks and close the flow on its hosts, which others may use."""
        await asyncio.gather(*(self.stop_task(task, self._graceful_s) for task in self.tasks()))
        channels = dict(self._channels)
        closings = (self._close(link, channel) for link, channel in channels.items())
        await asyncio.gather(*closings)
        for work in self._work:
            work.cancel()

    # ---- HostUser

    def received(self, link: HostLink, message: Message) -> None:
        """Take what a host says about the flow."""
        reports = self._reports
        match message:
            case TaskStatus():
                hosted = self._tasks.get(message.task)
                if hosted is not None and hosted.link is link:
                    hosted.status = status_of(message)
                    self._tell(message.task, hosted.status)
            case Meters():
                reports.meter.apply(message.partitions, message.gone)
            case FirstRecord():
                reports.on_topic(message.task, message.topic)
            case LedgerEntry():
                self._write(link, message)
            case IncarnationsQuestion():
                self._launch(self._answer(link, message.id))
            case Incarnation():
                reports.events.note_incarnation(message.partition, message.topic_id)
            case _:
                log.warning("message is not for a worker type=%s", type(message).__name__)

    def host_ended(self, link: HostLink, error: Mm2pyError) -> None:
        """Its tasks failed; a restart of them takes another host."""
        self._channels.pop(link, None)
        self._unwritten = [waiting for waiting in self._unwritten if waiting[0] is not link]
        for task, hosted in tuple(self._tasks.items()):
            if hosted.link is link:
                hosted.link = None
                self._failed(task, hosted, error)

    # ---- tasks

    def _turn(self, task: TaskId) -> asyncio.Lock:
        return self._turns.setdefault(task, asyncio.Lock())

    async def _end(self, task: TaskId, timeout_s: float) -> None:
        hosted = self._tasks.get(task)
        if hosted is None:
            return
        link = hosted.link
        if link is not None and link in self._channels:
            timeout_ms = round(timeout_s * 1000)
            try:
                await link.request(
                    self._channels[link],
                    lambda number: StopTask(number, task, timeout_ms),
                    timeout_s=timeout_s + CUT_OFF_S,
                )
            except RequestTimedOutError as error:
                # Whether it still copies is unknown, and somebody else may get its partitions.
                link.kill(str(error))
                await link.gone()
            except Mm2pyError as error:
                log.warning("task was not stopped in order task=%s cause=%s", task, error)
        if link is not None:
            self._pool.release(link, light=hosted.light)
        self._reports.meter.forget_task(str(task))
        del self._tasks[task]

    def _failed(self, task: TaskId, hosted: _Hosted, error: Mm2pyError) -> None:
        self._reports.meter.forget_task(str(task))
        if hosted.status.state is not State.FAILED:
            hosted.status = Status(State.FAILED, error)
            self._tell(task, hosted.status)

    def _tell(self, task: TaskId, status: Status) -> None:
        with log_scope(str(self._spec.flow), task.connector, f"task-{task.number}"):
            self._watcher(task, status)

    # ---- hosts

    async def _channel(self, link: HostLink) -> int:
        known = self._channels.get(link)
        if known is not None:
            return known
        channel = self._channels[link] = link.attach(self)
        spec = replace(self._spec, suspended=self._suspended)
        try:
            await link.request(channel, lambda number: OpenFlow(number, spec))
        except Mm2pyError:
            self._channels.pop(link, None)
            link.detach(channel)
            raise
        link.post(channel, Hold(self._held))
        if self._lease_ends is not None:
            link.post(channel, LeaseUntil(self._lease_ends))
        return channel

    async def _close(self, link: HostLink, channel: int) -> None:
        try:
            await link.request(channel, CloseFlow, timeout_s=self._graceful_s + CUT_OFF_S)
        except Mm2pyError as error:
            log.warning("flow was not closed in order on host pid=%d cause=%s", link.pid, error)
        self._channels.pop(link, None)
        link.detach(channel)

    def _post(self, message: ToHost) -> None:
        for link, channel in self._channels.items():
            link.post(channel, message)

    # ---- the loss ledger

    def _launch(self, work: Coroutine[None, None, None]) -> None:
        running = asyncio.create_task(work)
        self._work.add(running)
        running.add_done_callback(self._work.discard)

    async def _answer(self, link: HostLink, number: int) -> None:
        known = await self._reports.events.incarnations()
        channel = self._channels.get(link)
        if channel is not None:
            link.post(channel, IncarnationsAnswer(number, known))

    def _write(self, link: HostLink, entry: LedgerEntry) -> None:
        self._reports.events.report(entry.event)
        self._unwritten.append((link, entry))
        if len(self._unwritten) == 1:
            self._launch(self._acknowledge())

    async def _acknowledge(self) -> None:
        """Tell hosts what the ledger took, until nothing is left."""
        events = self._reports.events
        while self._unwritten:
            await events.flush(LEDGER_LOOK_S)
            waiting, self._unwritten = self._unwritten, []
            held_back = events.unwritten()
            for link, entry in waiting:
                if entry.event.partition in held_back:
                    self._unwritten.append((link, entry))
                elif link in self._channels:
                    link.post(self._channels[link], LedgerOk(entry.seq))
            if self._unwritten:
                await self._clock.sleep(LEDGER_PAUSE_S)
