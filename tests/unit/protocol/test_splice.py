"""Corner cases of splicing that the property tests need not find."""

import random
import struct

import pytest

from mm2py.protocol.batch_stage import classify
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.record_batch import Codec, RecordBatch, build_batch, crc32c
from mm2py.protocol.record_bytes import append_record, walk
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.protocol.splice import merge, recompress, rewrite, split
from tests.kit.fakes.batches import sealed


def staged(
    base: int, sizes: list[int], codec: Codec = Codec.NONE, stamp: int = 1000
) -> RecordBatch:
    raw = encode_batch([NewRecord(None, b"v" * n, (), stamp + n) for n in sizes], codec)
    struct.pack_into(">q", raw, 0, base)
    (batch,) = classify(memoryview(raw), base, None).batches
    return batch


def sizes_of(batch: RecordBatch) -> list[int]:
    (decoded,) = decode_batches(sealed(batch.data))
    return [len(record.value or b"") for record in decoded.records]


def test_a_batch_that_fits_is_not_touched() -> None:
    batch = staged(5, [10, 10])
    assert split(batch, batch.size) == ([batch], None)
    assert merge([batch]) is batch
    assert recompress(batch, Codec.NONE) is batch


def test_a_single_record_fits_to_the_byte() -> None:
    batch = staged(0, [500, 500])
    single = 61 + 2 + 1 + 1 + 1 + 1 + 2 + 500 + 1
    parts, too_large = split(batch, single)
    assert ([part.size for part in parts], too_large) == ([single, single], None)
    assert split(batch, single - 1).too_large == (0, single)


def test_a_part_that_compresses_badly_is_split_again() -> None:
    noise = random.Random(5).randbytes(4000)
    values = [bytes(4000)] * 4 + [noise[:1000], noise[1000:2000], noise[2000:3000], noise[3000:]]
    raw = encode_batch([NewRecord(None, value, (), 1) for value in values], Codec.GZIP)
    (batch,) = classify(memoryview(raw), 0, None).batches
    parts, too_large = split(batch, 1300)
    assert too_large is None
    assert max(part.size for part in parts) <= 1300
    assert sum(part.count for part in parts) == 8


def test_a_signed_batch_is_split_by_its_runs_not_by_its_header() -> None:
    batch = staged(100, [400, 400])
    struct.pack_into(">q", batch.data, 0, 0)
    parts = split(batch, 600).parts
    assert [part.runs for part in parts] == [((100, 1),), ((101, 1),)]


def test_tombstones_with_a_delete_horizon_keep_their_times() -> None:
    raw = encode_batch([NewRecord(b"k", None, (), 5_000), NewRecord(b"l", None, (), 6_000)])
    payload_times = {5_000, 6_000}
    horizon = 90_000_000
    raw[22] |= 0x40
    # The cleaner stores the horizon as base time and rewrites the deltas against it (KIP-534).
    payload = bytearray()
    for n, (stamp, span) in enumerate(zip((5_000, 6_000), walk(raw[61:], 2), strict=True)):
        append_record(payload, raw[61 + span.start : 61 + span.end], stamp - horizon, n * 2)
    holes = build_batch(
        payload,
        base_offset=7,
        count=2,
        base_timestamp=horizon,
        max_timestamp=6_000,
        attributes=0x40,
    )
    struct.pack_into(">i", holes, 23, 2)
    struct.pack_into(">I", holes, 17, crc32c(memoryview(holes)[21:]))
    spliced = rewrite(holes)
    assert spliced is not None
    assert spliced.attributes == 0
    assert spliced.max_timestamp == 6_000
    (decoded,) = decode_batches(sealed(spliced.data))
    assert {record.timestamp for record in decoded.records} == payload_times


@pytest.mark.parametrize("codec", Codec)
def test_big_records_survive_every_codec(codec: Codec) -> None:
    batch = staged(3, [100_000, 0, 200_000], codec)
    spliced = rewrite(batch.data, 4)
    assert spliced is not None
    assert sizes_of(spliced) == [0, 200_000]
    assert spliced.codec is codec


# -- the pool of receive buffers


