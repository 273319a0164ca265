"""Checkpoints with the same names both ways: the map of the flow back decides, too."""

import asyncio

import pytest

from mm2py.errors import ConnectionFailedError
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.types import TopicPartition
from mm2py_connectors import offset_translator
from mm2py_connectors.offset_translator import UNREAD_FINDING
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.test_mirror_checkpoint import SYNCS, copied, running

OLD, NEW = bytes(15) + b"1", bytes(15) + b"2"
SAME_NAMES = {"replication.policy.class": "IdentityReplicationPolicy"}


async def test_with_the_same_names_both_ways_no_record_of_the_targets_own_is_skipped() -> None:
    region = copied(0, 0)
    # The target has 30 records of its own from 50 on; 10 of them are on the source.
    region.map.put("t", 0, (0, 50, 0), (60, 40, 80), covered=100)
    region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), covered=60)
    region.at_source.put("before", t_0=33)
    region.at_source.put("among", t_0=55)
    region.at_source.put("behind", t_0=80)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found == {"before": 33, "among": 55, "behind": 60}
        region.at_source.put("behind", t_0=115)
        region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), (60, 20, 100), covered=120)
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found["behind"] == 75, "5 of them are not read yet"
        region.map.put("t", 0, (0, 50, 0), (60, 40, 80), (120, 10, 120), covered=130)
        region.at_source.put("behind", t_0=130)
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found["behind"] == 120, "not past what the flow back covers"
        region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), (60, 20, 100), covered=130)
        assert [it.downstream for it in await bench.polled(3)] == [130]


async def test_a_map_of_the_flow_back_about_a_former_topic_of_the_source_places_no_group() -> None:
    region, tp = GroupRegion(), TopicPartition("t", 0)
    region.log(*SYNCS).sync("t", 0, 0, 0)
    # The source's topic was created again: what the flow back had copied is gone, and has other offsets.
    region.map.put("t", 0, (0, 10, 100), covered=10)
    region.map_back.put("t", 0, (500, 50, 0), covered=550)
    region.map_back.former.add(tp)
    region.at_source.put("g", t_0=5)
    async with running(region, **SAME_NAMES) as bench:
        await bench.idle(3)
        # The flow back has copied 10 records into the new one.
        region.map_back.put("t", 0, (0, 0, 8), (600, 10, 8), covered=610)
        region.map_back.former.clear()
        assert [it.downstream for it in await bench.polled(8)] == [105]


async def test_a_map_of_the_flow_back_about_a_former_topic_of_the_target_places_no_group() -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    # The target's topic was created again and has 100 copies; the flow back had read to 3,050 in the former one.
    region.map.put("t", 0, (0, 100, 0), covered=100, target_id=NEW)
    region.map_back.put("t", 0, (3000, 50, 60), covered=3050, source_id=OLD)
    region.at_source.put("g", t_0=65)
    async with running(region, **SAME_NAMES) as bench:
        await bench.idle(3)
        region.map_back.put("t", 0, (0, 0, 110), covered=100, source_id=NEW)
        assert [it.downstream for it in await bench.polled(8)] == [65]


async def test_a_flow_back_that_renames_has_no_say_where_groups_are() -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.map.put("t", 0, (0, 100, 0), covered=100)
    region.map_back.put("t", 0, (500, 50, 0), covered=550)  # into B.t
    region.map_back.former.add(TopicPartition("t", 0))
    region.map_back.elsewhere.add(TopicPartition("t", 0))
    region.at_source.put("g", t_0=5)
    async with running(region, **SAME_NAMES) as bench:
        assert [it.downstream for it in await bench.polled(3)] == [5]


@pytest.mark.parametrize(
    ("copies", "covered", "places"),
    [
        # t was paused for the flow back before its first record; clients wrote 10 to the target meanwhile.
        ([(0, 20, 0), (20, 10, 30)], None, {"early": 10, "late": 20}),
        ([(0, 20, 10)], None, {"early": 0, "late": 0}),
        # It was paused after it had read, and copied nothing of, what the flow had written.
        ([(0, 20, 0), (20, 10, 30)], 20, {"early": 10, "late": 20}),
        ([(0, 20, 0), (21, 9, 21)], 25, {"early": 10, "late": 30}),
        # All of the target is the flow's own: nothing waits for the flow back.
        ([(0, 30, 0)], None, {"early": 10, "late": 30}),
    ],
)
async def test_with_the_same_names_both_ways_groups_wait_for_a_flow_back_that_has_copied_nothing(
    copies: list[tuple[int, int, int]], covered: int | None, places: dict[str, int]
) -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.map.put("t", 0, *copies, covered=30)
    region.map.unread = [ConnectionFailedError("not now")] * 2
    region.map_back.put("other", 0, (0, 5, 0), covered=5)
    if covered is not None:
        region.map_back.put("t", 0, covered=covered)
    region.at_source.put("early", t_0=10)
    region.at_source.put("late", t_0=30)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert {it.group: it.downstream for it in await bench.polled(3)} == places
        end = copies[-1][1] + copies[-1][2]
        region.map_back.put("t", 0, covered=end)
        found = places | {it.group: it.downstream for it in await bench.polled(3)}
        assert found["late"] == end, "it has read all, and nothing of that was to be copied"


