"""A copy whose task is killed, cut off or frozen at any moment: nothing lost, nothing doubled, target offsets dense.

A worker is a Sender with the real maps over a map topic in memory and a scripted broker on loopback. It is ended after any
number of turns of the event loop; requests that it had sent may reach the log later, before or behind its successor's. So may the
page or the position that it wrote last.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Final

import pytest

from mm2py.api.context import EventKind, SourceGap
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.record_writer import RecordWriter
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import Identical
from mm2py.client.send.transactions import Transactions
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.errors import ConnectionFailedError, TargetMovedError
from mm2py.mirror.offset_lookup import Place, to_source, to_target
from mm2py.mirror.offset_map_pages import Page, PageRef
from mm2py.mirror.source_offsets import committed_topic_id, mirror_source_partition, next_offset
from mm2py.observability.metrics import Metrics
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.error_codes import CLUSTER_AUTHORIZATION_FAILED
from mm2py.protocol.record_batch import HEADER, TRANSACTIONAL_FLAG, RecordBatch
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.offset_map_store import MapsOver, OffsetMapStore, page_entries
from mm2py.storage.table import Entry, Handler, Table
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import source_batch
from tests.kit.fakes.broker import FakeBroker, Hold
from tests.property.play_loop import CourseLoop, course_of
from tests.unit.runtime.runtime_fakes import FLOW, EagerClock, FakeStore, a_committer
from tests.unit.runtime.test_offset_maps import ORDERS, compact, page_of, restored

pytestmark = pytest.mark.course

PRODUCE, WRITE_MARKERS = 0, 27
TOPIC_ID: Final = bytes(15) + b"\x01"
NO_TIE: Final = NO_TOPIC_ID, -1
SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
MAPS, NAME, POSITION = TopicPartition("maps", 0), "A-mm2-MirrorSourceConnector-0", b"position"
"""Where lives in transactions write what the others write into memory."""
RECORDS = 120
SEEDS = 25
CLIENT = 999


class World:
    """What outlives every worker: both logs, the map's topic and the stored position."""

    def __init__(self, seed: int) -> None:
        self.chance = course_of(seed)
        self.stamp = SYSTEM_CLOCK.now_ms()
        offset, self.offsets = -1, list[int]()
        for _ in range(RECORDS):
            offset += 1 + (self.chance.random() < 0.1)
            self.offsets.append(offset)
        self.maps = MemoryTopic("mm2py-offset-map.A.internal")
        self.position, self.tie = -1, NO_TIE
        """As stored; what is beside one that was set is nothing."""
        self.own_tie = self.chance.choice([(TOPIC_ID, -1)] * 3 + [(NO_TOPIC_ID, 5)])
        """What a task stores beside its position: brokers before 2.8 give no ids."""
        self.late: list[Hold] = []
        self.held: list[deque[Callable[[], None]]] = []
        """What each life that was cut off had on its way to the topics of maps and positions."""
        self.is_cut, self.has_cuts = False, False
        """Whether the life is cut off from these topics now; whether lives may be."""
        self.doubts: list[tuple[int, int]] = []
        """Ranges of source offsets that were reported as possibly doubled."""
        self.identical, self.has_client, self.has_late = Identical.PREFER, False, True
        self.kinds = 10 * RECORDS
        """How many different records there are."""
        self.is_slow = False
        """Whether each post of the map takes some turns."""
        self.pause = self.chance.choice([0, 10])
        """Most turns of the loop between two batches of the source."""
        self._taken = 0

        self.begun = [(0, -1)]
        """Where copies began: log end of the target, and the position that was set."""

    def store(self) -> OffsetMapStore:
        """Return the maps as a process reads and writes them."""
        table = SlowTable(self.maps) if self.is_slow else MemoryTable(self.maps)
        return OffsetMapStore(LineTable(table, self), self.read)

    def set_position(self, position: int, tie: tuple[bytes, int]) -> None:
        self.position, self.tie = position, tie

    def arrive(self) -> None:
        """Let the next request of a life that is gone reach its topic."""
        held = self.chance.choice(self.held)
        held.popleft()()
        if not held:
            self.held.remove(held)

    @property
    def values(self) -> list[int]:
        """What a whole copy has."""
        return [it % self.kinds for it in self.offsets]

    async def settle(self, broker: FakeBroker) -> None:
        """Wait until what was sent has arrived, but what is held up; end the transaction, and take
        what was committed."""
        await eventually(lambda: broker.connections == sum(it.waiting for it in self.late))
        broker.cluster.transactions.time_out(NAME)
        broker.cluster.write_markers()
        committed = broker.cluster.transactions.committed
        for batch in committed[self._taken :]:
            (decoded,) = decode_batches(batch.data)
            records = decoded.records if batch.partition == MAPS else ()
            for it in records:
                if it.key == POSITION:
                    self.set_position(int(it.value or b""), self.own_tie)
                else:
                    self.maps.append(it.key, it.value)
        self._taken = len(committed)

    async def set_back(self, log_end: int) -> None:
        """Set the position back by hand, to one that the map cannot take for its own."""
        store = self.store()
        await store.start()
        stored = (await store.load([SOURCE])).get(SOURCE)
        if stored is None:
            return
        positions = [-1, *(it for it in self.offsets if it < self.position)]
        wanted = self.chance.choice(positions)
        if wanted in (stored.page.position, stored.page.covered, self.position):
            return
        self.set_position(wanted, NO_TIE)
        self.begun.append((log_end, wanted))

    async def read(self, partition: TopicPartition, ref: PageRef) -> Page:
        return page_of(self.maps, partition, ref)

    def page(self, ref: PageRef) -> Page:
        return page_of(self.maps, SOURCE, ref)

    def batches(self, position: int) -> Iterator[RecordBatch]:
        """Return what a reader hands out from a position on, cut as chance has it."""
        left = [it for it in self.offsets if it >= position]
        while left:
            count = self.chance.randint(1, 5)
            part, left = left[:count], left[count:]
            records = [NewRecord(None, b"%d" % (it % self.kinds), (), self.stamp) for it in part]
            yield source_batch(part, records)


