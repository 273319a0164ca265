"""Batches that cannot be joined, or are damaged on the source's disk."""

import asyncio
import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.produce import PRODUCE_KEY, decode_produce, encode_produce
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.integration.clients import connected
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
from tests.kit.kafka.region import KafkaAddress, Region

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

OLDEST: Final = 9
NEWEST: Final = 12
"""The last version that names topics."""
_PREFIX: Final = struct.Struct(">qi")  # base offset, and the length of what follows


def plain_batch(values: Sequence[bytes]) -> bytearray:
    """Return an uncompressed batch of small records."""
    now = SYSTEM_CLOCK.now_ms()
    return encode_batch([NewRecord(None, value, (), now) for value in values])


def odd_batch(values: Sequence[bytes]) -> bytearray:
    """Return one whose records all have the offset delta 0, which a broker takes and we cannot join."""
    data = plain_batch(values)
    position = HEADER_BYTES
    for _ in values:
        assert data[position] < 0x80, "small records have a size of one byte"
        size = data[position] >> 1
        # Size, attributes, timestamp delta, offset delta: one byte each.
        data[position + 3] = 0
        position += 1 + size
    return data


def write_raw(region: KafkaAddress, tp: TopicPartition, batches: Sequence[bytearray]) -> None:
    """Write each batch with a request of its own and wait for its acknowledgement."""

    async def write() -> None:
        async with connected(region) as cluster:
            leader = await cluster.leader(tp)
            connection = await cluster.connection(leader.node_id, "produce")
            version = connection.negotiated(PRODUCE_KEY, OLDEST, NEWEST, "Produce")
            for data in batches:
                sign(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
                number = connection.next_correlation_id()
                answer = await connection.exchange(
                    encode_produce(version, number, "raw", {(tp.topic, tp.partition): data}),
                    number,
                    lambda body, _lease: decode_produce(version, body),
                )
                (result,) = answer.partitions
                assert result.error_code == 0, result

    asyncio.run(write())


def damage(region: Region, tp: TopicPartition, offset: int) -> tuple[int, int]:
    """Change a byte of the batch that holds ``offset``, in the broker's log; return its first and last offset."""
    log: Path = region.node(1).data_dir / f"{tp.topic}-{tp.partition}" / f"{0:020}.log"
    with log.open("r+b") as file:
        position = 0
        while head := file.read(HEADER_BYTES):
            header = HEADER.unpack(head)
            first, length, last = header[0], header[1], header[0] + header[6]
            if first <= offset <= last:
                file.seek(-1 + position + _PREFIX.size + length)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 0x01]))
                return first, last
            position += _PREFIX.size + length
            file.seek(position)
    raise AssertionError(f"offset {offset} is not in {log}")


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
