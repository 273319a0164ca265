"""Progress of long commands: a bar on a terminal, lines elsewhere, nothing of it where the answer goes."""

import os
import pty
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from mm2py.testing.clock import FakeClock
from mm2py_cli.output import Output, Printer
from mm2py_cli.progress import LINES_S, progress


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Make standard error a terminal; yields a list that has what was drawn after the block."""
    drawn: list[str] = []
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as seen, os.fdopen(slave, "w") as written:
        monkeypatch.setattr(sys, "stderr", written)
        yield drawn
        written.write("END")
        written.flush()
        text = b""
        while b"END" not in text:
            text += seen.read(65_536)
    drawn.append(text.decode())


@pytest.mark.parametrize(
    ("environment", "output", "is_bar"),
    [
        ({"TERM": "xterm-256color"}, Output.TABLE, True),
        ({"TERM": "xterm-256color"}, Output.WIDE, True),
        ({"TERM": "xterm-256color"}, Output.JSON, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, Output.TABLE, False),
        ({"TERM": "dumb"}, Output.TABLE, False),
    ],
    ids=["table", "wide", "json", "no color", "dumb"],
)
def test_a_terminal_that_people_look_at_has_a_bar_and_any_other_one_lines(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    output: Output,
    is_bar: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"COLUMNS": "100"}).items():
        monkeypatch.setenv(name, value)
    clock = FakeClock()
    with on_terminal(monkeypatch) as drawn:
        with progress("verify A->B", Printer(output), clock.monotonic) as report:
            report("lanes", 1, 8)
            clock.jump(LINES_S)
            report("lanes", 3, 8)
        Printer(Output.JSON).document({"answer": 1}, one_line=True)
    (text,) = drawn
    assert "verify A->B: 3 of 8 lanes" in text
    assert ("\x1b[" in text) is is_bar
    assert ("1 of 8" in text) is False or is_bar, "a short command says no line"
    assert capsys.readouterr().out == '{"answer": 1}\n'


def test_where_standard_error_is_no_terminal_a_line_comes_each_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    with progress("failover A->B", Printer(Output.TABLE), clock.monotonic) as report:
        for missing in range(30, 5, -1):
            report(f"DRAIN, {missing} offsets not copied", 0, 0)
            clock.jump(1.0)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"failover A->B: DRAIN, {missing} offsets not copied" for missing in (20, 10)
    ]
    assert shown.out == ""
