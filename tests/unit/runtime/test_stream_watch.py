"""What a worker shows and does about a flow that Spark copies; the names are the watch's invariants."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.mirror.backfills import (
    ALIVE_S,
    NO_END,
    BackfillRecord,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
)
from mm2py.runtime.herder.stream_watch import IDLE_S, SURE_S, StreamWatch
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import EMPTY, ConfigSnapshot
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import TargetState

SOURCE = "MirrorSourceConnector"
JOB = Job(id="s", state=JobState.RUNNING, run=1, lanes=1, kind=JobKind.STREAM)
LEASE = Lease(
    topic="t",
    partition=0,
    job="s",
    run=1,
    state=LeaseState.COPYING,
    start=0,
    end=NO_END,
    position=0,
    lane=0,
)


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = BackfillStore(MemoryTable(MemoryTopic("backfill")))
        self.snapshot = _snapshot("spark")
        self.taken_back: list[str] = []
        self.beats = True
        self.renews = True
        self._beat = 0
        self.watch = StreamWatch(
            self.store, lambda: self.snapshot, self.take_back, clock=self.clock
        )

    async def take_back(self, cause: str) -> None:
        self.taken_back.append(cause)
        await self.post(replace(JOB, state=JobState.DONE))

    async def begin(self, *records: BackfillRecord) -> None:
        await self.store.start()
        await self.post(*records)
        self.watch.open()

    async def pass_s(self, seconds: float) -> None:
        """Let time pass; the driver beats and the lane renews."""
        for _ in range(round(seconds)):
            self._beat += 1
            records: Sequence[BackfillRecord] = [
                *([replace(JOB, beat=self._beat)] if self.beats else []),
                *([LEASE] if self.renews else []),
            ]
            if records and self.store.job is not None and not self.store.job.state.is_over:
                await self.post(*records)
            await self.clock.advance(1.0)

    async def post(self, *records: BackfillRecord) -> None:
        if records:
            await self.store.post(records)
        await self.store.refresh()

    def wanted(self) -> str:
        return self.store.wanted.value

    def problems(self) -> Mapping[str, str]:
        return self.watch.problems()


def _snapshot(engine: str, target: TargetState = TargetState.STARTED) -> ConfigSnapshot:
    config = {"connector.class": SOURCE, "flow.engine": engine}
    return replace(EMPTY, connectors={SOURCE: config}, targets={SOURCE: target})


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    yield stage
    await stage.watch.close()


async def test_a_flow_on_spark_is_a_problem_while_no_stream_runs(stage: Stage) -> None:
    await stage.begin()
    await stage.pass_s(2)
    assert "no mm2py stream runs, workers copy meanwhile" in stage.problems()["flow.engine"]
    stage.renews = False  # it has no partitions yet
    await stage.post(JOB)
    await stage.pass_s(3 + ALIVE_S)
    assert stage.problems() == {}
    stage.beats = False
    await stage.post(LEASE)
    await stage.pass_s(ALIVE_S + 2)
    assert "nothing is copied" in stage.problems()["flow.engine"]
    assert stage.taken_back == []


async def test_a_partition_that_no_lane_copies_is_a_problem_though_the_driver_lives(
    stage: Stage,
) -> None:
    await stage.begin(JOB, LEASE)
    await stage.pass_s(IDLE_S + 5)
    assert stage.problems() == {}
    stage.renews = False
    await stage.pass_s(IDLE_S + 2)
    assert stage.problems() == {"stream: t-0": f"no lane has copied it for {IDLE_S:.0f} s"}
    await stage.post(replace(LEASE, cause="record is too large"))
    await stage.pass_s(2)
    assert stage.problems() == {"stream: t-0": "record is too large"}


async def test_a_living_stream_is_asked_to_end_when_the_engine_is_surely_worker(
    stage: Stage,
) -> None:
    await stage.begin(JOB, LEASE)
    await stage.pass_s(3)
    stage.snapshot = EMPTY  # not read yet
    await stage.pass_s(SURE_S + 2)
    stage.snapshot = _snapshot("worker")
    await stage.pass_s(SURE_S - 2)
    assert stage.wanted() == "RUN"
    await stage.pass_s(4)
    await stage.store.refresh()
    assert stage.wanted() == "CANCEL"
    assert stage.taken_back == []


async def test_a_stream_whose_driver_is_gone_is_ended_once_when_the_engine_is_worker(
    stage: Stage,
) -> None:
    stage.snapshot = _snapshot("worker")
    stage.beats = stage.renews = False
    await stage.begin(JOB, LEASE)
    await stage.pass_s(ALIVE_S - 2)
    assert stage.taken_back == []
    await stage.pass_s(10)
    assert len(stage.taken_back) == 1
    assert stage.problems() == {}


async def test_a_stream_pauses_with_its_connector(stage: Stage) -> None:
    await stage.begin(JOB, LEASE)
    await stage.pass_s(2)
    stage.snapshot = _snapshot("spark", TargetState.PAUSED)
    await stage.pass_s(SURE_S + 3)
    await stage.store.refresh()
    assert stage.wanted() == "PAUSE"
    stage.snapshot = _snapshot("spark")
    await stage.pass_s(SURE_S + 3)
    await stage.store.refresh()
    assert stage.wanted() == "RUN"
