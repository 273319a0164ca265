"""``df.write.format("mm2py")`` and ``writeStream``: rows to topics, as Spark's own Kafka sink takes
and checks them.

Flow: columns and options, checked on the driver -> one task per partition of the frame -> Arrow
batches -> ``RecordSender`` -> the task ends when each of its records is acknowledged. At least
once: a task that is tried again writes its rows again.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, cast, final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from mm2py.api.mirror_maker_1 import Headers, OutgoingRecord
from mm2py.config.librdkafka import producer_settings
from mm2py.errors import ConfigError, FatalError
from mm2py_jobs.spark.read_options import client_properties

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

    from mm2py_connectors.record_sender import RecordSender, SentRecord

_OPTIONS: Final = {"topic", "includeheaders"}
_REFUSED: Final = ("key.serializer", "value.serializer")
_TIMEOUT: Final = "delivery.timeout.ms"
_TIMEOUT_MS: Final = 120_000
"""Java's default."""
_TEXT: Final = (StringType, BinaryType)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


class _SinkColumn(NamedTuple):
    """A column of the sink, and its types."""

    name: str
    types: tuple[type[DataType], ...]
    needed: bool = False


_COLUMNS: Final = (
    _SinkColumn("value", _TEXT, needed=True),
    _SinkColumn("key", _TEXT),
    _SinkColumn("topic", (StringType,)),
    _SinkColumn("partition", (IntegerType,)),
    _SinkColumn("headers", (ArrayType,)),
)
"""Others are left out, as Spark does."""


@final
class WriteOptions:
    """The options of one write, checked against the columns of the frame.

    Raises:
        ConfigError: an option is unknown, missing or wrong, or a column is.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        named = {key.lower(): text for key, text in options.items() if key.lower() in _OPTIONS}
        self.properties = client_properties(options, _OPTIONS, _REFUSED)
        self.topic = named.get("topic")
        self.columns = [it.name for it in _COLUMNS if _is_there(it, schema)]
        if self.topic is None and "topic" not in self.columns:
            raise ConfigError(
                "neither a column nor an option names the topic",
                remedy='write option("topic", "orders")',
            )
        producer_settings(self.properties, scope='format("mm2py")')
        timeout = self.properties.get(_TIMEOUT, str(_TIMEOUT_MS))
        self.timeout_s = int(timeout) / 1000 if timeout.isdecimal() else _TIMEOUT_MS / 1000


def _is_there(column: _SinkColumn, schema: StructType) -> bool:
    found = next((it.dataType for it in schema.fields if it.name == column.name), None)
    if found is None and column.needed:
        raise ConfigError(f"the frame has no column {column.name!r}")
    if found is None:
        return False
    wrong = not isinstance(found, column.types)
    if isinstance(found, ArrayType):
        wrong = _shape(found.elementType) != _shape(_HEADER)
    if wrong:
        words = " or ".join(it.typeName() for it in column.types)
        raise ConfigError(f"column {column.name!r} is {found.simpleString()}, not {words}")
    return True


def _shape(of: DataType) -> list[tuple[str, DataType]] | None:
    return [(it.name, it.dataType) for it in of.fields] if isinstance(of, StructType) else None


class Written(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, records: int) -> None:
        self.records = records


def write_rows(options: WriteOptions, batches: "Iterator[RecordBatch]") -> Written:
    """Write rows in their order and wait for each; runs in a task.

    Raises:
        FatalError: a record was refused, has no topic, or the target has taken nothing for
            ``delivery.timeout.ms``.
    """
    # Spark may run a task again, also at the same time: rows are written at least once, as by its
    # own Kafka sink. Only executors that write load librdkafka.
    from mm2py_connectors.record_sender import RecordSender, SentRecord

    values = producer_settings(options.properties, scope='format("mm2py")').values
    sender = RecordSender(values, _refuse)
    idle = _IdleLimit(sender, options.timeout_s)
    count = 0
    try:
        for batch in batches:
            idle.rows_came()
            with sender.hold(idle):
                for record in _records(options, batch):
                    if not record.topic:
                        raise FatalError(
                            f"row {count} has no topic",
                            remedy="fill the column topic, or set the option topic",
                        )
                    if record.partition is not None and record.partition < 0:
                        raise FatalError(f"row {count} has the partition {record.partition}")
                    place = (
                        record.topic,
                        -1 if record.partition is None else record.partition,
                        count,
                    )
                    sender.send(SentRecord(place, record), idle)
                    count = idle.handed = count + 1
                sender.serve(idle)
        with sender.hold(idle):
            sender.flush(idle)
    finally:
        sender.close()
    return Written(count)


def _records(options: WriteOptions, batch: "RecordBatch") -> Iterator[OutgoingRecord]:
    """Return the rows as records, without a step of Python for columns that are not there."""
    there = {name: batch.column(name) for name in options.columns}
    return map(
        OutgoingRecord,
        _objects(there["topic"]) if options.topic is None else repeat(options.topic),
        _bytes(there["key"]) if "key" in there else repeat(None),
        _bytes(there["value"]),
        map(_headers, there["headers"].to_pylist()) if "headers" in there else repeat(()),
        repeat(None),
        there["partition"].to_pylist() if "partition" in there else repeat(None),
    )


def _bytes(column: "Array") -> list[object]:
    """Return bytes, also of text: its UTF-8."""
    as_bytes = {"string": "binary", "large_string": "large_binary"}.get(str(column.type))
    return _objects(column.cast(as_bytes) if as_bytes else column)


def _objects(column: "Array") -> list[object]:
    # A ``to_pylist`` makes an object of Arrow for each value first.
    return column.to_numpy(zero_copy_only=False).tolist()


def _headers(value: object) -> Headers:
    found = cast("list[dict[str, object]] | None", value) or ()
    return [(cast("str", it["key"]), cast("bytes | None", it["value"])) for it in found]


class _IdleLimit:
    """Called while the target is waited for: raises when it has taken nothing for so long."""

    def __init__(self, sender: "RecordSender", timeout_s: float) -> None:
        self.handed = 0
        """Records that were handed to the sender."""
        self._sender, self._timeout_s = sender, timeout_s
        self._taken, self._since_s = 0, time.monotonic()

    def rows_came(self) -> None:
        """Begin anew where nothing waits for the target: it had nothing to take while rows were
        made."""
        if not self._sender.waiting[0]:
            self._since_s = time.monotonic()

    def __call__(self) -> None:
        waiting, cause = self._sender.waiting
        # librdkafka counts errors that it has not reported yet among its records.
        waiting = min(waiting, self.handed)
        taken, now_s = self.handed - waiting, time.monotonic()
        if taken > self._taken:
            self._taken, self._since_s = taken, now_s
        elif now_s > self._since_s + self._timeout_s:
            raise FatalError(
                f"the target has taken nothing for {self._timeout_s:g} s ({_TIMEOUT}), {waiting} "
                f"records wait: {cause or 'no answer'}",
                remedy="look whether its brokers can be reached and take records",
            )


def _refuse(sent: "SentRecord", text: str) -> None:
    topic, _, row = sent.place
    cause = text.partition(" was not taken by the target: ")[2]
    raise FatalError(f"row {row} of this task was not taken by topic {topic}: {cause}")


@final
class Mm2pyWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]  # as pyspark's own Arrow class
        """Write the rows of one task."""
        return write_rows(self._options, iterator)


@final
class Mm2pyStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]  # as pyspark's own Arrow class
        """Write the rows of one task of a micro-batch."""
        return write_rows(self._options, iterator)
