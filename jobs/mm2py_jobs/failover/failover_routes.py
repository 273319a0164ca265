"""``/flows/{flow}/failover``: clients move to the target of a flow, or return, described at ``/openapi.json``.

Flow: request -> ``FailoverService`` -> view. The worker that is asked answers, and drives what it starts; the record is in Kafka.
"""

from typing import Annotated, Final, final

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from mm2py.clock import Clock
from mm2py.flows.service import FlowService
from mm2py.mirror.backfills import new_id
from mm2py.mirror.failovers import MOST_LOSS, FailoverKind
from mm2py.rest.bodies import check_media_types, refuse_unknown
from mm2py.rest.job_routes import JobRoutes, RouteHost
from mm2py.rest.routes.flows import RESPONSES, FlowPath, named_flow
from mm2py_jobs.failover.failover import FailoverRequest
from mm2py_jobs.failover.failover_inside import failovers_inside
from mm2py_jobs.failover.failover_views import FailoverView
from mm2py_jobs.failover.failovers import FailoverService

OK: Final = 200
ACCEPTED: Final = 202

Kind = Annotated[FailoverKind, Query(description="which way: there, or back")]
DryRun = Annotated[bool, Query(description="only say what would be done")]
Accept = Annotated[
    int,
    Query(ge=-1, le=MOST_LOSS, description="so many offsets may stay uncopied; -1: none"),
]
Unplanned = Annotated[bool, Query(description="the source is gone: switch without it")]


def open_failovers(host: RouteHost) -> JobRoutes:
    """Serve ``/flows/{flow}/failover``; the entry point ``mm2py.routes``."""
    failovers = FailoverService(failovers_inside(host.file, host.application))
    return JobRoutes(failover_router(host.flows, failovers, host.clock), failovers.close)


def failover_router(flows: FlowService, failovers: FailoverService, clock: Clock) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(
        tags=["failover"],
        dependencies=[Depends(check_media_types), Depends(refuse_unknown)],
        responses=RESPONSES,
    )
    calls = _Calls(flows, failovers, clock)
    routes.add_api_route("/flows/{flow}/failover", calls.show, methods=["GET"])
    routes.add_api_route(
        "/flows/{flow}/failover",
        calls.start,
        methods=["POST"],
        status_code=ACCEPTED,
        responses={OK: {"model": FailoverView, "description": "a dry run: nothing was done"}},
    )
    routes.add_api_route("/flows/{flow}/failover/cancel", calls.cancel, methods=["POST"])
    return routes


@final
class _Calls:
    def __init__(self, flows: FlowService, failovers: FailoverService, clock: Clock) -> None:
        self._flows, self._failovers, self._clock = flows, failovers, clock

    async def show(
        self, request: Request, flow: FlowPath, *, kind: Kind = FailoverKind.FAILOVER
    ) -> FailoverView:
        """Describe the newest failover of a flow: its step, what is not copied, groups, tail, why its last driver ended."""
        return await self._failovers.show(named_flow(self._flows, request, flow), kind)

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
        """Move clients to the target of a flow (or back), or continue that where it was interrupted.

        A dry run shows the plan and what refuses it. The driver runs in the worker that is asked; look at its progress with GET.
        """
        asked = FailoverRequest(
            id=new_id(self._clock.now_ms()),
            kind=kind,
            accept_loss=accept_loss,
            unplanned=unplanned,
        )
        name = named_flow(self._flows, request, flow)
        if dry_run:
            response.status_code = OK
            return await self._failovers.plan(name, asked)
        return await self._failovers.start(name, asked)

    async def cancel(
        self,
        request: Request,
        flow: FlowPath,
        *,
        kind: Kind = FailoverKind.FAILOVER,
        dry_run: DryRun = False,
    ) -> FailoverView:
        """Undo an unfinished failover, as long as clients may not have written to the target."""
        name = named_flow(self._flows, request, flow)
        return await self._failovers.cancel(name, kind, dry_run=dry_run)
