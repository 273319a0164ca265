"""What people change through a herder, and what is refused in which words."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from mm2py.api.context import PublishedTasks
from mm2py.config.class_names import SOURCE_NAME
from mm2py.errors import FatalError
from mm2py.mirror.backfills import (
    NO_END,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
    encode_backfill,
)
from mm2py.mirror.start_positions import FIRST_START, STREAMED_PARTITIONS
from mm2py.protocol.groups import GroupProtocol
from mm2py.runtime.errors import (
    CONFLICTING_OPERATION,
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    ForwardError,
    HerderError,
    NotFoundError,
    RebalanceExpectedError,
)
from mm2py.runtime.herder.api import OffsetEntry
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.memory import MemoryTopic
from mm2py.testing.waiting import until
from mm2py.types import State, TargetState, TaskId
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, Stage, TestConnector

C0, C1 = TaskId("c", 0), TaskId("c", 1)
Ask = Callable[[Herder], Awaitable[object]]
OFFSETS = [OffsetEntry({"topic": "t"}, {"offset": 7})]


async def _running(cluster: Cluster, **config: str) -> Node:
    node = await cluster.leader()
    await node.herder.create("c", CONFIG | config, None, actor="t")
    await node.runs("c-0", "c-1")
    await until(lambda: node.state(C0) == node.state(C1) == "RUNNING")
    return node


async def _follower(cluster: Cluster) -> Node:
    """A node that leads nothing and owns nothing: the other one has the connector."""
    first = cluster.node("n1").start()
    await until(lambda: first.membership.is_leader)
    await first.herder.create("c", CONFIG | {"work": "0"}, None, actor="t")
    await first.runs("c-0")
    await until(lambda: first.state(C0) == "RUNNING")
    cluster.group.max_delay_ms = 60_000
    second = cluster.node("n2").start()
    await until(lambda: "n2" in cluster.group.owners)
    await cluster.clock.settle()
    return second


async def _refused(work: Awaitable[object]) -> HerderError:
    with pytest.raises(HerderError) as caught:
        await work
    return caught.value


async def test_a_connector_is_created_read_and_deleted_on_record(cluster: Cluster) -> None:
    node = await cluster.leader(effective={})
    assert node.overrides is not None
    info = await node.herder.create("c", CONFIG, None, actor="ann")
    assert info.config == CONFIG | {"name": "c"}
    assert (info.name, info.tasks, info.type) == ("c", (), "source")
    await node.runs("c-0", "c-1")
    info = await node.herder.info("c")
    assert info == node.herder.info_now("c")
    assert info.tasks == (C0, C1)
    configs = await node.herder.task_configs("c")
    assert [(t, c["p"], c["task.class"]) for t, c in configs] == [
        (C0, "0", "org.example.TestTask"),
        (C1, "1", "org.example.TestTask"),
    ]
    await node.herder.delete("c", actor="bob")
    assert node.herder.connectors() == ()
    await until(lambda: not node.host.running)
    await until(lambda: node.state("c") == node.state(C0) == "")
    assert node.overrides.records == [("c", False, True, "ann"), ("c", True, False, "bob")]


async def test_put_says_whether_it_created_and_keeps_the_target_state(cluster: Cluster) -> None:
    node = await cluster.leader()
    assert (await node.herder.put_config("c", CONFIG, actor="t"))[0]
    await node.runs("c-0", "c-1")
    await node.herder.pause("c", actor="t")
    await until(lambda: node.state("c") == "PAUSED")
    before = len(node.cluster.configs.records)
    assert not (await node.herder.put_config("c", CONFIG, actor="t"))[0]
    assert len(node.cluster.configs.records) == before + 1, "an equal config is written too"
    await node.cluster.clock.settle()
    assert node.state("c") == "PAUSED"


REFUSED: list[tuple[Ask, type[HerderError]]] = [
    (lambda h: h.create("c", CONFIG, None, actor="t"), AlreadyExistsError),
    (lambda h: h.create("d", CONFIG | {"name": "x"}, None, actor="t"), BadRequestError),
    (lambda h: h.patch_config("c", {"name": "x"}, actor="t"), BadRequestError),
    (lambda h: h.create("c", CONFIG | {"invalid": "yes"}, None, actor="t"), BadRequestError),
    (lambda h: h.restart_task(TaskId("c", 9)), NotFoundError),
    (lambda h: h.alter_offsets("c", OFFSETS), BadRequestError),
]


@pytest.mark.parametrize(("work", "kind"), REFUSED)
async def test_refusals_write_nothing(cluster: Cluster, work: Ask, kind: type[HerderError]) -> None:
    """The words are Connect's: its recorded answers have them."""
    node = await _running(cluster)
    before = len(node.cluster.configs.records)
    assert type(await _refused(work(node.herder))) is kind
    assert len(node.cluster.configs.records) == before


