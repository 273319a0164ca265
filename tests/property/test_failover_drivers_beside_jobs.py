"""A failover's drivers beside those of backfills and streams: they crash and stand still anywhere, and are cancelled by commands.

Invariant 8 of ``mm2py_jobs.failover.driver``: no lane copies, and nothing is kept from the workers, where a failover has gone past its fence.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Final, final

import pytest
from hypothesis import given, settings, strategies

from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.backfills import (
    ALIVE_S,
    NO_END,
    BackfillRecord,
    Job,
    JobKind,
    Lease,
    LeaseState,
    decode_backfill,
    encode_backfill,
)
from mm2py.mirror.failovers import (
    Failover,
    GroupMove,
    LogPlace,
    OpenTransaction,
    Step,
    Tail,
    decode_failover,
)
from mm2py.storage.backfill_store import BackfillStore, describe_unfinished
from mm2py.storage.job_claim import JobClaim
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill import BackfillDriver, new_job
from mm2py_jobs.copy.plan import Plan
from mm2py_jobs.copy.stream import StreamDriver, StreamPartitions
from mm2py_jobs.copy.survey import Known
from mm2py_jobs.failover.driver import DriverProgress, FailoverDriver, FailoverStore
from mm2py_jobs.failover.plan import FailoverRequest
from tests.property.effort import examples
from tests.property.model_writer import Epochs, ModelWriter
from tests.unit.spark.driver_fakes import ONE, Flow, part

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

ENDS: Final = 12
STEP_S: Final = 0.5
DRAIN_S: Final = 20.0
MOST_STEPS: Final = 2_000

decoded_job = lru_cache(4_096)(decode_backfill)
decoded_failover = lru_cache(4_096)(decode_failover)
"""The world reads both topics from their beginning at every step."""


class World:
    """Both topics, the source's log with a copy, and who may write where."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.clock = chance, FakeClock()
        self.failovers, self.jobs = MemoryTopic("failover"), MemoryTopic("backfill")
        self.epochs = Epochs()
        self.position, self.copies = 0, list[int]()
        self.runs, self.fenced = True, False
        self.switched_at: int | None = None
        self.ended = False

    @property
    def failover(self) -> Failover | None:
        for record in reversed(self.failovers.records):
            it = decoded_failover(record.key, record.value or b"")
            if isinstance(it, Failover):
                return it
        return None

    @property
    def records(self) -> Mapping[bytes, BackfillRecord]:
        newest: dict[bytes, BackfillRecord] = {}
        for record in self.jobs.records:
            key = record.key or b""
            newest.pop(key, None)
            if record.value is not None:
                newest[key] = decoded_job(key, record.value)
        return newest

    @property
    def job(self) -> Job | None:
        job = self.records.get(b"job")
        return job if isinstance(job, Job) and not job.state.is_over else None

    @property
    def kept_out(self) -> Mapping[TopicPartition, Lease]:
        job = self.job
        leases = [it for it in self.records.values() if isinstance(it, Lease)]
        return {
            it.source: it
            for it in leases
            if job is not None and it.job == job.id and it.state.keeps_live_out
        }

    def copy(self) -> None:
        if self.position < ENDS:
            self.copies.append(self.position)
            self.position += 1

    def workers_copy(self) -> None:
        """A worker of the live flow copies what is not kept from it."""
        if self.runs and ONE not in self.kept_out and self.chance.random() < 0.3:
            self.copy()

    def check_nothing_copies_beside(self, who: str) -> None:
        assert not self.kept_out, f"{who} beside {self.kept_out}"


@final
class Fate:
    """A process: it crashes, or stands still until it is resumed, at a moment that chance gives."""

    def __init__(self, world: World, *, lives: bool = False) -> None:
        self._world = world
        self._left = -1 if lives else world.chance.randint(1, 120)
        self._thaws, self.crashed = asyncio.Event(), False
        self._frozen = False

    async def moment(self) -> None:
        if self._world.ended:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        self._left -= 1
        if self._left == 0:
            self._frozen = True
            self.crashed = self._world.chance.random() < 0.5
        if self._frozen:
            await self._thaws.wait()

    def thaw(self) -> None:
        if not self.crashed:
            self._frozen = False
            self._thaws.set()

    async def step(self) -> None:
        for _ in range(self._world.chance.randrange(4)):
            await self.moment()
        if self._world.chance.random() < 0.03:
            raise RetriableError("not now")

    # ---- Clock

    def now_ms(self) -> int:
        return self._world.clock.now_ms()

    def monotonic(self) -> float:
        return self._world.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.moment()
        await self._world.clock.sleep(seconds)
        await self.moment()


