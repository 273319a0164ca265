"""Values of requests about brokers, topics and logs: what is asked, and one result per thing that
was asked about.

Flow: response -> ``messages``, ``admin_messages``, ``group_messages`` -> one of these -> the
client. Error codes stay codes (``error_codes.server_error`` makes exceptions of them): the caller
decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final


@dataclass(frozen=True, slots=True)
class NamedError:
    """Outcome for one named thing: a topic, a member, a resource, an ACL."""

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
class OffsetQuery:
    """Request for the first offset at or after ``timestamp`` (ms, or EARLIEST, LATEST)."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """Answer to one ``OffsetQuery``; ``offset`` -1 means no such record."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """Request for the end of ``leader_epoch``."""

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
class ApiVersionsResult:
    """Versions that one broker supports: API key -> (lowest, highest)."""

    error_code: int
    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]
    """Levels that the whole cluster runs at."""
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """Id and address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerIdResult:
    """A producer id and epoch."""

    error_code: int
    producer_id: int
    producer_epoch: int


NO_TOPIC_ID: Final = bytes(16)
"""Topic id of brokers that have none (``Uuid.ZERO_UUID``)."""
_BY_NAME: Final = b"by-name\x00"


def is_another_topic(known_id: bytes, topic_id: bytes) -> bool:
    """Whether two ids of a topic are of different incarnations (KIP-516), as far as both are known
    (empty: not)."""
    # Brokers before 2.8, and clusters during the upgrade, have no ids: nothing can be concluded,
    # nor from a name.
    if {b"", NO_TOPIC_ID} & {known_id, topic_id}:
        return False
    is_comparable = known_id.startswith(_BY_NAME) == topic_id.startswith(_BY_NAME)
    return is_comparable and known_id != topic_id


def named_id(topic: str, topic_id: bytes | None) -> bytes:
    """Return the id of a topic; where its brokers give none, one of its name alone."""
    known = topic_id if topic_id != NO_TOPIC_ID else None
    return known or _BY_NAME + blake2b(topic.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    error_code: int
    in_sync: int = 0
    """Number of replicas in sync."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; ``topic_id`` is ``NO_TOPIC_ID`` from brokers before 2.8."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error_code: int
    operations: frozenset[int] | None = None
    """The principal's rights on it, as values of ``AclOperation`` (KIP-430); None if not
    requested."""


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """Brokers, controller and topics as one broker sees them."""

    brokers: tuple[BrokerNode, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[TopicMetadata, ...]
    error_code: int
    throttle_ms: int
    operations: frozenset[int] | None = None
    """The principal's rights on the cluster, likewise."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves the count to the broker's default (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """Outcome of a ``NewTopic``; counts are -1 and ``configs``, which include the brokers'
    defaults, empty where the broker does not return them."""

    name: str
    topic_id: bytes
    error_code: int
    error_message: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
