"""Groups of one cluster and one kind: which there are, what they have committed, and commits on
their behalf.

Flow: ``list_groups`` (one ListGroups per broker, which names coordinator and state) ->
``committed`` (offsets of many groups per coordinator) -> ``commit`` (without a member, for groups
that have none). The broker refuses the commit of a group that has members, so whether it has any
needs no question before. The requests are those of ``share_positions``.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from mm2py.client.connect.cluster import COORDINATOR, Cluster
from mm2py.client.connect.metadata_cache import by_node
from mm2py.client.connect.share_positions import CONSUMER_GROUPS, GroupRequests
from mm2py.client.parts import chunks
from mm2py.clock import together
from mm2py.errors import Mm2pyError, RetriableError, ServerError
from mm2py.protocol.acls import AclOperation
from mm2py.protocol.consumer_offsets import CONSUMER_OFFSETS
from mm2py.protocol.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    NOT_COORDINATOR,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.group_messages import delete_groups, delete_offsets, describe_groups
from mm2py.protocol.groups import FetchedOffset, FetchedOffsets, OffsetToCommit
from mm2py.protocol.schema import unsendable
from mm2py.types import TopicPartition

UNKNOWN: Final = "Unknown"
"""The state of a group whose coordinator does not say it."""
USUAL_OFFSETS_PARTITIONS: Final = 50
"""``offsets.topic.num.partitions`` of brokers that do not set it."""

_MOVED: Final = frozenset(
    {NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS}
)

_NO_TOPIC: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})

Committed = Mapping[TopicPartition, FetchedOffset] | Mm2pyError
"""Committed offsets by partition, or why they are not known."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group; brokers before 2.6 list no ``state`` (``GroupAdmin.with_states``), those before
    3.8 no ``group_type``."""

    group_id: str
    node_id: int
    state: str
    group_type: str = ""
    """``classic``, ``consumer``, ``streams`` or ``share``."""

    @property
    def has_members(self) -> bool:
        """Whether it is known to have members, so that its offsets may not be written from
        outside."""
        return self.state not in {"", UNKNOWN, "Empty", "Dead"}


@dataclass(frozen=True, slots=True)
class GroupCatalog:
    """Groups by name; ``missing`` has the reason why those of some brokers are not among them."""

    groups: Mapping[str, GroupListing]
    missing: str = ""


@final
class GroupAdmin:
    """Administration of one kind of groups over the connections of a cluster; stateless."""

    def __init__(self, cluster: Cluster, requests: GroupRequests = CONSUMER_GROUPS) -> None:
        self.cluster, self._requests = cluster, requests

    async def are_supported(self) -> bool:
        """Whether the cluster has such groups; ``RetriableError`` where no broker answers."""
        return self._requests.are_supported(await self.cluster.controller())

    async def list_groups(self) -> GroupCatalog:
        """Return the groups of this kind, all brokers being asked side by side; none where it has
        no such groups.

        Raises:
            ServerError: groups may not be listed.
            RetriableError: no broker answered.
        """
        await self.cluster.refresh_brokers()
        nodes = self.cluster.broker_ids
        # A group is listed by its coordinator alone, so every broker is asked.
        answers = await asyncio.gather(*map(self._list_at, nodes), return_exceptions=True)
        listings: dict[str, GroupListing] = {}
        problems: list[RetriableError] = []
        for answer in answers:
            if isinstance(answer, RetriableError):
                problems.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                listings |= {listing.group_id: listing for listing in answer}
        for group, listing in listings.items():
            # Saves a FindCoordinator per group.
            self.cluster.coordinator_found(group, listing.node_id)
        # A part of the groups is useful; none is an error.
        if problems and len(problems) == len(nodes):
            raise problems[0]
        return GroupCatalog(listings, str(problems[0]) if problems else "")

    async def with_states(self, groups: Mapping[str, GroupListing]) -> dict[str, GroupListing]:
        """Return listings, those without a state (brokers before 2.6) with the one that
        DescribeGroups has; ``UNKNOWN`` where none has it."""
        listings = dict(groups)
        # ListGroups 4 (KIP-518) says it already.
        silent = {it: listing for it, listing in groups.items() if not listing.state}
        listings |= {it: replace(listing, state=UNKNOWN) for it, listing in silent.items()}
        unsent = unsendable(groups, "group")
        asked_at = {it: listing.node_id for it, listing in silent.items() if it not in unsent}
        for node_id, names in by_node(asked_at)[0].items():
            connection = await self.cluster.connection(node_id, COORDINATOR)
            for asked in chunks(names, self._requests.per_request):
                for it in await connection.call(describe_groups(asked)):
                    if it.state:
                        listings[it.group_id] = replace(listings[it.group_id], state=it.state)
        return listings

    async def rights(self, groups: Collection[str]) -> dict[str, frozenset[AclOperation]]:
        """Return our principal's rights on groups, which need not exist.

        Groups whose coordinator does not disclose them now are left out.

        Raises:
            UnsupportedVersionError: brokers before 2.3 do not disclose them (KIP-430).
            RetriableError: a coordinator does not answer.
        """
        rights: dict[str, frozenset[AclOperation]] = {}
        for node_id, names in by_node(await self.cluster.coordinators(groups))[0].items():
            connection = await self.cluster.connection(node_id, COORDINATOR)
            for it in await connection.call(describe_groups(names, operations=True)):
                # Without Describe the answer has this code in place of rights.
                if it.error_code == GROUP_AUTHORIZATION_FAILED or it.operations is not None:
                    rights[it.group_id] = frozenset(map(AclOperation, it.operations or ()))
        return rights

    async def coordinators(self, groups: Collection[str]) -> dict[str, int]:
        """Return the nodes that coordinate groups, as far as they are known.

        Raises:
            RetriableError: no broker answered.
        """
        nodes = await self.cluster.coordinators(groups)
        return {group: node for group, node in nodes.items() if isinstance(node, int)}

    async def committed(self, groups: Collection[str]) -> dict[str, Committed]:
        """Return the committed offsets of groups, each asked at its coordinator; an error is the
        group's value."""
        try:
            nodes = await self.cluster.coordinators(groups)
        except RetriableError as error:
            return dict.fromkeys(groups, error)
        asked, nowhere = by_node(nodes)
        offsets: dict[str, Committed] = {**nowhere}
        for part in await together(*(self._committed_at(*item) for item in asked.items())):
            offsets |= part
        return offsets

    async def commit(
        self, group_id: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        """Commit offsets of a group that has no members, once; returns None or the refusal per
        partition.

        Raises:
            RetriableError: its coordinator did not answer, or is another one by now.
            ServerError: it may not be asked for.
        """
        requests = self._requests
        connection = await self.cluster.coordinator(group_id, requests.purpose)
        try:
            answers = await connection.call(requests.write(group_id, offsets))
        except RetriableError:
            self.cluster.coordinator_moved(group_id)
            raise
        # OffsetCommit has no error of its own: the coordinator's is repeated for each partition.
        moved = next((answer.error_code for answer in answers if answer.error_code in _MOVED), 0)
        if moved:
            self.cluster.coordinator_moved(group_id)
            raise server_error(moved, f"coordinator of group {group_id}")
        return {
            TopicPartition(it.topic, it.partition): self._error(
                it.error_code, "Read", group_id, it.topic
            )
            for it in answers
        }

    async def delete(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets; one that does not exist is no
        error.

        Raises:
            ServerError: it has members, or may not be deleted.
        """
        answers = await self.cluster.call_coordinator(
            group_id, delete_groups([group_id]), code_of=lambda found: found.get(group_id, 0)
        )
        code = answers.get(group_id, 0)
        error = None if code == GROUP_ID_NOT_FOUND else self._error(code, "Delete", group_id)
        if error is not None:
            raise error

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete committed offsets of a group; one that is not there is no error.

        Raises:
            ServerError: the group reads one of these topics, or the offsets may not be deleted.
        """
        code, by_partition = await self.cluster.call_coordinator(
            group_id, delete_offsets(group_id, partitions), code_of=lambda found: found[0]
        )
        if code == GROUP_ID_NOT_FOUND:
            return
        wrong = code or next(filter(None, by_partition.values()), 0)
        if wrong:
            raise server_error(wrong, f"offsets of group {group_id}")

    async def offsets_partitions(self) -> int:
        """Return how many partitions ``__consumer_offsets`` has; Kafka's default where that may not
        be seen."""
        for topic in (await self.cluster.metadata([CONSUMER_OFFSETS])).topics:
            if topic.partitions:
                return len(topic.partitions)
        return USUAL_OFFSETS_PARTITIONS

    async def _list_at(self, node_id: int) -> list[GroupListing]:
        connection = await self.cluster.connection(node_id, COORDINATOR)
        if not self._requests.are_supported(connection):
            return []
        answer = await connection.call(self._requests.listing())
        if answer.error_code:
            raise server_error(answer.error_code, f"groups of {connection.address}")
        return [
            GroupListing(group.group_id, node_id, group.state, group.group_type.lower())
            for group in answer.groups
            if self._requests.is_one(group)
        ]

    async def _committed_at(self, node_id: int, groups: Sequence[str]) -> dict[str, Committed]:
        committed: dict[str, Committed] = {}
        requests = self._requests
        for asked in chunks(groups, requests.per_request):
            try:
                connection = await self.cluster.connection(node_id, requests.purpose)
                answers = await requests.offsets(self.cluster, connection, asked)
            except RetriableError as error:
                committed |= dict.fromkeys(asked, error)
            else:
                committed |= {it: self._committed(it, answer) for it, answer in answers.items()}
        for group, answer in committed.items():
            if isinstance(answer, RetriableError):
                self.cluster.coordinator_moved(group)
        return committed

    def _committed(self, group: str, answer: FetchedOffsets) -> Committed:
        error = self._error(answer.error_code, "Describe", group)
        if error is not None:
            return error
        offsets: dict[TopicPartition, FetchedOffset] = {}
        for offset in answer.offsets:
            # A commit may outlive its topic: left out, no error of the group.
            code = 0 if offset.error_code in _NO_TOPIC else offset.error_code
            error = self._error(code, "Describe", group, offset.topic)
            if error is not None:
                return error
            if offset.offset >= 0 and not offset.error_code:
                offsets[TopicPartition(offset.topic, offset.partition)] = offset
        return offsets

    def _error(self, code: int, operation: str, group: str, topic: str = "") -> ServerError | None:
        """Return the error of offsets, with the grant where a right is missing; None for 0."""
        if not code:
            return None
        what = f"offsets of group {group}" + (f" in {topic}" if topic else "")
        name = topic if code == TOPIC_AUTHORIZATION_FAILED else group
        return self.cluster.denied(code, operation, name) or server_error(code, what)
