"""When offset syncs are written: Java's golden sequence, the closed form, the queue."""

from collections.abc import Callable, Sequence

import pytest

from mm2py.api.task import Run
from mm2py.mirror.offset_syncs import (
    MAX_IN_FLIGHT_SYNCS,
    MIN_SPACING_S,
    OffsetSync,
    OffsetSyncEmitter,
    OffsetSyncState,
    decode_offset_sync,
)
from mm2py.protocol.records import NewRecord
from mm2py.types import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class HandClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Writer:
    """Keeps what is posted until the test answers."""

    def __init__(self) -> None:
        self.posts: list[list[OffsetSync]] = []
        self.open: list[Callable[[int | Exception], None]] = []
        self.partitions: set[TopicPartition] = set()

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> None:
        self.partitions.add(tp)
        self.posts.append([decode_offset_sync(r.key or b"", r.value or b"") for r in records])
        self.open.append(done)

    def answer(self, result: int | Exception = 0) -> None:
        for done in self.open:
            done(result)
        self.open.clear()

    @property
    def syncs(self) -> list[tuple[int, int]]:
        return [(sync.upstream, sync.downstream) for post in self.posts for sync in post]


def emitter(
    writer: Writer, clock: HandClock | None = None, lag_max: int = 100
) -> OffsetSyncEmitter:
    queue = OffsetSyncEmitter(
        writer, "mm2-offset-syncs.B.internal", lag_max=lag_max, clock=clock or HandClock()
    )
    queue.open()
    return queue


def test_the_rule_gives_javas_worked_sequence() -> None:
    state = OffsetSyncState(50)
    steps = [
        (0, 100, True, True),
        (2, 102, True, True),
        (3, 152, False, True),
        (4, 153, True, True),
        (5, 154, False, True),
        (6, 203, False, True),
        (7, 204, True, True),
        (2, 206, True, True),
        (3, 207, False, True),
        (4, 3, True, True),
        (5, 4, False, False),
        (7, 6, True, False),
        (7, 6, True, False),
        (8, 7, True, False),
        (10, 57, True, True),
        (11, 58, False, True),
    ]
    for upstream, downstream, due, reset in steps:
        assert state.observe(upstream, downstream) is due, (upstream, downstream)
        if reset:
            state.reset()


def test_lag_zero_makes_every_record_a_sync() -> None:
    state = OffsetSyncState(0)
    assert all(state.observe(offset, offset + 7) for offset in range(20))


def test_steady_traffic_syncs_every_lag_plus_one_offsets() -> None:
    state = OffsetSyncState(100)
    chosen: list[int] = []
    for offset in range(300):
        chosen += [offset + index for index in state.observe_run(Run(offset, 1, offset))]
    assert chosen == [0, 101, 202]


def test_a_run_gets_its_first_record_and_the_last_one_by_lag() -> None:
    state = OffsetSyncState(100)
    assert state.observe_run(Run(0, 1000, 0)) == (0, 909)
    assert state.observe_run(Run(1000, 5, 1000)) == ()
    assert state.observe_run(Run(1005, 10, 1005)) == (5,)
    assert state.last_synced_downstream == 1010


def test_a_gap_a_rewind_and_a_new_shift_get_their_first_record() -> None:
    state = OffsetSyncState(100)
    assert state.observe_run(Run(0, 10, 0)) == (0,)
    assert state.observe_run(Run(12, 10, 10)) == (0,), "gap"
    assert state.observe_run(Run(22, 10, 25)) == (0,), "shift"
    assert state.observe_run(Run(5, 10, 35)) == (0,), "upstream rewind"
    assert state.observe_run(Run(15, 10, 0)) == (0,), "downstream rewind"
    assert state.observe_run(Run(25, 10, 10)) == ()


def test_both_syncs_of_a_run_are_written_in_order_in_one_request() -> None:
    writer = Writer()
    emitter(writer).observe(T0, [Run(5, 500, 1000)])
    assert writer.posts == [[OffsetSync(T0, 5, 1000), OffsetSync(T0, 409, 1404)]]
    assert writer.partitions == {TopicPartition("mm2-offset-syncs.B.internal", 0)}


def test_a_quiet_partition_gets_its_last_offset_at_commit() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 10, 50)])
    queue.promote_delayed()
    queue.promote_delayed()
    assert writer.syncs == [(0, 50), (9, 59)]


def test_promotion_does_not_move_the_lag_rule() -> None:
    writer, clock = Writer(), HandClock()
    queue = emitter(writer, clock)
    queue.observe(T0, [Run(0, 50, 0)])
    queue.promote_delayed()
    clock.seconds += 1
    queue.observe(T0, [Run(50, 60, 50)])
    assert writer.syncs == [(0, 0), (49, 49), (101, 101)]


def test_at_most_ten_syncs_are_in_flight_and_the_latest_wins() -> None:
    writer, clock = Writer(), HandClock()
    queue = emitter(writer, clock, lag_max=0)
    for offset in range(30):
        clock.seconds += 1
        queue.observe(T0, [Run(offset, 1, offset)])
    assert len(writer.syncs) == MAX_IN_FLIGHT_SYNCS
    assert queue.in_flight == MAX_IN_FLIGHT_SYNCS
    assert queue.waiting == 1
    writer.answer()
    assert queue.in_flight == 0
    queue.promote_delayed()
    assert writer.syncs[-1] == (29, 29)
    assert len(writer.syncs) == MAX_IN_FLIGHT_SYNCS + 1


def test_requests_keep_their_distance_while_a_backlog_is_copied() -> None:
    writer, clock = Writer(), HandClock()
    queue = emitter(writer, clock)
    for batch in range(10):
        queue.observe(T0, [Run(batch * 1000, 1000, batch * 1000)])
        queue.observe(T1, [Run(batch * 1000, 1000, batch * 1000)])
    assert len(writer.posts) == 1
    assert queue.waiting == 2
    clock.seconds += MIN_SPACING_S
    queue.observe(T0, [Run(10_000, 1, 10_000)])
    assert writer.posts[1:] == [[OffsetSync(T1, 9999, 9999), OffsetSync(T0, 9999, 9999)]]
    assert queue.waiting == 0


def test_refused_syncs_are_logged_once_until_they_work_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    writer, clock = Writer(), HandClock()
    queue = emitter(writer, clock, lag_max=0)
    for offset in range(5):
        clock.seconds += 1
        queue.observe(T0, [Run(offset, 1, offset)])
        writer.answer(OSError("full") if offset < 4 else 7)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "lost=4" in caplog.records[1].getMessage()
    assert queue.in_flight == 0


def test_a_closed_queue_and_a_partition_given_up_write_nothing() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 10, 0)])
    queue.observe(T1, [Run(0, 10, 0)])
    queue.forget(T0)
    queue.promote_delayed()
    assert writer.syncs == [(0, 0), (9, 9)]
    assert writer.posts[-1][0].partition == T1
    queue.close()
    queue.observe(T0, [Run(10, 500, 10)])
    queue.promote_delayed()
    assert len(writer.posts) == 2


def test_syncs_wait_for_a_writer_that_is_not_ready() -> None:
    writer = Writer()
    queue = OffsetSyncEmitter(writer, "syncs", lag_max=100, clock=HandClock())
    queue.observe(T0, [Run(0, 10, 0)])
    queue.observe(T0, [Run(20, 10, 10)])
    assert not writer.posts
    queue.open()
    assert writer.syncs == [(20, 10)]
