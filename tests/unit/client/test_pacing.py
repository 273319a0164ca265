"""Quotas, byte rates, shares of competing partitions and pauses between attempts."""

import asyncio

import pytest

from mm2py.client.backoff import Backoff
from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.session import LEAST_BYTES, shares
from mm2py.client.pacing import ByteRate, LongPoll, RequestPace, Throttle
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition

MIB = 1 << 20


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_throttle_lasts_as_long_as_the_longest_answer_asked() -> None:
    clock = Hand()
    throttle = Throttle(clock)
    assert throttle.remaining_s() == 0
    throttle.honour(0)
    throttle.honour(500)
    throttle.honour(100)
    assert throttle.remaining_s() == pytest.approx(0.5)
    clock.now += 0.6
    assert throttle.remaining_s() == 0


def test_a_byte_rate_is_kept_on_average_whatever_the_size_of_an_answer() -> None:
    clock = Hand()
    rate = ByteRate(1000, clock)
    spent = 0
    for size in (1, 5000, 20, 900, 3000) * 10:
        clock.now += rate.delay_s()
        assert rate.room_bytes() > 0
        rate.spend(size)
        spent += size
    # Less than one largest answer and what may be saved up.
    assert spent - 5250 <= (clock.now - 100) * 1000 <= spent + 250


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        ByteRate(0, Hand())


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


def test_the_partition_furthest_behind_gets_most_and_nobody_nothing() -> None:
    now_ms = 10_000_000
    backlogged = cursors([3_600_000] + [2_000] * 15, now_ms)
    found = dict(shares(backlogged, MIB, 4 * MIB, now_ms))
    assert found[backlogged[0]] == MIB
    assert {found[cursor] for cursor in backlogged[1:]} == {LEAST_BYTES}


def test_a_share_has_room_for_batches_of_the_size_seen_last() -> None:
    backlogged = cursors([2_000] * 32, 5000)
    backlogged[0].batch_bytes = 400_000
    found = dict(shares(backlogged, MIB, 4 * MIB, 5000))
    assert 800_000 <= found[backlogged[0]] <= MIB
    assert found[backlogged[1]] == LEAST_BYTES


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
    clock = Hand()
    poll = LongPoll(clock)
    assert poll.wait_ms(500) == 500
    poll.hold("a")
    assert poll.wait_ms(500) == 10
    clock.now += 2.0
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
    clock = Hand()
    poll = LongPoll(clock)
    poll.hold("a")
    polls = 0
    while clock.now < 100 + 3600:
        clock.now += poll.wait_ms(500) / 1000
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


def test_reset_starts_over_and_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(100, 1000, random=lambda: 0.5)
    backoff.failures = 100_000
    assert backoff.next_s() == 1.0
    backoff.reset()
    assert backoff.failures == 0
    assert round(backoff.next_s(), 3) == 0.1


async def test_no_second_has_more_turns_than_are_allowed_and_addresses_do_not_wait_for_each_other() -> (
    None
):
    clock = Hand()
    pace = RequestPace(5, clock)
    given: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(40):
        for address, turns in given.items():
            await pace.turn(address)
            turns.append(clock.now)
        clock.now += 0.05 * (number % 7)
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
