"""Failovers over REST: ``/jobs/failover/{flow}`` and ``/jobs/failback/{flow}``, described at
``/openapi.json``.

Flow: request -> ``FailoverService`` -> ``FailoverJob`` over the worker's file, with connections of
its own -> a view, or a driver as a task of this process, which asks the worker's own application
(``OwnApi``) -> the record in Kafka, which any worker shows. A driver that ends with its worker is
continued by the next request, at any worker.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, cast, final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.errors import FatalError, Mm2pyError, ProtocolError, RetriableError
from mm2py.flows.service import READS_AT_ONCE, FlowService
from mm2py.mirror.failovers import MOST_LOSS, Failover, FailoverKind
from mm2py.rest.job_routes import JobRoutes, RouteHost
from mm2py.rest.parts import CALLER
from mm2py.rest.routes.flows import FlowPath, named_flow
from mm2py.runtime.errors import ConflictError
from mm2py.types import FlowName
from mm2py_jobs.failover.plan import (
    FailoverCommands,
    FailoverRefusedError,
    FailoverRequest,
    FailoverView,
    Masked,
    TimedPlan,
)
from mm2py_jobs.routes import ACCEPTED, OK, JobRouter, JobRuns
from mm2py_workers.answers import Row

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

BEGIN_S: Final = 60.0
"""How long a request waits for the plan of a driver and its first record."""
ANSWER_S: Final = 60.0
_NOT_NOW: Final = frozenset({409, 500, 502, 503, 504})
"""A worker that fails may be one that its leader left in the middle of a change."""

Kind = Annotated[FailoverKind, Query(description="failover, or failback")]
DryRun = Annotated[bool, Query(description="only show what would be done")]
Accept = Annotated[
    int,
    Query(ge=-1, le=MOST_LOSS, description="number of offsets that may stay uncopied; -1: none"),
]
Unplanned = Annotated[bool, Query(description="the source is gone: switch without it")]


def open_failovers(host: RouteHost) -> JobRoutes:
    """Serve ``/flows/{flow}/failover``; the entry point ``mm2py.routes``."""
    api = OwnApi(host.application)

    @asynccontextmanager
    async def open_job(flow: FlowName, kind: FailoverKind) -> AsyncGenerator["FailoverCommands"]:
        # A worker without failovers loads none of it.
        from mm2py_jobs.failover import flows, job

        async with job.opened(host.file, str(flow), kind, flows.RestFlows(api)) as opened:
            yield Masked(opened, lambda text: host.mask.apply(opened.mask.apply(text)))

    failovers = FailoverService(open_job)
    return JobRoutes(failover_router(host.flows, failovers), failovers.close)


def failover_router(flows: FlowService, failovers: "FailoverService") -> APIRouter:
    """Return the routes."""
    router = JobRouter("failover")
    of_kinds = {kind: _KindCalls(flows, failovers, kind) for kind in FailoverKind}
    for kind, calls in of_kinds.items():
        job = f"/jobs/{kind}/{{flow}}"
        router.add("GET", job, calls.show, older=False)
        router.add("GET", f"{job}/plan", calls.plan, older=False)
        router.add("GET", f"{job}/drill", calls.drill, older=False)
        router.add("POST", f"{job}:plan", calls.plan)
        router.add("POST", f"{job}:start", calls.start, status=ACCEPTED)
        router.add("POST", f"{job}:cancel", calls.cancel, older=False)
    dry_run: dict[int | str, dict[str, object]] = {
        OK: {"model": FailoverView, "description": "a dry run: nothing was done"}
    }
    old, older = "/flows/{flow}/failover", _OlderCalls(of_kinds)
    router.add("GET", old, older.show)
    router.add("POST", old, older.start, status=ACCEPTED, responses=dry_run)
    router.add("POST", f"{old}/cancel", older.cancel)
    return router.routes


@final
class _KindCalls:
    """The verbs of one kind."""

    def __init__(
        self, flows: FlowService, failovers: "FailoverService", kind: FailoverKind
    ) -> None:
        self._flows, self._failovers, self._kind = flows, failovers, kind

    async def show(self, request: Request, flow: FlowPath) -> FailoverView:
        """Show the newest one of a flow: its step, what is not copied, groups, tail, and why its
        last driver ended."""
        return await self._failovers.show(named_flow(self._flows, request, flow), self._kind)

    async def plan(
        self,
        request: Request,
        flow: FlowPath,
        *,
        accept_loss: Accept = -1,
        unplanned: Unplanned = False,
    ) -> FailoverView:
        """Show what would be done, and what refuses it; changes nothing."""
        asked = FailoverRequest(kind=self._kind, accept_loss=accept_loss, unplanned=unplanned)
        return await self._failovers.plan(named_flow(self._flows, request, flow), asked)

    async def drill(self, request: Request, flow: FlowPath) -> TimedPlan:
        """Rehearse it: ask the questions of each step, time them, and show what would refuse it;
        changes nothing. Takes seconds."""
        return await self._failovers.drill(named_flow(self._flows, request, flow), self._kind)

    async def start(
        self,
        request: Request,
        flow: FlowPath,
        *,
        accept_loss: Accept = -1,
        unplanned: Unplanned = False,
    ) -> FailoverView:
        """Move clients, or continue an interrupted one. The driver runs in the worker that is
        asked; GET shows its progress."""
        asked = FailoverRequest(kind=self._kind, accept_loss=accept_loss, unplanned=unplanned)
        return await self._failovers.start(named_flow(self._flows, request, flow), asked)

    async def cancel(self, request: Request, flow: FlowPath) -> FailoverView:
        """Cancel an unfinished one, until clients may have written to the target."""
        return await self.cancelled(request, flow, dry_run=False)

    async def cancelled(self, request: Request, flow: str, *, dry_run: bool) -> FailoverView:
        """Return what was cancelled, or would be."""
        name = named_flow(self._flows, request, flow)
        return await self._failovers.cancel(name, self._kind, dry_run=dry_run)


@final
class _OlderCalls:
    """The same with the kind as a query parameter."""

    def __init__(self, of_kinds: Mapping[FailoverKind, _KindCalls]) -> None:
        self._of_kinds = of_kinds

    async def show(
        self, request: Request, flow: FlowPath, *, kind: Kind = FailoverKind.FAILOVER
    ) -> FailoverView:
        """Show the newest failover of a flow: its step, what is not copied, groups, tail, and why
        its last driver ended."""
        return await self._of_kinds[kind].show(request, flow)

    async def start(
        self,
        request: Request,
        response: Response,
        flow: FlowPath,
        *,
        kind: Kind = FailoverKind.FAILOVER,
        accept_loss: Accept = -1,
        unplanned: Unplanned = False,
        dry_run: DryRun = False,
    ) -> FailoverView:
        """Move clients to the target of a flow (or back), or continue an interrupted failover.

        A dry run shows the plan and what refuses it. The driver runs in the worker that is asked;
        GET shows its progress.
        """
        calls = self._of_kinds[kind]
        if dry_run:
            response.status_code = OK
        verb = calls.plan if dry_run else calls.start
        return await verb(request, flow, accept_loss=accept_loss, unplanned=unplanned)

    async def cancel(
        self,
        request: Request,
        flow: FlowPath,
        *,
        kind: Kind = FailoverKind.FAILOVER,
        dry_run: DryRun = False,
    ) -> FailoverView:
        """Cancel an unfinished failover, until clients may have written to the target."""
        return await self._of_kinds[kind].cancelled(request, flow, dry_run=dry_run)


# ---- the failovers of one worker


OpenCommands = Callable[[FlowName, FailoverKind], AbstractAsyncContextManager[FailoverCommands]]
"""Connects to both clusters of a flow."""


@final
class FailoverService:
    """The failovers of one worker."""

    def __init__(self, opened: OpenCommands) -> None:
        self._opened = opened
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self.driven = JobRuns[tuple[FlowName, FailoverKind]]()

    async def show(self, flow: FlowName, kind: FailoverKind) -> FailoverView:
        async with self._reads, self._opened(flow, kind) as commands:
            return self._view(flow, kind, await commands.newest())

    async def plan(self, flow: FlowName, request: FailoverRequest) -> FailoverView:
        async with self._reads, self._opened(flow, request.kind) as commands:
            plan, newest = await commands.plan(), await commands.newest()
        return replace(
            self._view(flow, request.kind, newest),
            plan=plan,
            refused=plan.refusals(request, newest),
            reasons=plan.not_ready(request, newest),
        )

    async def drill(self, flow: FlowName, kind: FailoverKind) -> TimedPlan:
        """Return what would be done, each step's questions timed; changes nothing."""
        async with self._reads, self._opened(flow, kind) as commands:
            return await commands.timed_plan(FailoverRequest(kind=kind))

    async def start(self, flow: FlowName, request: FailoverRequest) -> FailoverView:
        """Begin a failover, or continue one, in this process; return its first record.

        Raises:
            ConflictError: a check refuses, or this worker drives it already.
        """
        key = (flow, request.kind)
        if key in self.driven:
            raise ConflictError(f"{request.kind} of {flow} is driven by this worker already")
        begun: asyncio.Future[Failover] = asyncio.get_running_loop().create_future()
        self.driven.start(key, self._drive(flow, request, begun), name=f"{request.kind} of {flow}")
        try:
            async with asyncio.timeout(BEGIN_S):
                first = await asyncio.shield(begun)
        except TimeoutError:
            return self._view(flow, request.kind, None)
        except FailoverRefusedError as error:
            raise ConflictError(str(error)) from error
        return self._view(flow, request.kind, first)

    async def cancel(self, flow: FlowName, kind: FailoverKind, *, dry_run: bool) -> FailoverView:
        """Cancel an unfinished failover.

        Raises:
            ConflictError: there is none, or clients may have written to the target.
        """
        if not dry_run:
            await self.driven.cancel((flow, kind))
        try:
            async with self._opened(flow, kind) as commands:
                failover = await commands.cancel(lambda _: None, dry_run=dry_run)
        except FailoverRefusedError as error:
            raise ConflictError(str(error)) from error
        return self._view(flow, kind, failover)

    async def close(self) -> None:
        """Cancel the drivers; their records stay."""
        await self.driven.close()

    async def _drive(
        self, flow: FlowName, request: FailoverRequest, begun: "asyncio.Future[Failover]"
    ) -> None:
        def report(failover: Failover) -> None:
            if not begun.done():
                begun.set_result(failover)

        def fail(error: Mm2pyError) -> None:
            if not begun.done():
                begun.set_exception(error)
                begun.exception()  # the caller may have left

        try:
            async with self._opened(flow, request.kind) as commands:
                failover = await commands.execute(request, report)
            log.info("%s of %s is at %s", request.kind, flow, failover.step)
        except Mm2pyError as error:
            # The record has the cause, too.
            log.warning("%s of %s ended early cause=%s", request.kind, flow, error)
            fail(error)
        finally:
            fail(FailoverRefusedError(f"{request.kind} of {flow} was ended before it had begun"))

    def _view(self, flow: FlowName, kind: FailoverKind, failover: Failover | None) -> FailoverView:
        return FailoverView(
            flow=str(flow),
            driven_here=(flow, kind) in self.driven,
            failover=failover,
        )


