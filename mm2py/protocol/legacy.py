"""Message sets of Kafka before 0.11 (magic 0 and 1), which old segments still contain.

Flow: record set -> ``legacy_to_v2`` -> v2 batches with exact runs, same codec, same timestamps.
Brokers refuse old formats from Produce v3 on, and Fetch v4 returns them unconverted, so they are
re-encoded. Checked against Java's rules for wrapper messages (KIP-31, KIP-32).
"""

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.record_batch import CODEC_MASK, LOG_APPEND_FLAG, Codec, RecordBatch, build_batch
from mm2py.protocol.record_bytes import append_record, damaged, varint

_ENTRY: Final = Struct(">qiIbb")  # offset, size, crc, magic, attributes
_LOG_OVERHEAD: Final = 12
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_LZ4_SHORTEST: Final = 7  # bytes of the shortest frame header, with its checksum
_LZ4_CONTENT_SIZE: Final = 0x08
_WORD: Final = Struct("<I")
_XXH_1: Final = 2654435761
_XXH_2: Final = 2246822519
_XXH_3: Final = 3266489917
_XXH_4: Final = 668265263
_XXH_5: Final = 374761393
_BATCH_BYTES: Final = 512 * 1024  # single messages are gathered up to here


class _Message(NamedTuple):
    offset: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def legacy_to_v2(
    record_set: memoryview, position: int, wanted_offset: int = 0
) -> tuple[list[RecordBatch], int]:
    """Convert the old messages from ``position`` on, up to the first v2 batch or a partial entry.

    Messages below ``wanted_offset`` are left out. Returns the batches and the position after them,
    the end of the record set when only a partial entry is left.

    Raises:
        ProtocolError: a message is damaged.
    """
    batches: list[RecordBatch] = []
    gathered: list[_Message] = []
    size = 0
    while True:
        entry = _entry(record_set, position)
        if entry is None:
            position = len(record_set)
            break
        end, magic, codec = entry
        # Segments written after the upgrade follow in the same record set.
        if magic >= 2:
            break
        messages = list(_messages(record_set[position:end], magic, codec))
        kept = [message for message in messages if message.offset >= wanted_offset]
        if codec is Codec.NONE:
            gathered += kept
            size += end - position
        # Single messages and wrappers alternate in old segments: order is kept.
        if (codec is not Codec.NONE or size > _BATCH_BYTES) and gathered:
            batches.append(_encode(gathered, Codec.NONE))
            gathered, size = [], 0
        if codec is not Codec.NONE and kept:
            batches.append(_encode(kept, codec))
        position = end
    if gathered:
        batches.append(_encode(gathered, Codec.NONE))
    return batches, position


def _entry(view: memoryview, position: int) -> tuple[int, int, Codec] | None:
    """Return (end, magic, codec) of the whole entry at ``position``, None where it is partial."""
    if len(view) - position < _ENTRY.size:
        return None
    offset, size, _, magic, attributes = _ENTRY.unpack_from(view, position)
    if magic >= 2:
        return position, magic, Codec.NONE
    # CRC, magic, attributes, and two null fields.
    if size < 14 or magic < 0:
        raise damaged(f"a message of magic {magic} at offset {offset} announces {size} bytes")
    end = position + _LOG_OVERHEAD + size
    if end > len(view):
        return None
    codec = attributes & CODEC_MASK
    # zstd came with magic 2 (KIP-110).
    if codec > Codec.LZ4:
        raise damaged(f"codec {codec} in a message of magic {magic} at offset {offset}")
    return end, magic, Codec(codec)


def _messages(entry: memoryview, magic: int, codec: Codec) -> Iterator[_Message]:
    message, attributes = _message(entry, magic)
    if codec is Codec.NONE:
        yield message
        return
    if message.value is None:
        raise damaged(f"an empty wrapper message at offset {message.offset}")
    wrapped = message.value
    if magic == 0 and codec is Codec.LZ4:
        wrapped = with_right_checksum(wrapped)
    payload = memoryview(decompress(codec, wrapped))
    inner: list[_Message] = []
    position = 0
    while position < len(payload):
        entry_ = _entry(payload, position)
        # Wrappers are not nested, and have the magic of their messages.
        if entry_ is None or entry_[1] != magic or entry_[2] is not Codec.NONE:
            raise damaged(f"a damaged message inside the wrapper at offset {message.offset}")
        inner.append(_message(payload[position : entry_[0]], magic)[0])
        position = entry_[0]
    # From magic 1 on inner offsets are relative and the wrapper has the offset of the
    # last (KIP-31); a wrapper with log append time gives its time to all (KIP-32).
    shift = message.offset - inner[-1].offset if magic == 1 and inner else 0
    append_time = message.timestamp if magic == 1 and attributes & LOG_APPEND_FLAG else None
    for one in inner:
        stamp = one.timestamp if append_time is None else append_time
        yield _Message(one.offset + shift, stamp, one.key, one.value)


