"""``mm2py``: exit codes and one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from examples.demo.__main__ import demo as demo_command
from mm2py.errors import ConfigError
from mm2py_workers.cli import app

GOOD = """\
clusters = A, B
A.bootstrap.servers = a1:9092
B.bootstrap.servers = b1:9092
A->B.enabled = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text(GOOD)
    return path


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.output.startswith("mm2py ")


def test_help_has_its_commands_in_groups_and_a_short_name() -> None:
    panels = [it.rich_help_panel for it in app.registered_commands]
    panels += [it.rich_help_panel for it in app.registered_groups]
    assert all(isinstance(it, str) for it in panels)
    for words in (["-h"], ["flow", "pause", "-h"]):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "Usage: mm2py" in result.output) == (0, True)


def test_lint_of_a_good_file_ends_with_0(file: Path) -> None:
    assert CliRunner().invoke(app, ["lint", str(file)]).exit_code == 0


def test_lint_of_a_bad_file_ends_with_1(file: Path) -> None:
    file.write_text("clusters = A, B\n")
    assert CliRunner().invoke(app, ["lint", str(file)]).exit_code == 1


def test_explain_prints_properties_of_one_flow(file: Path) -> None:
    result = CliRunner().invoke(app, ["config", "explain", str(file), "A->B"])
    assert result.exit_code == 0
    assert "offset.flush.interval.ms" in result.output


@pytest.mark.parametrize("words", [["lint"], ["no-such-command"], ["verify", "--tier", "x"]])
def test_wrong_usage_ends_with_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


def test_an_unknown_flow_is_wrong_usage(file: Path) -> None:
    assert CliRunner().invoke(app, ["config", "explain", str(file), "A->X"]).exit_code == 2


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
        ("mm2py_workers", ["version"], 0, "mm2py "),
        ("mm2py_workers", ["lint"], 2, "FILE"),
        ("mm2py_workers.connect_mirror_maker", ["/no/such/file"], 1, "/no/such/file"),
        ("mm2py_workers.connect_mirror_maker", [], 2, "connect-mirror-maker-py: "),
    ],
)
def test_both_commands_run_as_modules_too(
    module: str, words: list[str], code: int, said: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=20
    )
    assert (ended.returncode, said in ended.stdout + ended.stderr) == (code, True)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def _almost_full(_folder: str) -> _Usage:
    return _Usage(free=1 << 20)
