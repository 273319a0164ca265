"""Failovers that a test plays: what was asked for, and how far they are."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.observability.logging import SecretMask
from mm2py.types import FlowName
from mm2py_jobs.failover.plan import (
    FailoverPlan,
    FailoverRefusedError,
    FailoverRequest,
    Masked,
    TimedPlan,
    TimedStep,
)

BEGUN_MS = 1_764_000_000_000
PLAN = FailoverPlan(
    flow="A->B",
    kind="failover",
    at_ms=1,
    source_reachable=True,
    state="RUNNING",
    reverse_state="",
    would_lose=0,
    fence_rules=1,
    fence_note="",
    quarantine=(),
    unfinished="",
    problems=(),
)


class FakeFailovers:
    """Implements ``mm2py_jobs.failover.routes.FailoverCommands`` of any flow; a driver lasts until ``ended`` is set."""

    def __init__(self, mask: SecretMask | None = None) -> None:
        self._mask = mask or SecretMask([])
        self.planned = PLAN
        self.record: Failover | None = None
        self.ended = asyncio.Event()
        self.requests: list[FailoverRequest] = []
        self.open, self.most_open = 0, 0

    @asynccontextmanager
    async def opened(self, flow: FlowName, kind: FailoverKind) -> AsyncGenerator[Masked]:
        self.planned = replace(self.planned, flow=str(flow), kind=str(kind))
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        await asyncio.sleep(0)
        try:
            yield Masked(self, self._mask.apply)
        finally:
            self.open -= 1

    async def newest(self) -> Failover | None:
        return self.record

    async def plan(self) -> FailoverPlan:
        return self.planned

    async def timed_plan(
        self, request: FailoverRequest, asks: Callable[[str], None] = lambda _: None
    ) -> TimedPlan:
        asks("PLAN")
        reasons = self.planned.refusals(request, self.record)
        return TimedPlan(
            flow=self.planned.flow,
            at_ms=self.planned.at_ms,
            plan=self.planned,
            steps=(TimedStep(step="PLAN", ms=120, found="2 topics"),),
            reasons=reasons,
            ready=not reasons,
            gap_ms=2_300,
        )

    async def execute(
        self,
        request: FailoverRequest,
        report: Callable[[Failover], None],
        planned: Callable[[FailoverPlan], None] = lambda _: None,
        waits: Callable[[Failover], None] = lambda _: None,
    ) -> Failover:
        del planned, waits
        if refused := self.planned.refusals(request, self.record):
            raise FailoverRefusedError(refused[0])
        self.requests.append(request)
        begun = Failover(
            id=request.id, flow=self.planned.flow, kind=request.kind, step=Step.FENCE, run=1
        )
        self.record = begun.recorded(BEGUN_MS)
        report(self.record)
        await self.ended.wait()
        self.record = replace(self.record, step=Step.DONE).recorded(BEGUN_MS + 2_500)
        return self.record

    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover:
        del report
        if self.record is None:
            raise FailoverRefusedError("there is no unfinished failover")
        found = self.record if dry_run else replace(self.record, step=Step.CANCELLED)
        self.record = found
        return found