class LineTable:
    """A table over a line that may be cut: what is posted then comes later, if at all."""

    def __init__(self, table: Table, world: World) -> None:
        self._table, self._world = table, world
        self.topic, self.start, self.stop = table.topic, table.start, table.stop
        self.read_to_end = table.read_to_end

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        if not self._world.is_cut:
            return self._table.post(entries)

        def arrive() -> None:
            for entry in entries:
                self._world.maps.append(*entry)

        self._world.held[-1].append(arrive)
        return asyncio.get_running_loop().create_future()


class SlowTable:
    """A table whose posts reach the topic one after the other."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._table = MemoryTable(topic)
        self.topic, self.stop, self.read_to_end = (
            topic.name,
            self._table.stop,
            self._table.read_to_end,
        )
        self._last: asyncio.Task[int] | None = None

    async def start(self, handle: Handler, again: object = None) -> None:
        del again
        await self._table.start(handle)

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        self._last = asyncio.create_task(self._post(entries, self._last))
        return self._last

    async def _post(self, entries: Sequence[Entry], before: "asyncio.Task[int] | None") -> int:
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(0)
        return await self._table.post(entries)


class CommittedMaps(MapsOver):
    """Pages that wait for their transaction."""

    def __init__(self, maps: OffsetMapStore) -> None:
        super().__init__(maps)
        self.entries: list[Entry] = []

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        self.entries += page_entries(pages)


class Worker:
    """One life of a task."""

    def __init__(
        self, world: World, cluster: Cluster, transactions: Transactions | None = None
    ) -> None:
        self.world = world
        self.store = world.store()
        self.pages = CommittedMaps(self.store)
        self.maps = TaskOffsetMaps(
            self.store if transactions is None else self.pages,
            world.identical if transactions is None else Identical.OFF,
            in_transactions=transactions is not None,
        )
        self.acknowledged = -1
        self.moved = asyncio.Event()
        self.failed: list[Exception] = []
        self.sender = Sender(
            cluster,
            ProducerSettings(connection=cluster.settings),
            clock=SYSTEM_CLOCK,
            on_delivered=self._delivered,
            on_failed=self._on_failed,
            on_doubt=lambda _source, first, last, _cause: world.doubts.append((first, last)),
            copied=self.maps,
            transactions=transactions,
        )

    def _delivered(
        self, _source: TopicPartition, _target: TopicPartition, batch: RecordBatch, base: int
    ) -> None:
        for first, count in batch.runs:
            loss = self.maps.of(SOURCE).add(first, count, base)
            assert loss is None
            base += count
            self.acknowledged = first + count - 1
        self.moved.set()

    def _on_failed(
        self, _source: TopicPartition, _target: TopicPartition, error: Exception
    ) -> None:
        self.failed.append(error)
        self.moved.set()

    async def begin(self) -> int:
        """Return where the copy continues."""
        await self.store.start()
        await self.sender.start()
        await self.maps.load([SOURCE])
        tie = self.world.tie
        self.maps.of(SOURCE).identify(tie[0])
        position = self.maps.resume(SOURCE, self.world.position, *tie)
        self.maps.identify(SOURCE, self.world.own_tie[0])
        self.acknowledged = position - 1
        return position

    async def run(self) -> None:
        """Copy until everything is acknowledged and stored, or the partition failed."""
        world, last = self.world, self.world.offsets[-1]
        position = await self.begin()
        for batch in world.batches(max(position, 0)):
            self.sender.enqueue(SOURCE, TARGET, [batch])
            for _ in range(world.chance.randint(0, world.pause)):
                await asyncio.sleep(0)
            if world.chance.random() < 0.2:
                await self.commit()
        while self.acknowledged < last and not self.failed:
            self.moved.clear()
            await self.commit()
            if self.acknowledged < last and not self.failed:
                await self.moved.wait()
        await self.commit()

    async def commit(self) -> None:
        """Store the map, then the position, as the committer does; a worker may end between the two."""
        position = self.acknowledged
        if position < 0:
            return
        self.maps.taken({SOURCE: position}, {SOURCE: self.world.own_tie[1]})
        await self.maps.write()
        await asyncio.sleep(0)
        write = partial(self.world.set_position, position + 1, self.world.own_tie)
        if self.world.is_cut:
            self.world.held[-1].append(write)
            await asyncio.Event().wait()
        write()
        self.maps.stored({SOURCE: position})


class InTransactions(Worker):
    """One life of a task with exactly-once support: map and position are committed with the records."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.transactions = Transactions(
            cluster, NAME, timeout_ms=60_000, clock=SYSTEM_CLOCK, permit=self.permit
        )
        self.writer = RecordWriter(
            cluster,
            ProducerSettings(connection=cluster.settings),
            clock=SYSTEM_CLOCK,
            permit=self.permit,
            transactions=self.transactions,
        )
        super().__init__(world, cluster, self.transactions)

    async def run(self) -> None:
        await self.writer.start()
        await super().run()

    async def commit(self) -> None:
        await self.transactions.settle()
        position = self.acknowledged
        if position >= 0:
            self.maps.taken({SOURCE: position}, {SOURCE: -1}, with_maps=True)
            await self.maps.write()
            entries, self.pages.entries = self.pages.entries, []
            entries.append((POSITION, b"%d" % (position + 1)))
            await self.writer.write(MAPS, [NewRecord(*entry, (), -1) for entry in entries])
        await self.transactions.commit()

    async def close(self) -> None:
        """End it where it is: nothing is aborted."""
        self.permit.abandon()
        await self.writer.close()
        await self.transactions.close()


