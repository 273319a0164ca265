"""``mm2py stream FILE --flow A->B``: the records of a flow copied by Spark until SIGTERM.

Exit codes: 0 ended in order, 1 failed, or partitions stood still at the end, 2 usage, 3 refused: the flow's engine is not spark, or something else copies it.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from mm2py.observability.logging import SecretMask, configure_logging
from mm2py_cli.output import DebugOption, Output, OutputOption, Printer, end_with
from mm2py_jobs.copy.backfill_commands import (
    FileArgument,
    FlowOption,
    FlowWork,
    flow_command,
    lane_verbs,
)
from mm2py_jobs.copy.bulk_options import MasterOption, refusing

TERM_S: Final = 120.0
"""A second or two pass between terms; partitions that come do not wait for the end of one."""


def show_stream(  # noqa: PLR0913 - one argument per option
    file: FileArgument,
    flow: FlowOption,
    checkpoint: Annotated[
        str,
        typer.Option(help="folder of Spark's checkpoint; where it is lost, nothing else is"),
    ] = "",
    master: MasterOption = "",
    term: Annotated[
        float,
        typer.Option("--term", min=1, help="seconds that lanes copy until they are dealt anew"),
    ] = TERM_S,
    max_bytes: Annotated[
        int,
        typer.Option(
            "--max-bytes-per-trigger",
            min=0,
            help="all lanes end a term early when they have copied so much; 0: no limit",
        ),
    ] = 0,
    cancel: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool,
        typer.Option(
            "--cancel",
            help="end a stream whose driver is gone: the flow's workers continue its partitions",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Copy a flow with Spark until SIGTERM, in place of the tasks of its workers (flow.engine = spark)."""

    def command() -> int:
        from mm2py.config.jaas import file_secrets
        from mm2py_jobs.copy.stream_copy import StreamOrder
        from mm2py_jobs.copy.stream_runs import cancel_stream, run_stream
        from mm2py_jobs.spark.session import require_spark

        mask = SecretMask(file_secrets(os.environ))
        configure_logging(sys.stderr, mask, debug=debug)
        if cancel:
            return cancel_stream(file, flow, Printer(output))
        require_spark()  # before the flow's clusters are asked for anything
        order = StreamOrder(Path(file), flow, master, checkpoint, term, max_bytes)
        return run_stream(order, Printer(output), mask)

    end_with(refusing(command), debug=debug)


def _plan() -> FlowWork:
    from mm2py_jobs.copy.stream_runs import show_stream_plan

    return show_stream_plan


def _cancel() -> FlowWork:
    from mm2py_jobs.copy.stream_runs import cancel_stream

    return cancel_stream


STREAM_VERBS: Final[Mapping[str, Callable[..., None]]] = {
    "plan": flow_command("Show what a stream would copy from now on, and what refuses it.", _plan),
    "run": show_stream,
    "status": lane_verbs("stream")["status"],
    "cancel": flow_command(
        "End a stream whose driver is gone: the flow's workers continue its partitions.", _cancel
    ),
}
