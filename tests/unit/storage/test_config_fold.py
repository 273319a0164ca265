"""The config topic as a table of records and what they add up to (kcr 2.2, 8 no. 65-73)."""

from mm2py.storage.config_fold import (
    ConfigEvent,
    ConfigFold,
    ConnectorChanged,
    ConnectorRemoved,
    TargetChanged,
    TasksChanged,
)
from mm2py.storage.config_state import EMPTY, ConfigSnapshot, RestartRequest, SessionKey
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    LoggerLevel,
    TargetPut,
    TaskPut,
)
from mm2py.types import TargetState, TaskId

CONFIG = {"name": "c"}
PUT = ConnectorPut("c", CONFIG)


def task(number: int, text: str = "1", connector: str = "c") -> TaskPut:
    return TaskPut(TaskId(connector, number), {"v": text})


def fold(*records: ConfigRecord) -> tuple[ConfigSnapshot, list[ConfigEvent | None]]:
    table = ConfigFold()
    events = [table.take(record) for record in records]
    return table.snapshot(), events


def test_an_empty_topic_is_empty() -> None:
    assert ConfigFold().snapshot() == EMPTY


def test_the_offset_is_that_of_the_next_record() -> None:
    table = ConfigFold()
    table.advance(41)
    assert table.snapshot().offset == 42


def test_a_connector_starts_and_is_told_each_time() -> None:
    snapshot, events = fold(PUT, PUT)
    assert snapshot.connectors == {"c": CONFIG}
    assert snapshot.target("c") is TargetState.STARTED
    assert events == [ConnectorChanged("c")] * 2


def test_task_configs_count_only_after_their_commit() -> None:
    before, events = fold(PUT, task(0), task(1))
    assert (before.tasks("c"), before.task_configs) == ((), {})
    assert events[1:] == [None, None]
    after, events = fold(PUT, task(0), task(1), Commit("c", 2))
    assert after.tasks("c") == (TaskId("c", 0), TaskId("c", 1))
    assert after.task_configs == {TaskId("c", n): {"v": "1"} for n in range(2)}
    assert (after.applied, after.generations) == ({"c": CONFIG}, {"c": 0})
    assert events[3] == TasksChanged("c")


def test_extra_tasks_in_the_buffer_are_fine() -> None:
    snapshot, _ = fold(PUT, task(0), task(1), task(7), Commit("c", 2))
    assert set(snapshot.task_configs) == {TaskId("c", 0), TaskId("c", 1)}


def test_missing_task_configs_leave_the_connector_inconsistent_until_a_full_set_comes() -> None:
    broken = (PUT, task(1), Commit("c", 2))
    snapshot, events = fold(*broken)
    assert (snapshot.inconsistent, snapshot.tasks("c")) == (frozenset({"c"}), ())
    assert (snapshot.applied, snapshot.generations) == ({}, {})
    assert snapshot.pending_fencing == {"c"}
    assert events[2] == TasksChanged("c"), "the owner publishes again"
    # The buffer was cleared: the half that is missing is not enough now.
    assert fold(*broken, task(0), Commit("c", 2))[0].tasks("c") == ()
    repaired, _ = fold(*broken, task(0, "2"), task(1, "2"), Commit("c", 2))
    assert repaired.inconsistent == frozenset()
    assert repaired.task_configs[TaskId("c", 1)] == {"v": "2"}


def test_a_partial_write_is_replaced_by_a_complete_one() -> None:
    snapshot, _ = fold(PUT, task(0), task(0, "2"), task(1, "2"), Commit("c", 2))
    assert snapshot.task_configs == {TaskId("c", n): {"v": "2"} for n in range(2)}


def test_an_incomplete_commit_keeps_what_was_applied_but_hides_it() -> None:
    snapshot, _ = fold(PUT, task(0), Commit("c", 1), task(1), Commit("c", 2))
    assert snapshot.task_configs == {TaskId("c", 0): {"v": "1"}}
    assert (snapshot.task_counts, snapshot.tasks("c")) == ({"c": 2}, ())


def test_a_commit_of_no_tasks_clears_them_and_is_a_generation_only_behind_tasks() -> None:
    snapshot, events = fold(PUT, Commit("c", 0))
    assert (snapshot.tasks("c"), snapshot.generations) == ((), {})
    assert (snapshot.applied, events[1]) == ({"c": CONFIG}, TasksChanged("c"))
    snapshot, _ = fold(PUT, task(0), Commit("c", 1), Commit("c", 0), Commit("c", 0))
    assert (snapshot.tasks("c"), snapshot.task_configs) == ((), {})
    assert snapshot.generations == {"c": 2}


def test_a_commit_without_its_connector_drops_the_buffer() -> None:
    snapshot, events = fold(task(0), Commit("c", 1), PUT, Commit("c", 1))
    assert (snapshot.tasks("c"), snapshot.inconsistent) == ((), frozenset({"c"}))
    assert events[1] is None


def test_a_removed_connector_leaves_its_generation_and_fencing() -> None:
    snapshot, events = fold(
        PUT, task(0), Commit("c", 1), Fenced("c", 1), Commit("c", 0), ConnectorPut("c", None)
    )
    assert (snapshot.connectors, snapshot.tasks("c"), snapshot.applied) == ({}, (), {})
    assert (snapshot.generations, snapshot.task_count_records) == ({"c": 1}, {"c": 1})
    assert snapshot.pending_fencing == {"c"}
    assert events[-1] == ConnectorRemoved("c")


def test_fencing_is_pending_from_a_commit_to_its_record() -> None:
    snapshot, _ = fold(PUT, task(0), Commit("c", 1), Fenced("c", 1))
    assert (snapshot.pending_fencing, snapshot.task_count_records) == (frozenset(), {"c": 1})


def test_target_states_are_told_only_if_they_differ_and_the_connector_exists() -> None:
    stopped = TargetPut("c", TargetState.STOPPED)
    snapshot, events = fold(stopped, PUT, stopped, TargetPut("c", TargetState.PAUSED))
    assert snapshot.target("c") is TargetState.PAUSED
    assert events == [None, ConnectorChanged("c"), None, TargetChanged("c")]


def test_a_tombstoned_target_state_falls_back_to_started() -> None:
    gone = TargetPut("c", None)
    snapshot, events = fold(PUT, TargetPut("c", TargetState.PAUSED), gone, gone)
    assert snapshot.targets == {"c": TargetState.STARTED}
    assert events[2:] == [TargetChanged("c"), None]
    snapshot, events = fold(PUT, ConnectorPut("c", None), gone)
    assert (snapshot.targets, events[2]) == ({}, None)


def test_keys_restarts_and_levels_are_handed_on() -> None:
    records = (
        SessionKey(b"1", "HmacSHA256", 1),
        RestartRequest("c", only_failed=True, include_tasks=True),
        LoggerLevel("root", "INFO"),
        SessionKey(b"2", "HmacSHA256", 2),
    )
    snapshot, events = fold(*records)
    assert events == [None, *records[1:3], None], "a key is asked for when it is needed"
    assert snapshot.session_key == records[3]


def test_a_snapshot_does_not_change_afterwards() -> None:
    table = ConfigFold()
    table.take(PUT)
    before = table.snapshot()
    table.take(ConnectorPut("c", None))
    assert before.connectors == {"c": CONFIG}
    assert table.snapshot().connectors == {}
