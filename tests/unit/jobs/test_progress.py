"""Jobs without a claim: what they tell, what is kept of it, and ``GET /jobs`` of every kind."""

import asyncio
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mm2py.errors import RetriableError
from mm2py.mirror.backfills import (
    NO_END,
    PROGRESS_ALIVE_S,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
    Progress,
    decode_backfill,
    encode_backfill,
)
from mm2py.mirror.failovers import FailoverKind
from mm2py.mirror.versioned_json import encode
from mm2py.observability.logging import SecretMask
from mm2py.storage.backfill_store import KEPT, BackfillStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually, until
from mm2py_cli.output import Output, Printer
from mm2py_cli.progress import LINES_S
from mm2py_jobs.aliases import COMMANDS, PATHS
from mm2py_jobs.commands import KINDS, add_commands
from mm2py_jobs.copy.backfill_views import show_progress
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.progress import ReportedProgress, publish, reporting
from tests.unit.rest.flow_fakes import AB, BA, Rig
from tests.unit.rest.job_fakes import LEASE
from tests.unit.rest.paper_worker import PaperWorker
from tests.unit.rest.test_rest_jobs import JOB, Stage

VERIFY: Final = Progress(id="v", kind="VERIFY", started_ms=1)
WORKER: Final = {
    "group.id": "g",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
}


def sides(worker: Mapping[str, str]) -> FlowSides:
    return FlowSides(
        AB,
        {
            "source.cluster.alias": "A",
            "target.cluster.alias": "B",
            "source.cluster.bootstrap.servers": "127.0.0.1:9",
        },
        worker,
    )


async def opened(topic: MemoryTopic, clock: FakeClock) -> BackfillStore:
    store = BackfillStore(MemoryTable(topic), clock)
    await store.start()
    return store


async def test_a_job_tells_how_far_it_is_and_how_it_ended() -> None:
    topic, clock = MemoryTopic("jobs"), FakeClock()
    worker, own = await opened(topic, clock), await opened(topic, clock)
    reported, done = ReportedProgress(VERIFY, clock), 30

    def seen() -> Progress | None:
        return worker.progress[0] if worker.progress else None

    reported.plan(100)
    reported.follow(lambda: done)
    task = asyncio.create_task(publish(own, reported))
    await until(lambda: seen() is not None)
    first = worker.progress[0]
    assert (first.state, first.done, first.total, first.equal) == ("RUNNING", 30, 100, None)
    reported.end(equal=False, differences=2, records=90, result="NOT equal")
    reported.over.set()
    await task
    await until(lambda: worker.progress[0].state is JobState.DONE)
    last = worker.progress[0]
    assert (last.done, last.equal, last.differences, last.records) == (100, False, 2, 90)
    assert last.beat > first.beat
    assert decode_backfill(*encode_backfill(last)) == last


def test_a_job_that_raises_has_failed_where_it_was() -> None:
    reported = ReportedProgress(VERIFY, FakeClock())
    reported.plan(100)
    reported.follow(lambda: 40)
    reported.fail(ValueError("the source does not answer"))
    now = reported.now()
    assert (now.state, now.done, now.cause) == ("FAILED", 40, "the source does not answer")


FOLDER: Final = "s3://AKIA:SEC/RET@bucket/x"


@pytest.mark.parametrize("member", ["topics", "result", "cause"])
def test_a_job_tells_no_credentials(member: str) -> None:
    reported = ReportedProgress(VERIFY, FakeClock(), SecretMask(["hunter2-long"]))
    reported.end(**{member: f"to {FOLDER} with hunter2-long"})
    shown = getattr(reported.now(), member)
    assert shown == "to s3://[hidden]@bucket/x with [hidden]"


