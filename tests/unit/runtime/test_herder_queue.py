"""The herder's queue: order, delays, and what callers are told that wait too long."""

import asyncio
import re

import pytest

from mm2py.runtime.errors import HerderError, HerderTimeoutError, NotFoundError
from mm2py.runtime.herder.queue import HEALTH_TIMEOUT_S, REQUEST_TIMEOUT_S, HerderQueue
from mm2py.testing.clock import FakeClock


class Stage:
    """A queue and what ran in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = HerderQueue(self.clock)
        self.ran: list[str] = []

    async def note(self, name: str) -> str:
        self.ran.append(name)
        return name.upper()

    async def fail(self) -> None:
        raise NotFoundError("Connector c not found")


async def test_requests_run_in_the_order_of_submission_and_answer_their_callers() -> None:
    stage = Stage()
    callers = [
        asyncio.create_task(stage.queue.submit(lambda n=n: stage.note(n)))  # type: ignore[misc]  # mypy: lambda defaults
        for n in ("a", "b", "c")
    ]
    await stage.clock.settle()
    await stage.queue.run_due()
    assert stage.ran == ["a", "b", "c"]
    assert await asyncio.gather(*callers) == ["A", "B", "C"]


async def test_an_error_reaches_the_caller_and_the_next_request_runs() -> None:
    stage = Stage()
    failing = asyncio.create_task(stage.queue.submit(stage.fail))
    fine = asyncio.create_task(stage.queue.submit(lambda: stage.note("a")))
    await stage.clock.settle()
    await stage.queue.run_due()
    with pytest.raises(NotFoundError, match="Connector c not found"):
        await failing
    assert await fine == "A"


async def test_a_blocked_herder_lets_requests_fail_with_the_stage_it_is_in() -> None:
    """No. 53: the timeout text names the stage and the instant it began."""

    stage = Stage()
    with stage.queue.stage("ensuring membership in the cluster"):
        caller = asyncio.create_task(stage.queue.submit(lambda: stage.note("a")))
        await stage.clock.advance(REQUEST_TIMEOUT_S)
        with pytest.raises(HerderTimeoutError) as caught:
            await caller
    assert re.fullmatch(
        r"Request timed out\. The worker is currently ensuring membership in the cluster, which began"
        r" at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\.",
        caught.value.message,
    )
    await stage.queue.run_due()
    assert stage.ran == [], "what was refused is not done later"


async def test_a_caller_with_less_patience_is_told_what_was_done_last() -> None:
    stage = Stage()
    with stage.queue.stage("shutting down"):
        await stage.clock.advance(1.5)
    caller = asyncio.create_task(
        stage.queue.submit(lambda: stage.note("a"), timeout_s=HEALTH_TIMEOUT_S)
    )
    await stage.clock.advance(HEALTH_TIMEOUT_S)
    with pytest.raises(
        HerderTimeoutError,
        match=r"The last operation the worker completed was shutting down, .* completed at .*\.500Z\.",
    ):
        await caller


async def test_delayed_work_runs_when_its_time_has_come() -> None:
    stage = Stage()

    async def later() -> None:
        await stage.note("later")

    stage.queue.post(later, delay_s=5)
    await stage.queue.run_due()
    waiting = asyncio.create_task(stage.queue.wait())
    await stage.clock.advance(4.9)
    assert not waiting.done()
    await stage.clock.advance(0.1)
    await waiting
    await stage.queue.run_due()
    assert stage.ran == ["later"]


async def test_a_new_request_and_a_wake_up_end_the_wait() -> None:
    stage = Stage()
    for wake in (stage.queue.wake, lambda: stage.queue.post(stage.fail)):
        await stage.queue.run_due()
        waiting = asyncio.create_task(stage.queue.wait())
        await stage.clock.settle()
        assert not waiting.done()
        wake()
        await waiting
    stage.queue.close(HerderError("Worker is shutting down"))


async def test_a_closed_queue_refuses_what_waits_and_what_comes() -> None:
    stage = Stage()
    waiting = asyncio.create_task(stage.queue.submit(lambda: stage.note("a")))
    await stage.clock.settle()
    stage.queue.close(HerderError("Worker is shutting down"))
    with pytest.raises(HerderError, match="Worker is shutting down"):
        await waiting
    with pytest.raises(HerderError, match="Worker is shutting down"):
        await stage.queue.submit(lambda: stage.note("b"))
    assert stage.ran == []


async def test_a_request_that_is_cut_off_with_the_loop_is_refused() -> None:
    stage = Stage()
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    caller = asyncio.create_task(stage.queue.submit(endless))
    await stage.clock.settle()
    loop = asyncio.create_task(stage.queue.run_due())
    await begun.wait()
    loop.cancel()
    with pytest.raises(HerderError, match="shutting down"):
        await caller
