"""Brokers of a target of three die under load, coordinators of transactions among them: each record is there once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.exactly_once import ENABLED, assert_each_once, wait_for_more
from tests.integration.mirror_process import Mirror, write_flow
from tests.integration.traffic import Load
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS = 6
RATE = 1_000
THREE_REPLICAS = {
    f"{name}replication.factor": "3"
    for name in ("", "offset.storage.", "status.storage.", "config.storage.")
}
Unique = Callable[[str], str]


def test_each_broker_is_killed_in_turn(
    region_a: KafkaAddress,
    region_three: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("coordinators")
    create_topic(region_a, topic, PARTITIONS)
    # The session is long: a group whose coordinator dies must not take the work from its only worker.
    properties = {**ENABLED, **THREE_REPLICAS, "{target}.session.timeout.ms": "20000"}
    flow = write_flow(tmp_path, region_a, region_three, topic, properties)
    in_sync = {"min.insync.replicas": "2"}
    create_topic(region_three, flow.remote(topic), PARTITIONS, replicas=3, config=in_sync)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_more(mirror, flow, topic)
            for node in range(1, 4):
                region_three.node(node).kill()
                try:
                    load.wait_acked(RATE)
                finally:
                    region_three.start()
                wait_for_more(mirror, flow, topic)
        assert assert_each_once(mirror, flow, topic) > 3 * RATE
        assert mirror.stop() == 0
