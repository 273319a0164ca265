"""T3, T4: ten times a leader of a region of three is killed under load; nothing is lost, doubled or reordered."""

import logging
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import Unique
from tests.integration.cluster_changes import in_sync, leader_of
from tests.integration.far_regions import Rig
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    assert_equal,
    copied,
    wait_for_copy,
    wait_for_progress,
)
from tests.kit.kafka.region import Region
from tests.kit.regions import CreateTopic

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
    rig: Rig,
    region_three: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    side: str,
) -> None:
    topic = unique(f"{side}-leaders")
    if side == "target":
        source, target = rig.source.region, region_three
        create_topic(source, topic, PARTITIONS)
        flow = write_flow(tmp_path, source, target, topic, THREE_REPLICAS)
        struck = flow.remote(topic)
        create_topic(target, struck, PARTITIONS, replicas=3, config=SAFE)
    else:
        source, target = region_three, rig.target.region
        create_topic(source, topic, PARTITIONS, replicas=3, config=SAFE)
        flow = write_flow(tmp_path, source, target, topic)
        struck = topic
    paused: list[float] = []
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(source, topic, PARTITIONS, rate=RATE) as load:
            for kill in range(KILLS):
                until(lambda: in_sync(region_three, struck) == 3, 90, "replicas in sync")
                wait_for_progress(mirror, flow, topic, RATE)
                leader = region_three.node(leader_of(region_three, struck, kill % PARTITIONS))
                leader.kill()
                killed = time.monotonic()
                try:
                    # What it led goes on with another leader before it is back.
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
        assert mirror.stop() == 0
