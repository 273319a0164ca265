"""What commands print: rows as a table, wide table, JSON or YAML on stdout, everything else on
stderr.

Flow: answer -> ``Printer`` -> stdout; error -> one line on stderr -> exit code (0 ok, 1 error, 2
usage, 3 unhealthy or lagging). Loads rich and yaml only to print. Control characters never reach a
terminal raw.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, cast, final

import typer
from pydantic import BaseModel

from mm2py.errors import Mm2pyError, UsageError
from mm2py.observability.quantities import UNKNOWN, duration_text, size_text, utc_text
from mm2py_workers.answers import Shown, count_of, member_of, text_of, texts_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNHEALTHY: Final = 3
"""The question was answered, and the answer is that something is wrong or lags."""
NOT_EQUAL: Final = 4
"""Copies were compared, and are not equal."""

_WIDTH_WHEN_PIPED: Final = 10_000
"""Wider than any row: what a program reads is never folded."""

_WHOLE_FROM: Final = 10

_STYLES: Final = {
    "RUNNING": "green",
    "PAUSED": "yellow",
    "STOPPED": "yellow",
    "FAILED": "bold red",
    "DEGRADED": "bold red",
}


class Panel(StrEnum):
    """Groups of commands in the help."""

    LOOK = "Look"
    CHANGE = "See and change flows"
    MOVE = "Move clients"
    CHECK = "Check copies"
    COPY = "Copy beside the flow"
    FILES = "Files"
    OTHERS = "Others"


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="wide is a table with more columns")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="show stack traces")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="mm2.properties")]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, the text of a row's cell, and whether only wide tables show it."""

    title: str
    cell: Callable[[Shown], str]
    wide: bool = False
    number: bool = False

    @classmethod
    def text(cls, title: str, key: str, *, wide: bool = False) -> "Column":
        return cls(title, lambda row: text_of(row, key), wide)

    @classmethod
    def name(cls, title: str, key: str) -> "Column":
        """Return the column of a name of a cluster: an empty one is visible."""
        return cls(title, lambda row: shown_name(text_of(row, key)))

    @classmethod
    def texts(cls, title: str, key: str, separator: str = ", ", *, wide: bool = False) -> "Column":
        return cls(title, lambda row: separator.join(texts_of(row, key)), wide)

    @classmethod
    def moment(cls, title: str, key: str, *, wide: bool = False) -> "Column":
        """Return the column of a time in ms since the epoch."""
        return cls(title, lambda row: _utc_text(count_of(row, key)), wide)

    @classmethod
    def count(cls, title: str, key: str, *, wide: bool = False) -> "Column":
        return cls(title, lambda row: number_text(row, key), wide, number=True)

    @classmethod
    def age(cls, title: str, key: str, *, wide: bool = False) -> "Column":
        """Return the column of a time in ms."""
        return cls(title, lambda row: duration_text(count_of(row, key)), wide, number=True)

    @classmethod
    def size(cls, title: str, key: str, *, wide: bool = False) -> "Column":
        """Return the column of bytes."""
        return cls(title, lambda row: size_text(count_of(row, key)), wide, number=True)


@final
class Printer:
    """Prints answers in one format; ``console`` is where tables go (default: stdout)."""

    def __init__(self, output: Output, console: "Console | None" = None) -> None:
        self.output = output
        self._console = console

    @property
    def is_table(self) -> bool:
        """Whether it prints tables, not a document."""
        return self.output in (Output.TABLE, Output.WIDE)

    def rows(
        self, answer: object, rows: Sequence[Shown], columns: Sequence[Column], nothing: str
    ) -> None:
        """Print rows; JSON and YAML show ``answer``, ``nothing`` is printed without rows."""
        if not self.is_table:
            self.document(answer)
        elif rows:
            self.show(self.table(rows, columns))
        else:
            say(nothing)

    def document(self, answer: object, *, one_line: bool = False) -> None:
        answer = _document(answer)
        if self.output is Output.YAML:
            import yaml

            text = yaml.safe_dump(
                answer, sort_keys=False, explicit_start=one_line, default_flow_style=False
            )
            typer.echo(text, nl=False)
        else:
            typer.echo(json.dumps(answer, indent=None if one_line else 2))

    def table(self, rows: Iterable[Shown], columns: Sequence[Column]) -> "Table":
        """Return a table of the columns that this format shows."""
        from rich.table import Table
        from rich.text import Text

        shown = [it for it in columns if not it.wide or self.output is Output.WIDE]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in shown:
            table.add_column(
                column.title, overflow="fold", justify="right" if column.number else "left"
            )
        for row in rows:
            cells = [printable(column.cell(row)) for column in shown]
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
        return table

    def fields(self, fields: Iterable[tuple[str, str]]) -> None:
        """Print names and texts, one pair per line."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, text in fields:
            shown = printable(text)
            table.add_row(name, Text(shown, style=_STYLES.get(shown, "")))
        self.show(table)

    def show(self, table: "Table") -> None:
        """Print a table; rich pads each line to the longest, which only a terminal can use."""
        if self.console.is_terminal:
            self.console.print(table)
            return
        with self.console.capture() as lines:
            self.console.print(table)
        text = "\n".join(line.rstrip() for line in lines.get().splitlines())
        self.console.print(text, markup=False, soft_wrap=True)

    @property
    def console(self) -> "Console":
        """Where tables go; what is no terminal is as wide as it has to be."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False)
            if not self._console.is_terminal:
                self._console.width = _WIDTH_WHEN_PIPED
        return self._console


def say(text: str) -> None:
    """Print one line on standard error; programs read standard output only."""
    typer.echo(printable(text), err=True)


def end_with(command: Callable[[], int], *, debug: bool) -> NoReturn:
    """Run a command and end with its exit code; an error is one line on stderr. ``typer.Exit``:
    always, unless ``debug`` lets an error through."""
    try:
        code = command()
    except Mm2pyError as error:
        if debug:
            raise
        typer.echo(f"mm2py: {printable(' '.join(str(error).split()))}", err=True)
        code = USAGE if isinstance(error, UsageError) else FAILED
    except UnicodeEncodeError as error:
        if debug:
            raise
        typer.echo(f"mm2py: an argument is not UTF-8: {error.object!a}", err=True)
        code = USAGE
    raise typer.Exit(code)


def examples(*lines: str) -> str:
    """Return the end of a command's help: command lines to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def printable(text: str) -> str:
    """Return a text without control characters: a remote name must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else f"\\x{ord(it):02x}" for it in text)


def shown_name(name: str) -> str:
    """Return a name of a cluster as it is shown: a group may have the empty one."""
    return name or '""'


def _utc_text(moment_ms: int | None) -> str:
    return "" if moment_ms is None else utc_text(moment_ms)


def _document(answer: object) -> object:
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", exclude_unset=True)
    return (
        [_document(it) for it in cast("list[object]", answer)]
        if isinstance(answer, list)
        else answer
    )


def number_text(row: Shown, key: str) -> str:
    """Say a number; small rates keep one decimal."""
    value = member_of(row, key)
    if isinstance(value, float) and abs(value) < _WHOLE_FROM and not value.is_integer():
        return f"{value:.1f}"
    return f"{int(value):,}" if isinstance(value, int | float) else UNKNOWN
