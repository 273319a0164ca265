"""T5, T6, T7: the line to a cluster is cut, loses replies, is slow, stalls and resets, also for longer than a session.

Each for seconds, and as a row of `make chaos` again and again or for long; then memory is flat, too.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.integration.far_regions import Rig, far_pair
from tests.integration.memory_census import Census
from tests.integration.mirror_process import Flow, Mirror, running, until, write_flow
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    committed_positions,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
    written_positions,
)
from tests.kit.lines.delay_proxy import DelayProxy, Way
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS: Final = 8
RATE: Final = 1_000
PROGRESS_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has left on the target."""

    records: int
    lost: int
    doubled: int
    """Records that are there again."""
    positions: int
    steps_back: list[tuple[int, int, int]]
    """Partition, and the offsets of two positions written one after the other, the later one smaller."""
    memberships_lost: int


def outages(rig: Rig, folder: Path, topic: str, lengths_s: Sequence[float]) -> Outcome:
    """Cut the target off once for each length, with two workers under load."""
    properties = {**rig.bootstrap, "tasks.max": "4"}
    flow = write_flow(folder, rig.source.region, rig.target.region, topic, properties)
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        one.wait_ready()
        two.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for length_s in lengths_s:
                _progress(one, flow, topic)
                rig.target.line.stall()
                load.wait_acked(round(RATE * length_s), timeout_s=length_s + 60)
                rig.target.line.heal()
            _progress(one, flow, topic)
        truth, _ = wait_for_copy(one, flow, topic, timeout_s=120)
        lost = [line for worker in (one, two) for line in worker.lines("membership lost")]
        assert (one.stop(), two.stop()) == (0, 0)
    wanted = [record.value for log in truth.values() for record in log.records]
    there = [r.value for log in read(flow.target, flow.remote(topic)).values() for r in log.records]
    positions = written_positions(flow, topic)
    return Outcome(
        records=len(wanted),
        lost=len(set(wanted) - set(there)),
        doubled=len(there) - len(set(there)),
        positions=sum(map(len, positions.values())),
        steps_back=[
            (partition, before, after)
            for partition, written in positions.items()
            for before, after in pairwise(written)
            if after < before
        ],
        memberships_lost=len(lost),
    )


def _progress(worker: Mirror, flow: Flow, topic: str) -> None:
    """Wait until what the source has now is copied, and positions behind it are stored."""
    there = ends(flow.source, topic)

    def stored() -> bool:
        positions = committed_positions(flow, topic)
        return all(positions.get(p, -1) >= end - 1 for p, end in there.items() if end)

    until(stored, PROGRESS_S, "the copy and its positions to catch up", alive=worker)


LINE_PARTITIONS = 2
LONGER_THAN_A_SESSION = 8 * RATE
"""Records that are written meanwhile; the session is 6 s."""
LONG = 40 * RATE
"""The buffers are full after a third of it, so that the second half is flat."""
MOST_GROWTH_MB = 20.0
BUFFERS_MB = 150.0
"""What memory may rise by while nothing moves: ``buffer.memory`` of 32 MiB as whole receive buffers, and the
batches cut from them."""


@pytest.fixture(scope="module")
def lines() -> Iterator[Rig]:
    with far_pair() as pair:
        yield pair


@pytest.fixture
def rig(lines: Rig) -> Iterator[Rig]:
    yield lines
    lines.heal()


CUTS = [("target", "silent"), ("target", "refused"), ("source", "silent"), ("source", "refused")]
SHORT_CUTS = [(*cut, LONGER_THAN_A_SESSION) for cut in (CUTS[0], CUTS[3])]


@pytest.mark.parametrize(
    ("side", "how", "records"), matrix(SHORT_CUTS, [(*cut, LONG) for cut in CUTS])
)
def test_a_region_that_was_cut_off_is_copied_again_once(
    setup: Setup, rig: Rig, side: str, how: str, records: int
) -> None:
    topic = setup.topic("cut", LINE_PARTITIONS, on=rig.source.region)
    flow = setup.flow(topic, rig.bootstrap, source=rig.source.region, target=rig.target.region)
    line = (rig.target if side == "target" else rig.source).line
    with running(flow.file) as mirror:
        with Load(rig.source.region, topic, LINE_PARTITIONS, rate=RATE, value_bytes=2_500) as load:
            wait_for_progress(mirror, flow, topic)
            with Census(mirror.pid) as census:
                if how == "silent":
                    line.stall()
                else:
                    line.refuse()
                load.wait_acked(records)
            line.heal()
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
    assert census.peak_mb - census.used_mb[0] < BUFFERS_MB
    if records == LONG:
        assert census.growth_mb() < MOST_GROWTH_MB


