"""Produce, hand-written for v3 to v12, which name topics by name: batches are sent from the memory
they are in.

Flow: batches -> ``encode_produce`` -> an iovec whose batch buffers are not copied; response ->
``decode_produce`` -> one ``ProducedPartition`` per batch, in the broker's order (match by
partition).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Final, TypeAlias

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
    unsigned,
)

PRODUCE_KEY: Final = 0

Buffer: TypeAlias = bytes | bytearray | memoryview

# KIP-482: compact lengths and tagged fields.
_FLEXIBLE: Final = 9
_ACKS_TIMEOUT: Final = Struct(">hi")
_PARTITION_SIZE: Final = Struct(">ii")
_RESULT: Final = Struct(">ihqq")  # partition, error, base offset, log append time (v2+)
_RESULT_WITH_START: Final = Struct(">ihqqq")  # + log start offset (v5+)
_LEADER: Final = Struct(">ii")
_PLAIN_TAIL: Final = b"\x01\x00\x00"  # no record errors, no message, no tags
_PLAIN_TAILS: Final = {_PLAIN_TAIL}


@dataclass(frozen=True, slots=True)
class RecordError:
    """Why the broker refused a batch: which record (v8+)."""

    index: int
    message: str


@dataclass(slots=True)
class ProducedPartition:
    """Outcome of one batch.

    ``log_append_time`` other than -1 on a CREATE_TIME topic marks a duplicate that the broker
    recognised by its sequences: it then answers with the offset of the batch that is in the log.
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    record_errors: tuple[RecordError, ...] = ()
    error_message: str = ""
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class ProduceResponse:
    """Answer to one Produce request."""

    throttle_ms: int
    partitions: list[ProducedPartition]


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str,
    batches: Mapping[tuple[str, int], bytearray | memoryview],
    *,
    transactional_id: str | None = None,
    timeout_ms: int = 30_000,
) -> list[Buffer]:
    """Return the framed request as an iovec; ``batches`` has one signed batch by topic and
    partition.

    All in-sync replicas acknowledge it (``acks`` of -1).
    """
    flexible = version >= _FLEXIBLE
    topics: dict[str, dict[int, bytearray | memoryview]] = {}
    for (topic, partition), data in batches.items():
        # The protocol groups partitions by topic; the
        # order of batches within a request has no meaning.
        topics.setdefault(topic, {})[partition] = data
    head = request_header(PRODUCE_KEY, version, correlation_id, client_id, flexible=flexible)
    head += known_text(transactional_id, flexible=flexible)
    # acks=all: what only the leader has appended may be lost with it.
    head += _ACKS_TIMEOUT.pack(-1, timeout_ms)
    head += array_size(len(topics), flexible=flexible)
    first, size = head, 0
    parts: list[Buffer] = []
    for name, of_topic in topics.items():
        head += known_text(name, flexible=flexible)
        head += array_size(len(of_topic), flexible=flexible)
        for partition, data in of_topic.items():
            length = len(data)
            if flexible:
                head += INT32.pack(partition) + unsigned(length + 1)
            else:
                head += _PARTITION_SIZE.pack(partition, length)
            parts.append(head)
            # Not copied: the receive buffer of the Fetch itself goes into ``sendmsg``.
            parts.append(data)
            size += len(head) + length
            # The tags of the partition that ends with the batch before.
            head = bytearray(b"\0") if flexible else bytearray()
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    if head:
        parts.append(head)
        size += len(head)
    # ``first`` is the first part: its size field counts all parts after it.
    INT32.pack_into(first, 0, size - 4)
    return parts


