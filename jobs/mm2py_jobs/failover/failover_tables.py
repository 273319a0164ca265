"""What ``mm2py failover``, ``failback`` and ``drill`` print."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast

from mm2py.mirror.failovers import Failover, OpenTransaction
from mm2py.observability.logging import some_of
from mm2py_jobs.failover.failover_views import FailoverPlan
from mm2py_workers.answers import Row, texts_of
from mm2py_workers.output import Column, Printer, say

if TYPE_CHECKING:
    from mm2py_jobs.failover.failover_drill import Drill

_TOPICS: Final = (
    Column.text("TOPIC", "topic"),
    Column.text("COPY", "copy", wide=True),
    Column.count("PARTITIONS", "partitions"),
    Column.count("LAG", "lag_records"),
    Column.age("BEHIND", "lag_ms"),
    Column.count("WOULD LOSE", "would_lose"),
    Column("PROBLEMS", lambda row: "; ".join(texts_of(row, "problems"))),
)
_GROUPS: Final = (
    Column.text("GROUP", "group"),
    Column.text("TYPE", "type"),
    Column.text("STATE", "state"),
    Column.text("STATE THERE", "state_there"),
    Column.count("READS AGAIN", "reads_again"),
    Column.count("SKIPS", "skips"),
    Column.text("NOT SYNCED", "not_synced"),
)
_WRITERS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("PRODUCER", "producer_id"),
    Column.age("LAST WRITTEN", "age_ms"),
)
_TAIL: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("FROM", "start"),
    Column.count("TO", "end"),
    Column.count("KEPT", "records"),
)
_MOVES: Final = (
    Column.text("GROUP", "group"),
    Column.count("PARTITIONS MOVED", "moved"),
    Column("LEFT ALONE", lambda row: "; ".join(texts_of(row, "left"))),
)
_STEPS: Final = (
    Column.text("STEP", "step"),
    Column.count("MS", "ms"),
    Column.text("FOUND", "found"),
)


def _rows(items: object) -> list[Row]:
    return cast("list[Row]", [asdict(it) for it in cast("tuple[Failover, ...]", items)])


def print_plan(printer: Printer, plan: FailoverPlan, accept_loss: int) -> None:
    """Print a plan, and what is to be known of it and of the number that is accepted."""
    for remark in plan.remarks(accept_loss):
        say(remark)
    if not printer.is_table:
        printer.document(plan.document())
        return
    printer.fields(_plan_fields(plan))
    printer.rows([], _rows(plan.topics), _TOPICS, "the flow copies no topic")
    if plan.source_reachable:
        printer.rows([], _rows(plan.groups), _GROUPS, "no group is to be moved")
        if plan.writers is not None:
            none = "no producer with an id has written in 10 minutes; those without idempotence are not visible"
            printer.rows([], _rows(plan.writers), _WRITERS, none)


def _plan_fields(plan: FailoverPlan) -> Iterator[tuple[str, str]]:
    yield "FLOW", plan.flow
    yield "STATE", plan.state or "(no worker of it answers)"
    yield "FLOW BACK", plan.reverse_state or "(none yet: it is created)"
    yield "SOURCE", "answers" if plan.source_reachable else "does not answer"
    awaited = f"; {plan.awaited} above open transactions, which the drain waits for"
    yield "WOULD LOSE", str(plan.would_lose) + (awaited if plan.awaited else "")
    yield from _transactions(plan.transactions)
    yield "FENCE", f"{plan.fence_rules} rules" + (f"; {plan.fence_note}" if plan.fence_note else "")
    if plan.quarantine:
        yield "QUARANTINE", ", ".join(plan.quarantine)
    for job in plan.jobs:
        yield "ENDS FIRST", job
    if plan.standing:
        yield "REFUSED", plan.standing
    if plan.unfinished:
        yield "UNFINISHED", plan.unfinished


def _transactions(found: Sequence[OpenTransaction]) -> Iterator[tuple[str, str]]:
    if found:
        yield "NOT ENDED", some_of(list(map(str, found)), 10, "; ")


def print_failover(printer: Printer, failover: Failover) -> None:
    """Print a failover as it is."""
    if not printer.is_table:
        printer.document(asdict(failover))
        return
    fields = {
        "FLOW": failover.flow,
        "ID": f"{failover.kind} {failover.id}",
        "STEP": str(failover.step),
        "NOT COPIED": "-" if failover.missing < 0 else str(failover.missing),
        "NOT FENCED": failover.fence_note,
        "CAUSE": failover.cause,
    }
    given = [(name, text) for name, text in fields.items() if text]
    printer.fields([*given, *_transactions(failover.transactions)])
    for items, columns in ((failover.groups, _MOVES), (failover.tail, _TAIL)):
        if items:
            printer.show(printer.table(_rows(items), columns))


def print_drill(printer: Printer, drill: "Drill") -> None:
    """Print what a rehearsal has found."""
    if not printer.is_table:
        printer.document(drill.document())
        return
    printer.show(printer.table(_rows(drill.steps), _STEPS))
    printer.fields(
        [
            ("READY", "yes" if drill.is_ready else "no"),
            ("CLIENTS WAIT", f"about {drill.gap_ms / 1000:.1f} s"),
        ]
    )
    for reason in drill.reasons:
        say(f"not ready: {reason}")
