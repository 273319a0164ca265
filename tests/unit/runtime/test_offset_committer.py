"""Invariants 1-4, 7 and 8 of the committer, and the bytes it writes."""

import asyncio
import random
from functools import partial
from math import inf

import pytest

from mm2py.api.context import SourceGap
from mm2py.client.connect.admin import NO_LOG
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConnectionFailedError
from mm2py.mirror.offset_lookup import Place, to_source, to_target
from mm2py.mirror.offset_map_pages import PAGE_SEGMENTS, decode_page_key
from mm2py.mirror.source_offsets import (
    mirror_source_partition,
    next_offset,
    source_offset,
)
from mm2py.observability.metrics import FlowMeter
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks import offset_maps
from mm2py.runtime.tasks.offset_committer import (
    LATE_S,
    LostPositions,
    OffsetCommitter,
    overwrite_late,
)
from mm2py.runtime.tasks.offset_maps import MapPruning, TaskOffsetMaps
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.storage.memory import MemoryTopic
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import TopicPartition
from tests.property.effort import examples
from tests.unit.runtime.runtime_fakes import (
    FLOW,
    EagerClock,
    Events,
    FakeSender,
    FakeStore,
    a_committer,
    a_context,
    turns,
)
from tests.unit.runtime.test_offset_maps import Copies, page_of, restored, stored_maps

ORDERS = TopicPartition("orders", 3)
LEFT_OUT = TopicPartition("bills", 0)
OLD, NEW = b"o" * 16, b"n" * 16
KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'


async def test_invariant_2_a_position_never_passes_a_failure() -> None:
    store = FakeStore()
    committer = a_committer(store)
    committer.acknowledged(ORDERS, 1)
    committer.failed(ORDERS)
    committer.acknowledged(ORDERS, 9)
    await committer.commit()
    assert store.written() == {KEY: b'{"offset":1}'}


async def test_invariant_3_a_failed_commit_keeps_its_positions_and_newer_ones_win() -> None:
    store = FakeStore()
    store.errors = [ConnectionFailedError("away")] * 2
    reports: list[str] = []
    committer = a_committer(store, on_failure=reports.append)
    other = TopicPartition("bills", 0)
    committer.acknowledged(ORDERS, 1)
    committer.acknowledged(other, 5)
    assert not await committer.commit()
    committer.acknowledged(ORDERS, 2)
    assert not await committer.commit()
    assert await committer.commit()
    assert store.written()[KEY] == b'{"offset":2}'
    assert len(store.written()) == 2
    assert len(reports) == 2, "once down, once up"
    assert reports[0] == "away: positions are stored later"
    assert "away" in reports[0]
    assert not reports[1]


async def test_invariant_4_a_value_that_is_stored_is_not_written_again() -> None:
    store = FakeStore()
    committer = OffsetCommitter(
        store,
        "MirrorHeartbeatConnector",
        source_partition=partial(mirror_source_partition, "A"),
        source_offset=lambda _partition, _position: source_offset(0),
        timeout_ms=5_000,
    )
    for position in (1, 2, 3):
        committer.acknowledged(ORDERS, position)
        assert await committer.commit()
    assert await committer.commit(), "nothing was acknowledged since"
    assert (len(store.writes), committer.pending) == (1, {})


async def test_invariant_8_positions_outlive_their_topic() -> None:
    """Of a partition without a new record too, and of one that a Spark lane copies they are not ours."""
    store, sender, topic = FakeStore(), FakeSender(), "mm2-offsets.A.internal"
    idle, lane = (ORDERS._replace(partition=it) for it in (4, 5))
    keys = {it: KEY.replace(b"3", b"%d" % it.partition) for it in (idle, lane)}
    await store.inner.set({key: b'{"offset":%d}' % it.partition for it, key in keys.items()})
    clock = EagerClock()
    context = WorkerTaskContext(
        "MirrorSourceConnector", "0", store=store, meter=FlowMeter(FLOW, clock), clock=clock
    )
    asked = [mirror_source_partition("A", it) for it in (ORDERS, idle, lane)]
    await context.committed_offsets(asked)
    context.leave_out([lane])
    committer = a_committer(store)
    committer.acknowledged(ORDERS, 9)
    watch = LostPositions(topic, sender, context.stored, committer, clock=clock)
    for topic_id in (OLD, OLD):
        sender.ids = {topic: topic_id}
        await watch.look()
        await committer.commit()
    assert store.written() == {KEY: b'{"offset":9}'}
    for ids in ({}, {topic: NEW}):
        sender.ids, store.writes = ids, []
        await watch.look()
        assert committer.waits
        store.errors = [ConnectionFailedError("away")]
        assert [await committer.commit(), await committer.commit()] == [False, True]
        assert store.written() == {KEY: b'{"offset":9}', keys[idle]: b'{"offset":4}'}
    await watch.look()
    assert not committer.waits


