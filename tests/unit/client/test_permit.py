"""One object decides whether bytes may leave; its numbered invariants."""

import asyncio

import pytest

from mm2py.client.permit import Permit, check_all
from mm2py.clock import SYSTEM_CLOCK
from mm2py.observability.logging import current_scope, log_scope
from mm2py.testing.clock import FakeClock


def granted() -> tuple[FakeClock, Permit]:
    """A permit for six seconds."""
    clock = FakeClock()
    permit = Permit(clock)
    permit.grant(clock.monotonic() + 6)
    return clock, permit


async def test_nothing_is_allowed_before_the_first_grant_and_behind_the_granted_instant() -> None:
    clock = FakeClock()
    permit = Permit(clock)
    assert not permit.valid
    permit.grant(clock.monotonic() + 6)
    assert permit.allows(permit.term)
    await clock.advance(6)
    assert not permit.allows(permit.term)


async def test_a_frozen_process_finds_its_permit_ended_before_any_timer_ran() -> None:
    clock, permit = granted()
    seen: list[bool] = []
    permit.watch(lambda: seen.append(permit.valid))
    clock.jump(60)
    assert not permit.valid
    check_all()
    assert seen == [False]


async def test_an_earlier_grant_does_not_shorten_a_later_one() -> None:
    clock, permit = granted()
    permit.grant(clock.monotonic() + 2)
    await clock.advance(5)
    assert permit.valid


async def test_a_grant_without_time_left_allows_nothing() -> None:
    clock = FakeClock()
    permit = Permit(clock)
    permit.grant(clock.monotonic())
    permit.grant(clock.monotonic() - 5)
    assert not permit.valid
    permit.grant(clock.monotonic() + 60)
    assert permit.valid


async def test_a_revoked_permit_is_valid_again_in_the_same_term() -> None:
    clock, permit = granted()
    term = permit.term
    permit.revoke()
    assert not permit.allows(term)
    permit.grant(clock.monotonic() + 6)
    assert permit.allows(term)


async def test_what_belongs_to_an_abandoned_term_is_never_allowed_again() -> None:
    clock, permit = granted()
    before = permit.term
    permit.abandon()
    permit.grant(clock.monotonic() + 6)
    assert permit.valid
    assert not permit.allows(before)
    assert permit.allows(permit.term)


async def test_a_permit_that_follows_another_one_ends_its_term_with_it() -> None:
    clock = FakeClock()
    permit, other = Permit(clock), Permit(clock)
    other.abandon()
    other.grant(clock.monotonic() + 6)
    before = permit.term
    permit.follow(other.term, other.until_s)
    assert not permit.allows(before)
    assert permit.allows(other.term)


async def test_watchers_hear_of_each_change_once_and_of_each_abandoned_term() -> None:
    clock = FakeClock()
    permit = Permit(clock)
    seen: list[tuple[int, bool]] = []
    end = permit.watch(lambda: seen.append((permit.term, permit.valid)))
    permit.grant(clock.monotonic() + 6)
    permit.grant(clock.monotonic() + 8)
    permit.revoke()
    permit.revoke()
    permit.abandon()
    end()
    permit.grant(clock.monotonic() + 6)
    assert seen == [(0, True), (0, True), (0, False), (1, False)]


async def test_watchers_hear_of_the_end_without_being_asked() -> None:
    permit = Permit(SYSTEM_CLOCK)
    ended = asyncio.Event()
    permit.grant(SYSTEM_CLOCK.monotonic() + 0.05)
    permit.watch(ended.set)
    async with asyncio.timeout(10):
        await ended.wait()
    assert not permit.valid


async def test_a_watcher_runs_in_its_own_scope_whoever_sees_the_end() -> None:
    clock = FakeClock()
    permit = Permit(clock)
    seen: list[str] = []
    with log_scope("A->B", "MirrorSourceConnector", "task-0"):
        permit.watch(lambda: seen.append(current_scope()))
        permit.watch(lambda: permit.abandon() if permit.term == 0 and not permit.valid else None)
    permit.grant(clock.monotonic() + 6)
    clock.jump(60)
    with log_scope("C->D"):
        check_all()  # as a signal handler does after a suspension
    assert seen == ["[A->B|MirrorSourceConnector|task-0] "] * 3


async def test_a_watcher_with_a_defect_leaves_no_other_one_writing() -> None:
    permit = Permit(FakeClock(), until_s=100)
    seen: list[bool] = []

    def broken() -> None:
        raise KeyError("a defect")

    permit.watch(broken)
    permit.watch(lambda: seen.append(permit.valid))
    with pytest.raises(KeyError, match="a defect"):
        permit.revoke()
    assert seen == [False]
