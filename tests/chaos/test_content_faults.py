"""T15, T16, T18: poisoned records, batches that cannot be joined or are damaged, a full disk, topics that appear."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mm2py.types import TopicPartition
from tests.chaos.raw_batches import damage, odd_batch, plain_batch, write_raw
from tests.integration.cluster_changes import delete_records, grow
from tests.integration.far_regions import Rig
from tests.integration.ledger_scenes import wait_for_entries
from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
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


def test_poisoned_records_stop_their_partition_and_no_other(setup: Setup, rig: Rig) -> None:
    topic = setup.unique("poison")
    source, target = rig.source.region, rig.target.region
    setup.create_topic(source, topic, PARTITIONS, config={"max.message.bytes": "20000000"})
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"}, source=source, target=target)
    setup.create_topic(target, flow.remote(topic), PARTITIONS)
    poisoned = 3
    with running(flow.file) as mirror:
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


def has_partitions(region: Region, topic: str, count: int) -> bool:
    return len(ends(region, topic)) == count


def test_what_was_written_before_a_topic_or_partition_was_detected_arrives(
    setup: Setup, rig: Rig
) -> None:
    prefix = setup.unique("fresh")
    source, target = rig.source.region, rig.target.region
    properties = {"refresh.topics.interval.seconds": "1"}
    flow = setup.flow(f"{prefix}-.*", properties, source=source, target=target)
    names = [f"{prefix}-{number}" for number in range(TOPICS)]
    with Mirror(flow.file) as mirror:
        # Ready is a task that copies, and before the first topic there is none.
        setup.create_topic(source, names[0])
        for number, name in enumerate(names):
            if number:
                setup.create_topic(source, name, 1 + number % 3)
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
    setup: Setup, rig: Rig
) -> None:
    topic = setup.unique("full")
    source = rig.source.region
    setup.create_topic(source, topic, 2)
    with (
        small_disk(setup.folder) as disk,
        Region("full", properties=FEW_INDEXES, folder=disk, min_free_bytes=1) as target,
    ):
        flow = setup.flow(topic, source=source, target=target)
        with running(flow.file) as mirror:
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


ODD_PARTITIONS = 4
ODD = 1
"""The partition that has the odd batches."""
RATE = 500
BATCHES = 300
EACH_ODD = 7
"""One batch of so many is odd: fewer than are joined, and more."""
RECORDS = 3


def mixed(prefix: bytes) -> list[bytearray]:
    """Return tiny batches, of which one of seven cannot be joined."""
    return [
        (plain_batch if number % EACH_ODD else odd_batch)(
            [b"%s %d %d" % (prefix, number, each) for each in range(RECORDS)]
        )
        for number in range(BATCHES)
    ]


def test_batches_that_cannot_be_joined_are_copied_as_they_are_and_hold_up_no_other(
    setup: Setup, rig: Rig
) -> None:
    topic, source = setup.unique("odd"), rig.source.region
    place = TopicPartition(topic, ODD)
    setup.create_topic(source, topic, ODD_PARTITIONS)
    write_raw(source, place, mixed(b"backlog"))
    flow = setup.flow(topic, rig.bootstrap, source=source, target=rig.target.region)
    with running(flow.file) as mirror:
        with Load(source, topic, ODD_PARTITIONS, rate=RATE):
            # Batches that wait for a stalled line are joined by the sender.
            rig.target.line.stall()
            write_raw(source, place, mixed(b"live"))
            rig.target.line.heal()
            wait_for_progress(mirror, flow, topic, RATE)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        values = [record.value or b"" for record in copy[ODD].records]
        assert sum(value.startswith((b"backlog", b"live")) for value in values) == (
            2 * BATCHES * RECORDS
        )
        assert not mirror.complaints()


def test_a_batch_that_is_damaged_on_the_disk_stops_its_partition_alone_until_it_is_gone(
    setup: Setup, rig: Rig
) -> None:
    topic, source, target = setup.unique("damaged"), rig.source.region, rig.target.region
    place = TopicPartition(topic, ODD)
    setup.create_topic(source, topic, ODD_PARTITIONS)
    backlog = (Sent(n % ODD_PARTITIONS, b"%d:" % n + bytes(500)) for n in range(4_000))
    write(source, topic, backlog, batch_size=4_000)
    before = read(source, topic)
    first, last = damage(source, place, 500)
    flow = setup.flow(topic, source=source, target=target)
    others = [p for p in range(ODD_PARTITIONS) if p != ODD]
    with running(flow.file) as mirror:
        with Load(source, topic, ODD_PARTITIONS, rate=RATE) as load:
            line = mirror.wait_for_log(f"ERROR .*partition failed.*partition={topic}-{ODD} ")
            assert str(first) in line
            load.wait_acked(5 * RATE)
        wanted = ends(source, topic)

        def copied() -> bool:
            now = ends(target, flow.remote(topic))
            return all(now[p] == wanted[p] for p in others)

        until(copied, 60, lambda: f"{wanted}, {ends(target, flow.remote(topic))}", alive=mirror)
        copy = read(target, flow.remote(topic))
        assert copy[ODD].records == before[ODD].records[:first]
        assert mirror.lines("ERROR") == [line]
    log.warning("damaged: offsets %d to %d: %s", first, last, line)
    # What an operator does about it: there is no way to read those records any more.
    delete_records(source, topic, ODD, last + 1)
    with running(flow.file, name="cured", ready=False) as mirror:
        damaged, gone = wait_for_entries(flow, 2, mirror)
        assert (damaged.kind, damaged.partition, damaged.first) == ("poisoned", ODD, first)
        assert (gone.kind, gone.partition) == ("retention", ODD)
        assert (gone.first, gone.last) == (first, last)
        rest, copy = wait_for_copy(mirror, flow, topic)
        assert copy[ODD].records == before[ODD].records[:first] + rest[ODD].records
        del copy[ODD], rest[ODD]
        assert_equal(rest, copy)
