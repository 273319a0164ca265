"""Failovers over REST: what ``/flows/{flow}/failover`` answers, and the drivers that this worker runs.

Flow: request -> ``OpenCommands`` (connections of its own, as the command line) -> plan, or a driver as a task of this process ->
the record in the failover topic, which any worker shows. A driver that ends with its worker is continued by the next request, at any worker.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final, Protocol, final

from mm2py.errors import Mm2pyError
from mm2py.flows.service import READS_AT_ONCE
from mm2py.mirror.failovers import Failover, FailoverKind
from mm2py.runtime.errors import ConflictError
from mm2py.types import FlowName
from mm2py_jobs.failover.failover import FailoverRefusedError, FailoverRequest
from mm2py_jobs.failover.failover_views import FailoverPlan, FailoverView

log = logging.getLogger(__name__)

BEGIN_S: Final = 60.0
"""How long an answer waits for the plan of a driver and its first record."""


class FailoverCommands(Protocol):
    """What can be done with a failover; each raises ``Mm2pyError`` where a cluster does not answer."""

    async def newest(self) -> Failover | None:
        """Return the newest failover of the flow."""
        ...

    async def plan(self) -> FailoverPlan:
        """Return what would be done."""
        ...

    async def execute(
        self, request: FailoverRequest, report: Callable[[Failover], None]
    ) -> Failover:
        """Run it to its end; ``report`` is called with each record that is written. ``FailoverRefusedError`` where the plan refuses."""
        ...

    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover:
        """Undo an unfinished one."""
        ...


OpenCommands = Callable[[FlowName, FailoverKind], AbstractAsyncContextManager[FailoverCommands]]
"""Connects to both clusters of a flow."""


@final
class FailoverService:
    """The failovers of one worker."""

    def __init__(self, opened: OpenCommands) -> None:
        self._opened = opened
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._driven: dict[tuple[FlowName, FailoverKind], asyncio.Task[None]] = {}

    async def show(self, flow: FlowName, kind: FailoverKind) -> FailoverView:
        """Return the newest failover of a flow."""
        async with self._reads, self._opened(flow, kind) as commands:
            return self._view(flow, kind, await commands.newest())

    async def plan(self, flow: FlowName, request: FailoverRequest) -> FailoverView:
        """Return what would be done, and what would refuse it; changes nothing."""
        async with self._reads, self._opened(flow, request.kind) as commands:
            plan, newest = await commands.plan(), await commands.newest()
        refused = plan.refusals(request, newest)
        return replace(self._view(flow, request.kind, newest), plan=plan, refused=refused)

    async def start(self, flow: FlowName, request: FailoverRequest) -> FailoverView:
        """Begin a failover, or continue one, in this process; return it as it is first recorded.

        Raises:
            ConflictError: a check refuses, or this worker drives it already.
        """
        key = (flow, request.kind)
        if key in self._driven:
            raise ConflictError(f"{request.kind} of {flow} is driven by this worker already")
        begun: asyncio.Future[Failover] = asyncio.get_running_loop().create_future()
        self._driven[key] = asyncio.create_task(
            self._drive(flow, request, begun), name=f"{request.kind} of {flow}"
        )
        try:
            async with asyncio.timeout(BEGIN_S):
                first = await asyncio.shield(begun)
        except TimeoutError:
            return self._view(flow, request.kind, None)
        except FailoverRefusedError as error:
            raise ConflictError(str(error)) from error
        return self._view(flow, request.kind, first)

    async def cancel(self, flow: FlowName, kind: FailoverKind, *, dry_run: bool) -> FailoverView:
        """Undo an unfinished failover.

        Raises:
            ConflictError: there is none, or clients may have written to the target.
        """
        driven = None if dry_run else self._driven.get((flow, kind))
        if driven is not None:
            driven.cancel()
            await asyncio.gather(driven, return_exceptions=True)
        try:
            async with self._opened(flow, kind) as commands:
                found = await commands.cancel(lambda _: None, dry_run=dry_run)
        except FailoverRefusedError as error:
            raise ConflictError(str(error)) from error
        return self._view(flow, kind, found)

    async def close(self) -> None:
        """End the drivers where they are."""
        driven = list(self._driven.values())
        for task in driven:
            task.cancel()
        await asyncio.gather(*driven, return_exceptions=True)

    @property
    def driven(self) -> Mapping[tuple[FlowName, FailoverKind], asyncio.Task[None]]:
        """The drivers that run."""
        return self._driven

    async def _drive(
        self, flow: FlowName, request: FailoverRequest, begun: "asyncio.Future[Failover]"
    ) -> None:
        def report(failover: Failover) -> None:
            if not begun.done():
                begun.set_result(failover)

        try:
            async with self._opened(flow, request.kind) as commands:
                failover = await commands.execute(request, report)
            log.info("%s of %s is at %s", request.kind, flow, failover.step)
        except Mm2pyError as error:
            # The record names it, too.
            log.warning("%s of %s ended before its time: %s", request.kind, flow, error)
            if not begun.done():
                begun.set_exception(error)
                begun.exception()  # nobody may wait for it any more
        finally:
            if not begun.done():
                text = f"{request.kind} of {flow} was ended before it had begun"
                begun.set_exception(FailoverRefusedError(text))
                begun.exception()
            del self._driven[flow, request.kind]

    def _view(self, flow: FlowName, kind: FailoverKind, failover: Failover | None) -> FailoverView:
        return FailoverView(
            flow=str(flow), driven_here=(flow, kind) in self._driven, failover=failover
        )
