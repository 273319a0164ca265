"""``spark.read.format("mm2py")`` and ``readStream``: topics as a DataFrame, without a connector jar.

Flow: options -> ranges of offsets, fixed on the driver -> one task per partition -> ``RangeReader`` -> Arrow batches.
A task that is tried again reads exactly the same records; of a batch read from ``earliest`` what the log still has. Options: ``bootstrap.servers``, ``topics`` (patterns as in mm2.properties),
``startingOffsets``, ``endingOffsets``, ``maxOffsetsPerTrigger``, and Java client properties.
"""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast, final

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
from mm2py.config.clients import consumer_settings
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import parse_list
from mm2py.errors import ConfigError, PartitionError
from mm2py.types import EARLIEST, LATEST, TopicPartition
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.range_reader import LogEnds, OffsetsGoneError, RangeReader, log_ends
from mm2py_jobs.spark.record_columns import SPARK_SCHEMA, RecordColumns

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

T = TypeVar("T")

_OURS: Final = {
    "topics": "topics",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
}
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

Ends = Mapping[TopicPartition, LogEnds]
Offsets = dict[str, dict[str, int]]
"""Topic -> partition -> offset, as Spark's own Kafka source writes them."""


class _Range(NamedTuple):
    """What one task reads."""

    partition: TopicPartition
    first: int
    end: int
    earliest: bool = False
    """Whether it begins at the first record that the log has when it is read."""


@final
class ReadOptions:
    """The options of one read, checked; Spark hands them on in lower case.

    Raises:
        ConfigError: an option is unknown, missing or wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        ours = {key: text for key, text in options.items() if key.lower() in _OURS}
        named = {_OURS[key.lower()]: text for key, text in ours.items()}
        self.properties = {key.lower(): text for key, text in options.items() if key not in ours}
        for key in self.properties:
            if "." not in key:
                raise ConfigError(
                    f"option {key!r} is not known",
                    remedy=f"write one of {', '.join(_OURS.values())}, or a Kafka client property",
                )
        if not self.properties.get("bootstrap.servers"):
            raise ConfigError(
                'option "bootstrap.servers" is missing', remedy="write host1:9092,host2:9092"
            )
        settings = consumer_settings(self.properties, scope='format("mm2py")')
        self.read_committed = settings.isolation_level == "read_committed"
        patterns = tuple(it for it in parse_list(named.get("topics", "")) if it)
        if not patterns:
            raise ConfigError('option "topics" is missing', remedy="write names or patterns")
        self._topics = PatternList(patterns)
        self._patterns = ",".join(patterns)
        self.starting = _offsets(named.get("startingOffsets", "earliest"), "startingOffsets")
        self.ending = _offsets(named.get("endingOffsets", "latest"), "endingOffsets")
        self.most_rows = _rows(named.get("maxOffsetsPerTrigger"))

    def log_ends(self) -> Ends:
        """Ask the cluster where the partitions of the topics begin and end now.

        Raises:
            ConfigError: there is no such topic.
            Mm2pyError: the cluster does not answer.
        """
        return ask_cluster(self.properties, self._log_ends)

    async def _log_ends(self, cluster: Cluster) -> Ends:
        described = await Admin(cluster).list_topics()
        chosen = sorted(name for name in described if self._topics.matches(name))
        if not chosen:
            raise ConfigError(
                f"topics={self._patterns}: {cluster.settings.addresses} has no such topic"
            )
        topics = await Admin(cluster).describe_topics(chosen)
        partitions = [
            TopicPartition(name, number)
            for name, description in sorted(topics.items())
            for number in sorted(description.partitions)
        ]
        return await log_ends(cluster, partitions, read_committed=self.read_committed)

    def ranges(self) -> list[_Range]:
        """Fix what is read now: numbers, so that a task that is tried again reads the same."""
        ends = self.log_ends()
        firsts = _resolve(self.starting, ends, EARLIEST, "startingOffsets")
        lasts = _resolve(self.ending, ends, LATEST, "endingOffsets")
        for tp, first in firsts.items():
            if first > lasts[tp]:
                raise PartitionError(
                    f"startingOffsets {first} is behind endingOffsets {lasts[tp]}",
                    topic=tp.topic,
                    partition=tp.partition,
                )
        return [
            _Range(tp, first, lasts[tp], first == ends[tp].start and self._is_earliest(tp))
            for tp, first in firsts.items()
        ]

    def _is_earliest(self, tp: TopicPartition) -> bool:
        if isinstance(self.starting, int):
            return self.starting == EARLIEST
        return self.starting.get(tp.topic, {}).get(str(tp.partition), EARLIEST) == EARLIEST


def _offsets(text: str, option: str) -> int | Offsets:
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    try:
        document: object = json.loads(text)
        assert isinstance(document, dict)
        offsets: Offsets = {}
        for topic, partitions in cast("dict[str, dict[str, object]]", document).items():
            offsets[topic] = {str(int(it)): int(str(number)) for it, number in partitions.items()}
    except (ValueError, AssertionError, AttributeError):
        raise ConfigError(
            f"{option}={text}: neither earliest, latest nor JSON",
            remedy='write for example {"orders": {"0": 23, "1": -2}}; -2 is earliest, -1 latest',
        ) from None
    return offsets


def _rows(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"maxOffsetsPerTrigger={text}: not a positive number")
    return int(text)


def _resolve(
    wanted: int | Offsets, ends: Ends, default: int, option: str
) -> dict[TopicPartition, int]:
    """Return an offset per partition; those that JSON leaves out have the default."""
    if isinstance(wanted, int):
        return {tp: _offset_of(end, wanted, tp, option) for tp, end in ends.items()}
    given = {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in wanted.items()
        for number, offset in partitions.items()
    }
    unknown = sorted(given.keys() - ends.keys())
    if unknown:
        raise ConfigError(
            f"{option} names {unknown[0]}, which is no partition of the chosen topics"
        )
    return {tp: _offset_of(end, given.get(tp, default), tp, option) for tp, end in ends.items()}


def _offset_of(ends: LogEnds, offset: int, tp: TopicPartition, option: str) -> int:
    if offset == EARLIEST:
        return ends.start
    if offset == LATEST:
        return ends.end
    if not ends.start <= offset <= ends.end:
        raise PartitionError(
            f"{option} {offset} is not in the log, which has {ends.start} to {ends.end}",
            topic=tp.topic,
            partition=tp.partition,
        )
    return offset


class _PartitionRange(InputPartition):
    """One task: a range of one partition."""

    def __init__(self, offsets: _Range) -> None:
        super().__init__(offsets)
        self.found = offsets


def _read(options: ReadOptions, partition: InputPartition) -> "Iterator[RecordBatch]":
    assert isinstance(partition, _PartitionRange)
    tp, first, end, earliest = partition.found
    columns = RecordColumns(tp, first, end)
    for batch in read_range(
        options.properties,
        tp,
        first,
        end,
        read_committed=options.read_committed,
        earliest=earliest,
    ):
        yield from columns.take(batch)
    yield from columns.rest()


class Mm2pyDataSource(DataSource):
    """Topics of a Kafka cluster; ``spark.dataSource.register(Mm2pyDataSource)``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "mm2py"

    def schema(self) -> str:
        """Return the columns."""
        return SPARK_SCHEMA

    def reader(self, schema: "StructType") -> "Mm2pyReader":
        """Return what reads a fixed range."""
        return Mm2pyReader(ReadOptions(_plain(self.options)))

    def streamReader(self, schema: "StructType") -> "Mm2pyStreamReader":  # noqa: N802 - Spark's name
        """Return what reads micro-batches."""
        return Mm2pyStreamReader(ReadOptions(_plain(self.options)))


