"""The exact offset map of one flow, as the processes that write it see it
(``mm2py-offset-map.<source>.internal``).

Flow: ``load`` -> the topic read to its end -> the newest page of each partition; ``write`` ->
changed pages -> acknowledged. Older pages are read from the topic when one is needed. In memory are
a few numbers per page, and the newest pages in their stored form.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, final

from mm2py.errors import ProtocolError
from mm2py.mirror.offset_lookup import MapIndex, PartitionIndex
from mm2py.mirror.offset_map_pages import Page, PageRef, decode_page, encode_page, encode_page_key
from mm2py.protocol.records import Record
from mm2py.storage.table import Entry, Table, batched
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""Longest read to the end of the topic (``default.api.timeout.ms``)."""


def page_entries(pages: Mapping[TopicPartition, Sequence[Page]]) -> list[Entry]:
    """Return pages as records of the topic; those of one partition in their order."""
    return [
        (encode_page_key(partition, page.number), encode_page(page))
        for partition, changed in pages.items()
        for page in changed
    ]


class StoredMap(NamedTuple):
    """One partition's map: its newest page, and what is known of the pages before it."""

    page: Page
    older: Sequence[PageRef]
    replaced: Sequence[Page] = ()
    """Those that compaction removes for a late page of a former task, to be written again."""


