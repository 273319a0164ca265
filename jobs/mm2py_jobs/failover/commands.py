"""``mm2py failover``, ``mm2py failback`` and ``mm2py drill``, the timed plan of a failover.

Flow: arguments -> ``FailoverRequest`` -> ``FailoverJob``, masked, loaded when it runs -> plan, or
the record -> printed, exit code.

Exit codes: 0 done (``--execute``: drained, switched, and the flow back runs), 1 failed, 2 usage, 3
refused by a check, 4 switched, but the source is gone and its tail is still to be listed. With
``-o json`` standard output has only the document.
"""

import json
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from mm2py.errors import UsageError
from mm2py.mirror.failovers import MOST_LOSS, Failover, FailoverKind, OpenTransaction, Step
from mm2py.observability.logging import some_of
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer, say
from mm2py_cli.rest_access import Access
from mm2py_jobs.failover.plan import (
    DRAIN_S,
    SETTLE_S,
    FailoverCommands,
    FailoverPlan,
    FailoverRequest,
    Masked,
    TimedPlan,
    where_it_stands,
)
from mm2py_workers.answers import Row, texts_of
from mm2py_workers.worker_place import NoWorkerError

if TYPE_CHECKING:
    from mm2py_jobs.failover.flows import FlowsApi

LEFT_BEHIND: Final = 4
"""Switched, but the source is gone: a later run lists its tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverOptions:
    """What all verbs have: the file of the workers, the flow, and a worker that is asked for it."""

    access: Access
    properties: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="mm2.properties of the workers", show_default=False),
    ]
    flow: Annotated[str, typer.Option(metavar="A->B", help="the flow whose target takes over")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(FailoverOptions):
    """What is asked for."""

    accept_loss: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="continue although up to N offsets are not copied: the number that --plan shows",
        ),
    ] = None
    unplanned: Annotated[
        bool, typer.Option("--unplanned", help="the source is gone: switch without it")
    ] = False
    settle: Annotated[
        float, typer.Option(min=0.2, help="seconds for which the source's log ends must not move")
    ] = SETTLE_S

    def request(self, kind: FailoverKind) -> FailoverRequest:
        return FailoverRequest(
            kind=kind,
            accept_loss=-1 if self.accept_loss is None else _offsets(self.accept_loss),
            unplanned=self.unplanned,
            settle_s=self.settle,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PlanOptions):
    """What is asked for, where it is done."""

    drain_timeout: Annotated[
        float, typer.Option(min=1, help="longest drain without progress, in seconds")
    ] = DRAIN_S

    def request(self, kind: FailoverKind) -> FailoverRequest:
        return replace(PlanOptions.request(self, kind), drain_s=self.drain_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderOptions(RunOptions):
    """The verbs as options, of ``mm2py failover`` and ``mm2py failback``."""

    plan: Annotated[
        bool, typer.Option("--plan", help="show what would be done; changes nothing")
    ] = False
    timed: Annotated[
        bool,
        typer.Option(
            "--timed", help="with --plan: also ask the questions of each step, and time them"
        ),
    ] = False
    execute: Annotated[
        bool, typer.Option("--execute", help="run it, or continue an interrupted one")
    ] = False
    status: Annotated[bool, typer.Option("--status", help="show the newest one")] = False
    cancel: Annotated[
        bool, typer.Option("--cancel", help="cancel an unfinished one, until clients have switched")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="with --execute or --cancel: only show what would be done"),
    ] = False


def _older(kind: FailoverKind) -> Callable[..., int]:
    verbs = failover_verbs(kind)

    def command(options: OlderOptions, printer: Printer) -> int:
        chosen = options.plan + options.execute + options.status + options.cancel
        if chosen != 1:
            raise UsageError("choose one of --plan, --execute, --status and --cancel")
        if options.timed and not options.plan:
            raise UsageError("--timed goes with --plan")
        if options.status:
            return verbs["status"](options, printer)
        if options.cancel:
            return verbs["cancel"](options, dry_run=options.dry_run, printer=printer)
        if options.plan or options.dry_run:
            return verbs["plan"](options, timed=options.timed, printer=printer)
        return verbs["run"](options, printer)

    command.__doc__ = _TEXTS[kind]
    return command


def failover_verbs(kind: FailoverKind) -> dict[str, Callable[..., int]]:
    """Return the verbs of ``mm2py job failover`` and ``mm2py job failback``."""

    def plan(
        options: PlanOptions,
        *,
        timed: Annotated[
            bool,
            typer.Option("--timed", help="also ask the questions of each step, and time them"),
        ] = False,
        printer: Printer,
    ) -> int:
        """Show what would be done and what refuses it; changes nothing."""
        request = options.request(kind)
        return _run(lambda job: _plan(job, request, printer, timed=timed), options, kind)

    def run(options: RunOptions, printer: Printer) -> int:
        """Move clients, or continue an interrupted run; refuses what would lose records."""
        request = options.request(kind)
        return _run(lambda job: _execute(job, request, printer), options, kind)

    def status(options: FailoverOptions, printer: Printer) -> int:
        """Show the newest one: its step, what is not copied, and why its last driver ended."""
        name = f"{kind} of {options.flow}"
        return _run(lambda job: _status(job, name, printer), options, kind)

    def cancel(
        options: FailoverOptions,
        *,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="only show what would be done")
        ] = False,
        printer: Printer,
    ) -> int:
        """Cancel an unfinished one, until clients have switched."""
        return _run(lambda job: _cancel(job, printer, dry_run=dry_run), options, kind)

    return {"plan": plan, "run": run, "status": status, "cancel": cancel}


def _offsets(text: str) -> int:
    """Read a number of offsets; a typing error may cost records, so the message is in one line of
    its own."""
    number = text.strip()
    if not (number.isascii() and number.isdecimal() and int(number[:20]) <= MOST_LOSS):
        raise UsageError(
            f"--accept-loss {text!r} is no number of offsets from 0 to {MOST_LOSS}",
            remedy="give the number that --plan shows as WOULD LOSE",
        )
    return int(number)


_TEXTS: Final = {
    FailoverKind.FAILOVER: """Move clients to the target of a flow: everything copied, exact group offsets, and the flow back started.

    --execute ends with 0 only when that is done; an interrupted run is continued. It refuses what would lose records.
    """,
    FailoverKind.FAILBACK: """Return clients to the source of a flow that was failed over: the same steps in the other direction.
    """,
}


def drill(
    options: FailoverOptions,
    *,
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE", help="where the report goes, as JSON")
    ] = Path("failover-drill.json"),
    settle: Annotated[
        float, typer.Option(min=0.2, help="seconds for which the source's log ends must not move")
    ] = SETTLE_S,
    printer: Printer,
) -> int:
    """Write a report of ``failover --plan --timed``: what would refuse a failover, and how long
    clients would wait. Read-only.

    Ends with 3 where ``failover --plan`` does, or if a transaction stays open or a producer is
    active that no ACL would block.
    """
    import asyncio

    async def run(job: FailoverCommands) -> int:
        timed = await _timed(job, FailoverRequest(settle_s=settle), printer)
        text = json.dumps(asdict(timed), indent=2) + "\n"
        await asyncio.to_thread(report.write_text, text, "utf-8")
        print_times(printer, timed)
        for text in timed.reasons:
            say(f"not ready: {text}")
        for text in timed.plan.problems:
            say(text)
        say(f"report: {report}")
        return OK if timed.ready else UNHEALTHY

    return _run(run, options, FailoverKind.FAILOVER)


FAILOVER_COMMANDS: Final[Mapping[str, tuple[Callable[..., int], tuple[str, ...]]]] = {
    "failover": (
        _older(FailoverKind.FAILOVER),
        (
            "mm2py failover mm2.properties --flow 'A->B' --plan",
            "mm2py failover mm2.properties --flow 'A->B' --execute",
            "mm2py failover mm2.properties --flow 'A->B' --execute --unplanned --accept-loss 120",
            "mm2py failover mm2.properties --flow 'A->B' --status -o json",
        ),
    ),
    "failback": (
        _older(FailoverKind.FAILBACK),
        (
            "mm2py failback mm2.properties --flow 'A->B' --plan",
            "mm2py failback mm2.properties --flow 'A->B' --execute",
        ),
    ),
    "drill": (drill, ("mm2py drill mm2.properties --flow 'A->B' --report drill.json",)),
}
"""The older commands, and examples of each."""


# ---- what the commands do


def _run(
    work: Callable[[FailoverCommands], Awaitable[int]], options: FailoverOptions, kind: FailoverKind
) -> int:
    """Do ``work`` with an open failover; return its exit code."""
    import asyncio

    from mm2py_jobs.failover.flows import RestFlows
    from mm2py_jobs.failover.job import opened

    access = options.access
    if not access.url and not access.file:
        access = replace(access, file=options.properties)

    async def run() -> int:
        with _worker_of(access) as api:
            async with opened(options.properties, options.flow, kind, RestFlows(api)) as job:
                return await work(Masked(job, job.mask.apply))

    return asyncio.run(run())


@contextmanager
def _worker_of(access: Access) -> Generator["FlowsApi"]:
    """Yield a worker's API; if none is known each request fails, and a plan is shown
    nevertheless."""
    from mm2py_cli.rest_client import RemoteApi
    from mm2py_jobs.failover.flows import NoWorkerApi

    try:
        client = access.client()
    except NoWorkerError as error:
        yield NoWorkerApi(error)
        return
    with client as rest:
        yield RemoteApi(rest)


async def _plan(
    job: FailoverCommands, request: FailoverRequest, printer: Printer, *, timed: bool = False
) -> int:
    times = await _timed(job, request, printer) if timed else None
    plan = await job.plan() if times is None else times.plan
    begun = await job.newest()
    refusals = plan.refusals(request, begun)
    reasons = plan.not_ready(request, begun) if times is None else times.reasons
    if times is None or printer.is_table:
        print_plan(printer, plan, request.accept_loss)
    if times is not None:
        print_times(printer, times)
    for text in reasons:
        say(f"{'would be refused' if text in refusals else 'not ready'}: {text}")
    return UNHEALTHY if reasons else OK


async def _timed(job: FailoverCommands, request: FailoverRequest, printer: Printer) -> TimedPlan:
    from mm2py_cli.progress import progress

    with progress(str(request.kind), printer) as told:
        return await job.timed_plan(request, lambda step: told(f"asks what {step} asks", 0, 0))


async def _execute(job: FailoverCommands, request: FailoverRequest, printer: Printer) -> int:
    def planned(plan: FailoverPlan) -> None:
        for text in plan.remarks(request.accept_loss):
            say(text)

    begun = await job.newest()
    if (
        begun is not None
        and not begun.step.is_over
        and 0 <= request.accept_loss < begun.accept_loss
    ):
        say(
            f"{begun.accept_loss} offsets were accepted before: a smaller number takes nothing back"
        )
    import asyncio

    from mm2py_cli.progress import progress

    recorded = [begun] if begun is not None and not begun.step.is_over else []

    def report(failover: Failover) -> None:
        recorded.append(failover)
        _say_step(failover)

    try:
        with progress(str(request.kind), printer) as told:
            failover = await job.execute(
                request, report, planned, lambda it: told(_step_text(it), 0, 0)
            )
    except asyncio.CancelledError:  # Ctrl-C
        stands = f"{recorded[-1].step}; {where_it_stands(recorded[-1])}" if recorded else ""
        say(f"interrupted at {stands or 'its plan; --status shows whether it has begun'}")
        raise
    source, target = failover.flow.split("->")
    print_failover(printer, failover)
    if failover.step is Step.DONE:
        if failover.kind is FailoverKind.FAILBACK:
            say(
                f"flow {source}->{target} is STOPPED: if clients of {source} stay there, copy what "
                f"they write with mm2py flow resume {source}/{target}"
            )
        return OK
    say(
        f"{source} is gone: run the command again when it is back, which lists and keeps what "
        "was not copied"
    )
    return LEFT_BEHIND


async def _status(job: FailoverCommands, name: str, printer: Printer) -> int:
    failover = await job.newest()
    if failover is not None:
        print_failover(printer, failover)
        if failover.step.is_over:
            return OK
        if not failover.cause:
            say(f"a driver may be at work; else {where_it_stands(failover, '--execute')}")
        return UNHEALTHY
    if printer.is_table:
        say(f"there was no {name}")
    else:
        printer.document(None)
    return OK


async def _cancel(job: FailoverCommands, printer: Printer, *, dry_run: bool) -> int:
    failover = await job.cancel(_say_step, dry_run=dry_run)
    print_failover(printer, failover)
    if dry_run:
        say("the ACLs that it has created would be removed")
    return OK


def _say_step(failover: Failover) -> None:
    say(f"{failover.flow} {failover.kind} {failover.id}: {_step_text(failover)}")


def _step_text(failover: Failover) -> str:
    notes = f", {failover.missing} offsets not copied" if failover.missing > 0 else ""
    if failover.step is Step.DRAIN and failover.transactions:
        notes += f", waits: {some_of(list(map(str, failover.transactions)), 1, '; ')}"
    if failover.step is Step.SWITCH and failover.switched_ms:
        notes += f", clients may write to {failover.flow.partition('->')[2]}"
    return f"{failover.step}{notes}"


# ---- what they print

_TOPICS: Final = (
    Column.text("TOPIC", "topic"),
    Column.text("COPY", "copy", wide=True),
    Column.count("PARTITIONS", "partitions"),
    Column.count("LAG", "lag_records"),
    Column.age("RPO", "lag_ms"),
    Column.count("WOULD LOSE", "would_lose"),
    Column("PROBLEMS", lambda row: "; ".join(texts_of(row, "problems"))),
)
_GROUPS: Final = (
    Column.name("GROUP", "group"),
    Column.text("TYPE", "type"),
    Column.text("STATE", "state"),
    Column.text("STATE ON TARGET", "state_there"),
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


def gone_text(tail: object) -> str:
    """Return what the source had deleted of a tail before it was kept."""
    ranges = cast("Mapping[str, Sequence[tuple[int, int]]]", tail)["gone"]
    return ", ".join(f"{first} to {end}" for first, end in ranges)


_TAIL: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.count("FROM", "start"),
    Column.count("TO", "end"),
    Column.count("KEPT", "records"),
    Column("GONE", gone_text),
)
_MOVES: Final = (
    Column.name("GROUP", "group"),
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
    """Print a plan and its remarks."""
    for remark in plan.remarks(accept_loss):
        say(remark)
    if not printer.is_table:
        printer.document(asdict(plan))
        return
    printer.fields(_plan_fields(plan))
    printer.rows([], _rows(plan.topics), _TOPICS, "the flow copies no topic")
    if plan.source_reachable:
        printer.rows([], _rows(plan.groups), _GROUPS, "no group is to be moved")
        if plan.writers is not None:
            none = (
                "no producer with an id has written in 10 minutes; those without idempotence "
                "are not visible"
            )
            printer.rows([], _rows(plan.writers), _WRITERS, none)


def _plan_fields(plan: FailoverPlan) -> Iterator[tuple[str, str]]:
    yield "FLOW", plan.flow
    yield "STATE", plan.state or "(no worker of it answers)"
    yield "FLOW BACK", plan.reverse_state or "(none yet: it is created)"
    yield "SOURCE", "answers" if plan.source_reachable else "does not answer"
    awaited = f"; {plan.awaited} above open transactions, which the drain waits for"
    yield "WOULD LOSE", str(plan.would_lose) + (awaited if plan.awaited else "")
    if plan.source_reachable:
        yield "COPIED FIRST", f"{plan.copied_first} (ordinary lag, lost only with the source)"
    yield from _transactions(plan.transactions)
    yield "FENCE", f"{plan.fence_rules} rules" + (f"; {plan.fence_note}" if plan.fence_note else "")
    if plan.quarantine:
        yield "QUARANTINE", ", ".join(plan.quarantine)
    for spark_job in plan.jobs:
        yield "ENDS FIRST", spark_job
    for text in plan.unreached:
        yield "NOT REACHED", text
    if plan.standing:
        yield "REFUSED", plan.standing
    if plan.unfinished:
        yield "UNFINISHED", plan.unfinished


def _transactions(transactions: Sequence[OpenTransaction]) -> Iterator[tuple[str, str]]:
    if transactions:
        yield "NOT ENDED", some_of(list(map(str, transactions)), 10, "; ")


def print_times(printer: Printer, timed: TimedPlan) -> None:
    """Print the times of a plan's steps."""
    if not printer.is_table:
        printer.document(asdict(timed))
        return
    printer.show(printer.table(_rows(timed.steps), _STEPS))
    printer.fields(
        [
            ("READY", "yes" if timed.ready else "no"),
            ("CLIENTS WAIT", f"about {timed.gap_ms / 1000:.1f} s"),
        ]
    )


def print_failover(printer: Printer, failover: Failover) -> None:
    """Print the record of a failover."""
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
