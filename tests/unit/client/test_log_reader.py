from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import (
    FatalServerError,
    ProtocolError,
    RequestTimedOutError,
    RetriableServerError,
)
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import HEADER, crc32c
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
CONTROL_BITS = 0x30
Seen = list[tuple[int, int, bytes | None]]
TP = TopicPartition("log", 0)


def batch(*values: str, attributes: int = 0) -> bytes:
    data = encode_batch([NewRecord(b"k", value.encode(), (), 1) for value in values])
    if attributes:
        data[21:23] = attributes.to_bytes(2, "big")
    sign(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    if attributes:
        # sign clears these bits: a control batch is made by brokers only.
        data[21:23] = attributes.to_bytes(2, "big")
        data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


@asynccontextmanager
async def log_reader(
    *, api_timeout_ms: int = 5000, topic: str = "log", waits_for_topic: bool = True
) -> AsyncGenerator[tuple[FakeBroker, LogReader]]:
    async with FakeBroker(topics={"log": 2}) as broker:
        cluster = Cluster(
            ConnectionSettings(
                bootstrap_servers=broker.bootstrap_servers,
                reconnect_backoff_ms=1,
                retry_backoff_ms=1,
                default_api_timeout_ms=api_timeout_ms,
            ),
            alias="x",
        )
        try:
            yield (
                broker,
                LogReader(cluster, topic, clock=SYSTEM_CLOCK, waits_for_topic=waits_for_topic),
            )
        finally:
            await cluster.close()


async def read(reader: LogReader) -> Seen:
    seen: Seen = []

    def handle(partition: int, record: Record) -> None:
        seen.append((partition, record.offset, record.value))

    await reader.read_to_end(handle)
    return sorted(seen)


def values(seen: Seen) -> Sequence[bytes | None]:
    return [value for _, _, value in seen]


async def test_the_first_read_starts_at_the_beginning_and_later_ones_go_on() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a", "b"))
        broker.append(TopicPartition("log", 1), batch("c"))
        assert await read(reader) == [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c")]
        assert await read(reader) == []
        broker.append(TP, batch("d"))
        assert await read(reader) == [(0, 2, b"d")]


async def test_an_empty_topic_is_read_without_a_fetch() -> None:
    async with log_reader() as (broker, reader):
        assert await read(reader) == []
        assert broker.count(FETCH) == 0


async def test_compaction_holes_are_stepped_over_inside_and_at_the_end() -> None:
    async with log_reader() as (broker, reader):
        log = broker.partition(TP)
        log.put(batch("a"), 3)
        log.put(batch("b"), 10)
        log.end = 20  # what was here is gone
        assert await read(reader) == [(0, 3, b"a"), (0, 10, b"b")]
        assert await read(reader) == []


async def test_control_batches_are_not_handed_on() -> None:
    async with log_reader() as (broker, reader):
        log = broker.partition(TP)
        log.put(batch("a"), 0)
        log.put(batch("marker", attributes=CONTROL_BITS), 1)
        assert HEADER.unpack_from(log.batches[1].data)[5] == CONTROL_BITS
        log.put(batch("b"), 2)
        assert values(await read(reader)) == [b"a", b"b"]


async def test_a_batch_that_starts_before_the_position_is_cut() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a", "b", "c"))
        broker.partition(TP).delete_before(1)
        assert values(await read(reader)) == [b"b", b"c"]


async def test_cleanup_that_overtakes_the_reader_sends_it_to_the_log_start() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        assert values(await read(reader)) == [b"a"]
        for value in "bcd":
            broker.append(TP, batch(value))
        broker.partition(TP).delete_before(3)
        assert values(await read(reader)) == [b"d"]


async def test_lost_connections_and_moved_leaders_are_survived() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a", "b"))
        broker.fail_next(METADATA, 3)
        broker.fail_next(LIST_OFFSETS, 6)
        broker.fail_next(LIST_OFFSETS, "disconnect")
        for outcome in (6, 74, 3):
            broker.fail_next(FETCH, outcome)
        broker.fail_next(FETCH, "disconnect", 2)
        assert values(await read(reader)) == [b"a", b"b"]


async def test_a_topic_that_may_not_be_read_is_an_error() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broker.fail_next(FETCH, 29)
        with pytest.raises(FatalServerError, match=r"TOPIC_AUTHORIZATION_FAILED.*log-0"):
            await read(reader)


async def test_a_leader_that_stays_away_ends_the_read_with_its_cause() -> None:
    async with log_reader(api_timeout_ms=500) as (broker, reader):
        broker.append(TP, batch("a"))
        broker.fail_next(FETCH, 6, 10_000)
        with pytest.raises(RequestTimedOutError, match="500 ms: NOT_LEADER_OR_FOLLOWER"):
            await read(reader)


async def test_a_damaged_batch_is_named() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broken = bytearray(batch("b"))
        broken[-1] ^= 1
        broker.partition(TP).put(bytes(broken), 1)
        with pytest.raises(ProtocolError, match=r"log-0 of cluster x .* from offset 1"):
            await read(reader)


async def test_many_batches_take_several_fetches() -> None:
    async with log_reader() as (broker, reader):
        for n in range(60):
            broker.append(TP, batch(f"{n:03}" + "x" * 50_000))
        assert [value and value[:3] for value in values(await read(reader))] == [
            f"{n:03}".encode() for n in range(60)
        ]
        assert broker.count(FETCH) > 2


async def test_a_topic_that_need_not_exist_is_not_waited_for() -> None:
    async with log_reader(topic="missing", waits_for_topic=False) as (_, reader):
        with pytest.raises(RetriableServerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await read(reader)


async def test_a_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broker.append(TP, batch("b"))
        assert values(await read(reader)) == [b"a", b"b"]
        broker.create_topic("log", 2)
        broker.append(TP, batch("c"))
        assert values(await read(reader)) == [b"c"]
