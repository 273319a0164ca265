"""Tasks in other processes, played in this one: the pool, a flow's host and the child's service over a socket."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from math import inf

import pytest

from mm2py.api.context import EventKind, EventSink, LossEvent, SourceGap
from mm2py.client.permit import Permit
from mm2py.errors import ConfigError, FatalError, Mm2pyError, PartitionError
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.hosts.child_host import ChildTaskHost
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.pool import SILENT_LOOKS, HostLink, HostPool
from mm2py.runtime.hosts.reports import MeterRelay, TaskReports
from mm2py.runtime.hosts.service import SIGN_OF_LIFE_TICKS, FlowSpec, HostService
from mm2py.runtime.tasks.lifecycle import Status, trace_of
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import TaskWatcher
from mm2py.runtime.tasks.worker_task import WorkerTask
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually as until
from mm2py.types import State, TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import FLOW, HostStage, outgoing, spec_of

ORDERS = TopicPartition("orders", 0)
FIRST, SECOND = TaskId("Fake", 0), TaskId("Fake", 1)
KEY = b'["Fake",{"cluster":"A","partition":0,"topic":"orders"}]'
SPEC = FlowSpec(flow=FLOW, worker={}, log_level="INFO")


class Child:
    """A service that runs in this process; ``kill`` is as abrupt as a signal."""

    def __init__(self, pid: int, version: str) -> None:
        self.pid = pid
        self.version = version
        self.clock = FakeClock()
        self.stages: list[HostStage] = []
        self.levels: list[tuple[str, str]] = []
        self.how = "code 0"
        self.greets = asyncio.Event()
        self.pipe: HostPipe | None = None
        self.running: asyncio.Task[None] | None = None

    async def run(self, sock: socket.socket) -> None:
        self.pipe = await HostPipe.over(sock)
        try:
            await self.greets.wait()
            service = HostService(
                self.pipe,
                self._build,
                set_level=lambda name, level: self.levels.append((name, level)),
                version=self.version,
                clock=self.clock,
            )
            await service.run()
        finally:
            self.pipe.hang_up()  # as the end of a process does

    def kill(self) -> None:
        self.how = "signal 9"
        if self.running is not None:
            self.running.cancel()

    async def ended(self) -> str:
        if self.running is not None:
            await asyncio.wait({self.running})
        return self.how

    def _build(self, spec: FlowSpec, reports: FlowReports, watcher: TaskWatcher) -> HostStage:
        if "refused" in spec.worker:
            raise ConfigError("cannot be run", remedy="change it")
        self.stages.append(HostStage(reports, watcher, permit=Permit(self.clock)))
        return self.stages[-1]


class Ledger(EventSink):
    def __init__(self) -> None:
        self.reported: list[LossEvent] = []
        self.waiting: set[TopicPartition] = set()
        self.idle = asyncio.Event()
        self.noted: dict[TopicPartition, bytes] = {ORDERS: b"\0\xff"}

    def report(self, event: LossEvent) -> bool:
        self.reported.append(event)
        return True

    def unwritten(self) -> Collection[TopicPartition]:
        return self.waiting

    async def flush(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s if self.waiting else 0.001):
                await self.idle.wait()
        except TimeoutError:
            return not self.waiting
        return True

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return dict(self.noted)

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.noted[partition] = topic_id


class World:
    """A worker with one flow and its children."""

    def __init__(self, *, processes: int = 2, version: str = "1", spec: FlowSpec = SPEC) -> None:
        self.clock = FakeClock()
        self.version = version
        self.children: list[Child] = []
        self.pipes: list[HostPipe] = []
        self.links: list[HostLink] = []
        self.statuses: list[tuple[TaskId, Status]] = []
        self.topics: list[tuple[TaskId, str]] = []
        self.ledger = Ledger()
        self.meter = FlowMeter(FLOW, self.clock)
        self.spawn_error: OSError | None = None
        self.permit = Permit(self.clock, until_s=inf)
        self.greets = True
        self.closed = False
        self.pool = HostPool(processes, self)
        self.host = self.flow(spec)

    def flow(self, spec: FlowSpec, *, own: bool = False, light: bool = False) -> ChildTaskHost:
        return ChildTaskHost(
            self.pool,
            spec,
            lambda task, status: self.statuses.append((task, status)),
            FlowReports(
                meter=self.meter,
                events=self.ledger,
                on_topic=lambda task, topic: self.topics.append((task, topic)),
            ),
            permit=self.permit,
            graceful_s=5,
            own=lambda _task: own,
            light=lambda _task: light,
        )

    def words(self, task: TaskId = FIRST) -> list[str]:
        return [status.state.value for name, status in self.statuses if name == task]

    async def started(self, *numbers: int) -> None:
        for number in numbers:
            await self.host.start_task(spec_of(number))
            task = TaskId("Fake", number)
            await until(lambda: self.words(task)[-1:] == ["RUNNING"])  # noqa: B023 - awaited here

    async def end(self) -> None:
        await self.host.close()
        await self.pool.close()
        for child in self.children:
            await child.ended()
        for pipe in (*self.pipes, *(child.pipe for child in self.children)):
            if pipe is not None:
                await pipe.close()

    def close(self) -> None:
        self.closed = True

    async def spawn(self) -> HostLink:
        if self.spawn_error is not None:
            raise self.spawn_error
        here, there = socket.socketpair()
        child = Child(100 + len(self.children), self.version)
        self.children.append(child)
        if self.greets:
            child.greets.set()
        child.running = asyncio.create_task(child.run(there))
        self.pipes.append(await HostPipe.over(here))
        self.links.append(HostLink(self.pipes[-1], child, version="1", clock=self.clock))
        return self.links[-1]


@pytest.fixture
@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    world = World()
    yield world
    await world.end()


async def test_a_task_runs_in_a_child_and_its_states_come_back() -> None:
    world = World()
    await world.started(0)
    assert world.host.tasks() == (FIRST,)
    await world.host.pause_task(FIRST, paused=True)
    await until(lambda: world.words() == ["RUNNING", "PAUSED"])
    await world.host.pause_task(FIRST, paused=False)
    await until(lambda: world.words() == ["RUNNING", "PAUSED", "RUNNING"])
    await world.host.stop_task(FIRST, 5.0)
    assert world.words() == ["RUNNING", "PAUSED", "RUNNING", "UNASSIGNED"]
    assert world.host.status(FIRST) is None
    await world.end()
    (child,) = world.children
    assert child.stages[0].closed == 1
    assert child.how == "code 0"


async def test_tasks_are_spread_over_as_many_children_as_there_may_be(world: World) -> None:
    world.pool.start()
    await world.started(0, 1, 2, 3)
    assert [len(child.stages[0].tasks) for child in world.children] == [2, 2]
    await world.host.stop_task(SECOND, 5.0)
    await world.started(4)
    assert [len(child.stages[0].tasks) for child in world.children] == [2, 3]


async def test_a_light_task_needs_no_second_child_and_keeps_none_away(world: World) -> None:
    beats = world.flow(SPEC, light=True)
    await beats.start_task(spec_of(7))
    await world.started(0)
    await beats.start_task(spec_of(8))
    assert len(world.children) == 1
    await world.started(1)
    assert len(world.children) == 2
    await beats.close()
    await world.started(2)
    assert sorted(link.tasks for link in world.links) == [1, 2]


async def test_two_flows_share_a_child_and_do_not_see_each_other() -> None:
    world = World(processes=1)
    other = world.flow(SPEC)
    await world.started(0)
    await other.start_task(spec_of(0))
    (child,) = world.children
    await until(lambda: len(child.stages) == 2 and child.stages[1].words() == ["RUNNING"])
    await other.close()
    assert world.host.status(FIRST) == Status(State.RUNNING)
    assert [stage.closed for stage in child.stages] == [0, 1]
    await world.end()


async def test_a_task_of_a_third_party_has_a_child_of_its_own_that_ends_with_it() -> None:
    world = World(processes=1)
    await world.started(0)
    foreign = world.flow(SPEC, own=True)
    await foreign.start_task(spec_of(1))
    await world.started(2)
    assert [len(child.stages[0].tasks) for child in world.children] == [2, 1]
    await foreign.stop_task(SECOND, 5.0)
    await world.links[1].gone()
    assert world.children[1].how == "code 0"
    assert world.pool.pids == (100,)
    assert foreign.tasks() == ()
    await foreign.close()
    await world.end()


async def test_a_child_that_is_silent_is_killed(world: World) -> None:
    await world.started(0)
    shown: list[str] = []
    for _ in range(SILENT_LOOKS + 1):
        await world.clock.advance(5.0)
        shown += world.host.problems().values()
    await until(lambda: world.words() == ["RUNNING", "FAILED"])
    assert "no sign of life for 10 s" in shown[0], "before it is killed"
    assert not world.host.problems()
    assert "no sign of life for 30 s" in str(world.statuses[-1][1].cause)


async def test_a_child_of_another_version_is_refused() -> None:
    world = World(version="2")
    await world.host.start_task(spec_of(0))
    assert world.words() == ["FAILED"]
    assert "it is of version 2, this process of 1" in str(world.statuses[0][1].cause)
    await world.end()


async def test_a_child_that_does_not_start_fails_the_task_alone(world: World) -> None:
    world.spawn_error = OSError("too many processes")
    await world.host.start_task(spec_of(0))
    assert "too many processes" in str(world.statuses[0][1].cause)
    world.spawn_error = None
    await world.started(0)
    assert world.words() == ["FAILED", "RUNNING"]


async def test_a_flow_that_cannot_be_opened_fails_its_tasks_with_the_cause() -> None:
    world = World(processes=1, spec=FlowSpec(flow=FLOW, worker={"refused": ""}, log_level="INFO"))
    await asyncio.gather(world.host.start_task(spec_of(0)), world.host.start_task(spec_of(1)))
    for _, status in world.statuses:
        assert isinstance(status.cause, ConfigError)
        assert (status.cause.message, status.cause.remedy) == ("cannot be run", "change it")
    assert len(world.statuses) == 2
    await world.end()


async def test_errors_keep_class_text_and_causes(world: World) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    await world.started(0, 1, 2)
    error = PartitionError("no", topic="orders", partition=0, offset=7, remedy="look")
    error.__cause__ = KeyError("k")
    world.children[0].stages[0].tasks[0].rounds.append(error)
    world.children[1].stages[0].tasks[0].rounds.append(ZeroDivisionError("by 0"))
    world.children[0].stages[0].tasks[1].rounds.append(UnprintableError())
    await until(lambda: len([it for _, it in world.statuses if it.state is State.FAILED]) == 3)
    (cause,) = [s.cause for task, s in world.statuses if task == FIRST and s.cause]
    assert isinstance(cause, PartitionError)
    assert str(cause) == "orders-0 at offset 7: no; look"
    assert type(cause.__cause__).__name__ == "KeyError"
    (foreign,) = [s.cause for task, s in world.statuses if task == SECOND and s.cause]
    assert (type(foreign).__name__, str(foreign)) == ("ZeroDivisionError", "by 0")
    (untold,) = [s.cause for task, s in world.statuses if task.number == 2 and s.cause]
    assert "no text" in str(untold)


async def test_an_error_that_quotes_a_whole_record_is_cut_and_still_fails_its_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm2py.runtime.hosts.pipe.LONGEST_BYTES", 1 << 20)
    await world.started(0)
    error = FatalError(f"the start {'x ' * (1 << 20)}")
    error.__cause__ = ValueError("y" * (2 << 20))
    world.children[0].stages[0].tasks[0].rounds.append(error)
    await until(lambda: world.words() == ["RUNNING", "FAILED"])
    cause = world.statuses[-1][1].cause
    assert cause is not None
    assert str(cause).startswith("the start x x")
    assert str(cause.__cause__) == " ...", "half of a word may be half of a secret"
    assert len(trace_of(cause)) < 100_000, "as long as a record of the status topic may be"


async def test_permit_and_holds_reach_children_of_now_and_later(world: World) -> None:
    await world.started(0)
    first = world.children[0].stages[0]
    assert first.permit.valid
    world.permit.revoke()
    world.host.hold(frozenset({ORDERS}))
    await until(lambda: not first.permit.valid and first.tasks[0].held == [ORDERS])
    await world.host.start_task(spec_of(1))
    second = world.children[1].stages[0]
    await until(lambda: bool(second.tasks) and second.tasks[0].held == [ORDERS])
    assert not second.permit.valid
    world.permit.grant(inf)
    await until(lambda: first.permit.valid and second.permit.valid)
    term = first.permit.term
    world.permit.abandon()
    await until(lambda: not first.permit.valid and not second.permit.valid)
    world.permit.grant(inf)
    await until(lambda: first.permit.valid and second.permit.valid)
    assert not first.permit.allows(term), "what was queued before never leaves"


async def test_a_child_compares_the_granted_instant_itself(world: World) -> None:
    world.permit.revoke()
    world.permit.grant(world.clock.monotonic() + 6)
    await world.started(0)
    child, stage = world.children[0], world.children[0].stages[0]
    valid = [stage.permit.valid]
    child.clock.jump(6.0)
    valid.append(stage.permit.valid)
    assert valid == [True, False], "its worker may be frozen"


async def test_a_child_that_was_frozen_counts_what_a_grant_is_worth_now(world: World) -> None:
    await world.started(0)
    child, stage = world.children[0], world.children[0].stages[0]
    # The child reads 7 s later what the worker wrote.
    await child.clock.advance(7.0)
    world.permit.revoke()
    world.permit.grant(world.clock.monotonic() + 6)
    await until(lambda: stage.permit.until_s == world.permit.until_s)
    assert world.permit.valid
    assert not stage.permit.valid, "a grant of 7 s ago proves nothing"
    await world.clock.advance(7.0)
    world.permit.grant(world.clock.monotonic() + 6)
    await until(lambda: stage.permit.valid)


async def test_what_children_count_arrives_with_the_last_words_of_a_task(world: World) -> None:
    await world.started(0)
    child = world.children[0]
    child.stages[0].tasks[0].rounds.append([outgoing("orders", 0, 3)])
    await until(lambda: world.topics == [(FIRST, "A.orders")])
    await child.clock.advance(1.0)
    await until(lambda: world.meter.sample().records == 3)
    (partition,) = world.meter.node_snapshot("me").partitions
    assert (partition.task, partition.source) == ("Fake-0", ORDERS)
    child.stages[0].tasks[0].rounds.append([outgoing("orders", 3, 4)])
    await until(lambda: child.stages[0].store.written().get(KEY) == b'{"offset":6}')
    await world.host.stop_task(FIRST, 5.0)
    assert world.topics == [(FIRST, "A.orders")], "its first record is told once"
    assert world.meter.sample().records == 7
    assert world.meter.node_snapshot("me").partitions == ()


async def test_positions_wait_until_the_workers_ledger_has_a_loss(world: World) -> None:
    world.ledger.waiting.add(ORDERS)
    await world.started(0)
    stage = world.children[0].stages[0]
    task = stage.tasks[0]
    task.context.report_gap(SourceGap(ORDERS, 0, 9, "retention", "gone"))
    task.rounds.append([outgoing("orders", 10, 1)])
    await until(lambda: bool(world.ledger.reported))
    sleeps = len(stage.clock.sleeps)
    await until(lambda: len(stage.clock.sleeps) > sleeps + 20)
    assert world.ledger.reported[0].kind is EventKind.RETENTION
    assert stage.store.writes == []
    world.ledger.waiting.clear()
    world.ledger.idle.set()
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":10}')


async def test_incarnations_are_the_workers(world: World) -> None:
    await world.started(0)
    context = world.children[0].stages[0].tasks[0].context
    assert await context.incarnations() == {ORDERS: b"\0\xff"}
    context.report_incarnation(ORDERS, b"\1")
    await until(lambda: world.ledger.noted[ORDERS] == b"\1")


async def test_an_own_host_whose_caller_is_cancelled_while_it_starts_ends(world: World) -> None:
    world.greets = False
    picking = asyncio.create_task(world.pool.pick(own=True))
    await until(lambda: bool(world.links) and world.children[0].pipe is not None)
    picking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await picking
    world.children[0].greets.set()
    await world.links[0].gone()
    assert world.pool.pids == ()


async def test_tasks_that_come_and_go_leave_no_locks_behind(world: World) -> None:
    for number in range(20):
        await world.host.start_task(spec_of(number))
        await world.host.stop_task(TaskId("Fake", number), 5.0)
    child = world.children[0].stages[0].host
    for host in (world.host, child):
        assert not host._turns  # pyright: ignore[reportPrivateUsage] - nothing else shows it


async def test_calls_for_one_task_take_turns(world: World) -> None:
    starts = [asyncio.create_task(world.host.start_task(spec_of(0))) for _ in range(5)]
    await asyncio.gather(*starts)
    await until(lambda: world.words(FIRST)[-1:] == ["RUNNING"])
    assert world.host.tasks() == (FIRST,)
    assert sum(link.tasks for link in world.links) == 1


async def test_what_a_living_child_fails_to_keep_out_is_not_taken_for_kept_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.started(0)
    task = world.children[0].stages[0].tasks[0]
    task.rounds.append([outgoing("orders", 0, 3)])
    await until(lambda: world.topics == [(FIRST, "A.orders")])
    monkeypatch.setattr(WorkerTask, "stop", _broken_stop)
    with pytest.raises(FatalError, match="ZeroDivisionError"):
        await world.host.keep_out(frozenset({ORDERS}))
    monkeypatch.undo()
    await world.host.keep_out(frozenset({ORDERS}))
    world.children[0].kill()
    await world.host.keep_out(frozenset())


async def test_a_child_that_fails_to_stop_a_task_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.started(0)
    monkeypatch.setattr(WorkerTask, "stop", _broken_stop)
    await world.host.stop_task(FIRST, 5.0)
    assert world.children[0].how == "signal 9", "only its death is certain"
    assert world.host.tasks() == ()


async def _broken_stop(_task: WorkerTask, _timeout_s: float) -> None:
    raise ZeroDivisionError


async def test_the_end_of_a_child_reaches_all_its_flows_though_one_cannot_take_it() -> None:
    world = World(processes=1)

    def deaf(_link: HostLink, _error: Mm2pyError) -> None:
        raise ZeroDivisionError

    link = await world.pool.pick()
    link.attach(deaf)
    await world.started(0)
    world.children[0].kill()
    await until(lambda: world.words() == ["RUNNING", "FAILED"])
    await world.end()


async def test_a_report_that_fails_does_not_make_its_child_look_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_relay: MeterRelay) -> bool:
        raise ZeroDivisionError

    await world.started(0)
    monkeypatch.setattr(MeterRelay, "send", broken)
    received = world.pipes[0].received
    # The line of the log is not sent here: whatever comes is a sign of life.
    await world.children[0].clock.advance(SIGN_OF_LIFE_TICKS + 1)
    await until(lambda: world.pipes[0].received > received)
    monkeypatch.undo()


async def test_a_report_of_a_flow_that_is_closed_is_ignored() -> None:
    world = World()
    await world.started(0)
    pipe = world.children[0].pipe
    assert pipe is not None
    await world.host.close()
    pipe.channel(1).post(TaskReports.topic_used, FIRST, "late")
    assert world.pool.pids == (100,)
    await world.end()
    assert world.topics == []
    assert world.children[0].how == "code 0"
