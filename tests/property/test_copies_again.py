"""Copies that are made again by drivers that crash and freeze between any two steps, and by cancels: no record lost, none doubled.

Invariant 5 of ``mm2py_jobs.copy.backfill`` and the steps of ``mm2py_jobs.copy.copy_again``. A driver that froze may be thawed behind all others.
"""

import asyncio
import random
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings, strategies

from mm2py.client.permit import Permit
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.backfills import CopyAgain, Job, JobState, LeaseState
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import JobClaim
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill import BackfillDriver, new_job
from mm2py_jobs.copy.plan import Plan
from mm2py_jobs.copy.survey import Known
from tests.property.effort import examples
from tests.property.model_writer import Epochs, ModelWriter
from tests.unit.spark.driver_fakes import COPY_OF_ONE, ONE, Flow, part

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

COPIED, LOST_FROM, MORE = 20, 12, 5
RUN_S = 120


class World:
    """Both logs, the position, the map and the backfill topic."""

    def __init__(self, chance: random.Random, *, renews: bool) -> None:
        self.chance, self.clock = chance, FakeClock()
        self.topic, self.epochs = MemoryTopic("backfill"), Epochs()
        self.source_end = self.position = COPIED
        self.map = {it: it for it in range(COPIED)}
        self.log_start = 0
        self.log: list[int | None] = list(range(COPIED if renews else LOST_FROM))
        if renews:
            self.log.append(None)  # another program's record

    def copy(self, end: int) -> None:
        """Copy from the stored position on."""
        for source in range(self.position, end):
            self.map[source] = len(self.log)
            self.log.append(source)
        self.position = max(self.position, end)

    async def live(self) -> None:
        """Copy as the flow's task, where it is not kept out."""
        store = BackfillStore(MemoryTable(self.topic), self.clock)
        await store.start()
        if ONE not in store.kept_out():
            self.copy(self.source_end)

    @property
    def visible(self) -> dict[int, int]:
        """Target offset -> source offset of the copies that are there."""
        return {at: it for at, it in enumerate(self.log) if it is not None and at >= self.log_start}


class Process(ModelWriter):
    """A driver, its writer, its flow and its lanes; frozen as a whole, at any step."""

    def __init__(self, world: World, freezes: float) -> None:
        super().__init__(world.epochs)
        self.world, self._freezes = world, freezes
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.flow = ModelFlow(self)
        self.store = BackfillStore(MemoryTable(world.topic), world.clock)
        claim = JobClaim(self.store, self, self.flow.fence, name="A->B", clock=world.clock)
        self.permit: Permit = claim.permit
        self.driver = BackfillDriver(claim, self.store, self.flow, name="A->B", clock=world.clock)

    @property
    def is_frozen(self) -> bool:
        return not self.thawed.is_set()

    def thaw(self) -> None:
        self._freezes = 0
        self.thawed.set()

    async def step(self) -> None:
        """A moment at which this process may freeze, or is frozen."""
        if self.world.chance.random() < self._freezes:
            self.thawed.clear()
        await asyncio.sleep(0)
        await self.thawed.wait()

    async def permitted(self) -> None:
        """Wait as a post does for the permit, which it compares when its bytes leave."""
        term = self.permit.term
        while True:
            await self.step()
            if self.permit.term != term:
                raise RetriableError("the term is over")
            if self.permit.valid:
                return
            await self.world.clock.sleep(0.3)

    # ---- PrivilegedWriter

    async def write(self, entries: Sequence[Entry]) -> None:
        await self.step()
        if self.is_fenced or self.world.chance.random() < 0.05:
            self.end("fenced, or not now")
        for key, value in entries:
            self.world.topic.append(key, value)
        await self.step()

    # ---- Lanes

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        await self.step()
        await self.store.refresh()
        now = self.store.job
        if now is None or (now.id, now.run) != (job.id, job.run):
            raise RetriableError("lanes of a former run claim nothing")
        for partition in (it for lane in lanes for it in lane):
            lease = self.store.leases[partition]
            assert lease.again is None
            if self.world.chance.random() < 0.2:
                self.world.copy(self.world.chance.randint(lease.position, lease.end))
                raise RetriableError("a lane died")
            self.world.copy(lease.end)
            over = replace(lease, state=LeaseState.HANDED_OVER, position=lease.end)
            await self.store.post([over])
        await self.step()

    # ---- what people start

    async def act(self, again: CopyAgain, start: int, *, cancels: bool) -> None:
        try:
            await self.store.start()
            job = await self.driver.claim()
            over = self.store.job is not None and job is None
            if over:
                return
            if cancels and job is not None:
                await self.driver.cancel()
                return
            planned = replace(part(ONE, start, COPIED), again=again)
            plan = Plan(flow="A->B", partitions=(planned,))
            await self.driver.run(plan, new_job("j", topics=""), self)
        except Mm2pyError:
            return


