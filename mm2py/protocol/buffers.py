"""Receive buffers that are used again: one for each large answer, until the last batch cut from it is settled.

Flow: ``BufferPool.acquire`` -> ``PooledBuffer.retain`` per batch -> ``release`` -> back in its pool.
"""

from collections.abc import Callable
from typing import Final, final

__all__ = ["BufferPool", "PooledBuffer"]

_MIN_BUFFER_BYTES: Final = 64 * 1024


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
    buffer. All of ``on_release`` are called each time a buffer comes back: they may be waiting for memory.
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
        for waiting in tuple(self.on_release):
            waiting()

    def close(self) -> None:
        """Keep no free buffers any more; those handed out may come back."""
        self._max_kept_bytes = self.free_bytes = 0
        self._free.clear()

    def _forget_for(self, size: int) -> None:
        """Sizes that were needed once must not stay beside those that are needed now."""
        for kept in sorted(self._free, reverse=True):
            free = self._free[kept]
            while free and self.leased_bytes + self.free_bytes + size > self._max_kept_bytes:
                free.pop()
                self.free_bytes -= kept
