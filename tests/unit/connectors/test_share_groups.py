"""Share groups of a flow: their start offsets move to the target by the rules of other groups, without checkpoints."""

import asyncio
import logging

import pytest

from mm2py.errors import ConnectionFailedError
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP,
    server_error,
)
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors.group_watch import SHARE_PACE
from mm2py_connectors.mirror_checkpoint_task import (
    SHARES_LOOK_S,
    SHARES_RETRY_S,
    until_share_groups,
)
from tests.unit.connectors.group_fakes import FakeGroups, GroupRegion
from tests.unit.connectors.test_mirror_checkpoint import SYNCS, running

SYNC = {"sync_group_offsets_enabled": "true"}
COPY = TopicPartition("A.t", 0)


@pytest.fixture
def region() -> GroupRegion:
    """Source A with 100 copied records, and a share group that has read 50 of them."""
    region = GroupRegion()
    region.map.put("t", 0, (0, 100, 1_000), covered=100)
    region.shares_at_source.put("s", t_0=50)
    return region


def there(region: GroupRegion, group: str = "s") -> int | None:
    found = region.shares_at_target.offsets.get(group, {}).get(COPY)
    return None if found is None else found.offset


async def test_a_start_offset_is_on_the_target_within_a_second_and_has_no_checkpoint(
    region: GroupRegion,
) -> None:
    async with running(region, **SYNC) as bench:
        assert await bench.polled(3) == []
        assert there(region) == 1_050
        region.shares_at_source.put("s", t_0=60)
        assert await bench.polled(2) == []
        assert there(region) == 1_060
        assert region.at_target.commits == [], "it is no consumer group"


async def test_a_start_offset_never_goes_back(region: GroupRegion) -> None:
    region.shares_at_target.put("s", {"A.t_0": 1_070})
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        assert there(region) == 1_070
        region.shares_at_source.put("s", t_0=80)
        await bench.idle(2)
        assert there(region) == 1_080
        region.shares_at_source.put("s", t_0=10)
        await bench.idle(4)
        assert there(region) == 1_080


async def test_only_chosen_groups_and_topics_are_synced(region: GroupRegion) -> None:
    region.map.put("other", 0, (0, 100, 0), covered=100)
    region.shares_at_source.put("s", other_0=5)
    region.shares_at_source.put("left-out", t_0=5)
    async with running(region, topics="t", groups_exclude="left.*", **SYNC) as bench:
        await bench.idle(4)
        assert region.shares_at_target.commits == [("s", {COPY: 1_050})]
        assert bench.context.findings == {}


async def test_a_share_group_in_use_on_the_target_is_left_alone_and_reported(
    region: GroupRegion,
) -> None:
    region.shares_at_target.refusals[COPY] = server_error(NON_EMPTY_GROUP, "s")
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        text, count, harms = bench.context.findings["share groups in use on the target"]
        assert (text.startswith("s: "), count, harms) == (True, 1, False)
        assert "share groups not synced" not in bench.context.findings
        region.shares_at_target.refusals.clear()
        await bench.idle(12)
        assert (there(region), bench.context.findings) == (1_050, {})


async def test_a_group_of_another_type_on_the_target_is_named(region: GroupRegion) -> None:
    region.shares_at_target.refusals[COPY] = server_error(GROUP_ID_NOT_FOUND, "s")
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        assert "another type" in bench.context.findings["share groups not synced"][0]


async def test_missing_grants_are_named(region: GroupRegion) -> None:
    refused = server_error(GROUP_AUTHORIZATION_FAILED, "s")
    region.shares_at_target.errors["s"] = refused
    region.shares_at_source.put("s2", t_0=5)
    region.shares_at_source.errors["s2"] = refused
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        assert "READ on the groups" in bench.context.findings["share groups not synced"][0]
        assert "DESCRIBE on the groups" in bench.context.findings["share groups not read"][0]
        assert region.shares_at_target.commits == []


async def test_nothing_is_written_while_the_task_is_paused(region: GroupRegion) -> None:
    async with running(region, **SYNC) as bench:
        await bench.clock.advance(30)
        assert region.shares_at_target.commits == []
        await bench.idle(3)
        assert there(region) == 1_050


async def test_start_offsets_beyond_the_copies_follow_them(region: GroupRegion) -> None:
    region.shares_at_source.put("s", t_0=130)
    async with running(region, **SYNC) as bench:
        await bench.idle(3)
        assert there(region) == 1_100, "the end of the copies"
        region.map.put("t", 0, (0, 150, 1_000), covered=150)
        await bench.idle(3)
        assert there(region) == 1_130


async def test_without_an_exact_map_the_offset_syncs_decide(region: GroupRegion) -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 40, 7)
    region.shares_at_source.put("s", t_0=50)
    async with running(region, **SYNC) as bench:
        await bench.idle(3)
        assert there(region) == 8


async def test_the_number_of_share_groups_asked_per_second_is_bounded(region: GroupRegion) -> None:
    for number in range(1_000):
        region.shares_at_source.put(f"g{number}", t_0=1)
    async with running(region, **SYNC) as bench:
        await bench.idle(20)
        assert max(map(len, region.shares_at_source.asked)) <= sum(SHARE_PACE)
        assert len(region.shares_at_target.offsets) == 1_001
        region.shares_at_source.put("g7", t_0=2)
        await bench.idle(25)  # all have had their turn
        assert there(region, "g7") == 1_002
        region.shares_at_source.put("g7", t_0=3)
        await bench.idle(2)
        assert there(region, "g7") == 1_003, "it changed lately"


# -- where there are none, or none are wanted -------------------------------------------------------


async def test_clusters_without_share_groups_cost_nothing_and_are_logged_once(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    region.shares_at_target.supported = False
    async with running(region, **SYNC) as bench:
        await bench.idle(3)
        assert (region.shares_at_source.lists, bench.context.findings) == (0, {})
        assert caplog.text.count("share groups are not synced") == 1
        assert "clusters=B" in caplog.text


async def test_share_groups_are_looked_for_again_as_clusters_are_upgraded() -> None:
    clock, groups = FakeClock(), FakeGroups()
    groups.broken = ConnectionFailedError("away")
    waiting = asyncio.create_task(until_share_groups({"A": groups}, clock))
    await clock.advance(1)
    groups.broken, groups.supported = None, False
    await clock.advance(SHARES_RETRY_S)
    assert not waiting.done()
    groups.supported = True
    await clock.advance(SHARES_LOOK_S)
    await waiting


@pytest.mark.parametrize(
    ("groups", "shares", "synced"),
    [("true", "", True), ("false", "", False), ("true", "false", False), ("false", "true", True)],
)
async def test_share_groups_follow_the_switch_of_other_groups_unless_they_have_their_own(
    region: GroupRegion, groups: str, shares: str, *, synced: bool
) -> None:
    region.at_source.put("g", t_0=50)
    config = {"sync_group_offsets_enabled": groups}
    if shares:
        config["sync_share_group_offsets_enabled"] = shares
    async with running(region, **config) as bench:
        assert len(await bench.polled(3)) == 1, "the checkpoint of the consumer group"
        assert (there(region) == 1_050) == synced
        assert bool(region.at_target.commits) == (groups == "true")
        assert (region.shares_at_source.lists > 0) == synced
