"""Configs hold their rules for generated input: files, providers, folds of the config topic, states of flows, written files."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.config.java_regex import JavaPattern, PatternList
from mm2py.config.java_values import JavaType, parse_list, parse_value
from mm2py.config.old_names import modern_name
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py.mirror.flow_overrides import (
    HistoryEntry,
    Presence,
    Revision,
    UnknownFlowRecord,
    decode_flow_record,
    encode_flow_record,
    flow_record_key,
)
from mm2py.mirror.flow_state import FlowPicture, FlowState
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
from mm2py.types import TargetState, TaskId, TopicPartition
from mm2py_migrate.written_file import WrittenFile

LATIN1 = st.text(st.characters(min_codepoint=1, max_codepoint=0xFF), max_size=30)
TOPIC = st.text(st.sampled_from("abzABZ059._-"), min_size=1, max_size=20)


def stored(text: str) -> str:
    """Write a text as ``Properties.store`` does, every special character escaped."""
    plain = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(plain.get(c, f"\\{c}" if c in " \\:=#!" else c) for c in text)


@given(st.lists(st.tuples(LATIN1.filter(bool), LATIN1), max_size=8))
def test_what_is_stored_is_read_with_the_last_of_equal_keys(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{stored(key)}={stored(value)}\n" for key, value in pairs)
    file = parse(text.encode("iso-8859-1"))
    assert file.values == dict(pairs)
    assert len(file.entries) + len(file.duplicates) == len(pairs)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_one_line(data: bytes) -> None:
    refusal = ""
    try:
        file = parse(data, path="f")
    except ConfigError as error:
        refusal, file = str(error), parse(b"", path="f")
    assert not refusal or (refusal.startswith("f:") and "\n" not in refusal)
    lines = [entry.line for entry in (*file.entries, *file.duplicates)]
    assert len(set(lines)) == len(lines)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_a_pattern_or_refused_and_never_crashes(pattern: str, name: str) -> None:
    refusal = repr(pattern)
    try:
        JavaPattern(pattern).matches(name)
    except ConfigError as error:
        refusal = str(error)
    assert repr(pattern) in refusal


@given(TOPIC, TOPIC)
def test_a_quoted_name_matches_itself_and_nothing_else(name: str, other: str) -> None:
    pattern = JavaPattern(rf"\Q{name}\E")
    assert pattern.matches(name)
    assert pattern.matches(other) == (name == other)


@given(st.lists(TOPIC.filter(lambda t: "." not in t), min_size=1, max_size=5), TOPIC)
def test_a_list_of_names_matches_exactly_these(names: list[str], other: str) -> None:
    patterns = PatternList.of(" , ".join(names))
    assert all(patterns.matches(name) for name in names)
    assert patterns.matches(other) == (other in names)


@given(st.integers(min_value=0, max_value=10**12))
def test_milliseconds_are_rounded_up_to_whole_seconds(interval_ms: int) -> None:
    modern = modern_name("x.interval.ms", str(interval_ms), {"x.interval.seconds"})
    assert modern is not None
    seconds = int(modern.value)
    assert seconds >= 1
    assert (seconds - 1) * 1_000 < max(interval_ms, 1) <= seconds * 1_000


@given(st.lists(TOPIC, min_size=1, max_size=6))
def test_a_joined_list_is_split_into_its_items(items: list[str]) -> None:
    assert parse_list(",".join(items)) == parse_list(" , ".join(items)) == tuple(items)


@given(st.integers(min_value=-(1 << 31), max_value=(1 << 31) - 1))
def test_every_int_of_java_is_read(number: int) -> None:
    assert parse_value(JavaType.INT, f" {number} ") == number


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
def test_the_newest_connectors_and_states_survive_compaction(records: list[ConfigRecord]) -> None:
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


FILE = {"source": {"name": "source", "topics": "a", "x.pw": "canary"}, "beat": {"name": "beat"}}
configs = st.dictionaries(
    st.sampled_from(["source", "beat", "mine:x%"]),
    st.dictionaries(st.sampled_from(["name", "topics", "y:z"]), st.sampled_from(["a", "b", ""])),
)
held = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["t", "u-1"]), st.integers(-1, 2)), max_size=3
)


@st.composite
def drawn_picture(draw: st.DrawFn) -> FlowPicture:
    drawn = draw(configs)
    as_in_file = [
        (name, prop)
        for name in sorted(drawn.keys() & FILE.keys())
        for prop in ("name", "topics", "y:z")
        if drawn[name].get(prop) == FILE[name].get(prop)
    ]
    return FlowPicture(
        presence=draw(st.sampled_from([None, Presence.ADDED, Presence.DELETED])),
        configs=drawn,
        held=draw(held),
        own=frozenset(it for it in as_in_file if draw(st.booleans())),
    )


pictures = drawn_picture()


def state() -> FlowState:
    return FlowState(FILE, lambda key: "pw" in key, by_file=True)


def write(states: list[FlowState], after: FlowPicture, number: int) -> None:
    """Do as the store does, through the bytes."""
    revision = Revision(number=number, by="anna", at_ms=1)
    line = HistoryEntry(
        action="change", target="x", changes=states[0].changes(after), revision=revision
    )
    records = {**states[0].puts(after, revision), flow_record_key(line): line}
    for key, entry in records.items():
        for reader in states:
            if entry is None:
                reader.take(key, None)
                continue
            found = decode_flow_record(*encode_flow_record(entry))
            assert not isinstance(found, UnknownFlowRecord)
            reader.take(key, found)


@given(st.lists(pictures, min_size=1, max_size=6))
def test_the_records_of_a_change_make_it_what_is_in_force_and_its_history_can_be_undone(
    wanted: list[FlowPicture],
) -> None:
    ours, other = state(), state()
    seen = [ours.picture()]
    for number, after in enumerate(wanted, start=1):
        write([ours, other], after, number)
        assert ours.picture() == other.picture() == after
        seen.append(after)
    assert ours.revision == len(wanted)
    for number, picture in enumerate(seen):
        assert ours.at(number) == picture, number
    assert ours.at(len(seen)) is None


@given(pictures, pictures)
def test_a_change_that_changes_nothing_needs_no_record(one: FlowPicture, two: FlowPicture) -> None:
    found = state()
    write([found], one, 1)
    write([found], two, 2)
    assert found.puts(two, Revision(number=3, by="anna", at_ms=2)) == {}
    assert found.changes(two) == ()
    assert b"canary" not in b"".join(encode_flow_record(line)[1] for line in found.history())


# Latin-1, and characters of more than one byte; a lone surrogate is no character of a YAML or properties file.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=8))
def test_any_keys_and_values_are_read_back(entries: dict[str, str]) -> None:
    file = WrittenFile()
    file.comment("a comment\nof two lines")
    for key, value in entries.items():
        file.put(key, value)
    assert parse(file.done().text.encode("latin-1")).values == entries
