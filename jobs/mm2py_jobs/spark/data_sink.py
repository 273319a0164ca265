"""``df.write.format("mm2py")`` and ``writeStream``: rows to topics, as Spark's own Kafka sink takes
and checks them.

Flow: columns and options, checked on the driver -> one task per partition of the frame -> Arrow
batches -> ``SinkRows`` -> ``RowSender`` -> the task ends when each of its records is acknowledged.
At least once: a task that is tried again writes its rows again.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, final

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

from mm2py.config.clients import producer_settings
from mm2py.errors import ConfigError
from mm2py_jobs.spark.read_options import client_properties
from mm2py_jobs.spark.row_sender import RowSender
from mm2py_jobs.spark.sink_rows import SinkRows

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")

log = logging.getLogger(__name__)

_OPTIONS: Final = {"topic", "includeheaders"}
_REFUSED: Final = ("key.serializer", "value.serializer")
_ACKS: Final = ("all", "-1", "0", "1")
_WEAKER: Final = {"acks": ("0", "1"), "enable.idempotence": ("false",)}
"""Values that promise less than each record has."""
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
        acks = self.properties.get("acks", "all")
        if acks not in _ACKS:
            raise ConfigError(f"acks={acks} is not one of {', '.join(_ACKS)}")
        for name, values in _WEAKER.items():
            if (value := self.properties.get(name, "").strip().lower()) in values:
                _note_without_effect(name, value)
        timeout = self.properties.get(_TIMEOUT, str(_TIMEOUT_MS))
        self.timeout_s = int(timeout) / 1000 if timeout.isdecimal() else _TIMEOUT_MS / 1000


@cache  # Spark makes the writer of a stream again for each micro-batch
def _note_without_effect(name: str, value: str) -> None:
    log.warning(
        'format("mm2py"): %s=%s has no effect: records are written by an idempotent producer and '
        "acknowledged by all in-sync replicas",
        name,
        value,
    )


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
    # own Kafka sink.
    with _event_loop() as run:
        sender = run(_sender(options))
        try:
            for batch in batches:
                if batch.num_rows:
                    rows = SinkRows(batch, options.columns, topic=options.topic, first=sender.rows)
                    run(sender.take(rows))
            run(sender.finish())
        finally:
            run(sender.close())
    return Written(sender.rows)


async def _sender(options: WriteOptions) -> RowSender:
    return RowSender(options.properties, options.timeout_s)


class _Run(Protocol):
    def __call__(self, work: Coroutine[None, None, T], /) -> T: ...


@contextmanager
def _event_loop() -> Generator[_Run]:
    """Run an event loop beside this thread: batches leave, and answers come, while it waits for
    rows."""
    begun: Future[asyncio.AbstractEventLoop] = Future()
    stopped = asyncio.Event()

    async def serve() -> None:
        begun.set_result(asyncio.get_running_loop())
        await stopped.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="rows", daemon=True)
    thread.start()
    loop = begun.result()

    def run(work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


@final
class Mm2pyWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]  # as pyspark's own Arrow class
        return write_rows(self._options, iterator)


@final
class Mm2pyStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]  # as pyspark's own Arrow class
        return write_rows(self._options, iterator)
