"""The maps of a task: restored, filled, written before positions, cut where the target lost records."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial

import pytest
from hypothesis import example, given, settings, strategies

from mm2py.api.context import EventKind, SourceGap
from mm2py.client.permit import UNLIMITED
from mm2py.client.send.tail import Behind, LogEnd
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.mirror.ledger import KnownEvents
from mm2py.mirror.offset_lookup import PartitionIndex, Place, to_target
from mm2py.mirror.offset_map import TargetLoss
from mm2py.mirror.offset_map_pages import (
    PAGE_SEGMENTS,
    Mark,
    Page,
    PageRef,
    Segment,
    decode_page,
    decode_page_key,
)
from mm2py.mirror.source_offsets import mirror_source_partition, next_offset, source_offset_key
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_maps import LostCopies, TaskOffsetMaps
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.offset_map_store import MapsOver, NoMapStore, OffsetMapStore, page_entries
from mm2py.storage.table import Entry
from mm2py.types import NO_PRODUCER_ID, TopicPartition
from tests.property.effort import examples
from tests.unit.runtime.runtime_fakes import (
    EagerClock,
    Events,
    FakeSender,
    FakeStore,
    a_committer,
    a_context,
)

OLD, NEW = b"o" * 16, b"n" * 16
ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 7)


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic("map")


def page_of(topic: MemoryTopic, partition: TopicPartition, ref: PageRef) -> Page:
    """Read a page where the index says that it is."""
    (record,) = [it for it in topic.records if it.offset == ref.position]
    assert decode_page_key(record.key) == (partition, ref.number)
    assert record.value is not None
    return decode_page(ref.number, record.value)


def stored_maps(topic: MemoryTopic) -> OffsetMapStore:
    """Return a store over a topic in memory."""

    async def read(partition: TopicPartition, ref: PageRef) -> Page | None:
        return page_of(topic, partition, ref)

    return OffsetMapStore(MemoryTable(topic), read)


async def looked_up(
    topic: MemoryTopic, *offsets: int, partition: TopicPartition = ORDERS
) -> list[tuple[Place, int]]:
    """Translate offsets to the target with what is stored."""
    index = await indexed(topic, partition)
    return [to_target(index, it, partial(page_of, topic, partition)) for it in offsets]


async def indexed(topic: MemoryTopic, partition: TopicPartition = ORDERS) -> PartitionIndex:
    store = stored_maps(topic)
    await store.start()
    index = store.index.of(partition)
    assert index is not None
    return index


async def restored(topic: MemoryTopic, *partitions: TopicPartition) -> TaskOffsetMaps:
    store = stored_maps(topic)
    await store.start()
    maps = TaskOffsetMaps(store)
    await maps.load(partitions)
    return maps


def add_holes(maps: TaskOffsetMaps, records: int) -> None:
    """Copy records with a hole behind each."""
    for at in range(records):
        maps.of(ORDERS).add(2 * at, 1, at)


class BrokenMaps(MapsOver):
    """A store that refuses writes until its error is cleared."""

    def __init__(self, error: Exception) -> None:
        super().__init__(NoMapStore())
        self.error: Exception | None = error
        self.written: list[Mapping[TopicPartition, Sequence[Page]]] = []

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        if self.error is not None:
            raise self.error
        self.written.append(pages)


@pytest.mark.parametrize("stored", [b"{", b"17", b'{"offset":"7"}', b'{"at":7}'])
async def test_what_is_no_position_sets_no_map_back(topic: MemoryTopic, stored: bytes) -> None:
    maps = await restored(topic, ORDERS)
    maps.of(ORDERS).add(0, 10, 0)
    await maps.write()
    key = source_offset_key("MirrorSourceConnector", mirror_source_partition("A", ORDERS))
    other = source_offset_key("MirrorSourceConnector", {"counter": "one"})
    store, again = FakeStore(), await restored(topic, ORDERS)
    await store.set({key: stored, other: stored})
    context = a_context(store=store, maps=again)
    (offset,) = await context.committed_offsets([mirror_source_partition("A", ORDERS)])
    assert offset is not None
    assert next_offset(offset) < 0
    assert not again.changed
    assert again.of(ORDERS).covered == 10
    if stored in (b"{", b"17"):
        with pytest.raises(FatalError, match=r"counter.*PATCH"):
            await context.committed_offsets([{"counter": "one"}])


async def test_invariant_3_only_the_open_page_is_in_memory(topic: MemoryTopic) -> None:
    maps = await restored(topic, ORDERS)
    add_holes(maps, 3 * PAGE_SEGMENTS + 5)
    await maps.write()
    await maps.write()
    assert (len(topic.records), maps.changed) == (4, False), "what is unchanged is not written"
    maps.of(ORDERS).again()
    (open_page,) = maps.of(ORDERS).take()
    assert (open_page.number, len(open_page.segments)) == (3, 5)


@pytest.mark.parametrize("back", [5, PAGE_SEGMENTS, 2 * PAGE_SEGMENTS + 30])
async def test_what_the_target_lost_behind_the_open_page_is_reported_as_a_whole(
    topic: MemoryTopic, back: int
) -> None:
    maps = await restored(topic, ORDERS)
    end = 3 * PAGE_SEGMENTS + 5
    add_holes(maps, end)
    await maps.write()
    again = await restored(topic, ORDERS)
    losses: list[TargetLoss] = []
    again.on_loss = lambda _partition, loss: losses.append(loss)
    loss = again.of(ORDERS).add(2 * end, 1, end - back)
    assert loss is not None
    losses.insert(0, loss)
    await again.write()
    assert min(it.first_source for it in losses if it.first_source >= 0) == 2 * (end - back)
    assert max(it.last_source for it in losses) == 2 * (end - 1)
    kept = 2 * (end - back)
    assert await looked_up(topic, kept - 2, kept, 2 * end - 2, 2 * end) == [
        (Place.COPIED, end - back - 1),
        (Place.LOST, end - back),
        (Place.LOST, end - back),
        (Place.COPIED, end - back),
    ]


async def test_a_position_ahead_of_the_map_leaves_an_unknown_stretch(topic: MemoryTopic) -> None:
    maps = await restored(topic, ORDERS)
    maps.of(ORDERS).add(0, 10, 0)
    await maps.write()
    again = await restored(topic, ORDERS)
    again.resume(ORDERS, 25)
    again.of(ORDERS).add(25, 1, 40)
    (page,) = again.of(ORDERS).take()
    assert page.segments[1] == Segment(10, 15, 10, Mark.UNKNOWN)


@pytest.mark.parametrize("error", [ConnectionFailedError("away"), TimeoutError()])
async def test_invariant_2_what_was_not_written_is_written_next_turn(error: Exception) -> None:
    store = BrokenMaps(error)
    maps = TaskOffsetMaps(store)
    maps.of(ORDERS).add(0, 10, 0)
    with pytest.raises(type(error)):
        await maps.write()
    assert maps.changed
    for at in range(PAGE_SEGMENTS + 1):
        maps.of(ORDERS).add(20 + 2 * at, 1, 10 + at)
    store.error = None
    await maps.write()
    (pages,) = store.written
    assert [page.number for page in pages[ORDERS]] == [0, 1]
    segments = [it for page in pages[ORDERS] for it in page.segments]
    assert segments[0] == Segment(0, 10, 0)
    assert len(segments) == PAGE_SEGMENTS + 2


async def test_invariant_1_a_stored_position_is_never_ahead_of_the_map() -> None:
    store, broken = FakeStore(), BrokenMaps(ConnectionFailedError("away"))
    maps = TaskOffsetMaps(broken)
    committer = a_committer(store, maps)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    assert not await committer.commit()
    assert store.writes == []
    broken.error = None
    assert await committer.commit()
    assert broken.written
    assert len(store.writes) == 1


@pytest.mark.parametrize("source_id", [OLD, NO_TOPIC_ID], ids=["ids", "no ids"])
async def test_a_map_that_the_target_refuses_for_good_holds_no_position_back(
    source_id: bytes,
) -> None:
    broken = BrokenMaps(ConfigError("cleanup.policy of the topic is delete"))
    maps, store, reports = TaskOffsetMaps(broken), FakeStore(), list[str]()
    maps.on_refusal = reports.append
    maps.of(ORDERS).identify(source_id)
    # A position may be below what the map covers by right then: it does not say that a task stored
    # it (8), also of the commit that is refused first.
    committer = a_committer(store, maps, epoch=5)
    for last in 9, 19:
        maps.of(ORDERS).add(last - 9, 10, last - 9)
        committer.acknowledged(ORDERS, last)
        assert await committer.commit()
        epoch = b',"epoch":"5@%d"' % last if source_id == OLD else b""
        assert [*store.writes[-1].values()] == [b'{"offset":%d%s}' % (last, epoch)]
    assert "offset map cannot be kept" in reports[0]
    assert "cleanup.policy of the topic is delete" in reports[0]
    broken.error = None
    await maps.write()
    assert not reports[-1]
    assert broken.written[0][ORDERS][0].segments == (Segment(0, 20, 0),)


class Copies:
    """The target's topics, how copies are named, and where source logs begin."""

    def __init__(self) -> None:
        self.sender = FakeSender()
        self.starts: dict[TopicPartition, int] = {}
        self.error: Exception | None = None

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        return partition._replace(topic=f"A.{partition.topic}")

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        if self.error is not None:
            raise self.error
        return {it: self.starts[it] for it in partitions if it in self.starts}

    def watched(self, maps: TaskOffsetMaps) -> LostCopies:
        return LostCopies(maps, self, self.sender, permit=UNLIMITED, clock=EagerClock())


