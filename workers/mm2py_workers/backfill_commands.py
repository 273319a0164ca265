"""``mm2py backfill``: plan, run, status, pause, resume, cancel.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused by a check. With ``-o json`` the report is all that goes to standard output.
What a command needs is loaded when it runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mm2py_workers.output import DebugOption, Output, OutputOption, Printer, end_with, examples

if TYPE_CHECKING:
    from mm2py.mirror.backfills import Wanted

__all__ = ["REFUSED", "backfill_app", "refusing"]

REFUSED: Final = 3
"""A check refuses; nothing was changed."""

backfill_app: Final = typer.Typer(
    help="Copy history with Spark, then hand each partition over to the running flow.",
    no_args_is_help=True,
    epilog=examples(
        "mm2py backfill plan mm2.properties --flow 'A->B' --topics 'orders.*'",
        "mm2py backfill run mm2.properties --flow 'A->B' --topics 'orders.*'",
        "mm2py backfill status mm2.properties --flow 'A->B' -o json",
    ),
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="mm2.properties")]
FlowOption = Annotated[str, typer.Option("--flow", metavar="A->B", help="the flow")]
TopicsOption = Annotated[
    str,
    typer.Option(
        "--topics", help="source topics, a Java pattern; all topics of the flow without it"
    ),
]
FromOption = Annotated[
    str,
    typer.Option("--from", help="earliest, a timestamp, or offset:N; where nothing is copied yet"),
]
ToOption = Annotated[str, typer.Option("--to", help="now, a timestamp, or offset:N (exclusive)")]
MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        help="Spark master; without it the session that exists, else all cores of this machine",
    ),
]
RateOption = Annotated[
    int,
    typer.Option("--rate-limit", min=0, help="bytes per second of all lanes together; 0: no limit"),
]


def refusing(command: Callable[[], int]) -> Callable[[], int]:
    """Return a command whose refusals end with their own exit code and one line on standard error."""

    def run() -> int:
        from mm2py.spark.backfill import BackfillRefusedError
        from mm2py_workers.output import say

        try:
            return command()
        except BackfillRefusedError as error:
            say(f"mm2py: {error}")
            return REFUSED

    return run


@backfill_app.command("plan")
def plan(  # noqa: PLR0913 - one argument per option
    file: FileArgument,
    flow: FlowOption,
    topics: TopicsOption = "",
    start: FromOption = "earliest",
    end: ToOption = "now",
    master: MasterOption = "",
    rate_limit: RateOption = 0,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show lanes, ranges, bytes, an estimate, and what the checks refuse; changes nothing."""

    def command() -> int:
        from mm2py_workers.backfill_runs import BackfillOrder, show_plan

        order = BackfillOrder(file, flow, topics, start, end, master, rate_limit)
        return show_plan(order, Printer(output))

    end_with(refusing(command), debug=debug)


@backfill_app.command("run")
def run(  # noqa: PLR0913 - one argument per option
    file: FileArgument,
    flow: FlowOption,
    topics: TopicsOption = "",
    start: FromOption = "earliest",
    end: ToOption = "now",
    master: MasterOption = "",
    rate_limit: RateOption = 0,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Copy, and hand each partition over to the running flow; continues an unfinished backfill of the flow."""

    def command() -> int:
        from mm2py_workers.backfill_runs import BackfillOrder, run_backfill

        order = BackfillOrder(file, flow, topics, start, end, master, rate_limit)
        return run_backfill(order, Printer(output))

    end_with(refusing(command), debug=debug)


@backfill_app.command("status")
def status(
    file: FileArgument,
    flow: FlowOption,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show the newest backfill of a flow, by partition."""

    def command() -> int:
        from mm2py_workers.backfill_runs import show_status

        return show_status(file, flow, Printer(output))

    end_with(refusing(command), debug=debug)


def _wish(
    wanted: "Callable[[], Wanted]", file: Path, flow: str, output: Output, *, debug: bool
) -> None:
    def command() -> int:
        from mm2py_workers.backfill_runs import make_wish

        return make_wish(file, flow, wanted(), Printer(output))

    end_with(refusing(command), debug=debug)


def _wanted(name: str) -> "Wanted":
    from mm2py.mirror.backfills import Wanted

    return Wanted(name)


@backfill_app.command("pause")
def pause(
    file: FileArgument,
    flow: FlowOption,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Let the lanes of a running backfill read nothing until it is resumed."""
    _wish(lambda: _wanted("PAUSE"), file, flow, output, debug=debug)


@backfill_app.command("resume")
def resume(
    file: FileArgument,
    flow: FlowOption,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Let paused lanes continue."""
    _wish(lambda: _wanted("RUN"), file, flow, output, debug=debug)


@backfill_app.command("cancel")
def cancel(
    file: FileArgument,
    flow: FlowOption,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """End a backfill: what is copied stays, the running flow continues every partition where it is."""
    _wish(lambda: _wanted("CANCEL"), file, flow, output, debug=debug)