class ModelFlow(Flow):
    """The target; a position or a map leaves with the permit, a deletion may leave late."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process, self._world = process, process.world

    async def known(self, partitions: Collection[TopicPartition]) -> Known:
        self.positions = {ONE: self._world.position}
        return await super().known(partitions)

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        await self._process.permitted()
        self._world.position = positions[ONE]
        await self._process.step()

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        await self._process.step()
        return dict.fromkeys(copies, len(self._world.log))

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        await self._process.permitted()
        await self._process.step()
        self._world.log_start = max(self._world.log_start, ends[COPY_OF_ONE])
        await self._process.step()

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        end, _ = places[ONE]
        await self._process.permitted()
        self._world.map = {source: at for source, at in self._world.map.items() if at < end}
        await self._process.step()


async def until_it_ends_or_freezes(
    process: Process, work: Coroutine[None, None, None]
) -> "asyncio.Task[None]":
    world, task = process.world, asyncio.ensure_future(work)
    for _ in range(RUN_S * 2):
        if task.done() or process.is_frozen:
            break
        if world.chance.random() < 0.05:
            world.source_end = COPIED + MORE
        await world.live()
        await world.clock.advance(0.5)
    return task


async def play(seed: int, *, renews: bool) -> None:
    chance = random.Random(seed)
    world = World(chance, renews=renews)
    start = 0 if renews else LOST_FROM
    again = CopyAgain(topic="A.t", compared_to=len(world.log), deletes=renews)
    processes: list[Process] = []
    tasks: list[asyncio.Task[None]] = []
    for number in range(chance.randint(2, 5)):
        process = Process(world, freezes=chance.choice([0.02, 0.05, 0.1]))
        processes.append(process)
        cancels = number > 0 and chance.random() < 0.3
        tasks.append(
            await until_it_ends_or_freezes(process, process.act(again, start, cancels=cancels))
        )
        if chance.random() < 0.2:
            chance.choice(processes).thaw()
    cancels = chance.random() < 0.5
    for _ in range(30):  # lanes die at times
        last = Process(world, freezes=0)
        await until_it_ends_or_freezes(last, last.act(again, start, cancels=cancels))
        if last.store.job is not None and last.store.job.state.is_over:
            is_done = last.store.job.state is JobState.DONE
            break
    else:
        raise AssertionError("the job does not end")
    world.source_end = COPIED + MORE
    await world.live()
    for process in processes:
        process.thaw()
    for _ in range(RUN_S):
        await world.clock.advance(0.5)
        await world.live()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    check(world, renews=renews, is_done=is_done)


def check(world: World, *, renews: bool, is_done: bool) -> None:
    copies = list(world.visible.values())
    whole = list(range(COPIED + MORE))
    if not renews and copies != whole:
        # Cancelled before the first step, or it went on meanwhile: what was missing still is.
        assert copies == [*range(LOST_FROM), *range(COPIED, COPIED + MORE)]
        return
    assert copies == whole
    # A job is done only with what it was begun for.
    assert not renews or not is_done or None not in world.log[world.log_start :]
    assert world.map == {source: at for at, source in world.visible.items()}


@settings(max_examples=examples(80))
@given(seed=strategies.integers(0, 1 << 32), renews=strategies.booleans())
@example(seed=19212566, renews=True)
def test_a_repair_that_crashes_or_freezes_anywhere_loses_and_doubles_nothing(
    seed: int, *, renews: bool
) -> None:
    asyncio.run(play(seed, renews=renews))
