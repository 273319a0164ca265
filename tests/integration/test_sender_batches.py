"""Batches that a real broker stores although not everything about them is right."""

from collections.abc import Callable

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.protocol.record_batch import HEADER_BYTES, RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.integration.sending import SOURCE, sending
from tests.integration.traffic import ends
from tests.kit.regions import CreateTopic, Pair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def unjoinable(first: int, stamp_ms: int) -> RecordBatch:
    """Return two uncompressed records with the inner offset deltas 0 and 0."""
    data = encode_batch([NewRecord(None, b"%d" % (first + i), (), stamp_ms) for i in range(2)])
    second = HEADER_BYTES + (data[HEADER_BYTES] >> 1) + 1
    assert data[second + 3] == 2
    data[second + 3] = 0
    return RecordBatch(data, first, first + 1, 2, stamp_ms, 0, 0, ((first, 2),), None)


async def test_a_batch_that_cannot_be_joined_stops_neither_its_partition_nor_the_others(
    regions: Pair, unique: Callable[[str], str], create_topic: CreateTopic
) -> None:
    region = regions[1]
    topic = unique("unjoinable")
    create_topic(region, topic, 2)
    damaged, healthy = TopicPartition(topic, 0), TopicPartition(topic, 1)
    stamp_ms = SYSTEM_CLOCK.now_ms()
    async with sending(region.bootstrap_servers) as found:
        for target in (damaged, healthy):
            found.enqueue(target, [b"0", b"1"], stamp_ms=stamp_ms)
        await found.flushed()
        for number in range(1, 30):
            found.enqueue(healthy, [b"x", b"y"], stamp_ms=stamp_ms)
            if number == 20:
                found.sender.enqueue(SOURCE, damaged, [unjoinable(40, stamp_ms)])
            else:
                found.enqueue(damaged, [b"x", b"y"], stamp_ms=stamp_ms)
        await found.flushed()
        assert found.failed == []
        assert ends(region, topic) == {0: 60, 1: 60}
