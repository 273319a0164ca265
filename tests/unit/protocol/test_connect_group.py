"""Vectors written out by hand from the layout of kafka-connect-runtime.md 4.1."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.connect_group import (
    CONFIG_MISMATCH,
    CONNECTOR_ITSELF,
    Assignment,
    ConnectorTasks,
    WorkerMetadata,
    connector_tasks,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    is_ours,
    offers,
    version_of,
    work_of,
)
from mm2py.types import TaskId, Work

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


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        (
            "sessioned",
            "mm2py-sessioned mm2py-compatible mm2py-default sessioned compatible default",
        ),
        ("compatible", "mm2py-compatible mm2py-default compatible default"),
        ("eager", "mm2py-default default"),
    ],
)
def test_our_names_are_offered_before_those_of_java_with_the_same_bytes(
    protocol: str, names: str
) -> None:
    allocation = Assignment(2, "m1", URL, 5, (ConnectorTasks("c", (0,)),))
    offered = {
        offer.name: offer.metadata
        for offer in offers(protocol, WorkerMetadata(2, URL, 5, allocation))
    }
    assert " ".join(offered) == names
    for name, data in offered.items():
        assert data == offered[name.removeprefix("mm2py-")]
        read = decode_metadata(data)
        assert read.version == version_of(name)
        assert (read.allocation is None) == (read.version == 0)


def test_an_allocation_has_the_version_of_the_protocol_that_carries_it() -> None:
    allocation = Assignment(2, "m1", URL, 5, (ConnectorTasks("c", (0,)),))
    for offer in offers("sessioned", WorkerMetadata(2, URL, 5, allocation)):
        read = decode_metadata(offer.metadata)
        assert read.allocation is None or read.allocation.version == read.version


def test_an_unknown_protocol_is_not_offered() -> None:
    with pytest.raises(ValueError, match="no Connect protocol"):
        offers("default", WorkerMetadata(2, URL, 5))


@pytest.mark.parametrize(
    ("name", "ours"),
    [("mm2py-sessioned", True), ("sessioned", False), ("mm2py-range", False), ("", False)],
)
def test_only_our_names_say_that_all_members_are_ours(name: str, ours: bool) -> None:
    assert is_ours(name) is ours


def test_a_protocol_of_somebody_else_has_no_version() -> None:
    with pytest.raises(ProtocolError, match="'range', which is not a protocol of Connect"):
        version_of("range")


def test_work_is_written_connector_by_connector_and_read_back() -> None:
    work = Work(frozenset({"b", "a"}), frozenset({TaskId("c", 2), TaskId("a", 10), TaskId("a", 9)}))
    written = connector_tasks(work)
    assert written == (
        ConnectorTasks("a", (-1, 9, 10)),
        ConnectorTasks("b", (-1,)),
        ConnectorTasks("c", (2,)),
    )
    assert work_of(written) == work
    assert CONFIG_MISMATCH == 1
