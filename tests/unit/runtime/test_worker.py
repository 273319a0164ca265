"""Connectors and tasks of one flow: what starts, what restarts, what is left alone."""

import asyncio
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from mm2py.errors import ConfigError, ConnectionFailedError, FatalError, PartitionError
from mm2py.runtime.lifecycle import Status
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.task_host import TaskSpec, TaskWatcher
from mm2py.runtime.worker import STEADY_S, Worker, WorkerSettings
from mm2py.types import State, TaskId
from tests.unit.runtime.runtime_fakes import EagerClock, FakeConnector, until

CONFIG = {"connector.class": "FakeConnector", "tasks.max": "3"}


class FakeHost:
    """Records what runs; states are set by the test."""

    def __init__(self, watcher: TaskWatcher) -> None:
        self.watcher = watcher
        self.running: dict[TaskId, TaskSpec] = {}
        self.states: dict[TaskId, Status] = {}
        self.events: list[str] = []
        self.fails_at_start: list[TaskId] = []

    async def start_task(self, spec: TaskSpec) -> None:
        self.running[spec.id] = spec
        self.events.append(f"start {spec.id} {spec.config.get('p', '')}")
        if spec.id in self.fails_at_start:
            self.say(spec.id, State.FAILED, FatalError("cannot start"))
        else:
            self.say(spec.id, State.RUNNING)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        self.events.append(f"stop {task}")
        self.running.pop(task, None)

    def status(self, task: TaskId) -> Status | None:
        return self.states.get(task)

    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self.running)

    def suspend(self) -> None:
        self.events.append("suspend")

    def resume(self) -> None:
        self.events.append("resume")

    def say(self, task: TaskId, state: State, cause: Exception | None = None) -> None:
        self.states[task] = Status(state, cause)
        self.watcher(task, self.states[task])


class Registry:
    """Lets an entry point lead to connectors of this test."""

    made: ClassVar[list[FakeConnector]] = []


class FactoryOfTest:
    """A connector class as an entry point names it."""

    java_class: ClassVar[str] = "org.example.FakeConnector"

    def __new__(cls, config: Mapping[str, str]) -> FakeConnector:  # type: ignore[misc]  # a factory in the shape of a class
        if config.get("broken"):
            raise ConfigError("broken=yes: must be no", remedy="remove it")
        connector = FakeConnector([{"p": "0"}, {"p": "1"}])
        connector.start_errors = [ConnectionFailedError("away")] if config.get("late") else []
        Registry.made.append(connector)
        return connector


def _plugins() -> Plugins:
    entry = EntryPoint("FakeConnector", f"{__name__}:FactoryOfTest", "mm2py.connectors")
    plugins = Plugins([entry])
    plugins._loaded["FakeConnector"] = FactoryOfTest  # type: ignore[assignment]  # importlib mode: not importable by name
    return plugins


class Stage:
    """A worker on fakes."""

    def __init__(self, *, auto_restart: bool = True) -> None:
        Registry.made.clear()
        self.clock = EagerClock()
        self.hosts: list[FakeHost] = []
        self.worker = Worker(
            _plugins(),
            self._host,
            settings=WorkerSettings(task_auto_restart=auto_restart),
            clock=self.clock,
            on_change=lambda: None,
        )

    def _host(self, watcher: TaskWatcher) -> FakeHost:
        self.hosts.append(FakeHost(watcher))
        return self.hosts[-1]

    @property
    def host(self) -> FakeHost:
        return self.hosts[0]


def test_tasks_start_after_their_connector() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG | {"late": "1"}})
        await until(lambda: len(stage.host.running) == 2)
        assert stage.worker.state() is State.RUNNING
        assert stage.host.events == ["start c-0 0", "start c-1 1"]
        await stage.worker.stop()
        assert stage.host.running == {}
        assert Registry.made[0].stopped == 1
        assert stage.worker.connector_status()["c"].state is State.UNASSIGNED

    asyncio.run(scenario())


def test_reconfiguration_restarts_only_what_changed_and_stops_before_it_starts() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        connector = Registry.made[0]
        stage.host.events.clear()
        connector.configs = [{"p": "0"}, {"p": "1,2"}, {"p": "3"}]
        assert connector.context is not None
        connector.context.request_reconfiguration()
        await until(lambda: len(stage.host.running) == 3)
        assert stage.host.events == ["stop c-1", "start c-1 1,2", "start c-2 3"]
        stage.host.events.clear()
        connector.configs = [{"p": "0"}]
        connector.context.request_reconfiguration()
        await until(lambda: len(stage.host.running) == 1)
        assert stage.host.events == ["stop c-1", "stop c-2"]
        await stage.worker.stop()

    asyncio.run(scenario())