class CopiesWorld:
    """One source partition, its copy, which is deleted and made again at any moment, and the task that copies."""

    def __init__(self) -> None:
        self.topic, self.copies = MemoryTopic("map"), Copies()
        self.ids = [b"%016d" % 0]
        self.log: list[int | None] = []
        self.next_source = 0
        self.reported: list[int] = []

    async def start(self) -> None:
        """A process begins; the pages of the one before are written."""
        self.maps = await restored(self.topic, ORDERS)
        self.maps.on_loss = self.note
        self.lost = self.copies.watched(self.maps)
        self.begun = self.answered = b""
        self.had = set[bytes]()

    def note(self, partition: TopicPartition, loss: TargetLoss) -> None:
        assert partition == ORDERS
        self.reported += range(loss.first_source, loss.last_source + 1)

    async def send(self, records: int, holes: int) -> None:
        """Copy records, each behind so many offsets that need no copy."""
        if self.begun != self.ids[-1]:
            self.begun = self.ids[-1]
            end = self.maps.target_end(ORDERS, self.begun)
            assert end <= len(self.log)
            await self.maps.begin({ORDERS: LogEnd(len(self.log), self.begun)})
        for _ in range(records):
            self.next_source += holes
            assert self.maps.of(ORDERS).add(self.next_source, 1, len(self.log)) is None
            self.log.append(self.next_source)
            self.next_source += 1

    def make_again(self, others: int) -> None:
        """The copy is deleted and made again, and another program has written to it."""
        self.ids.append(b"%016d" % len(self.ids))
        self.log = [None] * others

    async def look(self, behind: int) -> None:
        """The task looks; a broker that is so many deletions behind answers, once in a row with an id that the map never had."""
        answer = self.ids[max(0, len(self.ids) - 1 - behind)]
        self.had.add(self.maps.of(ORDERS).target_id)
        if answer == self.answered and answer not in self.had:
            answer = self.ids[-1]
        self.answered = answer
        self.copies.sender.ids = {"A.orders": answer}
        await self.lost.look()

    async def check(self) -> None:
        """After two right answers the map has what is there, and all that was lost is reported once."""
        await self.look(0)
        await self.look(0)
        await self.maps.write()
        pages = lru_cache(partial(page_of, self.topic, ORDERS))
        store = stored_maps(self.topic)
        await store.start()
        index = store.index.of(ORDERS)
        known = [to_target(index, it, pages) for it in range(self.next_source) if index is not None]
        there = {source: at for at, source in enumerate(self.log) if source is not None}
        copied = {it: at for it, (place, at) in enumerate(known) if place is Place.COPIED}
        assert copied == there
        assert len(self.reported) == len(set(self.reported))
        assert not there.keys() & set(self.reported), "a copy that is there is not lost"


