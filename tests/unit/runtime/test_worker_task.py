"""The task loop: order of sending, acknowledging, holding, failing and stopping."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count, pairwise
from math import inf

import pytest

from mm2py.api.context import EventKind, PartitionState, SourceGap
from mm2py.api.task import BatchSourceTask, Delivery, Outgoing, Run
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.resume import OtherContentsError
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.config.framework import LossPolicies
from mm2py.errors import (
    ConnectionFailedError,
    FatalError,
    Mm2pyError,
    PartitionError,
    TargetMovedError,
)
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.tasks.arrivals import Arrivals, SourceOrder
from mm2py.runtime.tasks.lifecycle import Lifecycle
from mm2py.runtime.tasks.task_transactions import TaskTransactions
from mm2py.runtime.tasks.transformed_task import OrderedWorkerTask
from mm2py.runtime.tasks.worker_task import TaskSettings, WorkerTask
from mm2py.testing.waiting import until
from mm2py.types import State, TopicPartition
from tests.kit.fakes.batches import a_batch
from tests.kit.fakes.broker import FakeBroker
from tests.unit.runtime.runtime_fakes import (
    FLOW,
    EagerClock,
    Events,
    FakeSender,
    FakeStore,
    FakeTask,
    Statuses,
    a_committer,
    a_context,
    outgoing,
    turns,
)

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 0)


class Bench:
    """One worker task on fakes."""

    def __init__(
        self,
        task: FakeTask,
        *,
        acknowledge: bool = True,
        fail_on_gap: bool = False,
        settings: TaskSettings | None = None,
        transactions: TaskTransactions | None = None,
        order: SourceOrder | None = None,
    ) -> None:
        self.clock = EagerClock()
        self.task = task
        self.settings, self.transactions, self.order = settings, transactions, order
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.sender = FakeSender(acknowledge=acknowledge, permit=self.permit)
        self.store = FakeStore()
        self.statuses = Statuses()
        self.meter = FlowMeter(FLOW, self.clock)
        self.ledger = Events()
        self.events = self.ledger.reported
        policies = LossPolicies(gap_policy="fail" if fail_on_gap else "continue")
        self.context = a_context(
            self.ledger, policies, store=self.store, clock=self.clock, meter=self.meter
        )
        self.committer = a_committer(self.store)
        self.use(task)

    def use(self, task: BatchSourceTask) -> None:
        """Run this task: the one of the test, or one around it."""
        self.running = (WorkerTask if self.order is None else OrderedWorkerTask)(
            task,
            context=self.context,
            sender=self.sender if self.transactions is None else self.transactions.sender,
            committer=self.committer,
            settings=self.settings or TaskSettings(),
            on_status=self.statuses,
            permit=self.permit,
            transactions=self.transactions,
        )
        if isinstance(self.running, OrderedWorkerTask):
            assert self.order is not None
            self.running.follow(self.order)

    async def begin(self, condition: Callable[[], object] | None = None) -> None:
        """Start, and wait for ``condition`` (default: all rounds polled)."""
        self.running.start()
        ready = condition or (lambda: not self.task.rounds)
        await until(lambda: bool(ready()))

    async def run(self, condition: Callable[[], object] | None = None) -> None:
        """The same, and stop."""
        await self.begin(condition)
        await self.running.stop(5.0)

    def position(self, topic: str) -> bytes | None:
        key = f'["MirrorSourceConnector",{{"cluster":"A","partition":0,"topic":"{topic}"}}]'
        return self.store.written().get(key.encode())


@pytest.mark.parametrize("order", [None, SourceOrder()], ids=["as they are", "transformed"])
def test_other_contents_of_a_predecessor_may_be_doubled_with_transforms_alone(
    order: SourceOrder | None,
) -> None:
    """Without them its records are those that the source has lost."""
    bench = Bench(FakeTask([]), order=order)
    bench.sender.on_doubt(TopicPartition("orders", 0), 0, 2, OtherContentsError())
    bench.sender.on_doubt(TopicPartition("orders", 0), 3, 4, Mm2pyError("not searched"))
    found = [(it.kind, it.first_offset, it.last_offset) for it in bench.events]
    other = [(EventKind.MAY_BE_DOUBLED, 0, 2)] if order is not None else []
    assert found == [*other, (EventKind.MAY_BE_DOUBLED, 3, 4)]


async def test_nothing_is_committed_before_it_is_acknowledged() -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 3)]), acknowledge=False)
    await bench.begin(lambda: len(bench.clock.sleeps) > 3)
    assert bench.store.writes == []
    bench.sender.flush_result = False
    await bench.running.stop(1.0)
    assert bench.store.writes == []


@pytest.mark.parametrize(("step", "shortest_s", "longest_s"), [(1, 3.9, 5.1), (1_000, 0, 1.1)])
async def test_few_records_are_committed_at_each_fifth_interval(
    step: int, shortest_s: float, longest_s: float
) -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 1)]))
    bench.running.start()
    at: list[float] = []
    position = 0

    def written() -> bool:
        nonlocal position
        position += step
        bench.committer.acknowledged(ORDERS, position)
        while len(at) < len(bench.store.writes):
            at.append(bench.clock.monotonic())
        return len(at) > 4

    await until(written)
    await bench.running.stop(1.0)
    pauses = [later - earlier for earlier, later in pairwise(at[1:])]
    assert shortest_s <= min(pauses) <= max(pauses) <= longest_s


@pytest.mark.parametrize(("failures", "stored"), [(3, True), (1_000, False)])
async def test_the_last_positions_are_tried_until_the_deadline_and_what_is_behind_is_named(
    caplog: pytest.LogCaptureFixture, failures: int, stored: bool
) -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 3)]), acknowledge=False)
    await bench.begin(lambda: bench.sender.waiting)
    bench.store.errors = [ConnectionFailedError("the coordinator moves")] * failures
    await bench.running.stop(5.0)
    assert (bench.position("orders") == b'{"offset":2}') is stored
    assert ("positions are not stored partitions=orders-0;" in caplog.text) is not stored
    assert len(bench.clock.sleeps) < 100


@pytest.mark.parametrize("permitted", [True, False])
async def test_a_stop_beside_a_target_that_is_silent_names_what_is_behind(
    caplog: pytest.LogCaptureFixture, permitted: bool
) -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 3)]), acknowledge=False)
    await bench.begin(lambda: bench.sender.waiting)
    bench.store.hangs = True
    if not permitted:
        bench.committer.acknowledged(ORDERS, 2)
        bench.permit.revoke()
    await bench.running.stop(0.1)
    assert "positions are not stored partitions=orders-0;" in caplog.text


class EndlessTask(FakeTask):
    """Reads a batch of each partition that is not held, in turn and within the budget, at least one."""

    is_short = False

    def __init__(self, topics: Sequence[str], size: int = 256 << 10) -> None:
        super().__init__()
        self.topics, self.size = deque(topics), size
        self.data = bytearray(size)
        self.read = dict.fromkeys(topics, 0)
        self.most = dict(self.read)
        self.unread: set[TopicPartition] = set()

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        await super().poll(budget_bytes)
        found: list[Outgoing] = []
        for topic in tuple(self.topics):
            if TopicPartition(topic, 0) in self.unread:
                continue
            if found and (len(found) + 1) * self.size > budget_bytes:
                break
            found.append(outgoing(topic, self.read[topic]))
            found[-1].batches[0].data = self.data
            self.read[topic] += 1
            self.most[topic] = max(self.most[topic], self.read[topic])
            self.topics.remove(topic)
            self.topics.append(topic)
        return found

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self.unread.update(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self.unread.difference_update(partitions)

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        assert partition in self.unread
        assert self.read[partition.topic] == offset + records
        self.read[partition.topic] = offset
        return True


class OneBuffer(EndlessTask):
    """Reads of several partitions into one receive buffer, and again when no batch of it is left."""

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        await asyncio.sleep(0)
        self.is_short = any(self.read[it.topic] for it in self.unread)
        return () if self.is_short else await super().poll(budget_bytes)


class HoldCalls(FakeTask):
    """Counts how often it is asked to hold."""

    calls = 0

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        super().hold(partitions)
        self.calls += 1


async def test_poll_waits_for_room_in_the_buffer() -> None:
    settings = TaskSettings(buffer_memory_bytes=800)
    task = FakeTask([outgoing("orders", 0, size=790)], [outgoing("orders", 1)])
    bench = Bench(task, acknowledge=False, settings=settings)
    await bench.begin(lambda: len(bench.sender.waiting) == 1)
    await turns(50)
    assert task.polls == 1
    bench.sender.acknowledge_first()
    await until(lambda: task.polls >= 2)
    assert task.budgets[:2] == [800, 800]
    await bench.running.stop(1.0)


async def test_thousands_of_new_partitions_in_one_round_are_looked_at_once() -> None:
    names = [TopicPartition(f"group {number}", 0) for number in range(500)]
    into = TopicPartition("A.checkpoints.internal", 0)
    task = HoldCalls([Outgoing(it, into, [a_batch(0, 1)]) for it in names])
    bench = Bench(task)
    bench.running.hold(frozenset(names))
    await bench.run(lambda: len(task.deliveries) == len(names))
    assert (task.calls, set(task.held)) == (1, set(names))


@pytest.mark.parametrize(
    ("stuck", "size"),
    [
        *((count, 256 << 10) for count in (1, 6, 7, 60)),
        *((count, 16 << 10) for count in (8, 200, 1_000)),
        *((8, size << 20) for size in (8, 50)),
        (40, 8 << 20),
        pytest.param(200, 50 << 20, marks=pytest.mark.faults),
    ],
)
async def test_stuck_partitions_take_no_more_than_the_memory_and_leave_the_others_flowing(
    stuck: int, size: int
) -> None:
    names = [f"stuck{number}" for number in range(stuck)]
    task = EndlessTask([*names, "orders", "bills"], size)
    bench = Bench(task)
    bench.sender.stuck = {TopicPartition(f"A.{name}", 0) for name in names}
    bench.running.start()
    most = 0

    def flows(times: int) -> bool:
        nonlocal most
        most = max(most, bench.sender.buffered_bytes)
        return min(task.read["orders"], task.read["bills"]) > times

    await until(lambda: flows(20), turns=400_000)
    await until(lambda: all(task.most[name] for name in names), turns=400_000)
    assert flows(0)
    assert most <= TaskSettings().buffer_memory_bytes + size, "one batch beyond it"
    # They are copied as soon as their target takes them, each record once and in order.
    bench.sender.stuck.clear()
    bench.sender.acknowledge_all()
    await until(lambda: all(task.read[name] > 2 for name in names), turns=400_000)
    await bench.running.stop(1.0)
    ends = dict.fromkeys(task.read, 0)
    for delivery in task.deliveries:
        for run in delivery.runs:
            assert run.source_offset == ends[delivery.source.topic]
            ends[delivery.source.topic] += run.records
    assert ends == task.read


async def test_a_stuck_partition_that_keeps_all_receive_buffers_returns_them_though_the_sender_has_room() -> (
    None
):
    task = OneBuffer(["stuck", "orders"])
    bench = Bench(task)
    target = TopicPartition("A.stuck", 0)
    bench.sender.stuck = {target}
    await bench.begin(lambda: task.read["stuck"] > 0)
    bench.sender.on_stalled(target, ConnectionFailedError("its topic may not be written"))
    read = task.read["orders"]
    await until(lambda: task.read["orders"] > read + 10, turns=400_000)
    await bench.running.stop(1.0)


async def test_a_partition_whose_target_takes_nothing_is_held_at_once_until_it_does() -> None:
    task = EndlessTask(["orders", "bills"])
    bench = Bench(task)
    target = TopicPartition("A.orders", 0)
    bench.sender.stuck = {target}
    await bench.begin(lambda: task.read["orders"] > 0)
    bench.sender.on_stalled(target, ConnectionFailedError("its broker is away"))
    assert task.unread == {ORDERS}
    read = task.read["orders"]
    await until(lambda: task.read["bills"] > 100)
    assert task.read["orders"] == read
    bench.sender.stuck.clear()
    bench.sender.acknowledge_all()
    bench.sender.on_stalled(target, None)
    await until(lambda: task.read["orders"] > read + 10)
    await bench.running.stop(1.0)


async def test_what_holds_a_partition_on_either_side_is_shown_until_it_ends_there() -> None:
    task = EndlessTask(["orders"])
    bench = Bench(task)
    target = TopicPartition("A.orders", 0)
    bench.sender.stuck = {target}
    await bench.begin(lambda: task.read["orders"] > 0)
    away, full, denied = (
        ConnectionFailedError(it) for it in ("no leader", "disk full", "no right")
    )
    shown: list[tuple[str, str]] = []
    for side, error in (
        *(("source", away), ("target", full), ("target", None), ("source", denied)),
        *(("target", full), ("source", None), ("target", None)),
    ):
        if side == "target":
            bench.sender.on_stalled(target, error)
        else:
            state = PartitionState.RUNNING if error is None else PartitionState.HELD
            bench.context.partition_state(ORDERS, state, error)
        (meter,) = bench.meter.partitions
        shown.append((meter.state, meter.cause))
    held = [("HELD", "no leader")] * 3 + [("HELD", "no right")] * 2
    assert shown == [*held, ("HELD", "disk full"), ("RUNNING", "")]
    bench.sender.stuck.clear()
    bench.sender.acknowledge_all()
    await bench.running.stop(1.0)


async def test_start_is_retried_while_the_target_is_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(FakeTask([outgoing("orders", 0)]))
    bench.sender.start_errors = [ConnectionFailedError("no broker")] * 4
    bench.task.start_errors = [ConnectionFailedError("no source")] * 2
    await bench.run()
    assert bench.sender.started == 1
    assert bench.position("orders") == b'{"offset":0}'
    waiting = [r for r in caplog.records if r.getMessage().startswith("waiting for")]
    assert len(waiting) == 2, "one line per outage below 10 s"


@pytest.mark.parametrize("at_start", [True, False])
async def test_what_a_task_tries_in_vain_for_long_is_told_with_the_cause_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch, at_start: bool
) -> None:
    errors = [ConnectionFailedError("no source")] * 12
    bench = Bench(FakeTask(*([] if at_start else errors), [outgoing("orders", 0)]))
    bench.task.start_errors = [*errors] if at_start else []
    told: list[str] = []
    report = bench.context.report_finding

    def note(what: str, text: str, *, count: int = 1, harms: bool = True) -> None:
        told.append(text)
        report(what, text, count=count, harms=harms)

    monkeypatch.setattr(bench.context, "report_finding", note)
    await bench.run()
    what = "the task's start" if at_start else "the source"
    assert set(told[:-1]) == {f"waits for {what}: no source"}
    assert 0 < len(told) - 1 < len(errors), "not at once"
    assert (told[-1], bench.meter.findings) == ("", ())
    assert bench.position("orders") == b'{"offset":0}', "it was tried again"


async def test_records_that_the_target_lost_are_in_the_ledger_with_their_source_range() -> None:
    task = FakeTask([outgoing("orders", 100, 10)])
    bench = Bench(task)
    await bench.begin(lambda: task.deliveries)
    target = TopicPartition("A.orders", 0)
    bench.sender.cut(target, 4)  # it had acknowledged 0 to 9
    task.rounds.append([outgoing("orders", 110, 3)])
    await until(lambda: len(task.deliveries) == 2)
    bench.sender.cut(target, 0)
    task.rounds.append([outgoing("orders", 113, 2)])
    await until(lambda: len(task.deliveries) == 3)
    await bench.running.stop(1.0)
    assert [(e.kind, e.first_offset, e.last_offset) for e in bench.events] == [
        (EventKind.TARGET_LOST, 104, 109),
        (EventKind.TARGET_LOST, 100, 112),
    ]
    assert bench.events[0].cause == "the target lost its offsets 4 to 9"
    assert bench.running.status.state.value == "UNASSIGNED"
    assert bench.position("orders") == b'{"offset":114}'


async def test_a_refused_partition_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = FakeTask([outgoing("orders", 0), outgoing("bills", 0)])
    bench = Bench(task, acknowledge=False)
    await bench.begin(lambda: len(bench.sender.waiting) == 2)
    error = PartitionError("too large", topic="orders", partition=0, offset=0, remedy="raise it")
    bench.sender.refuse(ORDERS, error)
    bench.sender.refuse(ORDERS, error)
    task.rounds.append([outgoing("orders", 1), outgoing("bills", 1)])
    await until(lambda: not task.rounds)
    await until(lambda: len(bench.sender.sent) == 3)
    assert bench.running.status.state.value == "RUNNING"
    seen = bench.meter.node_snapshot("me").partitions
    assert [(it.source, it.cause) for it in seen if it.state == "FAILED"] == [(ORDERS, str(error))]
    await bench.running.stop(1.0)
    assert bench.task.given_up == [ORDERS]
    assert bench.position("orders") is None
    assert bench.position("bills") == b'{"offset":1}'
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "raise it, then: mm2py flow restart 'A->B' --topic orders" in errors[0]
    assert errors[0].count("flow restart") == 1


async def test_the_task_fails_when_all_its_partitions_failed() -> None:
    bench = Bench(FakeTask([outgoing("orders", 0), outgoing("bills", 0)]), acknowledge=False)
    await bench.begin(lambda: len(bench.sender.waiting) == 2)
    bench.sender.refuse(ORDERS, FatalError("no"))
    assert bench.running.status.state.value == "RUNNING"
    bench.sender.refuse(BILLS, FatalError("no"))
    await until(lambda: bench.running.status.state.value == "FAILED")
    assert "all 2 partitions" in str(bench.running.status.cause)
    await bench.running.stop(1.0)


async def test_a_partition_the_task_reports_failed_still_delivers_what_it_handed_out() -> None:
    task = FakeTask([outgoing("orders", 0), outgoing("bills", 0)])
    bench = Bench(task, acknowledge=False)
    await bench.begin(lambda: len(bench.sender.waiting) == 2)
    bench.context.partition_state(ORDERS, PartitionState.FAILED, FatalError("corrupt"))
    await bench.running.stop(1.0)
    assert bench.position("orders") == b'{"offset":0}'


@pytest.mark.parametrize(("fail_on_gap", "given_up"), [(False, []), (True, [ORDERS])])
async def test_a_gap_is_logged_with_its_range_and_stops_the_partition_only_if_asked(
    caplog: pytest.LogCaptureFixture, *, fail_on_gap: bool, given_up: list[TopicPartition]
) -> None:
    bench = Bench(FakeTask([outgoing("orders", 0), outgoing("bills", 0)]), fail_on_gap=fail_on_gap)
    await bench.begin(lambda: len(bench.sender.sent) == 2)
    bench.context.report_gap(SourceGap(ORDERS, 1, 99, "retention", "log start is 100"))
    await bench.running.stop(1.0)
    assert bench.task.given_up == given_up
    assert "first_offset=1 last_offset=99 offsets=99 cause=retention" in caplog.text


async def test_a_task_that_does_not_stop_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(FakeTask):
        async def poll(self, budget_bytes: int) -> list[Outgoing]:
            self.polls += 1
            await asyncio.Event().wait()
            return []

    bench = Bench(Stuck())
    await bench.begin(lambda: bench.task.polls == 1)
    await bench.running.stop(0.01)
    assert (bench.task.stopped, bench.sender.closed) == (1, 1)
    assert "did not stop in time" in caplog.text


@pytest.mark.parametrize("deaf", [False, True])
async def test_what_is_cut_off_sends_nothing_more_though_its_task_does_not_end(
    monkeypatch: pytest.MonkeyPatch, *, deaf: bool
) -> None:
    ending = asyncio.Event()

    class Stuck(FakeTask):
        async def stop(self) -> None:
            with suppress(asyncio.CancelledError if deaf else ZeroDivisionError):
                await ending.wait()
            await ending.wait()

    monkeypatch.setattr("mm2py.runtime.tasks.worker_task.CLOSE_TIMEOUT_S", 0.01)
    bench = Bench(Stuck())
    await bench.begin(lambda: bench.task.polls > 0)
    await bench.running.stop(0.01)
    assert bench.sender.closed == 1
    ending.set()
    await until(lambda: bench.statuses.words[-1] == "UNASSIGNED")


async def test_without_a_permit_a_task_polls_sends_and_commits_nothing() -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 3)]))
    await bench.begin(lambda: bench.position("orders") == b'{"offset":2}')
    bench.permit.revoke()
    sleeps = len(bench.clock.sleeps)
    await until(lambda: len(bench.clock.sleeps) > sleeps + 3)
    polls = bench.task.polls
    bench.task.rounds.append([outgoing("orders", 3, 2)])
    bench.committer.acknowledged(ORDERS, 3)
    await until(lambda: len(bench.clock.sleeps) > sleeps + 8)
    assert bench.task.polls == polls
    assert bench.position("orders") == b'{"offset":2}'
    bench.permit.grant(inf)
    await until(lambda: bench.position("orders") == b'{"offset":4}')
    assert bench.statuses.words == ["RUNNING"]
    await bench.running.stop(1.0)


async def test_a_task_that_ends_without_a_permit_commits_nothing() -> None:
    bench = Bench(FakeTask([outgoing("orders", 0, 3)], [outgoing("orders", 3, 2)]))
    bench.sender.acknowledge = False
    await bench.begin(lambda: len(bench.sender.waiting) == 2)
    bench.sender.acknowledge_first()
    bench.permit.revoke()
    await bench.running.stop(1.0)
    assert bench.store.writes == []
    assert len(bench.sender.waiting) == 1


async def test_a_log_that_a_late_write_moved_fails_the_task() -> None:
    task = FakeTask([outgoing("orders", 100, 10)])
    bench = Bench(task, acknowledge=False)
    await bench.begin(lambda: bench.sender.waiting)
    bench.sender.refuse(ORDERS, TargetMovedError("a late write of an earlier task"))
    await until(lambda: bench.running.status.state.value == "FAILED")
    assert isinstance(bench.running.status.cause, TargetMovedError)
    assert bench.events == []
    assert bench.position("orders") is None


async def test_a_task_that_waits_for_the_fencing_of_its_predecessors_stops_at_once() -> None:
    """Fencing goes through the herder's queue, which waits while the herder stops this task."""
    asked = asyncio.Event()

    async def fence() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def verify() -> None:
        """Nothing changed."""

    async with FakeBroker(topics={"offsets": 1}) as broker:
        settings = ConnectionSettings(bootstrap_servers=broker.bootstrap_servers)
        cluster = Cluster(settings, alias="B")
        transactions = TaskTransactions(
            cluster,
            ProducerSettings(connection=settings),
            "A-mm2-MirrorSourceConnector-0",
            store=FakeStore(),
            topic="offsets",
            fence=fence,
            verify=verify,
            interval_s=0.1,
            clock=SYSTEM_CLOCK,
        )
        bench = Bench(FakeTask(), transactions=transactions)
        assert bench.context.commit_s == 0.1, "the task knows how long a transaction stays open"
        bench.running.start()
        await asyncio.wait_for(asked.wait(), 10)
        await asyncio.wait_for(bench.running.stop(inf), 10)
        assert not bench.statuses.words, "it never ran"
        await cluster.close()


