"""Brokers, leaders and workers die, restart, have no room or are not there yet: nothing is lost, and while the process lives nothing doubled."""

import signal
from collections.abc import Iterator, Mapping

import pytest

from tests.integration.cluster_changes import create_led_by, in_sync, leader_of
from tests.integration.exactly_once import ENABLED, wait_for_committed
from tests.integration.main_job import processes, the_tasks_of_a_killed_worker_run_in_the_other
from tests.integration.mirror_process import THREE_REPLICAS, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import (
    YEAR_MS,
    Load,
    Sent,
    assert_equal,
    ends,
    wait_for_all,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.ports import HOST
from tests.kit.kafka.region import ForeignRegion, Region
from tests.kit.matrix import matrix
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
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_killed_and_restarted_under_load_has_everything_once(
    setup: Setup, own: Region, side: str, age_ms: int
) -> None:
    source, target = (own, setup.b) if side == "source" else (setup.a, own)
    topic = setup.topic("restart", PARTITIONS, on=source)
    flow = setup.flow(topic, source=source, target=target)
    with running(flow.file) as mirror:
        with Load(source, topic, PARTITIONS, rate=RATE, age_ms=age_ms) as load:
            wait_for_progress(mirror, flow, topic)
            for end in (own.kill, own.stop):
                end()
                if side == "target":
                    load.wait_acked(RATE // 2)
                own.start()
                load.wait_acked(RATE // 2)
                wait_for_progress(mirror, flow, topic, RATE // 2)
        assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_is_waited_for_by_name(setup: Setup, own: Region, side: str) -> None:
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


def without(region: Region, node_id: int) -> ForeignRegion:
    """Return the cluster as clients see it that never ask that node."""
    ports = [node.port for number, node in enumerate(region.nodes, 1) if number != node_id]
    return ForeignRegion(region.name, ",".join(f"{HOST}:{port}" for port in ports))


FEW = [[n, n % 3 + 1, (n + 1) % 3 + 1] for n in (1, 2, 3, 1)]
ALL_BY_ONE = [[1, 2 + n % 2, 3 - n % 2] for n in range(500)]
"""Of a whole worker; ``test_fetcher`` has as many of a Fetcher alone, which reads them again in time."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("side", "kills", "replicas"),
    matrix(
        [("target", 1, FEW), ("source", 1, FEW)],
        [("target", 10, FEW), ("source", 10, FEW), ("source", 2, ALL_BY_ONE)],
    ),
    ids=["target", "source", "target ten times", "source ten times", "source 500 partitions"],
)
def test_leaders_of_three_that_die_or_go_dark_cost_and_double_nothing(
    setup: Setup, region_three: Region, side: str, kills: int, replicas: list[list[int]]
) -> None:
    topic, safe = setup.unique(f"{side}-leaders"), {"min.insync.replicas": "2"}
    partitions = len(replicas)
    if side == "target":
        setup.create_topic(setup.a, topic, partitions)
        flow = setup.flow(topic, THREE_REPLICAS, target=region_three)
        struck = flow.remote(topic)
    else:
        flow = setup.flow(topic, source=region_three)
        struck = topic
    create_led_by(region_three, struck, replicas, safe)
    until(lambda: len(ends(region_three, struck)) == partitions, 90, "the topic")
    with running(flow.file) as mirror:
        with Load(flow.source, topic, partitions, rate=RATE) as load:
            for kill in range(kills):
                until(lambda: in_sync(region_three, struck) == 3, 90, "replicas in sync")
                wait_for_progress(mirror, flow, topic, RATE)
                leads = leader_of(region_three, struck, kill % partitions)
                node = region_three.node(leads)
                (node.freeze if kill % 2 else node.kill)()
                try:
                    load.wait_acked(RATE)
                    # What it led continues with another leader before it is back.
                    rest = without(region_three, leads) if side == "source" else None
                    wait_for_all(mirror, flow, topic, source=rest)
                finally:
                    node.thaw()
                    region_three.start()
            load.stop()
            truth, copy = wait_for_copy(mirror, flow, topic, timeout_s=120)
        assert_equal(truth, copy)
        assert not mirror.lines("records lost|will be copied again")


@pytest.mark.parametrize(
    ("properties", "records"), matrix([({}, RATE), (ENABLED, RATE)], [({}, 20 * RATE)])
)
def test_a_target_that_had_no_room_gets_everything_once_when_it_has(
    setup: Setup, properties: Mapping[str, str], records: int
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
                load.wait_acked(records)
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            assert_equal(*wait_for_committed(mirror, flow, topic))


def test_a_stop_under_load_ends_with_0_and_the_next_start_doubles_nothing(setup: Setup) -> None:
    topic = setup.topic("process", PARTITIONS)
    flow = setup.flow(topic)
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for number in (signal.SIGTERM, signal.SIGINT):
            with Mirror(flow.file, name=number.name) as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                mirror.send(number)
                assert mirror.wait() == 0
    with running(flow.file, name="last", ready=False) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert not mirror.complaints()


def test_the_tasks_of_a_killed_process_run_in_the_other(setup: Setup) -> None:
    topic = setup.topic("process", PARTITIONS)
    # One task for each of two processes: a checkpoint task could be all that one of them has.
    flow = setup.flow(topic, {"tasks.max": "2", "emit.checkpoints.enabled": "false"})
    the_tasks_of_a_killed_worker_run_in_the_other(flow, topic, processes)
