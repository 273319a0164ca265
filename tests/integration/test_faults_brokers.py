"""Brokers die, restart, freeze or are not there yet: nothing is lost, and while the process lives nothing doubled."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import (
    YEAR_MS,
    Load,
    Sent,
    assert_equal,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_000
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def own_region() -> Iterator[Region]:
    with Region("own") as region:
        yield region


@pytest.fixture
def own(own_region: Region) -> Region:
    """A cluster that tests stop, kill and freeze, one after the other; it runs at the begin of each."""
    own_region.start()
    return own_region


@pytest.mark.parametrize("age_ms", [0, YEAR_MS], ids=["now", "a-year-ago"])
def test_a_target_that_is_killed_and_restarted_under_load_gets_everything_once(
    region_a: KafkaAddress,
    own: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    age_ms: int,
) -> None:
    target = own
    topic = unique("target-restart")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, target, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE, age_ms=age_ms) as load:
            wait_for_progress(mirror, flow, topic)
            for end in (target.kill, target.stop):
                end()
                load.wait_acked(RATE // 2)
                target.start()
                wait_for_progress(mirror, flow, topic, RATE // 2)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0


@pytest.mark.parametrize("age_ms", [0, YEAR_MS], ids=["now", "a-year-ago"])
def test_a_source_that_is_killed_and_restarted_under_load_is_copied_once(
    own: Region,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    age_ms: int,
) -> None:
    source = own
    topic = unique("source-restart")
    create_topic(source, topic, PARTITIONS)
    flow = write_flow(tmp_path, source, region_b, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(source, topic, PARTITIONS, rate=RATE, age_ms=age_ms) as load:
            wait_for_progress(mirror, flow, topic)
            for end in (source.kill, source.stop):
                end()
                source.start()
                load.wait_acked(RATE // 2)
                wait_for_progress(mirror, flow, topic)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_at_the_start_is_waited_for_by_name(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    own: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    side: str,
) -> None:
    away = own
    source, target = (away, region_b) if side == "source" else (region_a, away)
    topic = unique("away")
    create_topic(source, topic)
    write(source, topic, [Sent(0, b"%d" % n) for n in range(100)])
    away.stop()
    flow = write_flow(tmp_path, source, target, topic)
    with Mirror(flow.file) as mirror:
        alias = flow.source_alias if side == "source" else flow.target_alias
        said = mirror.wait_for_log("WARNING .*waiting for=")
        assert f"{side} cluster {alias} at {away.bootstrap_servers}" in said
        if side == "target":
            until(lambda: len(mirror.lines("waiting for=")) > 1, 90, "the line every 10 s")
        away.start()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        mirror.wait_for_log("back again")
        assert mirror.stop() == 0


def test_a_cluster_that_never_comes_does_not_hold_up_a_stop(
    region_b: KafkaAddress, tmp_path: Path
) -> None:
    class Nowhere:
        name = "nowhere"
        bootstrap_servers = "127.0.0.1:9"

    flow = write_flow(tmp_path, Nowhere(), region_b, "t")
    with Mirror(flow.file) as mirror:
        mirror.wait_for_log("waiting for=")
        assert mirror.stop() == 0


def test_a_frozen_target_is_waited_for_and_gets_everything_once(
    region_a: KafkaAddress,
    own: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    target = own
    topic = unique("frozen")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, target, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            target.freeze()
            try:
                load.wait_acked(5 * RATE)
            finally:
                target.thaw()
            wait_for_progress(mirror, flow, topic, 2 * RATE)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
