"""Positions and maps of a topic that is deleted and created again, under kills: what a start finds is never ahead of what was copied."""

import random
from collections import deque
from typing import Final

import pytest

from mm2py.api.context import EventKind, SourceGap
from mm2py.errors import ConnectionFailedError
from mm2py.mirror.source_offsets import committed_topic_id, mirror_source_partition, next_offset
from mm2py.observability.metrics import Metrics
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.storage.memory import MemoryTopic
from tests.unit.runtime.runtime_fakes import FLOW, EagerClock, FakeStore
from tests.unit.runtime.test_offset_maps import ORDERS, a_committer, restored

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
