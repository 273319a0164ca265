"""``mm2py failover``, ``mm2py failback``, ``mm2py drill``: the change of sides as commands.

Exit codes: 0 done (``--execute``: drained, switched, and the flow back runs), 1 failed, 2 usage, 3 refused by a check, 4 switched, but the
source is gone and what it has not given away is still to be listed. With ``-o json`` the document is all that goes to standard output.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from mm2py.errors import UsageError
from mm2py.mirror.failovers import MOST_LOSS, FailoverKind
from mm2py_workers.output import Output, OutputOption, Printer, examples
from mm2py_workers.rest_access import Access, asks_rest

PropertiesArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="mm2.properties of the workers", show_default=False)
]
FlowOption = Annotated[
    str, typer.Option("--flow", metavar="A->B", help="the flow whose target takes over")
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="show what would be done; changes nothing")
]
ExecuteOption = Annotated[
    bool, typer.Option("--execute", help="do it, or continue one that was interrupted")
]
StatusOption = Annotated[bool, typer.Option("--status", help="show the newest one")]
CancelOption = Annotated[
    bool, typer.Option("--cancel", help="undo an unfinished one, as long as nobody was switched")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="with --execute or --cancel: only say what would be done")
]
AcceptOption = Annotated[
    str | None,
    typer.Option(
        "--accept-loss",
        metavar="N",
        help="go on although up to N offsets are not copied: the number that --plan shows",
    ),
]
UnplannedOption = Annotated[
    bool, typer.Option("--unplanned", help="the source is gone: switch without it")
]
SettleOption = Annotated[
    float,
    typer.Option(
        "--settle", min=0.2, help="seconds for which the source's log ends must stand still"
    ),
]
DrainOption = Annotated[
    float,
    typer.Option("--drain-timeout", min=1, help="seconds without progress after which it gives up"),
]


def _command(kind: FailoverKind) -> Callable[..., None]:
    def command(  # noqa: PLR0913 - one argument per option
        access: Access,
        properties: PropertiesArgument,
        flow: FlowOption,
        *,
        plan: PlanOption = False,
        execute: ExecuteOption = False,
        status: StatusOption = False,
        cancel: CancelOption = False,
        dry_run: DryRunOption = False,
        accept_loss: AcceptOption = None,
        unplanned: UnplannedOption = False,
        settle: SettleOption = 2.0,
        drain_timeout: DrainOption = 120.0,
        output: OutputOption = Output.TABLE,
    ) -> int:
        from mm2py_jobs.failover.failover import FailoverRequest
        from mm2py_jobs.failover.failover_runs import Action, FailoverOrder, run_order

        given = {
            Action.PLAN: plan,
            Action.EXECUTE: execute,
            Action.STATUS: status,
            Action.CANCEL: cancel,
        }
        chosen = [action for action, wanted in given.items() if wanted]
        if len(chosen) != 1:
            raise UsageError("choose one of --plan, --execute, --status and --cancel")
        request = FailoverRequest(
            id="",
            kind=kind,
            accept_loss=-1 if accept_loss is None else _offsets(accept_loss),
            unplanned=unplanned,
            settle_s=settle,
            drain_s=drain_timeout,
        )
        order = FailoverOrder(
            file=properties, flow=flow, action=chosen[0], dry_run=dry_run, request=request
        )
        return run_order(order, _of_file(access, properties), Printer(output))

    command.__name__ = str(kind)
    command.__doc__ = _TEXTS[kind]
    return asks_rest(command)


def _offsets(text: str) -> int:
    """Read a number of offsets; typed wrong, it may cost records, so it is refused in a line of its own."""
    number = text.strip()
    if not (number.isascii() and number.isdecimal() and int(number[:20]) <= MOST_LOSS):
        raise UsageError(
            f"--accept-loss {text!r} is no number of offsets from 0 to {MOST_LOSS}",
            remedy="give the number that --plan shows as WOULD LOSE",
        )
    return int(number)


_TEXTS: Final = {
    FailoverKind.FAILOVER: """Let clients move to the target of a flow: everything copied, exact group offsets, and the flow back begun.

    --execute ends with 0 only when that is done; interrupted, it continues where it was. It refuses what would lose records.
    """,
    FailoverKind.FAILBACK: """Let clients return to the source of a flow that was failed over: the same way back.
    """,
}


@asks_rest
def drill(
    access: Access,
    properties: PropertiesArgument,
    flow: FlowOption,
    *,
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE", help="where the report goes, as JSON")
    ] = Path("failover-drill.json"),
    settle: SettleOption = 2.0,
    output: OutputOption = Output.TABLE,
) -> int:
    """Check a failover without doing it, and write a report: what would refuse it, and how long clients would wait.

    Ends with 3 if a failover would be refused, or would leave somebody who writes.
    """
    from mm2py_jobs.failover.failover import FailoverRequest
    from mm2py_jobs.failover.failover_runs import Action, FailoverOrder, run_order

    request = FailoverRequest(id="", settle_s=settle)
    order = FailoverOrder(
        file=properties, flow=flow, action=Action.DRILL, request=request, report=report
    )
    return run_order(order, _of_file(access, properties), Printer(output))


def _of_file(access: Access, file: Path) -> Access:
    """Return how the worker of ``file`` is reached, where nothing else was given."""
    return access if access.url or access.file else replace(access, file=file)


def add_failover_commands(app: typer.Typer, panel: str) -> None:
    """Add the three commands to a panel of the help."""
    app.command(
        "failover",
        rich_help_panel=panel,
        epilog=examples(
            "mm2py failover mm2.properties --flow 'A->B' --plan",
            "mm2py failover mm2.properties --flow 'A->B' --execute",
            "mm2py failover mm2.properties --flow 'A->B' --execute --unplanned --accept-loss 120",
            "mm2py failover mm2.properties --flow 'A->B' --status -o json",
        ),
    )(_command(FailoverKind.FAILOVER))
    app.command(
        "failback",
        rich_help_panel=panel,
        epilog=examples(
            "mm2py failback mm2.properties --flow 'A->B' --plan",
            "mm2py failback mm2.properties --flow 'A->B' --execute",
        ),
    )(_command(FailoverKind.FAILBACK))
    app.command(
        "drill",
        rich_help_panel=panel,
        epilog=examples("mm2py drill mm2.properties --flow 'A->B' --report drill.json"),
    )(drill)
