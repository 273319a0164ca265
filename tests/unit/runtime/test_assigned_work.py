"""Connectors and tasks of one worker: start, stop, target states, restarts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import (
    ConfigError,
    ConnectionFailedError,
    FatalError,
    PartitionError,
    RefusedRecordError,
    RetriableError,
)
from mm2py.runtime.errors import HerderError
from mm2py.runtime.herder.api import ConnectorState, WorkState
from mm2py.runtime.herder.assigned_work import FIRST_RESTART_S, PROVEN_S, STEADY_S
from mm2py.runtime.herder.loop import merge_restarts
from mm2py.runtime.herder.work_states import plan_restart
from mm2py.runtime.herder.worker_connector import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    ConnectorFacts,
    WorkerConnector,
)
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.storage.config_state import ConnectorConfig, RestartRequest, texts_of
from mm2py.testing.waiting import until
from mm2py.types import State, TargetState, TaskId
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, TestConnector
from tests.unit.runtime.runtime_fakes import EagerClock, FakeConnector, Statuses, turns

SECRET = "geheim-123"  # noqa: S105 - what herder_fakes masks
C0, C1 = TaskId("c", 0), TaskId("c", 1)


async def _running(cluster: Cluster, *, auto_restart: bool = True) -> Node:
    node = await cluster.with_tasks(task_auto_restart=auto_restart)
    node.host.events.clear()
    return node


async def _restart_pause(cluster: Cluster, node: Node) -> float:
    """Let c-0 fail, and return after which pause it starts again, to a tenth of a second."""
    starts = node.host.events.count("start c-0 0")
    node.host.say(C0, State.FAILED, FatalError("x"))
    await until(lambda: node.state(C0) == "FAILED")
    for tenths in range(1, 700):
        await cluster.clock.advance(0.1)
        if node.host.events.count("start c-0 0") > starts:
            return tenths / 10
    raise AssertionError("it never started again")


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, [1, 2, 4, 8]), ({"errors.retry.delay.max.ms": "1500"}, [1, 1.5, 1.5, 1.5])],
)
async def test_a_failed_task_restarts_with_growing_pauses_until_it_ran_for_long(
    cluster: Cluster, own: Mapping[str, str], expected: Sequence[float]
) -> None:
    node = cluster.node().start()
    await node.config.put_connector("c", CONFIG | {"name": "c", **own})
    await node.runs("c-0", "c-1")
    await until(lambda: node.state(C0) == "RUNNING")
    pauses = [await _restart_pause(cluster, node) for _ in range(4)]
    assert pauses == [pytest.approx(pause, abs=0.11) for pause in expected]
    assert node.herder.life_counts.restarts == {"task": 4}
    await cluster.clock.advance(STEADY_S + 1)
    assert await _restart_pause(cluster, node) == pytest.approx(1, abs=0.11)
    assert len([it for it in node.host.events if "c-1" in it]) == 1, "the other task runs on"


async def test_a_task_that_keeps_failing_is_a_problem_while_it_runs_too(cluster: Cluster) -> None:
    node = await _running(cluster)
    await _restart_pause(cluster, node)
    await until(lambda: node.state(C0) == "RUNNING")
    assert not node.herder.node_snapshot().problems, "one failure is over when it runs again"
    await _restart_pause(cluster, node)
    await until(lambda: node.state(C0) == "RUNNING")
    assert node.herder.node_snapshot().problems == {
        "c-0": "it runs again after 2 failures, the last one: x"
    }
    await cluster.clock.advance(PROVEN_S + 1)
    assert not node.herder.node_snapshot().problems
    node.host.silent["task host 7"] = "no sign of life"
    assert node.herder.node_snapshot().problems == {"task host 7": "no sign of life"}


async def test_a_task_that_never_ran_is_restarted_with_growing_pauses(cluster: Cluster) -> None:
    assert cluster.clock.monotonic() > STEADY_S
    node = cluster.node().start()
    node.host.fails_at_start[C0] = FatalError("x")
    await node.put(work="0")
    await until(lambda: node.host.events.count("start c-0 0") == 1)
    pauses: list[int] = []
    for starts in range(1, 5):
        began = cluster.clock.monotonic()
        while node.host.events.count("start c-0 0") == starts:
            await cluster.clock.advance(0.1)
        pauses.append(round(cluster.clock.monotonic() - began))
    assert pauses == [1, 2, 4, 8]


async def test_a_start_that_fails_by_a_defect_is_tried_again(cluster: Cluster) -> None:
    node = await _running(cluster)

    def broken(_task: TaskId) -> None:
        raise ZeroDivisionError

    node.host.on_start = broken
    node.host.say(C0, State.FAILED, FatalError("x"))
    await cluster.clock.advance(1.5)
    await until(lambda: node.state(C0) == "FAILED")
    node.host.on_start = lambda _task: None
    await cluster.clock.advance(3)
    await until(lambda: node.state(C0) == "RUNNING")


@pytest.mark.parametrize("own", ["true", "false"])
async def test_a_connectors_own_choice_of_restarts_wins(cluster: Cluster, own: str) -> None:
    node = cluster.node(task_auto_restart=own == "false").start()
    await node.config.put_connector("c", CONFIG | {"name": "c", "task.auto.restart": own})
    await until(lambda: node.state(C0) == "RUNNING")
    starts = node.host.events.count("start c-0 0")
    node.host.say(C0, State.FAILED, FatalError("x"))
    await cluster.clock.advance(120)
    assert node.host.events.count("start c-0 0") == starts + (own == "true")


async def test_the_trace_of_the_last_failure_shows_until_the_task_runs(cluster: Cluster) -> None:
    node = await _running(cluster)
    seen: list[tuple[str, str | None]] = []
    put = node.status.put

    def watch(work: object, status: object, *, safe: bool = False) -> None:
        if work == C0:
            seen.append((status.state.value, status.trace))  # type: ignore[attr-defined]  # a StoredStatus
        put(work, status, safe=safe)  # type: ignore[arg-type]  # passed on

    node.status.put = watch  # type: ignore[method-assign]  # looks on
    node.host.say(C0, State.FAILED, FatalError("disk full"))
    await cluster.clock.advance(1)
    await until(lambda: len(seen) == 3)
    assert seen == [
        ("FAILED", "FatalError: disk full"),
        ("RESTARTING", "FatalError: disk full"),
        ("RUNNING", None),
    ]


@pytest.mark.parametrize(
    ("auto_restart", "cause"),
    [
        (True, ConfigError("wrong")),
        (True, PartitionError("refused", topic="t", partition=0)),
        (True, RefusedRecordError("refused")),
        (False, FatalError("x")),
    ],
)
async def test_what_a_restart_cannot_cure_stays_failed(
    cluster: Cluster, *, auto_restart: bool, cause: Exception
) -> None:
    node = await _running(cluster, auto_restart=auto_restart)
    node.host.say(C0, State.FAILED, cause)
    await cluster.clock.advance(120)
    assert node.host.events == []
    assert (node.state(C0), node.meter.state) == ("FAILED", "FAILED")


async def test_a_task_given_up_while_it_waits_for_its_restart_stays_away(cluster: Cluster) -> None:
    node = await _running(cluster)
    node.host.say(C0, State.FAILED, FatalError("x"))
    await node.herder.stop_connector("c", actor="t")
    await until(lambda: not node.host.running)
    node.host.events.clear()
    await cluster.clock.advance(120)
    assert node.host.events == []


async def test_no_state_and_no_problem_holds_a_secret(cluster: Cluster) -> None:
    node = await _running(cluster, auto_restart=False)
    error = FatalError("login failed")
    error.__cause__ = FatalError("password geheim-123 refused")
    node.host.say(C0, State.FAILED, error)
    await until(lambda: node.state(C0) == "FAILED")
    trace = node.herder.task_status(C0).trace
    assert trace == "FatalError: login failed\nCaused by: FatalError: password [hidden] refused"


async def test_placeholders_stay_in_the_topic_and_arrive_resolved(cluster: Cluster) -> None:
    def resolve(config: ConnectorConfig) -> dict[str, str]:
        return {k: t.replace("${file:/s:p}", SECRET) for k, t in config.items() if t}

    node = cluster.node(resolve=resolve).start()
    await node.put(password="${file:/s:p}")  # noqa: S106 - a placeholder
    await until(lambda: bool(TestConnector.made))
    TestConnector.made[0].configs = [{"p": "0", "password": SECRET}]
    await until(lambda: bool(node.host.running))
    await node.runs("c-0")
    assert TestConnector.made[0].config["password"] == SECRET
    assert node.host.running[C0].config["password"] == SECRET
    assert node.host.running[C0].connector_config["password"] == SECRET
    assert not any(b"geheim" in (r.value or b"") for r in cluster.configs.records)


def unless(broken: Collection[str]) -> Callable[[ConnectorConfig], dict[str, str]]:
    """Return a resolver whose provider has no value while something is ``broken``."""

    def resolve(config: ConnectorConfig) -> dict[str, str]:
        if broken:
            raise ConfigError("/s cannot be read", remedy="put it back")
        return texts_of(config)

    return resolve


async def test_a_placeholder_that_is_not_resolved_fails_visibly_until_it_is(
    cluster: Cluster,
) -> None:
    broken: list[str] = []

    node = cluster.node(resolve=unless(broken)).start()
    await node.put()
    await node.runs("c-0", "c-1")
    await until(lambda: node.state(C0) == node.state(C1) == "RUNNING")
    broken.append("x")
    with pytest.raises(HerderError, match=r"^Failed to start task: c-0$"):
        await node.herder.restart_task(C0)
    await until(lambda: node.state(C0) == "FAILED")
    assert "put it back" in node.herder.problems()[0]
    with pytest.raises(HerderError, match=r"^Failed to start connector: c$"):
        await node.herder.restart_connector("c")
    await until(lambda: node.state("c") == "FAILED")
    # A file of secrets that is being replaced comes back.
    broken.clear()
    await cluster.clock.advance(FIRST_RESTART_S)
    await until(lambda: node.state(C0) == node.state("c") == "RUNNING")


async def test_a_connector_without_a_value_of_its_provider_is_tried_again_where_it_is_started(
    cluster: Cluster,
) -> None:
    broken = ["x"]

    node = cluster.node(resolve=unless(broken)).start()
    await node.put()
    await until(lambda: node.state("c") == "FAILED")
    await node.herder.pause("c", actor="t")
    broken.clear()
    await cluster.clock.advance(2 * LONGEST_RETRY_S)
    assert node.state("c") == "FAILED", "a paused one starts nothing"
    await node.herder.resume("c", actor="t")
    await until(lambda: node.state("c") == "RUNNING")


async def test_topics_in_use_are_forgotten_with_their_connector(cluster: Cluster) -> None:
    node = await _running(cluster)
    forgotten: list[str] = []
    node.status.delete_topics = forgotten.append  # type: ignore[method-assign,assignment]  # looks on
    await node.herder.stop_connector("c", actor="t")
    await until(lambda: not node.host.running)
    assert forgotten == []
    await node.herder.delete("c", actor="t")
    await until(lambda: forgotten == ["c"])


async def test_a_leader_that_cannot_write_tries_again(cluster: Cluster) -> None:
    file = {"c": CONFIG | {"name": "c"}}
    node = cluster.node(effective=file)
    put = node.config.put_connector
    errors = [RetriableError("topic away")] * 2

    async def flaky(name: str, config: Mapping[str, str | None], target: None = None) -> None:
        if errors:
            raise errors.pop()
        await put(name, config, target)

    node.config.put_connector = flaky  # type: ignore[method-assign,assignment]  # fails twice
    node.start()
    await until(lambda: node.membership.is_leader)
    for _ in range(3):
        await cluster.clock.advance(1)
    await node.runs("c-0", "c-1")


async def test_a_task_that_its_host_cannot_start_fails_and_is_tried_again(cluster: Cluster) -> None:
    node = await _running(cluster)
    start_task = node.host.start_task
    errors = [RetriableError("no process can be started")]

    async def flaky(spec: TaskSpec) -> None:
        if errors:
            raise errors.pop()
        await start_task(spec)

    node.host.start_task = flaky  # type: ignore[method-assign]  # fails once
    with pytest.raises(HerderError, match="Failed to start task"):
        await node.herder.restart_task(C0)
    await until(lambda: node.state(C0) == "FAILED")
    assert node.herder.task_status(C0).trace == "RetriableError: no process can be started"
    for _ in range(3):
        await cluster.clock.advance(1)
    await until(lambda: node.state(C0) == "RUNNING")


# ---- connectors


class ByItsConfig(FakeConnector):
    """Would give each task what it was given, were it Java's."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__([config])

    async def java_task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        await asyncio.sleep(0)
        return self.configs[:max_tasks]


