"""T3, T4: ten times a leader of a region of three is killed under load; nothing is lost, doubled or reordered.

T4 also with five hundred partitions: three times a broker of the source dies, or its host goes dark.
"""

import logging
import time
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_changes import in_sync, leader_of, leaders_of
from tests.integration.far_regions import Rig
from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    assert_equal,
    copied,
    ends,
    wait_for_copy,
    wait_for_progress,
)
from tests.kit.kafka.ports import HOST
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

KILLS = 10
PARTITIONS = 4
RATE = 2_000
SAFE = {"min.insync.replicas": "2"}
THREE_REPLICAS = {
    f"{name}replication.factor": "3"
    for name in ("", "offset.storage.", "status.storage.", "config.storage.")
}


@pytest.mark.parametrize("side", ["target", "source"])
def test_ten_killed_leaders_of_three_cost_and_double_nothing(
    setup: Setup, rig: Rig, region_three: Region, side: str
) -> None:
    topic = setup.unique(f"{side}-leaders")
    if side == "target":
        source, target = rig.source.region, region_three
        setup.create_topic(source, topic, PARTITIONS)
        flow = setup.flow(topic, THREE_REPLICAS, source=source, target=target)
        struck = flow.remote(topic)
        setup.create_topic(target, struck, PARTITIONS, replicas=3, config=SAFE)
    else:
        source, target = region_three, rig.target.region
        setup.create_topic(source, topic, PARTITIONS, replicas=3, config=SAFE)
        flow = setup.flow(topic, source=source, target=target)
        struck = topic
    paused: list[float] = []
    with running(flow.file) as mirror:
        with Load(source, topic, PARTITIONS, rate=RATE) as load:
            for kill in range(KILLS):
                until(lambda: in_sync(region_three, struck) == 3, 90, "replicas in sync")
                wait_for_progress(mirror, flow, topic, RATE)
                leader = region_three.node(leader_of(region_three, struck, kill % PARTITIONS))
                leader.kill()
                killed = time.monotonic()
                try:
                    # What it led continues with another leader before it is back.
                    wait_for_progress(mirror, flow, topic, RATE)
                    paused.append(time.monotonic() - killed)
                    load.wait_acked(RATE, 60)
                finally:
                    region_three.start()
            load.stop()
            truth, copy = wait_for_copy(mirror, flow, topic, timeout_s=120)
        assert_equal(truth, copy)
        assert not mirror.lines("records lost|will be copied again")
        log.warning(
            "T%d: %d records, seconds until %d more were copied after each kill: %s",
            3 if side == "target" else 4,
            copied(flow, topic),
            RATE,
            [round(seconds, 1) for seconds in paused],
        )


WIDE = 500
WIDE_RATE = 1_000
REPLICAS = 2
ELECTION_S = 60.0
UP_S = 120.0
"""Ten seconds from the election on a quiet machine; what it took is logged."""


def create(region: Region, topic: str) -> None:
    """Create the topic so that node 1 leads all partitions, and each has its copy on another node."""
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    replicas = [[1, 2 + number % 2] for number in range(WIDE)]
    new = NewTopic(topic, WIDE, replica_assignment=replicas)
    # confluent-kafka's annotation leaves the future's result open.
    answers = admin.create_topics([new])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for answer in cast("dict[str, Future[None]]", answers).values():
        answer.result(60)


def without(region: Region, node_id: int) -> ForeignRegion:
    """Return the cluster as clients see it that never ask that node."""
    ports = [node.port for number, node in enumerate(region.nodes, 1) if number != node_id]
    return ForeignRegion(region.name, ",".join(f"{HOST}:{port}" for port in ports))


def wait_for_all(mirror: Mirror, flow: Flow, source: KafkaAddress, topic: str) -> None:
    """Wait until every partition is copied as far as it is written now."""

    def all_ends() -> dict[int, int] | None:
        # None of them is known while one partition has no leader.
        return ends(source, topic) or None

    written = until(all_ends, ELECTION_S, "the log ends of all partitions")

    def copied() -> bool:
        copies = ends(flow.target, flow.remote(topic))
        return all(copies.get(partition, 0) >= end for partition, end in written.items())

    until(copied, UP_S, "all partitions to be copied again", alive=mirror)


def lose(mirror: Mirror, flow: Flow, load: Load, topic: str, node_id: int, *, dark: bool) -> str:
    """Take one node away for as long as it takes; say how many partitions it led and how long they waited."""
    region = flow.source
    assert isinstance(region, Region)
    wait_for_all(mirror, flow, region, topic)
    led = list(leaders_of(region, topic).values()).count(node_id)
    rest, node = without(region, node_id), region.node(node_id)
    if dark:
        node.freeze()
    else:
        node.kill()
    try:
        until(
            lambda: not {node_id, -1} & set(leaders_of(rest, topic).values()),
            ELECTION_S,
            f"leaders other than {node_id}",
        )
        elected = time.monotonic()
        load.wait_acked(2 * WIDE)
        wait_for_all(mirror, flow, rest, topic)
        waited_s = time.monotonic() - elected
    finally:
        node.thaw()
        region.start()
    # The others know: what the node itself answers may be as old as the moment in which it was frozen.
    until(lambda: in_sync(rest, topic) == REPLICAS, UP_S, "replicas in sync")
    return f"{led} partitions, {waited_s:.1f} s"


@pytest.mark.parametrize("how", ["dead", "dark"])
def test_five_hundred_partitions_are_copied_again_soon_after_the_election(
    setup: Setup, rig: Rig, region_three: Region, how: str
) -> None:
    topic = setup.unique("wide")
    create(region_three, topic)
    flow = setup.flow(topic, {"tasks.max": "4"}, source=region_three, target=rig.target.region)
    with running(flow.file) as mirror:
        with Load(region_three, topic, WIDE, rate=WIDE_RATE) as load:
            load.wait_acked(2 * WIDE)
            lost = [
                lose(mirror, flow, load, topic, node_id, dark=how == "dark")
                for node_id in (1, 2, 3)
            ]
        log.warning("T4 %s: led, and copied again after the election: %s", how, lost)
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=120))
        assert not mirror.lines("records lost|will be copied again")
