"""Streams over a topic in memory; the names are the invariants of ``mm2py_jobs.copy.stream``."""

import asyncio
from dataclasses import replace

import pytest

from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import (
    BEAT_S,
    LANE_LOST,
    LEASE_S,
    NO_END,
    Job,
    JobKind,
    JobState,
    LeaseState,
    Wanted,
    Wish,
)
from mm2py.mirror.start_positions import FIRST_START, STREAMED_PARTITIONS
from mm2py.storage.job_claim import BackfillRefusedError, JobClaim
from mm2py.storage.memory import MemoryTopic
from mm2py.types import TopicPartition
from mm2py_jobs.copy.stream import (
    LOST_TERMS,
    STUCK_BEATS,
    StreamDriver,
    StreamPartitions,
    deal_term,
    standing_still,
)
from tests.unit.spark.driver_fakes import FAILOVER, ONE, THREE, TWO, JobStage, TopicWriter, lease_of

BOTH = StreamPartitions(frozenset({ONE, TWO}))


class Stage(JobStage):
    def __init__(self, topic: MemoryTopic | None = None) -> None:
        super().__init__(topic)
        self.driver = StreamDriver(self.claim, self.store, self.flow, name="A->B", clock=self.clock)

    async def begin(self, partitions: StreamPartitions = BOTH, job: str = "s") -> None:
        await self.store.start()
        await self.passing(self.driver.begin(2, job=job))
        await self.passing(self.driver.follow(partitions))

    async def copies(self, partition: TopicPartition) -> None:
        """Act as a lane."""
        lease = self.store.leases[partition]
        await self.store.post([replace(lease, state=LeaseState.COPYING, attempt="a", lane=0)])


async def begun(partitions: StreamPartitions = BOTH) -> Stage:
    stage = Stage()
    await stage.begin(partitions)
    return stage


def test_lanes_share_what_waits_and_what_came() -> None:
    leases = {it: lease_of(it, job="s", end=NO_END) for it in (ONE, TWO, THREE)}
    ends = {ONE: 100_000_000, TWO: 10, THREE: 10}
    assert deal_term(leases, ends, 2, 1) == [[ONE], [TWO, THREE]]
    assert deal_term(leases, {TWO: 10}, 2, 1) == [[TWO]]  # the others are gone
    assert deal_term({}, {}, 2, 1) == []


def test_a_partition_that_a_lane_dies_of_is_dealt_alone_and_seldom() -> None:
    leases = {it: lease_of(it, job="s", end=NO_END) for it in (ONE, TWO, THREE)}
    leases[ONE] = replace(leases[ONE], cause=f"{LANE_LOST} (exit code -9)")
    ends = dict.fromkeys(leases, 10)
    assert deal_term(leases, ends, 2, 1) == [[TWO], [THREE]]
    assert deal_term(leases, ends, 2, LOST_TERMS) == [[TWO, THREE], [ONE]]
    assert deal_term(leases, ends, 1, LOST_TERMS) == [[ONE, TWO, THREE]]
    assert deal_term({ONE: leases[ONE]}, ends, 2, 1) == [[ONE]]


async def test_a_partition_is_dealt_only_after_every_worker_has_confirmed() -> None:
    stage = Stage()
    stage.flow.members = ["w1:1"]
    stage.flow.positions = {ONE: 7}
    await stage.store.start()
    await stage.passing(stage.driver.begin(2, job="s"))
    assert stage.job.turn == 0
    assert dict(stage.store.kept_out()) == {}  # Spark is not ready yet, the workers copy
    begin = asyncio.ensure_future(stage.driver.follow(BOTH))
    for _ in range(30):
        await stage.clock.advance(0.3)
    assert not begin.done()
    assert stage.job.turn == 0
    assert set(stage.store.kept_out()) == {ONE, TWO}
    assert deal_term(stage.store.kept_out(), {ONE: 9, TWO: 9}, 2, 1) == []
    await stage.store.notice("w1:1", stage.store.offset)
    for _ in range(3):
        await stage.clock.advance(0.3)
    await begin
    assert stage.job.turn == 1
    assert [set(it) for it in deal_term(stage.store.kept_out(), {ONE: 9, TWO: 9}, 1, 1)] == [
        {ONE, TWO}
    ]
    assert stage.store.leases[ONE].position == 7
    assert stage.flow.set == {}  # auto.offset.reset decides
    await stage.driver.close()


