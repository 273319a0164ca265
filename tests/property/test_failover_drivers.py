"""Failovers driven by processes that crash between any two awaits, and by cancels: always legal, nothing lost, nothing doubled.

The invariants of ``mm2py_jobs.failover.driver``. The flow, its clients and the source's death go on while drivers come and go.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, final

import pytest
from hypothesis import given, settings, strategies

from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.failovers import Failover, GroupMove, LogPlace, OpenTransaction, Step, Tail
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from mm2py_jobs.failover.driver import (
    DriverProgress,
    FailoverDriver,
    FailoverStore,
    SourceAwayError,
)
from mm2py_jobs.failover.plan import FailoverRefusedError, FailoverRequest
from tests.property.effort import examples
from tests.property.model_writer import Epochs, ModelWriter

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

ONE: Final = TopicPartition("orders", 0)
MOST_DRIVERS: Final = 60
STOPPED_AT: Final = 17
REQUEST: Final = FailoverRequest(id="f")


class CrashError(BaseException):
    """The driver's process is gone."""


class World:
    """Both logs, the flow both ways, one client, and time, which passes when somebody sleeps."""

    def __init__(
        self, chance: random.Random, *, fences: bool, copies: bool, committed: bool = False
    ) -> None:
        self.chance, self.topic, self.epochs = chance, MemoryTopic("failover"), Epochs()
        self.fences, self.copies, self.committed = fences, copies, committed
        self.open_at: int | None = None
        """Where the open transaction of a client on the source begins."""
        self.of_open: set[int] = set()
        self.aborted: set[int] = set()
        self.transactions_left, self.hangs = 0, False
        self.now_s = 1_000.0
        self.source = list(range(chance.randint(0, 20)))
        self.position = chance.randint(0, len(self.source))
        self.target: list[str] = [f"copy {it}" for it in self.source[: self.position]]
        self.runs, self.away = True, False
        self.fenced = False
        self.target_fence = "an earlier return"
        """Who keeps clients from the target, as recorded; ``target_fenced`` is whether they are."""
        self.target_fenced = True
        self.thaws = asyncio.Event()
        self.frozen = 0
        self.freezes = False
        self.writes_left, self.strays_left = chance.randint(0, 15), chance.randint(0, 5)
        self.quarantine: list[int] = []
        self.reverse_at: int | None = None
        self.set_at: int | None = None
        self.first_native: int | None = None
        self.crash_in = 0

    @property
    def failover(self) -> Failover | None:
        return next(
            (
                it
                for record in reversed(self.topic.records)
                if isinstance(it := _decoded(record.key, record.value), Failover)
            ),
            None,
        )

    def tick(self, seconds: float) -> None:
        """Let time pass for the flow and the client."""
        self.now_s += seconds
        if self.runs and self.copies and not self.away:
            end = self.stable if self.committed else len(self.source)
            while self.position < end and self.chance.random() < 0.8:
                if not self.committed or self.position not in self.aborted:
                    self.target.append(f"copy {self.source[self.position]}")
                self.position += 1
        if self.writes_left and self.chance.random() < 0.5:
            self.writes_left -= 1
            self.write()
        self.transact()
        stray = self.fences and not self.fenced and not self.away
        if stray and self.strays_left and self.chance.random() < 0.3:
            # It does not know that its region was given up.
            self.strays_left -= 1
            self.source.append(len(self.source))

    @property
    def stable(self) -> int:
        return len(self.source) if self.open_at is None else self.open_at

    def transact(self) -> None:
        """Write in a transaction while the client may; end it at any time: no rule keeps a producer from that."""
        writes = not self.away and self.may_write_here(self.failover)
        if self.transactions_left and writes and self.chance.random() < 0.4:
            self.transactions_left -= 1
            self.open_at = self.stable
            self.of_open.add(len(self.source))
            self.source.append(len(self.source))
        elif self.open_at is not None and not self.hangs and self.chance.random() < 0.1:
            self.end_transaction(commits=self.chance.random() < 0.7)

    def end_transaction(self, *, commits: bool) -> None:
        if not commits:
            self.aborted |= self.of_open
        self.open_at = None
        self.of_open.clear()

    def write(self) -> None:
        """Write where the client may."""
        failover = self.failover
        if failover is not None and failover.switched_ms:
            self.check_switch(failover)
            if self.first_native is None:
                self.first_native = len(self.target)
            self.target.append("native")
        elif not self.away and self.may_write_here(failover):
            self.source.append(len(self.source))

    def may_write_here(self, failover: Failover | None) -> bool:
        """Whether no fence stops the client; where there can be none, its owner does before the switch."""
        if self.fences:
            return not self.fenced
        writing = (Step.FENCE, Step.DRAIN, Step.GROUPS, Step.CANCELLED)
        return failover is None or failover.step in writing

    def check_switch(self, failover: Failover) -> None:
        """(2)"""
        if not failover.unplanned and self.first_native is None:
            missing = len(self.source) - self.position
            assert missing <= max(0, failover.accept_loss)
            assert self.open_at is None or failover.accept_loss >= 0

    def check_end(self, failover: Failover) -> None:
        if failover.step is Step.DONE:
            assert self.fenced or not failover.fenced  # (5)
            self.check_done()
            check_times(failover)
        else:
            assert self.frozen or not self.fenced  # (5)
            assert self.first_native is None

    def check_done(self) -> None:
        """(3), (4), (7)"""
        assert not self.runs
        assert self.failover is not None
        assert self.failover.stopped_at == STOPPED_AT
        assert not self.target_fenced
        assert self.reverse_at is not None
        copied = {int(it.split()[1]) for it in self.target if it != "native"}
        self.end_transaction(commits=True)  # by a producer that went on, whatever rules there are
        committed = set(self.source) - self.aborted
        assert committed <= copied | set(self.quarantine) <= set(self.source)
        assert len(self.quarantine) == len(set(self.quarantine))
        natives = [at for at, it in enumerate(self.target) if it == "native"]
        assert not natives or self.reverse_at <= natives[0]
        assert all(it == "native" for it in self.target[self.reverse_at :])


