"""Commands of the jobs, added to ``mm2py`` by the entry point ``mm2py.commands``: ``mm2py job KIND VERB``.

Flow: arguments -> a request -> the job, which is loaded when it runs: help is quick, and works without Spark. The older names are in
``mm2py_jobs.aliases``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from mm2py.mirror.failovers import FailoverKind
from mm2py_cli.output import (
    DebugOption,
    FileArgument,
    Output,
    OutputOption,
    Panel,
    Printer,
    end_with,
    examples,
)
from mm2py_jobs.aliases import COMMANDS
from mm2py_jobs.copy.backfill_commands import BACKFILL_VERBS, lane_verbs
from mm2py_jobs.copy.bulk_options import (
    RESTORE,
    ExpiryOption,
    LanesOption,
    LanesPerBrokerOption,
    MasterOption,
    RateOption,
    ReadRateOption,
    WaitOption,
    refusing,
)
from mm2py_jobs.copy.stream_commands import STREAM_VERBS
from mm2py_jobs.failover.commands import add_failover_commands, failover_verbs
from mm2py_jobs.spark.executor_watch import WAIT_EXECUTORS_S

TopicsOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="topics in place of those of the file: names and Java patterns, comma-separated",
    ),
]
FlowName = Annotated[str, typer.Option("--flow", metavar="A->B", help="which flow")]
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
    begins: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="map",
            help="map: leave out what another program copied before the flow's offset map begins",
        ),
    ] = "",
    rate_limit: ReadRateOption = 0,
    master: MasterOption = "",
    wait_executors: WaitOption = WAIT_EXECUTORS_S,
    lanes: LanesOption = 0,
    max_lanes_per_broker: LanesPerBrokerOption = 0,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Compare what a flow has copied with its source, record by record, on Spark.

    Ends with 0 if all is equal (after a repair: now), 4 if not, 3 if something could not be compared or a repair is refused.
    """

    def run() -> int:
        from mm2py_jobs.spark.session import SparkPlace
        from mm2py_jobs.verify.verify_command import run_verify
        from mm2py_jobs.verify.verify_order import VerifyOrder

        order = VerifyOrder(
            file=file,
            flow=flow,
            topics=topics,
            tier=tier,
            place=SparkPlace(master, wait_executors, lanes, max_lanes_per_broker),
            repairs=repair,
            deletes=delete_copies,
            rate_limit=rate_limit,
            begins=begins,
        )
        return refusing(lambda: run_verify(order, output))()

    end_with(run, debug=debug)


