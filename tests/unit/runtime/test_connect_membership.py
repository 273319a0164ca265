"""A worker's membership of its group, and the assignment that the leader plans."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mm2py.protocol.connect_group import WorkerMetadata, encode_metadata
from mm2py.protocol.groups import GroupProtocol
from mm2py.runtime.errors import ForeignMemberError
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    RoundPlan,
    assign,
    assign_eager,
)
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin
from mm2py.testing.clock import FakeClock
from mm2py.types import TaskId, Work
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.membership_rig import Configs, Worker, configs, working

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

    async def leaves(self, name: str) -> None:
        self.tasks[name].cancel()
        await self.clock.settle()
        await self.workers[name].membership.leave()

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


async def test_lost_work_runs_again_as_soon_as_the_delay_is_over(stage: Stage) -> None:
    await stage.start("a", "b", "c")
    leaver = next(name for name in ("a", "b", "c") if name != stage.leader().name)
    rest = sorted({"a", "b", "c"} - {leaver})
    await stage.leaves(leaver)
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


@pytest.mark.parametrize(("away_s", "gather_s", "expired"), [(5.0, 0.0, False), (10.0, 3.0, True)])
async def test_workers_whose_coordinator_was_away_for_all_keep_what_they_have(
    stage: Stage, away_s: float, gather_s: float, *, expired: bool
) -> None:
    stage.group.gather_s = gather_s
    await stage.start("a", "b")
    before = stage.owned("a", "b")
    for name in ("a", "b"):
        stage.link(name).cut = True
    await stage.clock.advance(away_s)
    assert not expired or all(worker.suspended for worker in stage.workers.values())
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
    await stage.leaves(first.name)
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


# ---- the assignor


DELAY_MS = 3_000
NOW_MS = 50_000


def tasks(*numbers: int, connector: str = "c") -> Work:
    return Work(tasks=frozenset(TaskId(connector, number) for number in numbers))


ALL = Work(frozenset("c")) | tasks(0, 1, 2, 3)


def play(
    state: AssignorState,
    owned: Mapping[str, Work],
    configured: Work = ALL,
    *,
    now_ms: int = NOW_MS,
    max_delay_ms: int = DELAY_MS,
    generation: int | None = None,
) -> RoundPlan:
    return assign(
        state,
        {who: MemberView(f"http://{who}/", 7, work) for who, work in owned.items()},
        configured,
        leader="a",
        generation=state.previous_generation + 1 if generation is None else generation,
        now_ms=now_ms,
        max_delay_ms=max_delay_ms,
    )


def settled(*members: str) -> RoundPlan:
    plan = play(FRESH, dict.fromkeys(members, NO_WORK))
    return play(plan.state, plan.owners)


def test_a_leaver_is_waited_for_and_then_replaced() -> None:
    plan = settled("a", "b")
    gone = plan.owners["b"]
    first = play(plan.state, {"a": plan.owners["a"]})
    assert (first.delay_ms, first.assigned["a"]) == (DELAY_MS, NO_WORK)
    during = play(first.state, first.owners, now_ms=NOW_MS + 1_000)
    assert (during.delay_ms, during.assigned["a"]) == (DELAY_MS - 1_000, NO_WORK)
    after = play(during.state, during.owners, now_ms=NOW_MS + DELAY_MS)
    assert (after.delay_ms, after.assigned["a"]) == (0, gone)


def test_nothing_is_revoked_for_balance_while_the_delay_runs() -> None:
    plan = settled("a", "b")
    first = play(plan.state, {"a": plan.owners["a"], "new": NO_WORK})
    assert first.delay_ms == DELAY_MS
    assert not any(first.revoked.values())


def test_lost_work_that_reappears_ends_the_delay() -> None:
    plan = settled("a", "b")
    first = play(plan.state, {"a": plan.owners["a"]})
    again = play(first.state, plan.owners, now_ms=NOW_MS + 500)
    assert again.delay_ms == 0
    assert again.state.delay_ends_ms is None
    assert again.owners == plan.owners


def test_a_new_leader_gives_out_at_once_what_nobody_runs() -> None:
    plan = settled("a", "b")
    after = play(FRESH, {"a": plan.owners["a"]}, generation=9)
    assert (after.delay_ms, after.owners) == (0, {"a": ALL})


def test_a_round_between_that_did_not_complete_empties_what_the_leader_remembers() -> None:
    plan = settled("a", "b")
    after = play(plan.state, {"a": plan.owners["a"]}, generation=plan.state.previous_generation + 2)
    assert (after.delay_ms, after.owners) == (0, {"a": ALL})


def test_deleted_connectors_and_tasks_are_revoked_where_they_run_also_by_a_new_leader() -> None:
    plan = settled("a", "b")
    for state in (plan.state, FRESH):
        after = play(state, plan.owners, tasks(0), generation=plan.state.previous_generation + 1)
        assert after.owners["a"] | after.owners["b"] == tasks(0)
        assert not any(after.assigned.values())


def test_rounds_that_revoke_for_balance_are_spaced_and_the_pause_grows() -> None:
    state, now_ms, pauses = settled("a").state, NOW_MS, list[int]()
    for _ in range(4):
        plan = play(state, {"a": ALL, "b": NO_WORK}, now_ms=now_ms)  # stopped, and started again
        assert any(plan.revoked.values())
        waiting = play(plan.state, {"a": ALL, "b": NO_WORK}, now_ms=now_ms)
        assert not any(waiting.revoked.values())
        pauses.append(waiting.delay_ms)
        state, now_ms = waiting.state, now_ms + waiting.delay_ms
    assert pauses == [1, 40, 1_600, DELAY_MS]
    calm = play(state, {"a": tasks(0, 1), "b": tasks(2, 3)}, ALL, now_ms=now_ms)
    assert calm.state.revocations == 0


def test_connectors_run_on_the_leader_and_are_revoked_elsewhere_first() -> None:
    """A change of the leader, also one of workers that spread connectors before: the tasks stay."""
    plan = play(FRESH, {"b": Work(frozenset("c")) | tasks(0, 1), "a": tasks(2, 3)})
    assert plan.revoked == {"a": NO_WORK, "b": Work(frozenset("c"))}
    assert not any(plan.assigned.values()), "not before the old owner has stopped it"
    second = play(plan.state, plan.owners)
    assert second.assigned == {"a": Work(frozenset("c")), "b": NO_WORK}
    assert not any(second.revoked.values())


def test_eager_deals_tasks_round_robin_and_connectors_to_the_leader() -> None:
    work = Work(frozenset({"x", "y", "z"})) | tasks(0, 1, connector="x")
    dealt = assign_eager(["b", "a"], work, leader="b")
    assert dealt["a"] == Work(tasks=frozenset({TaskId("x", 0)}))
    assert dealt["b"] == Work(work.connectors, frozenset({TaskId("x", 1)}))