STEPS = strategies.one_of(
    strategies.tuples(
        strategies.just("send"), strategies.integers(1, 4), strategies.integers(0, 1)
    ),
    strategies.tuples(
        strategies.just("send"), strategies.just(PAGE_SEGMENTS + 3), strategies.just(1)
    ),
    strategies.tuples(strategies.just("make_again"), strategies.sampled_from([0, 3, 900])),
    strategies.tuples(strategies.just("look"), strategies.integers(0, 2)),
    strategies.tuples(strategies.just("write")),
    strategies.tuples(strategies.just("restart")),
)


@pytest.mark.fuzz
@settings(max_examples=examples(100))
@given(strategies.lists(STEPS, max_size=16))
@example([("send", 1, 0), ("look", 0), ("make_again", 0), ("send", 1, 0), ("look", 1), ("look", 1)])
def test_7_copies_that_are_made_again_are_lost_once_whoever_notices_it_first(
    steps: list[tuple[str, *tuple[int, ...]]],
) -> None:
    async def play() -> None:
        world = CopiesWorld()
        await world.start()
        for name, *given_numbers in steps:
            if name == "send":
                await world.send(*given_numbers)
            elif name == "make_again":
                world.make_again(*given_numbers)
            elif name == "look":
                await world.look(*given_numbers)
            else:
                await world.maps.write()
                if name == "restart":
                    await world.start()
        await world.check()

    asyncio.run(play())


