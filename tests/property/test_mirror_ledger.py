"""Ledger records survive writing and reading; no bytes break the reader; no lost offset is left out."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.context import EventKind, LossEvent
from mm2py.mirror.ledger import (
    KnownEvents,
    LedgerRecord,
    UnknownLedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
)
from mm2py.types import TopicPartition

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text()
PARTITION = TopicPartition("t", 0)

EVENTS = st.builds(
    LossEvent,
    kind=st.sampled_from(EventKind),
    partition=st.builds(TopicPartition, TEXT, st.integers(0, 1 << 31)),
    first_offset=INT64,
    last_offset=INT64,
    policy=TEXT,
    cause=TEXT,
    task=TEXT,
)


@given(event=EVENTS, flow=TEXT, time_ms=INT64)
def test_a_record_is_read_as_it_was_written(event: LossEvent, flow: str, time_ms: int) -> None:
    record = LedgerRecord(event=event, flow=flow, time_ms=time_ms)
    key, value = encode_ledger_record(record)
    assert decode_ledger_record(key, value) == record
    assert key.decode() == str(event.partition)


@given(value=st.binary() | st.binary().map(lambda tail: b"\x01" + tail))
def test_other_bytes_are_kept_as_they_are(value: bytes) -> None:
    found = decode_ledger_record(b"k", value)
    assert isinstance(found, UnknownLedgerRecord)
    assert (found.key, found.value) == (b"k", value)


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.booleans()), max_size=12),
)
def test_whatever_is_found_again_each_lost_offset_is_written_exactly_once(
    steps: list[tuple[int, int, bool]],
) -> None:
    """``steps``: records copied, then offsets lost behind them, then whether the process is killed.

    A kill forgets the position unless something was copied (and committed) since.
    """
    known = KnownEvents()
    ledger: list[LossEvent] = []
    lost: set[int] = set()
    committed = position = start = 0
    for copied, gone, killed in steps:
        if position >= start:
            position += copied
            if copied:
                committed = position
        start = max(start, position) + gone
        lost.update(range(position, start))
        event = LossEvent(
            kind=EventKind.RETENTION,
            partition=PARTITION,
            first_offset=position,
            last_offset=start - 1,
            policy="",
            cause="",
            task="",
        )
        ledger += known.take(event)
        position = start
        if killed:
            known = KnownEvents()
            for event in ledger:
                known.note(event)
            position = committed
    offsets = [o for event in ledger for o in range(event.first_offset, event.last_offset + 1)]
    assert sorted(offsets) == sorted(lost)
