"""Coordinator requests: find it, membership of a group, and a group's committed offsets.

Flow: a builder (``join_group(...)``) -> ``Call`` -> bytes -> broker -> bytes -> one value.
OffsetFetch stays below v10, whose topic ids we do not send (libraries.md 1).
"""

from collections.abc import Mapping, Sequence

from mm2py.protocol.brokers import BrokerNode
from mm2py.protocol.call import Call
from mm2py.protocol.groups import (
    CoordinatorResult,
    CoordinatorType,
    DescribedGroup,
    FetchedOffset,
    FetchedOffsets,
    GroupMember,
    GroupProtocol,
    JoinedMember,
    JoinResult,
    ListedGroup,
    ListedGroups,
    SyncResult,
)
from mm2py.protocol.schema import (
    admin_schema,
    by_topic,
    consumer_schema,
    metadata_schema,
    required,
    schema_call,
)
from mm2py.types import TopicPartition


def find_coordinator(
    key: str, kind: CoordinatorType = CoordinatorType.GROUP
) -> Call[CoordinatorResult]:
    """Find the coordinator of a group or transactional id; the latter creates its state topic."""
    required(key, "coordinator key")

    def request() -> metadata_schema.FindCoordinatorRequest:
        return metadata_schema.FindCoordinatorRequest(
            key=key, key_type=int(kind), coordinator_keys=[key]
        )

    def convert(answer: metadata_schema.FindCoordinatorResponse) -> CoordinatorResult:
        found = answer.coordinators[0] if answer.coordinators else answer  # batched from v4 on
        return CoordinatorResult(
            found.error_code,
            found.error_message or "",
            BrokerNode(found.node_id, found.host, found.port),
        )

    low = 0 if kind is CoordinatorType.GROUP else 1
    return schema_call(request, metadata_schema.FindCoordinatorResponse, convert, (low, 6))


def find_coordinators(group_ids: Sequence[str]) -> Call[dict[str, CoordinatorResult]]:
    """Find the coordinators of several groups (KIP-699, brokers from 3.0 on)."""
    names = [required(group, "group") for group in group_ids]

    def request() -> metadata_schema.FindCoordinatorRequest:
        return metadata_schema.FindCoordinatorRequest(
            key="", key_type=int(CoordinatorType.GROUP), coordinator_keys=names
        )

    def convert(answer: metadata_schema.FindCoordinatorResponse) -> dict[str, CoordinatorResult]:
        return {
            it.key: CoordinatorResult(
                it.error_code, it.error_message or "", BrokerNode(it.node_id, it.host, it.port)
            )
            for it in answer.coordinators
        }

    return schema_call(request, metadata_schema.FindCoordinatorResponse, convert, (4, 6))


def join_group(
    group_id: str,
    member_id: str,
    *,
    protocol_type: str,
    protocols: Sequence[GroupProtocol],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    group_instance_id: str | None = None,
) -> Call[JoinResult]:
    """Join a group; the first join has an empty member id and is answered with error 79 and one."""
    required(group_id, "group")
    required(protocol_type, "protocol type")
    if not protocols:
        raise ValueError("a request needs at least one group protocol")

    def request() -> consumer_schema.JoinGroupRequest:
        return consumer_schema.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type=protocol_type,
            protocols=[
                consumer_schema.JoinGroupRequest.JoinGroupRequestProtocol(
                    name=protocol.name, metadata=protocol.metadata
                )
                for protocol in protocols
            ],
            reason=None,
        )

    def convert(answer: consumer_schema.JoinGroupResponse) -> JoinResult:
        return JoinResult(
            answer.error_code,
            answer.generation_id,
            answer.protocol_name or "",
            answer.leader,
            answer.member_id,
            tuple(
                JoinedMember(m.member_id, m.group_instance_id, bytes(m.metadata))
                for m in answer.members
            ),
            answer.skip_assignment,
        )

    low = 1 if group_instance_id is None else 5  # v5: static members (KIP-345)
    return schema_call(request, consumer_schema.JoinGroupResponse, convert, (low, 9))


