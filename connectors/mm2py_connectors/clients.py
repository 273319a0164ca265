"""What the connectors need of a cluster, as contracts, and the real ones over mm2py.client.

Flow: effective client properties -> ``open_admin`` / ``open_reader`` / ``open_writer`` -> a session
that its owner connects and closes. Nothing connects before ``connect``. Tests pass fakes instead.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mm2py.api.context import SourceGap
from mm2py.client.connect.admin import Admin, ConfigOp, ListedOffset, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import Committed, GroupAdmin, GroupCatalog
from mm2py.client.connect.share_positions import SHARE_GROUPS
from mm2py.client.fetch.fetcher import Fetcher
from mm2py.client.fetch.log_reader import LogReader, RecordHandler, Trouble
from mm2py.client.fetch.owner import BatchOrigins
from mm2py.client.send.record_writer import RecordWriter
from mm2py.clock import Clock
from mm2py.config.client_properties import Side, effective_client_properties
from mm2py.config.clients import connection_settings, consumer_settings, producer_settings
from mm2py.errors import ServerError
from mm2py.mirror.offset_lookup import Beginning, PartitionIndex, Translator
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.mirror.offset_syncs import SyncWriter
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.protocol.acls import Acl
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import NewTopic
from mm2py.types import TopicPartition


class Session(Protocol):
    """Connections to one cluster (``Cluster``)."""

    @property
    def cluster_id(self) -> str: ...
    async def connect(self) -> None: ...
    async def close(self) -> None: ...


class AskedSession(Session, Protocol):
    """A session that reports whether its cluster answers."""

    def unanswered(self, longer_than_s: float) -> str: ...


class MirrorAdmin(Protocol):
    """The administration that mirroring needs (``Admin``)."""

    async def list_topics(self) -> Mapping[str, TopicDescription]: ...
    async def denied_topics(self, names: Collection[str]) -> Mapping[str, ServerError]: ...
    async def unwritable(self, topics: Collection[str]) -> Mapping[str, ServerError]: ...
    async def create_topics(
        self, topics: Sequence[NewTopic], *, at_once: bool = ...
    ) -> dict[str, ServerError | None]: ...
    async def create_partitions(
        self, totals: Mapping[str, int], *, at_once: bool = ...
    ) -> dict[str, ServerError | None]: ...
    async def describe_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]: ...
    async def read_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...] | ServerError]: ...
    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> dict[str, ServerError | None]: ...
    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = ...
    ) -> dict[TopicPartition, ListedOffset]: ...
    async def newest_commits(self) -> Mapping[TopicPartition, int]: ...
    async def partition_sizes(
        self, topics: Mapping[str, Sequence[int]]
    ) -> Mapping[TopicPartition, int]: ...
    async def describe_topic_acls(self) -> Sequence[Acl] | None: ...
    async def create_acls(self, acls: Sequence[Acl]) -> Sequence[ServerError | None]: ...


class MirrorGroups(Protocol):
    """The administration of one kind of groups (``GroupAdmin``)."""

    async def are_supported(self) -> bool: ...
    async def list_groups(self) -> GroupCatalog: ...
    async def committed(self, groups: Collection[str]) -> Mapping[str, Committed]: ...
    async def offsets_partitions(self) -> int: ...
    async def commit(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Mapping[TopicPartition, ServerError | None]: ...


class TopicLog(Protocol):
    """A small topic that is read whole (``LogReader``)."""

    async def read_to_end(self, handle: RecordHandler) -> None: ...
    async def start_at_end(self, is_read: Callable[[int, int], bool]) -> int: ...
    async def tail(
        self, handle: RecordHandler, *, on_trouble: Trouble | None = None, rest_s: float = 0.0
    ) -> None: ...


class ExactMap(Translator, Protocol):
    """The exact offset map of a flow (``OffsetMapReader``)."""

    async def read_to_end(self) -> None: ...
    def follow(self) -> None: ...
    async def read_copies(self) -> None: ...
    def is_former(self, partition: TopicPartition) -> bool: ...
    def is_elsewhere(self, partition: TopicPartition) -> bool: ...
    def is_of_former_copy(
        self, partition: TopicPartition, upstream: int, downstream: int
    ) -> bool: ...
    @property
    def has_others(self) -> bool: ...
    @property
    def unreadable(self) -> Mapping[str, str]: ...
    def sharers(self, partition: TopicPartition) -> Sequence[str]: ...
    def report_anew(self, on_anew: Callable[[TopicPartition], None]) -> None: ...
    def partitions(self) -> Sequence[TopicPartition]: ...
    def index_of(self, partition: TopicPartition) -> PartitionIndex | None: ...
    def passed(self, partition: TopicPartition, topic_id: bytes = ..., /) -> int: ...
    async def own_from(self, partition: TopicPartition, begin: int, end: int) -> int | None:
        """Return where the first record from ``begin`` on of the copy may be that is no copy, at
        most ``end``; None where the partition has no map."""
        ...

    async def beginning(self, partition: TopicPartition) -> Beginning | None: ...
    async def close(self) -> None: ...


class SourceReader(Protocol):
    """The reading that a task needs (``Fetcher``)."""

    def add(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None: ...
    def began_at(self, tp: TopicPartition) -> int: ...
    def epoch_at(self, tp: TopicPartition, offset: int) -> int: ...
    def pace(self, bytes_per_s: int) -> None: ...
    def pause(self, partitions: Collection[TopicPartition]) -> None: ...
    def resume(self, partitions: Collection[TopicPartition]) -> None: ...
    async def fetch(
        self, *, max_wait_ms: int, max_bytes: int
    ) -> list[tuple[TopicPartition, list[RecordBatch]]]: ...
    def take_answered(self) -> set[TopicPartition]: ...
    def position(self, tp: TopicPartition) -> int: ...
    def incarnation(self, tp: TopicPartition) -> bytes: ...
    def waiting(self, tp: TopicPartition) -> int: ...
    async def look_back(self) -> None: ...
    def lag(self, tp: TopicPartition) -> int: ...
    def end(self, tp: TopicPartition) -> int: ...
    def silent_s(self, tp: TopicPartition) -> float: ...
    def throttled_s(self) -> Mapping[int, float]: ...
    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def refresh_ends(self) -> None: ...
    def rewind(self, tp: TopicPartition, position: int) -> bool: ...
    @property
    def is_short(self) -> bool: ...
    def drop(self, tp: TopicPartition) -> None: ...
    async def close(self) -> None: ...


class StartableSyncWriter(SyncWriter, Protocol):
    """The writer of offset syncs (``RecordWriter``)."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


