"""The data batches of a log unchanged: whole, undamaged, with the log's own headers and offsets.

Flow: one partition's record set of a Fetch response -> ``walk_log`` -> ``LogBatch`` per batch with
data. Markers, empty batches and, under read_committed, aborted ones are left out. For code that
compares or archives a log; a mirror forwards with ``batch_stage.classify``, which changes what the
target would refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.errors import PartitionError
from mm2py.protocol.abort_filter import AbortFilter
from mm2py.protocol.batch_stage import classify
from mm2py.protocol.legacy import legacy_to_v2
from mm2py.protocol.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    TRANSACTIONAL_FLAG,
    Codec,
    RecordBatch,
    crc_matches,
)
from mm2py.protocol.record_bytes import damaged
from mm2py.protocol.records import decode_batch
from mm2py.runtime.tasks.record_task import new_batch
from mm2py.types import TopicPartition

_LOG_OVERHEAD: Final = 12
_CODECS: Final = tuple(Codec)


@final
@dataclass(frozen=True, slots=True)
class LogBatch:
    """One v2 batch of a log. ``runs`` has the offsets of one that was converted from an old format,
    else nothing."""

    data: memoryview
    base_offset: int
    last_offset: int
    count: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def payload(self) -> memoryview:
        return self.data[HEADER_BYTES:]

    @property
    def codec(self) -> Codec:
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def is_log_append(self) -> bool:
        """Whether the broker stamped it: then all records have ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction: data, or the marker of its end."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_marker(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)


def records_in(batch: LogBatch, first: int, end: int) -> int:
    """Return how many records of a batch have offsets of ``first <= offset < end``."""
    if first <= batch.base_offset and batch.last_offset < end:
        return batch.count
    return sum(first <= it.offset < end for it in decode_batch(batch.data, batch.runs).records)


def sendable(
    data: memoryview, position: int, tp: TopicPartition, base_offset: int
) -> list[RecordBatch]:
    """Return a batch from ``position`` on as the Sender takes it: what the target would refuse is
    changed, as when mirroring; ``PartitionError``: it cannot be, at ``base_offset`` of ``tp``."""
    staged = classify(data, position, None)
    if staged.problem is not None:
        raise PartitionError(
            staged.problem.text, topic=tp.topic, partition=tp.partition, offset=base_offset
        )
    return staged.batches


def cut(tp: TopicPartition, batch: LogBatch, first: int, end: int) -> list[RecordBatch]:
    """Return what of a batch has offsets of ``first <= offset < end``, as the Sender takes it, in
    bytes of its own; raises as ``sendable``."""
    if not batch.runs and batch.last_offset < end:
        return sendable(memoryview(bytearray(batch.data)), first, tp, batch.base_offset)
    if first <= batch.base_offset and batch.last_offset < end:
        return [
            RecordBatch(
                memoryview(bytearray(batch.data)),
                batch.base_offset,
                batch.last_offset,
                batch.count,
                batch.max_timestamp,
                -1,
                batch.attributes,
                batch.runs,
                None,
            )
        ]
    records = decode_batch(batch.data, batch.runs).records
    inside = [it for it in records if first <= it.offset < end]
    return [new_batch([it.offset for it in inside], inside, batch.codec)] if inside else []


@final
@dataclass(slots=True)
class LogWalk:
    """The data batches of a record set; ``next_offset`` follows its last whole batch, of any
    kind."""

    batches: list[LogBatch]
    next_offset: int


def walk_log(
    record_set: memoryview,
    wanted_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    markers: bool = False,
) -> LogWalk:
    """Return the batches that have an offset from ``wanted_offset`` on; a partial one at the end is
    ignored.

    ``aborted`` is the response's list under read_committed. With ``markers`` transaction markers
    are included.

    Raises:
        ProtocolError: a batch is damaged; names its offset.
    """
    walk, aborts = LogWalk([], wanted_offset), AbortFilter(aborted)
    position, total = 0, len(record_set)
    while total - position >= HEADER_BYTES:
        # Byte 16 has the magic in each layout. Messages of 0 and 1, from before KIP-98, stay in a
        # log until they are compacted or deleted, whatever its brokers write by now.
        if record_set[position + 16] < 2:
            converted, position = legacy_to_v2(record_set, position, wanted_offset)
            walk.batches += (_converted(batch) for batch in converted)
            if converted:
                walk.next_offset = converted[-1].last_offset + 1
            continue
        end = position + _LOG_OVERHEAD + int.from_bytes(record_set[position + 8 : position + 12])
        # Brokers send bytes of a segment up to the limit of the request, so the last batch may be
        # cut off.
        if record_set[position + 16] == 2 and position + HEADER_BYTES <= end and end > total:
            break
        view = record_set[position:end]
        batch = log_batch(view)
        if batch.last_offset >= wanted_offset:
            walk.next_offset = batch.last_offset + 1
            if _has_data(batch, aborts) or (markers and batch.is_marker and batch.count):
                walk.batches.append(batch)
        else:
            _has_data(batch, aborts)  # its marker may end an aborted span
        position = end
    return walk


def log_batch(view: memoryview) -> LogBatch:
    """Return the bytes of exactly one v2 batch as a ``LogBatch``; ``ProtocolError``: they are none,
    or damaged."""
    if len(view) < HEADER_BYTES or view[16] != 2:
        raise damaged(f"{len(view)} bytes that are no batch of magic 2")
    base, length, _, _, _, attributes, delta, first, newest, _, _, _, count = HEADER.unpack_from(
        view
    )
    if length + _LOG_OVERHEAD != len(view) or delta < 0 or count < 0 or base < 0:
        raise damaged(f"the batch at offset {base} announces {length} bytes, {count} records")
    if not crc_matches(view):
        raise damaged(f"the batch at offset {base} does not match its CRC")
    if attributes & CODEC_MASK > Codec.ZSTD:
        raise damaged(f"codec {attributes & CODEC_MASK} at offset {base}")
    return LogBatch(view, base, base + delta, count, attributes, first, newest)


def _has_data(batch: LogBatch, aborts: AbortFilter) -> bool:
    producer: int = HEADER.unpack_from(batch.data)[9]
    aborts.enter(batch.last_offset)
    if batch.is_marker:
        if batch.count:
            aborts.passed_marker(batch.data, producer, batch.count)
        return False
    if batch.is_transactional and aborts.covers(producer):
        return False
    # Compaction leaves a batch without records where it has the last sequence of a producer.
    return batch.count > 0


def _converted(batch: RecordBatch) -> LogBatch:
    view = memoryview(batch.data)
    header = HEADER.unpack_from(view)
    return LogBatch(
        view,
        batch.base_offset,
        batch.last_offset,
        batch.count,
        batch.attributes,
        header[7],
        header[8],
        batch.runs,
    )