def with_right_checksum(frame: memoryview) -> memoryview:
    """Return an lz4 frame with the header checksum that the lz4 format requires.

    Clients that wrote magic 0 hashed the frame's magic number too (KAFKA-3160). Java ignores the
    header's checksum there; the library does not, so it is replaced. The checksum of the message
    covers the whole frame.
    """
    if len(frame) < _LZ4_SHORTEST:
        return frame
    # Frame magic, flags, block size, and the content size where the flags announce it.
    end = _LZ4_SHORTEST + (8 if frame[4] & _LZ4_CONTENT_SIZE else 0) - 1
    if end >= len(frame):
        return frame
    right = bytearray(frame)
    right[end] = _xxh32(frame[4:end]) >> 8 & 0xFF
    return memoryview(right)


def _xxh32(data: memoryview) -> int:
    """XXH32 with seed 0 of less than 16 bytes."""
    mask = 0xFFFFFFFF
    value = _XXH_5 + len(data)
    words = len(data) // 4
    for (word,) in _WORD.iter_unpack(data[: words * 4]):
        value = (value + word * _XXH_3) & mask
        value = (value << 17 | value >> 15) * _XXH_4 & mask
    for byte in data[words * 4 :]:
        value = (value + byte * _XXH_5) & mask
        value = (value << 11 | value >> 21) * _XXH_1 & mask
    value = (value ^ value >> 15) * _XXH_2 & mask
    value = (value ^ value >> 13) * _XXH_3 & mask
    return value ^ value >> 16


def _message(entry: memoryview, magic: int) -> tuple[_Message, int]:
    offset, _, crc, _, attributes = _ENTRY.unpack_from(entry)
    # CRC-32 up to magic 1, CRC-32C from 2 on.
    if zlib.crc32(entry[16:]) != crc:
        raise damaged(f"wrong CRC at offset {offset}")
    position, timestamp = 18, -1
    if magic == 1:
        timestamp = _INT64.unpack_from(entry, 18)[0]
        position = 26
    key, position = _field(entry, position, offset)
    value, position = _field(entry, position, offset)
    if position != len(entry):
        raise damaged(f"the message at offset {offset} does not end where its size says")
    return _Message(offset, timestamp, key, value), attributes


def _field(entry: memoryview, position: int, offset: int) -> tuple[memoryview | None, int]:
    start = position + 4
    size = _INT32.unpack_from(entry, position)[0] if start <= len(entry) else len(entry)
    if size < 0:
        return None, start
    if start + size > len(entry):
        raise damaged(f"a field of the message at offset {offset} announces {size} bytes")
    return entry[start : start + size], start + size


def _encode(messages: list[_Message], codec: Codec) -> RecordBatch:
    payload, runs = bytearray(), list[tuple[int, int]]()
    base = messages[0].timestamp
    expected = -1
    for delta, message in enumerate(messages):
        body = _sized(message.key) + _sized(message.value) + b"\x00"  # no headers
        append_record(payload, body, message.timestamp - base, delta)
        if message.offset == expected:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        elif message.offset < expected:
            raise damaged(f"offset {message.offset} follows {expected - 1}")
        else:
            runs.append((message.offset, 1))
        expected = message.offset + 1
    first, last = messages[0].offset, messages[-1].offset
    newest = max(message.timestamp for message in messages)
    data = build_batch(
        compress(codec, payload) if codec else payload,
        base_offset=first,
        count=len(messages),
        base_timestamp=base,
        max_timestamp=newest,
        attributes=int(codec),
    )
    return RecordBatch(data, first, last, len(messages), newest, -1, int(codec), tuple(runs), None)


def _sized(value: memoryview | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value
