"""What holds a client back, and what is logged of it: pauses and rates, the permit, stalls."""

import asyncio
import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mm2py.client.backoff import Backoff
from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.session import LEAST_BYTES, shares
from mm2py.client.pacing import ByteRate, LongPoll, RequestPace, Throttle
from mm2py.client.permit import Permit, check_all
from mm2py.client.stall_log import SOURCE, TARGET, StallLog
from mm2py.clock import SYSTEM_CLOCK, Arrival, each_of
from mm2py.errors import ConnectionFailedError, FatalError, RequestTimedOutError, RetriableError
from mm2py.observability.logging import current_scope, log_scope
from mm2py.protocol.error_codes import (
    FENCED_LEADER_EPOCH,
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock

MIB = 1 << 20


def test_a_throttle_lasts_as_long_as_the_longest_answer_asked() -> None:
    clock = EagerClock()
    throttle = Throttle(clock)
    assert throttle.remaining_s() == 0
    throttle.honour(0)
    throttle.honour(500)
    throttle.honour(100)
    assert throttle.remaining_s() == pytest.approx(0.5)
    clock.seconds += 0.6
    assert throttle.remaining_s() == 0


def test_a_byte_rate_is_kept_on_average_whatever_the_size_of_an_answer() -> None:
    clock = EagerClock()
    rate = ByteRate(1000, clock)
    spent = 0
    for size in (1, 5000, 20, 900, 3000) * 10:
        while delay_s := rate.delay_s():
            clock.seconds += delay_s
        assert rate.room_bytes() > 0
        rate.spend(size)
        spent += size
    # Less than one largest answer and what may be saved up.
    assert spent - 5250 <= (clock.seconds - 1000) * 1000 <= spent + 250


def test_a_rate_that_is_changed_is_kept_from_that_moment_on() -> None:
    clock = EagerClock()
    rate = ByteRate(1000, clock)
    rate.spend(10_250)  # ten seconds of it
    clock.seconds += 5
    assert rate.delay_s() == 1, "soon enough to see another rate"
    rate.change(100_000)
    clock.seconds += 0.05
    assert rate.room_bytes() == 0
    clock.seconds += 60
    assert rate.room_bytes() == 25_000
    rate.change(1000)
    assert rate.room_bytes() == 250, "what was saved up at the former rate is not read at this one"


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        ByteRate(0, EagerClock())


def cursors(lags_ms: list[int], now_ms: int) -> list[Cursor]:
    made: list[Cursor] = []
    for index, lag in enumerate(lags_ms):
        cursor = Cursor(TopicPartition("t", index), 0)
        cursor.newest_ms = now_ms - lag
        made.append(cursor)
    return made


def test_few_partitions_are_not_limited_and_an_old_limit_is_taken_back() -> None:
    backlogged = cursors([10, 20], 5000)
    assert list(shares(backlogged, MIB, 4 * MIB, 5000)) == []
    backlogged[0].share_bytes = LEAST_BYTES
    assert list(shares(backlogged, MIB, 4 * MIB, 5000)) == [(backlogged[0], 0)]


def test_the_partition_furthest_behind_gets_most_and_each_has_room_for_its_batches() -> None:
    now_ms = 10_000_000
    backlogged = cursors([3_600_000] + [2_000] * 32, now_ms)
    backlogged[1].batch_bytes = 400_000
    found = dict(shares(backlogged, MIB, 4 * MIB, now_ms))
    assert found[backlogged[0]] == MIB
    assert 800_000 <= found[backlogged[1]] <= MIB
    assert {found[cursor] for cursor in backlogged[2:]} == {LEAST_BYTES}


def test_equal_lags_get_equal_shares_that_fill_the_answer() -> None:
    now_ms = 10_000_000
    backlogged = cursors([60_000] * 8, now_ms)
    found = dict(shares(backlogged, MIB, 4 * MIB, now_ms))
    assert set(found.values()) == {4 * MIB // 8}
    for cursor, share in found.items():
        cursor.share_bytes = share
    assert list(shares(backlogged, MIB, 4 * MIB, now_ms + 500)) == []


# ---- holds ----


def test_a_release_takes_effect_within_a_tenth_of_its_hold() -> None:
    clock = EagerClock()
    poll = LongPoll(clock)
    assert poll.wait_ms(500) == 500
    poll.hold("a")
    assert poll.wait_ms(500) == 10
    clock.seconds += 2.0
    poll.hold("a")
    assert poll.wait_ms(500) == 200
    poll.hold("b")
    assert poll.wait_ms(500) == 10
    assert poll.wait_ms(5) == 5, "what was configured is the longest"
    poll.release("b")
    assert poll.wait_ms(500) == 200
    poll.release("a")
    poll.release("a")
    assert poll.wait_ms(500) == 500


def test_a_hold_that_lasts_costs_no_more_polls_than_none() -> None:
    clock = EagerClock()
    poll = LongPoll(clock)
    poll.hold("a")
    polls = 0
    while clock.seconds < 1000 + 3600:
        clock.seconds += poll.wait_ms(500) / 1000
        polls += 1
    assert polls < 2 * 3600 + 60


@pytest.mark.parametrize(
    ("initial_ms", "most_ms", "chance", "pauses_s"),
    [
        (100, 1000, 0.5, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (100, 1000, 0.0, [0.08]),
        (100, 1000, 1.0, [0.12]),
        (500, 100, 0.5, [0.5]),
    ],
    ids=["doubles up to its maximum", "a fifth less", "a fifth more", "maximum below the initial"],
)
def test_a_pause_doubles_with_a_jitter_of_a_fifth(
    initial_ms: int, most_ms: int, chance: float, pauses_s: list[float]
) -> None:
    backoff = Backoff(initial_ms, most_ms, random=lambda: chance)
    assert [round(backoff.next_s(), 3) for _ in pauses_s] == pauses_s
    backoff.failures = 100_000
    assert backoff.next_s() < 1.3, "thousands of failures do not overflow"
    backoff.reset()
    assert (backoff.failures, round(backoff.next_s(), 3)) == (0, pauses_s[0])


async def test_no_second_has_more_turns_than_allowed_and_each_address_has_its_own() -> None:
    clock = EagerClock()
    pace = RequestPace(5, clock)
    given: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(40):
        for address, turns in given.items():
            await pace.turn(address)
            turns.append(clock.seconds)
        clock.seconds += 0.05 * (number % 7)
    for turns in given.values():
        assert all(late - early >= 1 for early, late in zip(turns, turns[5:], strict=False))
    assert given["a"][4] - given["a"][0] < 1, "the first ones do not wait"


async def test_a_call_that_is_cancelled_takes_no_turn() -> None:
    clock = FakeClock()
    pace = RequestPace(5, clock)
    waiting = [asyncio.create_task(pace.turn("a")) for _ in range(100)]
    await clock.advance(3.5)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    begun = clock.monotonic()
    next_one = asyncio.create_task(pace.turn("a"))
    while not next_one.done():
        await clock.advance(0.25)
    assert clock.monotonic() - begun <= 1


# -- one object decides whether bytes may leave; its numbered invariants


def granted() -> tuple[FakeClock, Permit]:
    """A permit for six seconds."""
    clock = FakeClock()
    permit = Permit(clock)
    permit.grant(clock.monotonic() + 6)
    return clock, permit


async def test_a_permit_allows_from_a_grant_with_time_left_to_the_latest_granted_instant() -> None:
    clock = FakeClock()
    permit = Permit(clock)
    for seconds in (None, 0, -5):
        if seconds is not None:
            permit.grant(clock.monotonic() + seconds)
        assert not permit.valid
    permit.grant(clock.monotonic() + 6)
    permit.grant(clock.monotonic() + 2)
    await clock.advance(5)
    assert permit.allows(permit.term), "an earlier grant does not shorten a later one"
    await clock.advance(1)
    assert not permit.allows(permit.term)


async def test_a_revoked_term_continues_with_a_grant_and_an_abandoned_one_never() -> None:
    clock, permit = granted()
    term = permit.term
    permit.revoke()
    assert not permit.allows(term)
    permit.grant(clock.monotonic() + 6)
    assert permit.allows(term)
    permit.abandon()
    permit.grant(clock.monotonic() + 6)
    assert (permit.valid, permit.allows(term), permit.allows(permit.term)) == (True, False, True)


async def test_a_frozen_process_finds_its_permit_ended_before_any_timer_ran() -> None:
    clock, permit = granted()
    seen: list[bool] = []
    permit.watch(lambda: seen.append(permit.valid))
    clock.jump(60)
    assert not permit.valid
    check_all()
    assert seen == [False]


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
    async with asyncio.timeout(90):
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


# -- a stall of any number of partitions is one line when it begins and one when it ends


MANY = [TopicPartition("orders", number) for number in range(1000)]


class Bench:
    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO)
        self.log = log
        self.clock = FakeClock()
        self.stalls = StallLog(TARGET, self.clock)

    def lines(self) -> list[str]:
        found = [f"{record.levelname} {record.getMessage()}" for record in self.log.records]
        self.log.clear()
        return found


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(caplog)


async def test_a_broker_that_is_away_is_one_line_for_a_thousand_partitions_and_one_at_the_end(
    bench: Bench,
) -> None:
    for tp in MANY:
        bench.stalls.stalled(tp, ConnectionFailedError(f"no connection for {tp}"))
    assert bench.lines() == []
    await bench.clock.advance(0.5)
    assert bench.lines() == [
        "WARNING target cannot be reached, retrying without end partitions=1000"
        " (orders-0, orders-1, ...) since_s=0 cause=no connection for orders-0"
    ]
    for tp in reversed(MANY):
        bench.stalls.moving(tp)
    await bench.clock.advance(0.5)
    assert bench.lines() == [
        "INFO target takes partitions again partitions=1000 (orders-0, orders-1, ...)"
        " cause_was=no connection for orders-0"
    ]
    await bench.clock.advance(300)
    assert (bench.lines(), bench.clock.sleepers) == ([], 0)


async def test_a_stall_that_lasts_is_said_each_minute_with_its_count(bench: Bench) -> None:
    for number, tp in enumerate(MANY):
        bench.stalls.stalled(tp, FatalError("no"))
        if number % 10 == 0:
            await bench.clock.advance(1.0)
    lines = bench.lines()
    assert len(lines) == 2
    assert "partitions=1 (orders-0)" in lines[0]
    assert "partitions=601 (orders-0, orders-1, ...) since_s=60" in lines[1]
    for tp in MANY:
        bench.stalls.moving(tp)
    await bench.clock.advance(1.0)
    (end,) = bench.lines()
    assert "partitions=1000" in end


@pytest.mark.parametrize(
    "code", [UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, FENCED_LEADER_EPOCH]
)
async def test_topics_without_a_leader_for_a_moment_are_normal(bench: Bench, code: int) -> None:
    for tp in MANY[:20]:
        bench.stalls.stalled(tp, server_error(code, str(tp)))
        await bench.clock.advance(2.0)
        bench.stalls.stalled(tp, server_error(code, str(tp)))
        await bench.clock.advance(2.0)
        bench.stalls.moving(tp)
    assert bench.lines() == []
    bench.stalls.stalled(MANY[0], server_error(code, "orders-0"))
    await bench.clock.advance(4.9)
    assert bench.lines() == []
    await bench.clock.advance(0.6)
    (line,) = bench.lines()
    assert "target refuses partitions, retrying without end partitions=1 (orders-0)" in line
    bench.stalls.close()


async def test_causes_are_distinguished_by_what_they_were_raised_from(bench: Bench) -> None:
    refused = RequestTimedOutError("call x did not succeed")
    refused.__cause__ = server_error(TOPIC_AUTHORIZATION_FAILED, "orders-0")
    bench.stalls.stalled(MANY[0], refused)
    bench.stalls.stalled(MANY[1], server_error(TOPIC_AUTHORIZATION_FAILED, "orders-1"))
    bench.stalls.stalled(MANY[2], RequestTimedOutError("no answer within 30000 ms"))
    await bench.clock.advance(1.0)
    refusal, away = bench.lines()
    assert "target refuses partitions, retrying without end partitions=2" in refusal
    assert "target cannot be reached, retrying without end partitions=1" in away
    bench.stalls.close()


async def test_a_cause_that_changes_and_a_partition_that_failed_end_nothing(bench: Bench) -> None:
    away, moved = ConnectionFailedError("away"), server_error(FENCED_LEADER_EPOCH, "x")
    for tp in MANY[:3]:
        bench.stalls.stalled(tp, away)
    await bench.clock.advance(0.5)
    assert len(bench.lines()) == 1
    for error in (moved, away, moved):
        for tp in MANY[:3]:
            bench.stalls.stalled(tp, error)
        await bench.clock.advance(1.0)
    assert bench.lines() == []
    bench.stalls.forget(MANY[0])
    bench.stalls.moving(MANY[1])
    bench.stalls.moving(MANY[2])
    await bench.clock.advance(1.0)
    (line,) = bench.lines()
    assert "again partitions=2 (orders-1, orders-2) cause_was=away" in line
    await bench.clock.advance(120.0)
    assert (bench.lines(), bench.clock.sleepers) == ([], 0)


async def test_lines_have_the_scope_of_the_task_also_an_end_that_is_due_when_the_task_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scopes: list[str] = []

    def note(_record: logging.LogRecord) -> bool:
        scopes.append(current_scope())
        return True

    logger = logging.getLogger("mm2py.client.stall_log")
    clock = FakeClock()
    with log_scope("A->B", "MirrorSourceConnector", "task-0"):
        stalls = StallLog(SOURCE, clock)
    caplog.set_level(logging.INFO)
    logger.addFilter(note)
    try:
        with log_scope("C->D"):
            stalls.stalled(MANY[0], FatalError("no"))
        await clock.advance(0.5)
        stalls.moving(MANY[0])
        stalls.close()
    finally:
        logger.removeFilter(note)
    assert scopes == ["[A->B|MirrorSourceConnector|task-0] "] * 2
    assert [it.levelname for it in caplog.records] == ["WARNING", "INFO"]
    await clock.advance(5.0)
    assert len(scopes) == 2


def _steps(work: Callable[[], None]) -> int:
    """Count the lines of Python that ``work`` runs."""
    steps = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


async def test_an_event_costs_the_same_however_many_are_stalled(bench: Bench) -> None:
    compared = 0

    class Partition(TopicPartition):
        def __hash__(self) -> int:
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    async def cost(count: int) -> tuple[int, int]:
        nonlocal compared
        error = ConnectionFailedError("away")
        first = [Partition("orders", number) for number in range(count)]
        again = [Partition("orders", number) for number in range(count)]
        compared = 0

        def stall() -> None:
            for tp in first:
                bench.stalls.stalled(tp, error)

        def move() -> None:
            for tp in reversed(again):
                bench.stalls.moving(tp)

        steps = _steps(stall)
        await bench.clock.advance(1.0)
        steps += _steps(move)
        await bench.clock.advance(1.0)
        return steps, compared

    small, large = await cost(100), await cost(1000)
    assert large[0] <= 11 * small[0]
    assert large[1] <= 20 * 1000


async def test_who_waits_continues_inside_of_the_call_that_ends_the_wait() -> None:
    arrival, order = Arrival(), list[str]()

    async def wait() -> None:
        for number in range(3):
            await arrival.wait(60)
            order.append(f"waited {number}")

    def end() -> None:
        order.append("before")
        arrival.now()
        order.append("after")

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(end)
    await asyncio.sleep(0)
    assert order == ["before", "waited 0", "after"]
    # From a task it ends in the next turn, and one wait alone.
    arrival.set()
    arrival.set()
    assert order[-1] == "after"
    await asyncio.sleep(0)
    assert order[3:] == ["waited 1"]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await arrival.wait(0.001)  # sooner than the wait before


async def test_each_of_many_is_asked_so_many_at_once_and_none_is_left_behind_an_error() -> None:
    asked, under_way, most = list[int](), set[int](), 0
    gate = asyncio.Event()

    async def ask(number: int) -> int:
        nonlocal most
        asked.append(number)
        under_way.add(number)
        most = max(most, len(under_way))
        try:
            await (gate.wait() if number == 7 else asyncio.sleep(0))
        finally:
            under_way.discard(number)
        if number == 8:
            raise RetriableError("8")
        return number * 2

    assert await each_of(range(6), ask, at_once=2) == [0, 2, 4, 6, 8, 10]
    assert most == 2
    with pytest.raises(RetriableError, match="8"):
        await each_of(range(7, 99), ask, at_once=2)
    assert not under_way
    assert asked[-1] < 20, "the others were not asked"
