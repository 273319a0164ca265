"""Clocks and waiting: the system's clock, the fake one, and conditions that come in time."""

import asyncio

import pytest

from mm2py.clock import SLACK_S, SYSTEM_CLOCK, wait_or_stop, with_slack_s
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually, until

# -- clock ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.5, 0.51, 0.75, 1.0, 1.1, 30.0])
async def test_long_waits_end_at_whole_multiples_and_never_early(seconds: float) -> None:
    clock = FakeClock()
    await clock.advance(0.123)
    waits_s = with_slack_s(clock, seconds)
    assert -0.01 <= waits_s - seconds <= SLACK_S
    assert round((clock.monotonic() + waits_s) / SLACK_S, 6).is_integer()


def test_short_waits_are_as_asked_for() -> None:
    assert with_slack_s(FakeClock(), 0.3) == 0.3


def test_a_wait_until_a_whole_multiple_is_not_put_off() -> None:
    clock = FakeClock()
    clock.jump(0.2500001)
    assert with_slack_s(clock, 0.75) == pytest.approx(0.75, abs=0.001)


async def test_waiting_for_an_event_ends_with_it_or_with_the_time() -> None:
    event = asyncio.Event()
    assert not await wait_or_stop(SYSTEM_CLOCK, 0.01, event)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_or_stop(SYSTEM_CLOCK, 600, event)
    assert await wait_or_stop(SYSTEM_CLOCK, 600, event)


# -- fake clock -------------------------------------------------------------------------------------


async def test_sleepers_wake_in_order_and_see_their_own_time() -> None:
    clock, seen = FakeClock(), list[tuple[str, float]]()
    start = clock.monotonic()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic() - start))
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic() - start))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("b", 3))
        group.create_task(sleeper("a", 1))
        await clock.settle()
        assert clock.sleepers == 2
        await clock.advance(10)
    assert seen == [("a", 1), ("a", 2), ("b", 3), ("b", 6)]


# -- waiting ----------------------------------------------------------------------------------------


async def test_a_condition_ends_the_wait() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await until(done.is_set)
    done.clear()
    asyncio.get_running_loop().call_later(0.002, done.set)
    await eventually(done.is_set)


async def test_a_wait_that_fails_quotes_its_condition() -> None:
    number = 1
    with pytest.raises(AssertionError, match=r"not within 3 turns .*lambda: number > 1"):
        await until(lambda: number > 1, turns=3)
    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: number > 2"):
        await eventually(lambda: number > 2, within_s=0)
