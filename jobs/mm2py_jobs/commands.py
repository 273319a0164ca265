"""Commands of the jobs, added to ``mm2py`` by the entry point ``mm2py.commands``:
``mm2py job KIND VERB``.

Flow: arguments -> options of the kind (``mm2py_jobs.job_options``) -> a verb, which loads the job:
help is quick, and works without Spark. The older names are in ``mm2py_jobs.aliases``. Kinds of
other packages are entry points of the group ``mm2py.jobs``, each the ``KindCommands`` of its name.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused by a check, 4 copies that are not equal. With
``-o json`` the report is all that goes to standard output.
"""

import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from mm2py.mirror.failovers import FailoverKind
from mm2py.observability.logging import SecretMask, cause_text, configure_logging
from mm2py_cli.command_frame import framed
from mm2py_cli.output import DebugOption, FileArgument, Panel, Printer, examples, say
from mm2py_cli.rest_access import as_typed
from mm2py_jobs.aliases import COMMANDS
from mm2py_jobs.failover.commands import FAILOVER_COMMANDS, failover_verbs
from mm2py_jobs.failover.plan import FailoverRefusedError
from mm2py_jobs.job_options import (
    REFUSED,
    ArchiveOptions,
    BackfillOptions,
    FlowOptions,
    RerunOptions,
    RestoreOptions,
    StreamOptions,
    TopicsOptions,
    VerifyOptions,
)

Ending = Coroutine[object, object, int]
Verb = Callable[..., int | Ending]

JOBS: Final = "mm2py.jobs"
"""Entry points of kinds of job that other packages have."""


def job_command(verb: Verb) -> Callable[..., NoReturn]:
    """Return a verb as a command for typer; what a check refuses is one line on standard error, and
    ends with 3."""

    @wraps(verb)
    def run(**given: object) -> int:
        from mm2py.storage.job_claim import BackfillRefusedError

        try:
            ended = verb(**given)
            if isinstance(ended, int):
                return ended
            import asyncio  # help does without

            return asyncio.run(ended)
        except (BackfillRefusedError, FailoverRefusedError) as error:
            say(f"mm2py: {error}")
            return REFUSED

    return framed(run, as_typed)


# ---- backfills, and what asks and steers the newest job of a flow that has lanes


def plan_backfill(options: BackfillOptions, printer: Printer) -> Ending:
    """Show lanes, ranges, bytes, an estimate, and what the checks refuse; changes nothing."""
    from mm2py_jobs.copy.backfill_runs import show_plan

    return show_plan(options, printer)


def run_backfill(options: BackfillOptions, printer: Printer) -> Ending:
    """Copy, and hand each partition over to the running flow; continues an unfinished backfill of
    the flow."""
    from mm2py_jobs.copy import backfill_runs

    return backfill_runs.run_backfill(options, printer)


def status(what: str) -> Verb:
    """Return the verb that shows the newest "backfill", "restore" or "stream"."""

    def verb(options: FlowOptions, printer: Printer) -> Ending:
        from mm2py_jobs.copy.backfill_runs import show_status

        return show_status(what, options, printer)

    verb.__doc__ = f"Show the newest {what} of a flow, by partition."
    return verb


def _steered(what: str, wanted: str, text: str) -> Verb:
    def verb(options: FlowOptions, printer: Printer) -> Ending:
        from mm2py.mirror.backfills import Wanted
        from mm2py_jobs.copy.backfill_runs import steer

        return steer(what, Wanted(wanted), options, printer)

    verb.__doc__ = text
    return verb


def lane_verbs(what: str) -> dict[str, Verb]:
    """Return the verbs that ask and steer the newest "backfill" or "restore" of a flow."""
    ends = (
        f"End a {what}: what is copied stays, the running flow continues every partition "
        "where it is."
    )
    return {
        "status": status(what),
        "pause": _steered(
            what, "PAUSE", f"Let the lanes of a running {what} read nothing until it is resumed."
        ),
        "resume": _steered(what, "RUN", "Let paused lanes continue."),
        "cancel": _steered(what, "CANCEL", ends),
    }


# ---- stream


def plan_stream(options: FlowOptions, printer: Printer) -> Ending:
    """Show what a stream would copy from now on, and what refuses it."""
    from mm2py_jobs.copy.stream_runs import show_stream_plan

    return show_stream_plan(options, printer)


