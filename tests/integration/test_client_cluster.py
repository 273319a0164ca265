import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.client.connect.admin import Admin, ConfigOp, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.errors import ConnectionFailedError, RetriableServerError
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.topics import NewTopic
from mm2py.types import EARLIEST, LATEST, TopicPartition
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@asynccontextmanager
async def connected(region: KafkaAddress) -> AsyncGenerator[Cluster]:
    settings = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(region.bootstrap_servers),
        client_id="test",
        default_api_timeout_ms=20_000,
    )
    cluster = Cluster(settings, alias="a")
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()
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


NONE = TopicDescription("", b"", (), 0, internal=False)


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
        assert described.replication_factor == 1
        assert any(described.topic_id)
        listed = await admin.list_topics()
        assert listed[name] == described
        assert not any(topic.startswith("__") for topic in listed)
        assert await admin.delete_topics([name]) == {name: None}


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


async def test_offsets_are_listed_and_missing_topics_carry_their_error(
    region_a: KafkaAddress,
) -> None:
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


async def test_concurrent_leader_lookups_share_one_refresh(region_a: KafkaAddress) -> None:
    async with connected(region_a) as cluster:
        name = new_name("leaders")
        await Admin(cluster).create_topics([NewTopic(name, 20, 1)])
        partitions = [TopicPartition(name, index) for index in range(20)]

        async def leader(tp: TopicPartition) -> int:
            while True:
                try:
                    return (await cluster.leader(tp)).node_id
                except RetriableServerError:
                    continue

        nodes = await asyncio.gather(*(leader(tp) for tp in partitions))
        assert set(nodes) <= set(cluster.broker_ids)
        known = cluster.known_leader(partitions[0])
        assert known is not None
        assert any(known.topic_id)


async def test_an_address_where_nobody_listens_is_named(unused_tcp_port: int) -> None:
    settings = ConnectionSettings(
        bootstrap_servers=(("127.0.0.1", unused_tcp_port),), reconnect_backoff_ms=1
    )
    cluster = Cluster(settings, alias="gone")
    try:
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{unused_tcp_port}"):
            await cluster.connect()
    finally:
        await cluster.close()


@pytest.fixture
def unused_tcp_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
