"""Records of a log as Arrow record batches: one row per record, the columns of ``format("mm2py")``.

Flow: ``LogBatch`` -> ``decode_batch`` -> lists per column -> ``pyarrow.RecordBatch``. Shared by the
data source and by archives of the shape ``records``.
"""

from collections.abc import Iterator
from typing import Final, cast, final

import pyarrow as pa
import pyarrow.compute as pc

from mm2py.protocol.records import Record, decode_batch
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
        self._offsets: list[int] = []
        self._stamps: list[int | None] = []
        self._types: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._header_ends: list[int] = [0]
        self._header_keys: list[str] = []
        self._header_values: list[bytes | None] = []
        self._bytes = 0

    def take(self, batch: LogBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch's records; yields what is full.

        Raises:
            ProtocolError: a record is damaged.
        """
        kind = int(batch.is_log_append)
        for record in decode_batch(batch.data, batch.runs).records:
            if self._first <= record.offset < self._end:
                self._add(record, kind)
        if len(self._offsets) >= _ROWS or self._bytes >= _BYTES:
            yield from self.rest()

    def begin_at(self, first: int) -> None:
        """Leave out what is below an offset from now on."""
        self._first = first

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what was gathered since the last time."""
        if self._offsets:
            yield self._arrow()
            self._clear()

    def _add(self, record: Record, kind: int) -> None:
        stamp, key, value = record.timestamp, record.key, record.value
        self._offsets.append(record.offset)
        # -1 is a record without a time (``RecordBatch.NO_TIMESTAMP``); others may be later than
        # microseconds in 64 bits can say, as applications write what they like.
        self._stamps.append(stamp * 1000 if 0 <= stamp <= _LAST_MS else None)
        self._types.append(kind)
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(key or b"") + len(value or b"")
        for name, content in record.headers:
            self._header_keys.append(name.decode("utf-8", "backslashreplace"))
            self._header_values.append(content)
        self._header_ends.append(len(self._header_keys))

    def _arrow(self) -> pa.RecordBatch:
        rows, schema = len(self._offsets), ARROW_SCHEMA
        headers = pa.StructArray.from_arrays(
            [pa.array(self._header_keys, pa.string()), pa.array(self._header_values, pa.binary())],
            fields=list(_HEADER),
        )
        columns = [
            pa.array([self._tp.topic] * rows, schema.field(0).type),
            pa.array([self._tp.partition] * rows, schema.field(1).type),
            pa.array(self._offsets, schema.field(2).type),
            pa.array(self._stamps, schema.field(3).type),
            pa.array(self._types, schema.field(4).type),
            pa.array(self._keys, schema.field(5).type),
            pa.array(self._values, schema.field(6).type),
            pa.ListArray.from_arrays(pa.array(self._header_ends, pa.int32()), headers),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
