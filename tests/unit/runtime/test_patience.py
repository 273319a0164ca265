"""Pauses grow, the log is told once and every 10 s, a stop ends the wait."""

import asyncio
import logging

import pytest

from mm2py.clock import wait_or_stop
from mm2py.errors import ConnectionFailedError
from mm2py.runtime.patience import LONGEST_PAUSE_S, Patience
from tests.unit.runtime.runtime_fakes import EagerClock

AWAY = ConnectionFailedError("connection refused")


async def test_pauses_double_up_to_a_limit_and_start_afresh_after_success() -> None:
    clock = EagerClock()
    patience = Patience(clock, "target cluster B", asyncio.Event())
    for _ in range(10):
        assert await patience.wait(AWAY)
    assert clock.sleeps[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(clock.sleeps) == LONGEST_PAUSE_S
    patience.succeeded()
    await patience.wait(AWAY)
    assert clock.sleeps[-1] == 0.1


async def test_the_log_is_told_at_once_and_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = EagerClock()
    caplog.set_level(logging.INFO)
    waits: dict[str, str] = {}
    what = "target cluster B at b1:9092"
    patience = Patience(clock, what, asyncio.Event(), waits=waits)
    until = clock.monotonic() + 35
    while clock.monotonic() < until:
        await patience.wait(AWAY)
    assert waits[what].startswith(f"waits for {what}, 3")
    assert waits[what].endswith(" s now: connection refused")
    patience.succeeded()
    assert not waits
    lines = [record.getMessage() for record in caplog.records]
    assert 3 <= len([line for line in lines if line.startswith("waiting")]) <= 4
    assert "target cluster B at b1:9092" in lines[0]
    assert "connection refused" in lines[0]
    assert lines[-1].startswith("back again")


async def test_a_stop_ends_the_wait_at_once() -> None:
    clock = EagerClock()
    stop = asyncio.Event()
    stop.set()
    assert await wait_or_stop(clock, 60, stop)
    assert not await Patience(clock, "x", stop).wait(AWAY)
    assert clock.sleeps == []
