"""The bytes of single v2 records: varints, finding record borders, rewriting their front fields.

Flow: payload -> ``walk`` -> borders and deltas -> ``append_record`` per kept record -> payload.
Keys, values and headers never become Python objects here. Shared by ``splice`` and ``records``;
the loops run once per record, so single-byte varints are read without a call.
"""

from typing import Final, NamedTuple

from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import Bytes

__all__ = ["RecordSpan", "append_record", "damaged", "read_varint", "varint", "walk"]

_CACHED: Final = 2048


class RecordSpan(NamedTuple):
    """Where one record's key, value and headers lie, and its deltas."""

    timestamp_delta: int
    offset_delta: int
    start: int  # of the key length, behind the offset delta
    end: int


def _encode(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL: Final = tuple(_encode(value) for value in range(_CACHED))


def varint(value: int) -> bytes:
    """Encode a zigzag varint (Java's ``ByteUtils.writeVarint`` and ``writeVarlong``)."""
    return _SMALL[value] if 0 <= value < _CACHED else _encode(value)


def read_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits; IndexError where the data ends."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise damaged("a varint is longer than ten bytes")


def walk(payload: Bytes, count: int) -> list[RecordSpan]:
    """Find the records of a decompressed payload.

    Raises:
        ProtocolError: the payload does not hold exactly ``count`` records with rising offsets.
    """
    spans: list[RecordSpan] = []
    add, total, position, previous = spans.append, len(payload), 0, -1
    try:
        for _ in range(count):
            size, position = read_varint(payload, position)
            end = position + size
            if size < 4 or end > total:
                raise damaged(f"a record announces {size} bytes")
            timestamp_delta, position = read_varint(payload, position + 1)
            offset_delta, position = read_varint(payload, position)
            if position > end or offset_delta <= previous:
                raise damaged(f"offset delta {offset_delta} follows {previous}")
            add(RecordSpan(timestamp_delta, offset_delta, position, end))
            position, previous = end, offset_delta
    except IndexError:
        raise damaged("the last record is cut off") from None
    if position != total:
        raise damaged(f"{total - position} bytes follow the last record")
    return spans


def append_record(out: bytearray, body: Bytes, timestamp_delta: int, offset_delta: int) -> None:
    """Write one record; ``body`` is everything from its key length on."""
    stamp = _SMALL[timestamp_delta] if 0 <= timestamp_delta < _CACHED else _encode(timestamp_delta)
    offset = _SMALL[offset_delta] if 0 <= offset_delta < _CACHED else _encode(offset_delta)
    size = 1 + len(stamp) + len(offset) + len(body)
    out += _SMALL[size] if size < _CACHED else _encode(size)
    out.append(0)  # record attributes are unused
    out += stamp
    out += offset
    out += body


def damaged(what: str) -> ProtocolError:
    """Return the error for record bytes that cannot be read."""
    return ProtocolError(
        f"damaged records: {what}", remedy="read the batch with Kafka's dump-log tool on the source"
    )
