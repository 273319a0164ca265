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
from mm2py.mirror.offset_lookup import Beginning, PartitionIndex, Translation
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
    def cluster_id(self) -> str:
        """Kafka's id of the cluster, empty before ``connect``."""
        ...

    async def connect(self) -> None:
        """Reach a broker; ``ConnectionFailedError`` if none answers."""
        ...

    async def close(self) -> None:
        """Close all connections; safe twice."""
        ...


class AskedSession(Session, Protocol):
    """A session that reports whether its cluster answers."""

    def unanswered(self, longer_than_s: float) -> str:
        """Return why a request for metadata has waited longer than that, empty while none has."""
        ...


class MirrorAdmin(Protocol):
    """The administration that mirroring needs (``Admin``)."""

    async def list_topics(self) -> Mapping[str, TopicDescription]:
        """Return all topics but the broker's own."""
        ...

    async def denied_topics(self, names: Collection[str]) -> Mapping[str, ServerError]:
        """Return which topics may not be described; lists have no trace of them."""
        ...

    async def create_topics(
        self, topics: Sequence[NewTopic], *, at_once: bool = ...
    ) -> dict[str, ServerError | None]:
        """Create topics; None or the refusal per name. ``at_once``: what a quota puts off is
        refused, not waited for."""
        ...

    async def create_partitions(
        self, totals: Mapping[str, int], *, at_once: bool = ...
    ) -> dict[str, ServerError | None]:
        """Grow topics; None or the refusal per name. ``at_once`` as for ``create_topics``."""
        ...

    async def describe_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]:
        """Return configs per topic."""
        ...

    async def read_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...] | ServerError]:
        """Return configs per topic, or why they may not be read."""
        ...

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> dict[str, ServerError | None]:
        """Change configs; None or the refusal per topic."""
        ...

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = ...
    ) -> dict[TopicPartition, ListedOffset]:
        """Find offsets by timestamp (EARLIEST, LATEST or ms); a partition without an answer carries
        its error."""
        ...

    async def newest_commits(self) -> Mapping[TopicPartition, int]:
        """Return the largest stamp that brokers gave commits of groups (ms)."""
        ...

    async def partition_sizes(
        self, topics: Mapping[str, Sequence[int]]
    ) -> Mapping[TopicPartition, int]:
        """Return bytes in the log by partition, as far as brokers disclose them."""
        ...

    async def describe_topic_acls(self) -> Sequence[Acl] | None:
        """Return the ACLs of topics; None without an authorizer."""
        ...

    async def create_acls(self, acls: Sequence[Acl]) -> Sequence[ServerError | None]:
        """Create ACLs; None or the refusal for each."""
        ...


