"""The Sender knows the target's limits from its brokers: how long they know a producer, how large a batch is."""

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.types import TopicPartition
from tests.integration.cluster_changes import set_config
from tests.integration.mirror_process import until
from tests.integration.sending import sending
from tests.integration.traffic import ends, read
from tests.kit.kafka.region import Region
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.delay_proxy import DelayProxy, Way
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]
Far = tuple[Region, DelayProxy]

CHECK_MS = 500
FORGETFUL = {
    "producer.id.expiration.ms": "4000",
    "producer.id.expiration.check.interval.ms": str(CHECK_MS),
}


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    """A cluster that forgets producers after four seconds, and the line to it."""
    with (
        DelayProxy() as line,
        Region(
            "forgetful",
            properties=FORGETFUL,
            listeners=[Listener("FAR", "PLAINTEXT", advertise=line.front)],
        ) as region,
    ):
        yield region, line


def values_of(region: Region, topic: str) -> list[bytes | None]:
    return [record.value for record in read(region, topic)[0].records]


async def test_rule_5_a_batch_that_a_forgetful_broker_may_have_is_looked_up_not_sent_again(
    far: Far, unique: Unique, create_topic: CreateTopic
) -> None:
    region, line = far
    topic = unique("forgotten")
    create_topic(region, topic)
    target = TopicPartition(topic, 0)

    async with sending(line.bootstrap_servers) as found:
        # Far younger than the default of a day, and yet forgotten at the broker's next look.
        stamp_ms = SYSTEM_CLOCK.now_ms() - 60_000
        found.enqueue(target, [b"0"], stamp_ms=stamp_ms)
        await found.flushed()
        line.stall(Way.REPLIES)
        found.enqueue(target, [b"1", b"2"], stamp_ms=stamp_ms)
        await asyncio.to_thread(until, lambda: ends(region, topic) == {0: 3}, 90, "the write")
        await asyncio.sleep(4 * CHECK_MS / 1000)  # nothing shows from outside that it forgot
        line.reset()
        line.heal()
        found.enqueue(target, [b"3"], stamp_ms=stamp_ms)
        await found.flushed()
        assert found.delivered == [(0, 0), (1, 1), (3, 3)]
        assert not found.doubts
    assert values_of(region, topic) == [b"0", b"1", b"2", b"3"]


async def test_batches_above_the_topics_limit_are_cut_before_they_are_sent(
    far: Far, unique: Unique, create_topic: CreateTopic
) -> None:
    region, line = far
    topic = unique("limited")
    create_topic(region, topic, config={"max.message.bytes": "20000"})
    target = TopicPartition(topic, 0)
    values = [os.urandom(1_000) for _ in range(500)]

    async with sending(line.bootstrap_servers) as found:
        sent = line.passed_bytes(Way.REQUESTS)
        found.enqueue(target, values, stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        found.enqueue(target, values, stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        # A refused megabyte would have crossed the line twice.
        assert line.passed_bytes(Way.REQUESTS) - sent < 1_050_000
        # Each batch holds 19 records of 1 KB.
        assert len(found.delivered) == 2 * 27
    assert values_of(region, topic) == 2 * values


async def test_a_record_that_fits_since_the_limit_was_raised_is_sent_although_the_old_one_is_remembered(
    far: Far, unique: Unique, create_topic: CreateTopic
) -> None:
    region, line = far
    topic = unique("raised")
    create_topic(region, topic, config={"max.message.bytes": "2000"})
    target = TopicPartition(topic, 0)
    large = os.urandom(5_000)

    async with sending(line.bootstrap_servers) as found:
        found.enqueue(target, [b"0"], stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        await asyncio.to_thread(set_config, region, topic, "max.message.bytes", "6000")
        found.enqueue(target, [b"1", large, b"2"], stamp_ms=SYSTEM_CLOCK.now_ms())
        await found.flushed()
        assert not found.failed
    assert values_of(region, topic) == [b"0", b"1", large, b"2"]