def run_stream(options: StreamOptions, printer: Printer, *, debug: DebugOption = False) -> Ending:
    """Copy a flow with Spark until SIGTERM, in place of the tasks of its workers (flow.engine =
    spark)."""
    from mm2py.config.jaas import file_secrets
    from mm2py_jobs.copy import stream_runs
    from mm2py_jobs.spark.session import require_spark

    mask = SecretMask(file_secrets(os.environ))
    configure_logging(sys.stderr, mask, debug=debug)
    if options.cancel:
        return cancel_stream(options, printer)
    require_spark()  # before the flow's clusters are asked for anything
    return stream_runs.run_stream(options, printer, mask)


def cancel_stream(options: FlowOptions, printer: Printer) -> Ending:
    """End a stream whose driver is gone: the flow's workers continue its partitions."""
    from mm2py_jobs.copy import stream_runs

    return stream_runs.cancel_stream(options, printer)


# ---- verify, archive, restore, rerun


def plan_verify(options: TopicsOptions, printer: Printer) -> int:
    """Show which partitions would be compared, and which cannot be."""
    from mm2py_jobs.verify.verify_runs import show_verify_plan

    return show_verify_plan(options, printer)


def run_verify(options: VerifyOptions, printer: Printer) -> int:
    """Compare what a flow has copied with its source, record by record, on Spark.

    Ends with 0 if all is equal (after a repair: now), 4 if not, 3 if something could not be
    compared or a repair is refused.
    """
    from mm2py_jobs.verify import verify_runs

    return verify_runs.run_verify(options, printer)


def plan_archive(options: ArchiveOptions, printer: Printer) -> int:
    """Show what would be archived, joined and removed, and what cannot be; writes nothing."""
    from mm2py_jobs.archive.archive_runs import show_archive_plan

    return show_archive_plan(options, printer)


def run_archive(options: ArchiveOptions, printer: Printer) -> int:
    """Archive a flow's source topics as Parquet files, on Spark; run again it adds what is new.

    With --join and --keep it also joins small files, and removes old ones.
    """
    from mm2py_jobs.archive import archive_runs

    return archive_runs.run_archive(options, printer)


def plan_restore(options: RestoreOptions, printer: Printer) -> Ending:
    """Show what would be restored, and what the checks refuse; changes nothing."""
    from mm2py_jobs.spark.session import require_spark

    require_spark()  # before pyarrow is loaded
    from mm2py_jobs.archive.restore_runs import show_restore_plan

    return show_restore_plan(options, printer)


def run_restore(options: RestoreOptions, printer: Printer) -> Ending:
    """Restore an archive into the flow's target, on Spark; run again it continues where the log
    ends."""
    from mm2py_jobs.spark.session import require_spark

    require_spark()  # before pyarrow is loaded
    from mm2py_jobs.archive import restore_runs

    return restore_runs.run_restore(options, printer)


def plan_rerun(options: RerunOptions, printer: Printer) -> int:
    """Show the range, and whether it can be copied; changes nothing."""
    from mm2py_jobs.copy.rerun import show_rerun_plan

    return show_rerun_plan(options, printer)


def run_rerun(options: RerunOptions, printer: Printer) -> int:
    """Copy a range again into another topic."""
    from mm2py_jobs.copy import rerun

    return rerun.run_rerun(options, printer)


# ---- all of them


@dataclass(frozen=True, slots=True)
class KindCommands:
    """A kind of job: the verbs that it has, of plan, run, status, pause, resume and cancel.

    ``verify``, ``archive`` and ``rerun`` end with their command, and SIGTERM is their cancel: they
    only tell how far they are (``mm2py_jobs.progress``).
    """

    name: str
    help: str
    verbs: Mapping[str, Verb]
    examples: tuple[str, ...]

    def group(self) -> typer.Typer:
        group = typer.Typer(help=self.help, no_args_is_help=True, epilog=examples(*self.examples))
        for name, verb in self.verbs.items():
            group.command(name)(job_command(verb))
        return group


