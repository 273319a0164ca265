"""A member of a group: its rounds, its coordinator, when it may write, and what ends a membership."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import (
    CoordinatorLink,
    InconsistentProtocolError,
    Joined,
    MembershipEndedError,
)
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit, check_all
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError, FatalServerError, RetriableError, ServerError
from mm2py.observability.logging import current_scope, log_scope
from mm2py.protocol.call import Call
from mm2py.protocol.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    ILLEGAL_GENERATION,
    NONE,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
    server_error,
)
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult
from mm2py.testing.clock import FakeClock
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup

SESSION_S, REBALANCE_S = 6.0, 60.0
OFFERS = (GroupProtocol("p", b"meta"),)


class Member:
    """A member that may be cut off, whose events are ``suspend`` and ``resume`` of its permit and what ``changed`` returned.

    The first grant is no event.
    """

    def __init__(self, group: MemoryGroup, name: str) -> None:
        self.link = MemoryCoordinator(group, name)
        self.events: list[str] = []
        self.valid_ms: list[int] = []
        self.permit = Permit(group.clock)
        self.permit.watch(self._permit_changed)
        self.member = GroupMember(
            self.link,
            self.permit,
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=2_000,
            rebalance_timeout_ms=int(REBALANCE_S * 1000),
            clock=group.clock,
        )
        self._clock = group.clock
        self._was_valid: bool | None = None

    def _permit_changed(self) -> None:
        valid = self.permit.valid
        if valid:
            self.valid_ms.append(round((self.permit.until_s - self._clock.monotonic()) * 1000))
        if self._was_valid is not None and valid != self._was_valid:
            self.events.append("resume" if valid else "suspend")
        if valid or self._was_valid is not None:
            self._was_valid = valid

    async def round(self) -> Joined:
        while True:
            joined = await self.member.join(OFFERS)
            work = {who: who.encode() for who in joined.members}
            if await self.member.sync(joined, work) is not None:
                return joined

    async def expired(self) -> None:
        """It was in a round, and then cut off for longer than its session."""
        await self.round()
        self.link.cut = True
        await self._clock.advance(8.0)
        self.link.cut = False

    async def watch(self) -> None:
        self.events.append("changed:" + await self.member.changed())


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.group = MemoryGroup(self.clock)
        self.one, self.two = Member(self.group, "one"), Member(self.group, "two")

    async def together(self) -> None:
        """Both are members of one generation."""
        await self.one.round()
        second = asyncio.create_task(self.two.round())
        await self.clock.settle()
        await self.one.round()
        await second
        self.one.events.clear()


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    async with stage.group.running():
        try:
            yield stage
        finally:
            for member in (stage.one, stage.two):
                member.link.cut = False
                await member.member.leave()


async def test_heartbeats_go_on_while_a_join_waits_and_confirm_the_membership(stage: Stage) -> None:
    await stage.together()
    joining = asyncio.create_task(stage.one.round())  # the other one is slow
    await stage.clock.settle()
    stage.one.valid_ms.clear()
    await stage.clock.advance(10.0)
    assert not joining.done()
    assert stage.one.events == []
    assert len(stage.one.valid_ms) >= 4
    assert set(stage.one.valid_ms) == {6_000}
    await asyncio.gather(joining, stage.two.round())


async def test_a_silent_coordinator_suspends_and_its_first_answer_resumes(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    await stage.one.round()
    stage.one.link.beat_answer = server_error(COORDINATOR_NOT_AVAILABLE, "g")
    await stage.clock.advance(5.9)
    assert stage.one.events == []
    await stage.clock.advance(0.2)
    assert stage.one.events == ["suspend"]
    assert not stage.one.permit.valid
    assert "COORDINATOR_NOT_AVAILABLE" in stage.one.permit.cause
    stage.group.members["one-1"].heard_s = stage.clock.monotonic()
    stage.one.link.beat_answer = None
    await stage.clock.advance(3.0)
    assert stage.one.events == ["suspend", "resume"]
    lines = [line for line in caplog.messages if "the flow" in line]
    assert ["flow is suspended" in line for line in lines] == [True, False]
    assert "cause=COORDINATOR_NOT_AVAILABLE" in lines[0]
    assert "the flow continues" in lines[-1]
    assert stage.one.permit.cause == ""


async def test_a_silence_noticed_after_a_suspension_is_logged_with_the_flow(stage: Stage) -> None:
    scopes: dict[str, str] = {}

    def note(record: logging.LogRecord) -> bool:
        scopes[record.getMessage()] = current_scope()
        return True

    logger = logging.getLogger("mm2py.client.group.member")
    logger.addFilter(note)
    try:
        with log_scope("A->B"):
            await stage.one.round()
            await stage.clock.settle()
        stage.clock.jump(60)
        check_all()  # as a signal handler does, outside of any flow
    finally:
        logger.removeFilter(note)
    ((line, scope),) = scopes.items()
    assert line.startswith("group coordinator is silent")
    assert scope == "[A->B] "


async def test_an_answer_that_took_a_session_timeout_resumes_nothing(stage: Stage) -> None:
    await stage.one.round()
    stage.one.link.beat_gate.clear()
    stage.group.members["one-1"].heard_s = float("inf")  # only the answer is late
    await stage.clock.advance(8.5)
    assert stage.one.events == ["suspend"]
    stage.one.link.beat_gate.set()
    await stage.clock.settle()
    assert stage.one.events == ["suspend"], "sent 6.5 s ago"
    await stage.clock.advance(3.0)
    assert stage.one.events == ["suspend", "resume"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ILLEGAL_GENERATION, "the coordinator answered"),
        (FENCED_INSTANCE_ID, "the coordinator answered"),
        (FatalServerError(30, "GROUP_AUTHORIZATION_FAILED"), "GROUP_AUTHORIZATION_FAILED (30)"),
    ],
)
async def test_a_membership_that_is_over_suspends_and_says_why(
    stage: Stage, caplog: pytest.LogCaptureFixture, answer: int | Exception, said: str
) -> None:
    await stage.one.round()
    watching = asyncio.create_task(stage.one.watch())
    stage.one.link.beat_answer = answer
    await stage.clock.advance(2.0)
    await watching
    assert stage.one.events[0] == "suspend"
    assert said in stage.one.events[1]
    assert said in stage.one.member.over
    assert "coordinator is silent" not in caplog.text
    stage.one.link.beat_answer = None
    await stage.one.round()
    assert stage.one.member.over == ""
    assert stage.one.events[2:] == ["resume"]


async def test_a_member_that_is_expired_while_others_stay_is_over(stage: Stage) -> None:
    await stage.together()
    stage.two.link.cut = True
    watching = asyncio.create_task(stage.two.watch())
    await stage.clock.advance(SESSION_S + 0.5)
    await stage.one.round()
    stage.two.link.cut = False
    await stage.clock.advance(2.0)
    await watching
    assert stage.two.events[0] == "suspend"
    assert "resume" not in stage.two.events
    assert "another worker is in the group" in stage.two.events[-1]
    assert "another worker is in the group" in stage.two.member.over


async def test_members_that_expired_together_and_saw_the_group_empty_go_on(stage: Stage) -> None:
    await stage.together()
    stage.group.gather_s = 3.0
    stage.one.link.cut = stage.two.link.cut = True
    await stage.clock.advance(8.0)
    assert (stage.group.state, stage.group.generation) == ("Empty", 3)
    stage.one.link.cut = stage.two.link.cut = False
    watching = [asyncio.create_task(m.watch()) for m in (stage.one, stage.two)]
    await stage.clock.advance(3.0)
    await asyncio.gather(*watching)
    assert "changed:" in stage.one.events
    assert "changed:" in stage.two.events
    rounds = [asyncio.create_task(m.round()) for m in (stage.one, stage.two)]
    await stage.clock.advance(3.5)
    joined = await asyncio.gather(*rounds)
    assert [j.generation for j in joined] == [4, 4]
    assert stage.one.events[-1] == stage.two.events[-1] == "resume"


async def test_an_expired_member_that_was_alone_waits_for_no_other(stage: Stage) -> None:
    await stage.one.expired()
    watching = asyncio.create_task(stage.one.watch())
    await stage.clock.advance(1.2)  # its next heartbeat is refused
    assert watching.done()
    assert stage.one.events == ["suspend", "changed:"]
    assert (await stage.one.round()).generation == stage.group.generation
    assert stage.one.events[-1] == "resume"


async def test_an_expired_member_stays_suspended_until_its_round_is_done(stage: Stage) -> None:
    joined = await joined_after_an_expiry(stage)
    await stage.clock.advance(3.0)
    assert "resume" not in stage.one.events
    assert await stage.one.member.sync(joined, {}) is not None
    assert stage.one.events[-1] == "resume"


@pytest.mark.parametrize("rounds", [1, 2])
async def test_an_expired_member_is_over_when_the_rounds_leave_room_for_another(
    stage: Stage, rounds: int
) -> None:
    await stage.one.expired()
    stage.group.generation += rounds
    await stage.clock.advance(3.0)
    with pytest.raises(MembershipEndedError, match=f"{rounds + 2} rounds"):
        await stage.one.round()
    assert stage.one.link.calls[-1] == "leave"
    assert "resume" not in stage.one.events
    await stage.one.round()
    assert stage.one.events[-1] == "resume"


async def joined_after_an_expiry(stage: Stage) -> Joined:
    """Our only member was expired and has joined again; the round is not stored."""
    await stage.one.expired()
    await stage.clock.advance(3.0)
    return await stage.one.member.join(OFFERS)


@pytest.mark.parametrize("another", [False, True])
async def test_an_expired_member_continues_when_its_round_is_forgotten_unless_another_had_it(
    stage: Stage, *, another: bool
) -> None:
    joined = await joined_after_an_expiry(stage)
    stage.group.reload()
    if another:
        assert (await stage.two.round()).generation == joined.generation
        await stage.two.member.leave()
    assert await stage.one.member.sync(joined, {}) is None
    with pytest.raises(MembershipEndedError, match="4 rounds") if another else nullcontext():
        assert (await stage.one.round()).generation == joined.generation
    assert ("resume" in stage.one.events) is not another
    assert ("4 rounds" in stage.one.member.over) is another


async def test_a_join_that_finds_itself_expired_is_over_beside_others(stage: Stage) -> None:
    await stage.together()
    stage.group.remove("two-2")
    await stage.one.round()
    with pytest.raises(MembershipEndedError, match="another worker is in the group"):
        await stage.two.round()
    assert set(stage.two.events) == {"suspend"}


async def test_an_answer_to_an_old_heartbeat_ends_no_renewed_membership(stage: Stage) -> None:
    await stage.one.round()
    stage.one.link.cut = True
    with pytest.raises(RetriableError):
        await stage.one.member.join(OFFERS)
    stage.one.link.cut = False
    stage.one.link.beat_answer = ILLEGAL_GENERATION  # the join was done, its answer was lost
    await stage.clock.advance(3.0)
    assert stage.one.member.over == ""
    stage.one.link.beat_answer = None
    await stage.one.round()
    assert stage.one.events == []


async def test_a_group_of_another_protocol_is_refused(stage: Stage) -> None:
    await stage.one.round()
    with pytest.raises(InconsistentProtocolError):
        await stage.two.member.join((GroupProtocol("q", b""),))


async def test_a_watcher_of_the_permit_that_fails_ends_the_membership_visibly(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug of the caller")

    await stage.one.round()
    watching = asyncio.create_task(stage.one.watch())
    end_watch = stage.one.permit.watch(fail)
    await stage.clock.advance(2.0)
    await watching
    assert stage.one.events[0] == "suspend"
    assert "heartbeats failed" in stage.one.events[1]
    end_watch()
    assert "a bug of the caller" in caplog.text


async def test_a_cancelled_join_leaves_nothing_behind(stage: Stage) -> None:
    assert await stage.one.member.changed() == stage.one.member.over == "not a member"
    await stage.one.round()
    joining = asyncio.create_task(stage.two.round())
    await stage.clock.settle()
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    await stage.two.member.leave()
    assert set(stage.group.members) == {"one-1"}


async def test_a_member_that_does_not_join_is_suspended_before_it_is_removed(stage: Stage) -> None:
    await stage.one.round()
    changes: list[tuple[bool, float]] = []
    permit, clock = stage.one.permit, stage.clock
    permit.watch(lambda: changes.append((permit.valid, clock.monotonic())))
    await stage.clock.advance(3)
    began = stage.clock.monotonic()
    joining = asyncio.create_task(stage.two.member.join(OFFERS))
    while not joining.done():
        assert stage.clock.monotonic() < began + 2 * REBALANCE_S
        await stage.clock.advance(0.25)
    assert list(stage.group.members) == [joining.result().member_id], "the busy one was removed"
    suspended_s = next(at_s for valid, at_s in changes if not valid)
    assert began + SESSION_S < suspended_s, "its heartbeats were answered all the time"
    assert suspended_s <= began + REBALANCE_S


class Connection:
    def __init__(self, cluster: "ScriptedCluster", purpose: str) -> None:
        self._cluster, self.purpose = cluster, purpose
        self.dropped = ""

    def discard(self, reason: str) -> None:
        self.dropped = reason

    async def call(self, call: Call[object], *, timeout_ms: int | None = None) -> object:
        cluster = self._cluster
        cluster.calls.append((call.name, self.purpose, timeout_ms))
        answer = cluster.answers[call.name]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedCluster:
    """Answers by request name; None never answers."""

    settings = ConnectionSettings(bootstrap_servers=(("b", 1),))

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.calls: list[tuple[str, str, int | None]] = []
        self.connections: list[Connection] = []
        self.moved = 0

    async def coordinator(self, _group_id: str, purpose: str = "coordinator") -> Connection:
        self.connections.append(Connection(self, purpose))
        return self.connections[-1]

    def coordinator_moved(self, _group_id: str) -> None:
        self.moved += 1

    def denied(self, code: int, operation: str, name: str) -> ServerError | None:
        return (
            server_error(code, f"{operation} {name}")
            if code == GROUP_AUTHORIZATION_FAILED
            else None
        )

    async def call_coordinator(
        self, _group_id: str, call: Call[object], *, code_of: Callable[[int], int]
    ) -> object:
        assert code_of(NOT_COORDINATOR)
        assert not code_of(UNKNOWN_MEMBER_ID), "who is no member any more has left"
        return await Connection(self, "leave").call(call)


def joined(code: int) -> JoinResult:
    return JoinResult(code, 1, "p", "m", "m", ())


def described(code: int, state: str = "Stable") -> tuple[DescribedGroup, ...]:
    return (DescribedGroup("g", code, "", state, "connect", "p", ()),)


def scripted() -> tuple[ScriptedCluster, CoordinatorLink]:
    cluster = ScriptedCluster()
    return cluster, CoordinatorLink(cast("Cluster", cluster), "g")


async def test_heartbeats_do_not_queue_behind_a_join_that_waits_and_codes_about_the_member_stay_codes() -> (
    None
):
    cluster, link = scripted()
    cluster.answers = {"JoinGroup": joined(NONE), "Heartbeat": NONE}
    await link.join("m", OFFERS, 6_000, 60_000)
    assert await link.heartbeat("m", 1, 6_000) == NONE
    (_, joins, join_ms), (_, beats, beat_ms) = cluster.calls
    assert joins != beats
    assert join_ms == 60_000 + cluster.settings.request_timeout_ms
    assert beat_ms == 6_000
    cluster.answers = {"JoinGroup": joined(UNKNOWN_MEMBER_ID), "Heartbeat": UNKNOWN_MEMBER_ID}
    assert (await link.join("m", OFFERS, 6_000, 60_000)).error_code == UNKNOWN_MEMBER_ID
    assert await link.heartbeat("m", 1, 6_000) == UNKNOWN_MEMBER_ID
    assert cluster.moved == 0


async def test_the_connection_of_a_round_is_closed_when_it_is_done_or_given_up() -> None:
    cluster, link = scripted()
    cluster.answers = {"SyncGroup": SyncResult(NONE, b""), "JoinGroup": None}
    await link.sync("m", 1, "p", {})
    assert cluster.connections[-1].dropped == "the round is done"
    joining = asyncio.create_task(link.join("m", OFFERS, 6_000, 60_000))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert cluster.connections[-1].dropped == "the round was given up"


async def test_a_coordinator_that_moved_or_is_away_is_looked_for_again_and_a_missing_right_named() -> (
    None
):
    cluster, link = scripted()

    def answer(code: int) -> dict[str, object]:
        return {
            "JoinGroup": joined(code),
            "SyncGroup": SyncResult(code, b""),
            "Heartbeat": code,
            "DescribeGroups": described(code),
        }

    cluster.answers = answer(NOT_COORDINATOR)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: link.join("m", OFFERS, 6_000, 60_000),
        lambda: link.sync("m", 1, "p", {}),
        lambda: link.heartbeat("m", 1, 6_000),
        link.describe,
    ]
    for attempt in attempts:
        with pytest.raises(RetriableError, match="NOT_COORDINATOR"):
            await attempt()
    cluster.answers = dict.fromkeys(cluster.answers, ConnectionFailedError("reset"))
    for attempt in attempts:
        with pytest.raises(RetriableError, match="reset"):
            await attempt()
    assert cluster.moved == 8
    cluster.answers = answer(GROUP_AUTHORIZATION_FAILED)
    for attempt in attempts:
        with pytest.raises(FatalServerError, match="Read g"):
            await attempt()


async def test_a_group_that_does_not_exist_is_dead() -> None:
    cluster, link = scripted()
    cluster.answers = {"DescribeGroups": described(69, state="")}
    assert (await link.describe()).state == "Dead"


async def test_leaving_closes_the_connections_and_does_not_wait_for_a_silent_coordinator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, link = scripted()
    cluster.answers = {"Heartbeat": NONE, "LeaveGroup": None}
    await link.heartbeat("m", 1, 6_000)
    await link.leave("m", 0.01)
    assert cluster.connections[0].dropped == "left the group"
    await link.leave("", 0.01)
    assert [name for name, _, _ in cluster.calls] == ["Heartbeat", "LeaveGroup"]
    assert "left without an answer" in caplog.text