class Stage:
    """A connector on fakes."""

    def __init__(
        self,
        target: TargetState = TargetState.STARTED,
        *,
        errors: Sequence[Exception] = (),
        config: Mapping[str, str] = {"tasks.max": "2"},
        sets: Mapping[str, str] = {},
    ) -> None:
        self.clock = EagerClock()
        self.statuses = Statuses()
        self.made: list[FakeConnector] = []
        self.hangs = False
        self.start_errors = list(errors)
        self.configs: list[Mapping[str, str]] = [{"p": "0"}]
        self.applied: list[Sequence[Mapping[str, str]]] = []
        self.apply_errors: list[Exception] = []
        self.problems: list[Mapping[str, str]] = []
        self.connector = WorkerConnector(
            self._build,
            config,
            apply=self._apply,
            on_status=self.statuses,
            clock=self.clock,
            target=target,
            resolve=lambda raw: {**texts_of(raw), **sets},
            facts=ConnectorFacts(dict, tuple, tuple),
        )
        self.connector.start()

    def _build(self, config: Mapping[str, str]) -> FakeConnector:
        made = ByItsConfig(config) if "own" in config else FakeConnector(self.configs)
        made.start_errors = self.start_errors
        self.made.append(made)
        return made

    async def _apply(self, configs: Sequence[Mapping[str, str]]) -> None:
        self.problems.append(self.connector.problems())
        if self.hangs:
            await asyncio.Event().wait()
        if self.apply_errors:
            raise self.apply_errors.pop(0)
        self.applied.append(configs)

    async def reaches(self, *words: str) -> None:
        await until(lambda: tuple(self.statuses.words) == words)


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    """A connector that runs and has published its task configs."""
    stage = Stage()
    await until(lambda: len(stage.applied) == 1)
    yield stage
    await stage.connector.stop()


