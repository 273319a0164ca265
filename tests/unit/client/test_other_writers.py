"""Other writers of a target partition are named, mirrors that are known are not."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.sender import FOREIGN_LOOK_S, Sender
from mm2py.client.send.tail import Identical, KeptProducer, LogEnd
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.errors import ConnectionFailedError, TargetMovedError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("orders", 0)
MIRROR, APPLICATION = 7_001, 7_002
NAMED = "another program writes"


class LateClock:
    """The real clock, put forward at will."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(seconds)


class Ids:
    """One mirror is known."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.error: Exception | None = None

    async def announce(self, producer_id: int) -> None:
        del producer_id

    async def includes(self, producer_id: int) -> bool:
        self.asked.append(producer_id)
        if self.error is not None:
            raise self.error
        return producer_id == MIRROR


class Copied:
    """Copies are known up to a target offset."""

    identical = Identical.PREFER

    def __init__(self, end: int) -> None:
        self.end = end

    def target_end(self, source: TopicPartition, topic_id: bytes) -> int:
        del source, topic_id
        return self.end

    def producer(self, source: TopicPartition) -> KeptProducer:
        del source
        return KeptProducer(-1, -1)

    async def begin(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Nothing is kept."""


class Rig:
    """A Sender whose target others write to."""

    def __init__(self, broker: FakeBroker, cluster: Cluster, end: int, ids: Ids | None) -> None:
        self.broker, self.clock = broker, LateClock()
        self.delivered = self.enqueued = 0
        self._sequences: dict[int, int] = {}
        self.failed: list[Exception] = []
        self.sender = Sender(
            cluster,
            ProducerSettings(connection=cluster.settings),
            clock=self.clock,
            on_delivered=self._on_delivered,
            on_failed=lambda _source, _target, error: self.failed.append(error),
            mirror_ids=ids,
            copied=Copied(end),
        )

    def _on_delivered(
        self, _source: TopicPartition, _target: TopicPartition, batch: RecordBatch, _offset: int
    ) -> None:
        self.delivered += batch.count

    def other(self, producer_id: int, value: bytes = b"theirs") -> None:
        """Let another producer write."""
        data = encode_batch([NewRecord(None, value, (), SYSTEM_CLOCK.now_ms())])
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        sign(data, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        self.broker.append(TARGET, bytes(data))

    async def copy(self) -> None:
        """Copy one record."""
        at, self.enqueued = self.enqueued, self.enqueued + 1
        data = encode_batch([NewRecord(None, b"ours", (), SYSTEM_CLOCK.now_ms())])
        stamp = SYSTEM_CLOCK.now_ms()
        batch = RecordBatch(data, at, at, 1, stamp, 0, 0, ((at, 1),), None)
        self.sender.enqueue(SOURCE, TARGET, [batch])
        assert await self.sender.flush(10)


@asynccontextmanager
async def rig(ids: Ids | None, *, end: int = 0, written_before: int = -1) -> AsyncGenerator[Rig]:
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        settings = ConnectionSettings(
            bootstrap_servers=(("127.0.0.1", broker.port),), retry_backoff_ms=1
        )
        cluster = Cluster(settings, alias="B")
        await cluster.connect()
        made = Rig(broker, cluster, end, ids)
        if written_before >= 0:
            made.other(written_before)
        await made.sender.start()
        try:
            yield made
            assert not made.failed
        finally:
            await made.sender.close()
            await cluster.close()


async def test_a_target_that_lost_what_it_acknowledged_is_named_and_its_log_is_not_read() -> None:
    async with rig(None) as made:
        for _ in range(10):
            await made.copy()
        made.broker.partition(TARGET).truncate_to(6)
        made.broker.fail_next(0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
        reads = made.broker.count(1)
        await made.copy()
        error = made.failed.pop()
        assert isinstance(
            error, TargetMovedError
        )  # the task starts again, and reports what is lost
        assert "ends below offset 10, up to which it had acknowledged records" in str(error)
        assert made.broker.count(1) == reads


async def test_a_mirror_is_not_named_and_an_application_behind_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = Ids()
    with caplog.at_level(logging.INFO):
        async with rig(ids) as it:
            await it.copy()
            it.other(MIRROR)
            await it.copy()
            await eventually(lambda: ids.asked == [MIRROR])
            it.other(APPLICATION)
            await it.copy()  # too early to look again
            it.clock.ahead_s += 2 * FOREIGN_LOOK_S
            it.other(APPLICATION)
            await it.copy()
            await eventually(lambda: NAMED in caplog.text)
            it.clock.ahead_s += 2 * FOREIGN_LOOK_S
            it.other(APPLICATION)
            await it.copy()
    assert ids.asked == [MIRROR, APPLICATION]
    (record,) = [it for it in caplog.records if NAMED in it.message]
    assert f"producer_id={APPLICATION}" in record.message
    assert record.levelno == logging.INFO  # names are the same both ways


@pytest.mark.parametrize("known", [False, True])
async def test_a_writer_is_named_where_mirrors_are_not_known(
    caplog: pytest.LogCaptureFixture, *, known: bool
) -> None:
    ids = Ids()
    ids.error = ConnectionFailedError("away")
    async with rig(ids if known else None) as it:
        await it.copy()
        it.other(MIRROR)
        with caplog.at_level(logging.INFO):
            await it.copy()
            await eventually(lambda: NAMED in caplog.text)


@pytest.mark.parametrize(("writer", "named"), [(MIRROR, 0), (APPLICATION, 1)])
async def test_what_others_wrote_behind_the_map_is_named_once_unless_it_is_a_mirrors(
    writer: int, named: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = Ids()
    with caplog.at_level(logging.INFO):
        async with rig(ids, written_before=writer) as it:
            await asyncio.gather(*(it.copy() for _ in range(3)))
            assert it.delivered == 3
    assert caplog.text.count(NAMED) == named
    assert ids.asked == [writer]
