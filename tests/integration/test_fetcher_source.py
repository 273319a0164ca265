"""The Fetcher on one real broker: retention, recreated topics, transactions, many idle partitions."""

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from mm2py.config.clients import ConnectionSettings, ConsumerSettings
from mm2py.types import TopicPartition
from tests.integration.cluster_changes import delete_records, delete_topic, topics_of
from tests.integration.fetching import produce, reading
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PATIENT = ConsumerSettings(
    connection=ConnectionSettings(bootstrap_servers=()), fetch_max_wait_ms=3_600_000
)
COMMITTED = ConsumerSettings(
    connection=ConnectionSettings(bootstrap_servers=()), isolation_level="read_committed"
)


Name = Callable[[str], str]


async def test_records_deleted_under_a_paused_partition_are_one_gap_with_its_exact_range(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    tp = TopicPartition(unique("cut"), 0)
    create_topic(region_a, tp.topic)
    await produce(region_a, tp, range(10))
    async with reading(region_a) as found:
        await found.fetcher.assign({tp: 0})
        await found.until(lambda: found.fetcher.position(tp) == 10)
        await found.hold([tp])
        await produce(region_a, tp, range(10, 50))
        await asyncio.to_thread(delete_records, region_a, tp.topic, 0, 37)
        found.fetcher.resume([tp])
        await found.until(lambda: found.fetcher.position(tp) == 50)
        assert found.gaps == [(10, 36, "retention")]
        assert found.offsets[tp] == [*range(10), *range(37, 50)]


async def test_a_released_partition_does_not_wait_for_the_long_poll_of_an_idle_one(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    """By order: the idle partition's poll would end after an hour."""

    topic = unique("held")
    create_topic(region_a, topic, 2)
    held, idle = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(region_a, PATIENT) as found:
        await found.fetcher.assign({held: 0, idle: 0})
        for turn in range(1, 4):
            await produce(region_a, held, range(10))
            await found.until(lambda: len(found.values.get(held, ())) == 10 * turn)  # noqa: B023
            found.fetcher.pause([held])
            # Ends the poll that was under way with both; the next one is of the idle one alone.
            await produce(region_a, idle, range(1))
            await found.until(lambda: len(found.values.get(idle, ())) == turn)  # noqa: B023
            found.fetcher.resume([held])
        assert found.offsets[held] == list(range(30))


async def test_twenty_random_cuts_are_twenty_gaps_with_their_exact_ranges(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    """T8 of users-and-faults.md: half of the partitions hold transactions, some of them aborted."""

    chance = random.Random(8)
    topic = unique("cuts")
    create_topic(region_a, topic, 20)
    tps = [TopicPartition(topic, index) for index in range(20)]

    async def write() -> None:
        for tp in tps[:10]:
            await produce(region_a, tp, range(chance.randrange(5, 40)))
        await asyncio.gather(
            *(
                asyncio.to_thread(
                    transact, region_a, tp, unique("txn"), ["commit", "abort", "commit"]
                )
                for tp in tps[10:]
            )
        )

    await write()
    async with reading(region_a, COMMITTED) as found:
        await found.fetcher.assign(dict.fromkeys(tps, 0))
        await found.until(lambda: all(found.fetcher.lag(tp) == 0 for tp in tps))
        assert found.gaps == []
        await found.hold(tps)
        await write()
        expected: list[tuple[int, int, str]] = []
        for tp in tps:
            first = found.fetcher.position(tp)
            cut = first + chance.randrange(1, 6)
            await asyncio.to_thread(delete_records, region_a, topic, tp.partition, cut)
            expected.append((first, cut - 1, "retention"))
        found.fetcher.resume(tps)
        await found.until(lambda: len(found.gaps) == 20)
        await found.until(lambda: all(found.fetcher.lag(tp) == 0 for tp in tps))
        assert sorted(found.gaps) == sorted(expected)


async def test_a_topic_recreated_under_the_same_name_is_copied_from_its_beginning(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    tp = TopicPartition(unique("again"), 0)
    create_topic(region_a, tp.topic)
    await produce(region_a, tp, range(20))
    async with reading(region_a) as found:
        await found.fetcher.assign({tp: 0})
        await found.until(lambda: found.fetcher.position(tp) == 20)
        old = found.fetcher.incarnation(tp)
        await asyncio.to_thread(delete_topic, region_a, tp.topic)
        await asyncio.to_thread(recreate, region_a, create_topic, tp.topic)
        await produce(region_a, tp, range(1000, 1050))
        began = time.monotonic()
        await found.until(lambda: found.fetcher.position(tp) == 50)
        assert time.monotonic() - began < 10  # users-and-faults.md, T9
        assert found.values[tp] == [str(n) for n in [*range(20), *range(1000, 1050)]]
        assert found.gaps == [(20, 19, "recreated")]
    # The same after a restart, for who kept the topic id beside the position.
    async with reading(region_a) as found:
        await found.fetcher.assign({tp: 20}, topic_ids={tp: old})
        await found.until(lambda: found.fetcher.position(tp) == 50)
        assert found.values[tp] == [str(n) for n in range(1000, 1050)]
        assert found.gaps == [(20, 19, "recreated")]


def recreate(region: KafkaAddress, create_topic: CreateTopic, topic: str) -> None:
    deadline = time.monotonic() + 90
    while topic in topics_of(region):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    create_topic(region, topic)


async def test_aborted_data_and_markers_leave_no_lag_and_no_gap(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    tp = TopicPartition(unique("aborts"), 0)
    create_topic(region_a, tp.topic)
    await asyncio.to_thread(transact, region_a, tp, unique("txn"), ["commit", "abort", "abort"])
    async with reading(region_a, COMMITTED) as found:
        await found.fetcher.assign({tp: 0})
        await found.until(lambda: found.fetcher.lag(tp) == 0)
        # Three transactions of five records and one marker each; the last two were aborted.
        assert found.fetcher.position(tp) == 18
        assert found.values[tp] == [f"0-{n}" for n in range(5)]
        assert found.gaps == []
        # Deleting what was dropped anyway, markers and all, is no loss either.
        await asyncio.to_thread(delete_records, region_a, tp.topic, 0, 18)
        await produce(region_a, tp, range(3))
        await found.until(lambda: found.fetcher.position(tp) == 21)
        assert found.gaps == []


async def test_an_open_transaction_holds_back_only_its_own_partition(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    topic = unique("open")
    held, free = TopicPartition(topic, 0), TopicPartition(topic, 1)
    create_topic(region_a, topic, 2)
    producer = await asyncio.to_thread(transact, region_a, held, unique("txn"), ["open"])
    await produce(region_a, held, range(7))
    await produce(region_a, free, range(7))
    async with reading(region_a, COMMITTED) as found:
        await found.fetcher.assign({held: 0, free: 0})
        await found.until(lambda: found.fetcher.position(free) == 7)
        assert found.fetcher.position(held) == 0
        await asyncio.to_thread(producer.abort_transaction, 20.0)
        await found.until(lambda: found.fetcher.position(held) == 13)
        assert found.values[held] == [str(n) for n in range(7)]


def transact(region: KafkaAddress, tp: TopicPartition, name: str, ends: list[str]) -> Producer:
    """Write one transaction of five records for each of ``ends``."""
    producer = Producer({"bootstrap.servers": region.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    for index, end in enumerate(ends):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(tp.topic, f"{index}-{number}", partition=tp.partition)
        producer.flush(60)
        if end == "commit":
            producer.commit_transaction(60)
        elif end == "abort":
            producer.abort_transaction(60)
    return producer


async def test_a_thousand_idle_partitions_cost_below_a_third_of_a_percent_of_a_core(
    region_a: KafkaAddress, create_topic: CreateTopic, unique: Name
) -> None:
    topics = [unique("idle"), unique("idle")]
    for topic in topics:
        create_topic(region_a, topic, 500)
    tps = [TopicPartition(topic, index) for topic in topics for index in range(500)]
    async with reading(region_a) as found:
        await found.fetcher.assign(dict.fromkeys(tps, 0))
        await found.until(lambda: all(found.fetcher.lag(tp) == 0 for tp in tps))
        await found.take()
        used, began = time.process_time(), time.monotonic()
        while time.monotonic() - began < 4:
            await found.fetcher.fetch(max_wait_ms=1000, max_bytes=1 << 24)
        share = (time.process_time() - used) / (time.monotonic() - began)
        assert share < 0.0033, f"{share:.2%} of a core while idle"
    for topic in topics:
        await asyncio.to_thread(delete_topic, region_a, topic)
