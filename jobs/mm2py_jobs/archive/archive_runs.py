"""``mm2py archive``: a flow's source topics as Parquet files.

Flow: file -> ``mm2py_jobs.archive.archive`` -> report as JSON or a table on standard output.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.backfills import JobState
from mm2py.observability.logging import some_of
from mm2py.observability.quantities import size_text
from mm2py_cli.output import FAILED, OK, Column, Printer, say
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.job_options import ArchiveOptions
from mm2py_jobs.open_flow import flow_sides
from mm2py_jobs.spark.session import require_spark
from mm2py_workers.answers import count_of, rows_of

_PLANNED: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("FROM", "from"),
    Column.count("TO", "to"),
    Column.text("CAUSE", "cause"),
)
_ARCHIVED: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("FROM", "from"),
    Column.count("TO", "to"),
    Column.count("RECORDS", "records"),
    Column.size("BYTES", "bytes"),
    Column.count("FILES", "files"),
)
_KEPT_UP: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("JOINED", "joined"),
    Column.count("INTO", "into"),
    Column.size("BYTES", "bytes"),
    Column.count("REMOVED", "removed"),
    Column.text("CAUSE", "cause"),
)


def show_archive_plan(options: ArchiveOptions, printer: Printer) -> int:
    """Print what would be archived, and what cannot be, then what would be joined and removed of
    the files that are there; return the exit code; raises as ``run_archive``."""
    oldest_ms = options.oldest_ms(SYSTEM_CLOCK.now_ms())
    require_spark()
    from mm2py_jobs.archive.archive import planned
    from mm2py_jobs.archive.archive_format import Shape
    from mm2py_jobs.archive.archive_upkeep import Upkeep, planned_upkeep

    sides, upkeep = _sides(options), Upkeep(joins=options.joins, oldest_ms=oldest_ms)
    plan = planned(sides, options.folder, Shape(options.shape))
    if upkeep.is_asked:
        plan["upkeep"] = planned_upkeep(sides, options.folder, upkeep)
    _print(plan, printer, _PLANNED)
    return OK


def run_archive(options: ArchiveOptions, printer: Printer) -> int:
    """Archive, keep the files up where that is asked for, print the report, and return the exit
    code.

    Raises:
        Mm2pyError: see ``archive_flow`` and ``keep_up``.
    """
    oldest_ms = options.oldest_ms(SYSTEM_CLOCK.now_ms())
    require_spark()
    from mm2py_jobs.archive.archive import archive_flow
    from mm2py_jobs.archive.archive_format import Shape
    from mm2py_jobs.archive.archive_upkeep import Upkeep, keep_up
    from mm2py_jobs.progress import reporting

    sides, upkeep = _sides(options), Upkeep(joins=options.joins, oldest_ms=oldest_ms)
    with reporting(sides, "archive", options.topics, printer) as reported:
        report = archive_flow(
            sides,
            options.folder,
            Shape(options.shape),
            options.place.open,
            rate_limit=options.rate_limit,
            progress=reported,
        )
        if upkeep.is_asked:
            report["upkeep"] = keep_up(sides, options.folder, upkeep, options.place.open)
        kept_up = rows_of(report, "upkeep")
        rows = [*rows_of(report, "partitions"), *kept_up]
        causes = [str(row["cause"]) for row in rows if row["cause"]]
        reported.end(
            state=JobState.FAILED if causes else JobState.DONE,
            records=count_of(report, "records") or 0,
            bytes=count_of(report, "bytes") or 0,
            result=f"to {report['path']}{_gone(report)}",
            cause=some_of(causes, 3, "; "),
        )
    _print(report, printer, _ARCHIVED)
    for row in rows_of(report, "partitions"):
        lost = count_of(row, "lost_from")
        if lost is not None and lost >= 0:
            say(
                f"{row['topic']}-{row['partition']}: offsets {lost} to {row['lost_to']} were gone "
                "from the source before they were archived"
            )
        if row["cause"]:
            say(f"not archived: {row['cause']}")
    for row in kept_up:
        if row["cause"]:
            say(f"not kept up: {row['topic']}-{row['partition']}: {row['cause']}")
    records, size = count_of(report, "records") or 0, size_text(count_of(report, "bytes"))
    say(f"archived {records:,} records in {size} to {report['path']}")
    if upkeep.is_asked:
        joined, into, removed = (
            sum(count_of(row, it) or 0 for row in kept_up) for it in ("joined", "into", "removed")
        )
        say(f"joined {joined:,} files into {into:,}, removed {removed:,}")
    return FAILED if causes else OK


def _sides(options: ArchiveOptions) -> FlowSides:
    return flow_sides(options.file, options.flow, options.topics, needs_target=False)


def _gone(report: Mapping[str, object]) -> str:
    """Say how much the source had deleted before it was archived; between the first and the last of
    it other records may be archived."""
    firsts = [count_of(row, "lost_from") for row in rows_of(report, "partitions")]
    gone = sum(first is not None and first >= 0 for first in firsts)
    return f"; {gone} partitions had lost records before they were archived" if gone else ""


def _print(report: Mapping[str, object], printer: Printer, columns: Sequence[Column]) -> None:
    printer.rows(report, rows_of(report, "partitions"), columns, "nothing new to archive")
    if printer.is_table and "upkeep" in report:
        kept_up = rows_of(report, "upkeep")
        printer.rows(report, kept_up, _KEPT_UP, "no files to join or to remove")
