"""Two drivers that begin at the same moment, whose writes fail and are not answered; invariant 1 of ``mm2py.storage.job_claim``."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies

from mm2py.mirror.backfills import Job, JobState, LeaseState
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import BackfillRefusedError, JobClaim
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill import BackfillDriver, new_job
from mm2py_jobs.copy.plan import Plan
from tests.property.effort import examples
from tests.property.model_writer import Epochs, ModelWriter
from tests.unit.spark.driver_fakes import ONE, TWO, Flow, part
from tests.unit.spark.test_backfill_driver import SETTING

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

STEPS = 2_000


class SlowWriter(ModelWriter):
    """A ``PrivilegedWriter`` that takes its time, fails at times, and is fenced by another one's claim."""

    def __init__(self, topic: MemoryTopic, epochs: Epochs, chance: random.Random) -> None:
        super().__init__(epochs)
        self._topic, self._chance = topic, chance

    async def write(self, entries: Sequence[Entry]) -> None:
        await self.step()
        if self.is_fenced:
            self.end("fenced")
        if self._chance.random() < 0.1:
            self.end("not written")
        for key, value in entries:
            self._topic.append(key, value)
        await self.step()
        if self._chance.random() < 0.1:
            self.end("written, but not answered")

    async def step(self) -> None:
        for _ in range(self._chance.randrange(8)):
            await asyncio.sleep(0)


class Race:
    """What two drivers share, and how many of them have lanes."""

    def __init__(self, chance: random.Random) -> None:
        self.topic, self.epochs = MemoryTopic("backfill"), Epochs()
        self.clock, self.chance = FakeClock(), chance
        self.with_lanes = 0
        self.altered: list[tuple[str, str, str | None]] = []


class Racer:
    """One driver, and its lanes."""

    def __init__(self, race: Race) -> None:
        self._race, self._flow = race, Flow()
        self._flow.altered = race.altered
        self._store = BackfillStore(MemoryTable(race.topic), race.clock)
        writer = SlowWriter(race.topic, race.epochs, race.chance)
        claim = JobClaim(self._store, writer, self._flow.fence, name="A->B", clock=race.clock)
        self._driver = BackfillDriver(claim, self._store, self._flow, name="A->B", clock=race.clock)

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        del job, lanes
        self._race.with_lanes += 1
        assert self._race.with_lanes == 1, "two drivers have lanes"
        await self._race.clock.sleep(5)
        await self._store.refresh()
        for lease in self._store.leases.values():
            over = replace(lease, state=LeaseState.HANDED_OVER, position=lease.end)
            await self._store.post([over])
        self._race.with_lanes -= 1

    async def race(self) -> JobState | None:
        """Return how this driver ended its job, None where it was refused."""
        await self._store.start()
        for _ in range(self._race.chance.randrange(40)):
            await asyncio.sleep(0)
        try:
            await self._driver.claim()
            plan = Plan(flow="A->B", partitions=(part(ONE), part(TWO)), settings=(SETTING,))
            request = new_job("j", topics="", start="earliest", end="now", lanes=2)
            return (await self._driver.run(plan, request, self)).state
        except BackfillRefusedError:
            return None


async def compete(seed: int) -> None:
    race = Race(random.Random(seed))
    racers = [asyncio.ensure_future(Racer(race).race()) for _ in range(2)]
    for _ in range(STEPS):
        if all(it.done() for it in racers):
            break
        await race.clock.advance(0.2)
    ended = [await it for it in racers]
    assert JobState.DONE in ended
    assert set(ended) <= {JobState.DONE, None}
    # Changed before lanes start and put back behind them, by each driver that was not refused.
    both = [("SET", "retention.ms", "-1"), ("SET", "retention.ms", "1000")]
    assert race.altered == both * ended.count(JobState.DONE)


@settings(max_examples=examples(60))
@given(seed=strategies.integers(0, 1 << 32))
def test_of_two_drivers_that_begin_at_the_same_moment_one_is_refused(seed: int) -> None:
    asyncio.run(compete(seed))
