"""Which pieces of a connector a restart request selects (kcr 8, no. 58)."""

import pytest

from mm2py.runtime.herder.api import ConnectorState, WorkState
from mm2py.runtime.herder.loop import merge_restarts
from mm2py.runtime.herder.work_states import plan_restart, with_restarting
from mm2py.storage.config_state import RestartRequest
from mm2py.types import State, TaskId

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


def test_nothing_failed_means_nothing_restarts_and_the_answer_is_the_plain_state() -> None:
    state = _state(_R, _R)
    plan = plan_restart(RestartRequest("c", only_failed=True, include_tasks=True), state)
    assert not plan
    assert with_restarting(state, plan) == state


def test_the_answer_shows_restarting_and_keeps_the_last_trace() -> None:
    state = _state(_R, _R, _F)
    plan = plan_restart(RestartRequest("c", only_failed=True, include_tasks=True), state)
    shown = with_restarting(state, plan)
    assert plan.tasks == {TaskId("c", 1)}
    assert shown.tasks[1] == WorkState(State.RESTARTING, "w:1", "trace", "1.0")
    assert shown.tasks[0] == state.tasks[0]
    assert shown.connector == state.connector


def test_waiting_requests_become_the_one_with_the_widest_effect() -> None:
    narrow = RestartRequest("c", only_failed=True, include_tasks=True)
    wide = RestartRequest("c", only_failed=False, include_tasks=True)
    assert merge_restarts(None, narrow) == narrow
    assert merge_restarts(narrow, wide) == wide
    assert merge_restarts(wide, narrow) == wide
