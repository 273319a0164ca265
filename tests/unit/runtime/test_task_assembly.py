"""A task put together from its spec: batch or record task, policies, and what is refused."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from mm2py.api.records import SourceRecord
from mm2py.errors import ConfigError, FatalError
from mm2py.observability.metrics import Metrics
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.task_assembly import TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName, TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import (
    EagerClock,
    FakeConnector,
    FakeSender,
    FakeStore,
    FakeTask,
    Statuses,
    outgoing,
)

CONFIG = {"connector.class": "FakeConnector"}


class Lines:
    """A third party's record task."""

    def __init__(self) -> None:
        self.rounds: list[Sequence[SourceRecord]] = [
            [
                SourceRecord(
                    source_partition={"file": "a.txt"},
                    source_offset={"line": line},
                    topic="t",
                    partition=0,
                    key=None,
                    value=b"x",
                )
                for line in (1, 2)
            ]
        ]
        self.landed: list[int] = []

    async def start(self) -> None:
        pass

    async def poll(self) -> Sequence[SourceRecord]:
        return self.rounds.pop() if self.rounds else ()

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        self.landed.append(target_offset)

    async def commit(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Stage:
    """A task host over a real assembly, on fakes."""

    def __init__(self, task: FakeTask | Lines) -> None:
        self.sender = FakeSender()
        self.store = FakeStore()
        self.clock = EagerClock()
        self.statuses = Statuses()
        connector = FakeConnector()
        connector.task = task

        class Factory:
            java_class: ClassVar[str] = "org.example.FakeConnector"

            def __new__(cls, config: Mapping[str, str]) -> FakeConnector:  # type: ignore[misc]  # a factory in the shape of a class
                return connector

        plugins = Plugins([])
        plugins._entries["FakeConnector"] = None  # type: ignore[assignment]  # never loaded: it is in the cache
        plugins._loaded["FakeConnector"] = Factory  # type: ignore[assignment]  # a factory in the shape of a class
        flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
        assembly = TaskAssembly(
            TaskParts(
                plugins=plugins,
                store=self.store,
                meter=Metrics(self.clock).flow(flow),
                clock=self.clock,
                sender=lambda spec: self.sender,
                buffer_memory=lambda spec: 1 << 20,
                offset_flush_interval_ms=1_000,
                offset_flush_timeout_ms=5_000,
                graceful_timeout_ms=5_000,
                target_name="target cluster B",
            )
        )
        self.host = InProcessTaskHost(
            assembly, lambda task, status: self.statuses(status), graceful_s=5
        )

    async def start(self, **config: str) -> TaskId:
        connector = CONFIG | {key.replace("_", "."): value for key, value in config.items()}
        task = TaskId("Fake", 0)
        await self.host.start_task(TaskSpec(id=task, connector_config=connector, config={}))
        return task


async def test_a_record_task_runs_and_its_own_positions_are_stored() -> None:
    task = Lines()
    stage = Stage(task)
    name = await stage.start()
    await until(lambda: task.landed == [0, 1])
    await stage.host.stop_task(name, 5.0)
    assert stage.store.written() == {b'["Fake",{"file":"a.txt"}]': b'{"line":2}'}
    assert stage.host.tasks() == ()
    assert stage.statuses.words == ["RUNNING", "UNASSIGNED"]


async def test_a_refused_record_fails_a_record_task() -> None:
    task = Lines()
    stage = Stage(task)
    stage.sender.acknowledge = False
    name = await stage.start()
    await until(lambda: len(stage.sender.sent) == 1)
    stage.sender.refuse(stage.sender.sent[0].source, FatalError("too large"))
    await until(lambda: "FAILED" in stage.statuses.words)
    await stage.host.stop_task(name, 1.0)


@pytest.mark.parametrize(("policy", "fails"), [("isolate", False), ("fail", True)])
async def test_the_partition_failure_policy_counts(policy: str, *, fails: bool) -> None:
    stage = Stage(FakeTask([outgoing("orders", 0), outgoing("bills", 0)]))
    stage.sender.acknowledge = False
    name = await stage.start(partition_failure_policy=policy)
    await until(lambda: len(stage.sender.sent) == 2)
    stage.sender.refuse(TopicPartition("orders", 0), FatalError("too large"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert ("FAILED" in stage.statuses.words) is fails
    await stage.host.stop_task(name, 1.0)


@pytest.mark.parametrize("key", ["gap_policy", "partition_failure_policy"])
async def test_an_unknown_policy_makes_the_task_failed(key: str) -> None:
    stage = Stage(FakeTask())
    name = await stage.start(**{key: "maybe"})
    status = stage.host.status(name)
    assert status is not None
    assert isinstance(status.cause, ConfigError)
    assert stage.statuses.words == ["FAILED"]
    await stage.host.stop_task(name, 1.0)
    assert stage.host.status(name) is None


async def test_starting_a_task_again_stops_the_old_one_first() -> None:
    task = FakeTask([outgoing("orders", 0)])
    stage = Stage(task)
    await stage.start()
    await until(lambda: "RUNNING" in stage.statuses.words)
    name = await stage.start()
    assert task.stopped == 1
    await until(lambda: stage.statuses.words == ["RUNNING", "UNASSIGNED", "RUNNING"])
    await stage.host.stop_task(name, 1.0)


async def test_required_exactly_once_needs_a_worker_that_has_it() -> None:
    stage = Stage(Lines())
    name = await stage.start(exactly_once_support="required")
    status = stage.host.status(name)
    assert status is not None
    assert "this worker does not have exactly-once source support enabled" in str(status.cause)


MARK = {"transforms": "m", "transforms.m.type": "Filter"}


async def test_records_of_a_third_party_pass_transforms_and_their_positions_move() -> None:
    task = Lines()
    stage = Stage(task)
    name = await stage.start(**MARK)
    await until(lambda: not task.rounds)
    await until(lambda: "RUNNING" in stage.statuses.words)
    await stage.host.stop_task(name, 5.0)
    assert not stage.sender.sent, "all of them are dropped"
    assert stage.store.written() == {b'["Fake",{"file":"a.txt"}]': b'{"line":2}'}


async def test_transforms_of_a_third_partys_whole_batches_are_refused() -> None:
    stage = Stage(FakeTask())
    name = await stage.start(**MARK)
    status = stage.host.status(name)
    assert status is not None
    assert "moves whole batches" in str(status.cause)


async def test_a_wrong_transform_makes_the_task_failed_and_is_named() -> None:
    stage = Stage(Lines())
    name = await stage.start(**{**MARK, "transforms.m.type": "Cast$Value"})
    status = stage.host.status(name)
    assert status is not None
    assert "transforms.m.type=Cast$Value" in str(status.cause)
    assert "structures" in str(status.cause)
