"""Tasks with exactly-once support on fake brokers: crashes, zombies, cut lines and moving coordinators.

Flow: ``World`` (source records, a target of two brokers, its transaction coordinator) -> ``Attempt`` (a real
``WorkerTask`` with real transactions) -> a random course of faults -> ``World.check``: what a read_committed
consumer sees is the source, each record once, in order, and positions say exactly that.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from math import inf

from mm2py.api.task import BatchSourceTask, Delivery, Outgoing
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.mirror.source_offsets import source_offset_key
from mm2py.observability.metrics import Metrics
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.task_context import LossPolicies, NoLedger, WorkerTaskContext
from mm2py.runtime.tasks.task_transactions import Starts, TaskTransactions
from mm2py.runtime.tasks.worker_task import TaskSettings, WorkerTask
from mm2py.storage.table import partition_of
from mm2py.types import ClusterAlias, FlowName, State, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_state import FakeCluster

CONNECTOR = "MirrorSourceConnector"
NAME = "A-mm2-MirrorSourceConnector-0"
OFFSETS = "mm2-offsets.A.internal"
FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
PARTITIONS = 3
RECORDS = 60
OFFSET_PARTITIONS = 2


def target_of(source: TopicPartition) -> TopicPartition:
    """Return the copy's partition."""
    return TopicPartition(f"A.{source.topic}", source.partition)


class World:
    """One source, one target cluster, and what became of them."""

    def __init__(self, seed: int, *, implicit: bool, limit_bytes: int = 0) -> None:
        """``limit_bytes``: what the target takes of one batch, which it does not tell; 0 for more than there is."""
        self.chance = random.Random(seed)
        self.limit_bytes = limit_bytes
        self.cluster = FakeCluster()
        versions = {0: (3, 12), 18: (0, 4)} if implicit else {0: (3, 11)}
        if implicit:
            self.cluster.transactions.features = {"transaction.version": 2}
        self.brokers = [
            FakeBroker(node_id=number, cluster=self.cluster, versions=versions) for number in (1, 2)
        ]
        self.sources = [TopicPartition("t", number) for number in range(PARTITIONS)]
        self.fenced = asyncio.Lock()

    async def __aenter__(self) -> "World":
        for broker in self.brokers:
            await broker.start()
        self.brokers[0].create_topic("A.t", PARTITIONS)
        for source in self.sources if self.limit_bytes else ():
            self.brokers[0].partition(target_of(source)).max_message_bytes = self.limit_bytes
        self.brokers[1].create_topic(OFFSETS, OFFSET_PARTITIONS)
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop()

    def committed(self, tp: TopicPartition) -> list[tuple[bytes, bytes]]:
        """Return keys and values of a partition's committed records, in the order of the log."""
        batches = sorted(
            (it for it in self.cluster.transactions.committed if it.partition == tp),
            key=lambda it: it.base_offset,
        )
        return [
            (bytes(record.key or b""), bytes(record.value or b""))
            for stored in batches
            for batch in decode_batches(memoryview(stored.data))
            for record in batch.records
        ]

    def position(self, source: TopicPartition) -> int:
        """Return the committed position of a source partition, -1 for none."""
        key = source_offset_key(CONNECTOR, partition_key(source))
        where = TopicPartition(OFFSETS, partition_of(key, OFFSET_PARTITIONS))
        found = [value for stored, value in self.committed(where) if stored == key]
        return int(found[-1].split(b":")[1].strip(b"}")) if found else -1

    @property
    def done(self) -> bool:
        """Whether the end of the source is committed."""
        return all(self.position(source) == RECORDS - 1 for source in self.sources)

    def check(self) -> None:
        """Invariants 1 and 2 of ``task_transactions``: positions and records agree, each record once and in order."""
        for source in self.sources:
            values = [int(value) for _, value in self.committed(target_of(source))]
            position = self.position(source)
            assert values == list(range(position + 1)), (source, position, values)

    def disturb(self) -> None:
        """Let something go wrong."""
        broker = self.chance.choice(self.brokers)
        match self.chance.randrange(6):
            case 0:
                task = asyncio.ensure_future(broker.disconnect())
                task.add_done_callback(lambda _: None)
            case 1:
                broker.fail_next(0, "disconnect_after_apply")
            case 2:
                broker.fail_next(26, self.chance.choice(("disconnect", "disconnect_after_apply")))
            case 3:
                self.cluster.transactions.coordinator = self.chance.choice((1, 2))
            case 4:
                broker.fail_next(
                    self.chance.choice((22, 24, 26)), self.chance.choice((14, 15, 16, 51))
                )
            case _:
                self.cluster.transactions.time_out(NAME)
                self.cluster.write_markers()


