"""What differs between kinds of groups: how they are listed, and which requests read and write their offsets.

Flow: ``CONSUMER_GROUPS`` or ``SHARE_GROUPS`` -> ``GroupAdmin``. Consumer groups commit offsets with OffsetCommit; share
groups (KIP-932) have start offsets, which the broker keeps in ``__share_group_state``.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, final

from mm2py.client.connect.cluster import COORDINATOR, Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.connect.share_positions import (
    SHARE_CONNECTION,
    ShareSource,
    share_positions,
)
from mm2py.errors import UnsupportedVersionError
from mm2py.protocol.call import Call
from mm2py.protocol.group_messages import group_offsets, list_groups, offset_fetch
from mm2py.protocol.groups import (
    FetchedOffsets,
    ListedGroup,
    ListedGroups,
    OffsetToCommit,
)
from mm2py.protocol.offset_commit import offset_commit
from mm2py.protocol.outcomes import PartitionOutcome
from mm2py.protocol.share_offsets import (
    ALTER_KEY,
    DESCRIBE_KEY,
    alter_share_offsets,
)

SHARE_TYPE: Final = "share"
SHARE_FEATURE: Final = "share.version"

_CONSUMER_TYPES: Final = frozenset({"", "classic", "consumer"})
"""Group types whose members commit offsets; brokers before 3.8 name none."""
_CONSUMER_PROTOCOLS: Final = frozenset({"", "consumer"})
"""``""``: offsets without members. Connect's workers are ``connect``."""


class GroupRequests(Protocol):
    """The requests of one kind of groups."""

    purpose: str
    """Of the connections that carry the offsets."""
    per_request: int
    """Groups that ``offsets`` is given at most: one answer stays small, and the coordinator free for its members."""

    def are_supported(self, connection: BrokerConnection, /) -> bool:
        """Whether the cluster has such groups."""
        ...

    def listing(self) -> Call[ListedGroups]:
        """Return the request that lists groups, those of other kinds perhaps among them."""
        ...

    def is_one(self, group: ListedGroup) -> bool:
        """Whether a listed group is of this kind."""
        ...

    async def offsets(
        self, cluster: Cluster, connection: BrokerConnection, groups: Sequence[str], /
    ) -> Mapping[str, FetchedOffsets]:
        """Return the offsets of groups, ``connection`` being that to their coordinator."""
        ...

    def write(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Call[tuple[PartitionOutcome, ...]]:
        """Return the request that sets offsets of a group without members."""
        ...


@final
class _ConsumerGroups:
    purpose = COORDINATOR
    per_request = 200

    def are_supported(self, _connection: BrokerConnection) -> bool:
        return True

    def listing(self) -> Call[ListedGroups]:
        return list_groups()

    def is_one(self, group: ListedGroup) -> bool:
        return (
            group.protocol_type in _CONSUMER_PROTOCOLS
            and group.group_type.lower() in _CONSUMER_TYPES
        )

    async def offsets(
        self, _cluster: Cluster, connection: BrokerConnection, groups: Sequence[str]
    ) -> Mapping[str, FetchedOffsets]:
        try:
            return await connection.call(group_offsets(groups))
        except UnsupportedVersionError:
            return {group: await connection.call(offset_fetch(group)) for group in groups}

    def write(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Call[tuple[PartitionOutcome, ...]]:
        return offset_commit(group_id, offsets)


@final
class _ShareGroups:
    purpose = SHARE_CONNECTION
    per_request = 50

    def are_supported(self, connection: BrokerConnection) -> bool:
        has_requests = {DESCRIBE_KEY, ALTER_KEY} <= connection.versions.keys()
        return has_requests and connection.feature_level(SHARE_FEATURE) > 0

    def listing(self) -> Call[ListedGroups]:
        return list_groups(types=(SHARE_TYPE,))

    def is_one(self, group: ListedGroup) -> bool:
        return group.group_type.lower() == SHARE_TYPE

    async def offsets(
        self, cluster: Cluster, connection: BrokerConnection, groups: Sequence[str]
    ) -> Mapping[str, FetchedOffsets]:
        return await share_positions(ShareSource(cluster, connection), groups)

    def write(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Call[tuple[PartitionOutcome, ...]]:
        return alter_share_offsets(group_id, offsets)


CONSUMER_GROUPS: Final[GroupRequests] = _ConsumerGroups()
SHARE_GROUPS: Final[GroupRequests] = _ShareGroups()
