"""The ledger's bytes (docs/reference/formats.md) and what counts as known already."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mm2py.api.context import EventKind
from mm2py.mirror.ledger import (
    IncarnationRecord,
    KnownEvents,
    LedgerRecord,
    UnknownLedgerRecord,
    decode_ledger_record,
    encode_incarnation,
    encode_ledger_record,
)
from mm2py.types import TopicPartition
from tests.kit.fakes.mirror_records import ORDERS, an_event

FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"
ORDERS_EU = TopicPartition("orders-eu", 3)
GOLDEN_KEY = b"orders-eu-3"
GOLDEN_VALUE = (
    b'\x01{"kind":"retention","topic":"orders-eu","partition":3,"first":1000,"last":1999,'
    b'"policy":"gap.policy=continue","cause":"deleted before it was copied","time":1700000000000,'
    b'"flow":"A->B","task":"MirrorSourceConnector-0"}'
)
GOLDEN_2_VALUE = (
    b'\x01{"kind":"too-large","topic":"caf\\u00e9","partition":0,"first":7,"last":7,'
    b'"policy":"partition.failure.policy=isolate","cause":"one record needs \\"more\\"",'
    b'"time":1700000000001,"flow":"A->B","task":"MirrorSourceConnector-1"}'
)
GOLDEN_3_VALUE = (
    b'\x01{"kind":"incarnation","topic":"orders-eu","partition":3,"id":"AAECAwQFBgcICQoLDA0ODw",'
    b'"time":1700000000000,"flow":"A->B"}'
)
GOLDEN_3 = IncarnationRecord(
    partition=ORDERS_EU, topic_id=bytes(range(16)), flow="A->B", time_ms=1_700_000_000_000
)


def golden() -> LedgerRecord:
    event = an_event(1000, 1999, ORDERS_EU)
    return LedgerRecord(event=event, flow="A->B", time_ms=1_700_000_000_000)


def golden_2() -> LedgerRecord:
    cause, task = 'one record needs "more"', "MirrorSourceConnector-1"
    event = an_event(7, 7, TopicPartition("café", 0), EventKind.TOO_LARGE, cause=cause, task=task)
    event = replace(event, policy="partition.failure.policy=isolate")
    return LedgerRecord(event=event, flow="A->B", time_ms=1_700_000_000_001)


def test_records_are_written_as_documented() -> None:
    assert encode_ledger_record(golden()) == (GOLDEN_KEY, GOLDEN_VALUE)
    assert encode_incarnation(GOLDEN_3) == (GOLDEN_KEY, GOLDEN_3_VALUE)
    assert encode_ledger_record(golden_2()) == ("café-0".encode(), GOLDEN_2_VALUE)


def test_the_golden_vectors_of_the_documentation_are_these() -> None:
    text = FORMATS.read_text(encoding="utf-8")
    joined = bytes.fromhex("".join(re.findall(r"^    ([0-9a-f ]+)$", text, re.MULTILINE)))
    for vector in (GOLDEN_KEY, GOLDEN_VALUE, "café-0".encode(), GOLDEN_2_VALUE, GOLDEN_3_VALUE):
        assert vector in joined


@pytest.mark.parametrize(
    ("key", "value", "record"),
    [
        (GOLDEN_KEY, GOLDEN_VALUE, golden()),
        ("café-0".encode(), GOLDEN_2_VALUE, golden_2()),
        (GOLDEN_KEY, GOLDEN_3_VALUE, GOLDEN_3),
    ],
)
def test_records_are_read_as_documented(key: bytes, value: bytes, record: object) -> None:
    assert decode_ledger_record(key, value) == record


def test_members_of_later_programs_are_ignored() -> None:
    value = GOLDEN_VALUE[:-1] + b',"more":{"x":[1]}}'
    assert decode_ledger_record(GOLDEN_KEY, value) == golden()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x02anything", "version 2, this program knows 1"),
        (b"", "empty value"),
        (None, "empty value"),
        (b"\x01{", "not JSON behind the version byte"),
        (b"\x01[]", "not a JSON object behind the version byte"),
        (b"\x01{}", "member kind is not a text"),
        (b'\x01{"kind":"eaten"}', "kind 'eaten' is not known"),
        (GOLDEN_VALUE.replace(b"1999", b"true"), "member last is not a 64-bit number"),
        (GOLDEN_VALUE.replace(b"1999", b"9" * 30), "member last is not a 64-bit number"),
        (GOLDEN_3_VALUE.replace(b"AAEC", b"AA"), "member id is not a topic id"),
        (GOLDEN_3_VALUE.replace(b"AAEC", b"\\u00e9"), "member id is not a topic id"),
        (b"\x01" + b"[" * 100_000, "not JSON behind the version byte"),
    ],
)
def test_what_cannot_be_read_is_kept_with_the_reason(value: bytes | None, reason: str) -> None:
    found = decode_ledger_record(GOLDEN_KEY, value)
    assert found == UnknownLedgerRecord(GOLDEN_KEY, value or b"", reason)


def test_only_what_is_not_on_the_target_and_never_arrives_is_a_loss() -> None:
    losses = {kind.value for kind in EventKind if kind.is_loss}
    assert losses == {"retention", "recreated", "skipped", "target-lost"}
    assert {kind.value for kind in EventKind if kind.stops} == {"poisoned", "too-large", "refused"}


def test_offsets_of_a_recreated_topic_are_not_those_of_the_old_one() -> None:
    known = KnownEvents()
    gap = an_event(10, 19)
    assert known.take(gap) == (gap,)
    assert known.take(an_event(30, 29, kind=EventKind.RECREATED)) != ()
    assert known.take(gap) == (gap,)


def test_a_recreation_found_again_after_a_restart_is_not_written_again() -> None:
    known = KnownEvents()
    known.note(an_event(30, 34, kind=EventKind.RECREATED))
    assert known.take(an_event(30, 29, kind=EventKind.RECREATED)) == ()


def test_a_lost_tail_that_the_next_task_finds_without_its_end_is_not_written_again() -> None:
    known, again = KnownEvents(), an_event(30, 29, kind=EventKind.RECREATED)
    assert len(known.take(an_event(30, 34, kind=EventKind.RECREATED))) == 1
    assert known.take(again) == ()
    assert known.take(again) == (), "nor by the one after that"
    known.copied(ORDERS)
    assert known.take(again) == (again,)


@pytest.mark.parametrize(("read_to", "last"), [(30, 29), (30, 34)])
def test_what_was_under_way_at_a_kill_behind_a_recreation_is_named(read_to: int, last: int) -> None:
    known = KnownEvents()
    assert len(known.take(an_event(read_to, last, kind=EventKind.RECREATED))) == 1
    (found,) = known.take(an_event(25, 24, kind=EventKind.RECREATED))
    assert (found.first_offset, found.last_offset) == (25, last)
    assert "ended before it was known" in found.cause
    assert known.take(an_event(25, 24, kind=EventKind.RECREATED)) == ()


@pytest.mark.parametrize("first", [0, 34])
def test_an_end_without_offsets_is_no_event_until_the_new_incarnation_is_copied(first: int) -> None:
    """The stored position may lie behind what was reported; an incarnation that was empty begins at 0."""
    known = KnownEvents()
    assert len(known.take(an_event(30, 34, kind=EventKind.RECREATED))) == 1
    assert known.take(an_event(first, first - 1, kind=EventKind.RECREATED)) == ()
    lost = an_event(first, first + 2, kind=EventKind.RECREATED)
    assert known.take(lost) == (lost,), "what is known to be lost is always an event"


def test_every_truncation_is_an_event() -> None:
    known = KnownEvents()
    event = an_event(30, 39, kind=EventKind.TRUNCATION)
    assert known.take(event) == (event,)
    assert known.take(event) == (event,)
