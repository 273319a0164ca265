"""Whatever the order of writes, complete or not: tasks are all of one commit, or none are shown."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.storage.config_fold import ConfigFold
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    TargetPut,
    TaskPut,
    decode_config_record,
    encode_config_record,
)
from mm2py.types import TargetState, TaskId

NAMES = st.sampled_from(["c", "c-0", "d"])
NUMBERS = st.integers(0, 3)
RECORDS: st.SearchStrategy[ConfigRecord] = st.one_of(
    st.builds(ConnectorPut, NAMES, st.none() | st.just({"name": "x"})),
    st.builds(
        TaskPut,
        st.builds(TaskId, NAMES, NUMBERS),
        st.sampled_from([{"v": str(number)} for number in range(9)]),
    ),
    st.builds(Commit, NAMES, NUMBERS),
    st.builds(TargetPut, NAMES, st.none() | st.sampled_from(TargetState)),
    st.builds(Fenced, NAMES, NUMBERS),
)


@given(st.lists(RECORDS, max_size=40))
def test_tasks_are_those_of_one_commit_or_none(records: list[ConfigRecord]) -> None:
    table = ConfigFold()
    buffers: dict[str, dict[int, object]] = {}
    expected: dict[str, dict[int, object]] = {}
    exists: set[str] = set()
    for record in records:
        table.take(record)
        match record:
            case ConnectorPut(name, None):
                exists.discard(name)
                buffers.pop(name, None)
                expected.pop(name, None)
            case ConnectorPut(name, _):
                exists.add(name)
            case TaskPut(task, config):
                buffers.setdefault(task.connector, {})[task.number] = config
            case Commit(name, tasks):
                buffer = buffers.pop(name, {})
                whole = name in exists and set(range(tasks)) <= set(buffer)
                expected[name] = {n: buffer[n] for n in range(tasks)} if whole else {}
            case _:
                pass
    snapshot = table.snapshot()
    for name in ("c", "c-0", "d"):
        shown = {task.number: snapshot.task_configs[task] for task in snapshot.tasks(name)}
        assert shown == expected.get(name, {})
        assert (name in snapshot.targets) or name not in exists
    assert set(snapshot.connectors) == exists


@given(st.lists(RECORDS, max_size=40))
def test_the_newest_connectors_and_states_survive_compaction(
    records: list[ConfigRecord],
) -> None:
    newest: dict[bytes, bytes | None] = {}
    full = ConfigFold()
    for record in records:
        key, value = encode_config_record(record)
        newest.pop(key, None)
        newest[key] = value
        full.take(decode_config_record(key, value))
    compacted = ConfigFold()
    for key, value in newest.items():
        compacted.take(decode_config_record(key, value))
    assert compacted.snapshot().connectors == full.snapshot().connectors
    for name in full.snapshot().connectors:
        # A tombstoned state falls back to STARTED either way.
        assert compacted.snapshot().target(name) == full.snapshot().target(name)


@given(st.lists(RECORDS, max_size=20))
def test_every_record_reads_back_as_it_was_written(records: list[ConfigRecord]) -> None:
    assert [decode_config_record(*encode_config_record(record)) for record in records] == records
