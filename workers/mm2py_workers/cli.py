"""``mm2py``: lint, config explain, ledger, demo, version.

Flow: arguments -> one function per command -> exit code. Wrong usage ends with 2, a failure with 1 and
one line on stderr; ``--debug`` adds the stack trace.
"""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py_workers.config_commands import explain_file, lint_file

__all__ = ["app", "main"]

app: Final = typer.Typer(
    name="mm2py",
    help="Replicate between Kafka clusters: a drop-in for MirrorMaker 2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app: Final = typer.Typer(help="What a properties file means.", no_args_is_help=True)
app.add_typer(config_app, name="config")


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    JSON = "json"


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="mm2.properties")]
DebugOption = Annotated[bool, typer.Option("--debug", help="show stack traces")]


@app.command()
def lint(file: FileArgument, debug: DebugOption = False) -> None:  # noqa: FBT002 - typer's way to declare a flag
    """Print what is wrong or surprising in a properties file, with line numbers."""
    _end(lambda: lint_file(file), debug=debug)


@config_app.command()
def explain(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A->B]", help="one flow only")] = None,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print every effective property and where it came from."""
    _end(lambda: explain_file(file, flow), debug=debug)


@app.command()
def ledger(
    file: FileArgument,
    flow: Annotated[str | None, typer.Argument(metavar="[A->B]", help="one flow only")] = None,
    topic: Annotated[str | None, typer.Option(help="one source topic only")] = None,
    output: Annotated[Output, typer.Option("-o", "--output")] = Output.TABLE,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print what was lost, refused or may be doubled, with exact source offsets."""

    def show() -> int:
        # The clients are loaded by the commands that need them.
        from mm2py_workers.ledger_command import show_ledger

        return show_ledger(file, flow, topic=topic, as_json=output is Output.JSON)

    _end(show, debug=debug)


@app.command()
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
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show two real Kafka regions mirroring each other."""

    def play() -> int:
        from mm2py_workers.demo import DemoOptions, run_demo

        return run_demo(DemoOptions(seconds=seconds, rate=rate, debug=debug))

    _end(play, debug=debug)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"mm2py {installed_version('mm2py')}")


def main() -> NoReturn:
    """Run the command line; the entry point ``mm2py``."""
    # A DEMO_SECONDS that is set but empty means attended, as in the Makefile.
    if not os.environ.get("DEMO_SECONDS", "x").strip():
        del os.environ["DEMO_SECONDS"]
    app()
    sys.exit(0)


def _end(command: Callable[[], int], *, debug: bool) -> NoReturn:
    try:
        code = command()
    except UsageError as error:
        code = _complain(error, 2, debug=debug)
    except ConfigError as error:
        code = _complain(error, 1, debug=debug)
    except Mm2pyError as error:
        code = _complain(error, 1, debug=debug)
    raise typer.Exit(code)


def _complain(error: Mm2pyError, code: int, *, debug: bool) -> int:
    if debug:
        raise error
    typer.echo(f"mm2py: {' '.join(str(error).split())}", err=True)
    return code