def _plain(options: MutableMapping[str, str]) -> dict[str, str]:
    return {str(key): str(value) for key, value in options.items()}


class Mm2pyReader(DataSourceReader):
    """A batch read: its ranges are fixed once, on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one task per partition that has anything, the largest first."""
        ranges = [it for it in self._options.ranges() if it.first < it.end]
        return [_PartitionRange(it) for it in sorted(ranges, key=lambda it: it.first - it.end)]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read one range; runs in a task."""
        return _read(self._options, partition)


class Mm2pyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read: Spark's checkpoint has the offsets, ``maxOffsetsPerTrigger`` bounds a micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        if options.ending != LATEST:
            raise ConfigError("endingOffsets is only for spark.read; a stream has no end")
        self._options = options
        self._last: Offsets | None = None
        """With the trigger availableNow: nothing after it is read."""

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        options = self._options
        return _document(
            _resolve(options.starting, options.log_ends(), EARLIEST, "startingOffsets")
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query."""
        self._last = self.reportLatestOffset()

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Return where the logs end."""
        return _document({tp: end.end for tp, end in self._options.log_ends().items()})

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; a limit is shared out by how much waits in each partition."""
        ends = self._last or self.reportLatestOffset()
        missing = [topic for topic in start if topic not in ends]
        if missing:
            raise ConfigError(
                f"topic {missing[0]} was being read and is gone",
                remedy="start a new query with another checkpoint folder",
            )
        waiting = {
            (topic, number): end - _begin(start, topic, number)
            for topic, partitions in ends.items()
            for number, end in partitions.items()
        }
        shares = _shared(waiting, limit.max_rows) if isinstance(limit, ReadMaxRows) else waiting
        return {
            topic: {
                number: _begin(start, topic, number) + max(0, shares[topic, number])
                for number in partitions
            }
            for topic, partitions in ends.items()
        }

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        ranges = [
            _Range(TopicPartition(topic, int(number)), _begin(start, topic, number), last)
            for topic, partitions in end.items()
            for number, last in partitions.items()
        ]
        return [_PartitionRange(it) for it in ranges if it.first < it.end]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        """Read one range; runs in a task."""
        return _read(self._options, partition)


def _document(offsets: Mapping[TopicPartition, int]) -> Offsets:
    by_partition: Offsets = {}
    for tp, offset in offsets.items():
        by_partition.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return by_partition


def _begin(start: Offsets, topic: str, number: str) -> int:
    """Return where a partition continues; one that came later begins with its first record."""
    return start.get(topic, {}).get(number, 0)


def _shared(waiting: Mapping[tuple[str, str], int], most: int) -> dict[tuple[str, str], int]:
    """Share ``most`` rows out by what waits; each partition with anything gets one at least."""
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


def read_range(
    properties: Mapping[str, str],
    tp: TopicPartition,
    first: int,
    end: int,
    *,
    read_committed: bool,
    earliest: bool = False,
) -> Iterator[LogBatch]:
    """Yield the data batches of a range, with ``earliest`` from where the log begins by now; errors as ``RangeReader.read``."""

    async def batches() -> AsyncGenerator[list[LogBatch]]:
        async with Cluster.of(properties, alias=properties["bootstrap.servers"]) as cluster:
            reader = RangeReader(cluster, read_committed=read_committed)
            begin: int | None = first
            while begin is not None:
                try:
                    async for batch in reader.read(tp, begin, end):
                        yield batch
                    begin = None
                except OffsetsGoneError as gone:
                    if not earliest or gone.offset != begin or gone.log_start <= begin:
                        raise
                    begin = min(gone.log_start, end)

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


async def _next(pieces: AsyncGenerator[list[LogBatch]]) -> list[LogBatch]:
    return await anext(pieces)
