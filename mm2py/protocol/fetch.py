"""Fetch, hand-written for v4 to v18: record sets come out as views of the receive buffer.

Flow: ``FetchPartition`` -> ``encode_fetch`` -> broker -> ``decode_fetch`` ->
``FetchedPartition.records`` (a raw slice of the log, for ``batch_stage.classify``). Session state
and positions live in the client.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.protocol.wire import (
    INT32,
    array_size,
    known_text,
    read_compact_string,
    read_string,
    read_tags,
    read_unsigned,
    request_header,
    skip_tags,
    truncated,
)

FETCH_KEY: Final = 1
FETCH_VERSIONS: Final = (4, 18)
"""v13 and later name topics by id (KIP-516); v12 is the last by name."""

# KIP-482: compact lengths and tagged fields.
_FLEXIBLE: Final = 12
_BY_ID: Final = 13
_NO_REPLICA_ID: Final = 15
_LIMITS: Final = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = Struct(">ii")
_ASK_V4: Final = Struct(">iqi")
_ASK_V5: Final = Struct(">iqqi")
_ASK_V9: Final = Struct(">iiqqi")
_ASK_V12: Final = Struct(">iiqiqix")  # the pad byte is an empty section of tagged fields
_FOUND_V4: Final = Struct(">ihqq")
_FOUND_V5: Final = Struct(">ihqqq")
_TOP_V7: Final = Struct(">ihi")
_CODE_SESSION: Final = Struct(">hi")
_ABORTED: Final = Struct(">qq")
_EPOCH_END: Final = Struct(">iq")
_LEADER: Final = Struct(">ii")


@dataclass(slots=True)
class FetchPartition:
    """The position to fetch from in one partition; epochs are -1 where unknown.

    ``last_fetched_epoch`` is the leader epoch of the last batch read: with it the broker returns
    the point of divergence after a truncation (v12+, KIP-595).
    """

    topic: str
    topic_id: bytes
    partition: int
    position: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 1_048_576


@dataclass(slots=True)
class ForgottenTopic:
    """Partitions to drop from a fetch session (KIP-227)."""

    topic: str
    topic_id: bytes
    partitions: Sequence[int]


@dataclass(slots=True)
class FetchedPartition:
    """Response for one partition; ``topic`` is empty from v13 on, ``topic_id`` zero before.

    ``records`` is a view of the receive buffer. ``diverging`` is (epoch, end offset),
    ``current_leader`` (node, epoch), ``aborted`` (producer id, first offset) under read_committed.
    """

    topic: str
    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    preferred_read_replica: int
    records: memoryview | None
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class FetchResponse:
    """Answer to one Fetch request."""

    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def encode_fetch(  # noqa: PLR0913 - one keyword per field of the message
    version: int,
    correlation_id: int,
    client_id: str,
    *,
    partitions: Sequence[FetchPartition],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[ForgottenTopic] = (),
    rack_id: str = "",
) -> bytes:
    """Return the framed request; session (0, -1) asks for no session (KIP-227)."""
    flexible = version >= _FLEXIBLE
    out = request_header(FETCH_KEY, version, correlation_id, client_id, flexible=flexible)
    # Replica id -1 is a consumer; from v15 on it is a tagged field for replicas (KIP-903).
    if version < _NO_REPLICA_ID:
        out += b"\xff\xff\xff\xff"
    out += _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation_level)
    # KIP-227: fetch sessions.
    if version >= 7:
        out += _SESSION.pack(session_id, session_epoch)
    _add_topics(version, out, partitions)
    if version >= 7:
        out += array_size(len(forgotten), flexible=flexible)
        if forgotten:
            _add_forgotten(version, out, forgotten)
    # KIP-392: the broker chooses a replica by rack.
    if version >= 11:
        out += known_text(rack_id, flexible=flexible)
    if flexible:
        out.append(0)
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _add_topics(version: int, out: bytearray, partitions: Sequence[FetchPartition]) -> None:
    topics: dict[str | bytes, list[FetchPartition]] = {}
    for part in partitions:
        # The protocol groups partitions by topic: one entry for each.
        topics.setdefault(part.topic_id if version >= _BY_ID else part.topic, []).append(part)
    flexible = version >= _FLEXIBLE
    out += array_size(len(topics), flexible=flexible)
    for name, parts in topics.items():
        out += name if isinstance(name, bytes) else known_text(name, flexible=flexible)
        out += array_size(len(parts), flexible=flexible)
        for part in parts:
            out += _ask(version, part)
        if flexible:
            out.append(0)


def _ask(version: int, part: FetchPartition) -> bytes:
    if version >= _FLEXIBLE:
        return _ASK_V12.pack(
            part.partition,
            part.current_leader_epoch,
            part.position,
            part.last_fetched_epoch,
            part.log_start_offset,
            part.max_bytes,
        )
    start, most = part.log_start_offset, part.max_bytes
    # KIP-320: the leader epoch that the client knows.
    if version >= 9:
        epoch = part.current_leader_epoch
        return _ASK_V9.pack(part.partition, epoch, part.position, start, most)
    # KIP-107: a follower names its log start; that of a consumer is -1.
    if version >= 5:
        return _ASK_V5.pack(part.partition, part.position, start, most)
    return _ASK_V4.pack(part.partition, part.position, most)


def _add_forgotten(version: int, out: bytearray, forgotten: Sequence[ForgottenTopic]) -> None:
    flexible = version >= _FLEXIBLE
    for topic in forgotten:
        by_id = version >= _BY_ID
        out += topic.topic_id if by_id else known_text(topic.topic, flexible=flexible)
        out += array_size(len(topic.partitions), flexible=flexible)
        for partition in topic.partitions:
            out += INT32.pack(partition)
        if flexible:
            out.append(0)


def decode_fetch(version: int, body: memoryview) -> FetchResponse:
    """Read an answer, ``body`` being the bytes after the correlation id.

    Raises:
        ProtocolError: the bytes are not an answer of this version.
    """
    try:
        return _flexible(version, body) if version >= _FLEXIBLE else _classic(version, body)
    except (struct.error, IndexError, ValueError) as error:
        raise truncated("Fetch", version, error) from error


def _flexible(version: int, body: memoryview) -> FetchResponse:
    position = skip_tags(body, 0)
    throttle_ms, error_code, session_id = _TOP_V7.unpack_from(body, position)
    answer = FetchResponse(throttle_ms, error_code, session_id, [])
    topics, position = read_unsigned(body, position + _TOP_V7.size)
    for _ in range(topics - 1):
        name, topic_id = "", NO_TOPIC_ID
        # KIP-516: the name is not sent any more.
        if version >= _BY_ID:
            topic_id = bytes(body[position : position + 16])
            position += 16
        else:
            text, position = read_compact_string(body, position)
            name = text or ""
        partitions, position = read_unsigned(body, position)
        for _ in range(partitions - 1):
            position = _flexible_partition(body, position, (name, topic_id), answer.partitions)
        position = skip_tags(body, position) if body[position] else position + 1
    if body[position]:
        skip_tags(body, position)
    return answer


def _flexible_partition(
    body: memoryview, position: int, topic: tuple[str, bytes], found: list[FetchedPartition]
) -> int:
    index, code, high, stable, start = _FOUND_V5.unpack_from(body, position)
    position += _FOUND_V5.size
    aborted: list[tuple[int, int]] = []
    # Null or empty in nearly every partition.
    if body[position] < 2:
        position += 1
    else:
        position = _add_aborted(body, position, aborted)
    preferred = INT32.unpack_from(body, position)[0]
    size, position = read_unsigned(body, position + 4)
    records, position = _records(body, position, size - 1)
    name, topic_id = topic
    part = FetchedPartition(
        name, topic_id, index, code, high, stable, start, aborted, preferred, records
    )
    found.append(part)
    # No tags in nearly every partition: the dict is only made where there are some.
    if body[position] == 0:
        return position + 1
    tags, position = read_tags(body, position)
    # DivergingEpoch (v12, KIP-595).
    if 0 in tags:
        epoch, end = _EPOCH_END.unpack_from(tags[0])
        # The default of the tag is (-1, -1): no divergence.
        part.diverging = None if end < 0 else (epoch, end)
    # CurrentLeader (v12), with FENCED_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER.
    if 1 in tags:
        part.current_leader = _LEADER.unpack_from(tags[1])
    return position


def _add_aborted(body: memoryview, position: int, aborted: list[tuple[int, int]]) -> int:
    count, position = read_unsigned(body, position)
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(body, position))
        position = skip_tags(body, position + _ABORTED.size)
    return position


def _records(body: memoryview, position: int, size: int) -> tuple[memoryview | None, int]:
    # A compact length of 0 is null.
    if size < 0:
        return None, position
    end = position + size
    # A memoryview slice would just be shorter, and the record set seem cut at the limit.
    if end > len(body):
        raise IndexError("a record set runs over the end of its message")
    return body[position:end], end


def _classic(version: int, body: memoryview) -> FetchResponse:
    position = 4
    answer = FetchResponse(INT32.unpack_from(body, 0)[0], 0, 0, [])
    # KIP-227: an error of the session itself, and its id.
    if version >= 7:
        answer.error_code, answer.session_id = _CODE_SESSION.unpack_from(body, 4)
        position = _TOP_V7.size
    topics = INT32.unpack_from(body, position)[0]
    position += 4
    for _ in range(topics):
        name, position = read_string(body, position)
        partitions = INT32.unpack_from(body, position)[0]
        position += 4
        for _ in range(partitions):
            position = _classic_partition(version, body, position, name or "", answer.partitions)
    return answer


def _classic_partition(
    version: int, body: memoryview, position: int, topic: str, found: list[FetchedPartition]
) -> int:
    # KIP-107: v5 has the log start offset.
    layout = _FOUND_V5 if version >= 5 else _FOUND_V4
    index, code, high, stable, *rest = layout.unpack_from(body, position)
    start = rest[0] if rest else -1
    position += layout.size
    count = INT32.unpack_from(body, position)[0]
    position += 4
    aborted: list[tuple[int, int]] = []
    # -1 is null (read_uncommitted): no turn of the loop.
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(body, position))
        position += _ABORTED.size
    preferred = -1
    # KIP-392: the replica to read from instead.
    if version >= 11:
        preferred = INT32.unpack_from(body, position)[0]
        position += 4
    size = INT32.unpack_from(body, position)[0]
    records, position = _records(body, position + 4, size)
    found.append(
        FetchedPartition(
            topic, NO_TOPIC_ID, index, code, high, stable, start, aborted, preferred, records
        )
    )
    return position
