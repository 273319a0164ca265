"""``/backfills`` and ``/flows/{flow}/failover`` over fakes: what is planned, started, shown and refused."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mm2py.clock import closing
from mm2py.errors import FatalError, ProtocolError, RetriableError
from mm2py.flows.graph import FlowNode
from mm2py.flows.service import READS_AT_ONCE
from mm2py.mirror.backfills import ALIVE_S, Job, JobKind, JobState, Lease, Order, Wanted
from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.rest.app import internal_app
from mm2py.rest.job_routes import JobRoutes, RouteHost, open_job_routes
from mm2py.rest.parts import CALLER
from mm2py.runtime.errors import (
    BadRequestError,
    ConflictError,
    ForwardError,
    HerderError,
    NotFoundError,
)
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_jobs import BackfillService, BackfillView, CommandEnd
from mm2py_jobs.failover.flows import RestFlows
from mm2py_jobs.failover.plan import FailoverRequest, FailoverView, TopicRow
from mm2py_jobs.failover.routes import FailoverService, OwnApi
from mm2py_workers.rest_wiring import OpenRest
from tests.unit.rest.flow_fakes import AB, BA, LEADER, Network, Rig
from tests.unit.rest.job_fakes import LEASE, PLAN, FakeCommands, FakeFailovers

JOB = Job(id="j", state=JobState.RUNNING, run=1, lanes=1, topics="t.*", started_ms=7)
ASKED = Order(id="", topics="t.*", rate_limit=5, by="ann")


class Stage:
    """One flow that this worker leads, and its backfill topic."""

    def __init__(self) -> None:
        rig = Rig()
        rig.stores = {}
        self.herder = rig.placed(AB, {}, by_file=True, configured=True)
        self.topic, self.clock = MemoryTopic("backfill"), FakeClock()
        self.store = BackfillStore(MemoryTable(self.topic), self.clock)
        self.herder.backfill_store = self.store
        self.nodes: Mapping[FlowName, FlowNode] = rig.nodes
        self.commands = FakeCommands()
        self.service = BackfillService(
            self.commands,
            masters=["spark://ours:7077"],
            mask=SecretMask(["canary-value"]),
            clock=self.clock,
        )

    async def planned(self) -> str:
        await self.store.start()
        return (await self.service.plan(self.nodes, AB, ASKED))["id"]

    async def driven(self) -> str:
        """Let a backfill be planned and its driver run."""
        identifier = await self.planned()
        await self.start(identifier)
        await until(lambda: len(self.commands.runs) == 1)
        return identifier

    async def begun(self, *records: Job | Lease) -> None:
        await self.store.start()
        await self.store.post(records or (JOB, LEASE))
        await self.store.refresh()

    def show(self, identifier: str = "j") -> BackfillView:
        return self.service.show(self.nodes, AB, identifier)

    async def start(self, identifier: str = "j") -> BackfillView:
        return await self.service.start(self.nodes, AB, identifier, "ann")

    async def wish(self, wanted: Wanted, identifier: str = "j") -> BackfillView:
        return await self.service.request(self.nodes, AB, identifier, wanted)


async def test_a_plan_is_kept_and_started_under_its_id() -> None:
    stage = Stage()
    identifier = await stage.planned()
    planned = stage.show(identifier)
    assert (planned["state"], planned["by"], planned["topics"]) == ("PLANNED", "ann", "t.*")
    assert [it["id"] for it in stage.service.all(stage.nodes)] == [identifier]
    assert (await stage.start(identifier))["state"] == "STARTING"
    await until(lambda: len(stage.commands.runs) == 1)
    order = stage.commands.runs[0]
    assert (order.id, order.rate_limit, order.worker) == (identifier, 5, "worker:8083")
    await stage.store.post([replace(JOB, id=identifier), replace(LEASE, job=identifier)])
    await stage.store.refresh()
    running = stage.show(identifier)
    assert (running["state"], running["records"], running["offsets_left"]) == ("RUNNING", 40, 60)
    assert running["partitions_by_state"] == {"COPYING": 1}
    assert (running["rate_limit"], running["worker"]) == (5, "worker:8083")
    with pytest.raises(ConflictError, match="starting, running or just ending"):
        await stage.start(identifier)
    await stage.store.post([replace(JOB, id=identifier, state=JobState.DONE)])
    stage.commands.end(0)
    await until(lambda: stage.show(identifier)["state"] == "DONE")
    with pytest.raises(ConflictError, match="is DONE: plan another one"):
        await stage.start(identifier)


REFUSED = {"topic": "t", "partition": 3, "reason": "is not empty"}
WROTE = "JVM: canary-value", "mm2py: Spark master is away; start it"


@pytest.mark.parametrize(
    ("code", "lines", "out", "cause"),
    [
        (1, WROTE, "", "Spark master is away; start it"),
        (3, (), json.dumps({"state": "REFUSED", "refused": [REFUSED]}), "t-3: is not empty"),
        (-9, (), "", "the process was ended by signal 9"),
    ],
)
async def test_a_driver_that_fails_before_it_begins_is_shown_with_its_cause_by_every_worker(
    code: int, lines: Sequence[str], out: str, cause: str
) -> None:
    stage = Stage()
    identifier = await stage.driven()
    stage.commands.end(code, *lines, out=out)
    await until(lambda: stage.show(identifier)["state"] == "FAILED")
    shown = stage.show(identifier)
    assert shown["cause"] == cause
    assert shown["log"] == [it.replace("canary-value", HIDDEN) for it in lines]
    other = Stage()
    other.store = other.herder.backfill_store = BackfillStore(MemoryTable(stage.topic), other.clock)
    await other.store.start()
    assert other.show(identifier)["cause"] == cause
    assert (await stage.start(identifier))["state"] == "STARTING"
    assert stage.show(identifier)["cause"] == ""


async def test_a_start_whose_worker_is_gone_is_shown_as_failed() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.store.post([Order(id="j", worker="gone:1")])
    await stage.store.refresh()
    stage.herder.urls = ("http://worker:8083/",)
    assert stage.show()["state"] == "FAILED"
    assert "is gone: start it again" in stage.show()["cause"]
    stage.herder.urls = ("http://worker:8083/", "http://gone:1/")
    assert stage.show()["state"] == "STARTING"


async def test_a_running_backfill_whose_driver_is_silent_is_shown_as_failed_and_continued() -> None:
    stage = Stage()
    await stage.begun()
    assert stage.show()["state"] == "RUNNING"
    with pytest.raises(ConflictError, match="is RUNNING"):
        await stage.start()
    stage.clock.jump(ALIVE_S + 1)
    assert stage.show()["state"] == "FAILED"
    assert "its driver is gone" in stage.show()["cause"]
    with pytest.raises(ConflictError, match="its driver is gone"):
        await stage.wish(Wanted.PAUSE)
    await stage.start()
    await until(lambda: len(stage.commands.runs) == 1)
    assert (stage.commands.runs[0].id, stage.commands.runs[0].topics) == ("j", "t.*")
    assert stage.show()["state"] == "STARTING"
    # It has begun and failed; its process takes another moment to end.
    await stage.store.post([replace(JOB, run=2, state=JobState.FAILED, cause="no lanes")])
    await stage.store.refresh()
    assert (stage.show()["state"], stage.show()["cause"]) == ("FAILED", "no lanes")
    stage.commands.end(1, "mm2py: no lanes")


async def test_a_running_backfill_says_what_holds_its_partitions() -> None:
    stage = Stage()
    await stage.begun(JOB, LEASE, replace(LEASE, partition=1, cause="canary-value is refused"))
    (job,) = stage.service.jobs(stage.nodes)
    held = f"1 partition stands still, t-1: {HIDDEN} is refused"
    assert (job["state"], job["cause"]) == ("RUNNING", held)
    await stage.begun(JOB, replace(LEASE, partition=1))
    assert stage.show()["cause"] == ""


async def test_an_unfinished_backfill_is_paused_resumed_and_cancelled_and_no_other_planned_beside_it() -> (
    None
):
    stage = Stage()
    await stage.begun()
    with pytest.raises(ConflictError, match="backfill j is unfinished"):
        await stage.planned()
    assert (await stage.wish(Wanted.PAUSE))["wanted"] == "PAUSE"
    assert (await stage.wish(Wanted.RUN))["wanted"] == "RUN"
    assert stage.commands.cancelled == []
    assert (await stage.wish(Wanted.CANCEL))["wanted"] == "CANCEL"
    await until(lambda: stage.commands.cancelled == [AB])
    await stage.store.post([replace(JOB, state=JobState.CANCELLED)])
    await stage.store.refresh()
    with pytest.raises(ConflictError, match="is CANCELLED"):
        await stage.wish(Wanted.CANCEL)


async def test_what_is_starting_can_be_cancelled_and_what_is_planned_only_started() -> None:
    stage = Stage()
    identifier = await stage.planned()
    for wanted in Wanted:
        with pytest.raises(ConflictError, match="was not started"):
            await stage.wish(wanted, identifier)
    await stage.start(identifier)
    await until(lambda: len(stage.commands.runs) == 1)
    await stage.wish(Wanted.CANCEL, identifier)
    assert stage.commands.stopped == [AB]
    stage.commands.end(-15)
    await until(lambda: stage.show(identifier)["state"] == "FAILED")


async def test_verbs_of_a_backfill_leave_a_stream_and_a_restore_alone() -> None:
    stage = Stage()
    await stage.begun()
    for job, refused in (
        (replace(JOB, kind=JobKind.STREAM, state=JobState.FAILED), "where its driver is gone"),
        (replace(JOB, archive="/backup", state=JobState.FAILED), "restore j of /backup"),
    ):
        await stage.store.post([job])
        await stage.store.refresh()
        with pytest.raises(ConflictError, match=refused):
            await stage.start()
        if job.kind is JobKind.STREAM:
            for wanted in Wanted:
                with pytest.raises(ConflictError, match=refused):
                    await stage.wish(wanted)
    assert stage.commands.runs == []
    assert stage.store.wanted is Wanted.RUN


async def test_what_the_checks_and_the_clusters_refuse_is_the_answer() -> None:
    stage = Stage()
    rows = [
        {"topic": "t", "partition": 3, "reason": "is not empty"},
        {"topic": "u", "partition": -1, "reason": "is missing"},
    ]
    stage.commands.planned = CommandEnd(3, json.dumps({"refused": rows}), ())
    with pytest.raises(ConflictError, match=r"^t-3: is not empty; u: is missing$"):
        await stage.planned()
    stage.commands.planned = CommandEnd(1, "", ("mm2py: cluster A is away",))
    with pytest.raises(HerderError, match=r"^cluster A is away$") as away:
        await stage.planned()
    assert away.value.status == 503
    stage.commands.without_spark = "Spark is not installed"
    with pytest.raises(ConflictError, match="Spark is not installed"):
        await stage.planned()
    assert stage.service.all(stage.nodes) == []


@pytest.mark.parametrize(
    ("master", "allowed"),
    [
        ("", True),
        ("local[4]", True),
        ("local[2,4]", True),
        ("spark://ours:7077", True),
        ("spark://theirs:7077", False),
        ("sc://theirs", False),
        ("local[2]x", False),
    ],
)
async def test_a_spark_master_over_rest_is_this_machine_or_one_of_the_file(
    master: str, *, allowed: bool
) -> None:
    stage = Stage()
    await stage.store.start()
    planning = stage.service.plan(stage.nodes, AB, replace(ASKED, master=master))
    if allowed:
        assert (await planning)["master"] == master
    else:
        with pytest.raises(BadRequestError, match=r"rest\.spark\.masters"):
            await planning


async def test_only_the_leader_changes_and_any_worker_shows() -> None:
    stage = Stage()
    await stage.begun()
    stage.herder.elsewhere = ForwardError(LEADER)
    assert stage.show()["state"] == "RUNNING"
    for change in (
        stage.start(),
        stage.wish(Wanted.PAUSE),
        stage.service.plan(stage.nodes, AB, ASKED),
    ):
        with pytest.raises(ForwardError):
            await change
    with pytest.raises(NotFoundError, match="No backfill other"):
        stage.show("other")


# ---- over HTTP


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    rig.add(BA)
    return rig


def begin(rig: Rig) -> None:
    store = rig.herders[AB].backfill_store
    assert store is not None
    asyncio.run(store.post([JOB, LEASE]))
    asyncio.run(store.refresh())


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 422, "body.flow"),
        ({"flow": "A->B", "from": "yesterday"}, 422, "body.from: "),
        ({"flow": "A->B", "to": "offset:x"}, 422, "body.to: "),
        ({"flow": "A->B", "topics": "("}, 422, "body.topics: "),
        ({"flow": "A->B", "rate_limit": "5"}, 422, "body.rate_limit: must be a whole number"),
        ({"flow": "A->B", "rate_limit": -1}, 422, "body.rate_limit: must be at least 0"),
        ({"flow": "A->B", "wait_executors_s": -1}, 422, "body.wait_executors_s: "),
        ({"flow": "A->B", "max_lanes_per_broker": -1}, 422, "body.max_lanes_per_broker: "),
        ({"flow": "A->B", "rate": 5}, 422, "body.rate: "),
        ({"flow": "A->X"}, 404, "No flow A->X"),
        ({"flow": "A->B", "master": "spark://x:1"}, 400, "body.master: "),
    ],
)
def test_a_wrong_body_is_refused_with_its_key(
    rig: Rig, body: dict[str, object], status: int, text: str
) -> None:
    reply = rig.ask("POST", "/backfills", body=body)
    assert reply.status == status, reply.content
    assert text in reply.json["message"]


@pytest.mark.parametrize("path", ["/jobs/backfill", "/backfills"])
def test_a_backfill_is_planned_listed_paused_and_described(rig: Rig, path: str) -> None:
    planned = rig.ask("POST", path, body={"flow": "A->B", "from": "offset:3"})
    assert (planned.status, planned.json["state"]) == (201, "PLANNED"), planned.content
    assert planned.json["plan"] == {"lanes": [], "partitions": [], "refused": []}
    begin(rig)
    listed = rig.ask("GET", path).json
    assert [(it["id"], it["flow"]) for it in listed] == [
        (planned.json["id"], "A->B"),
        ("j", "A->B"),
    ]
    assert "partitions" not in listed[0]
    paused = rig.ask("POST", f"{path}/j:pause")
    assert (paused.status, paused.json["wanted"]) == (202, "PAUSE")
    shown = rig.ask("GET", f"{path}/j").json
    assert shown["partitions"][0]["position"] == 40
    assert rig.ask("GET", f"{path}/other").status == 404
    assert rig.ask("POST", f"{path}/other:start").status == 404
    assert rig.ask("POST", f"{path}/j:pause", body={"x": 1}).status == 422
    assert rig.ask("POST", f"{path}/j:restart").status == 405


def test_a_flow_shows_its_backfill_and_is_not_deleted_under_it(rig: Rig) -> None:
    assert rig.ask("GET", "/flows/A->B").json["notes"] == []
    begin(rig)
    assert "backfill j is RUNNING" in rig.ask("GET", "/flows/A->B").json["notes"][0]
    refused = rig.ask("DELETE", "/flows/A->B")
    said = "backfill j is RUNNING: cancel a backfill first, end a stream with SIGTERM"
    assert (refused.status, refused.message) == (409, said)
    assert rig.ask("GET", "/flows/A->B").status == 200


def test_a_change_is_sent_on_to_the_leader_of_the_flow(rig: Rig) -> None:
    leading = Rig()
    leading.add(AB)
    begin(leading)
    begin(rig)
    network = Network(internal_app(leading.parts))
    rig.client = network.client
    rig.herders[AB].elsewhere = ForwardError(LEADER)
    reply = rig.ask("POST", "/backfills/j:pause")
    assert (reply.status, reply.json["wanted"]) == (202, "PAUSE"), reply.content
    assert network.asked == ["POST /backfills/j:pause?forward=true"]


# -- ``/flows/{flow}/failover``


THERE = FailoverKind.FAILOVER
REQUEST = FailoverRequest(id="f")
HUNTER = "hunter2-of-the-source"


def step_of(view: FailoverView) -> Step:
    assert view.failover is not None
    return view.failover.step


@asynccontextmanager
async def stage() -> AsyncGenerator[tuple[FakeFailovers, FailoverService]]:
    commands = FakeFailovers(SecretMask([HUNTER]))
    async with closing(FailoverService(commands.opened)) as service:
        yield commands, service


async def test_a_failover_is_driven_here_until_it_is_done() -> None:
    async with stage() as (commands, service):
        assert (await service.show(AB, THERE)).failover is None
        view = await service.start(AB, REQUEST)
        assert (view.driven_here, step_of(view)) == (True, Step.FENCE)
        with pytest.raises(ConflictError, match="already"):
            await service.start(AB, REQUEST)
        commands.ended.set()
        await until(lambda: not service.driven)
        shown = await service.show(AB, THERE)
        assert (shown.driven_here, step_of(shown)) == (False, Step.DONE)


async def test_a_rehearsal_is_timed_and_it_and_a_dry_run_name_what_is_in_the_way_and_start_nothing() -> (
    None
):
    async with stage() as (commands, service):
        drill = await service.drill(AB, THERE)
        assert (drill.ready, drill.reasons, drill.gap_ms) == (True, (), 2_300)
        commands.planned = replace(commands.planned, would_lose=9)
        drill = await service.drill(AB, THERE)
        assert not drill.ready
        assert "--accept-loss 9" in drill.reasons[0]
        assert [it.step for it in drill.steps] == ["PLAN"]
        assert commands.record is None
        view = await service.plan(AB, REQUEST)
        assert view.plan is not None
        assert (view.plan.would_lose, "--accept-loss 9" in view.refused[0]) == (9, True)
        with pytest.raises(ConflictError, match="--accept-loss 9"):
            await service.start(AB, REQUEST)
        assert not commands.requests
        await service.start(AB, replace(REQUEST, accept_loss=9))
        assert [it.accept_loss for it in commands.requests] == [9]


async def test_secrets_are_hidden_in_plan_drill_record_and_refusals_and_names_are_not() -> None:
    async with stage() as (commands, service):
        row = TopicRow(
            topic=HUNTER,
            copy=f"A.{HUNTER}",
            partitions=1,
            lag_records=0,
            lag_ms=0,
            would_lose=0,
            copied_to={0: 1},
            problems=(f"retention.ms differs: {HUNTER}",),
        )
        commands.planned = replace(
            commands.planned, standing=f"no login with {HUNTER}", problems=(HUNTER,), topics=(row,)
        )
        planned = await service.plan(AB, REQUEST)
        assert planned.refused == (f"no login with {HIDDEN}", HIDDEN)[: len(planned.refused)]
        assert planned.refused
        for plan in (planned.plan, (await service.drill(AB, THERE)).plan):
            assert plan is not None
            (shown,) = plan.topics
            assert (shown.topic, shown.copy) == (row.topic, row.copy)
            assert shown.problems == (f"retention.ms differs: {HIDDEN}",)
            assert (plan.standing, plan.problems) == (f"no login with {HIDDEN}", (HIDDEN,))
        assert HIDDEN in (await service.drill(AB, THERE)).reasons[0]
        commands.planned = PLAN
        await service.start(AB, REQUEST)
        assert commands.record is not None
        commands.record = replace(commands.record, cause=f"refused: {HUNTER}")
        record = (await service.show(AB, THERE)).failover
        assert record == replace(commands.record, cause=f"refused: {HIDDEN}")


async def test_readers_open_few_connections_at_once_however_many_they_are() -> None:
    async with stage() as (commands, service):
        shown = [service.show(AB, THERE) for _ in range(100)]
        planned = [service.plan(AB, REQUEST) for _ in range(100)]
        await asyncio.gather(*shown, *planned)
        assert commands.most_open == READS_AT_ONCE


async def test_a_failback_of_what_was_not_failed_over_is_a_conflict() -> None:
    async with stage() as (commands, service):
        why = "clients of A->B were not failed over"
        commands.planned = replace(commands.planned, standing=why)
        request = replace(REQUEST, kind=FailoverKind.FAILBACK)
        with pytest.raises(ConflictError, match="not failed over"):
            await service.start(AB, request)
        assert (await service.plan(AB, request)).refused == (why,)
    moved = replace(PLAN, standing="clients of A->B were moved already", would_lose=50)
    assert moved.refusals(REQUEST) == (moved.standing,), "no question of loss"


async def test_a_cancel_ends_the_driver_first_and_a_dry_run_does_not() -> None:
    async with stage() as (_, service):
        with pytest.raises(ConflictError, match="no unfinished"):
            await service.cancel(AB, THERE, dry_run=False)
        await service.start(AB, REQUEST)
        await service.cancel(AB, THERE, dry_run=True)
        assert service.driven
        view = await service.cancel(AB, THERE, dry_run=False)
        assert (bool(service.driven), step_of(view)) == (False, Step.CANCELLED)


async def test_one_that_was_begun_goes_on_without_another_plan_and_its_driver_ends_with_the_worker() -> (
    None
):
    async with stage() as (commands, service):
        commands.record = Failover(id="f", flow="A->B", kind=THERE, step=Step.DRAIN, run=3)
        commands.planned = replace(commands.planned, would_lose=9)
        await service.start(AB, REQUEST)
        assert len(commands.requests) == 1
        assert service.driven
        await service.close()
        assert not service.driven


async def test_one_that_was_begun_is_checked_again_where_it_goes_on_without_its_source() -> None:
    async with stage() as (commands, service):
        commands.record = Failover(id="f", flow="A->B", kind=THERE, step=Step.DRAIN, run=3)
        request = replace(REQUEST, unplanned=True)
        with pytest.raises(ConflictError, match="the source answers"):
            await service.start(AB, request)
        assert (await service.plan(AB, request)).refused
        commands.planned = replace(commands.planned, source_reachable=False, would_lose=9)
        with pytest.raises(ConflictError, match="--accept-loss 9"):
            await service.start(AB, request)
        await service.start(AB, replace(request, accept_loss=9))
        assert len(commands.requests) == 1


class Paper:
    """An application that answers what a test says."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str, str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        who = scope[CALLER]
        assert who.operator
        path = f"{request.url.path}?{request.url.query}".removesuffix("?")
        self.asked.append((who.name, request.method, path, await request.body()))
        status, body = self._answers.pop(0)
        await JSONResponse(body, status)(scope, receive, send)


