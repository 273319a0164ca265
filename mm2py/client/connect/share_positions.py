"""Requests of consumer and share groups; positions of share groups (start offsets or log ends).

Flow: ``describe`` -> ends of the partitions with a lag of 0 -> ``describe`` of their groups again
-> ``share_positions``. A broker stores a new start offset only with the acknowledgement after it
(Kafka 4.3): a group that has acknowledged everything is described where it was before its last
acknowledgement, with a lag of 0.

Invariants (tests of the same names):

1. Everything before a position is acknowledged: a lag of 0 counts for an end that was listed before
   the lag was requested, because the broker computes it from the end of that moment.
2. A position is not behind the start offset.
3. A group that has acknowledged everything, and gets nothing more, is at the end.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import COORDINATOR, Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.connect.metadata_cache import by_node
from mm2py.errors import UnsupportedVersionError
from mm2py.protocol.call import Call
from mm2py.protocol.group_messages import group_offsets, list_groups, offset_commit, offset_fetch
from mm2py.protocol.groups import (
    FetchedOffset,
    FetchedOffsets,
    ListedGroup,
    ListedGroups,
    OffsetToCommit,
)
from mm2py.protocol.share_offsets import (
    ALTER_KEY,
    DESCRIBE_KEY,
    ShareOffset,
    ShareOffsets,
    alter_share_offsets,
    describe_share_offsets,
)
from mm2py.protocol.topics import PartitionOutcome
from mm2py.types import LATEST, TopicPartition

SHARE_CONNECTION: Final = "share-coordinator"
"""A connection of its own: some answers take the broker seconds, and those after them wait."""


class ShareQuestions(Protocol):
    """The requests that share positions need (``ShareSource``)."""

    async def describe(self, groups: Sequence[str]) -> Mapping[str, ShareOffsets]:
        """Return the start offsets of groups of one coordinator."""
        ...

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the ends of partitions, without those that are not known."""
        ...


async def share_positions(
    source: ShareQuestions, groups: Sequence[str]
) -> dict[str, FetchedOffsets]:
    """Return where groups of one coordinator continue; ``RetriableError`` where a broker does not
    answer."""
    descriptions = dict(await source.describe(groups))
    done = {
        _partition(offset)
        for answer in descriptions.values()
        for offset in answer.offsets
        if _is_done(offset)
    }
    ends: Mapping[TopicPartition, int] = await source.ends(done) if done else {}
    again = [
        name
        for name, answer in descriptions.items()
        if any(_position(offset, ends) > offset.start for offset in answer.offsets)
    ]
    # Requested again after the ends: a lag of 0 then covers each end that was listed (invariant 1).
    if again:
        descriptions |= await source.describe(again)
    return {
        name: FetchedOffsets(
            answer.error_code,
            tuple(
                FetchedOffset(
                    offset.topic,
                    offset.partition,
                    _position(offset, ends) if name in again else offset.start,
                    -1,
                    "",
                    offset.error_code,
                )
                for offset in answer.offsets
            ),
        )
        for name, answer in descriptions.items()
    }


async def delivered_of(
    source: ShareQuestions, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return how many records after its position a group has acknowledged: another cluster delivers
    them again.

    Partitions without any are left out, and all of brokers before 4.2, which have no lag. The lag
    is requested after the ends, as in ``share_positions``, so records written in between do not
    count.
    """
    before = await source.describe(groups)
    open_ = {
        _partition(offset)
        for found in before.values()
        for offset in found.offsets
        if offset.lag > 0
    }
    ends: Mapping[TopicPartition, int] = await source.ends(open_) if open_ else {}
    found: dict[str, dict[TopicPartition, int]] = {}
    for group, answer in (await source.describe(groups)).items() if ends else ():
        for offset in answer.offsets:
            # lag: what is not acknowledged up to the end;
            # the rest between start and end is (KIP-1226).
            behind = ends.get(_partition(offset), 0) - offset.start - offset.lag
            if offset.start >= 0 and offset.lag > 0 and not offset.error_code and behind > 0:
                found.setdefault(group, {})[_partition(offset)] = behind
    return found


async def delivered_behind(
    cluster: Cluster, groups: Collection[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return ``delivered_of`` of groups, each asked at its coordinator; ``RetriableError`` where
    one does not answer."""
    delivered: dict[str, dict[TopicPartition, int]] = {}
    for node, names in by_node(await cluster.coordinators(groups))[0].items():
        connection = await cluster.connection(node, SHARE_CONNECTION)
        delivered |= await delivered_of(ShareSource(cluster, connection), names)
    return delivered


def _is_done(offset: ShareOffset) -> bool:
    return offset.start >= 0 and offset.lag == 0 and not offset.error_code


def _partition(offset: ShareOffset) -> TopicPartition:
    return TopicPartition(offset.topic, offset.partition)


def _position(offset: ShareOffset, ends: Mapping[TopicPartition, int]) -> int:
    if not _is_done(offset):
        return offset.start
    return max(offset.start, ends.get(_partition(offset), -1))


@final
class ShareSource:
    """Share groups of one coordinator, asked over its connection."""

    def __init__(self, cluster: Cluster, coordinator: BrokerConnection) -> None:
        self._cluster, self._coordinator = cluster, coordinator

    async def describe(self, groups: Sequence[str]) -> Mapping[str, ShareOffsets]:
        """Request each group by itself: ten in one request take Kafka 4.3 2 to 7 s, else 1 ms."""
        call = self._coordinator.call
        descriptions: dict[str, ShareOffsets] = {}
        for answer in await asyncio.gather(
            *(call(describe_share_offsets([group])) for group in groups)
        ):
            descriptions |= answer
        return descriptions

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        listed = await Admin(self._cluster).list_offsets(dict.fromkeys(partitions, LATEST))
        return {tp: it.offset for tp, it in listed.items() if it.error is None}


SHARE_TYPE: Final = "share"
SHARE_FEATURE: Final = "share.version"
STREAMS_TYPE: Final = "streams"

_CONSUMER_TYPES: Final = frozenset({"", "classic", "consumer", STREAMS_TYPE})
"""Group types whose members commit offsets; brokers before 3.8 name none. One of Kafka Streams
(KIP-1071) begins on the target where offsets without members are, as one of consumers does."""
_CONSUMER_PROTOCOLS: Final = frozenset({"", "consumer", STREAMS_TYPE})
"""``""``: offsets without members. Connect's workers are ``connect``."""


class GroupRequests(Protocol):
    """The requests of one kind of groups."""

    purpose: str
    """Purpose of the connections that carry the offsets."""
    per_request: int
    """Groups that ``offsets`` is given at most: one answer stays small, and the coordinator free
    for its members."""

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
            # By both: brokers before 3.8 list no type, and
            # Connect's workers are a classic group, too.
            group.protocol_type in _CONSUMER_PROTOCOLS
            and group.group_type.lower() in _CONSUMER_TYPES
        )

    async def offsets(
        self, _cluster: Cluster, connection: BrokerConnection, groups: Sequence[str]
    ) -> Mapping[str, FetchedOffsets]:
        try:
            return await connection.call(group_offsets(groups))
        # Brokers before 3.0 take one group a request (KIP-709).
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
        # A broker may know the requests while the feature is off for the cluster (KIP-584).
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