KINDS: Final = (
    KindCommands(
        "backfill",
        "Copy history with Spark, then hand each partition over to the running flow.",
        {"plan": plan_backfill, "run": run_backfill, **lane_verbs("backfill")},
        (
            "mm2py job backfill plan mm2.properties --flow 'A->B' --topics 'orders.*'",
            "mm2py job backfill run mm2.properties --flow 'A->B' --topics 'orders.*'",
            "mm2py job backfill status mm2.properties --flow 'A->B' -o json",
        ),
    ),
    KindCommands(
        "stream",
        "Copy a flow with Spark in place of the tasks of its workers (flow.engine = spark).",
        {
            "plan": plan_stream,
            "run": run_stream,
            "status": status("stream"),
            "cancel": cancel_stream,
        },
        (
            "mm2py job stream run mm2.properties --flow 'A->B'",
            "mm2py job stream run mm2.properties --flow 'A->B' --master spark://host:7077",
        ),
    ),
    KindCommands(
        "verify",
        "Compare what a flow has copied with its source, and repair it.",
        {"plan": plan_verify, "run": run_verify},
        (
            "mm2py job verify run mm2.properties --flow 'A->B'",
            "mm2py job verify run mm2.properties --flow 'A->B' --topics orders --tier 3 -o json "
            "> report.json",
            "mm2py job verify run mm2.properties --flow 'A->B' --topics orders --repair",
        ),
    ),
    KindCommands(
        "archive",
        "Archive a flow's source topics as Parquet files.",
        {"plan": plan_archive, "run": run_archive},
        (
            "mm2py job archive run mm2.properties --flow 'A->B' --topics 'orders.*' --to /backup",
            "mm2py job archive run mm2.properties --flow 'A->B' --to s3://bucket/lake --shape "
            "records",
            "mm2py job archive run mm2.properties --flow 'A->B' --to /backup --join --keep "
            "'90 days'",
        ),
    ),
    KindCommands(
        "restore",
        "Restore an archive into the flow's target.",
        {"plan": plan_restore, "run": run_restore, **lane_verbs("restore")},
        (
            "mm2py job restore run mm2.properties --flow 'A->B' --from /backup",
            "mm2py job restore run mm2.properties --flow 'A->B' --from /backup --rename "
            "'(.*)=restored.$1'",
            "mm2py job restore run mm2.properties --flow 'A->B' --from /backup --rename "
            "'(.*)=past.$1' --to '1 hour ago'",
        ),
    ),
    KindCommands(
        "rerun",
        "Copy a range again into another topic.",
        {"plan": plan_rerun, "run": run_rerun},
        (
            "mm2py job rerun run mm2.properties --flow 'A->B' --topic orders --into orders-again "
            "--from '24 hours ago'",
            "mm2py job rerun run mm2.properties --flow 'A->B' --topic orders --into orders-3 "
            "--partition 3 --from offset:1500 --to offset:9000",
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
    *,
    whole: Annotated[bool, typer.Option("--all", help="also what is well")] = False,
    printer: Printer,
) -> int:
    """Ask both clusters what would keep the flows of a file from working, and name the command that
    mends it; changes nothing.

    Ends with 0 where there is no error, 3 where there is one.
    """
    from mm2py_jobs.doctor.doctor_command import print_examination

    return print_examination(file, flow, printer, is_whole=whole or not printer.is_table)


class _Kinds(TyperGroup):
    """Our kinds, then those of other packages: these are loaded when ``mm2py job`` is asked, and
    one that cannot be hurts no other."""

    # Any: typer's own classes of click, which are private.
    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *sorted(entry_points(group=JOBS).names - self.commands.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            for point in entry_points(group=JOBS, name=cmd_name):
                self._load(point)
        return self.commands.get(cmd_name)

    def _load(self, point: EntryPoint) -> None:
        try:
            kind: KindCommands = point.load()
            self.add_command(get_group(kind.group()), point.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the package's own code runs
            say(f"job {point.name} ({point.value}) cannot be loaded: {cause_text(error)}")
        else:
            self.commands[point.name].name = point.name


def add_commands(app: typer.Typer) -> None:
    """Add ``mm2py job``, and the older names."""
    jobs = typer.Typer(
        cls=_Kinds,
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
    )(job_command(doctor))
    _add_older_names(app)


def _add_older_names(app: typer.Typer) -> None:
    kinds = {it.name: it for it in KINDS}
    for old, new in COMMANDS.items():
        _, name, *verb = new.split()
        if " " in old or verb[1:]:
            continue  # an option of a command that is added below, or by another line
        kind = kinds[name]
        panel = Panel.CHECK if name == "verify" else Panel.COPY
        if not verb:
            app.add_typer(kind.group(), name=old, rich_help_panel=panel)
            continue
        shown = (example.replace(f"mm2py {new}", f"mm2py {old}") for example in kind.examples)
        app.command(old, rich_help_panel=panel, epilog=examples(*shown))(
            job_command(kind.verbs[verb[0]])
        )
    for name, (command, lines) in FAILOVER_COMMANDS.items():
        app.command(name, rich_help_panel=Panel.MOVE, epilog=examples(*lines))(job_command(command))