def sync_group(
    group_id: str,
    generation_id: int,
    member_id: str,
    *,
    protocol_type: str,
    protocol_name: str,
    assignments: Mapping[str, bytes] | None = None,
    group_instance_id: str | None = None,
) -> Call[SyncResult]:
    """Hand in the leader's assignments (followers: none) and get one's own."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.SyncGroupRequest:
        return consumer_schema.SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                consumer_schema.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=assignment
                )
                for member, assignment in (assignments or {}).items()
            ],
        )

    def convert(answer: consumer_schema.SyncGroupResponse) -> SyncResult:
        return SyncResult(answer.error_code, answer.protocol_name or "", bytes(answer.assignment))

    low = 0 if group_instance_id is None else 3
    return schema_call(request, consumer_schema.SyncGroupResponse, convert, (low, 5))


def heartbeat(
    group_id: str, generation_id: int, member_id: str, *, group_instance_id: str | None = None
) -> Call[int]:
    """Keep a membership alive; the result is the error code (27: a rebalance is on)."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.HeartbeatRequest:
        return consumer_schema.HeartbeatRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=group_instance_id,
        )

    def convert(answer: consumer_schema.HeartbeatResponse) -> int:
        return answer.error_code

    low = 0 if group_instance_id is None else 3
    return schema_call(request, consumer_schema.HeartbeatResponse, convert, (low, 4))


def leave_group(group_id: str, member_id: str, *, reason: str | None = None) -> Call[int]:
    """Leave a group; the result is the first error code of request and member."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.LeaveGroupRequest:
        return consumer_schema.LeaveGroupRequest(
            group_id=group_id,
            member_id=member_id,
            members=[
                consumer_schema.LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)
            ],
        )

    def convert(answer: consumer_schema.LeaveGroupResponse) -> int:
        codes = (answer.error_code, *(member.error_code for member in answer.members))
        return next((code for code in codes if code), 0)

    return schema_call(request, consumer_schema.LeaveGroupResponse, convert, (0, 5))


def describe_groups(group_ids: Sequence[str]) -> Call[tuple[DescribedGroup, ...]]:
    """Ask a coordinator for the state and members of its groups."""
    names = [required(group, "group") for group in group_ids]

    def request() -> admin_schema.DescribeGroupsRequest:
        return admin_schema.DescribeGroupsRequest(groups=names)

    def convert(answer: admin_schema.DescribeGroupsResponse) -> tuple[DescribedGroup, ...]:
        return tuple(
            DescribedGroup(
                group.group_id,
                group.error_code,
                group.error_message or "",
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                tuple(
                    GroupMember(
                        member.member_id,
                        member.group_instance_id,
                        member.client_id,
                        member.client_host,
                        bytes(member.member_metadata),
                        bytes(member.member_assignment),
                    )
                    for member in group.members
                ),
            )
            for group in answer.groups
        )

    return schema_call(request, admin_schema.DescribeGroupsResponse, convert, (0, 6))


def delete_groups(group_ids: Sequence[str]) -> Call[dict[str, int]]:
    """Delete groups of one coordinator, with their offsets; returns an error code for each (NON_EMPTY_GROUP)."""
    names = [required(group, "group") for group in group_ids]

    def request() -> admin_schema.DeleteGroupsRequest:
        return admin_schema.DeleteGroupsRequest(groups_names=names)

    def convert(answer: admin_schema.DeleteGroupsResponse) -> dict[str, int]:
        return {it.group_id: it.error_code for it in answer.results}

    return schema_call(request, admin_schema.DeleteGroupsResponse, convert, (0, 2))


def delete_offsets(
    group_id: str, partitions: Sequence[TopicPartition]
) -> Call[tuple[int, dict[TopicPartition, int]]]:
    """Delete committed offsets of a group (KIP-496); returns the group's error code, and one for each partition."""
    required(group_id, "group")
    topics = by_topic((required(it.topic, "topic"), it.partition) for it in partitions)

    def request() -> consumer_schema.OffsetDeleteRequest:
        kind = consumer_schema.OffsetDeleteRequest
        topic = kind.OffsetDeleteRequestTopic
        return kind(
            group_id=group_id,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.OffsetDeleteRequestPartition(partition_index=number)
                        for number in numbers
                    ],
                )
                for name, numbers in topics
            ],
        )

    def convert(
        answer: consumer_schema.OffsetDeleteResponse,
    ) -> tuple[int, dict[TopicPartition, int]]:
        return answer.error_code, {
            TopicPartition(topic.name, it.partition_index): it.error_code
            for topic in answer.topics
            for it in topic.partitions
        }

    return schema_call(request, consumer_schema.OffsetDeleteResponse, convert, (0, 0))


