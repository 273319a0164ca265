"""What differs between kinds of groups: how they are listed, and which requests read and write their offsets.

Flow: ``CONSUMER_GROUPS`` or ``SHARE_GROUPS`` -> ``GroupAdmin``. Consumer groups commit offsets with OffsetCommit; share
groups (KIP-932) have start offsets, which the broker keeps in ``__share_group_state``.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import COORDINATOR, Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.errors import UnsupportedVersionError
from mm2py.protocol.call import Call
from mm2py.protocol.group_messages import group_offsets, list_groups, offset_fetch
from mm2py.protocol.groups import (
    FetchedOffset,
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
    ShareOffset,
    ShareOffsets,
    alter_share_offsets,
    describe_share_offsets,
)
from mm2py.types import LATEST, TopicPartition

__all__ = ["CONSUMER_GROUPS", "SHARE_GROUPS", "SHARE_TYPE", "GroupRequests"]

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

    def are_supported(self, connection: BrokerConnection) -> bool:
        """Whether the cluster has such groups."""
        ...

    def listing(self) -> Call[ListedGroups]:
        """Return the request that lists groups, those of other kinds perhaps among them."""
        ...

    def is_one(self, group: ListedGroup) -> bool:
        """Whether a listed group is of this kind."""
        ...

    async def offsets(
        self, cluster: Cluster, connection: BrokerConnection, groups: Sequence[str]
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
    purpose = "share-coordinator"
    """A connection of its own: some answers take the broker seconds, and those behind them wait."""
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
        """Return where the groups continue: at their start offsets, or at the end where all before it is delivered.

        A broker stores the new start offset with the acknowledgement behind it, so a group that has read everything is
        shown where it was before its last ones, with a lag of 0. The end that counts was listed before that lag: all
        records below it are delivered.
        """
        found = await _described(connection, groups)
        starts = {
            TopicPartition(it.topic, it.partition): it.start
            for answer in found.values()
            for it in answer.offsets
            if it.start >= 0 and it.lag == 0 and not it.error_code
        }
        listed = await Admin(cluster).list_offsets(dict.fromkeys(starts, LATEST)) if starts else {}
        ends = {tp: it.offset for tp, it in listed.items() if it.error is None}
        behind = [
            name
            for name, it in found.items()
            if any(_end_of(e, ends) > e.start for e in it.offsets)
        ]
        found |= await _described(connection, behind)
        return {
            name: FetchedOffsets(it.error_code, tuple(_fetched(each, ends) for each in it.offsets))
            for name, it in found.items()
        }

    def write(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> Call[tuple[PartitionOutcome, ...]]:
        return alter_share_offsets(group_id, offsets)


async def _described(
    connection: BrokerConnection, groups: Sequence[str]
) -> dict[str, ShareOffsets]:
    # Brokers of 4.3 take 2 to 7 s for a request of ten or more groups, 1 ms each for requests of one.
    calls = (connection.call(describe_share_offsets([group])) for group in groups)
    found: dict[str, ShareOffsets] = {}
    for answer in await asyncio.gather(*calls):
        found |= answer
    return found


def _end_of(offset: ShareOffset, ends: Mapping[TopicPartition, int]) -> int:
    """Return the end of a partition of which all is delivered, else -1."""
    if offset.start < 0 or offset.lag != 0 or offset.error_code:
        return -1
    return ends.get(TopicPartition(offset.topic, offset.partition), -1)


def _fetched(offset: ShareOffset, ends: Mapping[TopicPartition, int]) -> FetchedOffset:
    at = max(offset.start, _end_of(offset, ends))
    return FetchedOffset(offset.topic, offset.partition, at, -1, "", offset.error_code)


CONSUMER_GROUPS: Final[GroupRequests] = _ConsumerGroups()
SHARE_GROUPS: Final[GroupRequests] = _ShareGroups()
