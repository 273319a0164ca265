"""The Fetcher on real brokers: idle partitions, retention, followers, many leaders of which one dies."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from mm2py.types import TopicPartition
from tests.integration.cluster_changes import create_led_by, delete_topic, leader_of
from tests.integration.fetching import Reading, produce, reading
from tests.integration.setups import Setup
from tests.kit.kafka.region import Region

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.faults
async def test_a_thousand_idle_partitions_cost_below_0_33_percent_of_a_core(setup: Setup) -> None:
    topics = [setup.unique("idle"), setup.unique("idle")]
    for topic in topics:
        setup.create_topic(setup.a, topic, 500)
    tps = [TopicPartition(topic, index) for topic in topics for index in range(500)]
    async with reading(setup.a) as found:
        found.fetcher.add(dict.fromkeys(tps, 0))
        await found.until(lambda: all(found.fetcher.lag(tp) == 0 for tp in tps))
        await found.take()
        used, began = time.thread_time(), time.monotonic()
        while time.monotonic() - began < 4:
            await found.fetcher.fetch(max_wait_ms=1000, max_bytes=1 << 24)
        share = (time.thread_time() - used) / (time.monotonic() - began)
        assert share < 0.0033, f"{share:.2%} of a core while idle"
    for topic in topics:
        await asyncio.to_thread(delete_topic, setup.a, topic)


SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def racks() -> Iterator[Region]:
    """Three nodes in racks rack-1 to rack-3 that send readers to their own rack."""
    with closing(
        Region("racks", nodes=3, properties={"replica.selector.class": SELECTOR})
    ) as with_racks:
        with_racks.prepare()
        for number, node in enumerate(with_racks.nodes, 1):
            with (node.data_dir.parent / "server.properties").open("a") as file:
                file.write(f"broker.rack=rack-{number}\n")
        with_racks.start()
        yield with_racks


def create(region: Region, topic: str, replicas: list[int], **config: str) -> TopicPartition:
    """Create one partition on these nodes; the first one leads."""
    create_led_by(region, topic, [replicas], config)
    return TopicPartition(topic, 0)


def read_from(found: Reading) -> set[int]:
    """Brokers that the partitions are fetched from now."""
    nodes = found.fetcher._routes.nodes  # pyright: ignore[reportPrivateUsage]
    return {node.node_id for node in nodes.values() if node.cursors}


@pytest.mark.faults
async def test_data_is_read_from_the_own_rack_and_from_the_leader_when_that_node_is_gone(
    racks: Region, unique: Callable[[str], str]
) -> None:
    try:
        tp = create(racks, unique("near"), [1, 3])
        await produce(racks, tp, range(10))
        async with reading(racks, rack="rack-3", max_age_ms=1500) as found:
            found.fetcher.add({tp: 0})
            await found.until(lambda: found.fetcher.position(tp) == 10)
            # Its leader may have answered until it knew how far that node is.
            await found.until(lambda: read_from(found) == {3}, 120)
            await asyncio.to_thread(racks.node(3).kill)
            await produce(racks, tp, range(10, 20))
            await found.until(lambda: found.fetcher.position(tp) == 20)
            assert read_from(found) == {1}
            await asyncio.to_thread(racks.start)
            await found.until(lambda: read_from(found) == {3}, 120)
            await produce(racks, tp, range(20, 30))
            await found.until(lambda: found.fetcher.position(tp) == 30)
            assert found.values[tp] == [str(n) for n in range(30)]
            assert (found.gaps, found.failed, found.stalled) == ([], [], {})
    finally:
        racks.start()


@pytest.mark.faults
async def test_an_unclean_election_is_a_truncation_with_its_exact_range(
    racks: Region, unique: Callable[[str], str]
) -> None:
    try:
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        tp = create(racks, unique("unclean"), [1, 2], **config)
        await produce(racks, tp, range(5))
        async with reading(racks) as found:
            found.fetcher.add({tp: 0})
            await found.until(lambda: found.fetcher.position(tp) == 5)
            await asyncio.to_thread(racks.node(2).kill)
            await produce(racks, tp, range(5, 20))  # acknowledged once node 2 is out of the ISR
            await found.until(lambda: found.fetcher.position(tp) == 20)
            await asyncio.to_thread(racks.node(1).kill)
            racks.node(2).launch()
            await asyncio.to_thread(wait_for_leader, racks, tp, 2)
            await produce(racks, tp, range(100, 130))
            await found.until(lambda: found.fetcher.position(tp) == 35, 120)
            assert found.gaps == [(5, 19, "truncation")]
            expected = [*range(20), *range(100, 130)]
            assert found.values[tp] == [str(n) for n in expected]
            assert found.failed == []
    finally:
        racks.start()


def wait_for_leader(region: Region, tp: TopicPartition, node_id: int) -> None:
    """Wait until a node leads; asks anew while the cluster has no leader of its own."""
    deadline = time.monotonic() + 90
    while leader_of(region, *tp) != node_id:
        assert time.monotonic() < deadline, f"node {node_id} does not lead {tp}"
        time.sleep(0.2)


PARTITIONS = 500
PATIENT_MS = 300_000
"""Of a request: who waited for its end would be late. The goal is 5 s behind the election; a loaded machine gets more."""


def write(region: Region, topic: str) -> None:
    """Write a record to each partition; returns when all are acknowledged, so after the elections."""
    producer = Producer({"bootstrap.servers": region.bootstrap_servers, "acks": "1"})
    for number in range(PARTITIONS):
        producer.produce(topic, b"x", partition=number)
    assert producer.flush(120) == 0


@pytest.mark.faults
@pytest.mark.parametrize("dark", [False, True])
async def test_all_partitions_of_a_dead_leader_are_read_again_soon_after_the_election(
    region_three: Region, unique: Callable[[str], str], *, dark: bool
) -> None:
    topic = unique("many-leaders")
    # Node 1 leads all, and each has a copy on another node.
    spread = [[1, 2 + number % 2] for number in range(PARTITIONS)]
    await asyncio.to_thread(create_led_by, region_three, topic, spread)
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    await asyncio.to_thread(write, region_three, topic)
    async with reading(region_three, request_timeout_ms=PATIENT_MS) as found:
        found.fetcher.add(dict.fromkeys(tps, 0))
        await found.until(lambda: len(found.values) == PARTITIONS)
        node = region_three.node(1)
        await asyncio.to_thread(node.freeze if dark else node.kill)
        try:
            writing = asyncio.create_task(asyncio.to_thread(write, region_three, topic))
            await found.until(writing.done, 120)
            await writing
            elected = time.monotonic()
            await found.until(lambda: all(len(it) == 2 for it in found.values.values()))
            print(f"read again dark={dark} after_s={time.monotonic() - elected:.1f}")  # noqa: T201
            assert (found.gaps, found.failed) == ([], [])
        finally:
            if dark:
                node.thaw()
            region_three.start()
            # Flows of other tests copy whatever is there.
            await asyncio.to_thread(delete_topic, region_three, topic)