async def test_a_kill_behind_a_loss_at_a_take_over_leaves_the_beginning(topic: MemoryTopic) -> None:
    """The position that another program left lies below the source's log: the loss is noted before the first copy."""
    maps = await restored(topic, ORDERS)
    assert maps.resume(ORDERS, 40) == 40
    maps.note_gap(SourceGap(ORDERS, 40, 59, EventKind.RETENTION, ""))
    maps.cover(ORDERS, 59)
    await maps.write()
    again = await restored(topic, ORDERS)
    assert again.resume(ORDERS, 40) == 60
    assert again.target_end(ORDERS, OLD) == -1, "none of ours: the target's log is not searched"
    await again.begin({ORDERS: LogEnd(40, OLD)})
    killed = await restored(topic, ORDERS)
    assert killed.resume(ORDERS, 40) == 60
    assert killed.target_end(ORDERS, OLD) == 40


@pytest.mark.parametrize("is_in_ledger", [False, True])
@pytest.mark.parametrize(
    ("kind", "first", "last", "resumed"),
    [(EventKind.RETENTION, 40, 59, 65), (EventKind.TARGET_LOST, 30, 39, 40)],
)
async def test_a_loss_that_only_the_map_has_after_a_kill_comes_into_the_ledger(
    topic: MemoryTopic, kind: EventKind, first: int, last: int, resumed: int, *, is_in_ledger: bool
) -> None:
    """The start continues behind it, so that neither cluster is asked for it again."""
    events, store = Events(), FakeStore()

    async def started() -> WorkerTaskContext:
        context = a_context(events, store=store, maps=await restored(topic))
        await context.committed_offsets([mirror_source_partition("A", ORDERS)])
        return context

    context = await started()
    context.maps.of(ORDERS).add(0, 40, 0)
    committer = a_committer(store, context.maps)
    committer.acknowledged(ORDERS, 39)
    await committer.commit()
    if kind is EventKind.RETENTION:
        context.report_gap(SourceGap(ORDERS, first, last, kind, ""))
        context.maps.of(ORDERS).add(last + 1, 5, 40)
        await context.maps.write()  # the position waits for the ledger
    else:
        await context.maps.begin({ORDERS: LogEnd(first, OLD)})
    if not is_in_ledger:
        events.known, events.written = KnownEvents(), []
    for _ in range(2):
        context = await started()
        assert context.maps.of(ORDERS).resume(40) == resumed
    assert [(it.kind, it.first_offset, it.last_offset) for it in events.written] == [
        (kind, first, last)
    ]


async def test_where_a_copy_begins_at_the_end_after_its_position_was_removed_the_rest_is_skipped(
    topic: MemoryTopic,
) -> None:
    """``DELETE .../offsets`` with ``auto.offset.reset=latest``."""
    before = await restored(topic, ORDERS)
    before.of(ORDERS).add(0, 40, 0)
    before.of(ORDERS).position = 40
    await before.write()
    events = Events()
    context = a_context(events, maps=await restored(topic))
    assert await context.committed_offsets([mirror_source_partition("A", ORDERS)]) == [None]
    context.report_covered(ORDERS, 59, begins=True)
    await context.maps.begin({ORDERS: LogEnd(40, OLD)})
    (event,) = events.written
    assert (event.kind, event.first_offset, event.last_offset) == (EventKind.SKIPPED, 40, 59)
    context.maps.of(ORDERS).add(60, 5, 40)
    await context.maps.write()
    assert await looked_up(topic, 39, 45, 60) == [
        (Place.COPIED, 39),
        (Place.UNKNOWN, -1),
        (Place.COPIED, 40),
    ]


