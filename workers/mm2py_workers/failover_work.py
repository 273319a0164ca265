"""One failover with open connections, whoever asks for it: the command line, or a worker over REST.

Flow: file, ``A->B``, kind -> ``opened`` -> ``FailoverWork``: plan, execute, cancel, newest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
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
        """Return what would be done.

        Raises:
            FailoverRefusedError: a failback of what was not failed over.
        """
        await self._need_failover()
        await self._open_store(creates=False)
        return await plan_failover(self.clusters, self.sides, self.control, str(self._kind))

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

    async def _need_failover(self) -> None:
        """Refuse a way back without a way there, or from one that is not over."""
        if self._kind is FailoverKind.FAILOVER:
            return
        clusters = self.clusters
        topic = failover_topic(clusters.name.target)
        async with clusters.source() as source:
            known = topic in await Admin(source).describe_topics([topic])
        there = (await clusters.source_store()).failover if known else None
        if there is None or there.step is Step.CANCELLED:
            flow = FlowName(clusters.name.target, clusters.name.source)
            raise FailoverRefusedError(f"clients of {flow} were not failed over")
        if not there.step.is_over:
            raise FailoverRefusedError(
                f"{there.kind} {there.id} of {there.flow} is at {there.step}",
                remedy="run mm2py failover --execute to its end first",
            )
