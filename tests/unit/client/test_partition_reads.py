"""Many partitions of one broker are read with one Fetch at a time, whatever their batches' sizes."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

import pytest

from mm2py.client import pacing
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch import partition_fetch
from mm2py.client.fetch.partition_fetch import PartitionReads, fetch_partition
from mm2py.errors import ConnectionFailedError, FatalServerError, RetriableError
from mm2py.protocol.error_codes import NOT_LEADER_OR_FOLLOWER
from mm2py.protocol.records import decode_batches
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to, signed

FETCH = 1
PARTITIONS = [TopicPartition(f"t{topic}", number) for topic in range(20) for number in range(3)]


class Rig:
    """Reads at a fake broker."""

    def __init__(self, broker: FakeBroker, cluster: Cluster) -> None:
        self.broker, self.cluster, self.tasks = broker, cluster, set[asyncio.Task[None]]()
        self.reads = PartitionReads(cluster, self._spawn)

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def value(self, tp: TopicPartition, position: int) -> bytes | None:
        fetched = await self.reads.read(tp, position)
        found = [
            it.value for batch in decode_batches(fetched.records or b"") for it in batch.records
        ]
        return None if not found else bytes(found[0] or b"")

    @property
    def fetches(self) -> int:
        return self.broker.count(FETCH)


@asynccontextmanager
async def rig() -> AsyncGenerator[Rig]:
    async with (
        FakeBroker(topics={tp.topic: 3 for tp in PARTITIONS}) as broker,
        connected_to(broker) as cluster,
    ):
        await cluster.metadata(sorted({tp.topic for tp in PARTITIONS}))
        made = Rig(broker, cluster)
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
            await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_reads_that_wait_for_one_broker_go_out_together() -> None:
    async with rig() as it:
        for number, tp in enumerate(PARTITIONS):
            it.broker.append(tp, signed(b"%d" % number))
        values = await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS))
        assert values == [b"%d" % number for number in range(len(PARTITIONS))]
        assert it.fetches == 1


async def test_a_read_waits_for_a_quota_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pacing, "WITHHELD_S", 0.1)
    async with rig() as it:
        tp, state = PARTITIONS[0], it.broker.cluster
        it.broker.append(tp, signed(b"late"))
        state.withholds, state.throttle_ms = True, 20
        reading = asyncio.create_task(it.value(tp, 0))
        await eventually(lambda: "consumer_byte_rate" in caplog.text)
        state.withholds = False
        assert await reading == b"late"
        assert caplog.text.count("consumer_byte_rate") == 1


async def test_batches_beyond_the_limits_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_fetch, "ANSWER_BYTES", 1_000)
    async with rig() as it:
        for tp in PARTITIONS[::2]:
            it.broker.append(tp, signed(bytes(3_000)))
        values = await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS[::2]))
        assert values == [bytes(3_000)] * 30
        assert it.fetches == 30  # a broker returns one such batch at a time


async def test_an_empty_end_is_answered_beside_partitions_that_have_records() -> None:
    async with rig() as it:
        for tp in PARTITIONS[1:]:
            it.broker.append(tp, signed(b"x"))
        values = await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS))
        assert values == [None, *[b"x"] * (len(PARTITIONS) - 1)]
        assert it.fetches == 1


async def test_two_reads_of_one_partition_are_both_answered() -> None:
    async with rig() as it:
        it.broker.append(PARTITIONS[0], signed(b"a"))
        it.broker.append(PARTITIONS[0], signed(b"b"))
        both = await asyncio.gather(it.value(PARTITIONS[0], 0), it.value(PARTITIONS[0], 1))
        assert list(both) == [b"a", b"b"]


async def test_a_broker_whose_quota_is_exceeded_is_asked_again_after_the_throttle() -> None:
    async with rig() as it:
        for tp in PARTITIONS[:2]:
            it.broker.append(tp, signed(b"x"))
        it.broker.cluster.throttle_ms = 20
        it.broker.cluster.throttled = 2
        assert await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS[:2])) == [b"x", b"x"]
        it.broker.cluster.throttled = 2
        fetched = await fetch_partition(it.cluster, PARTITIONS[0], 0, max_bytes=1_000)
        assert fetched.records
        assert it.fetches == 6


async def test_an_error_concerns_its_partition_only() -> None:
    async with rig() as it:
        for tp in PARTITIONS[1:]:
            it.broker.append(tp, signed(b"x"))
        found = await asyncio.gather(
            it.value(PARTITIONS[0], 7), it.value(PARTITIONS[1], 0), return_exceptions=True
        )
        assert isinstance(found[0], FatalServerError)
        assert found[1] == b"x"


async def test_what_a_broker_cannot_answer_is_an_error_of_each_read() -> None:
    async with rig() as it:
        it.broker.fail_next(FETCH, NOT_LEADER_OR_FOLLOWER)
        found = await asyncio.gather(
            *(it.value(tp, 0) for tp in PARTITIONS), return_exceptions=True
        )
        assert all(isinstance(error, RetriableError) for error in found)
        await it.broker.stop()
        with pytest.raises(ConnectionFailedError):
            await it.value(PARTITIONS[0], 0)


async def test_a_caller_that_leaves_does_not_hold_up_the_others() -> None:
    async with rig() as it:
        hold = it.broker.hold(FETCH)
        first = asyncio.create_task(it.value(PARTITIONS[0], 0))
        await hold.arrived.wait()
        leaving = asyncio.create_task(it.value(PARTITIONS[1], 0))
        staying = asyncio.create_task(it.value(PARTITIONS[2], 0))
        await asyncio.sleep(0)
        leaving.cancel()
        first.cancel()
        it.broker.append(PARTITIONS[2], signed(b"x"))
        hold.release()
        assert await staying == b"x"
