"""Rewrites batches on the level of record bytes: renumber, cut, re-time, split, merge, recompress.

Flow: verified batch -> decompress -> walk record borders -> copy the kept ones with new deltas ->
compress with the same codec -> a new batch with exact runs (which source offsets it carries).
Records never become Python objects. Results own their bytes (no lease): callers release the
input's. They have no CRC yet: ``sign`` computes it once, after the last change.

Why rewrite at all: a broker accepts a Produce batch only if its offset deltas are dense (0 to count
- 1, ``LogValidator``), but compaction leaves holes in the source's batches.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.kernel import Runs
from mm2py.protocol.record_batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    Bytes,
    Codec,
    RecordBatch,
)
from mm2py.protocol.record_bytes import (
    MAX_INT64,
    borders,
    damaged,
    join,
    join_runs,
    renumber,
)

_CODEC_OFFSET: Final = 22


class TooLarge(NamedTuple):
    """A single record that does not fit; ``size_bytes`` is the batch it would need."""

    offset: int
    size_bytes: int


class SplitResult(NamedTuple):
    """Parts in order up to the first record that is too large, if there is one."""

    parts: list[RecordBatch]
    too_large: TooLarge | None


class _Opened(NamedTuple):
    codec: Codec
    payload: memoryview
    records: int
    base_timestamp: int  # with a delete horizon it holds the horizon; deltas are relative to it
    append_time: int | None  # the one time of all records of a LOG_APPEND_TIME batch
    epoch: int
    base_offset: int
    last_delta: int


class _Part(NamedTuple):
    """Records of a new batch after room for its header."""

    data: bytearray
    runs: Runs
    base_timestamp: int
    max_timestamp: int


def _inflate(data: Bytes) -> Bytes:
    return decompress(Codec(data[_CODEC_OFFSET] & CODEC_MASK), memoryview(data)[HEADER_BYTES:])


def _open(data: Bytes) -> _Opened:
    base, _, epoch, _, _, attributes, last_delta, first_stamp, max_stamp, _, _, _, count = (
        HEADER.unpack_from(data)
    )
    # DefaultRecordBatch: under LOG_APPEND_TIME maxTimestamp is the time of every record.
    append_time = max_stamp if attributes & LOG_APPEND_FLAG else None
    return _Opened(
        Codec(attributes & CODEC_MASK), memoryview(_inflate(data)), count, first_stamp,
        append_time, epoch, base, last_delta,
    )  # fmt: skip


def rewrite(data: Bytes, wanted_offset: int = 0) -> RecordBatch | None:
    """Make a source batch forwardable: renumber, cut below ``wanted_offset``, re-time.

    Offset deltas become dense; a LOG_APPEND_TIME batch gets that time in every record, since a
    CREATE_TIME target would bring the producers' times back. Returns None if no record is left.

    Raises:
        ProtocolError: the records are damaged.
    """
    opened = _open(data)
    part = _renumber(opened, wanted_offset)
    if not part.runs:
        return None
    last_offset = opened.base_offset + opened.last_delta
    return _pack(opened.codec, part, last_offset=last_offset, epoch=opened.epoch)


def _renumber(opened: _Opened, wanted_offset: int = 0) -> _Part:
    append_time = opened.append_time
    try:
        data, runs, newest_delta = renumber(
            opened.payload, opened.records, opened.base_offset, opened.last_delta, wanted_offset,
            append_time is not None, HEADER_BYTES,
        )  # fmt: skip
    except ValueError as error:  # the C kernel knows none of our errors
        raise damaged(str(error)) from None
    if append_time is not None:
        return _Part(data, runs, append_time, append_time)
    base_timestamp = opened.base_timestamp
    newest = base_timestamp + newest_delta
    if abs(newest) > MAX_INT64:
        raise damaged(f"a timestamp is {newest_delta} ms from {base_timestamp}")
    return _Part(data, runs, base_timestamp, newest)


def _pack(codec: Codec, part: _Part, *, last_offset: int, epoch: int) -> RecordBatch:
    """Compress the records and write the header into the room before them."""
    data, runs, base_timestamp, max_timestamp = part
    count = runs[0][1] if len(runs) == 1 else sum(n for _, n in runs)
    if codec:
        packed = bytearray(HEADER_BYTES)
        packed += compress(codec, memoryview(data)[HEADER_BYTES:])
        data = packed
    base_offset, attributes = runs[0][0], int(codec)
    # Producer fields are -1 and the CRC is 0 until ``sign``.
    HEADER.pack_into(
        data, 0, base_offset, len(data) - 12, -1, 2, 0, attributes, count - 1, base_timestamp,
        max_timestamp, -1, -1, -1, count,
    )  # fmt: skip
    return RecordBatch(
        data, base_offset, last_offset, count, max_timestamp, epoch, attributes, runs, None
    )


def split(batch: RecordBatch, max_bytes: int) -> SplitResult:
    """Cut a batch into parts of at most ``max_bytes`` each, as ``max.message.bytes`` counts.

    Stops at the first record that does not fit alone; the parts before it are returned.
    """
    if batch.size <= max_bytes:
        return SplitResult([batch], None)
    opened = _open(batch.data)
    try:
        edges = borders(opened.payload, opened.records)
    except ValueError as error:
        raise damaged(str(error)) from None
    offsets = [offset for first, n in batch.runs for offset in range(first, first + n)]
    parts: list[RecordBatch] = []
    todo = _pieces(edges, 0, batch.count, -(-batch.size // max_bytes))
    while todo:
        low, high = todo.pop(0)
        # A part covers the hole behind it, so that positions continue without a gap.
        last = batch.last_offset if high == batch.count else offsets[high] - 1
        piece = opened._replace(
            payload=opened.payload[edges[low] : edges[high]], records=high - low
        )
        # Runs by source offsets: after a splice deltas no longer name them.
        cut = _renumber(piece)._replace(runs=join_runs((n, 1) for n in offsets[low:high]))
        part = _pack(opened.codec, cut, last_offset=last, epoch=batch.leader_epoch)
        if part.size <= max_bytes:
            parts.append(part)
        # Alone it is still too large: no cut helps, the partition's policy decides.
        elif high - low == 1:
            return SplitResult(parts, TooLarge(offsets[low], part.size))
        else:
            # Pieces are cut by uncompressed size; this one compressed less well than the whole.
            todo[:0] = _pieces(edges, low, high, max(2, -(-part.size // max_bytes)))
    return SplitResult(parts, None)


def _pieces(edges: Sequence[int], low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Cut records ``low`` to ``high`` into about ``count`` pieces of equal size, at least two."""
    share = (edges[high] - edges[low]) / count
    pieces: list[tuple[int, int]] = []
    start, limit = low, edges[low] + share
    for index in range(low, high):
        if edges[index + 1] > limit and index > start:
            pieces.append((start, index))
            start, limit = index, edges[index] + share
    pieces.append((start, high))
    return pieces


