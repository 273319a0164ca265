"""Boundaries, isolation and the offset topic of tasks with exactly-once support."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from mm2py.api.context import EventKind, PartitionState, SourceGap
from mm2py.client.connect.cluster import Cluster as Brokers
from mm2py.clock import SYSTEM_CLOCK, wait_or_stop
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.config.framework import LossPolicies
from mm2py.errors import (
    ConnectionFailedError,
    FatalError,
    FatalServerError,
    PartitionError,
    ProtocolError,
    RetriableError,
)
from mm2py.mirror.ledger import KnownEvents
from mm2py.protocol import error_codes as codes
from mm2py.runtime.patience import LONGEST_PAUSE_S, Patience
from mm2py.runtime.tasks.own_offsets import OwnTopicOffsets
from mm2py.runtime.tasks.task_context import WorkerTaskContext
from mm2py.runtime.tasks.task_transactions import TaskTransactions, committed_reads
from mm2py.testing.waiting import until
from mm2py.types import TaskId, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.runtime.herder_fakes import Cluster, Node
from tests.unit.runtime.runtime_fakes import EagerClock, Events, FakeStore, a_context


def test_a_mirrors_source_is_read_committed_unless_the_user_says_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    alias = {"source.cluster.alias": "A"}
    key = "source.consumer.isolation.level"
    assert committed_reads(alias)[key] == "read_committed"
    for name in ("consumer.isolation.level", key):
        assert committed_reads({**alias, name: "read_committed"}) == {
            **alias,
            name: "read_committed",
        }
    assert not caplog.records
    assert committed_reads({**alias, key: "read_uncommitted"})[key] == "read_uncommitted"
    assert "records of aborted transactions" in caplog.text
    assert committed_reads({"file": "x"}) == {"file": "x"}, (
        "a third party's task reads what it reads"
    )


# ---- fencing


C0 = TaskId("c", 0)


async def started(cluster: Cluster, name: str = "n1") -> Node:
    node = cluster.node(name, exactly_once_source_support="enabled").start()
    await until(lambda: node.membership.generation > 0)
    return node


async def fenced(*nodes: Node, task: TaskId = C0) -> None:
    """Wait as a task does that is to start, on each of these workers."""
    waits = [asyncio.ensure_future(node.guards[-1].fence(task)) for node in nodes]
    while not all(each.done() for each in waits):
        await nodes[0].cluster.clock.advance(0.1)
    for each in waits:
        each.result()


async def two_with_fenced_tasks(cluster: Cluster) -> tuple[Node, Node]:
    """Return a leader and another worker, a task on each."""
    leader, other = await started(cluster), await started(cluster, "n2")
    await until(lambda: len(cluster.group.members) == 2 and leader.membership.is_leader)
    await leader.put()
    await until(lambda: len(cluster.running()) == 2)
    await fenced(leader, other)
    return leader, other


async def test_a_round_fences_every_producer_of_the_tasks_before_once_all_have_stopped(
    cluster: Cluster,
) -> None:
    """Else a task that is about to stop in order loses its open transaction.

    The leader fences without a request; every worker reads its record in the config topic.
    """
    leader, other = await two_with_fenced_tasks(cluster)
    gate, stop_task = asyncio.Event(), other.host.stop_task

    async def held_up(task: TaskId, timeout_s: float) -> None:
        await gate.wait()
        await stop_task(task, timeout_s)

    other.host.stop_task = held_up  # type: ignore[method-assign]  # a slow stop
    await leader.put(work="a b c")
    await until(lambda: "c" in leader.config.snapshot().pending_fencing)
    await cluster.clock.advance(5)
    assert leader.fenced == []
    gate.set()
    await until(lambda: len(cluster.running()) == 3)
    await fenced(leader, other)
    assert (leader.fenced, other.fenced) == ([("A-mm2-c-0", "A-mm2-c-1")], [])
    assert other.config.snapshot().task_count_records["c"] == 3


async def test_new_task_configs_during_a_round_need_a_round_of_their_own(cluster: Cluster) -> None:
    node = await cluster.with_tasks(exactly_once_source_support="enabled")
    await fenced(node)
    node.fence_gate = asyncio.Event()
    await node.put(work="a b c")
    await until(lambda: bool(node.fenced))
    generation = node.config.snapshot().generations["c"]
    await node.put(work="x y z w")
    await until(lambda: node.config.snapshot().generations["c"] > generation)
    waiting = asyncio.ensure_future(node.guards[-1].fence(C0))
    node.fence_gate.set()
    await until(lambda: node.config.snapshot().task_count_records["c"] == 4)
    assert node.fenced == [("A-mm2-c-0", "A-mm2-c-1")] * 2, "no record for 3 tasks was written"
    await node.cluster.clock.advance(0.1)
    await waiting


async def test_a_task_of_replaced_configs_does_not_start(cluster: Cluster) -> None:
    node = await cluster.with_tasks(exactly_once_source_support="enabled")
    guard, generation = node.guards[-1], node.config.snapshot().generations["c"]
    await guard.verify(C0, generation)
    with pytest.raises(RetriableError, match="already been revoked"):
        await guard.verify(TaskId("c", 7), generation)
    with pytest.raises(RetriableError, match="already generated a new set of task configs"):
        await guard.verify(C0, generation - 1)


async def test_a_round_that_fails_is_shown_and_made_again(cluster: Cluster) -> None:
    leader, other = await two_with_fenced_tasks(cluster)
    leader.fence_errors = [FatalServerError(53, "NOT_AUTHORIZED", remedy="grant it")] * 40
    await leader.put(work="a b c")
    await until(lambda: len(leader.fence_errors) < 40)
    with pytest.raises(FatalServerError, match="NOT_AUTHORIZED"):
        await fenced(leader)
    with pytest.raises(RetriableError, match="the leader of the group at http://n1/ has not done"):
        await fenced(other)
    shown = "c: producers of earlier tasks are not fenced"
    assert leader.herder.node_snapshot().problems == {shown: "NOT_AUTHORIZED (53); grant it"}
    leader.fence_errors = []
    await cluster.clock.advance(2)
    await fenced(leader, other)
    assert leader.herder.node_snapshot().problems == {}


# ---- events


ORDERS = TopicPartition("orders", 0)


def seen(events: Events) -> list[tuple[EventKind, int, int, str]]:
    return [(e.kind, e.first_offset, e.last_offset, e.policy) for e in events.reported]


def watched(policies: LossPolicies | None = None) -> tuple[Events, WorkerTaskContext]:
    events = Events()
    return events, a_context(events, policies)


def refusal(offset: int, cause: Exception | None = None) -> PartitionError:
    error = PartitionError("no", topic="orders", partition=0, offset=offset)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "policies", "policy"),
    [
        ("retention", LossPolicies(), "gap.policy=continue"),
        ("retention", LossPolicies(gap_policy="fail"), "gap.policy=fail"),
        ("truncation", LossPolicies(), "gap.policy=continue"),
        ("recreated", LossPolicies(), "recreate.policy=continue"),
        ("recreated", LossPolicies(recreate_policy="stop"), "recreate.policy=stop"),
        ("recreated", LossPolicies(gap_policy="fail", recreate_policy="stop"), "gap.policy=fail"),
    ],
)
def test_a_gap_is_an_event_with_its_policy(cause: str, policies: LossPolicies, policy: str) -> None:
    events, context = watched(policies)
    context.report_gap(SourceGap(ORDERS, 5, 9, cause, "detail"))
    assert seen(events) == [(EventKind(cause), 5, 9, policy)]
    assert events.reported[0].task == "MirrorSourceConnector-0"
    assert events.reported[0].cause == "detail"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (codes.server_error(codes.MESSAGE_TOO_LARGE), EventKind.TOO_LARGE),
        (codes.server_error(codes.INVALID_RECORD), EventKind.REFUSED),
        (ProtocolError("wrong CRC"), EventKind.POISONED),
        (None, EventKind.REFUSED),
    ],
)
def test_a_failed_partition_is_an_event_of_its_offset(
    cause: Exception | None, kind: EventKind
) -> None:
    events, context = watched()
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(7, cause))
    assert seen(events) == [(kind, 7, 7, "partition.failure.policy=isolate")]


def test_a_failure_without_an_offset_is_no_event_unless_the_target_refused() -> None:
    events, context = watched(LossPolicies(partition_failure_policy="fail"))
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(-1))
    assert seen(events) == []
    context.report_failure(ORDERS, FatalError("no"))
    assert seen(events) == [(EventKind.REFUSED, -1, -1, "partition.failure.policy=fail")]


def test_a_partition_that_a_gap_stops_is_one_event() -> None:
    events, context = watched(LossPolicies(recreate_policy="stop"))
    context.report_gap(SourceGap(ORDERS, 5, 4, "recreated", "new topic id"))
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(5))
    assert [kind for kind, *_ in seen(events)] == [EventKind.RECREATED]


def test_a_doubt_is_an_event_without_a_policy(caplog: pytest.LogCaptureFixture) -> None:
    events, context = watched()
    for _ in range(2):
        context.report_doubt(ORDERS, 5, 9, FatalError("no Read"))
    assert seen(events)[0] == (EventKind.MAY_BE_DOUBLED, 5, 9, "")
    assert caplog.text.count("records may be doubled") == 1


def test_a_task_whose_records_are_no_copies_has_no_ledger() -> None:
    events, context = watched()
    context.without_ledger()
    context.report_failure(ORDERS, refusal(7))
    assert seen(events) == []


@pytest.mark.parametrize("cause", ["recreated", "truncation"])
def test_a_gap_without_records_is_no_error_and_speaks_of_no_loss(
    caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    context = a_context(Events())
    context.report_gap(SourceGap(ORDERS, 5, 4, cause, "new topic id"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "is lost" not in record.getMessage()
    assert f"offsets=0 cause={cause}" in record.getMessage()


def recreated(first: int, topic_id: bytes) -> SourceGap:
    return SourceGap(ORDERS, first, first - 1, "recreated", "", topic_id)


def test_an_incarnation_that_ends_before_its_first_position_is_stored_is_one_event() -> None:
    """Its number comes back, and a task that starts anew finds its end again with the stored position."""
    events, context = watched()
    context.report_gap(recreated(10, b"second"))
    context.maps.of(ORDERS).add(0, 30, 10)
    context.report_gap(recreated(30, b"third"))
    assert [event.first_offset for event in events.written] == [10, 30]
    again = a_context(events)
    again.report_gap(recreated(30, b"third"))
    assert [event.first_offset for event in events.written] == [10, 30]
    again.maps.of(ORDERS).add(0, 5, 40)
    again.note_topic_id(ORDERS, b"third")
    again.report_gap(recreated(5, b"fourth"))
    assert [event.first_offset for event in events.written] == [10, 30, 5]


def test_what_is_copied_of_a_partition_that_returns_is_no_event() -> None:
    events, context = watched()
    context.report_gap(recreated(10, b"second"))
    context.report_gap(SourceGap(ORDERS, 0, -1, "recreated", "", b"third", returns=True))
    assert context.maps.of(ORDERS).source_id == b"third"
    assert [event.first_offset for event in events.written] == [10]


def test_an_incarnation_of_which_nothing_was_copied_is_not_noted() -> None:
    events, context = watched()
    context.report_gap(recreated(10, b"second"))
    context.report_gap(recreated(0, b"third"))
    assert [event.first_offset for event in events.written] == [10]


def test_what_was_read_of_a_recreated_topic_before_a_position_was_stored_is_named() -> None:
    events, context = watched()
    context.report_incarnation(ORDERS, b"first")
    context.maps.of(ORDERS).anchor(0, 7)
    context.report_gap(SourceGap(ORDERS, 30, 39, "recreated", "", b"second"))
    written, events.known = events.written, KnownEvents()
    for event in written:  # the task is killed, and its successor reads the ledger and the map
        events.known.note(event)
    again = a_context(events)
    again.maps.identify(ORDERS, b"first")
    again.maps.of(ORDERS).anchor(0, 7)
    again.report_incarnation(ORDERS, b"second")
    ranges = [(event.first_offset, event.last_offset) for event in events.written]
    assert ranges == [(30, 39), (0, 39)]
    again.report_incarnation(ORDERS, b"second")
    assert len(events.written) == 2


# ---- a connector's own offset topic


class OwnTopic(FakeStore):
    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        return await self.inner.entries(connector)

    async def close(self) -> None:
        await self.inner.close()


def ignored(*_: object) -> None:
    """Nothing is sent."""


async def test_no_commit_waits_for_the_copy_of_positions_in_the_workers_topic() -> None:
    worker = FakeStore()
    worker.hangs = True

    async def allowed() -> None:
        """No task was before."""

    async with FakeBroker(topics={"own": 1}, versions={0: (3, 11)}) as broker:
        settings = ConnectionSettings(bootstrap_servers=broker.bootstrap_servers)
        parts = TaskTransactions(
            Brokers(settings, alias="B"),
            ProducerSettings(connection=settings),
            "connect-c-0",
            store=worker,
            topic="own",
            own=OwnTopicOffsets(OwnTopic(), worker),
            fence=allowed,
            verify=allowed,
            interval_s=0.1,
            clock=SYSTEM_CLOCK,
        )
        sender = parts.sender(ignored, ignored, ignored, ignored, None)
        await parts.start()
        for position in (b"1", b"2", b"3"):
            await parts.transactions.settle()
            await asyncio.wait_for(parts.set({b"k": position}), 10)
        assert len(broker.cluster.transactions.committed) == 3
        assert worker.writes == []
        await sender.close()
        await parts.close()


KEY, OTHER = b'["c",{"partition":0}]', b'["c",{"partition":1}]'


async def test_without_transactions_positions_are_in_the_own_topic_first_then_copied() -> None:
    own, worker = OwnTopic(), FakeStore()
    await worker.set({KEY: b"former", OTHER: b"7"})
    offsets = OwnTopicOffsets(own, worker)
    assert await offsets.get([KEY, OTHER]) == [b"former", b"7"]
    own.errors.append(RetriableError("away"))
    with pytest.raises(RetriableError):
        await offsets.set({KEY: b"never"})
    await offsets.set({KEY: b"1"})
    await worker.set({KEY: b"of a run without the own topic"})
    assert await offsets.get([KEY, OTHER]) == [b"1", b"7"]
    await offsets.close()
    assert worker.writes[-1] == own.written() == {KEY: b"1"}


# ---- patience


AWAY = ConnectionFailedError("connection refused")


async def test_pauses_double_up_to_a_limit_start_afresh_after_success_and_end_with_a_stop() -> None:
    clock = EagerClock()
    stop = asyncio.Event()
    patience = Patience(clock, "target cluster B", stop)
    for _ in range(10):
        assert await patience.wait(AWAY)
    assert clock.sleeps[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(clock.sleeps) == LONGEST_PAUSE_S
    patience.succeeded()
    await patience.wait(AWAY)
    assert clock.sleeps[-1] == 0.1
    paused = len(clock.sleeps)
    stop.set()
    assert await wait_or_stop(clock, 60, stop)
    assert not await patience.wait(AWAY)
    assert len(clock.sleeps) == paused


async def test_a_wait_is_logged_at_once_and_every_ten_s(caplog: pytest.LogCaptureFixture) -> None:
    clock = EagerClock()
    caplog.set_level(logging.INFO)
    waits: dict[str, str] = {}
    what = "target cluster B at b1:9092"
    patience = Patience(clock, what, asyncio.Event(), waits=waits)
    until = clock.monotonic() + 35
    while clock.monotonic() < until:
        await patience.wait(AWAY)
    assert waits[what].startswith(f"waits for {what}, 3")
    assert waits[what].endswith(" s now: connection refused")
    patience.succeeded()
    assert not waits
    lines = [record.getMessage() for record in caplog.records]
    assert 3 <= len([line for line in lines if line.startswith("waiting")]) <= 4
    assert "target cluster B at b1:9092" in lines[0]
    assert "connection refused" in lines[0]
    assert lines[-1].startswith("back again")
