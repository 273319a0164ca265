"""What a task's context makes of gaps, failures and doubts: kind, range, policy."""

from collections.abc import Collection, Mapping

import pytest

from mm2py.api.context import EventKind, EventSink, LossEvent, PartitionState, SourceGap
from mm2py.errors import FatalError, PartitionError, ProtocolError
from mm2py.mirror.ledger import KnownEvents
from mm2py.observability.metrics import Metrics
from mm2py.protocol import error_codes as codes
from mm2py.runtime.tasks.task_context import LossPolicies, WorkerTaskContext
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock, FakeStore

ORDERS = TopicPartition("orders", 0)
FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


class Events(EventSink):
    def __init__(self) -> None:
        self.reported: list[LossEvent] = []
        self.known = KnownEvents()
        self.written: list[LossEvent] = []

    def report(self, event: LossEvent) -> bool:
        new = event not in self.reported
        self.written += self.known.take(event)
        self.reported.append(event)
        return new

    def unwritten(self) -> Collection[TopicPartition]:
        return ()

    async def flush(self, timeout_s: float) -> bool:
        return True

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return {}

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.known.copied(partition)

    def seen(self) -> list[tuple[EventKind, int, int, str]]:
        return [(e.kind, e.first_offset, e.last_offset, e.policy) for e in self.reported]


def a_context(events: Events, policies: LossPolicies | None = None) -> WorkerTaskContext:
    clock = EagerClock()
    return WorkerTaskContext(
        "MirrorSourceConnector",
        "MirrorSourceConnector-0",
        store=FakeStore(),
        meter=Metrics(clock).flow(FLOW),
        clock=clock,
        events=events,
        policies=policies,
    )


def refusal(offset: int, cause: Exception | None = None) -> PartitionError:
    error = PartitionError("no", topic="orders", partition=0, offset=offset)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "policies", "policy"),
    [
        ("retention", LossPolicies(), "gap.policy=continue"),
        ("retention", LossPolicies(gap="fail"), "gap.policy=fail"),
        ("truncation", LossPolicies(), "gap.policy=continue"),
        ("recreated", LossPolicies(), "recreate.policy=continue"),
        ("recreated", LossPolicies(recreate="stop"), "recreate.policy=stop"),
        ("recreated", LossPolicies(gap="fail", recreate="stop"), "gap.policy=fail"),
    ],
)
def test_a_gap_is_an_event_with_the_policy_that_decides(
    cause: str, policies: LossPolicies, policy: str
) -> None:
    events = Events()
    a_context(events, policies).report_gap(SourceGap(ORDERS, 5, 9, cause, "detail"))
    assert events.seen() == [(EventKind(cause), 5, 9, policy)]
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
def test_a_failed_partition_is_an_event_at_its_offset(
    cause: Exception | None, kind: EventKind
) -> None:
    events = Events()
    context = a_context(events)
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(7, cause))
    assert events.seen() == [(kind, 7, 7, "partition.failure.policy=isolate")]


def test_a_failure_without_an_offset_is_no_event_unless_the_target_refused() -> None:
    events = Events()
    context = a_context(events, LossPolicies(partition_failure="fail"))
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(-1))
    assert events.seen() == []
    context.report_failure(ORDERS, FatalError("no"))
    assert events.seen() == [(EventKind.REFUSED, -1, -1, "partition.failure.policy=fail")]


def test_a_partition_that_a_gap_stops_is_one_event() -> None:
    events = Events()
    context = a_context(events, LossPolicies(recreate="stop"))
    context.report_gap(SourceGap(ORDERS, 5, 4, "recreated", "new topic id"))
    context.partition_state(ORDERS, PartitionState.FAILED, refusal(5))
    assert [kind for kind, *_ in events.seen()] == [EventKind.RECREATED]


def test_a_gap_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    context = a_context(Events())
    for _ in range(3):
        context.report_gap(SourceGap(ORDERS, 5, 9, "retention", "log start is 10"))
    assert caplog.text.count("first_offset=5 last_offset=9 offsets=5 cause=retention") == 1


def test_a_doubt_is_an_event_without_a_policy(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    context = a_context(events)
    for _ in range(2):
        context.report_doubt(ORDERS, 5, 9, FatalError("no Read"))
    assert events.seen()[0] == (EventKind.MAY_BE_DOUBLED, 5, 9, "")
    assert caplog.text.count("records may be doubled") == 1


def test_a_task_whose_records_are_no_copies_has_no_ledger() -> None:
    events = Events()
    context = a_context(events)
    context.without_ledger()
    context.report_failure(ORDERS, refusal(7))
    assert events.seen() == []


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
    events = Events()
    context = a_context(events)
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


def test_an_incarnation_of_which_nothing_was_copied_is_not_noted() -> None:
    events = Events()
    context = a_context(events)
    context.report_gap(recreated(10, b"second"))
    context.report_gap(recreated(0, b"third"))
    assert [event.first_offset for event in events.written] == [10]