SMALL, LARGE = 64 * 1024, 4 * 1024 * 1024


def test_buffers_of_a_backlog_are_dropped_if_unused_from_look_to_look() -> None:
    pool = BufferPool()
    for buffer in [pool.acquire(LARGE) for _ in range(5)]:
        buffer.release()
    pool.drop_unused()
    assert pool.free_bytes == 5 * LARGE, "they were in use since the last look"
    pool.drop_unused()
    assert (pool.free_bytes, pool.leased_bytes) == (0, 0)


def test_a_buffer_that_is_used_between_two_looks_stays_and_is_used_again() -> None:
    pool = BufferPool()
    kept = pool.acquire(LARGE)
    spare = pool.acquire(LARGE)
    spare.release()
    kept.release()
    pool.drop_unused()
    for _ in range(3):
        again = pool.acquire(LARGE)
        assert again.data is kept.data
        again.release()
        pool.drop_unused()
    assert pool.free_bytes == LARGE


def test_only_what_is_free_is_dropped_and_each_size_counts_for_itself() -> None:
    pool = BufferPool()
    held = pool.acquire(LARGE)
    pool.acquire(SMALL).release()
    pool.drop_unused()
    pool.acquire(SMALL).release()
    pool.drop_unused()
    assert (pool.free_bytes, pool.leased_bytes) == (SMALL, LARGE)
    held.release()
    assert pool.free_bytes == SMALL + LARGE


def test_a_copy_counts_as_the_buffer_does_and_is_made_only_where_that_frees_much() -> None:
    pool = BufferPool()
    released: list[int] = []
    pool.on_release.add(lambda: released.append(pool.leased_bytes))
    buffer = pool.acquire(LARGE)
    parts = [memoryview(buffer.data)[:SMALL], memoryview(buffer.data)[: LARGE // 2]]
    small, half = (RecordBatch(part, 0, 0, 1, 1, 0, 0, ((0, 1),), buffer) for part in parts)
    buffer.retain()
    small.detach()
    half.detach()
    assert (half.lease, pool.leased_bytes) == (buffer, LARGE + SMALL)
    lease = small.lease
    small.detach()
    assert small.lease is lease, "it is a copy already"
    assert lease is not None
    lease.release()
    buffer.release()
    assert released == [LARGE, 0]


def test_buffers_that_made_room_for_another_size_are_not_dropped_twice() -> None:
    pool = BufferPool(max_kept_bytes=LARGE)
    pool.acquire(LARGE).release()
    pool.drop_unused()
    small = pool.acquire(SMALL)
    assert pool.free_bytes == 0
    small.release()
    pool.drop_unused()
    assert pool.free_bytes == SMALL


def test_a_buffer_released_twice_is_a_bug_that_shows() -> None:
    buffer = BufferPool().acquire(10)
    buffer.release()
    with pytest.raises(AssertionError, match="released twice"):
        buffer.release()


def test_free_buffers_are_kept_only_up_to_the_limit() -> None:
    pool = BufferPool(max_kept_bytes=70_000)
    first, second = pool.acquire(10), pool.acquire(10)
    first.release()
    second.release()
    assert pool.free_bytes == 65_536


def test_free_buffers_of_other_sizes_give_way_to_what_is_handed_out() -> None:
    pool = BufferPool(max_kept_bytes=3 << 20)
    for size in (1 << 20, 1 << 20, 65_536):
        pool.acquire(size).release()
    assert pool.free_bytes == (1 << 20) + 65_536
    large = pool.acquire(2 << 20)
    assert pool.leased_bytes + pool.free_bytes <= 3 << 20
    larger = pool.acquire(4 << 20)
    assert pool.free_bytes == 0
    large.release()
    larger.release()
    assert pool.free_bytes <= 3 << 20


def test_a_closed_pool_keeps_no_buffers_not_even_those_that_come_back_later() -> None:
    pool = BufferPool()
    kept, early = pool.acquire(100_000), pool.acquire(100_000)
    early.release()
    assert pool.free_bytes > 0
    pool.close()
    assert pool.free_bytes == 0
    kept.release()
    assert (pool.free_bytes, pool.leased_bytes) == (0, 0)
