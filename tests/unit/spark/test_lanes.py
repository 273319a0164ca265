"""Lanes over fakes; the names are the invariants of ``mm2py_jobs.copy.lanes``."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from mm2py.errors import FatalError, PartitionError, RetriableError
from mm2py.mirror.backfills import LEASE_S, Job, JobState, Lease, LeaseState, Wanted
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually
from mm2py.types import State, TopicPartition
from mm2py_jobs.copy.lanes import TASK_STARTS, CopyProgress, LaneResult, LaneRun, Term
from mm2py_jobs.copy.leaders import Leaders, LedPartition
from mm2py_jobs.copy.lease import RENEW_S, LaneSupersededError
from mm2py_jobs.copy.stream import standing_still
from mm2py_jobs.spark.lane_gate import LaneGate
from tests.kit.fakes.broker import FakeBroker
from tests.unit.spark.driver_fakes import ONE, TWO, lease_of


class Leases:
    def __init__(self, *partitions: TopicPartition) -> None:
        self.claimed = {it: lease_of(it, LeaseState.COPYING) for it in partitions}
        self.records: list[Lease] = []
        self.released: list[Lease] = []
        self.superseded = False
        self.claims = 0

    async def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Lease]:
        self.claims += 1
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
    def __init__(self, *, is_limited: bool) -> None:
        self.is_limited = is_limited
        self.starts: list[Mapping[TopicPartition, int]] = []
        self.shared: list[int] = []
        self.at: dict[TopicPartition, CopyProgress] = {}
        self.paused: list[bool] = []
        self.stopped: list[float] = []
        self.at_stop: dict[TopicPartition, CopyProgress] = {}
        """What a stop acknowledges and stores."""
        self.state = Status(State.RUNNING)
        self.begins_as = State.RUNNING

    async def start(self, ends: Mapping[TopicPartition, int], sharing: int) -> None:
        self.starts.append(dict(ends))
        self.shared.append(sharing)
        self.state = Status(self.begins_as)

    def share(self, sharing: int) -> None:
        self.shared.append(sharing)

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
        self.silent: dict[TopicPartition, float] = {}

    def silent_s(self, lease: Lease) -> float:
        return self.silent.get(lease.source, 0.0)


class LaneStage:
    def __init__(
        self,
        *partitions: TopicPartition,
        term: Term | None = None,
        is_limited: bool = False,
        wanted: Wanted = Wanted.RUN,
        leases: "Leases | None" = None,
    ) -> None:
        self.clock, self.topic = FakeClock(), Topic()
        self.topic.wanted = wanted
        self.leases, self.copy = leases or Leases(*partitions), Copy(is_limited=is_limited)
        run = LaneRun(
            self.leases.claimed,
            self.leases,
            self.copy,
            self.topic,
            run=1,
            clock=self.clock,
            term=term,
        )
        self.task: asyncio.Task[LaneResult] = asyncio.create_task(run.run())

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            await self.clock.advance(0.5)


async def test_a_partition_is_handed_over_when_its_stored_position_has_reached_its_end() -> None:
    stage = LaneStage(ONE, TWO)
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
    stage = LaneStage(ONE)
    await stage.pass_s(4 * RENEW_S)
    assert 3 <= len(stage.leases.states(ONE)) <= 5
    stage.task.cancel()


async def test_what_is_not_handed_over_stays_reserved_at_its_stored_position() -> None:
    stage = LaneStage(ONE)
    stage.copy.at[ONE] = CopyProgress(position=4)
    await stage.pass_s(1)
    stage.topic.wanted = Wanted.CANCEL
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=0, released=0, left=1)
    assert stage.copy.stopped  # before the release
    assert [(it.state, it.position) for it in stage.leases.released] == [(LeaseState.RESERVED, 4)]


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
async def test_a_lane_ends_with_its_job(state: JobState) -> None:
    stage = LaneStage(ONE)
    await stage.pass_s(1)
    assert stage.topic.job is not None
    stage.topic.job = replace(stage.topic.job, state=state)
    await stage.pass_s(1)
    assert (await stage.task).left == 1


async def test_a_superseded_lane_has_stopped_its_task_before_it_returns() -> None:
    stage = LaneStage(ONE)
    await stage.pass_s(1)
    stage.leases.superseded = True
    await stage.pass_s(RENEW_S + 1)
    with pytest.raises(LaneSupersededError):
        await stage.task
    assert stage.copy.stopped == [0]
    assert stage.leases.released == []


@pytest.mark.parametrize("how", ["ends", "fails", "falls silent"])
async def test_a_superseded_lane_stands_by_until_the_other_attempt_has_ended(how: str) -> None:
    stage = LaneStage(ONE)
    await stage.pass_s(1)
    other = replace(lease_of(ONE, LeaseState.COPYING), attempt="speculative")
    stage.leases.superseded, stage.topic.leases = True, {ONE: other}
    await stage.pass_s(60)
    assert not stage.task.done()
    assert stage.copy.stopped == [0]
    if how == "falls silent":
        stage.topic.silent = {ONE: 2 * LEASE_S}
    else:
        state = LeaseState.HANDED_OVER if how == "ends" else LeaseState.RESERVED
        stage.topic.leases = {ONE: replace(other, state=state)}
    await stage.pass_s(1)
    if how == "ends":
        assert await stage.task == LaneResult(handed_over=0, released=0, left=1)
    else:
        # In its last attempt a lane is tried again for that alone (``mm2py_jobs.spark.session.tried``).
        with pytest.raises(RetriableError, match="another attempt"):
            await stage.task


async def test_a_paused_lane_reads_nothing_and_keeps_its_leases() -> None:
    stage = LaneStage(ONE)
    stage.topic.wanted = Wanted.PAUSE
    await stage.pass_s(12)
    assert stage.copy.paused == [True]
    assert len(stage.leases.states(ONE)) >= 2
    stage.topic.wanted = Wanted.RUN
    await stage.pass_s(1)
    assert stage.copy.paused == [True, False]
    stage.task.cancel()


async def test_a_failed_partition_is_given_back_with_its_cause_and_the_others_continue() -> None:
    stage = LaneStage(ONE, TWO)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    await stage.pass_s(1)
    last = stage.leases.records[-1]
    assert (last.source, last.state, last.cause) == (ONE, LeaseState.RELEASED, "too large")
    stage.copy.at[TWO] = CopyProgress(position=10)
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=1, released=1, left=0)


async def test_a_failed_partition_is_released_at_the_position_that_a_stop_stores() -> None:
    stage = LaneStage(ONE, TWO)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    stage.copy.at_stop[ONE] = CopyProgress(position=7, failed=True, cause="too large")
    await stage.pass_s(1)
    last = stage.leases.records[-1]
    assert (last.source, last.state, last.position) == (ONE, LeaseState.RELEASED, 7)
    assert stage.copy.starts == [{ONE: 10, TWO: 10}, {TWO: 10}]
    stage.task.cancel()


async def test_what_a_stop_stores_up_to_the_end_of_a_failed_partition_is_handed_over() -> None:
    stage = LaneStage(ONE)
    stage.copy.at[ONE] = CopyProgress(position=9, failed=True, cause="behind the end")
    stage.copy.at_stop[ONE] = CopyProgress(position=10, failed=True, cause="behind the end")
    await stage.pass_s(1)
    assert await stage.task == LaneResult(handed_over=1, released=0, left=0)


async def test_a_lane_that_is_paused_stays_so_when_a_partition_fails() -> None:
    stage = LaneStage(ONE, TWO)
    stage.topic.wanted = Wanted.PAUSE
    await stage.pass_s(1)
    stage.copy.at[ONE] = CopyProgress(position=3, failed=True, cause="too large")
    await stage.pass_s(1)
    assert stage.copy.starts[1:] == [{TWO: 10}]
    assert stage.copy.paused == [True, True]
    stage.task.cancel()


async def test_a_task_that_failed_with_its_last_partition_is_started_for_the_others() -> None:
    stage = LaneStage(ONE, TWO)
    await stage.pass_s(1)
    stage.copy.state = Status(State.FAILED, PartitionError("bad", topic="t", partition=0))
    await stage.pass_s(3)
    assert stage.copy.starts[1:] == [{TWO: 10}]
    assert stage.leases.states(ONE)[-1] == "RELEASED"
    stage.task.cancel()


async def test_a_task_that_fails_again_and_again_fails_the_lane() -> None:
    stage = LaneStage(ONE)
    for _ in range(TASK_STARTS):
        await stage.pass_s(1)
        stage.copy.state = Status(State.FAILED, FatalError("no way"))
        await stage.pass_s(TASK_STARTS)
    with pytest.raises(FatalError, match="failed 5 times, the last cause: no way"):
        await stage.task
    assert stage.copy.stopped
    ((lease),) = stage.leases.released
    assert (lease.source, lease.state) == (
        ONE,
        LeaseState.RESERVED,
    )  # Spark's next try need not wait
    assert "no way" in lease.cause


def a_term(seconds: int) -> Term:
    return Term(turn=0, seconds=seconds, until_ms=FakeClock().now_ms() + 1_000 * seconds)


async def test_a_term_whose_task_fails_again_and_again_ends_by_time_with_the_cause() -> None:
    stage = LaneStage(ONE, TWO, term=a_term(120))
    while not stage.task.done():
        stage.copy.state = Status(State.FAILED, FatalError("no way"))
        await stage.pass_s(1)
    assert (await stage.task).left == 2
    assert len(stage.copy.starts) > 2 * TASK_STARTS
    assert all("no way" in it.cause for it in stage.leases.released)
    assert all("no way" in it.cause and it.failed for it in (await stage.task).parts)


@pytest.mark.parametrize(
    ("before", "moved", "failed", "held_s", "stands"),
    [
        ("", 0, False, 3, False),  # a leader moves
        ("", 5, False, 3, False),
        ("", 0, False, 40, True),
        ("no right", 0, False, 3, True),  # nor was it copied in the term before
        ("no right", 5, False, 3, False),
        ("", 0, True, 3, True),
    ],
)
async def test_a_partition_that_is_held_for_a_moment_as_its_term_ends_does_not_stand_still(
    before: str, moved: int, failed: bool, held_s: int, stands: bool
) -> None:
    stage = LaneStage(term=a_term(120), leases=Leases(ONE))
    stage.leases.claimed[ONE] = replace(stage.leases.claimed[ONE], cause=before)
    stage.copy.at[ONE] = CopyProgress(position=moved)
    await stage.pass_s(120 - held_s)
    stage.copy.at[ONE] = CopyProgress(position=moved, failed=failed, cause="leader not available")
    await stage.pass_s(held_s + 1)
    await stage.task
    assert bool(standing_still({it.source: it for it in stage.leases.released})) is stands


@pytest.mark.parametrize("begins", [False, True])
async def test_a_partition_whose_source_did_not_answer_stands_still_until_its_lane_has_begun(
    *, begins: bool
) -> None:
    """In terms that are shorter than a task waits before it says so."""
    stage = LaneStage(term=replace(a_term(8), waits="login refused"), leases=Leases(ONE))
    stage.copy.begins_as = State.UNASSIGNED
    await stage.pass_s(4)
    assert stage.leases.records[-1].cause == "login refused"
    if begins:
        stage.copy.state = Status(State.RUNNING)
    await stage.pass_s(5)
    (part,) = (await stage.task).parts
    (lease,) = stage.leases.released
    assert (part.cause, lease.cause) == (("", "") if begins else ("login refused",) * 2)


COPYING, RESERVED, DONE = LeaseState.COPYING, LeaseState.RESERVED, LeaseState.HANDED_OVER


@pytest.mark.parametrize(
    ("others", "sharing"),
    [
        ({1: RESERVED, 2: RESERVED, 3: RESERVED}, 1),  # they wait for a slot
        ({1: COPYING, 2: COPYING, 3: RESERVED}, 3),
        ({1: COPYING, 2: DONE, 3: LeaseState.RELEASED}, 2),
        ({1: DONE, 2: DONE, 3: DONE}, 1),
    ],
)
@pytest.mark.parametrize("term", [None, Term(turn=0, seconds=600, until_ms=2**50)])
async def test_the_lanes_that_run_share_the_rate(
    others: Mapping[int, LeaseState], sharing: int, term: Term | None
) -> None:
    stage = LaneStage(ONE, is_limited=True, term=term)
    await stage.pass_s(1)
    assert stage.copy.shared == [1]
    stage.topic.leases = {
        TopicPartition("u", number): replace(
            lease_of(TopicPartition("u", number), state), lane=number
        )
        for number, state in others.items()
    }
    await stage.pass_s(0.5)
    assert stage.copy.shared == [1, sharing][: 1 + (sharing != 1)], "at once"
    stage.topic.silent = {TopicPartition("u", 1): LEASE_S}  # its executor is gone
    await stage.pass_s(0.5)
    left = sharing - (others[1] is COPYING)
    assert stage.copy.shared[-1] == left
    stage.topic.leases = {tp: replace(it, run=2) for tp, it in stage.topic.leases.items()}
    await stage.pass_s(0.5)
    assert stage.copy.shared[-1] == 1, "another run's say nothing"
    assert len(stage.copy.starts) == 1, "without a restart"
    stage.task.cancel()


async def test_a_run_without_a_rate_shares_nothing() -> None:
    stage = LaneStage(ONE)
    stage.topic.leases = {TWO: replace(lease_of(TWO, COPYING), lane=1)}
    await stage.pass_s(2)
    assert stage.copy.shared == [1]
    stage.task.cancel()


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_lane_whose_run_ended_while_it_waited_for_a_slot_claims_nothing(how: str) -> None:
    stage = LaneStage(ONE, TWO, wanted=Wanted.CANCEL if how == "cancelled" else Wanted.RUN)
    if how == "stopped":
        assert stage.topic.job is not None
        stage.topic.job = replace(stage.topic.job, state=JobState.FAILED)
    await stage.pass_s(0.5)
    assert await stage.task == LaneResult(handed_over=0, released=0, left=2)
    assert (stage.leases.claims, stage.copy.starts, stage.leases.released) == (0, [], [])


def test_a_lane_that_starts_late_copies_for_a_part_of_its_term() -> None:
    term = Term(turn=1, seconds=30, until_ms=40_000)
    assert term.left_s(10_000) == 30
    assert term.left_s(0) == 30  # a clock that is behind
    assert term.left_s(25_000) == 15
    assert term.left_s(99_000) == 10


async def test_a_lane_with_a_term_keeps_every_partition_reserved_and_ends_by_time() -> None:
    stage = LaneStage(
        ONE, TWO, term=Term(turn=0, seconds=20, until_ms=FakeClock().now_ms() + 20_000)
    )
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
    stage = LaneStage(ONE, term=term)
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


@pytest.mark.parametrize("term", [None, Term(turn=0, seconds=600, until_ms=2**50)])
async def test_partitions_that_a_process_dies_of_are_given_up_unread(term: Term | None) -> None:
    leases, copy = Leases(ONE), Copy(is_limited=False)
    run = LaneRun((ONE,), leases, copy, Topic(), run=1, clock=FakeClock(), term=term)
    ended = await run.give_up("killed")
    state = LeaseState.RELEASED if term is None else LeaseState.RESERVED
    assert [(it.state, it.cause) for it in leases.released] == [(state, "killed")]
    assert [(it.partition, it.cause, it.failed) for it in ended.parts] == [(0, "killed", True)]
    assert not copy.starts


# -- lanes that wait for room at their brokers: never more at one, all of them in the end, and none after a failure


WITHIN_S = 60.0


class Seen:
    """Counts lanes at each broker."""

    def __init__(self, brokers: Sequence[frozenset[str]]) -> None:
        self.brokers = brokers
        self.most = Counter[str]()
        self.begun: list[int] = []
        self._now = Counter[str]()
        self._lock = threading.Lock()

    def work(self, number: int) -> str:
        mine = self.brokers[number]
        with self._lock:
            self.begun.append(number)
            self._now.update(mine)
            for it in mine:
                self.most[it] = max(self.most[it], self._now[it])
        with self._lock:
            self._now.subtract(mine)
        return f"lane {number}"

    def of(self, numbers: Sequence[int]) -> list[frozenset[str]]:
        return [self.brokers[it] for it in numbers]


def never() -> None:
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("seed", range(20))
def test_no_broker_has_more_lanes_than_it_may_and_all_lanes_run(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 3)
    names = [f"b{it}" for it in range(chance.randint(1, 4))]
    seen = Seen([frozenset(chance.choices(names, k=chance.randint(0, 2))) for _ in range(30)])
    answers = LaneGate(most, seen.of).run(30, seen.work, never)
    assert answers == [f"lane {it}" for it in range(30)]
    assert max(seen.most.values()) <= most


def test_lanes_of_other_brokers_pass_by_one_that_waits() -> None:
    """The second lane of a waits for the first, which waits for the lane of b."""
    seen, passed = Seen([frozenset("a"), frozenset("a"), frozenset("b")]), threading.Event()

    def work(number: int) -> str:
        if number == 0:
            assert passed.wait(WITHIN_S)
        answer = seen.work(number)
        if number == 2:
            passed.set()
        return answer

    assert len(LaneGate(1, seen.of).run(3, work, never)) == 3
    assert seen.begun.index(1) > seen.begun.index(0)


def test_a_lane_counts_where_its_leader_is_when_it_begins() -> None:
    """Both leaders have moved to b while lane 0 ran: of the other two one runs at a time."""
    seen, asked = Seen([frozenset("a"), frozenset("b"), frozenset("b")]), list[Sequence[int]]()

    def brokers(numbers: Sequence[int]) -> list[frozenset[str]]:
        asked.append(list(numbers))
        return [frozenset("a")] * len(numbers) if len(numbers) == 3 else seen.of(numbers)

    assert len(LaneGate(1, brokers).run(3, seen.work, never)) == 3
    assert seen.most["b"] == 1
    assert asked[0] == [0, 1, 2]


def test_after_a_failure_no_lane_begins_and_those_that_run_are_given_up() -> None:
    given_up = threading.Event()
    seen = Seen([frozenset("a"), frozenset("b"), frozenset("a")])

    def work(number: int) -> str:
        seen.work(number)
        if number == 0:
            raise ValueError("lost")
        assert given_up.wait(WITHIN_S), "as Spark ends a job that is cancelled"
        return ""

    with pytest.raises(ValueError, match="lost"):
        LaneGate(1, seen.of).run(3, work, given_up.set)
    assert sorted(seen.begun) == [0, 1]


def test_after_a_stop_no_lane_begins_and_those_that_run_go_on_to_their_end() -> None:
    seen = Seen([frozenset("a"), frozenset("a"), frozenset("b"), frozenset("b")])
    gate, both = LaneGate(1, seen.of), threading.Barrier(2)

    def work(number: int) -> str:
        both.wait(WITHIN_S)
        gate.stop()
        return seen.work(number)

    assert gate.run(4, work, never) == ["lane 0", "lane 2"]
    assert sorted(seen.begun) == [0, 2]


async def test_the_leader_of_a_topic_that_was_just_created_counts_before_its_lane_begins() -> None:
    async with FakeBroker() as broker:
        ((host, port),) = broker.bootstrap_servers
        led = LedPartition("source", TopicPartition("new", 0))
        leaders = Leaders({"source": {"bootstrap.servers": f"{host}:{port}"}}, [led])
        asked = asyncio.create_task(asyncio.to_thread(leaders.brokers, [led]))
        await eventually(lambda: broker.count(3) >= 2)
        broker.create_topic("new")
        assert len(await asked) == 1
