"""Length-prefixed frames out of a byte stream, into buffers that are used again.

Flow: ``get_buffer`` -> the transport writes -> ``buffer_updated`` -> ``deliver(correlation id, body, lease)``.
Short frames are delivered from one fixed head buffer, long ones from a pooled buffer of their own,
so that record data is never copied again. No sockets here; asyncio's ``BufferedProtocol`` drives it.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, final

from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import BufferLease

__all__ = ["HEAD_BYTES", "MAX_FRAME_BYTES", "BufferPool", "FrameReceiver", "PooledBuffer"]

HEAD_BYTES: Final = 16 * 1024
"""Frames that fit here are delivered without a pooled buffer."""

MAX_FRAME_BYTES: Final = 512 * 1024 * 1024
"""Longer frames are nonsense or an attack; brokers cut Fetch answers at fetch.max.bytes."""

_MIN_BUFFER_BYTES: Final = 64 * 1024
_SIZE: Final = Struct(">i")


@final
class PooledBuffer:
    """A receive buffer with a reference count; at zero it returns to its pool."""

    __slots__ = ("_pool", "_references", "data")

    def __init__(self, pool: "BufferPool", data: bytearray) -> None:
        self.data = data
        self._pool = pool
        self._references = 1

    def retain(self) -> None:
        """Take one more reference."""
        assert self._references > 0, "a buffer was retained after its last release"
        self._references += 1

    def release(self) -> None:
        """Give one reference back; views of the buffer must not be used after the last one."""
        assert self._references > 0, "a buffer was released twice"
        self._references -= 1
        if self._references == 0:
            self._pool.take_back(self.data)


@final
class BufferPool:
    """Receive buffers of one task host; sizes are powers of two from 64 KiB.

    ``leased_bytes`` counts whole buffers that are handed out: a single kept batch keeps all of its
    buffer. All of ``on_release`` are called each time a buffer comes back, for who waits for memory.
    Free buffers are kept while they and those handed out are within ``max_kept_bytes`` together.
    """

    def __init__(self, *, max_kept_bytes: int = 64 * 1024 * 1024) -> None:
        self.leased_bytes = 0
        self.free_bytes = 0
        self.on_release: set[Callable[[], None]] = set()
        self._max_kept_bytes = max_kept_bytes
        self._free: dict[int, list[bytearray]] = {}

    def acquire(self, size_bytes: int) -> PooledBuffer:
        """Hand out a buffer of at least ``size_bytes`` with one reference."""
        rounded = max(_MIN_BUFFER_BYTES, 1 << (size_bytes - 1).bit_length())
        free = self._free.get(rounded)
        if free:
            data = free.pop()
            self.free_bytes -= rounded
        else:
            self._forget_for(rounded)
            data = bytearray(rounded)
        self.leased_bytes += rounded
        return PooledBuffer(self, data)

    def take_back(self, data: bytearray) -> None:
        """Called by a buffer at its last release."""
        size = len(data)
        self.leased_bytes -= size
        if self.leased_bytes + self.free_bytes + size <= self._max_kept_bytes:
            self._free.setdefault(size, []).append(data)
            self.free_bytes += size
        for told in tuple(self.on_release):
            told()

    def close(self) -> None:
        """Keep no free buffers any more, whoever still refers to the pool; those handed out may come back."""
        self._max_kept_bytes = self.free_bytes = 0
        self._free.clear()

    def _forget_for(self, size: int) -> None:
        """Sizes that were needed once must not stay beside those that are needed now."""
        for kept in sorted(self._free, reverse=True):
            free = self._free[kept]
            while free and self.leased_bytes + self.free_bytes + size > self._max_kept_bytes:
                free.pop()
                self.free_bytes -= kept


@final
class FrameReceiver:
    """Cuts the stream of one connection into frames.

    ``deliver`` gets the correlation id (the first int32 of a frame), the bytes behind it and, for a
    pooled frame, its lease. The receiver holds one reference during the call: who keeps the view
    must retain the lease. With lease None the view is valid only during the call.
    """

    def __init__(
        self, pool: BufferPool, deliver: Callable[[int, memoryview, BufferLease | None], None]
    ) -> None:
        self._pool = pool
        self._deliver = deliver
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._filled = 0  # bytes in the buffer that is being filled
        self._long: PooledBuffer | None = None
        self._long_view = self._head[:0]  # exactly one frame, without its length

    def get_buffer(self) -> memoryview:
        """Return where the next bytes of the stream go; never empty."""
        return (self._head if self._long is None else self._long_view)[self._filled :]

    def buffer_updated(self, nbytes: int) -> int:
        """Take ``nbytes`` that were written and deliver what is complete.

        Returns the bytes still missing of the frame being received, 0 between frames.

        Raises:
            ProtocolError: the length of a frame is impossible; close the connection.
        """
        self._filled += nbytes
        long = self._long
        if long is None:
            return self._cut_head()
        view = self._long_view
        missing = len(view) - self._filled
        if missing == 0:
            self._long, self._long_view, self._filled = None, self._head[:0], 0
            try:
                self._deliver(_SIZE.unpack_from(view)[0], view[4:], long)
            finally:
                long.release()
        return missing

    def close(self) -> None:
        """Give back the buffer of an unfinished frame."""
        long, self._long, self._filled = self._long, None, 0
        self._long_view = self._head[:0]
        if long is not None:
            long.release()

    def _cut_head(self) -> int:
        head, filled, position = self._head, self._filled, 0
        size = 0
        while filled - position >= 4:
            size = _check(_SIZE.unpack_from(head, position)[0])
            if filled - position - 4 < size:
                break
            body = position + 8
            position += 4 + size
            correlation_id = _SIZE.unpack_from(head, body - 4)[0]
            self._deliver(correlation_id, head[body:position], None)
            size = 0
        rest = filled - position
        if size + 4 > HEAD_BYTES:
            return self._start_long(position + 4, size)
        if position and rest:
            head[:rest] = bytes(head[position:filled])
        self._filled = rest
        return size + 4 - rest if size else 0

    def _start_long(self, position: int, size: int) -> int:
        received = self._filled - position
        self._long = self._pool.acquire(size)
        self._long_view = memoryview(self._long.data)[:size]
        self._long_view[:received] = self._head[position : self._filled]
        self._filled = received
        return size - received


def _check(size: int) -> int:
    if 4 <= size <= MAX_FRAME_BYTES:
        return size
    raise ProtocolError(
        f"a frame announces {size} bytes",
        remedy="check that the port is a Kafka listener of the configured security.protocol",
    )