class TopicRights(Protocol):
    """What our principal may do with a topic (``Admin``)."""

    async def unwritable(self, topics: Collection[str]) -> Mapping[str, ServerError]: ...


@dataclass(frozen=True, slots=True)
class ReaderEvents:
    """Callbacks of a reader: losses, failures and stalls of partitions, and dropped loops."""

    on_gap: Callable[[SourceGap], None]
    on_failed: Callable[[TopicPartition, Exception], None]
    on_stalled: Callable[[TopicPartition, Exception | None], None]
    origins: BatchOrigins | None = None


@dataclass(frozen=True, slots=True)
class AdminSession:
    """An admin client with its connections."""

    session: AskedSession
    admin: MirrorAdmin


@dataclass(frozen=True, slots=True)
class GroupSession:
    """Group administration with its connections: of consumer groups and of share groups."""

    session: Session
    groups: MirrorGroups
    share_groups: MirrorGroups


@dataclass(frozen=True, slots=True)
class LogSession:
    """A reader of one small topic with its connections."""

    session: Session
    log: TopicLog


@dataclass(frozen=True, slots=True)
class MapSession:
    """A reader of an exact offset map with its connections."""

    session: Session
    map: ExactMap


@dataclass(frozen=True, slots=True)
class ReaderSession:
    """A reader with its connections."""

    session: Session
    reader: SourceReader


@dataclass(frozen=True, slots=True)
class WriterSession:
    """A writer of small records with its connections."""

    session: Session
    writer: StartableSyncWriter
    rights: TopicRights


AdminFactory = Callable[[Mapping[str, str], str, Clock], AdminSession]
"""Effective client properties, cluster alias, time -> session."""


@dataclass(frozen=True, slots=True)
class ReaderTuning:
    """What a reader may hold, and how long records wait for others (``buffer.memory`` and
    ``linger.ms`` of its task's producer).

    ``bytes_per_s`` of 0 is no limit.
    """

    buffer_bytes: int
    bytes_per_s: int = 0
    linger_ms: int = 0


ReaderFactory = Callable[[Mapping[str, str], str, Clock, ReaderEvents, ReaderTuning], ReaderSession]