def acknowledgements(version: int, body: memoryview) -> list[tuple[tuple[str, int], int]] | None:
    """Return ((topic, partition), base offset) of each batch of an answer in which nothing was
    refused.

    None when there is more to read: an error, a message, throttling, or a version that is not
    flexible; ``decode_produce`` reads those. One unpack per topic instead of one object per
    partition.
    """
    # ``body[0]`` is the header's tag section, empty in every answer of today.
    if version < _FLEXIBLE or len(body) < 2 or body[0]:
        return None
    counts: list[tuple[tuple[str, int], int]] = []
    try:
        topics, position = read_unsigned(body, 1)
        for _ in range(topics - 1):
            name, position = read_compact_string(body, position)
            count, position = read_unsigned(body, position)
            if count > len(
                body
            ):  # more results than the body can hold: do not build a layout for them
                return None
            # The same few counts come again and again: their layouts are cached.
            layout = _plain_results(count - 1)
            results = layout.unpack_from(body, position)
            position += layout.size
            # Every sixth value: 1 the error codes, 5 the
            # ends without record errors, message and tags.
            if any(results[1::6]) or set(results[5::6]) != _PLAIN_TAILS or body[position]:
                return None
            position += 1
            topic = name or ""
            for partition, base in zip(results[0::6], results[2::6], strict=True):
                counts.append(((topic, partition), base))
        throttle = INT32.unpack_from(body, position)[0]
    except (struct.error, IndexError, ValueError):
        return None  # not ordinary: ``decode_produce`` reads it, or raises
    # Behind the throttle time only an empty section of
    # tags: node endpoints (KIP-951) come with errors.
    return None if throttle or len(body) != position + 5 or body[position + 4] else counts


@cache
def _plain_results(count: int) -> Struct:
    return Struct(">" + "ihqqq3s" * count)


def decode_produce(version: int, body: memoryview) -> ProduceResponse:
    """Read an answer, ``body`` being the bytes after the correlation id.

    Raises:
        ProtocolError: the bytes are not an answer of this version.
    """
    try:
        return _flexible(body) if version >= _FLEXIBLE else _classic(version, body)
    except (struct.error, IndexError, ValueError) as error:
        raise truncated("Produce", version, error) from error


def _flexible(body: memoryview) -> ProduceResponse:
    unpack, fixed = _RESULT_WITH_START.unpack_from, _RESULT_WITH_START.size
    topics, position = read_unsigned(body, skip_tags(body, 0))
    answered: list[ProducedPartition] = []
    for _ in range(topics - 1):
        name, position = read_compact_string(body, position)
        partitions, position = read_unsigned(body, position)
        for _ in range(partitions - 1):
            produced = ProducedPartition(name or "", *unpack(body, position))
            position += fixed
            answered.append(produced)
            if body[position : position + 3].tobytes() == _PLAIN_TAIL:
                position += 3
            else:
                position = _flexible_tail(body, position, produced)
        position = skip_tags(body, position)
    throttle = INT32.unpack_from(body, position)[0]
    skip_tags(body, position + 4)
    return ProduceResponse(throttle, answered)


def _flexible_tail(body: memoryview, position: int, produced: ProducedPartition) -> int:
    count, position = read_unsigned(body, position)
    errors: list[RecordError] = []
    for _ in range(count - 1):
        index = INT32.unpack_from(body, position)[0]
        text, position = read_compact_string(body, position + 4)
        position = skip_tags(body, position)
        errors.append(RecordError(index, text or ""))
    produced.record_errors = tuple(errors)
    message, position = read_compact_string(body, position)
    produced.error_message = message or ""
    tags, position = read_tags(body, position)
    # CurrentLeader (v10, KIP-951), with NOT_LEADER_OR_FOLLOWER only.
    if 0 in tags:
        produced.current_leader = _LEADER.unpack_from(tags[0])
    return position


def _classic(version: int, body: memoryview) -> ProduceResponse:
    # v5 has the log start offset: a deletion since explains an UNKNOWN_PRODUCER_ID.
    layout = _RESULT_WITH_START if version >= 5 else _RESULT
    topics, position = INT32.unpack_from(body, 0)[0], 4
    answered: list[ProducedPartition] = []
    for _ in range(topics):
        name, position = read_string(body, position)
        partitions = INT32.unpack_from(body, position)[0]
        position += 4
        for _ in range(partitions):
            index, code, base, appended, *start = layout.unpack_from(body, position)
            position += layout.size
            produced = ProducedPartition(
                name or "", index, code, base, appended, start[0] if start else -1
            )
            answered.append(produced)
            # KIP-467: record errors and a message.
            if version >= 8:
                position = _classic_tail(body, position, produced)
    return ProduceResponse(INT32.unpack_from(body, position)[0], answered)


def _classic_tail(body: memoryview, position: int, produced: ProducedPartition) -> int:
    count = INT32.unpack_from(body, position)[0]
    position += 4
    errors: list[RecordError] = []
    for _ in range(count):
        index = INT32.unpack_from(body, position)[0]
        text, position = read_string(body, position + 4)
        errors.append(RecordError(index, text or ""))
    produced.record_errors = tuple(errors)
    message, position = read_string(body, position)
    produced.error_message = message or ""
    return position