@pytest.mark.parametrize("refused", [1, 2])
async def test_a_job_goes_on_telling_after_what_could_not_be_written(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    topic, clock = MemoryTopic("jobs"), FakeClock()
    worker = await opened(topic, clock)
    table, posts = MemoryTable(topic), 0

    def post(entries: Sequence[Entry]) -> "asyncio.Future[int]":
        nonlocal posts
        posts += 1
        if posts == refused:
            raise RetriableError("a broker restarts")
        return MemoryTable.post(table, entries)

    own = BackfillStore(table, clock)
    await own.start()
    monkeypatch.setattr(table, "post", post)
    monkeypatch.setattr("mm2py_jobs.progress.PROGRESS_S", 0.01)
    reported = ReportedProgress(VERIFY, clock)
    task = asyncio.create_task(publish(own, reported))
    await eventually(lambda: posts > refused, within_s=90)
    reported.end(equal=True)
    reported.over.set()
    await task
    await until(lambda: worker.progress[0].state is JobState.DONE)


def test_a_job_whose_target_does_not_answer_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py_jobs.progress.END_S", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        flow = sides({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", **WORKER})
        with reporting(flow, "verify", None, Printer(Output.TABLE)) as reported:
            reported.end()
    assert not reported.reached.is_set()


def test_a_job_whose_target_is_not_configured_goes_on_untold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with reporting(sides({}), "verify", None, Printer(Output.TABLE)) as reported:
        asyncio.run(eventually(lambda: "workers are not told" in caplog.text, within_s=90))
        reported.end()


def test_nothing_is_shown_of_a_job_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py_jobs.progress.LOOK_S", 0.001)
    asked, answer = threading.Event(), threading.Event()
    with reporting(sides({}), "verify", None, Printer(Output.TABLE)) as reported:

        def done() -> int:
            asked.set()
            answer.wait(90)
            return 0

        reported.follow(done)
        assert asked.wait(90)
        threading.Timer(0.1, answer.set).start()
        reported.end(done=0)
    shown = [it for it in threading.enumerate() if it.name == "progress shown"]
    assert shown == []


async def test_the_line_of_a_backfill_says_what_holds_its_partitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, store = FakeClock(), BackfillStore(MemoryTable(MemoryTopic("backfill")))
    await store.start()
    held = replace(LEASE, partition=1, cause="the login is refused")
    await store.post([JOB, LEASE, held])
    await store.refresh()
    trouble = [""]
    showing = asyncio.create_task(
        show_progress(store, Printer(Output.JSON), clock, lambda: trouble[0])
    )
    await clock.advance(LINES_S)
    # Of leases that cannot be read any more the last word is old.
    trouble[0] = "cluster B confirms no record of the driver"
    await clock.advance(LINES_S)
    showing.cancel()
    assert capsys.readouterr().err.splitlines() == [
        "backfill copies: 80 of 200 offsets; 1 partition stands still, t-1: the login is refused",
        "backfill copies: 80 of 200 offsets; cluster B confirms no record of the driver",
    ]


def test_what_is_shown_before_the_work_is_known_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mm2py_jobs.progress.LOOK_S", 0.001)
    monkeypatch.setattr("mm2py_cli.progress.LINES_S", 0.0)
    shown = list[str]()

    def says(text: str) -> bool:
        shown.append(capsys.readouterr().err)
        return text in "".join(shown)

    with reporting(sides({}), "verify", None, Printer(Output.TABLE)) as reported:
        asyncio.run(eventually(lambda: says("being planned"), within_s=90))
        reported.plan(7)
        asyncio.run(eventually(lambda: says("0 of 7 offsets"), within_s=90))
        reported.end()
    assert ": offsets" not in "".join(shown)


async def test_a_job_whose_process_is_gone_has_failed_and_one_that_is_over_stays() -> None:
    clock = FakeClock()
    store = await opened(MemoryTopic("jobs"), clock)
    running = replace(VERIFY, at_ms=1_700_000_000_000)
    await store.post([running, replace(running, id="w", state=JobState.DONE)])
    await store.post([replace(running, id="x", at_ms=10**18)])  # no time at all
    await store.refresh()
    states = {it.id: it.state.value for it in store.progress}
    assert states == {"v": "RUNNING", "w": "DONE", "x": "RUNNING"}
    await clock.advance(PROGRESS_ALIVE_S + 1)
    ended = {it.id: (it.state.value, it.cause) for it in store.progress}
    assert ended.pop("x")[1].startswith("not heard of since 1000000000000000000 ms")
    assert ended == {
        "v": (
            "FAILED",
            "not heard of since 2023-11-14 22:13:20 UTC: its process is gone, or cannot reach the target and still runs",
        ),
        "w": ("DONE", ""),
    }


