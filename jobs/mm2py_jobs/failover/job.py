"""One failover with open connections, for the command line and for a worker that serves REST.

Flow: file, ``A->B``, kind -> ``opened`` -> ``FailoverJob``: plan, execute, cancel, newest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.secret_names import secrets_in
from mm2py.mirror.backfills import new_id
from mm2py.mirror.failovers import Failover, FailoverKind, Step, failover_topic
from mm2py.observability.logging import SecretMask
from mm2py.types import FlowName
from mm2py_jobs.failover.clusters import FailoverClusters, ends_first
from mm2py_jobs.failover.driver import FailoverDriver, SourceAwayError
from mm2py_jobs.failover.flows import RestFlows, stop_record
from mm2py_jobs.failover.plan import FailoverPlan, FailoverRefusedError, FailoverRequest, TimedPlan
from mm2py_jobs.failover.steps import FailoverSides
from mm2py_jobs.failover.survey import plan_failover, time_plan
from mm2py_jobs.open_flow import flow_plan


@asynccontextmanager
async def opened(
    file: Path, flow: str, kind: FailoverKind, control: RestFlows, clock: Clock = SYSTEM_CLOCK
) -> AsyncGenerator["FailoverJob"]:
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
        secrets = [it.resolve(config) for it in (plan, back) for config in it.connectors.values()]
        mask = SecretMask(secrets_in(plan.props, back.props, *secrets))
        yield FailoverJob(clusters, control, kind, mask)


@final
class FailoverJob:
    """The verbs of a failover; all but ``execute`` and ``cancel`` are read-only. Implements
    ``FailoverCommands``.

    Args:
        mask: the secrets of the flow, which ``Masked`` hides in what is shown; errors are without
            them.
    """

    def __init__(
        self,
        clusters: FailoverClusters,
        control: RestFlows,
        kind: FailoverKind,
        mask: SecretMask,
    ) -> None:
        self.mask = mask
        self.clusters, self.control = clusters, control
        self.sides = FailoverSides(clusters, control)
        self._kind = kind

    async def newest(self) -> Failover | None:
        await self._open_store(creates=False)
        return self.clusters.store.failover

    async def plan(self) -> FailoverPlan:
        """Return what would be done; ``RetriableError`` if the target does not answer."""
        await self._open_store(creates=False)
        plan = await plan_failover(self.clusters, self.sides, self.control, self._kind)
        return replace(plan, standing=await self._standing(plan))

    async def timed_plan(
        self, request: FailoverRequest, asks: Callable[[str], None] = lambda _: None
    ) -> TimedPlan:
        """Return what would be done and how long it would take, ``asks`` called with each step;
        raises like ``plan``."""
        return await time_plan(self.clusters, self.sides, self.plan, request, asks)

    async def execute(
        self,
        request: FailoverRequest,
        report: Callable[[Failover], None],
        planned: Callable[[FailoverPlan], None] = lambda _: None,
        waits: Callable[[Failover], None] = lambda _: None,
    ) -> Failover:
        """Run it; raises like ``FailoverDriver.run``, or if the plan refuses.

        Args:
            request: what was asked for.
            report: called with each record.
            planned: called with the plan, if one had to be made.
            waits: called while it waits for the copy, with what is missing.
        """
        await self._open_store(creates=False)
        begun = self.clusters.store.failover
        if begun is None or not begun.goes_on(unplanned=request.unplanned):
            plan = await self.plan()
            planned(plan)
            if refusals := plan.refusals(request):
                raise FailoverRefusedError(self.mask.apply("; ".join(refusals)))
        await self._open_store(creates=True)
        request = replace(request, id=request.id or new_id(self.clusters.clock.now_ms()))
        after_ms = await self._returned_ms()
        return await self._driver(report, waits, after_ms).run(request, begun)

    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover:
        """Cancel an unfinished failover; a dry run returns it. ``FailoverRefusedError``: there is
        none, or clients may have written to the target."""
        driver = self._driver(report)
        await self._open_store(creates=False)
        failover = driver.check_cancel(self.clusters.store.failover)
        return failover if dry_run else await driver.cancel()

    async def _returned_ms(self) -> int:
        """Return when clients last moved the other way, 0 for never, or while the source, which has
        the record, does not answer."""
        try:
            store = await self.clusters.seen_source_store()
        except SourceAwayError:
            return 0
        return 0 if store is None or store.failover is None else store.failover.switched_ms

    def _driver(
        self,
        report: Callable[[Failover], None],
        waits: Callable[[Failover], None] = lambda _: None,
        after_ms: int = 0,
    ) -> FailoverDriver:
        clusters = self.clusters
        return FailoverDriver(
            clusters.store,
            self.sides,
            name=str(clusters.name),
            clock=clusters.clock,
            report=report,
            waits=waits,
            after_ms=after_ms,
        )

    async def _open_store(self, *, creates: bool) -> None:
        """Read the failover topic; only a driver creates it."""
        clusters = self.clusters
        topic = failover_topic(clusters.name.source)
        if creates or topic in await Admin(clusters.target).describe_topics([topic]):
            await clusters.store.start()

    async def _standing(self, plan: FailoverPlan) -> str:
        """Return why clients cannot be moved from where they are, by the newest record of each
        direction; empty if they can."""
        clusters, there = self.clusters, self.clusters.name
        mine = clusters.store.failover
        moved = mine is not None and mine.step is Step.DONE and mine.switched_ms
        already = f"clients of {there} are on {there.target} already"
        if not plan.source_reachable:
            # A return is recorded on the source; the flow would not be stopped then.
            at = await stop_record(clusters.target, clusters.plan, clusters.clock) if moved else -1
            returned = (
                f", unless they have returned: mm2py flow resume {there.source}/{there.target} then"
            )
            return already + returned if at >= 0 else ""
        back, store = clusters.back.name, await clusters.seen_source_store()
        other = None if store is None else store.failover
        if first := ends_first(back, other):
            return first
        returned_ms = 0 if other is None or other.step is not Step.DONE else other.switched_ms
        is_back = self._kind is FailoverKind.FAILBACK
        if moved and moved > returned_ms:
            way = FailoverKind.FAILOVER if is_back else FailoverKind.FAILBACK
            return f"{already}; mm2py {way} moves them from there"
        if is_back and not returned_ms:
            return f"clients of {back} were not failed over"
        return ""
