"""What RUNNING work does not copy is its trace, the same on every worker, and goes when the cause goes."""

from dataclasses import replace

import pytest

from mm2py.observability.metrics import Finding
from mm2py.runtime.herder.trace_watch import AGAIN_S, EVERY_S, MOST_CAUSES
from mm2py.runtime.tasks.task_context import KEPT_OUT
from mm2py.types import State, TaskId, TopicPartition
from tests.unit.runtime.herder_fakes import Cluster, TestConnector

T0 = TaskId("c", 0)


def traces(cluster: Cluster) -> list[str | None]:
    """Return what each node shows of the first task."""
    return [node.herder.task_status(T0).trace for node in cluster.nodes.values()]


async def later(cluster: Cluster, seconds: float = EVERY_S) -> list[str | None]:
    """Let the watch look once more; return what is shown then."""
    await cluster.clock.advance(seconds)
    await cluster.clock.settle()
    return traces(cluster)


async def test_every_worker_shows_what_a_task_of_one_does_not_copy_until_it_is_copied(
    cluster: Cluster,
) -> None:
    await cluster.pair()
    owner = cluster.nodes[cluster.running()["c-0"]]
    for number, (state, cause) in enumerate(
        (("FAILED", "too large"), ("HELD", "no right"), ("HELD", KEPT_OUT), ("RUNNING", ""))
    ):
        part = owner.meter.partition(TopicPartition("t", number))
        part.task, part.state, part.cause = "c-0", state, cause
    owner.meter.note_finding(
        Finding(task="c-0", what="offset map", text="away", count=1, harms=True)
    )
    owner.meter.note_finding(Finding(task="c-0", what="a note", text="n", count=1, harms=False))
    said = "offset map: away\nt-0 is FAILED: too large\nt-1 is HELD: no right"
    assert await later(cluster) == [said, said]
    assert {node.state(T0) for node in cluster.nodes.values()} == {"RUNNING"}
    assert {node.herder.task_status(TaskId("c", 1)).trace for node in cluster.nodes.values()} == {
        None
    }
    owner.meter.forget_task("c-0")
    assert await later(cluster) == [None, None]


async def test_what_changes_in_a_text_is_written_seldom_and_a_new_cause_at_once(
    cluster: Cluster,
) -> None:
    node = await cluster.with_tasks()
    written = len(cluster.statuses.records)
    for minutes in range(12):
        found = Finding(task="c-0", what="retention", text=f"in {minutes}", count=1, harms=True)
        node.meter.note_finding(found)
        await later(cluster)
    assert len(cluster.statuses.records) - written == 1 + 11 * EVERY_S // AGAIN_S


async def test_a_cause_with_a_secret_is_written_once(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    written = len(cluster.statuses.records)
    found = Finding(
        task="c-0", what="x", text="password geheim-123 is refused", count=1, harms=True
    )
    node.meter.note_finding(found)
    assert await later(cluster) == ["x: password [hidden] is refused"]
    for _ in range(3):
        await later(cluster, AGAIN_S)
    assert len(cluster.statuses.records) - written == 1


async def test_a_connector_that_cannot_say_its_problems_ends_no_watch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await cluster.with_tasks()

    def problems(_: TestConnector) -> dict[str, str]:
        raise ValueError("a bug of a plugin")

    with monkeypatch.context() as broken:
        broken.setattr(TestConnector, "problems", problems)
        await later(cluster)
    assert "a bug of a plugin" in caplog.text
    node.meter.note_finding(Finding(task="c-0", what="x", text="away", count=1, harms=True))
    assert await later(cluster) == ["x: away"]


async def test_many_causes_are_counted_and_a_state_that_is_not_running_keeps_its_own(
    cluster: Cluster,
) -> None:
    node = await cluster.with_tasks()
    for number in range(MOST_CAUSES + 3):
        part = node.meter.partition(TopicPartition("t", number))
        part.task, part.state, part.cause = "c-0", "FAILED", "too large"
    (said,) = await later(cluster)
    assert said is not None
    assert said.splitlines()[MOST_CAUSES:] == ["3 more"]
    right = node.status.get(T0)
    assert right is not None
    node.status.put(T0, replace(right, state=State.PAUSED, trace=None))
    assert await later(cluster) == [None]
