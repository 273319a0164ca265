"""T15, T16, T18: poisoned records, a full disk, topics that appear."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.conftest import Unique
from tests.integration.cluster_changes import grow
from tests.integration.far_regions import Rig
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

PARTITIONS = 8
TOPICS = 50
LOOKS = 50
READERS = 8
FULL_FOR = 20_000
"""Records that are written meanwhile; the disk has room for twice as many."""


def worst_lag(source: Region, target: Region, flow: Flow, topic: str, partitions: list[int]) -> int:
    """Return the most records by which the copies of these partitions were behind, of some looks in a row."""
    worst = 0
    for _ in range(LOOKS):
        copies, now = ends(target, flow.remote(topic)), ends(source, topic)
        worst = max(worst, sum(now[p] - copies.get(p, 0) for p in partitions))
    return worst


def test_poisoned_records_stop_their_partition_and_no_other(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("poison")
    source, target = rig.source.region, rig.target.region
    create_topic(source, topic, PARTITIONS, config={"max.message.bytes": "20000000"})
    flow = write_flow(tmp_path, source, target, topic, {"sync.topic.configs.enabled": "false"})
    create_topic(target, flow.remote(topic), PARTITIONS)
    poisoned = 3
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(source, topic, PARTITIONS, rate=1_000) as load:
            load.wait_acked(2_000)
            healthy = [p for p in range(PARTITIONS) if p != poisoned]
            quiet = worst_lag(source, target, flow, topic, healthy)
            write(
                source,
                topic,
                [Sent(poisoned, os.urandom(10 << 20))],
                message_max_bytes=20_000_000,
            )
            mirror.wait_for_log(f"ERROR .*{topic}-{poisoned}", 40)
            behind = ends(target, flow.remote(topic))[poisoned]
            struck = worst_lag(source, target, flow, topic, healthy)
            load.wait_acked(1_000)
        log.warning("T15: worst lag of the others %d records before, %d after", quiet, struck)
        assert struck < 2 * quiet + 1_000  # a second's worth, which a busy machine may take
        truth = read(source, topic)
        others = {p: truth[p] for p in healthy}

        def others_arrived() -> bool:
            now = ends(target, flow.remote(topic))
            return all(now[p] == len(one.records) for p, one in others.items())

        until(others_arrived, 60, lambda: f"{ends(target, flow.remote(topic))}", alive=mirror)
        copy = read(target, flow.remote(topic))
        assert ends(target, flow.remote(topic))[poisoned] == behind
        wanted = truth[poisoned].records[: len(copy[poisoned].records)]
        assert copy.pop(poisoned).records == wanted
        assert_equal(others, copy)
        assert len(mirror.lines("ERROR")) == 1
        assert mirror.stop() == 0


def has_partitions(region: Region, topic: str, count: int) -> bool:
    return len(ends(region, topic)) == count


def test_what_was_written_before_a_topic_or_partition_was_detected_arrives(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    prefix = unique("fresh")
    source, target = rig.source.region, rig.target.region
    properties = {"refresh.topics.interval.seconds": "1"}
    flow = write_flow(tmp_path, source, target, f"{prefix}-.*", properties)
    names = [f"{prefix}-{number}" for number in range(TOPICS)]
    with Mirror(flow.file) as mirror:
        # Ready is a task that copies, and before the first topic there is none.
        create_topic(source, names[0])
        for number, name in enumerate(names):
            if number:
                create_topic(source, name, 1 + number % 3)
            write(source, name, [Sent(0, b"early %d" % n) for n in range(20)])
            if number % 5 == 0:
                grow(source, name, 5)
                until(partial(has_partitions, source, name, 5), 10, f"partitions of {name}")
                write(source, name, [Sent(4, b"grown %d" % n) for n in range(20)])

        def check(name: str) -> None:
            assert_equal(*wait_for_copy(mirror, flow, name, timeout_s=90))

        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(check, names))
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


def test_a_target_whose_disk_was_full_gets_everything_when_there_is_room_again(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("full")
    source = rig.source.region
    create_topic(source, topic, 2)
    with (
        small_disk(tmp_path) as disk,
        Region("full", properties=FEW_INDEXES, folder=disk, min_free_bytes=1) as target,
    ):
        flow = write_flow(tmp_path, source, target, topic)
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            with Load(source, topic, 2, rate=1_000, value_bytes=1_000) as load:
                wait_for_progress(mirror, flow, topic)
                ballast = disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 60, "the broker to give up")
                load.wait_acked(FULL_FOR, 90)
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
            assert mirror.stop() == 0
