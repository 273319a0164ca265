"""The Fetcher against a scripted broker: positions, losses, leaders, stalls, and origins of batches."""

import random
from collections.abc import Callable, Collection, Sequence
from functools import partial

import pytest

from mm2py.client.fetch.node import GATHER_BYTES, GATHER_PARTITIONS
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import Origins
from mm2py.protocol.record_batch import RecordBatch
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually
from mm2py.types import LATEST, TopicPartition, start_at_offset, start_at_time
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching
from tests.kit.lines.delay_proxy import DelayProxy
from tests.property.play_loop import course_of


async def test_a_time_starts_at_the_first_record_of_it_or_at_the_end() -> None:
    async with fetching() as rig:
        for tp in (FIRST, SECOND):
            rig.fill(tp, range(2), timestamp_ms=1_000)
            rig.fill(tp, range(2, 4), timestamp_ms=2_000)
        rig.fetcher.add({FIRST: start_at_time(1_500), SECOND: start_at_time(2_001)})
        await rig.until(lambda: rig.fetcher.position(SECOND) == 4 and FIRST in rig.read)
        assert (rig.fetcher.began_at(FIRST), rig.fetcher.began_at(SECOND)) == (2, 4)
        rig.fill(SECOND, range(4, 5), timestamp_ms=1_000)
        await rig.until(lambda: SECOND in rig.read)
        assert rig.read == {FIRST: [2, 3], SECOND: [4]}
        assert rig.gaps == []


@pytest.mark.parametrize(
    ("start", "began"),
    [*zip(map(start_at_offset, (0, 1, 3, 4, 99)), (2, 2, 3, 4, 4), strict=True), (LATEST, 4)],
)
async def test_reading_starts_where_asked_or_at_the_nearer_end(start: int, began: int) -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(2))
        rig.fill(FIRST, range(2, 4))
        rig.broker.partition(FIRST).delete_before(2)
        rig.fetcher.add({FIRST: start})
        await rig.until(lambda: rig.fetcher.began_at(FIRST) >= 0)
        assert rig.fetcher.began_at(FIRST) == began
        rig.fill(FIRST, range(4, 5))
        await rig.until(lambda: rig.read.get(FIRST) == list(range(began, 5)))
        assert rig.gaps == []


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("position", "gap"),
    [(1, (FIRST, 1, 3, "retention")), (9, (FIRST, 9, 8, "recreated"))],
    ids=["deleted before it was copied", "behind the end of the log"],
)
async def test_a_stored_position_that_is_gone_is_a_gap_and_read_on_from_the_log_start(
    position: int, gap: tuple[TopicPartition, int, int, str], reset: str
) -> None:
    async with fetching(reset=reset) as rig:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.broker.partition(FIRST).delete_before(4)
        rig.fetcher.add({FIRST: position})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        assert rig.gaps == [gap]
        assert rig.read[FIRST] == [4, 5, 6, 7]


async def test_auto_offset_reset_none_fails_the_partition_alone() -> None:
    async with fetching(reset="none") as rig:
        rig.fill(FIRST, range(2))
        rig.fill(FIRST, range(2, 4))
        rig.fill(SECOND, range(2))
        rig.broker.partition(FIRST).delete_before(2)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: bool(rig.failed) and SECOND in rig.read)
        assert rig.failed[0][0] == FIRST
        assert "auto.offset.reset=none" in str(rig.failed[0][1])
        assert rig.read[SECOND] == [0, 1]


