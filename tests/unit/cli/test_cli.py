"""``mm2py``: exit codes and one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from examples.demo.__main__ import demo as demo_command
from mm2py.errors import ConfigError
from mm2py_cli.app import app

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