def _decoded(key: bytes | None, value: bytes | None) -> object:
    from mm2py.mirror.failovers import decode_failover

    return None if value is None else decode_failover(key, value)


class Process(ModelWriter):
    """A driver, its writer, and what it asks: any await may be its last."""

    def __init__(self, world: World, after_ms: int = 0) -> None:
        super().__init__(world.epochs)
        self.world = world
        self.store = FailoverStore(MemoryTable(world.topic), self)
        self.waited: list[Failover] = []
        waits = self.waited.append
        self.driver = FailoverDriver(
            self.store, self, name="A->B", clock=self, waits=waits, after_ms=after_ms
        )
        self.made, self.opened, self.lifted = False, False, ""

    # ---- time

    def now_ms(self) -> int:
        return round(self.world.now_s * 1000)

    def monotonic(self) -> float:
        return self.world.now_s

    async def sleep(self, seconds: float) -> None:
        self.world.tick(seconds)
        await self.moment()

    async def moment(self) -> None:
        """A moment at which the process may die."""
        await asyncio.sleep(0)
        self.world.crash_in -= 1
        if self.world.crash_in == 0 and self.world.freezes:
            self.world.frozen += 1
            await self.world.thaws.wait()
        elif self.world.crash_in == 0:
            raise CrashError

    async def step(self) -> None:
        """A question to somebody, who may say "not now"."""
        await self.moment()
        if self.world.chance.random() < 0.05:
            raise RetriableError("not now")

    async def ask_source(self) -> None:
        await self.step()
        if self.world.away:
            raise SourceAwayError("gone")

    # ---- PrivilegedWriter

    async def write(self, entries: Sequence[Entry]) -> None:
        if self.is_fenced:
            self.end("fenced")
        await self.step()
        if self.is_fenced:
            self.end("fenced")
        for key, value in entries:
            self.world.topic.append(key, value)
        await self.step()

    # ---- Sides

    async def fence(self, by: str) -> str:
        await self.ask_source()
        self.made = self.world.fenced = True
        await self.step()
        return ""

    async def lift_fence(self, *, source: bool) -> None:
        if source:
            self.opened = True
            await self.ask_source()
            self.world.fenced = False
        else:
            self.lifted = self.world.target_fence or self.lifted
            if not self.world.target_fence:
                return
            await self.step()
            self.world.target_fenced = False
            await self.step()
            if self.is_fenced:
                raise RetriableError("fenced")
            self.world.target_fence = ""
        await self.step()

    async def restore_fences(self) -> None:
        failover, by = self.world.failover, self.world.target_fence
        assert failover is not None
        if self.lifted and by not in ("", self.lifted):
            self.world.target_fenced = True
        if failover.is_undone(None):
            self.world.fenced = False
        elif self.opened and (failover.fenced or failover.step is Step.FENCE):
            self.world.fenced = True
        await self.step()

    async def unfinished_job(self) -> str:
        await self.step()
        return ""

    async def progress(self) -> DriverProgress:
        await self.ask_source()
        world = self.world
        return DriverProgress({ONE: len(world.source)}, {ONE: world.position}, {ONE: world.stable})

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        await self.ask_source()
        at = self.world.open_at
        if not held or at is None:
            return ()
        return [OpenTransaction(topic="orders", partition=0, offset=at, transactional_id="till")]

    async def target_ends(self) -> Sequence[LogPlace]:
        await self.step()
        return [LogPlace(topic="orders", partition=0, offset=len(self.world.target))]

    async def move_groups(self) -> Sequence[GroupMove]:
        await self.step()
        return []

    async def stop_flow(self) -> int:
        await self.step()
        self.world.runs = False
        await self.step()
        return STOPPED_AT

    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        kept: list[Tail] = []
        for it in tails:
            for offset in range(it.start, it.end):
                await self.ask_source()
                if self.world.committed and offset in self.world.aborted:
                    continue
                if offset not in self.world.quarantine:
                    self.world.quarantine.append(offset)
            kept.append(replace(it, records=it.end - it.start))
        return kept

    async def pass_over(self, tails: Sequence[Tail]) -> None:
        await self.step()
        assert not self.world.runs
        for it in tails:
            kept = {*self.world.quarantine, *self.world.aborted}
            assert set(range(self.world.position, it.end)) <= kept  # (3)
            self.world.position = it.end

    async def divergence(self, ends_there: Sequence[LogPlace]) -> Sequence[LogPlace]:
        await self.ask_source()
        copies = [at for at, it in enumerate(self.world.target) if it != "native"]
        return [replace(it, offset=(copies[-1] + 1) if copies else 0) for it in ends_there]

    async def start_reverse(self, starts: Sequence[LogPlace]) -> None:
        await self.ask_source()
        recorded = self.world.failover
        assert recorded is not None
        assert recorded.starts == tuple(starts)  # (4)
        if self.world.reverse_at is None:
            self.world.set_at = starts[0].offset
            await self.step()
            self.world.reverse_at = self.world.set_at
        await self.step()