async def test_workers_that_do_not_let_go_of_a_late_partition_get_everything_back() -> None:
    stage = await begun()
    await stage.copies(ONE)
    stage.flow.members = ["w1:1"]
    later = StreamPartitions(frozenset({ONE, TWO, THREE}), frozenset({THREE}))
    with pytest.raises(BackfillRefusedError, match=r"within .* w1:1"):
        await stage.passing(stage.driver.follow(later))
    await stage.store.refresh()
    assert (stage.job.state, dict(stage.store.kept_out())) == (JobState.DONE, {})
    assert stage.flow.fenced[-1] == "mm2py-backfill-A->B-1"
    assert not stage.driver.dealing


async def test_lanes_of_a_former_run_can_claim_nothing_before_their_leases_run_out() -> None:
    first = await begun()
    await first.copies(ONE)
    await first.driver.close()
    second = Stage(first.topic)
    began = second.clock.monotonic()
    await second.store.start()
    taking = asyncio.ensure_future(second.driver.begin(2, job="other"))
    while not second.flow.fenced:
        await second.clock.advance(0.3)
    # The record that refuses former attempts is there before they are fenced.
    assert (second.job.id, second.job.run) == ("s", 2)
    assert second.store.leases[ONE].state is LeaseState.COPYING
    for _ in range(200):
        if taking.done():
            break
        await second.clock.advance(0.3)
    await taking
    assert second.clock.monotonic() - began >= LEASE_S
    assert {it.state for it in second.store.leases.values()} == {LeaseState.RESERVED}
    assert {it.run for it in second.store.leases.values()} == {2}
    await second.driver.close()


async def test_lanes_on_executors_that_came_after_the_begin_are_fenced_too() -> None:
    stage = await begun()
    assert stage.driver.job.lanes == 2
    await stage.passing(stage.driver.follow_slots(4))
    await stage.passing(stage.driver.follow_slots(3))  # one has gone: its lane may still write
    await stage.passing(stage.driver.again("lost"))
    lanes = [f"mm2py-backfill-A->B-{number}" for number in range(4)]
    assert stage.flow.fenced[-4:] == lanes
    await stage.passing(stage.driver.end())
    assert stage.flow.fenced[-4:] == lanes


async def test_a_second_stream_and_a_backfill_are_refused_beside_a_living_one() -> None:
    first = await begun()
    second = Stage(first.topic)
    await second.store.start()
    asking = asyncio.ensure_future(second.claim.claim(JobKind.STREAM))
    for _ in range(20):
        await first.clock.advance(1.0)
        await second.clock.advance(1.0)
    with pytest.raises(BackfillRefusedError, match="mm2py stream copies A->B already"):
        await asking
    await first.driver.close()
    with pytest.raises(BackfillRefusedError, match="was not ended in order"):
        await second.passing(second.claim.claim(JobKind.BACKFILL))


async def test_a_partition_that_is_given_back_is_copied_by_no_lane() -> None:
    stage = await begun()
    await stage.copies(ONE)
    await stage.driver.end_term()
    await stage.store.refresh()
    assert not stage.job.state.is_copied  # a lane that claims now is refused
    assert set(stage.store.kept_out()) == {ONE, TWO}
    began = stage.clock.monotonic()
    await stage.passing(stage.driver.end())  # the lane did not end
    assert stage.clock.monotonic() - began >= LEASE_S
    assert stage.flow.fenced[-2:] == ["mm2py-backfill-A->B-0", "mm2py-backfill-A->B-1"]
    await stage.store.refresh()
    assert dict(stage.store.kept_out()) == {}
    assert stage.job.state is JobState.DONE


async def test_the_record_of_a_stream_names_what_stood_still_at_its_end() -> None:
    stage = await begun()
    await stage.store.post([replace(stage.store.leases[ONE], cause="too large")])
    await stage.driver.end_term()
    await stage.passing(stage.driver.end())
    await stage.store.refresh()
    assert stage.job.cause == "mm2py stream was ended; 1 partitions stood still: t-0: too large"