@pytest.mark.parametrize("is_in_ledger", [False, True])
@pytest.mark.parametrize(
    ("log_end", "markers", "ranges"),
    [(40, False, [(40, 59)]), (45, False, []), (45, True, [(40, 59)])],
)
async def test_what_a_position_was_set_past_is_in_the_ledger_unless_a_program_may_have_copied_it(
    topic: MemoryTopic,
    log_end: int,
    ranges: list[tuple[int, int]],
    *,
    markers: bool,
    is_in_ledger: bool,
) -> None:
    events, store = Events(), FakeStore()
    partition = mirror_source_partition("A", ORDERS)
    before = await restored(topic, ORDERS)
    before.of(ORDERS).add(0, 40, 0)
    before.of(ORDERS).target_id = OLD
    await before.write()
    await store.set({source_offset_key("MirrorSourceConnector", partition): b'{"offset":59}'})

    async def started() -> TaskOffsetMaps:
        maps = await restored(topic)
        await a_context(events, store=store, maps=maps).committed_offsets([partition])
        return maps

    maps = await started()
    assert not events.written, "the target's log is not known yet"
    assert maps.passed_from(ORDERS, OLD) == 40
    assert maps.passed_from(ORDERS, NEW) == 0, "all of a topic that was made again"
    await maps.begin({ORDERS: LogEnd(log_end, OLD, follows_copies=markers)})
    assert maps.passed_from(ORDERS, OLD) == -1
    if not is_in_ledger:  # a kill before that
        events.known, events.written = KnownEvents(), []
    for _ in range(2):
        maps = await started()
    assert [(it.kind, it.first_offset, it.last_offset) for it in events.written] == [
        (EventKind.SKIPPED, *it) for it in ranges
    ]
    maps.of(ORDERS).add(60, 5, log_end)
    await maps.write()
    assert (await started()).of(ORDERS).skipped == (ranges[0] if ranges else None)
    assert await looked_up(topic, 39, 45, 60) == [
        (Place.COPIED, 39),
        (Place.UNKNOWN, -1),
        (Place.COPIED, log_end),
    ]


@pytest.mark.parametrize("stored", [True, False])
async def test_where_a_copy_begins_is_in_its_map_before_the_first_record(
    topic: MemoryTopic, *, stored: bool
) -> None:
    """Group sync of the flow the other way asks it: this one copies nothing of what is before."""
    store, partition = FakeStore(), mirror_source_partition("A", ORDERS)
    key = source_offset_key("MirrorSourceConnector", partition)
    for position, is_written in ((60, True), (60, False), (40, True), (0, True), (0, False)):
        maps = await restored(topic)
        context = a_context(Events(), store=store, maps=maps)
        if stored:
            await store.set({key: b'{"offset":%d}' % (position - 1)})
        await context.committed_offsets([partition])
        if not stored:  # it begins at the log's end
            context.report_covered(ORDERS, position - 1, begins=True)
        if stored:
            assert maps.changed == is_written
        await maps.write()
        assert maps.of(ORDERS).begins == position
        index = await indexed(topic)
        assert (index.passed, index.has_segments) == (position, False)
    copying = await restored(topic, ORDERS)
    copying.of(ORDERS).add(70, 1, 5)
    await copying.write()
    assert (await indexed(topic)).passed == 71