async def _course(
    seed: int, *, fences: bool, copies: bool, dies: bool, cancels: bool, freezes: bool, transacts: bool
) -> None:  # fmt: skip
    chance = random.Random(seed)
    world = World(chance, fences=fences, copies=copies, committed=transacts)
    world.freezes = freezes
    if transacts:
        world.transactions_left, world.hangs = chance.randint(0, 15), chance.random() < 0.5
    frozen: list[asyncio.Task[Failover]] = []
    try:
        for attempt in range(MOST_DRIVERS):
            world.crash_in = chance.randint(1, 60) if attempt < MOST_DRIVERS // 2 else 0
            if dies and attempt == 2:
                world.away = True
            if dies and attempt == 12:
                world.away = False
            if attempt == 20:
                world.hangs = False
            cancel = cancels and attempt == 5
            accept = -1 if copies else 100
            request = FailoverRequest(id=f"f{attempt}", accept_loss=accept, unplanned=world.away)
            driving = asyncio.create_task(_drive(Process(world), request, cancels=cancel))
            count = world.frozen
            await until(lambda: driving.done() or world.frozen > count)  # noqa: B023 - awaited here
            if not driving.done():
                frozen.append(driving)
            elif driving.exception() is None:
                assert driving.result().step.is_over or world.away
            else:
                assert isinstance(driving.exception(), CrashError | Mm2pyError), driving.exception()
                _check_cancel_refused(world, cancels=cancel)
            failover = world.failover
            if failover is not None and failover.step.is_over:
                world.check_end(failover)
                await _thaw(world, frozen)
                return
            world.tick(chance.uniform(0, 3))
        raise AssertionError("no driver came to the end")
    finally:
        for task in frozen:
            task.cancel()


