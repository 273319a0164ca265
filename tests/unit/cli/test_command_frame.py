"""The frame of commands: classes of options become options, and objects again."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from mm2py.errors import UsageError
from mm2py_cli.command_frame import framed
from mm2py_cli.output import Output, Printer


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    lanes: Annotated[int, typer.Option("--most-lanes", min=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    file: Annotated[str, typer.Argument(metavar="FILE")]
    place: Place
    begins: Annotated[str, typer.Option("--from")] = "earliest"
    by: str = "no option"


def run(*arguments: str) -> tuple[int, list[tuple[Options, Output, bool]]]:
    taken: list[tuple[Options, Output, bool]] = []

    def command(
        options: Options, *, whole: Annotated[bool, typer.Option("--all")] = False, printer: Printer
    ) -> int:
        if options.begins == "never":
            raise UsageError("--from never")
        taken.append((options, printer.output, whole))
        return 3

    app = typer.Typer()
    app.command()(framed(command))
    return CliRunner().invoke(app, arguments).exit_code, taken


def test_a_command_gets_objects_of_its_classes_of_options_and_its_exit_code_counts() -> None:
    code, taken = run("f", "--most-lanes", "4", "-o", "json", "--all")
    assert (code, taken) == (3, [(Options(file="f", place=Place(lanes=4)), Output.JSON, True)])
    assert run("f")[1] == [(Options(file="f", place=Place()), Output.TABLE, False)]


def test_what_a_class_declares_is_checked_before_the_command_and_its_errors_have_their_codes() -> (
    None
):
    for wrong in ((), ("f", "--most-lanes", "-1"), ("f", "--by", "me"), ("f", "--from", "never")):
        assert run(*wrong) == (2, [])