async def test_what_this_worker_sets_in_a_config_is_not_left_to_java() -> None:
    given = {"own": "1", "loops": "auto", "password": "${file:/s:p}"}
    sets = {"loops": "on", "password": SECRET, "more": "x"}
    stage = Stage(config=given, sets=sets)
    await until(lambda: len(stage.applied) == 1)
    assert stage.applied == [[given | sets]]
    left = await stage.connector.java_task_configs()
    assert left == [given | {"password": SECRET}], "its placeholder is put back by who publishes"
    await stage.connector.stop()


@pytest.mark.parametrize("target", [TargetState.PAUSED, TargetState.STOPPED])
async def test_a_connector_that_begins_paused_or_stopped_is_not_started(
    target: TargetState,
) -> None:
    stage = Stage(target)
    await stage.reaches(target.value)
    assert stage.made == []
    stage.connector.set_target(TargetState.STARTED)
    await stage.reaches(target.value, "RUNNING")
    await until(lambda: len(stage.applied) == 1)
    await stage.connector.stop()
    await stage.reaches(target.value, "RUNNING", "UNASSIGNED")


async def test_pause_stops_the_instance_and_resume_publishes_again(stage: Stage) -> None:
    stage.connector.set_target(TargetState.PAUSED)
    await stage.reaches("RUNNING", "PAUSED")
    assert stage.made[0].stopped == 1
    stage.connector.set_target(TargetState.PAUSED)
    stage.connector.request_reconfiguration()
    await turns(20)
    assert len(stage.applied) == 1, "a paused connector publishes nothing"
    stage.connector.set_target(TargetState.STARTED)
    await until(lambda: len(stage.applied) == 2)
    assert stage.statuses.words == ["RUNNING", "PAUSED", "RUNNING"]
    assert len(stage.made) == 2