def merge(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Join waiting batches of one partition into one, in order, with the codec of the biggest.

    None of them may have been sent: a broker recognises a duplicate only by the exact sequence
    range of a batch.
    """
    if len(batches) == 1:
        return batches[0]
    try:
        data, runs, codec, base_timestamp, max_timestamp, _ = join(batches, _inflate, HEADER_BYTES)
    except ValueError as error:
        raise damaged(str(error)) from None
    return _pack(
        Codec(codec),
        _Part(data, runs, base_timestamp, max_timestamp),
        last_offset=batches[-1].last_offset,
        epoch=batches[-1].leader_epoch,
    )


def repack(batch: RecordBatch) -> RecordBatch:
    """Pack the records of one batch again: dense deltas, fresh compression, the same offsets
    map."""
    packed = rewrite(batch.data)
    assert packed is not None, "a queued batch has records"
    # The batch's bytes may have base offset 0 by now: the source's numbers are in the object alone.
    packed.runs, packed.leader_epoch = batch.runs, batch.leader_epoch
    packed.base_offset, packed.last_offset = batch.base_offset, batch.last_offset
    return packed


def recompress(batch: RecordBatch, codec: Codec) -> RecordBatch:
    """Return the batch with another codec; the records' bytes stay as they are."""
    if batch.codec is codec:
        return batch
    data = bytearray(HEADER_BYTES)
    data += _inflate(batch.data)
    base_timestamp: int = HEADER.unpack_from(batch.data)[7]
    part = _Part(data, batch.runs, base_timestamp, batch.max_timestamp)
    return _pack(codec, part, last_offset=batch.last_offset, epoch=batch.leader_epoch)