class Listener:
    """A worker's task, as the context knows it."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []
        self.covered: list[int] = []

    def partition_failed(self, partition: TopicPartition, error: Exception) -> None:
        raise AssertionError(partition, error)

    gap_refused = partition_failed

    def partition_covered(self, partition: TopicPartition, offset: int) -> None:
        assert partition == ORDERS
        self.covered.append(offset)

    def gap_asked(self, partition: TopicPartition) -> None:
        self.asked.append(partition)


@pytest.mark.parametrize(
    ("behind", "event", "marks", "text"),
    [
        (Behind(0), (40, 59), [(40, 20, Mark.SOURCE_LOST)], ""),
        (
            Behind(7),
            (47, 59),
            [(40, 7, Mark.UNKNOWN), (47, 13, Mark.SOURCE_LOST)],
            "; the 7 records before them had been copied",
        ),
        (Behind(30), None, [(40, 20, Mark.UNKNOWN)], ""),
        (
            Behind(7, is_known=False),
            (40, 59),
            [(40, 7, Mark.UNKNOWN), (47, 13, Mark.SOURCE_LOST)],
            "; whether that is so of the first 7",
        ),
        (
            Behind(0, is_known=False),
            (40, 59),
            [(40, 20, Mark.SOURCE_LOST)],
            "; some of the first of them may be",
        ),
    ],
    ids=["none", "some", "all", "perhaps some", "unreadable"],
)
async def test_what_a_killed_task_copied_behind_its_map_is_not_reported_as_lost(
    topic: MemoryTopic,
    behind: Behind,
    event: tuple[int, int] | None,
    marks: list[tuple[int, int, Mark]],
    text: str,
) -> None:
    """The source deletes it before the next start: the target has it, at places that the map does not know."""
    maps, events, listener = await restored(topic, ORDERS), Events(), Listener()
    context = a_context(events, maps=maps)
    context.listen(listener)
    maps.of(ORDERS).add(0, 40, 0)
    for first, last in ((40, 49), (50, 59)):  # retention continues meanwhile
        context.report_gap(SourceGap(ORDERS, first, last, EventKind.RETENTION, "gone"))
    context.report_covered(ORDERS, 62)
    assert (listener.asked, listener.covered, events.reported) == ([ORDERS], [], [])
    assert context.withheld() == {ORDERS}
    assert maps.opens(ORDERS)
    maps.count(ORDERS, behind)
    reported = [(it.first_offset, it.last_offset) for it in events.reported]
    assert reported == ([] if event is None else [event])
    assert all(it.cause.startswith(f"gone{text}") for it in events.reported)
    segments = maps.of(ORDERS).take()[-1].segments[1:]
    assert [(it.source, it.records, it.mark) for it in segments] == marks
    assert not maps.opens(ORDERS)
    maps.count(ORDERS, behind)  # it is not waited for any more
    assert listener.covered == [62]
    assert not context.withheld()
    context.report_gap(SourceGap(ORDERS, 60, 69, EventKind.RETENTION, "gone"))
    assert (events.reported[-1].first_offset, listener.asked) == (60, [ORDERS])


async def test_what_needs_no_copy_before_the_first_record_is_ours(topic: MemoryTopic) -> None:
    maps = await restored(topic, ORDERS)
    assert maps.resume(ORDERS, -1) == -1
    for covered in (10, 40):
        maps.cover(ORDERS, covered - 1)  # a mirror of the other direction has written it
        await maps.write()
        maps.stored({ORDERS: covered - 1})
        maps = await restored(topic, ORDERS)
        assert maps.resume(ORDERS, covered) == covered
        assert maps.target_end(ORDERS, OLD) == -1
    await maps.begin({ORDERS: LogEnd(100, OLD)})
    maps.of(ORDERS).add(40, 5, 100)
    await maps.write()
    assert await looked_up(topic, 0, 39, 40) == [
        (Place.NEVER_EXISTED, 100),
        (Place.NEVER_EXISTED, 100),
        (Place.COPIED, 100),
    ]


async def copied(topic: MemoryTopic, records: int) -> TaskOffsetMaps:
    """Copy the first records of a partition and store their position."""
    maps = await restored(topic, ORDERS)
    maps.resume(ORDERS, -1)
    maps.of(ORDERS).add(0, records, 0)
    maps.taken({ORDERS: records - 1}, {ORDERS: 3})
    await maps.write()
    maps.stored({ORDERS: records - 1})
    return maps


async def test_a_position_stored_with_its_map_is_the_one_it_names(topic: MemoryTopic) -> None:
    store = stored_maps(topic)
    await store.start()
    maps = TaskOffsetMaps(store)
    await maps.load([ORDERS])
    committer = a_committer(FakeStore(), maps, timeout_ms=None)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    await committer.commit()
    removed = await restored(topic, ORDERS)
    assert removed.resume(ORDERS, -1) == -1
    restarted = await restored(topic, ORDERS)
    assert restarted.resume(ORDERS, 10) == 10


async def begun(topic: MemoryTopic, position: int = -1, source_id: bytes = OLD) -> TaskOffsetMaps:
    """Return the maps of a task that has loaded them and sent nothing."""
    maps = await restored(topic, ORDERS)
    maps.of(ORDERS).identify(source_id)
    maps.resume(ORDERS, position, source_id)
    return maps


def arrive(topic: MemoryTopic, late: Sequence[Entry]) -> None:
    for entry in late:
        topic.append(*entry)


def sent(line: MemoryTopic) -> list[Entry]:
    return [(record.key or b"", record.value) for record in line.records]


def compact(topic: MemoryTopic) -> None:
    newest = {record.key: record for record in topic.records}
    topic.records = sorted(newest.values(), key=lambda it: it.offset)


@pytest.mark.parametrize(
    ("segments", "records", "first"),
    # The pages of the last one are as those that count, and come after one with a higher start.
    [(PAGE_SEGMENTS, 5, 0), (2, 5, 0), (2, 9, 2)],
)
async def test_invariant_8_a_page_of_a_task_that_is_gone_changes_nothing_when_it_comes_late(
    topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch, segments: int, records: int, first: int
) -> None:
    monkeypatch.setattr("mm2py.mirror.offset_map.PAGE_SEGMENTS", segments)
    former = await begun(topic)
    await former.begin({ORDERS: LogEnd(0, NEW)})
    add_holes(former, records)
    late = page_entries({ORDERS: former.of(ORDERS).take()})[first:]
    task = await begun(topic)
    await task.begin({ORDERS: LogEnd(0, NEW)})
    add_holes(task, 9)
    await task.write()
    known = await looked_up(topic, *range(18))
    arrive(topic, late)
    assert await looked_up(topic, *range(18)) == known
    line = MemoryTopic("what the next start writes again")
    arrive(line, sent(topic))
    await (await begun(line, 17)).write()
    again = sent(line)[len(topic.records) :]
    assert again
    for written in range(len(again) + 1):  # it may be killed after any page
        partly = MemoryTopic("map")
        arrive(partly, [*sent(topic), *again[:written]])
        assert await looked_up(partly, *range(18)) == known
        await (await begun(partly, 17)).write()
        compact(partly)
        assert await looked_up(partly, *range(18)) == known


async def test_invariant_8_the_task_that_runs_writes_over_all_that_came_late_from_one_that_is_gone(
    topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a compaction keeps it in place of the pages that count."""
    monkeypatch.setattr("mm2py.mirror.offset_map.PAGE_SEGMENTS", 2)
    former, task = await begun(topic), await begun(topic)
    for each, records in (former, 5), (task, 9):
        await each.begin({ORDERS: LogEnd(0, NEW)})
        add_holes(each, records)
    late = page_entries({ORDERS: former.of(ORDERS).take()})
    await task.write()
    known = await looked_up(topic, *range(17))
    arrive(topic, late)
    await task.again(tuple)
    task.of(ORDERS).add(18, 1, 9)  # meanwhile
    await task.write()
    compact(topic)
    assert await looked_up(topic, *range(19)) == [
        *known,
        (Place.NEVER_EXISTED, 9),
        (Place.COPIED, 9),
    ]


