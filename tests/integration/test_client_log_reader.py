import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.protocol.messages import delete_records
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic, NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@asynccontextmanager
async def log_reader(address: str, topic: str) -> AsyncGenerator[tuple[Cluster, LogReader]]:
    settings = ConnectionSettings(bootstrap_servers=parse_bootstrap_servers(address))
    cluster = Cluster(settings, alias="a")
    try:
        yield cluster, LogReader(cluster, topic, clock=SYSTEM_CLOCK)
    finally:
        await cluster.close()


async def read(reader: LogReader) -> list[tuple[int, Record]]:
    seen: list[tuple[int, Record]] = []
    await reader.read_to_end(lambda partition, record: seen.append((partition, record)))
    return seen


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_record_of_every_partition_is_read_once(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Callable[[str], str], codec: str
) -> None:
    topic = unique("log")
    create_topic(region_a, topic, 3)
    producer = Producer(
        {"bootstrap.servers": region_a.bootstrap_servers, "compression.type": codec}
    )
    for n in range(3000):
        producer.produce(topic, b"%d" % n, b"k%d" % n, partition=n % 3, headers=[("h", b"1")])
    producer.produce(topic, None, b"tombstone", partition=0)
    producer.flush()

    async with log_reader(region_a.bootstrap_servers, topic) as (_, reader):
        seen = await read(reader)
        by_key = {record.key: record.value for _, record in seen}
        assert len(seen) == len(by_key) == 3001
        assert all(by_key[b"k%d" % n] == b"%d" % n for n in range(3000))
        assert by_key[b"tombstone"] is None
        assert seen[0][1].headers == ((b"h", b"1"),)
        for partition in range(3):
            offsets = [record.offset for its, record in seen if its == partition]
            assert offsets == sorted(offsets)
        assert await read(reader) == []
        producer.produce(topic, b"new", b"new", partition=1)
        producer.flush()
        assert [record.value for _, record in await read(reader)] == [b"new"]


async def test_transaction_markers_at_the_end_do_not_hold_the_reader(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = unique("log")
    create_topic(region_a, topic, 1)
    producer = Producer(
        {"bootstrap.servers": region_a.bootstrap_servers, "transactional.id": topic}
    )
    producer.init_transactions(60)
    for value in (b"a", b"b"):
        producer.begin_transaction()
        producer.produce(topic, value, b"k")
        producer.commit_transaction(60)

    async with log_reader(region_a.bootstrap_servers, topic) as (_, reader):
        assert [(r.offset, r.value) for _, r in await read(reader)] == [(0, b"a"), (2, b"b")]
        assert await read(reader) == []


async def test_records_of_aborted_transactions_are_not_handed_on(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = unique("log")
    create_topic(region_a, topic, 1)
    client = Producer({"bootstrap.servers": region_a.bootstrap_servers, "transactional.id": topic})
    client.init_transactions(20)
    for value, commits in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
        client.begin_transaction()
        client.produce(topic, value, b"k")
        client.flush(20)
        if commits:
            client.commit_transaction(20)
        else:
            client.abort_transaction(20)

    async with log_reader(region_a.bootstrap_servers, topic) as (_, reader):
        assert [record.value for _, record in await read(reader)] == [b"1", b"3"]
        assert await read(reader) == []


async def test_deleted_records_are_passed_over(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = unique("log")
    create_topic(region_a, topic, 1)
    producer = Producer({"bootstrap.servers": region_a.bootstrap_servers})

    def produce(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value)
        producer.flush()

    produce(b"a")
    tp = TopicPartition(topic, 0)

    async with log_reader(region_a.bootstrap_servers, topic) as (cluster, reader):
        assert [r.value for _, r in await read(reader)] == [b"a"]
        produce(b"b", b"c", b"d")
        (deleted,) = await cluster.call_leader(tp, delete_records({tp: 3}))
        assert deleted.low_watermark == 3
        assert [(r.offset, r.value) for _, r in await read(reader)] == [(3, b"d")]


async def test_a_broker_restart_between_and_during_reads_is_survived(
    new_region: NewRegion, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    region, topic = new_region(), unique("log")
    create_topic(region, topic, 1)
    producer = Producer({"bootstrap.servers": region.bootstrap_servers})
    producer.produce(topic, b"a")
    producer.flush()

    async with log_reader(region.bootstrap_servers, topic) as (_, reader):
        assert [r.value for _, r in await read(reader)] == [b"a"]
        producer.produce(topic, b"b")
        producer.flush()
        region.kill()
        reading = asyncio.create_task(read(reader))
        await asyncio.to_thread(region.start)
        assert [r.value for _, r in await reading] == [b"b"]