async def test_the_newest_of_each_kind_are_kept() -> None:
    topic, clock = MemoryTopic("jobs"), FakeClock()
    store = await opened(topic, clock)
    many = [replace(VERIFY, id=str(n), started_ms=n) for n in range(KEPT + 3)]
    await store.post([*many, replace(VERIFY, id="a", kind="ARCHIVE", started_ms=0)])
    await store.refresh()
    await store.forget_progress("VERIFY")
    await store.refresh()
    kept = [it.id for it in store.progress]
    assert kept == [*(it.id for it in reversed(many[-KEPT:])), "a"]


@pytest.mark.parametrize(
    ("members", "stays"),
    [
        ({}, True),
        ({"at_ms": 1}, False),
        ({"state": JobState.DONE}, False),
        ({"state": JobState.FAILED}, False),
    ],
    ids=str,
)
async def test_a_job_that_runs_is_not_forgotten_before_it_is_long_silent(
    members: Mapping[str, Any], stays: bool
) -> None:
    clock = FakeClock()
    store = await opened(MemoryTopic("jobs"), clock)
    running = replace(VERIFY, at_ms=clock.now_ms())
    many = [replace(running, id=str(n), started_ms=n + 2) for n in range(KEPT)]
    await store.post([replace(running, **members), *many])
    await store.refresh()
    await store.forget_progress("VERIFY")
    await store.refresh()
    assert ("v" in {it.id for it in store.progress}) is stays


@pytest.mark.parametrize("again", ["tombstone", "start"])
async def test_what_was_heard_of_a_job_goes_with_its_record(again: str) -> None:
    topic = MemoryTopic("jobs")
    store = await opened(topic, FakeClock())
    await store.post([VERIFY])
    await store.refresh()
    key, _ = encode_backfill(VERIFY)
    if again == "start":
        topic.recreate()
        await store.start()
    else:
        topic.append(key, None)
        await store.refresh()
    assert store.progress_heard == {}