async def test_partitions_that_come_later_begin_at_their_first_record() -> None:
    stage = await begun()
    turn = stage.job.turn
    later = StreamPartitions(frozenset({ONE, THREE}), frozenset({ONE, THREE}))
    stage.flow.positions, stage.flow.starts = {ONE: 5}, {THREE: 7}
    await stage.passing(stage.driver.follow(later))
    await stage.store.refresh()
    assert stage.job.turn == turn + 1
    assert stage.flow.set == {THREE: 7}
    assert set(stage.store.kept_out()) == {ONE, THREE}
    assert stage.store.leases[TWO].state is LeaseState.RELEASED
    await stage.driver.close()


async def test_a_partition_that_goes_while_a_lane_copies_it_is_given_back_when_that_ended() -> None:
    stage = await begun()
    turn = stage.job.turn
    await stage.copies(TWO)
    for _ in range(2):
        with pytest.raises(RetriableError, match="t-1 no more"):
            await stage.passing(stage.driver.follow(StreamPartitions(frozenset({ONE}))))
        await stage.store.refresh()
        assert stage.job.turn == turn + 1  # the other lanes are dealt anew once
    lease = replace(stage.store.leases[TWO], state=LeaseState.RESERVED, cause="no such topic")
    await stage.store.post([lease])
    await stage.passing(stage.driver.follow(StreamPartitions(frozenset({ONE}))))
    await stage.store.refresh()
    assert (set(stage.store.kept_out()), stage.job.turn) == ({ONE}, turn + 1)
    assert standing_still(stage.store.leases) == {}
    await stage.driver.close()


async def test_a_late_partition_without_a_leader_waits_alone() -> None:
    stage = Stage()
    stage.flow.leaderless, stage.flow.starts = {THREE}, {TWO: 4, THREE: 7}
    await stage.store.start()
    await stage.passing(stage.driver.begin(2, job="s"))
    found = StreamPartitions(frozenset({ONE, TWO, THREE}), frozenset({TWO, THREE}))
    ends = dict.fromkeys(found.chosen, 9)
    for _ in range(2):
        with pytest.raises(RetriableError, match="t-2: they wait"):
            await stage.passing(stage.driver.follow(found))
        await stage.store.refresh()
        assert deal_term(stage.store.kept_out(), ends, 1, 1) == [[ONE, TWO]]
        assert (stage.job.turn, stage.flow.set) == (1, {TWO: 4})  # no lane is dealt anew for it
    stage.flow.leaderless = set()
    await stage.passing(stage.driver.follow(found))
    await stage.store.refresh()
    assert (stage.job.turn, stage.flow.set) == (2, {TWO: 4, THREE: 7})
    assert deal_term(stage.store.kept_out(), ends, 1, 1) == [[ONE, TWO, THREE]]
    await stage.driver.close()


async def test_a_stream_whose_driver_is_gone_is_taken_back_by_a_worker() -> None:
    dead = await begun()
    await dead.copies(TWO)
    await dead.driver.close()
    worker = Stage(dead.topic)
    await worker.store.start()
    began = worker.clock.monotonic()
    await worker.passing(worker.claim.take_back("gone"))
    assert worker.clock.monotonic() - began >= LEASE_S
    await worker.store.refresh()
    assert (worker.job.state, worker.job.run) == (JobState.DONE, 2)
    assert dict(worker.store.kept_out()) == {}
    # The driver was only frozen: it notices at its next record.
    dead.claim.job = replace(dead.driver.job, run=1)
    writer = TopicWriter(dead.topic)
    late = JobClaim(dead.store, writer, dead.flow.fence, name="A->B", clock=dead.clock)
    late.job = replace(worker.job, run=1)
    with pytest.raises(BackfillRefusedError, match="another driver has taken"):
        await late.write([replace(late.job, beat=9)])
    await worker.claim.take_back("gone")  # nothing is left


async def test_a_lane_that_renews_no_more_is_replaced_unless_the_target_is_away() -> None:
    stage = await begun()
    await stage.copies(ONE)
    for _ in range(STUCK_BEATS + 5):
        await stage.clock.advance(BEAT_S)
        await stage.copies(ONE)
        stage.driver.check_lanes()
    assert stage.driver.job.beat > STUCK_BEATS
    await stage.driver.close()  # no beat is written, as while the target is away
    await stage.clock.advance(BEAT_S * 2 * STUCK_BEATS)
    stage.driver.check_lanes()
    job = stage.job
    await stage.store.post([replace(job, beat=job.beat + STUCK_BEATS)])
    await stage.store.refresh()
    with pytest.raises(FatalError, match="lane 0 has not renewed its lease for 90 s"):
        stage.driver.check_lanes()
    await stage.passing(stage.driver.again("frozen"))
    assert (stage.driver.job.run, stage.driver.job.cause) == (2, "frozen")
    stage.driver.check_lanes()
    await stage.driver.close()