ELSEWHERE: list[Ask] = [
    lambda h: h.create("d", CONFIG, None, actor="t"),
    lambda h: h.put_config("c", CONFIG, actor="t"),
    lambda h: h.patch_config("c", {}, actor="t"),
    lambda h: h.delete("x", actor="t"),
    lambda h: h.stop_connector("c", actor="t"),
    lambda h: h.restart("c", only_failed=True, include_tasks=True),
    lambda h: h.alter_offsets("x", OFFSETS),
    lambda h: h.reset_offsets("x"),
    lambda h: h.restart_connector("c"),
    lambda h: h.restart_task(C0),
]


@pytest.mark.parametrize("work", ELSEWHERE)
async def test_another_node_sends_changes_to_the_leader(cluster: Cluster, work: Ask) -> None:
    node = await _follower(cluster)
    assert not node.cluster.group.owners["n2"]
    error = await _refused(work(node.herder))
    assert isinstance(error, ForwardError)
    assert (error.url, error.message) == ("http://n1/", CONFLICTING_OPERATION)


async def test_a_failed_task_restarted_by_request_runs_and_touches_no_other(
    cluster: Cluster,
) -> None:
    node = await cluster.with_tasks(task_auto_restart=False)
    node.host.say(C1, State.FAILED, FatalError("disk full"))
    await until(lambda: node.state(C1) == "FAILED")
    node.host.events.clear()
    await node.herder.restart_task(C1)
    await until(lambda: node.state(C1) == "RUNNING")
    assert node.host.events == ["stop c-1", "start c-1 1"]
    assert node.herder.task_status(C1).trace is None


@pytest.mark.parametrize("target", [TargetState.PAUSED, TargetState.STOPPED])
async def test_a_restart_leaves_the_target_state(cluster: Cluster, target: TargetState) -> None:
    node = await _running(cluster)
    await node.config.put_target("c", target)
    await until(lambda: node.state("c") == target.value)
    await node.herder.restart_connector("c")
    await node.herder.restart("c", only_failed=False, include_tasks=True)
    await node.cluster.clock.settle()
    await until(lambda: node.state("c") == target.value)
    if target is TargetState.PAUSED:
        await until(lambda: node.state(C0) == "PAUSED")


async def test_while_a_change_waits_for_a_round_reads_and_restarts_are_told_to_come_back(
    cluster: Cluster,
) -> None:
    node = await _running(cluster)
    changes = node.herder._life.loop.changes  # pyright: ignore[reportPrivateUsage]  # a narrow window
    asked = [
        asyncio.create_task(_refused(node.herder.info("c"))),
        asyncio.create_task(_refused(node.herder.restart_connector("c"))),
    ]
    await asyncio.sleep(0)
    changes.rebalance_expected = True
    assert isinstance(await asked[0], RebalanceExpectedError)
    assert isinstance(await asked[1], ConflictError)
    await until(lambda: not changes.rebalance_expected)
    assert (await node.herder.info("c")).name == "c"


async def test_health_tells_starting_healthy_and_unhealthy(cluster: Cluster) -> None:
    node = cluster.node()
    asked = asyncio.create_task(node.herder.health())
    await cluster.clock.advance(10)
    health = await asked
    assert health.status == "starting"
    assert "The worker is currently awaiting startup" in health.message
    node.start()
    await until(lambda: node.membership.is_leader)
    assert (await node.herder.health()).status == "healthy"
    stuck = asyncio.Event()
    node.parts.membership.rejoin = _hang(stuck)  # type: ignore[method-assign,assignment]  # stuck
    node.membership.request_rejoin()
    await cluster.clock.settle()
    for after_s, expected in ((10, "healthy"), (0, "unhealthy")):
        asked = asyncio.create_task(node.herder.health())
        await cluster.clock.advance(1)
        health = await asked
        assert health.status == expected, "answered within a second"
        assert "ensuring membership in the cluster" in health.message
        await cluster.clock.advance(after_s)
    stuck.set()


