"""Commands of the jobs, added to ``mm2py`` by the entry point ``mm2py.commands``.

Flow: arguments -> a request -> the job, which is loaded when it runs: help is quick, and works without Spark.
"""

from enum import StrEnum
from typing import Annotated

import typer

from mm2py_jobs.copy.backfill_commands import backfill_app
from mm2py_jobs.copy.bulk_options import ExpiryOption, MasterOption, RateOption, WaitOption
from mm2py_jobs.copy.stream_commands import show_stream
from mm2py_jobs.failover.commands import add_failover_commands
from mm2py_jobs.spark.executor_watch import WAIT_EXECUTORS_S
from mm2py_workers.output import (
    DebugOption,
    FileArgument,
    Output,
    OutputOption,
    Panel,
    Printer,
    end_with,
    examples,
)

TopicsOption = Annotated[
    str | None, typer.Option(metavar="REGEX", help="topics in place of those of the file")
]
RepairOption = Annotated[
    bool, typer.Option("--repair", help="copy again what is missing at the end of a copy")
]
DeleteCopiesOption = Annotated[
    bool,
    typer.Option(
        "--delete-copies",
        help="with --repair: delete the records of copies that cannot be repaired otherwise, and copy them again",
    ),
]


def verify(  # noqa: PLR0913 - one argument per option
    file: FileArgument,
    flow: Annotated[str | None, typer.Option(metavar="A->B", help="which flow")] = None,
    topics: TopicsOption = None,
    tier: Annotated[
        int,
        typer.Option(
            min=0,
            max=3,
            help="0 ends only, 1 batches by their bytes, 2 every record and digests, 3 also all differences",
        ),
    ] = 1,
    repair: RepairOption = False,  # noqa: FBT002 - typer's way to declare a flag
    delete_copies: DeleteCopiesOption = False,  # noqa: FBT002 - typer's way to declare a flag
    master: MasterOption = "",
    wait_executors: WaitOption = WAIT_EXECUTORS_S,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Compare what a flow has copied with its source, record by record, on Spark.

    Ends with 0 if all is equal (after a repair: now), 4 if not, 3 if nothing could be compared or a repair is refused.
    """

    def run() -> int:
        from mm2py_jobs.copy.backfill_commands import refusing
        from mm2py_jobs.spark.session import SparkPlace
        from mm2py_jobs.verify.verify_command import VerifyOrder, run_verify

        order = VerifyOrder(
            path=file,
            flow=flow,
            topics=topics,
            tier=tier,
            place=SparkPlace(master, wait_executors),
            repairs=repair,
            deletes=delete_copies,
        )
        return refusing(lambda: run_verify(order, output))()

    end_with(run, debug=debug)


class ShapeOption(StrEnum):
    """What a row of an archive is."""

    BATCHES = "batches"
    RECORDS = "records"


FlowName = Annotated[str, typer.Option("--flow", metavar="A->B", help="which flow")]


def archive(  # noqa: PLR0913 - an argument per option
    file: FileArgument,
    flow: FlowName,
    to: Annotated[
        str, typer.Option(metavar="DIR", help="folder, or a path of pyarrow.fs or fsspec")
    ],
    topics: TopicsOption = None,
    shape: Annotated[
        ShapeOption, typer.Option(help="batches can be restored, records can be queried")
    ] = ShapeOption.BATCHES,
    master: MasterOption = "",
    wait_executors: WaitOption = WAIT_EXECUTORS_S,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Archive a flow's source topics as Parquet files, on Spark; run again it adds what is new."""

    def run() -> int:
        from mm2py_jobs.archive.archive_commands import run_archive
        from mm2py_jobs.spark.session import SparkPlace

        place = SparkPlace(master, wait_executors)
        return run_archive(
            file, flow, topics=topics, folder=to, shape=shape.value, place=place, output=output
        )

    end_with(run, debug=debug)


def restore(  # noqa: PLR0913 - an argument per option
    file: FileArgument,
    flow: FlowName,
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="as --to of mm2py archive")],
    topics: Annotated[
        str | None, typer.Option(metavar="REGEX", help="archived topics; default: all")
    ] = None,
    rename: Annotated[
        str | None,
        typer.Option(metavar="REGEX=REPLACEMENT", help="other names than the flow's copies have"),
    ] = None,
    master: MasterOption = "",
    wait_executors: WaitOption = WAIT_EXECUTORS_S,
    rate_limit: RateOption = 0,
    accept_expiry: ExpiryOption = False,  # noqa: FBT002 - typer's way to declare a flag
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Restore an archive into the flow's target, on Spark; run again it continues where the log ends."""

    def run() -> int:
        from mm2py_jobs.copy.backfill_commands import refusing
        from mm2py_jobs.spark.session import SparkPlace, require_spark

        require_spark()  # before pyarrow is loaded
        from mm2py_jobs.archive.restore_runs import RestoreOrder, run_restore

        order = RestoreOrder(
            file=file,
            flow=flow,
            topics=topics or "",
            folder=source,
            rename=rename or "",
            place=SparkPlace(master, wait_executors),
            rate_limit=rate_limit,
            accepts_expiry=accept_expiry,
        )
        return refusing(lambda: run_restore(order, Printer(output)))()

    end_with(run, debug=debug)