async def test_a_stream_whose_query_fails_before_its_first_reservation_begins_again() -> None:
    stage = await begun(StreamPartitions(frozenset()))
    await stage.passing(stage.driver.again("no executor"))
    assert (stage.driver.job.run, stage.driver.job.cause) == (2, "no executor")
    assert not stage.store.leases
    await stage.driver.close()


async def test_a_stream_that_is_asked_to_end_says_so() -> None:
    stage = await begun()
    recalled = asyncio.ensure_future(stage.driver.wait_recalled())
    await stage.clock.advance(1)
    assert not recalled.done()
    await stage.store.post([Wish(job="s", wanted=Wanted.CANCEL)])
    await stage.passing(asyncio.wait_for(recalled, None))
    assert "worker again" in recalled.result()
    await stage.driver.close()


async def test_a_stream_gives_everything_back_beside_a_failover_that_has_begun() -> None:
    stage = await begun()
    waiting = asyncio.ensure_future(stage.driver.wait_others())
    await stage.clock.advance(2 * BEAT_S)
    assert not waiting.done()
    stage.flow.failover = FAILOVER
    await stage.passing(asyncio.wait_for(waiting, None))
    with pytest.raises(BackfillRefusedError, match="failover f of A->B is at DRAIN"):
        await stage.passing(stage.driver.follow(BOTH))
    await stage.store.refresh()
    assert (stage.job.state, dict(stage.store.kept_out())) == (JobState.DONE, {})


async def test_a_stream_beside_a_failover_ends_what_a_dead_one_has_reserved() -> None:
    dead = await begun()
    await dead.driver.close()
    again = Stage(dead.topic)
    again.flow.failover = FAILOVER
    with pytest.raises(BackfillRefusedError, match="Spark copies nothing beside it"):
        await again.begin()
    await again.store.refresh()
    assert (again.job.state, dict(again.store.kept_out())) == (JobState.DONE, {})


# -- one attempt of a lane over fakes; the names are the invariants of ``mm2py_jobs.copy.lanes``


@pytest.mark.parametrize("then", ["nothing", "a stream without lanes", "a backfill", "its cancel"])
async def test_what_streams_had_is_known_to_every_later_start(then: str) -> None:
    """Else with ``latest`` it is a first start: what has come meanwhile begins at its end, lost."""
    stage = Stage()
    await stage.store.start()
    assert stage.store.streamed() == ()
    await stage.begin()
    began = stage.job.started_ms
    await stage.driver.end()
    told = {STREAMED_PARTITIONS: "t-0,t-1", FIRST_START: str(began)}
    assert stage.store.streamed() == (told,)
    await stage.clock.advance(60)
    again = Stage(stage.topic)
    if then == "a stream without lanes":  # as where Spark does not start
        await again.begin(StreamPartitions(frozenset()), job="next")
        await again.driver.close()
    elif then != "nothing":
        await again.store.start()
        await again.passing(again.claim.claim(JobKind.BACKFILL))
        job = Job(id="b", state=JobState.RUNNING, run=1, lanes=1, started_ms=began + 60_000)
        await again.claim.begin(job)
        await again.claim.write([lease_of(it, job="b") for it in (ONE, TWO)])
        if then == "its cancel":
            await again.claim.begin(replace(again.claim.mine, run=2))
            await again.claim.release(JobState.CANCELLED, "cancelled")
    late = Stage(stage.topic)
    await late.store.start()
    assert late.store.streamed() == (told,)


async def test_a_backfill_alone_is_no_first_start() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.claim.begin(Job(id="b", state=JobState.RUNNING, run=1, lanes=1, started_ms=5))
    await stage.claim.write([lease_of(ONE, job="b")])
    await stage.claim.begin(replace(stage.claim.mine, run=2))
    assert stage.store.streamed() == ()
