"""What the commands of ``mm2py backfill`` show: bars or lines while it runs, plans and reports as
tables or JSON.

Flow: leases as they are read from the backfill topic -> ``show_progress`` on standard error;
``Plan``, ``Job`` -> standard output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mm2py.api.context import LossEvent
from mm2py.clock import Clock
from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState, Wanted
from mm2py.observability.quantities import size_text
from mm2py.storage.backfill_store import BackfillStore
from mm2py.types import TopicPartition
from mm2py_cli.output import Column, Printer, say
from mm2py_cli.progress import LINES_S, draws
from mm2py_jobs.copy.backfill_report import OrderReport, held_text, report
from mm2py_jobs.copy.plan import Plan, Refusal
from mm2py_jobs.job_views import kind_of
from mm2py_jobs.spark.gauges import Figures
from mm2py_workers.answers import count_of, rows_of

PROGRESS_S: Final = 0.5

_NOTHING: Final[Mapping[str, object]] = {
    "id": None,
    "state": None,
    "records": 0,
    "bytes": 0,
    "partitions": [],
    "cause": "",
}
"""The report where there was no job."""

SHOWN_PARTITIONS: Final = 8
RATE_OVER_S: Final = 5.0


async def show_progress(
    store: BackfillStore, printer: Printer, clock: Clock, trouble: Callable[[], str]
) -> None:
    """Show bars on a terminal, lines elsewhere, on standard error; ``trouble`` returns why what is
    known of the leases is old."""
    console = Console(stderr=True)
    if not draws(printer, console):
        while True:
            await clock.sleep(LINES_S)
            leases = list(store.leases.values())
            done, total = _sums(leases)
            kind = kind_of(store.job)
            held = trouble() or held_text(leases)
            say(f"{kind} {_doing(store)}: {done:,} of {total:,} offsets{held and '; '}{held}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, redirect_stdout=False) as progress:
        bars: dict[TopicPartition | None, TaskID] = {None: progress.add_task("", rate="")}
        before: tuple[float, int] | None = None
        held = ""
        while True:
            leases = list(store.leases.values())
            done, total = _sums(leases)
            size, now = sum(lease.bytes for lease in leases), clock.monotonic()
            rate = ""
            if before is not None and now > before[0]:
                rate = f"{size_text((size - before[1]) / (now - before[0]))}/s"
            progress.update(
                bars[None], description=_doing(store), completed=done, total=total, rate=rate
            )
            before = before if before is not None and now - before[0] < RATE_OVER_S else (now, size)
            _update_partitions(progress, bars, leases)
            held, held_before = trouble() or held_text(leases), held
            if held not in ("", held_before):
                say(held)  # above the bars, which have no room for the whole of it
            await clock.sleep(PROGRESS_S)


def _update_partitions(
    progress: Progress, bars: dict[TopicPartition | None, TaskID], leases: Sequence[Lease]
) -> None:
    running = [it for it in leases if it.state is LeaseState.COPYING][:SHOWN_PARTITIONS]
    shown = {it.source for it in running}
    for partition in [bar for bar in bars if bar is not None and bar not in shown]:
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


def _doing(store: BackfillStore) -> str:
    """Say what the driver does now."""
    job = store.job
    if job is None or (job.state is JobState.RUNNING and not store.leases):
        return "starting"
    if store.wanted is Wanted.CANCEL and job.state.is_copied:
        return "is cancelled"
    copies = any(lease.state is LeaseState.COPYING for lease in store.leases.values())
    if job.state is JobState.RUNNING and not copies:
        return "starts lanes"
    return {JobState.RUNNING: "copies", JobState.PAUSED: "is paused"}.get(
        job.state, job.state.value
    )


def _sums(leases: Sequence[Lease]) -> tuple[int, int]:
    done = sum(min(lease.position, lease.end) - lease.start for lease in leases)
    return done, sum(lease.end - lease.start for lease in leases)


def figures_of(leases: Sequence[Lease]) -> Figures:
    """Return how far a job is, for Spark's metrics."""
    done, total = _sums(leases)
    return Figures(total, done, sum(it.records for it in leases), sum(it.bytes for it in leases))


def print_status(
    printer: Printer, job: Job | None, leases: Sequence[Lease], planned: OrderReport | None
) -> None:
    """Print the newest job, and what was planned over REST after it."""
    if not printer.is_table:
        document = _NOTHING if job is None else report(job, leases)
        printer.document({**document, "planned": planned})
        return
    if planned is not None:
        printer.fields(
            [
                ("planned over REST", planned["id"]),
                ("state", planned["state"]),
                ("topics", planned["topics"] or "all of the flow"),
                ("from", planned["from"]),
                ("to", planned["to"]),
                ("by", planned["by"]),
                ("worker", planned["worker"]),
                ("cause", planned["cause"]),
            ]
        )
    if job is not None:
        print_report(printer, job, leases)


def say_refused(refused: Sequence[Refusal]) -> None:
    """Name what the checks refuse."""
    for it in refused:
        say(f"refused: {partition_text(it.topic, it.partition)}: {it.reason}")


def print_report(
    printer: Printer,
    job: Job,
    leases: Sequence[Lease],
    refused: Sequence[Refusal] = (),
    lost: Sequence[LossEvent] = (),
) -> None:
    """Print a job and its partitions, those that it has left out, and what the source deleted
    first."""
    document = report(job, leases)
    if not printer.is_table:
        gone = [
            {**it.partition._asdict(), "from": it.first_offset, "to": it.last_offset + 1}
            for it in lost
        ]
        left = {"refused": [asdict(it) for it in refused], "lost": gone}
        printer.document({**document, **{name: rows for name, rows in left.items() if rows}})
        return
    say_refused(refused)
    for it in lost:
        say(
            f"lost: {it.partition}: offsets {it.first_offset} to {it.last_offset} were gone from "
            "the source before they were copied"
        )
    printer.fields(
        [
            (kind_of(job), job.id),
            ("state", job.state.value),
            ("records", f"{document['records']:,}"),
            ("cause", job.cause),
        ]
    )
    printer.show(
        printer.table(
            rows_of(document, "partitions"),
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


def print_plan(printer: Printer, plan: Plan, document: Mapping[str, object]) -> None:
    """Print a plan as tables."""
    columns = [
        Column.text("TOPIC", "topic"),
        Column.text("PARTITION", "partition"),
        Column.count("FROM", "from"),
        Column.count("TO", "to"),
        Column.size("BYTES", "bytes"),
    ]
    if any(it.left_out for it in plan.partitions):
        columns.append(Column.count("LEFT OUT", "left_out"))
    partitions = rows_of(document, "partitions")
    printer.show(printer.table(partitions, columns))
    if not partitions and not plan.refused:
        say("nothing is to be copied: the flow has it already, or no topic matches")
    size = count_of(document, "bytes")
    printer.fields(
        [
            ("lanes", str(len(rows_of(document, "lanes")))),
            ("bytes", size_text(size) if size is not None else "not known"),
            ("about", f"{document['estimated_seconds']} s" if size is not None else "not known"),
            *(
                (
                    "changes",
                    f"{setting.topic} {setting.name}={setting.during} for the run: "
                    f"{plan.reasons.get(setting.name, '')}",
                )
                for setting in plan.settings
            ),
            *(("note", note) for note in plan.notes),
            *(
                ("refused", f"{partition_text(it.topic, it.partition)}: {it.reason}")
                for it in plan.refused
            ),
        ]
    )


def partition_text(topic: str, partition: int) -> str:
    """Return ``topic-partition``, the topic alone for -1."""
    return topic if partition < 0 else f"{topic}-{partition}"
