"""What the commands of ``mm2py backfill`` do: survey, Spark session, driver, progress, report.

Flow: ``BackfillOrder`` -> ``BackfillSession`` -> ``Survey.plan`` -> refused, or a Spark session -> ``BackfillDriver.run`` with
``_SparkLanes`` -> report. A stop signal ends the lanes in order; the next run continues.
"""

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.definitions import parse_config
from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState, Wanted
from mm2py.spark.backfill import (
    BackfillDriver,
    BackfillRefusedError,
    Request,
    driver_id,
    report,
)
from mm2py.spark.plan import Plan
from mm2py.spark.session import OpenSession, cancel_lanes, open_session, run_lanes
from mm2py.spark.survey import Survey, parse_boundary
from mm2py.storage.backfill_store import BackfillStore
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_workers.backfill_commands import REFUSED
from mm2py_workers.backfill_flow import BackfillSession, flow_plan
from mm2py_workers.backfill_lane import BackfillLane, run_backfill_lane
from mm2py_workers.output import FAILED, OK, Column, Printer, say, size_text
from mm2py_workers.signals import StopSignal

__all__ = ["BackfillOrder", "make_wish", "run_backfill", "show_plan", "show_status"]

log = logging.getLogger(__name__)

PROGRESS_S: Final = 0.5
LINES_S: Final = 10.0
"""How often progress is a line where it goes to no terminal."""

SHOWN_PARTITIONS: Final = 8
STOP_WITHIN_S: Final = 40.0
"""How long lanes may take to stop in order before Spark cancels them."""

_CORES: Final = re.compile(r"local\[(\d+)")


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """The arguments of plan and run."""

    file: Path
    flow: str
    topics: str
    start: str
    end: str
    master: str
    rate_limit: int

    async def plan(self, survey: Survey, job: Job | None = None) -> Plan:
        """Return the plan, of an unfinished job by what it was begun with."""
        topics, start, end = (
            (self.topics, self.start, self.end) if job is None else (job.topics, job.start, job.end)
        )
        return await survey.plan(
            topics,
            parse_boundary(start, "--from", "earliest"),
            parse_boundary(end, "--to", "now"),
        )


async def show_plan(order: BackfillOrder, printer: Printer) -> int:
    """Print the plan; return the exit code."""
    _check(order)
    async with BackfillSession(flow_plan(order.file, order.flow)) as session:
        plan = await order.plan(await session.survey())
    found = _CORES.match(order.master)
    lanes = int(found[1]) if found else len(os.sched_getaffinity(0))
    document = plan.document(lanes, order.rate_limit)
    if printer.is_table:
        _print_plan(printer, plan, document)
    else:
        printer.document(document)
    return REFUSED if plan.refused else OK


def run_backfill(order: BackfillOrder, printer: Printer) -> int:
    """Run a backfill; return the exit code."""
    _check(order)
    flow = flow_plan(order.file, order.flow)
    # Before the loop: Spark starts a process of its own, and connections would be inherited.
    return asyncio.run(_Run(order, BackfillSession(flow), printer).run())


async def show_status(file: Path, flow: str, printer: Printer) -> int:
    """Print the newest backfill; return the exit code."""
    async with BackfillSession(flow_plan(file, flow)) as session:
        if not await session.has_topic():
            return _nothing(session, printer)
        await session.open_topic()
        store = session.connections.store
        if store.job is None:
            return _nothing(session, printer)
        _print_report(printer, store.job, list(store.leases.values()))
        return OK


async def make_wish(file: Path, flow: str, wanted: Wanted, printer: Printer) -> int:
    """Pause, resume or cancel the newest backfill; return the exit code."""
    async with BackfillSession(flow_plan(file, flow)) as session:
        if not await session.has_topic():
            raise BackfillRefusedError(f"there was no backfill of {session.name}")
        await session.open_topic()
        driver = _driver(session, SYSTEM_CLOCK)
        await driver.wish(wanted)
        store = session.connections.store
        if wanted is Wanted.CANCEL:
            # The driver releases the partitions; where none lives that is done here.
            with suppress(BackfillRefusedError):
                if await driver.claim() is not None:
                    await driver.cancel()
        await store.refresh()
        assert store.job is not None
        _print_report(printer, store.job, list(store.leases.values()))
        return OK


def _driver(session: BackfillSession, clock: Clock) -> BackfillDriver:
    name = str(session.name)
    return BackfillDriver(
        session.connections.store,
        session.connections.writer(driver_id(name)),
        session,
        name=name,
        clock=clock,
    )


