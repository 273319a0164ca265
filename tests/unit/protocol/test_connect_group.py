"""Vectors written out by hand from the layout of kafka-connect-runtime.md 4.1."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.connect_group import (
    CONNECTOR_ITSELF,
    Assignment,
    ConnectorTasks,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
)

URL = "http://h:1/"
URL_BYTES = b"\x00\x0bhttp://h:1/"
OFFSET_5 = b"\x00" * 7 + b"\x05"

EAGER = (
    b"\x00\x00\x00\x00"  # version 0, error 0
    + b"\x00\x02m1"
    + URL_BYTES
    + OFFSET_5
    + b"\x00\x00\x00\x01\x00\x01c\x00\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x03"
)
INCREMENTAL = (
    b"\x00\x02\x00\x01"  # version 2, error 1
    + b"\x00\x02m1"
    + URL_BYTES
    + OFFSET_5
    + b"\x00\x00\x00\x00"
    + b"\x00\x00\x00\x01\x00\x01c\x00\x00\x00\x01\x00\x00\x00\x00"
    + b"\x00\x00\x01\x2c"
)


def test_eager_assignment_has_these_bytes() -> None:
    work = (ConnectorTasks("c", (CONNECTOR_ITSELF, 3)),)
    assignment = Assignment(0, "m1", URL, 5, work)
    assert encode_assignment(assignment) == EAGER
    assert decode_assignment(EAGER) == assignment


def test_incremental_assignment_has_these_bytes() -> None:
    assignment = Assignment(2, "m1", URL, 5, (), (ConnectorTasks("c", (0,)),), 300, 1)
    assert encode_assignment(assignment) == INCREMENTAL
    assert decode_assignment(INCREMENTAL) == assignment


def test_null_lists_of_java_read_as_empty() -> None:
    data = b"\x00\x01\x00\x00\x00\x00\x00\x00" + OFFSET_5 + b"\xff" * 8 + b"\x00" * 4
    assert decode_assignment(data) == Assignment(1, "", "", 5)


def test_eager_metadata_has_these_bytes() -> None:
    metadata = WorkerMetadata(0, URL, -1)
    data = b"\x00\x00" + URL_BYTES + b"\xff" * 8
    assert encode_metadata(metadata) == data
    assert decode_metadata(data) == metadata


def test_sessioned_metadata_without_work_ends_in_a_null() -> None:
    metadata = WorkerMetadata(2, URL, 5)
    data = b"\x00\x02" + URL_BYTES + OFFSET_5 + b"\xff\xff\xff\xff"
    assert encode_metadata(metadata) == data
    assert decode_metadata(data) == metadata


def test_sessioned_metadata_carries_the_present_assignment() -> None:
    allocation = decode_assignment(INCREMENTAL)
    metadata = WorkerMetadata(1, URL, 5, allocation)
    size = len(INCREMENTAL).to_bytes(4, "big")
    data = b"\x00\x01" + URL_BYTES + OFFSET_5 + size + INCREMENTAL
    assert encode_metadata(metadata) == data
    assert decode_metadata(data) == metadata


@pytest.mark.parametrize("size", range(len(INCREMENTAL)))
def test_a_cut_assignment_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="only Connect workers use this group"):
        decode_assignment(INCREMENTAL[:size])


def test_bytes_of_another_protocol_are_refused() -> None:
    with pytest.raises(ProtocolError, match="worker metadata"):
        decode_metadata(b"\x00\x03\x00\x02\xff\xfe")
