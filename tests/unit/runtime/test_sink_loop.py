"""The loop of a sink task: what is put, what is committed, and when the group changes."""

import random
from collections.abc import Callable

import pytest

from mm2py.api.records import SinkRecord
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import FatalError
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.sink_loop import SinkLoop, SinkSettings
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import (
    FIRST_ID,
    SECOND_ID,
    T0,
    T1,
    EagerClock,
    FakeConsumer,
    FakeGroup,
    Observed,
    RecordingTask,
    a_record,
    not_now,
)


class Stage:
    """One loop over fakes, turned by hand."""

    def __init__(
        self,
        group: FakeGroup | None = None,
        task: RecordingTask | None = None,
        *,
        prepare: Callable[[SinkRecord], SinkRecord | None] | None = None,
        settings: SinkSettings | None = None,
    ) -> None:
        self.group = group or FakeGroup(p0=10, p1=10)
        self.task = task or RecordingTask()
        self.clock, self.observed = EagerClock(), Observed()
        self.settled = 0
        self.consumers: list[FakeConsumer] = []
        self.on_poll: Callable[[], None] = lambda: None

        def consumer(listener: SinkLoop) -> FakeConsumer:
            self.consumers.append(FakeConsumer(self.group, listener))
            self.consumers[-1].on_poll = self.on_poll
            return self.consumers[-1]

        self.loop = SinkLoop(
            self.task,
            consumer,  # type: ignore[arg-type] # the loop itself is the listener
            settings or SinkSettings(topics=("t",), commit_s=1.0),
            self.observed,
            clock=self.clock,
            prepare=prepare,
            settle=self._settle,
        )

    def _settle(self) -> None:
        self.settled += 1

    @property
    def consumer(self) -> FakeConsumer:
        return self.consumers[-1]

    def begin(self, *places: TopicPartition) -> None:
        assert self.loop.start()
        self.consumer.give(*places)

    def turn(self, *pauses: float) -> None:
        """Turn the loop after each of these pauses in seconds, or once without."""
        for seconds in pauses or (0.0,):
            self.clock.seconds += seconds
            self.loop.turn()

    def pass_s(self, seconds: int) -> None:
        """Turn the loop each second."""
        self.turn(*[1.0] * seconds)


def begun(*places: TopicPartition, **lengths: int) -> Stage:
    """A loop that gets these partitions with its first turn, of logs that end at these offsets."""
    stage = Stage(FakeGroup(**lengths) if lengths else None)
    stage.begin(*places)
    return stage


def test_records_are_put_in_order_and_their_positions_committed_each_interval() -> None:
    stage = begun(T0)
    stage.turn(0, 0)
    assert stage.task.taken == [(T0, offset) for offset in range(6)]
    assert stage.consumer.commits == []
    stage.turn(1.0)
    assert stage.consumer.commits == [{T0: 6}]
    assert stage.settled == 1
    stage.turn(1.0)
    assert stage.consumer.commits == [{T0: 6}, {T0: 9}]


def test_nothing_is_committed_past_what_the_task_allows_nor_past_what_it_was_given() -> None:
    stage = Stage()
    stage.task.answer = lambda offsets: {T0: offsets[T0] - 1, T1: 99}
    stage.begin(T0, T1)
    stage.turn(0, 1.0)
    assert stage.group.committed == {T0: 2}


@pytest.mark.parametrize(("how", "left"), [("take", {T0: 3, T1: 3}), ("lose", {})])
def test_a_partition_that_is_revoked_is_committed_before_it_goes_and_a_lost_one_not(
    how: str, left: dict[TopicPartition, int]
) -> None:
    stage = begun(T0, T1)
    stage.turn()
    getattr(stage.consumer, how)(T0)
    stage.turn()
    assert stage.group.committed == left
    assert stage.task.calls == ["start", "open t-0,t-1", "close t-0"]
    assert set(stage.loop.owned) == {T1}


def test_records_of_a_partition_that_goes_within_the_same_poll_are_not_put() -> None:
    stage = begun(T0)
    stage.turn()
    stage.consumer.give(T1)
    late = [a_record(T0, 7)]
    poll = stage.consumer.poll

    def both(timeout_s: float) -> list[SinkRecord]:
        stage.consumer.take(T0)
        return [*poll(timeout_s), *late]

    stage.consumer.poll = both  # type: ignore[method-assign]
    stage.turn()
    assert stage.task.taken == [(T0, 0), (T0, 1), (T0, 2), (T1, 0), (T1, 1), (T1, 2)]


