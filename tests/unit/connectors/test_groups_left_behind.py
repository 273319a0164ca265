"""Places of groups that do not count any more: in copies that Java made once more, or that the target lost, of groups that are gone or were reset."""

from typing import Any, cast

import pytest

from mm2py.client.connect.group_admin import GroupListing
from mm2py.errors import ConnectionFailedError
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.mirror.offset_map_pages import Mark, Segment
from mm2py.protocol.error_codes import UNKNOWN_MEMBER_ID, server_error
from mm2py.protocol.groups import FetchedOffset
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors import offset_translator, translated_groups
from tests.unit.connectors.group_fakes import FakeMap, GroupRegion
from tests.unit.connectors.mirror_fakes import flow_config
from tests.unit.connectors.test_mirror_checkpoint import (
    SYNCS,
    WRITTEN,
    copied,
    running,
    synced,
    with_a_group,
)


@pytest.mark.parametrize("behind", [(), ((1_000, 10, 1_500),)])
@pytest.mark.parametrize(
    ("upstream", "now", "after"),
    [(950, 1_300, 950), (950, 1_301, 1_301), (960, 1_300, 1_300)],
    ids=["placed by Java", "moved since", "set back at the source"],
)
async def test_a_group_in_copies_that_the_flow_does_not_continue_is_set_back(
    upstream: int, now: int, after: int, behind: tuple[tuple[int, int, int], ...]
) -> None:
    """Killed before it stored its position, the flow had 1,000 copies; Java made 500 of them again, placed the group there, and was killed too."""
    region = GroupRegion()
    region.map.put("t", 0, (0, 1_000, 0), *behind, covered=1_000 + 10 * len(behind))
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, upstream, 1_300)
    region.at_source.put("g", t_0=950)
    region.at_target.put("g", {"A.t_0": now})
    async with synced(region) as bench:
        await bench.polled(30)
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == after


@pytest.mark.parametrize(
    "names", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"], ids=["prefix", "same"]
)
@pytest.mark.parametrize(
    ("segments", "place"),
    [
        # The target lost 50 records; before anybody looked 100 others took their places.
        ([(0, 150, 0), Segment(150, 50, 150, Mark.TARGET_LOST), (200, 100, 150)], 150),
        # Its topic was deleted and created again.
        ([Segment(0, 200, 0, Mark.TARGET_LOST), (200, 300, 0)], 0),
    ],
    ids=["cut", "deleted"],
)
async def test_a_checkpoint_goes_back_where_the_target_lost_what_it_was_placed_by(
    monkeypatch: pytest.MonkeyPatch,
    segments: list[tuple[int, int, int] | Segment],
    place: int,
    names: str,
) -> None:
    monkeypatch.setattr(offset_translator, "PLACED_AGAIN_S", 5.0)
    region = copied(0, 0, idle=190, moves=190)
    region.map.put("t", 0, (0, 200, 0), covered=200)
    async with running(region, **{"replication.policy.class": names}) as bench:
        assert {it.downstream for it in await bench.polled(3)} == {190}
        region.map.put("t", 0, *segments, covered=500)
        region.at_source.put("moves", t_0=195)
        newest = {it.group: it.downstream for it in await bench.polled(8)}
        assert newest == {"idle": place, "moves": place}
        await bench.idle(3)


@pytest.mark.parametrize("lost_at", ["before the start", "while it runs"])
@pytest.mark.parametrize(
    ("reset", "now", "in_use", "after"),
    [(190, 190, False, 150), (190, 191, False, 191), (190, 190, True, 190), (100, 190, False, 190)],
    ids=["idle", "moved since", "in use", "set back at the source"],
)
async def test_a_group_that_is_still_in_copies_that_the_target_lost_is_set_back(
    monkeypatch: pytest.MonkeyPatch, lost_at: str, reset: int, now: int, *, in_use: bool, after: int
) -> None:
    """Else it skips what has taken their places; one that is used there, or was moved, is not ours to set."""
    monkeypatch.setattr(offset_translator, "PLACED_AGAIN_S", 5.0)
    region, place = copied(0, 0, g=190), TopicPartition("A.t", 0)

    def lose() -> None:
        lost = Segment(150, 50, 150, Mark.TARGET_LOST)
        region.map.put("t", 0, (0, 150, 0), lost, (200, 100, 150), covered=300)
        region.at_source.put("g", t_0=reset)
        region.at_target.put("g", {"A.t_0": now})
        if in_use:
            region.at_target.refusals[place] = server_error(UNKNOWN_MEMBER_ID, "refused")

    region.map.put("t", 0, (0, 200, 0), covered=200)
    if lost_at == "before the start":
        region.log(*WRITTEN).checkpoint("g", "A.t", 0, 190, 190)
        lose()
    async with synced(region) as bench:
        if lost_at == "while it runs":
            assert region.at_target.offsets["g"][place].offset == 190
            lose()
        await bench.polled(30)
        region.at_target.refusals.clear()
        await bench.polled(30)
        assert region.at_target.offsets["g"][place].offset == after


