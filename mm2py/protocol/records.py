"""Single records, for the small topics that a mirror keeps: configs, offsets, statuses, syncs.

Flow: ``NewRecord`` -> ``encode_batch`` -> Sender; record set -> ``decode_batches`` -> ``Record``.
Read and written by our own code, not by aiokafka: its reader raises on header keys that are not
UTF-8, its writer cannot set base offsets, and these topics are small. Mirrored data is decoded only
for transforms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
from mm2py.protocol.record_bytes import (
    RecordSpan,
    append_record,
    damaged,
    read_varint,
    varint,
    walk,
)

Header = tuple[bytes, bytes | None]
"""Key and value; keys are bytes because brokers accept any, UTF-8 or not."""

Fields = tuple[bytes | None, bytes | None, tuple[Header, ...]]
"""Key, value and headers."""

_LOG_OVERHEAD: Final = 12
_NULL: Final = varint(-1)


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; ``timestamp`` in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class BatchRecords(NamedTuple):
    """The records of one batch: their bytes, decompressed, and of each its timestamp in ms and its
    position."""

    payload: bytes
    stamps: list[int]
    spans: list[RecordSpan]


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
    return pack_batch(
        [record.timestamp for record in records],
        [record_body(record.key, record.value, record.headers) for record in records],
        codec,
    )


def pack_batch(stamps: Sequence[int], bodies: Sequence[bytes], codec: Codec) -> bytearray:
    """As ``encode_batch``, from timestamps and bodies: of ``record_body``, or slices of
    ``BatchRecords.payload``."""
    if not stamps:
        raise ValueError("a batch needs at least one record")
    base = stamps[0]
    payload = bytearray()
    for delta, body in enumerate(bodies):
        append_record(payload, body, stamps[delta] - base, delta)
    return build_batch(
        compress(codec, payload) if codec else payload,
        base_offset=0,
        count=len(stamps),
        base_timestamp=base,
        max_timestamp=max(stamps),
        attributes=int(codec),
    )


def record_body(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bytes:
    """Return the bytes of a record from its key length on."""
    parts = [
        _NULL if key is None else varint(len(key)) + key,
        _NULL if value is None else varint(len(value)) + value,
        varint(len(headers)),
    ]
    for name, text in headers:
        parts += (varint(len(name)), name, _NULL if text is None else varint(len(text)) + text)
    return b"".join(parts)


def decode_batches(record_set: Bytes) -> Iterator[DecodedBatch]:
    """Yield the whole batches of a record set, control batches included.

    A partial batch at the end is normal in a Fetch response and ends the iteration.

    Raises:
        ProtocolError: a CRC or a record is damaged.
    """
    view, position = memoryview(record_set), 0
    while len(view) - position >= HEADER_BYTES:
        # Magic 0 and 1: message sets of before Kafka 0.11 (KIP-98).
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
    """Return timestamp and key of every record of one whole v2 batch; its CRC is not checked.

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
    """Return one whole v2 batch with its records; its CRC is not checked.

    ``runs`` are the offsets of a batch that was converted from an old format, as (first, count).

    Raises:
        ProtocolError: a record is damaged.
    """
    (base, _, epoch, _, _, attributes, last_delta, first_stamp, max_stamp, *producer, count) = (
        HEADER.unpack_from(view)
    )
    opened = _records_of(view, base, attributes, first_stamp, max_stamp, count)
    # A converted batch is dense; its runs have the offsets that its records had in the log.
    offsets = [offset for first, n in runs for offset in range(first, first + n)]
    records = tuple(
        Record(
            offsets[span.offset_delta] if offsets else base + span.offset_delta,
            stamp,
            *record_fields(opened.payload, span),
        )
        for stamp, span in zip(opened.stamps, opened.spans, strict=True)
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


def open_batch(view: memoryview) -> BatchRecords:
    """Return the positions of the records of one whole v2 batch without decoding them; as
    ``decode_batch``."""
    header = HEADER.unpack_from(view)
    return _records_of(view, header[0], header[5], header[7], header[8], header[12])


def _records_of(
    view: memoryview, base: int, attributes: int, first_stamp: int, max_stamp: int, count: int
) -> BatchRecords:
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise damaged(f"codec {codec} at offset {base}")
    payload = bytes(decompress(Codec(codec), view[HEADER_BYTES:]))
    spans = walk(payload, count)
    if attributes & LOG_APPEND_FLAG:
        # LogAppendTime: the broker sets only the header's
        # maxTimestamp; the records keep the producer's.
        return BatchRecords(payload, [max_stamp] * count, spans)
    return BatchRecords(payload, [first_stamp + span.timestamp_delta for span in spans], spans)


def record_fields(payload: bytes, span: RecordSpan) -> Fields:
    """Return key, value and headers of a record.

    Raises:
        ProtocolError: it is damaged.
    """
    _, delta, position, end = span
    try:
        key, position = _read_sized(payload, position)
        value, position = _read_sized(payload, position)
        count, position = read_varint(payload, position)
        headers: tuple[Header, ...] = ()
        for _ in range(count):
            # Brokers accept equal keys, and keys that are not UTF-8.
            name, position = _read_sized(payload, position)
            text, position = _read_sized(payload, position)
            headers += ((name or b"", text),)
    except IndexError:
        raise damaged(f"record {delta} of a batch is cut off") from None
    # Within the batch: bytes that are left over would be lost in a copy.
    if position != end:
        raise damaged(f"record {delta} of a batch does not end where its length says")
    return key, value, headers


def _read_sized(payload: Bytes, position: int) -> tuple[bytes | None, int]:
    # A varint of one byte is read in place: most are, and a call costs as much as the rest.
    size = payload[position]
    if size < 0x80:
        size, position = (size >> 1) ^ -(size & 1), position + 1
    else:
        size, position = read_varint(payload, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(payload):
        raise damaged(f"a field announces {size} bytes")
    return bytes(payload[position:end]), end