def test_a_partition_that_comes_while_records_wait_is_paused_as_well() -> None:
    stage = begun(T0)
    stage.task.put_errors = [not_now() for _ in range(3)]
    stage.turn()
    stage.consumer.give(T1)
    stage.turn()
    assert stage.consumer.paused == {T0, T1}


def test_what_is_dropped_before_the_task_is_committed_all_the_same() -> None:
    stage = Stage(prepare=lambda record: None if record.offset % 2 else record)
    stage.begin(T0)
    stage.turn(0, 1.0)
    assert stage.task.taken == [(T0, 0), (T0, 2), (T0, 4)]
    assert stage.group.committed == {T0: 3}


def test_a_record_that_is_tried_again_at_the_end_of_its_task_is_left_to_the_next_owner() -> None:
    errors = FrameworkConfig(errors_tolerance="all", errors_retry_timeout=-1)
    errant = ErrantRecords("c", 0, errors, clock=EagerClock())

    def busy(record: SinkRecord) -> SinkRecord:
        if record.offset >= 4:
            stage.loop.stopping.set()
            raise not_now()
        return record

    stage = Stage(prepare=lambda record: errant.transformed("T", record, busy))
    errant.stopping = stage.loop.stopping
    stage.on_poll = lambda: None if stage.loop.owned else stage.consumer.give(T0)
    stage.loop.run()
    assert stage.task.taken == [(T0, 0), (T0, 1), (T0, 2)]
    assert stage.group.committed == {T0: 3}
    assert errant.skipped == 0


def test_an_error_of_a_callback_fails_the_turn_that_polled() -> None:
    stage = begun(T0)
    stage.turn()
    stage.task.commit_errors = [FatalError("the target refused a record")]
    stage.consumer.take(T0)
    with pytest.raises(FatalError, match="refused"):
        stage.turn()
    assert stage.group.committed == {}


def test_paused_partitions_of_a_user_stay_silent_and_a_paused_task_stays_in_its_group() -> None:
    stage = begun(T0, T1)
    stage.loop.user_held = frozenset({T1})
    stage.turn(0, 0)
    assert {place for place, _ in stage.task.taken} == {T0}
    stage.loop.user_held = frozenset({TopicPartition("t", -1)})
    stage.turn()
    assert stage.consumer.paused == {T0, T1}
    stage.loop.user_held, stage.loop.paused = frozenset(), True
    before = len(stage.task.taken)
    polls = len(stage.consumer.polls)
    stage.turn()
    assert len(stage.task.taken) == before
    assert len(stage.consumer.polls) == polls + 1
    assert stage.observed.states == ["RUNNING", "PAUSED"]
    stage.loop.paused = False
    stage.turn()
    assert len(stage.task.taken) > before


def test_a_task_rewinds_holds_and_asks_for_a_commit_by_itself() -> None:
    stage = begun(T0)
    stage.turn()
    stage.loop.rewind({T0: 1})
    stage.turn()
    assert stage.task.taken[3:] == [(T0, 1), (T0, 2), (T0, 3)]
    stage.loop.hold({T0})
    stage.loop.request_commit()
    stage.turn()
    assert stage.group.committed == {T0: 4}
    assert stage.consumer.paused == {T0}
    stage.loop.release({T0})
    stage.turn()
    assert stage.consumer.paused == set()


def test_a_partition_that_the_task_holds_is_shown_with_its_cause_and_is_no_standstill() -> None:
    stage = begun(T0, T1, p0=6, p1=6)
    stage.task.answer = lambda offsets: {T1: offsets[T1]}
    stage.turn()
    stage.loop.hold({T0}, "no leader")
    stage.pass_s(20)
    assert [it[T0].held for it in stage.observed.made if T0 in it][-1] == "no leader"
    assert stage.group.committed == {T1: 6}
    assert stage.observed.standstills == []
    stage.task.answer = lambda offsets: offsets
    stage.loop.release({T0})
    stage.pass_s(6)
    assert stage.observed.made[-1][T0].held == ""
    assert stage.group.committed == {T0: 6, T1: 6}


def test_topics_are_chosen_among_those_of_the_cluster() -> None:
    chosen = SinkSettings(chosen=lambda name: name.startswith("o"), look_s=5.0)
    stage = Stage(settings=chosen)
    stage.begin()
    stage.turn()
    assert stage.consumer.subscribed == ("other",)
    stage.consumer.known = ("o2", "other")
    stage.turn()
    assert stage.consumer.subscribed == ("other",)
    stage.turn(5.0)
    assert list(stage.consumer.subscribed) == ["o2", "other"]


