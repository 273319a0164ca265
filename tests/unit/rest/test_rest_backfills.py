"""``/backfills``: what is planned, started, shown and refused, over fakes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mm2py.flows.graph import FlowNode
from mm2py.mirror.backfills import ALIVE_S, Job, JobState, Lease, LeaseState, Order, Wanted
from mm2py.observability.logging import SecretMask
from mm2py.rest.app import internal_app
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
from tests.unit.rest.backfill_fakes import FakeCommands
from tests.unit.rest.flow_fakes import AB, BA, LEADER, Network, Rig

JOB = Job(id="j", state=JobState.RUNNING, run=1, lanes=1, topics="t.*", started_ms=7)
LEASE = Lease(
    topic="t", partition=0, job="j", run=1, state=LeaseState.COPYING, start=0, end=100, position=40,
    target_start=0, target_end=40, bytes=4_000,
)  # fmt: skip
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
        return await self.service.wish(self.nodes, AB, identifier, wanted)


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


async def test_a_driver_that_fails_before_it_begins_is_shown_with_what_it_wrote() -> None:
    stage = Stage()
    identifier = await stage.driven()
    stage.commands.end(1, "JVM: canary-value", "mm2py: Spark master is away; start it")
    await until(lambda: stage.show(identifier)["state"] == "FAILED")
    shown = stage.show(identifier)
    assert shown["cause"] == "Spark master is away; start it"
    assert shown["log"] == ["JVM: [hidden]", "mm2py: Spark master is away; start it"]
    assert (await stage.start(identifier))["state"] == "STARTING"
    assert stage.show(identifier)["cause"] == ""


async def test_another_worker_shows_why_a_driver_failed() -> None:
    stage = Stage()
    identifier = await stage.driven()
    stage.commands.end(-9)
    await until(lambda: stage.show(identifier)["state"] == "FAILED")
    other = Stage()
    other.store = other.herder.backfill_store = BackfillStore(MemoryTable(stage.topic), other.clock)
    await other.store.start()
    assert other.show(identifier)["cause"] == "the process was ended by signal 9"


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


async def test_pause_and_resume_are_written_and_a_cancel_is_followed_to_its_end() -> None:
    stage = Stage()
    await stage.begun()
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


async def test_no_plan_is_made_beside_an_unfinished_backfill() -> None:
    stage = Stage()
    await stage.begun()
    with pytest.raises(ConflictError, match="backfill j is unfinished"):
        await stage.planned()


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
        ({"flow": "A->B", "rate_limit": "5"}, 422, "body.rate_limit: "),
        ({"flow": "A->B", "rate_limit": -1}, 422, "body.rate_limit: "),
        ({"flow": "A->B", "wait_executors_s": -1}, 422, "body.wait_executors_s: "),
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
