"""Runs the driver of a backfill, or of a restore, with its lanes on Spark.

Flow: ``Plan`` -> ``SparkRun`` opens a session -> ``BackfillDriver.run`` with ``_SparkLanes`` -> the
job as it ended. A stop signal ends the lanes in order; the next run continues.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import Job
from mm2py.types import TopicPartition
from mm2py_cli.output import Printer, say
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_lane import dealt_lanes, run_backfill_lane
from mm2py_jobs.copy.backfill_views import figures_of, show_progress
from mm2py_jobs.copy.leaders import Leaders
from mm2py_jobs.copy.plan import Plan
from mm2py_jobs.spark.gauges import gauges
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.place import SparkPlace
from mm2py_jobs.spark.session import OpenSession, cancel_lanes, run_lanes
from mm2py_workers.signals import StopSignal

T = TypeVar("T")

STOP_WITHIN_S: Final = 40.0
"""How long lanes may take to stop in order before Spark cancels them."""

NOTE_WITHIN_S: Final = 10.0
"""How long the driver may take then to note that it has ended: a target that refuses it cannot be
waited for."""


@final
class SparkRun:
    """One run of a driver.

    Args:
        session: of the flow, its backfill topic open and the flow claimed.
        printer: whether progress is drawn.
    """

    def __init__(self, session: BackfillSession, printer: Printer) -> None:
        self._session, self._driver, self._printer = session, session.driver, printer

    async def run(
        self,
        plan: Plan,
        task: Mapping[str, str],
        new: Job,
        *,
        place: SparkPlace,
        rate_limit: int = 0,
    ) -> Job:
        """Run the unfinished job, or ``new`` by ``plan``; return it as it ended, its leases read.

        Args:
            plan: what to copy.
            task: config of the lanes' tasks.
            new: how many lanes it has is decided here.
            place: of Spark.
            rate_limit: bytes per second of all lanes together; 0: that of the flow.

        Raises:
            Mm2pyError: see ``BackfillDriver.run`` and ``open_session``.
        """
        session = self._session
        opened = await asyncio.to_thread(place.open, f"mm2py {session.name}")
        try:
            leaders = None
            if place.lanes_per_broker:
                clusters = {**session.clusters}
                if new.archive:
                    del clusters["source"]
                plan, leaders = await asyncio.to_thread(
                    plan.limited, place.lanes_per_broker, clusters
                )
            lanes = _SparkLanes(opened, session, task, rate_limit, plan, leaders)
            most = plan.lanes(opened.slots, place.lanes)
            job = await self._drive(plan, replace(new, lanes=most), lanes)
        finally:
            await asyncio.to_thread(opened.close)
        await session.store.refresh()
        return job

    async def _drive(self, plan: Plan, new: Job, lanes: "_SparkLanes") -> Job:
        with StopSignal() as stop:
            running = asyncio.create_task(self._driver.run(plan, new, lanes))
            stopping = asyncio.create_task(stop.wait())
            progress = show_progress(
                self._session.store, self._printer, SYSTEM_CLOCK, lambda: self._session.trouble
            )
            others = [stopping, asyncio.create_task(progress)]
            try:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    say(
                        "stopping: lanes store what is copied; run the same command again to "
                        "continue"
                    )
                    lanes.stop()
                    noting = asyncio.create_task(self._driver.stop())
                    others.append(noting)
                    await asyncio.wait({running, noting}, timeout=STOP_WITHIN_S)
                    if not running.done():
                        lanes.cancel()
                        await asyncio.wait({running}, timeout=NOTE_WITHIN_S)
                    if not running.done() and (trouble := self._session.trouble):
                        await _ended(running)
                        raise RetriableError(
                            f"stopped, which is not noted: {trouble}",
                            remedy="run the same command again to continue",
                        )
                return await running
            finally:
                for task in others:
                    await _ended(task)


async def _ended(task: "asyncio.Task[T]") -> None:
    """Cancel a task until it has ended: what it does at its end may wait for a cluster, too."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
    if not task.cancelled():
        task.exception()


@final
class _SparkLanes:
    """Implements ``mm2py_jobs.copy.backfill.Lanes``."""

    def __init__(
        self,
        opened: OpenSession,
        session: BackfillSession,
        task: Mapping[str, str],
        rate_limit: int,
        plan: Plan,
        leaders: Leaders | None,
    ) -> None:
        self._opened, self._session, self._task = opened, session, task
        self._rate_limit, self._plan, self._leaders = rate_limit, plan, leaders
        self._tag = f"mm2py-backfill-{secrets.token_hex(4)}"
        self._gate: LaneGate | None = None
        self._stopped = self._cancelled = False

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        name = self._session.name
        common = self._session.lane(job, self._task)
        specs = dealt_lanes(common, lanes, rate_limit=self._rate_limit)
        leaders = self._leaders
        if leaders is not None:
            places = {it.source: it.places(leaders.clusters) for it in self._plan.partitions}
            read = [[place for it in lane for place in places.get(it, ())] for lane in lanes]
            self._gate = leaders.gate(self._plan.lanes_per_broker, read)
            if self._stopped:
                self._gate.stop()
        try:
            await asyncio.to_thread(
                self._run,
                specs,
                description=f"{name} {'restore' if job.archive else 'backfill'} {job.id}",
                partitions=lanes,
            )
        except FatalError:
            if not self._cancelled:
                raise

    def _run(
        self,
        specs: Sequence[Mapping[str, object]],
        *,
        description: str,
        partitions: Sequence[Sequence[TopicPartition]],
    ) -> None:
        with gauges(self._opened, lambda: figures_of(list(self._session.store.leases.values()))):
            run_lanes(
                self._opened,
                run_backfill_lane,
                specs,
                tag=self._tag,
                description=description,
                gate=self._gate,
                partitions=partitions,
            )

    def stop(self) -> None:
        """Begin no lane any more that waits for room at its brokers: each would be a job of Spark
        that only sees that it is too late."""
        self._stopped = True
        if self._gate is not None:
            self._gate.stop()

    def cancel(self) -> None:
        """Let Spark kill lanes that did not stop in order, and forget those that wait."""
        self._cancelled = True
        cancel_lanes(self._opened.spark, self._tag)
