"""``mm2py``: all its commands.

Flow: arguments -> one function per command -> exit code: 0 ok, 1 an error in one line on stderr, 2
wrong usage, 3 something is unhealthy or lags. What a command needs is loaded when it runs: help is
quick. Jobs and migrations add theirs by the entry points ``mm2py.commands``; one that is broken is
named on standard error, and hurts no other command.
"""

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Final, NoReturn

import typer
from typer.main import get_group

from mm2py.observability.logging import cause_text
from mm2py_cli.command_frame import framed
from mm2py_cli.flow_changes import commands as flow_app
from mm2py_cli.group_commands import group_app
from mm2py_cli.lag_command import show_lag
from mm2py_cli.output import FileArgument, Panel, examples, say
from mm2py_cli.topic_command import show_topics

COMMANDS: Final = "mm2py.commands"
"""Entry points that add commands: each is a function of the application."""

_OURS: Final = ("mm2py_jobs", "mm2py_migrate")
"""Packages whose commands are known to be sound: to build all of them costs each command time."""

app: Final = typer.Typer(
    name="mm2py",
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
app.add_typer(config_app, name="config", rich_help_panel=Panel.FILES)


class LedgerOutput(StrEnum):
    """How the ledger is printed."""

    TABLE = "table"
    JSON = "json"


class Shell(StrEnum):
    """Shells that complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(rich_help_panel=Panel.FILES)
@framed
def lint(file: FileArgument) -> int:
    """Print what is wrong or surprising in a properties file, with line numbers."""
    from mm2py_cli.config_commands import lint_file

    return lint_file(file)


@config_app.command()
@framed
def explain(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A/B]", help="one flow only")] = None,
) -> int:
    """Print every effective property and where it came from."""
    from mm2py_cli.config_commands import explain_file

    return explain_file(file, flow)


@app.command(rich_help_panel=Panel.LOOK)
@framed
def ledger(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A/B]", help="one flow only")] = None,
    topic: Annotated[str | None, typer.Option(help="one source topic only")] = None,
    output: Annotated[LedgerOutput, typer.Option("-o", "--output")] = LedgerOutput.TABLE,
) -> int:
    """Print what was lost, refused or may be doubled, with exact source offsets."""
    # The clients are loaded by the commands that need them.
    from mm2py_cli.ledger_command import show_ledger

    return show_ledger(file, flow, topic=topic, as_json=output is LedgerOutput.JSON)


@app.command(rich_help_panel=Panel.OTHERS)
def version() -> None:
    """Print the version."""
    _print_version(True)  # noqa: FBT003 - as typer calls it


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if wanted:
        from importlib.metadata import version as installed_version

        typer.echo(f"mm2py {installed_version('mm2py')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
]


@app.callback()
def options(version: VersionOption = False) -> None:  # noqa: FBT002 - typer's way to declare a flag
    """Replicate between Kafka clusters: a drop-in for MirrorMaker 2."""


@app.command(
    rich_help_panel=Panel.OTHERS,
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


app.add_typer(flow_app, name="flow", rich_help_panel=Panel.CHANGE)
app.add_typer(group_app, name="group", rich_help_panel=Panel.LOOK)
app.command(
    "lag",
    rich_help_panel=Panel.LOOK,
    epilog=examples(
        "mm2py lag --watch",
        "mm2py lag --flow A/B --top 5",
        "mm2py lag --max-seconds 60 -o json || page-somebody",
    ),
)(show_lag)
app.command(
    "topics",
    rich_help_panel=Panel.LOOK,
    epilog=examples("mm2py topics", "mm2py topics 'orders*' --flow A/B --partitions -o wide"),
)(show_topics)


def add_installed(to: typer.Typer, points: Iterable[EntryPoint]) -> None:
    """Add the commands of entry points; those of one that is broken are left out, with a line."""
    for point in points:
        commands, groups = to.registered_commands, to.registered_groups
        to.registered_commands, to.registered_groups = [], []
        try:
            point.load()(to)
            if point.module.partition(".")[0] not in _OURS:
                get_group(to)  # types of parameters are read only now
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the package's own code runs
            to.registered_commands, to.registered_groups = commands, groups
            say(f"commands {point.name} ({point.value}) cannot be loaded: {cause_text(error)}")
        else:
            to.registered_commands = [*commands, *to.registered_commands]
            to.registered_groups = [*groups, *to.registered_groups]


add_installed(app, entry_points(group=COMMANDS))


def main() -> NoReturn:
    """Run the command line; the entry point ``mm2py``."""
    app()
    sys.exit(0)
