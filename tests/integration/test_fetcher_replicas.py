"""The Fetcher on three nodes: the nearest replica, dead nodes, and an unclean election."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from mm2py.types import TopicPartition
from tests.integration.cluster_changes import leader_of
from tests.integration.fetching import Reading, produce, reading
from tests.kit.kafka.region import Region

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def racks() -> Iterator[Region]:
    """Three nodes in racks rack-1 to rack-3 that send readers to their own rack."""
    with_racks = Region("racks", nodes=3, properties={"replica.selector.class": SELECTOR})
    try:
        with_racks.prepare()
        for number, node in enumerate(with_racks.nodes, 1):
            with (node.data_dir.parent / "server.properties").open("a") as file:
                file.write(f"broker.rack=rack-{number}\n")
        with_racks.start()
        yield with_racks
    finally:
        with_racks.close()


def create(region: Region, topic: str, replicas: list[int], **config: str) -> TopicPartition:
    """Create one partition on these nodes; the first one leads."""
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    new = NewTopic(topic, 1, replica_assignment=[replicas], config=config)
    # confluent-kafka's annotation leaves the future's result open.
    answers = admin.create_topics([new])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for answer in cast("dict[str, Future[None]]", answers).values():
        answer.result(60)
    return TopicPartition(topic, 0)


def read_from(found: Reading) -> set[int]:
    """Brokers that the partitions are fetched from now."""
    nodes = found.fetcher._routes.nodes  # pyright: ignore[reportPrivateUsage]
    return {node.node_id for node in nodes if node.cursors}


async def test_data_is_read_from_the_own_rack_and_from_the_leader_when_that_node_is_gone(
    racks: Region, unique: Callable[[str], str]
) -> None:
    try:
        tp = create(racks, unique("near"), [1, 3])
        await produce(racks, tp, range(10))
        async with reading(racks, rack="rack-3", max_age_ms=1500) as found:
            await found.fetcher.assign({tp: 0})
            await found.until(lambda: found.fetcher.position(tp) == 10)
            assert read_from(found) == {3}
            await asyncio.to_thread(racks.node(3).kill)
            await produce(racks, tp, range(10, 20))
            await found.until(lambda: found.fetcher.position(tp) == 20)
            assert read_from(found) == {1}
            await asyncio.to_thread(racks.start)
            await found.until(lambda: read_from(found) == {3}, 60)
            await produce(racks, tp, range(20, 30))
            await found.until(lambda: found.fetcher.position(tp) == 30)
            assert found.values[tp] == [str(n) for n in range(30)]
            assert (found.gaps, found.failed, found.stalled) == ([], [], {})
    finally:
        racks.start()


async def test_an_unclean_election_is_a_truncation_with_its_exact_range(
    racks: Region, unique: Callable[[str], str]
) -> None:
    try:
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        tp = create(racks, unique("unclean"), [1, 2], **config)
        await produce(racks, tp, range(5))
        async with reading(racks) as found:
            await found.fetcher.assign({tp: 0})
            await found.until(lambda: found.fetcher.position(tp) == 5)
            await asyncio.to_thread(racks.node(2).kill)
            await produce(racks, tp, range(5, 20))  # acknowledged once node 2 is out of the ISR
            await found.until(lambda: found.fetcher.position(tp) == 20)
            await asyncio.to_thread(racks.node(1).kill)
            racks.node(2).launch()
            await asyncio.to_thread(wait_for_leader, racks, tp, 2)
            await produce(racks, tp, range(100, 130))
            await found.until(lambda: found.fetcher.position(tp) == 35, 60)
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
