"""T7: one partition with a backlog over a long round trip, to the target and from the source.

On a busy machine 80 ms is not what limits a copy, so there the share of what the same copy reaches without
delay counts; over 400 ms the window is the limit on any machine.
"""

import logging
from pathlib import Path

import pytest

from tests.chaos.conftest import CreateTopic, Rig, Unique
from tests.chaos.throughput import Pace, pace_of_copy, write_backlog
from tests.integration.mirror_process import Mirror, write_flow
from tests.integration.traffic import assert_equal, wait_for_copy

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(300)]

log = logging.getLogger(__name__)

BACKLOG = 80_000
IN_FLIGHT = 5
LARGEST_BATCH = 1_048_576
GOAL = 0.8

FETCHED = {"{source}.consumer.max.partition.fetch.bytes": "8388608"}
"""The source gives one partition Java's 1 MiB per answer and round trip, unless more is asked for."""

FULL_ANSWER = 4 * LARGEST_BATCH - 65_536
"""One Fetch of at most this is under way."""


def copy_once(rig: Rig, topic: str, folder: Path, properties: dict[str, str] | None = None) -> Pace:
    """Copy the whole topic with a new flow, whose clients know both clusters by their lines only."""
    lines = {
        "{source}.bootstrap.servers": rig.source.line.bootstrap_servers,
        "{target}.bootstrap.servers": rig.target.line.bootstrap_servers,
    }
    flow = write_flow(
        folder, rig.source.region, rig.target.region, topic, lines | (properties or {})
    )
    with Mirror(flow.file) as mirror:
        mirror.wait_ready(60)
        pace = pace_of_copy(mirror, rig.target.region, flow.remote(topic), BACKLOG)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
    return pace


@pytest.fixture
def backlog(rig: Rig, unique: Unique, create_topic: CreateTopic) -> str:
    topic = unique("wan")
    create_topic(rig.source.region, topic)
    write_backlog(rig.source.region, topic, BACKLOG)
    return topic


def test_one_partition_reaches_four_fifths_of_what_five_largest_batches_in_flight_permit(
    rig: Rig, backlog: str, tmp_path: Path
) -> None:
    permitted = IN_FLIGHT * LARGEST_BATCH / 0.4
    rig.target.line.set_round_trip(0.4)
    pace = copy_once(rig, backlog, tmp_path)
    share = pace.bytes_per_s / permitted
    log.warning("T7 target, 400 ms: %s, %.0f %% of the window", pace, share * 100)
    assert share >= GOAL


def test_one_partition_from_far_reaches_four_fifths_of_one_full_answer_per_round_trip(
    rig: Rig, backlog: str, tmp_path: Path
) -> None:
    rig.source.line.set_round_trip(0.4)
    pace = copy_once(rig, backlog, tmp_path, FETCHED)
    share = pace.bytes_per_s / (FULL_ANSWER / 0.4)
    log.warning("T7 source, 400 ms: %s, %.0f %% of an answer", pace, share * 100)
    assert share >= GOAL


def test_one_partition_over_80_ms_reaches_four_fifths_of_its_window_or_of_this_machine(
    rig: Rig, backlog: str, tmp_path: Path
) -> None:
    permitted = IN_FLIGHT * LARGEST_BATCH / 0.08
    near = copy_once(rig, backlog, tmp_path)
    rig.target.line.set_round_trip(0.08)
    far = copy_once(rig, backlog, tmp_path)
    share = far.bytes_per_s / min(permitted, near.bytes_per_s)
    log.warning("T7 target, 80 ms: %s, without delay %s, share %.0f %%", far, near, share * 100)
    assert share >= GOAL
