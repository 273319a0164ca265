"""Partitions that lag on a distant target are dealt over several connections; each keeps its order."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.send import node, sender
from mm2py.client.send.lane import MergePlan, SenderLane, Sent
from mm2py.client.send.sender import Sender
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ProducerSettings
from mm2py.protocol.record_batch import RecordBatch
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.kit.lines.delay_proxy import DelayProxy
from tests.unit.client.client_stage import connected_to, numbers_in, to_send

SOURCE = TopicPartition("t", 0)
TARGETS = [TopicPartition("copy", number) for number in range(6)]
BATCHES = 120
RECORDS = 10
PAD = 1_000


class Rig:
    """A Sender with a long way to one fake broker."""

    def __init__(self, broker: FakeBroker, cluster: Cluster, connections: int) -> None:
        self.broker, self.cluster = broker, cluster
        self.delivered: dict[TopicPartition, list[int]] = {target: [] for target in TARGETS}
        self.failed: list[Exception] = []
        self.stalled: list[Exception] = []
        self.sender = Sender(
            cluster,
            ProducerSettings(connection=cluster.settings, produce_connections_max=connections),
            clock=SYSTEM_CLOCK,
            on_delivered=self._on_delivered,
            on_failed=lambda _source, _target, error: self.failed.append(error),
            on_stalled=lambda _target, error: self.stalled.append(error) if error else None,
        )

    def _on_delivered(
        self, _source: TopicPartition, target: TopicPartition, batch: RecordBatch, _offset: int
    ) -> None:
        for first, count in batch.runs:
            self.delivered[target] += range(first, first + count)

    def enqueue_all(self, turn: int = 0) -> None:
        """Queue the records of one more turn for each target."""
        for target in TARGETS:
            self._enqueue(target, turn * BATCHES * RECORDS)

    def _enqueue(self, target: TopicPartition, first: int) -> None:
        for start in range(first, first + BATCHES * RECORDS, RECORDS):
            values = [(b"%d" % n).ljust(PAD) for n in range(start, start + RECORDS)]
            self.sender.enqueue(SOURCE, target, [to_send(values, start)])

    @property
    def connections(self) -> int:
        """How many connections there are to send by."""
        open_now = self.cluster._connections._open  # pyright: ignore[reportPrivateUsage]
        return sum(1 for _, purpose in open_now if purpose.startswith("produce"))

    def is_complete(self, rounds: int = 1) -> bool:
        all_of_it = list(range(rounds * BATCHES * RECORDS))
        logs = [numbers_in(self.broker, target) for target in TARGETS]
        return all(it == all_of_it for it in (*logs, *self.delivered.values()))


@asynccontextmanager
async def distant(*, connections: int = 5, round_trip_s: float = 0.03) -> AsyncGenerator[Rig]:
    with DelayProxy(round_trip_s=round_trip_s) as line:
        async with FakeBroker(topics={"copy": len(TARGETS)}) as broker:
            port = line.front(broker.port)
            broker.cluster.brokers[broker.node_id] = ("127.0.0.1", port)
            async with connected_to(port, default_api_timeout_ms=60_000) as cluster:
                rig = Rig(broker, cluster, connections)
                await rig.sender.start()
                try:
                    yield rig
                finally:
                    await rig.sender.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after lanes ten times a round trip, and let them lag with little."""
    monkeypatch.setattr(sender, "LOOK_S", 0.003)
    monkeypatch.setattr(sender, "DEAL_BYTES", 1)


async def test_partitions_that_lag_are_dealt_over_several_connections_each_in_order() -> None:
    async with distant() as rig:
        rig.enqueue_all()
        await eventually(lambda: rig.connections == 5)
        rig.enqueue_all(1)
        assert await rig.sender.flush(20)
        assert rig.is_complete(2)
        assert (rig.failed, rig.stalled) == ([], [])


@pytest.mark.parametrize(("connections", "round_trip_s"), [(1, 0.03), (5, 0.0)])
async def test_nearby_or_where_the_user_says_so_one_connection_is_enough(
    connections: int, round_trip_s: float
) -> None:
    async with distant(connections=connections, round_trip_s=round_trip_s) as rig:
        rig.enqueue_all()
        assert await rig.sender.flush(20)
        assert rig.is_complete()
        assert rig.connections == 1


async def test_connections_that_die_in_the_middle_lose_and_double_nothing() -> None:
    async with distant() as rig:
        for number in range(3):
            rig.enqueue_all(number)
            await eventually(lambda: rig.connections >= 3)
            await rig.broker.disconnect()
        assert await rig.sender.flush(20)
        assert rig.is_complete(3)
        assert rig.failed == []


async def test_a_broker_that_accepts_few_connections_is_sent_everything_over_those() -> None:
    async with distant() as rig:
        rig.broker.most_connections = rig.broker.connections + 2
        rig.enqueue_all()
        await eventually(lambda: rig.broker.connections == rig.broker.most_connections)
        rig.enqueue_all(1)
        assert await rig.sender.flush(20)
        assert rig.is_complete(2)
        assert (rig.failed, rig.stalled) == ([], [])


async def test_while_a_broker_is_asked_whether_it_is_distant_no_compressed_batch_is_packed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[MergePlan | None] = []
    take = SenderLane.take

    def noted(lane: SenderLane, plan: MergePlan | None = None) -> Sent:
        plans.append(plan)
        return take(lane, plan)

    monkeypatch.setattr(SenderLane, "take", noted)
    async with distant() as rig:
        for number in range(20):
            rig.enqueue_all(number)
        assert await rig.sender.flush(20)
        assert rig.is_complete(20)
    assert {node.ASKED, node.DISTANT} <= set(plans)
    assert node.ASKED.small_compressed == node.LOCAL.small_compressed
