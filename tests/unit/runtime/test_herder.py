"""The public herder on fakes: in a group, alone, and several in one process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf

import pytest

from mm2py.api.context import WaitingPartition
from mm2py.errors import ConfigError, ConnectionFailedError, RetriableError, is_away
from mm2py.runtime.errors import AlreadyExistsError, ForwardError
from mm2py.runtime.group.membership import SoloMembership
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.mirror_maker import MirrorMaker
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName, State, TargetState, TaskId, TopicPartition, Work
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, TestConnector

C0, C1 = TaskId("c", 0), TaskId("c", 1)


async def test_a_flow_starts_in_order_writes_its_configs_once_and_stops_in_order(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await cluster.on_file()
    assert node.events == ["target", "source", "prepare"]
    assert node.offsets.started == 1
    await until(lambda: node.state(C1) == "RUNNING")
    assert node.meter.state == "RUNNING"
    written = [record.key for record in cluster.configs.records]
    assert written.count(b"connector-c") == 1
    assert written.count(b"commit-c") == 1
    await node.stop()
    assert node.membership.left == 1
    assert node.host.closed
    assert node.offsets.stopped == 1
    assert node.events[-1] == "close"
    assert (node.meter.state, node.herder.failure) == ("STOPPED", None)
    assert node.host.running == {}
    begun = [r.getMessage() for r in caplog.records if r.getMessage().startswith("flow starts")]
    assert begun == ["flow starts connectors=c"]


async def test_a_stop_ends_every_wait(cluster: Cluster) -> None:
    node = cluster.node()
    node.errors["target"] = [ConnectionFailedError("away")] * 100
    node.start()
    await cluster.clock.settle()
    await node.stop()
    second = cluster.node("n2")
    second.membership.rejoin_errors = [RetriableError("coordinator away")] * 100
    second.start()
    await cluster.clock.advance(3)
    await second.stop()
    assert second.herder.failure is None


async def test_a_flow_is_suspended_while_its_membership_is_in_doubt(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    events = list(node.host.events)
    node.permit.revoke()
    assert node.meter.state == "SUSPENDED"
    health = await node.herder.health()
    assert health.status == "starting"
    cause = node.herder.node_snapshot().problems["flow"]
    assert health.message == f"Worker is SUSPENDED: {cause}"
    assert is_away(cause)
    node.host.say(C0, State.PAUSED)
    assert node.meter.state == "SUSPENDED"
    node.permit.grant(inf)
    assert node.meter.state == "RUNNING"
    assert (await node.herder.health()).status == "healthy"
    assert node.host.events == events, "hosts and stores look at the permit themselves"


async def test_what_waits_for_its_copy_lags_in_the_course_of_the_last_hour_as_in_the_views(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await cluster.with_tasks()
    waiting, copied = TopicPartition("t", 0), TopicPartition("u", 0)
    node.meter.partition(copied).report_lag(0, -1, cluster.clock.now_ms())
    backlog = dict.fromkeys((waiting, copied), WaitingPartition("no right", 7))

    def waits(_: object) -> dict[TopicPartition, WaitingPartition]:
        return backlog

    # Not of a connector's class: what a class once had ``isinstance`` remembers of it.
    monkeypatch.setattr(AssignedWork, "backlog", waits)
    sample = node.herder.sample()
    assert (sample.lag_records, sample.lag_ms) == (7, None)
    shown = {it.source: it.lag_records for it in node.herder.node_snapshot().partitions}
    assert shown == {waiting: 7, copied: 0}


async def test_a_lost_membership_stops_all_work_and_writes_nothing(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    writable: list[bool] = []
    stop_task = node.host.stop_task

    async def watched(task: TaskId, timeout_s: float) -> None:
        writable.append(node.permit.valid)
        await stop_task(task, timeout_s)

    node.host.stop_task = watched  # type: ignore[method-assign]  # looks on
    node.note_permit()
    node.membership.lose("expired")
    back = ["resume", "start c-0 0", "start c-1 1"]
    await until(lambda: node.host.events[-3:] == back)
    assert writable == [False, False], "nothing is written after a lost membership"
    assert node.permit.valid
    await until(lambda: node.meter.state == "RUNNING")
    assert node.herder.life_counts.memberships_lost == 1


async def test_a_commit_restarts_changed_tasks_alone_after_the_round(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    node.host.events.clear()
    connector = TestConnector.made[0]
    connector.configs = [{"p": "0"}, {"p": "1,2"}, {"p": "3"}]
    assert connector.context is not None
    connector.context.request_reconfiguration()
    await node.runs("c-0", "c-1", "c-2")
    assert node.host.events == ["stop c-1", "start c-1 1,2", "start c-2 3"]
    node.host.events.clear()
    connector.configs = [{"p": "0"}]
    connector.context.request_reconfiguration()
    await node.runs("c-0")
    assert node.host.events == ["stop c-1", "stop c-2"]
    await until(lambda: node.state(C1) == "")


async def test_a_change_of_framework_keys_alone_restarts_the_tasks(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    node.host.events.clear()
    await node.put()
    await until(lambda: len(TestConnector.made) == 2)
    await cluster.clock.settle()
    assert node.host.events == [], "an equal config restarts no task"
    await node.put(header="other")
    await until(lambda: len(node.host.events) == 4)
    assert sorted(node.host.events) == ["start c-0 0", "start c-1 1", "stop c-0", "stop c-1"]
    assert node.host.running[C0].connector_config["header"] == "other"


CHANGES: list[tuple[Callable[[Herder], Awaitable[object]], str]] = [
    (lambda h: h.put_config("c", CONFIG | {"work": "0 7"}, actor="t"), "start c-1 7"),
    (lambda h: h.restart("c", only_failed=False, include_tasks=True), "start c-1 1"),
    (lambda h: h.pause("c", actor="t"), "pause c-1"),
]


@pytest.mark.parametrize(("change", "last"), CHANGES)
async def test_a_change_is_pending_until_the_tasks_have_it(
    cluster: Cluster, change: Callable[[Herder], Awaitable[object]], last: str
) -> None:
    node = await cluster.with_tasks()
    await until(lambda: not node.herder.pending)
    node.host.events.clear()
    await change(node.herder)
    await until(lambda: not node.herder.pending)
    assert node.host.events[-1] == last


@pytest.mark.parametrize("target", [TargetState.STOPPED, TargetState.PAUSED])
async def test_a_connector_created_stopped_or_paused_has_no_tasks_and_can_be_deleted(
    cluster: Cluster, target: TargetState
) -> None:
    node = await cluster.leader()
    await node.herder.create("c", CONFIG, target, actor="t")
    await until(lambda: node.state("c") == target.value)
    assert TestConnector.made == []
    assert node.herder.status("c").tasks == {}
    await node.herder.delete("c", actor="t")
    await until(lambda: node.state("c") == "")
    assert node.herder.connectors() == ()


async def test_a_connector_whose_tasks_fail_can_be_configured_again(cluster: Cluster) -> None:
    node = cluster.node().start()
    node.host.fails_at_start[C0] = ConfigError("bad words")
    await node.put()
    await until(lambda: node.state(C0) == "FAILED")
    node.host.fails_at_start.clear()
    await node.put(work="a b")
    await until(lambda: node.state(C0) == "RUNNING")
    assert node.host.running[C0].config["p"] == "a"


async def test_held_partitions_reach_the_host_at_start_and_changes(cluster: Cluster) -> None:
    node = cluster.node(effective={})
    assert node.overrides is not None
    node.overrides.paused = frozenset({TopicPartition("t", -1)})
    node.start()
    await until(lambda: node.host.held == frozenset({TopicPartition("t", -1)}))
    await until(lambda: node.membership.is_leader)
    node.overrides.paused = frozenset()
    await node.herder.apply_holds()
    assert not node.host.held


FILE = CONFIG | {"name": "c"}
WAITS = "c-0: it waits for a config that c makes of its changed one"


async def _waits(node: Node) -> None:
    """Wait until the first task is shown as one that waits for its config."""
    await until(lambda: any(WAITS in it for it in node.herder.problems()))
    await until(lambda: node.state(C0) == "UNASSIGNED")


@pytest.mark.parametrize("paused", [False, True])
async def test_tasks_of_a_connector_that_cannot_publish_wait_visibly(
    cluster: Cluster, *, paused: bool
) -> None:
    before = await cluster.on_file()
    if paused:
        await before.herder.pause("c", actor="t")
    await before.stop()
    after = cluster.node("after", effective={"c": FILE | {"late": "no source"}}).start()
    if paused:
        await until(lambda: after.state(C1) == "PAUSED")
        await after.herder.resume("c", actor="t")
    await _waits(after)
    assert not after.host.running
    await cluster.clock.advance(31)
    await after.runs("c-0", "c-1")
    assert after.host.events[-2:] == ["start c-0 0", "start c-1 1"]
    assert not any(WAITS in it for it in after.herder.problems())


async def test_a_task_restarted_before_its_connector_published_runs_again(cluster: Cluster) -> None:
    node = await cluster.on_file()
    node.host.events.clear()
    await node.put(late="no source")
    await until(lambda: node.state("c") == "FAILED")
    await node.herder.restart_task(C0)
    await until(lambda: node.host.events == ["stop c-0", "start c-0 0"])


KEPT = ("A-0", "A-1")
SOURCE, SINK = "MirrorSourceConnector", "MirrorSinkConnector"


async def _followed(cluster: Cluster, was: str, now: str) -> tuple[Node, Node, Node]:
    """Let a leader share its work with a worker on another file, which leads after it, and with one on the same."""
    file = {"A": CONFIG, was: CONFIG}
    changed = {"A": CONFIG, now: CONFIG | {"work": "5"}}
    first, leader, follower = (
        cluster.node(f"n{n}", effective=it).start() for n, it in enumerate((file, changed, file))
    )
    await cluster.clock.advance(10)
    await cluster.settled(*KEPT, f"{was}-0", f"{was}-1")
    assert TaskId(was, 0) in first.host.running
    return first, leader, follower


@pytest.mark.parametrize(("was", "now"), [("c", "c"), (SOURCE, SINK)])
async def test_a_new_leader_with_another_file_lets_nothing_start_as_before_and_the_rest_run_on(
    cluster: Cluster, was: str, now: str
) -> None:
    first, *others = await _followed(cluster, was, now)
    begun = [len(node.host.events) for node in others]
    running = {str(task) for node in others for task in node.host.running}
    await first.stop()
    del cluster.nodes[first.name]
    await cluster.clock.advance(10)
    await cluster.settled(*KEPT, f"{now}-0")
    since = [
        it.split() for node, at in zip(others, begun, strict=True) for it in node.host.events[at:]
    ]
    started = [it[1:] for it in since if it[0] == "start" and it[1] not in KEPT]
    assert started == [[f"{now}-0", "5"]]
    assert not [it[1] for it in since if it[0] == "stop" and it[1] in running.intersection(KEPT)]


async def test_a_new_leader_that_cannot_write_its_file_lets_the_group_work_as_before_and_says_so(
    cluster: Cluster,
) -> None:
    first, leader, _ = await _followed(cluster, "c", "c")
    put, away = leader.config.put_connector, RetriableError("the config topic is away")

    async def refused(*_: object) -> None:
        raise away

    leader.config.put_connector = refused  # type: ignore[method-assign, assignment]
    await first.stop()
    del cluster.nodes[first.name]
    await cluster.clock.advance(10)
    await cluster.settled(*KEPT, "c-0", "c-1")
    assert any("the config topic is away" in line for line in leader.herder.problems())
    leader.config.put_connector = put  # type: ignore[method-assign]
    await cluster.clock.advance(5)
    await cluster.settled(*KEPT, "c-0")
    assert not leader.herder.problems()


@pytest.mark.parametrize("away", [False, True])
async def test_a_new_leader_reads_what_the_former_one_changed_last_before_it_writes_configs(
    cluster: Cluster, *, away: bool
) -> None:
    """Otherwise tasks would start with the config of before, and copy what it chose."""
    file, changed = {"c": FILE}, FILE | {"work": "5"}
    first, leader = (cluster.node(f"n{n}", effective=file).start() for n in range(2))
    await cluster.clock.advance(10)
    await cluster.settled("c-0", "c-1")
    assert first.overrides is not None
    assert leader.overrides is not None
    leader.overrides.late["c"], leader.overrides.away = changed, away
    first.overrides.wanted["c"] = changed
    first.overrides.changed()
    await cluster.clock.advance(10)
    await cluster.settled("c-0")
    written, begun = len(cluster.configs.records), len(leader.host.events)
    await first.stop()
    del cluster.nodes[first.name]
    await cluster.clock.advance(10)
    await cluster.settled("c-0")
    if away:
        assert any("the topic of changes is away" in it for it in leader.herder.problems())
        leader.overrides.away = False
        await cluster.clock.advance(5)
    assert not leader.herder.problems()
    assert not [it for it in leader.host.events[begun:] if it.endswith(" 0")]
    later = cluster.configs.records[written:]
    assert not [it for it in later if it.key == b"connector-c"]


async def test_a_stopped_flow_stays_so_when_another_connector_copies_it(cluster: Cluster) -> None:
    before = cluster.node("before", effective={SOURCE: CONFIG}).start()
    await before.runs(f"{SOURCE}-0", f"{SOURCE}-1")
    await before.herder.stop_connector(SOURCE, actor="t")
    await until(lambda: before.state(SOURCE) == "STOPPED")
    await before.stop()
    after = cluster.node("after", effective={SINK: CONFIG}).start()
    await until(lambda: after.state(SINK) == "STOPPED")
    await until(lambda: set(after.config.snapshot().connectors) == {SINK})
    assert after.host.running == {}


async def test_tasks_that_were_changed_while_paused_continue_changed(cluster: Cluster) -> None:
    before = await cluster.on_file()
    await before.herder.pause("c", actor="t")
    await before.stop()
    after = cluster.node("after", effective={"c": FILE | {"work": "5"}}).start()
    await until(lambda: after.state(C1) == "PAUSED")
    await until(lambda: after.meter.state == "PAUSED")
    await after.herder.resume("c", actor="t")
    await until(lambda: after.state(C0) == "RUNNING")
    assert after.host.events[2:] == ["stop c-0", "stop c-1", "start c-0 5"]


async def test_a_leader_whose_membership_is_in_doubt_writes_nothing(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    node.permit.revoke()
    before = len(node.cluster.configs.records)
    with pytest.raises(ForwardError) as caught:
        await node.herder.put_config("c", CONFIG, actor="t")
    assert caught.value.url is None
    assert len(node.cluster.configs.records) == before
    node.permit.grant(inf)
    await node.herder.put_config("c", CONFIG, actor="t")


async def test_a_lost_node_says_nothing_about_work_that_others_may_have(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    before = len(node.cluster.statuses.records)
    node.membership.ours.clear()
    node.membership.rejoin_errors = [RetriableError("coordinator away")] * 1_000
    node.membership.lose("expired")
    await until(lambda: not node.host.running)
    await node.cluster.clock.settle()
    assert len(node.cluster.statuses.records) == before


async def test_a_session_key_of_the_leader_is_replaced_by_one_timer(cluster: Cluster) -> None:
    node = cluster.node(inter_worker_key_ttl_ms=60_000).start()
    await until(lambda: node.herder.session_key() is not None)
    first = node.herder.session_key()
    assert first is not None
    assert first.algorithm == "HmacSHA256"
    for _ in range(5):
        node.membership.request_rejoin()
        await cluster.clock.settle()
    await cluster.clock.advance(59)
    assert node.herder.session_key() == first
    await cluster.clock.advance(66)
    rotated = node.herder.session_key()
    assert rotated is not None
    assert (rotated.key != first.key, rotated.lasting) == (True, first.key)
    assert [r.key for r in cluster.configs.records].count(b"session-key") == 3


# ---- a worker on its own


URL = "http://127.0.0.1:1/"


async def test_a_connector_is_there_with_its_tasks_as_soon_as_it_was_made(cluster: Cluster) -> None:
    node = cluster.node()
    membership = SoloMembership(node.config, url=URL)
    node.parts = replace(node.parts, flow=None, membership=membership)
    node.herder = herder = Herder(node.parts, clock=cluster.clock)
    node.start()
    made = herder.create("c", CONFIG, None, actor="x")
    # Asked in one breath: it waits for the round, where a group would refuse it.
    _, info = await asyncio.gather(made, herder.info("c"))
    assert (info.name, info.type) == ("c", "source")
    await node.runs("c-0", "c-1")
    assert len(await herder.task_configs("c")) == 2
    assert herder.status("c").connector.worker_id == "n1:8083"
    assert (herder.flow, herder.session_key()) == (None, None)
    with pytest.raises(AlreadyExistsError):
        await herder.create("c", CONFIG, None, actor="x")
    await node.stop()
    assert herder.failure is None


async def test_one_round_gives_what_is_configured_and_takes_the_rest(cluster: Cluster) -> None:
    membership = SoloMembership(cluster.node("n1").config, url=URL)
    assert (membership.is_leader, membership.generation) == (False, -1)
    gone = Work(frozenset({"gone"}), frozenset({TaskId("gone", 0)}))
    done = await membership.rejoin(gone, 3, lambda _: False)
    assert (done.assigned, done.revoked, done.config_offset) == (Work(), gone, 3)
    assert (membership.is_leader, membership.generation) == (True, 0)
    assert membership.member_urls() == (membership.owner_url("c"),) == (URL,)
    waiting = asyncio.create_task(membership.signal())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await membership.leave()
    assert membership.leader_url is None


# ---- the herders of a process


ONE = FlowName(ClusterAlias("A"), ClusterAlias("B"))
OTHER = FlowName(ClusterAlias("B"), ClusterAlias("A"))


async def test_a_flow_that_cannot_run_fails_and_the_others_go_on() -> None:
    bad, good = Cluster().node(), Cluster().node()
    bad.errors["prepare"] = [ConfigError("topic is not compacted", remedy="alter it")]
    maker = MirrorMaker({ONE: bad.herder, OTHER: good.herder})
    maker.start()
    await until(lambda: bad.herder.failure is not None and good.meter.state == "STANDBY")
    assert bad.meter.state == "FAILED"
    assert maker.problems(ONE) == ("topic is not compacted; alter it",)
    assert list(maker.problems(OTHER)) == []
    await good.put("c", work="0")
    await good.runs("c-0")
    assert await maker.stop(5.0)
    assert list(await maker.wait()) == [ONE]
