"""The bytes of single v2 records: varints, finding record borders, rewriting their front fields.

Flow: payload -> ``walk`` -> borders and deltas -> ``append_record`` per kept record -> payload.
Keys, values and headers never become Python objects here. Shared by ``splice`` and ``records``;
``borders``, ``renumber``, ``join`` and ``same`` are those of the C kernel where it was built. The
loops run once per record, so single-byte varints are read without a call.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from mm2py.errors import ProtocolError
from mm2py.protocol.kernel import Joinable, Runs, native
from mm2py.protocol.record_batch import CODEC_MASK, HEADER, HEADER_BYTES, LOG_APPEND_FLAG, Bytes

MAX_INT64: Final = 2**63 - 1
_MIN_INT64: Final = -(2**63)
_MAX_COUNT: Final = 2**31 - 1
_CACHED: Final = 2048


class RecordSpan(NamedTuple):
    """Position of one record's key, value and headers, and its deltas."""

    timestamp_delta: int
    offset_delta: int
    start: int  # of the key length, after the offset delta
    end: int


_span: Final = cast(
    "Callable[[type[RecordSpan], tuple[int, int, int, int]], RecordSpan]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] # of any members
)
"""Makes a span in half the time of its constructor."""


def _encode(value: int) -> bytes:
    # Zigzag: small negative values stay short.
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


def read_varint(data: Bytes, position: int, *, wide: bool = False) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits, ``wide``: 70; IndexError where the data ends."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = data[position]
        # The tenth byte has one bit left of 64.
        if shift == 63 and byte > 1 and not wide:
            break
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise damaged("a varint is longer than 64 bits")


def walk(payload: Bytes, count: int) -> list[RecordSpan]:
    """Find the records of a decompressed payload.

    Raises:
        ProtocolError: the payload does not hold exactly ``count`` records with rising offsets.
    """
    spans: list[RecordSpan] = []
    add, total, position, previous = spans.append, len(payload), 0, -1
    try:
        for _ in range(count):
            # Varints of one byte are read in place: most are,
            # and a call costs as much as the rest of the turn.
            size = payload[position]
            if size < 0x80:
                size, position = (size >> 1) ^ -(size & 1), position + 1
            else:
                size, position = read_varint(payload, position)
            end = position + size
            # Attributes, two deltas, and the first byte of the key's length.
            if size < 4 or end > total:
                raise damaged(f"a record announces {size} bytes")
            timestamp_delta = payload[position + 1]
            if timestamp_delta < 0x80:
                timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
                position += 2
            else:
                timestamp_delta, position = read_varint(payload, position + 1)
            offset_delta, position = read_varint(payload, position)
            # Compaction leaves holes in a batch's deltas, but never changes their order.
            if position > end or offset_delta <= previous:
                raise damaged(f"offset delta {offset_delta} follows {previous}")
            add(_span(RecordSpan, (timestamp_delta, offset_delta, position, end)))
            position, previous = end, offset_delta
    except IndexError:
        raise damaged("the last record is cut off") from None
    if position != total:
        # Java's iterator refuses them, too ("Incorrect declared batch size").
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


def plain_borders(payload: Bytes, count: int, /) -> list[int]:
    """Return where each record begins, and where the last one ends."""
    return [0, *(span.end for span in walk(payload, count))]


def plain_renumber(
    payload: Bytes,
    count: int,
    base_offset: int,
    last_delta: int,
    wanted_offset: int,
    retime: bool,  # noqa: FBT001 - the same call as the C kernel's
    reserve: int,
    /,
) -> tuple[bytearray, Runs, int]:
    """Copy the records from ``wanted_offset`` on, with dense offset deltas.

    ``retime`` writes 0 as each timestamp delta. The result begins with ``reserve`` bytes of room
    for a header. Returns it with the runs of offsets it holds and the highest old timestamp delta.

    Raises:
        ProtocolError: the records are damaged; ValueError where it is the C kernel's.
    """
    if not 0 <= base_offset <= base_offset + last_delta <= MAX_INT64:
        raise damaged(f"offsets {base_offset} and {last_delta} more are impossible")
    spans = walk(payload, count)
    if spans and spans[-1].offset_delta > last_delta:
        raise damaged(f"offset delta {spans[-1].offset_delta} is above the last, {last_delta}")
    kept = [span for span in spans if base_offset + span.offset_delta >= wanted_offset]
    out, body = bytearray(reserve), memoryview(payload)
    for delta, (stamp, _, start, end) in enumerate(kept):
        append_record(out, body[start:end], 0 if retime else stamp, delta)
    runs = join_runs((base_offset + span.offset_delta, 1) for span in kept)
    return out, runs, max((span.timestamp_delta for span in kept), default=0)