async def _drive(
    process: Process, request: FailoverRequest = REQUEST, *, cancels: bool = False
) -> Failover:
    await process.store.start()
    try:
        if cancels:
            return await process.driver.cancel()
        return await process.driver.run(request, process.store.failover)
    finally:
        await process.store.stop()


async def _thaw(world: World, frozen: Sequence["asyncio.Task[Failover]"]) -> None:
    """(6) Resume the suspended drivers when it is over, and clients were fenced from the target in order to return."""
    record, fenced = world.failover, world.fenced
    assert record is not None
    world.target_fence, world.target_fenced = "back", True
    world.thaws.set()
    ends = await asyncio.gather(*frozen, return_exceptions=True)
    # One may have stood still behind its last record.
    wrong = [it for it in ends if not isinstance(it, Mm2pyError | Failover)]
    assert not wrong
    assert world.failover == record
    assert world.fenced == (fenced and not record.is_undone(None))
    assert world.target_fenced


def _check_cancel_refused(world: World, *, cancels: bool) -> None:
    failover = world.failover
    if cancels and failover is not None and failover.switched_ms:
        assert failover.step is not Step.CANCELLED


SWITCHES: Final = ["fences", "copies", "dies", "cancels", "freezes", "transacts"]


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=strategies.integers(0, 2**32),
    switches=strategies.fixed_dictionaries(dict.fromkeys(SWITCHES, strategies.booleans())),
)
def test_drivers_that_crash_or_stand_still_anywhere_end_legal(
    seed: int, switches: dict[str, bool]
) -> None:
    asyncio.run(_course(seed, **switches))


def check_times(failover: Failover) -> None:
    """Each step that was done has its times, whoever did it, and one begins when the one before ends."""
    steps = failover.steps
    assert [it.step for it in steps][-3:] == [Step.SWITCH, Step.TAIL, Step.REVERSE]
    assert all(failover.started_ms <= it.began_ms <= it.ended_ms for it in steps)
    assert all(one.ended_ms <= two.began_ms for one, two in pairwise(steps))
    assert steps[-1].ended_ms == failover.at_ms


async def test_what_is_not_copied_refuses_without_the_number_and_is_quarantined_with_it() -> None:
    world = World(random.Random(3), fences=True, copies=False)
    world.chance = random.Random(0)
    world.source, world.position = list(range(10)), 4
    world.target = [f"copy {it}" for it in range(4)]
    world.writes_left = world.strays_left = 0
    waiting = Process(world)
    with pytest.raises(FailoverRefusedError, match="--accept-loss 6"):
        await _drive(waiting)
    assert {(it.step, it.missing) for it in waiting.waited} == {(Step.DRAIN, 6)}, "told meanwhile"
    recorded = world.failover
    assert recorded is not None
    assert recorded.step is Step.DRAIN
    assert "--accept-loss 6" in recorded.cause
    failover = await _drive(Process(world), FailoverRequest(id="g", accept_loss=6))
    assert failover.step is Step.DONE
    assert failover.id == "f"
    assert [(it.start, it.end, it.records) for it in failover.tail] == [(4, 10, 6)]
    assert world.quarantine == list(range(4, 10))
    world.check_done()


async def test_a_driver_behind_which_another_one_has_claimed_begins_no_other_step() -> None:
    world = World(random.Random(1), fences=True, copies=False)
    world.chance = random.Random(2)
    world.chance.random = lambda: 0.7  # type: ignore[method-assign] # nothing happens by chance
    world.source, world.position, world.target = list(range(5)), 0, []
    running = asyncio.create_task(_drive(Process(world)))
    await until(lambda: (it := world.failover) is not None and it.step is Step.DRAIN)
    cancelled = await _drive(Process(world), cancels=True)
    world.copies = True  # what the first one waits for
    with pytest.raises(FailoverRefusedError, match="another driver"):
        await running
    assert world.failover is not None
    assert world.failover == replace(cancelled, at_ms=world.failover.at_ms)
    assert world.runs


def _quiet(*, committed: bool = False) -> World:
    """A world in which everything is copied and nothing happens by chance."""
    world = World(random.Random(1), fences=True, copies=True, committed=committed)
    world.chance.random = lambda: 0.7  # type: ignore[method-assign] # neither writes nor "not now"
    world.source, world.position = list(range(5)), 5
    world.target = [f"copy {it}" for it in range(5)]
    world.writes_left = world.strays_left = 0
    return world


