"""The verbs of backfills, and those that ask and steer the newest lanes' job of a flow, a restore too: status, pause, resume, cancel.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused by a check. With ``-o json`` the report is all that goes to standard output.
What a command needs is loaded when it runs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mm2py_cli.output import DebugOption, Output, OutputOption, Printer, end_with
from mm2py_jobs.copy.bulk_options import (
    BACKFILL,
    ExpiryOption,
    LanesOption,
    LanesPerBrokerOption,
    MasterOption,
    RateOption,
    SkipOption,
    WaitOption,
    refusing,
)
from mm2py_jobs.spark.executor_watch import WAIT_EXECUTORS_S

if TYPE_CHECKING:
    from mm2py_jobs.copy.backfill_runs import BackfillOrder

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="mm2.properties")]
FlowOption = Annotated[str, typer.Option("--flow", metavar="A->B", help="the flow")]
TopicsOption = Annotated[
    str,
    typer.Option(
        "--topics",
        help="source topics: names and Java patterns, comma-separated; all topics of the flow without it",
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


OrderWork = Callable[["BackfillOrder", Printer], int]
FlowWork = Callable[[Path, str, Printer], int]


def _order_command(text: str, load: Callable[[], OrderWork]) -> Callable[..., None]:
    """Return a command that takes what is to be copied; ``load`` imports what it does."""

    def command(  # noqa: PLR0913 - one argument per option
        file: FileArgument,
        flow: FlowOption,
        topics: TopicsOption = "",
        start: FromOption = "earliest",
        end: ToOption = "now",
        master: MasterOption = "",
        wait_executors: WaitOption = WAIT_EXECUTORS_S,
        lanes: LanesOption = 0,
        max_lanes_per_broker: LanesPerBrokerOption = 0,
        rate_limit: RateOption = 0,
        accept_expiry: ExpiryOption = False,  # noqa: FBT002 - typer's way to declare a flag
        skip_refused: SkipOption = False,  # noqa: FBT002 - typer's way to declare a flag
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
                SparkPlace(master, wait_executors, lanes, max_lanes_per_broker),
                rate_limit,
                job,
                accepts_expiry=accept_expiry,
                skips_refused=skip_refused,
            )
            return load()(order, Printer(output))

        end_with(refusing(work), debug=debug)

    command.__doc__ = text
    return command


def flow_command(text: str, load: Callable[[], FlowWork]) -> Callable[..., None]:
    """Return a command about a flow, with no other options; ``load`` imports what it does."""

    def command(
        file: FileArgument,
        flow: FlowOption,
        output: OutputOption = Output.TABLE,
        debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
    ) -> None:
        end_with(refusing(lambda: load()(file, flow, Printer(output))), debug=debug)

    command.__doc__ = text
    return command


def _plan() -> OrderWork:
    from mm2py_jobs.copy.backfill_runs import show_plan

    return show_plan


def _run() -> OrderWork:
    from mm2py_jobs.copy.backfill_runs import run_backfill

    return run_backfill


def _status(what: str) -> FlowWork:
    from mm2py_jobs.copy.backfill_runs import show_status

    return partial(show_status, what)


def _wish(what: str, wanted: str) -> FlowWork:
    from mm2py.mirror.backfills import Wanted
    from mm2py_jobs.copy.backfill_runs import make_wish

    return partial(make_wish, what, Wanted(wanted))


def lane_verbs(what: str) -> dict[str, Callable[..., None]]:
    """Return the verbs that ask and steer the newest "backfill" or "restore" of a flow."""
    return {
        "status": flow_command(
            f"Show the newest {what} of a flow, by partition.", partial(_status, what)
        ),
        "pause": flow_command(
            f"Let the lanes of a running {what} read nothing until it is resumed.",
            partial(_wish, what, "PAUSE"),
        ),
        "resume": flow_command("Let paused lanes continue.", partial(_wish, what, "RUN")),
        "cancel": flow_command(
            f"End a {what}: what is copied stays, the running flow continues every partition where it is.",
            partial(_wish, what, "CANCEL"),
        ),
    }


BACKFILL_VERBS: Final[Mapping[str, Callable[..., None]]] = {
    "plan": _order_command(
        "Show lanes, ranges, bytes, an estimate, and what the checks refuse; changes nothing.",
        _plan,
    ),
    "run": _order_command(
        "Copy, and hand each partition over to the running flow; continues an unfinished backfill of the flow.",
        _run,
    ),
    **lane_verbs(BACKFILL),
}
