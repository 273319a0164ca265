"""Pages of the offset map that nothing can ask for are removed, and nothing else, whenever a worker ends."""

import asyncio
import random
from collections.abc import Collection, Mapping
from math import inf

import pytest

from mm2py.client.connect.admin import NO_LOG
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConnectionFailedError
from mm2py.mirror.offset_lookup import Place, to_source, to_target
from mm2py.mirror.offset_map import PAGE_SEGMENTS, Page, PageRef, decode_page, decode_page_key
from mm2py.runtime.tasks import offset_maps
from mm2py.runtime.tasks.offset_maps import MapPruning, TaskOffsetMaps
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.offset_map_store import OffsetMapStore
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import FakeSender

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 7)


def copy_of(partition: TopicPartition) -> TopicPartition:
    return TopicPartition(f"A.{partition.topic}", partition.partition)


class Source:
    """Where source logs begin."""

    def __init__(self, starts: dict[TopicPartition, int]) -> None:
        self.starts = starts
        self.error: Exception | None = None

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        if self.error is not None:
            raise self.error
        return {it: self.starts[it] for it in partitions if it in self.starts}

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        return copy_of(partition)


class Rig:
    """A map topic in memory, and where both logs of its partitions begin."""

    def __init__(self) -> None:
        self.topic = MemoryTopic("map")
        self.source, self.sender = Source({}), FakeSender()
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.maps = TaskOffsetMaps(self.store())

    def store(self) -> OffsetMapStore:
        async def read(_partition: TopicPartition, ref: PageRef) -> Page | None:
            return self.page(ref)

        return OffsetMapStore(MemoryTable(self.topic), read)

    def page(self, ref: PageRef) -> Page:
        record = self.topic.records[ref.position]
        assert record.offset == ref.position
        assert record.value is not None
        return decode_page(ref.number, record.value)

    async def started(self, *partitions: TopicPartition, sweeps: bool = False) -> MapPruning:
        """Start a task on partitions."""
        store = self.store()
        await store.start()
        self.maps = TaskOffsetMaps(store, sweeps=sweeps)
        await self.maps.load(partitions)
        return MapPruning(
            self.maps, self.source, self.sender, permit=self.permit, clock=SYSTEM_CLOCK
        )

    def begin_at(self, partition: TopicPartition, source: int, target: int) -> None:
        """Let both logs of a partition begin there."""
        self.source.starts[partition] = source
        self.sender.starts[copy_of(partition)] = target

    async def copy(self, partition: TopicPartition, pages: int) -> None:
        """Copy records with a hole behind each."""
        first = max(self.maps.of(partition).target_end, 0)
        for at in range(first, first + pages * PAGE_SEGMENTS):
            self.maps.of(partition).add(2 * at, 1, at)
        await self.maps.write()

    @property
    def pages(self) -> dict[TopicPartition, list[int]]:
        """Numbers of the pages that compaction would leave."""
        newest = {record.key: record for record in self.topic.records}
        found: dict[TopicPartition, list[int]] = {}
        for key, record in newest.items():
            partition, number = decode_page_key(key)
            if record.value is not None:
                found.setdefault(partition, []).append(number)
        return {partition: sorted(numbers) for partition, numbers in found.items()}


async def test_invariant_1_only_what_lies_below_both_logs_is_removed_and_the_newest_page_stays() -> (
    None
):
    rig = Rig()
    pruning = await rig.started(ORDERS, BILLS)
    await rig.copy(ORDERS, 4)
    await rig.copy(BILLS, 4)
    rig.begin_at(ORDERS, 4 * PAGE_SEGMENTS, 10_000)
    rig.begin_at(BILLS, 10_000, 10_000)
    assert await pruning.look() == 5
    assert rig.pages == {ORDERS: [2, 3], BILLS: [3]}
    assert await pruning.look() == 0
    again = await rig.started(ORDERS)
    rig.begin_at(ORDERS, 10_000, 3 * PAGE_SEGMENTS)
    rig.begin_at(BILLS, 10_000, 10_000)
    assert await again.look() == 1
    assert rig.pages == {ORDERS: [3], BILLS: [3]}


