"""Brokers and leaders die, restart, freeze, have no room or are not there yet: nothing is lost, and while the process lives nothing doubled."""

from collections.abc import Iterator, Mapping

import pytest

from tests.integration.cluster_changes import leader_of
from tests.integration.exactly_once import ENABLED, wait_for_committed
from tests.integration.mirror_process import running, until
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import (
    YEAR_MS,
    Load,
    Sent,
    assert_equal,
    ends,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import Region
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_000


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
    setup: Setup, own: Region, age_ms: int
) -> None:
    target = own
    topic = setup.topic("target-restart", PARTITIONS)
    flow = setup.flow(topic, target=target)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE, age_ms=age_ms) as load:
            wait_for_progress(mirror, flow, topic)
            for end in (target.kill, target.stop):
                end()
                load.wait_acked(RATE // 2)
                target.start()
                wait_for_progress(mirror, flow, topic, RATE // 2)
        assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.parametrize("age_ms", [0, YEAR_MS], ids=["now", "a-year-ago"])
def test_a_source_that_is_killed_and_restarted_under_load_is_copied_once(
    setup: Setup, own: Region, age_ms: int
) -> None:
    source = own
    topic = setup.topic("source-restart", PARTITIONS, on=source)
    flow = setup.flow(topic, source=source)
    with running(flow.file) as mirror:
        with Load(source, topic, PARTITIONS, rate=RATE, age_ms=age_ms) as load:
            wait_for_progress(mirror, flow, topic)
            for end in (source.kill, source.stop):
                end()
                source.start()
                load.wait_acked(RATE // 2)
                wait_for_progress(mirror, flow, topic)
        assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_at_the_start_is_waited_for_by_name(
    setup: Setup, own: Region, side: str
) -> None:
    away = own
    source, target = (away, setup.b) if side == "source" else (setup.a, away)
    topic = setup.topic("away", on=source)
    write(source, topic, [Sent(0, b"%d" % n) for n in range(100)])
    away.stop()
    flow = setup.flow(topic, source=source, target=target)
    with running(flow.file, ready=False) as mirror:
        alias = flow.source_alias if side == "source" else flow.target_alias
        said = mirror.wait_for_log("WARNING .*waiting for=")
        assert f"{side} cluster {alias} at {away.bootstrap_servers}" in said
        if side == "target":
            until(lambda: len(mirror.lines("waiting for=")) > 1, 90, "the line every 10 s")
        away.start()
        assert_equal(*wait_for_copy(mirror, flow, topic))
        mirror.wait_for_log("back again")


def test_a_cluster_that_never_comes_does_not_hold_up_a_stop(setup: Setup) -> None:
    class Nowhere:
        name = "nowhere"
        bootstrap_servers = "127.0.0.1:9"

    flow = setup.flow("t", source=Nowhere())
    with running(flow.file, ready=False) as mirror:
        mirror.wait_for_log("waiting for=")


def test_a_frozen_target_is_waited_for_and_gets_everything_once(setup: Setup, own: Region) -> None:
    target = own
    topic = setup.topic("frozen", PARTITIONS)
    flow = setup.flow(topic, target=target)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            target.freeze()
            try:
                load.wait_acked(5 * RATE)
            finally:
                target.thaw()
            wait_for_progress(mirror, flow, topic, 2 * RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))


THREE_REPLICAS = {
    f"{name}replication.factor": "3"
    for name in ("", "offset.storage.", "status.storage.", "config.storage.")
}


def test_a_killed_leader_of_a_target_of_three_costs_nothing(
    setup: Setup, region_three: Region
) -> None:
    topic = setup.topic("leaders", PARTITIONS)
    flow = setup.flow(topic, THREE_REPLICAS, target=region_three)
    setup.create_topic(
        region_three,
        flow.remote(topic),
        PARTITIONS,
        replicas=3,
        config={"min.insync.replicas": "2"},
    )
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            leader = region_three.node(leader_of(region_three, flow.remote(topic), 0))
            leader.kill()
            try:
                load.wait_acked(RATE)
                wait_for_progress(mirror, flow, topic, RATE)
                # What it led continues with another leader before it is back.
                remote = flow.remote(topic)
                before = until(lambda: ends(region_three, remote), 90, "leaders of all")
                until(
                    lambda: all(
                        ends(region_three, remote).get(partition, 0) > end
                        for partition, end in before.items()
                    ),
                    90,
                    lambda: f"every partition to go on, {before} -> {ends(region_three, remote)}",
                    alive=mirror,
                )
            finally:
                region_three.start()
        assert_equal(*wait_for_copy(mirror, flow, topic))


def test_a_killed_leader_of_a_source_of_three_costs_nothing(
    setup: Setup, region_three: Region
) -> None:
    topic = setup.unique("source-leaders")
    config = {"min.insync.replicas": "2"}
    setup.create_topic(region_three, topic, PARTITIONS, replicas=3, config=config)
    flow = setup.flow(topic, source=region_three)
    with running(flow.file, ready=False) as mirror:
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


@pytest.mark.parametrize("properties", [{}, ENABLED], ids=["plain", "exactly-once"])
def test_a_target_that_had_no_room_gets_everything_once_when_it_has(
    setup: Setup, properties: Mapping[str, str]
) -> None:
    topic = setup.topic("room", 2)
    with (
        small_disk(setup.folder) as disk,
        Region(
            "full", properties=ANY_SESSION | FEW_INDEXES, folder=disk, min_free_bytes=1
        ) as target,
    ):
        flow = setup.flow(topic, properties, target=target)
        with running(flow.file) as mirror:
            with Load(setup.a, topic, 2, rate=RATE, value_bytes=1_000) as load:
                wait_for_progress(mirror, flow, topic)
                ballast = disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 90, "the broker to give up")
                load.wait_acked(RATE)
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            assert_equal(*wait_for_committed(mirror, flow, topic))
