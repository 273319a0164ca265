"""One attempt of a lane over fakes; the names are the invariants of ``mm2py_jobs.copy.lanes``."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from mm2py.errors import FatalError, PartitionError
from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState, Wanted
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.testing.clock import FakeClock
from mm2py.types import State, TopicPartition
from mm2py_jobs.copy.lanes import TASK_STARTS, CopyProgress, LaneResult, LaneRun, Term
from mm2py_jobs.copy.lease import RENEW_S, LaneSupersededError
from tests.unit.spark.driver_fakes import ONE, TWO, lease_of


class Leases:
    def __init__(self, *partitions: TopicPartition) -> None:
        self.claimed = {it: lease_of(it, LeaseState.COPYING) for it in partitions}
        self.records: list[Lease] = []
        self.released: list[Lease] = []
        self.superseded = False

    async def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Lease]:
        return {tp: it for tp, it in self.claimed.items() if tp in partitions}

    async def renew(self, leases: Sequence[Lease]) -> None:
        if self.superseded:
            raise LaneSupersededError("another attempt")
        self.records += leases

    async def release(self, leases: Sequence[Lease]) -> None:
        self.released += leases

    def states(self, partition: TopicPartition) -> list[str]:
        return [it.state.value for it in self.records if it.source == partition]


class Copy:
    def __init__(self) -> None:
        self.starts: list[Mapping[TopicPartition, int]] = []
        self.at: dict[TopicPartition, CopyProgress] = {}
        self.paused: list[bool] = []
        self.stopped: list[float] = []
        self.at_stop: dict[TopicPartition, CopyProgress] = {}
        """What a stop acknowledges and stores."""
        self.state = Status(State.RUNNING)

    async def start(self, ends: Mapping[TopicPartition, int]) -> None:
        self.starts.append(dict(ends))
        self.state = Status(State.RUNNING)

    async def pause(self, *, paused: bool) -> None:
        self.paused.append(paused)

    def status(self) -> Status | None:
        return self.state

    def progress(self, partition: TopicPartition) -> CopyProgress:
        return self.at.get(partition, CopyProgress())

    async def stop(self, timeout_s: float) -> None:
        self.stopped.append(timeout_s)
        self.at |= self.at_stop


class Topic:
    def __init__(self) -> None:
        self.job: Job | None = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)
        self.wanted = Wanted.RUN
        self.leases: Mapping[TopicPartition, Lease] = {}


class Stage:
    def __init__(self, *partitions: TopicPartition, term: Term | None = None) -> None:
        self.clock, self.topic = FakeClock(), Topic()
        self.leases, self.copy = Leases(*partitions), Copy()
        run = LaneRun(
            partitions, self.leases, self.copy, self.topic, run=1, clock=self.clock, term=term
        )
        self.task: asyncio.Task[LaneResult] = asyncio.create_task(run.run())

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            await self.clock.advance(0.5)


async def test_a_partition_is_handed_over_when_its_stored_position_has_reached_its_end() -> None:
    stage = Stage(ONE, TWO)
    await stage.pass_s(1)
    assert stage.copy.starts == [{ONE: 10, TWO: 10}]
    stage.copy.at[ONE] = CopyProgress(position=9, target_start=5, target_end=14, bytes=90)
    await stage.pass_s(6)
    assert set(stage.leases.states(ONE)) == {"COPYING"}
    stage.copy.at[ONE] = CopyProgress(position=10, target_start=5, target_end=15, bytes=100)
    await stage.pass_s(1)
    last = stage.leases.records[-1]
    assert (last.source, last.state) == (ONE, LeaseState.HANDED_OVER)
    assert (last.target_start, last.target_end, last.records, last.bytes) == (5, 15, 10, 100)
    assert not stage.task.done()
    stage.copy.at[TWO] = CopyProgress(position=12)  # the last batch went beyond the end
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=2, released=0, left=0)
    assert stage.leases.records[-1].position == 12
    assert len(stage.copy.stopped) == 1


async def test_leases_are_renewed_while_nothing_moves() -> None:
    stage = Stage(ONE)
    await stage.pass_s(4 * RENEW_S)
    assert 3 <= len(stage.leases.states(ONE)) <= 5
    stage.task.cancel()


async def test_what_is_not_handed_over_stays_reserved_at_its_stored_position() -> None:
    stage = Stage(ONE)
    stage.copy.at[ONE] = CopyProgress(position=4)
    await stage.pass_s(1)
    stage.topic.wanted = Wanted.CANCEL
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=0, released=0, left=1)
    assert stage.copy.stopped  # before the release
    assert [(it.state, it.position) for it in stage.leases.released] == [(LeaseState.RESERVED, 4)]


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
async def test_a_lane_ends_with_its_job(state: JobState) -> None:
    stage = Stage(ONE)
    await stage.pass_s(1)
    assert stage.topic.job is not None
    stage.topic.job = replace(stage.topic.job, state=state)
    await stage.pass_s(1)
    assert (await stage.task).left == 1


async def test_a_superseded_lane_has_stopped_its_task_before_it_returns() -> None:
    stage = Stage(ONE)
    await stage.pass_s(1)
    stage.leases.superseded = True
    await stage.pass_s(RENEW_S + 1)
    with pytest.raises(LaneSupersededError):
        await stage.task
    assert stage.copy.stopped == [0]
    assert stage.leases.released == []


async def test_a_paused_lane_reads_nothing_and_keeps_its_leases() -> None:
    stage = Stage(ONE)
    stage.topic.wanted = Wanted.PAUSE
    await stage.pass_s(12)
    assert stage.copy.paused == [True]
    assert len(stage.leases.states(ONE)) >= 2
    stage.topic.wanted = Wanted.RUN
    await stage.pass_s(1)
    assert stage.copy.paused == [True, False]
    stage.task.cancel()


async def test_a_failed_partition_is_given_back_with_its_cause_and_the_others_continue() -> None:
    stage = Stage(ONE, TWO)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    await stage.pass_s(1)
    last = stage.leases.records[-1]
    assert (last.source, last.state, last.cause) == (ONE, LeaseState.RELEASED, "too large")
    stage.copy.at[TWO] = CopyProgress(position=10)
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=1, released=1, left=0)


async def test_a_failed_partition_is_released_at_the_position_that_a_stop_stores() -> None:
    stage = Stage(ONE, TWO)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    stage.copy.at_stop[ONE] = CopyProgress(position=7, failed=True, cause="too large")
    await stage.pass_s(1)
    last = stage.leases.records[-1]
    assert (last.source, last.state, last.position) == (ONE, LeaseState.RELEASED, 7)
    assert stage.copy.starts == [{ONE: 10, TWO: 10}, {TWO: 10}]
    stage.task.cancel()


async def test_what_a_stop_stores_up_to_the_end_of_a_failed_partition_is_handed_over() -> None:
    stage = Stage(ONE)
    stage.copy.at[ONE] = CopyProgress(position=9, failed=True, cause="behind the end")
    stage.copy.at_stop[ONE] = CopyProgress(position=10, failed=True, cause="behind the end")
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=1, released=0, left=0)


async def test_a_lane_that_is_paused_stays_so_when_a_partition_fails() -> None:
    stage = Stage(ONE, TWO)
    stage.topic.wanted = Wanted.PAUSE
    await stage.pass_s(1)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    await stage.pass_s(1)
    assert stage.copy.starts[1:] == [{TWO: 10}]
    assert stage.copy.paused == [True, True]
    stage.task.cancel()


async def test_a_task_that_failed_with_its_last_partition_is_started_for_the_others() -> None:
    stage = Stage(ONE, TWO)
    await stage.pass_s(1)
    stage.copy.state = Status(State.FAILED, PartitionError("bad", topic="t", partition=0))
    await stage.pass_s(3)
    assert stage.copy.starts[1:] == [{TWO: 10}]
    assert stage.leases.states(ONE)[-1] == "RELEASED"
    stage.task.cancel()


async def test_a_task_that_fails_again_and_again_fails_the_lane() -> None:
    stage = Stage(ONE)
    for _ in range(TASK_STARTS):
        await stage.pass_s(1)
        stage.copy.state = Status(State.FAILED, FatalError("no way"))
        await stage.pass_s(TASK_STARTS)
    with pytest.raises(FatalError, match="failed 5 times, the last cause: no way"):
        await stage.task
    assert stage.copy.stopped


def test_a_lane_that_starts_late_copies_for_a_part_of_its_term() -> None:
    term = Term(turn=1, seconds=30, until_ms=40_000)
    assert term.left_s(10_000) == 30
    assert term.left_s(0) == 30  # a clock that is behind
    assert term.left_s(25_000) == 15
    assert term.left_s(99_000) == 10


async def test_a_lane_with_a_term_keeps_every_partition_reserved_and_ends_by_time() -> None:
    stage = Stage(ONE, TWO, term=Term(turn=0, seconds=20, until_ms=FakeClock().now_ms() + 20_000))
    stage.copy.at[ONE] = CopyProgress(position=4, records=4, bytes=40, lag=6)
    stage.copy.at[TWO] = CopyProgress(position=3, failed=True, cause="too large")
    await stage.pass_s(15)
    assert not stage.task.done()  # one partition that failed does not end it
    await stage.pass_s(6)
    ended = await stage.task
    assert (ended.handed_over, ended.released, ended.left) == (0, 0, 2)
    assert [(it.start, it.end, it.records, it.lag, it.cause) for it in ended.parts] == [
        (0, 4, 4, 6, ""),
        (0, 3, 0, -1, "too large"),
    ]
    assert {it.state for it in stage.leases.released} == {LeaseState.RESERVED}


@pytest.mark.parametrize("what", ["turn", "bytes"])
async def test_a_term_ends_early_when_dealt_anew_or_its_bytes_are_copied(what: str) -> None:
    term = Term(turn=0, seconds=60, until_ms=FakeClock().now_ms() + 60_000, bytes=100)
    stage = Stage(ONE, term=term)
    stage.copy.at[ONE] = CopyProgress(position=4, bytes=49)
    # What the lanes of the job have copied together; another one has the other partition.
    stage.topic.leases = {
        ONE: replace(lease_of(ONE), bytes=49),
        TWO: replace(lease_of(TWO), bytes=50),
    }
    await stage.pass_s(5)
    assert not stage.task.done()
    if what == "turn":
        assert stage.topic.job is not None
        stage.topic.job = replace(stage.topic.job, turn=1)
    else:
        stage.topic.leases = {**stage.topic.leases, TWO: replace(lease_of(TWO), bytes=51)}
    await stage.pass_s(1)
    assert (await stage.task).left == 1
    assert len(stage.copy.stopped) == 1