async def test_invariant_9_positions_and_maps_that_do_not_change_are_written_over_late_ones() -> (
    None
):
    store, maps, clock = FakeStore(), TaskOffsetMaps(NoMapStore()), EagerClock()
    committer = a_committer(store, maps)
    await maps.load([ORDERS, LEFT_OUT])
    for partition in ORDERS, LEFT_OUT:
        maps.of(partition).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    await committer.commit()
    (stored,) = store.writes
    # One is under way while the first pause ends: the newer position must not be followed by the
    # one before it.
    committer.acknowledged(ORDERS, 10)
    store.hangs = True
    committing = asyncio.create_task(committer.commit())
    await turns(3)
    overwriting = overwrite_late(
        committer, maps, lambda: {b"idle": b"position"}, lambda: {LEFT_OUT}, clock=clock
    )
    await overwriting
    assert clock.sleeps == list(LATE_S)
    committing.cancel()
    await asyncio.wait({committing})
    store.hangs = False
    await committer.commit()
    assert store.writes[1:] == [{b"idle": b"position", KEY: b'{"offset":10}'}]
    assert stored.keys() == {KEY}
    await maps.again(lambda: {LEFT_OUT})
    assert [maps.of(it).changed for it in (ORDERS, LEFT_OUT)] == [True, False]


async def test_few_records_are_counted_from_what_is_written() -> None:
    store = FakeStore()
    committer = a_committer(store)
    assert committer.has_few(100)
    committer.acknowledged(ORDERS, 5)
    assert not committer.has_few(100), "a first position is written at once"
    await committer.commit()
    committer.acknowledged(ORDERS, 104)
    assert committer.has_few(100)
    committer.acknowledged(ORDERS, 105)
    assert not committer.has_few(100)
    committer.acknowledged(ORDERS, 4)
    assert not committer.has_few(100), "a position that goes back is written at once"


async def test_a_commit_that_hangs_is_bounded_and_stays_pending_also_when_it_is_cancelled() -> None:
    store = FakeStore()
    store.hangs = True
    committer = a_committer(store, timeout_ms=10)
    committer.acknowledged(ORDERS, 1)
    assert not await committer.commit()
    assert committer.pending == {ORDERS: 1}
    commit = asyncio.create_task(committer.commit())
    await turns(2)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert committer.pending == {ORDERS: 1}


async def test_invariant_5_a_position_waits_for_the_ledger_record_before_it() -> None:
    store = FakeStore()
    unwritten = {ORDERS}
    committer = a_committer(store, withheld=lambda: unwritten)
    bills = TopicPartition("bills", 0)
    committer.acknowledged(ORDERS, 41)
    committer.acknowledged(bills, 7)
    assert await committer.commit()
    assert KEY not in store.written()
    assert len(store.written()) == 1
    committer.acknowledged(ORDERS, 42)
    unwritten.clear()
    assert await committer.commit()
    assert store.written()[KEY] == b'{"offset":42}'


async def test_invariant_7_a_position_is_stored_with_the_id_of_the_topic_it_is_in() -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    unwritten = {ORDERS}
    noted: list[bytes] = []
    committer = a_committer(store, maps, withheld=lambda: unwritten)
    committer.on_topic_id = lambda _partition, topic_id: noted.append(topic_id)
    maps.identify(ORDERS, OLD)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    # The topic is created again, with nothing of it acknowledged yet: what is pending is the old one's.
    maps.note_gap(SourceGap(ORDERS, 10, 9, "recreated", "", NEW))
    await committer.commit()
    assert noted == [], "its position is withheld"
    unwritten.clear()
    store.errors = [ConnectionFailedError("away")]
    assert not await committer.commit()
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}
    maps.of(ORDERS).add(0, 3, 10)
    committer.acknowledged(ORDERS, 2)
    assert not committer.has_few(100), "the first one of a topic is written at once"
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":2,"topic_id":"%s@2"}' % NEW.hex().encode()}
    assert noted == [OLD, NEW]


