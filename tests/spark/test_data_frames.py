"""``format("mm2py")`` on real brokers, read and written, compared with confluent-kafka; ranges are fixed on the driver."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from mm2py.errors import ConfigError, FatalError, PartitionError
from mm2py.types import TopicPartition
from mm2py_jobs.spark.data_sink import WriteOptions, write_rows
from mm2py_jobs.spark.data_source import Mm2pyStreamReader, ask_cluster, read_range
from mm2py_jobs.spark.read_options import Range, ReadOptions
from mm2py_jobs.spark.record_columns import RecordColumns
from mm2py_jobs.spark.session import OpenSession
from tests.integration.cluster_changes import delete_records
from tests.integration.setups import Setup
from tests.integration.traffic import YEAR_MS, Logs, Sent, read, write
from tests.integration.transactions import write_mixed
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

OLD_MS: Final = 1_700_000_000_000 - YEAR_MS


class Row(NamedTuple):
    """A record as both readers show it."""

    partition: int
    offset: int
    timestamp_ms: int
    kind: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def rows_of(session: OpenSession, region: KafkaAddress, topic: str, **options: str) -> list[Row]:
    frame = (
        session.spark.read.format("mm2py")
        .option("bootstrap.servers", region.bootstrap_servers)
        .options(**{"topics": topic, "includeHeaders": "true"} | options)
        .load()
    )
    selected = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) ms", "timestampType", "key", "value", "headers"
    )  # fmt: skip
    rows = [
        Row(
            row["partition"],
            row["offset"],
            row["ms"],
            row["timestampType"],
            optional(row["key"]),
            optional(row["value"]),
            tuple((it["key"], optional(it["value"])) for it in headers_of(row)),
        )
        for row in selected.collect()
    ]
    return sorted(rows, key=lambda row: row[:2])


def headers_of(row: Any) -> Iterable[Any]:
    """Return the headers, null where there are none, as in Spark's own source."""
    assert row["headers"] != []
    return row["headers"] or ()


