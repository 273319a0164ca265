"""Where a lane begins whose log ends after the last known copy, and what is said of copies that cannot be compared."""

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.client.send.lane import SenderLane
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.resume import LaneResume
from mm2py.client.send.tail import LaneTail
from mm2py.clock import SYSTEM_CLOCK
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import LATEST, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to, signed, to_send

SOURCE, TARGET = TopicPartition("t", 0), TopicPartition("copy", 0)


class Owner:
    """A Sender that notes doubts."""

    def __init__(self) -> None:
        self.doubts: list[tuple[int, int]] = []

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def doubted(self, _source: TopicPartition, first: int, last: int, _error: Exception) -> None:
        self.doubts.append((first, last))

    def recognised(self, *_: object) -> None:
        """Nothing is."""


@pytest.mark.parametrize(
    ("transactional", "kept", "doubts"),
    [(True, -1, []), (True, 7, [(0, 2)]), (False, -1, [(0, 2)])],
    ids=["aborted", "of a lane", "without transactions"],
)
async def test_a_tail_that_is_gone_is_no_doubt_where_all_of_it_was_aborted(
    transactional: bool, kept: int, doubts: list[tuple[int, int]]
) -> None:
    owner, maps = Owner(), TaskOffsetMaps(NoMapStore(), in_transactions=transactional)
    maps.of(SOURCE).anchor(0, 0)
    maps.of(SOURCE).writes_to(NO_TOPIC_ID, kept, 0)
    lane = SenderLane(TARGET, producer_id=9, epoch=0, max_in_flight=5, transactional=transactional)
    async with FakeBroker(topics={TARGET.topic: 1}) as broker, connected_to(broker) as cluster:
        broker.append(TARGET, signed(b"0", b"1", b"2"))
        broker.partition(TARGET).delete_before(3)
        lane.offer(SOURCE, [to_send([b"0", b"1", b"2"])])
        resume = LaneResume(cluster, maps, clock=SYSTEM_CLOCK, owner=cast("LaneOwner", owner))
        await cluster.metadata([TARGET.topic])
        ends = await Admin(cluster).list_offsets({TARGET: LATEST})
        tail = (await resume.look(broker.node_id, [lane], ends))[lane]
        assert isinstance(tail, LaneTail)
        assert (await resume.compare(lane, tail)).log_end == 3
    assert owner.doubts == doubts
