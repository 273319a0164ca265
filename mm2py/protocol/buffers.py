"""Pooled receive buffers: one for each large response, until the last batch cut from it is settled.

Flow: ``BufferPool.acquire`` -> ``PooledBuffer.retain`` per batch -> ``release`` -> back in the
pool, until ``BufferPool.drop_unused`` frees what was not needed for a while. Copies out of a buffer
are counted until they are released, too: ``leased_bytes`` is everything that was read and is not
settled (the limit is ``buffer.memory``).
"""

from collections.abc import Callable
from typing import Final, final

_MIN_BUFFER_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 4 * 1024 * 1024


@final
class PooledBuffer:
    """A receive buffer with a reference count; at zero it returns to the pool."""

    __slots__ = ("_pool", "_references", "data")

    def __init__(self, pool: "BufferPool", data: bytearray) -> None:
        self.data = data
        self._pool = pool
        self._references = 1

    def retain(self) -> None:
        assert self._references > 0, "a buffer was retained after its last release"
        self._references += 1

    def release(self) -> None:
        assert self._references > 0, "a buffer was released twice"
        self._references -= 1
        if self._references == 0:
            self._pool.take_back(self.data)

    @property
    def held_bytes(self) -> int:
        return len(self.data)

    def copied(self, size_bytes: int) -> "CountedCopy":
        return CountedCopy(self._pool, size_bytes)


@final
class CountedCopy:
    """Lease of bytes that were copied out of a pooled buffer; owned by one batch."""

    __slots__ = ("_pool", "_size_bytes")

    held_bytes = 0

    def __init__(self, pool: "BufferPool", size_bytes: int) -> None:
        self._pool, self._size_bytes = pool, size_bytes
        pool.leased_bytes += size_bytes

    def retain(self) -> None:
        raise AssertionError("a copy belongs to one batch")

    def release(self) -> None:
        self._pool.settled(self._size_bytes)

    def copied(self, size_bytes: int) -> "CountedCopy":
        return CountedCopy(self._pool, size_bytes)


@final
class BufferPool:
    """Receive buffers of one task host; sizes are powers of two from 64 KiB, from 4 MiB on
    multiples of it.

    ``leased_bytes`` counts whole buffers that are in use (a single batch keeps all of its buffer)
    and copies of parts of them. All of ``on_release`` are called each time memory is released:
    their owners may wait for it. Free buffers are kept while free and leased ones are within
    ``max_kept_bytes`` together, and while each was used since the last ``drop_unused``.
    """

    def __init__(self, *, max_kept_bytes: int = 64 * 1024 * 1024) -> None:
        self.leased_bytes = 0
        self.free_bytes = 0
        self.on_release: set[Callable[[], None]] = set()
        self._max_kept_bytes = max_kept_bytes
        self._free: dict[int, list[bytearray]] = {}
        self._unused: dict[int, int] = {}
        """By size: the fewest free buffers since the last ``drop_unused``."""

    def keep_at_most(self, max_kept_bytes: int) -> None:
        """Limit free and leased buffers together."""
        self._max_kept_bytes = max_kept_bytes

    def acquire(self, size_bytes: int) -> PooledBuffer:
        """Return a buffer of at least ``size_bytes`` with one reference."""
        # Few sizes: a buffer of one answer fits most later ones.
        rounded = max(_MIN_BUFFER_BYTES, 1 << (size_bytes - 1).bit_length())
        if rounded > _LARGE_BYTES:  # a single huge record: do not round up to twice its size
            rounded = -(-size_bytes // _LARGE_BYTES) * _LARGE_BYTES
        free = self._free.get(rounded)
        if free:
            data = free.pop()
            self.free_bytes -= rounded
            if len(free) < self._unused.get(rounded, 0):
                self._unused[rounded] = len(free)
        else:
            self._forget_for(rounded)
            data = bytearray(rounded)
        self.leased_bytes += rounded
        return PooledBuffer(self, data)

    def take_back(self, data: bytearray) -> None:
        """Keep or free the memory of a buffer; called at its last release."""
        size = len(data)
        # ``leased_bytes`` still counts this one: it is settled below.
        if self.leased_bytes + self.free_bytes <= self._max_kept_bytes:
            self._free.setdefault(size, []).append(data)
            self.free_bytes += size
        self.settled(size)

    def settled(self, size_bytes: int) -> None:
        """Stop counting leased bytes, and notify the owners that wait for memory."""
        self.leased_bytes -= size_bytes
        # A copy: a listener may remove itself.
        for waiting in tuple(self.on_release):
            waiting()

    def drop_unused(self) -> None:
        """Free buffers that were never needed since the last call, as after a backlog."""
        for size, free in self._free.items():
            unused = min(self._unused.get(size, 0), len(free))
            del free[:unused]  # those at the end were used last
            self.free_bytes -= unused * size
            self._unused[size] = len(free)

    def close(self) -> None:
        """Free everything; leased buffers are freed at their release."""
        self._max_kept_bytes = self.free_bytes = 0
        self._free.clear()

    def _forget_for(self, size: int) -> None:
        """Free buffers of other sizes, the largest first, until a new one of ``size`` fits."""
        for kept in sorted(self._free, reverse=True):
            free = self._free[kept]
            while free and self.leased_bytes + self.free_bytes + size > self._max_kept_bytes:
                free.pop()
                self.free_bytes -= kept
