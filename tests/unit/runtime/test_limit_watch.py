"""A partition that failed for the size of a record, and the limit it waits for; the names are the watch's invariants."""

from mm2py.observability.metrics import Oversized
from mm2py.runtime.tasks.task_context import LIMITS_EVERY_S
from mm2py.testing.waiting import until
from mm2py.types import State, TaskId, TopicPartition
from tests.unit.runtime.herder_fakes import Cluster, Node

C0 = TaskId("c", 0)
T0 = TopicPartition("t", 0)
AT = Oversized(task="c-0", source=T0, target="A.t", needed_bytes=900, limit_bytes=500)


async def _failed(cluster: Cluster, at: Oversized = AT) -> Node:
    node = next(it for it in await cluster.pair() if C0 in it.host.running)
    _fail(node, at)
    return node


def _fail(node: Node, at: Oversized) -> None:
    meter = node.meter.partition(at.source)
    meter.state, meter.task = "FAILED", at.task
    assert node.meter.on_oversized is not None
    node.meter.on_oversized(at)


async def _looks(cluster: Cluster, node: Node, times: int = 1) -> int:
    """Let the watch look; return how often the task was started until then."""
    for _ in range(times):
        await cluster.clock.advance(LIMITS_EVERY_S + 0.1)
        await cluster.clock.settle()
    return node.host.events.count("start c-0 0")


async def test_a_task_is_started_again_only_for_a_limit_that_is_higher_and_holds_the_record(
    cluster: Cluster,
) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    for limit in (0, 500, 899):
        node.limits["A.t"] = limit
        assert await _looks(cluster, node) == before
    node.limits["A.t"] = 900
    assert await _looks(cluster, node) == before + 1
    asked = len(node.limits_asked)
    await _looks(cluster, node, 3)
    assert len(node.limits_asked) == asked, "nothing waits, nothing is asked"


async def test_a_task_that_failed_as_a_whole_is_started_again(cluster: Cluster) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    node.meter.forget(T0)
    node.host.say(C0, State.FAILED, ValueError("all partitions of the task failed"))
    node.limits["A.t"] = 1_000
    assert await _looks(cluster, node) == before + 1
    await until(lambda: node.state(C0) == "RUNNING")


async def test_no_limit_is_tried_twice_for_a_record(cluster: Cluster) -> None:
    at = Oversized(task="c-0", source=T0, target="A.t", needed_bytes=900, limit_bytes=0)
    node = await _failed(cluster, at)
    before = node.host.events.count("start c-0 0")
    node.limits["A.t"] = 2_000
    assert await _looks(cluster, node) == before + 1
    _fail(node, at)
    assert await _looks(cluster, node, 3) == before + 1
    node.limits["A.t"] = 2_001
    assert await _looks(cluster, node) == before + 2


async def test_a_partition_that_was_started_again_meanwhile_is_not_waited_for(
    cluster: Cluster,
) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    node.meter.partition(T0).state = "RUNNING"
    node.limits["A.t"] = 2_000
    assert await _looks(cluster, node, 2) == before
    assert not node.limits_asked