async def test_a_worker_asks_itself_as_an_operator() -> None:
    stopped = {"flow": "A->B", "state": "STOPPED", "enabled": True}
    made: tuple[int, Any] = (200, {})
    app = Paper((200, [stopped]), (200, [stopped]), made, (200, []), (201, {}), made, made)
    flows = RestFlows(OwnApi(lambda: app))
    now = await flows.now(AB)
    assert now is not None
    assert now.is_stopped
    await flows.start(AB, {})
    await flows.start(AB, {"topics": "orders"})
    await flows.stop(AB)
    await flows.stop(AB, dry_run=True)
    assert [(method, path) for _, method, path, _ in app.asked] == [
        ("GET", "/flows"),
        ("GET", "/flows"),
        ("POST", "/flows/A->B/resume"),
        ("GET", "/flows"),
        ("POST", "/flows"),
        ("POST", "/flows/A->B/stop"),
        ("POST", "/flows/A->B/stop?dry_run=true"),
    ]
    assert b'"topics":"orders"' in app.asked[4][3].replace(b" ", b"")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, {"message": "a rebalance"}), RetriableError),
        ((503, {"message": "starting"}), RetriableError),
        ((500, {"message": "its leader is gone"}), RetriableError),
        ((400, {"message": "wrong"}), FatalError),
        ((200, {"not": "a list"}), ProtocolError),
    ],
)
async def test_refusals_of_the_own_api_say_why_and_whether_to_ask_again(
    answer: tuple[int, Any], error: type[Exception]
) -> None:
    app = Paper(answer)
    said = f"^{answer[0]}: {answer[1]['message']}$" if "message" in answer[1] else "not a list"
    with pytest.raises(error, match=said):
        await OwnApi(lambda: app).rows("/flows")


