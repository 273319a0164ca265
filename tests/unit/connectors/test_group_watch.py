"""Groups as the task sees them: the log of commits and what is asked; and share groups, whose start offsets move by the rules of other groups, without checkpoints."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.errors import ConnectionFailedError, Mm2pyError, RequestTimedOutError
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.group_sync import GroupSync
from mm2py_connectors.group_watch import CONSUMER_PACE, GroupShare, GroupWatch
from mm2py_connectors.mirror_checkpoint_task import (
    SHARES_LOOK_S,
    SHARES_RETRY_S,
    until_share_groups,
)
from tests.unit.connectors.group_fakes import FakeGroups, FakeLog, GroupRegion, commit_record
from tests.unit.connectors.test_mirror_checkpoint import SYNCS, running

TP = TopicPartition("t", 0)


class Renewed:
    """A map that has begun anew that often."""

    renewals = 0

    def renewed(self, source: TopicPartition, /) -> int:
        return self.renewals if source == TP else 0


class Bench:
    def __init__(self, groups: FakeGroups, log: FakeLog) -> None:
        self.groups, self.log = groups, log
        self.context = FakeTaskContext()
        self.clock, self.renewed = self.context.clock, Renewed()
        self.watch = GroupWatch(
            groups,
            log,
            share=GroupShare(lambda group: not group.startswith("_")),
            is_chosen=lambda topic: topic == "t",
            context=self.context,
            on_change=lambda: None,
            renewals=self.renewed,
        )

    def offset(self, group: str) -> int | None:
        known = self.watch.offsets(group).get(TP)
        return None if known is None else known.offset

    def commit(self, group: str, offset: int | None) -> None:
        """Write to the log alone, as if the answers of the coordinator were older."""
        self.log.append(*commit_record(group, TP, offset))


@asynccontextmanager
async def watching(*, follows: bool = True, groups: int = 0) -> AsyncGenerator[Bench]:
    at_source, log = FakeGroups(), FakeLog()
    at_source.log = log
    for number in range(groups):
        at_source.put(f"g{number}", t_0=1)
    if not follows:
        log.broken = [server_error(TOPIC_AUTHORIZATION_FAILED) for _ in range(99)]
    bench = Bench(at_source, log)
    jobs = [asyncio.create_task(bench.watch.follow()), asyncio.create_task(bench.watch.ask(5))]
    await bench.clock.advance(2)
    yield bench
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


async def test_the_log_only_moves_an_offset_forward_one_that_goes_back_is_asked_for() -> None:
    async with watching(groups=1) as bench:
        assert bench.watch.take_changed(9) == ["g0"]
        bench.commit("g0", 5)
        assert (bench.offset("g0"), bench.watch.take_changed(9)) == (5, ["g0"])
        bench.groups.put("g0", t_0=7)
        bench.commit("g0", 6)
        assert bench.offset("g0") == 7, "an older commit that comes late"
        await bench.clock.advance(1)
        assert bench.offset("g0") == 7
        bench.groups.put("g0", t_0=3)
        assert bench.offset("g0") == 7
        await bench.clock.advance(1)
        assert bench.offset("g0") == 3, "reset by an operator"
        bench.groups.offsets["g0"].clear()
        bench.commit("g0", None)
        await bench.clock.advance(1)
        assert bench.offset("g0") is None
        assert bench.watch.groups_of(TP) == ()


async def test_a_fetched_offset_does_not_replace_one_that_the_log_brought_meanwhile() -> None:
    async with watching(groups=1) as bench:
        committed = bench.groups.committed

        async def slow(groups: Collection[str]) -> dict[str, object]:
            answer = await committed(groups)
            bench.commit("g0", 9)
            return dict(answer)

        bench.groups.committed = slow  # type: ignore[assignment, method-assign]
        await bench.clock.advance(1)
        assert bench.offset("g0") == 9


async def test_where_a_map_has_begun_anew_an_offset_counts_only_if_it_was_asked_for_since() -> None:
    async with watching(groups=1) as bench:
        bench.commit("g0", 319)
        bench.groups.log = None
        bench.groups.put("g0", t_0=50)
        committed = bench.groups.committed

        async def overtaken(groups: Collection[str]) -> dict[str, object]:
            answer: dict[str, object] = dict(await committed(groups))
            answer["g0"] = {TP: replace(bench.groups.offsets["g0"][TP], offset=319)}
            bench.renewed.renewals = 1
            return answer

        bench.groups.committed = overtaken  # type: ignore[assignment, method-assign]
        await bench.clock.advance(1)
        assert bench.offset("g0") == 319, "asked for before the map had begun anew"
        bench.groups.committed = committed  # type: ignore[method-assign]
        assert bench.watch.is_former("g0", TP)
        assert bench.offset("g0") is None
        bench.commit("g0", 300)  # a log that is behind
        bench.commit("g0", 319)
        assert bench.offset("g0") is None
        await bench.clock.advance(1)
        assert (bench.offset("g0"), bench.watch.is_former("g0", TP)) == (50, False)
        bench.commit("g0", 319)
        assert bench.offset("g0") == 50
        bench.groups.put("g0", t_0=60)
        bench.commit("g0", 60)
        await bench.clock.advance(1)
        assert bench.offset("g0") == 60


async def test_new_groups_are_known_by_their_first_commit() -> None:
    async with watching() as bench:
        bench.groups.put("new", t_0=4)
        bench.groups.put("_left out", t_0=4)
        await bench.clock.advance(1)
        assert (bench.offset("new"), bench.offset("_left out")) == (4, None)
        assert bench.groups.lists == 1


async def test_a_group_is_forgotten_only_when_a_complete_list_is_without_it() -> None:
    async with watching(groups=2) as bench:
        bench.groups.missing = "broker 2 is away"
        bench.groups.drop("g0")
        await bench.clock.advance(70)
        assert bench.watch.take_gone() == set()
        bench.groups.missing = ""
        await bench.clock.advance(70)
        assert bench.watch.take_gone() == {"g0"}
        assert list(bench.watch.groups_of(TP)) == ["g1"]


async def test_the_number_of_groups_asked_per_second_is_bounded() -> None:
    async with watching(follows=False, groups=3_000) as bench:
        await bench.clock.advance(20)
        assert all(bench.offset(f"g{number}") == 1 for number in range(3_000))
        assert max(map(len, bench.groups.asked)) <= sum(CONSUMER_PACE)
        for number in range(100):
            bench.groups.put(f"g{number}", t_0=2)
        await bench.clock.advance(16)  # all have had their turn
        assert all(bench.offset(f"g{number}") == 2 for number in range(100))
        for number in range(100):
            bench.groups.put(f"g{number}", t_0=3)
        await bench.clock.advance(1)
        assert all(bench.offset(f"g{number}") == 3 for number in range(100)), "they changed lately"
        text, _, harms = bench.context.findings["commits"]
        assert ("grant the mirror's principal" in text, harms) == (True, False)


async def test_a_note_on_commits_asks_for_rights_only_where_they_are_missing() -> None:
    async with watching() as bench:

        def note(error: Mm2pyError) -> str:
            bench.log.trouble(error)
            return bench.context.findings["commits"][0]

        for away in (ConnectionFailedError("no route"), RequestTimedOutError("no answer")):
            assert note(away).endswith(f"cannot be followed: {away}")
        assert "grant the mirror's principal" in note(server_error(TOPIC_AUTHORIZATION_FAILED))
        missing = server_error(UNKNOWN_TOPIC_OR_PARTITION)
        assert note(missing).endswith("no consumer group: then nothing is to be done")
        late = RequestTimedOutError("not read for 60000 ms")
        late.__cause__ = missing
        assert note(late).endswith("then nothing is to be done")
        assert "grant" not in note(missing)


async def test_a_log_that_is_lost_for_a_while_is_asked_for_what_it_left_out() -> None:
    async with watching(groups=3) as bench:
        trouble: Mm2pyError = ConnectionFailedError("away")
        bench.log.trouble(trouble)
        bench.groups.log = None
        for number in range(3):
            bench.groups.put(f"g{number}", t_0=8)
        bench.log.trouble(None)
        await bench.clock.advance(1)
        assert [bench.offset(f"g{number}") for number in range(3)] == [8, 8, 8]


async def test_a_group_that_no_request_can_name_is_named_and_the_others_are_watched() -> None:
    async with watching() as bench:
        bench.groups.put("", t_0=5)
        bench.groups.put("billing", t_0=7)
        await bench.clock.advance(70)
        assert (bench.offset("billing"), bench.offset("")) == (7, None)
        assert not any("" in asked for asked in bench.groups.asked)
        (note,) = [it[0] for it in bench.context.findings.values() if "''" in it[0]]
        assert "1 groups are not synced, such as '': a request needs a group" in note
        assert "set it, or delete the group" in note
        assert bench.watch.take_changed(9) == ["billing"]
        bench.groups.drop("")
        await bench.clock.advance(70)
        assert not any("''" in it[0] for it in bench.context.findings.values())


# ---- share groups


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


async def test_a_share_group_in_use_or_of_another_type_on_the_target_is_left_alone(
    region: GroupRegion,
) -> None:
    region.shares_at_target.refusals[COPY] = server_error(NON_EMPTY_GROUP, "s")
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        text, count, harms = bench.context.findings["share groups in use on the target"]
        assert (text.startswith("s: "), count, harms) == (True, 1, False)
        assert "share groups not synced" not in bench.context.findings
        region.shares_at_target.refusals[COPY] = server_error(GROUP_ID_NOT_FOUND, "s")
        await bench.idle(12)
        assert "another type" in bench.context.findings["share groups not synced"][0]
        region.shares_at_target.refusals.clear()
        await bench.idle(12)
        assert (there(region), bench.context.findings) == (1_050, {})


async def test_missing_grants_are_named(region: GroupRegion) -> None:
    refused = server_error(GROUP_AUTHORIZATION_FAILED, "s")
    region.shares_at_target.errors["s"] = refused
    region.shares_at_source.put("s2", t_0=5)
    region.shares_at_source.errors["s2"] = refused
    async with running(region, **SYNC) as bench:
        await bench.idle(4)
        for finding in ("share groups not synced", "share groups not read"):
            assert refused.remedy in bench.context.findings[finding][0]
        assert region.shares_at_target.commits == []


async def test_start_offsets_beyond_the_copies_follow_them_unless_the_task_is_paused(
    region: GroupRegion,
) -> None:
    region.shares_at_source.put("s", t_0=130)
    async with running(region, **SYNC) as bench:
        await bench.clock.advance(30)
        assert region.shares_at_target.commits == []
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


# ---- the writes of groups to the target


def sync_of(
    context: FakeTaskContext, target: FakeGroups, names: str, may_write: Callable[[], bool]
) -> GroupSync:
    """Of groups with a checkpoint each."""

    async def check_copies(_groups: Sequence[str]) -> None:
        """The copies are what they were."""

    tp = TopicPartition("A.t", 0)
    known = {name: {tp: Checkpoint(name, tp, 5, 5, "")} for name in names}
    return GroupSync(
        target,
        known,
        context=context,
        may_write=may_write,
        is_placed=known.__contains__,
        check_copies=check_copies,
    )


async def test_groups_of_a_round_that_the_target_does_not_answer_are_behind() -> None:
    context, target = FakeTaskContext("MirrorCheckpointConnector-0"), FakeGroups()

    async def never() -> None:
        await asyncio.Event().wait()

    target.silent["g"] = never
    sync = sync_of(context, target, "gh", lambda: True)
    sync.want("g")
    running = asyncio.create_task(sync.run(None))
    await context.clock.advance(2)
    sync.want("h")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (context.figures["groups BEHIND"], context.figures["groups SYNCED"]) == (2, 0)


async def test_groups_that_wait_for_a_paused_task_wake_it_once_a_second() -> None:
    context, looks = FakeTaskContext("MirrorCheckpointConnector-0"), 0

    def may_write() -> bool:
        nonlocal looks
        looks += 1
        return False

    sync = sync_of(context, FakeGroups(), "g", may_write)
    sync.want("g")
    running = asyncio.create_task(sync.run(None))
    for _ in range(200):
        await context.clock.advance(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert looks < 40