async def test_what_arrives_between_two_calls_is_taken_from_the_room_of_the_first() -> None:
    async with fetching(partition_bytes=16 << 10) as rig:
        for first in range(0, 40, 4):
            rig.fill(FIRST, range(first, first + 4), pad=3_000)
        rig.fetcher.add({FIRST: 0})
        arrived = await rig.fetcher.fetch(max_wait_ms=5_000, max_bytes=20_000)
        await eventually(lambda: rig.fetcher.room_bytes() <= 0)
        waiting = rig.fetcher.waiting(FIRST)
        assert 0 < sum(batch.count for _, batches in arrived for batch in batches) + waiting < 40
        # More room: the next answer has the rest.
        more = [*arrived, *await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24)]
        while sum(batch.count for _, batches in more for batch in batches) < 40:
            more += await rig.fetcher.fetch(max_wait_ms=5_000, max_bytes=1 << 24)


async def test_few_batches_that_were_not_joined_keep_no_receive_buffer() -> None:
    async with fetching(partitions=1) as rig:
        for number in range(
            130
        ):  # more than 128 KiB of batches below 2 KiB, and a rest of fewer than four
            rig.fill(FIRST, range(number, number + 1), pad=1_000)
        rig.fetcher.add({FIRST: 0})
        read: list[RecordBatch] = []
        while sum(batch.count for batch in read) < 130:
            for _, batches in await rig.fetcher.fetch(max_wait_ms=5_000, max_bytes=1 << 24):
                read += batches
        assert 1 < len(read) < 5, "joined, and a rest"
        held = sum(len(batch.data) for batch in read)
        assert rig.cluster.pool.leased_bytes == held, "no buffer, and what was joined counts"


async def test_where_records_trickle_the_broker_gathers_them_for_linger_ms() -> None:
    async with fetching(linger_ms=5) as rig:
        waits = rig.broker.cluster.waits
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        # Behind an answer with few bytes, behind one with more, and behind an empty one.
        for number, (pad, wait_ms) in enumerate(((0, 6), (3_000, 4))):
            for tp in (FIRST, SECOND):
                rig.fill(tp, range(number, number + 1), pad=pad)
            await rig.until(partial(waits.__contains__, (wait_ms, GATHER_BYTES)))
        await rig.until(lambda: waits[-1] == (50, 1))
        assert rig.read == {FIRST: [0, 1], SECOND: [0, 1]}


async def test_with_many_partitions_the_next_fetch_waits_for_linger_ms() -> None:
    clock = FakeClock()
    many = {TopicPartition("t", number): 0 for number in range(GATHER_PARTITIONS + 1)}
    async with fetching(linger_ms=5, clock=clock, partitions=len(many)) as rig:

        def arrived(number: int) -> Callable[[], bool]:
            return lambda: rig.read.get(SECOND, [0])[-1] == number

        rig.fill(FIRST, range(1))
        rig.fetcher.add(many)
        await rig.until(lambda: rig.read.get(FIRST) == [0])
        # The first wait is behind an answer with few bytes, the second behind one with more.
        for number, wait_s in enumerate((0.006, 0.004), 1):
            await eventually(lambda: clock.sleepers == 1)
            asked = rig.broker.count(FETCH)
            for tp in (FIRST, SECOND):
                rig.fill(tp, range(number, number + 1), pad=3_000)
            await clock.advance(wait_s - 0.0001)
            assert rig.broker.count(FETCH) == asked
            await clock.advance(0.0002)
            await rig.until(arrived(number))
            assert rig.broker.count(FETCH) == asked + 1, "one answer has both"


async def test_a_paused_partition_with_more_to_read_keeps_no_other_one_from_lingering() -> None:
    async with fetching(linger_ms=5, partition_bytes=4_000) as rig:
        for number in range(100):
            rig.fill(FIRST, range(number, number + 1), pad=3_000)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: FIRST in rig.read)
        rig.fetcher.pause([FIRST])
        assert rig.read[FIRST][-1] < 99
        rig.broker.cluster.waits.clear()
        rig.fill(SECOND, range(1))
        await rig.until(lambda: (6, GATHER_BYTES) in rig.broker.cluster.waits)


