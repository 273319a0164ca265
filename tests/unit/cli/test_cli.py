"""``mm2py``: exit codes, progress, and how commands reach the API: credentials, addresses, one line for what goes wrong."""

import json
import os
import pty
import re
import socket
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import typer
from typer.models import CommandInfo
from typer.testing import CliRunner

from examples.demo.__main__ import demo as demo_command
from mm2py.errors import ConfigError
from mm2py.testing.clock import FakeClock
from mm2py_cli.app import add_installed, app
from mm2py_cli.output import Output, Printer
from mm2py_cli.progress import LINES_S, progress
from mm2py_jobs.aliases import COMMANDS
from tests.unit.cli.cli_api import FLOW, PATH, TOPIC, FakeApi, Turns, refusal

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


OWN_COMMANDS = """\
import sys
def own(app):
    @app.command()
    def own() -> None:
        print("own")
def half(app):
    @app.command()
    def broken() -> None: ...
    raise KeyError("gone")
def odd(app):
    @app.command()
    def broken(it: 'Gone') -> None: ...
def leaves(app):
    sys.exit(3)
"""


def test_broken_commands_of_other_packages_are_named_and_hurt_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_commands.py").write_text(OWN_COMMANDS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    all_commands, names = typer.Typer(), ["half", "odd", "leaves", "missing", "own"]
    all_commands.command("ours")(lambda: None)
    add_installed(
        all_commands, [EntryPoint(it, f"own_commands:{it}", "mm2py.commands") for it in names]
    )
    said = capsys.readouterr().err.splitlines()
    broken = names[:-1]
    assert [it.partition(" cannot")[0] for it in said] == [
        f"commands {it} (own_commands:{it})" for it in broken
    ]
    assert "KeyError: 'gone'" in said[0]
    assert CliRunner().invoke(all_commands, ["own"]).stdout == "own\n"
    assert CliRunner().invoke(all_commands, ["ours"]).exit_code == 0
    assert CliRunner().invoke(all_commands, ["broken"]).exit_code == 2


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


def test_a_failure_is_a_line_unless_debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The only way to a machine without disk space; nothing of ours is replaced.
    def full(_folder: object) -> SimpleNamespace:
        return SimpleNamespace(free=1 << 20)

    monkeypatch.setattr("shutil.disk_usage", full)
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
        ("mm2py_cli", ["--version"], 0, "mm2py "),
        ("mm2py_workers.connect_mirror_maker", ["--version"], 0, "connect-mirror-maker-py "),
        ("mm2py_workers", ["version"], 0, "mm2py "),
        ("mm2py_workers.connect_mirror_maker", ["/no/such/file"], 1, "/no/such/file"),
    ],
)
def test_both_commands_are_modules_too(module: str, words: list[str], code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=90
    )
    assert (ended.returncode, said in ended.stdout + ended.stderr) == (code, True)


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


# -- how commands reach the API


CANARY = "canary-5ecret"


def listing(answer: object) -> FakeApi:
    return FakeApi({("GET", "/flows"): answer})


def failure(cause: BaseException) -> httpx.ConnectError:
    error = httpx.ConnectError(str(cause))
    error.__cause__ = cause
    return error