def list_groups(states: Sequence[str] = (), types: Sequence[str] = ()) -> Call[ListedGroups]:
    """List the groups that one broker coordinates, all or those in ``states`` (v4+) or of ``types`` (v5+)."""
    wanted, kinds = list(states), list(types)

    def request() -> admin_schema.ListGroupsRequest:
        return admin_schema.ListGroupsRequest(states_filter=wanted, types_filter=kinds)

    def convert(answer: admin_schema.ListGroupsResponse) -> ListedGroups:
        return ListedGroups(
            answer.error_code,
            tuple(
                ListedGroup(g.group_id, g.protocol_type, g.group_state, g.group_type)
                for g in answer.groups
            ),
        )

    low = 5 if kinds else 4 if wanted else 0
    return schema_call(request, admin_schema.ListGroupsResponse, convert, (low, 5))


def offset_fetch(
    group_id: str,
    partitions: Sequence[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> Call[FetchedOffsets]:
    """Read a group's committed offsets; None means all that it has."""
    required(group_id, "group")
    topics = (
        None
        if partitions is None
        else by_topic((required(tp.topic, "topic"), tp.partition) for tp in partitions)
    )

    def request() -> consumer_schema.OffsetFetchRequest:
        # The library drops ``groups`` below v8 and ``topics`` from v8 on, so both are given;
        # an empty list would mean "no partitions".
        kind = consumer_schema.OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup
        return kind(
            group_id=group_id,
            topics=None
            if topics is None
            else [
                kind.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics
            ],
            groups=[
                group(
                    group_id=group_id,
                    member_id=None,
                    member_epoch=-1,
                    topics=None
                    if topics is None
                    else [
                        group.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                        for name, indexes in topics
                    ],
                )
            ],
            require_stable=require_stable,
        )

    low = 7 if require_stable else 2 if topics is None else 1
    return schema_call(request, consumer_schema.OffsetFetchResponse, _fetched_offsets, (low, 9))


def _fetched_offsets(answer: consumer_schema.OffsetFetchResponse) -> FetchedOffsets:
    found = answer.groups[0] if answer.groups else answer
    return FetchedOffsets(found.error_code, _partition_offsets(found))


def _partition_offsets(
    found: consumer_schema.OffsetFetchResponse
    | consumer_schema.OffsetFetchResponse.OffsetFetchResponseGroup,
) -> tuple[FetchedOffset, ...]:
    return tuple(
        FetchedOffset(
            topic.name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata or "",
            part.error_code,
        )
        for topic in found.topics
        for part in topic.partitions
    )


def group_offsets(group_ids: Sequence[str]) -> Call[dict[str, FetchedOffsets]]:
    """Read all committed offsets of several groups of one coordinator (KIP-709, brokers from 3.0 on)."""
    names = [required(group, "group") for group in group_ids]

    def request() -> consumer_schema.OffsetFetchRequest:
        kind = consumer_schema.OffsetFetchRequest
        return kind(
            group_id=names[0],
            topics=None,
            groups=[
                kind.OffsetFetchRequestGroup(
                    group_id=name, member_id=None, member_epoch=-1, topics=None
                )
                for name in names
            ],
            require_stable=False,
        )

    def convert(answer: consumer_schema.OffsetFetchResponse) -> dict[str, FetchedOffsets]:
        return {
            group.group_id: FetchedOffsets(group.error_code, _partition_offsets(group))
            for group in answer.groups
        }

    return schema_call(request, consumer_schema.OffsetFetchResponse, convert, (8, 9))