@pytest.mark.parametrize(
    ("linger_ms", "min_bytes", "pad", "partition_bytes", "round_trip_s"),
    [(1, 1, 0, 1 << 20, 0.0), (9, 2, 0, 1 << 20, 0.0), (9, 1, 1 << 17, 1 << 20, 0.0),
     (9, 1, 3_000, 4_000, 0.0), (9, 1, 0, 1 << 20, 0.03)],
    ids=["not wanted", "fetch.min.bytes is set", "enough at a time", "more is there", "far away"],
)  # fmt: skip
async def test_the_next_fetch_waits_for_nothing(
    linger_ms: int, min_bytes: int, pad: int, partition_bytes: int, round_trip_s: float
) -> None:
    with DelayProxy(round_trip_s=round_trip_s) as line:
        async with fetching(
            linger_ms=linger_ms,
            min_bytes=min_bytes,
            partition_bytes=partition_bytes,
            line=line,
            clock=FakeClock(),  # stands still
        ) as rig:
            rig.fill(FIRST, range(1), pad=pad)
            if partition_bytes < 2 * pad:
                rig.fill(FIRST, range(1, 2), pad=pad)
            rig.fetcher.add({FIRST: 0})
            await rig.until(lambda: FIRST in rig.read)
            if partition_bytes >= 2 * pad:
                rig.fill(FIRST, range(1, 2), pad=pad)
            await rig.until(lambda: rig.read[FIRST] == [0, 1])
            assert {it for _, it in rig.broker.cluster.waits} == {min_bytes}


async def test_a_dead_leader_that_metadata_still_names_is_never_said_to_be_read_again() -> None:
    async with fetching() as rig:
        leader = await FakeBroker(node_id=2, cluster=rig.broker.cluster).start()
        rig.broker.cluster.move_leader(FIRST, 2)
        rig.fill(FIRST, range(3))
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        rig.stalled.clear()
        rig.read_again.clear()
        await leader.stop()
        await rig.until(lambda: len(rig.stalled) >= 5)
        assert rig.read_again == []
        rig.broker.cluster.move_leader(FIRST, 1)
        await rig.until(lambda: rig.read_again == [FIRST])
        rig.fill(FIRST, range(3, 6))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)
        assert rig.read_again == [FIRST]


LIST_OFFSETS = 2
LONG_MS = 60_000
"""Longer than any test: an idle long poll that is waited for shows as a timeout of the test."""


async def test_a_released_partition_does_not_wait_for_the_long_poll_of_idle_ones() -> None:
    async with fetching(max_wait_ms=LONG_MS) as rig:
        rig.fill(FIRST, range(1))
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 1)
        rig.fetcher.pause([FIRST])
        rig.fill(SECOND, range(1))  # ends the poll that was under way with both
        await rig.until(lambda: rig.fetcher.position(SECOND) == 1)
        asked = rig.broker.count(FETCH)
        await rig.until(lambda: rig.broker.count(FETCH) > asked)  # of the idle one alone
        rig.fetcher.resume([FIRST])
        rig.fill(FIRST, range(1, 2))
        await rig.until(lambda: rig.read.get(FIRST) == [0, 1])


async def test_without_memory_for_an_answer_the_end_of_a_log_is_asked_for() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(2), pad=3_000)
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 2)
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=0) == []
        # The Fetch that was under way is answered; no other follows it.
        await eventually(lambda: rig.fetcher.silent_s(FIRST) > 0.3)
        assert rig.fetcher.is_short
        rig.fill(FIRST, range(2, 9))
        await rig.fetcher.refresh_ends()
        assert rig.fetcher.lag(FIRST) == 7


async def test_asking_how_far_a_log_is_known_is_no_request_that_memory_was_short_for() -> None:
    async with fetching(max_wait_ms=LONG_MS) as rig:
        rig.fetcher.add({FIRST: 0})
        rig.fetcher.pause([FIRST])
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=0) == []
        await rig.fetcher.refresh_ends()
        rig.fetcher.resume([FIRST])
        rig.fetcher.silent_s(FIRST)
        assert not rig.fetcher.is_short


