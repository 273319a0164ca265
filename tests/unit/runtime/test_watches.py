"""What a worker watches beside its work: what backfills take, what Spark copies, limits on records, and what RUNNING work does not copy. Names are the watches' invariants."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.errors import ConfigError, RetriableError
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
from mm2py.observability.metrics import KEPT_OUT, Finding, Oversized
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, server_error
from mm2py.runtime.herder.backfill_watch import LONGEST_RETRY_MS, BackfillWatch
from mm2py.runtime.herder.stream_watch import IDLE_S, SURE_S, StreamWatch
from mm2py.runtime.herder.supervisor import RIGHTS_EVERY_S, TOPICS_EVERY_S
from mm2py.runtime.herder.trace_watch import AGAIN_S, EVERY_S, MOST_CAUSES
from mm2py.runtime.tasks.task_context import LIMITS_EVERY_S
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import EMPTY, ConfigSnapshot
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import State, TargetState, TaskId, TopicPartition
from tests.unit.runtime.herder_fakes import Cluster, Node, TestConnector
from tests.unit.runtime.runtime_fakes import turns

# ---- what a backfill takes and gives back


ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeBackfills:
    def __init__(self) -> None:
        self.reserved = 0
        self.partitions: set[TopicPartition] = set()
        self.notices: list[tuple[str, int]] = []
        self.failures = 0
        self.changed: Callable[[], None] = lambda: None

    def listen(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def kept_out(self) -> Collection[TopicPartition]:
        return self.partitions

    async def notice(self, worker: str, offset: int) -> None:
        if self.failures:
            self.failures -= 1
            raise RetriableError("not now")
        self.notices.append((worker, offset))

    def reserve(self, offset: int, *partitions: TopicPartition) -> None:
        self.reserved = offset
        self.partitions |= set(partitions)
        self.changed()

    def give_back(self, partition: TopicPartition) -> None:
        self.partitions.discard(partition)
        self.changed()


class Tasks:
    def __init__(self) -> None:
        self.seen: list[frozenset[TopicPartition]] = []
        self.drained = asyncio.Event()
        self.drained.set()

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        await self.drained.wait()
        self.seen.append(partitions)


class BackfillStage:
    """A watch on fakes, which a test opens."""

    def __init__(self) -> None:
        self.backfills, self.tasks, self.clock = FakeBackfills(), Tasks(), FakeClock()
        self.watch = BackfillWatch(self.backfills, self.tasks.keep_out, "w", clock=self.clock)


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[BackfillStage]:
    bench = BackfillStage()
    yield bench
    await bench.watch.close()


async def test_a_notice_waits_for_the_tasks_and_a_return_writes_none(bench: BackfillStage) -> None:
    backfills, tasks = bench.backfills, bench.tasks
    await bench.watch.open()
    tasks.drained.clear()
    backfills.reserve(5, ONE, TWO)
    await turns(20)
    assert backfills.notices == []
    tasks.drained.set()
    await until(lambda: backfills.notices == [("w", 5)])
    assert tasks.seen == [frozenset({ONE, TWO})]
    for partition, left in ((ONE, {TWO}), (TWO, set[TopicPartition]())):
        backfills.give_back(partition)
        await until(lambda left=left: tasks.seen[-1] == left)  # type: ignore[misc]  # mypy: lambda defaults
    assert backfills.notices == [("w", 5)]


async def test_what_is_reserved_before_a_task_starts_it_never_copies_and_again_is_noticed_again(
    bench: BackfillStage,
) -> None:
    backfills, tasks = bench.backfills, bench.tasks
    backfills.reserve(5, ONE)
    await bench.watch.open()
    assert tasks.seen == [frozenset({ONE})], "before it returns"
    await until(lambda: backfills.notices == [("w", 5)])
    backfills.reserve(9)
    await until(lambda: backfills.notices[-1:] == [("w", 9)])
    assert tasks.seen == [frozenset({ONE})]


async def test_whatever_goes_wrong_a_backfill_is_followed_again(
    bench: BackfillStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def kept_out() -> Collection[TopicPartition]:
        raise ValueError("a bug")

    backfills = bench.backfills
    await bench.watch.open()
    with monkeypatch.context() as broken:
        broken.setattr(backfills, "kept_out", kept_out)
        backfills.reserve(5, ONE)
        await until(lambda: "a bug" in caplog.text)
    await bench.clock.advance(LONGEST_RETRY_MS / 1000)
    await until(lambda: backfills.notices == [("w", 5)])


async def test_a_notice_that_cannot_be_written_is_written_later(bench: BackfillStage) -> None:
    backfills, clock = bench.backfills, bench.clock
    await bench.watch.open()
    backfills.failures = 1
    backfills.reserve(2, ONE)
    await until(lambda: not backfills.failures)
    await clock.advance(1.0)
    await until(lambda: backfills.notices == [("w", 2)])


# ---- a flow that Spark copies


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


class StreamStage:
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
async def stage() -> AsyncGenerator[StreamStage]:
    stage = StreamStage()
    yield stage
    await stage.watch.close()


async def test_a_flow_on_spark_is_a_problem_while_no_stream_runs(stage: StreamStage) -> None:
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


async def test_a_partition_that_no_lane_copies_is_a_problem(stage: StreamStage) -> None:
    await stage.begin(JOB, LEASE)
    await stage.pass_s(IDLE_S + 5)
    assert stage.problems() == {}
    stage.renews = False
    await stage.pass_s(IDLE_S + 2)
    assert stage.problems() == {"stream: t-0": f"no lane has copied it for {IDLE_S:.0f} s"}
    await stage.post(replace(LEASE, cause="record is too large"))
    await stage.pass_s(2)
    assert stage.problems() == {"stream: t-0": "record is too large"}


async def test_a_look_that_fails_in_any_way_is_logged_and_the_next_one_counts(
    stage: StreamStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def config() -> ConfigSnapshot:
        raise ValueError("a bug")

    snapshot, stage.snapshot = stage.snapshot, EMPTY
    await stage.begin(JOB, LEASE)
    with monkeypatch.context() as broken:
        broken.setattr(stage.watch, "_config", config)
        await stage.pass_s(2)
    assert "a bug" in caplog.text
    stage.snapshot, stage.beats = snapshot, False
    await stage.pass_s(ALIVE_S + 2)
    assert "flow.engine" in stage.problems()


async def test_a_living_stream_is_asked_to_end_when_the_engine_is_surely_worker(
    stage: StreamStage,
) -> None:
    await stage.begin(JOB, LEASE)
    await stage.pass_s(3)
    for there in (
        EMPTY,
        _snapshot("spark "),
    ):  # not read yet; a line of a file that ends in a blank
        stage.snapshot = there
        await stage.pass_s(SURE_S + 2)
    stage.snapshot = _snapshot("worker")
    await stage.pass_s(SURE_S - 2)
    assert stage.wanted() == "RUN"
    await stage.pass_s(4)
    await stage.store.refresh()
    assert stage.wanted() == "CANCEL"
    assert stage.taken_back == []


async def test_a_stream_whose_driver_is_gone_is_ended_once_when_the_engine_is_worker(
    stage: StreamStage,
) -> None:
    stage.snapshot = _snapshot("worker")
    stage.beats = stage.renews = False
    await stage.begin(JOB, LEASE)
    await stage.pass_s(ALIVE_S - 2)
    assert stage.taken_back == []
    await stage.pass_s(10)
    assert len(stage.taken_back) == 1
    assert stage.problems() == {}


async def test_a_stream_pauses_with_its_connector(stage: StreamStage) -> None:
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


# ---- a partition that failed for the size of a record, and the limit it waits for


C0 = TaskId("c", 0)
T0 = TopicPartition("t", 0)
AT = Oversized(task="c-0", source=T0, target="A.t", needed_bytes=900, limit_bytes=500)


async def _failed(cluster: Cluster, at: Oversized = AT) -> Node:
    node = next(it for it in await cluster.pair() if C0 in it.host.running)
    _fail(node, at)
    return node


def _fail(node: Node, at: Oversized) -> None:
    meter = node.meter.partition(at.source)
    meter.state, meter.task = "FAILED", at.task
    assert node.meter.on_oversized is not None
    node.meter.on_oversized(at)


async def _looks(cluster: Cluster, node: Node, times: int = 1) -> int:
    """Let the watch look; return how often the task was started until then."""
    for _ in range(times):
        await cluster.clock.advance(LIMITS_EVERY_S + 0.1)
        await cluster.clock.settle()
    return node.host.events.count("start c-0 0")


async def test_a_task_is_started_again_only_for_a_limit_that_is_higher_and_holds_the_record(
    cluster: Cluster,
) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    for limit in (0, 500, 899):
        node.limits["A.t"] = limit
        assert await _looks(cluster, node) == before
    node.limits["A.t"] = 900
    assert await _looks(cluster, node) == before + 1
    asked = len(node.limits_asked)
    await _looks(cluster, node, 3)
    assert len(node.limits_asked) == asked, "nothing waits, nothing is asked"


async def test_a_task_that_failed_as_a_whole_is_started_again(cluster: Cluster) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    node.meter.forget(T0)
    node.host.say(C0, State.FAILED, ValueError("all partitions of the task failed"))
    node.limits["A.t"] = 1_000
    assert await _looks(cluster, node) == before + 1
    await until(lambda: node.state(C0) == "RUNNING")


async def test_no_limit_is_tried_twice_for_a_record(cluster: Cluster) -> None:
    at = Oversized(task="c-0", source=T0, target="A.t", needed_bytes=900, limit_bytes=0)
    node = await _failed(cluster, at)
    before = node.host.events.count("start c-0 0")
    node.limits["A.t"] = 2_000
    assert await _looks(cluster, node) == before + 1
    _fail(node, at)
    assert await _looks(cluster, node, 3) == before + 1
    node.limits["A.t"] = 2_001
    assert await _looks(cluster, node) == before + 2


async def test_a_partition_that_was_started_meanwhile_is_not_waited_for(cluster: Cluster) -> None:
    node = await _failed(cluster)
    before = node.host.events.count("start c-0 0")
    node.meter.partition(T0).state = "RUNNING"
    node.limits["A.t"] = 2_000
    assert await _looks(cluster, node, 2) == before
    assert not node.limits_asked


# ---- internal topics that may not be written are named before anything is written to them


async def test_unfit_internal_topics_are_named_while_they_are(cluster: Cluster) -> None:
    node = cluster.node("n1")
    error = server_error(TOPIC_AUTHORIZATION_FAILED, "the mirror may not Write it")
    node.unfit["mm2py-offset-map.A.internal"] = error
    node.start()

    def named() -> dict[str, str]:
        return dict(node.herder.node_snapshot().problems)

    await until(lambda: named() == {"topic mm2py-offset-map.A.internal": str(error)})
    node.unfit.clear()
    await cluster.clock.advance(RIGHTS_EVERY_S + 0.1)
    await until(lambda: not named())
    # An operator deletes one, or lets it be cleaned up by age, while the flow runs.
    node.unfit["mm2-configs.A.internal"] = ConfigError("has cleanup.policy=delete")
    await cluster.clock.advance(TOPICS_EVERY_S + 0.1)
    await until(lambda: named() == {"topic mm2-configs.A.internal": "has cleanup.policy=delete"})


# ---- what RUNNING work does not copy is its trace, the same on every worker, and goes with its cause


def traces(cluster: Cluster) -> list[str | None]:
    """Return what each node shows of the first task."""
    return [node.herder.task_status(C0).trace for node in cluster.nodes.values()]


async def later(cluster: Cluster, seconds: float = EVERY_S) -> list[str | None]:
    """Let the watch look once more; return what is shown then."""
    await cluster.clock.advance(seconds)
    await cluster.clock.settle()
    return traces(cluster)


async def test_every_worker_shows_what_a_task_of_one_does_not_copy(cluster: Cluster) -> None:
    await cluster.pair()
    owner = cluster.nodes[cluster.running()["c-0"]]
    for number, (state, cause) in enumerate(
        (("FAILED", "too large"), ("HELD", "no right"), ("HELD", KEPT_OUT), ("RUNNING", ""))
    ):
        part = owner.meter.partition(TopicPartition("t", number))
        part.task, part.state, part.cause = "c-0", state, cause
    owner.meter.note_finding(
        Finding(task="c-0", what="offset map", text="away", count=1, harms=True)
    )
    owner.meter.note_finding(Finding(task="c-0", what="a note", text="n", count=1, harms=False))
    said = "offset map: away\nt-0 is FAILED: too large\nt-1 is HELD: no right"
    assert await later(cluster) == [said, said]
    assert {node.state(C0) for node in cluster.nodes.values()} == {"RUNNING"}
    assert {node.herder.task_status(TaskId("c", 1)).trace for node in cluster.nodes.values()} == {
        None
    }
    owner.meter.forget_task("c-0")
    assert await later(cluster) == [None, None]


async def test_a_changed_text_is_written_seldom_and_a_new_cause_at_once(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    written = len(cluster.statuses.records)
    for minutes in range(12):
        found = Finding(task="c-0", what="retention", text=f"in {minutes}", count=1, harms=True)
        node.meter.note_finding(found)
        await later(cluster)
    assert len(cluster.statuses.records) - written == 1 + 11 * EVERY_S // AGAIN_S


async def test_a_cause_with_a_secret_is_written_once(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    written = len(cluster.statuses.records)
    found = Finding(
        task="c-0", what="x", text="password geheim-123 is refused", count=1, harms=True
    )
    node.meter.note_finding(found)
    assert await later(cluster) == ["x: password [hidden] is refused"]
    for _ in range(3):
        await later(cluster, AGAIN_S)
    assert len(cluster.statuses.records) - written == 1


async def test_a_connector_that_cannot_say_its_problems_ends_no_watch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await cluster.with_tasks()

    def problems(_: TestConnector) -> dict[str, str]:
        raise ValueError("a bug of a plugin")

    with monkeypatch.context() as broken:
        broken.setattr(TestConnector, "problems", problems)
        await later(cluster)
    assert "a bug of a plugin" in caplog.text
    node.meter.note_finding(Finding(task="c-0", what="x", text="away", count=1, harms=True))
    assert await later(cluster) == ["x: away"]


async def test_many_causes_are_counted_and_other_states_keep_theirs(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    for number in range(MOST_CAUSES + 3):
        part = node.meter.partition(TopicPartition("t", number))
        part.task, part.state, part.cause = "c-0", "FAILED", "too large"
    (said,) = await later(cluster)
    assert said is not None
    assert said.splitlines()[MOST_CAUSES:] == ["3 more"]
    right = node.status.get(C0)
    assert right is not None
    node.status.put(C0, replace(right, state=State.PAUSED, trace=None))
    assert await later(cluster) == [None]