@final
class Refused(Process):
    """Its flow cannot be stopped."""

    error: Mm2pyError = RetriableError("not now")

    async def stop_flow(self) -> int:
        raise self.error


async def test_a_driver_that_ends_before_clients_moved_says_how_writers_go_on() -> None:
    @final
    class Silent(Process):
        async def target_ends(self) -> Sequence[LogPlace]:
            raise RetriableError("does not answer")

    world = _quiet()
    with pytest.raises(RetriableError, match=r"kept from writing to A: .* --cancel ends that"):
        await _drive(Silent(world))
    left = world.failover
    assert left is not None
    assert (left.step, "--cancel ends that" in left.cause) == (Step.VERIFY, True)


@pytest.mark.parametrize("error", [RetriableError("not now"), FatalError("not allowed")])
async def test_what_a_step_has_recorded_stays_and_the_cause_is_told(error: Mm2pyError) -> None:
    world = _quiet()
    process = Refused(world)
    process.error = error
    with pytest.raises(type(error)):
        await _drive(process)
    left = world.failover
    assert left is not None
    assert (left.step, left.cause) == (Step.SWITCH, str(error))
    assert left.switched_ms
    assert "clients may write to B already, the same command continues" in left.cause
    # Where clients may have begun to write is not found out again later.
    world.target += ["native", "native"]
    done = await _drive(Process(world))
    assert (done.switched_ms, done.cause) == (left.switched_ms, "")
    assert [it.offset for it in done.ends_there] == [5]


@final
class DiesOnceLifted(Process):
    async def lift_fence(self, *, source: bool) -> None:
        await super().lift_fence(source=source)
        raise CrashError


async def test_a_failover_that_is_continued_behind_half_a_cancel_fences_again() -> None:
    world = _quiet()
    world.copies, world.position = False, 4
    with pytest.raises(FailoverRefusedError, match="--accept-loss 1"):
        await _drive(Process(world))
    with pytest.raises(CrashError):
        await _drive(DiesOnceLifted(world), cancels=True)
    assert not world.fenced
    done = await _drive(Process(world), FailoverRequest(id="g", accept_loss=1))
    assert done.step is Step.DONE
    assert world.fenced


@final
class FencesLate(Process):
    """While it cancels, a driver that stood still makes the rules that it was about to make."""

    async def lift_fence(self, *, source: bool) -> None:
        await super().lift_fence(source=source)
        failover = self.world.failover
        if failover is not None and failover.step is not Step.CANCELLED:
            self.world.fenced = True


async def test_a_cancel_undoes_what_a_driver_that_stood_still_has_fenced_meanwhile() -> None:
    world = _quiet()
    world.copies, world.position = False, 4
    with pytest.raises(FailoverRefusedError):
        await _drive(Process(world))
    assert (await _drive(FencesLate(world), cancels=True)).step is Step.CANCELLED
    assert not world.fenced


@final
class Counted(Process):
    fences = 0
    writes_behind_the_drain = 1

    async def fence(self, by: str) -> str:
        self.fences += 1
        return await super().fence(by)

    async def move_groups(self) -> Sequence[GroupMove]:
        if self.writes_behind_the_drain:
            self.writes_behind_the_drain = 0
            self.world.source.append(5)
            self.world.position = 6
            self.world.target.append("copy 5")
        return await super().move_groups()


async def test_a_source_that_was_written_behind_the_drain_is_fenced_again() -> None:
    process = Counted(_quiet())
    assert (await _drive(process)).step is Step.DONE
    assert process.fences == 2


async def test_clients_move_after_they_moved_the_other_way_whatever_the_clocks_of_drivers_say() -> (
    None
):
    ahead_ms = 10_000_000
    moved = await _drive(Process(_quiet(), after_ms=ahead_ms))
    assert moved.switched_ms == ahead_ms + 1
    assert (await _drive(Process(_quiet(), after_ms=3))).switched_ms == moved.steps[-3].began_ms


@final
class WrittenOn(Process):
    """Of a source that a producer goes on to write, which no ACL blocks."""

    async def sleep(self, seconds: float) -> None:
        self.world.source.append(len(self.world.source))
        await super().sleep(seconds)

    async def fence(self, by: str) -> str:
        await super().fence(by)
        return "no authorizer"