async def test_the_end_of_a_paused_partition_is_asked_for_once_per_call() -> None:
    async with fetching(max_wait_ms=LONG_MS) as rig:
        rig.fill(FIRST, range(2))
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 2)
        asked = rig.broker.count(LIST_OFFSETS)
        await rig.fetcher.refresh_ends()
        assert rig.broker.count(LIST_OFFSETS) == asked, "nothing is paused"
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(2, 9))
        await rig.fetcher.refresh_ends()
        assert rig.fetcher.lag(FIRST) == 7
        assert rig.broker.count(LIST_OFFSETS) == asked + 1


async def test_what_was_under_way_when_its_partition_was_held_is_kept_and_not_read_twice() -> None:
    async with fetching() as rig:
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24) == []
        await eventually(lambda: rig.broker.count(FETCH) > 0)
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(3), pad=40_000)
        await eventually(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.cluster.pool.leased_bytes == 1 << 17, "the buffer that it fills"
        assert rig.fetcher.waiting(FIRST) == rig.fetcher.lag(FIRST) == 3
        await rig.take()
        assert FIRST not in rig.read
        served = sum(size for partition, size in rig.broker.cluster.served if partition == 0)
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [0, 1, 2]
        assert served == sum(size for part, size in rig.broker.cluster.served if part == 0)


async def test_what_does_not_fit_beside_what_is_kept_is_read_again() -> None:
    async with fetching(buffer_bytes=200_000) as rig:
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24) == []
        await eventually(lambda: rig.broker.count(FETCH) > 0)
        rig.fetcher.pause([FIRST])
        asked = rig.broker.count(FETCH)
        rig.fill(FIRST, range(3), pad=40_000)
        await eventually(lambda: rig.broker.count(FETCH) > asked)
        assert rig.fetcher.position(FIRST) == 0
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [0, 1, 2]


async def test_a_held_partition_is_read_again_from_an_offset_behind_what_was_kept_back() -> None:
    async with fetching() as rig:
        for number in range(4):
            rig.fill(FIRST, range(number, number + 1), pad=40_000)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.read.get(FIRST) == [0, 1, 2, 3])
        assert not rig.fetcher.rewind(FIRST, 1), "it is not held"
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(4, 6), pad=40_000)  # some of it may be kept back
        assert rig.fetcher.rewind(FIRST, 1)
        assert rig.fetcher.waiting(FIRST) == 0
        assert rig.fetcher.position(FIRST) == 1
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: len(rig.read[FIRST]) >= 9)
        assert rig.read[FIRST] == [0, 1, 2, 3, 1, 2, 3, 4, 5]
        assert rig.gaps == []
        await eventually(lambda: rig.cluster.pool.leased_bytes == 0)


async def test_one_partition_gets_larger_answers_over_a_long_round_trip() -> None:
    with DelayProxy(round_trip_s=0.03) as line:
        async with fetching(line=line) as rig:
            for number in range(20):
                rig.fill(FIRST, range(number, number + 1), pad=900_000)
            rig.fetcher.add({FIRST: 0})
            await rig.until(lambda: rig.fetcher.position(FIRST) == 20)
            assert rig.read[FIRST] == list(range(20))
            assert max(size for _, size in rig.broker.cluster.served) > 3 << 20


PARTITIONS = 6
STEPS = 80
CODES = [
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.FENCED_LEADER_EPOCH,
    codes.UNKNOWN_LEADER_EPOCH,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.LEADER_NOT_AVAILABLE,
    codes.KAFKA_STORAGE_ERROR,
    codes.OFFSET_OUT_OF_RANGE,
    codes.OFFSET_NOT_AVAILABLE,
    codes.REPLICA_NOT_AVAILABLE,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.FETCH_SESSION_ID_NOT_FOUND,
    codes.INVALID_FETCH_SESSION_EPOCH,
    codes.FETCH_SESSION_TOPIC_ID_ERROR,
]

