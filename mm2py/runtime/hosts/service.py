"""The child's side of a task host: serves a worker's calls.

Flow: pipe -> ``HostService`` on channel 0, the ``InProcessTaskHost`` of a flow on its channel ->
tasks; their states, meters and losses -> ``TaskReports`` of the worker. It ends with the pipe: the
worker is gone then, and only what the membership's session still covers is written and committed.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from mm2py.client.connect.broker_errors import errors_of
from mm2py.client.permit import Permit
from mm2py.clock import Clock, tick
from mm2py.errors import ProtocolError
from mm2py.observability.logging import log_scope
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.hosts.pipe import Channel, Failure, HostPipe
from mm2py.runtime.hosts.reports import (
    GuardRelay,
    HostReports,
    LedgerRelay,
    MeterRelay,
    TaskReports,
)
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskWatcher
from mm2py.types import FlowName, TaskId, TopicPartition

log = logging.getLogger(__name__)

METERS_EVERY_S: Final = 1.0
SIGN_OF_LIFE_TICKS: Final = 4
"""Quiet seconds between signs of life: each wakes two processes, and the worker looks every 5 s."""
DRAIN_S: Final = 2.0
"""For tasks whose worker is gone: the shortest session timeout in use is 6 s, and the last
heartbeat may be 2 s old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """Everything a host needs to open a flow; placeholders are resolved."""

    flow: FlowName
    worker: Mapping[str, str] = field(repr=False)
    log_level: str
    copies: bool = True
    """False where its tasks copy no source cluster: they have no offset map."""


class HostedFlow(Protocol):
    """One flow in this process."""

    @property
    def host(self) -> InProcessTaskHost: ...

    @property
    def permit(self) -> Permit:
        """This process's right to write for the flow."""
        ...

    async def close(self) -> None:
        """Close what it opened beside the tasks, which are stopped."""
        ...


@dataclass(slots=True)
class _OpenFlow:
    flow: HostedFlow
    scope: str
    channel: Channel
    meters: MeterRelay


@final
class HostService:
    """Serves one worker; ``open_flow`` to ``end`` are what it calls on channel 0.

    Args:
        pipe: to the worker.
        build: makes a flow from its spec and where it reports; raises ``Mm2pyError`` where its
            config is wrong.
        set_level: changes the level of a logger.
        version: of this program; the worker's must be the same.
    """

    def __init__(
        self,
        pipe: HostPipe,
        build: Callable[[FlowSpec, FlowReports, TaskWatcher], HostedFlow],
        *,
        set_level: Callable[[str, str], None],
        version: str,
        clock: Clock,
    ) -> None:
        self._pipe = pipe
        self._worker = pipe.channel(0)
        self._build = build
        self._set_level = set_level
        self._version = version
        self._clock = clock
        self._flows: dict[int, _OpenFlow] = {}
        self._ended = False

    async def run(self) -> None:
        """Serve until the worker is gone."""
        # Served before the greeting, which makes the worker call.
        self._worker.serve(self.open_flow, self.close_flow, self.permit, self.set_level, self.end)
        self._worker.post(HostReports.started, self._version, os.getpid())
        ticks = asyncio.create_task(self._tick())
        try:
            try:
                await self._pipe.listen()
            except ProtocolError:
                log.exception("a call of the worker cannot be understood")
            # Without ``end``: the worker was killed or frozen, and its session is running out.
            if not self._ended:
                log.warning("the worker is gone, tasks end within timeout_s=%.0f", DRAIN_S)
            await self._close_all(DRAIN_S)
        finally:
            ticks.cancel()
            await self._pipe.close()

    # ---- calls of the worker

    def open_flow(
        self,
        number: int,
        spec: FlowSpec,
        *,
        held: frozenset[TopicPartition],
        kept_out: frozenset[TopicPartition],
        term: int,
        until_s: float,
    ) -> None:
        """Build a flow and serve it on a channel of its own, in the present state of the worker's
        other hosts. ``Mm2pyError``: its config cannot be run."""
        channel, scope = self._pipe.channel(number), str(spec.flow)
        meter = FlowMeter(spec.flow, self._clock)
        meters = MeterRelay(meter, self._clock, channel)
        reports = FlowReports(
            meter=meter,
            events=LedgerRelay(channel),
            on_topic=lambda task, topic: channel.post(TaskReports.topic_used, task, topic),
            guard=GuardRelay(channel),
        )

        def changed(task: TaskId, status: Status) -> None:
            failure = None if status.cause is None else Failure.of(status.cause)
            channel.post(TaskReports.status_changed, task, status.state, failure)

        with log_scope(scope):
            flow = self._build(spec, reports, changed)
            host = flow.host
            host.hold(held)
            host.kept_out = kept_out
            # Before the first task can be started: without it a task would wait for a permit that
            # was granted long ago.
            flow.permit.follow(term, until_s)
        channel.serve(
            host.start_task, host.stop_task, host.pause_task, host.hold, host.keep_out, scope=scope
        )
        self._flows[number] = _OpenFlow(flow, scope, channel, meters)

    async def close_flow(self, number: int) -> None:
        """Stop the flow's tasks in order and close what it opened."""
        await self._close(number, None)

    def permit(self, number: int, term: int, until_s: float) -> None:
        """A flow may be written for until ``until_s`` in ``term``.

        The instant is on the monotonic clock, which all processes of a machine share: a host that
        was frozen reads old calls first, and must not take them for new permission.
        """
        opened = self._flows.get(number)
        if opened is not None:
            with log_scope(opened.scope):
                opened.flow.permit.follow(term, until_s)

    def set_level(self, namespace: str, level: str) -> None:
        self._set_level(namespace, level)

    async def end(self) -> None:
        """Stop all tasks of all flows in order; the worker closes the pipe then."""
        self._ended = True
        await self._close_all(None)

    # ---- flows

    async def _close_all(self, timeout_s: float | None) -> None:
        await asyncio.gather(*(self._close(number, timeout_s) for number in tuple(self._flows)))

    async def _close(self, number: int, timeout_s: float | None) -> None:
        # Popped first: ``end`` and the end of the pipe may both close it.
        opened = self._flows.pop(number, None)
        if opened is None:
            return
        opened.channel.close()
        host = opened.flow.host
        with log_scope(opened.scope):
            if timeout_s is not None:
                await asyncio.gather(*(host.stop_task(task, timeout_s) for task in host.tasks()))
            await host.close()
            # The last counts, before the answer that the flow is closed.
            opened.meters.send()
            await opened.flow.close()

    async def _tick(self) -> None:
        silent, said = 0, ""
        while True:
            await tick(self._clock, METERS_EVERY_S)
            # A frozen worker: buffers here must not grow.
            if self._pipe.clogged:
                continue
            sent = [False]
            try:
                sent = [opened.meters.send() for opened in self._flows.values()]
            except Exception as error:  # the tasks run on, and so do the signs of life
                if repr(error) != said:
                    log.exception("what tasks count cannot be reported")
                said = repr(error)
            errors = errors_of(self._clock).take()
            if errors:
                self._worker.post(HostReports.broker_errors, errors)
            silent = 0 if any(sent) or errors else silent + 1
            if silent >= SIGN_OF_LIFE_TICKS:
                silent = 0
                self._worker.post(HostReports.lives)
