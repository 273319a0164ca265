"""``mm2py job KIND VERB`` and ``/jobs/{kind}``: the same for all kinds, and each older name beside them."""

from collections.abc import Mapping
from typing import Final

import httpx
import pytest
import typer
from typer.main import get_command

from mm2py.mirror.failovers import FailoverKind
from mm2py_jobs.aliases import COMMANDS, PATHS
from mm2py_jobs.commands import KINDS, add_commands
from tests.unit.rest.paper_worker import PaperWorker

BASE: Final = "http://worker:8083"
VERBS: Final = ("plan", "run", "status", "pause", "resume", "cancel")


def options(words: list[str]) -> set[str]:
    """Return the names of a command's parameters; of a group those of its commands."""
    app = typer.Typer()
    add_commands(app)
    command = get_command(app)
    for word in words:
        command = getattr(command, "commands")[word]  # noqa: B009 - a group of typer
    below: Mapping[str, object] = getattr(command, "commands", {})
    return {str(it.name) for it in command.params} | set(below)


def test_every_kind_plans_and_runs_and_has_no_verb_of_its_own() -> None:
    assert [it.name for it in KINDS] == (
        ["backfill", "stream", "verify", "archive", "restore", "rerun", "failover", "failback"]
    )
    for kind in KINDS:
        assert {"plan", "run"} <= set(kind.verbs) <= set(VERBS), kind.name
    recorded = {it.name for it in KINDS if {"status", "cancel"} <= set(it.verbs)}
    assert recorded == {"backfill", "stream", "restore", *map(str, FailoverKind)}


@pytest.mark.parametrize("old", [it for it in COMMANDS if "--" not in it and it != "drill"])
def test_an_older_command_takes_what_the_new_one_takes(old: str) -> None:
    assert options(old.split()) == options(COMMANDS[old].split())


@pytest.mark.parametrize("old", [it for it in COMMANDS if "--" in it or it == "drill"])
def test_an_option_that_was_a_verb_is_one_now(old: str) -> None:
    name, _, option = old.partition(" --")
    assert not option or option in options([name])
    verb, *flags = COMMANDS[old].split(" --")
    assert {it.replace("-", "_") for it in flags} <= options(verb.split())


def test_every_older_path_is_served_beside_the_new_one() -> None:
    with PaperWorker(dedicated=True) as worker:
        paths = set(worker.send(httpx.Request("GET", BASE + "/openapi.json")).json()["paths"])
    assert set(PATHS) <= paths
    assert set(PATHS.values()) <= paths
    for kind in ("backfill", *FailoverKind):
        of_kind = {it for it in paths if it.startswith(f"/jobs/{kind}")}
        assert {it.rpartition(":")[2] for it in of_kind if ":" in it} <= {"plan", "start", *VERBS}