OF_FOLLOWERS = CODES[:9]


@pytest.mark.course
@pytest.mark.parametrize("version", [4, 11, 17])
@pytest.mark.parametrize("seed", range(4))
async def test_no_fault_of_a_broker_loses_doubles_or_reorders(seed: int, version: int) -> None:
    chance = course_of(seed * 100 + version)
    tps = [TopicPartition("t", index) for index in range(PARTITIONS)]

    async with fetching(
        partitions=PARTITIONS, versions={FETCH: (4, version)}, rack="east", max_age_ms=100
    ) as rig:
        versions = {FETCH: (4, version)}
        async with FakeBroker(node_id=2, cluster=rig.broker.cluster, versions=versions) as other:
            written = dict.fromkeys(tps, 0)
            rig.fetcher.add(dict.fromkeys(tps, 0))
            for _ in range(STEPS):
                tp = chance.choice(tps)
                count = chance.randrange(1, 4)
                rig.fill(tp, range(written[tp], written[tp] + count))
                written[tp] += count
                await _misbehave(chance, rig, other, tp)
                if chance.random() < 0.5:
                    await rig.take()
            rig.fetcher.resume(tps)
            await rig.until(lambda: {tp: len(rig.read.get(tp, ())) for tp in tps} == written)
            await rig.take()
            assert rig.read == {tp: list(range(count)) for tp, count in written.items() if count}
            assert (rig.gaps, rig.failed) == ([], [])


async def _misbehave(
    chance: random.Random, rig: Rig, other: FakeBroker, tp: TopicPartition
) -> None:
    cluster, broker = rig.broker.cluster, chance.choice([rig.broker, other])
    leader = cluster.topics["t"].leaders[tp.partition]

    def move() -> None:
        cluster.nearest.pop(tp, None)
        cluster.move_leader(tp, broker.node_id)

    faults: list[Callable[[], object]] = [
        cluster.sessions.clear,
        move,
        lambda: cluster.nearest.update({tp: 3 - leader}),
        lambda: cluster.follower_codes.append(chance.choice(OF_FOLLOWERS)),
        lambda: rig.fetcher.pause([tp]),
        lambda: rig.fetcher.resume([tp]),
        lambda: setattr(cluster, "throttle_ms", chance.choice([0, 5])),
        lambda: broker.fail_next(FETCH, chance.choice(CODES)),
        lambda: broker.fail_next(FETCH, chance.choice(CODES)),
        lambda: broker.fail_next(FETCH, "disconnect"),
        lambda: None,
        lambda: None,
    ]
    if chance.random() < 0.07:
        await broker.disconnect()
    else:
        chance.choice(faults)()


MIRRORS = frozenset({900, 901})


class FakeOrigins:
    """Knows the mirrors from the beginning, or learns of an id when it is asked."""

    def __init__(self) -> None:
        self.passing: set[int] = set()
        self.looping: set[int] = set()
        self.known = Origins(self.passing, self.looping)
        self.asked: list[frozenset[int]] = []
        self.errors: list[Mm2pyError] = []
        self.looped: dict[TopicPartition, int] = {}

    async def find(self, producers: Collection[int]) -> None:
        self.asked.append(frozenset(producers))
        if self.errors:
            raise self.errors.pop()
        self.looping.update(MIRRORS.intersection(producers))
        self.passing.update(frozenset(producers) - MIRRORS)

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        del copied
        if looped:
            self.looped[tp] = self.looped.get(tp, 0) + len(looped)


