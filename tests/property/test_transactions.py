"""Tasks with exactly-once support on fake brokers: crashes, zombies, cut lines and moving coordinators.

Flow: ``World`` (source records, a target of two brokers, its transaction coordinator) -> ``Attempt`` (a real
``WorkerTask`` with real transactions, or without as a lane on Spark) -> a random course of faults -> ``World.check``: what a
read_committed consumer sees is the source, each record once, in order, and positions say exactly that.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf

import pytest

from mm2py.api.task import BatchSourceTask, Delivery, Outgoing
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.resume import FENCE_EPOCH
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import CopiedSoFar, Identical
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig, LossPolicies
from mm2py.errors import ProducerFencedError, TransactionAbortedError
from mm2py.mirror.offset_map_pages import Page, decode_page, decode_page_key
from mm2py.mirror.source_offsets import source_offset_key
from mm2py.observability.metrics import Metrics
from mm2py.protocol import error_codes as codes
from mm2py.protocol.columns import partition_of
from mm2py.protocol.record_batch import HEADER, TRANSACTIONAL_FLAG
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch
from mm2py.runtime.plugins.converters.registry import BYTES_ONLY
from mm2py.runtime.plugins.transforms.chain import TransformChain, steps_of
from mm2py.runtime.tasks.arrivals import SourceOrder
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.target_sender import OnDelivered, OnDoubt, OnFailed, OnStalled
from mm2py.runtime.tasks.task_context import NoLedger, WorkerTaskContext
from mm2py.runtime.tasks.task_transactions import (
    SAME_CAUSE,
    Starts,
    TaskTransactions,
    TransactionMaps,
)
from mm2py.runtime.tasks.transformed_task import OrderedWorkerTask, TransformedTask
from mm2py.runtime.tasks.worker_task import TaskSettings, WorkerTask
from mm2py.storage.offset_map_store import MapsOver, NoMapStore, StoredMap, page_entries
from mm2py.storage.table import Entry
from mm2py.testing.waiting import eventually
from mm2py.types import ClusterAlias, FlowName, State, TopicPartition
from tests.kit.fakes.batches import source_batch
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_log import StoredBatch
from tests.kit.fakes.broker_state import FakeCluster
from tests.property.effort import examples
from tests.property.play_loop import course_of

CONNECTOR = "MirrorSourceConnector"
NAME = "A-mm2-MirrorSourceConnector-0"
OFFSETS = "mm2-offsets.A.internal"
MAPS = "mm2py-offset-map.A.internal"
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
        self.chance = course_of(seed)
        self.limit_bytes = limit_bytes
        self.cluster = FakeCluster()
        versions = {0: (3, 12), 18: (0, 4)} if implicit else {0: (3, 11)}
        if implicit:
            self.cluster.transactions.features = {"transaction.version": 2}
        self.brokers = [
            FakeBroker(node_id=number, cluster=self.cluster, versions=versions) for number in (1, 2)
        ]
        self.sources = [TopicPartition("t", number) for number in range(PARTITIONS)]
        self._decoded: dict[tuple[TopicPartition, int], Sequence[Record]] = {}
        self.written_without = False
        """Whether an attempt without transactions has written: its records are there before their position."""

    async def __aenter__(self) -> "World":
        for broker in self.brokers:
            await broker.start()
        self.brokers[0].create_topic("A.t", PARTITIONS)
        for source in self.sources if self.limit_bytes else ():
            self.brokers[0].partition(target_of(source)).max_message_bytes = self.limit_bytes
        self.brokers[1].create_topic(OFFSETS, OFFSET_PARTITIONS)
        self.brokers[1].create_topic(MAPS, 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop()

    def committed(self, tp: TopicPartition) -> list[Record]:
        """Return what a ``read_committed`` consumer sees of a partition, in the order of the log."""
        committed = {
            it.base_offset for it in self.cluster.transactions.committed if it.partition == tp
        }
        return [
            record
            for stored in self.cluster.topics_log(tp).batches
            if stored.base_offset in committed
            or not HEADER.unpack_from(stored.data)[5] & TRANSACTIONAL_FLAG
            for record in self._records(tp, stored)
        ]

    def _records(self, tp: TopicPartition, stored: StoredBatch) -> Sequence[Record]:
        """Return the records of a batch, which are decoded once for all the looks at the log."""
        where = tp, stored.base_offset
        if where not in self._decoded:
            found = decode_batches(memoryview(stored.data))
            self._decoded[where] = [record for batch in found for record in batch.records]
        return self._decoded[where]

    def writers(self) -> list[list[int]]:
        """Return the producer ids of each target partition, in the order of their first batches."""
        logs = [self.cluster.topics_log(target_of(source)).batches for source in self.sources]
        return [list(dict.fromkeys(HEADER.unpack_from(it.data)[9] for it in log)) for log in logs]

    def write(self, tp: TopicPartition, entries: Sequence[Entry]) -> None:
        """Write into an internal topic without a transaction."""
        if entries:
            data = encode_batch([NewRecord(key, value, (), -1) for key, value in entries])
            self.brokers[0].append(tp, bytes(data))

    async def end_all(self, attempts: Collection["Attempt"]) -> None:
        """Crash attempts; some of what is in the sockets lands, then nothing more; what they left open is aborted."""
        for attempt in attempts:
            await attempt.crash()
        for _ in range(self.chance.randrange(30)):
            await asyncio.sleep(0)
        for broker in self.brokers:
            await broker.disconnect()
        self.cluster.transactions.time_out(NAME)
        self.cluster.write_markers()

    def position(self, source: TopicPartition) -> int:
        """Return the committed position of a source partition, -1 for none."""
        key = source_offset_key(CONNECTOR, partition_key(source))
        where = TopicPartition(OFFSETS, partition_of(key, OFFSET_PARTITIONS))
        found = [it.value for it in self.committed(where) if it.key == key]
        return int((found[-1] or b"").split(b":")[1].strip(b"}")) if found else -1

    @property
    def done(self) -> bool:
        """Whether the end of the source is committed."""
        return all(self.position(source) == RECORDS - 1 for source in self.sources)

    def check(self) -> None:
        """Invariants 1, 2 and 6 of ``task_transactions``: positions and records agree, each record once and in order."""
        for source in self.sources:
            values = [int(it.value or b"") for it in self.committed(target_of(source))]
            position = self.position(source)
            assert values == list(range(len(values))), (source, position, values)
            if self.written_without and not self.done:
                assert position < len(values), (source, position, values)
            else:
                assert position + 1 == len(values), (source, position, values)

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
    """Hands out the numbers 0 to ``RECORDS`` of each partition, from the committed position on; also as a ``CopyTask``."""

    def __init__(self, world: World, maps: TaskOffsetMaps, *, transactional: bool) -> None:
        self._world, self._maps, self._transactional = world, maps, transactional
        self._next: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        self._covered: list[TopicPartition] = []
        self.covered: Callable[[TopicPartition, int], None] = lambda _source, _offset: None
        self.delivered_up_to: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        world = self._world
        positions = {source: world.position(source) for source in world.sources}
        await self._maps.load(world.sources)
        self._next = {
            source: max(0, self._maps.resume(source, last + 1 if last >= 0 else -1))
            for source, last in positions.items()
        }
        self._covered = [source for source, first in self._next.items() if first == RECORDS]

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        await asyncio.sleep(self._world.chance.choice((0, 0, 0.001, 0.004)))
        found: list[Outgoing] = []
        # As ``CoveredPositions``: a former task was killed after the map and before the position.
        while self._covered:
            self.covered(self._covered.pop(), RECORDS - 1)
        for source in self._world.sources:
            first = self._next[source]
            count = min(self._world.chance.randrange(4), RECORDS - first)
            if count <= 0 or source in self._held:
                continue
            self._next[source] = first + count
            offsets = range(first, first + count)
            batch = source_batch(
                offsets, [NewRecord(b"k", b"%0100d" % n, (), 1_000) for n in offsets]
            )
            found.append(Outgoing(source, target_of(source), [batch]))
        return found

    def delivered(self, delivery: Delivery) -> None:
        last = delivery.runs[-1]
        position = last.source_offset + last.records - 1
        # Invariant 2: never before its transaction is committed.
        assert not self._transactional or self._world.position(delivery.source) >= position
        self.delivered_up_to[delivery.source] = position

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self._held.update(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._held.difference_update(partitions)

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        assert self._next[partition] == offset + records, "what was handed out last"
        self._next[partition] = offset
        return True

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        pass

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {}

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        return target_of(partition)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        raise AssertionError(error)

    def source_partition(self, partition: TopicPartition) -> dict[str, str | int]:
        return partition_key(partition)

    async def commit(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Maps(MapsOver):
    """The offset map of the flow, in its topic of the world; the first page is never full here."""

    def __init__(self, world: World) -> None:
        super().__init__(NoMapStore())
        self._world = world

    @property
    def topic(self) -> str:
        return MAPS

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        await asyncio.sleep(0)
        newest = {it.key: it.value for it in self._world.committed(TopicPartition(MAPS, 0))}
        pages = {decode_page_key(key): value for key, value in newest.items()}
        return {
            partition: StoredMap(decode_page(number, value), ())
            for (partition, number), value in pages.items()
            if partition in partitions and value is not None
        }

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        await asyncio.sleep(0)
        self._world.write(TopicPartition(MAPS, 0), page_entries(pages))


class Attempt:
    """One run of the task, in a process of its own as far as it knows.

    Without ``transactional`` it writes as lanes on Spark and flows that are at least once do; ``chained``: with a transform that
    changes each record, and little memory; without ``commits`` positions wait for its end in order.
    """

    def __init__(
        self,
        world: World,
        starts: Starts | None = None,
        *,
        transactional: bool = True,
        chained: bool = False,
        commits: bool = True,
    ) -> None:
        self.world = world
        world.written_without = world.written_without or not transactional
        self.meter = Metrics(SYSTEM_CLOCK).flow(FLOW)
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        connection = ConnectionSettings(
            bootstrap_servers=world.brokers[0].bootstrap_servers,
            request_timeout_ms=2_000,
            retry_backoff_ms=5,
            reconnect_backoff_ms=5,
            default_api_timeout_ms=3_000,
        )
        producer = ProducerSettings(connection=connection)
        store = _Positions(world)
        self.transactions = TaskTransactions(
            Cluster(connection, alias="B"),
            producer,
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
        used = self.transactions if transactional else None
        maps = TaskOffsetMaps(
            TransactionMaps(Maps(world), used) if used else Maps(world),
            Identical.OFF if used else Identical.PREFER,
            in_transactions=transactional,
        )
        self.task = Numbers(world, maps, transactional=transactional)
        context = WorkerTaskContext(
            CONNECTOR,
            f"{CONNECTOR}-0",
            store=store,
            meter=self.meter,
            clock=SYSTEM_CLOCK,
            events=NoLedger(),
            policies=LossPolicies(),
            maps=maps,
        )
        committer = OffsetCommitter(
            used or store,
            CONNECTOR,
            source_partition=self.task.source_partition,
            source_offset=self.task.source_offset,
            timeout_ms=None if transactional else 2_000,
            maps=maps,
        )
        order = SourceOrder()
        self.worker = (OrderedWorkerTask if chained else WorkerTask)(
            _chained(self.task, context, order) if chained else self.task,
            context=context,
            sender=self.transactions.sender
            if transactional
            else partial(_sender, Cluster(connection, alias="B"), producer, self.permit),
            committer=committer,
            settings=TaskSettings(
                offset_flush_interval_ms=20 if commits else 600_000,
                graceful_timeout_ms=500,
                buffer_memory_bytes=LITTLE_MEMORY if chained else 32 << 20,
            ),
            on_status=lambda _status: None,
            permit=self.permit,
            transactions=used,
        )
        if isinstance(self.worker, OrderedWorkerTask):
            self.worker.follow(order)
        self.task.covered = self.worker.partition_covered
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


def _chained(task: Numbers, context: WorkerTaskContext, order: SourceOrder) -> TransformedTask:
    errant = ErrantRecords("m", 0, parse_config(FrameworkConfig, {}), clock=SYSTEM_CLOCK)
    return TransformedTask(
        task,
        TransformChain(steps_of(MARK), errant.transformed),
        converters=BYTES_ONLY,
        errant=errant,
        order=order,
        context=context,
        is_internal=lambda _topic: False,
    )


class _Positions:
    """Positions are read from the world, and written there without a transaction."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [None for _ in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        await asyncio.sleep(0)
        for key, value in values.items():
            where = TopicPartition(OFFSETS, partition_of(key, OFFSET_PARTITIONS))
            self._world.write(where, [(key, value)])


