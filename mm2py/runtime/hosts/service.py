"""The child's side of a task host: the worker's messages become calls of ``InProcessTaskHost``.

Flow: pipe -> ``HostService`` -> one hosted flow per channel -> tasks; states, meters, losses -> pipe. It ends
on ``Bye``, and when the pipe does: the worker is gone then, and so much as the membership's session still
covers is written and committed.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.api.context import EventSink
from mm2py.clock import Clock
from mm2py.errors import FatalError, Mm2pyError, ProtocolError
from mm2py.observability.logging import log_scope
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.hosts.frames import Envelope, Message
from mm2py.runtime.hosts.messages import (
    Bye,
    CloseFlow,
    Done,
    FirstRecord,
    FlowSpec,
    Hello,
    Hold,
    IncarnationsAnswer,
    LeaseUntil,
    LedgerOk,
    LogLevel,
    Meters,
    OpenFlow,
    PauseTask,
    Resume,
    StartTask,
    StopTask,
    Suspend,
)
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.relays import LedgerRelay, MeterRelay
from mm2py.runtime.hosts.reports import status_message
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_host import TaskHost
from mm2py.types import State, TaskId

__all__ = ["FlowPorts", "HostService", "HostedFlow", "HostedTasks"]

log = logging.getLogger(__name__)

METERS_EVERY_S: Final = 1.0
SIGN_OF_LIFE_TICKS: Final = 4
"""Quiet seconds between signs of life: each wakes two processes, and the worker looks every 5 s."""
DRAIN_S: Final = 2.0
"""Without a worker: the shortest session timeout in use is 6 s, and its last heartbeat may be 2 s old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPorts:
    """Where a hosted flow's parts report."""

    meter: FlowMeter
    events: EventSink
    watcher: Callable[[TaskId, Status], None]
    on_topic: Callable[[TaskId, str], None]


class HostedTasks(TaskHost, Protocol):
    """Runs a flow's tasks under a lease that the worker reckons."""

    def resume(self, *, renews: bool = True) -> None:
        """Tasks go on; the lease stays as it is unless this ``renews`` it."""
        ...

    def look(self) -> None:
        """Suspend the tasks at once if their lease ran out while this process stood still."""
        ...


class HostedFlow(Protocol):
    """One flow in this process."""

    @property
    def host(self) -> HostedTasks:
        """Runs its tasks."""
        ...

    async def close(self) -> None:
        """Close what it opened beside the tasks, which are stopped."""
        ...


@dataclass(slots=True)
class _Channel:
    flow: HostedFlow
    scope: str
    ledger: LedgerRelay
    meters: MeterRelay


