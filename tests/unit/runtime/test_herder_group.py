"""Herders with their real membership, in a group in memory: silence, expiry, return, strangers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.protocol.groups import GroupProtocol
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.herder_fakes import Cluster
from tests.unit.runtime.herder_stage import Stage


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    cluster = Cluster()
    async with MemoryGroup(cluster.clock).running() as group:
        stage = Stage(group, cluster)
        yield stage
        await stage.stop()


async def test_three_nodes_on_one_file_share_the_work_evenly(stage: Stage) -> None:
    for name in ("n1", "n2", "n3"):
        stage.node(name)
    await stage.until(lambda: stage.everything_runs_once("n1", "n2", "n3"), within_s=5)
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {2}, within_s=20)
    states = [stage.cluster.nodes[n].herder.status("c") for n in ("n1", "n2", "n3")]
    assert states[0] == states[1] == states[2]
    assert all(task.state.value == "RUNNING" for task in states[0].tasks.values())


async def test_a_silent_node_suspends_itself_before_others_take_its_work_within_15_s(
    stage: Stage,
) -> None:
    nodes = [stage.node(name) for name in ("n1", "n2", "n3")]
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {2}, within_s=20)
    silent = nodes[2]
    stage.links["n3"].cut = True
    await stage.until(lambda: silent.meter.state == "SUSPENDED", within_s=6.5)
    assert not silent.permit.valid
    assert not stage.everything_runs_once("n1", "n2"), "nobody took it before"
    await stage.until(lambda: stage.everything_runs_once("n1", "n2"), within_s=8.5)
    stage.links["n3"].cut = False
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {2}, within_s=30)
    assert stage.everything_runs_once("n1", "n2", "n3")
    assert (silent.meter.state, silent.permit.valid) == ("RUNNING", True)


async def test_a_coordinator_that_is_away_for_less_than_a_session_stops_nothing(
    stage: Stage,
) -> None:
    node = stage.node("n1")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    node.host.events.clear()
    stage.links["n1"].cut = True
    await stage.cluster.clock.advance(3)
    stage.links["n1"].cut = False
    await stage.cluster.clock.advance(10)
    assert node.host.events == []


async def test_a_sole_node_that_was_expired_goes_on_with_what_it_has(stage: Stage) -> None:
    node = stage.node("n1")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    node.host.events.clear()
    stage.links["n1"].cut = True
    await stage.until(lambda: node.meter.state == "SUSPENDED", within_s=7)
    await stage.cluster.clock.advance(4)
    stage.links["n1"].cut = False
    await stage.until(lambda: node.meter.state == "RUNNING", within_s=10)
    assert [e for e in node.host.events if e.startswith(("start", "stop"))] == []


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


async def test_the_leader_may_leave_at_any_time(stage: Stage) -> None:
    first = stage.node("n1")
    await stage.until(lambda: stage.everything_runs_once("n1"), within_s=5)
    stage.node("n2")
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {3}, within_s=20)
    first.herder.stop()
    await stage.until(lambda: stage.everything_runs_once("n2"), within_s=15)
    assert stage.cluster.nodes["n2"].parts.membership.is_leader
    assert sum(r.key == b"connector-c" for r in stage.cluster.configs.records) == 1


async def test_a_config_change_during_a_rebalance_ends_with_the_new_config_everywhere(
    stage: Stage,
) -> None:
    first, second = stage.node("n1"), stage.node("n2")
    await stage.until(lambda: {len(s) for s in stage.shares().values()} == {3}, within_s=20)
    leader = first if first.parts.membership.is_leader else second
    stage.node("n3")
    change = asyncio.ensure_future(leader.herder.patch_config("c", {"header": "new"}, actor="t"))
    await stage.until(change.done, within_s=10)

    def settled() -> bool:
        specs = [s for n in stage.cluster.nodes.values() for s in n.host.running.values()]
        return (
            {len(s) for s in stage.shares().values()} == {2}
            and stage.everything_runs_once("n1", "n2", "n3")
            and all(s.connector_config.get("header") == "new" for s in specs)
        )

    await stage.until(settled, within_s=30)


async def test_with_the_eager_protocol_all_work_stops_before_each_round_and_is_dealt_anew(
    stage: Stage,
) -> None:
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
