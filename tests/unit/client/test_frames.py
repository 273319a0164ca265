"""Frames survive any chunking, and buffers go back to their pool."""

import random
import struct

import pytest

from mm2py.client.connect.wire import HEAD_BYTES, FrameReceiver
from mm2py.errors import ProtocolError
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.record_batch import BufferLease


class Inbox:
    """Keeps copies, and leases when asked."""

    def __init__(self, *, keep: bool = False) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.leases: list[BufferLease] = []
        self._keep = keep

    def received(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        self.frames.append((correlation_id, bytes(body)))
        if self._keep and lease is not None:
            lease.retain()
            self.leases.append(lease)


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def feed(receiver: FrameReceiver, inbox: Inbox, data: bytes, most: int) -> int:
    position = 0
    while position < len(data):
        buffer = receiver.get_buffer()
        count = min(len(buffer), len(data) - position, most)
        assert count > 0
        buffer[:count] = data[position : position + count]
        for correlation_id, body, lease in receiver.take(count):
            inbox.received(correlation_id, body, lease)
        position += count
    return receiver.missing_bytes


@pytest.mark.parametrize("most", [1, 3, 4, 5, 1000, HEAD_BYTES, 10**9])
def test_frames_of_every_size_arrive_in_order_whatever_the_chunks(most: int) -> None:
    rng = random.Random(7)
    sizes = [0, 1, 5, 100, HEAD_BYTES - 8, HEAD_BYTES - 7, 20_000, 70_000, 3]
    expected = [(n, rng.randbytes(size)) for n, size in enumerate(sizes)]
    inbox, pool = Inbox(), BufferPool()
    receiver = FrameReceiver(pool)
    missing = feed(receiver, inbox, b"".join(frame(*item) for item in expected), most)
    assert inbox.frames == expected
    assert missing == 0
    assert pool.leased_bytes == 0


def test_a_kept_lease_holds_the_whole_buffer_until_its_last_release() -> None:
    released: list[int] = []
    others: list[int] = []
    inbox, pool = Inbox(keep=True), BufferPool()
    pool.on_release.add(lambda: released.append(pool.leased_bytes))
    pool.on_release.add(lambda: others.append(pool.free_bytes))
    receiver = FrameReceiver(pool)
    feed(receiver, inbox, frame(1, bytes(100_000)), 10**9)
    assert pool.leased_bytes == 131_072
    inbox.leases[0].release()
    assert (pool.leased_bytes, pool.free_bytes, released) == (0, 131_072, [0])
    assert others == [131_072], "everybody who waits for memory is told"
    feed(receiver, inbox, frame(2, bytes(80_000)), 10**9)
    assert pool.free_bytes == 0, "the free buffer is used again"


def test_missing_bytes_are_counted_only_inside_a_frame() -> None:
    receiver = FrameReceiver(BufferPool())
    data = frame(1, bytes(100))
    assert feed(receiver, Inbox(), data[:3], 100) == 0
    assert feed(receiver, Inbox(), data[3:10], 100) == 98
    assert feed(receiver, Inbox(), data[10:], 100) == 0
    long = frame(2, bytes(50_000))
    assert feed(receiver, Inbox(), long[:20_000], 10**9) == len(long) - 20_000


@pytest.mark.parametrize("size", [-1, 0, 3, 512 * 1024 * 1024 + 1, 0x48545450])
def test_an_impossible_length_is_a_protocol_error(size: int) -> None:
    receiver = FrameReceiver(BufferPool())
    with pytest.raises(ProtocolError, match=f"announces {size} bytes"):
        feed(receiver, Inbox(), struct.pack(">i", size), 4)


def test_close_gives_back_the_buffer_of_an_unfinished_frame() -> None:
    pool = BufferPool()
    receiver = FrameReceiver(pool)
    feed(receiver, Inbox(), frame(1, bytes(100_000))[:50_000], 10**9)
    assert pool.leased_bytes > 0
    receiver.close()
    receiver.close()
    assert pool.leased_bytes == 0


class Failing(Inbox):
    """Cannot take a frame."""

    def received(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        raise ProtocolError(f"answer {correlation_id} cannot be read")


def test_a_frame_that_cannot_be_handled_gives_its_buffer_back_at_once() -> None:
    pool = BufferPool()
    with pytest.raises(ProtocolError, match="answer 1"):
        feed(FrameReceiver(pool), Failing(), frame(1, bytes(100_000)), 10**9)
    assert pool.leased_bytes == 0
