"""Records of a log as Arrow record batches: one row per record, the columns of ``format("mm2py")``.

Flow: ``LogBatch`` -> ``columns``, a buffer per column -> ``pyarrow.RecordBatch``; no object of
Python per record. Shared by the data source and by archives of the shape ``records``.
"""

from collections.abc import Iterator
from typing import Final, cast, final

import pyarrow as pa
import pyarrow.compute as pc

from mm2py.protocol.columns import columns
from mm2py.protocol.compression import decompress
from mm2py.protocol.kernel import Columns, Filled, Part
from mm2py.protocol.record_bytes import damaged
from mm2py.types import TopicPartition
from mm2py_jobs.log.log_batches import LogBatch

KAFKA_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
"""Of Spark's own Kafka source."""
HEADERS_SCHEMA: Final = ", headers array<struct<key: string, value: binary>>"
"""What ``includeHeaders`` adds."""

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)

_KAFKA_NAMES: Final = {"timestamp_type": "timestampType"}

_ROWS: Final = 10_000
_BYTES: Final = 16 * 1024 * 1024
"""An Arrow batch is handed on when it has so many rows or bytes."""

_LAST_MS: Final = (2**63 - 1) // 1000


def as_spark(batch: pa.RecordBatch, *, headers: bool) -> pa.RecordBatch:
    """Return the same rows with the names and in the order of ``KAFKA_SCHEMA``; nothing is copied.
    Headers are null where a record has none."""
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type"]
    columns: list[pa.Array] = [batch.column(it) for it in names]
    if headers:
        # ``KafkaRecordToRowConverter``: null, not an empty array, for a record without headers.
        found = cast("pa.ListArray", batch.column("headers"))
        has_none = pc.equal(pc.list_value_length(found), 0)
        columns.append(pa.ListArray.from_arrays(found.offsets, found.values, mask=has_none))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, [_KAFKA_NAMES.get(it, it) for it in names])


@final
class RecordColumns:
    """Gathers the records of one partition whose offsets are in ``first <= offset < end``."""

    def __init__(self, tp: TopicPartition, first: int, end: int) -> None:
        self._tp, self._first, self._end = tp, first, end
        self._clear()

    def _clear(self) -> None:
        self._parts: list[Part] = []
        self._rows = self._bytes = 0

    def take(self, batch: LogBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch's records; yields what is full.

        Raises:
            ProtocolError: a record is damaged.
        """
        # A copy: the batch lies in the answer of a broker, most of which may not be wanted.
        payload = bytes(decompress(batch.codec, batch.payload))
        stamp = batch.max_timestamp if batch.is_log_append else batch.base_timestamp
        self._parts.append(
            (
                payload,
                batch.count,
                batch.base_offset,
                stamp,
                batch.is_log_append,
                self._first,
                batch.runs,
            )
        )
        self._rows += batch.count
        self._bytes += len(payload)
        if self._rows >= _ROWS or self._bytes >= _BYTES:
            yield from self.rest()

    def begin_at(self, first: int) -> None:
        """Leave out what is below an offset from now on."""
        self._first = first

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what was gathered since the last time.

        Raises:
            ProtocolError: a record is damaged.
        """
        parts = self._parts
        self._clear()
        try:
            found = columns(parts, self._end)
        except ValueError as error:  # the C kernel knows none of our errors
            raise damaged(f"{self._tp}: {error}") from None
        if found[0]:
            yield self._arrow(found)

    def _arrow(self, found: Columns) -> pa.RecordBatch:
        offsets, stamps, kinds, keys, values, header_ends, names, texts = found
        rows, tp = len(offsets) // 8, self._tp
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(tp.topic, pa.string()), rows),
                pa.repeat(pa.scalar(tp.partition, pa.int32()), rows),
                _numbers(pa.int64(), offsets),
                _times(_numbers(pa.int64(), stamps)),
                _numbers(pa.int32(), kinds),
                _binary(keys),
                _binary(values),
                pa.ListArray.from_arrays(
                    _numbers(pa.int32(), header_ends),
                    pa.StructArray.from_arrays(
                        [_text(_binary(names)), _binary(texts)], fields=list(_HEADER)
                    ),
                ),
            ],
            schema=ARROW_SCHEMA,
        )


def _numbers(kind: pa.DataType, buffer: bytearray) -> pa.Array:
    size = len(buffer) * 8 // kind.bit_width
    return pa.Array.from_buffers(kind, size, [None, pa.py_buffer(buffer)])


def _binary(filled: Filled) -> pa.Array:
    ends, bits, data = (pa.py_buffer(it) for it in filled)
    return pa.Array.from_buffers(pa.binary(), ends.size // 4 - 1, [bits, ends, data])


def _times(stamps: pa.Array) -> pa.Array:
    # -1 is a record without a time (``RecordBatch.NO_TIMESTAMP``); others may be later than
    # microseconds in 64 bits can say, as applications write what they like.
    is_time = pc.and_(pc.greater_equal(stamps, 0), pc.less_equal(stamps, _LAST_MS))
    known = pc.if_else(is_time, stamps, pa.scalar(None, pa.int64()))
    return pc.multiply(known, 1000).cast(ARROW_SCHEMA.field("timestamp").type)


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Brokers accept keys of headers that are not UTF-8: few have any.
        texts = (cast("bytes", it).decode("utf-8", "backslashreplace") for it in names.to_pylist())
        return pa.array(list(texts), pa.string())
