"""A log over Kafka: opened as a whole or not at all, followed, written by key."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import ConnectionFailedError, RequestTimedOutError
from mm2py.protocol.records import NewRecord, Record
from mm2py.storage.kafka_log import Handler, KafkaLog
from mm2py.storage.offset_backing_store import partition_of
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import until

Done = Callable[[int | Exception], None]


class Topic:
    """A topic in memory: writer and reader of it."""

    def __init__(self) -> None:
        self.records: list[tuple[TopicPartition, Record]] = []
        self.events: list[str] = []
        self.waiting: list[Done] = []
        self.acknowledge = True
        self.errors: list[Exception] = []
        self.position = 0
        self.news = asyncio.Event()
        self.crash: Exception | None = None

    async def prepare(self) -> int:
        self.position = 0
        return 5

    async def start(self) -> None:
        self.events.append("start")
        if self.errors:
            raise self.errors.pop()

    async def close(self) -> None:
        self.events.append("close")

    def post(self, tp: TopicPartition, records: Sequence[NewRecord], done: Done) -> None:
        offset = len(self.records)
        for record in records:
            self.records.append((tp, Record(len(self.records), 0, record.key, record.value)))
        self.news.set()
        if self.acknowledge:
            done(offset)
        else:
            self.waiting.append(done)

    async def read_to_end(self, handle: Handler) -> None:
        await asyncio.sleep(0)
        while self.position < len(self.records):
            tp, record = self.records[self.position]
            self.position += 1
            handle(tp.partition, record)

    async def tail(self, handle: Handler) -> None:
        while True:
            self.news.clear()
            await self.read_to_end(handle)
            if self.crash is not None:
                raise self.crash
            await self.news.wait()

    async def reach_end(self) -> None:
        await until(lambda: self.position == len(self.records))


class Bench:
    def __init__(self) -> None:
        self.topic = Topic()
        self.seen: list[tuple[int, bytes | None, bytes | None]] = []
        self.log = self.open(self.handle)

    def open(self, handle: Handler) -> KafkaLog:
        return KafkaLog(
            "t",
            prepare=self.topic.prepare,
            writer=lambda: self.topic,
            reader=lambda: self.topic,
            handle=handle,
        )

    def handle(self, partition: int, record: Record) -> None:
        self.seen.append((partition, record.key, record.value))


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        await bench.log.stop()


async def test_records_before_and_after_the_start_are_handed_on(bench: Bench) -> None:
    bench.topic.post(TopicPartition("t", 3), [NewRecord(b"old", None, (), 1)], lambda _: None)
    await bench.log.start()
    assert bench.seen == [(3, b"old", None)]
    assert await bench.log.send(b"new", b"1", 1) == 1
    await bench.log.read_to_end(1)
    assert bench.seen[1:] == [(partition_of(b"new", 5), b"new", b"1")]


async def test_a_start_that_fails_closes_everything_and_may_be_repeated(bench: Bench) -> None:
    bench.topic.errors.append(ConnectionFailedError("away"))
    with pytest.raises(ConnectionFailedError):
        await bench.log.start()
    assert bench.topic.events == ["start", "close", "close"]
    await bench.log.start()
    await bench.log.stop()
    await bench.log.stop()
    assert bench.topic.events[3:] == ["start", "close", "close"]


async def test_a_closed_log_neither_reads_nor_writes(bench: Bench) -> None:
    with pytest.raises(ConnectionFailedError, match="topic t is not open"):
        await bench.log.read_to_end(1)
    with pytest.raises(ConnectionFailedError, match="topic t is not open"):
        await bench.log.post(b"k", None)


async def test_what_is_not_acknowledged_in_time_has_an_unknown_outcome(bench: Bench) -> None:
    await bench.log.start()
    bench.topic.acknowledge = False
    with pytest.raises(RequestTimedOutError, match="is unknown"):
        await bench.log.send(b"k", b"v", 0.01)
    bench.topic.waiting[0](0)


async def test_an_error_that_nobody_waits_for_is_no_trouble(bench: Bench) -> None:
    await bench.log.start()
    bench.topic.acknowledge = False
    bench.log.post(b"k", b"v")
    bench.topic.waiting[0](ConnectionFailedError("closed"))


async def test_a_follower_that_crashes_is_named_and_reading_fails(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await bench.log.start()
    bench.topic.crash = RuntimeError("bug")
    bench.log.post(b"k", b"v")
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(ConnectionFailedError):
        await bench.log.read_to_end(1)
    assert "topic is followed no longer topic=t" in caplog.text
