"""Random courses of tasks with exactly-once support: whatever happens, each record is committed once."""

import asyncio
import random

import pytest

from mm2py.errors import ProducerFencedError, TransactionAbortedError
from mm2py.protocol import error_codes as codes
from mm2py.runtime.tasks.task_transactions import SAME_CAUSE, Starts
from mm2py.testing.waiting import eventually
from tests.property.effort import examples, is_fuzz
from tests.property.transaction_model import Attempt, World

pytestmark = pytest.mark.timeout(120)

END_S = 600.0 if is_fuzz() else 60.0
"""``make fuzz`` runs for hours beside other work."""

TWO_RECORDS = 300
"""Bytes that a batch of two records fits in; the task hands out up to three at once."""


async def begun(world: World) -> list[Attempt]:
    """Return an attempt behind up to two that wrote without transactions, and were killed or ended in order."""
    chance = world.chance
    for _ in range(chance.randrange(3)):
        lane = Attempt(world, transactional=False)
        for _ in range(chance.randrange(400)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice((0, 0, 0.01, 0.03)))
        if chance.random() < 0.2:
            await lane.stop()
        await world.end_all([lane])
        world.check()
    return [Attempt(world)]


@pytest.mark.fuzz
@pytest.mark.parametrize("turn", range(examples(8, share=0.1)))
@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_whatever_ends_an_attempt_each_record_is_committed_once(
    seed: int, implicit: bool, turn: int
) -> None:
    del turn  # the seed is of the test's name, which has it
    chance = random.Random(seed)
    limit_bytes = chance.choice((0, TWO_RECORDS))
    async with (
        World(seed, implicit=implicit, limit_bytes=limit_bytes) as world,
        asyncio.timeout(END_S),
    ):
        attempts = await begun(world)
        while not world.done:
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
            newest = attempts[-1]
            match chance.randrange(8):
                case 0:
                    await newest.crash()
                    attempts.append(Attempt(world))
                case 1:
                    await newest.stop()
                    attempts.append(Attempt(world))
                case 2 if len(attempts) < 12:  # the older one lives on: a zombie
                    attempts.append(Attempt(world))
                case 3 | 4:
                    world.disturb()
                case 5 if chance.random() < 0.1:
                    await world.end_all(attempts)
                    attempts += await begun(world)
                case _ if newest.failed:
                    attempts.append(Attempt(world))
                case _:
                    pass
            world.check()
        for attempt in attempts:
            await attempt.stop()
        world.check()


@pytest.mark.parametrize("turn", range(8))
@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_refusal_that_can_be_repaired_ends_no_transaction(
    seed: int, implicit: bool, turn: int
) -> None:
    del turn
    async with (
        World(seed, implicit=implicit, limit_bytes=TWO_RECORDS) as world,
        asyncio.timeout(END_S),
    ):
        attempt = Attempt(world)
        await eventually(lambda: world.done or attempt.failed)
        assert attempt.cause is None
        await attempt.stop()
        world.check()


@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_task_that_fails_three_times_where_it_began_is_started_otherwise_and_says_so(
    implicit: bool,
) -> None:
    starts = Starts()
    async with World(1, implicit=implicit) as world, asyncio.timeout(END_S):
        for _ in range(SAME_CAUSE):
            world.brokers[0].fail_next(0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
            attempt = Attempt(world, starts)
            assert not attempt.transactions.remark
            await eventually(attempt.has_failed)
            await attempt.stop()
        attempt = Attempt(world, starts)
        await eventually(lambda: world.done)
        remark = (
            "3 starts failed for OUT_OF_ORDER_SEQUENCE_NUMBER before the first commit: one batch"
        )
        (finding,) = attempt.meter.findings
        assert finding.text.startswith(remark)
        starts.ended(TransactionAbortedError("another one"), committed=True)
        assert not starts.remark
        await attempt.stop()
        world.check()


@pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])
async def test_a_newer_producer_fences_the_older_one(implicit: bool) -> None:
    async with World(1, implicit=implicit) as world, asyncio.timeout(END_S):
        older = Attempt(world)
        await eventually(lambda: world.position(world.sources[0]) >= 5)
        newer = Attempt(world)
        await eventually(lambda: older.failed)
        assert isinstance(older.cause, ProducerFencedError)
        await eventually(lambda: world.done)
        await newer.stop()
        world.check()
