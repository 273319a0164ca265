"""Groups: coordinator, membership, description, committed offsets.

Flow: response -> ``group_messages`` -> one of these -> the client. Error codes stay codes: the
caller decides. Connect's metadata and assignments are in ``connect_group``.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from mm2py.errors import ProtocolError
from mm2py.protocol.topics import BrokerNode
from mm2py.types import TopicPartition


class CoordinatorType(IntEnum):
    """The kind of a coordinator (KIP-98)."""

    GROUP = 0
    TRANSACTION = 1


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


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Answer to SyncGroup: this member's assignment."""

    error_code: int
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as DescribeGroups shows it."""

    member_id: str
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
    members: tuple[DescribedMember, ...]
    operations: frozenset[int] | None = None
    """The principal's rights on it, as values of ``AclOperation`` (KIP-430); None if not
    requested."""


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


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a consumer (``ConsumerProtocolAssignment``); none while it has no
    assignment.

    Raises:
        ProtocolError: the bytes are cut off.
    """
    if not assignment:
        return ()
    partitions: list[TopicPartition] = []
    try:
        # Later versions of ConsumerProtocol only append fields, so version 0's are read of all.
        (topics,) = struct.unpack_from(">i", assignment, 2)  # after the version
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, at)
            topic = assignment[at + 2 : at + 2 + length].decode()
            (count,) = struct.unpack_from(">i", assignment, at + 2 + length)
            at += 6 + length
            numbers: tuple[int, ...] = struct.unpack_from(f">{count}i", assignment, at)
            at += 4 * count
            partitions += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"the assignment of a consumer cannot be read: {error}") from None
    return tuple(partitions)
