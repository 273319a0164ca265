"""Loop suppression against a model: mirrors and applications write, publish and die between any two steps.

One cluster's log and its topic of producer ids; a flow reads both. The invariants are those of
``mm2py.mirror.producer_ids``.
"""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from mm2py.client.fetch.log_reader import RecordHandler
from mm2py.errors import ProtocolError, RetriableError
from mm2py.mirror.producer_ids import ProducerOrigins, encode_producer
from mm2py.protocol.batch_stage import DropReason, classify
from mm2py.protocol.record_batch import HEADER
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from mm2py_connectors.conflicts import ConflictWatch
from mm2py_connectors.loop_suppression import LoopFilter
from tests.kit.fakes.batches import sealed
from tests.kit.fakes.stores import a_producer

pytestmark = pytest.mark.fuzz

PARTITIONS = 3
STEPS = 120


@dataclass
class World:
    """The cluster: its data, its topic of ids, and the truth."""

    chance: random.Random
    logs: list[bytearray] = field(default_factory=lambda: [bytearray() for _ in range(PARTITIONS)])
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    ids: list[Record] = field(default_factory=list[Record])
    mirrors: set[int] = field(default_factory=set[int])
    writers: list[int] = field(default_factory=list[int])
    next_id: int = 100
    cluster_id: str = "id-of-b"

    async def connect(self) -> None:
        """A session that is always there."""

    async def close(self) -> None:
        """A session that is always there."""

    async def pause(self) -> None:
        """Let the others take any number of steps."""
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    def write(self, producer: int) -> None:
        """Append one batch of a writer."""
        number = self.chance.randrange(PARTITIONS)
        data = encode_batch([NewRecord(b"k", b"%d" % producer, timestamp=1)])
        struct.pack_into(">q", data, 0, self.ends[number])
        struct.pack_into(">q", data, 43, producer)
        self.logs[number] += sealed(data)
        self.ends[number] += 1

    def publish(self, producer: int, source: str) -> None:
        """Append an id to the topic."""
        key, value = encode_producer(a_producer(producer, source, ""))
        self.ids.append(Record(len(self.ids), 0, key, value))

    async def begin_writer(self) -> None:
        """A new application, mirror of the target, or mirror of a third cluster; it may die at any step."""
        kind = self.chance.choice(["application", "A", "C"])
        producer, self.next_id = self.next_id, self.next_id + 1
        await self.pause()
        if kind == "A":
            self.mirrors.add(producer)
        if kind != "application":
            self.publish(producer, kind)
            await self.pause()  # the answer is on its way
            if self.chance.random() < 0.2:
                return  # died before its first batch
        self.writers.append(producer)

    async def live(self) -> None:
        """Write for a while; writers come and go."""
        for _ in range(STEPS):
            if not self.writers or self.chance.random() < 0.2:
                await self.begin_writer()
            if self.writers:
                self.write(self.chance.choice(self.writers))
            if len(self.writers) > 3:
                self.writers.remove(self.chance.choice(self.writers))
            await self.pause()