def partition_key(source: TopicPartition) -> dict[str, str | int]:
    """Return the source partition as Java's MirrorMaker 2 keys it."""
    return {"cluster": "A", "partition": source.partition, "topic": source.topic}


class Numbers(BatchSourceTask):
    """Hands out the numbers 0 to ``RECORDS`` of each partition, from the committed position on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next: dict[TopicPartition, int] = {}
        self.delivered_up_to: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        self._next = {source: self._world.position(source) + 1 for source in self._world.sources}

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        await asyncio.sleep(self._world.chance.choice((0, 0, 0.001, 0.004)))
        found: list[Outgoing] = []
        for source in self._world.sources:
            first = self._next[source]
            count = min(self._world.chance.randrange(4), RECORDS - first)
            if count <= 0:
                continue
            self._next[source] = first + count
            records = [
                NewRecord(b"k", b"%0100d" % number, (), 1_000)
                for number in range(first, first + count)
            ]
            data = encode_batch(records)
            runs = ((first, count),)
            batch = RecordBatch(data, first, first + count - 1, count, 1_000, 0, 0, runs, None)
            found.append(Outgoing(source, target_of(source), [batch]))
        return found

    def delivered(self, delivery: Delivery) -> None:
        last = delivery.runs[-1]
        position = last.source_offset + last.records - 1
        # Invariant 2: never before its transaction is committed.
        assert self._world.position(delivery.source) >= position
        self.delivered_up_to[delivery.source] = position

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def release(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        raise AssertionError(error)

    def source_partition(self, partition: TopicPartition) -> dict[str, str | int]:
        return partition_key(partition)

    async def commit(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Attempt:
    """One run of the task, in a process of its own as far as it knows."""

    def __init__(self, world: World, starts: Starts | None = None) -> None:
        self.world = world
        self.meter = Metrics(SYSTEM_CLOCK).flow(FLOW)
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.task = Numbers(world)
        connection = ConnectionSettings(
            bootstrap_servers=world.brokers[0].bootstrap_servers,
            request_timeout_ms=2_000,
            retry_backoff_ms=5,
            reconnect_backoff_ms=5,
            default_api_timeout_ms=3_000,
        )
        store = _NoStore()
        self.transactions = TaskTransactions(
            Cluster(connection, alias="B"),
            ProducerSettings(connection=connection),
            NAME,
            store=store,
            topic=OFFSETS,
            fence=_nothing,
            verify=_nothing,
            interval_s=0.005,
            clock=SYSTEM_CLOCK,
            permit=self.permit,
            starts=starts,
        )
        context = WorkerTaskContext(
            CONNECTOR,
            f"{CONNECTOR}-0",
            store=store,
            meter=self.meter,
            clock=SYSTEM_CLOCK,
            events=NoLedger(),
            policies=LossPolicies(),
        )
        committer = OffsetCommitter(
            self.transactions,
            CONNECTOR,
            source_partition=self.task.source_partition,
            source_offset=self.task.source_offset,
            timeout_ms=None,
        )
        self.worker = WorkerTask(
            self.task,
            context=context,
            sender=self.transactions.sender,
            committer=committer,
            settings=TaskSettings(offset_flush_interval_ms=20, graceful_timeout_ms=500),
            on_status=lambda _status: None,
            permit=self.permit,
            transactions=self.transactions,
        )
        self.worker.start()

    @property
    def failed(self) -> bool:
        """Whether it ended by itself."""
        return self.worker.status.state is State.FAILED

    def has_failed(self) -> bool:
        """Return ``failed``, to wait for."""
        return self.failed

    @property
    def cause(self) -> Exception | None:
        """Why it failed."""
        return self.worker.status.cause

    async def stop(self) -> None:
        """End it in order."""
        await self.worker.stop(1.0)

    async def crash(self) -> None:
        """End it where it is: nothing more is sent, nothing is aborted; what is in the sockets may land."""
        self.permit.abandon()
        await self.worker.stop(0.0)


class _NoStore:
    """Positions are read from the world."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [None for _ in keys]

    async def set(self, values: object) -> None:
        raise AssertionError("positions are written in the transaction")


async def _nothing() -> None:
    return
