"""The sole membership of a group while its coordinator is silent, against a scripted coordinator."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.group_membership import SoleMembership
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError, FatalServerError
from mm2py.protocol.call import Call
from mm2py.protocol.connect_group import PROTOCOL_VERSIONS
from mm2py.protocol.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from mm2py.protocol.groups import DescribedGroup, JoinedMember, JoinResult, SyncResult
from mm2py.testing.clock import FakeClock

SESSION_S = 6.0


class Coordinator:
    """Cluster, connection and admin in one; ``answer`` is what heartbeats get."""

    settings = ConnectionSettings(bootstrap_servers=(("b", 1),))

    def __init__(self) -> None:
        self.answer: int | Exception = NONE
        self.closed = False
        self.generation = 0
        self.state = "Empty"
        self.others: tuple[str, ...] = ()
        """Who joins together with us."""
        self.join_errors: list[Exception] = []
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def describe_group(self, group_id: str) -> DescribedGroup:
        return DescribedGroup(group_id, 0, "", self.state, "", "", ())

    async def coordinator(self, _group_id: str, _purpose: str) -> "Coordinator":
        return self

    def coordinator_moved(self, _group_id: str) -> None:
        self.calls.append("moved")

    def discard(self, _reason: str) -> None:
        self.closed = True

    async def call(self, call: Call[object], *, timeout_ms: int | None = None) -> object:
        self.calls.append(call.name)
        if call.name == "JoinGroup":
            (protocol, *_) = PROTOCOL_VERSIONS
            if self.join_errors:
                raise self.join_errors.pop(0)
            self.generation += 1
            if self.generation > 1:
                self.answer = NONE
            members = tuple(JoinedMember(who, None, b"") for who in ("me", *self.others))
            return JoinResult(
                NONE, self.generation, protocol, "me", "me", members, skip_assignment=False
            )
        if call.name == "SyncGroup":
            return SyncResult(NONE, "", b"")
        assert timeout_ms == SESSION_S * 1000
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def call_coordinator(
        self, _group_id: str, call: Call[object], *, code_of: object
    ) -> object:
        self.calls.append(call.name)
        if isinstance(self.answer, Exception):
            await asyncio.Event().wait()
        return NONE


class Stage:
    """A member whose events are ``suspend``, ``resume`` and the reason of its loss."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = Coordinator()
        self.events: list[str] = []
        self.membership = SoleMembership(
            cast("Cluster", self.broker),
            cast("Admin", self.broker),
            "g",
            url="u",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=3_000,
            rebalance_timeout_ms=60_000,
            clock=self.clock,
        )

    def listen(self) -> None:
        self.membership.listen(
            lambda: self.events.append("suspend"), lambda: self.events.append("resume")
        )

    async def watch(self) -> None:
        self.events.append(await self.membership.lost())


