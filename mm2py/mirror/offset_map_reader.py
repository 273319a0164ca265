"""The exact offset map of a flow for processes that translate: checkpoints, REST, commands,
clients.

Flow: ``mm2py-offset-map.<source>.internal`` -> ``MapIndex`` in memory; pages are read when a
look-up needs one, by their offset in the topic, and the newest used are kept. A dense partition has
one small page.

Invariant, a test of the same name: a map whose newest page is about another target topic than the
copy that is there now (its id, or its name by the replication policy), or about a copy that is
gone, places nothing: both directions answer UNKNOWN.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.fetch.partition_fetch import READ_COMMITTED, fetch_partition
from mm2py.clock import Clock, cancelled
from mm2py.errors import ProtocolError, ServerError
from mm2py.mirror.offset_lookup import (
    Beginning,
    MapIndex,
    PageMissingError,
    Pages,
    PartitionIndex,
    Place,
    Translation,
    beginning,
    own_from,
    to_source,
    to_target,
)
from mm2py.mirror.offset_map_pages import (
    Page,
    PageRef,
    decode_page,
    decode_page_key,
    offset_map_topic,
)
from mm2py.mirror.routed_names import SAMPLE
from mm2py.mirror.shared_copies import OtherMaps
from mm2py.protocol.error_codes import OFFSET_OUT_OF_RANGE
from mm2py.protocol.records import Record, decode_batches
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic, named_id
from mm2py.types import EARLIEST, TopicPartition

log = logging.getLogger(__name__)

KEPT_SEGMENTS: Final = 100_000
"""Of pages in memory; about 15 MB."""

PAGE_BYTES: Final = 64 * 1024
"""A page is smaller; batches of several are at most so large
(``mm2py.storage.table.BATCH_BYTES``)."""

READ_TRIES: Final = 3

MARKERS_AT_ONCE: Final = 50
"""Places between copies that are read for one answer: exactly once, each transaction leaves one."""

Found = TypeVar("Found")


@final
class PageCache:
    """The newest used pages, by their offset in the topic; a page without segments counts as
    one."""

    def __init__(self, kept_segments: int = KEPT_SEGMENTS) -> None:
        self._kept = kept_segments
        self._pages: OrderedDict[int, Page] = OrderedDict()
        self._segments = 0

    def __len__(self) -> int:
        return len(self._pages)

    def put(self, ref: PageRef, page: Page) -> None:
        """Keep a page; the ones that were not used for longest leave."""
        self._pages[ref.position] = page
        self._segments += max(1, len(page.segments))
        # At least one page stays, or a page larger than the limit could never be looked up.
        while self._segments > self._kept and len(self._pages) > 1:
            self.drop(next(iter(self._pages)))

    def drop(self, position: int) -> None:
        page = self._pages.pop(position, None)
        if page is not None:
            self._segments -= max(1, len(page.segments))

    def get(self, ref: PageRef) -> Page:
        """Return a page; ``PageMissingError``: it has to be read."""
        page = self._pages.get(ref.position)
        if page is None:
            raise PageMissingError(ref)
        self._pages.move_to_end(ref.position)
        return page


async def read_page(
    cluster: Cluster, topic: str, partition: TopicPartition, ref: PageRef
) -> Page | None:
    """Read one page from the topic; None when it was replaced and compacted away meanwhile.

    Raises:
        RetriableError: not now.
        ServerError: the topic may not be read.
        ProtocolError: the record there is damaged.
    """
    here = TopicPartition(topic, 0)
    # The broker answers from the batch that contains the offset: the page is searched in it by its
    # own offset.
    fetched = await fetch_partition(cluster, here, ref.position, max_bytes=PAGE_BYTES)
    for batch in decode_batches(fetched.records) if fetched.records is not None else ():
        for record in batch.records:
            if record.offset == ref.position and record.value is not None:
                key = decode_page_key(record.key)
                # One topic never gives an offset twice, but it may have been created again: the key
                # decides.
                return (
                    decode_page(ref.number, record.value)
                    if key == (partition, ref.number)
                    else None
                )
    return None


async def no_record_until(cluster: Cluster, tp: TopicPartition, at: int) -> int:
    """Return the offset after a marker, aborted batch or hole at an offset of a log; the offset
    itself where there is a record, or it cannot be read."""
    try:
        fetched = await fetch_partition(
            cluster, tp, at, max_bytes=1, isolation_level=READ_COMMITTED
        )
    except ServerError as error:
        # Unreadable, for an ACL or a deleted topic: the offset itself is the careful answer, no
        # group is moved past it.
        if error.code != OFFSET_OUT_OF_RANGE:
            log.debug("copy cannot be read partition=%s offset=%d cause=%s", tp, at, error)
            return at
        # Retention has deleted what lay there: the log begins later, and no record is before its
        # start.
        start = (await Admin(cluster).list_offsets({tp: EARLIEST})).get(tp)
        return at if start is None or start.error is not None else max(at, start.offset)
    for batch in decode_batches(fetched.records) if fetched.records is not None else ():
        # The first batch of a response may begin before the offset that was asked for.
        if batch.last_offset < at:
            continue
        if batch.base_offset > at:
            return batch.base_offset
        is_aborted = any(
            # READ_COMMITTED names aborted transactions beside the records; filtering them is the
            # reader's part (KIP-98).
            producer == batch.producer_id and first <= at
            for producer, first in fetched.aborted
        )
        is_dropped = batch.is_control or (batch.is_transactional and is_aborted)
        return batch.last_offset + 1 if is_dropped else at
    return at


@final
class OffsetMapReader:
    """Translates offsets of one flow, both ways, with the exact map on its target.

    Args:
        cluster: the target; its owner connects and closes it.
        source_alias: of the flow.
        copy_of: name of a source topic's copy; None where the caller checks itself which copies are
            former ones.
        is_back: it is the map of a flow back, which may name copies otherwise; who else writes into
            them does not matter.
    """

    def __init__(
        self,
        cluster: Cluster,
        source_alias: str,
        *,
        clock: Clock,
        copy_of: Callable[[str], str] | None = None,
        is_back: bool = False,
    ) -> None:
        self._cluster, self._clock, self._copy_of = cluster, clock, copy_of
        self._is_back = is_back
        self._elsewhere: frozenset[bytes] = frozenset()
        """Ids of topics of other names that a map is about."""
        self._not_here: set[bytes] = set()
        """Ids of the topics that a map is about in place of the copies of these names, as they were
        looked for."""
        self._copies: Mapping[str, bytes | None] = {}
        """Ids of the copies that are there now by source topic; None: the copy is gone, zeros: its
        id is not known."""
        self.topic = offset_map_topic(source_alias)
        self._reader: LogReader | None = None
        self._tail: asyncio.Task[None] | None = None
        self._pages = PageCache()
        self._newest: dict[TopicPartition, tuple[PageRef, bytes]] = {}
        """Of each partition the page that grows, in its stored form: it is replaced each second,
        and asked for most."""
        self._markers: dict[tuple[TopicPartition, bytes], tuple[int, int]] = {}
        """From where to where no record lies between the copies in a target partition, as it was
        read."""
        self._index = MapIndex()
        self._turn = asyncio.Lock()
        self._others = OtherMaps(cluster, self.topic, clock=clock)

    async def read_to_end(self) -> None:
        """Read what is new in the topic; not while ``follow`` does it.

        Raises:
            RetriableError: not now; a later call continues.
            ServerError: the topic does not exist, or may not be read.
        """
        async with self._turn:
            if self._reader is None:
                self._reader = LogReader(
                    self._cluster, self.topic, clock=self._clock, waits_for_topic=False, folds=True
                )
            await self._reader.read_to_end(self._take)
        await self.read_copies()

    async def read_copies(self) -> None:
        """Ask the target which copies there are now, and where names are kept, which other flows
        write into them; ``RetriableError``: not now; what was known before counts."""
        # Callers that check copies themselves, by replication policy, pay for no metadata request.
        if self._copy_of is None:
            return
        names = {it.topic: self._copy_of(it.topic) for it in self.partitions()}
        described = await Admin(self._cluster).describe_topics(names.values()) if names else {}
        copies: dict[str, bytes | None] = {}
        for topic, name in names.items():
            copy = described.get(name)
            if copy is None:
                copies[topic] = None
            else:
                # An error (no Describe on the topic, for one) says nothing of the copy, and an
                # unknown id contradicts nothing.
                is_unknown = copy.error is not None
                copies[topic] = NO_TOPIC_ID if is_unknown else named_id(name, copy.topic_id)
        self._copies = copies
        # The flow back may name its copies by another policy, so "not under this name" is not yet
        # "gone": the id is looked for among all topics.
        if self._is_back:
            await self._read_elsewhere()
        # Only where a copy keeps its source's name can two flows write into one topic.
        elif any(self._copy_of(topic) == topic for topic in (SAMPLE, *names)):
            await self._others.read()

    def sharers(self, partition: TopicPartition) -> Sequence[str]:
        """Return the source aliases of other flows that write into the copy of a source partition;
        then no group has a place there."""
        if self._copy_of is None or self._copy_of(partition.topic) != partition.topic:
            return ()
        index = self.index_of(partition)
        return self._others.shared.sharers(partition, b"" if index is None else index.source_id)

    @property
    def has_others(self) -> bool:
        """Whether other flows have maps on this target, where names are kept."""
        return bool(self._others.shared.maps)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Maps of other flows that may not be read, with the cause."""
        return self._others.unreadable

    def is_former(self, partition: TopicPartition) -> bool:
        """Whether the newest page of a source partition is about another copy than the one that is
        there now."""
        index = self.index_of(partition)
        if index is None or partition.topic not in self._copies:
            return False
        copy_id = self._copies[partition.topic]
        return copy_id is None or is_another_topic(index.target_id, copy_id)

    async def _read_elsewhere(self) -> None:
        ids = {
            index.target_id
            for it in self.partitions()
            if self.is_former(it) and (index := self.index_of(it)) is not None
        }
        # Same suspects as before: the full topic list of a cluster is not asked for again.
        if ids == self._not_here:
            return
        there = set[bytes]()
        if ids:  # all topics of a cluster are many
            topics = await Admin(self._cluster).list_topics()
            there = {named_id(name, it.topic_id) for name, it in topics.items()}
        self._elsewhere, self._not_here = frozenset(ids & there), ids

    def is_elsewhere(self, partition: TopicPartition) -> bool:
        """Whether the copies of a source partition are in a topic of another name, by the map of a
        flow back."""
        index = self.index_of(partition)
        return index is not None and index.target_id in self._elsewhere

    def follow(self) -> None:
        """Take in everything new as soon as it is there, until ``close``; ``read_to_end`` goes
        first."""
        if self._reader is not None and self._tail is None:
            self._tail = asyncio.create_task(
                self._reader.tail(self._take), name=f"follow {self.topic}"
            )

    async def close(self) -> None:
        """Stop following; safe before ``read_to_end`` and safe twice."""
        # Both are taken before the first await: a second ``close`` during it finds nothing to
        # close.
        tail, self._tail = self._tail, None
        reader, self._reader = self._reader, None
        await cancelled(tail)
        if reader is not None:
            await reader.close()
        await self._others.close()

    def is_of_former_copy(self, partition: TopicPartition, upstream: int, downstream: int) -> bool:
        """Whether an earlier translation is of a former copy: the map covers it, and its copies end
        before."""
        index = self.index_of(partition)
        return index is not None and (
            self.is_former(partition)
            # Or: covered by the map and yet beyond its last copy; that place was computed for a
            # copy that had more records.
            or (upstream <= index.covered and downstream > index.target_end)
        )

    def report_anew(self, on_anew: Callable[[TopicPartition], None]) -> None:
        """Call this for a partition whose map begins anew, or goes back."""
        self._index.on_anew = on_anew

    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(
            partition
            for partition in self._index.partitions
            if self.index_of(partition) is not None
        )

    def index_of(self, partition: TopicPartition) -> PartitionIndex | None:
        """Return what is known of a source partition's map: its ends, its topics' ids; None where
        nothing was copied."""
        index = self._index.of(partition)
        return index if index is not None and index.has_segments else None

    def passed(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> int:
        """Return below which source offset nothing is copied any more, also where nothing was
        copied; -1 where the flow has not begun with a partition of the topic with this id."""
        index = self._index.of(partition)
        is_begun = index is not None and not is_another_topic(index.source_id, topic_id)
        return index.passed if index is not None and is_begun else -1

    async def to_target(self, partition: TopicPartition, source_offset: int) -> Translation | None:
        """Translate an offset of a source partition; None where it has no map (nothing was copied).

        Raises:
            RetriableError: a page could not be read now.
            ProtocolError: a page is damaged.
        """
        # What the map says is of another log: not even its end counts for this one.
        if self.is_former(partition):
            return Translation(Place.UNKNOWN, -1)
        return await self._look(
            partition, lambda index, pages: to_target(index, source_offset, pages)
        )

    async def to_source(self, partition: TopicPartition, target_offset: int) -> Translation | None:
        """Translate an offset of the copy of a source partition; as ``to_target``."""
        if self.is_former(partition):
            return Translation(Place.UNKNOWN, -1)
        return await self._look(
            partition, lambda index, pages: to_source(index, target_offset, pages)
        )

    async def beginning(self, partition: TopicPartition) -> Beginning | None:
        """Return where the map of a source partition begins; as ``to_target``."""
        return await self._look(partition, beginning)

    async def own_from(self, partition: TopicPartition, begin: int, end: int) -> int | None:
        """Return the first offset from ``begin`` on of the copy of a source partition where a
        record is that is no copy, at most ``end``; as ``to_target``.

        What lies between copies is read, each place once, and so many at a time: the answer may be
        before the first such record.
        """
        index, copy_of = self.index_of(partition), self._copy_of
        if index is None:
            return None
        copy = partition if copy_of is None else partition._replace(topic=copy_of(partition.topic))
        first, at = self._markers.get((partition, index.target_id), (begin, begin))
        if not first <= begin <= at <= index.target_end:  # else it is known up to there
            first = at = begin
        for _ in range(MARKERS_AT_ONCE):
            own = await self._look(partition, partial(own_from, begin=at, end=end))
            at = at if own is None else own
            if at >= end or (after := await no_record_until(self._cluster, copy, at)) <= at:
                break
            at = after
        self._markers[partition, index.target_id] = first, at
        return min(at, end)

    async def _look(
        self, partition: TopicPartition, look: Callable[[PartitionIndex, Pages], Found]
    ) -> Found | None:
        tries = 0
        while (index := self.index_of(partition)) is not None:
            try:
                return look(index, self._pages.get)
            except PageMissingError as missing:
                # The look-up is pure: it begins again with one page more.
                ref = missing.ref
            newest, value = self._newest[partition]
            # The page that grows is replaced every second; its bytes came with the record, so it is
            # never read from the topic.
            if ref == newest:
                self._pages.put(ref, decode_page(ref.number, value))
                continue
            page = await read_page(self._cluster, self.topic, partition, ref)
            if page is not None:
                self._pages.put(ref, page)
                continue
            # It was replaced since: the records after it name its successor.
            tries += 1
            if tries > READ_TRIES:
                raise ProtocolError(
                    f"page {ref.number} of {partition} is not at offset {ref.position} of topic "
                    f"{self.topic}",
                    remedy="the topic was changed by another program; delete it, mm2py writes a "
                    "new one",
                )
            if self._tail is None:
                await self.read_to_end()
            else:
                await self._clock.sleep(0.1)
        return None

    def _take(self, _partition: int, record: Record) -> None:
        taken = self._index.take(record)
        if taken is None or record.value is None:
            return
        partition, ref = taken
        # The replaced version can never be asked for again.
        before = self._newest.get(partition)
        if before is not None:
            self._pages.drop(before[0].position)
        self._newest[partition] = ref, bytes(record.value)
