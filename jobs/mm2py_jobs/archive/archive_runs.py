"""``mm2py archive``: a flow's source topics as Parquet files.

Flow: file -> ``mm2py_jobs.archive.archive`` -> report as JSON or a table on standard output.
"""

from collections.abc import Mapping, Sequence
from typing import Final

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


def show_archive_plan(options: ArchiveOptions, printer: Printer) -> int:
    """Print what would be archived, and what cannot be; return the exit code; raises as
    ``run_archive``."""
    require_spark()
    from mm2py_jobs.archive.archive import planned
    from mm2py_jobs.archive.archive_format import Shape

    plan = planned(_sides(options), options.folder, Shape(options.shape))
    _print(plan, printer, _PLANNED)
    return OK


def run_archive(options: ArchiveOptions, printer: Printer) -> int:
    """Archive, print the report, and return the exit code; ``Mm2pyError``: see ``archive_flow``."""
    require_spark()
    from mm2py_jobs.archive.archive import archive_flow
    from mm2py_jobs.archive.archive_format import Shape
    from mm2py_jobs.progress import reporting

    sides = _sides(options)
    with reporting(sides, "archive", options.topics, printer) as reported:
        report = archive_flow(
            sides,
            options.folder,
            Shape(options.shape),
            options.place.open,
            rate_limit=options.rate_limit,
            progress=reported,
        )
        causes = [str(row["cause"]) for row in rows_of(report, "partitions") if row["cause"]]
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
    records, size = count_of(report, "records") or 0, size_text(count_of(report, "bytes"))
    say(f"archived {records:,} records in {size} to {report['path']}")
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