# ---- acknowledgements, gathered


T, U = TopicPartition("t", 0), TopicPartition("u", 1)
A_T, A_U = TopicPartition("A.t", 0), TopicPartition("A.u", 1)


async def test_batches_without_a_hole_become_one_run_and_a_spliced_one_stays_apart() -> None:
    reports: list[Delivery] = []
    arrivals = Arrivals(reports.append, now_ms=count(101).__next__)
    arrivals.add(T, A_T, a_batch(10, 5, size=100), 3)
    arrivals.add(U, A_U, a_batch(0, 1, size=7), 0)
    arrivals.add(T, A_T, a_batch(15, 2, size=50), 8)
    arrivals.add(T, A_T, a_batch(20, 1, size=1), 10)  # a hole at the source
    arrivals.add(T, A_T, a_batch(21, 4, size=1), 12)  # a hole at the target
    assert reports == []
    arrivals.flush()
    assert reports == [
        Delivery(T, A_T, (Run(10, 7, 3), Run(20, 1, 10), Run(21, 4, 12)), 152, 5_021, at_ms=105),
        Delivery(U, A_U, (Run(0, 1, 0),), 7, 5_000, at_ms=102),
    ]
    arrivals.flush()
    assert len(reports) == 2, "each is reported once"
    arrivals.add(T, A_T, a_batch(0, 4, runs=((0, 2), (7, 2))), 0)
    arrivals.add(T, A_T, a_batch(9, 1), 4)
    arrivals.flush()
    assert reports[2].runs == (Run(0, 2, 0), Run(7, 3, 2))
    # The broker did not say where: of none of the runs that is known.
    arrivals.add(T, A_T, a_batch(0, 4, runs=((0, 2), (7, 2))), -1)
    arrivals.add(T, A_T, a_batch(9, 1), 4)
    arrivals.flush()
    assert reports[3].runs == (Run(0, 2, -1), Run(7, 2, -1), Run(9, 1, 4))