def tls_failure(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def unverified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def test_an_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    api = listing([FLOW])
    monkeypatch.setenv("MM2PY_FILE", "missing.properties")
    assert api.run("flow", "list", "--url", "http://localhost:8083").code == 0
    monkeypatch.setenv("MM2PY_URL", "http://localhost:8083")
    both = api.run("flow", "list")
    assert (both.code, "both given" in both.err) == (2, True)
    by_file = api.run("flow", "list", "--file", "missing.properties")
    assert "missing.properties" in by_file.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (failure(ConnectionRefusedError(111, "refused")), "nothing listens at http://localhost"),
        (failure(socket.gaierror(-2, "unknown")), "no address is known"),
        (failure(tls_failure("WRONG_VERSION_NUMBER")), "does not speak TLS on this port; use http"),
        (failure(tls_failure("TLSV13_ALERT_CERTIFICATE_REQUIRED")), "use --cert and --key"),
        (failure(unverified()), "is not trusted: self-signed certificate; give who"),
        (httpx.RemoteProtocolError("Server disconnected"), "use https:// if that port speaks TLS"),
        (httpx.ReadError("reset"), "use https:// if that port speaks TLS"),
        (httpx.ConnectTimeout("late"), "cannot be reached in time"),
        (httpx.ReadTimeout("late"), "did not answer in time; try again"),
        (refusal(401, "User cannot access the resource."), "wants to know who you are (401)"),
        (refusal(403, "User bob may only read"), "not allowed (403): User bob may only read"),
        (refusal(404, "No flow A->X"), "not found (404): No flow A->X"),
        (refusal(404, "HTTP 404 Not Found"), "is --url the address of a worker"),
        (refusal(409, "a rebalance is under way"), "not now (409): a rebalance is under way"),
        (refusal(400, "topics is wrong"), "refused (400): topics is wrong"),
        (refusal(500, "a defect"), "the worker failed (500): a defect; read its log"),
        (refusal(503, "starting"), "not ready (503): starting; try again in a moment"),
        (
            refusal(503, "IO Error trying to forward REST request: x"),
            "x; ask another worker (--url)",
        ),
        (httpx.Response(502, text="<html>"), "502 Bad Gateway without saying why"),
        (httpx.Response(200, text="<html>", headers={"content-type": "text/html"}), "(text/html)"),
        (httpx.Response(200, json={"flows": []}), "is not a list of objects"),
        (httpx.Response(200, json=[1]), "is not a list of objects"),
        (
            httpx.Response(302, headers={"location": f"https://u:{CANARY}@login/x?t={CANARY}"}),
            "sends us to https://login/x",
        ),
    ],
)
def test_each_failure_is_one_line_and_ends_with_1(answer: object, said: str) -> None:
    ended = listing(answer).run("flow", "list")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("mm2py: ")
    assert ended.err.count("\n") == 1
    assert said in ended.err
    assert CANARY not in ended.err