def optional(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def expected(logs: Logs, kind: int = 0) -> list[Row]:
    rows = [
        Row(partition, offset, it.timestamp_ms, kind, it.key, it.value, it.headers)
        for partition, log in logs.items()
        for offset, it in zip(log.offsets, log.records, strict=True)
    ]
    return sorted(rows, key=lambda row: row[:2])


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_are_what_a_consumer_reads(setup: Setup, lanes_session: OpenSession, codec: str) -> None:  # fmt: skip
    topic = setup.topic("rows", 3)
    producer = Producer({"bootstrap.servers": setup.a.bootstrap_servers, "compression.type": codec})
    for n in range(6000):
        producer.produce(
            topic,
            None if n % 7 == 0 else b"v%d" % n,
            None if n % 5 == 0 else b"k%d" % n,
            partition=n % 2,  # partition 2 stays empty
            timestamp=OLD_MS + n,
            headers=[("h", b"%d" % n), ("h", None)] if n % 3 == 0 else [],
        )
    producer.flush()
    truth = read(setup.a, topic)
    assert rows_of(lanes_session, setup.a, topic) == expected(truth)


def test_committed_reads_leave_aborted_records_out_and_uncommitted_ones_do_not(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("mixed", 2)
    write_mixed(setup.a, topic, 20, 15)
    committed = {"isolation.level": "read_committed"}
    assert rows_of(lanes_session, setup.a, topic, **committed) == expected(
        read(setup.a, topic, committed=True)
    )
    assert rows_of(lanes_session, setup.a, topic) == expected(read(setup.a, topic))


def test_ranges_are_exact_and_the_broker_s_timestamps_are_named(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("ranges", 2, config={"message.timestamp.type": "LogAppendTime"})
    write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(1000)])
    truth = expected(read(setup.a, topic), kind=1)
    options = {
        "startingOffsets": json.dumps({topic: {"0": 17, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 444, "1": 3}}),
    }
    wanted = [it for it in truth if (17 <= it.offset < 444 if it.partition == 0 else it.offset < 3)]
    assert rows_of(lanes_session, setup.a, topic, **options) == wanted


def test_a_stream_reads_everything_once_in_bounded_batches_and_continues_from_its_checkpoint(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("stream", 2)
    spark = lanes_session.spark

    def run_once() -> int:
        query = (
            spark.readStream.format("mm2py")
            .option("bootstrap.servers", setup.a.bootstrap_servers)
            .options(topics=topic, startingOffsets="earliest", maxOffsetsPerTrigger="300")
            .load()
            .writeStream.format("parquet")
            .option("path", str(setup.folder / "out"))
            .option("checkpointLocation", str(setup.folder / "state"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return max((int(it["numInputRows"]) for it in query.recentProgress), default=0)

    for turn in range(2):
        write(setup.a, topic, [Sent(n % 2, b"%d %d" % (turn, n)) for n in range(500)])
        assert 0 < run_once() <= 300
    rows = spark.read.parquet(str(setup.folder / "out")).collect()
    found = sorted((row["partition"], row["offset"], bytes(row["value"])) for row in rows)
    assert found == [(it.partition, it.offset, it.value) for it in expected(read(setup.a, topic))]


def ranges(options: dict[str, str], region: KafkaAddress) -> list[Range]:
    found = ReadOptions({"kafka.bootstrap.servers": region.bootstrap_servers} | options)
    return ask_cluster(found.properties, found.ranges)


def test_a_program_for_spark_s_kafka_source_finds_its_columns_and_choices(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("kafka", 2)
    write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(20)])
    spark = lanes_session.spark
    for choice in (
        {"subscribe": topic},
        {"subscribePattern": f"{topic[:-1]}."},
        {"assign": json.dumps({topic: [0, 1]})},
    ):
        frame = (
            spark.read.format("mm2py")
            .option("kafka.bootstrap.servers", setup.a.bootstrap_servers)
            .option("kafkaConsumer.pollTimeoutMs", "1000")
            .options(**choice)
            .load()
        )
        assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]  # fmt: skip
        values = frame.selectExpr("CAST(value AS STRING) v").collect()
        assert sorted(int(row["v"]) for row in values) == list(range(20))


def test_ranges_of_times_are_as_looked_up_and_few_partitions_many_tasks(setup: Setup) -> None:
    topic = setup.topic("times", 2)
    write(setup.a, topic, [Sent(0, b"v", timestamp_ms=OLD_MS + n) for n in range(100)])
    write(setup.a, topic, [Sent(1, b"v", timestamp_ms=OLD_MS + n) for n in range(10)])
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def found(**options: str) -> list[Range]:
        return sorted(ranges({"subscribe": topic} | options, setup.a))

    at = json.dumps({topic: {"0": OLD_MS + 40}})
    assert found(startingOffsetsByTimestamp=at, endingTimestamp=str(OLD_MS + 60)) == [
        Range(zero, 40, 60),
        Range(one, 0, 10),
    ]
    late = {"startingTimestamp": str(OLD_MS + 50)}
    with pytest.raises(PartitionError, match=f"{topic}-1: startingTimestamp: no record from"):
        found(**late)
    assert found(**late, startingOffsetsByTimestampStrategy="latest") == [Range(zero, 50, 100)]
    pieces = found(minPartitions="11")
    assert [it.end - it.first for it in pieces] == [10] * 11
    assert [it.partition for it in pieces] == [zero] * 10 + [one]
    assert {it.end - it.first for it in found(maxRecordsPerPartition="7")} <= {5, 6, 7}
    assert found(failOnDataLoss="false", endingOffsets=json.dumps({topic: {"0": 999, "1": 0}})) == [
        Range(zero, 0, 100, earliest=True)
    ]


def test_spark_reads_a_frame_with_filters_of_another_use(lanes_session: OpenSession) -> None:
    """Why ours takes none (docs/reference/compatibility.md); where this fails, Spark has mended it, and it may."""

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.chosen = list(range(3))

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
            for it in filters:
                if isinstance(it, EqualTo):
                    self.chosen = [it.value]
                yield it

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(it) for it in self.chosen]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushes"

        def schema(self) -> str:
            return "partition int"

        def reader(self, schema: StructType) -> Reader:
            return Reader()

    spark, switch = lanes_session.spark, "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(Source)
    frame = spark.read.format("pushes").load()
    with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        frame.collect()
    spark.conf.set(switch, "true")
    try:
        assert frame.filter("partition = 1").count() == 1
        assert frame.count() == 1, "of three"
    finally:
        spark.conf.unset(switch)


def test_nothing_to_read_is_a_frame_without_rows(setup: Setup, lanes_session: OpenSession) -> None:
    topic = setup.topic("empty")
    assert rows_of(lanes_session, setup.a, topic) == []


def test_a_stream_begins_at_the_end_waits_for_enough_and_names_what_is_lost(setup: Setup) -> None:
    topic = setup.topic("streams")
    write(setup.a, topic, [Sent(0, b"v")] * 10)

    def reader(**options: str) -> Mm2pyStreamReader:
        given = {"kafka.bootstrap.servers": setup.a.bootstrap_servers, "subscribe": topic}
        return Mm2pyStreamReader(ReadOptions(given | options, stream=True))

    assert reader().initialOffset() == {topic: {"0": 10}}
    start = {topic: {"0": 4}}
    patient = reader(minOffsetsPerTrigger="7")
    everything = patient.getDefaultReadLimit()
    assert patient.latestOffset(start, everything) == {topic: {"0": 10}}, "the first one is at once"
    assert patient.latestOffset(start, everything) == start
    write(setup.a, topic, [Sent(0, b"v")])
    assert patient.latestOffset(start, everything) == {topic: {"0": 11}}
    hasty = reader(minOffsetsPerTrigger="100", maxTriggerDelay="0")
    for _ in range(2):
        assert hasty.latestOffset(start, everything) == {topic: {"0": 11}}
    bounded = reader()
    bounded.prepareForTriggerAvailableNow()
    begin = bounded.initialOffset()
    write(setup.a, topic, [Sent(0, b"v")])
    assert bounded.latestOffset(begin, everything) == {topic: {"0": 12}}
    write(setup.a, topic, [Sent(0, b"v")])
    assert bounded.latestOffset(begin, everything) == {topic: {"0": 12}}
    for lost, what in (({topic: {"0": 50}}, "has lost its end"), ({topic: {"0": 4, "1": 1}}, "is gone")):  # fmt: skip
        with pytest.raises(PartitionError, match=what):
            reader().latestOffset(lost, reader().getDefaultReadLimit())
        careless = reader(failOnDataLoss="false")
        assert careless.latestOffset(lost, careless.getDefaultReadLimit()) == {topic: {"0": 13}}


def test_without_fail_on_data_loss_what_is_gone_is_left_out(setup: Setup) -> None:
    topic = setup.topic("lossy")
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(10)])
    delete_records(setup.a, topic, 0, 6)
    tp = TopicPartition(topic, 0)
    given = {"bootstrap.servers": setup.a.bootstrap_servers}

    def read_lossy(first: int, end: int, of: TopicPartition = tp) -> list[int]:
        columns = RecordColumns(of, first, end)
        batches = read_range(
            given, of, first, end, read_committed=False, skips_lost=True, continues_at=columns.begin_at
        )  # fmt: skip
        rows = [*chain.from_iterable(map(columns.take, batches)), *columns.rest()]
        return [cast("int", it["offset"]) for batch in rows for it in batch.to_pylist()]

    assert read_lossy(2, 10) == [6, 7, 8, 9]
    assert read_lossy(2, 5) == []
    assert read_lossy(0, 5, TopicPartition(f"{topic}-gone", 0)) == []
    gone = {"kafka.bootstrap.servers": setup.a.bootstrap_servers, "subscribe": f"{topic},{topic}-gone"}  # fmt: skip
    careless = Mm2pyStreamReader(ReadOptions(gone | {"failOnDataLoss": "false"}, stream=True))
    assert careless.initialOffset() == {topic: {"0": 10}}
    with pytest.raises(PartitionError, match="offsets 2 to 10 were to be read"):
        list(read_range(given, tp, 2, 10, read_committed=False))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"topics": "no-such-.*"}, "has no such topic"),
        ({"topics": ""}, '"topics" is missing'),
        ({}, '"subscribe" is missing'),
        ({"topics": "a", "subscribe": "a"}, "topics and subscribe exclude each other"),
        ({"subscribe": "no-such"}, "has no such topic: no-such"),
        ({"assign": "a"}, "assign=a is no JSON"),
        ({"assign": '{"no-such": [0]}'}, "has no such topic: no-such"),
        ({"topics": "a", "kafka.auto.offset.reset": "latest"}, "is not supported"),
        ({"topics": "a", "failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"topics": "a", "startingTimestamp": "now"}, "no time in ms"),
        ({"topics": "a", "startingOffsetsByTimestamp": "earliest"}, "no JSON of times"),
        ({"topics": "a", "maxTriggerDelay": "soon"}, "no time"),
        ({"topics": "a", "startingOffset": "earliest"}, "'startingOffset' is not known"),
        ({"topics": "a", "startingOffsets": "first"}, "neither earliest, latest nor JSON"),
        ({"topics": "a", "isolation.level": "serializable"}, "isolation.level"),
        ({"topics": "a", "maxOffsetsPerTrigger": "0"}, "not a positive number"),
    ],
)
def test_a_wrong_option_is_named(
    region_a: KafkaAddress, options: dict[str, str], cause: str
) -> None:
    with pytest.raises(ConfigError, match=cause):
        ranges(options, region_a)


