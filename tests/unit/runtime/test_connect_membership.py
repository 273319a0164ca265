"""Several workers in one group: who runs what after joins, deaths, freezes and foreign members."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mm2py.protocol.connect_group import WorkerMetadata, encode_metadata
from mm2py.protocol.groups import GroupProtocol
from mm2py.runtime.errors import ForeignMemberError
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin
from mm2py.testing.clock import FakeClock
from mm2py.types import TaskId, Work
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.membership_rig import SESSION_S, Configs, Worker, configs, working

COUNTS = {"source": 5, "beat": 1}
EVERYTHING = Work(
    frozenset(COUNTS),
    frozenset(TaskId(name, n) for name, count in COUNTS.items() for n in range(count)),
)


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.group = MemoryGroup(self.clock)
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.stack = AsyncExitStack()

    def make(self, name: str, **options: object) -> Worker:
        link = MemoryCoordinator(self.group, name)
        worker = Worker(link, name, Configs(configs(COUNTS)), self.clock, **options)  # type: ignore[arg-type]  # of the test
        self.workers[name] = worker
        return worker

    async def start(self, *names: str) -> None:
        for name in names:
            worker = self.workers.get(name) or self.make(name)
            self.tasks[name] = await self.stack.enter_async_context(working(worker))
        await self.clock.advance(8.0)

    def link(self, name: str) -> MemoryCoordinator:
        link = self.workers[name].link
        assert isinstance(link, MemoryCoordinator)
        return link

    def owned(self, *names: str) -> list[Work]:
        return [self.workers[name].owned for name in names]

    def running(self, *names: str) -> bool:
        return not any(self.workers[name].suspended for name in names)

    def check_all_runs_once(self, *names: str) -> None:
        parts = self.owned(*names)
        together = Work()
        for part in parts:
            assert not together & part, "work runs twice"
            together |= part
        assert together == EVERYTHING
        counts = [len(part.tasks) for part in parts]
        assert max(counts) - min(counts) <= 1, counts

    def leader(self) -> Worker:
        (leader,) = (w for w in self.workers.values() if w.membership.is_leader)
        return leader


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    async with stage.group.running():
        try:
            yield stage
        finally:
            await stage.stack.aclose()
            for worker in stage.workers.values():
                await worker.membership.leave()


async def test_three_workers_that_start_together_share_evenly(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    stage.group.gather_s = 3.0
    await stage.start("a", "b", "c")
    stage.check_all_runs_once("a", "b", "c")
    for worker in stage.workers.values():
        assert not worker.lost
        assert (worker.rounds[-1].signed, worker.rounds[-1].incremental) == (True, True)
        assert worker.rounds[-1].config_offset == 7
    assert len([line for line in caplog.messages if line.startswith("group joined ")]) == 3


async def test_a_newcomer_gets_its_share_and_the_others_keep_the_remainder(stage: Stage) -> None:
    await stage.start("a")
    stage.check_all_runs_once("a")
    before = stage.workers["a"].owned
    await stage.start("b")
    stage.check_all_runs_once("a", "b")
    assert not stage.workers["a"].owned - before
    assert not stage.workers["a"].suspended


async def test_work_of_a_worker_that_dies_moves_within_15_s_and_only_that(stage: Stage) -> None:
    await stage.start("a", "b", "c")
    before = stage.owned("a", "b")
    stage.tasks["c"].cancel()
    await stage.clock.settle()
    stage.link("c").cut = True
    await stage.clock.advance(SESSION_S + 2.0 + 3.0 + 0.5)
    stage.check_all_runs_once("a", "b")
    for had, has in zip(before, stage.owned("a", "b"), strict=True):
        assert not had - has, "nothing that ran was moved"


async def test_lost_work_runs_again_as_soon_as_the_delay_is_over(stage: Stage) -> None:
    await stage.start("a", "b", "c")
    leaver = next(name for name in ("a", "b", "c") if name != stage.leader().name)
    rest = sorted({"a", "b", "c"} - {leaver})
    stage.tasks[leaver].cancel()
    await stage.clock.settle()
    await stage.workers[leaver].membership.leave()
    await stage.clock.advance(2.0 + 3.0 + 0.5)
    stage.check_all_runs_once(*rest)


async def test_a_follower_that_asks_with_nothing_new_gets_its_last_round_again(
    stage: Stage,
) -> None:
    await stage.start("a", "b")
    (follower,) = (w for w in stage.workers.values() if not w.membership.is_leader)
    before, generation = follower.owned, follower.membership.generation
    follower.membership.request_rejoin()
    await stage.clock.advance(1.0)
    assert (follower.owned, follower.membership.generation) == (before, generation)
    stage.check_all_runs_once("a", "b")


async def test_a_worker_that_comes_back_within_the_delay_gets_its_work_back(stage: Stage) -> None:
    await stage.start("a", "b", "c")
    gone, before = stage.workers["c"].owned, stage.owned("a", "b")
    stage.tasks["c"].cancel()
    await stage.clock.settle()
    await stage.workers["c"].membership.leave()
    await stage.clock.advance(2.0)
    await stage.start("c2")
    assert stage.workers["c2"].owned == gone
    assert stage.owned("a", "b") == before


async def test_a_worker_that_froze_finds_its_membership_over_and_runs_nothing_twice(
    stage: Stage,
) -> None:
    await stage.start("a", "b", "c")
    frozen = stage.workers["b"]
    stage.link("b").cut = True
    await stage.clock.advance(SESSION_S + 0.5)
    assert frozen.suspended
    await stage.clock.advance(10.0)
    assert frozen.owned, "nothing is torn down by silence"
    stage.check_all_runs_once("a", "c")
    stage.link("b").cut = False
    await stage.clock.advance(10.0)
    assert len(frozen.lost) == 1
    assert stage.running("a", "b", "c")
    stage.check_all_runs_once("a", "b", "c")


async def test_a_coordinator_that_was_away_for_all_tears_nothing_down(stage: Stage) -> None:
    await stage.start("a", "b")
    before = stage.owned("a", "b")
    for name in ("a", "b"):
        stage.link(name).cut = True
    await stage.clock.advance(5.0)
    for name in ("a", "b"):
        stage.link(name).cut = False
    await stage.clock.advance(5.0)
    tasks = [work.tasks for work in stage.owned("a", "b")]
    assert tasks == [work.tasks for work in before], "connectors may go with the leadership"
    stage.check_all_runs_once("a", "b")
    assert not any(worker.lost or worker.suspended for worker in stage.workers.values())


async def test_workers_that_the_coordinator_expired_together_keep_what_they_have(
    stage: Stage,
) -> None:
    stage.group.gather_s = 3.0
    await stage.start("a", "b")
    before = stage.owned("a", "b")
    for name in ("a", "b"):
        stage.link(name).cut = True
    await stage.clock.advance(10.0)
    assert all(worker.suspended for worker in stage.workers.values())
    for name in ("a", "b"):
        stage.link(name).cut = False
    await stage.clock.advance(10.0)
    tasks = [work.tasks for work in stage.owned("a", "b")]
    assert tasks == [work.tasks for work in before], "connectors may go with the leadership"
    stage.check_all_runs_once("a", "b")
    assert not any(worker.lost or worker.suspended for worker in stage.workers.values())


async def test_when_the_leader_leaves_another_one_leads_and_gives_out_its_work_at_once(
    stage: Stage,
) -> None:
    await stage.start("a", "b", "c")
    first = stage.leader()
    rest = sorted({"a", "b", "c"} - {first.name})
    stage.tasks[first.name].cancel()
    await stage.clock.settle()
    await first.membership.leave()
    assert first.membership.leader_url is None
    await stage.clock.advance(2.5)
    stage.check_all_runs_once(*rest)
    second = stage.leader()
    for name in rest:
        assert stage.workers[name].membership.leader_url == f"http://{second.name}/"


async def test_only_the_leader_knows_who_owns_what(stage: Stage) -> None:
    await stage.start("a", "b")
    leader = stage.leader().membership
    assert leader.member_urls() == ("http://a/", "http://b/")
    for name, worker in stage.workers.items():
        for connector in worker.owned.connectors:
            assert leader.owner_url(connector) == f"http://{name}/"
        for task in worker.owned.tasks:
            assert leader.owner_url(task) == f"http://{name}/"
    assert leader.owner_url("unknown") is None
    (other,) = (w for w in stage.workers.values() if w.membership is not leader)
    assert other.membership.member_urls() == ()
    assert other.membership.owner_url("source") is None


async def test_a_request_and_nothing_else_makes_a_round(stage: Stage) -> None:
    await stage.start("a")
    await stage.clock.advance(60.0)
    worker = stage.workers["a"]
    assert len(worker.rounds) == 1
    worker.store.held = configs({"source": 2}, offset=9)
    worker.membership.request_rejoin()
    await stage.clock.advance(1.0)
    assert worker.log == ["a round was requested"]
    assert worker.owned.tasks == {TaskId("source", 0), TaskId("source", 1)}
    assert worker.rounds[1].config_offset == 9


async def test_a_leader_behind_its_members_reads_on_or_refuses_the_round(stage: Stage) -> None:
    stage.make("a")
    stage.make("b").store.held = configs({"source": 2}, offset=9)
    await stage.start("a")
    second = asyncio.create_task(stage.workers["b"].round())
    await stage.clock.advance(2.5)
    assert (await second).failed
    assert stage.workers["a"].rounds[-1].failed
    assert not stage.workers["b"].owned
    stage.workers["a"].store.newest = configs({"source": 2}, offset=9)
    stage.workers["a"].membership.request_rejoin()
    await stage.clock.settle()
    third = asyncio.create_task(stage.workers["b"].round())
    await stage.clock.advance(2.5)
    assert ((await third).config_offset, (await third).failed) == (9, False)


async def test_connectors_that_are_not_installed_are_not_assigned(stage: Stage) -> None:
    def installed(java_class: str) -> bool:
        return java_class != "x.beat"

    stage.make("a", runnable=installed)
    await stage.start("a")
    assert stage.workers["a"].owned.connectors == {"source"}
    assert len(stage.workers["a"].owned.tasks) == 5


async def test_eager_members_are_given_everything_anew(stage: Stage) -> None:
    one = stage.make("a", connect_protocol="EAGER")
    done = await one.round()
    assert (done.incremental, done.signed, done.assigned) == (False, False, EVERYTHING)


async def test_nothing_that_was_owned_may_be_claimed_after_the_end(stage: Stage) -> None:
    one = stage.make("a")
    signal = await one.membership.signal()
    assert isinstance(signal, Lost)
    assert signal.reason == "not a member"
    await one.round()
    await one.membership.leave()
    with pytest.raises(MembershipLostError, match="the group was left"):
        await one.round()
    one.owned = Work()
    await one.round()
    assert one.owned == EVERYTHING


async def test_a_round_that_failed_is_due_again(stage: Stage) -> None:
    await stage.start("a")
    stage.tasks["a"].cancel()
    await stage.clock.settle()
    worker = stage.workers["a"]
    joining = asyncio.create_task(worker.round())
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    stage.link("a").cut = True
    with pytest.raises(Exception, match="cut off"):
        await worker.round()
    assert await worker.membership.signal() == Rejoin("the last round did not complete")


# ---- foreign members ----


def java_offers() -> tuple[GroupProtocol, ...]:
    return (GroupProtocol("sessioned", encode_metadata(WorkerMetadata(2, "http://java/", 7))),)


async def test_a_java_worker_in_the_group_makes_all_wait_until_it_is_gone(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await stage.start("a", "b")
    java = MemoryCoordinator(stage.group, "java")
    java_id = (await java.join("", java_offers(), 60_000, 60_000)).member_id
    joining = asyncio.create_task(java.join(java_id, java_offers(), 60_000, 60_000))
    await stage.clock.advance(5.0)
    assert (await joining).protocol_name == "sessioned"
    assert stage.owned("a", "b") == [Work(), Work()]
    assert set(stage.group.members) == {java_id}
    joined = await java.join(java_id, java_offers(), 60_000, 60_000)
    await java.sync(java_id, joined.generation_id, "sessioned", {java_id: b""})
    await stage.clock.advance(15.0)
    assert set(stage.group.members) == {java_id}, "ours wait outside"
    await stage.start("c")
    assert set(stage.group.members) == {java_id}, "a newcomer sees it from outside"
    await java.leave(java_id, 1.0)
    await stage.clock.advance(8.0)
    stage.check_all_runs_once("a", "b", "c")
    waiting = [line for line in caplog.messages if line.startswith("waiting for the other members")]
    assert "members=[java at /h]" in waiting[0]
    assert len([line for line in waiting if "members=[java at /h]" in line]) >= 3


async def test_a_group_of_consumers_is_foreign(stage: Stage) -> None:
    worker = stage.make("a")
    consumer = MemoryCoordinator(stage.group, "consumer")
    offers = (GroupProtocol("range", b""),)
    who = (await consumer.join("", offers, 60_000, 60_000)).member_id
    joined = await consumer.join(who, offers, 60_000, 60_000)
    await consumer.sync(who, joined.generation_id, "range", {})
    with pytest.raises(ForeignMemberError, match="consumer at /h"):
        await worker.round()
    assert set(stage.group.members) == {who}
