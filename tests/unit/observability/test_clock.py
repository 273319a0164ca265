"""The real clock: long waits end together, short ones when they are due."""

import asyncio

import pytest

from mm2py.clock import SLACK_S, SYSTEM_CLOCK, wait_or_stop, with_slack_s
from mm2py.testing.clock import FakeClock


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