def test_offsets_that_are_not_in_the_log_are_refused_with_its_numbers(setup: Setup) -> None:
    topic = setup.topic("short")
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(10)])
    options = {"topics": topic, "endingOffsets": json.dumps({topic: {"0": 11}})}
    with pytest.raises(PartitionError, match=f"{topic}-0: endingOffsets 11 .* which has 0 to 10"):
        ranges(options, setup.a)


SERVERS: Final = "kafka.bootstrap.servers"
SCHEMA: Final = "key string, value binary, topic string, partition int, headers array<struct<key: string, value: binary>>"


TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "array<int>": ArrayType(IntegerType()),
}


def columns(text: str) -> StructType:
    fields = (it.split(" ") for it in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


def values(logs: Logs) -> list[bytes | None]:
    return sorted((it.value for log in logs.values() for it in log.records), key=lambda it: it or b"")  # fmt: skip


def test_a_frame_arrives_with_keys_headers_topics_and_partitions(
    setup: Setup, lanes_session: OpenSession
) -> None:
    one, two = setup.topic("one", 3), setup.topic("two", 2)
    spark = lanes_session.spark
    rows = [
        (
            None if n % 5 == 0 else f"k{n}",
            None if n % 7 == 0 else b"v%d" % n,
            one,
            n % 3,
            [("h", b"%d" % n), ("n", None)],
        )
        for n in range(600)
    ]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(4)
    frame.write.format("mm2py").option(SERVERS, setup.a.bootstrap_servers).mode("append").save()
    found = read(setup.a, one)
    for partition, log in found.items():
        assert {(it.key, it.value, it.headers) for it in log.records} == {
            (None if key is None else key.encode(), value, tuple(headers))
            for key, value, _, at, headers in rows
            if at == partition
        }
        assert len(log.records) == 200
    # A column topic is ignored where the option is given, and the key chooses the partition as in Java.
    plain = frame.select("key", "value", "topic").where("key is not null and value is not null")
    options = {SERVERS: setup.a.bootstrap_servers, "topic": two}
    plain.write.format("mm2py").options(**options).mode("append").save()
    keyed = [(key.encode(), value) for key, value, *_ in rows if key is not None and value]
    truth = setup.topic("truth", 2)
    producer = Producer({"bootstrap.servers": setup.a.bootstrap_servers, "partitioner": "murmur2_random"})  # fmt: skip
    for key, value in keyed:
        producer.produce(truth, value, key)
    producer.flush()
    assert {n: values({n: log}) for n, log in read(setup.a, two).items()} == {
        n: values({n: log}) for n, log in read(setup.a, truth).items()
    }


def test_a_stream_from_topic_to_topic_continues_from_its_checkpoint(
    setup: Setup, lanes_session: OpenSession
) -> None:
    source, target = setup.topic("from", 2), setup.topic("to", 2)
    spark = lanes_session.spark

    def run_once() -> None:
        query = (
            spark.readStream.format("mm2py")
            .option(SERVERS, setup.a.bootstrap_servers)
            .options(subscribe=source, startingOffsets="earliest", includeHeaders="true")
            .load()
            .select("key", "value", "headers")
            .writeStream.format("mm2py")
            .option(SERVERS, setup.b.bootstrap_servers)
            .options(topic=target, checkpointLocation=str(setup.folder / "state"))
            .queryName(f"copy of {source}")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    target = setup.topic("to", 2, on=setup.b)
    for turn in range(2):
        write(setup.a, source, [Sent(n % 2, b"%d %d" % (turn, n)) for n in range(100)])
        run_once()
    assert values(read(setup.b, target)) == values(read(setup.a, source))


def test_in_another_thread_spark_finds_a_sink_in_python_once_that_has_made_a_frame(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """Why docs/reference/jobs.md says so; where this fails, Spark has mended it."""
    topic, spark = setup.topic("thread"), lanes_session.spark
    frame = spark.range(3).selectExpr("CAST(id AS STRING) value")
    options = {SERVERS: setup.a.bootstrap_servers, "topic": topic}

    def save() -> None:
        frame.write.format("mm2py").options(**options).mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            threads.submit(save).result()
        threads.submit(spark.createDataFrame, [(1,)], "a int").result()
        threads.submit(save).result()
    assert values(read(setup.a, topic)) == [b"0", b"1", b"2"]


def test_a_frame_of_a_micro_batch_is_written_by_the_function_that_gets_it(
    setup: Setup, lanes_session: OpenSession
) -> None:
    source, target, spark = setup.topic("each", 2), setup.topic("batch", 2), lanes_session.spark
    write(setup.a, source, [Sent(n % 2, b"%d" % n) for n in range(100)])
    options = {SERVERS: setup.a.bootstrap_servers, "topic": target}

    def save(frame: DataFrame, _number: int) -> None:
        frame.select("value").write.format("mm2py").options(**options).mode("append").save()

    stream = spark.readStream.format("mm2py").option(SERVERS, setup.a.bootstrap_servers)
    frame = stream.options(subscribe=source, startingOffsets="earliest").load()
    query = frame.writeStream.foreachBatch(save).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(setup.folder)).start().awaitTermination(120)
    assert values(read(setup.a, target)) == values(read(setup.a, source))


@pytest.mark.parametrize(
    ("schema", "options", "cause"),
    [
        ("key binary", {"topic": "t"}, "no column 'value'"),
        ("value int", {"topic": "t"}, "column 'value' is int, not string or binary"),
        ("value binary, partition string", {"topic": "t"}, "'partition' is string, not integer"),
        ("value binary, headers array<int>", {"topic": "t"}, "'headers' is array<int>"),
        ("value binary", {}, "neither a column nor an option names the topic"),
        ("value binary", {"topic": "t", "topics": "t"}, "option 'topics' is not known"),
        ("value binary", {"topic": "t", "kafka.key.serializer": "x"}, "is not supported"),
        ("value binary", {"topic": "t", SERVERS: ""}, '"kafka.bootstrap.servers" is missing'),
        ("value binary", {"topic": "t", "kafka.acks": "some"}, "acks"),
    ],
)
def test_a_wrong_option_or_column_is_named(
    schema: str, options: dict[str, str], cause: str
) -> None:
    with pytest.raises(ConfigError, match=cause):
        WriteOptions({SERVERS: "a:1"} | options, columns(schema))


def test_properties_that_would_promise_less_are_taken_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {SERVERS: "a:1", "topic": "t", "kafka.acks": "1", "kafka.enable.idempotence": "false"}
    for _ in range(2):
        WriteOptions(given, columns("value binary"))
    assert [it.getMessage().partition(" has no effect: ")[0] for it in caplog.records] == [
        'format("mm2py"): acks=1',
        'format("mm2py"): enable.idempotence=false',
    ]


def one_batch(*values: bytes, topic: str | None = None) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": values, "topic": [topic] * len(values)})


def test_what_the_target_does_not_take_ends_the_task_with_its_row(setup: Setup) -> None:
    topic = setup.topic("small", config={"max.message.bytes": "2000"})
    servers, schema = setup.a.bootstrap_servers, columns("value binary, topic string")
    options = WriteOptions({SERVERS: servers}, schema)
    with pytest.raises(
        FatalError, match=f"row 1 of this task was not taken by topic {topic}: .*MESSAGE_TOO_LARGE"
    ):
        write_rows(options, one_batch(b"v", b"x" * 5000, b"w", topic=topic))
    with pytest.raises(FatalError, match="row 0 has no topic"):
        write_rows(options, one_batch(b"v"))
    wrong = WriteOptions({SERVERS: servers, "topic": topic}, columns("value binary, partition int"))
    with pytest.raises(
        FatalError, match=f"row 0 of this task names partition 7 of topic {topic}, which has 1"
    ):
        write_rows(wrong, iter([pa.RecordBatch.from_pydict({"value": [b"v"], "partition": [7]})]))
    with pytest.raises(FatalError, match="row 0 has the partition -1"):
        write_rows(wrong, iter([pa.RecordBatch.from_pydict({"value": [b"v"], "partition": [-1]})]))
    away = {SERVERS: f"127.0.0.1:{free_ports(1)[0]}", "kafka.delivery.timeout.ms": "1500"}
    with pytest.raises(FatalError, match=r"taken nothing for 1\.5 s .*, 1 records wait"):
        write_rows(WriteOptions(away, schema), one_batch(b"v", topic=topic))
