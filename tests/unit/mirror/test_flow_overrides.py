"""Bytes of ``mm2py-flows`` (docs/reference/formats.md)."""

import re
from pathlib import Path

import pytest

from mm2py.mirror.flow_overrides import (
    Change,
    ConnectorEntry,
    FlowEntry,
    FlowOverrideEntry,
    HistoryEntry,
    HoldEntry,
    OverrideEntry,
    Presence,
    Revision,
    UnknownFlowRecord,
    decode_flow_record,
    encode_flow_record,
    flows_topic,
)

FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"
AT = Revision(number=7, by="anna", at_ms=1_700_000_000_000)
SOURCE = "MirrorSourceConnector"

GOLDEN: list[tuple[FlowOverrideEntry, bytes, bytes]] = [
    (
        OverrideEntry(connector=SOURCE, property="topics", value="café.*", revision=AT),
        b"override:MirrorSourceConnector:topics",
        b'\x01{"at":1700000000000,"by":"anna","revision":7,"value":"caf\\u00e9.*"}',
    ),
    (
        HoldEntry(topic="orders", partition=3, revision=AT),
        b"hold:orders:3",
        b'\x01{"at":1700000000000,"by":"anna","revision":7}',
    ),
    (
        HistoryEntry(
            action="change",
            target=SOURCE,
            changes=(Change(key=f"override:{SOURCE}:topics", before=".*", after="café.*"),),
            revision=AT,
        ),
        b"history:000000000007",
        b'\x01{"action":"change","at":1700000000000,"by":"anna","changes":[{"after":"caf\\u00e9.*",'
        b'"before":".*","key":"override:MirrorSourceConnector:topics"}],"revision":7,'
        b'"target":"MirrorSourceConnector"}',
    ),
]

OTHERS: list[FlowOverrideEntry] = [
    FlowEntry(state=Presence.DELETED, revision=AT),
    OverrideEntry(connector="a:b%", property="x:y", value=None, revision=AT),
    ConnectorEntry(name="a:b", state=Presence.ADDED, config={"x": "1"}, revision=AT),
    HoldEntry(topic="orders", revision=AT),
    HistoryEntry(action="stop", target="A->B", changes=(), revision=AT),
]


@pytest.mark.parametrize(("entry", "key", "value"), GOLDEN)
def test_records_are_written_and_read_as_documented(
    entry: FlowOverrideEntry, key: bytes, value: bytes
) -> None:
    assert encode_flow_record(entry) == (key, value)
    assert decode_flow_record(key, value) == entry


def test_the_golden_vectors_of_the_documentation_are_these() -> None:
    text = FORMATS.read_text(encoding="utf-8").partition("## Changes of a flow")[2]
    hexes = re.findall(r"^    ([0-9a-f ]+)$", text, re.MULTILINE)
    joined = b"".join(bytes.fromhex(found) for found in hexes)
    assert joined == b"".join(key + value for _, key, value in GOLDEN)


@pytest.mark.parametrize("entry", OTHERS)
def test_every_kind_of_entry_is_read_back(entry: FlowOverrideEntry) -> None:
    assert decode_flow_record(*encode_flow_record(entry)) == entry


def test_members_of_later_programs_are_ignored() -> None:
    entry, key, value = GOLDEN[0]
    assert decode_flow_record(key, value[:-1] + b',"more":{"x":[1]}}') == entry


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"flow", b"", "empty"),
        (b"flow", b"\x02{}", "version 2"),
        (b"flow", b"\x01[]", "not a JSON object"),
        (b"flow", b"\x01{", "not JSON"),
        (b"flow", b'\x01{"at":1,"by":"a","revision":1,"state":"moved"}', "moved"),
        (
            b"flow",
            b'\x01{"at":true,"by":"a","revision":1,"state":"added"}',
            "at is not a 64-bit number",
        ),
        (b"override:c", b'\x01{"at":1,"by":"a","revision":1}', "names no property"),
        (b"override:c:p", b'\x01{"at":1,"by":"a","revision":1,"value":1}', "value is not a text"),
        (b"hold:t:x", b'\x01{"at":1,"by":"a","revision":1}', "no topic or partition"),
        (b"history:000000000002", b'\x01{"at":1,"by":"a","revision":1}', "not known"),
        (b"else", b'\x01{"at":1,"by":"a","revision":1}', "not known"),
        (b"\xff", b'\x01{"at":1,"by":"a","revision":1}', "UTF-8"),
        (None, b'\x01{"at":1,"by":"a","revision":1}', "not known"),
    ],
)
def test_what_cannot_be_read_is_told_apart(key: bytes | None, value: bytes, reason: str) -> None:
    found = decode_flow_record(key, value)
    assert isinstance(found, UnknownFlowRecord)
    assert reason in found.reason


def test_no_mirror_replicates_the_topic() -> None:
    assert flows_topic("A") == "mm2py-flows.A.internal"
