"""Offset syncs: when one is written (Java's golden sequence), and how a position is translated."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import pytest

from mm2py.api.task import Run
from mm2py.mirror.offset_syncs import (
    EVERY_SYNC,
    MIN_SPACING_S,
    SLOTS,
    OffsetSync,
    OffsetSyncEmitter,
    OffsetSyncState,
    OffsetSyncStore,
    SyncSlots,
    decode_offset_sync,
)
from mm2py.protocol.records import NewRecord
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


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
        while self.open:
            self.open.pop(0)(result)

    @property
    def syncs(self) -> list[tuple[int, int]]:
        return [(sync.upstream, sync.downstream) for post in self.posts for sync in post]


def emitter(
    writer: Writer, clock: EagerClock | None = None, lag_max: int = 100
) -> OffsetSyncEmitter:
    queue = OffsetSyncEmitter(
        writer, "mm2-offset-syncs.B.internal", lag_max=lag_max, clock=clock or EagerClock()
    )
    queue.open()
    return queue


def due(state: OffsetSyncState, run: Run) -> list[int]:
    """Return the indexes of a run that get a sync."""
    breaks, by_lag = state.observe_run(run)
    return [0] * breaks + list(by_lag)


def test_the_rule_gives_javas_worked_sequence() -> None:
    state = OffsetSyncState(50)
    steps = [
        *((0, 100, True), (2, 102, True), (3, 103, False), (4, 153, True), (5, 154, False)),
        *((6, 155, False), (7, 204, True), (2, 206, True), (3, 207, False), (4, 3, True)),
        *((5, 4, False), (7, 6, True), (8, 7, False), (10, 57, True), (11, 58, False)),
    ]
    for upstream, downstream, expected in steps:
        assert due(state, Run(upstream, 1, downstream)) == [0] * expected, (upstream, downstream)


def test_the_syncs_of_a_run_are_written_in_order_in_one_request() -> None:
    writer = Writer()
    emitter(writer).observe(T0, [Run(5, 300, 1000)])
    assert writer.posts == [
        [OffsetSync(T0, 5, 1000), OffsetSync(T0, 106, 1101), OffsetSync(T0, 207, 1202)]
    ]
    assert writer.partitions == {TopicPartition("mm2-offset-syncs.B.internal", 0)}


def test_a_quiet_partition_gets_its_last_offset_at_commit() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 10, 50)])
    writer.answer()
    queue.promote_delayed()
    writer.answer()
    queue.promote_delayed()
    assert writer.syncs == [(0, 50), (9, 59)]


def test_promotion_does_not_move_the_lag_rule() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    queue.observe(T0, [Run(0, 50, 0)])
    writer.answer()
    queue.promote_delayed()
    writer.answer()
    clock.seconds += 1
    queue.observe(T0, [Run(50, 60, 50)])
    assert writer.syncs == [(0, 0), (49, 49), (101, 101)]


def test_while_a_request_is_under_way_syncs_wait_and_the_middle_of_long_runs_is_thinned() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    queue.observe(T1, [Run(0, 1, 0)])
    for batch in range(100):
        clock.seconds += 1
        queue.observe(T0, [Run(batch * 1000, 1000, batch * 1000)])
    queue.observe(T0, [Run(200_000, 1_000_000, 100_000)])
    assert len(writer.posts) == 1
    writer.answer()
    queue.promote_delayed()
    written = [sync.upstream for sync in writer.posts[1]]
    assert written == sorted(written)
    assert {0, 200_000, 1_199_999} <= set(written)
    for start, end in ((0, 100_000), (200_000, 1_200_000)):
        run = [offset for offset in written if start <= offset < end]
        assert len(run) <= EVERY_SYNC + 2
        for earlier, later in pairwise(run):
            assert later - earlier <= 101 + (1_200_000 - later) // 3


def test_a_request_has_a_bound_and_the_next_one_follows_at_once() -> None:
    writer, clock = Writer(), EagerClock()
    queue = OffsetSyncEmitter(writer, "syncs", lag_max=100, clock=clock)
    partitions = [TopicPartition("t", number) for number in range(450)]
    for partition in partitions:
        queue.observe(partition, [Run(0, 1, 0)])
    queue.open()
    writer.answer()
    assert [len(post) for post in writer.posts] == [200, 200, 50]
    assert [sync.partition for post in writer.posts for sync in post] == partitions


def test_requests_keep_their_distance_while_a_backlog_is_copied() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    for batch in range(10):
        queue.observe(T0, [Run(batch * 50, 50, batch * 50)])
        queue.observe(T1, [Run(batch * 50, 50, batch * 50)])
        writer.answer()
    assert len(writer.posts) == 1
    clock.seconds += MIN_SPACING_S
    queue.observe(T0, [Run(500, 10, 500)])
    assert len(writer.posts) == 2
    assert {(s.partition, s.upstream) for s in writer.posts[1]} == {
        *((T0, at) for at in (101, 202, 303, 404, 505)),
        *((T1, at) for at in (0, 101, 202, 303, 404)),
    }


async def test_a_flush_writes_what_waits_and_ends_at_its_time() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 1, 0)])
    queue.observe(T1, [Run(0, 1, 0)])
    await queue.flush(0.01)
    assert len(writer.posts) == 1
    flushing = asyncio.create_task(queue.flush(10))
    await until(lambda: bool(writer.open))
    writer.answer()
    await until(lambda: len(writer.posts) == 2)
    writer.answer()
    await flushing
    assert [sync.partition for post in writer.posts for sync in post] == [T0, T1]


def test_refused_syncs_are_logged_once_until_they_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock, lag_max=0)
    for offset in range(5):
        clock.seconds += 1
        queue.observe(T0, [Run(offset, 1, offset)])
        writer.answer(OSError("full") if offset < 4 else 7)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "lost=4" in caplog.records[1].getMessage()


def test_a_closed_queue_writes_nothing() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 10, 0)])
    queue.close()
    queue.observe(T0, [Run(10, 500, 10)])
    queue.promote_delayed()
    assert len(writer.posts) == 1


TP = TopicPartition("topic1", 2)


def sync(upstream: int, downstream: int | None = None) -> OffsetSync:
    return OffsetSync(TP, upstream, upstream if downstream is None else downstream)


def slots_of(*upstreams: int) -> SyncSlots:
    slots = SyncSlots(sync(upstreams[0]))
    for upstream in upstreams[1:]:
        slots.add(sync(upstream))
    return slots


def distinct(slots: SyncSlots) -> list[int]:
    return list(dict.fromkeys(slots.upstreams()))


def store(*syncs: OffsetSync, keeps_backlog: bool = True) -> OffsetSyncStore:
    made = OffsetSyncStore(keeps_backlog=keeps_backlog)
    for each in syncs:
        made.add(each)
    return made


def test_an_offset_is_translated_by_the_newest_sync_at_or_below_it() -> None:
    made = store()
    made.read_to_end()
    for upstream, downstream, translations in (
        (100, 200, {150: 201}),
        (150, 251, {150: 251, 5: -1}),
        (200, 10, {200: 10}),
        (20, 20, {20: 20}),
    ):
        made.add(sync(upstream, downstream))
        assert {it: made.translate(TP, it) for it in translations} == translations


def test_nothing_is_translated_before_the_backlog_is_read() -> None:
    made = store(keeps_backlog=False)
    assert made.translate(TP, 0) is None
    made.add(sync(100, 200))
    assert made.translate(TP, 100) is None
    made.read_to_end()
    assert [made.translate(TP, it) for it in (0, 100, 200)] == [-1, 200, 201]
    assert made.translate(TopicPartition("other", 0), 5) is None


def test_of_a_backlog_whose_checkpoints_are_unknown_only_the_last_sync_is_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)), keeps_backlog=False)
    made.read_to_end()
    assert [made.translate(TP, it) for it in (999, 1000, 1001)] == [-1, 1000, 1001]
    for upstream in range(1010, 10_001, 10):
        made.add(sync(upstream))
    kept = [10000, 9990, 9970, 9940, 9880, 9640, 9160, 8680, 6760, 4840, 1000]
    assert_translates(made, kept)
    assert made.translate(TP, 999) == -1


def test_of_a_backlog_whose_checkpoints_are_known_all_syncs_are_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)))
    made.read_to_end()
    assert_translates(made, [1000, 990, 960, 900, 840, 720, 480, 0])
    for upstream in range(1000, 10_001, 10):
        made.add(sync(upstream))
    assert_translates(made, [10000, 9990, 9960, 9900, 9840, 9600, 9120, 8640, 7680, 3840, 0])


def assert_translates(made: OffsetSyncStore, kept: list[int]) -> None:
    older = [*kept[1:], None]
    for newer, next_older in zip(kept, older, strict=True):
        assert made.translate(TP, newer) == newer
        assert made.translate(TP, newer + 1) == made.translate(TP, newer + 2) == newer + 1
        if next_older is not None:
            assert made.translate(TP, newer - 1) == next_older + 1


@pytest.mark.parametrize(
    ("step", "end", "kept"),
    [
        (100, 100_000, [100000, 99900, 99800, 99600, 99200, 97600, 96000, 89600, 76800, 51200, 0]),
        (1, 1_000, [1000, 999, 998, 996, 992, 976, 960, 896, 768, 512, 0]),
    ],
)
def test_even_syncs_are_kept_at_doubling_distances(step: int, end: int, kept: list[int]) -> None:
    assert distinct(slots_of(*range(0, end + 1, step))) == kept


def test_syncs_that_are_not_the_identity_are_translated_by_what_is_kept() -> None:
    slots = SyncSlots(sync(11, 4))
    translated: list[int] = []
    for upstream in range(11, 18):
        slots.add(sync(upstream, upstream - 7))
        translated.append(slots.translate(13))
    assert translated == [5, 6, 6, 6, 6, 6, 5]
    assert distinct(slots) == [17, 16, 15, 11]


def test_irregular_syncs_and_equal_and_lower_ones() -> None:
    slots = slots_of(0, 1, 2, 3, 1000, 1001, 1002, 5000, 5001, 1_000_000, 1_000_001)
    kept = [1_000_001] + [1_000_000] * 20 + [0] * 43
    assert slots.upstreams() == kept
    slots.add(sync(1_000_001, 7))
    assert slots.upstreams() == kept
    assert slots.translate(1_000_001) == 7
    slots.add(sync(10, 8))
    assert slots.upstreams() == [10] * SLOTS


def test_pseudo_random_syncs() -> None:
    number, upstream = 42, 0
    slots = SyncSlots(sync(0))
    for _ in range(500):
        number = (1103515245 * number + 12345) % 2**31
        upstream += number % 1000 + 1
        slots.add(sync(upstream))
    single = [256159, 255212, 253255, 249748, 243466, 216913, 160116, 106856]
    assert slots.upstreams() == [256718] * 11 + single + [0] * 45


def test_offsets_at_the_edge_of_64_bits() -> None:
    slots = slots_of(0, 2**62, 2**62 + 2**61, 2**63 - 1)
    assert slots.upstreams() == [2**63 - 1] * 62 + [2**62 + 2**61, 2**62]


@pytest.mark.parametrize("first", range(0, 30, 7))
def test_even_steps_of_any_size_drop_at_most_one_sync_each(first: int) -> None:
    step = 1
    while step < 2**63 // 100:
        slots = SyncSlots(sync(first))
        for number in range(1, 101):
            known = set(slots.upstreams())
            slots.add(sync(first + number * step))
            now = slots.upstreams()
            assert len(known - set(now)) <= 1
            assert (now[0], now[-1]) == (first + number * step, first)
        step = step * 2 + 1


def test_steps_of_one_or_two_hundred_drop_at_most_two() -> None:
    chance = random.Random(1)
    check_drops(2, (chance.choice((100, 200)) for _ in range(10_000)))


def check_drops(most: int, steps: Iterable[int]) -> None:
    slots = SyncSlots(sync(0))
    for upstream in accumulate(steps):
        known = set(slots.upstreams())
        slots.add(sync(upstream))
        assert len(known - set(slots.upstreams())) <= most


def test_syncs_of_a_copy_that_is_gone_are_replaced_by_the_first_one_of_the_new_copy() -> None:
    made = store(sync(0, 0), sync(100, 100), sync(148, 0))
    made.read_to_end()
    assert [made.translate(sync(0).partition, it) for it in (100, 148, 149)] == [-1, 0, 1]
    assert made.newest(sync(0).partition) == 148