async def test_a_source_that_is_back_and_written_on_is_named_and_what_it_has_is_kept_once_it_stands_still() -> (
    None
):
    world = _quiet()
    world.copies, world.away = False, True
    lost = FailoverRequest(id="f", accept_loss=0, unplanned=True)
    assert (await _drive(Process(world), lost)).step is Step.TAIL
    world.away = False
    written = WrittenOn(world)
    with pytest.raises(FailoverRefusedError, match=r"written for 120 s: orders-0.*no authorizer"):
        await _drive(written)
    assert {it.step for it in written.waited} == {Step.TAIL}, "told meanwhile"
    end = len(world.source)
    done = await _drive(Process(world))
    assert [(it.start, it.end) for it in done.tail] == [(5, end)]
    world.check_end(done)


async def test_a_source_that_is_written_between_drain_and_verify_again_and_again_is_named() -> None:
    world = _quiet()
    written = WrittenOn(world)
    with pytest.raises(FailoverRefusedError, match=r"written for 120 s: orders-0.*no authorizer"):
        await _drive(written)
    failover = world.failover
    assert failover is not None
    assert failover.step is Step.VERIFY
    assert "stop the producers" in failover.cause
    done = await _drive(Process(world))
    assert done.step is Step.DONE
    world.check_end(done)


@final
class MovesOnce(Process):
    """A group is moved by the first sync; the second one finds nothing left."""

    async def move_groups(self) -> Sequence[GroupMove]:
        await super().move_groups()
        failover = self.world.failover
        assert failover is not None
        return [GroupMove(group="g", moved=2 if failover.step is Step.GROUPS else 0)]


async def test_a_group_that_the_first_sync_has_moved_is_shown_as_moved() -> None:
    done = await _drive(MovesOnce(_quiet()))
    assert [(it.group, it.moved) for it in done.groups] == [("g", 2)]


@final
class Overtaken(Process):
    """The previous driver claims again before this one has written its first record, and continues."""

    former: Process | None = None

    async def write(self, entries: Sequence[Entry]) -> None:
        former, self.former = self.former, None
        if former is not None:
            await former.claim()
            await former.store.refresh()
            left = former.store.failover
            assert left is not None
            await former.store.write(replace(left, step=Step.TAIL))
        await super().write(entries)


async def test_a_driver_whose_predecessor_went_on_behind_its_claim_overwrites_nothing() -> None:
    world = _quiet()
    former = Refused(world)
    with pytest.raises(RetriableError):
        await _drive(former)
    overtaken = Overtaken(world)
    overtaken.former = former
    with pytest.raises(FailoverRefusedError, match="another driver"):
        await _drive(overtaken)
    assert world.failover is not None
    assert world.failover.step is Step.TAIL


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("ends", ["commits", "aborts", "hangs"])
async def test_an_open_transaction_is_named_and_waited_for_and_only_an_accepted_loss_goes_past_it(
    ends: str, committed: bool
) -> None:
    world = _quiet(committed=committed)
    world.hangs, world.open_at, world.of_open = True, 5, {5, 6}
    world.source += [5, 6, 7]  # the last one by another producer, which has committed it
    missing = 3 if committed else 0
    with pytest.raises(
        FailoverRefusedError, match=f"till .* orders-0 from offset 5.*loss {missing}"
    ):
        await _drive(Process(world))
    left = world.failover
    assert left is not None
    assert (left.step, left.switched_ms) == (Step.DRAIN, 0)
    assert [it.transactional_id for it in left.transactions] == ["till"]
    if ends == "hangs":
        done = await _drive(Process(world), FailoverRequest(id="g", accept_loss=missing))
        assert [it.transactional_id for it in done.transactions] == ["till"]
        assert [(it.start, it.end) for it in done.tail] == ([(5, 8)] if committed else [])
    else:
        world.end_transaction(commits=ends == "commits")
        done = await _drive(Process(world))
        assert not done.transactions
        assert not done.tail
    world.check_end(done)


async def test_a_driver_that_came_to_continue_one_which_ended_meanwhile_begins_no_other() -> None:
    world = _quiet()
    await _drive(Process(world))
    done = world.failover
    assert done is not None
    late = Process(world)
    await late.store.start()
    with pytest.raises(FailoverRefusedError, match="has ended a failover"):
        await late.driver.run(REQUEST, replace(done, step=Step.REVERSE))
    assert world.failover == done
    await late.store.stop()
