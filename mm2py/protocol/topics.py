"""Topics as brokers describe and create them.

Flow: answer -> ``messages``, ``admin_messages`` -> one of these -> the client. Error codes stay
codes: the caller decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mm2py.protocol.brokers import BrokerNode

NO_TOPIC_ID: Final = bytes(16)
"""Topic id of brokers that have none (``Uuid.ZERO_UUID``)."""


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
class NewTopic:
    """A topic to create; -1 leaves the count to the broker's default (KIP-464)."""

    name: str
    partitions: int = -1
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