@final
class HostService:
    """Serves one worker.

    Args:
        pipe: to the worker.
        open_flow: builds a flow; raises ``Mm2pyError`` where its config is wrong.
        set_level: changes the level of a logger.
        version: of this program; the worker's must be the same.
    """

    def __init__(
        self,
        pipe: HostPipe,
        open_flow: Callable[[FlowSpec, FlowPorts], HostedFlow],
        *,
        set_level: Callable[[str, str], None],
        version: str,
        clock: Clock,
    ) -> None:
        self._pipe = pipe
        self._open_flow = open_flow
        self._set_level = set_level
        self._version = version
        self._clock = clock
        self._channels: dict[int, _Channel] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the worker says good-bye or is gone."""
        self._pipe.send(0, Hello(self._version, os.getpid()))
        ticks = asyncio.create_task(self._tick())
        try:
            bye = await self._serve()
            if bye is None:
                log.warning("the worker is gone, tasks end within timeout_s=%.0f", DRAIN_S)
            await self._end(None if bye is not None else DRAIN_S)
            if bye is not None:
                self._pipe.send(0, Done(bye.id))
        finally:
            ticks.cancel()
            await self._pipe.close()

    def look(self) -> None:
        """Called when this process may have stood still: a lease may be over."""
        for channel in self._channels.values():
            channel.flow.host.look()

    async def _serve(self) -> Bye | None:
        while True:
            try:
                envelope = await self._pipe.receive()
            except ProtocolError:
                log.exception("the worker cannot be understood")
                return None
            if envelope is None:
                return None
            if isinstance(envelope.message, Bye):
                return envelope.message
            self._take(envelope)

    def _take(self, envelope: Envelope) -> None:
        number, message = envelope
        match message:
            case OpenFlow():
                self._open(number, message)
            case LogLevel():
                self._set_level(message.namespace, message.level)
            case StartTask() | StopTask() | PauseTask() | CloseFlow():
                self._launch(number, message)
            case _:
                channel = self._channels.get(number)
                if channel is not None:
                    self._tell(channel, message)

    # ---- flows

    def _open(self, number: int, message: OpenFlow) -> None:
        spec = message.spec

        def post(sent: Message) -> None:
            self._pipe.send(number, sent)

        meter = FlowMeter(spec.flow, self._clock)
        meters, ledger = MeterRelay(meter, self._clock, post), LedgerRelay(post)

        def changed(task: TaskId, status: Status) -> None:
            if status.state is State.UNASSIGNED:
                meters.tell()
            post(status_message(task, status))

        ports = FlowPorts(
            meter=meter,
            events=ledger,
            watcher=changed,
            on_topic=lambda task, topic: post(FirstRecord(task, topic)),
        )
        with log_scope(str(spec.flow)):
            try:
                flow = self._open_flow(spec, ports)
            except Mm2pyError as error:
                post(Done(message.id, str(error)))
                return
            if spec.suspended:
                flow.host.suspend()
        self._channels[number] = _Channel(flow, str(spec.flow), ledger, meters)
        post(Done(message.id))

    async def _end(self, timeout_s: float | None) -> None:
        channels = tuple(self._channels)
        await asyncio.gather(*(self._close(number, timeout_s) for number in channels))

    async def _close(self, number: int, timeout_s: float | None = None) -> None:
        channel = self._channels.pop(number, None)
        if channel is None:
            return
        host = channel.flow.host
        if timeout_s is not None:
            await asyncio.gather(*(host.stop_task(task, timeout_s) for task in host.tasks()))
        await host.close()
        channel.meters.tell()
        await channel.flow.close()

    # ---- what takes time

    def _launch(self, number: int, message: StartTask | StopTask | PauseTask | CloseFlow) -> None:
        channel = self._channels.get(number)
        if channel is None:
            self._pipe.send(number, Done(message.id, "the flow is not open on this task host"))
            return
        with log_scope(channel.scope):
            work = asyncio.create_task(
                self._carry_out(number, message.id, self._order(number, channel, message))
            )
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    def _order(
        self,
        number: int,
        channel: _Channel,
        message: StartTask | StopTask | PauseTask | CloseFlow,
    ) -> Coroutine[None, None, None]:
        host = channel.flow.host
        match message:
            case StartTask():
                return host.start_task(message.spec)
            case StopTask():
                return host.stop_task(message.task, message.timeout_ms / 1000)
            case PauseTask():
                return host.pause_task(message.task, paused=message.paused)
            case CloseFlow():
                return self._close(number)

    async def _carry_out(
        self, number: int, answers: int, order: Coroutine[None, None, None]
    ) -> None:
        cause: str | None = None
        try:
            await order
        except Exception as error:
            failure = error if isinstance(error, Mm2pyError) else FatalError(repr(error))
            log.exception("an order of the worker failed")
            cause = str(failure)
        channel = self._channels.get(number)
        if channel is not None:
            channel.meters.tell()
        self._pipe.send(number, Done(answers, cause))

    async def _tick(self) -> None:
        silent = 0
        while True:
            await self._clock.sleep(METERS_EVERY_S)
            if self._pipe.clogged:
                continue
            told = [channel.meters.tell() for channel in self._channels.values()]
            silent = 0 if any(told) else silent + 1
            if silent >= SIGN_OF_LIFE_TICKS:
                silent = 0
                self._pipe.send(0, Meters())

    def _tell(self, channel: _Channel, message: Message) -> None:
        """Pass a message on that takes no time."""
        host = channel.flow.host
        match message:
            case Hold():
                host.hold(message.partitions)
            case Suspend():
                host.suspend()
            case Resume():
                # The worker sends the lease itself: this message may have waited while the process was frozen.
                host.resume(renews=False)
            case LeaseUntil():
                host.lease(max(0, round((message.ends_s - self._clock.monotonic()) * 1000)))
            case LedgerOk():
                channel.ledger.acknowledged(message.seq)
            case IncarnationsAnswer():
                channel.ledger.answered(message.id, message.known)
            case _:
                log.warning("message is not for a task host type=%s", type(message).__name__)