def _hang(forever: asyncio.Event) -> Callable[..., Awaitable[object]]:
    async def rejoin(*_: object) -> object:
        return await forever.wait()

    return rejoin


async def test_patch_takes_back_no_change_that_the_config_topic_lacks_yet(cluster: Cluster) -> None:
    node = await cluster.on_file()
    assert node.overrides is not None
    late = CONFIG | {"name": "c", "work": "7", "secret": "${file:/s:p}"}
    node.overrides.wanted["c"] = late | {"old": "1"}
    change = {"new": "2", "old": None, "absent": None}
    info = await node.herder.patch_config("c", change, actor="t")
    assert info.config == late | {"new": "2"}


async def test_a_restart_of_what_failed_shows_its_trace_until_it_runs(cluster: Cluster) -> None:
    node = await cluster.with_tasks(task_auto_restart=False)
    node.host.say(C1, State.FAILED, FatalError("disk full"))
    await until(lambda: node.state(C1) == "FAILED")
    made = len(TestConnector.made)
    answer = await node.herder.restart("c", only_failed=True, include_tasks=True)
    assert answer.tasks[1].state is State.RESTARTING
    assert answer.tasks[1].trace == "FatalError: disk full"
    assert answer.tasks[0].state is State.RUNNING
    await until(lambda: node.state(C1) == "RUNNING")
    assert len(TestConnector.made) == made
    again = await node.herder.restart("c", only_failed=True, include_tasks=True)
    assert {t.state for t in again.tasks.values()} == {State.RUNNING}, "nothing failed: no-op"


async def test_offsets_of_a_stopped_connector_are_read_altered_and_reset(cluster: Cluster) -> None:
    node = await _running(cluster)
    await node.herder.stop_connector("c", actor="t")
    await until(lambda: node.state("c") == "STOPPED" and not node.host.running)
    assert await node.herder.alter_offsets("c", OFFSETS) == "altered"
    assert node.editor.altered == [OFFSETS]
    assert await node.herder.reset_offsets("c") == "reset"
    assert await node.herder.offsets("c") == OFFSETS


async def test_a_connector_that_was_stopped_is_told_the_tasks_that_it_had(cluster: Cluster) -> None:
    """With ``latest`` topics that come meanwhile are copied whole: it is not the flow's first start."""
    node = await _running(cluster)
    had = [config for _, config in await node.herder.task_configs("c")]
    await node.herder.stop_connector("c", actor="t")
    await until(lambda: node.state("c") == "STOPPED" and not node.host.running)
    assert await node.herder.task_configs("c") == []
    await node.herder.resume("c", actor="t")
    await until(lambda: node.state("c") == "RUNNING")
    context = cast("PublishedTasks", TestConnector.made[-1].context)
    assert context.published_tasks() == had


async def test_workers_that_follow_a_stream_are_told_what_it_had(cluster: Cluster) -> None:
    """As above: their first start is not the flow's."""
    cluster.backfills = MemoryTopic("backfills")
    lease = Lease(
        topic="t", partition=3, job="s", run=1, state=LeaseState.RELEASED,
        start=0, end=NO_END, position=7,
    )  # fmt: skip
    job = Job(
        id="s", state=JobState.DONE, run=1, lanes=1, kind=JobKind.STREAM, started_ms=1_700_000_000
    )
    for record in (lease, job):
        cluster.backfills.append(*encode_backfill(record))
    node = await cluster.leader()
    for name in (SOURCE_NAME, "c"):
        await node.herder.create(name, CONFIG, None, actor="t")
    await until(lambda: node.state(SOURCE_NAME) == node.state("c") == "RUNNING")
    source, other = [cast("PublishedTasks", it.context) for it in TestConnector.made[-2:]]
    streamed = {STREAMED_PARTITIONS: "t-3", FIRST_START: "1700000000"}
    assert source.published_tasks()[-1] == streamed
    assert streamed not in other.published_tasks()


async def test_log_levels_reach_every_node(cluster: Cluster) -> None:
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await until(lambda: len(cluster.group.members) == 2)
    await second.herder.set_logger_level("mm2py.client", "DEBUG")
    await until(lambda: first.loggers.levels == second.loggers.levels != {})