def _sender(
    cluster: Cluster,
    settings: ProducerSettings,
    permit: Permit,
    on_delivered: OnDelivered,
    on_failed: OnFailed,
    on_stalled: OnStalled,
    on_doubt: OnDoubt,
    copied: CopiedSoFar | None,
) -> Sender:
    return Sender(
        cluster,
        settings,
        clock=SYSTEM_CLOCK,
        on_delivered=on_delivered,
        on_failed=on_failed,
        on_stalled=on_stalled,
        on_doubt=on_doubt,
        permit=permit,
        owns_cluster=True,
        copied=copied,
    )


async def _nothing() -> None:
    return


pytestmark = [pytest.mark.timeout(600), pytest.mark.course]

END_S = 60.0

MARK = {
    "transforms": "mark",
    "transforms.mark.type": "InsertHeader",
    "transforms.mark.header": "h",
    "transforms.mark.value.literal": "v",
}
LITTLE_MEMORY = 1_200
"""A few batches."""

TWO_RECORDS = 300
"""Bytes that a batch of two records fits in; the task hands out up to three at once."""


async def begun(world: World, *, chained: bool = False) -> list[Attempt]:
    """Return an attempt after several that were killed or ended in order, with and without transactions."""
    chance = world.chance
    for _ in range(chance.randrange(8)):
        transactional = chance.random() < 0.4
        former = Attempt(world, transactional=transactional, chained=chained)
        # Most of those in transactions end before they commit: what was before them is still there to be recognised.
        for _ in range(chance.randrange(200 if transactional else 400)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice((0, 0, 0.01, 0 if transactional else 0.03)))
        if chance.random() < 0.2:
            await former.stop()
        await world.end_all([former])
        world.check()
    return [Attempt(world, chained=chained)]