WriterFactory = Callable[[Mapping[str, str], str, Clock], WriterSession]

GroupFactory = Callable[[Mapping[str, str], str, Clock], GroupSession]


class LogFactory(Protocol):
    """Effective client properties, cluster alias, topic, time -> session; see ``LogReader`` for the
    others."""

    def __call__(
        self,
        props: Mapping[str, str],
        alias: str,
        topic: str,
        clock: Clock,
        *,
        waits_for_topic: bool = True,
        folds: bool = False,
    ) -> LogSession: ...


CopyOf = Callable[[str], str]
"""Name of a source topic's copy."""


class MapFactory(Protocol):
    """Effective client properties, cluster alias, alias of the flow's source, time -> session; see
    ``OffsetMapReader`` for the others."""

    def __call__(
        self,
        props: Mapping[str, str],
        alias: str,
        source_alias: str,
        clock: Clock,
        *,
        copy_of: CopyOf,
        is_back: bool = False,
    ) -> MapSession: ...


def check_two_clusters(config: Mapping[str, str], source: Session, target: Session) -> None:
    """Refuse a connector whose source is its target; both are connected. ``ConfigError``: they are
    one cluster."""

    def end(side: Side, session: Session) -> ClusterEnd:
        properties = effective_client_properties(config, side, "admin")
        addresses = properties.get("bootstrap.servers", "")
        return ClusterEnd(config.get(f"{side}.cluster.alias", side), addresses, session.cluster_id)

    refuse_one_cluster(end("source", source), end("target", target))


def open_admin(props: Mapping[str, str], alias: str, clock: Clock) -> AdminSession:
    """Build an admin client; ``ConfigError`` when its properties are wrong."""
    cluster = Cluster(connection_settings(props), alias=alias, clock=clock)
    return AdminSession(cluster, Admin(cluster))


def open_groups(props: Mapping[str, str], alias: str, clock: Clock) -> GroupSession:
    """Build a group administration; ``ConfigError`` when its properties are wrong."""
    cluster = Cluster(connection_settings(props), alias=alias, clock=clock)
    return GroupSession(cluster, GroupAdmin(cluster), GroupAdmin(cluster, SHARE_GROUPS))


def open_log(
    props: Mapping[str, str],
    alias: str,
    topic: str,
    clock: Clock,
    *,
    waits_for_topic: bool = True,
    folds: bool = False,
) -> LogSession:
    """Build a reader of one small topic; ``ConfigError`` when its properties are wrong."""
    cluster = Cluster(consumer_settings(props).connection, alias=alias, clock=clock)
    reader = LogReader(cluster, topic, clock=clock, waits_for_topic=waits_for_topic, folds=folds)
    return LogSession(cluster, reader)


def open_map(
    props: Mapping[str, str],
    alias: str,
    source_alias: str,
    clock: Clock,
    *,
    copy_of: CopyOf,
    is_back: bool = False,
) -> MapSession:
    """Build a reader of a flow's offset map, or of that of a flow back; ``ConfigError`` when its
    properties are wrong."""
    cluster = Cluster(consumer_settings(props).connection, alias=alias, clock=clock)
    reader = OffsetMapReader(cluster, source_alias, clock=clock, copy_of=copy_of, is_back=is_back)
    return MapSession(cluster, reader)


def open_reader(
    props: Mapping[str, str], alias: str, clock: Clock, events: ReaderEvents, tuning: ReaderTuning
) -> ReaderSession:
    """Build a reader; ``ConfigError`` when its properties are wrong."""
    settings = consumer_settings(props)
    cluster = Cluster(settings.connection, alias=alias, clock=clock)
    fetcher = Fetcher(
        cluster,
        settings,
        clock=clock,
        buffer_bytes=tuning.buffer_bytes,
        bytes_per_s=tuning.bytes_per_s,
        linger_ms=tuning.linger_ms,
        on_gap=events.on_gap,
        on_failed=events.on_failed,
        on_stalled=events.on_stalled,
        origins=events.origins,
    )
    return ReaderSession(cluster, fetcher)


def open_writer(props: Mapping[str, str], alias: str, clock: Clock) -> WriterSession:
    """Build a writer of small records; ``ConfigError`` when its properties are wrong."""
    settings = producer_settings(props)
    cluster = Cluster(settings.connection, alias=alias, clock=clock)
    return WriterSession(cluster, RecordWriter(cluster, settings, clock=clock), Admin(cluster))
