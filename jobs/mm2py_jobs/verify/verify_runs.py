"""``mm2py verify FILE --flow A->B``: is what the flow has copied equal to its source?

Flow: file -> ``mm2py_jobs.verify.verify`` -> report -> JSON or tables on standard output. Exit code
0 equal, 4 not equal, 3 nothing could be compared.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, cast

from mm2py.types import TopicPartition
from mm2py_cli.output import NOT_EQUAL, OK, UNHEALTHY, Column, Printer, say
from mm2py_jobs.job_options import FROM_MAP, TopicsOptions, VerifyOptions
from mm2py_jobs.open_flow import flow_sides
from mm2py_jobs.progress import reporting
from mm2py_jobs.verify.verify import planned, verify_flow
from mm2py_workers.answers import Row, count_of, rows_of

_REASON: Final = "copies are not equal to what they are copies of"

_SHOWN: Final = 50
"""Differences in a table; JSON has all."""

_PARTITIONS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("COPY", "target_topic", wide=True),
    Column.text("EQUAL", "equal"),
    Column.count("RECORDS", "checked_records"),
    Column.count("NOT COPIED YET", "not_copied_offsets"),
)
_DIFFERENCES: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("KIND", "kind"),
    Column.count("SOURCE OFFSET", "source_offset"),
    Column.count("TARGET OFFSET", "target_offset"),
    Column.text("FIELDS", "fields"),
)


_PLANNED: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("COPY", "target_topic", wide=True),
    Column.count("SOURCE OFFSETS", "source_offsets"),
    Column.count("TARGET OFFSETS", "target_offsets"),
)


def show_verify_plan(options: TopicsOptions, printer: Printer) -> int:
    """Print which partitions would be compared, and which would not; return the exit code."""
    sides = flow_sides(options.file, options.flow, options.topics, as_they_are=_REASON)
    plan = asyncio.run(planned(sides, None))
    rows: list[dict[str, object]] = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "target_topic": partition.target_topic,
            "source_offsets": partition.source_log.end - partition.source_log.first,
            "target_offsets": partition.target_log.end - partition.target_log.first,
        }
        for partition in plan.partitions
    ]
    document = {"flow": str(sides.flow), "partitions": rows, "not_compared": plan.not_compared}
    printer.rows(document, rows, _PLANNED, "the flow has no partition that can be compared")
    for line in plan.not_compared:
        say(f"not compared: {line}")
    return OK if rows else UNHEALTHY


def run_verify(options: VerifyOptions, printer: Printer) -> int:
    """Compare, repair if that is wanted, print the report, and return the exit code.

    Raises:
        UsageError: no flow is named.
        Mm2pyError: a cluster cannot be read, or Spark failed.
    """
    options.check()
    sides = flow_sides(options.file, options.flow, options.topics, as_they_are=_REASON)
    with reporting(sides, "verify", options.topics, printer) as reported:
        verify = partial(
            verify_flow,
            sides,
            options.tier,
            options.place.open,
            rate_limit=options.rate_limit,
            from_map=options.begins == FROM_MAP,
            progress=reported,
        )
        report = verify()
        if options.repairs and report["differences"]:
            report = _repaired(options, report, verify, printer)
        differences = rows_of(report, "differences")
        # As the exit code has it: JSON, what workers show and the last line say the same.
        report["equal"] = exit_code(report) == OK
        reported.end(
            equal=report["equal"],
            records=report["checked_records"],
            differences=len(differences) + _lost(report),
            not_compared=len(cast("list[str]", report["not_compared"])),
            result=verdict(report, differences),
        )
    _print(report, printer)
    if not printer.is_table and not differences and (nothing := _nothing(report)):
        say(nothing)
    for line in cast("list[str]", report["not_compared"]):
        say(f"not compared: {line}")
    return exit_code(report)


def _repaired(
    options: VerifyOptions,
    report: dict[str, object],
    verify: Callable[[Collection[TopicPartition]], dict[str, object]],
    printer: Printer,
) -> dict[str, object]:
    """Repair what can be, compare that again, and return the report of both."""
    from mm2py_jobs.verify.repair_run import repair, repaired_report

    say(verdict(report, rows_of(report, "differences")))
    repairs = repair(options, report, printer)
    done = [
        TopicPartition(str(it["topic"]), int(str(it["partition"]))) for it in repairs if it["done"]
    ]
    nothing: dict[str, object] = {"partitions": [], "differences": [], "not_compared": []}
    return repaired_report(report, verify(done) if done else nothing, repairs)


def exit_code(report: Mapping[str, object]) -> int:
    """Return how the command ends; a flow that has copied nothing of what there is does not pass,
    nor a repair that lost records."""
    if report["differences"] or _lost(report):
        return NOT_EQUAL
    return OK if report["equal"] and not _nothing(report) else UNHEALTHY


def _nothing(report: Mapping[str, object]) -> str:
    """Say that nothing was compared, where that is so."""
    partitions = rows_of(report, "partitions")
    waiting = sum(count_of(row, "not_copied_offsets") or 0 for row in partitions)
    compared = report["checked_records"]
    if not report["tier"]:  # which reads no record
        compared = any(row["target_ranges"] for row in partitions)
    if partitions and (compared or not waiting):
        return ""
    return f"nothing was compared: {waiting:,} source offsets are not copied"


def _print(report: Mapping[str, object], printer: Printer) -> None:
    if not printer.is_table:
        # As JSON has it: tuples are lists, also in YAML.
        printer.document(json.loads(json.dumps(report)))
        return
    partitions = rows_of(report, "partitions")
    printer.show(printer.table(partitions, _PARTITIONS))
    differences = rows_of(report, "differences")
    if differences:
        printer.show(printer.table(differences[:_SHOWN], _DIFFERENCES))
    for row in _repairs(report):
        outcome = "copied again" if row["done"] else f"not repaired: {row['cause']}"
        say(f"{row['topic']}-{row['partition']}: {outcome}")
        for first, end in cast("Sequence[Sequence[int]]", row["lost"]):
            gone = f"the source deleted its offsets {first} to {end} before they were copied again"
            say(f"{row['topic']}-{row['partition']}: {gone}, neither side has them")
    for row in partitions:
        if "repair" in row and "repairs" not in report:
            say(f"{row['topic']}-{row['partition']}: {cast('Row', row['repair'])['text']}")
        for note in cast("list[str]", row["notes"]):
            say(f"{row['topic']}-{row['partition']}: {note}")
    say(verdict(report, differences))


def _repairs(report: Mapping[str, object]) -> Sequence[Row]:
    return rows_of(report, "repairs") if "repairs" in report else ()


def _lost(report: Mapping[str, object]) -> int:
    """Return how many offsets a repair found on neither side."""
    ranges = (it for row in _repairs(report) for it in cast("Sequence[Sequence[int]]", row["lost"]))
    return sum(end - first for first, end in ranges)


def verdict(report: Mapping[str, object], differences: Sequence[Row]) -> str:
    """Return the last line of a report; it says no more than the exit code."""
    checked = int(str(report["checked_records"]))
    if (lost := _lost(report)) and not differences:
        return f"NOT equal: neither side has {lost:,} offsets; {checked:,} records are the same"
    if not differences:
        if nothing := _nothing(report):
            return nothing
        lines = cast("list[str]", report["not_compared"])
        rest = f"; {len(lines):,} partitions were NOT compared" if lines else ""
        return f"equal: {checked:,} records are the same on both sides{rest}"
    hidden = max(0, len(differences) - _SHOWN)
    rest = f", {hidden:,} of them not shown" if hidden else ""
    return f"NOT equal: {len(differences):,} differences{rest}; {checked:,} records are the same"