async def test_what_a_mirror_wrote_is_not_returned_and_its_position_moves_on() -> None:
    origins = FakeOrigins()
    async with fetching(origins=origins) as rig:
        rig.fill(FIRST, range(3), producer=7)
        rig.fill(FIRST, range(3, 6), producer=900)
        rig.fill(SECOND, range(2), producer=901)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(
            lambda: rig.fetcher.position(FIRST) == 6 and rig.fetcher.position(SECOND) == 2
        )
        assert rig.read == {FIRST: [0, 1, 2]}
        assert origins.looped == {FIRST: 1, SECOND: 1}
        assert rig.fetcher.lag(FIRST) == rig.fetcher.lag(SECOND) == 0
        assert origins.asked.count(frozenset({7, 900})) == 1
        rig.fill(FIRST, range(6, 8), producer=7)
        rig.fill(FIRST, range(8, 9), producer=900)
        await rig.until(lambda: rig.fetcher.position(FIRST) == 9)
        assert rig.read == {FIRST: [0, 1, 2, 6, 7]}
        assert len(origins.asked) == 2, "known producers are not asked for again"
        assert (rig.gaps, rig.failed, rig.stalled) == ([], [], [])


async def test_nothing_of_a_partition_is_copied_before_its_producers_are_known() -> None:
    origins = FakeOrigins()
    origins.errors += [RetriableError("the topic is away")] * 3
    async with fetching(origins=origins) as rig:
        rig.fill(FIRST, range(2), producer=900)
        rig.fill(FIRST, range(2, 4), producer=5)
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 4)
        assert rig.read == {FIRST: [2, 3]}
        assert [str(error) for _, error in rig.stalled] == ["the topic is away"] * 3
        assert rig.read_again[-1] == FIRST


async def test_a_partition_that_was_dropped_meanwhile_is_not_read_again() -> None:
    origins = FakeOrigins()
    origins.errors += [RetriableError("the topic is away")] * 5
    async with fetching(origins=origins) as rig:
        rig.fill(FIRST, range(2), producer=5)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: bool(rig.stalled))
        rig.fetcher.drop(FIRST)
        rig.fill(SECOND, range(1), producer=-1)
        await rig.until(lambda: SECOND in rig.read)
        assert FIRST not in rig.read


async def test_a_range_that_retention_took_before_a_mirrors_batch_is_a_gap() -> None:
    origins = FakeOrigins()
    origins.looping.add(900)
    async with fetching(origins=origins) as rig:
        rig.fill(FIRST, range(4), producer=900)
        rig.fill(FIRST, range(4, 8), producer=900)
        rig.broker.partition(FIRST).delete_before(4)
        rig.fetcher.add({FIRST: 1})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        assert rig.gaps == [(FIRST, 1, 3, "retention")]


@pytest.mark.parametrize("version", [4, 17])
async def test_faults_neither_lose_nor_double_nor_loop(version: int) -> None:
    chance = random.Random(version)
    origins = FakeOrigins()
    tps = [FIRST, SECOND]
    expected: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
    written = dict.fromkeys(tps, 0)
    async with fetching(versions={FETCH: (4, version)}, origins=origins) as rig:
        rig.fetcher.add(dict.fromkeys(tps, 0))
        for step in range(120):
            tp = chance.choice(tps)
            numbers = range(written[tp], written[tp] + chance.randrange(1, 4))
            producer = chance.choice([*MIRRORS, -1, 3, 4, 1000 + step])
            rig.fill(tp, numbers, producer=producer)
            written[tp] = numbers.stop
            if producer not in MIRRORS:
                expected[tp] += numbers
            if chance.random() < 0.2:
                rig.broker.fail_next(
                    FETCH, chance.choice([codes.NOT_LEADER_OR_FOLLOWER, "disconnect"])
                )
            if chance.random() < 0.2:
                origins.errors.append(RetriableError("away"))
            if chance.random() < 0.2:
                rig.fetcher.pause([tp])
            if chance.random() < 0.5:
                rig.fetcher.resume(tps)
                await rig.take()
        rig.fetcher.resume(tps)
        await rig.until(lambda: all(rig.fetcher.position(tp) == written[tp] for tp in tps))
        await rig.take()
        assert rig.read == expected
        assert (rig.gaps, rig.failed) == ([], [])