def rerun(  # noqa: PLR0913 - an argument per option
    file: FileArgument,
    flow: FlowName,
    topic: Annotated[str, typer.Option(help="topic of the source")],
    into: Annotated[str, typer.Option(metavar="TOPIC", help="new or empty topic of the target")],
    start: Annotated[
        str, typer.Option("--from", help="earliest, a timestamp, 24 hours ago, or offset:N")
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", help="now, a timestamp, 1 hour ago, or offset:N (exclusive)")
    ] = "now",
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="this one only; may be repeated")
    ] = None,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Copy a range again into another topic."""

    def run() -> int:
        from mm2py_jobs.copy.rerun import RerunOrder, run_rerun

        return run_rerun(
            RerunOrder(
                path=file,
                flow=flow,
                topic=topic,
                into=into,
                start=start,
                end=end,
                partitions=partition or (),
            ),
            output,
        )

    end_with(run, debug=debug)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of all jobs."""
    app.add_typer(backfill_app, name="backfill", rich_help_panel=Panel.COPY)
    add_failover_commands(app, Panel.MOVE)
    app.command(
        rich_help_panel=Panel.CHECK,
        epilog=examples(
            "mm2py verify mm2.properties --flow 'A->B'",
            "mm2py verify mm2.properties --flow 'A->B' --topics orders --tier 3 -o json > report.json",
            "mm2py verify mm2.properties --flow 'A->B' --topics orders --repair",
        ),
    )(verify)
    app.command(
        rich_help_panel=Panel.COPY,
        epilog=examples(
            "mm2py archive mm2.properties --flow 'A->B' --topics 'orders.*' --to /backup",
            "mm2py archive mm2.properties --flow 'A->B' --to s3://bucket/lake --shape records",
        ),
    )(archive)
    app.command(
        rich_help_panel=Panel.COPY,
        epilog=examples(
            "mm2py restore mm2.properties --flow 'A->B' --from /backup",
            "mm2py restore mm2.properties --flow 'A->B' --from /backup --rename '(.*)=restored.$1'",
        ),
    )(restore)
    app.command(
        rich_help_panel=Panel.COPY,
        epilog=examples(
            "mm2py rerun mm2.properties --flow 'A->B' --topic orders --into orders-again --from '24 hours ago'",
            "mm2py rerun mm2.properties --flow 'A->B' --topic orders --into orders-3 --partition 3 --from offset:1500 --to offset:9000",
        ),
    )(rerun)
    app.command(
        "stream",
        rich_help_panel=Panel.COPY,
        epilog=examples(
            "mm2py stream mm2.properties --flow 'A->B'",
            "mm2py stream mm2.properties --flow 'A->B' --master spark://host:7077",
        ),
    )(show_stream)
