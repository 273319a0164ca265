"""Whatever people change of a flow: records give the picture back, and the history leads back to every revision."""

from hypothesis import given
from hypothesis import strategies as st

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
from mm2py.types import TopicPartition

FILE = {"source": {"name": "source", "topics": "a", "x.pw": "canary"}, "beat": {"name": "beat"}}

configs = st.dictionaries(
    st.sampled_from(["source", "beat", "mine:x%"]),
    st.dictionaries(st.sampled_from(["name", "topics", "y:z"]), st.sampled_from(["a", "b", ""])),
)
held = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["t", "u-1"]), st.integers(-1, 2)), max_size=3
)
pictures = st.builds(
    FlowPicture,
    presence=st.sampled_from([None, Presence.ADDED, Presence.DELETED]),
    configs=configs,
    held=held,
)


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
