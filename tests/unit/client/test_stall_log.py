"""A stall of any number of partitions is one line when it begins and one when it ends."""

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import pytest

from mm2py.client.stall_log import SOURCE, TARGET, StallLog
from mm2py.errors import ConnectionFailedError, FatalError, RequestTimedOutError
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


async def test_a_stall_that_lasts_is_repeated_once_a_minute_with_the_present_count(
    bench: Bench,
) -> None:
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


async def test_an_end_that_is_due_is_logged_when_the_task_ends(bench: Bench) -> None:
    bench.stalls.stalled(MANY[0], FatalError("no"))
    await bench.clock.advance(0.5)
    bench.stalls.moving(MANY[0])
    bench.stalls.close()
    assert [line.split(" ")[0] for line in bench.lines()] == ["WARNING", "INFO"]
    await bench.clock.settle()
    await bench.clock.advance(5.0)
    assert bench.lines() == []


async def test_lines_have_the_scope_of_the_task_whichever_callback_reports(
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


class _Trace(Protocol):
    def __call__(self, frame: FrameType, event: str, argument: object, /) -> "_Trace": ...


def _steps(work: Callable[[], None]) -> int:
    """Count the lines of Python that ``work`` runs."""
    steps = 0

    def trace(_frame: FrameType, event: str, _argument: object, /) -> _Trace:
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


async def test_the_cost_of_an_event_does_not_grow_with_the_number_of_stalled_partitions(
    bench: Bench,
) -> None:
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
