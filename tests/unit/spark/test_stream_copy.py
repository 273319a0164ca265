"""The copy of a stream under one config, and the plans of its terms, over a topic in memory and a query that is none of Spark's."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import Job, JobState
from mm2py.observability.logging import SecretMask
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_cli.output import Output, Printer
from mm2py_jobs import open_flow
from mm2py_jobs.copy import stream_runs, stream_terms
from mm2py_jobs.copy.backfill_lane import BackfillLane
from mm2py_jobs.copy.lease import RENEW_S
from mm2py_jobs.copy.stream import CopyEnd, StreamPartitions
from mm2py_jobs.copy.stream_copy import CopyTotals, StreamCopy
from mm2py_jobs.copy.stream_runs import check_engine
from mm2py_jobs.copy.stream_terms import StreamSpec
from mm2py_jobs.job_options import StreamOptions
from mm2py_jobs.open_flow import FlowNow, OpenFlow, flow_of_file, flow_plan
from mm2py_jobs.spark.session import OpenSession
from mm2py_workers.signals import StopSignal
from tests.unit.spark.driver_fakes import ONE, THREE, TWO, TopicWriter
from tests.unit.spark.test_lanes_that_fail import OneSlot
from tests.unit.spark.test_stream_driver import Stage, begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mm2py_jobs.copy.backfill_flow import BackfillSession
    from mm2py_jobs.copy.stream_topics import StreamTopics

CONNECTOR = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
LANE = BackfillLane(source="A", target="B", job="s", run=1, worker={}, connector={}, task={})


@pytest.mark.parametrize(("side", "lanes"), [("target", 0), ("source", 1)])
async def test_a_silent_cluster_ends_no_query(
    monkeypatch: pytest.MonkeyPatch, side: str, lanes: int
) -> None:
    """A query that fails is counted, and after six the stream ends. Lanes wait for the source, and say why in their leases; for the target none can."""
    stage = await begun()

    class Target:
        def __init__(self, *_: object) -> None:
            self.jobs = stage.store

        async def open(self) -> None:
            if side == "target":
                raise RetriableError("nobody is there")

        async def close(self) -> None: ...

    async def no_ends(*_: object) -> Mapping[TopicPartition, int]:
        raise RetriableError("nobody is there")

    monkeypatch.setattr(stream_terms, "FlowTarget", Target)
    monkeypatch.setattr(stream_terms, "log_ends", no_ends)
    spec = StreamSpec(lane=replace(LANE, connector=CONNECTOR), seconds=10)
    planning = asyncio.ensure_future(stream_terms.planned_term(spec, 1, 0, stage.clock))
    await stage.passing(asyncio.wait_for(planning, None))
    planned = planning.result()
    assert (len(planned.lanes), planned.ends) == (lanes, {})
    await stage.driver.close()


async def test_terms_are_dealt_to_as_many_lanes_as_run_at_the_same_time_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane more would wait for the end of the others, and a slot more would be idle."""
    stage = await begun()

    class Target:
        def __init__(self, *_: object) -> None:
            self.jobs = stage.store

        async def open(self) -> None: ...

        async def close(self) -> None: ...

    async def log_ends(*_: object) -> Mapping[TopicPartition, int]:
        return {ONE: 10, TWO: 10}

    monkeypatch.setattr(stream_terms, "FlowTarget", Target)
    monkeypatch.setattr(stream_terms, "log_ends", log_ends)
    dealt: list[int] = []
    for slots in (1, 4, 1):
        await stage.passing(stage.driver.follow_slots(slots))
        lane = replace(LANE, run=stage.job.run, connector=CONNECTOR)
        spec = StreamSpec(lane=lane, seconds=10)
        planned = await stream_terms.planned_term(spec, 1, 0, stage.clock)
        dealt.append(len(planned.lanes))
    assert dealt == [1, 2, 1]
    assert stage.job.lanes == 4
    await stage.driver.close()


class Query:
    """A query of Spark that ends as soon as the stream does."""

    stage: Stage

    def __init__(self, *_: object) -> None: ...

    def start(self, *_: object, most_bytes: int) -> None: ...

    def wait(self, _timeout_s: float) -> bool:
        return not self.stage.job.state.is_copied

    def has_run(self) -> bool:
        return True

    def new_progress(self) -> Sequence[Mapping[str, object]]:
        return ()

    def stop(self) -> None: ...


class Topics:
    """Finds a partition after a while, when a worker that does not answer has come."""

    task: Mapping[str, str] = {}

    def __init__(self, stage: Stage) -> None:
        self._stage, self._found = stage, {ONE, TWO}

    def partitions(self) -> StreamPartitions:
        return StreamPartitions(frozenset(self._found))

    async def changed(self) -> None:
        if THREE in self._found:
            await asyncio.Event().wait()
        self.lane = asyncio.ensure_future(self._copy())
        self._stage.flow.members = ["frozen:1"]
        self._found.add(THREE)

    async def _copy(self) -> None:
        while self._stage.job.state.is_copied:
            await self._stage.copies(ONE)
            await self._stage.clock.sleep(RENEW_S)


