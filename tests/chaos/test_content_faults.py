"""Batches that cannot be joined, or are damaged on the source's disk."""

import logging

import pytest

from mm2py.types import TopicPartition
from tests.chaos.raw_batches import damage, odd_batch, plain_batch, write_raw
from tests.integration.cluster_changes import delete_records
from tests.integration.far_regions import Rig
from tests.integration.ledger_scenes import wait_for_entries
from tests.integration.mirror_process import running
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    read,
    wait_for_all,
    wait_for_copy,
    wait_for_progress,
    write,
)

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

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
    with running(flow.file) as mirror:
        with Load(source, topic, ODD_PARTITIONS, rate=RATE) as load:
            line = mirror.wait_for_log(f"ERROR .*partition failed.*partition={topic}-{ODD} ")
            assert str(first) in line
            load.wait_acked(5 * RATE)
        wait_for_all(mirror, flow, topic, leave_out=[ODD])
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
