"""The model of ``mm2py_jobs.copy.lease``: attempts of one lane that crash, freeze and overlap; its invariants by number.

The topic is a log with one transactional writer id: InitProducerId fences whichever attempt had it. Attempts take steps in any
order; time passes between any two. A frozen attempt keeps its permit object, which compares the instant itself.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from mm2py.client.permit import Permit
from mm2py.errors import RetriableError
from mm2py.mirror.backfills import LEASE_S, Job, JobState, Lease, LeaseState, decode_backfill
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.lease import LaneLease, LaneSupersededError
from tests.unit.spark.driver_fakes import lease_of

TP = TopicPartition("t", 0)


class Topic:
    """The records, and which writer may write."""

    def __init__(self) -> None:
        self.job: Job | None = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)
        self.leases = {TP: lease_of(TP, end=99)}
        self.epoch = 0
        self.pause: Callable[[], Awaitable[None]] = _nothing


async def _nothing() -> None:
    return None


class Reader:
    """Reads the topic; a read may fail."""

    def __init__(self, topic: Topic, chance: random.Random) -> None:
        self._topic, self._chance = topic, chance
        self.job = topic.job
        self.leases: Mapping[TopicPartition, Lease] = dict(topic.leases)

    async def refresh(self) -> None:
        await self._topic.pause()
        if self._chance.random() < 0.1:
            raise RetriableError("no answer")
        self.job, self.leases = self._topic.job, dict(self._topic.leases)


class Writer:
    """A transactional producer; a write may be lost, or fail though it was committed."""

    def __init__(self, topic: Topic, chance: random.Random) -> None:
        self._topic, self._chance = topic, chance
        self._epoch = -1

    @property
    def claimed(self) -> bool:
        return self._epoch >= 0

    async def claim(self) -> None:
        await self._topic.pause()
        if self._chance.random() < 0.1:
            raise RetriableError("no answer")
        self._topic.epoch += 1
        self._epoch = self._topic.epoch
        await self._topic.pause()

    async def write(self, entries: Sequence[Entry]) -> None:
        await self._topic.pause()
        fate = self._chance.random()
        if self._epoch != self._topic.epoch or fate < 0.1:
            self._epoch = -1
            raise RetriableError("fenced, or not now")
        for key, value in entries:
            record = decode_backfill(key, value or b"")
            assert isinstance(record, Lease)
            self._topic.leases[record.source] = record
        await self._topic.pause()
        if fate < 0.2:
            self._epoch = -1
            raise RetriableError("outcome unknown")

    async def close(self) -> None:
        self._epoch = -1


class Attempt:
    """One process: claims, renews, and may be frozen at any await."""

    def __init__(self, topic: Topic, clock: FakeClock, chance: random.Random, name: str) -> None:
        self.permit = Permit(clock)
        self.writer = Writer(topic, chance)
        self.lease = LaneLease(
            Reader(topic, chance),
            self.writer,
            self.permit,
            job="j",
            run=1,
            lane=0,
            attempt=name,
            clock=clock,
        )
        self.superseded = False

    async def run(self) -> None:
        try:
            left = await self.lease.claim([TP])
            while left:
                await self.lease.renew(list(left.values()))
        except LaneSupersededError:
            self.superseded = True


@pytest.mark.parametrize("ten", range(15))
async def test_one_attempt_at_most_has_a_permit_and_the_newest_wins(ten: int) -> None:
    """Invariants 1, 2, 3: never two valid permits; a superseded attempt has none."""
    for case in range(10 * ten, 10 * ten + 10):
        await play(random.Random(case))


async def play(chance: random.Random) -> None:
    topic, clock = Topic(), FakeClock()
    waiting: dict[asyncio.Task[object] | None, asyncio.Future[None]] = {}

    async def pause() -> None:
        """Stop here until the scenario lets this attempt go on: a freeze or a slow line."""
        step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[asyncio.current_task()] = step
        await step

    topic.pause = pause
    attempts = [Attempt(topic, clock, chance, f"a{number}") for number in range(3)]
    tasks: list[asyncio.Task[object]] = []
    granted: set[int] = set()
    for _ in range(400):
        action = chance.random()
        if len(tasks) < len(attempts) and action < 0.05:
            tasks.append(asyncio.create_task(attempts[len(tasks)].run()))
        elif action < 0.75 and waiting:
            task = chance.choice(list(waiting))
            step = waiting.pop(task)
            if not step.done():  # its attempt was killed
                step.set_result(None)
        elif action < 0.77 and tasks:
            chance.choice(tasks).cancel()  # killed
        else:
            await clock.advance(chance.choice([0.1, 0.6, 2.0, LEASE_S / 2, LEASE_S]))
        await asyncio.sleep(0)
        valid = [number for number, attempt in enumerate(attempts) if attempt.permit.valid]
        assert len(valid) <= 1, f"attempts {valid} may write at the same time"
        granted.update(valid)
        for attempt in attempts:
            assert not (attempt.superseded and attempt.permit.valid)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_first_attempt_does_not_wait() -> None:
    topic, clock = Topic(), FakeClock()
    attempt = Attempt(topic, clock, random.Random(5), "a")
    left = await asyncio.wait_for(attempt.lease.claim([TP]), 5)
    assert left[TP].state is LeaseState.COPYING
    assert topic.leases[TP].attempt == "a"
    assert attempt.permit.valid
    await clock.advance(LEASE_S)
    assert not attempt.permit.valid


async def test_an_attempt_of_another_run_ends_without_a_record() -> None:
    topic, clock = Topic(), FakeClock()
    assert topic.job is not None
    topic.job = replace(topic.job, run=2)
    before = dict(topic.leases)
    with pytest.raises(LaneSupersededError):
        await Attempt(topic, clock, random.Random(5), "a").lease.claim([TP])
    assert topic.leases == before


async def test_a_claim_behind_which_nothing_could_be_read_renews_nothing() -> None:
    topic, clock, chance = Topic(), FakeClock(), random.Random()
    chances = [0.9]
    chance.random = lambda: chances.pop() if len(chances) > 1 else chances[0]  # type: ignore[method-assign]
    old, new = (Attempt(topic, clock, chance, name) for name in ("old", "new"))
    left = await old.lease.claim([TP])
    taking_over = asyncio.create_task(new.lease.claim([TP]))
    while not taking_over.done():
        await clock.advance(LEASE_S)
    # The write that finds the fence, the claim, then the read that fails.
    chances += [0.0, 0.9, 0.9]
    renewing = asyncio.create_task(old.lease.renew(list(left.values())))
    while not renewing.done():
        await clock.advance(LEASE_S / 10)
    with pytest.raises(LaneSupersededError):
        await renewing
    assert topic.leases[TP].attempt == "new"
    assert not old.permit.valid
