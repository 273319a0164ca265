"""The transition table of connectors and tasks."""

import itertools

import pytest

from mm2py.errors import FatalError
from mm2py.runtime.tasks.lifecycle import Lifecycle
from mm2py.types import State
from tests.unit.runtime.runtime_fakes import Statuses

ENDS_A_FAILURE = {State.UNASSIGNED, State.DESTROYED, State.RESTARTING}


def test_a_new_entity_is_unassigned() -> None:
    assert Lifecycle("task", Statuses()).status.state is State.UNASSIGNED


def test_a_failed_task_stays_failed_with_its_first_cause() -> None:
    statuses = Statuses()
    life = Lifecycle("task", statuses)
    first = FatalError("first")
    assert life.to(State.RUNNING)
    assert life.to(State.FAILED, first)
    assert not life.to(State.FAILED, FatalError("second"))
    assert not life.to(State.RUNNING)
    assert life.status.cause is first
    assert statuses.words == ["RUNNING", "FAILED"]


@pytest.mark.parametrize("state", list(State))
def test_only_a_restart_or_giving_up_ends_a_failure(state: State) -> None:
    life = Lifecycle("task", Statuses())
    life.to(State.FAILED, FatalError("x"))
    assert life.to(state) is (state in ENDS_A_FAILURE)


@pytest.mark.parametrize("what", ["connector", "task"])
def test_only_a_connector_can_be_stopped(what: str) -> None:
    life = Lifecycle(what, Statuses())
    life.to(State.RUNNING)
    assert life.to(State.STOPPED) is (what == "connector")


def test_a_failed_connector_can_still_be_stopped() -> None:
    life = Lifecycle("connector", Statuses())
    life.to(State.FAILED, FatalError("x"))
    assert life.to(State.STOPPED)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(State, State)))
def test_destroyed_is_the_end_and_nothing_repeats(first: State, second: State) -> None:
    life = Lifecycle("connector", Statuses())
    moved = life.to(first)
    assert moved is (first is not State.UNASSIGNED)
    if first is State.DESTROYED or first is second:
        assert not life.to(second)
