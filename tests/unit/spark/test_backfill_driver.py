"""The driver over a topic in memory; the names are the invariants of ``mm2py_jobs.copy.backfill``."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin, ConfigOp
from mm2py.errors import FatalError, RequestTimedOutError, RetriableError, ServerError
from mm2py.mirror.backfills import (
    ALIVE_S,
    BEAT_S,
    LEASE_S,
    RANGE_GONE,
    CopyAgain,
    Job,
    JobState,
    Lease,
    LeaseState,
    SettingChange,
    Wanted,
    Wish,
    without_driver,
)
from mm2py.protocol.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.storage.job_claim import BackfillRefusedError, DriverSupersededError
from mm2py.storage.memory import MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill import STOPPED, BackfillDriver, new_job
from mm2py_jobs.copy.backfill_flow import altered_configs
from mm2py_jobs.copy.backfill_report import report
from mm2py_jobs.copy.live_flow import LET_GO_S
from mm2py_jobs.copy.plan import PartitionPlan, Plan
from tests.unit.spark.driver_fakes import COPY_OF_ONE, FAILOVER, ONE, TWO, JobStage, lease_of, part

SETTING = SettingChange("A.t", "retention.ms", "1000", "-1")


RUNNING = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)
REQUEST = new_job("j", topics="t", start="earliest", end="now", lanes=2)


class Stage(JobStage):
    """A driver, and lanes that hand over what they are given unless ``failing``."""

    def __init__(self, topic: MemoryTopic | None = None) -> None:
        super().__init__(topic)
        self.driver = BackfillDriver(
            self.claim, self.store, self.flow, name="A->B", clock=self.clock
        )
        self.lanes: list[list[TopicPartition]] = []
        self.failing: Exception | None = None
        self.leaves: set[TopicPartition] = set()
        self.ends: list[Lease] = []
        """What lanes write of those that they leave."""
        self.at_lanes: tuple[Job | None, list[tuple[str, str, str | None]]] = None, []

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        self.lanes = [list(lane) for lane in lanes]
        self.at_lanes = self.store.job, list(self.flow.altered)
        if self.failing is not None:
            raise self.failing
        done = [
            replace(lease, state=LeaseState.HANDED_OVER, position=lease.end)
            for tp, lease in self.store.leases.items()
            if tp not in self.leaves and any(tp in lane for lane in lanes)
        ]
        await self.store.post(done + self.ends)

    async def begin(
        self, *partitions: PartitionPlan, settings: tuple[SettingChange, ...] = ()
    ) -> Job:
        """Claim and run; time passes as it is asked for."""
        await self.store.start()
        await self.passing(self.driver.claim())
        plan = Plan(flow="A->B", partitions=partitions, settings=settings)
        return await self.passing(self.driver.run(plan, REQUEST, self))


async def test_a_new_backfill_runs_to_its_end_and_leaves_nothing_reserved() -> None:
    stage = Stage()
    job = await stage.begin(part(ONE), part(TWO))
    assert job.state is JobState.DONE
    assert stage.lanes == [[ONE], [TWO]]
    assert stage.store.kept_out() == {}
    assert stage.flow.fenced == ["mm2py-backfill-A->B-0", "mm2py-backfill-A->B-1"]
    shown = report(job, stage.store.leases.values())
    assert shown["state"] == "DONE"


async def test_a_copy_that_may_not_be_deleted_stays_as_it_is_and_is_given_back() -> None:
    stage = Stage()
    stage.flow.positions, stage.flow.ends = {ONE: 10}, {COPY_OF_ONE: 12}
    stage.flow.denies_deletion = server_error(TOPIC_AUTHORIZATION_FAILED, "records of A.t-0")
    again = replace(part(ONE), again=CopyAgain(topic="A.t", compared_to=10, deletes=True))
    with pytest.raises(BackfillRefusedError, match=r"A\.t-0"):
        await stage.begin(again)
    assert (stage.lanes, stage.flow.set, stage.store.kept_out()) == ([], {}, {})


async def test_lanes_start_only_after_every_member_has_confirmed_the_reservation() -> None:
    stage = Stage()
    stage.flow.members = ["w1:1", "w2:2"]
    running = asyncio.ensure_future(stage.begin(part(ONE)))
    await until(lambda: ONE in stage.store.kept_out())
    await stage.store.notice("w1:1", stage.store.reserved)
    await stage.clock.advance(3)
    assert stage.lanes == []
    await stage.store.notice("w2:2", stage.store.reserved - 1)  # of an earlier reservation
    await stage.clock.advance(3)
    assert stage.lanes == []
    await stage.store.notice("w2:2", stage.store.reserved)
    assert (await running).state is JobState.DONE


async def test_workers_that_do_not_let_go_refuse_the_backfill_and_nothing_is_left_behind() -> None:
    stage = Stage()
    stage.flow.members = ["w1:1"]
    began = stage.clock.monotonic()
    with pytest.raises(BackfillRefusedError, match=r"have not let go.*w1:1"):
        await stage.begin(part(ONE), settings=(SETTING,))
    assert stage.clock.monotonic() - began >= LET_GO_S
    assert stage.lanes == []
    assert stage.job.state is JobState.CANCELLED
    assert stage.store.kept_out() == {}


async def test_a_flow_of_another_program_is_refused() -> None:
    stage = Stage()
    stage.flow.members, stage.flow.protocol = ["java:8083"], "sessioned"
    with pytest.raises(BackfillRefusedError, match="another program"):
        await stage.begin(part(ONE))
    assert stage.lanes == []


async def test_lanes_end_where_another_program_joins_the_flows_group() -> None:
    class Stays(Stage):
        async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
            self.flow.members, self.flow.protocol = ["java:8083"], "sessioned"
            while self.job.state.is_copied:
                await self.clock.sleep(1)
                await self.store.refresh()

    stage = Stays()
    job = await stage.begin(part(ONE), part(TWO))
    assert (job.state, set(stage.store.kept_out())) == (JobState.FAILED, {ONE, TWO})
    assert "another program" in job.cause
    again = Stage(stage.topic)
    assert (await again.begin(part(ONE), part(TWO))).state is JobState.DONE


async def test_a_job_that_another_driver_is_working_on_is_left_alone() -> None:
    topic = MemoryTopic("backfill")
    stage, other = Stage(topic), Stage(topic)
    await other.store.start()
    alive = Job(id="j", state=JobState.RUNNING, run=1, lanes=1, beat=3)
    await other.store.post([alive])
    await stage.store.start()
    claim = asyncio.ensure_future(stage.driver.claim())
    await stage.clock.advance(2)
    await other.store.post([replace(alive, beat=4)])
    await stage.clock.advance(30)
    with pytest.raises(BackfillRefusedError, match="backfill j of A->B is running"):
        await claim


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_job_of_a_newer_version_is_left_alone(when: str) -> None:
    stage = Stage()
    await stage.store.start()
    await stage.store.post([Job(id="j", state=JobState.DONE, run=1, lanes=1)])
    if when == "before":
        stage.topic.append(b"job", b"\x02{}")
    else:
        stage.writer.claims = lambda: stage.topic.append(b"job", b"\x02{}")
    with pytest.raises(FatalError, match="use the version of mm2py that wrote it"):
        await stage.passing(stage.driver.claim())
    assert stage.writer.claimed is (when == "meanwhile")


async def test_another_run_continues_what_a_driver_that_died_left_with_its_settings() -> None:
    first = Stage()
    first.failing = FatalError("Spark is gone")
    with pytest.raises(FatalError, match="Spark is gone"):
        await first.begin(part(ONE), part(TWO), settings=(SETTING,))
    assert (first.job.state, first.job.cause) == (JobState.FAILED, "Spark is gone")
    assert set(first.store.kept_out()) == {ONE, TWO}  # not copied twice meanwhile
    assert len(first.flow.altered) == 1
    second = Stage(first.topic)
    second.flow.positions = {ONE: 4}
    job = await second.begin(part(ONE), part(TWO))
    assert (job.id, job.run, job.state) == ("j", 2, JobState.DONE)
    assert second.store.leases[ONE].start == 4
    assert second.flow.altered == [("SET", "retention.ms", "-1"), ("SET", "retention.ms", "1000")]


async def test_a_job_whose_driver_died_before_reserving_anything_is_begun_as_a_new_one() -> None:
    died = Stage()
    await died.store.start()
    await died.store.post([RUNNING])
    stage = Stage(died.topic)
    job = await stage.begin(part(ONE), part(TWO), settings=(SETTING,))
    assert (job.id, job.run, job.state, job.settings) == ("j", 2, JobState.DONE, (SETTING,))
    assert stage.lanes == [[ONE], [TWO]]
    assert {it.run for it in stage.store.leases.values()} == {2}


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_run_that_is_stopped_before_its_lanes_begin_has_none(*, reserved: bool) -> None:
    stage = Stage()
    stage.flow.members = ["w1:1"] if reserved else []
    if not reserved:
        await stage.driver.stop()
    running = asyncio.ensure_future(stage.begin(part(ONE)))
    if reserved:
        await until(lambda: ONE in stage.store.kept_out())
        await stage.driver.stop()
        await stage.store.notice("w1:1", stage.store.reserved)
    with pytest.raises(FatalError, match=STOPPED):
        await running
    await stage.store.refresh()
    assert (stage.job.state, stage.job.cause, stage.lanes) == (JobState.FAILED, STOPPED, [])
    assert set(stage.store.kept_out()) == ({ONE} if reserved else set())


async def test_a_job_ends_whose_target_topic_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()

    async def unknown(changes: Mapping[str, object]) -> Mapping[str, ServerError]:
        return dict.fromkeys(changes, server_error(UNKNOWN_TOPIC_OR_PARTITION, "A.t"))

    monkeypatch.setattr(stage.flow, "alter_topic_configs", unknown)
    assert (await stage.begin(part(ONE), settings=(SETTING,))).state is JobState.DONE


@pytest.mark.parametrize("there", [False, True])
async def test_settings_of_topics_that_are_all_gone_are_not_insisted_on(*, there: bool) -> None:
    class Target:
        async def alter_topic_configs(self, _changes: object) -> Mapping[str, ServerError | None]:
            raise RequestTimedOutError("not within 60000 ms")

        async def describe_topics(self, names: Mapping[str, object]) -> Mapping[str, object]:
            return dict.fromkeys(names) if there else {}

    changes = {"A.t": [ConfigOp("retention.ms", "SET", "1000")]}
    asked = altered_configs(cast("Admin", Target()), changes)
    if there:
        with pytest.raises(RequestTimedOutError):
            await asked
    else:
        (error,) = (await asked).values()
        assert error is not None
        assert error.code == UNKNOWN_TOPIC_OR_PARTITION


async def test_lanes_of_a_former_run_are_fenced_and_their_leases_run_out() -> None:
    first = Stage()
    first.failing = FatalError("gone")
    with pytest.raises(FatalError):
        await first.begin(part(ONE))
    await first.store.post([replace(first.store.leases[ONE], state=LeaseState.COPYING)])
    second = Stage(first.topic)
    began = second.clock.monotonic()
    await second.begin(part(ONE))
    assert second.clock.monotonic() - began >= LEASE_S
    assert "mm2py-backfill-A->B-0" in second.flow.fenced


async def test_what_the_live_flow_has_copied_meanwhile_is_not_copied_again() -> None:
    stage = Stage()
    stage.flow.positions = {ONE: 10, TWO: 6}
    await stage.begin(part(ONE), part(TWO))
    assert stage.lanes == [[TWO]]
    leases = stage.store.leases
    assert (leases[ONE].state, leases[ONE].start) == (LeaseState.HANDED_OVER, 10)
    assert (leases[TWO].start, leases[TWO].end) == (6, 10)


async def test_a_range_has_its_position_before_its_lanes_wherever_it_begins() -> None:
    stage = Stage()
    await stage.begin(part(ONE, start=3), part(TWO))
    assert stage.flow.set == {ONE: 3, TWO: 0}


async def test_a_partition_that_is_not_handed_over_is_reserved_until_a_cancel() -> None:
    stage = Stage()
    stage.leaves = {TWO}
    job = await stage.begin(part(ONE), part(TWO), settings=(SETTING,))
    assert job.state is JobState.FAILED
    assert set(stage.store.kept_out()) == {TWO}
    ended = await stage.passing(stage.driver.request(Wanted.CANCEL))
    assert ended.state is JobState.CANCELLED
    await stage.store.refresh()
    assert stage.store.kept_out() == {}
    assert stage.store.leases[TWO].state is LeaseState.RELEASED
    assert stage.flow.altered[-1] == ("SET", "retention.ms", "1000")


async def test_a_topic_that_another_restore_writes_is_refused_behind_the_reservation() -> None:
    stage = Stage()
    stage.flow.elsewhere = {"A.t": "restore k of /backup of C.restored->B"}
    await stage.store.start()
    await stage.passing(stage.driver.claim())
    plan = Plan(flow="A->B", partitions=(part(ONE),), settings=(SETTING,))
    request = new_job("j", topics="", archive="/archive")
    with pytest.raises(
        BackfillRefusedError, match=r"topic A\.t is written by restore k of /backup"
    ):
        await stage.passing(stage.driver.run(plan, request, stage))
    assert stage.lanes == []
    assert stage.store.kept_out() == {}
    assert stage.job.state is JobState.CANCELLED


@pytest.mark.parametrize("by_failover", [False, True])
async def test_what_a_former_run_of_a_restore_has_reserved_stays_so_where_a_later_one_is_refused(
    *, by_failover: bool
) -> None:
    plan, request = Plan(flow="A->B", partitions=(part(ONE),)), replace(REQUEST, archive="/archive")

    async def restored(stage: Stage) -> Job:
        await stage.store.start()
        await stage.passing(stage.driver.claim())
        return await stage.passing(stage.driver.run(plan, request, stage))

    first = Stage()
    first.failing = FatalError("Spark is gone")
    with pytest.raises(FatalError, match="Spark is gone"):
        await restored(first)
    second = Stage(first.topic)
    second.flow.members = ["w1:1"]  # does not let go
    second.flow.failover = FAILOVER if by_failover else None
    with pytest.raises(BackfillRefusedError):
        await restored(second)
    await second.store.refresh()
    ended = JobState.CANCELLED if by_failover else JobState.FAILED
    assert (second.job.state, bool(second.store.kept_out())) == (ended, not by_failover)


@pytest.mark.parametrize("end", [0, 6, 7])
async def test_a_job_does_not_continue_behind_copies_that_the_target_has_lost(end: int) -> None:
    first = Stage()
    first.failing = FatalError("Spark is gone")
    with pytest.raises(FatalError, match="Spark is gone"):
        await first.begin(part(ONE))
    copied = replace(first.store.leases[ONE], position=7, target_start=0, target_end=7)
    await first.store.post([copied])
    second = Stage(first.topic)
    second.flow.positions, second.flow.ends = {ONE: 7}, {COPY_OF_ONE: end}
    if end == 7:
        assert (await second.begin(part(ONE))).state is JobState.DONE
        return
    with pytest.raises(BackfillRefusedError, match=rf"A\.t-0 ended at 7 .* ends at {end} now"):
        await second.begin(part(ONE))
    assert second.lanes == []


async def test_without_an_unfinished_backfill_there_is_nothing_to_pause() -> None:
    stage = Stage()
    await stage.store.start()
    with pytest.raises(BackfillRefusedError, match="no backfill of A->B is unfinished"):
        await stage.driver.request(Wanted.PAUSE)


def test_a_report_has_exclusive_ends() -> None:
    lease = lease_of(ONE, LeaseState.HANDED_OVER, start=5, position=12)
    lease = replace(lease, target_start=100, target_end=107, bytes=70)
    job = Job(id="j", state=JobState.DONE, run=1, lanes=1)
    shown = report(job, [lease])
    assert (shown["records"], shown["bytes"]) == (7, 70)
    row = shown["partitions"][0]
    assert (row["from"], row["to"], row["target_from"], row["target_to"]) == (5, 12, 100, 107)


async def test_a_job_whose_driver_is_gone_is_not_shown_as_running() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.store.post([RUNNING])
    assert not await stage.passing(stage.claim.is_driven())
    assert stage.store.job is not None
    shown = report(without_driver(stage.store.job), [])
    assert shown["state"] == "FAILED"
    assert "run the same command again" in str(shown["cause"])


async def test_a_pause_and_a_resume_return_when_the_driver_has_followed() -> None:
    topic = MemoryTopic("backfill")
    stage, driver = Stage(topic), Stage(topic)
    await stage.store.start()
    await driver.store.start()
    job = RUNNING
    await driver.store.post([job])
    for number, (wanted, state) in enumerate(
        ((Wanted.PAUSE, JobState.PAUSED), (Wanted.RUN, JobState.RUNNING))
    ):
        asked = asyncio.ensure_future(stage.driver.request(wanted))
        await stage.clock.advance(1)
        await driver.store.post([replace(job, beat=10 * number + 1)])
        await stage.clock.advance(1)
        await until(lambda: driver.store.wanted is wanted)  # noqa: B023 - awaited here
        assert not asked.done() or state is JobState.RUNNING
        job = replace(job, beat=10 * number + 2, state=state)
        await driver.store.post([job])
        assert (await stage.passing(_result(asked))).state is state


async def _result(task: "asyncio.Future[Job]") -> Job:
    return await task


async def test_what_has_no_driver_cannot_be_paused_but_cancelled() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.store.post([RUNNING])
    with pytest.raises(BackfillRefusedError, match="its driver is gone"):
        await stage.passing(stage.driver.request(Wanted.PAUSE))
    assert stage.store.wanted is Wanted.RUN  # the next run is not paused
    ended = await stage.passing(stage.driver.request(Wanted.CANCEL))
    assert ended.state is JobState.CANCELLED


async def test_a_cancel_whose_driver_dies_meanwhile_is_done_without_it() -> None:
    topic = MemoryTopic("backfill")
    stage, driver = Stage(topic), Stage(topic)
    await stage.store.start()
    await driver.store.start()
    job = RUNNING
    await driver.store.post([job])
    asked = asyncio.ensure_future(stage.driver.request(Wanted.CANCEL))
    await stage.clock.advance(1)
    await driver.store.post([replace(job, beat=1)])
    await stage.clock.advance(1)
    await until(lambda: driver.store.wanted is Wanted.CANCEL)
    ended = await stage.passing(_result(asked))
    assert (ended.state, ended.run) == (JobState.CANCELLED, 2)


async def test_a_beat_that_waited_for_the_last_record_does_not_come_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    write = stage.writer.write

    async def slow(entries: Sequence[Entry]) -> None:
        if any(b'"DONE"' in (value or b"") for _, value in entries):
            await stage.clock.sleep(2 * BEAT_S)
        await write(entries)

    monkeypatch.setattr(stage.writer, "write", slow)
    assert (await stage.begin(part(ONE))).state is JobState.DONE
    await stage.store.refresh()
    assert stage.job.state is JobState.DONE


async def test_a_cancel_that_finds_the_job_done_says_so() -> None:
    """Its driver was not heard of for a while."""
    topic = MemoryTopic("backfill")
    stage, driver = Stage(topic), Stage(topic)
    await stage.store.start()
    await driver.store.start()
    await driver.store.post([RUNNING])
    asked = asyncio.ensure_future(stage.driver.request(Wanted.CANCEL))
    await stage.clock.advance(ALIVE_S + 1)
    await until(lambda: driver.store.wanted is Wanted.CANCEL)
    await driver.store.post([replace(RUNNING, state=JobState.DONE)])
    assert (await stage.passing(_result(asked))).state is JobState.DONE


async def test_another_run_copies_although_the_one_before_was_paused() -> None:
    first = Stage()
    first.failing = FatalError("gone")
    with pytest.raises(FatalError):
        await first.begin(part(ONE))
    await first.store.post([Wish(job="j", wanted=Wanted.PAUSE)])
    second = Stage(first.topic)
    assert (await second.begin(part(ONE))).state is JobState.DONE
    assert second.store.wanted is Wanted.RUN


async def test_a_claim_behind_which_nothing_could_be_read_writes_nothing_over_another_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = MemoryTopic("backfill")
    slow, fast = Stage(topic), Stage(topic)
    await slow.store.start()
    await slow.passing(slow.driver.claim())
    assert (await fast.begin(part(ONE))).state is JobState.DONE
    await slow.writer.close()  # fenced
    refresh, failures = slow.store.refresh, [RetriableError("the broker is busy")]

    async def fails_once() -> None:
        if failures:
            raise failures.pop()
        await refresh()

    monkeypatch.setattr(slow.store, "refresh", fails_once)
    mine = Job(id="other", state=JobState.RUNNING, run=1, lanes=1)
    with pytest.raises(DriverSupersededError, match="another driver has taken backfill j"):
        await slow.passing(slow.claim.write([mine]))
    await fast.store.refresh()
    assert fast.job.id == "j"


async def test_a_backfill_reserves_nothing_beside_a_failover_that_has_begun() -> None:
    stage = Stage()
    stage.flow.failover = FAILOVER
    with pytest.raises(BackfillRefusedError, match="failover f of A->B is at DRAIN"):
        await stage.begin(part(ONE), settings=(SETTING,))
    await stage.store.refresh()
    assert stage.job.state is JobState.CANCELLED
    assert not stage.lanes
    assert not [it for it in stage.store.leases.values() if it.state.keeps_live_out]


async def test_a_range_that_is_gone_fails_the_run_that_noticed_and_the_next_ends_the_job() -> None:
    stage = Stage()
    gone = lease_of(ONE, LeaseState.RELEASED, position=4)
    gone = replace(gone, cause=f"t-0: {RANGE_GONE}: created again")
    stage.leaves, stage.ends = {ONE}, [gone]
    job = await stage.begin(part(ONE), part(TWO))
    assert job.state is JobState.FAILED
    assert RANGE_GONE in job.cause
    stage.ends, stage.lanes = [], []
    job = await stage.begin()
    assert job.state is JobState.DONE
    assert stage.lanes == []
    (shown, _) = report(job, stage.store.leases.values())["partitions"]
    assert (shown["state"], shown["cause"]) == ("RELEASED", gone.cause)
