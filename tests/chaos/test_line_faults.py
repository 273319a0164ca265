"""T5, T6, connections that reset, and a target that is cut off ten times: nothing is lost or doubled, and memory is flat."""

import logging
import time
from pathlib import Path

import pytest

from tests.chaos.census import Census
from tests.chaos.throughput import wait_s
from tests.integration.far_regions import Far, Rig
from tests.integration.mirror_process import Flow, Mirror, running, until, write_flow
from tests.integration.setups import Setup
from tests.integration.target_outages import PARTITIONS as OUTAGE_PARTITIONS
from tests.integration.target_outages import outages
from tests.integration.traffic import Load, assert_equal, copied, wait_for_copy
from tests.kit.lines.delay_proxy import Way

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

PARTITIONS = 4
RATE = 2_000
CUT_S = 40.0
RESUME_S = 30.0
"""Ten seconds on a quiet machine; what it took is logged."""
PROGRESS_S = 40.0
MOST_GROWTH_MB = 20.0
BUFFERS_MB = 150.0
"""What memory may rise by while nothing moves: ``buffer.memory`` of 32 MiB as whole receive buffers, and the
batches cut from them."""


def flow_of(rig: Rig, folder: Path, topic: str, properties: dict[str, str] | None = None) -> Flow:
    return write_flow(
        folder, rig.source.region, rig.target.region, topic, rig.bootstrap | (properties or {})
    )


def wait_for_progress(mirror: Mirror, flow: Flow, topic: str, within_s: float) -> None:
    before = copied(flow, topic)
    until(lambda: copied(flow, topic) > before, within_s, "the copy to go on", alive=mirror)


@pytest.mark.parametrize("side", ["target", "source"])
@pytest.mark.parametrize("how", ["silent", "refused"])
def test_a_region_cut_off_under_load_is_copied_again_soon_after_the_heal(
    setup: Setup, rig: Rig, side: str, how: str
) -> None:
    topic = setup.topic("cut", PARTITIONS, on=rig.source.region)
    flow = flow_of(rig, setup.folder, topic)
    far: Far = rig.target if side == "target" else rig.source
    with running(flow.file) as mirror:
        # The buffers are full after a third of the cut, so that the second half is flat.
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE // 2, value_bytes=2_500) as load:
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
            with Census(mirror.pid) as census:
                if how == "silent":
                    far.line.stall()
                else:
                    far.line.refuse()
                wait_s(load, CUT_S)
            assert census.peak_mb - census.used_mb[0] < BUFFERS_MB
            assert census.growth_mb() < MOST_GROWTH_MB
            far.line.heal()
            healed = time.monotonic()
            wait_for_progress(mirror, flow, topic, RESUME_S)
            log.warning(
                "T5 %s %s: goes on after %.1f s, memory %.0f -> %.0f MiB at most",
                side,
                how,
                time.monotonic() - healed,
                census.used_mb[0],
                census.peak_mb,
            )
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))


@pytest.mark.parametrize("side", ["target", "source"])
def test_replies_that_are_lost_again_and_again_cost_and_double_nothing(
    setup: Setup, rig: Rig, side: str
) -> None:
    topic = setup.topic("one-way", PARTITIONS, on=rig.source.region)
    # What is asked is done, and nobody hears of it, until the client gives the connection up.
    timeouts = {
        "{source}.consumer.request.timeout.ms": "4000",
        "{target}.producer.request.timeout.ms": "4000",
    }
    flow = flow_of(rig, setup.folder, topic, timeouts)
    far: Far = rig.target if side == "target" else rig.source
    with running(flow.file) as mirror:
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for _ in range(5):
                wait_for_progress(mirror, flow, topic, PROGRESS_S)
                far.line.stall(Way.REPLIES)
                wait_s(load, 8.0)
                far.line.reset()
                far.line.heal()
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))


def test_connections_that_are_reset_every_second_cost_and_double_nothing(
    setup: Setup, rig: Rig
) -> None:
    topic = setup.topic("reset", PARTITIONS, on=rig.source.region)
    flow = flow_of(rig, setup.folder, topic)
    rig.target.line.set_round_trip(0.05)  # so that requests are under way when it happens
    with running(flow.file) as mirror:
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for turn in range(20):
                wait_s(load, 1.0)
                (rig.target, rig.source)[turn % 2].line.reset()
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))


LENGTHS_S = (8.0, 15.0) * 5


def test_ten_outages_with_two_workers_put_no_position_back_and_lose_nothing(
    setup: Setup, rig: Rig
) -> None:
    topic = setup.topic("outages", OUTAGE_PARTITIONS, on=rig.source.region)
    outcome = outages(rig, setup.folder, topic, LENGTHS_S)
    log.warning("ten outages: %s", outcome)
    assert (outcome.lost, outcome.steps_back) == (0, [])
