"""``mm2py backfill`` that a test plays: what was run, and how it ends."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState, Order
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_jobs import CommandEnd
from tests.unit.rest.rest_fakes import FakeHerder

PLAN: Mapping[str, Sequence[object]] = {"lanes": [], "partitions": [], "refused": []}


class FakeCommands:
    """Implements ``mm2py_jobs.copy.backfill_jobs.BackfillCommands``; a run lasts until ``end`` is set."""

    def __init__(self) -> None:
        self.without_spark = ""
        self.planned = CommandEnd(0, json.dumps(PLAN), ())
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

    def end(self, code: int, *lines: str) -> None:
        """Let the run end."""
        assert self.ended is not None
        self.ended.set_result(CommandEnd(code, "", lines))


def with_backfill(herder: FakeHerder) -> None:
    """Let the newest backfill of its flow be a paused one of two partitions, one of them finished."""
    store = herder.backfill_store = BackfillStore(MemoryTable(MemoryTopic("backfill")))
    job = Job(id="j", state=JobState.PAUSED, run=1, lanes=1)
    lease = Lease(
        topic="t", partition=0, job="j", run=1, state=LeaseState.COPYING, start=0, end=100, position=40,
        target_start=0, target_end=40, bytes=4_000,
    )  # fmt: skip
    handed_over = replace(lease, partition=1, state=LeaseState.HANDED_OVER, position=100)

    async def begin() -> None:
        await store.start()
        await store.post([job, lease, handed_over])
        await store.refresh()

    asyncio.run(begin())