def records_of(broker: FakeBroker) -> list[int]:
    """Return what a reader of the target's log gets, without what a client wrote."""
    transactions = broker.cluster.transactions
    committed = {it.base_offset for it in transactions.committed if it.partition == TARGET}
    headers = [(HEADER.unpack_from(data), data) for data in broker.log(TARGET)]
    return [
        int(record.value or b"")
        for header, data in headers
        if header[9] not in (-1, CLIENT)
        and (header[0] in committed or not header[5] & TRANSACTIONAL_FLAG)
        for batch in decode_batches(data)
        for record in batch.records
    ]


def write_the_same(world: World, broker: FakeBroker) -> None:
    """Let a client write one of the records that are copied next."""
    next_ = len(records_of(broker))
    value = b"%d" % world.chance.choice(world.offsets[next_ : next_ + 4] or world.offsets)
    data = encode_batch([NewRecord(None, value, (), world.stamp)])
    producer_id = world.chance.choice([-1, CLIENT])
    sequence = sum(HEADER.unpack_from(it)[9] == producer_id for it in broker.log(TARGET))
    sign(data, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    broker.append(TARGET, bytes(data))


@asynccontextmanager
async def worker(
    world: World, broker: FakeBroker, kind: type[Worker] = Worker
) -> AsyncGenerator[Worker]:
    settings = ConnectionSettings(
        bootstrap_servers=(("127.0.0.1", broker.port),),
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=5,
        retry_backoff_ms=1,
        retry_backoff_max_ms=5,
    )
    cluster = Cluster(settings, alias="B")
    await cluster.connect()
    life = kind(world, cluster)
    try:
        yield life
    finally:
        if isinstance(life, InTransactions):
            await life.close()
        await life.sender.close()
        await cluster.close()


async def end_at_any_moment(world: World, broker: FakeBroker, kind: type[Worker] = Worker) -> None:
    """Let a worker live for some turns of the loop; what it sent last may arrive later."""
    late = world.chance.random() < 0.6 and world.has_late
    async with worker(world, broker, kind) as life:
        running = asyncio.create_task(life.run())
        turns = world.chance.randint(0, 250)
        at = world.chance.randint(0, turns)
        # Often while the first page is written: then a successor begins with the same as it did.
        cut = world.chance.randint(0, world.chance.choice([40, 80, 2 * turns]))
        cut = cut if world.has_cuts else turns
        for turn in range(turns):
            if turn == cut:
                world.is_cut = True
                world.held.append(deque())
            if world.held and not world.is_cut and world.chance.random() < 0.02:
                world.arrive()
            if late and turn == at:
                world.late.append(broker.hold(PRODUCE))
            if world.has_client and world.chance.random() < 0.02:
                write_the_same(world, broker)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if kind is Worker and not world.is_cut and world.chance.random() < 0.3:  # it ends in order
            is_flushed = await life.sender.flush(0)
            await life.commit()
            await life.maps.settle([SOURCE] * is_flushed)
        assert all(isinstance(it, TargetMovedError) for it in life.failed)
    world.is_cut = False
    world.held = [it for it in world.held if it]
    if world.late:
        broker.hold(PRODUCE).release()  # those of the successor do not wait


async def run_to_the_end(world: World, broker: FakeBroker, kind: type[Worker] = Worker) -> None:
    """Start workers until one has copied everything; late requests come in between."""
    while True:
        async with worker(world, broker, kind) as life:
            running = asyncio.create_task(life.run())
            for _ in range(world.chance.randint(0, 200)):
                if world.held and world.chance.random() < 0.02:
                    world.arrive()
                await asyncio.sleep(0)
            for hold in world.late:
                hold.release()
            world.late.clear()
            await asyncio.wait_for(running, 90)
            if not life.failed:
                return
            assert all(isinstance(it, TargetMovedError) for it in life.failed)


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_is_lost_or_doubled_whenever_a_worker_ends(number: int, seed: int) -> None:
    await each_is_copied_once(World(seed + number))


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_is_lost_or_doubled_where_a_worker_ends_between_two_pages_of_its_map(
    number: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are alike: the count of those behind the map's end decides."""
    monkeypatch.setattr("mm2py.mirror.offset_map.PAGE_SEGMENTS", 2)
    monkeypatch.setattr("mm2py.storage.offset_map_store.batched", one_by_one)
    world = World(seed + number)
    world.is_slow, world.kinds = True, world.chance.choice([2, world.kinds])
    await each_is_copied_once(world)


def one_by_one(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    return [[it] for it in entries]


def test_a_seed_gives_one_course(seed: int) -> None:
    """Or no failure could be repeated."""

    async def course() -> object:
        world = World(seed)
        return await each_is_copied_once(world), world.doubts

    def run() -> object:
        with asyncio.Runner(loop_factory=CourseLoop) as runner:
            return runner.run(course())

    assert run() == run()


async def each_is_copied_once(world: World) -> object:
    """Let workers live and end, the last one at the end of the source; compare records and map.

    Returns what the brokers were asked, and what was written into the map.
    """
    world.has_cuts = True
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        for _ in range(world.chance.randint(1, 6)):
            await end_at_any_moment(world, broker)
            if world.chance.random() < 0.3:
                while world.late:
                    world.late.pop().release()
                for _ in range(20):
                    await asyncio.sleep(0)
            while world.held and world.chance.random() < 0.4:
                world.arrive()
        await run_to_the_end(world, broker)
        await run_to_the_end(world, broker)  # nothing is left to copy
        while world.held:
            world.arrive()
            if world.chance.random() < 0.3:
                await run_to_the_end(world, broker)
        await run_to_the_end(world, broker)
        await eventually(lambda: broker.connections == 0)
        stored = records_of(broker)
    assert stored == world.values
    course = broker.requests, world.maps.records
    compact(world.maps)
    store = world.store()
    await store.start()
    index = store.index.of(SOURCE)
    assert index is not None
    for target, source in enumerate(world.offsets):
        assert to_target(index, source, world.page) == (Place.COPIED, target)
        assert to_source(index, target, world.page) == (Place.COPIED, source)
    return course


@pytest.mark.parametrize("identical", [Identical.PREFER, Identical.OFF])
@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_is_lost_where_a_client_writes_the_same_records(
    number: int, identical: Identical, seed: int
) -> None:
    world = World(seed + number)
    world.identical, world.has_client = identical, True
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        for _ in range(world.chance.randint(1, 6)):
            await end_at_any_moment(world, broker)
            write_the_same(world, broker)
        await run_to_the_end(world, broker)
        await eventually(lambda: broker.connections == 0)
        assert sorted(set(records_of(broker))) == world.offsets


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_is_lost_or_doubled_where_lives_with_and_without_transactions_alternate(
    number: int, seed: int
) -> None:
    """Clients write the same records: after a life in transactions none of the log's tail is a copy."""
    world = World(seed + number)
    world.has_client = True
    world.identical = world.chance.choice([Identical.PREFER, Identical.OFF])
    # Off: a late request of a life without transactions meets none of a successor like it.
    world.has_late = world.identical is Identical.PREFER
    topics, versions = {TARGET.topic: 1, MAPS.topic: 1}, {PRODUCE: (3, 11)}
    async with FakeBroker(topics=topics, versions=versions) as broker:
        for _ in range(world.chance.randint(2, 6)):
            await end_at_any_moment(world, broker, world.chance.choice(KINDS))
            await world.settle(broker)
            write_the_same(world, broker)
            if world.chance.random() < 0.3:
                while world.late:
                    world.late.pop().release()
                await world.settle(broker)
        await run_to_the_end(world, broker, world.chance.choice(KINDS))
        await world.settle(broker)
        assert records_of(broker) == world.offsets


KINDS: Final = [Worker, InTransactions]


@pytest.mark.parametrize("denied", [True, False])
async def test_what_may_arrive_late_is_named_where_its_producer_may_not_be_fenced(
    denied: bool, seed: int
) -> None:
    world = World(seed)
    topics, versions = {TARGET.topic: 1, MAPS.topic: 1}, {PRODUCE: (3, 11)}
    async with FakeBroker(topics=topics, versions=versions) as broker:
        async with worker(world, broker) as life:
            await life.begin()
            life.sender.enqueue(SOURCE, TARGET, [next(world.batches(0))])
            await eventually(lambda: life.acknowledged >= 0)
        await world.settle(broker)
        copied = len(records_of(broker))
        if denied:
            broker.fail_next(WRITE_MARKERS, CLUSTER_AUTHORIZATION_FAILED, times=RECORDS)
        await run_to_the_end(world, broker, InTransactions)
        await world.settle(broker)
        assert records_of(broker) == world.offsets
        assert [first for first, _ in world.doubts] == [world.offsets[copied]] * denied


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_a_killed_task_with_its_own_producer_id_sent_last_is_named(
    in_order: bool, seed: int
) -> None:
    world = World(seed)
    world.identical, batches = Identical.OFF, world.batches(0)
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        async with worker(world, broker) as life:
            await life.begin()
            life.sender.enqueue(SOURCE, TARGET, [next(batches)])
            await eventually(lambda: life.acknowledged >= 0)
            await life.commit()
            late = broker.hold(PRODUCE)
            if in_order:
                late.release()
                await life.maps.settle([SOURCE])
            else:
                life.sender.enqueue(SOURCE, TARGET, [next(batches)])
                await late.arrived.wait()
        broker.hold(PRODUCE).release()
        await run_to_the_end(world, broker)
        late.release()
        await eventually(lambda: broker.connections == 0)
        stored = records_of(broker)
    doubled = {it for it in stored if stored.count(it) > 1}
    assert set(stored) == set(world.offsets)
    assert bool(doubled) == bool(world.doubts) == (not in_order)
    assert all(any(first <= it <= last for first, last in world.doubts) for it in doubled)


async def test_what_a_killed_task_sent_first_is_not_doubled_after_one_with_transactions(
    seed: int,
) -> None:
    """The log goes on behind the known copies, with records of others, where its producer id began."""
    world = World(seed)
    batches = world.batches(0)
    topics, versions = {TARGET.topic: 1, MAPS.topic: 1}, {PRODUCE: (3, 11)}
    async with FakeBroker(topics=topics, versions=versions) as broker:
        async with worker(world, broker, InTransactions) as before:
            assert isinstance(before, InTransactions)
            await before.writer.start()
            await before.begin()
            before.sender.enqueue(SOURCE, TARGET, [next(batches)])
            await eventually(lambda: before.acknowledged >= 0)
            await before.commit()
        await world.settle(broker)
        write_the_same(world, broker)
        async with worker(world, broker) as life:
            late = broker.hold(PRODUCE)
            await life.begin()
            life.sender.enqueue(SOURCE, TARGET, [next(batches)])
            await late.arrived.wait()
        broker.hold(PRODUCE).release()
        await run_to_the_end(world, broker)
        late.release()
        await world.settle(broker)
        assert records_of(broker) == world.offsets
        assert not world.doubts


async def test_what_a_life_with_a_router_has_passed_is_not_looked_for_in_the_log(seed: int) -> None:
    """Records are alike: those of a life before it, which the map does not have, stand for no later one."""
    world = World(seed)
    world.kinds, batches = 1, world.batches(0)
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        async with worker(world, broker) as life:
            await life.begin()
            life.sender.enqueue(SOURCE, TARGET, [next(batches)])
            await eventually(lambda: life.acknowledged >= 0)
            await life.commit()
            life.sender.enqueue(SOURCE, TARGET, [next(batches)])
            await eventually(lambda: life.acknowledged >= world.position)
        written = len(records_of(broker))
        world.position = passed = next(batches).last_offset + 1
        store = world.store()
        await store.start()
        maps = TaskOffsetMaps(store, world.identical, shares_targets=True)
        await maps.load([SOURCE])
        maps.resume(SOURCE, life.maps.of(SOURCE).position)
        maps.of(SOURCE).passed(1, passed)
        maps.taken({SOURCE: passed - 1}, {SOURCE: -1})
        await maps.write()
        maps.stored({SOURCE: passed - 1})
        await run_to_the_end(world, broker)
        left = [it for it in world.offsets if it >= passed]
        assert len(records_of(broker)) == written + len(left)


@pytest.mark.parametrize("number", range(SEEDS))
async def test_what_is_copied_again_is_whole_whenever_a_worker_ends(number: int, seed: int) -> None:
    world = World(seed + number)
    async with FakeBroker(topics={TARGET.topic: 1}) as broker:
        for _ in range(world.chance.randint(2, 8)):
            await end_at_any_moment(world, broker)
            if world.chance.random() < 0.5:
                while world.late:
                    world.late.pop().release()
                await eventually(lambda: broker.connections == 0)
                await world.set_back(len(records_of(broker)))
        await run_to_the_end(world, broker)
        await eventually(lambda: broker.connections == 0)
        stored = records_of(broker)
    ends = [*(end for end, _ in world.begun[1:]), len(stored)]
    newest: dict[int, int] = {}
    for (first, position), end in zip(world.begun, ends, strict=True):
        part, whole = stored[first:end], [it for it in world.offsets if it >= position]
        assert part == (whole if end == len(stored) else whole[: len(part)])
        newest |= {source: first + at for at, source in enumerate(part)}
    store = world.store()
    await store.start()
    index = store.index.of(SOURCE)
    assert index is not None
    for source in world.offsets:
        place, target = to_target(index, source, world.page)
        assert (place, target) == (Place.COPIED, newest[source])
    for target, source in enumerate(stored):
        found = to_source(index, target, world.page)
        # What was written behind the map when the position was set back is in no map.
        assert found == (Place.COPIED, source) or found.place is Place.NEVER_EXISTED


# ---- positions and maps of a topic that is deleted and created again, under kills


IDS: Final = [bytes([number]) * 16 for number in range(1, 9)]


class Play:
    """One partition: a reader that is told of recreations, a target that takes all, a task that is killed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.topic, self.store = MemoryTopic("map"), FakeStore()
        self.copied = dict.fromkeys(IDS, 0)
        """Of each incarnation, below which offset everything was copied or left out."""
        self.now = self.read_to = self.target = 0
        self.landed: dict[bytes, int] = {}
        """Of each incarnation, where its first record is on the target."""
        self.has_copied = self.mapped = False
        """Whether this task has copied anything, and whether a task that had has written its map."""
        self.under_way: deque[tuple[bytes, int, int]] = deque()
        self.maps: TaskOffsetMaps
        self.context: WorkerTaskContext
        self.committer: OffsetCommitter

    async def start(self) -> None:
        """Begin as a task does, where the one before it was killed; check what it finds."""
        self.under_way.clear()
        self.has_copied = False
        self.store.errors = []
        self.maps = await restored(self.topic)
        self.context = WorkerTaskContext(
            "MirrorSourceConnector",
            "MirrorSourceConnector-0",
            store=self.store,
            meter=Metrics(EagerClock()).flow(FLOW),
            clock=EagerClock(),
            maps=self.maps,
        )
        self.committer = a_committer(self.store, self.maps)
        (stored,) = await self.context.committed_offsets([mirror_source_partition("A", ORDERS)])
        position, topic_id = max(0, next_offset(stored)), committed_topic_id(stored)
        self.read_to = position
        if topic_id == NO_TOPIC_ID:
            assert position == 0, "no position is stored without its topic"
            self.maps.identify(ORDERS, IDS[self.now])
            return
        assert position <= self.copied[topic_id]
        if topic_id != IDS[self.now]:
            self._tell_recreation()
        self._check_tail()

    def _check_tail(self) -> None:
        """What was copied of this incarnation, and will be read again, is looked for in the target's log."""
        first = self.landed.get(IDS[self.now])
        if first is None or self.maps.of(ORDERS).covered:
            return
        begin = self.maps.target_end(ORDERS, NO_TOPIC_ID)
        former = [it for topic_id, it in self.landed.items() if topic_id != IDS[self.now]]
        assert begin <= first, f"from {begin} on, they are at {first}"
        assert begin >= 0 or not self.mapped or not former, "it is not looked for"

    def recreate(self) -> None:
        """The reader finds out while records are under way."""
        if self.now + 1 < len(IDS):
            self.now += 1
            self._tell_recreation()

    def _tell_recreation(self) -> None:
        kind = EventKind.RECREATED.value
        gap = SourceGap(ORDERS, self.read_to, self.read_to - 1, kind, "", IDS[self.now])
        gap.under_way = sum(records for _, _, records in self.under_way)
        self.context.report_gap(gap)
        self.read_to = 0

    def read(self) -> None:
        """Hand records out."""
        records = self.chance.randrange(1, 5)
        self.under_way.append((IDS[self.now], self.read_to, records))
        self.read_to += records

    def deliver(self) -> None:
        """Some of the oldest arrive, or transforms have left them out."""
        if not self.under_way:
            return
        topic_id, first, records = self.under_way.popleft()
        some = self.chance.randint(1, records)
        end = first + some
        if some < records:
            self.under_way.appendleft((topic_id, end, records - some))
        if self.chance.random() < 0.25:
            self.maps.of(ORDERS).passed(some, end)
        else:
            self.maps.of(ORDERS).add(first, some, self.target)
            self.landed.setdefault(topic_id, self.target)
            self.has_copied = True
            self.target += some
        self.copied[topic_id] = max(self.copied[topic_id], end)
        self.committer.acknowledged(ORDERS, end - 1)

    async def commit(self) -> None:
        """Write maps and positions; the second write may fail."""
        if self.chance.random() < 0.3:
            self.store.errors = [ConnectionFailedError("away")]
        await self.committer.commit()
        self.mapped = self.mapped or self.has_copied


@pytest.mark.fuzz
@pytest.mark.parametrize("twenty", range(10))
async def test_a_start_never_leaves_out_what_was_not_copied_of_any_incarnation(
    twenty: int, seed: int
) -> None:
    for round_ in range(20 * twenty, 20 * twenty + 20):
        await play_once(random.Random(seed * 1000 + round_))


async def play_once(chance: random.Random) -> None:
    play = Play(chance)
    await play.start()
    for _ in range(chance.randrange(5, 40)):
        match chance.choice("rrdddccgk"):
            case "r":
                play.read()
            case "d":
                play.deliver()
            case "c":
                await play.commit()
            case "g":
                play.recreate()
            case _:
                await play.start()
    await play.start()


async def test_a_map_is_followed_until_a_position_of_its_incarnation_is_stored() -> None:
    """However often a task is killed between the two writes of a commit."""
    play = Play(random.Random(0))
    await play.start()

    async def copied(first: int, records: int, *, stores: bool) -> None:
        play.maps.of(ORDERS).add(first, records, play.target)
        play.target += records
        play.copied[IDS[play.now]] = first + records
        play.committer.acknowledged(ORDERS, first + records - 1)
        play.store.errors = [] if stores else [ConnectionFailedError("away")]
        await play.committer.commit()

    await copied(0, 3, stores=True)
    play.recreate()
    await copied(0, 2, stores=False)
    for first in 2, 3:
        await play.start()
        assert play.read_to == first
        await copied(first, 1, stores=False)
    await play.start()
    assert play.read_to == 4