def plain_same(
    one: Bytes,
    position: int,
    stamp: int,
    other: Bytes,
    other_position: int,
    other_stamp: int,
    count: int,
    untimed: int,
    /,
) -> tuple[int, int, int]:
    """Count the equal records, at most ``count``, of two payloads from these positions on.

    Records are equal if the timestamp (``stamp`` plus the record's delta) and everything from the
    key on is. ``untimed`` is 1 for one, 2 for other, 3 for both: there ``stamp`` alone is the
    timestamp. Returns the count, and on each side the position of the first record that differs or
    cannot be read.
    """
    equal, previous, other_previous = 0, -1, -1
    position, other_position = min(position, len(one)), min(other_position, len(other))
    while equal < count and position < len(one) and other_position < len(other):
        try:
            ours = _record_at(one, position, previous)
            theirs = _record_at(other, other_position, other_previous)
        except (IndexError, ProtocolError):
            break
        at = stamp if untimed & 1 else stamp + ours.timestamp_delta
        other_at = other_stamp if untimed & 2 else other_stamp + theirs.timestamp_delta
        body, other_body = one[ours.start : ours.end], other[theirs.start : theirs.end]
        if at != other_at or not _MIN_INT64 <= at <= MAX_INT64 or body != other_body:
            break
        equal += 1
        position, previous = ours.end, ours.offset_delta
        other_position, other_previous = theirs.end, theirs.offset_delta
    return equal, position, other_position


def _record_at(payload: Bytes, position: int, previous: int) -> RecordSpan:
    size, position = read_varint(payload, position)
    end = position + size
    if size < 4 or end > len(payload):
        raise damaged(f"a record announces {size} bytes")
    timestamp_delta, position = read_varint(payload, position + 1)
    offset_delta, position = read_varint(payload, position)
    if position > end or offset_delta <= previous:
        raise damaged(f"offset delta {offset_delta} follows {previous}")
    return RecordSpan(timestamp_delta, offset_delta, position, end)


def join_runs(parts: Iterable[tuple[int, int]]) -> Runs:
    """Join runs of (first offset, count) that are consecutive."""
    runs: list[tuple[int, int]] = []
    first = count = 0
    for start, more in parts:
        if count and start == first + count:
            count += more
            continue
        if count:
            runs.append((first, count))
        first, count = start, more
    if count:
        runs.append((first, count))
    return tuple(runs)


def plain_join(
    batches: Sequence[Joinable], open_payload: Callable[[Bytes], Bytes], reserve: int, /
) -> tuple[bytearray, Runs, int, int, int, int]:
    """Copy the records of all batches, one after the other, with dense offset deltas.

    Timestamp deltas become relative to the first batch. ``open_payload`` decompresses the records
    of a batch; it is not called for uncompressed ones. Returns the records after ``reserve`` bytes,
    runs of offsets, the codec of the biggest batch, base and highest timestamp and the number of
    records.

    Raises:
        ProtocolError: the records are damaged; ValueError where it is the C kernel's.
    """
    headers = [HEADER.unpack_from(batch.data) for batch in batches]
    base_timestamp: int = headers[0][7]
    out, total = bytearray(reserve), 0
    for batch, header in zip(batches, headers, strict=True):
        _, _, _, _, _, attributes, last_delta, base, newest, _, _, _, count = header
        data, append_time = batch.data, attributes & LOG_APPEND_FLAG
        payload = memoryview(
            open_payload(data) if attributes & CODEC_MASK else memoryview(data)[HEADER_BYTES:]
        )
        spans = walk(payload, count)
        if spans and spans[-1].offset_delta > last_delta:
            raise damaged(f"offset delta {spans[-1].offset_delta} is above the last, {last_delta}")
        shift = (newest if append_time else base) - base_timestamp
        _check_stamp(shift)
        for delta, (stamp, _, start, end) in enumerate(spans, total):
            moved = shift if append_time else shift + stamp
            # A record's delta is a varlong, and int64 in Java: what does not fit would wrap there.
            _check_stamp(moved)
            append_record(out, payload[start:end], moved, delta)
        total += count
    runs = join_runs(run for batch in batches for run in batch.runs)
    # The runs become the offset map: it must not name other records than the batch has.
    if total > _MAX_COUNT or total != sum(count for _, count in runs):
        raise damaged(f"runs {runs} do not count {total} records")
    # The codec that most of the bytes have already.
    biggest = max(range(len(batches)), key=lambda index: len(batches[index].data))
    codec: int = headers[biggest][5] & CODEC_MASK
    return out, runs, codec, base_timestamp, max(header[8] for header in headers), total


def _check_stamp(delta: int) -> None:
    if not _MIN_INT64 <= delta <= MAX_INT64:
        raise damaged(f"a timestamp is {delta} ms from the first one")


def damaged(what: str) -> ProtocolError:
    """Return the error for record bytes that cannot be read."""
    return ProtocolError(
        f"damaged records: {what}", remedy="read the batch with Kafka's dump-log tool on the source"
    )


borders: Final = plain_borders if native is None else native.borders
renumber: Final = plain_renumber if native is None else native.renumber
join: Final = plain_join if native is None else native.join
same: Final = plain_same if native is None else native.same