async def test_invariant_7_a_topic_that_begins_anew_while_maps_are_written_is_not_of_the_position() -> (
    None
):
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    committer = a_committer(store, maps)
    maps.identify(ORDERS, OLD)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)

    def begin_anew(_: str) -> None:
        maps.note_gap(SourceGap(ORDERS, 10, 9, "recreated", "", NEW))
        maps.of(ORDERS).add(0, 3, 10)
        committer.acknowledged(ORDERS, 2)

    maps.on_refusal = begin_anew  # called with an empty text when they were written
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}


@pytest.mark.parametrize("passed", [0, 3])
async def test_invariant_7_the_last_record_of_a_topic_is_not_a_position_in_the_next_one(
    passed: int,
) -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    committer = a_committer(store, maps)
    maps.identify(ORDERS, OLD)
    gap = SourceGap(ORDERS, 10, 9, "recreated", "", NEW)
    gap.under_way = 10
    maps.note_gap(gap)
    # All that was under way arrives, and nothing of the new topic: a start from here must not leave out its first records.
    maps.of(ORDERS).add(0, 10 - passed, 0)
    if passed:
        maps.of(ORDERS).passed(passed, 10)
    committer.acknowledged(ORDERS, 9)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}
    found = maps.of(ORDERS)
    assert (found.source_id, found.covered) == (NEW, 0)
    maps.cover(ORDERS, 1)
    committer.acknowledged(ORDERS, 1)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":1,"topic_id":"%s@1"}' % NEW.hex().encode()}


async def test_a_partition_that_failed_keeps_the_topic_of_its_last_position() -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    committer = a_committer(store, maps)
    maps.identify(ORDERS, OLD)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    committer.failed(ORDERS)
    maps.note_gap(SourceGap(ORDERS, 10, 9, "recreated", "", NEW))
    maps.of(ORDERS).add(0, 3, 10)
    committer.acknowledged(ORDERS, 2)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}


@pytest.mark.parametrize("topic_id", [OLD, NO_TOPIC_ID])
async def test_what_a_position_without_an_answer_has_behind_it_is_not_copied_again(
    topic_id: bytes,
) -> None:
    """Brokers before 2.8 give no ids: the epoch that is stored with it shows that a task wrote it."""
    topic, store = MemoryTopic("map"), FakeStore()
    maps = await restored(topic, FIRST_ORDERS)
    maps.identify(FIRST_ORDERS, topic_id)
    committer = a_committer(store, maps, epoch=5)
    for last in 9, 19, 29:
        maps.of(FIRST_ORDERS).add(last - 9, 10, last - 9)
        committer.acknowledged(FIRST_ORDERS, last)
        # The last one does not arrive: the task is killed between its map and its position.
        store.is_unanswered = last == 19
        store.errors = [ConnectionFailedError("away")] if last == 29 else []
        assert await committer.commit() is (last == 9)
    context = a_context(Events(), store=store, maps=await restored(topic, FIRST_ORDERS))
    partition = mirror_source_partition("A", FIRST_ORDERS)
    assert [next_offset(it) for it in await context.committed_offsets([partition])] == [30]


# ---- pruning of the offset map: names are the invariants of ``MapPruning``


FIRST_ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 7)


class Rig:
    """A map topic in memory, and where both logs of its partitions begin."""

    def __init__(self) -> None:
        self.topic = MemoryTopic("map")
        self.source = Copies()
        self.sender = self.source.sender
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.maps = TaskOffsetMaps(stored_maps(self.topic))

    async def started(self, *partitions: TopicPartition, sweeps: bool = False) -> MapPruning:
        """Start a task on partitions."""
        store = stored_maps(self.topic)
        await store.start()
        self.maps = TaskOffsetMaps(store, sweeps=sweeps)
        await self.maps.load(partitions)
        return MapPruning(
            self.maps, self.source, self.sender, permit=self.permit, clock=SYSTEM_CLOCK
        )

    def begin_at(self, partition: TopicPartition, source: int, target: int) -> None:
        """Let both logs of a partition begin there."""
        self.source.starts[partition] = source
        self.sender.starts[self.source.target_of(partition)] = target

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


async def test_invariant_1_only_what_lies_below_both_logs_is_removed() -> None:
    rig = Rig()
    pruning = await rig.started(FIRST_ORDERS, BILLS)
    await rig.copy(FIRST_ORDERS, 4)
    await rig.copy(BILLS, 4)
    rig.begin_at(FIRST_ORDERS, 4 * PAGE_SEGMENTS, 10_000)
    rig.begin_at(BILLS, 10_000, 10_000)
    assert await pruning.look() == 5
    assert rig.pages == {FIRST_ORDERS: [2, 3], BILLS: [3]}
    assert await pruning.look() == 0
    again = await rig.started(FIRST_ORDERS)
    rig.begin_at(FIRST_ORDERS, 10_000, 3 * PAGE_SEGMENTS)
    rig.begin_at(BILLS, 10_000, 10_000)
    assert await again.look() == 1
    assert rig.pages == {FIRST_ORDERS: [3], BILLS: [3]}