def test_a_start_that_fails_for_now_is_tried_again_and_one_for_good_ends_it() -> None:
    stage = Stage()
    stage.task.start_errors = [not_now(), FatalError("no such table")]
    with pytest.raises(FatalError, match="no such table"):
        stage.loop.run()
    assert stage.task.calls == ["start", "start", "stop"]
    assert stage.consumers == []


def test_a_start_that_fails_for_long_is_told_with_the_cause_until_it_succeeds() -> None:
    stage = Stage()
    stage.task.start_errors = [not_now("no table"), not_now("no table")]
    assert not stage.loop.start()
    assert stage.observed.standstills == []
    stage.clock.seconds += 12
    assert not stage.loop.start()
    assert stage.observed.standstills == ["the task cannot start yet: no table"]
    stage.begin(T0)
    stage.turn(0, 1.0)
    assert stage.observed.standstills[1:] == [""]


def test_what_is_not_acknowledged_is_not_counted_lags_and_is_told() -> None:
    stage = begun(T0)
    stage.task.answer = lambda _: {}
    stage.turn(0, 1.0)
    made = stage.observed.made[-1][T0]
    assert (made.records, made.lag_records) == (0, 10)
    assert stage.observed.standstills == []
    stage.pass_s(12)
    assert len(stage.observed.standstills) == 1
    assert "does not acknowledge" in stage.observed.standstills[0]
    stage.task.answer = lambda offsets: offsets
    stage.turn(1.0, 1.0)
    assert stage.observed.standstills[1:] == [""]
    assert sum(it[T0].records for it in stage.observed.made) == 10
    assert stage.observed.made[-1][T0].lag_records == 0


def test_records_that_cannot_be_put_are_told_with_the_cause() -> None:
    stage = begun(T0)
    stage.task.put_errors = [not_now("no room") for _ in range(40)]
    stage.pass_s(14)
    assert "no room" in stage.observed.standstills[0]


def test_a_group_that_gives_no_partitions_is_told_and_one_that_gives_none_of_few_is_not() -> None:
    """A coordinator that is away, or a member that is frozen: the task runs, and nothing is copied."""
    stage = Stage()
    assert stage.loop.start()
    for take in ("take", "lose"):
        stage.observed.standstills.clear()
        stage.pass_s(25)
        assert stage.observed.standstills == []
        stage.pass_s(10)
        assert ["has given this task no partitions" in it for it in stage.observed.standstills] == [
            True
        ]
        stage.consumer.give(T0)
        stage.pass_s(2)
        assert stage.observed.standstills[1:] == [""]
        getattr(stage.consumer, take)(T0)
        stage.turn()
    stage.observed.standstills.clear()
    stage.consumer.give()
    stage.pass_s(40)
    assert stage.observed.standstills == []


def test_the_lag_of_a_partition_whose_broker_is_silent_is_unknown_while_others_go() -> None:
    stage = begun(T0, T1)
    stage.pass_s(6)
    assert {it.lag_records for it in stage.observed.made[-1].values()} == {0}
    stage.consumer.away = {T0}
    for _ in range(6):
        stage.group.ends[T0] += 1
        stage.group.ends[T1] += 1
        stage.pass_s(1)
    made = stage.observed.made[-1]
    assert (made[T0].lag_records, made[T1].lag_records >= 0) == (-1, True)
    assert stage.observed.standstills == []
    stage.pass_s(12)
    assert ["t-0: the source does not say" in it for it in stage.observed.standstills] == [True]
    stage.consumer.away = set()
    stage.pass_s(3)
    assert stage.observed.made[-1][T0].lag_records == 0
    assert stage.observed.standstills[1:] == [""]


def test_the_lag_of_a_quiet_partition_is_that_of_its_group_and_of_a_paused_task_it_grows() -> None:
    stage = Stage()
    stage.group.committed[T0] = stage.group.ends[T0]
    stage.begin(T0)
    stage.turn(0, 1.0)
    assert stage.observed.made[-1][T0].lag_records == 0
    stage.loop.paused = True
    stage.turn()
    stage.group.ends[T0] += 5
    stage.pass_s(6)
    assert [it[T0].lag_records for it in stage.observed.made if T0 in it][-1] == 5


