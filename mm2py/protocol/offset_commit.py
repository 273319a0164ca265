"""OffsetCommit for a group without members, written by hand: a mirror of many groups sends one for each commit.

Flow: offsets by topic -> bytes of versions 2 to 9 -> broker -> error code per partition. v10 names topics by ids that
we do not send. The schema library took a third of the CPU of following 100 commits per second.
"""

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final

from mm2py.protocol.call import Call
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.outcomes import PartitionOutcome
from mm2py.protocol.schema import by_topic, required
from mm2py.protocol.wire import (
    INT16,
    INT32,
    compact_string,
    read_compact_string,
    read_string,
    read_unsigned,
    request_header,
    skip_tags,
    string,
    truncated,
    unsigned,
)

KEY: Final = 8
NAME: Final = "OffsetCommit"
OLDEST, NEWEST = 2, 9
FLEXIBLE: Final = 8
WITH_INSTANCE: Final = 7
WITH_EPOCH: Final = 6
LAST_WITH_RETENTION: Final = 4
WITH_THROTTLE: Final = 3

_NO_MEMBER: Final = INT32.pack(-1)
_BROKERS_RETENTION: Final = b"\xff" * 8
_PARTITION: Final = Struct(">iq")
_OUTCOME: Final = Struct(">ih")

_ByTopic = Sequence[tuple[str, Sequence[OffsetToCommit]]]


def offset_commit(
    group_id: str, offsets: Sequence[OffsetToCommit]
) -> Call[tuple[PartitionOutcome, ...]]:
    """Commit offsets of a group; the broker refuses them (UNKNOWN_MEMBER_ID) while it has members."""
    required(group_id, "group")
    topics = by_topic((required(offset.topic, "topic"), offset) for offset in offsets)

    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        flexible = version >= FLEXIBLE
        out = request_header(KEY, version, correlation_id, client_id, flexible=flexible)
        text = compact_string if flexible else string
        out += text(group_id) + _NO_MEMBER + text("")
        if version >= WITH_INSTANCE:
            out += text(None)
        if version <= LAST_WITH_RETENTION:
            out += _BROKERS_RETENTION
        _append_topics(out, topics, version, text)
        INT32.pack_into(out, 0, len(out) - INT32.size)
        return bytes(out)

    return Call(KEY, NAME, OLDEST, NEWEST, encode, _decode)


def _append_topics(
    out: bytearray, topics: _ByTopic, version: int, text: Callable[[str | None], bytes]
) -> None:
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    out += _count(len(topics), flexible=flexible)
    for topic, parts in topics:
        out += text(topic) + _count(len(parts), flexible=flexible)
        for part in parts:
            out += _PARTITION.pack(part.partition, part.offset)
            if version >= WITH_EPOCH:
                out += INT32.pack(part.leader_epoch)
            out += text(part.metadata) + end
        out += end
    out += end


def _count(number: int, *, flexible: bool) -> bytes:
    return unsigned(number + 1) if flexible else INT32.pack(number)


def _decode(version: int, body: memoryview) -> tuple[PartitionOutcome, ...]:
    flexible = version >= FLEXIBLE
    found: list[PartitionOutcome] = []
    try:
        at = skip_tags(body, 0) if flexible else 0
        at += INT32.size if version >= WITH_THROTTLE else 0
        topics, at = _read_count(body, at, flexible=flexible)
        for _ in range(topics):
            topic, at = read_compact_string(body, at) if flexible else read_string(body, at)
            parts, at = _read_count(body, at, flexible=flexible)
            for _ in range(parts):
                partition, code = _OUTCOME.unpack_from(body, at)
                at += INT32.size + INT16.size
                at = skip_tags(body, at) if flexible else at
                found.append(PartitionOutcome(topic or "", partition, code))
            at = skip_tags(body, at) if flexible else at
    except (error, IndexError, ValueError) as failure:
        raise truncated(NAME, version, failure) from failure
    return tuple(found)


def _read_count(body: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, at = read_unsigned(body, at)
        return count - 1, at
    return INT32.unpack_from(body, at)[0], at + INT32.size
