"""``format("mm2py")`` of ``spark.read`` and ``readStream``: topics as a DataFrame, without a
connector jar (``data_sink`` writes).

Flow: ``ReadOptions`` -> ranges of offsets, fixed on the driver -> one task per range ->
``RangeReader`` -> Arrow batches. A task that is tried again reads exactly the same records; of a
batch read from ``earliest`` what the log still has.
"""

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from math import inf
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.errors import ConfigError, PartitionError
from mm2py.types import TopicPartition
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import LogEnds
from mm2py_jobs.log.range_reader import OffsetsGoneError, RangeReader
from mm2py_jobs.spark.data_sink import Mm2pyStreamWriter, Mm2pyWriter, WriteOptions
from mm2py_jobs.spark.read_options import Offsets, Range, ReadOptions
from mm2py_jobs.spark.record_columns import (
    HEADERS_SCHEMA,
    KAFKA_SCHEMA,
    RecordColumns,
    as_spark,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

T = TypeVar("T")

log = logging.getLogger(__name__)


class _PartitionRange(InputPartition):
    """One task: a range of one partition."""

    def __init__(self, offsets: Range) -> None:
        super().__init__(offsets)
        self.found = offsets


def _read(options: ReadOptions, partition: InputPartition) -> "Iterator[RecordBatch]":
    if not isinstance(partition, _PartitionRange):
        return  # pyspark's own, where there is nothing to read
    tp, first, end, earliest = partition.found
    columns = RecordColumns(tp, first, end)
    batches = read_range(
        options.properties,
        tp,
        first,
        end,
        read_committed=options.read_committed,
        earliest=earliest,
        skips_lost=not options.fails_on_loss,
        continues_at=columns.begin_at,
    )
    for batch in batches:
        for rows in columns.take(batch):
            yield as_spark(rows, headers=options.has_headers)
    for rows in columns.rest():
        yield as_spark(rows, headers=options.has_headers)


class Mm2pyDataSource(DataSource):
    """Topics of a Kafka cluster; Spark finds it through ``pyspark_mm2py``."""

    @classmethod
    def name(cls) -> str:
        return "mm2py"

    def schema(self) -> str:
        """Return the columns, those of Spark's Kafka source."""
        return KAFKA_SCHEMA + (HEADERS_SCHEMA if self._options().has_headers else "")

    def reader(self, schema: "StructType") -> "Mm2pyReader":
        return Mm2pyReader(self._options())

    def streamReader(self, schema: "StructType") -> "Mm2pyStreamReader":  # noqa: N802 - Spark's name
        return Mm2pyStreamReader(ReadOptions(_plain(self.options), stream=True))

    def writer(self, schema: "StructType", overwrite: bool) -> Mm2pyWriter:  # noqa: FBT001 - as Spark calls it
        """Return what appends rows to topics."""
        if overwrite:
            raise ConfigError(
                "mode overwrite: records of a topic are not replaced", remedy='write mode("append")'
            )
        return Mm2pyWriter(WriteOptions(_plain(self.options), schema))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> Mm2pyStreamWriter:  # noqa: FBT001, N802 - Spark's name
        """Return the sink of a query; its output mode does not matter, rows are appended."""
        return Mm2pyStreamWriter(WriteOptions(_plain(self.options), schema))

    def _options(self) -> ReadOptions:
        return ReadOptions(_plain(self.options))


def _plain(options: MutableMapping[str, str]) -> dict[str, str]:
    return {str(key): str(value) for key, value in options.items()}


class Mm2pyReader(DataSourceReader):
    """A batch read: its ranges are fixed once, on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per range that has anything, the largest first."""
        found = ask_cluster(self._options.properties, self._options.ranges)
        return [_PartitionRange(it) for it in found]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read one range; runs in a task."""
        return _read(self._options, partition)


class Mm2pyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read: Spark's checkpoint has the offsets, ``maxOffsetsPerTrigger`` bounds a
    micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._is_bounded = False
        self._last: Mapping[TopicPartition, LogEnds] | None = None
        """With the trigger availableNow: nothing after these ends is read."""
        self._began_s = -inf
        """When the last micro-batch began."""

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""

        async def begin(cluster: Cluster) -> Offsets:
            ends = await self._options.log_ends(cluster)
            return _document(await self._options.beginnings(cluster, ends))

        return ask_cluster(self._options.properties, begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the query end where the logs end at its first look, which comes after its beginning
        is known."""
        self._is_bounded = True

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        return _document({tp: end.end for tp, end in self._log_ends().items()})

    def _log_ends(self) -> Mapping[TopicPartition, LogEnds]:
        return ask_cluster(self._options.properties, self._options.log_ends)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; a limit is shared out by how much waits in each
        partition."""
        ends = self._last if self._last is not None else self._log_ends()
        self._last = ends if self._is_bounded else None
        begins = {tp: _begin(start, tp, end.start) for tp, end in ends.items()}
        waiting = {tp: end.end - begins[tp] for tp, end in ends.items()}
        self._check_loss(start, waiting)
        total = sum(max(0, it) for it in waiting.values())
        least, waits_s = self._options.least_rows, time.monotonic() - self._began_s
        if (
            not self._is_bounded
            and total < (least or 0)
            and waits_s < self._options.longest_delay_s
        ):
            return start
        self._began_s = time.monotonic()
        shares = _shared(waiting, limit.max_rows) if isinstance(limit, ReadMaxRows) else waiting
        # A log that is shorter than what was read of it goes on at its end.
        return _document({tp: begin + shares[tp] for tp, begin in begins.items()})

    def _check_loss(self, start: Offsets, waiting: Mapping[TopicPartition, int]) -> None:
        """Name topics that are gone, and logs that are shorter than what was read of them.

        Raises:
            PartitionError: unless ``failOnDataLoss`` is false.
        """
        gone = [
            TopicPartition(topic, int(number))
            for topic, partitions in start.items()
            for number in partitions
            if TopicPartition(topic, int(number)) not in waiting
        ]
        cut = [tp for tp, size in waiting.items() if size < 0]
        for tp, what in (
            *((tp, "is gone") for tp in gone),
            *((tp, "has lost its end, or is another topic") for tp in cut),
        ):
            if self._options.fails_on_loss:
                raise PartitionError(
                    f"it was being read and {what}",
                    topic=tp.topic,
                    partition=tp.partition,
                    remedy="start a new query with another checkpoint folder, or set "
                    "failOnDataLoss to false",
                )
            log.warning("partition was being read and %s partition=%s", what, tp)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        ranges = [
            # What a new partition has lost before it was found is lost, as in Spark's source.
            Range(tp := TopicPartition(topic, int(number)), _begin(start, tp, 0), last)
            for topic, partitions in end.items()
            for number, last in partitions.items()
        ]
        whole = [it for it in ranges if it.first < it.end]
        return [_PartitionRange(it) for it in self._options.cut(whole)]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read one range; runs in a task."""
        return _read(self._options, partition)


def _document(offsets: Mapping[TopicPartition, int]) -> Offsets:
    by_partition: Offsets = {}
    for tp, offset in offsets.items():
        by_partition.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return by_partition


def _begin(start: Offsets, tp: TopicPartition, new: int) -> int:
    """Return where a partition continues, ``new`` for one that came later."""
    return start.get(tp.topic, {}).get(str(tp.partition), new)


def _shared(waiting: Mapping[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """Share ``most`` rows out by what waits; each partition with anything gets one at least."""
    # As ``KafkaMicroBatchStream.rateLimit``: in proportion, and rounded up below one row, so that
    # small partitions are not starved; a micro-batch may have more rows than its limit by that.
    total = sum(max(0, it) for it in waiting.values())
    if total <= most:
        return dict(waiting)
    return {tp: min(it, max(1, it * most // total)) if it > 0 else 0 for tp, it in waiting.items()}


# ---- in a task, where no event loop runs


def ask_cluster(
    properties: Mapping[str, str], question: Callable[[Cluster], Coroutine[None, None, T]]
) -> T:
    """Ask a cluster something, from code without an event loop."""

    async def ask() -> T:
        async with Cluster.of(properties, alias=properties.get("bootstrap.servers", "")) as cluster:
            return await question(cluster)

    return asyncio.run(ask())


def _unheard(_offset: int) -> None:
    """The caller does not listen."""


def read_range(
    properties: Mapping[str, str],
    tp: TopicPartition,
    first: int,
    end: int,
    *,
    read_committed: bool,
    earliest: bool = False,
    skips_lost: bool = False,
    continues_at: Callable[[int], None] = _unheard,
) -> Iterator[LogBatch]:
    """Yield the data batches of a range, with ``earliest`` from where the log begins by now; errors
    as ``RangeReader.read``.

    With ``skips_lost`` what the log does not have is left out, wherever it is; ``continues_at`` is
    told what is read next: the next batch may begin before it.
    """

    async def batches() -> AsyncGenerator[list[LogBatch]]:
        async with Cluster.of(properties, alias=properties["bootstrap.servers"]) as cluster:
            if skips_lost and not await _is_there(cluster, tp):
                log.warning(
                    "partition is gone, its records are left out partition=%s first=%d end=%d",
                    tp,
                    first,
                    end,
                )
                return
            reader = RangeReader(cluster, read_committed=read_committed)
            begin, rest = first, True
            while rest:
                try:
                    async for batch in reader.read(tp, begin, end):
                        yield batch
                    rest = False
                except OffsetsGoneError as gone:
                    is_begin = earliest and gone.offset == begin
                    if not skips_lost and not (is_begin and gone.log_start > begin):
                        raise
                    if skips_lost:
                        log.warning(
                            "records are lost and left out partition=%s offset=%d log_start=%d",
                            tp,
                            gone.offset,
                            gone.log_start,
                        )
                    # A log that ends before has nothing of the rest.
                    begin, rest = min(gone.log_start, end), gone.log_start > gone.offset
                    continues_at(begin)

    with asyncio.Runner() as runner:
        pieces = batches()
        try:
            while True:
                try:
                    piece = runner.run(_next(pieces))
                except StopAsyncIteration:
                    return
                yield from piece
        finally:
            runner.run(pieces.aclose())


async def _is_there(cluster: Cluster, tp: TopicPartition) -> bool:
    topic = (await Admin(cluster).describe_topics([tp.topic])).get(tp.topic)
    return topic is not None and (topic.error is not None or tp.partition in topic.partitions)


async def _next(pieces: AsyncGenerator[list[LogBatch]]) -> list[LogBatch]:
    return await anext(pieces)
