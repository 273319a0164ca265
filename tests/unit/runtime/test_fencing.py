"""Zombies of earlier task configs are fenced before tasks with exactly-once support start."""

import asyncio

import pytest

from mm2py.errors import FatalServerError, RetriableError
from mm2py.testing.waiting import until
from mm2py.types import TaskId
from tests.unit.runtime.herder_fakes import Cluster, Node

C0 = TaskId("c", 0)


async def started(cluster: Cluster, name: str = "n1") -> Node:
    node = cluster.node(name, exactly_once_source_support="enabled").start()
    await until(lambda: node.membership.generation > 0)
    return node


async def fenced(*nodes: Node, task: TaskId = C0) -> None:
    """Wait as a task does that is to start, on each of these workers."""
    waits = [asyncio.ensure_future(node.guards[-1].fence(task)) for node in nodes]
    while not all(each.done() for each in waits):
        await nodes[0].cluster.clock.advance(0.1)
    for each in waits:
        each.result()


async def two_with_fenced_tasks() -> tuple[Cluster, Node, Node]:
    """Return a leader and another worker, a task on each."""
    cluster = Cluster()
    leader, other = await started(cluster), await started(cluster, "n2")
    await until(lambda: len(cluster.group.members) == 2 and leader.membership.is_leader)
    await leader.put()
    await until(lambda: len(cluster.running()) == 2)
    await fenced(leader, other)
    return cluster, leader, other


async def test_the_first_tasks_of_a_connector_need_no_round_but_a_record() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    await fenced(node)
    assert node.fenced == []
    snapshot = node.config.snapshot()
    assert snapshot.task_count_records == {"c": 2}
    assert snapshot.pending_fencing == frozenset()
    await node.stop()


async def test_a_round_fences_every_producer_of_the_tasks_before_once() -> None:
    """The leader fences without a request; every worker reads its record in the config topic."""
    cluster, leader, other = await two_with_fenced_tasks()
    await leader.put(work="a b c")
    await until(lambda: len(cluster.running()) == 3)
    await fenced(leader, other)
    assert (leader.fenced, other.fenced) == ([("A-mm2-c-0", "A-mm2-c-1")], [])
    assert other.config.snapshot().task_count_records["c"] == 3
    await other.stop()
    await leader.stop()


async def test_producers_are_fenced_only_when_every_member_has_stopped_the_tasks_before() -> None:
    """Else a task that is about to stop in order loses its open transaction."""
    cluster, leader, other = await two_with_fenced_tasks()
    gate, stop_task = asyncio.Event(), other.host.stop_task

    async def held_up(task: TaskId, timeout_s: float) -> None:
        await gate.wait()
        await stop_task(task, timeout_s)

    other.host.stop_task = held_up  # type: ignore[method-assign]  # a slow stop
    await leader.put(work="a b c")
    await until(lambda: "c" in leader.config.snapshot().pending_fencing)
    await cluster.clock.advance(5)
    assert leader.fenced == []
    gate.set()
    await until(lambda: len(cluster.running()) == 3)
    await fenced(leader, other)
    assert leader.fenced == [("A-mm2-c-0", "A-mm2-c-1")]
    await other.stop()
    await leader.stop()


async def test_one_task_before_and_one_now_need_no_round() -> None:
    node = await started(Cluster())
    await node.put(work="a")
    await node.runs("c-0")
    await fenced(node)
    await node.put(work="b")
    await until(lambda: "c" in node.config.snapshot().pending_fencing)
    await fenced(node)
    assert node.fenced == []
    assert node.config.snapshot().pending_fencing == frozenset()
    await node.stop()


async def test_new_task_configs_during_a_round_need_a_round_of_their_own() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    await fenced(node)
    node.fence_gate = asyncio.Event()
    await node.put(work="a b c")
    await until(lambda: bool(node.fenced))
    generation = node.config.snapshot().generations["c"]
    await node.put(work="x y z w")
    await until(lambda: node.config.snapshot().generations["c"] > generation)
    waiting = asyncio.ensure_future(node.guards[-1].fence(C0))
    node.fence_gate.set()
    await until(lambda: node.config.snapshot().task_count_records["c"] == 4)
    assert node.fenced == [("A-mm2-c-0", "A-mm2-c-1")] * 2, "no record for 3 tasks was written"
    await node.cluster.clock.advance(0.1)
    await waiting
    await node.stop()


async def test_a_round_that_fails_is_shown_made_again_and_fails_the_tasks_that_wait() -> None:
    cluster, leader, other = await two_with_fenced_tasks()
    leader.fence_errors = [FatalServerError(53, "NOT_AUTHORIZED", remedy="grant it")] * 40
    await leader.put(work="a b c")
    await until(lambda: len(leader.fence_errors) < 40)
    with pytest.raises(FatalServerError, match="NOT_AUTHORIZED"):
        await fenced(leader)
    with pytest.raises(RetriableError, match="the leader of the group at http://n1/ has not done"):
        await fenced(other)
    shown = "c: producers of earlier tasks are not fenced"
    assert leader.herder.node_snapshot().problems == {shown: "NOT_AUTHORIZED (53); grant it"}
    leader.fence_errors = []
    await cluster.clock.advance(2)
    await fenced(leader, other)
    assert leader.herder.node_snapshot().problems == {}
    await other.stop()
    await leader.stop()


async def test_a_task_of_replaced_configs_does_not_start() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    guard, generation = node.guards[-1], node.config.snapshot().generations["c"]
    await guard.verify(C0, generation)
    with pytest.raises(RetriableError, match="already been revoked"):
        await guard.verify(TaskId("c", 7), generation)
    with pytest.raises(RetriableError, match="already generated a new set of task configs"):
        await guard.verify(C0, generation - 1)
    await node.stop()


async def test_all_tasks_of_a_connector_stop_for_new_configs() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    before = node.host.running[TaskId("c", 1)].configs
    await node.put(work="other 1")
    await until(
        lambda: (now := node.host.running.get(TaskId("c", 1))) is not None and now.configs > before
    )
    await node.stop()
