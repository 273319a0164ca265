"""Rewrites batches on the level of record bytes: renumber, cut, re-time, split, merge, recompress.

Flow: verified batch -> decompress -> walk record borders -> copy the kept ones with new deltas ->
compress with the same codec -> a new batch with exact runs (which source offsets it carries).
Records never become Python objects. Results own their bytes (no lease): callers release the input's.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.record_batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    Bytes,
    Codec,
    RecordBatch,
    build_batch,
)
from mm2py.protocol.record_bytes import RecordSpan, append_record, damaged, walk

__all__ = ["SplitResult", "TooLarge", "merge", "recompress", "repack", "rewrite", "split"]


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
    spans: list[RecordSpan]
    base_timestamp: int  # with a delete horizon it holds the horizon; deltas are relative to it
    append_time: int | None  # the one time of all records of a LOG_APPEND_TIME batch
    epoch: int
    base_offset: int
    last_offset: int


def _open(data: Bytes) -> _Opened:
    base, _, epoch, _, _, attributes, last_delta, first_stamp, max_stamp, _, _, _, count = (
        HEADER.unpack_from(data)
    )
    codec = Codec(attributes & CODEC_MASK)
    payload = memoryview(decompress(codec, memoryview(data)[HEADER_BYTES:]))
    spans = walk(payload, count)
    if spans and spans[-1].offset_delta > last_delta:
        raise damaged(f"offset delta {spans[-1].offset_delta} is above the last, {last_delta}")
    append_time = max_stamp if attributes & LOG_APPEND_FLAG else None
    return _Opened(codec, payload, spans, first_stamp, append_time, epoch, base, base + last_delta)


def rewrite(data: Bytes, wanted_offset: int = 0) -> RecordBatch | None:
    """Make a source batch forwardable: renumber, cut below ``wanted_offset``, re-time.

    Offset deltas become dense; a LOG_APPEND_TIME batch gets that time in every record, since a
    CREATE_TIME target would bring the producers' times back. Returns None if no record is left.

    Raises:
        ProtocolError: the records are damaged.
    """
    opened = _open(data)
    base = opened.base_offset
    kept = [span for span in opened.spans if base + span.offset_delta >= wanted_offset]
    if not kept:
        return None
    offsets = [base + span.offset_delta for span in kept]
    return _build(opened, kept, offsets, opened.last_offset)


def _build(
    opened: _Opened, spans: Sequence[RecordSpan], offsets: Sequence[int], last_offset: int
) -> RecordBatch:
    payload, out = opened.payload, bytearray()
    append_time = opened.append_time
    if append_time is None:
        base_timestamp = opened.base_timestamp
        newest = base_timestamp + max(span.timestamp_delta for span in spans)
        for delta, (stamp, _, start, end) in enumerate(spans):
            append_record(out, payload[start:end], stamp, delta)
    else:
        base_timestamp = newest = append_time
        for delta, (_, _, start, end) in enumerate(spans):
            append_record(out, payload[start:end], 0, delta)
    return _pack(
        opened.codec, out, runs=_runs(offsets), last_offset=last_offset, epoch=opened.epoch,
        stamps=(base_timestamp, newest),
    )  # fmt: skip


def _pack(
    codec: Codec,
    payload: Bytes,
    *,
    runs: tuple[tuple[int, int], ...],
    last_offset: int,
    epoch: int,
    stamps: tuple[int, int],
) -> RecordBatch:
    base_timestamp, max_timestamp = stamps
    count = sum(n for _, n in runs)
    data = build_batch(
        compress(codec, payload) if codec else payload,
        base_offset=runs[0][0],
        count=count,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=int(codec),
    )
    return RecordBatch(
        data, runs[0][0], last_offset, count, max_timestamp, epoch, int(codec), runs, None
    )


def _runs(offsets: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    first = previous = offsets[0]
    for offset in offsets:
        if offset > previous + 1:
            runs.append((first, previous - first + 1))
            first = offset
        previous = offset
    runs.append((first, previous - first + 1))
    return tuple(runs)


def split(batch: RecordBatch, max_bytes: int) -> SplitResult:
    """Cut a batch into parts of at most ``max_bytes`` each, as ``max.message.bytes`` counts.

    Stops at the first record that does not fit alone; the parts before it are returned.
    """
    if batch.size <= max_bytes:
        return SplitResult([batch], None)
    opened = _open(batch.data)._replace(epoch=batch.leader_epoch)
    offsets = [offset for first, n in batch.runs for offset in range(first, first + n)]
    parts: list[RecordBatch] = []
    todo = _pieces(opened.spans, 0, batch.count, -(-batch.size // max_bytes))
    while todo:
        low, high = todo.pop(0)
        last = batch.last_offset if high == batch.count else offsets[high] - 1
        part = _build(opened, opened.spans[low:high], offsets[low:high], last)
        if part.size <= max_bytes:
            parts.append(part)
        elif high - low == 1:
            return SplitResult(parts, TooLarge(offsets[low], part.size))
        else:
            todo[:0] = _pieces(opened.spans, low, high, max(2, -(-part.size // max_bytes)))
    return SplitResult(parts, None)


def _pieces(spans: Sequence[RecordSpan], low: int, high: int, wanted: int) -> list[tuple[int, int]]:
    """Cut records ``low`` to ``high`` into about ``wanted`` pieces of equal size, at least two."""
    ends = list(accumulate(span.end - span.start + 8 for span in spans[low:high]))
    share = ends[-1] / wanted
    pieces: list[tuple[int, int]] = []
    start, limit = 0, share
    for index, end in enumerate(ends):
        if end > limit and index > start:
            pieces.append((low + start, low + index))
            start, limit = index, (ends[index - 1]) + share
    pieces.append((low + start, high))
    return pieces


def merge(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Join waiting batches of one partition into one, in order, with the codec of the biggest.

    None of them may have been sent: a broker recognises a repeat only by its exact range.
    """
    if len(batches) == 1:
        return batches[0]
    opened = [_open(batch.data) for batch in batches]
    codec = max(batches, key=lambda batch: batch.size).codec
    base_timestamp = opened[0].base_timestamp
    out, delta = bytearray(), 0
    for one in opened:
        payload, append_time = one.payload, one.append_time
        shift = (one.base_timestamp if append_time is None else append_time) - base_timestamp
        for stamp, _, start, end in one.spans:
            append_record(
                out, payload[start:end], shift + stamp if append_time is None else shift, delta
            )
            delta += 1
    runs: list[tuple[int, int]] = []
    for first, count in (run for batch in batches for run in batch.runs):
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
    return _pack(
        codec,
        out,
        runs=tuple(runs),
        last_offset=batches[-1].last_offset,
        epoch=batches[-1].leader_epoch,
        stamps=(base_timestamp, max(batch.max_timestamp for batch in batches)),
    )


def repack(batch: RecordBatch) -> RecordBatch:
    """Pack the records of one batch again: dense deltas, fresh compression, the same offsets map."""
    packed = rewrite(batch.data)
    assert packed is not None, "a queued batch has records"
    packed.runs, packed.leader_epoch = batch.runs, batch.leader_epoch
    packed.base_offset, packed.last_offset = batch.base_offset, batch.last_offset
    return packed


def recompress(batch: RecordBatch, codec: Codec) -> RecordBatch:
    """Return the batch with another codec; the records' bytes stay as they are."""
    if batch.codec is codec:
        return batch
    header = HEADER.unpack_from(batch.data)
    payload = decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:])
    return _pack(
        codec,
        payload,
        runs=batch.runs,
        last_offset=batch.last_offset,
        epoch=batch.leader_epoch,
        stamps=(header[7], batch.max_timestamp),
    )