def test_markers_are_not_committed_before_the_records_in_front_of_them_are_put() -> None:
    stage = begun(T0, p0=4)
    stage.consumer.markers = {T0: 1}
    stage.task.put_errors = [not_now() for _ in range(4)]
    stage.pass_s(3)
    assert stage.group.committed == {}
    stage.pass_s(12)
    assert stage.group.committed == {T0: 4}
    assert stage.task.taken == [(T0, 0), (T0, 1), (T0, 2)]


def test_a_position_that_is_refused_alone_is_tried_again_and_the_others_are_committed() -> None:
    stage = begun(T0, T1, p0=3, p1=3)
    stage.consumer.refusals = {T1: "not authorized"}
    stage.turn(0, 1.0)
    assert stage.group.committed == {T0: 3}
    assert stage.observed.made[-1][T1].lag_records == 3
    stage.pass_s(12)
    assert "not authorized" in stage.observed.standstills[-1]
    stage.consumer.refusals = {}
    stage.turn(1.0, 1.0)
    assert stage.group.committed == {T0: 3, T1: 3}
    assert stage.observed.standstills[-1] == ""


def test_topics_that_may_not_be_read_are_named_one_by_one_while_others_are_copied() -> None:
    stage = begun(T0)
    stage.consumer.denied["mine"] = "TOPIC_AUTHORIZATION_FAILED; grant READ"
    stage.pass_s(2)
    stage.consumer.denied["another"] = "TOPIC_AUTHORIZATION_FAILED; grant READ"
    stage.pass_s(6)
    assert stage.group.committed == {T0: 10}
    assert stage.observed.standstills == [
        "mine: may not be read, tried again: TOPIC_AUTHORIZATION_FAILED; grant READ",
        "another,mine: may not be read, tried again: TOPIC_AUTHORIZATION_FAILED; grant READ",
    ]
    stage.consumer.denied.clear()
    stage.pass_s(6)
    assert stage.observed.standstills[2:] == [""]


def test_a_position_waits_for_the_record_of_a_loss_and_others_do_not() -> None:
    stage = begun(T0, T1)
    stage.observed.off_record = {T0}
    stage.turn(0, 1.0)
    assert stage.group.committed == {T1: 3}
    stage.pass_s(20)
    assert "not in the ledger yet" in stage.observed.standstills[-1]
    stage.observed.off_record = set()
    stage.turn(1.0)
    assert stage.group.committed[T0] == 10


