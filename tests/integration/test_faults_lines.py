"""T5, T6, T7, short: the line to a cluster is cut, loses replies, is slow, stalls and resets."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.far_regions import Rig, far_pair
from tests.integration.mirror_process import Mirror, write_flow
from tests.integration.traffic import Load, assert_equal, wait_for_copy, wait_for_progress
from tests.kit.lines.delay_proxy import Way
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 2
RATE = 1_000
LONGER_THAN_A_SESSION = 8 * RATE
"""Records that are written meanwhile; the session is 6 s."""

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def lines() -> Iterator[Rig]:
    with far_pair() as pair:
        yield pair


@pytest.fixture
def rig(lines: Rig) -> Iterator[Rig]:
    yield lines
    lines.heal()


@pytest.mark.parametrize(("side", "how"), [("target", "silent"), ("source", "refused")])
def test_a_region_that_was_cut_off_is_copied_again_once(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path, side: str, how: str
) -> None:
    topic = unique("cut")
    create_topic(rig.source.region, topic, PARTITIONS)
    flow = write_flow(tmp_path, rig.source.region, rig.target.region, topic, rig.bootstrap)
    line = (rig.target if side == "target" else rig.source).line
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            if how == "silent":
                line.stall()
            else:
                line.refuse()
            load.wait_acked(LONGER_THAN_A_SESSION)
            line.heal()
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0


@pytest.mark.parametrize("side", ["target", "source"])
def test_replies_that_are_lost_cost_and_double_nothing(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path, side: str
) -> None:
    topic = unique("one-way")
    create_topic(rig.source.region, topic, PARTITIONS)
    properties = rig.bootstrap | {
        "{source}.consumer.request.timeout.ms": "3000",
        "{target}.producer.request.timeout.ms": "3000",
    }
    flow = write_flow(tmp_path, rig.source.region, rig.target.region, topic, properties)
    line = (rig.target if side == "target" else rig.source).line
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            line.stall(Way.REPLIES)
            load.wait_acked(5 * RATE)
            line.reset()
            line.heal()
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0


def test_a_long_slow_line_that_stalls_and_resets_changes_nothing_of_the_content(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("slow")
    create_topic(rig.source.region, topic, PARTITIONS)
    flow = write_flow(tmp_path, rig.source.region, rig.target.region, topic, rig.bootstrap)
    for far in (rig.source, rig.target):
        far.line.set_round_trip(0.08, rate_bytes_s=4_000_000)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE, value_bytes=1_000) as load:
            for line in (rig.target.line, rig.source.line) * 2:
                wait_for_progress(mirror, flow, topic, RATE // 2)
                line.stall()
                load.wait_acked(RATE // 2)
                line.heal()
                wait_for_progress(mirror, flow, topic, RATE // 2)
                line.reset()
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
