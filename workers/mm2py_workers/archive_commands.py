"""``mm2py archive`` and ``mm2py restore``: a flow's source topics as Parquet files, and back into its target.

Flow: file -> ``mm2py.spark.archive`` or ``mm2py.spark.restore`` -> report as JSON or a table on standard output.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from mm2py.config.java_regex import PatternList
from mm2py.spark.session import open_session
from mm2py_workers.bulk_flow import flow_sides, needs_spark
from mm2py_workers.output import OK, Column, Output, Printer, count_of, rows_of, say, size_text
from mm2py_workers.restored_positions import hand_over

__all__ = ["run_archive", "run_restore"]

_ARCHIVED: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("FROM", "from"),
    Column.count("TO", "to"),
    Column.count("RECORDS", "records"),
    Column.size("BYTES", "bytes"),
    Column.count("FILES", "files"),
)
_RESTORED: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("INTO", "target_topic"),
    Column.count("RECORDS", "records"),
    Column.count("RESTORED NOW", "restored_records"),
    Column.count("TO", "target_to"),
)


def run_archive(
    path: Path,
    flow: str,
    *,
    topics: str | None,
    folder: str,
    shape: str,
    master: str,
    output: Output,
) -> int:
    """Archive, print the report, and return the exit code.

    Raises:
        Mm2pyError: see ``archive_flow``.
    """
    with needs_spark():
        from mm2py.spark.archive import archive_flow
        from mm2py.spark.archive_format import Shape
    sides = flow_sides(path, flow, topics, needs_target=False)
    report = archive_flow(sides, folder, Shape(shape), partial(open_session, master))
    _print(report, Printer(output), _ARCHIVED, "nothing new to archive")
    for row in rows_of(report, "partitions"):
        lost = count_of(row, "lost_from")
        if lost is not None and lost >= 0:
            say(
                f"{row['topic']}-{row['partition']}: offsets {lost} to {row['from']} were gone from the source"
                " before they were archived"
            )
    records, size = count_of(report, "records") or 0, size_text(count_of(report, "bytes"))
    say(f"archived {records:,} records in {size} to {report['path']}")
    return OK


def run_restore(
    path: Path,
    flow: str,
    *,
    topics: str | None,
    folder: str,
    rename: str | None,
    master: str,
    output: Output,
) -> int:
    """Restore, print the report, and return the exit code.

    Raises:
        Mm2pyError: see ``restore_flow``.
    """
    with needs_spark():
        from mm2py.spark.archive import archive_root
        from mm2py.spark.restore import Rename, restore_flow
    sides = flow_sides(path, flow, None)
    chosen = PatternList.of(topics or ".*").matches
    report = restore_flow(
        sides, archive_root(folder, sides), Rename(rename), chosen, partial(open_session, master)
    )
    for line in asyncio.run(hand_over(sides, report)):
        say(line)
    _print(
        _without_runs(report),
        Printer(output),
        _RESTORED,
        "the archive has no records of these topics",
    )
    for row in rows_of(report, "partitions"):
        if count_of(row, "lost_in_archive"):
            say(
                f"{row['topic']}-{row['partition']}: the archive lacks {row['lost_in_archive']} offsets"
            )
    records = count_of(report, "restored_records") or 0
    say(
        f"restored {records:,} records; topics that were made here keep all records (retention.ms=-1)"
    )
    return OK


def _without_runs(report: Mapping[str, object]) -> dict[str, object]:
    hidden = ("source_runs", "source_topic_id")
    partitions = [
        {key: it for key, it in row.items() if key not in hidden}
        for row in rows_of(report, "partitions")
    ]
    return {**report, "partitions": partitions}


def _print(
    report: Mapping[str, object], printer: Printer, columns: Sequence[Column], nothing: str
) -> None:
    rows = rows_of(report, "partitions")
    printer.rows(report, rows, columns, nothing)
