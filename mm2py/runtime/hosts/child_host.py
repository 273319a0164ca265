"""The ``TaskHost`` of one flow over child processes.

Flow: worker -> ``ChildTaskHost`` -> a host of the pool -> ``InProcessTaskHost`` there; states,
meters, losses and topics come back as ``TaskReports``. A host that ends makes its tasks FAILED; a
restart gives them another host.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, final
from weakref import WeakValueDictionary

from mm2py.client.permit import Permit
from mm2py.errors import Mm2pyError
from mm2py.observability.logging import log_scope
from mm2py.runtime.hosts.pipe import Channel
from mm2py.runtime.hosts.pool import HostLink, HostPool
from mm2py.runtime.hosts.reports import TaskReports
from mm2py.runtime.hosts.service import FlowSpec, HostService
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.types import State, TaskId, TopicPartition

log = logging.getLogger(__name__)

CUT_OFF_S: Final = 5.0
"""A host cancels a task at its deadline; one silent for this long after it is killed."""

SILENT_S: Final = 10.0
"""A host silent for this long is a problem of its flows; it sends something every 4 s."""

_ALWAYS_S: Final = 1e15

NOT_STARTED: Final = Status(State.UNASSIGNED)


@dataclass(slots=True)
class _Hosted:
    """One task; ``link`` is None after its host has ended, or where none was started."""

    link: HostLink | None = None
    light: bool = False
    status: Status = NOT_STARTED


@final
class ChildTaskHost:
    """Implements ``TaskHost``; see there.

    Args:
        pool: the worker's children.
        spec: the flow.
        watcher: called on each change of a task's state.
        reports: takes everything else that tasks report.
        permit: this process's right to write for the flow; each host keeps a copy of it up to date.
        graceful_s: how long a task may take to stop where the caller names no time.
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
        permit: Permit,
        graceful_s: float,
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
        self._permit = permit
        self._end_watch = permit.watch(self._permit_changed)
        self._tasks: dict[TaskId, _Hosted] = {}
        # A lock lives while a call needs it: one per task, so that calls run in order.
        self._turns: WeakValueDictionary[TaskId, asyncio.Lock] = WeakValueDictionary()
        self._openings: WeakValueDictionary[HostLink, asyncio.Lock] = WeakValueDictionary()
        self._channels: dict[HostLink, Channel] = {}
        self._held: frozenset[TopicPartition] = frozenset()
        self._kept_out: frozenset[TopicPartition] = frozenset()

    async def start_task(self, spec: TaskSpec) -> None:
        """Launch a task on the host with the fewest; failures are states."""
        async with self._turn(spec.id):
            await self._end(spec.id, self._graceful_s)
            hosted = self._tasks[spec.id] = _Hosted(light=self._light(spec))
            try:
                # Set before the next await: a host that ends meanwhile finds the task by its link.
                link = hosted.link = await self._pool.pick(own=self._own(spec), light=hosted.light)
                # Two tasks that start at once on a new host must not open the flow there twice.
                async with self._openings.setdefault(link, asyncio.Lock()):
                    channel = await self._channel(link)
                # Outside of that lock: starts of several tasks run side by side.
                await channel.ask(InProcessTaskHost.start_task, spec)
            except Mm2pyError as error:
                self._failed(spec.id, hosted, error)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        async with self._turn(task):
            await self._end(task, timeout_s)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        async with self._turn(task):
            hosted = self._tasks.get(task)
            if hosted is not None and hosted.link in self._channels:
                try:
                    await self._channels[hosted.link].ask(
                        InProcessTaskHost.pause_task, task, paused=paused
                    )
                except Mm2pyError as error:
                    self._failed(task, hosted, error)

    def status(self, task: TaskId) -> Status | None:
        hosted = self._tasks.get(task)
        return None if hosted is None else hosted.status

    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self._tasks)

    def problems(self) -> Mapping[str, str]:
        """Hosts of this flow that are silent: the states of their tasks may be stale."""
        return {
            (f"task host {link.pid}"): f"no sign of life for {link.silent_s:.0f} s: the states and "
            "the lag of its tasks may be wrong; it is killed and started again if it stays silent"
            for link in self._channels
            if link.silent_s >= SILENT_S
        }

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self._held = partitions
        for channel in self._channels.values():
            channel.post(InProcessTaskHost.hold, partitions)

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        """Let no task copy these; a host that ends meanwhile copies nothing. ``Mm2pyError``: a host
        that lives could not: its tasks may still copy them."""
        self._kept_out = partitions
        # A host that is opened during the await gets ``kept_out`` with ``open_flow``.
        links = tuple(self._channels)
        asked = [self._channels[it].ask(InProcessTaskHost.keep_out, partitions) for it in links]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for link, answer in zip(links, answers, strict=True):
            # A host that has ended copies nothing: its error is the answer that was asked for.
            if isinstance(answer, BaseException) and (
                link.alive or not isinstance(answer, Mm2pyError)
            ):
                raise answer

    async def close(self) -> None:
        """Stop all tasks and close the flow on its hosts, which others may use."""
        self._end_watch()
        await asyncio.gather(*(self.stop_task(task, self._graceful_s) for task in self.tasks()))
        await asyncio.gather(*(self._close(link) for link in tuple(self._channels)))

    # ---- tasks

    def _turn(self, task: TaskId) -> asyncio.Lock:
        return self._turns.setdefault(task, asyncio.Lock())

    async def _end(self, task: TaskId, timeout_s: float) -> None:
        hosted = self._tasks.get(task)
        if hosted is None:
            return
        link = hosted.link
        if link is not None and link in self._channels:
            try:
                async with asyncio.timeout(timeout_s + CUT_OFF_S):
                    await self._channels[link].ask(InProcessTaskHost.stop_task, task, timeout_s)
            except TimeoutError:
                # It may still copy another worker's partitions: only death is certain.
                link.kill(f"it did not stop {task} within {timeout_s + CUT_OFF_S:g} s")
                await link.gone()
            except Mm2pyError as error:
                log.warning("task was not stopped in order task=%s cause=%s", task, error)
                if link.alive:
                    link.kill(f"it failed to stop {task}: {error}")
                    await link.gone()
        if link is not None:
            if link.own and link in self._channels:
                # It ends with its task, and closes the flow by itself.
                link.detach(self._channels.pop(link))
            self._pool.release(link, light=hosted.light)
        self._reports.meter.forget_task(str(task))
        # Last: until here a report of the host is still shown.
        del self._tasks[task]

    def _failed(self, task: TaskId, hosted: _Hosted, error: Mm2pyError) -> None:
        self._reports.meter.forget_task(str(task))
        if hosted.status.state is not State.FAILED:
            self._changed(task, hosted, Status(State.FAILED, error))

    def _changed(self, task: TaskId, hosted: _Hosted, status: Status) -> None:
        hosted.status = status
        with log_scope(str(self._spec.flow), task.connector, f"task-{task.number}"):
            self._watcher(task, status)

    # ---- hosts

    async def _channel(self, link: HostLink) -> Channel:
        channel = self._channels.get(link)
        if channel is not None:
            return channel
        channel = self._channels[link] = link.attach(self._host_ended)
        # Served before ``open_flow``: the host may report at once.
        reports = TaskReports(self._reports, partial(self._reported, link))
        reports.serve(channel, scope=str(self._spec.flow))
        try:
            await link.host.confirm(
                HostService.open_flow,
                channel.number,
                self._spec,
                held=self._held,
                kept_out=self._kept_out,
                term=self._permit.term,
                until_s=_finite(self._permit.until_s),
            )
        # Else the next task on this host would find a channel whose flow was never opened.
        except Mm2pyError:
            self._channels.pop(link, None)
            link.detach(channel)
            raise
        return channel

    async def _close(self, link: HostLink) -> None:
        channel = self._channels[link]
        try:
            async with asyncio.timeout(self._graceful_s + CUT_OFF_S):
                await link.host.ask(HostService.close_flow, channel.number)
        except TimeoutError:
            log.warning(
                "flow was not closed on host pid=%d within %g s",
                link.pid,
                self._graceful_s + CUT_OFF_S,
            )
        except Mm2pyError as error:
            log.warning("flow was not closed in order on host pid=%d cause=%s", link.pid, error)
        self._channels.pop(link, None)
        link.detach(channel)

    def _permit_changed(self) -> None:
        """Send the permit's end to all hosts: each compares it with its own clock, since any of
        these processes may freeze."""
        term, until_s = self._permit.term, _finite(self._permit.until_s)
        for link, channel in self._channels.items():
            # Posted, not asked: at once, and a frozen host holds up no other.
            link.host.post(HostService.permit, channel.number, term, until_s)

    def _reported(self, link: HostLink, task: TaskId, status: Status) -> None:
        hosted = self._tasks.get(task)
        # The task may run on another host by now.
        if hosted is not None and hosted.link is link:
            self._changed(task, hosted, status)

    def _host_ended(self, link: HostLink, error: Mm2pyError) -> None:
        """Fail the tasks of a host that has ended; their restart picks another host."""
        self._channels.pop(link, None)
        # A copy: a state may lead to a restart of the task, which changes the dict.
        for task, hosted in tuple(self._tasks.items()):
            if hosted.link is link:
                hosted.link = None
                self._failed(task, hosted, error)


def _finite(instant_s: float) -> float:
    """Return an instant that JSON can represent; infinities become the far past and future."""
    return min(max(instant_s, 0.0), _ALWAYS_S)