async def test_lag_that_is_not_known_is_no_error() -> None:
    app = Paper((503, {}), (200, [{"topic": "t", "lag_records": 4}, {"topic": "u"}]))
    flows = RestFlows(OwnApi(lambda: app))
    assert await flows.lag(AB) == {}
    assert await flows.lag(AB) == {"t": 4}


# ---- routes of other packages

OWN_ROUTES = """\
from fastapi import APIRouter
from mm2py.rest.job_routes import JobRoutes
async def close():
    raise KeyError("gone")
def own(host):
    return JobRoutes(APIRouter(), close)
def half(host):
    raise KeyError("gone")
def odd(host):
    return APIRouter()
"""


async def test_broken_routes_of_other_packages_are_named_and_keep_no_worker_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own_routes.py").write_text(OWN_ROUTES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names = ["half", "odd", "missing", "own"]
    points = [EntryPoint(it, f"own_routes:{it}", "mm2py.routes") for it in names]
    opened = open_job_routes(cast("RouteHost", None), points)
    assert [it.rpartition("name=")[2].partition(" cause=")[0] for it in caplog.messages] == [
        f"{it} value=own_routes:{it}" for it in names[:-1]
    ]
    assert "KeyError: 'gone'" in caplog.text
    closed: list[str] = []

    async def close() -> None:
        closed.append("ours")

    ours = JobRoutes(opened[0].router, close)
    await OpenRest((), (), (*opened, ours)).stop(1)
    assert (len(opened), closed) == (1, ["ours"])
    assert "did not close in order" in caplog.text
