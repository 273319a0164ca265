"""A table over a broker: opened as a whole or not at all, followed, written in whole changes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.record_writer import RecordWriter
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.errors import ConnectionFailedError, RequestTimedOutError, RetriableError
from mm2py.protocol.produce import PRODUCE_KEY
from mm2py.protocol.records import Record, decode_batches
from mm2py.storage.table import KafkaTable, partition_of
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

PARTITIONS = 5


@dataclass
class Rig:
    broker: FakeBroker
    writer: RecordWriter
    new_reader: Callable[[], LogReader]
    table: KafkaTable
    restored: asyncio.Event
    seen: list[tuple[int, bytes | None, bytes | None]] = field(
        default_factory=list[tuple[int, bytes | None, bytes | None]]
    )

    async def start(self) -> None:
        await self.table.start(self.handle)

    def handle(self, partition: int, record: Record) -> None:
        self.seen.append((partition, record.key, record.value))

    def batches(self, partition: int) -> list[list[bytes | None]]:
        return [
            [record.key for record in batch.records]
            for data in self.broker.log(TopicPartition("t", partition))
            for batch in decode_batches(data)
        ]


@asynccontextmanager
async def rig(*, permit: Permit = UNLIMITED, follow: bool = True) -> AsyncGenerator[Rig]:
    async with FakeBroker(topics={"t": PARTITIONS}) as broker:
        settings = ConnectionSettings(
            bootstrap_servers=(("127.0.0.1", broker.port),),
            reconnect_backoff_ms=1,
            retry_backoff_ms=1,
        )
        cluster = Cluster(settings, alias="B")
        await cluster.connect()
        producer = ProducerSettings(connection=settings)
        writer = RecordWriter(cluster, producer, clock=SYSTEM_CLOCK, permit=permit)

        def reader() -> LogReader:
            return LogReader(cluster, "t", clock=SYSTEM_CLOCK)

        restored = asyncio.Event()

        async def restore() -> None:
            restored.set()

        table = KafkaTable(
            "t", prepare=_partitions, writer=writer, reader=reader, follow=follow, restore=restore
        )
        try:
            yield Rig(broker, writer, reader, table, restored)
        finally:
            await table.stop()
            await writer.close()
            await cluster.close()


async def _partitions() -> int:
    return PARTITIONS


@pytest.mark.parametrize("follow", [True, False])
async def test_records_before_and_after_the_start_are_handled(*, follow: bool) -> None:
    async with rig(follow=follow) as it:
        await it.start()
        await it.table.post([(b"old", b"1")])
        await it.table.stop()
        await it.start()
        await it.table.post([(b"new", b"2")])
        await it.table.read_to_end(10)
        assert it.seen[-2:] == [
            (partition_of(b"old", PARTITIONS), b"old", b"1"),
            (partition_of(b"new", PARTITIONS), b"new", b"2"),
        ]


async def test_a_change_of_many_keys_is_one_batch_per_partition() -> None:
    async with rig() as it:
        await it.start()
        keys = [b"key%d" % n for n in range(50)]
        await it.table.post([(key, b"v") for key in keys])
        for partition in range(PARTITIONS):
            own = [key for key in keys if partition_of(key, PARTITIONS) == partition]
            assert it.batches(partition) == [own]


@pytest.mark.parametrize("posts", [11, 50, 200])
async def test_each_of_many_posts_at_once_is_answered(posts: int) -> None:
    async with rig() as it:
        await it.start()
        async with asyncio.timeout(20):
            await asyncio.gather(*(it.table.post([(b"k%d" % n, b"v")]) for n in range(posts)))
            await it.table.read_to_end(10)
        assert len(it.seen) == posts


async def test_a_start_that_fails_may_be_repeated() -> None:
    class Failing:
        calls = 0

        async def __call__(self) -> int:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionFailedError("away")
            return PARTITIONS

    async with rig() as it:
        prepare: Callable[[], Awaitable[int]] = Failing()
        table = KafkaTable("t", prepare=prepare, writer=it.writer, reader=it.new_reader)
        with pytest.raises(ConnectionFailedError):
            await table.start(it.handle)
        with pytest.raises(ConnectionFailedError, match="topic t is not open"):
            await table.read_to_end(1)
        await table.start(it.handle)
        await table.post([(b"k", b"v")])
        await table.stop()
        await table.stop()


async def test_a_table_that_is_not_open_neither_reads_nor_writes() -> None:
    async with rig() as it:
        with pytest.raises(ConnectionFailedError, match="topic t is not open"):
            await it.table.read_to_end(1)
        with pytest.raises(ConnectionFailedError, match="topic t is not open"):
            await it.table.post([(b"k", None)])


async def test_a_read_that_takes_too_long_says_so() -> None:
    async with rig() as it:
        await it.start()
        it.broker.hold(2)  # ListOffsets
        with pytest.raises(RequestTimedOutError, match="was not read to its end"):
            await it.table.read_to_end(0.05)


async def test_a_cancelled_post_is_taken_back_before_what_follows() -> None:
    async with rig() as it:
        await it.start()
        hold = it.broker.hold(PRODUCE_KEY)
        first = it.table.post([(b"k", b"first")])
        await hold.arrived.wait()
        first.cancel()
        await asyncio.sleep(0)
        hold.release()
        await it.table.post([(b"k", b"second")])
        await it.table.read_to_end(10)
        assert it.seen[-1][2] == b"second"


async def test_invariant_6_a_post_that_is_taken_back_has_the_topic_looked_for() -> None:
    async with rig() as it:
        await it.start()
        await it.table.post([(b"k", b"first")])
        assert not it.restored.is_set()
        hold = it.broker.hold(PRODUCE_KEY)
        post = it.table.post([(b"k", b"second")])
        await hold.arrived.wait()
        post.cancel()
        await asyncio.wait_for(it.restored.wait(), 10)
        hold.release()


async def test_a_stop_fails_what_is_not_acknowledged() -> None:
    async with rig() as it:
        await it.start()
        hold = it.broker.hold(PRODUCE_KEY)
        answer = it.table.post([(b"k", b"v")])
        await hold.arrived.wait()
        await it.table.stop()
        with pytest.raises(ConnectionFailedError):
            await answer
        hold.release()


async def test_what_a_lost_member_had_posted_is_not_written_behind_its_successors_change() -> None:
    permit = Permit(SYSTEM_CLOCK)
    permit.grant(SYSTEM_CLOCK.monotonic() + 600)
    async with rig(permit=permit) as it:
        await it.start()
        permit.revoke()
        lost = it.table.post([(b"position", b"100")])
        async with _other_member(it) as successor:
            await successor.post([(b"position", b"500")])
        permit.abandon()
        permit.grant(SYSTEM_CLOCK.monotonic() + 600)
        with pytest.raises(RetriableError, match="membership"):
            await lost
        await it.table.read_to_end(10)
        assert [value for _, _, value in it.seen] == [b"500"]


@asynccontextmanager
async def _other_member(it: Rig) -> AsyncGenerator[KafkaTable]:
    """Open another worker's table over the same topic."""
    settings = ConnectionSettings(bootstrap_servers=(("127.0.0.1", it.broker.port),))
    cluster = Cluster(settings, alias="B")
    await cluster.connect()
    writer = RecordWriter(cluster, ProducerSettings(connection=settings), clock=SYSTEM_CLOCK)
    table = KafkaTable(
        "t",
        prepare=_partitions,
        writer=writer,
        reader=lambda: LogReader(cluster, "t", clock=SYSTEM_CLOCK),
    )
    await table.start(lambda _partition, _record: None)
    try:
        yield table
    finally:
        await table.stop()
        await writer.close()
        await cluster.close()


async def test_a_follower_that_crashes_is_logged_and_reading_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def crash(_partition: int, _record: Record) -> None:
        raise RuntimeError("bug")

    async with rig() as it:
        await it.table.start(crash)
        await it.table.post([(b"k", b"v")])
        async with asyncio.timeout(10):
            while "topic is followed no longer topic=t" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionFailedError):
            await it.table.read_to_end(1)
