"""``mm2py verify FILE --flow A->B``: is what the flow has copied equal to its source?

Flow: file -> ``mm2py_jobs.verify.verify`` -> report -> JSON or tables on standard output. Exit code 0 equal, 4 not equal, 3 nothing
could be compared.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast, final

from mm2py.errors import UsageError
from mm2py.types import TopicPartition
from mm2py_jobs.spark.session import SparkPlace
from mm2py_jobs.verify.verify import verify_flow
from mm2py_workers.answers import Row, count_of, rows_of
from mm2py_workers.bulk_flow import flow_sides
from mm2py_workers.output import NOT_EQUAL, OK, UNHEALTHY, Column, Output, Printer, say

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrder:
    """The arguments of ``mm2py verify``."""

    path: Path
    flow: str | None
    topics: str | None
    tier: int
    place: SparkPlace
    repairs: bool = False
    deletes: bool = False

    def check(self) -> None:
        """Refuse what does not belong together.

        Raises:
            UsageError: two options contradict each other.
        """
        if not self.flow:
            raise UsageError("--flow is missing", remedy="write --flow 'A->B'")
        if self.deletes and not self.repairs:
            raise UsageError("--delete-copies is about --repair", remedy="add --repair")
        if self.repairs and not self.tier:
            raise UsageError(
                "--repair needs records that were compared", remedy="use --tier 1 or more"
            )


def run_verify(order: VerifyOrder, output: Output) -> int:
    """Compare, repair if that is wanted, print the report, and return the exit code.

    Raises:
        UsageError: no flow is named.
        Mm2pyError: a cluster cannot be read, or Spark failed.
    """
    order.check()
    reason = "copies are not equal to what they are copies of"
    sides = flow_sides(order.path, str(order.flow), order.topics, as_they_are=reason)
    printer = Printer(output)
    verify = partial(verify_flow, sides, order.tier, order.place.open)
    found = verify()
    if order.repairs and found["differences"]:
        found = _repaired(order, found, verify, printer)
    _print(found, printer)
    for line in cast("list[str]", found["not_compared"]):
        say(f"not compared: {line}")
    return exit_code(found)


def _repaired(
    order: VerifyOrder,
    found: dict[str, object],
    verify: Callable[[Collection[TopicPartition]], dict[str, object]],
    printer: Printer,
) -> dict[str, object]:
    """Repair what can be, compare that again, and return the report of both."""
    from mm2py_jobs.verify.repair_run import RepairOrder, repair, repaired_report

    say(_verdict(found, rows_of(found, "differences")))
    wanted = RepairOrder(order.path, str(order.flow), order.place, order.deletes)
    repairs = repair(wanted, found, printer)
    done = [
        TopicPartition(str(it["topic"]), int(str(it["partition"]))) for it in repairs if it["done"]
    ]
    nothing: dict[str, object] = {"partitions": [], "differences": [], "not_compared": []}
    return repaired_report(found, verify(done) if done else nothing, repairs)


def exit_code(report: Mapping[str, object]) -> int:
    """Return how the command ends; a flow that has copied nothing of what there is does not pass."""
    if report["differences"]:
        return NOT_EQUAL
    partitions = rows_of(report, "partitions")
    waiting = sum(count_of(row, "not_copied_offsets") or 0 for row in partitions)
    if not partitions or (waiting and not report["checked_records"]):
        say(f"nothing was compared: {waiting:,} source offsets are not copied")
        return UNHEALTHY
    return OK if report["equal"] else UNHEALTHY


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
    for row in rows_of(report, "repairs") if "repairs" in report else ():
        outcome = "copied again" if row["done"] else f"not repaired: {row['cause']}"
        say(f"{row['topic']}-{row['partition']}: {outcome}")
    for row in partitions:
        if "repair" in row and "repairs" not in report:
            say(f"{row['topic']}-{row['partition']}: {cast('Row', row['repair'])['text']}")
        for note in cast("list[str]", row["notes"]):
            say(f"{row['topic']}-{row['partition']}: {note}")
    say(_verdict(report, differences))


def _verdict(report: Mapping[str, object], differences: list[Row]) -> str:
    checked = int(str(report["checked_records"]))
    if not differences:
        lines = cast("list[str]", report["not_compared"])
        rest = f"; {len(lines):,} partitions were NOT compared" if lines else ""
        return f"equal: {checked:,} records are the same on both sides{rest}"
    hidden = max(0, len(differences) - _SHOWN)
    rest = f", {hidden:,} of them not shown" if hidden else ""
    return f"NOT equal: {len(differences):,} differences{rest}; {checked:,} records are the same"