@final
class _Run:
    """One ``mm2py backfill run``."""

    def __init__(self, order: BackfillOrder, session: BackfillSession, printer: Printer) -> None:
        self._order, self._session, self._printer = order, session, printer
        self._clock = SYSTEM_CLOCK

    async def run(self) -> int:
        """Run to the end or to a stop signal; return the exit code."""
        async with self._session as session:
            survey = await session.survey()
            plan = await self._order.plan(survey)
            await session.open_topic()
            driver = _driver(session, self._clock)
            job = await driver.claim()
            if job is not None:
                say(f"backfill {job.id} is unfinished, it is continued")
                plan = await self._order.plan(survey, job)
            elif plan.refused:
                return self._refuse(plan)
            task = await session.prepare_topics()
            if job is None:
                # Topics that were just created have configs to look at.
                plan = await self._order.plan(survey)
                if plan.refused:
                    return self._refuse(plan)
            return await self._copy(driver, plan, task)

    async def _copy(self, driver: BackfillDriver, plan: Plan, task: Mapping[str, str]) -> int:
        session = self._session
        opened = await asyncio.to_thread(
            open_session, self._order.master, name=f"mm2py backfill {session.name}"
        )
        try:
            lanes = _SparkLanes(opened, session, task, self._order.rate_limit)
            request = Request(
                id=f"{self._clock.now_ms()}-{secrets.token_hex(2)}",
                topics=self._order.topics,
                start=self._order.start,
                end=self._order.end,
                lanes=opened.slots,
            )
            job = await self._drive(driver, plan, request, lanes)
        finally:
            await asyncio.to_thread(opened.close)
        await session.connections.store.refresh()
        leases = list(session.connections.store.leases.values())
        _print_report(self._printer, job, leases)
        return OK if job.state is JobState.DONE else FAILED

    async def _drive(
        self, driver: BackfillDriver, plan: Plan, request: Request, lanes: "_SparkLanes"
    ) -> Job:
        with StopSignal() as stop:
            running = asyncio.create_task(driver.run(plan, request, lanes))
            stopping = asyncio.create_task(stop.wait())
            progress = asyncio.create_task(
                _show_progress(self._session.connections.store, self._printer, self._clock)
            )
            try:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    say(
                        "stopping: lanes store what is copied; run the same command again to continue"
                    )
                    await driver.stop()
                    await asyncio.wait({running}, timeout=STOP_WITHIN_S)
                    if not running.done():
                        lanes.cancel()
                return await running
            finally:
                for task in (stopping, progress):
                    task.cancel()
                await asyncio.gather(stopping, progress, return_exceptions=True)

    def _refuse(self, plan: Plan) -> int:
        if self._printer.is_table:
            for it in plan.refused:
                say(f"refused: {_shown(it.topic, it.partition)}: {it.reason}")
        else:
            self._printer.document(
                {"state": "REFUSED", "refused": [asdict(it) for it in plan.refused]}
            )
        return REFUSED