async def test_invariant_1_a_log_whose_start_is_not_known_keeps_its_pages() -> None:
    rig = Rig()
    pruning = await rig.started(FIRST_ORDERS)
    await rig.copy(FIRST_ORDERS, 3)
    rig.source.starts[FIRST_ORDERS] = 10_000
    assert await pruning.look() == 0
    rig.sender.starts[rig.source.target_of(FIRST_ORDERS)] = NO_LOG
    assert await pruning.look() == 0
    rig.source.error = ConnectionFailedError("away")
    with pytest.raises(ConnectionFailedError):
        await pruning.look()
    assert rig.pages == {FIRST_ORDERS: [0, 1, 2]}


async def test_invariant_3_a_map_leaves_whole_when_both_topics_were_gone_twice() -> None:
    rig = Rig()
    await rig.started(FIRST_ORDERS, BILLS)
    await rig.copy(FIRST_ORDERS, 3)
    await rig.copy(BILLS, 2)
    rig.begin_at(FIRST_ORDERS, NO_LOG, NO_LOG)
    other = await rig.started(BILLS)
    assert await other.look() == 0
    assert await other.look() == 0  # it is not task 0
    pruning = await rig.started(BILLS, sweeps=True)
    assert await pruning.look() == 0
    rig.begin_at(FIRST_ORDERS, 0, NO_LOG)
    assert await pruning.look() == 0
    rig.begin_at(FIRST_ORDERS, NO_LOG, NO_LOG)
    assert await pruning.look() == 0
    assert await pruning.look() == 3
    assert rig.pages == {BILLS: [0, 1]}
    last = await rig.started(FIRST_ORDERS)
    assert rig.maps.of(FIRST_ORDERS).is_empty
    assert await last.look() == 0


async def test_invariant_4_nothing_is_removed_unpermitted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    pruning = await rig.started(FIRST_ORDERS)
    await rig.copy(FIRST_ORDERS, 6)
    rig.begin_at(FIRST_ORDERS, 10_000, 10_000)
    rig.permit.revoke()
    assert await pruning.look() == 0
    rig.permit = Permit(SYSTEM_CLOCK, until_s=inf)
    monkeypatch.setattr(offset_maps, "MOST_PAGES", 2)
    pruning = await rig.started(FIRST_ORDERS)
    assert [await pruning.look() for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("number", range(examples(12)))
async def test_invariant_2_whenever_a_worker_ends_what_is_left_is_a_whole_map(
    number: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed + number)
    monkeypatch.setattr(offset_maps, "MOST_PAGES", chance.choice([1, 3, 1_000]))
    rig = Rig()
    start = end = 0
    for _ in range(chance.randint(2, 8)):
        pruning = await rig.started(FIRST_ORDERS, sweeps=True)
        end = max(rig.maps.of(FIRST_ORDERS).target_end, 0)
        start = chance.randint(start, end)
        rig.begin_at(FIRST_ORDERS, 2 * start + chance.choice([-1, 0]), start)
        work = asyncio.create_task(live(rig, pruning, chance))
        for _ in range(chance.randint(0, 25)):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    store = stored_maps(rig.topic)
    await store.start()
    if rig.topic.records:
        index = store.index.of(FIRST_ORDERS)
        assert index is not None
        newest, page = index.pages[-1].target_end, partial(page_of, rig.topic, FIRST_ORDERS)
        for target in (
            {start, *chance.choices(range(start, newest), k=20)} if start < newest else ()
        ):
            assert to_target(index, 2 * target, page) == (Place.COPIED, target)
            assert to_source(index, target, page) == (Place.COPIED, 2 * target)
        if start and index.pages[0].number:
            lowest = index.pages[0].target_first
            assert to_target(index, 0, page) == (Place.EXPIRED, lowest)


async def live(rig: Rig, pruning: MapPruning, chance: random.Random) -> None:
    """Copy and prune at once."""

    async def copying() -> None:
        while True:
            await rig.copy(FIRST_ORDERS, chance.randint(1, 2))
            await asyncio.sleep(0)

    async def looking() -> None:
        while True:
            await pruning.look()
            await asyncio.sleep(0)

    await asyncio.gather(copying(), looking())
