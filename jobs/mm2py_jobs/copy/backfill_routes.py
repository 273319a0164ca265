"""``/jobs`` of any kind, and ``/jobs/backfill``: history that Spark copies beside the running flow,
described at ``/openapi.json``.

Flow: request -> ``BackfillService`` -> views. Reading is answered by any worker from the backfill
topic; changes are the leader's, forwarded by the application.
"""

from typing import Annotated, final

from fastapi import APIRouter, Path, Query
from starlette.requests import Request

from mm2py.flows.service import FlowService
from mm2py.mirror.backfills import Wanted
from mm2py.rest.bodies import read_json
from mm2py.rest.flow_models import BackfillRequest, body_schema, parsed_body
from mm2py.rest.job_routes import JobRoutes, RouteHost
from mm2py.rest.parts import signed_in
from mm2py.rest.raw_path import plain_segment
from mm2py.rest.routes.flows import named_flow, visible_flows
from mm2py.runtime.errors import NotFoundError
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_children import BackfillChildren
from mm2py_jobs.copy.backfill_jobs import (
    BackfillService,
    BackfillSummary,
    BackfillView,
    PlannedBackfill,
)
from mm2py_jobs.job_views import JobView
from mm2py_jobs.routes import ACCEPTED, CREATED, JobRouter

Id = Annotated[str, Path(description="the backfill")]
Kind = Annotated[str, Path(description="verify, archive, ..., or that of another package")]
OfFlow = Annotated[str | None, Query(description="of this flow alone, A->B")]


def open_backfills(host: RouteHost) -> JobRoutes:
    """Serve ``/jobs/backfill``; the entry point ``mm2py.routes``."""
    children = BackfillChildren(host.file)
    backfills = BackfillService(
        children, masters=host.settings.spark_masters, mask=host.mask, clock=host.clock
    )
    return JobRoutes(backfill_router(host.flows, backfills), children.close)


def backfill_router(flows: FlowService, backfills: BackfillService) -> APIRouter:
    """Return the routes."""
    router, calls = JobRouter("backfills"), _BackfillCalls(flows, backfills)
    router.add("GET", "/jobs", calls.jobs)
    router.add("GET", "/jobs/backfill", calls.overview)
    body = body_schema(BackfillRequest)
    router.add("POST", "/jobs/backfill", calls.plan, status=CREATED, body=body)
    router.add("GET", "/jobs/{kind}", calls.of_kind)  # behind the kinds with routes of their own
    one = "/jobs/backfill/{backfill}"
    router.add("GET", one, calls.get)
    router.add("POST", f"{one}:start", calls.start, status=ACCEPTED)
    router.add("POST", f"{one}:pause", calls.pause, status=ACCEPTED)
    router.add("POST", f"{one}:resume", calls.resume, status=ACCEPTED)
    router.add("POST", f"{one}:cancel", calls.cancel, status=ACCEPTED)
    return router.routes


@final
class _BackfillCalls:
    def __init__(self, flows: FlowService, backfills: BackfillService) -> None:
        self._flows, self._backfills = flows, backfills

    async def jobs(self, request: Request, *, flow: OfFlow = None) -> list[JobView]:
        """List the jobs of each flow, or of one: how far they are, and how those ended that did
        last; failovers have ``/jobs/failover``."""
        nodes = self._flows.flows()
        wanted = None if flow is None else self._flows.find(flow)
        visible = visible_flows(self._flows, request)
        return self._backfills.jobs({it: nodes[it] for it in visible if wanted in (None, it)})

    async def of_kind(self, request: Request, kind: Kind, *, flow: OfFlow = None) -> list[JobView]:
        """List the jobs of one kind as ``GET /jobs`` does; 404 where none is known."""
        name = plain_segment(kind)
        found = [it for it in await self.jobs(request, flow=flow) if it["kind"] == name]
        if not found:
            raise NotFoundError(f"No {name} was run; a failover is at /jobs/failover/A->B")
        return found

    async def overview(self, request: Request) -> list[BackfillSummary]:
        """List of each flow what was planned last, and the newest backfill."""
        nodes = self._flows.flows()
        visible = visible_flows(self._flows, request)
        return self._backfills.all({flow: nodes[flow] for flow in visible})

    async def get(self, request: Request, backfill: Id) -> BackfillView:
        """Describe one backfill by partition, with the last lines of a driver that failed."""
        flow, identifier = self._found(request, backfill)
        return self._backfills.show(self._flows.flows(), flow, identifier)

    async def plan(self, request: Request) -> PlannedBackfill:
        """Plan a backfill: lanes, ranges, bytes, what the checks refuse; nothing is copied before
        it is started."""
        body = await read_json(request, numbers_as_written=False)
        asked = parsed_body(BackfillRequest, body)
        flow = named_flow(self._flows, request, asked.flow)
        order = asked.order(signed_in(request))
        return await self._backfills.plan(self._flows.flows(), flow, order)

    async def start(self, request: Request, backfill: Id) -> BackfillView:
        """Start a planned backfill, or continue one whose driver is gone, in a process beside the
        leader of the flow."""
        flow, identifier = self._found(request, backfill)
        return await self._backfills.start(
            self._flows.flows(), flow, identifier, signed_in(request)
        )

    async def pause(self, request: Request, backfill: Id) -> BackfillView:
        """Let the lanes read nothing until the backfill is resumed."""
        return await self._request(request, backfill, Wanted.PAUSE)

    async def resume(self, request: Request, backfill: Id) -> BackfillView:
        """Let paused lanes continue at the next record."""
        return await self._request(request, backfill, Wanted.RUN)

    async def cancel(self, request: Request, backfill: Id) -> BackfillView:
        """End a backfill: what is copied stays, the running flow continues every partition where it
        is."""
        return await self._request(request, backfill, Wanted.CANCEL)

    async def _request(self, request: Request, backfill: str, wanted: Wanted) -> BackfillView:
        flow, identifier = self._found(request, backfill)
        return await self._backfills.request(self._flows.flows(), flow, identifier, wanted)

    def _found(self, request: Request, backfill: str) -> tuple[FlowName, str]:
        """Return the flow of a backfill with its id, and let the application forward for it."""
        nodes, identifier = self._flows.flows(), plain_segment(backfill)
        visible = {flow: nodes[flow] for flow in visible_flows(self._flows, request)}
        flow = self._backfills.flow_of(visible, identifier)
        request.state.herder = nodes[flow].herder
        return flow, identifier
