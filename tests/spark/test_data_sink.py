"""``write`` and ``writeStream`` of ``format("mm2py")`` on real brokers: what confluent-kafka reads is what the frame had."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from mm2py.errors import ConfigError, FatalError
from mm2py_jobs.spark import Mm2pyDataSource
from mm2py_jobs.spark.data_sink import WriteOptions, write_rows
from mm2py_jobs.spark.session import OpenSession
from tests.integration.setups import Setup
from tests.integration.traffic import Logs, Sent, read, write
from tests.kit.kafka.ports import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

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
    spark.dataSource.register(Mm2pyDataSource)
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
    spark.dataSource.register(Mm2pyDataSource)

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


def rows_of(*values: bytes, topic: str | None = None) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": values, "topic": [topic] * len(values)})


def test_what_the_target_does_not_take_ends_the_task_with_its_row(setup: Setup) -> None:
    topic = setup.topic("small", config={"max.message.bytes": "2000"})
    servers, schema = setup.a.bootstrap_servers, columns("value binary, topic string")
    options = WriteOptions({SERVERS: servers}, schema)
    with pytest.raises(FatalError, match=f"row 1 of this task was not taken by topic {topic}: MSG"):
        write_rows(options, rows_of(b"v", b"x" * 5000, b"w", topic=topic))
    with pytest.raises(FatalError, match="row 0 has no topic"):
        write_rows(options, rows_of(b"v"))
    wrong = WriteOptions({SERVERS: servers, "kafka.delivery.timeout.ms": "1500", "topic": topic}, columns("value binary, partition int"))  # fmt: skip
    with pytest.raises(FatalError, match=f"{topic}: .*Unknown partition"):
        write_rows(wrong, iter([pa.RecordBatch.from_pydict({"value": [b"v"], "partition": [7]})]))
    with pytest.raises(FatalError, match="row 0 has the partition -1"):
        write_rows(wrong, iter([pa.RecordBatch.from_pydict({"value": [b"v"], "partition": [-1]})]))
    away = {SERVERS: f"127.0.0.1:{free_ports(1)[0]}", "kafka.delivery.timeout.ms": "1500"}
    with pytest.raises(FatalError, match=r"taken nothing for 1\.5 s .*, 1 records wait"):
        write_rows(WriteOptions(away, schema), rows_of(b"v", topic=topic))
