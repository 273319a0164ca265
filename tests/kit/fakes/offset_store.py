"""Source offsets in memory."""

from collections.abc import Mapping, Sequence
from typing import final

from mm2py.storage.offset_backing_store import OffsetMap


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
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        for key, value in values.items():
            self._offsets.put(key, value)

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out."""
        return self._offsets.of_connector(connector)
