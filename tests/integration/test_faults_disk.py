"""T16, short: the target's disk is full, its broker gives up; with room again everything arrives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import Load, assert_equal, wait_for_copy, wait_for_progress
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

RATE = 1_000


def test_a_target_that_had_no_room_gets_everything_once_when_it_has(
    region_a: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("room")
    create_topic(region_a, topic, 2)
    with (
        small_disk(tmp_path) as disk,
        Region("full", properties=FEW_INDEXES, folder=disk, min_free_bytes=1) as target,
    ):
        flow = write_flow(tmp_path, region_a, target, topic)
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            with Load(region_a, topic, 2, rate=RATE, value_bytes=1_000) as load:
                wait_for_progress(mirror, flow, topic)
                ballast = disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 90, "the broker to give up")
                load.wait_acked(RATE)
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
            assert mirror.stop() == 0
