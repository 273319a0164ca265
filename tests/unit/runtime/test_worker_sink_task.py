"""A sink task from its spec: put together, run on its thread, and seen by its host."""

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTaskContext
from mm2py.clock import SystemClock
from mm2py.config.framework import SinkFrameworkConfig
from mm2py.errors import FatalError
from mm2py.observability.metrics import Metrics
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.errant_records import DeadLetterQueue
from mm2py.runtime.tasks.sink_loop import AssignmentListener, ConsumerFactory
from mm2py.runtime.tasks.task_assembly import SinkClients, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec
from mm2py.testing.waiting import eventually
from mm2py.types import ClusterAlias, FlowName, State, TaskId
from tests.unit.runtime.runtime_fakes import FakeSender, FakeStore, Statuses
from tests.unit.runtime.sink_fakes import T0, FakeConsumer, FakeGroup, RecordingTask

TASK = TaskId("files", 0)


def _breathe() -> None:
    """Let the event loop's thread run: a fake poll does not wait for a broker."""
    threading.Event().wait(0.001)


class Clients(SinkClients):
    def __init__(self, group: FakeGroup) -> None:
        self.group = group
        self.consumers: list[FakeConsumer] = []
        self.sources: list[Mapping[str, str] | None] = []

    def consumer(self, spec: TaskSpec, source: Mapping[str, str] | None) -> ConsumerFactory:
        self.sources.append(source)

        def open_it(listener: AssignmentListener) -> FakeConsumer:
            consumer = FakeConsumer(self.group, listener)
            consumer.give(T0)
            consumer.on_poll = _breathe
            self.consumers.append(consumer)
            return consumer

        return open_it

    def dead_letters(self, spec: TaskSpec, config: SinkFrameworkConfig) -> DeadLetterQueue:
        raise AssertionError("no dead letter queue is configured")


class Stage:
    def __init__(self, task: RecordingTask, *, in_child: bool = True) -> None:
        self.group, self.statuses = FakeGroup(p0=10), Statuses()
        self.clients, self.topics = Clients(self.group), list[str]()
        self.contexts: list[SinkTaskContext] = []
        stage = self

        class Factory:
            java_class: ClassVar[str] = "org.example.FileSinkConnector"
            plugin_type: ClassVar[str] = "sink"

            def __init__(self, config: Mapping[str, str]) -> None:
                self.config = config

            def open_sink_task(
                self, config: Mapping[str, str], context: SinkTaskContext
            ) -> RecordingTask:
                stage.contexts.append(context)
                return task

        plugins = Plugins([])
        plugins._entries["FileSinkConnector"] = None  # type: ignore[assignment]  # it is in the cache
        plugins._loaded["FileSinkConnector"] = Factory  # type: ignore[assignment]  # a factory in the shape of a class
        clock = SystemClock()
        self.meter = Metrics(clock).flow(FlowName(ClusterAlias("A"), ClusterAlias("B")))
        assembly = TaskAssembly(
            TaskParts(
                plugins=plugins,
                store=FakeStore(),
                meter=self.meter,
                clock=clock,
                sender=lambda _spec: FakeSender(),
                buffer_memory=lambda _spec: 1,
                offset_flush_interval_ms=20,
                offset_flush_timeout_ms=5_000,
                graceful_timeout_ms=5_000,
                target_name="the worker's cluster",
                on_topic=lambda _task, topic: self.topics.append(topic),
                sinks=self.clients if in_child else None,
            )
        )
        self.host = InProcessTaskHost(
            assembly, lambda _task, status: self.statuses(status), graceful_s=5
        )

    async def start(self, **config: str) -> None:
        connector = {"connector.class": "FileSinkConnector", "name": "files", "topics": "t"}
        await self.host.start_task(
            TaskSpec(id=TASK, connector_config=connector | config, config={})
        )


