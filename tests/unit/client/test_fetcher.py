"""The Fetcher against a scripted broker: positions, losses and leaders told apart."""

import pytest

from mm2py.protocol import error_codes as codes
from mm2py.protocol.record_batch import RecordBatch
from mm2py.testing.waiting import eventually
from mm2py.types import EARLIEST, LATEST, start_at_offset, start_at_time
from tests.unit.client.fetcher_rig import FETCH, FIRST, SECOND, fetching


async def test_it_reads_every_partition_in_order_from_where_it_was_told() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(5))
        rig.fill(SECOND, range(10, 13))
        await rig.fetcher.assign({FIRST: 2, SECOND: EARLIEST})
        rig.fill(FIRST, range(5, 7))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 7 and SECOND in rig.read)
        assert rig.read == {FIRST: [2, 3, 4, 5, 6], SECOND: [10, 11, 12]}
        assert rig.fetcher.lag(FIRST) == 0
        assert rig.gaps == []


async def test_latest_starts_at_the_end() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(5))
        await rig.fetcher.assign({FIRST: LATEST})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 5)
        rig.fill(FIRST, range(5, 6))
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [5]


async def test_a_time_starts_at_the_first_record_of_it_or_at_the_end() -> None:
    async with fetching() as rig:
        for tp in (FIRST, SECOND):
            rig.fill(tp, range(2), timestamp_ms=1_000)
            rig.fill(tp, range(2, 4), timestamp_ms=2_000)
        await rig.fetcher.assign({FIRST: start_at_time(1_500), SECOND: start_at_time(2_001)})
        await rig.until(lambda: rig.fetcher.position(SECOND) == 4 and FIRST in rig.read)
        assert (rig.fetcher.began_at(FIRST), rig.fetcher.began_at(SECOND)) == (2, 4)
        rig.fill(SECOND, range(4, 5), timestamp_ms=1_000)
        await rig.until(lambda: SECOND in rig.read)
        assert rig.read == {FIRST: [2, 3], SECOND: [4]}
        assert rig.gaps == []


@pytest.mark.parametrize(("asked", "began"), [(0, 2), (1, 2), (3, 3), (4, 4), (99, 4)])
async def test_an_offset_that_is_asked_for_is_that_or_the_nearer_end_of_the_log(
    asked: int, began: int
) -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(2))
        rig.fill(FIRST, range(2, 4))
        rig.broker.partition(FIRST).delete_before(2)
        await rig.fetcher.assign({FIRST: start_at_offset(asked)})
        await rig.until(lambda: rig.fetcher.began_at(FIRST) >= 0)
        assert rig.fetcher.began_at(FIRST) == began
        rig.fill(FIRST, range(4, 5))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 5)
        assert rig.gaps == []


async def test_a_paused_partition_is_left_alone_until_it_is_resumed() -> None:
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(2))
        rig.fill(SECOND, range(2))
        await rig.until(lambda: SECOND in rig.read)
        assert FIRST not in rig.read
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [0, 1]


async def test_records_deleted_before_they_were_copied_are_a_gap_with_its_exact_range() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.broker.partition(FIRST).delete_before(4)
        await rig.fetcher.assign({FIRST: 1})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        assert rig.gaps == [(FIRST, 1, 3, "retention")]
        assert rig.read[FIRST] == [4, 5, 6, 7]


async def test_a_position_behind_the_log_end_starts_over_and_says_so() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(3))
        await rig.fetcher.assign({FIRST: 9})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.gaps == [(FIRST, 9, 8, "recreated")]
        assert rig.read[FIRST] == [0, 1, 2]


async def test_a_stored_position_that_is_gone_is_copied_from_the_log_start_even_under_latest() -> (
    None
):
    async with fetching(reset="latest") as rig:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.broker.partition(FIRST).delete_before(4)
        await rig.fetcher.assign({FIRST: 1})
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [4, 5, 6, 7]


async def test_auto_offset_reset_none_fails_the_partition_alone() -> None:
    async with fetching(reset="none") as rig:
        rig.fill(FIRST, range(2))
        rig.fill(FIRST, range(2, 4))
        rig.fill(SECOND, range(2))
        rig.broker.partition(FIRST).delete_before(2)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: bool(rig.failed) and SECOND in rig.read)
        assert rig.failed[0][0] == FIRST
        assert "auto.offset.reset=none" in str(rig.failed[0][1])
        assert rig.read[SECOND] == [0, 1]


async def test_a_recreated_topic_is_copied_from_its_beginning_even_when_it_grew_beyond_the_position() -> (
    None
):
    async with fetching() as rig:
        rig.fill(FIRST, range(4))
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 4)
        rig.broker.create_topic("t", 2)
        rig.fill(FIRST, range(100, 110))
        rig.broker.fail_next(FETCH, codes.UNKNOWN_TOPIC_ID)
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10)
        assert rig.read[FIRST][-10:] == list(range(100, 110))
        assert rig.gaps[0][3] == "recreated"


async def test_a_lost_connection_and_a_moved_leader_are_not_losses() -> None:
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0})
        for number in range(3):
            rig.fill(FIRST, range(number, number + 1))
            rig.broker.fail_next(FETCH, "disconnect")
            rig.broker.fail_next(FETCH, codes.NOT_LEADER_OR_FOLLOWER)
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
        assert rig.read[FIRST] == [0, 1, 2]
        assert rig.gaps == []
        assert rig.failed == []


async def test_what_arrives_between_two_calls_is_taken_from_the_room_of_the_first() -> None:
    async with fetching(partition_bytes=16 << 10) as rig:
        for first in range(0, 40, 4):
            rig.fill(FIRST, range(first, first + 4), pad=3_000)
        await rig.fetcher.assign({FIRST: 0})
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
        await rig.fetcher.assign({FIRST: 0})
        read: list[RecordBatch] = []
        while sum(batch.count for batch in read) < 130:
            for _, batches in await rig.fetcher.fetch(max_wait_ms=5_000, max_bytes=1 << 24):
                read += batches
        assert 1 < len(read) < 5, "joined, and a rest"
        held = sum(len(batch.data) for batch in read)
        assert rig.cluster.pool.leased_bytes == held, "no buffer, and what was joined counts"