@pytest.mark.fuzz
@pytest.mark.parametrize("turn", range(examples(8, share=0.1)))
@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_whatever_ends_an_attempt_each_record_is_committed_once(
    seed: int, implicit: bool, turn: int
) -> None:
    del turn  # the seed is of the test's name, which has it
    chance = random.Random(seed)
    limit_bytes = chance.choice((0, TWO_RECORDS))
    async with (
        World(seed, implicit=implicit, limit_bytes=limit_bytes) as world,
        asyncio.timeout(END_S),
    ):
        attempts = await begun(world)
        while not world.done:
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
            newest = attempts[-1]
            match chance.randrange(8):
                case 0:
                    await newest.crash()
                    attempts.append(Attempt(world))
                case 1:
                    await newest.stop()
                    attempts.append(Attempt(world))
                case 2 if len(attempts) < 12:  # the older one lives on: a zombie
                    attempts.append(Attempt(world))
                case 3 | 4:
                    world.disturb()
                case 5 if chance.random() < 0.1:
                    await world.end_all(attempts)
                    attempts += await begun(world)
                case _ if newest.failed:
                    attempts.append(Attempt(world))
                case _:
                    pass
            world.check()
        for attempt in attempts:
            await attempt.stop()
        world.check()


@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_start_recognises_what_each_killed_predecessor_wrote_under_another_producer_id(
    implicit: bool,
) -> None:
    async with World(1, implicit=implicit) as world, asyncio.timeout(END_S):

        def has(writers: int) -> bool:
            return min(map(len, world.writers())) == writers

        for writers in (1, 2):
            lane = Attempt(world, transactional=False, commits=False)
            await eventually(partial(has, writers))
            await world.end_all([lane])
            # As by an exactly-once start that is killed then: the next lane changes its id.
            for source, (*_, producer_id) in zip(world.sources, world.writers(), strict=True):
                world.cluster.topics_log(target_of(source)).abort(producer_id, FENCE_EPOCH)
        newest = Attempt(world)
        await eventually(lambda: world.done)
        await newest.stop()
        world.check()