async def test_a_sink_task_reads_commits_is_measured_and_ends_in_order() -> None:
    task = RecordingTask()
    stage = Stage(task)
    await stage.start()
    await eventually(lambda: stage.group.committed == {T0: 10})
    await eventually(lambda: stage.meter.partition(T0).lag_records == 0)
    assert stage.clients.sources == [None]
    assert stage.clients.consumers[0].subscribed == ("t",)
    assert stage.meter.partition(T0).records == 10
    assert stage.meter.partition(T0).task == "files-0"
    assert stage.topics == ["t"]
    await stage.host.stop_task(TASK, 5.0)
    assert stage.statuses.words == ["RUNNING", "UNASSIGNED"]
    assert task.calls == ["start", "open t-0", "close t-0", "stop"]
    assert stage.clients.consumers[0].closed
    assert stage.meter.partitions == ()


async def test_a_sink_task_that_fails_says_why_and_leaves_its_group() -> None:
    task = RecordingTask()
    task.put_errors = [FatalError("disk full")]
    stage = Stage(task)
    await stage.start()
    await eventually(lambda: "FAILED" in stage.statuses.words)
    status = stage.host.status(TASK)
    assert status is not None
    assert str(status.cause) == "disk full"
    assert stage.clients.consumers[0].closed
    assert stage.group.committed == {}
    await stage.host.stop_task(TASK, 5.0)
    assert stage.statuses.words[-1] == "FAILED"


async def test_a_sink_task_is_paused_and_resumed_within_its_group() -> None:
    task = RecordingTask()
    stage = Stage(task)
    await stage.start()
    await eventually(lambda: "RUNNING" in stage.statuses.words)
    await stage.host.pause_task(TASK, paused=True)
    await eventually(lambda: stage.statuses.words[-1] == "PAUSED")
    stage.group.ends[T0] = 20
    polls = len(stage.clients.consumers[0].polls)
    await eventually(lambda: len(stage.clients.consumers[0].polls) > polls + 3)
    assert len(task.taken) <= 10
    await stage.host.pause_task(TASK, paused=False)
    await eventually(lambda: len(task.taken) == 20)
    await stage.host.stop_task(TASK, 5.0)


async def test_a_sink_task_that_is_paused_before_its_start_opens_nothing() -> None:
    task = RecordingTask()
    stage = Stage(task)
    connector = {"connector.class": "FileSinkConnector", "name": "files", "topics": "t"}
    await stage.host.start_task(
        TaskSpec(id=TASK, connector_config=connector, config={}, paused=True)
    )
    await eventually(lambda: stage.statuses.words == ["PAUSED"])
    await stage.host.stop_task(TASK, 5.0)
    assert task.calls == []
    assert stage.clients.consumers == []


async def test_a_plug_in_that_does_not_come_back_is_given_up_after_its_time() -> None:
    stuck, entered = threading.Event(), threading.Event()
    task = RecordingTask()

    def put(_records: object) -> None:
        entered.set()
        stuck.wait(20)

    task.put = put  # type: ignore[method-assign,assignment]
    stage = Stage(task)
    await stage.start()
    await eventually(entered.is_set)
    await stage.host.stop_task(TASK, 0.1)
    assert stage.statuses.words[-1] == State.UNASSIGNED.value
    stuck.set()


async def test_a_sink_needs_a_process_of_its_own() -> None:
    stage = Stage(RecordingTask(), in_child=False)
    await stage.start()
    status = stage.host.status(TASK)
    assert status is not None
    assert "set task.host.processes to at least 1" in str(status.cause)


async def test_records_that_are_left_out_are_counted_where_the_flow_is_shown() -> None:
    task = RecordingTask()
    stage = Stage(task)

    def put(records: Sequence[SinkRecord]) -> None:
        for record in records:
            stage.contexts[0].report(record, FatalError("too large"))

    task.put = put  # type: ignore[method-assign]
    await stage.start(**{"errors.tolerance": "all"})
    await eventually(lambda: stage.group.committed == {T0: 10})
    await eventually(lambda: [it.count for it in stage.meter.findings] == [10])
    (finding,) = stage.meter.findings
    assert "10 records are left out" in finding.text
    assert not finding.harms
    await stage.host.stop_task(TASK, 5.0)
    assert stage.meter.findings == ()
