"""What a lane's task has stored: its positions and where its copies end, seen when the target acknowledged them.

Flow: task -> ``ObservedOffsets.set``, ``ObservedMaps.write`` -> the flow's stores -> acknowledged -> ``positions``, ``target_ends``.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import final

from mm2py.mirror.offset_map import Page
from mm2py.mirror.source_offsets import (
    committed_offset,
    parse_source_offset_key,
    parse_source_offset_value,
)
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.storage.offset_map_store import MapStore, StoredMap
from mm2py.types import TopicPartition

__all__ = ["ObservedMaps", "ObservedOffsets"]


@final
class ObservedOffsets:
    """Implements ``OffsetStore`` over another."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self.positions: dict[TopicPartition, int] = {}
        """By source partition the next offset to copy; everything below it is stored as copied."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        values = await self._store.get(keys)
        for key, value in zip(keys, values, strict=True):
            self._note(key, value)
        return values

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values; returns when all are acknowledged."""
        await self._store.set(values)
        for key, value in values.items():
            self._note(key, value)

    def _note(self, key: bytes, value: bytes | None) -> None:
        _, partition = parse_source_offset_key(key)
        topic, number = partition.get("topic"), partition.get("partition")
        last = committed_offset(parse_source_offset_value(value))
        if isinstance(topic, str) and isinstance(number, int) and last >= 0:
            self.positions[TopicPartition(topic, number)] = last + 1


@final
class ObservedMaps:
    """Implements ``MapStore`` over another."""

    def __init__(self, store: MapStore) -> None:
        self._store = store
        self.target_starts: dict[TopicPartition, int] = {}
        """By source partition where the first copy of this process is, or would be."""
        self.target_ends: dict[TopicPartition, int] = {}
        """By source partition the target offset behind the newest copy that the map has."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._store.topic

    @property
    def topics_lost(self) -> int:
        """How often the topic was lost and made again."""
        return self._store.topics_lost

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """All partitions that have a map, as far as the topic was read."""
        return self._store.partitions

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        """Return the maps of partitions that have one."""
        maps = await self._store.load(partitions)
        for partition, stored in maps.items():
            self._note(partition, stored.page, first=False)
        return maps

    async def numbers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[int]]:
        """Return the numbers of partitions' pages."""
        return await self._store.numbers(partitions)

    async def remove(self, pages: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Remove pages by number."""
        await self._store.remove(pages)

    async def page_below(self, partition: TopicPartition, target: int) -> Page | None:
        """Return the last page that begins below a target offset."""
        return await self._store.page_below(partition, target)

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        """Write pages; returns when all are acknowledged."""
        await self._store.write(pages)
        for partition, changed in pages.items():
            for page in changed:
                self._note(partition, page, first=True)

    def _note(self, partition: TopicPartition, page: Page, *, first: bool) -> None:
        if page.segments:
            begins = page.segments[0].target if first else page.segments[-1].target_end
            self.target_starts.setdefault(partition, begins)
            self.target_ends[partition] = page.segments[-1].target_end
