"""``mm2py backfill`` that a test plays: what was run, and how it ends."""

import asyncio
import json
from collections.abc import Mapping, Sequence

from mm2py.mirror.backfills import Order
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_jobs import CommandEnd

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