def plan_verify(
    file: FileArgument,
    flow: FlowName,
    topics: TopicsOption = None,
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show which partitions would be compared, and which cannot be."""

    def run() -> int:
        from mm2py_jobs.verify.verify_command import show_verify_plan

        return show_verify_plan(file, flow, topics, Printer(output))

    end_with(run, debug=debug)


class ShapeOption(StrEnum):
    """What a row of an archive is."""

    BATCHES = "batches"
    RECORDS = "records"


def archive(*, only_plans: bool) -> Callable[..., None]:
    """Return ``mm2py job archive`` run, or plan."""

    def command(  # noqa: PLR0913 - an argument per option
        file: FileArgument,
        flow: FlowName,
        to: Annotated[
            str, typer.Option(metavar="DIR", help="folder, or a path of pyarrow.fs or fsspec")
        ],
        topics: TopicsOption = None,
        shape: Annotated[
            ShapeOption, typer.Option(help="batches can be restored, records can be queried")
        ] = ShapeOption.BATCHES,
        rate_limit: ReadRateOption = 0,
        master: MasterOption = "",
        wait_executors: WaitOption = WAIT_EXECUTORS_S,
        lanes: LanesOption = 0,
        max_lanes_per_broker: LanesPerBrokerOption = 0,
        output: OutputOption = Output.TABLE,
        debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
    ) -> None:
        def run() -> int:
            from mm2py_jobs.archive.archive_commands import run_archive
            from mm2py_jobs.spark.session import SparkPlace

            place = SparkPlace(master, wait_executors, lanes, max_lanes_per_broker)
            return run_archive(
                file,
                flow,
                topics=topics,
                folder=to,
                shape=shape.value,
                place=place,
                output=output,
                only_plans=only_plans,
                rate_limit=rate_limit,
            )

        end_with(run, debug=debug)

    command.__doc__ = (
        "Show what would be archived, and what cannot be; writes nothing."
        if only_plans
        else "Archive a flow's source topics as Parquet files, on Spark; run again it adds what is new."
    )
    return command


def restore(*, only_plans: bool) -> Callable[..., None]:
    """Return ``mm2py job restore`` run, or plan."""

    def command(  # noqa: PLR0913 - an argument per option
        file: FileArgument,
        flow: FlowName,
        source: Annotated[
            str, typer.Option("--from", metavar="DIR", help="as --to of mm2py archive")
        ],
        topics: Annotated[
            str | None, typer.Option(metavar="REGEX", help="archived topics; default: all")
        ] = None,
        rename: Annotated[
            str | None,
            typer.Option(
                metavar="REGEX=REPLACEMENT", help="other names than the flow's copies have"
            ),
        ] = None,
        master: MasterOption = "",
        wait_executors: WaitOption = WAIT_EXECUTORS_S,
        lanes: LanesOption = 0,
        max_lanes_per_broker: LanesPerBrokerOption = 0,
        rate_limit: RateOption = 0,
        accept_expiry: ExpiryOption = False,  # noqa: FBT002 - typer's way to declare a flag
        output: OutputOption = Output.TABLE,
        debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
    ) -> None:
        def run() -> int:
            from mm2py_jobs.spark.session import SparkPlace, require_spark

            require_spark()  # before pyarrow is loaded
            from mm2py_jobs.archive.restore_runs import RestoreOrder, run_restore

            order = RestoreOrder(
                file=file,
                flow=flow,
                topics=topics or "",
                folder=source,
                rename=rename or "",
                place=SparkPlace(master, wait_executors, lanes, max_lanes_per_broker),
                rate_limit=rate_limit,
                accepts_expiry=accept_expiry,
                only_plans=only_plans,
            )
            return refusing(lambda: run_restore(order, Printer(output)))()

        end_with(run, debug=debug)

    command.__doc__ = (
        "Show what would be restored, and what the checks refuse; changes nothing."
        if only_plans
        else "Restore an archive into the flow's target, on Spark; run again it continues where the log ends."
    )
    return command


def rerun(*, only_plans: bool) -> Callable[..., None]:
    """Return ``mm2py job rerun`` run, or plan."""

    def command(  # noqa: PLR0913 - an argument per option
        file: FileArgument,
        flow: FlowName,
        topic: Annotated[str, typer.Option(help="topic of the source")],
        into: Annotated[
            str, typer.Option(metavar="TOPIC", help="new or empty topic of the target")
        ],
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
        def run() -> int:
            from mm2py_jobs.copy.rerun import RerunOrder, run_rerun

            return run_rerun(
                RerunOrder(
                    file=file,
                    flow=flow,
                    topic=topic,
                    into=into,
                    start=start,
                    end=end,
                    partitions=partition or (),
                    only_plans=only_plans,
                ),
                output,
            )

        end_with(run, debug=debug)

    command.__doc__ = (
        "Show the range, and whether it can be copied; changes nothing."
        if only_plans
        else "Copy a range again into another topic."
    )
    return command


@dataclass(frozen=True, slots=True)
class KindCommands:
    """A kind of job: the verbs that it has, of plan, run, status, pause, resume and cancel.

    ``verify``, ``archive`` and ``rerun`` end with their command, and SIGTERM is their cancel: they only tell how far they are
    (``mm2py_jobs.progress``).
    """

    name: str
    help: str
    verbs: Mapping[str, Callable[..., None]]
    examples: tuple[str, ...]

    def group(self) -> typer.Typer:
        """Return the group of its verbs."""
        group = typer.Typer(help=self.help, no_args_is_help=True, epilog=examples(*self.examples))
        for verb, command in self.verbs.items():
            group.command(verb)(command)
        return group


KINDS: Final = (
    KindCommands(
        "backfill",
        "Copy history with Spark, then hand each partition over to the running flow.",
        BACKFILL_VERBS,
        (
            "mm2py job backfill plan mm2.properties --flow 'A->B' --topics 'orders.*'",
            "mm2py job backfill run mm2.properties --flow 'A->B' --topics 'orders.*'",
            "mm2py job backfill status mm2.properties --flow 'A->B' -o json",
        ),
    ),
    KindCommands(
        "stream",
        "Copy a flow with Spark in place of the tasks of its workers (flow.engine = spark).",
        STREAM_VERBS,
        (
            "mm2py job stream run mm2.properties --flow 'A->B'",
            "mm2py job stream run mm2.properties --flow 'A->B' --master spark://host:7077",
        ),
    ),
    KindCommands(
        "verify",
        "Compare what a flow has copied with its source, and repair it.",
        {"plan": plan_verify, "run": verify},
        (
            "mm2py job verify run mm2.properties --flow 'A->B'",
            "mm2py job verify run mm2.properties --flow 'A->B' --topics orders --tier 3 -o json > report.json",
            "mm2py job verify run mm2.properties --flow 'A->B' --topics orders --repair",
        ),
    ),
    KindCommands(
        "archive",
        "Archive a flow's source topics as Parquet files.",
        {"plan": archive(only_plans=True), "run": archive(only_plans=False)},
        (
            "mm2py job archive run mm2.properties --flow 'A->B' --topics 'orders.*' --to /backup",
            "mm2py job archive run mm2.properties --flow 'A->B' --to s3://bucket/lake --shape records",
        ),
    ),
    KindCommands(
        "restore",
        "Restore an archive into the flow's target.",
        {
            "plan": restore(only_plans=True),
            "run": restore(only_plans=False),
            **lane_verbs(RESTORE),
        },
        (
            "mm2py job restore run mm2.properties --flow 'A->B' --from /backup",
            "mm2py job restore run mm2.properties --flow 'A->B' --from /backup --rename '(.*)=restored.$1'",
        ),
    ),
    KindCommands(
        "rerun",
        "Copy a range again into another topic.",
        {"plan": rerun(only_plans=True), "run": rerun(only_plans=False)},
        (
            "mm2py job rerun run mm2.properties --flow 'A->B' --topic orders --into orders-again --from '24 hours ago'",
            "mm2py job rerun run mm2.properties --flow 'A->B' --topic orders --into orders-3 --partition 3 --from offset:1500 --to offset:9000",
        ),
    ),
    KindCommands(
        "failover",
        "Move clients to the target of a flow.",
        failover_verbs(FailoverKind.FAILOVER),
        (
            "mm2py job failover plan mm2.properties --flow 'A->B' --timed",
            "mm2py job failover run mm2.properties --flow 'A->B'",
            "mm2py job failover run mm2.properties --flow 'A->B' --unplanned --accept-loss 120",
        ),
    ),
    KindCommands(
        "failback",
        "Return clients to the source of a flow that was failed over.",
        failover_verbs(FailoverKind.FAILBACK),
        ("mm2py job failback run mm2.properties --flow 'A->B'",),
    ),
)


def doctor(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A/B]", help="one flow only")] = None,
    whole: Annotated[bool, typer.Option("--all", help="also what is well")] = False,  # noqa: FBT002 - typer's way to declare a flag
    output: OutputOption = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Ask both clusters what would keep the flows of a file from working, and name the command that mends it; changes nothing.

    Ends with 0 where there is no error, 3 where there is one.
    """

    def run() -> int:
        from mm2py_jobs.doctor.doctor_command import print_examination

        return print_examination(
            file, flow, Printer(output), is_whole=whole or output in (Output.JSON, Output.YAML)
        )

    end_with(run, debug=debug)


def add_commands(app: typer.Typer) -> None:
    """Add ``mm2py job``, and the older names."""
    jobs = typer.Typer(
        help="Jobs beside the flows, by the same verbs: plan, run, status, pause, resume, cancel.",
        no_args_is_help=True,
    )
    for kind in KINDS:
        jobs.add_typer(kind.group(), name=kind.name)
    app.add_typer(jobs, name="job", rich_help_panel=Panel.COPY)
    app.command(
        "doctor",
        rich_help_panel=Panel.LOOK,
        epilog=examples(
            "mm2py doctor mm2.properties", "mm2py doctor mm2.properties A/B --all -o json"
        ),
    )(doctor)
    _add_older_names(app)


def _add_older_names(app: typer.Typer) -> None:
    kinds = {it.name: it for it in KINDS}
    for old, new in COMMANDS.items():
        _, name, *verb = new.split()
        if " " in old or verb[1:]:
            continue  # an option of a command that ``add_failover_commands`` or another line adds
        kind = kinds[name]
        panel = Panel.CHECK if name == "verify" else Panel.COPY
        if not verb:
            app.add_typer(kind.group(), name=old, rich_help_panel=panel)
            continue
        shown = (example.replace(f"mm2py {new}", f"mm2py {old}") for example in kind.examples)
        app.command(old, rich_help_panel=panel, epilog=examples(*shown))(kind.verbs[verb[0]])
    add_failover_commands(app, Panel.MOVE)