class Copier(RecordingTask):
    """A task with a target: what is put is under way until it is acknowledged, in order, at random moments."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.under_way: list[tuple[TopicPartition, int]] = []
        self.target: list[tuple[TopicPartition, int]] = []

    def put(self, records: object) -> None:
        if self.dice.random() < 0.15:
            raise not_now()
        before = len(self.taken)
        super().put(records)  # type: ignore[arg-type]
        self.under_way += self.taken[before:]
        self._acknowledge(self.dice.randrange(len(self.under_way) + 1))

    def pre_commit(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:  # type: ignore[override]
        if self.dice.random() < 0.1:
            raise not_now()
        if self.dice.random() < 0.3:
            return {}
        self._acknowledge(len(self.under_way))
        return offsets

    def _acknowledge(self, count: int) -> None:
        self.target += self.under_way[:count]
        self.under_way = self.under_way[count:]


class _KilledError(BaseException):
    """The process is gone between two steps."""


def offsets(stage: Stage, since: int = 0) -> list[int]:
    return [offset for _, offset in stage.task.taken[since:]]


def lost(stage: Stage) -> list[tuple[str, int, int]]:
    return [(it.cause, it.first_offset, it.last_offset) for it in stage.observed.gaps]


def test_a_topic_created_again_whose_positions_the_broker_has_deleted_is_named() -> None:
    group = FakeGroup(p0=4)
    stage = Stage(group)
    stage.observed.ids = {T0: FIRST_ID}
    group.recreate(SECOND_ID, p0=4)
    stage.begin(T0)
    stage.pass_s(3)
    assert offsets(stage) == [0, 1, 2, 3]
    assert lost(stage) == [("recreated", 0, -1)]
    assert stage.observed.ids == {T0: SECOND_ID}


def test_what_a_topic_created_again_has_lost_before_it_was_read_is_named() -> None:
    stage = begun(T0, p0=3)
    stage.turn()
    stage.group.recreate(SECOND_ID, p0=9)
    stage.group.starts[T0] = 7
    stage.pass_s(12)
    assert offsets(stage)[-2:] == [7, 8]
    assert lost(stage) == [("recreated", 3, 2), ("retention", 0, 6)]


@pytest.mark.parametrize("tries", [3, 12])
def test_a_topic_created_again_while_records_wait_for_the_target_gets_them_first_and_once(
    tries: int,
) -> None:
    """Also where they wait for longer than it takes to find the other topic: they are no loss that is settled before."""
    stage = begun(T0, p0=6)
    stage.task.put_errors = [not_now()] * tries
    stage.turn()
    stage.group.recreate(SECOND_ID, p0=9)
    while stage.task.put_errors:
        assert stage.observed.ids == {T0: FIRST_ID}
        stage.turn(1.0)
    stage.pass_s(20)
    assert offsets(stage) == [0, 1, 2, *range(9)]
    assert stage.group.committed == {T0: 9}
    assert lost(stage) == [("recreated", 3, 2)]


@pytest.mark.parametrize("how", ["revoked", "lost", "stopped"])
@pytest.mark.parametrize("acknowledged", [0, 3, 6])
def test_what_was_read_of_a_former_topic_and_not_delivered_when_the_partition_goes_is_named(
    acknowledged: int, how: str
) -> None:
    stage = Stage(FakeGroup(p0=6))
    stage.task.answer = lambda offsets: {T0: 3} if acknowledged == 3 else {}
    if acknowledged == 6:
        stage.task.answer = dict
    stage.begin(T0)
    stage.turn(0, 1.0)
    stage.group.recreate(SECOND_ID, p0=0)
    stage.task.answer = dict if acknowledged == 6 else lambda _: {}
    stage.pass_s(10)
    assert lost(stage) == [("recreated", 6, 5)]
    if how == "stopped":
        stage.loop.stopping.set()
        stage.loop.run()
    else:
        (stage.consumer.take if how == "revoked" else stage.consumer.lose)(T0)
        stage.turn()
    named = [("recreated", acknowledged, 5)] if acknowledged < 6 else []
    assert lost(stage)[1:] == named


def test_a_new_topic_is_on_record_once_what_was_read_of_the_former_one_is_delivered() -> None:
    """A member that is killed before leaves the former topic on record, so that its successor names the loss."""
    stage = Stage(FakeGroup(p0=6))
    stage.task.answer = lambda _: {}
    stage.begin(T0)
    stage.turn()
    stage.group.recreate(SECOND_ID, p0=9)
    stage.pass_s(10)
    assert stage.observed.ids == {T0: FIRST_ID}
    killed, group = stage, stage.group
    group.committed, group.committed_ids = {}, {}  # a broker deletes them with the topic
    successor = Stage(group)
    successor.observed.ids = dict(killed.observed.ids)
    successor.begin(T0)
    successor.pass_s(3)
    assert lost(successor) == [("recreated", 0, -1)]
    stage.task.answer = dict
    stage.pass_s(3)
    assert stage.observed.ids == {T0: SECOND_ID}


def test_what_a_poll_has_read_before_partitions_come_is_no_position_in_the_topic_that_followed() -> (
    None
):
    stage = begun(T0, p0=3, p1=0)
    stage.turn()
    stage.group.recreate(SECOND_ID, p0=9)
    stage.consumer.before = [a_record(T0, 3)]
    stage.consumer.give(T1)
    stage.pass_s(8)
    assert offsets(stage) == [0, 1, 2, 3, *range(9)]
    assert lost(stage) == [("recreated", 4, 3)]
    assert stage.group.committed == {T0: 9}


def test_a_position_of_another_program_counts_for_the_topic_that_is_there() -> None:
    group = FakeGroup(p0=6)
    group.committed = {T0: 4}
    stage = Stage(group)
    stage.begin(T0)
    stage.turn()
    assert offsets(stage) == [4, 5]
    assert lost(stage) == []


def test_a_partition_is_not_read_before_its_topic_is_known() -> None:
    group = FakeGroup(p0=6)
    group.committed, group.committed_ids = {T0: 3}, {T0: FIRST_ID}
    group.recreate(SECOND_ID, p0=9)
    stage = Stage(group)
    stage.on_poll = lambda: None
    assert stage.loop.start()
    stage.consumer.id_errors = [not_now()] * 3
    stage.consumer.give(T0)
    stage.turn(0, 1.0)
    assert offsets(stage) == []
    stage.pass_s(6)
    assert offsets(stage) == list(range(9))


def test_a_source_without_topic_ids_is_named_in_the_log_and_for_displays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(FakeGroup(p0=6))
    assert stage.loop.start()
    stage.consumer.id_errors = [not_now() for _ in range(25)]
    stage.consumer.give(T0)
    stage.pass_s(25)
    said = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert ["partitions=1" in it for it in said] == [True]
    (told,) = stage.observed.standstills
    assert told == "1 partitions are not read before the ids of their topics are known: not now"
    stage.turn(1.0)
    assert offsets(stage) == [0, 1, 2]
    stage.pass_s(2)
    assert stage.observed.standstills[1:] == [""]


@pytest.mark.parametrize(("start", "resets_to_end"), [(12, False), (7, True), (12, True)])
def test_a_consumer_that_is_set_to_the_end_of_the_log_passes_over_nothing(
    start: int, resets_to_end: bool
) -> None:
    stage = begun(T0, p0=3)
    stage.consumer.resets_to_end = resets_to_end
    stage.turn()
    stage.group.ends[T0], stage.group.starts[T0] = 12, start
    stage.pass_s(6)
    assert offsets(stage) == [0, 1, 2, *range(start, 12)]
    assert lost(stage) == [("retention", 3, start - 1)]
    assert stage.group.committed == {T0: 12}


def test_offsets_that_compaction_has_left_out_are_no_loss() -> None:
    stage = begun(T0, p0=9)
    stage.turn()
    stage.consumer.positions[T0] = 6
    stage.turn()
    assert offsets(stage) == [0, 1, 2, 6, 7, 8]
    assert lost(stage) == []


@pytest.mark.parametrize("resets_to_end", [False, True])
def test_a_log_that_was_cut_is_named_and_read_again_from_where_the_consumer_was_set(
    *, resets_to_end: bool
) -> None:
    stage = begun(T0, p0=6)
    stage.consumer.resets_to_end = resets_to_end
    stage.turn(0, 0)
    stage.group.ends[T0] = 2
    stage.pass_s(3)
    assert offsets(stage) == [*range(6), *([] if resets_to_end else [0, 1])]
    assert lost(stage) == [("truncation", 6, 5)]


@pytest.mark.fuzz
@pytest.mark.parametrize("round_", range(30))
def test_no_position_is_past_a_record_that_is_not_on_the_target(round_: int, seed: int) -> None:
    dice = random.Random(seed * 1000 + round_)
    group, on_target = FakeGroup(p0=40, p1=40), set[tuple[TopicPartition, int]]()
    for _ in range(12):
        _one_life(group, on_target, dice)
    # A last life without faults brings the rest.
    stage = Stage(group, Copier(random.Random(1)))
    stage.task.put = stage.task.__class__.__base__.put.__get__(stage.task)  # type: ignore[union-attr, method-assign]
    stage.begin(T0, T1)
    for _ in range(60):
        stage.turn(0.5)
    on_target.update(stage.task.taken)
    assert on_target == {(place, offset) for place in (T0, T1) for offset in range(40)}


def _one_life(
    group: FakeGroup, on_target: set[tuple[TopicPartition, int]], dice: random.Random
) -> None:
    task = Copier(dice)
    stage = Stage(group, task)
    stage.begin(*dice.sample([T0, T1], dice.randint(1, 2)))
    kill_at = dice.randrange(1, 40)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        _check(group, on_target | set(task.target))
        if steps == kill_at:
            raise _KilledError

    stage.consumer.on_poll = step
    try:
        while True:
            have = set(stage.consumer.positions)
            if have and dice.random() < 0.1:
                lost = tuple(dice.sample(sorted(have), 1))
                (stage.consumer.take if dice.random() < 0.7 else stage.consumer.lose)(*lost)
            elif dice.random() < 0.15:
                missing = {T0, T1} - have
                if missing and not stage.consumer.events:
                    stage.consumer.give(*missing)
            if dice.random() < 0.1:
                stage.consumer.commit_errors = [not_now() if dice.random() < 0.5 else False]
            stage.turn(dice.random())
    except _KilledError:
        on_target.update(task.target)
        _check(group, on_target)


def _check(group: FakeGroup, on_target: set[tuple[TopicPartition, int]]) -> None:
    for place, position in group.committed.items():
        missing = [offset for offset in range(position) if (place, offset) not in on_target]
        assert missing == [], f"{place} is committed at {position} without {missing}"