@final
class Writer(ModelWriter):
    """A ``PrivilegedWriter``: fenced by another one's claim, and at times not answered."""

    def __init__(self, world: World, fate: Fate, topic: MemoryTopic, name: str) -> None:
        super().__init__(world.epochs, name)
        self._world, self._fate, self._topic = world, fate, topic

    async def write(self, entries: Sequence[Entry]) -> None:
        await self._fate.step()
        if self.is_fenced:
            self.end("fenced")
        for key, value in entries:
            self._topic.append(key, value)
        if self._world.chance.random() < 0.05:
            self.end("written, but not answered")
        await self._fate.step()

    async def step(self) -> None:
        await self._fate.step()


@final
class JobFlow(Flow):
    """The target as a job's driver asks it."""

    def __init__(self, world: World, fate: Fate) -> None:
        super().__init__()
        self._world, self._fate = world, fate

    async def unfinished_failover(self) -> Failover | None:
        await self._fate.step()
        failover = self._world.failover
        await self._fate.step()
        return None if failover is None or failover.step.is_over else failover

    async def known(self, partitions: object) -> Known:
        del partitions
        await self._fate.step()
        return Known({ONE: self._world.position}, {})


@final
class JobProcess:
    """A driver of a backfill or of a stream, with its lane."""

    def __init__(self, world: World, *, lives: bool = False) -> None:
        self.world, self.fate = world, Fate(world, lives=lives)
        self.store = BackfillStore(MemoryTable(world.jobs), self.fate)
        self.flow = JobFlow(world, self.fate)
        writer = Writer(world, self.fate, world.jobs, "job")
        self.claim = JobClaim(self.store, writer, self.flow.fence, name="A->B", clock=self.fate)
        self._id = f"j{world.chance.randrange(1 << 32)}"

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        del lanes
        await self.lane(job)

    async def lane(self, job: Job) -> None:
        """Copy while the job's record and the lease allow it; what a lane asks and sends has no await between, as a lease has its time."""
        world = self.world
        while True:
            await self.fate.sleep(STEP_S)
            newest, lease = world.job, world.kept_out.get(ONE)
            mine = newest is not None and (newest.id, newest.run) == (job.id, job.run)
            if not mine or newest is None or not newest.state.is_copied or lease is None:
                return
            failover = world.failover
            is_past = failover is not None and not failover.step.is_over and failover.fenced
            assert not is_past, f"a lane copies beside {failover}"
            world.copy()
            if world.position >= min(lease.end, ENDS) and lease.end != NO_END:
                over = replace(lease, state=LeaseState.HANDED_OVER, position=lease.end)
                world.jobs.append(*encode_backfill(over))
                return

    async def backfill(self) -> None:
        await self.store.start()
        driver = BackfillDriver(self.claim, self.store, self.flow, name="A->B", clock=self.fate)
        await driver.claim()
        plan = Plan(flow="A->B", partitions=(part(ONE, end=ENDS),))
        await driver.run(plan, new_job(self._id, topics="", lanes=1), self)

    async def stream(self) -> None:
        await self.store.start()
        driver = StreamDriver(self.claim, self.store, self.flow, name="A->B", clock=self.fate)
        await driver.begin(1, job=self._id)
        ends: list[asyncio.Task[object]] = []
        try:
            await driver.follow(StreamPartitions(frozenset({ONE})))
            ends += [
                asyncio.ensure_future(driver.wait_others()),
                asyncio.ensure_future(driver.wait_recalled()),
                asyncio.ensure_future(self.fate.sleep(self.world.chance.uniform(1, 60))),
            ]
            lane = asyncio.ensure_future(self.lane(driver.job))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await driver.end_term()
            await lane
        except BaseException:
            await driver.close()
            raise
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        await driver.end()

    async def cancel(self) -> None:
        """What ``mm2py backfill cancel`` and ``mm2py stream --cancel`` do where the driver is gone."""
        await self.store.start()
        await self.store.refresh()
        job = self.store.job
        if job is None or job.state.is_over:
            return
        await self.claim.claim(job.kind)
        if job.kind is JobKind.STREAM:
            await self.claim.take_back("cancelled")
        else:
            driver = BackfillDriver(self.claim, self.store, self.flow, name="A->B", clock=self.fate)
            await driver.cancel()


