"""The client for consumers: Java's ``MirrorClientTest``, on a scripted broker."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import ConnectionFailedError, FatalError
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror_client import MirrorClient, RemoteOffset, hop_count
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

SEPARATOR = "replication.policy.separator"
IDENTITY = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "source.cluster.alias": "source",
}


@asynccontextmanager
async def client_of(
    topics: Sequence[str], props: dict[str, str] | None = None
) -> AsyncGenerator[tuple[MirrorClient, FakeBroker]]:
    async with FakeBroker(topics=dict.fromkeys(topics, 1)) as broker:
        ((host, port),) = broker.bootstrap_servers
        config = {"bootstrap.servers": "nowhere:1", "admin.bootstrap.servers": f"{host}:{port}"}
        config |= {"consumer.bootstrap.servers": f"{host}:{port}", **(props or {})}
        async with MirrorClient(config) as client:
            yield client, broker


@pytest.mark.parametrize(
    ("topic", "alias", "hops"),
    [
        ("topic", "source", -1),
        ("source", "source", -1),
        ("sourcetopic", "source", -1),
        ("source1.topic", "source2", -1),
        ("source3.source2.source1.topic", "source4", -1),
        ("source1.topic", "source1", 1),
        ("source2.source1.topic", "source2", 1),
        ("source2.source1.topic", "source1", 2),
        ("source3.source2.source1.topic", "source1", 3),
    ],
)
def test_hops_are_counted_along_the_name(topic: str, alias: str, hops: int) -> None:
    assert hop_count(policy_from_config({}), topic, alias) == hops


async def test_heartbeats_name_the_clusters_upstream_and_their_distance() -> None:
    topics = ["topic1", "heartbeats", "heartbeats!", "source1heartbeats", "source1.heartbeats"]
    topics += ["source1.source2.heartbeats", "source3.source4.source5.heartbeats"]
    async with client_of(topics) as (client, _):
        assert await client.heartbeat_topics() == {topics[1], *topics[4:]}
        assert await client.upstream_clusters() == {f"source{number}" for number in range(1, 6)}
        hops = [await client.replication_hops(f"source{number}") for number in (1, 2, 3, 5, 6)]
        assert hops == [1, 2, 1, 3, -1]


async def test_checkpoint_topics_have_a_source() -> None:
    topics = ["checkpoints.internal", "source1.checkpoints.internal", "a.b.checkpoints.internal"]
    topics += ["checkpoints-internal", "source1checkpointsinternal"]
    async with client_of(topics) as (client, _):
        assert await client.checkpoint_topics() == set(topics[1:3])


@pytest.mark.parametrize("separator", [".", "__"])
async def test_remote_topics_have_a_source_and_are_not_internal(separator: str) -> None:
    remote = [
        separator.join(it)
        for it in (("source1", "topic4"), ("source1", "source2", "topic5"), ("source3", "t"))
    ]
    local = ["topic1", "topic2", separator.join(("source1", "checkpoints", "internal"))]
    async with client_of([*remote, *local], {SEPARATOR: separator}) as (client, _):
        assert await client.remote_topics() == set(remote)
        assert await client.remote_topics("source1") == set(remote[:2])


async def test_with_the_identity_policy_every_topic_is_remote_but_heartbeats() -> None:
    topics = ["topic1", "topic2", "heartbeats", "backup.heartbeats"]
    async with client_of(topics, IDENTITY) as (client, _):
        assert await client.remote_topics() == {"topic1", "topic2", "backup.heartbeats"}
        assert await client.upstream_clusters() == {"backup"}


async def test_the_last_checkpoint_of_each_partition_of_a_group_counts() -> None:
    topic = TopicPartition("A.checkpoints.internal", 0)
    first, second = TopicPartition("A.t", 0), TopicPartition("A.t", 1)
    records = [
        NewRecord(*encode_checkpoint(Checkpoint(*it)))
        for it in (
            ("g1", first, 1, 1, ""),
            ("g2", first, 5, 4, "m"),
            ("g1", second, 7, 7, ""),
            ("g1", first, 3, 2, "new"),
        )
    ]
    async with client_of([topic.topic]) as (client, broker):
        broker.append(topic, bytes(encode_batch([*records, NewRecord(b"rubbish", b"")])))
        one = {first: RemoteOffset(2, "new"), second: RemoteOffset(7, "")}
        other = {first: RemoteOffset(4, "m")}
        assert await client.remote_consumer_offsets("g1", "A") == {"g1": one}
        assert await client.remote_consumer_offsets("g", "A") == {}
        assert await client.remote_consumer_offsets("g.", "A") == {}
        pattern = re.compile("g.")
        assert await client.remote_consumer_offsets(pattern, "A") == {"g1": one, "g2": other}
        with pytest.raises(FatalError, match=r"there are no checkpoints of X here"):
            await client.remote_consumer_offsets("g1", "X")


async def test_a_cluster_that_is_away_is_said_at_the_door() -> None:
    with pytest.raises(ConnectionFailedError):
        async with MirrorClient({"bootstrap.servers": "127.0.0.1:1"}):
            pass
