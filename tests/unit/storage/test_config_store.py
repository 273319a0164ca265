"""The config topic: sequences of records, their fold, their JSON, listeners told once."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import ProtocolError, RequestTimedOutError
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_fold import (
    ConfigEvent,
    ConfigFold,
    ConnectorChanged,
    ConnectorRemoved,
    TargetChanged,
    TasksChanged,
)
from mm2py.storage.config_state import ConfigSnapshot, RestartRequest, SessionKey
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    LoggerLevel,
    TargetPut,
    TaskPut,
    decode_config_record,
    encode_config_record,
)
from mm2py.storage.memory import MemoryTopic, memory_configs
from mm2py.types import TargetState, TaskId
from tests.kit.fakes.stores import Heard, HeldTable

KEY = SessionKey(b"1", "HmacSHA256", 1)
RESTART = RestartRequest("c", only_failed=True, include_tasks=True)


class Bench:
    def __init__(self) -> None:
        self.topic = MemoryTopic("configs")
        self.store: ConfigBackingStore = memory_configs(self.topic)
        self.heard = Heard()

    def written(self) -> Mapping[str, str | None]:
        return dict(self.sequence())

    def sequence(self) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in self.topic.records
        ]


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    bench = Bench()
    await bench.store.start(bench.heard)
    try:
        yield bench
    finally:
        await bench.store.stop()


async def test_a_connector_is_visible_after_read_back_and_told_once(bench: Bench) -> None:
    await bench.store.put_connector("c", {"a": "1"})
    assert bench.store.snapshot().connectors == {"c": {"a": "1"}}
    assert bench.store.snapshot().offset == 1
    assert bench.heard == ["changed c"]
    assert bench.sequence() == [("connector-c", '{"properties":{"a":"1"}}')]


async def test_a_condition_is_evaluated_at_every_change_that_is_read(bench: Bench) -> None:
    waiting = asyncio.ensure_future(
        bench.store.wait_until(lambda: "d" in bench.store.snapshot().connectors, timeout_s=5)
    )
    await bench.store.put_connector("c", {"a": "1"})
    assert not waiting.done()
    await bench.store.put_connector("d", {"a": "1"})
    assert await waiting
    assert not await bench.store.wait_until(lambda: False, timeout_s=0.001)


async def test_an_initial_state_is_written_first_and_not_told(bench: Bench) -> None:
    await bench.store.put_connector("c", {}, TargetState.STOPPED)
    assert bench.store.snapshot().target("c") is TargetState.STOPPED
    assert bench.heard == ["changed c"]
    assert bench.sequence() == [
        ("target-state-c", '{"state":"PAUSED","state.v2":"STOPPED"}'),
        ("connector-c", '{"properties":{}}'),
    ]


async def test_a_removal_is_two_tombstones_and_leaves_the_task_records(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_tasks("c", [{"n": "0"}])
    await bench.store.remove_connector("c")
    assert bench.store.snapshot().connectors == {}
    assert bench.store.snapshot().targets == {}
    assert bench.sequence()[-2:] == [("connector-c", None), ("target-state-c", None)]
    assert bench.written()["task-c-0"] is not None
    assert bench.heard == ["changed c", "tasks c", "removed c"]


async def test_task_configs_are_written_before_their_commit(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_tasks("c", [{"n": "0"}, {"n": "1"}])
    assert bench.store.snapshot().tasks("c") == (TaskId("c", 0), TaskId("c", 1))
    await bench.store.put_tasks("c", [])
    assert bench.store.snapshot().tasks("c") == ()
    assert bench.sequence()[1:] == [
        ("task-c-0", '{"properties":{"n":"0"}}'),
        ("task-c-1", '{"properties":{"n":"1"}}'),
        ("commit-c", '{"tasks":2}'),
        ("commit-c", '{"tasks":0}'),
    ]


async def test_states_keys_restarts_and_levels_reach_every_worker_once(bench: Bench) -> None:
    other, heard = memory_configs(bench.topic), Heard()
    await other.start(heard)
    await bench.store.put_connector("c", {})
    await bench.store.put_target("c", TargetState.PAUSED)
    await bench.store.put_target("c", TargetState.PAUSED)
    await bench.store.put_session_key(KEY)
    await bench.store.put_restart(RESTART)
    await bench.store.put_logger_level("root", "WARN")
    await bench.store.put_fenced("c", 2)
    assert bench.store.snapshot().session_key == KEY
    await other.refresh(1)
    assert heard == bench.heard
    assert other.snapshot() == bench.store.snapshot()
    assert heard == ["changed c", "target c", "restart c True True", "level root WARN"]
    await other.stop()


async def test_what_was_there_before_is_in_the_snapshot_and_not_told(bench: Bench) -> None:
    await bench.store.put_connector("c", {})
    await bench.store.put_restart(RESTART)
    await bench.store.put_logger_level("root", "WARN")
    await bench.store.put_session_key(KEY)
    late, heard = memory_configs(bench.topic), Heard()
    await late.start(heard)
    assert late.snapshot() == bench.store.snapshot()
    assert heard == []
    await late.stop()
    await late.stop()


async def test_a_topic_in_memory_does_not_grow_without_end(bench: Bench) -> None:
    for number in range(5_000):
        await bench.store.put_connector("c", {"n": str(number)})
    assert len(bench.topic.records) <= 1_002
    assert bench.heard == ["changed c"] * 5_000
    late = memory_configs(bench.topic)
    await late.start(Heard())
    assert late.snapshot() == bench.store.snapshot()
    assert late.snapshot().offset == 5_000


async def test_damaged_records_are_ignored(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.topic.append(b"unknown", b"{}")
    bench.topic.append(None, None)
    bench.topic.append(b"task-c-0", None)
    bench.topic.append(b"connector-c", b'{"properties":{"password":7}}')
    await bench.store.refresh(1)
    await bench.store.refresh(1)
    assert bench.store.snapshot().offset == 4
    assert bench.heard == []
    assert caplog.text.count("config record is ignored topic=configs") == 4


async def test_a_damaged_config_or_state_is_a_problem_until_written_again(bench: Bench) -> None:
    for key in (b"unknown", b"logger-cluster-x", b"connector-c", b"target-state-c"):
        bench.topic.append(key, b'{"state":"ON","properties":{"password":"hunter2","a":7}}')
    bench.topic.append(b"task-c-0", None)
    await bench.store.refresh(1)
    (told,) = bench.store.problems().values()
    assert "connector-c (property 'a' is no text), target-state-c (target state 'ON'" in told
    assert all(text not in told for text in ("unknown ", "logger", "task-", "hunter2"))
    await bench.store.put_connector("c", {}, TargetState.STARTED)
    assert bench.store.problems() == {}


async def test_a_write_that_is_not_confirmed_says_that_its_outcome_is_unknown() -> None:
    table = HeldTable()
    store = ConfigBackingStore(table, write_s=0.01)
    await store.start(Heard())
    with pytest.raises(RequestTimedOutError, match=r"config of connector c .* is unknown"):
        await store.put_connector("c", {})
    assert store.snapshot().connectors == {}
    assert table.posted[0][1].cancelled(), "the write was taken back"


CONFIG = {"name": "c"}
PUT = ConnectorPut("c", CONFIG)


def task(number: int, text: str = "1", connector: str = "c") -> TaskPut:
    return TaskPut(TaskId(connector, number), {"v": text})


def fold(*records: ConfigRecord) -> tuple[ConfigSnapshot, list[ConfigEvent | None]]:
    table = ConfigFold()
    events = [table.take(record) for record in records]
    return table.snapshot(), events


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


def test_what_tasks_are_told_besides_is_in_the_commit_and_counts_as_theirs() -> None:
    commit = Commit("c", 2, ({}, {"late": "t-0"}))
    key, value = encode_config_record(commit)
    assert (key, value) == (b"commit-c", b'{"tasks":2,"beside":[{},{"late":"t-0"}]}')
    assert decode_config_record(key, value) == commit
    snapshot, _ = fold(PUT, task(0), task(1), commit)
    assert snapshot.task_configs[TaskId("c", 1)] == {"v": "1", "late": "t-0"}
    assert snapshot.beside["c"] == commit.beside
    by_java, _ = fold(PUT, task(0), task(1), commit, task(0), task(1), Commit("c", 2))
    assert by_java.task_configs[TaskId("c", 1)] == {"v": "1"}
    for unknown in (b'{"tasks":2,"beside":7}', b'{"tasks":2,"beside":[7]}', b'{"tasks":2}'):
        assert decode_config_record(key, unknown) == Commit("c", 2)
    assert encode_config_record(Commit("c", 2, ({}, {})))[1] == b'{"tasks":2}', "as Java's"


def test_what_a_stop_removed_is_known_until_other_tasks_are_in_force() -> None:
    stopped = (PUT, task(0), Commit("c", 1), Commit("c", 0))
    # Of the second one the cleaner has left the newest commit, of the third one the config that was
    # put after it.
    compacted = (PUT, task(0), Commit("c", 0)), (task(0), Commit("c", 0), PUT)
    for records in (stopped, *compacted, (*stopped, Commit("c", 0))):
        assert fold(*records)[0].former == {"c": ({"v": "1"},)}
    assert fold(*stopped, task(0, "2"), Commit("c", 1))[0].former == {}
    assert fold(*stopped, ConnectorPut("c", None))[0].former == {}


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


STATE = b"target-state-c"
VECTORS: list[tuple[ConfigRecord, bytes, bytes | None]] = [
    (
        ConnectorPut("c", {"name": "c", "x": None, "topics": "größe"}),
        b"connector-c",
        '{"properties":{"name":"c","x":null,"topics":"größe"}}'.encode(),
    ),
    (ConnectorPut("c", None), b"connector-c", None),
    (TaskPut(TaskId("my-c", 3), {"a": '"1"'}), b"task-my-c-3", b'{"properties":{"a":"\\"1\\""}}'),
    (Commit("c", 2), b"commit-c", b'{"tasks":2}'),
    (TargetPut("c", TargetState.STARTED), STATE, b'{"state":"STARTED","state.v2":"STARTED"}'),
    (TargetPut("c", TargetState.STOPPED), STATE, b'{"state":"PAUSED","state.v2":"STOPPED"}'),
    (TargetPut("c", None), STATE, None),
    (
        RestartRequest("c", only_failed=True, include_tasks=False),
        b"restart-connector-c",
        b'{"include-tasks":false,"only-failed":true}',
    ),
    (Fenced("c", 4), b"tasks-fencing-c", b'{"task-count":4}'),
    (
        SessionKey(b"\x00\xff1", "HmacSHA256", 1_700_000_000_000),
        b"session-key",
        b'{"key":"AP8x","algorithm":"HmacSHA256","creation-timestamp":1700000000000}',
    ),
    (
        SessionKey(b"2", "HmacSHA256", 5, b"1"),
        b"session-key",
        b'{"key":"Mg==","algorithm":"HmacSHA256","creation-timestamp":5,"first":"MQ=="}',
    ),
    (LoggerLevel("org.x", "DEBUG"), b"logger-cluster-org.x", b'{"level":"DEBUG"}'),
]


@pytest.mark.parametrize(("record", "key", "value"), VECTORS)
def test_every_record_is_written_and_read_as_java_does(
    record: ConfigRecord, key: bytes, value: bytes | None
) -> None:
    assert encode_config_record(record) == (key, value)
    assert decode_config_record(key, value) == record


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b'{"state":"PAUSED"}', TargetState.PAUSED),
        (b'{"state":"PAUSED","state.v2":7}', TargetState.PAUSED),
        (b'{"state":"PAUSED","state.v2":null,"more":[1]}', TargetState.PAUSED),
        (b'{"state.v2":"STOPPED"}', TargetState.STOPPED),
    ],
)
def test_the_newer_state_field_wins_if_it_is_text(value: bytes, state: TargetState) -> None:
    assert decode_config_record(b"target-state-c", value) == TargetPut("c", state)


def test_missing_and_non_boolean_flags_of_a_restart_are_false() -> None:
    for value in (b"{}", b'{"include-tasks":"true","only-failed":1}'):
        assert decode_config_record(b"restart-connector-c", value) == RestartRequest(
            "c", only_failed=False, include_tasks=False
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b"something", b"{}"),
        (b"session-keys", b"{}"),
        (b"task-c", b'{"properties":{}}'),
        (b"task-c-", b'{"properties":{}}'),
        (b"task-c-x", b'{"properties":{}}'),
        (b"task-c-" + b"9" * 5_000, b'{"properties":{}}'),
        (b"task-c-0", None),
        (b"task-c-0", b'{"properties":[]}'),
        (b"connector-c", b"not json"),
        (b"connector-c", b"\xff"),
        (b"connector-c", b"[" * 100_000),
        (b"connector-c", b"7"),
        (b"connector-c", b'{"properties":{"a":1}}'),
        (b"connector-c", b"{}"),
        (b"commit-c", None),
        (b"commit-c", b'{"tasks":true}'),
        (b"commit-c", b'{"tasks":1.0}'),
        (b"commit-c", b'{"tasks":-1}'),
        (b"commit-c", b'{"tasks":2147483648}'),
        (b"target-state-c", b"{}"),
        (b"target-state-c", b'{"state":"RUNNING"}'),
        (b"restart-connector-c", None),
        (b"tasks-fencing-c", b"{}"),
        (b"session-key", None),
        (b"session-key", b'{"key":"secret!","algorithm":"x","creation-timestamp":1}'),
        (b"session-key", b'{"key":"AP8x","algorithm":"x"}'),
        (b"session-key", b'{"key":"","algorithm":"x","creation-timestamp":1}'),
        (b"logger-cluster-x", b'{"level":null}'),
    ],
)
def test_damaged_records_are_refused_unquoted(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_config_record(key, value)
    assert "secret" not in str(refused.value)


def test_a_lone_surrogate_does_not_stop_a_write() -> None:
    assert (
        encode_config_record(ConnectorPut("c", {"a": "\ud800"}))[1] == b'{"properties":{"a":"?"}}'
    )
