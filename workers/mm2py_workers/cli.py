"""``mm2py``: all its commands.

Flow: arguments -> one function per command -> exit code: 0 ok, 1 an error in one line on stderr, 2 wrong
usage, 3 something is unhealthy or lags. What a command needs is loaded when it runs: help is quick.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from mm2py.spark.executor_watch import WAIT_EXECUTORS_S
from mm2py_workers.backfill_commands import backfill_app
from mm2py_workers.bulk_options import ExpiryOption, MasterOption, RateOption, WaitOption
from mm2py_workers.failover_commands import add_failover_commands
from mm2py_workers.flow_changes import commands as flow_app
from mm2py_workers.group_commands import group_app
from mm2py_workers.lag_command import show_lag
from mm2py_workers.output import DebugOption, Output, OutputOption, Printer, end_with, examples
from mm2py_workers.stream_commands import show_stream
from mm2py_workers.topic_command import show_topics
from mm2py_workers.translation_commands import import_app, migrate_app

LOOK: Final = "Look"
CHANGE: Final = "See and change flows"
MOVE: Final = "Move clients"
CHECK: Final = "Check copies"
COPY: Final = "Copy beside the flow"
FILES: Final = "Files"
OTHERS: Final = "Others"

app: Final = typer.Typer(
    name="mm2py",
    help="Replicate between Kafka clusters: a drop-in for MirrorMaker 2.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "mm2py lint mm2.properties",
        "mm2py flow list",
        "mm2py lag --watch",
        "mm2py flow pause A/B --topic orders",
        "MM2PY_URL=https://worker:8443 mm2py flow list --user ann --ca-file ca.pem",
    ),
)
config_app: Final = typer.Typer(help="What a properties file means.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel=FILES)
app.add_typer(migrate_app, name="migrate", rich_help_panel=FILES)
app.add_typer(import_app, name="import", rich_help_panel=FILES)


class LedgerOutput(StrEnum):
    """How the ledger is printed."""

    TABLE = "table"
    JSON = "json"


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="mm2.properties")]
TopicsOption = Annotated[
    str | None, typer.Option(metavar="REGEX", help="topics in place of those of the file")
]


class Shell(StrEnum):
    """Shells that complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(rich_help_panel=FILES)
def lint(file: FileArgument, debug: DebugOption = False) -> None:  # noqa: FBT002 - typer's way to declare a flag
    """Print what is wrong or surprising in a properties file, with line numbers."""

    def run() -> int:
        from mm2py_workers.config_commands import lint_file

        return lint_file(file)

    end_with(run, debug=debug)


@config_app.command()
def explain(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A->B]", help="one flow only")] = None,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print every effective property and where it came from."""

    def run() -> int:
        from mm2py_workers.config_commands import explain_file

        return explain_file(file, flow)

    end_with(run, debug=debug)


@app.command(rich_help_panel=LOOK)
def ledger(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A->B]", help="one flow only")] = None,
    topic: Annotated[str | None, typer.Option(help="one source topic only")] = None,
    output: Annotated[LedgerOutput, typer.Option("-o", "--output")] = LedgerOutput.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print what was lost, refused or may be doubled, with exact source offsets."""

    def show() -> int:
        # The clients are loaded by the commands that need them.
        from mm2py_workers.ledger_command import show_ledger

        return show_ledger(file, flow, topic=topic, as_json=output is LedgerOutput.JSON)

    end_with(show, debug=debug)


@app.command("consumer-offset-checker", rich_help_panel=LOOK)
def consumer_offset_checker(
    group: Annotated[str, typer.Option("--group", help="the consumer group")],
    servers: Annotated[
        str,
        typer.Option("--bootstrap-server", metavar="HOST:PORT,...", help="brokers of its cluster"),
    ] = "",
    topic: Annotated[
        str, typer.Option("--topic", metavar="NAME,...", help="these topics only")
    ] = "",
    broker_info: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool, typer.Option("--broker-info", help="list the brokers too")
    ] = False,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="client properties, such as a login")
    ] = None,
    zkconnect: Annotated[str, typer.Option(hidden=True)] = "",
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print how far a consumer group has read, as MirrorMaker 1's guides show it."""

    def show() -> int:
        from mm2py_workers.offset_checker import OffsetsQuestion, check_offsets

        question = OffsetsQuestion(
            servers=servers,
            group=group,
            topics=[it.strip() for it in topic.split(",") if it.strip()],
            config=command_config,
            shows_brokers=broker_info,
            zookeeper=zkconnect,
        )
        return check_offsets(question)

    end_with(show, debug=debug)


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

ContinuousOption = Annotated[
    bool,
    typer.Option(
        "--continuous", help="compare what is new again and again, until SIGTERM; no Spark"
    ),
]
EveryOption = Annotated[
    float, typer.Option("--every", min=0.1, help="seconds between two rounds of --continuous")
]
ProofRateOption = Annotated[
    int,
    typer.Option(
        "--rate-limit", min=0, help="bytes per second that --continuous reads; 0: no limit"
    ),
]


