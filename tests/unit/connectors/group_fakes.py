"""Consumer groups and small topics of two clusters in memory, as the checkpoint connector sees them."""

from collections.abc import Mapping, Sequence

from mm2py.client.connect.group_admin import Committed, GroupCatalog, GroupListing
from mm2py.client.fetch.log_reader import RecordHandler
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ServerError
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.offset_syncs import OffsetSync, encode_offset_sync
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition
from mm2py_connectors.clients import GroupSession, LogSession
from tests.unit.connectors.mirror_fakes import Region

__all__ = ["FakeGroups", "FakeLog", "GroupRegion"]


class FakeGroups:
    """The groups of one cluster."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.offsets: dict[str, dict[TopicPartition, FetchedOffset]] = {}
        self.errors: dict[str, Mm2pyError] = {}
        self.refusals: dict[TopicPartition, ServerError] = {}
        self.unwritable: dict[str, Mm2pyError] = {}
        self.missing = ""
        self.broken: Mm2pyError | None = None
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.asked: list[set[str]] = []

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
            found = FetchedOffset(topic, int(partition), offset, -1, metadata, 0)
            self.offsets.setdefault(group, {})[TopicPartition(topic, int(partition))] = found

    async def list_groups(self) -> GroupCatalog:
        """Return all groups."""
        if self.broken is not None:
            raise self.broken
        found = {it: GroupListing(it, 1, state) for it, state in self.states.items()}
        return GroupCatalog(found, self.missing)

    async def committed(self, coordinators: Mapping[str, int]) -> dict[str, Committed]:
        """Return offsets, or the error of a group."""
        self.asked.append(set(coordinators))
        return {it: self.errors.get(it) or dict(self.offsets.get(it, {})) for it in coordinators}

    async def commit(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        """Take a commit."""
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
        self.broken: list[Mm2pyError] = []
        self._handlers: list[RecordHandler] = []

    def append(self, key: bytes | None, value: bytes | None) -> None:
        """Add a record."""
        record = Record(len(self.records), 0, key, value)
        self.records.append(record)
        for handle in self._handlers:
            handle(0, record)

    def sync(self, topic: str, partition: int, upstream: int, downstream: int) -> None:
        """Add an offset sync."""
        self.append(
            *encode_offset_sync(OffsetSync(TopicPartition(topic, partition), upstream, downstream))
        )

    def checkpoint(
        self, group: str, topic: str, partition: int, upstream: int, downstream: int
    ) -> None:
        """Add a checkpoint."""
        tp = TopicPartition(topic, partition)
        self.append(*encode_checkpoint(Checkpoint(group, tp, upstream, downstream, "")))

    async def read_to_end(self, handle: RecordHandler) -> None:
        """Hand on what is there."""
        if self.broken:
            raise self.broken.pop(0)
        for record in self.records:
            handle(0, record)

    async def tail(self, handle: RecordHandler) -> None:
        """Hand on what comes."""
        self._handlers.append(handle)


class GroupRegion(Region):
    """The factories of the checkpoint connector's clients: source A, target B."""

    def __init__(self) -> None:
        super().__init__({})
        self.at_source, self.at_target = FakeGroups(), FakeGroups()
        self.logs: dict[tuple[str, str], FakeLog] = {}

    def log(self, alias: str, topic: str) -> FakeLog:
        """Return a topic of a cluster."""
        return self.logs.setdefault((alias, topic), FakeLog())

    def open_groups(self, props: Mapping[str, str], alias: str, clock: Clock) -> GroupSession:
        groups = self.at_source if alias == "A" else self.at_target
        return GroupSession(self._session(props), groups)

    def open_log(
        self, props: Mapping[str, str], alias: str, topic: str, clock: Clock
    ) -> LogSession:
        return LogSession(self._session(props), self.log(alias, topic))
