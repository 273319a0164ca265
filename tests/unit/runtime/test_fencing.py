"""Zombies of earlier task configs are fenced before tasks with exactly-once support start."""

import asyncio

import pytest

from mm2py.errors import RetriableError
from mm2py.runtime.herder.errors import ConflictError, NotFoundError
from mm2py.types import TaskId
from tests.unit.runtime.herder_fakes import Cluster, Node, until

C0 = TaskId("c", 0)


async def started(cluster: Cluster, name: str = "n1") -> Node:
    node = cluster.node(name, exactly_once_source_support="enabled").start()
    await until(lambda: node.membership.generation > 0)
    return node


async def test_the_first_tasks_of_a_connector_need_no_round_but_a_record() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    await node.guards[-1].fence(C0)
    assert node.fenced == []
    snapshot = node.config.snapshot()
    assert snapshot.task_count_records == {"c": 2}
    assert snapshot.pending_fencing == frozenset()
    await node.stop()


async def test_a_round_fences_every_producer_of_the_tasks_before_once() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    await node.guards[-1].fence(C0)
    await node.put(work="a b c")
    await node.runs("c-0", "c-1", "c-2")
    await asyncio.gather(*(node.guards[-1].fence(TaskId("c", n)) for n in range(3)))
    assert node.fenced == [("A-mm2-c-0", "A-mm2-c-1")]
    assert node.config.snapshot().task_count_records["c"] == 3
    await node.stop()


async def test_one_task_before_and_one_now_need_no_round() -> None:
    node = await started(Cluster())
    await node.put(work="a")
    await node.runs("c-0")
    await node.herder.fence("c")
    await node.put(work="b")
    await until(lambda: "c" in node.config.snapshot().pending_fencing)
    await node.herder.fence("c")
    assert node.fenced == []
    assert node.config.snapshot().pending_fencing == frozenset()
    await node.stop()


async def test_new_task_configs_during_a_round_fail_it_and_write_no_record() -> None:
    node = await started(Cluster())
    await node.put()
    await node.runs("c-0", "c-1")
    await node.herder.fence("c")
    await node.put(work="a b")
    await until(lambda: "c" in node.config.snapshot().pending_fencing)
    node.fence_gate = asyncio.Event()
    fencing = asyncio.ensure_future(node.herder.fence("c"))
    await until(lambda: bool(node.fenced))
    generation = node.config.snapshot().generations["c"]
    await node.put(work="x y z")
    await until(lambda: node.config.snapshot().generations["c"] > generation)
    node.fence_gate.set()
    with pytest.raises(ConflictError, match="new task configurations were generated"):
        await fencing
    assert "c" in node.config.snapshot().pending_fencing
    await node.stop()


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


async def test_a_worker_that_does_not_lead_asks_the_leader() -> None:
    cluster = Cluster()
    leader = await started(cluster)
    await leader.put()
    await leader.runs("c-0", "c-1")
    other = await started(cluster, "n2")
    await until(lambda: not other.membership.is_leader and other.membership.leader_url is not None)
    await until(lambda: other.config.snapshot().session_key is not None)
    await other.guards[-1].fence(C0)
    assert other.peers.posted == [other.membership.leader_url]
    other.peers.errors.append(NotFoundError("Connector c not found"))
    with pytest.raises(RetriableError, match="not fenced yet"):
        await other.guards[-1].fence(C0)
    await other.stop()
    await leader.stop()


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


async def test_only_connectors_that_exist_are_fenced() -> None:
    node = await started(Cluster())
    with pytest.raises(NotFoundError, match="Connector x not found"):
        await node.herder.fence("x")
    await node.stop()