class MapStore(Protocol):
    """Store of the maps of a task's partitions."""

    @property
    def topic(self) -> str:
        """Name of the topic, empty where nothing is kept."""
        ...

    @property
    def topics_lost(self) -> int:
        """How often the topic was made again since the start, without the pages from before."""
        ...

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        """Return the maps of partitions that have one; reads the topic to its end first."""
        ...

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """All partitions that have a map, as far as the topic was read."""
        ...

    async def numbers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[int]]:
        """Return partitions' page numbers, oldest first; reads the topic to its end first."""
        ...

    async def page_below(self, partition: TopicPartition, target: int) -> Page | None:
        """Return the last page that begins below a target offset, else the first; None if gone."""
        ...

    async def pages(self, partition: TopicPartition, refs: Sequence[PageRef]) -> Sequence[Page]:
        """Return pages from where they are in the topic, without those that are gone."""
        ...

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        """Write pages; returns when all are acknowledged, raises as ``OffsetStore.set``."""
        ...

    async def remove(self, pages: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Remove pages by number, in the order given; as ``write``."""
        ...


class MapsOver(MapStore):
    """Passes everything on to another store; subclasses change what differs."""

    def __init__(self, maps: MapStore) -> None:
        self._maps = maps

    async def _ready(self) -> None:
        """Hook before each request to the other store."""

    @property
    def topic(self) -> str:
        return self._maps.topic

    @property
    def topics_lost(self) -> int:
        return self._maps.topics_lost

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self._maps.partitions

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        await self._ready()
        return await self._maps.load(partitions)

    async def numbers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[int]]:
        await self._ready()
        return await self._maps.numbers(partitions)

    async def page_below(self, partition: TopicPartition, target: int) -> Page | None:
        await self._ready()
        return await self._maps.page_below(partition, target)

    async def pages(self, partition: TopicPartition, refs: Sequence[PageRef]) -> Sequence[Page]:
        await self._ready()
        return await self._maps.pages(partition, refs)

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        await self._ready()
        await self._maps.write(pages)

    async def remove(self, pages: Mapping[TopicPartition, Sequence[int]]) -> None:
        await self._ready()
        await self._maps.remove(pages)


@final
class NoMapStore:
    """For tasks whose records are not copies, and workers that keep their offsets in a file."""

    @property
    def topic(self) -> str:
        return ""

    @property
    def topics_lost(self) -> int:
        return 0

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return ()

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        return {}

    async def numbers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[int]]:
        return {}

    async def page_below(self, partition: TopicPartition, target: int) -> Page | None:
        return None

    async def pages(self, partition: TopicPartition, refs: Sequence[PageRef]) -> Sequence[Page]:
        return ()

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        """Keep nothing."""

    async def remove(self, pages: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Nothing is kept."""


@final
class OffsetMapStore:
    """Implements ``MapStore`` over a ``Table``.

    Args:
        table: the topic; it is read at each ``load``, not followed.
        read: reads an older page of a partition from the topic.
    """

    def __init__(
        self, table: Table, read: Callable[[TopicPartition, PageRef], Awaitable[Page | None]]
    ) -> None:
        self._table, self._read = table, read
        self.index = MapIndex()
        self._newest: dict[TopicPartition, tuple[int, bytes]] = {}
        self._written = -1
        self._unnoted: set[asyncio.Future[int]] = set()
        self._topics_lost = 0

    @property
    def topic(self) -> str:
        return self._table.topic

    @property
    def topics_lost(self) -> int:
        """How often the topic was created again since the start: its offsets went back."""
        return self._topics_lost

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that fails now."""
        self.index, self._newest = MapIndex(), {}
        await self._table.start(self._take)
        if self.index.strange:
            log.warning(
                "offset map holds records that this program cannot read, they are left alone "
                "topic=%s records=%d",
                self._table.topic,
                self.index.strange,
            )
        log.info(
            "offset map read topic=%s partitions=%d", self._table.topic, len(self.index.partitions)
        )

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        await self._table.stop()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self.index.partitions.keys()

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        await self._table.read_to_end(READ_S)
        maps: dict[TopicPartition, StoredMap] = {}
        for partition in partitions:
            index = self.index.of(partition)
            if index is None:
                continue
            try:
                page = decode_page(*self._newest[partition])
                replaced = await self._replaced(partition, index, page)
                page = replace(page, start=index.start)
                maps[partition] = StoredMap(page, index.pages[:-1], replaced)
            except ProtocolError as error:
                log.warning(
                    "offset map of a partition is damaged, it begins anew partition=%s cause=%s",
                    partition,
                    error,
                )
        return maps

    async def _replaced(
        self, partition: TopicPartition, index: PartitionIndex, newest: Page
    ) -> Sequence[Page]:
        first = index.unordered
        if first > newest.number:
            return ()
        refs = [ref for ref in index.pages[:-1] if ref.number >= first]
        return [*await self.pages(partition, refs), newest]

    async def pages(self, partition: TopicPartition, refs: Sequence[PageRef]) -> Sequence[Page]:
        try:
            pages = [await self._read(partition, ref) for ref in refs]
        except ProtocolError:
            return ()  # a look-up names the page
        # One that is compacted away already cannot be written again.
        return [page for page in pages if page is not None]

    async def page_below(self, partition: TopicPartition, target: int) -> Page | None:
        await self._table.read_to_end(READ_S)
        index = self.index.of(partition)
        return None if index is None else await self._read(partition, index.page_of_target(target))

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        entries = page_entries(pages)
        if entries:
            posts = [self._table.post(batch) for batch in batched(entries)]
            self._unnoted.update(posts)
            for post in posts:
                post.add_done_callback(self._note_written)
            try:
                await asyncio.gather(*posts)
            finally:
                # Of a post that was done at once, the callback
                # comes after the caller continues (Python 3.12).
                for post in posts:
                    if post.done():
                        self._note_written(post)

    def _note_written(self, post: "asyncio.Future[int]") -> None:
        if post not in self._unnoted:
            return
        self._unnoted.remove(post)
        if post.cancelled() or post.exception() is not None:
            return
        # Offsets of one partition only grow: a lower one is of another topic with this name.
        if post.result() <= self._written:
            self._topics_lost += 1
            self.index, self._newest = MapIndex(), {}
            log.error(
                "topic was deleted and created again topic=%s: the offset maps that were in it are "
                "lost, those of partitions that are copied now begin anew; do not delete the topic",
                self.topic,
            )
        self._written = post.result()

    async def numbers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[int]]:
        await self._table.read_to_end(READ_S)
        numbers_of = {partition: self.index.partitions.get(partition) for partition in partitions}
        return {
            it: [ref.number for ref in index.pages]
            for it, index in numbers_of.items()
            if index is not None
        }

    async def remove(self, pages: Mapping[TopicPartition, Sequence[int]]) -> None:
        entries: list[Entry] = [
            (encode_page_key(it, number), None)
            for it, numbers in pages.items()
            for number in numbers
        ]
        await asyncio.gather(*(self._table.post(batch) for batch in batched(entries)))
        for partition, numbers in pages.items():
            # Only now: a page that could not be removed is still read.
            self.index.forget(partition, numbers)

    def _take(self, _partition: int, record: Record) -> None:
        taken = self.index.take(record)
        if taken is None or record.value is None:
            return
        partition, ref = taken
        self._newest[partition] = ref.number, bytes(record.value)
