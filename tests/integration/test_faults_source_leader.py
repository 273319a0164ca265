"""T4, short: a leader of the source dies under load and comes back; nothing is lost, nothing doubled."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster_changes import leader_of
from tests.integration.mirror_process import Mirror, write_flow
from tests.integration.traffic import Load, assert_equal, wait_for_copy, wait_for_progress
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_000


def test_a_killed_leader_of_a_source_of_three_costs_nothing(
    region_three: Region,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("source-leaders")
    config = {"min.insync.replicas": "2"}
    create_topic(region_three, topic, PARTITIONS, replicas=3, config=config)
    flow = write_flow(tmp_path, region_three, region_b, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready(90)
        with Load(region_three, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            region_three.node(leader_of(region_three, topic, 0)).kill()
            try:
                load.wait_acked(RATE)
                wait_for_progress(mirror, flow, topic, RATE)
            finally:
                region_three.start()
            load.stop()
            truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert not mirror.lines("records lost")
        assert mirror.stop() == 0