def a_copy(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    *,
    changes: bool = False,
    totals: CopyTotals | None = None,
) -> StreamCopy:
    """Return a copy whose partitions ``Topics`` finds; ``changes``: the flow's config does."""
    monkeypatch.setattr(Query, "stage", stage, raising=False)
    monkeypatch.setattr("mm2py_jobs.spark.stream_query.StreamQuery", Query)

    async def here(function: Callable[..., object], *arguments: object, **named: object) -> object:
        await stage.clock.sleep(0.1)
        return function(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", here)

    async def is_unchanged() -> bool:
        return not changes

    own = {it: getattr(stage.flow, it) for it in dir(stage.flow) if not it.startswith("_")}
    session = SimpleNamespace(**own, claim=stage.claim, store=stage.store, name="A->B")

    def lane(_job: Job, _task: Mapping[str, str]) -> BackfillLane:
        return LANE

    session.lane = lane
    session.flow = SimpleNamespace(is_unchanged=is_unchanged)
    return StreamCopy(
        StreamOptions(file=Path("f"), flow="A->B", term_s=10),
        cast("BackfillSession", session),
        cast("StreamTopics", Topics(stage)),
        OpenSession(cast("SparkSession", OneSlot()), owned=False),
        totals or CopyTotals(),
        StopSignal(),
        stage.clock,
    )


async def ended(stage: Stage, copy: StreamCopy) -> CopyEnd:
    await stage.store.start()
    try:
        return await stage.passing(cast("Coroutine[None, None, CopyEnd]", copy.run()))
    finally:
        await stage.store.refresh()
        assert (stage.job.state, dict(stage.store.kept_out())) == (JobState.DONE, {})


async def test_a_refusal_that_gives_everything_back_is_not_cut_off_by_the_end_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lanes end, and with them the query, while the driver waits for leases that run out."""
    stage = Stage()
    with pytest.raises(BackfillRefusedError, match="have not let go"):
        await ended(stage, a_copy(stage, monkeypatch))


async def test_an_unwritable_refusal_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run gives back what is reserved; this one would reserve again, without a beat."""
    stage, write = Stage(), TopicWriter.write

    async def refused(writer: TopicWriter, entries: Sequence[Entry]) -> None:
        if any(b'"FAILED"' in (value or b"") for _, value in entries):
            raise RetriableError("the target is away")
        await write(writer, entries)

    monkeypatch.setattr(TopicWriter, "write", refused)
    await stage.store.start()
    copy = a_copy(stage, monkeypatch)
    with pytest.raises(RetriableError, match="the target is away"):
        await stage.passing(cast("Coroutine[None, None, CopyEnd]", copy.run()))


async def test_executors_that_come_amid_a_query_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, has_run = Stage(), Query.has_run

    def grown(query: Query) -> bool:
        monkeypatch.setattr(OneSlot, "defaultParallelism", 5)
        return has_run(query)

    monkeypatch.setattr(Query, "has_run", grown)
    monkeypatch.setattr(OneSlot, "defaultParallelism", 1)
    assert await ended(stage, a_copy(stage, monkeypatch, changes=True)) is CopyEnd.CHANGED
    assert (stage.job.lanes, stage.job.slots) == (5, 5)


async def test_a_copy_of_a_changed_flow_gives_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    assert await ended(stage, a_copy(stage, monkeypatch, changes=True)) is CopyEnd.CHANGED


async def test_a_stream_ends_and_gives_everything_back_where_another_program_joins_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would copy each record of the lanes, too."""
    stage, wait = Stage(), Query.wait

    def joined(query: Query, timeout_s: float) -> bool:
        if stage.job.turn:
            stage.flow.members, stage.flow.protocol = ["java:8083"], "sessioned"
        return wait(query, timeout_s)

    async def unchanged(_topics: Topics) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Query, "wait", joined)
    monkeypatch.setattr(Topics, "changed", unchanged)
    assert await ended(stage, a_copy(stage, monkeypatch)) is CopyEnd.ANOTHER_PROGRAM
    assert stage.flow.members, "lanes had begun"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_that_is_ended_while_spark_fails_says_so(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    stage, totals = Stage(), CopyTotals()

    def wait(query: Query, timeout_s: float) -> bool:
        if fails:
            raise FatalError("no executor")
        return waits(query, timeout_s)

    waits = Query.wait
    monkeypatch.setattr(Query, "wait", wait)
    copy = a_copy(stage, monkeypatch, changes=True, totals=totals)  # within seconds
    assert await ended(stage, copy) is CopyEnd.CHANGED
    assert ("Spark failed: no executor" in totals.summary()) is fails


@pytest.mark.parametrize(
    ("engine", "copies", "cause"),
    [("worker", True, "its workers copy it"), ("spark", False, "is not enabled, or was deleted")],
)
def test_a_flow_that_is_not_for_spark_is_refused(engine: str, cause: str, *, copies: bool) -> None:
    flow = SimpleNamespace(connector={"flow.engine": engine}, copies=copies)
    session = SimpleNamespace(name="A->B", flow=flow)
    with pytest.raises(BackfillRefusedError, match=cause):
        check_engine(cast("BackfillSession", session))


@pytest.mark.parametrize(
    ("now", "unchanged"),
    [
        ({"flow.engine": "spark"}, True),
        ({"flow.engine": "spark", "topics": "t"}, False),
        ({"flow.engine": "spark", "enabled": "false"}, False),
        (None, False),  # deleted over REST: the file has it still
    ],
)
async def test_a_flow_that_is_disabled_or_deleted_over_rest_is_another_one_than_was_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: dict[str, str] | None, *, unchanged: bool
) -> None:
    file = tmp_path / "mm2.properties"
    lines = ("clusters = A, B", "A.bootstrap.servers = a:9", "B.bootstrap.servers = b:9")
    file.write_text("\n".join((*lines, "A->B.enabled = true", "A->B.flow.engine = spark")))
    flow = OpenFlow(flow_plan(file, "A->B"), role="stream", clock=FakeClock())
    opened = flow_of_file(flow.plan).connector
    assert opened is not None
    flow.connector, flow.copies = opened, True

    async def in_force(*_: object) -> FlowNow:
        return FlowNow(None if now is None else opened | now)

    monkeypatch.setattr(open_flow, "flow_in_force", in_force)
    assert await flow.is_unchanged() is unchanged
    await flow.target.close()


class Hasty:
    """A clock whose pauses are over at once."""

    def __init__(self) -> None:
        self.now_ms, self.monotonic = FakeClock().now_ms, FakeClock().monotonic

    async def sleep(self, _seconds: float) -> None:
        await asyncio.sleep(0)


class Opened:
    """A session; the second one that is opened finds the target away."""

    count = 0
    name = "A->B"

    def __init__(self, _plan: object) -> None:
        plan = SimpleNamespace(props=dict[str, str]())
        self.flow = SimpleNamespace(
            connector=dict[str, str](), plan=plan, is_unchanged=self.is_unchanged
        )
        Opened.count += 1

    async def __aenter__(self) -> "Opened":
        if Opened.count == 2:
            raise RetriableError("the target is away")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def open_topic(self) -> None: ...

    async def is_unchanged(self) -> bool:
        return Opened.count > 2


class NoTopics:
    """Finds the first partition in the third session."""

    def __init__(self, *_: object) -> None: ...

    async def start(self, _stop: StopSignal) -> bool:
        if Opened.count < 3:
            await asyncio.Event().wait()
        return True

    async def close(self) -> None: ...


class Copied:
    def __init__(self, *_: object) -> None: ...

    async def run(self) -> CopyEnd:
        return CopyEnd.STOPPED


def test_a_stream_that_waits_follows_changes_and_outlives_a_target_that_is_away_after_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*_: object) -> None: ...

    def a_session(*_: object, **_named: object) -> OpenSession:
        return OpenSession(cast("SparkSession", OneSlot()), owned=False)

    stages: dict[str, object] = {
        "SYSTEM_CLOCK": Hasty(),
        "BackfillSession": Opened,
        "StreamTopics": NoTopics,
        "StreamCopy": Copied,
        "check_engine": nothing,
        "open_session": a_session,
        "flow_plan": nothing,
    }
    monkeypatch.setattr(Opened, "count", 0)
    for name, stage in stages.items():
        monkeypatch.setattr(stream_runs, name, stage)
    options = StreamOptions(file=Path("f"), flow="A->B", term_s=10)
    assert asyncio.run(stream_runs.run_stream(options, Printer(Output.JSON), SecretMask())) == 0
    assert Opened.count == 3


@pytest.mark.parametrize(("master", "remote"), [("sc://host", ""), ("", "sc://host")])
async def test_a_stream_over_spark_connect_is_refused_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, master: str, remote: str
) -> None:
    if remote:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    options = StreamOptions(file=Path("f"), flow="A->B", master=master)
    with pytest.raises(BackfillRefusedError, match="over Spark Connect is elsewhere"):
        await stream_runs.run_stream(options, Printer(Output.JSON), SecretMask())
