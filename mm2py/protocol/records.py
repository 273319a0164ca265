"""Single records of the small topics that a mirror keeps: logs, offsets, statuses, syncs.

Flow: ``NewRecord`` -> ``encode_batch`` -> Sender; record set -> ``decode_batches`` -> ``Record``.
Read and written by our own code, not by aiokafka: its reader raises on header keys that are not
UTF-8, its writer cannot set base offsets, and these topics are small. Mirrored data never passes here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.legacy import legacy_to_v2
from mm2py.protocol.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    TRANSACTIONAL_FLAG,
    Bytes,
    Codec,
    build_batch,
    crc_matches,
)
from mm2py.protocol.record_bytes import append_record, damaged, read_varint, varint, walk

__all__ = [
    "DecodedBatch",
    "Header",
    "NewRecord",
    "Record",
    "decode_batch",
    "decode_batches",
    "encode_batch",
    "record_keys",
]

Header = tuple[bytes, bytes | None]
"""Key and value; keys are bytes because brokers accept any, UTF-8 or not."""

_LOG_OVERHEAD: Final = 12


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; ``timestamp`` in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it stands in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """One batch with its records; a control batch carries a transaction marker, never data."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    is_control: bool
    is_transactional: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[Record, ...]


def encode_batch(records: Sequence[NewRecord | Record], codec: Codec = Codec.NONE) -> bytearray:
    """Return an unsigned v2 batch with base offset 0; ``batch_stage.sign`` makes it ready."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base = records[0].timestamp
    payload = bytearray()
    for delta, record in enumerate(records):
        append_record(payload, _body(record), record.timestamp - base, delta)
    return build_batch(
        compress(codec, payload) if codec else payload,
        base_offset=0,
        count=len(records),
        base_timestamp=base,
        max_timestamp=max(record.timestamp for record in records),
        attributes=int(codec),
    )


def _body(record: NewRecord | Record) -> bytes:
    parts = [_sized(record.key), _sized(record.value), varint(len(record.headers))]
    for key, value in record.headers:
        parts += (_sized(key), _sized(value))
    return b"".join(parts)


def _sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def decode_batches(record_set: Bytes) -> Iterator[DecodedBatch]:
    """Yield the whole batches of a record set, control batches included.

    A partial batch at the end is normal in a Fetch answer and ends the iteration.

    Raises:
        ProtocolError: a CRC or a record is damaged.
    """
    view, position = memoryview(record_set), 0
    while len(view) - position >= HEADER_BYTES:
        if view[position + 16] < 2:
            converted, position = legacy_to_v2(view, position)
            for batch in converted:
                yield decode_batch(memoryview(batch.data), batch.runs)
            continue
        size = int.from_bytes(view[position + 8 : position + 12]) + _LOG_OVERHEAD
        if size < HEADER_BYTES or view[position + 16] > 2:
            raise damaged(f"a batch of magic {view[position + 16]} announces {size} bytes")
        if len(view) - position < size:
            return
        batch_view = view[position : position + size]
        if not crc_matches(batch_view):
            raise damaged(f"wrong CRC at offset {int.from_bytes(batch_view[:8])}")
        yield decode_batch(batch_view)
        position += size


def record_keys(data: Bytes) -> list[tuple[int, bytes | None]]:
    """Return timestamp and key of every record of one whole v2 batch; its CRC is not looked at.

    Raises:
        ProtocolError: a record is damaged.
    """
    header = HEADER.unpack_from(data)
    attributes, first_stamp, max_stamp, count = header[5], header[7], header[8], header[12]
    payload = decompress(Codec(attributes & CODEC_MASK), memoryview(data)[HEADER_BYTES:])
    stamp = max_stamp if attributes & LOG_APPEND_FLAG else None
    try:
        return [
            (first_stamp + delta if stamp is None else stamp, _read_sized(payload, start)[0])
            for delta, _, start, _ in walk(payload, count)
        ]
    except IndexError:
        raise damaged("a record ends before its key") from None


def decode_batch(view: memoryview, runs: Sequence[tuple[int, int]] = ()) -> DecodedBatch:
    """Return one whole v2 batch with its records; its CRC is not looked at.

    ``runs`` are the offsets of a batch that was converted from an old format, as (first, count).

    Raises:
        ProtocolError: a record is damaged.
    """
    (base, _, epoch, _, _, attributes, last_delta, first_stamp, max_stamp, *producer, count) = (
        HEADER.unpack_from(view)
    )
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise damaged(f"codec {codec} at offset {base}")
    payload = decompress(Codec(codec), view[HEADER_BYTES:])
    # A converted batch is dense; its runs know where its records really were.
    offsets = [offset for first, n in runs for offset in range(first, first + n)]
    stamp = max_stamp if attributes & LOG_APPEND_FLAG else None
    records = tuple(
        _record(
            payload,
            start,
            end,
            offsets[delta] if offsets else base + delta,
            first_stamp + stamp_delta if stamp is None else stamp,
        )
        for stamp_delta, delta, start, end in walk(payload, count)
    )
    producer_id, producer_epoch, base_sequence = producer
    return DecodedBatch(
        base,
        offsets[-1] if offsets else base + last_delta,
        epoch,
        bool(attributes & CONTROL_FLAG),
        bool(attributes & TRANSACTIONAL_FLAG),
        producer_id,
        producer_epoch,
        base_sequence,
        records,
    )


def _record(payload: Bytes, start: int, end: int, offset: int, timestamp: int) -> Record:
    try:
        key, position = _read_sized(payload, start)
        value, position = _read_sized(payload, position)
        count, position = read_varint(payload, position)
        headers: list[Header] = []
        for _ in range(count):
            name, position = _read_sized(payload, position)
            header_value, position = _read_sized(payload, position)
            headers.append((name or b"", header_value))
    except IndexError:
        raise damaged(f"the record at offset {offset} is cut off") from None
    if position != end:
        raise damaged(f"the record at offset {offset} does not end where its length says")
    return Record(offset, timestamp, key, value, tuple(headers))


def _read_sized(payload: Bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(payload, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(payload):
        raise damaged(f"a field announces {size} bytes")
    return bytes(payload[position:end]), end
