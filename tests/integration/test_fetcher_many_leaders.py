"""Five hundred partitions of a broker that dies, or whose host goes dark, on a cluster of three."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from mm2py.types import TopicPartition
from tests.integration.cluster_changes import delete_topic
from tests.integration.fetching import reading
from tests.kit.kafka.region import Region

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(240)]

PARTITIONS = 500
WITHIN_S = 10.0
"""The goal is 5 s behind the election; a loaded machine gets twice that."""


def create(region: Region, topic: str) -> list[TopicPartition]:
    """Create a topic whose partitions node 1 leads, each with a copy on another node."""
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    replicas = [[1, 2 + number % 2] for number in range(PARTITIONS)]
    new = NewTopic(topic, PARTITIONS, replica_assignment=replicas)
    # confluent-kafka's annotation leaves the future's result open.
    answers = admin.create_topics([new], request_timeout=180)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for answer in cast("dict[str, Future[None]]", answers).values():
        answer.result(180)
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def write(region: Region, topic: str) -> None:
    """Write a record to each partition; returns when all are acknowledged, so after the elections."""
    producer = Producer({"bootstrap.servers": region.bootstrap_servers, "acks": "1"})
    for number in range(PARTITIONS):
        producer.produce(topic, b"x", partition=number)
    assert producer.flush(120) == 0


@pytest.mark.parametrize("dark", [False, True])
async def test_all_partitions_of_a_dead_leader_are_read_again_soon_after_the_election(
    region_three: Region, unique: Callable[[str], str], *, dark: bool
) -> None:
    topic = unique("many-leaders")
    tps = await asyncio.to_thread(create, region_three, topic)
    await asyncio.to_thread(write, region_three, topic)
    async with reading(region_three) as found:
        await found.fetcher.assign(dict.fromkeys(tps, 0))
        await found.until(lambda: len(found.values) == PARTITIONS)
        node = region_three.node(1)
        await asyncio.to_thread(node.freeze if dark else node.kill)
        try:
            writing = asyncio.create_task(asyncio.to_thread(write, region_three, topic))
            await found.until(writing.done, 120)
            await writing
            elected = time.monotonic()
            await found.until(
                lambda: all(len(values) == 2 for values in found.values.values()), WITHIN_S
            )
            print(f"read again dark={dark} after_s={time.monotonic() - elected:.1f}")  # noqa: T201
            assert (found.gaps, found.failed) == ([], [])
        finally:
            if dark:
                node.thaw()
            region_three.start()
            # Flows of other tests copy whatever is there.
            await asyncio.to_thread(delete_topic, region_three, topic)
