"""Backfills and failovers that a test plays: what was asked for, how far they are, and how they end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState, Order
from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.observability.logging import SecretMask
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_jobs import CommandEnd
from mm2py_jobs.failover.plan import (
    FailoverPlan,
    FailoverRefusedError,
    FailoverRequest,
    Masked,
    TimedPlan,
    TimedStep,
)
from tests.unit.rest.rest_fakes import FakeHerder

LEASE = Lease(
    topic="t", partition=0, job="j", run=1, state=LeaseState.COPYING, start=0, end=100, position=40,
    target_start=0, target_end=40, bytes=4_000,
)  # fmt: skip
BACKFILL_PLAN: Mapping[str, Sequence[object]] = {"lanes": [], "partitions": [], "refused": []}


class FakeCommands:
    """Implements ``mm2py_jobs.copy.backfill_jobs.BackfillCommands``; a run lasts until ``end`` is set."""

    def __init__(self) -> None:
        self.without_spark = ""
        self.planned = CommandEnd(0, json.dumps(BACKFILL_PLAN), ())
        self.ended: asyncio.Future[CommandEnd] | None = None
        self.runs: list[Order] = []
        self.cancelled: list[FlowName] = []
        self.stopped: list[FlowName] = []

    async def missing(self, master: str) -> str:
        del master
        return self.without_spark

    async def plan(self, flow: FlowName, order: Order) -> CommandEnd:
        del flow, order
        return self.planned

    async def run(self, flow: FlowName, order: Order) -> CommandEnd:
        del flow
        self.runs.append(order)
        self.ended = asyncio.get_running_loop().create_future()
        return await self.ended

    async def cancel(self, flow: FlowName) -> CommandEnd:
        self.cancelled.append(flow)
        return CommandEnd(0, "", ())

    def stop(self, flow: FlowName) -> None:
        self.stopped.append(flow)

    def end(self, code: int, *lines: str, out: str = "") -> None:
        """Let the run end."""
        assert self.ended is not None
        self.ended.set_result(CommandEnd(code, out, lines))


def with_backfill(herder: FakeHerder) -> None:
    """Let the newest backfill of its flow be a paused one of two partitions, one of them finished."""
    store = herder.backfill_store = BackfillStore(MemoryTable(MemoryTopic("backfill")))
    job = Job(id="j", state=JobState.PAUSED, run=1, lanes=1)
    handed_over = replace(LEASE, partition=1, state=LeaseState.HANDED_OVER, position=100)

    async def begin() -> None:
        await store.start()
        await store.post([job, LEASE, handed_over])
        await store.refresh()

    asyncio.run(begin())


# -- failovers that a test plays


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
