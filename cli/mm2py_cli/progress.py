"""How far a long command is, on standard error: a bar on a terminal, a line each ten seconds
elsewhere.

Flow: ``progress`` -> the command calls the report as often as it likes -> bar or lines, gone before
the answer is printed.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mm2py_cli.output import Printer, printable, say

if TYPE_CHECKING:
    from rich.console import Console

LINES_S: Final = 10.0
"""How often progress is a line where it goes to no terminal."""

Report = Callable[[str, int, int], None]
"""Takes what is done, and how much of how much; the last is 0 where it is not known."""


def draws(printer: Printer, console: "Console") -> bool:
    """Whether standard error is a terminal that can draw over itself: not for JSON, nor with
    ``TERM=dumb`` or ``NO_COLOR``."""
    return printer.is_table and console.is_interactive and not os.environ.get("NO_COLOR")


@contextmanager
def progress(
    what: str, printer: Printer, monotonic: Callable[[], float] = time.monotonic
) -> Generator[Report]:
    """Show how far ``what`` is while the block runs; ``monotonic`` returns seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not draws(printer, console):
        yield _lines(what, monotonic)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    # The answer goes to standard output, which is not to be drawn over.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        bar = bars.add_task(what, total=None)

        def report(done: str, part: int, whole: int) -> None:
            text = printable(_text(what, done, part, whole))
            bars.update(bar, description=text, completed=part, total=whole or None)

        yield report


def _lines(what: str, monotonic: Callable[[], float]) -> Report:
    """Return what says a line each ``LINES_S``; a short command says none."""
    said_at = monotonic()

    def report(done: str, part: int, whole: int) -> None:
        nonlocal said_at
        now = monotonic()
        if now - said_at >= LINES_S:
            said_at = now
            say(_text(what, done, part, whole))

    return report


def _text(what: str, done: str, part: int, whole: int) -> str:
    return f"{what}: {part:,} of {whole:,} {done}" if whole else f"{what}: {done}"
