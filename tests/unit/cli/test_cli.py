"""``mm2py``: exit codes and one-line errors."""

import os
import pty
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from examples.demo.__main__ import demo as demo_command
from mm2py.errors import ConfigError
from mm2py.testing.clock import FakeClock
from mm2py_cli.app import app
from mm2py_cli.output import Output, Printer
from mm2py_cli.progress import LINES_S, progress

GOOD = """\
clusters = A, B
A.bootstrap.servers = a1:9092
B.bootstrap.servers = b1:9092
A->B.enabled = true
"""


def test_help_has_its_commands_in_groups_and_a_short_name() -> None:
    panels = [it.rich_help_panel for it in app.registered_commands]
    panels += [it.rich_help_panel for it in app.registered_groups]
    assert all(isinstance(it, str) for it in panels)
    for words in (["-h"], ["flow", "pause", "-h"]):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "Usage: mm2py" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("words", "text", "code", "said"),
    [
        ("lint FILE", GOOD, 0, ""),
        ("lint FILE", "clusters = A, B\n", 1, ""),
        ("config explain FILE A->B", GOOD, 0, "offset.flush.interval.ms"),
        ("config explain FILE A->X", GOOD, 2, ""),
        ("lint", GOOD, 2, ""),
        ("no-such-command", GOOD, 2, ""),
        ("verify --tier x", GOOD, 2, ""),
    ],
)
def test_a_command_on_a_file_ends_with_0_1_or_where_its_usage_is_wrong_with_2(
    tmp_path: Path, words: str, text: str, code: int, said: str
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    result = CliRunner().invoke(app, [str(file) if it == "FILE" else it for it in words.split()])
    assert (result.exit_code, said in result.output) == (code, True)


def test_a_failure_is_one_line_unless_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The only way to a machine without disk space; nothing of ours is replaced.
    monkeypatch.setattr("shutil.disk_usage", _almost_full)
    demo = typer.Typer()
    demo.command()(demo_command)
    result = CliRunner().invoke(demo, ["--seconds", "1"])
    assert result.exit_code == 1
    assert "1 MiB are free" in result.output
    assert isinstance(CliRunner().invoke(demo, ["--debug"]).exception, ConfigError)


@pytest.mark.parametrize(
    ("module", "words", "code", "said"),
    [
        ("mm2py_cli", ["version"], 0, "mm2py "),
        ("mm2py_workers", ["version"], 0, "mm2py "),
        ("mm2py_cli", ["lint"], 2, "FILE"),
        ("mm2py_workers.connect_mirror_maker", ["/no/such/file"], 1, "/no/such/file"),
        ("mm2py_workers.connect_mirror_maker", [], 2, "connect-mirror-maker-py: "),
    ],
)
def test_both_commands_run_as_modules_too(
    module: str, words: list[str], code: int, said: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=90
    )
    assert (ended.returncode, said in ended.stdout + ended.stderr) == (code, True)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def _almost_full(_folder: str) -> _Usage:
    return _Usage(free=1 << 20)


# -- progress of long commands


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