async def test_a_failed_connector_ignores_pause_and_takes_stop() -> None:
    """A connector that failed to start can be stopped and shows STOPPED."""

    stage = Stage(errors=[FatalError("no")])
    await stage.reaches("FAILED")
    stage.connector.set_target(TargetState.PAUSED)
    stage.connector.set_target(TargetState.STARTED)
    await turns(20)
    assert stage.statuses.words == ["FAILED"]
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("FAILED", "STOPPED")
    await stage.connector.stop()


async def test_a_failure_after_the_start_keeps_the_instance_until_a_stop(stage: Stage) -> None:
    stage.connector.fail(FatalError("loop died"))
    stage.connector.request_reconfiguration()
    await turns(20)
    assert (stage.made[0].stopped, len(stage.applied)) == (0, 1)
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("RUNNING", "FAILED", "STOPPED")
    assert stage.made[0].stopped == 1


@pytest.mark.parametrize(
    ("target", "last"),
    [(TargetState.PAUSED, "FAILED"), (TargetState.STOPPED, "STOPPED"), (None, "FAILED")],
    ids=["pause", "stop", "the end"],
)
async def test_an_error_in_stop_fails_a_pause_and_the_end_but_not_a_stop(
    stage: Stage, target: TargetState | None, last: str
) -> None:
    stage.made[0].stop_error = FatalError("stuck")
    if target is None:
        await stage.connector.stop()
    else:
        stage.connector.set_target(target)
    await stage.reaches("RUNNING", last)


