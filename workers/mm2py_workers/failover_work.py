"""One failover with open connections, whoever asks for it: the command line, or a worker over REST.

Flow: file, ``A->B``, kind -> ``opened`` -> ``FailoverWork``: plan, execute, cancel, newest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.flows.failover import (
    DRAIN_S,
    SETTLE_S,
    FailoverDriver,
    FailoverRefusedError,
    FailoverRequest,
)
from mm2py.flows.failover_views import FailoverPlan
from mm2py.flows.flow_control import FlowControl
from mm2py.mirror.failovers import Failover, FailoverKind, Step, failover_topic
from mm2py.types import FlowName
from mm2py_workers.bulk_flow import flow_plan
from mm2py_workers.failover_clusters import FailoverClusters
from mm2py_workers.failover_plan import plan_failover
from mm2py_workers.failover_sides import FailoverSides

__all__ = ["FailoverWork", "opened"]


@asynccontextmanager
async def opened(
    file: Path, flow: str, kind: FailoverKind, control: FlowControl, clock: Clock = SYSTEM_CLOCK
) -> AsyncGenerator["FailoverWork"]:
    """Connect to the clusters of a flow; for a failback those of the flow back.

    Raises:
        UsageError, ConfigError: there is no such flow.
        RetriableError: its target does not answer.
    """
    plan = await asyncio.to_thread(flow_plan, file, flow)
    back = await asyncio.to_thread(
        flow_plan, file, str(FlowName(plan.name.target, plan.name.source))
    )
    if kind is FailoverKind.FAILBACK:
        plan, back = back, plan
    async with FailoverClusters(plan, back, clock) as clusters:
        yield FailoverWork(clusters, control, kind)


@final
class FailoverWork:
    """What can be done with a failover; read-only but for ``execute`` and ``cancel``."""

    def __init__(
        self, clusters: FailoverClusters, control: FlowControl, kind: FailoverKind
    ) -> None:
        self.clusters, self.control = clusters, control
        self.sides = FailoverSides(clusters, control)
        self._kind = kind

    async def newest(self) -> Failover | None:
        """Return the newest failover of the flow."""
        await self._open_store(creates=False)
        return self.clusters.store.failover

    async def plan(self) -> FailoverPlan:
        """Return what would be done; ``RetriableError`` where the target does not answer."""
        await self._open_store(creates=False)
        plan = await plan_failover(self.clusters, self.sides, self.control, str(self._kind))
        if not plan.source_reachable:
            return plan
        return replace(plan, standing=await self._standing())

    async def execute(
        self,
        request: FailoverRequest,
        report: Callable[[Failover], None],
        *,
        settle_s: float = SETTLE_S,
        drain_s: float = DRAIN_S,
    ) -> Failover:
        """Do it; raises as ``FailoverDriver.run``."""
        await self._open_store(creates=True)
        driver = FailoverDriver(
            self.clusters.store,
            self.sides,
            name=str(self.clusters.name),
            clock=self.clusters.clock,
            settle_s=settle_s,
            drain_s=drain_s,
            report=report,
        )
        return await driver.run(request)

    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover:
        """Undo an unfinished one; a dry run returns what would be undone.

        Raises:
            FailoverRefusedError: there is none, or clients may have written to the target.
        """
        failover = await self.newest()
        if failover is None or failover.step.is_over:
            raise FailoverRefusedError(f"there is no unfinished failover of {self.clusters.name}")
        if dry_run:
            if failover.step.is_switched:
                raise FailoverRefusedError(f"it is at {failover.step}: clients may have written")
            return failover
        driver = FailoverDriver(
            self.clusters.store,
            self.sides,
            name=str(self.clusters.name),
            clock=self.clusters.clock,
            report=report,
        )
        return await driver.cancel()

    async def _open_store(self, *, creates: bool) -> None:
        """Read the failover topic; what only reads does not create it."""
        clusters = self.clusters
        topic = failover_topic(clusters.name.source)
        if creates or topic in await Admin(clusters.target).describe_topics([topic]):
            await clusters.store.start()

    async def _standing(self) -> str:
        """Return why clients cannot be moved from where they stand, by the newest record of either way; empty where they can."""
        clusters = self.clusters
        there, back = clusters.name, FlowName(clusters.name.target, clusters.name.source)
        mine, other = clusters.store.failover, await self._other_way()
        if other is not None and not other.step.is_over:
            return f"{other.kind} {other.id} of {back} is at {other.step}: run it to its end, or cancel it"
        switched_ms = 0 if mine is None or mine.step is not Step.DONE else mine.switched_ms
        returned_ms = 0 if other is None or other.step is not Step.DONE else other.switched_ms
        if switched_ms > returned_ms:
            return f"clients of {there} were moved already"
        if self._kind is FailoverKind.FAILBACK and not returned_ms:
            return f"clients of {back} were not failed over"
        return ""

    async def _other_way(self) -> Failover | None:
        """Return the newest failover of the flow back; asks for no topic that is not there."""
        clusters = self.clusters
        topic = failover_topic(clusters.name.target)
        async with clusters.source() as source:
            if topic not in await Admin(source).describe_topics([topic]):
                return None
        return (await clusters.source_store()).failover