async def test_a_frozen_leader_of_a_copy_holds_up_the_checkpoints_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_translator, "ASKED_S", 0)
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    for topic in "t", "u":
        region.map.put(topic, 0, (0, 30, 0), covered=30)
    region.map_back.put("other", 0, (0, 5, 0), covered=5)
    answer = region.map.frozen[TopicPartition("t", 0)] = asyncio.Event()
    region.at_source.put("frozen", t_0=30)
    region.at_source.put("other", u_0=30)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert [it.group for it in await bench.polled(3)] == ["other"]
        answer.set()
        assert {it.group: it.downstream for it in await bench.polled(3)} == {"frozen": 30}


async def test_with_the_same_names_both_ways_a_lost_map_back_leaves_offsets_unknown() -> None:
    region = GroupRegion()
    # Each side had 20 records of its own first: who has read those of the source has read none of the target's.
    region.map.put("t", 0, (0, 20, 20), covered=40)
    region.log("B", "mm2-offset-syncs.A.internal").sync("t", 0, 0, 20)
    region.at_source.put("early", t_0=20)
    region.at_source.put("late", t_0=40)
    region.map.put("u", 0, (0, 20, 0), covered=20)
    region.at_source.put("copied-nothing-back", u_0=20)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert [it.group for it in await bench.polled(3)] == ["copied-nothing-back"]
        region.map_back.put("t", 0, (40, 1, 40), covered=41)
        assert await bench.polled(12) == [
            Checkpoint("late", TopicPartition("t", 0), 40, 40, metadata="")
        ]


@pytest.mark.parametrize(
    ("config", "copies"),
    [
        (SAME_NAMES, {"orders": "orders", "heartbeats": "B.heartbeats"}),
        ({"replication.policy.separator": ""}, {"orders": "orders", "heartbeats": "Bheartbeats"}),
    ],
)
async def test_of_a_flow_back_only_copies_of_the_same_name_count_and_heartbeats_are_where_they_are(
    config: dict[str, str], copies: dict[str, str]
) -> None:
    region = copied(0, 0)
    async with running(region, **config):
        assert {it: region.copies_of["A"](it) for it in copies} == copies


@pytest.mark.parametrize(
    ("begins", "topic_id", "place"),
    [
        # Not begun: clients wrote 10 to the target before the flow's first copy.
        (None, NEW, 0),
        (4, NEW, 4),
        # What Java copied, or what its position was set past, is before it: it copies nothing of that.
        (10, NEW, 15),
        (30, NEW, 15),
        (30, OLD, 0),  # of a topic that is gone
    ],
)
async def test_below_the_first_copy_a_group_passes_what_the_flow_back_begins_behind(
    begins: int | None, topic_id: bytes, place: int
) -> None:
    region = GroupRegion()
    # The position of the flow was set, or it began at the end.
    region.map.put("t", 0, (50, 10, 10), covered=60, target_id=NEW)
    region.map_back.put("other", 0, (0, 5, 0), covered=5)
    if begins is not None:
        region.map_back.put("t", 0, covered=0, position=begins, source_id=topic_id)
    region.at_source.put("g", t_0=55)
    async with running(region, **SAME_NAMES) as bench:
        assert [it.downstream for it in await bench.polled(3)] == [place]
        text, *_ = bench.context.findings.get(UNREAD_FINDING, ("",))
        assert (f"t-0 at {place}" in text) == (place < 15), text
        region.map_back.put("t", 0, covered=10, source_id=NEW)
        found = [it.downstream for it in await bench.polled(3)]
        assert found == ([15] if place < 15 else []), "it has read them, and copied nothing"
        assert not bench.context.findings.get(UNREAD_FINDING)