@pytest.mark.parametrize("is_before", [True, False])
async def test_of_two_tasks_that_begin_with_the_same_page_the_one_that_copies_counts(
    topic: MemoryTopic, *, is_before: bool
) -> None:
    """The first page of the other one, which is gone, comes before its own or after it."""
    line = MemoryTopic("what is on its way")
    former, task = await begun(line), await begun(topic)
    await former.begin({ORDERS: LogEnd(0, NEW, 7)})
    late = sent(line)
    if is_before:
        arrive(topic, late)
    await task.begin({ORDERS: LogEnd(0, NEW, 8)})
    if not is_before:
        arrive(topic, late)
    again = await begun(topic)
    assert again.producer(ORDERS).producer_id == 8
    task.of(ORDERS).add(0, 10, 0)
    await task.write()
    assert await looked_up(topic, 9) == [(Place.COPIED, 9)]


async def test_invariant_8_what_a_late_page_has_ended_is_written_again_by_the_task_that_began_after_it(
    topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that are gone: the second one began before the pages of the first came, and its own came last."""
    monkeypatch.setattr("mm2py.mirror.offset_map.PAGE_SEGMENTS", 2)
    first = await begun(topic)
    await first.begin({ORDERS: LogEnd(0, NEW)})
    line = MemoryTopic("what is on its way")
    arrive(line, sent(topic))
    await (await begun(line)).begin({ORDERS: LogEnd(0, NEW)})
    late = sent(line)[len(topic.records) :]
    add_holes(first, 7)
    await first.write()
    known = await looked_up(topic, *range(13))
    task = await begun(topic)
    arrive(topic, late)
    await task.begin({ORDERS: LogEnd(7, NEW)})
    assert await looked_up(topic, *range(13)) == known
    compact(topic)
    assert await looked_up(topic, *range(13)) == known


async def test_invariant_8_a_position_is_stored_when_no_page_with_less_can_come_to_count(
    topic: MemoryTopic,
) -> None:
    """Of a task that was killed between the load and its first page: it lacks what came since."""
    former = await begun(topic)
    await former.begin({ORDERS: LogEnd(0, NEW, 7)})
    line = MemoryTopic("what is on its way")
    arrive(line, sent(topic))
    await (await begun(line)).begin({ORDERS: LogEnd(40, NEW, 7)})
    late = sent(line)[len(topic.records) :]
    former.of(ORDERS).add(0, 40, 0)
    await former.write()
    task, store = await begun(topic), FakeStore()
    committer = a_committer(store, task)
    committer.acknowledged(ORDERS, 39)
    await committer.commit()
    arrive(topic, late)
    assert store.writes
    assert (await begun(topic, 40)).target_end(ORDERS, NEW) == 40
    assert await looked_up(topic, 39) == [(Place.COPIED, 39)]


async def test_pages_in_transactions_count_above_those_of_a_task_without_that_began_as_they_did(
    topic: MemoryTopic,
) -> None:
    line = MemoryTopic("what is on its way")
    former, store = await begun(line), stored_maps(topic)
    await former.begin({ORDERS: LogEnd(0, NEW, 7)})
    await store.start()
    task = TaskOffsetMaps(store, in_transactions=True)
    await task.load([ORDERS])
    arrive(topic, sent(line))
    task.of(ORDERS).add(0, 10, 0)
    await task.write()
    assert await looked_up(topic, 9) == [(Place.COPIED, 9)]


@pytest.mark.parametrize(
    ("position", "topic_id", "epoch", "resumed"),
    [
        (10, OLD, 3, 40),  # a task stored it before the map covered more: it is late
        (10, OLD, -1, 40),
        (10, NO_TOPIC_ID, -1, 10),  # set by hand, or by Java
        (10, OLD, 4, 10),  # after the map, which could not be written any more: the log was cut
        (60, OLD, 3, 60),
        (40, OLD, 3, 40),
    ],
)
async def test_invariant_8_a_position_that_a_task_stored_never_sets_the_copy_back(
    topic: MemoryTopic, position: int, topic_id: bytes, epoch: int, resumed: int
) -> None:
    maps = await begun(topic)
    maps.of(ORDERS).add(0, 40, 0)
    maps.taken({ORDERS: 39}, {ORDERS: 3})
    await maps.write()
    assert (await restored(topic, ORDERS)).resume(ORDERS, position, topic_id, epoch) == resumed


@pytest.mark.parametrize("source_id", [OLD, NO_TOPIC_ID], ids=["ids", "no ids"])
async def test_a_late_position_is_replaced_by_the_one_that_counts(
    topic: MemoryTopic, source_id: bytes
) -> None:
    store, partition = FakeStore(), mirror_source_partition("A", ORDERS)
    maps = await begun(topic, source_id=source_id)
    committer = a_committer(store, maps, epoch=5)
    for last in 9, 24, 39:
        first = maps.of(ORDERS).covered
        maps.of(ORDERS).add(first, last + 1 - first, first)
        committer.acknowledged(ORDERS, last)
        await committer.commit()
    former, _, stored = store.writes
    await store.set(former)
    context = a_context(Events(), store=store, maps=await restored(topic))
    (offset,) = await context.committed_offsets([partition])
    assert next_offset(offset) == 40
    assert context.stored() == stored


async def test_invariant_9_a_start_that_ends_while_it_compares_the_log_keeps_the_id_of_what_is_there(
    topic: MemoryTopic,
) -> None:
    killed = LogEnd(0, NEW, 7, lasts=False)
    await (await restored(topic, ORDERS)).begin({ORDERS: killed})
    for stored, own in (
        (7, killed._replace(offset=40)),
        (NO_PRODUCER_ID, LogEnd(40, NEW, 8, lasts=False)),
    ):
        task = await restored(topic, ORDERS)
        task.opens(ORDERS)
        await task.begin({ORDERS: own})
        await task.settle([ORDERS])
        assert (await restored(topic, ORDERS)).producer(ORDERS).producer_id == stored


async def test_a_map_is_settled_where_this_task_stored_a_position(topic: MemoryTopic) -> None:
    maps = await copied(topic, 100)
    idle = await restored(topic, ORDERS)
    assert idle.resume(ORDERS, 100) == 100
    written = len(topic.records)
    await idle.settle()
    assert len(topic.records) == written, "another task may copy the partition by now"
    await maps.settle()
    removed = await restored(topic, ORDERS)
    assert removed.resume(ORDERS, -1) == -1, "a position that was removed is followed"


async def test_invariant_5_a_topic_that_was_deleted_gets_the_open_page_of_every_partition_again(
    topic: MemoryTopic,
) -> None:
    store = stored_maps(topic)
    await store.start()
    maps, idle = TaskOffsetMaps(store), TaskOffsetMaps(store)
    end = PAGE_SEGMENTS + 5
    add_holes(maps, end)
    idle.of(BILLS).add(0, 10, 0)
    await maps.write()
    await idle.write()
    topic.recreate()
    maps.of(ORDERS).add(2 * end, 1, end)
    await maps.write()  # notices it
    for each in (maps, idle):
        assert each.changed
        await each.write()
        assert not each.changed
    lost, kept = await looked_up(topic, 10, 2 * end)
    assert lost == (Place.UNKNOWN, -1), "its page was lost"
    assert kept == (Place.COPIED, end)
    assert await looked_up(topic, 3, partition=BILLS) == [(Place.COPIED, 3)]
    again = await restored(topic, ORDERS)
    assert again.resume(ORDERS, -1) == 2 * end + 1
    assert again.of(ORDERS).target_end == end + 1