def test_a_connector_that_cannot_be_built_fails_alone() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start(
            {"bad": CONFIG | {"broken": "yes"}, "unknown": {"connector.class": "Nope"}, "c": CONFIG}
        )
        await until(lambda: len(stage.host.running) == 2)
        states = {name: s.state for name, s in stage.worker.connector_status().items()}
        assert states == {"bad": State.FAILED, "unknown": State.FAILED, "c": State.RUNNING}
        assert stage.worker.state() is State.FAILED
        await stage.worker.stop()

    asyncio.run(scenario())


def test_too_many_tasks_fail_the_connector() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG | {"tasks.max": "1"}})
        await until(lambda: stage.worker.connector_status()["c"].state is State.FAILED)
        assert stage.host.running == {}
        assert "greater than 1" in str(stage.worker.connector_status()["c"].cause)
        await stage.worker.stop()

    asyncio.run(scenario())


def test_a_failed_task_is_restarted_with_growing_pauses() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        task = TaskId("c", 0)
        for _ in range(3):
            count = len(stage.host.events)
            stage.host.say(task, State.FAILED, FatalError("x"))
            await until(lambda count=count: len(stage.host.events) > count)  # type: ignore[misc]  # mypy: lambda defaults
        assert [pause for pause in stage.clock.sleeps if pause >= 1] == [1.0, 2.0, 4.0]
        await stage.worker.stop()

    asyncio.run(scenario())


def test_a_task_that_never_ran_is_restarted_with_growing_pauses_on_a_machine_up_for_long() -> None:
    async def scenario() -> None:
        stage = Stage()
        task = TaskId("c", 0)
        stage.host.fails_at_start.append(task)
        stage.worker.start({"c": CONFIG})
        await until(lambda: stage.host.events.count("start c-0 0") == 5)
        assert [pause for pause in stage.clock.sleeps if pause >= 1][:4] == [1.0, 2.0, 4.0, 8.0]
        await stage.worker.stop()

    asyncio.run(scenario())


def test_a_task_that_ran_for_long_starts_again_with_the_shortest_pause() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        for ran_s in (1.0, STEADY_S + 1):
            count = len(stage.host.events)
            stage.clock.seconds += ran_s
            stage.host.say(TaskId("c", 0), State.FAILED, FatalError("x"))
            await until(lambda count=count: len(stage.host.events) > count)  # type: ignore[misc]  # mypy: lambda defaults
        assert [pause for pause in stage.clock.sleeps if pause >= 1] == [1.0, 1.0]
        await stage.worker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("auto_restart", "cause"),
    [
        (True, ConfigError("wrong")),
        (True, PartitionError("refused", topic="t", partition=0)),
        (False, FatalError("x")),
    ],
)
def test_what_a_restart_cannot_cure_stays_failed(*, auto_restart: bool, cause: Exception) -> None:
    async def scenario() -> None:
        stage = Stage(auto_restart=auto_restart)
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        stage.host.say(TaskId("c", 0), State.FAILED, cause)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(stage.host.events) == 2
        assert stage.worker.state() is State.FAILED
        await stage.worker.stop()

    asyncio.run(scenario())


def test_the_worker_says_what_is_wrong_and_where() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"bad": CONFIG | {"broken": "yes"}, "c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        Registry.made[0].troubles["refresh topics"] = "A is away"
        stage.host.say(TaskId("c", 1), State.FAILED, ConfigError("wrong"))
        assert stage.worker.problems() == [
            "task c-1: wrong",
            "bad: broken=yes: must be no; remove it",
            "c: refresh topics: A is away",
        ]
        await stage.worker.stop()

    asyncio.run(scenario())


def test_a_connector_may_report_its_own_failure() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        context = Registry.made[0].context
        assert context is not None
        context.fail(FatalError("loop died"))
        assert stage.worker.connector_status()["c"].state is State.FAILED
        assert len(stage.host.running) == 2, "its tasks go on"
        await stage.worker.stop()

    asyncio.run(scenario())


def test_plugins_are_found_by_java_name_simple_name_and_entry_point() -> None:
    plugins = _plugins()
    for name in ("FakeConnector", "org.example.FakeConnector", " FakeConnector "):
        assert plugins.find(name).java_class == "org.example.FakeConnector"


@pytest.mark.parametrize("name", ["", "com.acme.FakeConnector", "Other"])
def test_an_unknown_connector_class_is_refused_with_what_is_installed(name: str) -> None:
    with pytest.raises(ConfigError, match="use one of FakeConnector"):
        _plugins().find(name)


def test_suspension_reaches_the_host() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.worker.start({"c": CONFIG})
        await until(lambda: len(stage.host.running) == 2)
        stage.worker.suspend()
        stage.worker.resume()
        assert stage.host.events[-2:] == ["suspend", "resume"]
        await stage.worker.stop()

    asyncio.run(scenario())
