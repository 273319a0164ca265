"""A leader of the target dies under load and comes back: nothing is lost, nothing doubled."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster_changes import leader_of
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Load, assert_equal, ends, wait_for_copy, wait_for_progress
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_000
Unique = Callable[[str], str]


THREE_REPLICAS = {
    f"{name}replication.factor": "3"
    for name in ("", "offset.storage.", "status.storage.", "config.storage.")
}


def test_a_killed_leader_of_a_target_of_three_costs_nothing(
    region_a: KafkaAddress,
    region_three: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("leaders")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, region_three, topic, THREE_REPLICAS)
    create_topic(
        region_three,
        flow.remote(topic),
        PARTITIONS,
        replicas=3,
        config={"min.insync.replicas": "2"},
    )
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            leader = region_three.node(leader_of(region_three, flow.remote(topic), 0))
            leader.kill()
            try:
                load.wait_acked(RATE)
                wait_for_progress(mirror, flow, topic, RATE)
                # What it led goes on with another leader before it is back.
                remote = flow.remote(topic)
                before = until(lambda: ends(region_three, remote), 90, "leaders of all")
                until(
                    lambda: all(
                        ends(region_three, remote).get(partition, 0) > end
                        for partition, end in before.items()
                    ),
                    90,
                    lambda: f"every partition to go on, {before} -> {ends(region_three, remote)}",
                    alive=mirror,
                )
            finally:
                region_three.start()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