@app.command(
    rich_help_panel=CHECK,
    epilog=examples(
        "mm2py verify mm2.properties --flow 'A->B'",
        "mm2py verify mm2.properties --flow 'A->B' --topics orders --tier 3 -o json > report.json",
        "mm2py verify mm2.properties --flow 'A->B' --topics orders --repair",
        "mm2py verify mm2.properties --flow 'A->B' --continuous --rate-limit 10000000",
        "mm2py verify mm2.properties --check report.json",
    ),
)
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
    continuous: ContinuousOption = False,  # noqa: FBT002 - typer's way to declare a flag
    every: EveryOption = 10.0,
    rate_limit: ProofRateOption = 0,
    check: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="only check a report that was kept")
    ] = None,
    master: MasterOption = "",
    wait_executors: WaitOption = WAIT_EXECUTORS_S,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Compare what a flow has copied with its source, record by record, on Spark.

    Ends with 0 if all is equal (after a repair: now), 4 if not, 3 if nothing could be compared or a repair is refused.
    """

    def run() -> int:
        from mm2py.spark.session import SparkPlace
        from mm2py_workers.backfill_commands import refusing
        from mm2py_workers.verify_command import VerifyOrder, check_file, run_verify

        if check is not None:
            return check_file(check, output)
        order = VerifyOrder(
            path=file,
            flow=flow,
            topics=topics,
            tier=tier,
            place=SparkPlace(master, wait_executors),
            repairs=repair,
            deletes=delete_copies,
            continuous=continuous,
            every_s=every,
            bytes_per_s=rate_limit,
        )
        return refusing(lambda: run_verify(order, output))()

    end_with(run, debug=debug)


class ShapeOption(StrEnum):
    """What a row of an archive is."""

    BATCHES = "batches"
    RECORDS = "records"


FlowName = Annotated[str, typer.Option("--flow", metavar="A->B", help="which flow")]


@app.command(
    rich_help_panel=COPY,
    epilog=examples(
        "mm2py archive mm2.properties --flow 'A->B' --topics 'orders.*' --to /backup",
        "mm2py archive mm2.properties --flow 'A->B' --to s3://bucket/lake --shape records",
    ),
)
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
        from mm2py.spark.session import SparkPlace
        from mm2py_workers.archive_commands import run_archive

        place = SparkPlace(master, wait_executors)
        return run_archive(
            file, flow, topics=topics, folder=to, shape=shape.value, place=place, output=output
        )

    end_with(run, debug=debug)


@app.command(
    rich_help_panel=COPY,
    epilog=examples(
        "mm2py restore mm2.properties --flow 'A->B' --from /backup",
        "mm2py restore mm2.properties --flow 'A->B' --from /backup --rename '(.*)=restored.$1'",
    ),
)
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
        from mm2py.spark.session import SparkPlace, require_spark
        from mm2py_workers.backfill_commands import refusing

        require_spark()  # before pyarrow is loaded
        from mm2py_workers.restore_runs import RestoreOrder, run_restore

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


@app.command(
    rich_help_panel=COPY,
    epilog=examples(
        "mm2py rerun mm2.properties --flow 'A->B' --topic orders --into orders-again --from '24 hours ago'",
        "mm2py rerun mm2.properties --flow 'A->B' --topic orders --into orders-3 --partition 3 --from offset:1500 --to offset:9000",
    ),
)
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
        from mm2py_workers.rerun import RerunOrder, run_rerun

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


@app.command(rich_help_panel=OTHERS)
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            envvar="DEMO_SECONDS",
            min=1,
            help="run unattended for so long, then compare both regions and exit",
        ),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, help="records per second and region")] = 3_000,
    workers: Annotated[
        int, typer.Option(min=1, max=9, help="processes that share the flows; kill one and see")
    ] = 1,
    backfill: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool, typer.Option("--backfill", help="a topic with history is copied by Spark meanwhile")
    ] = False,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show two real Kafka regions mirroring each other."""

    def play() -> int:
        from mm2py_workers.demo import DemoOptions, run_demo

        options = DemoOptions(
            seconds=seconds, rate=rate, workers=workers, backfill=backfill, debug=debug
        )
        return run_demo(options)

    end_with(play, debug=debug)


@app.command(rich_help_panel=OTHERS)
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    typer.echo(f"mm2py {installed_version('mm2py')}")


@app.command(
    rich_help_panel=OTHERS,
    epilog=examples(
        "mm2py completion bash > ~/.local/share/bash-completion/completions/mm2py",
        "mm2py completion zsh > ~/.zfunc/_mm2py",
        "mm2py completion fish > ~/.config/fish/completions/mm2py.fish",
    ),
)
def completion(shell: Annotated[Shell, typer.Argument(help="which shell")]) -> None:
    """Print the script that completes mm2py's commands and options in a shell."""
    # The library's own way in, with the name that the script is for.
    os.environ["_MM2PY_COMPLETE"] = f"source_{shell.value}"
    app(prog_name="mm2py", args=[])


app.add_typer(flow_app, name="flow", rich_help_panel=CHANGE)
app.add_typer(group_app, name="group", rich_help_panel=LOOK)
app.add_typer(backfill_app, name="backfill", rich_help_panel=COPY)
add_failover_commands(app, MOVE)
app.command(
    "stream",
    rich_help_panel=COPY,
    epilog=examples(
        "mm2py stream mm2.properties --flow 'A->B'",
        "mm2py stream mm2.properties --flow 'A->B' --master spark://host:7077",
    ),
)(show_stream)
app.command(
    "lag",
    rich_help_panel=LOOK,
    epilog=examples(
        "mm2py lag --watch",
        "mm2py lag --flow A/B --top 5",
        "mm2py lag --max-seconds 60 -o json || page-somebody",
    ),
)(show_lag)
app.command(
    "topics",
    rich_help_panel=LOOK,
    epilog=examples("mm2py topics", "mm2py topics 'orders*' --flow A/B --partitions -o wide"),
)(show_topics)


def main() -> NoReturn:
    """Run the command line; the entry point ``mm2py``."""
    # A DEMO_SECONDS that is set but empty means attended, as in the Makefile.
    if not os.environ.get("DEMO_SECONDS", "x").strip():
        del os.environ["DEMO_SECONDS"]
    app()
    sys.exit(0)