class MirrorGroups(Protocol):
    """The administration of one kind of groups (``GroupAdmin``)."""

    async def are_supported(self) -> bool:
        """Whether the cluster has such groups."""
        ...

    async def list_groups(self) -> GroupCatalog:
        """Return the groups with coordinator and state."""
        ...

    async def committed(self, groups: Collection[str]) -> Mapping[str, Committed]:
        """Return committed offsets of groups, or what went wrong with a group."""
        ...

    async def offsets_partitions(self) -> int:
        """Return how many partitions ``__consumer_offsets`` has."""
        ...

    async def commit(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Mapping[TopicPartition, ServerError | None]:
        """Commit offsets of a group without members; None or the refusal per partition."""
        ...


class TopicLog(Protocol):
    """A small topic that is read whole (``LogReader``)."""

    async def read_to_end(self, handle: RecordHandler) -> None:
        """Hand on every record up to the present end; ``Mm2pyError`` where it cannot be read."""
        ...

    async def start_at_end(self, is_read: Callable[[int, int], bool]) -> int:
        """Begin after the last record of the partitions that ``is_read(number, count)`` chooses;
        return their count."""
        ...

    async def tail(
        self, handle: RecordHandler, *, on_trouble: Trouble | None = None, rest_s: float = 0.0
    ) -> None:
        """Hand on every record as soon as it is there, until cancelled; trouble is retried and
        reported."""
        ...


class ExactMap(Protocol):
    """The exact offset map of a flow (``OffsetMapReader``)."""

    async def read_to_end(self) -> None:
        """Read what is there; ``Mm2pyError`` where that is not possible."""
        ...

    def follow(self) -> None:
        """Take in everything new."""
        ...

    async def read_copies(self) -> None:
        """Ask which copies there are now; ``Mm2pyError`` where the cluster does not answer."""
        ...

    def is_former(self, partition: TopicPartition) -> bool:
        """Whether the map of a partition is about another copy than the one that is there now."""
        ...

    def is_elsewhere(self, partition: TopicPartition) -> bool:
        """Whether the map of a flow back is about a copy of another name."""
        ...

    def is_of_former_copy(self, partition: TopicPartition, upstream: int, downstream: int) -> bool:
        """Whether an earlier translation is of a former copy."""
        ...

    @property
    def has_others(self) -> bool:
        """Whether other flows have maps on this target, where names are kept."""
        ...

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Maps of other flows that may not be read, with the cause."""
        ...

    def sharers(self, partition: TopicPartition) -> Sequence[str]:
        """Return the source aliases of other flows that write into the copy of a source
        partition."""
        ...

    def report_anew(self, on_anew: Callable[[TopicPartition], None]) -> None:
        """Call this for a partition whose map begins anew, or goes back."""
        ...

    def partitions(self) -> Sequence[TopicPartition]:
        """Return the source partitions that have a map."""
        ...

    def index_of(self, partition: TopicPartition) -> PartitionIndex | None:
        """Return how far the map of a partition goes."""
        ...

    async def to_target(self, partition: TopicPartition, source_offset: int) -> Translation | None:
        """Translate an offset; None where the partition has no map."""
        ...

    async def to_source(self, partition: TopicPartition, target_offset: int) -> Translation | None:
        """Translate an offset of the copy; None where the partition has no map."""
        ...

    def covered(self, partition: TopicPartition) -> int:
        """Return below which source offset nothing is left to copy, -1 where the flow has not begun
        with a partition."""
        ...

    async def own_from(self, partition: TopicPartition, begin: int, end: int) -> int | None:
        """Return where the first record from ``begin`` on of the copy may be that is no copy, at
        most ``end``; None where the partition has no map."""
        ...

    async def beginning(self, partition: TopicPartition) -> Beginning | None:
        """Return where the map begins; None where the partition has no map."""
        ...

    async def close(self) -> None:
        """Stop following."""
        ...


class SourceReader(Protocol):
    """The reading that a task needs (``Fetcher``)."""

    def add(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions too.

        ``topic_ids``: the incarnation that a position belongs to; ``epochs``: the leader epoch
        before it.
        """
        ...

    def began_at(self, tp: TopicPartition) -> int:
        """Offset after EARLIEST or LATEST, -1 while unknown."""
        ...

    def epoch_at(self, tp: TopicPartition, offset: int) -> int:
        """Leader epoch that the record at ``offset`` was read under, -1 while unknown."""
        ...

    def pace(self, bytes_per_s: int) -> None:
        """Read at another rate; only where there is a limit."""
        ...

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Leave these out."""
        ...

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again."""
        ...

    async def fetch(
        self, *, max_wait_ms: int, max_bytes: int
    ) -> list[tuple[TopicPartition, list[RecordBatch]]]:
        """Return what has arrived."""
        ...

    def take_answered(self) -> set[TopicPartition]:
        """Return the partitions that were answered for since the last call: only their positions
        and ends changed."""
        ...

    def position(self, tp: TopicPartition) -> int:
        """Offset of the next record to read, negative while unknown."""
        ...

    def incarnation(self, tp: TopicPartition) -> bytes:
        """Topic id that the position belongs to, all zero while unknown."""
        ...

    def waiting(self, tp: TopicPartition) -> int:
        """Records that were read and not returned yet."""
        ...

    async def look_back(self) -> None:
        """Report what is gone because its topic is another one by now; nothing is read any more."""
        ...

    def lag(self, tp: TopicPartition) -> int:
        """Offsets to the end, -1 while unknown."""
        ...

    def end(self, tp: TopicPartition) -> int:
        """High watermark; -1 while unknown."""
        ...

    def silent_s(self, tp: TopicPartition) -> float:
        """For how long it is not known where the log ends; about 0 while its broker answers."""
        ...

    def throttled_s(self) -> Mapping[int, float]:
        """For how long brokers are asked nothing because of a quota, by node id."""
        ...

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where logs begin, -1 for a partition that does not exist; without those that
        cannot be asked now."""
        ...

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where logs end, also of partitions that are dropped; without those that cannot be
        asked now."""
        ...

    async def refresh_ends(self) -> None:
        """Ask where left out and throttled partitions end now; ``Mm2pyError`` where the cluster
        does not answer."""
        ...

    def rewind(self, tp: TopicPartition, position: int) -> bool:
        """Read a left out partition again from an offset that was read; return whether that is
        possible now."""
        ...

    def drop(self, tp: TopicPartition) -> None:
        """Give one partition up."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class StartableSyncWriter(SyncWriter, Protocol):
    """The writer of offset syncs (``RecordWriter``)."""

    async def start(self) -> None:
        """Get a producer id; ``RetriableError`` when the cluster is unreachable."""
        ...

    async def close(self) -> None:
        """Stop at once."""
        ...


class TopicRights(Protocol):
    """What our principal may do with a topic (``Admin``)."""

    async def unwritable(self, topics: Collection[str]) -> Mapping[str, ServerError]:
        """Return which topics may not be written, and why; none where the cluster does not tell."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderEvents:
    """Callbacks of a reader: losses, failures and stalls of partitions, and what is dropped as a
    loop."""

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
    ) -> LogSession:
        """Build a reader of one small topic."""
        ...


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
    ) -> MapSession:
        """Build a reader of a flow's offset map."""
        ...


def check_two_clusters(config: Mapping[str, str], source: Session, target: Session) -> None:
    """Refuse a connector whose source is its target; both are connected.

    Raises:
        ConfigError: they are one cluster.
    """

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
    props: Mapping[str, str],
    alias: str,
    clock: Clock,
    events: ReaderEvents,
    tuning: ReaderTuning,
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