async def test_invariant_1_a_log_whose_start_is_not_known_keeps_its_pages() -> None:
    rig = Rig()
    pruning = await rig.started(ORDERS)
    await rig.copy(ORDERS, 3)
    rig.source.starts[ORDERS] = 10_000
    assert await pruning.look() == 0
    rig.sender.starts[copy_of(ORDERS)] = NO_LOG
    assert await pruning.look() == 0
    rig.source.error = ConnectionFailedError("away")
    with pytest.raises(ConnectionFailedError):
        await pruning.look()
    assert rig.pages == {ORDERS: [0, 1, 2]}


async def test_invariant_3_a_map_leaves_as_a_whole_when_both_topics_were_gone_at_two_looks() -> (
    None
):
    rig = Rig()
    await rig.started(ORDERS, BILLS)
    await rig.copy(ORDERS, 3)
    await rig.copy(BILLS, 2)
    rig.begin_at(ORDERS, NO_LOG, NO_LOG)
    other = await rig.started(BILLS)
    assert await other.look() == 0
    assert await other.look() == 0  # it is not task 0
    pruning = await rig.started(BILLS, sweeps=True)
    assert await pruning.look() == 0
    rig.begin_at(ORDERS, 0, NO_LOG)
    assert await pruning.look() == 0
    rig.begin_at(ORDERS, NO_LOG, NO_LOG)
    assert await pruning.look() == 0
    assert await pruning.look() == 3
    assert rig.pages == {BILLS: [0, 1]}
    last = await rig.started(ORDERS)
    assert rig.maps.of(ORDERS).is_empty
    assert await last.look() == 0


async def test_invariant_4_nothing_is_removed_without_the_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    pruning = await rig.started(ORDERS)
    await rig.copy(ORDERS, 6)
    rig.begin_at(ORDERS, 10_000, 10_000)
    rig.permit.revoke()
    assert await pruning.look() == 0
    rig.permit = Permit(SYSTEM_CLOCK, until_s=inf)
    monkeypatch.setattr(offset_maps, "MOST_PAGES", 2)
    pruning = await rig.started(ORDERS)
    assert [await pruning.look() for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("number", range(40))
async def test_invariant_2_whenever_a_worker_ends_what_is_left_is_a_whole_map(
    number: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed + number)
    monkeypatch.setattr(offset_maps, "MOST_PAGES", chance.choice([1, 3, 1_000]))
    rig = Rig()
    start = end = 0
    for _ in range(chance.randint(2, 8)):
        pruning = await rig.started(ORDERS, sweeps=True)
        end = max(rig.maps.of(ORDERS).target_end, 0)
        start = chance.randint(start, end)
        rig.begin_at(ORDERS, 2 * start + chance.choice([-1, 0]), start)
        work = asyncio.create_task(live(rig, pruning, chance))
        for _ in range(chance.randint(0, 25)):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    store = rig.store()
    await store.start()
    if rig.topic.records:
        index = store.index.of(ORDERS)
        assert index is not None
        newest = index.pages[-1].target_end
        for target in (
            {start, *chance.choices(range(start, newest), k=20)} if start < newest else ()
        ):
            assert to_target(index, 2 * target, rig.page) == (Place.COPIED, target)
            assert to_source(index, target, rig.page) == (Place.COPIED, 2 * target)
        if start and index.pages[0].number:
            lowest = index.pages[0].target_first
            assert to_target(index, 0, rig.page) == (Place.EXPIRED, lowest)


async def live(rig: Rig, pruning: MapPruning, chance: random.Random) -> None:
    """Copy and prune at once."""

    async def copying() -> None:
        while True:
            await rig.copy(ORDERS, chance.randint(1, 2))
            await asyncio.sleep(0)

    async def looking() -> None:
        while True:
            await pruning.look()
            await asyncio.sleep(0)

    await asyncio.gather(copying(), looking())
