"""``mm2py verify FILE --flow A->B``: is what the flow has copied equal to its source?

Flow: file -> ``mm2py.spark.verify`` -> signed report -> JSON or tables on standard output. Exit code 0 equal, 4 not equal, 3 nothing
could be compared or a report fails its check.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, cast

from mm2py.errors import ConfigError, UsageError
from mm2py.spark.session import open_session
from mm2py.spark.verify import verify_flow
from mm2py.spark.verify_report import check_report, sign_report
from mm2py_workers.bulk_flow import flow_sides
from mm2py_workers.output import OK, UNHEALTHY, Column, Output, Printer, Row, count_of, rows_of, say

__all__ = ["NOT_EQUAL", "check_file", "exit_code", "run_verify"]

NOT_EQUAL: Final = 4
"""Verified, and not equal."""

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


def run_verify(
    path: Path, flow: str | None, *, topics: str | None, tier: int, master: str, output: Output
) -> int:
    """Compare, print the report, and return the exit code.

    Raises:
        UsageError: no flow is named.
        Mm2pyError: a cluster cannot be read, or Spark failed.
    """
    if not flow:
        raise UsageError("--flow is missing", remedy="write --flow 'A->B'")
    sides = flow_sides(path, flow, topics)
    report = sign_report(verify_flow(sides, tier, partial(open_session, master)))
    _print(report, Printer(output))
    for line in cast("list[str]", report["not_compared"]):
        say(f"not compared: {line}")
    return exit_code(report)


def exit_code(report: Mapping[str, object]) -> int:
    """Return how the command ends; a flow that has copied nothing of what there is does not pass."""
    if not report["equal"]:
        return NOT_EQUAL
    partitions = rows_of(report, "partitions")
    waiting = sum(count_of(row, "not_copied_offsets") or 0 for row in partitions)
    if not partitions or (waiting and not report["checked_records"]):
        say(f"nothing was compared: {waiting:,} source offsets are not copied")
        return UNHEALTHY
    return OK


def check_file(path: Path, output: Output) -> int:
    """Check a report that was kept: 0 as written and equal, 4 as written and not equal, 3 not as written.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        report = check_report(text)
    except ConfigError as error:
        say(f"{path}: {error}")
        return UNHEALTHY
    printer = Printer(output)
    if printer.is_table:
        _print(report, printer)
    else:
        printer.document({"valid": True, "equal": report["equal"]})
    return OK if report["equal"] else NOT_EQUAL


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
    for row in partitions:
        for note in cast("list[str]", row["notes"]):
            say(f"{row['topic']}-{row['partition']}: {note}")
    say(_verdict(report, differences))


def _verdict(report: Mapping[str, object], differences: list[Row]) -> str:
    checked = int(str(report["checked_records"]))
    if report["equal"]:
        return f"equal: {checked:,} records are the same on both sides"
    hidden = max(0, len(differences) - _SHOWN)
    rest = f", {hidden:,} of them not shown" if hidden else ""
    return f"NOT equal: {len(differences):,} differences{rest}; {checked:,} records are the same"