@pytest.mark.parametrize(
    "lost",
    [
        httpx.ReadTimeout("late"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("disconnected"),
    ],
)
def test_a_change_without_an_answer_says_that_it_may_have_been_made(lost: httpx.HTTPError) -> None:
    found = FakeApi({("POST", f"{PATH}/pause"): lost})
    ended = found.run("flow", "pause", "A/B")
    assert "may have been made; look with mm2py flow history" in ended.err


@pytest.mark.parametrize(
    ("words", "env", "sent"),
    [
        (
            "--user ann --password-file",
            {"MM2PY_USER": "ann", "MM2PY_PASSWORD": CANARY},
            "Basic " + b64encode(f"ann:{CANARY}".encode()).decode(),
        ),
        ("--token-file", {"MM2PY_TOKEN": CANARY}, f"Bearer {CANARY}"),
    ],
)
def test_credentials_come_from_a_file_or_the_environment(
    tmp_path: Path, words: str, env: dict[str, str], sent: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\n")
    found = listing([FLOW])
    assert found.run("flow", "list", *words.split(), str(file)).code == 0
    assert found.run("flow", "list", env=env).code == 0
    assert [it.headers["authorization"] for it in found.requests] == [sent, sent]


def test_refused_credentials_are_named_but_never_shown() -> None:
    env = {"MM2PY_USER": "ann", "MM2PY_PASSWORD": CANARY}
    ended = listing(refusal(401, "no")).run("flow", "list", env=env)
    assert "refuses these credentials (401)" in ended.err
    assert CANARY not in ended.err


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        (["--user", "ann"], {}, 2, "no password for user ann"),
        (["--user", "ann"], {"MM2PY_TOKEN": CANARY}, 2, "both given"),
        (["--token-file", "/no/such"], {}, 1, "/no/such cannot be read: No such file"),
        ([], {"MM2PY_TOKEN": f"{CANARY}\nX: y"}, 1, "MM2PY_TOKEN holds no secret of one line"),
        ([], {"MM2PY_TOKEN": f"{CANARY} x"}, 1, "characters that no token has"),
        (["--url", f"http://ann:{CANARY}@w:1"], {}, 2, "--url holds a user or password"),
        (["--url", "ftp://w"], {}, 2, "is not an address of a worker"),
        (["--url", "http://"], {}, 2, "is not an address of a worker"),
        (["--url", "http://w:x"], {}, 2, "is not an address of a worker"),
        (["--url", "http://w/?q=1"], {}, 2, "is not an address of a worker"),
        (["--ca-file", "ca.pem"], {}, 1, "use https://"),
        (["--url", "https://w", "--ca-file", "/no/such"], {}, 1, "--ca-file /no/such cannot"),
        (["--url", "https://w", "--key", "k.pem"], {}, 1, "--key was given without --cert"),
        (["--timeout", "0"], {}, 2, "--timeout"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_is_sent(
    words: list[str], env: dict[str, str], code: int, said: str
) -> None:
    found = listing([FLOW])
    ended = found.run("flow", "list", *words, env={"NO_COLOR": "1", **env})
    assert (ended.code, found.requests) == (code, [])
    assert said in ended.err
    assert CANARY not in ended.err


def test_a_ca_file_that_is_no_pem_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    ended = listing([]).run("flow", "list", "--url", "https://w", "--ca-file", str(file))
    assert ended.code == 1
    assert f"--ca-file {file} cannot be used: " in ended.err


def test_the_address_may_have_a_path_and_comes_from_the_environment_too() -> None:
    found = FakeApi({("GET", "/mm2/flows"): [FLOW]})
    assert found.run("flow", "list", env={"MM2PY_URL": "http://proxy/mm2/"}).code == 0


def test_help_works_offline_and_loads_no_http_library() -> None:
    code = (
        "import sys\n"
        "from mm2py_cli.app import app\n"
        "for words in ([], ['flow'], ['flow', 'set'], ['lag'], ['topics']):\n"
        "    try:\n"
        "        app([*words, '--help'])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "heavy = {'httpx', 'fastapi', 'uvicorn', 'starlette', 'yaml', 'ssl', 'asyncio'}\n"
        "sys.stderr.write(repr(sorted(heavy & set(sys.modules))))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert (ended.returncode, ended.stderr) == (0, "[]")
    assert "mm2py flow set A/B topics='orders.*,payments' --dry-run" in ended.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_and_complete_verbs(shell: str) -> None:
    ended = CliRunner().invoke(app, ["completion", shell], env={"_MM2PY_COMPLETE": None})
    assert ended.exit_code == 0
    assert "_MM2PY_COMPLETE=complete_" + shell in ended.stdout


def test_bash_asks_for_completions_and_gets_verbs() -> None:
    env = {"_MM2PY_COMPLETE": "complete_bash", "COMP_WORDS": "mm2py flow re", "COMP_CWORD": "2"}
    ended = CliRunner().invoke(app, env=env, prog_name="mm2py")
    assert set(ended.stdout.split()) == {"resume", "restart"}


def test_watch_prints_json_lines_and_ends_with_ctrl_c() -> None:
    first, second = [TOPIC | {"topic": "a"}], [TOPIC | {"topic": "b"}]
    turns = Turns([first, refusal(503, "starting"), second, KeyboardInterrupt()])
    found = FakeApi({("GET", "/flows"): [FLOW], ("GET", "/lag"): turns})
    ended = found.run("lag", "--watch", "--every", "0.2", "-o", "json")
    assert [json.loads(line) for line in ended.out.splitlines()] == [first, second]
    assert (ended.code, "not ready (503)" in ended.err) == (0, True)


def test_every_command_is_in_the_document_and_every_command_there_exists() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    documented = set(
        re.findall(r"^\| `mm2py ((?:[a-z0-9-]+ ?){1,2}?)(?= [A-Z\[]|`)", page, re.MULTILINE)
    )
    # What has an older name is in one table by kind, and that table is held by tests/unit/jobs/test_progress.py.
    older = {it.split()[0] for it in COMMANDS}
    commands = {it.name or _name_of(it) for it in app.registered_commands} - older
    for group in app.registered_groups:
        assert group.typer_instance is not None
        if group.name in older:
            continue
        nested = group.typer_instance.registered_commands
        commands |= {f"{group.name} {it.name or _name_of(it)}" for it in nested}
    assert documented == commands


def _name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.callback.__name__