async def test_nobody_has_to_ask_and_nothing_is_reported_after_the_end() -> None:
    reports: list[Delivery] = []
    reported = asyncio.Event()

    def report(delivery: Delivery) -> None:
        reports.append(delivery)
        reported.set()

    arrivals = Arrivals(report)
    arrivals.add(T, A_T, a_batch(0, 1), 0)
    async with asyncio.timeout(90):
        await reported.wait()
    arrivals.add(T, A_T, a_batch(1, 1), 1)
    arrivals.close()
    arrivals.flush()
    assert len(reports) == 1


async def test_records_without_a_copy_are_reported_behind_what_came_before_them() -> None:
    reports: list[Delivery] = []
    arrivals = Arrivals(reports.append)
    arrivals.add(T, A_T, a_batch(10, 2, size=9), 3)
    arrivals.passes(T, A_T, 4, 15)
    arrivals.passes(U, A_U, 1, 0)
    arrivals.add(T, A_T, a_batch(16, 1, size=8), 5)
    arrivals.flush()
    assert reports == [
        Delivery(T, A_T, (Run(10, 2, 3),), 9, 5_010, passed=4, through=15),
        Delivery(U, A_U, (), 0, -1, passed=1, through=0),
        Delivery(T, A_T, (Run(16, 1, 5),), 8, 5_016),
    ]
    assert [it.last for it in reports] == [15, 0, 16]