# ---- the own API


@dataclass(frozen=True, slots=True)
class _Driver:
    """The caller in the history of flows."""

    name: str = "failover"
    operator: bool = True


@final
class OwnApi:
    """Asks the application of this process as an operator; implements ``FlowsApi``. What another
    worker leads is forwarded to it.

    Args:
        app: the application without the gate of its users, once it is open.
    """

    def __init__(self, app: Callable[[], ASGIApp]) -> None:
        self._build = app
        self._app: ASGIApp | None = None

    async def rows(self, path: str) -> Sequence[Row]:
        rows = await self._ask("GET", path)
        if not isinstance(rows, list):
            raise ProtocolError(f"the answer to {path} is not a list")
        return cast("list[Row]", rows)

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        """POST a change; a dry run takes the same way, to the same worker, and changes nothing."""
        await self._ask("POST", path, body, {"dry_run": "true"} if dry_run else None)

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
    ) -> object:
        import httpx  # only a failover needs it

        transport = httpx.ASGITransport(app=self._as_driver, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=ANSWER_S
        ) as client:
            answer = await client.request(method, path, json=body, params=query)
        if answer.is_success:
            document: object = answer.json()
            return document
        raise _refusal(answer)

    async def _as_driver(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = self._app or self._build()
        await self._app({**scope, CALLER: _Driver()}, receive, send)


def _refusal(answer: "httpx.Response") -> FatalError | RetriableError:
    text = f"{answer.status_code}: {_message_of(answer)}"
    return RetriableError(text) if answer.status_code in _NOT_NOW else FatalError(text)


def _message_of(answer: "httpx.Response") -> str:
    try:
        body: object = answer.json()
    except ValueError:
        body = None
    message = cast("Row", body).get("message") if isinstance(body, Mapping) else None
    return message if isinstance(message, str) else answer.text[:500]
