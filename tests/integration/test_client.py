"""Connections, log readers and the Sender on real brokers, and what a target takes."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer

from mm2py.client.connect.admin import Admin, ConfigOp, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.send.sender import Sender
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings, parse_bootstrap_servers
from mm2py.errors import RetriableServerError
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.record_batch import HEADER_BYTES, RecordBatch
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.protocol.topics import NewTopic
from mm2py.types import EARLIEST, LATEST, TopicPartition
from tests.integration.clients import connected
from tests.integration.cluster_changes import set_config
from tests.integration.mirror_process import until
from tests.integration.setups import Setup
from tests.integration.traffic import ends, read, wait_for_markers
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.delay_proxy import DelayProxy, Way
from tests.kit.regions import NewRegion, Pair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOURCE = TopicPartition("source", 0)


class Sending:
    """Sends batches of one record per value and collects what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.delivered: list[tuple[int, int]] = []
        """(first source offset, target offset) of each batch."""
        self.failed: list[Exception] = []
        self.doubts: list[tuple[int, int]] = []
        self.sender = Sender(
            cluster,
            ProducerSettings(connection=cluster.settings),
            clock=SYSTEM_CLOCK,
            on_delivered=lambda _source, _target, batch, offset: self.delivered.append(
                (batch.base_offset, offset)
            ),
            on_failed=lambda _source, _target, error: self.failed.append(error),
            on_doubt=lambda _source, first, last, _error: self.doubts.append((first, last)),
        )
        self._next: dict[TopicPartition, int] = {}

    def enqueue(self, target: TopicPartition, values: Sequence[bytes], *, stamp_ms: int) -> None:
        """Send one batch."""
        first, count = self._next.get(target, 0), len(values)
        self._next[target] = first + count
        data = encode_batch([NewRecord(None, value, (), stamp_ms) for value in values])
        runs = ((first, count),)
        batch = RecordBatch(data, first, first + count - 1, count, stamp_ms, 0, 0, runs, None)
        self.sender.enqueue(SOURCE, target, [batch])

    async def flushed(self) -> None:
        """Wait until everything is delivered or given up."""
        assert await self.sender.flush(90)


@asynccontextmanager
async def sending(bootstrap_servers: str) -> AsyncGenerator[Sending]:
    """Connect a Sender to a cluster."""
    connection = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="sender-test"
    )
    cluster = Cluster(connection, alias="B")
    await cluster.connect()
    found = Sending(cluster)
    try:
        await found.sender.start()
        yield found
    finally:
        await found.sender.close()
        await cluster.close()


