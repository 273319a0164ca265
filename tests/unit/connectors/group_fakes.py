"""Consumer groups and small topics of two clusters in memory, as the checkpoint connector sees them."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

from mm2py.client.connect.group_admin import Committed, GroupCatalog, GroupListing
from mm2py.client.fetch.log_reader import RecordHandler, Trouble
from mm2py.clock import Clock
from mm2py.errors import ConnectionFailedError, Mm2pyError, ServerError
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.offset_lookup import (
    Beginning,
    MapIndex,
    PartitionIndex,
    Place,
    Translation,
    beginning,
    own_from,
    to_source,
    to_target,
)
from mm2py.mirror.offset_map_pages import Page, Segment, decode_head, encode_page
from mm2py.mirror.offset_syncs import OffsetSync, encode_offset_sync
from mm2py.protocol.consumer_offsets import CONSUMER_OFFSETS
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION, server_error
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.protocol.records import Record
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.protocol.wire import record_string
from mm2py.types import TopicPartition
from mm2py_connectors.clients import CopyOf, GroupSession, LogSession, MapSession
from tests.unit.connectors.mirror_fakes import Region


def commit_record(
    group: str, tp: TopicPartition, offset: int | None, metadata: str = ""
) -> tuple[bytes, bytes | None]:
    """Return key and value of an offset commit in ``__consumer_offsets``; None deletes it."""
    key = struct.pack(">h", 1) + record_string(group) + record_string(tp.topic)
    key += struct.pack(">i", tp.partition)
    if offset is None:
        return key, None
    value = struct.pack(">hqi", 3, offset, 0) + record_string(metadata) + struct.pack(">q", 0)
    return key, value


class FakeGroups:
    """The groups of one cluster."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.offsets: dict[str, dict[TopicPartition, FetchedOffset]] = {}
        self.errors: dict[str, Mm2pyError] = {}
        self.refusals: dict[TopicPartition, ServerError] = {}
        self.unwritable: dict[str, Mm2pyError] = {}
        self.silent: dict[str, Callable[[], Awaitable[None]]] = {}
        """Groups whose coordinator does not answer, with what a question for one waits for."""
        self.missing = ""
        self.broken: Mm2pyError | None = None
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.asked: list[set[str]] = []
        self.lists = 0
        self.supported = True
        self.log: FakeLog | None = None
        """``__consumer_offsets``, where commits are written too."""

    def put(
        self,
        group: str,
        offsets: Mapping[str, int] | None = None,
        *,
        state: str = "Empty",
        metadata: str = "",
        **more: int,
    ) -> None:
        """Let ``group`` stand at ``topic_partition=offset``."""
        self.states[group] = state
        for where, offset in {**(offsets or {}), **more}.items():
            topic, _, partition = where.rpartition("_")
            tp = TopicPartition(topic, int(partition))
            found = FetchedOffset(topic, int(partition), offset, -1, metadata, 0)
            self.offsets.setdefault(group, {})[tp] = found
            if self.log is not None:
                self.log.append(*commit_record(group, tp, offset, metadata))

    def drop(self, group: str) -> None:
        del self.states[group]
        for tp in self.offsets.pop(group, {}):
            if self.log is not None:
                self.log.append(*commit_record(group, tp, None))

    async def are_supported(self) -> bool:
        if self.broken is not None:
            raise self.broken
        return self.supported

    async def list_groups(self) -> GroupCatalog:
        self.lists += 1
        if self.broken is not None:
            raise self.broken
        found = {it: GroupListing(it, 1, state) for it, state in self.states.items()}
        return GroupCatalog(found, self.missing)

    async def committed(self, groups: Collection[str]) -> dict[str, Committed]:
        self.asked.append(set(groups))
        if self.broken is not None:
            return dict.fromkeys(groups, self.broken)
        errors = dict(self.errors)
        for group in self.silent.keys() & set(groups):
            await self.silent[group]()
            errors[group] = ConnectionFailedError("no answer")
        return {it: errors.get(it) or dict(self.offsets.get(it, {})) for it in groups}

    async def offsets_partitions(self) -> int:
        return 50

    async def commit(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        if group_id in self.unwritable:
            raise self.unwritable[group_id]
        wanted = {TopicPartition(it.topic, it.partition): it for it in offsets}
        self.commits.append((group_id, {tp: it.offset for tp, it in wanted.items()}))
        self.states.setdefault(group_id, "Empty")
        for tp, it in wanted.items():
            if tp not in self.refusals:
                found = FetchedOffset(tp.topic, tp.partition, it.offset, -1, it.metadata, 0)
                self.offsets.setdefault(group_id, {})[tp] = found
        return {tp: self.refusals.get(tp) for tp in wanted}


class FakeLog:
    """One small topic; ``append`` reaches who follows it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waits_for_topic, self.folds = True, False
        self.broken: list[Mm2pyError] = []
        self._handlers: list[RecordHandler] = []
        self._troubles: list[Trouble] = []

    def append(self, key: bytes | None, value: bytes | None) -> None:
        record = Record(len(self.records), 0, key, value)
        self.records.append(record)
        for handle in self._handlers:
            handle(0, record)

    def again(self) -> Iterator[None]:
        """Hand all records on once more, as a reader does whose log was cut behind it; one after the other."""
        newest = {it.key: it for it in self.records}
        for record in self.records:
            if not self.folds or newest[record.key] is record:
                for handle in self._handlers:
                    handle(0, record)
                yield

    def sync(self, topic: str, partition: int, upstream: int, downstream: int) -> None:
        self.append(
            *encode_offset_sync(OffsetSync(TopicPartition(topic, partition), upstream, downstream))
        )

    def checkpoint(
        self, group: str, topic: str, partition: int, upstream: int, downstream: int
    ) -> None:
        tp = TopicPartition(topic, partition)
        self.append(*encode_checkpoint(Checkpoint(group, tp, upstream, downstream, "")))

    async def read_to_end(self, handle: RecordHandler) -> None:
        if self.broken:
            raise self.broken.pop(0)
        if not self.records and not self.waits_for_topic:
            raise server_error(UNKNOWN_TOPIC_OR_PARTITION, "topic")
        for record in self.records:
            handle(0, record)

    async def start_at_end(self, is_read: Callable[[int, int], bool]) -> int:
        if self.broken:
            raise self.broken.pop(0)
        return 50

    async def tail(
        self, handle: RecordHandler, *, on_trouble: Trouble | None = None, rest_s: float = 0.0
    ) -> None:
        self._handlers.append(handle)
        if on_trouble is not None:
            self._troubles.append(on_trouble)
        try:
            await asyncio.Event().wait()
        finally:
            self._handlers.remove(handle)
            if on_trouble is not None:
                self._troubles.remove(on_trouble)

    @property
    def is_followed(self) -> bool:
        return bool(self._handlers)

    def trouble(self, error: Mm2pyError | None) -> None:
        """Let the readers have trouble, or none any more."""
        for report in self._troubles:
            report(error)


class FakeMap:
    """The exact map: full pages are never needed, one page per partition."""

    def __init__(self) -> None:
        self.index = MapIndex()
        self.pages: dict[int, Page] = {}
        self.exists = False
        self.broken: list[Mm2pyError] = []
        self.unread: list[Mm2pyError] = []
        """What answers of ``own_from`` fail with."""
        self.frozen: dict[TopicPartition, asyncio.Event] = {}
        """Partitions about which ``own_from`` is not answered until then."""
        self.former: set[TopicPartition] = set()
        """Partitions whose copy is another one than that of the map."""
        self.former_unseen: set[TopicPartition] = set()
        """The same, as ``read_copies`` will find."""
        self.elsewhere: set[TopicPartition] = set()
        """Partitions whose copies are in a topic of another name."""
        self.shared: dict[TopicPartition, tuple[str, ...]] = {}
        """Sources of other flows by the partition whose copy they write into."""
        self.unreadable: dict[str, str] = {}
        self.defects: list[Exception] = []
        self.away: Mm2pyError | None = None
        """Why ``read_copies`` fails."""

    def put(
        self,
        topic: str,
        partition: int,
        *segments: tuple[int, int, int] | Segment,
        covered: int,
        source_id: bytes = NO_TOPIC_ID,
        target_id: bytes = NO_TOPIC_ID,
        position: int = -1,
    ) -> None:
        """Set the map of a partition: source offset, records, target offset, or what else a segment is."""
        self.exists = True
        found = tuple(it if isinstance(it, Segment) else Segment(*it) for it in segments)
        page = Page(0, source_id, target_id, covered, position, -1, -1, 0, found)
        at, head = len(self.pages), decode_head(encode_page(page))
        self.pages[at] = page
        self.index.put(TopicPartition(topic, partition), page.number, head, at)

    def report_anew(self, on_anew: Callable[[TopicPartition], None]) -> None:
        self.index.on_anew = on_anew

    async def read_to_end(self) -> None:
        """Nothing to read: ``put`` changes the index."""
        if self.broken:
            raise self.broken.pop(0)
        if not self.exists:
            raise server_error(UNKNOWN_TOPIC_OR_PARTITION, "topic")

    async def read_copies(self) -> None:
        """Nothing to read but what is not seen yet."""
        if self.defects:
            raise self.defects.pop()
        if self.away is not None:
            raise self.away
        self.former |= self.former_unseen

    def is_former(self, partition: TopicPartition) -> bool:
        return partition in self.former

    def is_elsewhere(self, partition: TopicPartition) -> bool:
        return partition in self.elsewhere

    def is_of_former_copy(self, partition: TopicPartition, upstream: int, downstream: int) -> bool:
        index = self.index.of(partition)
        return index is not None and (
            self.is_former(partition)
            or (upstream <= index.covered and downstream > index.target_end)
        )

    @property
    def has_others(self) -> bool:
        return bool(self.shared)

    def sharers(self, partition: TopicPartition) -> Sequence[str]:
        return self.shared.get(partition, ())

    def follow(self) -> None:
        """What is put is there at once."""

    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self.index.partitions)

    def index_of(self, partition: TopicPartition) -> PartitionIndex | None:
        index = self.index.of(partition)
        return index if index is not None and index.has_segments else None

    def passed(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> int:
        index = self.index.of(partition)
        if index is None or is_another_topic(index.source_id, topic_id):
            return -1
        return index.passed

    async def own_from(self, partition: TopicPartition, begin: int, end: int) -> int | None:
        if self.unread:
            raise self.unread.pop()
        if partition in self.frozen:
            await self.frozen[partition].wait()
        index = self.index_of(partition)
        return index and own_from(index, lambda ref: self.pages[ref.position], begin=begin, end=end)

    async def to_target(self, partition: TopicPartition, source_offset: int) -> Translation | None:
        index = self.index.of(partition)
        if index is None:
            return None
        if self.is_former(partition):
            return Translation(Place.UNKNOWN, -1)
        return to_target(index, source_offset, lambda ref: self.pages[ref.position])

    async def to_source(self, partition: TopicPartition, target_offset: int) -> Translation | None:
        index = self.index.of(partition)
        if index is None:
            return None
        if self.is_former(partition):
            return Translation(Place.UNKNOWN, -1)
        return to_source(index, target_offset, lambda ref: self.pages[ref.position])

    async def beginning(self, partition: TopicPartition) -> Beginning | None:
        index = self.index.of(partition)
        return index and beginning(index, lambda ref: self.pages[ref.position])

    async def close(self) -> None:
        """Nothing to close."""


class GroupRegion(Region):
    """The factories of the checkpoint connector's clients: source A, target B."""

    def __init__(self) -> None:
        super().__init__({})
        self.at_source, self.at_target = FakeGroups(), FakeGroups()
        self.shares_at_source, self.shares_at_target = FakeGroups(), FakeGroups()
        self.logs: dict[tuple[str, str], FakeLog] = {}
        self.copies_of: dict[str, CopyOf] = {}
        """The names of copies on a cluster, as its map was opened with them."""
        self.map, self.map_back = FakeMap(), FakeMap()
        self.commits = self.at_source.log = self.log("A", CONSUMER_OFFSETS)

    def log(self, alias: str, topic: str) -> FakeLog:
        return self.logs.setdefault((alias, topic), FakeLog())

    def open_groups(self, props: Mapping[str, str], alias: str, clock: Clock) -> GroupSession:
        groups = self.at_source if alias == "A" else self.at_target
        shares = self.shares_at_source if alias == "A" else self.shares_at_target
        return GroupSession(self._session(props), groups, shares)

    def open_log(
        self,
        props: Mapping[str, str],
        alias: str,
        topic: str,
        clock: Clock,
        *,
        waits_for_topic: bool = True,
        folds: bool = False,
    ) -> LogSession:
        found = self.log(alias, topic)
        found.waits_for_topic, found.folds = waits_for_topic, folds
        return LogSession(self._session(props), found)

    def open_map(
        self,
        props: Mapping[str, str],
        alias: str,
        source_alias: str,
        clock: Clock,
        *,
        copy_of: CopyOf,
        is_back: bool = False,
    ) -> MapSession:
        self.copies_of[alias] = copy_of
        return MapSession(self._session(props), self.map if alias == "B" else self.map_back)