async def test_a_group_deleted_at_the_source_while_no_task_ran_does_not_come_back() -> None:
    region = with_a_group()
    region.log(*WRITTEN).checkpoint("deleted", "A.t", 0, 50, 50)
    async with synced(region) as bench:
        await bench.idle(70)
        assert {group for group, _ in region.at_target.commits} == {"g"}
        assert bench.context.figures["groups SYNCED"] == 1


async def test_a_log_of_commits_that_is_read_again_moves_no_group_to_where_it_was_before() -> None:
    region = with_a_group()
    region.at_source.put("g", t_0=101, t_1=40)
    region.at_source.put("g", t_1=5)  # reset
    region.log(*SYNCS).sync("t", 1, 40, 40)
    async with synced(region) as bench:
        for _ in region.commits.again():  # the source elected a leader that was behind
            await bench.polled(0.5)
        written = [offsets for _, offsets in region.at_target.commits]
        assert not [it for it in written if it.get(TopicPartition("A.t", 1), 0) > 5], written


@pytest.mark.parametrize("offset", [60, None], ids=["not chosen", "deleted at the source"])
async def test_a_partition_not_chosen_or_without_offset_is_left_alone(offset: int | None) -> None:
    region = with_a_group()
    region.log(*WRITTEN).checkpoint("g", "A.u", 0, 50, 50)
    if offset is not None:
        region.at_source.put("g", u_0=offset)
    region.at_target.put("g", {"A.u_0": 10})  # its owner reads it once more there
    exclude = {} if offset is None else {"topics.exclude": "u"}
    async with running(region, **{"sync.group.offsets.enabled": "true"}, **exclude) as bench:
        await bench.polled(30)
    assert {tp.topic for _, offsets in region.at_target.commits for tp in offsets} == {"A.t"}


async def test_no_offset_is_written_before_the_group_was_compared_with_the_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(translated_groups, "LONGEST_ROUND_S", -1.0)  # thousands of others go first
    region = with_a_group()
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, 101, 5_000)
    async with synced(region, 30):
        assert region.at_target.commits == []


@pytest.mark.parametrize("away", [True, False])
async def test_nothing_is_written_into_a_copy_that_was_created_again_since_anybody_looked(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr(offset_translator, "_COPIES_LOOK_S", 1_000.0)
    region = copied(0, 0, g=148)
    region.map.put("t", 0, (0, 148, 0), covered=148)
    async with synced(region) as bench:
        assert len(region.at_target.commits) == 1
        region.map.former_unseen.add(TopicPartition("t", 0))
        region.map.away = ConnectionFailedError("not now") if away else None
        region.at_target.drop("g")  # with its topic
        await bench.idle(30)
        assert len(region.at_target.commits) == 1
        region.map.away = None
        region.map.former_unseen.clear()
        region.map.former.clear()
        region.map.put("t", 0, (148, 0, 0), covered=148)  # the source task has noticed it
        region.at_source.put("g", t_0=149)
        await bench.polled(30)
    written = [offsets[TopicPartition("A.t", 0)] for _, offsets in region.at_target.commits]
    assert written == [148, 0]


@pytest.mark.parametrize(
    ("copied", "is_former", "reason"),
    [
        (None, False, "t-0: not copied or not checkpointed yet"),
        ((200, 50, 200), False, "t-0: it lies below the beginning of the map"),
        ((0, 50, 0), True, "t-0: the map is about another copy than the one that is there now"),
    ],
)
async def test_a_group_without_a_place_is_shown_with_the_reason(
    copied: tuple[int, int, int] | None, is_former: bool, reason: str
) -> None:
    config = flow_config("MirrorCheckpointConnector", sync_group_offsets_enabled="true")
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    offsets = cast("Any", FlowOffsets(flow, config, FakeClock(), has_checkpoints=True))
    offsets._map = exact = FakeMap()
    if copied is not None:
        offsets._has_map = True
        exact.put("t", 0, copied, covered=copied[0] + copied[1])
    if is_former:
        exact.former.add(TopicPartition("t", 0))
    parts = await offsets._partitions(
        {TopicPartition("t", 0): FetchedOffset("t", 0, 20, -1, "", 0)}, {}, {}, {}
    )
    view = offsets._view(GroupListing("g", 1, "Empty", "classic"), None, parts, "")
    assert view.not_synced.startswith(reason)
    assert view.partitions[0].continues_at is None