# ---- states


ENDS_A_FAILURE = {State.UNASSIGNED, State.DESTROYED, State.RESTARTING}


def test_a_failed_task_stays_failed_with_its_first_cause() -> None:
    statuses = Statuses()
    life = Lifecycle("task", statuses)
    first = FatalError("first")
    assert life.to(State.RUNNING)
    assert life.to(State.FAILED, first)
    assert not life.to(State.FAILED, FatalError("second"))
    assert not life.to(State.RUNNING)
    assert life.status.cause is first
    assert statuses.words == ["RUNNING", "FAILED"]


@pytest.mark.parametrize("state", list(State))
def test_only_a_restart_or_giving_up_ends_a_failure_and_only_a_connector_is_stopped(
    state: State,
) -> None:
    connector, task = (Lifecycle(what, Statuses()) for what in ("connector", "task"))
    for life in (connector, task):
        life.to(State.RUNNING)
        assert life.to(State.STOPPED) is (life is connector)
    task.to(State.FAILED, FatalError("x"))
    assert task.to(state) is (state in ENDS_A_FAILURE)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(State, State)))
def test_destroyed_is_the_end_and_nothing_repeats(first: State, second: State) -> None:
    life = Lifecycle("connector", Statuses())
    moved = life.to(first)
    assert moved is (first is not State.UNASSIGNED)
    if first is State.DESTROYED or first is second:
        assert not life.to(second)