async def test_a_retriable_start_is_tried_until_the_target_state_changes() -> None:
    stage = Stage(errors=[ConnectionFailedError("away")] * 3)
    await stage.reaches("RUNNING")
    stage.connector.set_target(TargetState.PAUSED)
    await stage.reaches("RUNNING", "PAUSED")
    stage.start_errors += [ConnectionFailedError("away")] * 100_000
    stage.connector.set_target(TargetState.STARTED)
    await until(lambda: len(stage.made) == 2)
    await until(lambda: "away" in str(stage.connector.problems()))
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("RUNNING", "PAUSED", "STOPPED")
    assert stage.connector.problems() == {}
    await stage.connector.stop()


async def test_publication_is_tried_again_with_growing_pauses_up_to_a_minute() -> None:
    stage = Stage()
    stage.apply_errors = [ConnectionFailedError("leader away")] * 11
    await until(lambda: len(stage.applied) == 1)
    assert stage.clock.sleeps[:3] == [FIRST_RETRY_S, 0.5, 1.0]
    assert max(stage.clock.sleeps) == LONGEST_RETRY_S
    assert stage.statuses.words == ["RUNNING"]
    await stage.connector.stop()


async def test_too_many_tasks_fail_the_connector_and_are_not_tried_again() -> None:
    """No tasks, no retry storm."""

    stage = Stage()
    stage.configs += [{"p": "1"}, {"p": "2"}]
    await stage.reaches("RUNNING", "FAILED")
    assert isinstance(stage.connector.status.cause, ConfigError)
    assert stage.applied == []
    assert stage.clock.sleeps == []
    assert stage.connector.status.state is State.FAILED
    await stage.connector.stop()


async def test_a_stop_does_not_wait_for_a_publication_under_way(stage: Stage) -> None:
    stage.hangs = True
    stage.connector.request_reconfiguration()
    await turns(5)
    await asyncio.wait_for(stage.connector.stop(), 1)
    assert stage.statuses.words == ["RUNNING", "UNASSIGNED"]


# ---- restart requests


_R, _F = State.RUNNING, State.FAILED


def _state(connector: State, *tasks: State) -> ConnectorState:
    def work(state: State) -> WorkState:
        return WorkState(state, "w:1", "trace" if state is _F else None, "1.0")

    return ConnectorState("c", work(connector), dict(enumerate(map(work, tasks))), "source")


@pytest.mark.parametrize(
    ("only_failed", "include_tasks", "connector", "tasks"),
    [
        (False, False, True, set[int]()),
        (False, True, True, {0, 1, 2}),
        (True, False, False, set[int]()),
        (True, True, False, {1}),
    ],
)
def test_each_pair_of_flags_selects_exactly_the_expected_instances(
    *, only_failed: bool, include_tasks: bool, connector: bool, tasks: set[int]
) -> None:
    request = RestartRequest("c", only_failed, include_tasks)
    plan = plan_restart(request, _state(_R, _R, _F, State.PAUSED))
    assert plan.connectors == (frozenset({"c"}) if connector else frozenset())
    assert {task.number for task in plan.tasks} == tasks
    assert plan_restart(request, _state(_F)).connectors == {"c"}


def test_waiting_requests_become_the_one_with_the_widest_effect() -> None:
    narrow = RestartRequest("c", only_failed=True, include_tasks=True)
    wide = RestartRequest("c", only_failed=False, include_tasks=True)
    assert merge_restarts(None, narrow) == narrow
    assert merge_restarts(narrow, wide) == wide
    assert merge_restarts(wide, narrow) == wide
