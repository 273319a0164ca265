"""Start offsets of share groups (KIP-932), encoded by hand because the schema library lacks these
requests.

Flow: groups -> DescribeShareGroupOffsets v0, v1 -> ``ShareOffsets``; offsets ->
AlterShareGroupOffsets v0 -> error code per partition. v1 of the former has the lag (KIP-1226). The
broker refuses to alter a group that has members.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Final, TypeVar

from mm2py.protocol.call import Call
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.schema import by_topic, required
from mm2py.protocol.topics import PartitionOutcome
from mm2py.protocol.wire import (
    INT16,
    INT32,
    compact_string,
    read_compact_string,
    read_unsigned,
    request_header,
    skip_tags,
    truncated,
    unsigned,
)

DESCRIBE_KEY: Final = 90
ALTER_KEY: Final = 91
_WITH_LAG: Final = 1

# Null in place of a list of topics.
_ALL_TOPICS: Final = b"\0"
_NO_TAGS: Final = b"\0"
_TOPIC_ID_BYTES: Final = 16
_START: Final = Struct(">iq")
_DESCRIBED: Final = Struct(">iqi")  # partition, start offset, leader epoch
_LAG: Final = Struct(">q")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """Start offset (SPSO) of a share group in a partition.

    ``start`` is -1 before the first acknowledgement. ``lag`` is the number of records that are not
    acknowledged (those acknowledged after ``start`` do not count); -1 where it is unknown, as with
    brokers before 4.2.
    """

    topic: str
    partition: int
    start: int
    lag: int
    error_code: int


@dataclass(frozen=True, slots=True)
class ShareOffsets:
    """Start offsets of one share group; a group that does not exist has none, and no error."""

    error_code: int
    offsets: tuple[ShareOffset, ...]


def describe_share_offsets(group_ids: Sequence[str]) -> Call[dict[str, ShareOffsets]]:
    """Read all start offsets of several share groups of one coordinator."""
    names = [required(group, "group") for group in group_ids]
    groups = [compact_string(it) + _ALL_TOPICS + _NO_TAGS for it in names]
    body = b"".join((_array(names), *groups, _NO_TAGS))
    name = "DescribeShareGroupOffsets"
    return _call(DESCRIBE_KEY, name, _WITH_LAG, body, _read_described)


def alter_share_offsets(
    group_id: str, offsets: Sequence[OffsetToCommit]
) -> Call[tuple[PartitionOutcome, ...]]:
    """Set start offsets of a share group; an error of the group is returned for each partition."""
    required(group_id, "group")
    topics = by_topic((required(offset.topic, "topic"), offset) for offset in offsets)
    body = bytearray(compact_string(group_id) + _array(topics))
    for topic, parts in topics:
        body += compact_string(topic) + _array(parts)
        for part in parts:
            body += _START.pack(part.partition, part.offset) + _NO_TAGS
        body += _NO_TAGS
    body += _NO_TAGS

    def read(_version: int, answer: memoryview, at: int) -> tuple[PartitionOutcome, ...]:
        return _read_altered(answer, at, offsets)

    return _call(ALTER_KEY, "AlterShareGroupOffsets", 0, bytes(body), read)


def _call(
    key: int, name: str, newest: int, body: bytes, read: Callable[[int, memoryview, int], R]
) -> Call[R]:
    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        out = request_header(key, version, correlation_id, client_id, flexible=True) + body
        INT32.pack_into(out, 0, len(out) - INT32.size)
        return bytes(out)

    def decode(version: int, answer: memoryview) -> R:
        try:
            throttle_end = skip_tags(answer, 0) + INT32.size
            return read(version, answer, throttle_end)
        except (error, IndexError, ValueError) as failure:
            raise truncated(name, version, failure) from failure

    return Call(key, name, 0, newest, encode, decode)


def _array(items: Sequence[object]) -> bytes:
    return unsigned(len(items) + 1)


def _read_described(version: int, body: memoryview, at: int) -> dict[str, ShareOffsets]:
    by_group: dict[str, ShareOffsets] = {}
    groups, at = read_unsigned(body, at)
    for _ in range(groups - 1):
        group, at = read_compact_string(body, at)
        offsets: list[ShareOffset] = []
        topics, at = read_unsigned(body, at)
        for _ in range(topics - 1):
            at = _read_topic(version, body, at, offsets)
        code, at = _read_error(body, at)
        by_group[group or ""] = ShareOffsets(code, tuple(offsets))
    return by_group


def _read_topic(version: int, body: memoryview, at: int, offsets: list[ShareOffset]) -> int:
    topic, at = read_compact_string(body, at)
    # The topic's id, which is skipped, stands before its partitions.
    parts, at = read_unsigned(body, at + _TOPIC_ID_BYTES)
    for _ in range(parts - 1):
        partition, start, _epoch = _DESCRIBED.unpack_from(body, at)
        at += _DESCRIBED.size
        lag = -1
        # KIP-1226.
        if version >= _WITH_LAG:
            (lag,) = _LAG.unpack_from(body, at)
            at += _LAG.size
        code, at = _read_error(body, at)
        offsets.append(ShareOffset(topic or "", partition, start, lag, code))
    return skip_tags(body, at)


def _read_altered(
    body: memoryview, at: int, asked: Sequence[OffsetToCommit]
) -> tuple[PartitionOutcome, ...]:
    (code,) = INT16.unpack_from(body, at)
    # One error for the whole group, as for a group that has members.
    if code:
        return tuple(PartitionOutcome(it.topic, it.partition, code) for it in asked)
    _, at = read_compact_string(body, at + INT16.size)
    outcomes: list[PartitionOutcome] = []
    topics, at = read_unsigned(body, at)
    for _ in range(topics - 1):
        topic, at = read_compact_string(body, at)
        parts, at = read_unsigned(body, at + _TOPIC_ID_BYTES)
        for _ in range(parts - 1):
            (partition,) = INT32.unpack_from(body, at)
            outcome, at = _read_error(body, at + INT32.size)
            outcomes.append(PartitionOutcome(topic or "", partition, outcome))
        at = skip_tags(body, at)
    return tuple(outcomes)


def _read_error(body: memoryview, at: int) -> tuple[int, int]:
    """Read the error code at the end of a structure; skip its message and tags."""
    (code,) = INT16.unpack_from(body, at)
    _, at = read_compact_string(body, at + INT16.size)
    return code, skip_tags(body, at)
