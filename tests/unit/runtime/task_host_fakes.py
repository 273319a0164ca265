"""A task host over the real assembly, on fakes: every task it starts is a ``FakeTask`` of its own."""

from collections.abc import Collection, Mapping
from math import inf
from typing import ClassVar

from mm2py.api.context import TaskContext
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_context import NoLedger
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.types import ClusterAlias, FlowName, TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import (
    EagerClock,
    FakeConnector,
    FakeSender,
    FakeStore,
    FakeTask,
)

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


def spec_of(number: int, *, paused: bool = False, **config: str) -> TaskSpec:
    """The spec of a task of ``FakeConnector``."""
    return TaskSpec(
        id=TaskId("Fake", number),
        connector_config={"connector.class": "FakeConnector"},
        config=config,
        paused=paused,
    )


class AskingTask(FakeTask):
    """Asks for its positions as a mirror task does."""

    def __init__(self, context: TaskContext, partitions: tuple[TopicPartition, ...]) -> None:
        super().__init__()
        self.context = context
        self.partitions = partitions
        self.started = 0
        self.taken_over: list[TopicPartition] = []
        self.take_over_errors: list[Exception] = []

    async def start(self) -> None:
        await super().start()
        kept_out = self.context.kept_out
        asked = [p for p in self.partitions if p not in kept_out]
        await self.context.committed_offsets([self.source_partition(p) for p in asked])
        self.context.leave_out([p for p in self.partitions if p in kept_out])
        self.started += 1

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        if self.take_over_errors:
            raise self.take_over_errors.pop(0)
        self.taken_over += partitions


class _Connector(FakeConnector):
    def __init__(self, stage: "HostStage") -> None:
        super().__init__()
        self._stage = stage

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> AskingTask:
        partitions = tuple(TopicPartition(t, 0) for t in config.get("topics", "orders").split(","))
        self._stage.tasks.append(AskingTask(context, partitions))
        return self._stage.tasks[-1]


class HostStage:
    """The host, and what its tasks did."""

    def __init__(
        self,
        reports: FlowReports | None = None,
        watcher: TaskWatcher | None = None,
        *,
        permit: Permit | None = None,
    ) -> None:
        self.reports = reports
        self.watcher = watcher
        self.clock = EagerClock()
        self.store = FakeStore()
        self.tasks: list[AskingTask] = []
        self.senders: list[FakeSender] = []
        self.statuses: list[tuple[TaskId, str]] = []
        self.topics: list[tuple[TaskId, str]] = []
        self.meter = FlowMeter(FLOW, self.clock) if reports is None else reports.meter
        self.permit = permit or Permit(SYSTEM_CLOCK, until_s=inf)
        self.closed = 0
        stage = self

        class Factory:
            java_class: ClassVar[str] = "org.example.FakeConnector"

            def __new__(cls, config: Mapping[str, str]) -> _Connector:  # type: ignore[misc]  # a factory in the shape of a class
                return _Connector(stage)

        plugins = Plugins([])
        plugins._entries["FakeConnector"] = None  # type: ignore[assignment]  # never loaded: it is in the cache
        plugins._loaded["FakeConnector"] = Factory  # type: ignore[assignment]  # a factory in the shape of a class
        self.parts = TaskParts(
            plugins=plugins,
            store=self.store,
            meter=self.meter,
            clock=self.clock,
            sender=self._sender,
            buffer_memory=lambda spec: 1 << 20,
            offset_flush_interval_ms=1_000,
            offset_flush_timeout_ms=5_000,
            graceful_timeout_ms=5_000,
            target_name="target cluster B",
            events=NoLedger() if reports is None else reports.events,
            on_topic=self._topic,
            permit=self.permit,
        )
        self.host = InProcessTaskHost(TaskAssembly(self.parts), self._changed, graceful_s=5)

    def words(self, number: int = 0) -> list[str]:
        return [word for task, word in self.statuses if task.number == number]

    def _sender(self, spec: TaskSpec) -> FakeSender:
        self.senders.append(FakeSender(permit=self.permit))
        return self.senders[-1]

    async def close(self) -> None:
        """As a hosted flow."""
        self.closed += 1

    def _changed(self, task: TaskId, status: Status) -> None:
        self.statuses.append((task, status.state.value))
        if self.watcher is not None:
            self.watcher(task, status)

    def _topic(self, task: TaskId, topic: str) -> None:
        self.topics.append((task, topic))
        if self.reports is not None:
            self.reports.on_topic(task, topic)
