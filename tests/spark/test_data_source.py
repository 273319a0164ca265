"""``format("mm2py")`` on real brokers, compared with what confluent-kafka reads; ranges are fixed on the driver."""

import json
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Producer

from mm2py.errors import ConfigError, PartitionError
from mm2py_jobs.spark import Mm2pyDataSource
from mm2py_jobs.spark.data_source import ReadOptions
from mm2py_jobs.spark.session import OpenSession
from tests.integration.setups import Setup
from tests.integration.traffic import YEAR_MS, Logs, Sent, read, write
from tests.integration.transactions import write_mixed
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
    session.spark.dataSource.register(Mm2pyDataSource)
    frame = (
        session.spark.read.format("mm2py")
        .option("bootstrap.servers", region.bootstrap_servers)
        .options(topics=topic, **options)
        .load()
    )
    selected = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) ms", "timestamp_type", "key", "value", "headers"
    )  # fmt: skip
    rows = [
        Row(
            row["partition"],
            row["offset"],
            row["ms"],
            row["timestamp_type"],
            optional(row["key"]),
            optional(row["value"]),
            tuple((it["key"], optional(it["value"])) for it in row["headers"]),
        )
        for row in selected.collect()
    ]
    return sorted(rows, key=lambda row: row[:2])


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
    spark.dataSource.register(Mm2pyDataSource)

    def run_once() -> int:
        query = (
            spark.readStream.format("mm2py")
            .option("bootstrap.servers", setup.a.bootstrap_servers)
            .options(topics=topic, maxOffsetsPerTrigger="300")
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


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"topics": "no-such-.*"}, "has no such topic"),
        ({"topics": ""}, '"topics" is missing'),
        ({"topics": "a", "startingOffset": "earliest"}, "'startingoffset' is not known"),
        ({"topics": "a", "startingOffsets": "first"}, "neither earliest, latest nor JSON"),
        ({"topics": "a", "isolation.level": "serializable"}, "isolation.level"),
        ({"topics": "a", "maxOffsetsPerTrigger": "0"}, "not a positive number"),
    ],
)
def test_a_wrong_option_is_named(
    region_a: KafkaAddress, options: dict[str, str], cause: str
) -> None:
    with pytest.raises(ConfigError, match=cause):
        ReadOptions({"bootstrap.servers": region_a.bootstrap_servers} | options).ranges()


def test_offsets_that_are_not_in_the_log_are_refused_with_its_numbers(setup: Setup) -> None:
    topic = setup.topic("short")
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(10)])
    options = {
        "bootstrap.servers": setup.a.bootstrap_servers,
        "topics": topic,
        "endingOffsets": json.dumps({topic: {"0": 11}}),
    }
    with pytest.raises(PartitionError, match=f"{topic}-0: endingOffsets 11 .* which has 0 to 10"):
        ReadOptions(options).ranges()
