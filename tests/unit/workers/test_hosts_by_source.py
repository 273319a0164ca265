"""Tasks of one worker in one host per source."""

from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.types import State, TaskId, TopicPartition
from mm2py_workers.connect_wiring import HostsBySource, SourceHost
from tests.unit.runtime.herder_fakes import ObedientHost


def _spec(connector: str, source: str) -> TaskSpec:
    return TaskSpec(id=TaskId(connector, 0), connector_config={"source": source}, config={})


async def test_each_source_has_a_host_and_all_of_them_hear_what_concerns_the_worker() -> None:
    opened: dict[str, ObedientHost] = {}
    states: list[tuple[str, State]] = []

    def host(source: str) -> SourceHost:
        opened[source] = ObedientHost(lambda task, status: states.append((str(task), status.state)))
        return SourceHost(opened[source], None)

    hosts = HostsBySource(lambda spec: spec.connector_config["source"], host)
    await hosts.start_task(_spec("one", "A"))
    await hosts.start_task(_spec("two", "B"))
    await hosts.start_task(_spec("three", "A"))
    assert [sorted(map(str, it.running)) for it in opened.values()] == [
        ["one-0", "three-0"],
        ["two-0"],
    ]
    assert set(hosts.tasks()) == {TaskId(name, 0) for name in ("one", "two", "three")}
    held = frozenset({TopicPartition("orders", 0)})
    hosts.hold(held)
    await hosts.start_task(_spec("four", "C"))
    assert opened["C"].held == held, "a host that is opened later knows"
    assert all(it.held == held for it in opened.values())
    hosts.hold(frozenset())
    assert not any(it.held for it in opened.values())

    await hosts.pause_task(TaskId("two", 0), paused=True)
    assert states[-1] == ("two-0", State.PAUSED)
    status = hosts.status(TaskId("two", 0))
    assert status is not None
    assert status.state is State.PAUSED
    await hosts.start_task(_spec("two", "A"))
    assert not opened["B"].running, "it moved with its source"
    await hosts.stop_task(TaskId("two", 0), 1)
    await hosts.stop_task(TaskId("unknown", 0), 1)
    assert hosts.status(TaskId("two", 0)) is None
    await hosts.close()
    assert all(it.closed for it in opened.values())