async def test_unknown_states_are_refused_in_connects_words(cluster: Cluster) -> None:
    node = await cluster.leader()
    with pytest.raises(NotFoundError, match=r"^No status found for connector x$"):
        node.herder.status("x")
    with pytest.raises(NotFoundError, match=r"^No status found for task x-0$"):
        node.herder.task_status(TaskId("x", 0))
    assert node.herder.info_now("x") is None
    assert node.herder.topics("x") == ()
    await node.config.put_connector("c", {"connector.class": "Gone", "name": "c"}, None)
    await until(lambda: node.state("c") == "FAILED")
    assert node.herder.status("c").type == "unknown"


async def test_topic_tracking_can_be_switched_off(cluster: Cluster) -> None:
    node = await cluster.leader(topic_tracking_enable=False)
    with pytest.raises(ForbiddenError, match=r"^Topic tracking is disabled.$"):
        node.herder.topics("c")
    error = await _refused(node.herder.reset_topics("c"))
    assert error.message == "Topic tracking is disabled."


# ---- rounds of the group


async def test_a_connector_of_a_worker_that_does_not_lead_says_so(cluster: Cluster) -> None:
    """As an assignment of workers of an earlier version, or a leadership that is being lost."""
    node = cluster.node().start()
    await node.put(work="0")
    await node.runs("c-0")
    cluster.group.leader_elsewhere = True
    node.membership.request_rejoin()
    await until(lambda: not node.membership.is_leader)
    await node.put(work="0 1")
    await cluster.clock.advance(11)
    assert any("only the leader writes task configs" in it for it in node.herder.problems())
    cluster.group.leader_elsewhere = False
    node.membership.request_rejoin()
    await cluster.clock.advance(2)
    await node.runs("c-0", "c-1")


async def test_a_restart_request_reaches_every_node_and_each_does_its_part(
    cluster: Cluster,
) -> None:
    first, second = await cluster.pair()
    await until(lambda: all(first.state(TaskId("c", n)) == "RUNNING" for n in range(4)))
    for node in (first, second):
        node.host.events.clear()
    made = len(TestConnector.made)
    answer = await first.herder.restart("c", only_failed=False, include_tasks=True)
    assert {task.state.value for task in answer.tasks.values()} == {"RESTARTING"}
    await until(lambda: len(first.host.events) == len(second.host.events) == 4)
    assert len(TestConnector.made) == made + 1
    await until(lambda: all(first.state(TaskId("c", n)) == "RUNNING" for n in range(4)))


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    cluster = Cluster()
    async with MemoryGroup(cluster.clock).running() as group:
        yield Stage(group, cluster)
        await cluster.stop()


async def test_a_member_that_is_not_ours_makes_the_flow_stop_and_wait_and_its_leaving_start_it(
    stage: Stage,
) -> None:
    node = stage.node("n1")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    java = MemoryCoordinator(stage.group, "java")
    offers = [GroupProtocol("sessioned", b"")]
    member_id = (await java.join("", offers, 6_000, 60_000)).member_id
    joining = asyncio.create_task(java.join(member_id, offers, 60_000, 60_000))
    await stage.until(lambda: not node.host.running, within_s=10)
    await stage.until(lambda: node.meter.state == "WAITING", within_s=1)
    joining.cancel()
    await java.leave(member_id, 1)
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=15)


async def test_with_the_eager_protocol_all_work_stops_before_each_round(stage: Stage) -> None:
    first = stage.node("n1", protocol="eager")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    first.host.events.clear()
    stage.node("n2", protocol="eager")
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {3}, within_s=20)
    assert stage.everything_runs_once("n1", "n2")
    stopped = [e for e in first.host.events if e.startswith("stop")]
    assert len(stopped) == 6, "all of it"
    assert first.host.events[:6] == stopped, "before anything starts again"


async def test_a_group_that_turns_eager_stops_what_another_node_was_given(stage: Stage) -> None:
    first = stage.node("n1")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    stage.node("n2", protocol="eager")
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {3}, within_s=20)
    assert stage.everything_runs_once("n1", "n2")
    await stage.until(lambda: first.meter.state == "RUNNING", within_s=5)
