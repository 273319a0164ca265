"""What a lane's task has stored: its positions and where its copies end, seen when the target
acknowledged them.

Flow: task -> ``ObservedOffsets.set``, ``ObservedMaps.write`` -> the flow's stores -> acknowledged
-> ``positions``, ``target_ends``.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import final

from mm2py.errors import ProtocolError
from mm2py.mirror.offset_map_pages import Page
from mm2py.mirror.source_offsets import (
    mirrored_partition,
    next_offset,
    parse_source_offset_key,
    parse_source_offset_value,
)
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.storage.offset_map_store import MapsOver, MapStore, StoredMap
from mm2py.types import TopicPartition


@final
class ObservedOffsets:
    """Implements ``OffsetStore`` over another."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self.positions: dict[TopicPartition, int] = {}
        """By source partition the next offset to copy; everything below it is stored as copied."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        values = await self._store.get(keys)
        for key, value in zip(keys, values, strict=True):
            self._note(key, value)
        return values

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        await self._store.set(values)
        for key, value in values.items():
            self._note(key, value)

    def _note(self, key: bytes, value: bytes | None) -> None:
        partition, position = mirrored_partition(parse_source_offset_key(key)[1]), -1
        with suppress(ProtocolError):  # the task says so
            position = next_offset(parse_source_offset_value(value))
        if partition is not None and position >= 0:
            self.positions[partition] = position


@final
class ObservedMaps(MapsOver):
    """Implements ``MapStore`` over another."""

    def __init__(self, store: MapStore) -> None:
        super().__init__(store)
        self.target_starts: dict[TopicPartition, int] = {}
        """By source partition where copies begin, those of a former attempt of the lane too: where
        the flow had any before, the lease names it."""
        self.target_ends: dict[TopicPartition, int] = {}
        """By source partition the target offset after the newest copy that the map has."""

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        maps = await super().load(partitions)
        for partition, stored in maps.items():
            self._note(partition, stored.page)
        return maps

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        await super().write(pages)
        for partition, changed in pages.items():
            for page in changed:
                self._note(partition, page)

    def _note(self, partition: TopicPartition, page: Page) -> None:
        if page.segments:
            self.target_starts.setdefault(partition, page.segments[0].target)
            self.target_ends[partition] = page.segments[-1].target_end
