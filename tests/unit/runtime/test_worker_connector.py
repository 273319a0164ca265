"""One connector: its states, its target state, and the publication of its tasks (kcr 8, no. 86, 90)."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.runtime.herder.worker_connector import FIRST_RETRY_S, LONGEST_RETRY_S, WorkerConnector
from mm2py.testing.waiting import until
from mm2py.types import State, TargetState
from tests.unit.runtime.runtime_fakes import EagerClock, FakeConnector, Statuses


class Stage:
    """A connector on fakes."""

    def __init__(
        self, target: TargetState = TargetState.STARTED, *, errors: Sequence[Exception] = ()
    ) -> None:
        self.clock = EagerClock()
        self.statuses = Statuses()
        self.made: list[_Stoppable] = []
        self.hangs = False
        self.start_errors = list(errors)
        self.stop_error: Exception | None = None
        self.configs: list[Mapping[str, str]] = [{"p": "0"}]
        self.applied: list[Sequence[Mapping[str, str]]] = []
        self.apply_errors: list[Exception] = []
        self.problems: list[Mapping[str, str]] = []
        self.connector = WorkerConnector(
            self._build,
            {"tasks.max": "2"},
            apply=self._apply,
            on_status=self.statuses,
            clock=self.clock,
            target=target,
        )
        self.connector.start()

    def _build(self, config: Mapping[str, str]) -> FakeConnector:
        made = _Stoppable(self.configs, self.stop_error)
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


class _Stoppable(FakeConnector):
    def __init__(self, configs: Sequence[Mapping[str, str]], error: Exception | None) -> None:
        super().__init__(configs)
        self.error = error

    async def stop(self) -> None:
        await super().stop()
        if self.error is not None:
            raise self.error


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


async def test_pause_stops_the_instance_and_resume_starts_another_and_publishes_again() -> None:
    stage = Stage()
    await until(lambda: len(stage.applied) == 1)
    stage.connector.set_target(TargetState.PAUSED)
    await stage.reaches("RUNNING", "PAUSED")
    assert stage.made[0].stopped == 1
    stage.connector.set_target(TargetState.PAUSED)
    stage.connector.request_reconfiguration()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(stage.applied) == 1, "a paused connector publishes nothing"
    stage.connector.set_target(TargetState.STARTED)
    await until(lambda: len(stage.applied) == 2)
    assert stage.statuses.words == ["RUNNING", "PAUSED", "RUNNING"]
    assert len(stage.made) == 2
    await stage.connector.stop()


async def test_a_failed_connector_ignores_pause_and_takes_stop() -> None:
    """No. 51: a connector that failed to start can be stopped and shows STOPPED."""

    stage = Stage(errors=[FatalError("no")])
    await stage.reaches("FAILED")
    stage.connector.set_target(TargetState.PAUSED)
    stage.connector.set_target(TargetState.STARTED)
    for _ in range(20):
        await asyncio.sleep(0)
    assert stage.statuses.words == ["FAILED"]
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("FAILED", "STOPPED")
    await stage.connector.stop()


async def test_a_failure_after_the_start_keeps_the_instance_until_it_is_stopped() -> None:
    stage = Stage()
    await until(lambda: len(stage.applied) == 1)
    stage.connector.fail(FatalError("loop died"))
    stage.connector.request_reconfiguration()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (stage.made[0].stopped, len(stage.applied)) == (0, 1)
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("RUNNING", "FAILED", "STOPPED")
    assert stage.made[0].stopped == 1
    await stage.connector.stop()


@pytest.mark.parametrize(
    ("target", "last"), [(TargetState.PAUSED, "FAILED"), (TargetState.STOPPED, "STOPPED")]
)
async def test_an_error_in_stop_fails_a_pause_but_not_a_stop(
    target: TargetState, last: str
) -> None:
    stage = Stage()
    stage.stop_error = FatalError("stuck")
    await until(lambda: len(stage.applied) == 1)
    stage.made[0].error = FatalError("stuck")
    stage.connector.set_target(target)
    await stage.reaches("RUNNING", last)
    await stage.connector.stop()


async def test_an_error_in_stop_at_the_end_is_a_failure() -> None:
    stage = Stage()
    stage.stop_error = FatalError("stuck")
    await until(lambda: bool(stage.made))
    await until(lambda: len(stage.applied) == 1)
    await stage.connector.stop()
    await stage.reaches("RUNNING", "FAILED")


async def test_a_retriable_start_is_tried_until_the_target_state_changes() -> None:
    stage = Stage(errors=[ConnectionFailedError("away")] * 3)
    await stage.reaches("RUNNING")
    stage.connector.set_target(TargetState.PAUSED)
    await stage.reaches("RUNNING", "PAUSED")
    stage.start_errors += [ConnectionFailedError("away")] * 100_000
    stage.connector.set_target(TargetState.STARTED)
    await until(lambda: len(stage.made) == 2)
    stage.connector.set_target(TargetState.STOPPED)
    await stage.reaches("RUNNING", "PAUSED", "STOPPED")
    await stage.connector.stop()


async def test_publication_is_tried_again_with_growing_pauses_up_to_a_minute() -> None:
    stage = Stage()
    stage.apply_errors = [ConnectionFailedError("leader away")] * 11
    await until(lambda: len(stage.applied) == 1)
    assert stage.clock.sleeps[:3] == [FIRST_RETRY_S, 0.5, 1.0]
    assert max(stage.clock.sleeps) == LONGEST_RETRY_S
    assert stage.statuses.words == ["RUNNING"]
    await stage.connector.stop()


async def test_task_configs_that_are_not_published_are_a_problem_with_their_cause() -> None:
    stage = Stage()
    stage.apply_errors = [ConnectionFailedError("leader away")]
    await until(lambda: len(stage.applied) == 1)
    first, again = (it["task configs are not published yet"] for it in stage.problems)
    assert (first, "leader away" in again) == ("the connector has just started", True)
    await until(lambda: not stage.connector.problems())
    await stage.connector.stop()


async def test_too_many_tasks_fail_the_connector_and_are_not_tried_again() -> None:
    """No. 54: no tasks, no retry storm."""

    stage = Stage()
    stage.configs += [{"p": "1"}, {"p": "2"}]
    await stage.reaches("RUNNING", "FAILED")
    assert isinstance(stage.connector.status.cause, ConfigError)
    assert stage.applied == []
    assert stage.clock.sleeps == []
    assert stage.connector.status.state is State.FAILED
    await stage.connector.stop()


async def test_a_stop_does_not_wait_for_a_publication_under_way() -> None:
    stage = Stage()
    await until(lambda: len(stage.applied) == 1)
    stage.hangs = True
    stage.connector.request_reconfiguration()
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.wait_for(stage.connector.stop(), 1)
    assert stage.statuses.words == ["RUNNING", "UNASSIGNED"]
