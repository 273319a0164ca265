"""``mm2py backfill``: plan, run, status, pause, resume, cancel.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused by a check. With ``-o json`` the report is all that goes to standard output.
What a command needs is loaded when it runs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mm2py_jobs.copy.bulk_options import ExpiryOption, MasterOption, RateOption, WaitOption
from mm2py_jobs.spark.executor_watch import WAIT_EXECUTORS_S
from mm2py_workers.output import DebugOption, Output, OutputOption, Printer, end_with, examples

if TYPE_CHECKING:
    from mm2py_jobs.copy.backfill_runs import BackfillOrder

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
JobOption = Annotated[
    str,
    typer.Option(
        "--order", hidden=True, help="id of what is begun; ends in order when standard input does"
    ),
]


def refusing(command: Callable[[], int]) -> Callable[[], int]:
    """Return a command whose refusals end with their own exit code and one line on standard error."""

    def run() -> int:
        from mm2py.storage.job_claim import BackfillRefusedError
        from mm2py_workers.output import say

        try:
            return command()
        except BackfillRefusedError as error:
            say(f"mm2py: {error}")
            return REFUSED

    return run


OrderWork = Callable[["BackfillOrder", Printer], int]
FlowWork = Callable[[Path, str, Printer], int]


def _order_command(name: str, text: str, load: Callable[[], OrderWork]) -> None:
    """Add a command that takes what is to be copied; ``load`` imports what it does."""

    def command(  # noqa: PLR0913 - one argument per option
        file: FileArgument,
        flow: FlowOption,
        topics: TopicsOption = "",
        start: FromOption = "earliest",
        end: ToOption = "now",
        master: MasterOption = "",
        wait_executors: WaitOption = WAIT_EXECUTORS_S,
        rate_limit: RateOption = 0,
        accept_expiry: ExpiryOption = False,  # noqa: FBT002 - typer's way to declare a flag
        job: JobOption = "",
        output: OutputOption = Output.TABLE,
        debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
    ) -> None:
        def work() -> int:
            from mm2py_jobs.copy.backfill_runs import BackfillOrder
            from mm2py_jobs.spark.session import SparkPlace

            order = BackfillOrder(
                file,
                flow,
                topics,
                start,
                end,
                SparkPlace(master, wait_executors),
                rate_limit,
                job,
                accepts_expiry=accept_expiry,
            )
            return load()(order, Printer(output))

        end_with(refusing(work), debug=debug)

    backfill_app.command(name, help=text)(command)


def _flow_command(name: str, text: str, load: Callable[[], FlowWork]) -> None:
    """Add a command about the newest backfill of a flow; ``load`` imports what it does."""

    def command(
        file: FileArgument,
        flow: FlowOption,
        output: OutputOption = Output.TABLE,
        debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
    ) -> None:
        end_with(refusing(lambda: load()(file, flow, Printer(output))), debug=debug)

    backfill_app.command(name, help=text)(command)


def _plan() -> OrderWork:
    from mm2py_jobs.copy.backfill_runs import show_plan

    return show_plan


def _run() -> OrderWork:
    from mm2py_jobs.copy.backfill_runs import run_backfill

    return run_backfill


def _status() -> FlowWork:
    from mm2py_jobs.copy.backfill_runs import show_status

    return show_status


def _wish(wanted: str) -> FlowWork:
    from mm2py.mirror.backfills import Wanted
    from mm2py_jobs.copy.backfill_runs import make_wish

    return partial(make_wish, Wanted(wanted))


_order_command(
    "plan",
    "Show lanes, ranges, bytes, an estimate, and what the checks refuse; changes nothing.",
    _plan,
)
_order_command(
    "run",
    "Copy, and hand each partition over to the running flow; continues an unfinished backfill of the flow.",
    _run,
)
_flow_command("status", "Show the newest backfill of a flow, by partition.", _status)
_flow_command(
    "pause",
    "Let the lanes of a running backfill read nothing until it is resumed.",
    partial(_wish, "PAUSE"),
)
_flow_command("resume", "Let paused lanes continue.", partial(_wish, "RUN"))
_flow_command(
    "cancel",
    "End a backfill: what is copied stays, the running flow continues every partition where it is.",
    partial(_wish, "CANCEL"),
)
