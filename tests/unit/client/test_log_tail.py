"""Following a topic: what is new arrives by itself, and trouble passes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import Mm2pyError
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.error_codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

FETCH = 1
TP, OTHER = TopicPartition("log", 0), TopicPartition("log", 1)


def batch(value: str) -> bytes:
    data = encode_batch([NewRecord(b"k", value.encode(), (), 1)])
    sign(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return bytes(data)


class LateClock:
    """The real clock, put forward at will."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(seconds)


class Bench:
    def __init__(self, broker: FakeBroker, cluster: Cluster) -> None:
        self.clock = LateClock()
        self.broker, self.reader = broker, LogReader(cluster, "log", clock=self.clock)
        self.seen: list[bytes | None] = []
        self.reports: list[str] = []

    def handle(self, _partition: int, record: Record) -> None:
        self.seen.append(record.value)

    def report(self, error: Mm2pyError | None) -> None:
        self.reports.append("well" if error is None else "trouble")

    async def saw(self, *values: bytes) -> None:
        await eventually(lambda: self.seen == list(values))


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    async with FakeBroker(topics={"log": 2}) as broker:
        settings = ConnectionSettings(
            request_timeout_ms=1_500,  # a third of it is the longest poll
            bootstrap_servers=broker.bootstrap_servers,
            reconnect_backoff_ms=1,
            retry_backoff_ms=1,
            retry_backoff_max_ms=10,
            default_api_timeout_ms=5000,
        )
        cluster = Cluster(settings, alias="x")
        bench = Bench(broker, cluster)
        broker.append(TP, batch("a"))
        await bench.reader.read_to_end(bench.handle)
        tail = asyncio.create_task(bench.reader.tail(bench.handle, on_trouble=bench.report))
        try:
            yield bench
        finally:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
            await cluster.close()


async def test_new_records_of_every_partition_arrive_by_themselves(bench: Bench) -> None:
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    bench.broker.append(OTHER, batch("c"))
    await bench.saw(b"a", b"b", b"c")


async def test_the_end_is_reached_when_all_that_was_there_was_handed_on(bench: Bench) -> None:
    await bench.reader.reach_end()
    bench.broker.append(TP, batch("b"))
    bench.broker.append(OTHER, batch("c"))
    await asyncio.gather(bench.reader.reach_end(), bench.reader.reach_end())
    assert sorted(value or b"" for value in bench.seen) == [b"a", b"b", b"c"]


async def test_an_end_that_was_compacted_away_is_reached(bench: Bench) -> None:
    bench.broker.partition(TP).end = 20
    await bench.reader.reach_end()
    assert bench.seen == [b"a"]


async def test_trouble_is_said_once_and_passes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mm2py.client.fetch.log_reader")
    bench.broker.fail_next(FETCH, "disconnect", 2)
    bench.broker.fail_next(FETCH, 6, 3)
    bench.broker.fail_next(FETCH, 29, 2)
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    await eventually(lambda: bench.reports == ["trouble", "well"])
    assert caplog.text.count("topic cannot be followed topic=log") == 1
    assert caplog.text.count("topic is followed again topic=log") == 1


@pytest.mark.parametrize("code", [FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER])
async def test_a_leader_that_moves_is_logged_only_when_it_takes_long(
    bench: Bench, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level(logging.INFO, "mm2py.client.fetch.log_reader")
    bench.broker.fail_next(FETCH, code, 3)
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    bench.clock.ahead_s += 60.0  # trouble that was over does not count
    bench.broker.fail_next(FETCH, code, 3)
    bench.broker.append(TP, batch("c"))
    await bench.saw(b"a", b"b", b"c")
    assert caplog.messages == []
    asked = bench.broker.count(FETCH)
    bench.broker.append(TP, batch("d"))  # ends the long poll, as brokers do that lead no longer
    await bench.saw(b"a", b"b", b"c", b"d")
    bench.broker.fail_next(FETCH, code, 1_000_000)
    bench.broker.append(TP, batch("e"))
    await eventually(lambda: bench.broker.count(FETCH) > asked + 6)
    assert caplog.messages == []
    bench.clock.ahead_s += 5.0
    await eventually(lambda: len(caplog.messages) == 1)
    assert caplog.messages[0].startswith("topic cannot be followed topic=log")


async def test_a_damaged_batch_holds_the_follower_up_until_it_is_gone(bench: Bench) -> None:
    broken = bytearray(batch("b"))
    broken[-1] ^= 1
    bench.broker.partition(TP).put(bytes(broken), 1)
    bench.broker.append(TP, batch("c"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await bench.reader.reach_end()
    bench.broker.partition(TP).delete_before(2)
    await bench.saw(b"a", b"c")


async def test_an_idle_topic_is_not_asked_without_pause(bench: Bench) -> None:
    await bench.reader.reach_end()
    before = bench.broker.count(FETCH)
    await asyncio.sleep(0.3)
    assert bench.broker.count(FETCH) - before < 12


async def test_a_log_that_starts_at_its_end_hands_on_chosen_partitions_and_new_records_alone() -> (
    None
):
    async with FakeBroker(topics={"log": 3}) as broker:
        settings = ConnectionSettings(bootstrap_servers=broker.bootstrap_servers)
        cluster = Cluster(settings, alias="x")
        reader, seen = LogReader(cluster, "log", clock=SYSTEM_CLOCK), list[bytes | None]()
        broker.append(TP, batch("old"))
        count = await reader.start_at_end(lambda number, of: number != 1 and of == 3)
        tail = asyncio.create_task(reader.tail(lambda _, record: seen.append(record.value)))
        broker.append(OTHER, batch("not chosen"))
        broker.append(TP, batch("new"))
        broker.append(TopicPartition("log", 2), batch("newer"))
        await eventually(lambda: {b"new", b"newer"} <= set(seen))
        tail.cancel()
        await asyncio.gather(tail, return_exceptions=True)
        await cluster.close()
        assert (count, sorted(it or b"" for it in seen)) == (3, [b"new", b"newer"])


async def test_a_topic_that_was_created_again_is_read_from_its_beginning(bench: Bench) -> None:
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    bench.broker.create_topic("log", 2)
    bench.broker.append(TP, batch("c"))
    bench.broker.append(TP, batch("d"))
    bench.broker.append(TP, batch("e"))  # its end is behind the position in the old one
    bench.broker.fail_next(FETCH, UNKNOWN_TOPIC_OR_PARTITION, 1)
    await eventually(lambda: bench.seen[-3:] == [b"c", b"d", b"e"])