@pytest.mark.parametrize(
    ("key", "lines"), [("census:%d", 1), ("progress:verify:%d", 3), ("job", 3)]
)
async def test_a_kind_of_record_of_a_newer_version_is_logged_once(
    key: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = MemoryTopic("jobs")
    store = await opened(topic, FakeClock())
    for n in range(3):
        topic.append((key % n if "%" in key else key).encode(), encode({"id": "x"}))
    await store.refresh()
    assert caplog.text.count("record is ignored") == lines


STREAM: Final = replace(JOB, kind=JobKind.STREAM)
ENDLESS: Final = replace(LEASE, end=NO_END, lag=5)

SHOWN: Final[list[tuple[str, list[Job | Lease | Progress], Mapping[str, Any]]]] = [
    (
        "backfill",
        [JOB, LEASE, replace(LEASE, partition=1, state=LeaseState.HANDED_OVER, position=100)],
        {"kind": "backfill", "done": 140, "total": 200, "lag": None, "records": 80, "at_ms": None},
    ),
    (
        "restore",
        [replace(JOB, archive="/backup"), LEASE],
        {"kind": "restore", "range": "of /backup", "done": 40, "total": 100},
    ),
    (
        "stream",
        [STREAM, ENDLESS, replace(ENDLESS, partition=1, start=-1, lag=2)],
        {"kind": "stream", "done": 80, "total": None, "lag": 7, "range": "", "bytes": 8_000},
    ),
    ("lag", [STREAM, ENDLESS, replace(ENDLESS, partition=1, lag=-1)], {"lag": None}),
    (
        "verify",
        [replace(VERIFY, equal=False, differences=3, state=JobState.DONE, total=7, done=7)],
        {"kind": "verify", "state": "DONE", "equal": False, "differences": 3, "not_compared": 0},
    ),
    (
        "planned",
        [replace(VERIFY, kind="ARCHIVE")],
        {"kind": "archive", "total": None, "equal": None, "differences": None, "wanted": "RUN"},
    ),
    (
        "failed",
        [replace(VERIFY, kind="RERUN", state=JobState.FAILED, cause="of canary-value")],
        {"kind": "rerun", "state": "FAILED", "cause": "of [hidden]"},
    ),
    (
        "of another package",
        [replace(VERIFY, kind="COUNT", records=7)],
        {"kind": "count", "records": 7},
    ),
    (
        "secrets",
        [replace(VERIFY, topics="canary-value", result=f"to {FOLDER}")],
        {"topics": "[hidden]", "result": "to s3://[hidden]@bucket/x"},
    ),
    ("restored", [replace(JOB, archive=FOLDER)], {"range": "of s3://[hidden]@bucket/x"}),
]


@pytest.mark.parametrize(
    ("records", "wanted"), [it[1:] for it in SHOWN], ids=[it[0] for it in SHOWN]
)
async def test_every_kind_of_job_has_one_shape(
    records: list[Job | Lease | Progress], wanted: Mapping[str, Any]
) -> None:
    stage = Stage()
    await stage.store.start()
    await stage.store.post(records)
    await stage.store.refresh()
    (shown,) = stage.service.jobs(stage.nodes)
    assert {name: dict(shown)[name] for name in wanted} == wanted
    assert shown["flow"] == "A->B"


def test_jobs_are_those_of_one_flow_or_kind_where_it_is_named() -> None:
    rig = Rig()
    herder = rig.add(AB)
    store = herder.backfill_store = BackfillStore(MemoryTable(MemoryTopic("jobs")))

    async def begin() -> None:
        await store.start()
        await store.post([VERIFY])
        await store.refresh()

    asyncio.run(begin())
    rig.add(BA)
    for query, kinds in (("", ["verify"]), ("?flow=A-%3EB", ["verify"]), ("?flow=B-%3EA", [])):
        assert [it["kind"] for it in rig.ask("GET", f"/jobs{query}").json] == kinds
    assert rig.ask("GET", "/jobs/verify?flow=A-%3EB").json == rig.ask("GET", "/jobs").json
    for path in ("?flow=X-%3EY", "/census", "/failover", "/verify?flow=B-%3EA"):
        assert rig.ask("GET", f"/jobs{path}").status == 404, path


# -- ``mm2py job KIND VERB`` and ``/jobs/{kind}``


BASE: Final = "http://worker:8083"
VERBS: Final = ("plan", "run", "status", "pause", "resume", "cancel")


@cache
def commands() -> object:
    app = typer.Typer()
    add_commands(app)
    return get_command(app)


def options(words: list[str]) -> set[str]:
    """Return the names of a command's parameters; of a group those of its commands."""
    command: Any = commands()
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


CENSUS: Final = """\
from mm2py_jobs.commands import KindCommands
def run() -> int:
    "Count."
    print("counted")
    return 0
CENSUS = KindCommands("census", "Count them.", {"run": run}, ())
"""


def test_kinds_of_other_packages_are_loaded_when_asked_for_and_a_broken_one_hurts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "census-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: census\nVersion: 1\n")
    points = "census = census_job:CENSUS\nbroken = census_job:GONE\nverify = census_job:CENSUS\n"
    (info / "entry_points.txt").write_text(f"[mm2py.jobs]\n{points}")
    (tmp_path / "census_job.py").write_text(CENSUS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    app = typer.Typer()
    add_commands(app)
    assert "census_job" not in sys.modules
    shown = CliRunner().invoke(app, ["job", "--help"])
    assert all(it in shown.stdout for it in ("census", "Count them.", "Compare what", "failback"))
    assert "job broken (census_job:GONE) cannot be loaded: AttributeError: " in shown.stderr
    assert CliRunner().invoke(app, ["job", "census", "run"]).stdout == "counted\n"
    assert CliRunner().invoke(app, ["job", "broken", "run"]).exit_code == 2


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