class IdLog:
    """The topic as ``LogReader`` reads it: to the end of the moment when it is asked, with faults."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._position = 0

    async def read_to_end(self, handle: RecordHandler) -> None:
        await self._world.pause()
        end = len(self._world.ids)
        while self._position < end:
            await self._world.pause()
            if self._world.chance.random() < 0.1:
                raise RetriableError("a broker is away")
            record = self._world.ids[self._position]
            self._position += 1
            handle(0, record)


@dataclass
class Flow:
    """Reads one partition; after a death another task reads on from what was committed."""

    world: World
    number: int
    position: int = 0
    copied: list[int] = field(default_factory=list[int])
    dropped: list[int] = field(default_factory=list[int])

    async def poll(self, loops: LoopFilter) -> None:
        """One Fetch: the answer is older than what is learned for it."""
        raw = memoryview(bytearray(self.world.logs[self.number]))
        await self.world.pause()
        result = classify(raw, self.position, None, origins=loops.known)
        assert result.problem is None
        for one in result.batches:
            for source, count in one.runs:
                self.copied += [_producer(raw, source + n) for n in range(count)]
        self.dropped += [HEADER.unpack_from(it)[9] for it in result.looped]
        assert {it.reason for it in result.dropped} <= {DropReason.LOOP}
        self.position = result.next_offset
        if result.unknown:
            try:
                await loops.find(result.unknown)
            except RetriableError:
                return


def _producer(raw: memoryview, offset: int) -> int:
    at = 0
    for _ in range(offset):
        at += 12 + HEADER.unpack_from(raw, at)[1]
    producer: int = HEADER.unpack_from(raw, at)[9]
    return producer


def new_filter(world: World) -> LoopFilter:
    origins = ProducerOrigins(everything=False, target="A", target_cluster="id-of-a")
    return a_filter(world, IdLog(world).read_to_end, origins, FakeTaskContext())


def a_filter(
    world: World,
    read: Callable[[RecordHandler], Awaitable[None]],
    origins: ProducerOrigins,
    context: FakeTaskContext,
) -> LoopFilter:
    return LoopFilter(world, read, origins, context, ConflictWatch((), context.clock))


async def read_all(world: World, flows: list[Flow], writing: "asyncio.Task[None]") -> None:
    loops = new_filter(world)
    while True:
        last = writing.done()
        await asyncio.gather(*(flow.poll(loops) for flow in flows))
        if world.chance.random() < 0.1:
            loops = new_filter(world)  # a takeover: it knows nothing
        if last and all(flow.position == world.ends[flow.number] for flow in flows):
            return


async def test_no_batch_of_a_mirror_is_copied_back_and_no_other_is_dropped(seed: int) -> None:
    for course in range(20):
        world = World(random.Random(seed * 1000 + course))
        flows = [Flow(world, number) for number in range(PARTITIONS)]
        writing = asyncio.create_task(world.live())
        async with asyncio.timeout(90):
            await read_all(world, flows, writing)
        for flow in flows:
            assert not world.mirrors.intersection(flow.copied)
            assert world.mirrors.issuperset(flow.dropped)
            assert len(flow.copied) + len(flow.dropped) == world.ends[flow.number]


async def test_2_calls_during_a_read_share_the_next_one_and_never_that_one() -> None:
    reads: list[asyncio.Event] = []

    class SlowLog:
        async def read_to_end(self, handle: RecordHandler) -> None:
            del handle
            reads.append(asyncio.Event())
            await reads[-1].wait()

    world = World(random.Random(1))
    origins = ProducerOrigins(everything=False, target="A", target_cluster="")
    loops = a_filter(world, SlowLog().read_to_end, origins, FakeTaskContext())
    finds = [asyncio.create_task(loops.find([number])) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    assert len(reads) == 1
    reads[0].set()
    await finds[0]
    assert loops.known.passing == {1}
    await eventually(lambda: len(reads) == 2)
    reads[1].set()
    await asyncio.gather(*finds)
    assert (loops.known.passing, len(reads)) == ({1, 2, 3}, 2)


async def test_dropped_records_are_counted_by_their_headers() -> None:
    context = FakeTaskContext()
    world = World(random.Random(1))
    origins = ProducerOrigins(everything=False, target="A", target_cluster="")
    loops = a_filter(world, IdLog(world).read_to_end, origins, context)
    rows = [NewRecord(None, b"v", timestamp=1) for _ in range(5)]
    loops.classified(TopicPartition("t", 0), (), [memoryview(encode_batch(rows))] * 2)
    assert context.looped == {TopicPartition("t", 0): 10}


@pytest.mark.parametrize("value", [b"\x01{", b"\x02{}", b"text", b"", b'\x01{"flow":1}'])
async def test_an_unreadable_record_holds_back_the_batches_under_its_id_alone(value: bytes) -> None:
    world = World(random.Random(1))
    loops = new_filter(world)
    for key in (None, b"", b"\xff", b"text", b"-7", b"7"):
        world.ids.append(Record(len(world.ids), 0, key, value))
    world.publish(8, "A")
    await eventually_found(loops, 8, 9, -1)
    assert (loops.known.looping, loops.known.passing) == ({8}, {9, -1})
    with pytest.raises(ProtocolError, match="producer id 7"):
        await eventually_found(loops, 7, 10)
    assert loops.known.passing == {9, 10, -1}
    world.publish(7, "A")
    await eventually_found(loops, 7)
    assert loops.known.looping == {7, 8}


async def eventually_found(loops: LoopFilter, *producers: int) -> None:
    """Ask until the topic could be read."""
    while True:
        try:
            return await loops.find(producers)
        except RetriableError:
            continue