@final
class FailoverProcess:
    """A driver of the failover, and what it asks."""

    def __init__(self, world: World, *, lives: bool = False) -> None:
        self.world, self.fate = world, Fate(world, lives=lives)
        writer = Writer(world, self.fate, world.failovers, "failover")
        self.store = FailoverStore(MemoryTable(world.failovers), writer)
        self.written: Failover | None = None
        self.driver = FailoverDriver(
            self.store, self, name="A->B", clock=self.fate, report=self._wrote
        )

    def _wrote(self, failover: Failover) -> None:
        self.written = failover

    async def run(self) -> Failover | None:
        await self.store.start()
        before = self.store.failover
        if before is not None and before.step is Step.DONE:
            return before  # clients are there already, the plan refuses
        request = FailoverRequest(
            id="f", drain_s=DRAIN_S, settle_s=1.0, accept_loss=self.world.chance.choice((-1, ENDS))
        )
        return await self.driver.run(request, before)

    async def cancel(self) -> None:
        await self.store.start()
        await self.driver.cancel()

    def check(self, who: str) -> None:
        """(8), where no other driver has gone on: what one that stood still changes is set right by invariant 6."""
        if self._is_newest and self.written is not None and not self.written.step.is_over:
            self.world.check_nothing_copies_beside(who)

    @property
    def _is_newest(self) -> bool:
        newest, mine = self.world.failover, self.written
        return newest is not None and mine is not None and newest.driver == mine.driver

    # ---- Sides

    async def fence(self, by: str) -> str:
        await self.fate.step()
        self.check("a fence")
        self.world.fenced = True
        return ""

    async def restore_fences(self) -> None:
        await self.fate.step()

    async def lift_fence(self, *, source: bool) -> None:
        await self.fate.step()
        if source:
            self.world.fenced = False
        elif self._is_newest:
            self.check("a switch")
            if self.world.switched_at is None:
                self.world.switched_at = len(self.world.copies)

    async def unfinished_job(self) -> str:
        await self.fate.step()
        job = self.world.job
        await self.fate.step()
        return "" if job is None else describe_unfinished(job, "A->B")

    async def progress(self) -> DriverProgress:
        await self.fate.step()
        return DriverProgress({ONE: ENDS}, {ONE: self.world.position}, {ONE: ENDS})

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        del held
        return ()

    async def target_ends(self) -> Sequence[LogPlace]:
        await self.fate.step()
        return [LogPlace(topic="t", partition=0, offset=len(self.world.copies))]

    async def move_groups(self) -> Sequence[GroupMove]:
        await self.fate.step()
        return ()

    async def stop_flow(self) -> int:
        await self.fate.step()
        self.world.runs = False
        return 0

    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        await self.fate.step()
        return [replace(it, records=it.end - it.start) for it in tails]

    async def pass_over(self, tails: Sequence[Tail]) -> None:
        await self.fate.step()
        for it in tails:
            self.world.position = max(self.world.position, it.end)

    async def divergence(self, ends_there: Sequence[LogPlace]) -> Sequence[LogPlace]:
        await self.fate.step()
        return ends_there

    async def start_reverse(self, starts: Sequence[LogPlace]) -> None:
        del starts
        await self.fate.step()


async def _settled(world: World, *tasks: "asyncio.Task[object]", steps: int = MOST_STEPS) -> None:
    """Let time pass until the tasks are done, or for so many steps."""
    for _ in range(steps):
        if all(it.done() for it in tasks):
            break
        await world.clock.advance(STEP_S)
        world.workers_copy()
    for it in tasks:
        _checked(it)


def _checked(task: "asyncio.Task[object]") -> None:
    """A driver may be refused, or be told "not now"; nothing else ends it."""
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, Mm2pyError), error


async def _lived(world: World, work: Callable[[], Awaitable[object]]) -> None:
    """Run a command of somebody who tries again until it succeeds."""
    for _ in range(20):
        task: asyncio.Task[object] = asyncio.ensure_future(work())
        await _settled(world, task)
        assert task.done(), "a command never ends"
        if task.exception() is None:
            return
        await world.clock.advance(ALIVE_S)
    raise AssertionError(f"no command succeeds: {world.failover}, {world.job}")


async def _course(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance)
    tasks: list[asyncio.Task[object]] = []
    fates: list[Fate] = []
    try:
        for _ in range(chance.randint(2, 8)):
            drives = FailoverProcess(world) if chance.random() < 0.4 else JobProcess(world)
            fates.append(drives.fate)
            if isinstance(drives, FailoverProcess):
                work = drives.cancel() if chance.random() < 0.2 else drives.run()
            else:
                work = chance.choice((drives.backfill, drives.stream, drives.cancel))()
            tasks.append(asyncio.ensure_future(work))
            await _settled(world, *tasks, steps=chance.choice((0, 1, 3, 10, 60)))
            if chance.random() < 0.3:
                chance.choice(fates).thaw()
        for fate in fates:
            fate.thaw()
        await _settled(world, *tasks, steps=200)
        await _lived(world, lambda: JobProcess(world, lives=True).cancel())
        failover = world.failover
        if failover is None or failover.step is not Step.DONE:
            await _lived(world, lambda: FailoverProcess(world, lives=True).run())
        ended = world.failover
        assert ended is not None
        assert ended.step is Step.DONE
        assert world.copies == sorted(set(world.copies))
        left = sum(it.records for it in ended.tail)
        assert left or world.copies[:ENDS] == list(range(ENDS))
    finally:
        world.ended = True
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Mm2pyError):
                await task


@settings(max_examples=examples(150), deadline=None)
@given(seed=strategies.integers(0, 1 << 32))
def test_no_job_copies_beside_a_failover_wherever_both_drivers_crash_or_stand_still(
    seed: int,
) -> None:
    asyncio.run(_course(seed))
