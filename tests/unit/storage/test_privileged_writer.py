"""The leader's transactional writer of the config topic, on a fake broker."""

import asyncio
from math import inf

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.errors import RetriableError
from mm2py.protocol.produce import PRODUCE_KEY
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

CONFIGS = TopicPartition("mm2-configs.A.internal", 0)


class Leader:
    """A worker that leads, as it believes."""

    def __init__(self, broker: FakeBroker) -> None:
        connection = ConnectionSettings(
            bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=5
        )
        self.cluster = Cluster(connection, alias="B")
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.writer = KafkaPrivilegedWriter(
            self.cluster,
            ProducerSettings(connection=connection),
            "connect-cluster-A-mm2",
            CONFIGS,
            permit=self.permit,
            clock=SYSTEM_CLOCK,
        )

    async def close(self) -> None:
        await self.writer.close()
        await self.cluster.close()


async def test_each_change_is_one_transaction() -> None:
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        leader = Leader(broker)
        with pytest.raises(RetriableError, match="can be safely retried"):
            await leader.writer.write([(b"connector-c", b"{}")])
        await leader.writer.claim()
        await leader.writer.write([(b"task-c-0", b"{}"), (b"commit-c", b"{}")])
        await leader.writer.write([(b"connector-c", b"{}")])
        assert [it.base_offset for it in broker.cluster.transactions.committed] == [0, 3]
        await leader.close()


async def test_a_newer_leader_fences_the_writer_of_the_older_one() -> None:
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        older, newer = Leader(broker), Leader(broker)
        await older.writer.claim()
        await newer.writer.claim()
        with pytest.raises(RetriableError, match="Failed to write to config topic"):
            await older.writer.write([(b"connector-c", b"old")])
        assert not older.writer.claimed
        await newer.writer.write([(b"connector-c", b"new")])
        assert len(broker.cluster.transactions.committed) == 1
        await older.writer.claim()
        await older.writer.write([(b"connector-c", b"again")])
        await older.close()
        await newer.close()


async def test_the_right_ends_with_the_membership() -> None:
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        leader = Leader(broker)
        await leader.writer.claim()
        leader.permit.abandon()
        leader.permit.grant(inf)
        assert not leader.writer.claimed
        with pytest.raises(RetriableError):
            await leader.writer.write([(b"connector-c", b"{}")])
        await leader.close()


async def test_a_write_ends_as_soon_as_the_membership_is_in_doubt() -> None:
    """The herder waits for it, and only the herder can join again: a write that waited for that would wait for ever."""
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        leader = Leader(broker)
        await leader.writer.claim()
        hold = broker.hold(PRODUCE_KEY)
        writing = asyncio.create_task(leader.writer.write([(b"connector-c", b"{}")]))
        await hold.arrived.wait()
        leader.permit.revoke()
        with pytest.raises(RetriableError, match="can be safely"):
            await asyncio.wait_for(writing, 30)
        hold.release()
        assert not leader.writer.claimed
        await leader.close()


@pytest.mark.parametrize("claims", [True, False])
async def test_nothing_is_begun_while_the_membership_is_in_doubt(claims: bool) -> None:
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        leader = Leader(broker)
        await leader.writer.claim()
        leader.permit.revoke()
        work = leader.writer.claim() if claims else leader.writer.write([(b"connector-c", b"{}")])
        with pytest.raises(RetriableError):
            await asyncio.wait_for(work, 30)
        leader.permit.grant(inf)
        await leader.writer.claim()
        await leader.writer.write([(b"connector-c", b"{}")])
        assert len(broker.cluster.transactions.committed) == 1
        await leader.close()
