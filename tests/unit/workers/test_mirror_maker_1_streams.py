"""A stream of MirrorMaker 1 over a scripted group: which positions it commits, and when."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import pytest
from confluent_kafka import Message

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.errors import FatalError, RetriableError
from mm2py.runtime.tasks.sink_loop import AssignmentListener
from mm2py.runtime.tasks.sink_places import SinkPlaces, StoredPosition
from mm2py.types import EARLIEST, TopicPartition
from mm2py_connectors.record_sender import Idle, RecordSender, SentRecord
from mm2py_migrate.mirror_maker_1 import stream as stream_module
from mm2py_migrate.mirror_maker_1.stream import Handle, Stream
from tests.unit.workers.consumer_fakes import NoSource, Read

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


Step = Callable[["Group"], Sequence[Read]]


class Group:
    """A ``ConfluentConsumer`` whose polls are steps of the test; behind the last one the stream is stopped."""

    now: "Group"

    def __init__(
        self, _values: object, _batch: int, listener: AssignmentListener, **_more: object
    ) -> None:
        Group.now, self.listener = self, listener
        self.steps: list[Step] = []
        self.while_idle: list[Step] = []
        self.reaches: dict[TopicPartition, int] = {}
        self.answers: list[Mapping[TopicPartition, str] | Exception] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_ids: list[bytes] = []
        self.paused: set[TopicPartition] = set()
        self.resumed: list[TopicPartition] = []
        self.topic_id = bytes(15) + b"1"
        self.stored: dict[TopicPartition, StoredPosition] = {}
        self.seeks: list[tuple[TopicPartition, int]] = []
        self.at_end: Callable[[], None] = lambda: None
        self.log_start = self.lag = 0
        self.denied: dict[str, str] = {}

    def subscribe(self, topics: Sequence[str]) -> None:
        assert list(topics) == ["t"]

    def messages(self, timeout_s: float) -> list[Message]:
        steps = self.steps if timeout_s else self.while_idle
        if not steps:
            if timeout_s:
                self.at_end()
            return []
        return cast("list[Message]", list(steps.pop(0)(self)))

    def reached(self) -> Mapping[TopicPartition, int]:
        ends, self.reaches = self.reaches, {}
        return ends

    def refused(self) -> Mapping[str, str]:
        return self.denied

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        return dict.fromkeys(topics, self.topic_id)

    def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredPosition]:
        return {it: at for it, at in self.stored.items() if it in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.seeks.append((partition, offset))

    def start(self, _partition: TopicPartition) -> int:
        return self.log_start

    def commit(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, str]:
        self.commit_ids += [topic_ids[it] for it in positions]
        answer = self.answers.pop(0) if self.answers else dict[TopicPartition, str]()
        if isinstance(answer, Exception):
            raise answer
        self.commits.append({it: at for it, at in positions.items() if it not in answer})
        return answer

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.resumed += partitions
        self.paused.difference_update(partitions)

    def end(self, _partition: TopicPartition) -> int:
        return 10

    def ends(self, _partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {}

    def close(self) -> None: ...


class Target:
    """A sender whose next flushes wait for the target that often."""

    def __init__(self) -> None:
        self.sent: list[tuple[TopicPartition, int]] = []
        self.waits = self.waits_to_send = self.waits_to_hold = 0
        self.given_up: list[TopicPartition] = []
        self.failure: Exception | None = None

    @contextmanager
    def hold(self, idle: Idle) -> Generator[None]:
        waits, self.waits_to_hold = self.waits_to_hold, 0
        for _ in range(waits):
            idle()
        yield

    def forward(self, message: Read, idle: Idle) -> None:
        waits, self.waits_to_send = self.waits_to_send, 0
        for _ in range(waits):
            idle()
        self.sent.append((message.place, message.offset()))

    def take(self, _partitions: Collection[TopicPartition], reader: object) -> None:
        self.reader = reader

    def send(self, sent: SentRecord, idle: Idle) -> None:
        topic, partition, offset = sent.place
        self.forward(Read(TopicPartition(topic, partition), offset), idle)

    def give_up(self, partitions: Collection[TopicPartition], reader: object) -> None:
        assert reader is self.reader
        self.given_up += partitions

    def serve(self, _idle: Idle) -> None: ...

    def flush(self, idle: Idle) -> None:
        if self.failure is not None:
            raise self.failure
        waits, self.waits = self.waits, 0
        for _ in range(waits):
            idle()


def steps(*reads: Read, **ends: int) -> Step:
    """Return a poll with these records and ends of partitions (``p0=7``)."""

    def step(group: Group) -> Sequence[Read]:
        group.reaches |= {TopicPartition("t", int(name[1:])): end for name, end in ends.items()}
        return reads

    return step


def given(*places: TopicPartition) -> Step:
    def step(group: Group) -> Sequence[Read]:
        group.listener.assigned(places)
        return ()

    return step


def taken(*places: TopicPartition) -> Step:
    def step(group: Group) -> Sequence[Read]:
        group.listener.revoked(places)
        return ()

    return step


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(stream_module, "ConfluentConsumer", Group)
    monkeypatch.setattr(stream_module, "COMMIT_RETRY_S", 0.0)
    monkeypatch.setattr(stream_module, "LAG_S", 0.0)
    return Target()


def run(
    target: Target,
    *script: Step,
    idle: Sequence[Step] = (),
    answers: Sequence[Mapping[TopicPartition, str] | Exception] = (),
    commit_s: float = 0.0,
    handle: Handle | None = None,
    cause: Exception | None = None,
) -> Group:
    """Run a stream through the script to its orderly end."""
    causes: list[BaseException | None] = []
    stream = Stream(
        {"client.id": "s"},
        cast("RecordSender", target),
        handle,
        listener=None,
        batch=10,
        commit_s=commit_s,
        source=NoSource(),
        ended=causes.append,
    )
    group = Group.now
    group.steps, group.while_idle, group.answers = list(script), list(idle), list(answers)
    group.at_end = stream.stop
    stream.subscribe(["t"])
    stream.start()
    assert stream.join(90)
    assert repr(causes) == repr([cause])
    group.lag = stream.lag
    return group


def created_again(place: TopicPartition) -> Step:
    """Return a poll in which the topic is deleted and created again, and the partition comes back to the member."""

    def step(group: Group) -> Sequence[Read]:
        group.listener.revoked([place])
        group.topic_id = bytes(15) + b"2"
        group.stored[place] = StoredPosition(6, bytes(15) + b"1")
        group.listener.assigned([place])
        return []

    return step


def test_a_topic_created_again_is_read_from_its_beginning(target: Target) -> None:
    group = run(target, given(P0), steps(Read(P0, 5)), created_again(P0), steps(Read(P0, 0)))
    assert group.seeks == [(P0, EARLIEST)]
    assert target.sent == [(P0, 5), (P0, 0)]
    assert group.commits == [{P0: 6}, {P0: 1}]
    assert group.paused == set()


def test_what_was_read_while_the_target_was_waited_for_is_no_position_in_the_topic_that_followed(
    target: Target,
) -> None:
    def created_again_meanwhile(group: Group) -> Sequence[Read]:
        group.topic_id = bytes(15) + b"2"
        return [Read(P0, 6)]

    target.waits_to_send = 1
    group = run(
        target, given(P0), steps(Read(P0, 5)), steps(Read(P0, 0)), idle=[created_again_meanwhile]
    )
    assert group.seeks == [(P0, EARLIEST)]
    assert target.sent == [(P0, 5), (P0, 6), (P0, 0)]
    assert group.commits == [{P0: 6}, {P0: 7}, {P0: 1}]
    assert [it[-1:] for it in group.commit_ids] == [b"1", b"1", b"2"]


def test_a_log_that_goes_back_is_not_passed_on_before_its_topic_is_known(target: Target) -> None:
    group = run(target, given(P0), steps(Read(P0, 5)), steps(Read(P0, 0)), steps(Read(P0, 0)))
    assert group.seeks == [(P0, 0)]
    assert target.sent == [(P0, 5), (P0, 0)]


def expires(start: int, **ends: int) -> Step:
    """Return a poll after which the log begins there; the consumer was set to its end (``auto.offset.reset=latest``)."""

    def step(group: Group) -> Sequence[Read]:
        group.log_start = start
        return steps(**ends)(group)

    return step


def test_a_consumer_that_is_set_to_the_end_of_the_log_passes_over_nothing(target: Target) -> None:
    group = run(
        target, given(P0), steps(Read(P0, 5)), expires(8, p0=10), steps(Read(P0, 8), Read(P0, 9))
    )
    assert group.seeks == [(P0, 8)]
    assert group.commits == [{P0: 6}, {P0: 10}]
    assert target.sent == [(P0, 5), (P0, 8), (P0, 9)]


def test_what_was_read_and_the_markers_behind_it_are_committed(target: Target) -> None:
    group = run(target, given(P0, P1), steps(Read(P0, 5), Read(P0, 6), p0=9, p1=3), steps(p0=10))
    assert target.sent == [(P0, 5), (P0, 6)]
    assert group.commits == [{P0: 9, P1: 3}, {P0: 10}]
    assert group.lag == 7


@pytest.mark.parametrize(
    ("script", "lag"),
    [
        ((), -1),
        ((given(),), 0),
        ((given(P0),), -1),
        ((given(P0), steps(Read(P0, 5)), taken(P0)), -1),
    ],
    ids=["outside", "more streams than partitions", "nothing read yet", "rebalance"],
)
def test_what_is_not_known_is_no_lag_of_0(target: Target, script: Sequence[Step], lag: int) -> None:
    assert run(target, *script).lag == lag


def test_an_end_is_not_committed_before_records_that_came_in_a_wait(target: Target) -> None:
    target.waits = 1
    # While the flush of offset 5 waits, offset 7 and the end behind it arrive.
    group = run(target, given(P0), steps(Read(P0, 5)), idle=[steps(Read(P0, 7), p0=9)])
    assert group.commits == [{P0: 6}, {P0: 9}]
    assert target.sent == [(P0, 5), (P0, 7)]
    assert group.paused == set()


def test_what_goes_is_committed_and_its_end_is_not(target: Target) -> None:
    group = run(target, given(P0), steps(Read(P0, 5)), taken(P0), steps(Read(P0, 6), p0=9))
    assert group.commits == [{P0: 6}]
    assert target.sent == [(P0, 5)]


def test_a_position_that_is_refused_is_tried_by_the_next_commit_and_holds_nothing_up(
    target: Target,
) -> None:
    group = run(
        target,
        given(P0, P1),
        steps(Read(P0, 5), Read(P1, 1)),
        steps(Read(P0, 6)),
        answers=[{P1: "not now"}, RetriableError("nobody answers")],
    )
    assert group.commits == [{P0: 6}, {P0: 7, P1: 2}]


def test_what_waits_of_a_partition_that_goes_is_given_up(target: Target) -> None:
    target.waits = 1
    group = run(target, given(P0, P1), steps(Read(P0, 5), Read(P1, 1)), idle=[taken(P0)])
    assert target.given_up == [P0]
    assert group.commits == [{P1: 2}]


def test_nothing_is_given_up_of_what_was_acknowledged_before_it_went(target: Target) -> None:
    run(target, given(P0), steps(Read(P0, 5)), taken(P0))
    assert target.given_up == []


def test_a_target_that_is_late_when_a_partition_goes_gets_nothing_more_of_it(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    monkeypatch.setattr(stream_module, "REVOKE_S", -1.0)

    def late(group: Group) -> Sequence[Read]:
        target.waits = 1
        return taken(P0)(group)

    group = run(target, given(P0), steps(Read(P0, 5)), late, commit_s=60.0)
    assert target.given_up == [P0]
    assert group.commits == []


def test_a_partition_that_came_back_amid_a_batch_is_read_from_its_commit(target: Target) -> None:
    def back(group: Group) -> Sequence[Read]:
        taken(P0)(group)
        given(P0)(group)
        return [Read(P0, 5)]

    target.waits_to_send = 1
    group = run(target, given(P0), steps(Read(P0, 5), Read(P0, 6)), idle=[back])
    assert target.given_up == [P0]
    assert target.sent == [(P0, 5), (P0, 5)]  # the first was in the sender's hands
    assert group.commits == [{P0: 6}]


def test_what_came_while_the_target_was_waited_for_goes_with_its_partition(target: Target) -> None:
    target.waits = 2
    group = run(
        target,
        given(P0),
        steps(Read(P0, 5)),
        idle=[lambda group: (given(P1)(group), [Read(P1, 3)])[1], taken(P1)],
    )
    assert target.sent == [(P0, 5)]
    assert group.commits == [{P0: 6}]


def test_what_was_read_ahead_is_read_once_more_after_a_wait_of_any_length(target: Target) -> None:
    target.waits = 5
    group = run(target, given(P0, P1), steps(Read(P0, 5)), steps(Read(P0, 6)))
    assert sorted(group.resumed) == [P0, P1]
    assert target.sent == [(P0, 5), (P0, 6)]


def test_a_stream_without_partitions_stays_in_its_group_beside_a_busy_one(target: Target) -> None:
    target.waits_to_hold = 3
    comes = given(P0)
    group = run(target, steps(), steps(Read(P0, 5)), idle=[steps(), comes, steps()])
    assert group.while_idle == []
    assert target.sent == [(P0, 5)]


def test_a_poll_costs_nothing_for_partitions_that_it_returns_nothing_of(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[TopicPartition] = []

    def note(_self: SinkPlaces, place: TopicPartition, _offset: int) -> None:
        noted.append(place)

    monkeypatch.setattr(SinkPlaces, "read_to", note)
    run(target, given(P0, P1), steps(Read(P0, 5), Read(P1, 7)), steps(Read(P0, 6)), steps())
    assert sorted(noted) == [P0, P0, P1]


def test_of_a_record_that_became_several_no_more_go_once_its_partition_goes(target: Target) -> None:
    out = OutgoingRecord("t", None, b"", (), None, None)
    target.waits_to_send = 1
    group = run(
        target, given(P0), steps(Read(P0, 5)), idle=[taken(P0)], handle=lambda _message: [out, out]
    )
    assert target.sent == [(P0, 5)]  # the first was in the sender's hands
    assert group.commits == []


def test_a_topic_that_may_not_be_read_ends_the_stream(target: Target) -> None:
    def denied(group: Group) -> Sequence[Read]:
        group.denied = {"t": "grant READ"}
        return []

    failure = FatalError("the source cannot be read: t: grant READ")
    run(target, given(P0), steps(Read(P0, 5)), denied, cause=failure)
    assert target.sent == [(P0, 5)]


def test_a_partition_that_goes_while_the_sender_fails_is_given_up(target: Target) -> None:
    failure = target.failure = FatalError("refused")
    group = run(target, given(P0), steps(Read(P0, 5)), taken(P0), commit_s=60.0, cause=failure)
    assert target.given_up == [P0]
    assert group.commits == []