def play(body: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage()
        await stage.membership.acquire()
        stage.listen()
        watching = asyncio.create_task(stage.watch())
        try:
            await body(stage)
        finally:
            watching.cancel()
            stage.broker.answer = NONE
            await stage.membership.release()

    asyncio.run(run())


def test_a_silent_coordinator_suspends_and_its_first_answer_resumes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def body(stage: Stage) -> None:
        await stage.clock.advance(9.0)
        assert stage.events == []
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(5.9)
        assert stage.events == []
        await stage.clock.advance(0.2)
        assert stage.events == ["suspend"]
        await stage.clock.advance(60.0)
        stage.broker.answer = COORDINATOR_LOAD_IN_PROGRESS
        await stage.clock.advance(2.0)
        assert stage.events == ["suspend"]
        stage.broker.answer = NONE
        await stage.clock.advance(1.5)
        assert stage.events == ["suspend", "resume"]
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(9.0)
        assert stage.events == ["suspend", "resume", "suspend"]

    play(body)
    lines = [line for line in caplog.messages if "the flow" in line]
    assert ["suspended" in line for line in lines] == [True, False, True]


@pytest.mark.parametrize("code", [ILLEGAL_GENERATION, FENCED_INSTANCE_ID])
def test_a_membership_that_is_over_is_lost_and_nothing_more_is_sent(code: int) -> None:
    async def body(stage: Stage) -> None:
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(7.0)
        stage.broker.answer = code
        await stage.clock.advance(3.0)
        assert stage.events[:2] == ["suspend", "suspend"]
        assert "the coordinator answered" in stage.events[2]

    play(body)


def test_a_coordinator_that_refuses_us_for_good_ends_the_membership() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.answer = FatalServerError(30, "GROUP_AUTHORIZATION_FAILED")
        await stage.clock.advance(3.0)
        assert stage.events == ["suspend", "GROUP_AUTHORIZATION_FAILED (30)"]

    play(body)


def test_a_rebalance_leaves_the_member_time_to_send_what_it_holds() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(7.0)
        stage.broker.answer = REBALANCE_IN_PROGRESS
        await stage.clock.advance(3.0)
        assert stage.events == ["suspend", "resume", "another worker is joining the group"]

    play(body)


def test_an_answer_that_took_a_session_timeout_resumes_nothing() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.gate.clear()
        await stage.clock.advance(9.5)
        assert stage.events == ["suspend"]
        stage.broker.gate.set()
        await stage.clock.settle()
        assert stage.events == ["suspend"], "sent 6.5 s ago"
        await stage.clock.advance(3.0)
        assert stage.events == ["suspend", "resume"]

    play(body)


def test_who_listens_late_is_suspended_at_once() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(7.0)
        stage.listen()
        assert stage.events == ["suspend", "suspend"]

    play(body)


def test_leaving_does_not_wait_long_for_a_coordinator_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(stage: Stage) -> None:
        stage.broker.answer = ConnectionFailedError("refused")
        await stage.clock.advance(7.0)
        began = asyncio.get_running_loop().time()
        await stage.membership.release()
        assert asyncio.get_running_loop().time() - began < 2.0
        assert stage.broker.calls[-1] == "LeaveGroup"

    play(body)
    assert "no answer within 1 s" in caplog.text


# ---- expired ----


async def expire(stage: Stage, rounds: int) -> None:
    """Be silent for longer than a session, then answer that we are no member any more."""
    stage.broker.answer = ConnectionFailedError("refused")
    await stage.clock.advance(7.0)
    stage.broker.generation += rounds
    stage.broker.answer = UNKNOWN_MEMBER_ID
    await stage.clock.advance(3.0)


def test_an_expired_member_joins_again_and_goes_on_where_nobody_else_was_a_member() -> None:
    async def body(stage: Stage) -> None:
        await expire(stage, rounds=1)
        assert stage.events == ["suspend", "suspend", "resume"]
        assert stage.broker.generation == 3
        beats = stage.broker.calls.count("Heartbeat")
        await stage.clock.advance(9.0)
        assert stage.broker.calls.count("Heartbeat") >= beats + 3
        assert stage.events == ["suspend", "suspend", "resume"]

    play(body)


def test_an_expired_member_that_was_not_suspended_is_suspended_while_it_joins() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.generation += 1
        stage.broker.answer = UNKNOWN_MEMBER_ID
        await stage.clock.advance(3.0)
        assert stage.events == ["suspend", "resume"]

    play(body)


@pytest.mark.parametrize("rounds", [0, 2, 3])
def test_an_expired_member_is_lost_when_the_rounds_leave_room_for_another(rounds: int) -> None:
    async def body(stage: Stage) -> None:
        await expire(stage, rounds)
        assert "resume" not in stage.events
        assert f"{rounds + 1} rounds of the group" in stage.events[-1]
        assert stage.broker.calls[-1] == "LeaveGroup"

    play(body)


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance", "Dead"])
def test_an_expired_member_does_not_join_a_group_that_is_not_seen_empty(state: str) -> None:
    async def body(stage: Stage) -> None:
        stage.broker.state = state
        await expire(stage, rounds=1)
        assert "resume" not in stage.events
        assert f"state {state}" in stage.events[-1]
        assert stage.broker.calls.count("JoinGroup") == 1, "the one of acquire"

    play(body)


def test_an_expired_member_leaves_the_flow_to_whoever_joins_beside_it() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.others = ("other",)
        await expire(stage, rounds=1)
        assert "resume" not in stage.events
        assert "at the same time" in stage.events[-1]
        assert stage.broker.calls[-1] == "LeaveGroup"

    play(body)


def test_a_coordinator_that_goes_away_while_we_join_again_is_asked_again() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.join_errors = [ConnectionFailedError("reset")] * 3
        await expire(stage, rounds=1)
        await stage.clock.advance(5.0)
        assert stage.events == ["suspend", "suspend", "resume"]

    play(body)


def test_a_coordinator_that_refuses_the_join_for_good_loses_the_membership() -> None:
    async def body(stage: Stage) -> None:
        stage.broker.join_errors = [FatalServerError(30, "GROUP_AUTHORIZATION_FAILED")]
        await expire(stage, rounds=1)
        assert "resume" not in stage.events
        assert "GROUP_AUTHORIZATION_FAILED" in stage.events[-1]

    play(body)
