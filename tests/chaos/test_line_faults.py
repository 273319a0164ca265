"""T5, T6 and the frozen target: the line is cut, loses replies, resets; nothing lost or doubled, memory flat."""

import logging
import time
from pathlib import Path

import pytest

from mm2py.testing.delay_proxy import Way
from tests.chaos.census import Census
from tests.chaos.conftest import CreateTopic, Far, Rig, Unique
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import Load, assert_equal, assert_resumed, ends, wait_for_copy

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

PARTITIONS = 4
RATE = 2_000
CUT_S = 60.0
RESUME_S = 10.0
PROGRESS_S = 40.0
TURNS = 7
MOST_GROWTH_MB = 20.0
BUFFERS_MB = 150.0
"""What memory may rise by while nothing moves: ``buffer.memory`` of 32 MiB as whole receive buffers, and the
batches cut from them."""


def flow_of(rig: Rig, folder: Path, topic: str, properties: dict[str, str] | None = None) -> Flow:
    lines = {
        "{source}.bootstrap.servers": rig.source.line.bootstrap_servers,
        "{target}.bootstrap.servers": rig.target.line.bootstrap_servers,
    }
    return write_flow(
        folder, rig.source.region, rig.target.region, topic, lines | (properties or {})
    )


def copied(flow: Flow, topic: str) -> int:
    return sum(ends(flow.target, flow.remote(topic)).values())


def wait_for_progress(mirror: Mirror, flow: Flow, topic: str, within_s: float) -> None:
    before = copied(flow, topic)
    until(lambda: copied(flow, topic) > before, within_s, "the copy to go on", alive=mirror)


def wait_s(load: Load, seconds: float) -> None:
    """Let a fault last, and fail at once when nothing can be written to the source any more."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load.wait_acked(1)


@pytest.mark.parametrize("side", ["target", "source"])
@pytest.mark.parametrize("how", ["silent", "refused"])
def test_a_region_cut_off_for_a_minute_is_copied_again_ten_seconds_after_the_heal(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path, side: str, how: str
) -> None:
    topic = unique("cut")
    create_topic(rig.source.region, topic, PARTITIONS)
    flow = flow_of(rig, tmp_path, topic)
    far: Far = rig.target if side == "target" else rig.source
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        # The buffers are full after a quarter of the cut, so that the second half is flat.
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE // 2, value_bytes=2_500) as load:
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
            with Census(mirror.pid) as census:
                if how == "silent":
                    far.line.stall()
                else:
                    far.line.refuse()
                wait_s(load, CUT_S)
            assert census.peak_mb - census.resident_mb[0] < BUFFERS_MB
            assert census.growth_mb() < MOST_GROWTH_MB
            far.line.heal()
            healed = time.monotonic()
            wait_for_progress(mirror, flow, topic, RESUME_S)
            log.warning(
                "T5 %s %s: goes on after %.1f s, memory %.0f -> %.0f MiB at most",
                side,
                how,
                time.monotonic() - healed,
                census.resident_mb[0],
                census.peak_mb,
            )
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
        assert mirror.stop() == 0


@pytest.mark.parametrize("side", ["target", "source"])
def test_replies_that_are_lost_again_and_again_cost_and_double_nothing(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path, side: str
) -> None:
    topic = unique("one-way")
    create_topic(rig.source.region, topic, PARTITIONS)
    # What is asked is done, and nobody hears of it, until the client gives the connection up.
    timeouts = {
        "{source}.consumer.request.timeout.ms": "4000",
        "{target}.producer.request.timeout.ms": "4000",
    }
    flow = flow_of(rig, tmp_path, topic, timeouts)
    far: Far = rig.target if side == "target" else rig.source
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for _ in range(5):
                wait_for_progress(mirror, flow, topic, PROGRESS_S)
                far.line.stall(Way.REPLIES)
                wait_s(load, 10.0)
                far.line.reset()
                far.line.heal()
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
        assert mirror.stop() == 0


def test_connections_that_are_reset_every_second_cost_and_double_nothing(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("reset")
    create_topic(rig.source.region, topic, PARTITIONS)
    flow = flow_of(rig, tmp_path, topic)
    rig.target.line.set_round_trip(0.05)  # so that requests are under way when it happens
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for turn in range(20):
                wait_s(load, 1.0)
                (rig.target, rig.source)[turn % 2].line.reset()
            wait_for_progress(mirror, flow, topic, PROGRESS_S)
        assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
        assert mirror.stop() == 0


def test_memory_is_flat_while_the_target_is_frozen_half_of_the_time(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("frozen")
    create_topic(rig.source.region, topic, PARTITIONS)
    flow = flow_of(rig, tmp_path, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with (
            Load(rig.source.region, topic, PARTITIONS, rate=RATE, value_bytes=2_000) as load,
            Census(mirror.pid) as census,
        ):
            for _ in range(TURNS):
                wait_s(load, 6.0)
                rig.target.region.freeze()
                try:
                    wait_s(load, 6.0)
                finally:
                    rig.target.region.thaw()
        growth = census.growth_mb()
        log.warning(
            "memory: at most %.0f MiB, %.1f MiB more at the end; %s",
            census.peak_mb,
            growth,
            [round(value) for value in census.resident_mb[::4]],
        )
        assert growth < MOST_GROWTH_MB
        # A coordinator that was frozen for longer than a session may take us for dead when it wakes.
        assert_resumed(*wait_for_copy(mirror, flow, topic, timeout_s=120), rewinds=TURNS)
        assert mirror.stop() == 0