@final
class _SparkLanes:
    """Implements ``mm2py.spark.backfill.Lanes``."""

    def __init__(
        self,
        opened: OpenSession,
        session: BackfillSession,
        task: Mapping[str, str],
        rate_limit: int,
    ) -> None:
        self._opened, self._session, self._task = opened, session, task
        self._rate_limit = rate_limit
        self._tag = f"mm2py-backfill-{secrets.token_hex(4)}"

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        """Run every lane to its end."""
        name = self._session.name
        specs = [
            asdict(
                BackfillLane(
                    source=name.source,
                    target=name.target,
                    job=job.id,
                    run=job.run,
                    lane=number,
                    worker=self._session.plan.props,
                    connector=self._session.connector,
                    task={**self._task, **self._rate(len(lanes))},
                    partitions=[(it.topic, it.partition) for it in lane],
                    log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()),
                )
            )
            for number, lane in enumerate(lanes)
        ]
        await asyncio.to_thread(
            run_lanes,
            self._opened.spark,
            run_backfill_lane,
            specs,
            tag=self._tag,
            description=f"{name} backfill {job.id}",
        )

    def cancel(self) -> None:
        """Let Spark kill lanes that did not stop in order."""
        cancel_lanes(self._opened.spark, self._tag)

    def _rate(self, lanes: int) -> dict[str, str]:
        """Share the limit among lanes; without one of its own a backfill has the flow's."""
        options = parse_config(MirrorSourceConfig, self._session.connector)
        limit = self._rate_limit or options.flow_max_bytes_per_second
        return {"flow.max.bytes.per.second": str(max(1, limit // lanes))} if limit else {}


# ---- for people


def _check(order: BackfillOrder) -> None:
    """Refuse wrong arguments before anything is opened."""
    parse_boundary(order.start, "--from", "earliest")
    parse_boundary(order.end, "--to", "now")


async def _show_progress(store: BackfillStore, printer: Printer, clock: Clock) -> None:
    """Show bars on a terminal, lines elsewhere, on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal or not printer.is_table:
        while True:
            await clock.sleep(LINES_S)
            done, total = _sums(list(store.leases.values()))
            say(f"backfill: {done:,} of {total:,} offsets")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[TopicPartition | None, TaskID] = {None: progress.add_task("all", rate="")}
        before: tuple[float, int] | None = None
        while True:
            leases = list(store.leases.values())
            done, total = _sums(leases)
            size, now = sum(it.bytes for it in leases), clock.monotonic()
            rate = "" if before is None else _rate_text(size - before[1], now - before[0])
            progress.update(bars[None], completed=done, total=total, rate=rate)
            before = before if before is not None and now - before[0] < 5 else (now, size)
            _update_partitions(progress, bars, leases)
            await clock.sleep(PROGRESS_S)


def _update_partitions(
    progress: Progress, bars: dict[TopicPartition | None, TaskID], leases: Sequence[Lease]
) -> None:
    running = [it for it in leases if it.state is LeaseState.COPYING][:SHOWN_PARTITIONS]
    shown = {it.source for it in running}
    for partition in [it for it in bars if it is not None and it not in shown]:
        progress.remove_task(bars.pop(partition))
    for lease in running:
        if lease.source not in bars:
            bars[lease.source] = progress.add_task(f"  {lease.source}", rate="")
        progress.update(
            bars[lease.source],
            completed=lease.position - lease.start,
            total=lease.end - lease.start,
            rate=lease.cause[:60],
        )


def _sums(leases: Sequence[Lease]) -> tuple[int, int]:
    done = sum(min(it.position, it.end) - it.start for it in leases)
    return done, sum(it.end - it.start for it in leases)


def _rate_text(size: int, seconds: float) -> str:
    return f"{size_text(size / seconds)}/s" if seconds > 0 else ""


def _nothing(session: BackfillSession, printer: Printer) -> int:
    if printer.is_table:
        say(f"there was no backfill of {session.name}")
    else:
        printer.document({"id": None, "state": None, "records": 0, "bytes": 0, "partitions": []})
    return OK


def _print_report(printer: Printer, job: Job, leases: Sequence[Lease]) -> None:
    document = report(job, leases)
    if not printer.is_table:
        printer.document(document)
        return
    printer.fields(
        [
            ("backfill", job.id),
            ("state", job.state.value),
            ("records", f"{document['records']:,}"),
            ("cause", job.cause),
        ]
    )
    rows = document["partitions"]
    assert isinstance(rows, list)
    printer.show(
        printer.table(
            rows,
            [
                Column.text("TOPIC", "topic"),
                Column.text("PARTITION", "partition"),
                Column.text("STATE", "state"),
                Column.count("FROM", "from"),
                Column.count("TO", "to"),
                Column.count("POSITION", "position"),
                Column.count("TARGET FROM", "target_from"),
                Column.count("TARGET TO", "target_to"),
                Column.size("BYTES", "bytes"),
                Column.text("CAUSE", "cause"),
            ],
        )
    )


def _print_plan(printer: Printer, plan: Plan, document: Mapping[str, object]) -> None:
    lanes, rows = document["lanes"], document["partitions"]
    assert isinstance(lanes, list)
    assert isinstance(rows, list)
    columns = [
        Column.text("TOPIC", "topic"),
        Column.text("PARTITION", "partition"),
        Column.count("FROM", "from"),
        Column.count("TO", "to"),
        Column.size("BYTES", "bytes"),
    ]
    printer.show(printer.table(rows, columns))
    printer.fields(
        [
            ("lanes", str(len(lanes))),
            ("bytes", size_text(sum(it.bytes for it in plan.partitions))),
            ("about", f"{document['estimated_seconds']} s"),
            *(
                (
                    "changes",
                    f"{it.topic} {it.name}={it.during} for the run: {plan.reasons.get(it.name, '')}",
                )
                for it in plan.settings
            ),
            *(("note", note) for note in plan.notes),
            *(("refused", f"{_shown(it.topic, it.partition)}: {it.reason}") for it in plan.refused),
        ]
    )


def _shown(topic: str, partition: int) -> str:
    return topic if partition < 0 else f"{topic}-{partition}"
