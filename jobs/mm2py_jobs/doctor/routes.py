"""The doctor over REST: ``GET /flows/{flow}/doctor``, described at ``/openapi.json``; changes
nothing.

Flow: request -> the same checks as ``mm2py doctor FILE``, from this worker with its credentials ->
rows. Whoever asks while one runs gets its answer.
"""

import asyncio
from math import inf
from typing import Final

from starlette.requests import Request

from mm2py.client.pacing import RequestPace
from mm2py.clock import cancelled
from mm2py.flows.service import READS_AT_ONCE, FlowService
from mm2py.flows.view_models import View
from mm2py.rest.job_routes import JobRoutes, RouteHost
from mm2py.rest.routes.flows import FlowPath, named_flow
from mm2py.runtime.errors import HerderError
from mm2py.types import FlowName
from mm2py_jobs.routes import JobRouter

KEPT_S: Final = 30.0
"""From its beginning on: a repeated request gets the same answer."""


class DoctorView(View):
    """What one check found: ``level`` is ok, skipped, warning or error; ``remedy`` a command or
    what to set, empty where nothing is wrong."""

    flow: str
    check: str
    level: str
    finding: str
    remedy: str


def open_doctor(host: RouteHost) -> JobRoutes:
    """Serve ``/flows/{flow}/doctor``; the entry point ``mm2py.routes``."""
    doctor = _Doctor(host)
    router = JobRouter("doctor")
    router.add("GET", "/flows/{flow}/doctor", doctor.show)
    return JobRoutes(router.routes, doctor.close)


class _Doctor:
    def __init__(self, host: RouteHost) -> None:
        self._host = host
        self._flows: FlowService = host.flows
        self._clock = host.clock
        self._at_once = asyncio.Semaphore(READS_AT_ONCE)
        self._asked_at: dict[FlowName, float] = {}
        self._pace: RequestPace | None = None
        self._closed = False
        self._running: dict[FlowName, asyncio.Task[list[DoctorView]]] = {}

    async def show(self, request: Request, flow: FlowPath) -> list[DoctorView]:
        """Ask both clusters what would keep the flow from working, with the command that mends it;
        takes up to 30 s where one is silent."""
        name = named_flow(self._flows, request, flow)
        running = self._running.get(name)
        if self._closed:
            raise HerderError("The worker stops", status=503)
        is_old = self._clock.monotonic() - self._asked_at.get(name, -inf) > KEPT_S
        if running is None or (running.done() and is_old):
            self._asked_at[name] = self._clock.monotonic()
            running = self._running[name] = asyncio.create_task(self._examine(name))
        return await asyncio.shield(running)

    async def close(self) -> None:
        """End examinations that still run."""
        self._closed = True
        await cancelled(*self._running.values())

    async def _examine(self, flow: FlowName) -> list[DoctorView]:
        # A worker that is never asked loads none of it.
        from mm2py_jobs.doctor.examine import PER_S, examine_file

        self._pace = self._pace or RequestPace(PER_S, self._clock)
        async with self._at_once:
            results = await examine_file(self._host.file, [str(flow)], self._clock, self._pace)
        mask = self._host.mask.apply
        return [
            DoctorView(**{key: mask(text) for key, text in it.document().items()}) for it in results
        ]
