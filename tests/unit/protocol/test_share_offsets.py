"""Requests for start offsets of share groups: bytes that Kafka 4.3.1's own message classes wrote, and answers of theirs."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.share_offsets import (
    ShareOffset,
    ShareOffsets,
    alter_share_offsets,
    describe_share_offsets,
)
from mm2py.protocol.topics import PartitionOutcome

DESCRIBE = (
    "0000001f005a000{}0000000700026d6500"  # size, key, version, correlation id, client id
    "030862696c6c696e6700000467c3bc000000"  # "billing" and "gü", all topics
)
ALTER = (
    "0000004f005b00000000000700026d65000862696c6c696e67"
    "03076f726465727303000000000000000000001267000000000300000100000000000000"  # 0: 4711, 3: 2 ** 40
    "066f7468657202000000010000000000000000000000"  # 1: 0
)
DESCRIBED = (
    (
        "0000000003030862696c6c696e6702076f7264657273000000000000000100000000000000020300000000"
        "00000000000012670000000500000000000000"
        "03ffffffffffffffff00000000000f0561776179000000000000056e6f6e6501001e036e6f0000"
    ),
    (
        "0000000003030862696c6c696e6702076f7264657273000000000000000100000000000000020300000000"
        "000000000000126700000005000000000000000c00000000000000"
        "03ffffffffffffffff00000000ffffffffffffffff000f0561776179000000000000056e6f6e6501001e036e6f0000"
    ),
)
ALTERED = (
    "000000000300000002076f726465727300000000000000010000000000000002"
    "03000000000000000000000003000305676f6e65000000"
)
NOT_EMPTY = "00000000030044185468652067726f7570206973206e6f7420656d7074792e0100"

OFFSETS = [
    OffsetToCommit("other", 1, 0),
    OffsetToCommit("orders", 0, 4711),
    OffsetToCommit("orders", 3, 1 << 40),
]


def answer(text: str) -> memoryview:
    return memoryview(bytes.fromhex(text))


@pytest.mark.parametrize("version", [0, 1])
def test_start_offsets_of_all_topics_are_asked_for_as_java_does(version: int) -> None:
    call = describe_share_offsets(["billing", "gü"])
    assert (call.api_key, call.min_version, call.max_version) == (90, 0, 1)
    assert call.encode(version, 7, "me").hex() == DESCRIBE.format(version)


@pytest.mark.parametrize(("version", "lag"), [(0, -1), (1, 12)])
def test_start_offsets_are_read_with_their_lag_where_the_broker_has_it(
    version: int, lag: int
) -> None:
    call = describe_share_offsets(["billing", "none"])
    assert call.decode(version, answer(DESCRIBED[version])) == {
        "billing": ShareOffsets(
            0, (ShareOffset("orders", 0, 4711, lag, 0), ShareOffset("orders", 3, -1, -1, 15))
        ),
        "none": ShareOffsets(30, ()),
    }


def test_start_offsets_are_set_as_java_does() -> None:
    call = alter_share_offsets("billing", OFFSETS)
    assert (call.api_key, call.min_version, call.max_version) == (91, 0, 0)
    assert call.encode(0, 7, "me").hex() == ALTER
    assert call.decode(0, answer(ALTERED)) == (
        PartitionOutcome("orders", 0, 0),
        PartitionOutcome("orders", 3, 3),
    )


def test_an_error_of_the_group_is_that_of_each_partition() -> None:
    assert alter_share_offsets("billing", OFFSETS).decode(0, answer(NOT_EMPTY)) == tuple(
        PartitionOutcome(it.topic, it.partition, 68) for it in OFFSETS
    )


def test_a_group_without_a_name_is_refused() -> None:
    for build in (lambda: describe_share_offsets([""]), lambda: alter_share_offsets("", OFFSETS)):
        with pytest.raises(ValueError, match="group"):
            build()


@pytest.mark.parametrize(("version", "whole"), [(0, DESCRIBED[0]), (1, DESCRIBED[1]), (0, ALTERED)])
def test_answers_that_end_early_are_errors(version: int, whole: str) -> None:
    call = alter_share_offsets("billing", OFFSETS) if whole is ALTERED else None
    for end in range(len(whole) // 2 - 1):
        with pytest.raises(ProtocolError):
            (call or describe_share_offsets(["billing"])).decode(version, answer(whole)[:end])