@pytest.mark.parametrize(
    ("side", "times"), matrix([("target", 1), ("source", 1)], [("target", 5), ("source", 5)])
)
def test_replies_that_are_lost_cost_and_double_nothing(
    setup: Setup, rig: Rig, side: str, times: int
) -> None:
    topic = setup.topic("one-way", LINE_PARTITIONS, on=rig.source.region)
    # What is asked is done, and nobody hears of it, until the client gives the connection up.
    properties = rig.bootstrap | {
        "{source}.consumer.request.timeout.ms": "3000",
        "{target}.producer.request.timeout.ms": "3000",
    }
    flow = setup.flow(topic, properties, source=rig.source.region, target=rig.target.region)
    line = (rig.target if side == "target" else rig.source).line
    with running(flow.file) as mirror:
        with Load(rig.source.region, topic, LINE_PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            for _ in range(times):
                line.stall(Way.REPLIES)
                load.wait_acked(5 * RATE)
                line.reset()
                line.heal()
                wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))


LARGE = 50_000_000


def test_a_50_mb_record_arrives_once_though_its_line_is_cut_and_its_worker_killed_in_the_middle_of_it(
    setup: Setup, rig: Rig
) -> None:
    size = {"max.message.bytes": str(LARGE + 100_000)}
    topic = setup.topic("large", on=rig.source.region, config=size)
    properties = rig.bootstrap | CALM
    flow = setup.flow(topic, properties, source=rig.source.region, target=rig.target.region)
    records = [Sent(0, os.urandom(LARGE)), Sent(0, b"behind")]
    write(rig.source.region, topic, records, message_max_bytes=LARGE + 100_000)
    for far in (rig.source, rig.target):
        far.line.set_round_trip(0.01, rate_bytes_s=20_000_000)

    def amid(mirror: Mirror, line: DelayProxy, way: Way) -> None:
        half = line.passed_bytes(way) + LARGE // 2
        until(lambda: line.passed_bytes(way) > half, 90, "half of the record", alive=mirror)

    with Mirror(flow.file) as mirror:
        for _ in range(2):
            amid(mirror, rig.source.line, Way.REPLIES)
            rig.source.line.reset()
        for _ in range(2):
            amid(mirror, rig.target.line, Way.REQUESTS)
            rig.target.line.reset()
        amid(mirror, rig.target.line, Way.REQUESTS)
        rig.target.line.stall()
        mirror.kill()
    rig.target.line.reset()
    rig.target.line.heal()
    with Mirror(flow.file) as mirror:
        # The target has it all, and its worker never hears of it.
        amid(mirror, rig.target.line, Way.REQUESTS)
        rig.target.line.stall(Way.REPLIES)
        remote = flow.remote(topic)
        until(lambda: ends(rig.target.region, remote) == {0: 1}, 90, "the record", alive=mirror)
        mirror.kill()
    rig.target.line.heal()
    with running(flow.file, ready=False) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.parametrize("turns", [2, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_long_slow_line_that_stalls_and_resets_changes_nothing_of_the_content(
    setup: Setup, rig: Rig, turns: int
) -> None:
    topic = setup.topic("slow", LINE_PARTITIONS, on=rig.source.region)
    flow = setup.flow(topic, rig.bootstrap, source=rig.source.region, target=rig.target.region)
    for far in (rig.source, rig.target):
        far.line.set_round_trip(0.08, rate_bytes_s=4_000_000)
    with running(flow.file) as mirror:
        with Load(rig.source.region, topic, LINE_PARTITIONS, rate=RATE, value_bytes=1_000) as load:
            for line in (rig.target.line, rig.source.line) * turns:
                wait_for_progress(mirror, flow, topic, RATE // 2)
                line.stall()
                load.wait_acked(RATE // 2)
                line.heal()
                wait_for_progress(mirror, flow, topic, RATE // 2)
                line.reset()
        assert_equal(*wait_for_copy(mirror, flow, topic))


UNDER_WAY = 4_000
"""What eight partitions may have under way and not committed at two outages, at 1,000 records/s."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.chaos)])
def test_no_stored_position_goes_back_and_nothing_is_lost_when_the_target_is_cut_off(
    setup: Setup, times: int
) -> None:
    topic = setup.unique("outage")
    with far_pair() as rig:
        setup.create_topic(rig.source.region, topic, PARTITIONS)
        outcome = outages(rig, setup.folder, topic, (8.0, 15.0) * times)
    assert outcome.positions
    assert (outcome.lost, outcome.steps_back) == (0, []), outcome
    assert outcome.doubled < UNDER_WAY * times, outcome
