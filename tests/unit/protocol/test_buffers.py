"""The pool of receive buffers: what is used again, and what goes back to the system."""

import pytest

from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.record_batch import RecordBatch

SMALL, LARGE = 64 * 1024, 4 * 1024 * 1024


def test_buffers_that_a_backlog_needed_are_dropped_when_none_asked_for_them_from_look_to_look() -> (
    None
):
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