@pytest.mark.fuzz
@pytest.mark.parametrize("turn", range(examples(3, share=0.1)))
@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_with_transforms_each_record_is_committed_once_whatever_the_target_refuses(
    seed: int, implicit: bool, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    del turn
    monkeypatch.setattr("mm2py.runtime.tasks.worker_task.FULL_FOR_S", 0.01)
    monkeypatch.setattr("mm2py.runtime.tasks.held_partitions.STUCK_S", 0.02)
    monkeypatch.setattr("mm2py.runtime.tasks.held_partitions.LONGEST_REST_S", 0.02)
    chance = random.Random(seed)
    refusals = (0, 0, codes.TOPIC_AUTHORIZATION_FAILED, codes.NOT_ENOUGH_REPLICAS)
    async with (
        World(seed, implicit=implicit, limit_bytes=chance.choice((0, TWO_RECORDS))) as world,
        asyncio.timeout(END_S),
    ):
        attempts = await begun(world, chained=True)
        while not world.done:
            await asyncio.sleep(chance.choice((0, 0.002, 0.01, 0.05)))
            match chance.randrange(12):
                case 0 | 1 | 2:
                    target = target_of(chance.choice(world.sources))
                    world.brokers[0].partition(target).refusal = chance.choice(refusals)
                case 3:
                    await attempts[-1].crash()
                    attempts.append(Attempt(world, chained=True))
                case 4:
                    world.disturb()
                case _ if attempts[-1].failed:
                    attempts.append(Attempt(world, chained=True))
                case _:
                    pass
            world.check()
        for attempt in attempts:
            await attempt.stop()
        world.check()


@pytest.mark.parametrize("turn", range(8))
@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_refusal_that_can_be_repaired_ends_no_transaction(
    seed: int, implicit: bool, turn: int
) -> None:
    del turn
    async with (
        World(seed, implicit=implicit, limit_bytes=TWO_RECORDS) as world,
        asyncio.timeout(END_S),
    ):
        attempt = Attempt(world)
        await eventually(lambda: world.done or attempt.failed)
        assert attempt.cause is None
        await attempt.stop()
        world.check()


@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_task_that_fails_three_times_where_it_began_is_started_otherwise_and_says_so(
    implicit: bool,
) -> None:
    starts = Starts()
    async with World(1, implicit=implicit) as world, asyncio.timeout(END_S):
        for _ in range(SAME_CAUSE):
            world.brokers[0].fail_next(0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
            attempt = Attempt(world, starts)
            assert not attempt.transactions.remark
            await eventually(attempt.has_failed)
            await attempt.stop()
        attempt = Attempt(world, starts)
        await eventually(lambda: world.done)
        remark = (
            "3 starts failed for OUT_OF_ORDER_SEQUENCE_NUMBER before the first commit: one batch"
        )
        (finding,) = attempt.meter.findings
        assert finding.text.startswith(remark)
        starts.ended(TransactionAbortedError("another one"), committed=True)
        assert not starts.remark
        await attempt.stop()
        world.check()


@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_newer_producer_fences_the_older_one(implicit: bool) -> None:
    async with World(1, implicit=implicit) as world, asyncio.timeout(END_S):
        older = Attempt(world)
        await eventually(lambda: world.position(world.sources[0]) >= 5)
        newer = Attempt(world)
        await eventually(lambda: older.failed)
        assert isinstance(older.cause, ProducerFencedError)
        await eventually(lambda: world.done)
        await newer.stop()
        world.check()
