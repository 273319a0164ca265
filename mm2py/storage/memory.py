"""Source offsets in memory: for tests and for whoever wants to run a task without a cluster.

Flow: ``set`` -> dict -> ``get``. Same contract as ``KafkaOffsetBackingStore``; nothing survives the process.
"""

from collections.abc import Mapping, Sequence
from typing import final

from mm2py.storage.offset_entries import OffsetMap

__all__ = ["MemoryOffsetBackingStore"]


@final
class MemoryOffsetBackingStore:
    """Newest value per key, in memory."""

    def __init__(self) -> None:
        self._offsets = OffsetMap()

    async def start(self) -> None:
        """Nothing to open."""

    async def stop(self) -> None:
        """Nothing to close; what was stored stays."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Store values, None as a tombstone."""
        for key, value in values.items():
            self._offsets.put(key, value)
