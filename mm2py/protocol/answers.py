"""What brokers answer, as frozen values, and the small values that requests are built from.

Flow: ``messages.py`` decodes an answer with a schema class -> one of these -> the client.
Error codes stay codes here (``error_codes.server_error`` makes errors of them): the caller decides.
Builders are in ``messages.py``, ``admin_messages.py`` and ``group_messages.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

__all__ = [
    "NO_TOPIC_ID",
    "Acl",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "AclsResult",
    "ApiVersionsResult",
    "BrokerNode",
    "ClusterResult",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigSynonym",
    "CoordinatorResult",
    "CoordinatorType",
    "CreatedTopic",
    "DeletedRecords",
    "DescribedConfigs",
    "DescribedGroup",
    "EpochEnd",
    "EpochQuery",
    "FetchedOffset",
    "FetchedOffsets",
    "FinalizedFeature",
    "GroupMember",
    "GroupProtocol",
    "JoinResult",
    "JoinedMember",
    "ListedGroup",
    "ListedGroups",
    "ListedOffset",
    "MetadataResult",
    "NamedError",
    "NewTopic",
    "OffsetQuery",
    "OffsetToCommit",
    "PartitionMetadata",
    "PartitionOutcome",
    "PatternType",
    "ProducerIdResult",
    "SyncResult",
    "TopicMetadata",
]

NO_TOPIC_ID: Final = bytes(16)
"""Topic id of brokers that have none (``Uuid.ZERO_UUID``)."""


class CoordinatorType(IntEnum):
    """What a coordinator coordinates (KIP-98)."""

    GROUP = 0
    TRANSACTION = 1


class _LenientEnum(IntEnum):
    """Kafka's enums grow; a value newer than ours reads as UNKNOWN, as in Java."""

    @classmethod
    def _missing_(cls, value: object) -> IntEnum | None:
        unknown: IntEnum | None = cls.__members__.get("UNKNOWN")
        return unknown


class AclResourceType(_LenientEnum):
    """``org.apache.kafka.common.resource.ResourceType``."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_LenientEnum):
    """``org.apache.kafka.common.resource.PatternType``."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_LenientEnum):
    """``org.apache.kafka.common.acl.AclOperation``."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_LenientEnum):
    """``org.apache.kafka.common.acl.AclPermissionType``."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ConfigResourceType(_LenientEnum):
    """``org.apache.kafka.common.config.ConfigResource.Type``."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(_LenientEnum):
    """Where the value of a config comes from (``DescribeConfigsResponse.ConfigSource``)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigOperation(IntEnum):
    """``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class FinalizedFeature:
    """A feature level that the whole cluster runs at."""

    name: str
    min_level: int
    max_level: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResult:
    """What one broker speaks: api key -> (lowest, highest version)."""

    error_code: int
    versions: Mapping[int, tuple[int, int]]
    finalized_features: tuple[FinalizedFeature, ...]
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error_code: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; ``topic_id`` is ``NO_TOPIC_ID`` where the broker knows none."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error_code: int


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """Brokers, controller and topics as one broker sees them."""

    brokers: tuple[BrokerNode, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[TopicMetadata, ...]
    error_code: int
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    """Ask for the first offset at or after ``timestamp`` (ms, or EARLIEST, LATEST)."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """Answer to one ``OffsetQuery``; ``offset`` -1 means no such record."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves the count to the broker's default (KIP-464)."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of a ``NewTopic``; counts are -1 where the broker does not tell."""

    name: str
    topic_id: bytes
    error_code: int
    error_message: str
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class NamedError:
    """Outcome for one named thing (a topic, a member, a resource, an ACL)."""

    name: str
    error_code: int
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Outcome for one partition."""

    topic: str
    partition: int
    error_code: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Log start of a partition after DeleteRecords."""

    topic: str
    partition: int
    low_watermark: int
    error_code: int


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """What a config belongs to; brokers are named by their id as text."""

    resource_type: ConfigResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place where a config may be set, nearest first."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config; ``value`` is None where it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Tell whether nobody set it (Java's ``ConfigEntry.isDefault``)."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class DescribedConfigs:
    """All configs of one resource."""

    resource: ConfigResource
    error_code: int
    error_message: str
    entries: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    """One access rule (Java's ``AclBinding``)."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


@dataclass(frozen=True, slots=True)
class AclsResult:
    """Rules that match a filter; error 54 means the cluster has no authorizer."""

    error_code: int
    error_message: str
    acls: tuple[Acl, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorResult:
    """Broker that coordinates a group or transactional id."""

    error_code: int
    error_message: str
    node: BrokerNode


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """One assignment protocol that a member offers, with its metadata."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """Answer to JoinGroup; with error 79 join again with ``member_id``."""

    error_code: int
    generation_id: int
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...]
    skip_assignment: bool


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Answer to SyncGroup: this member's assignment."""

    error_code: int
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as DescribeGroups shows it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """State of one group; ``Dead`` or error 69 means it does not exist."""

    group_id: str
    error_code: int
    error_message: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group of one broker."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """Groups that one broker coordinates."""

    error_code: int
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """Ask for the end of ``leader_epoch``."""

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End of an epoch; (-1, -1) with error 0 means unknown epoch and is a failure."""

    topic: str
    partition: int
    error_code: int
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ProducerIdResult:
    """A producer id and epoch."""

    error_code: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Answer to DescribeCluster."""

    error_code: int
    error_message: str
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A group's committed offset; -1 means none."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error_code: int


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """Committed offsets of one group."""

    error_code: int
    offsets: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """An offset to commit for a group."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