def new_name(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


async def create(admin: Admin, name: str, partitions: int, configs: dict[str, str]) -> None:
    """Create a topic and wait until the broker shows it (KRaft publishes after it answers)."""
    assert await admin.create_topics([NewTopic(name, partitions, 1, configs)]) == {name: None}
    async with asyncio.timeout(90):
        while len((await admin.describe_topic_configs([name])).get(name, ())) == 0:
            pass
        while len((await admin.describe_topics([name])).get(name, NONE).partitions) != partitions:
            pass


NONE = TopicDescription("", b"", (), internal=False)


async def test_connect_learns_brokers_and_cluster_id(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        assert cluster.cluster_id
        assert cluster.broker_ids


async def test_a_topic_is_created_grown_described_and_deleted(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        admin, name = Admin(cluster), new_name("made")
        await create(admin, name, 2, {})
        again = (await admin.create_topics([NewTopic(name, 2, 1)]))[name]
        assert again is not None
        assert again.name == "TOPIC_ALREADY_EXISTS"
        assert await admin.create_partitions({name: 3}) == {name: None}
        too_few = (await admin.create_partitions({name: 1}))[name]
        assert too_few is not None
        assert too_few.name == "INVALID_PARTITIONS"
        described = NONE
        async with asyncio.timeout(90):
            while described.partitions != (0, 1, 2):
                described = (await admin.describe_topics([name, new_name("no")]))[name]
        assert any(described.topic_id)
        listed = await admin.list_topics()
        assert listed[name] == described
        assert not any(topic.startswith("__") for topic in listed)


async def test_topic_configs_change_one_by_one(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        admin, name = Admin(cluster), new_name("configs")
        await create(admin, name, 1, {"retention.ms": "-1"})
        changes = [ConfigOp("retention.ms", "DELETE"), ConfigOp("max.message.bytes", "SET", "2000")]
        assert await admin.alter_topic_configs({name: changes}) == {name: None}
        by_name: dict[str, ConfigEntry] = {}
        async with asyncio.timeout(90):
            while not by_name or by_name["max.message.bytes"].value != "2000":
                configs = (await admin.describe_topic_configs([name, new_name("no")]))[name]
                by_name = {entry.name: entry for entry in configs}
        assert not by_name["max.message.bytes"].is_default
        assert by_name["retention.ms"].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG
        wrong = (await admin.alter_topic_configs({name: [ConfigOp("no.such", "SET", "1")]}))[name]
        assert wrong is not None
        assert wrong.name == "INVALID_CONFIG"


async def test_offsets_are_listed_and_missing_topics_carry_an_error(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        admin, name = Admin(cluster), new_name("offsets")
        await create(admin, name, 2, {})
        missing = TopicPartition(new_name("no"), 0)
        asked = {
            TopicPartition(name, 0): EARLIEST,
            TopicPartition(name, 1): LATEST,
            missing: LATEST,
        }
        listed = await admin.list_offsets(asked)
        assert [listed[tp].offset for tp in asked] == [0, 0, -1]
        error = listed[missing].error
        assert isinstance(error, RetriableServerError)
        assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_acls_are_created_and_found(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        admin = Admin(cluster)
        acl = Acl(
            AclResourceType.TOPIC,
            new_name("acl"),
            PatternType.LITERAL,
            "User:someone",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
        assert await admin.create_acls([acl]) == [None]
        async with asyncio.timeout(90):
            while acl not in (await admin.describe_topic_acls() or ()):
                pass


async def test_a_group_that_does_not_exist_is_dead(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        group = await Admin(cluster).describe_group(new_name("group"))
        assert group.state == "Dead"
        assert group.members == ()


async def read_by(reader: LogReader) -> list[tuple[int, Record]]:
    seen: list[tuple[int, Record]] = []
    await reader.read_to_end(lambda partition, record: seen.append((partition, record)))
    return seen


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_record_of_every_partition_is_read_once(setup: Setup, codec: str) -> None:
    topic = setup.topic("log", 3)
    producer = Producer({"bootstrap.servers": setup.a.bootstrap_servers, "compression.type": codec})
    for n in range(3000):
        producer.produce(topic, b"%d" % n, b"k%d" % n, partition=n % 3, headers=[("h", b"1")])
    producer.produce(topic, None, b"tombstone", partition=0)
    producer.flush()

    async with connected(setup.a) as cluster:
        reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK)
        seen = await read_by(reader)
        by_key = {record.key: record.value for _, record in seen}
        assert len(seen) == len(by_key) == 3001
        assert all(by_key[b"k%d" % n] == b"%d" % n for n in range(3000))
        assert by_key[b"tombstone"] is None
        assert seen[0][1].headers == ((b"h", b"1"),)
        for partition in range(3):
            offsets = [record.offset for its, record in seen if its == partition]
            assert offsets == sorted(offsets)
        assert await read_by(reader) == []
        producer.produce(topic, b"new", b"new", partition=1)
        producer.flush()
        assert [record.value for _, record in await read_by(reader)] == [b"new"]


async def test_records_of_aborted_transactions_are_not_handed_on(setup: Setup) -> None:
    topic = setup.topic("log", 1)
    client = Producer({"bootstrap.servers": setup.a.bootstrap_servers, "transactional.id": topic})
    client.init_transactions(20)
    for value, commits in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
        client.begin_transaction()
        client.produce(topic, value, b"k")
        client.flush(20)
        if commits:
            client.commit_transaction(20)
        else:
            client.abort_transaction(20)
    await asyncio.to_thread(wait_for_markers, setup.a, topic)

    async with connected(setup.a) as cluster:
        reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK)
        assert [record.value for _, record in await read_by(reader)] == [b"1", b"3"]
        assert await read_by(reader) == []


@pytest.mark.faults
async def test_a_broker_restart_between_and_during_reads_is_survived(
    setup: Setup, new_region: NewRegion
) -> None:
    region, topic = new_region(), setup.unique("log")
    setup.create_topic(region, topic, 1)
    producer = Producer({"bootstrap.servers": region.bootstrap_servers})
    producer.produce(topic, b"a")
    producer.flush()

    async with connected(region) as cluster:
        reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK)
        assert [r.value for _, r in await read_by(reader)] == [b"a"]
        producer.produce(topic, b"b")
        producer.flush()
        region.kill()
        reading = asyncio.create_task(read_by(reader))
        await asyncio.to_thread(region.start)
        assert [r.value for _, r in await reading] == [b"b"]


def unjoinable(first: int, stamp_ms: int) -> RecordBatch:
    """Return two uncompressed records with the inner offset deltas 0 and 0."""
    data = encode_batch([NewRecord(None, b"%d" % (first + i), (), stamp_ms) for i in range(2)])
    second = HEADER_BYTES + (data[HEADER_BYTES] >> 1) + 1
    assert data[second + 3] == 2
    data[second + 3] = 0
    return RecordBatch(data, first, first + 1, 2, stamp_ms, 0, 0, ((first, 2),), None)


async def test_a_batch_that_cannot_be_joined_stops_neither_its_partition_nor_the_others(
    setup: Setup, regions: Pair
) -> None:
    region = regions[1]
    topic = setup.topic("unjoinable", 2, on=region)
    damaged, healthy = TopicPartition(topic, 0), TopicPartition(topic, 1)
    stamp_ms = SYSTEM_CLOCK.now_ms()
    async with sending(region.bootstrap_servers) as found:
        for target in (damaged, healthy):
            found.enqueue(target, [b"0", b"1"], stamp_ms=stamp_ms)
        await found.flushed()
        for number in range(1, 30):
            found.enqueue(healthy, [b"x", b"y"], stamp_ms=stamp_ms)
            if number == 20:
                found.sender.enqueue(SOURCE, damaged, [unjoinable(40, stamp_ms)])
            else:
                found.enqueue(damaged, [b"x", b"y"], stamp_ms=stamp_ms)
        await found.flushed()
        assert found.failed == []
        assert ends(region, topic) == {0: 60, 1: 60}


Far = tuple[Region, DelayProxy]
CHECK_MS = 500
FORGETFUL = {
    "producer.id.expiration.ms": "4000",
    "producer.id.expiration.check.interval.ms": str(CHECK_MS),
}


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    """A cluster that forgets producers after four seconds, and the line to it."""
    with (
        DelayProxy() as line,
        Region(
            "forgetful",
            properties=FORGETFUL,
            listeners=[Listener("FAR", "PLAINTEXT", advertise=line.front)],
        ) as region,
    ):
        yield region, line


def values_of(region: Region, topic: str) -> list[bytes | None]:
    return [record.value for record in read(region, topic)[0].records]


async def test_rule_5_a_batch_that_a_forgetful_broker_may_have_is_looked_up_not_sent_again(
    setup: Setup, far: Far
) -> None:
    region, line = far
    topic = setup.topic("forgotten", on=region)
    target = TopicPartition(topic, 0)

    async with sending(line.bootstrap_servers) as found:
        # Far younger than the default of a day, and yet forgotten at the broker's next look.
        stamp_ms = SYSTEM_CLOCK.now_ms() - 60_000
        found.enqueue(target, [b"0"], stamp_ms=stamp_ms)
        await found.flushed()
        line.stall(Way.REPLIES)
        found.enqueue(target, [b"1", b"2"], stamp_ms=stamp_ms)
        await asyncio.to_thread(until, lambda: ends(region, topic) == {0: 3}, 90, "the write")
        await asyncio.sleep(4 * CHECK_MS / 1000)  # nothing shows from outside that it forgot
        line.reset()
        line.heal()
        found.enqueue(target, [b"3"], stamp_ms=stamp_ms)
        await found.flushed()
        assert found.delivered == [(0, 0), (1, 1), (3, 3)]
        assert not found.doubts
    assert values_of(region, topic) == [b"0", b"1", b"2", b"3"]


async def test_batches_above_the_topics_limit_are_cut_first(setup: Setup, far: Far) -> None:
    region, line = far
    topic = setup.topic("limited", on=region, config={"max.message.bytes": "20000"})
    target = TopicPartition(topic, 0)
    values = [os.urandom(1_000) for _ in range(500)]

    async with sending(line.bootstrap_servers) as found:
        sent = line.passed_bytes(Way.REQUESTS)
        found.enqueue(target, values, stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        found.enqueue(target, values, stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        # A refused megabyte would have crossed the line twice.
        assert line.passed_bytes(Way.REQUESTS) - sent < 1_050_000
        # Each batch holds 19 records of 1 KB.
        assert len(found.delivered) == 2 * 27
    assert values_of(region, topic) == 2 * values


async def test_a_record_that_fits_since_the_limit_was_raised_is_sent_although_the_old_one_is_remembered(
    setup: Setup, far: Far
) -> None:
    region, line = far
    topic = setup.topic("raised", on=region, config={"max.message.bytes": "2000"})
    target = TopicPartition(topic, 0)
    large = os.urandom(5_000)

    async with sending(line.bootstrap_servers) as found:
        found.enqueue(target, [b"0"], stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        await asyncio.to_thread(set_config, region, topic, "max.message.bytes", "6000")
        found.enqueue(target, [b"1", large, b"2"], stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        assert not found.failed
    assert values_of(region, topic) == [b"0", b"1", large, b"2"]
