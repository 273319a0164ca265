"""Requests to group coordinators: find one, membership of a group, and committed offsets.

Flow: a builder (``join_group(...)``) -> ``Call`` -> bytes -> broker -> bytes -> one value.
OffsetFetch and OffsetCommit stay below v10, which names topics by id. OffsetCommit is encoded by
hand: a mirror of many groups sends one per commit, and the schema library took a third of the CPU
at 100 commits per second.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import Struct, error
from typing import Final

from mm2py.errors import UnsendableError
from mm2py.protocol.call import Call
from mm2py.protocol.groups import (
    CoordinatorResult,
    CoordinatorType,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    FetchedOffsets,
    GroupProtocol,
    JoinedMember,
    JoinResult,
    ListedGroup,
    ListedGroups,
    OffsetToCommit,
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
from mm2py.protocol.topics import BrokerNode, PartitionOutcome
from mm2py.protocol.wire import (
    INT16,
    INT32,
    array_size,
    compact_string,
    read_compact_string,
    read_string,
    read_unsigned,
    request_header,
    skip_tags,
    string,
    truncated,
)
from mm2py.types import TopicPartition


def find_coordinator(
    key: str, kind: CoordinatorType = CoordinatorType.GROUP
) -> Call[CoordinatorResult]:
    """Find the coordinator of a group or transactional id; the latter creates its state topic."""
    required(key, "coordinator key")

    def convert(answer: metadata_schema.FindCoordinatorResponse) -> CoordinatorResult:
        # v4 has a list.
        return _coordinator(answer.coordinators[0] if answer.coordinators else answer)

    # v0 knows groups only (KIP-98).
    low = 0 if kind is CoordinatorType.GROUP else 1
    request = partial(_find, key, kind, [key])
    return schema_call(request, metadata_schema.FindCoordinatorResponse, convert, (low, 6))


def find_coordinators(group_ids: Sequence[str]) -> Call[dict[str, CoordinatorResult]]:
    """Find the coordinators of several groups (KIP-699, brokers from 3.0 on)."""
    names = [required(group, "group") for group in group_ids]

    def convert(answer: metadata_schema.FindCoordinatorResponse) -> dict[str, CoordinatorResult]:
        return {it.key: _coordinator(it) for it in answer.coordinators}

    # v4 takes several keys; below, the library would send the empty ``key``.
    request = partial(_find, "", CoordinatorType.GROUP, names)
    return schema_call(request, metadata_schema.FindCoordinatorResponse, convert, (4, 6))


def _find(
    key: str, kind: CoordinatorType, keys: Sequence[str]
) -> metadata_schema.FindCoordinatorRequest:
    return metadata_schema.FindCoordinatorRequest(
        key=key, key_type=int(kind), coordinator_keys=list(keys)
    )


def _coordinator(
    found: metadata_schema.FindCoordinatorResponse
    | metadata_schema.FindCoordinatorResponse.Coordinator,
) -> CoordinatorResult:
    node = BrokerNode(found.node_id, found.host, found.port)
    return CoordinatorResult(found.error_code, found.error_message or "", node)


def join_group(
    group_id: str,
    member_id: str,
    *,
    protocol_type: str,
    protocols: Sequence[GroupProtocol],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> Call[JoinResult]:
    """Join a group; the first attempt has no member id and is answered with error 79 and a new one
    (KIP-394)."""
    required(group_id, "group")
    required(protocol_type, "protocol type")
    if not protocols:
        raise UnsendableError("a request needs at least one group protocol")

    def request() -> consumer_schema.JoinGroupRequest:
        return consumer_schema.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=member_id,
            # No static membership (KIP-345): a worker that leaves frees its work at once.
            group_instance_id=None,
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
            tuple(JoinedMember(m.member_id, bytes(m.metadata)) for m in answer.members),
        )

    # v1 has the rebalance timeout (KIP-62).
    return schema_call(request, consumer_schema.JoinGroupResponse, convert, (1, 9))


def sync_group(
    group_id: str,
    generation_id: int,
    member_id: str,
    *,
    protocol_type: str,
    protocol_name: str,
    assignments: Mapping[str, bytes] | None = None,
) -> Call[SyncResult]:
    """Send the leader's assignments (followers: none) and receive the member's own."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.SyncGroupRequest:
        return consumer_schema.SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=None,
            # v5 has both, and a broker refuses those of another protocol (KIP-559).
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
        return SyncResult(answer.error_code, bytes(answer.assignment))

    return schema_call(request, consumer_schema.SyncGroupResponse, convert, (0, 5))


def heartbeat(group_id: str, generation_id: int, member_id: str) -> Call[int]:
    """Keep a membership alive; the result is the error code (27: a rebalance is in progress)."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.HeartbeatRequest:
        return consumer_schema.HeartbeatRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=None,
        )

    def convert(answer: consumer_schema.HeartbeatResponse) -> int:
        return answer.error_code

    return schema_call(request, consumer_schema.HeartbeatResponse, convert, (0, 4))


def leave_group(group_id: str, member_id: str) -> Call[int]:
    """Leave a group; the result is the first error code of the request or the member."""
    required(group_id, "group")
    required(member_id, "member id")

    def request() -> consumer_schema.LeaveGroupRequest:
        return consumer_schema.LeaveGroupRequest(
            group_id=group_id,
            # v3 has a list of members in place of the one (KIP-345).
            member_id=member_id,
            members=[
                consumer_schema.LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=None)
            ],
        )

    def convert(answer: consumer_schema.LeaveGroupResponse) -> int:
        # From v3 on each member has a code of its own (KIP-345).
        codes = (answer.error_code, *(member.error_code for member in answer.members))
        return next((code for code in codes if code), 0)

    return schema_call(request, consumer_schema.LeaveGroupResponse, convert, (0, 5))


def describe_groups(
    group_ids: Sequence[str], *, operations: bool = False
) -> Call[tuple[DescribedGroup, ...]]:
    """Describe groups of a coordinator; ``operations`` adds the principal's rights (KIP-430)."""
    names = [required(group, "group") for group in group_ids]

    def request() -> admin_schema.DescribeGroupsRequest:
        return admin_schema.DescribeGroupsRequest(
            groups=names, include_authorized_operations=operations
        )

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
                    DescribedMember(
                        member.member_id,
                        member.client_id,
                        member.client_host,
                        bytes(member.member_metadata),
                        bytes(member.member_assignment),
                    )
                    for member in group.members
                ),
                None
                if group.authorized_operations is None
                else frozenset(group.authorized_operations),
            )
            for group in answer.groups
        )

    # From v6 on a group that does not exist yet is an error without them.
    low, high = (3, 5) if operations else (0, 6)
    return schema_call(request, admin_schema.DescribeGroupsResponse, convert, (low, high))


def delete_groups(group_ids: Sequence[str]) -> Call[dict[str, int]]:
    """Delete groups of one coordinator, with their offsets; returns an error code for each
    (NON_EMPTY_GROUP)."""
    names = [required(group, "group") for group in group_ids]

    def request() -> admin_schema.DeleteGroupsRequest:
        return admin_schema.DeleteGroupsRequest(groups_names=names)

    def convert(answer: admin_schema.DeleteGroupsResponse) -> dict[str, int]:
        return {result.group_id: result.error_code for result in answer.results}

    return schema_call(request, admin_schema.DeleteGroupsResponse, convert, (0, 2))


def delete_offsets(
    group_id: str, partitions: Sequence[TopicPartition]
) -> Call[tuple[int, dict[TopicPartition, int]]]:
    """Delete committed offsets of a group (KIP-496); returns the group's error code, and one for
    each partition."""
    required(group_id, "group")
    topics = by_topic(
        (required(partition.topic, "topic"), partition.partition) for partition in partitions
    )

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
            TopicPartition(topic.name, partition.partition_index): partition.error_code
            for topic in answer.topics
            for partition in topic.partitions
        }

    return schema_call(request, consumer_schema.OffsetDeleteResponse, convert, (0, 0))


def list_groups(types: Sequence[str] = ()) -> Call[ListedGroups]:
    """List the groups that one broker coordinates, all or those of ``types`` (v5+)."""

    def request() -> admin_schema.ListGroupsRequest:
        return admin_schema.ListGroupsRequest(states_filter=[], types_filter=list(types))

    def convert(answer: admin_schema.ListGroupsResponse) -> ListedGroups:
        return ListedGroups(
            answer.error_code,
            tuple(
                ListedGroup(g.group_id, g.protocol_type, g.group_state, g.group_type)
                for g in answer.groups
            ),
        )

    # v4 has states (KIP-518), v5 types (KIP-848): a broker
    # that ignores the filter would list all groups.
    return schema_call(request, admin_schema.ListGroupsResponse, convert, (5 if types else 0, 5))


def offset_fetch(group_id: str) -> Call[FetchedOffsets]:
    """Read all of a group's committed offsets."""
    request = partial(_all_offsets, [required(group_id, "group")])
    # v2 reads all partitions of a group with a null list.
    return schema_call(request, consumer_schema.OffsetFetchResponse, _fetched_offsets, (2, 9))


def _all_offsets(group_ids: Sequence[str]) -> consumer_schema.OffsetFetchRequest:
    kind = consumer_schema.OffsetFetchRequest
    # The library drops ``groups`` below v8 and ``topics`` from v8 on, so both are given;
    # an empty list would mean "no partitions".
    return kind(
        group_id=group_ids[0],
        topics=None,
        groups=[
            kind.OffsetFetchRequestGroup(
                group_id=group_id, member_id=None, member_epoch=-1, topics=None
            )
            for group_id in group_ids
        ],
        # KIP-447: with it a pending transaction of the
        # group would be an error (UNSTABLE_OFFSET_COMMIT).
        require_stable=False,
    )


def _fetched_offsets(answer: consumer_schema.OffsetFetchResponse) -> FetchedOffsets:
    group = answer.groups[0] if answer.groups else answer
    return FetchedOffsets(group.error_code, _partition_offsets(group))


def _partition_offsets(
    group: consumer_schema.OffsetFetchResponse
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
        for topic in group.topics
        for part in topic.partitions
    )


def group_offsets(group_ids: Sequence[str]) -> Call[dict[str, FetchedOffsets]]:
    """Read all committed offsets of several groups of one coordinator (KIP-709, brokers from 3.0
    on)."""
    names = [required(group, "group") for group in group_ids]

    def convert(answer: consumer_schema.OffsetFetchResponse) -> dict[str, FetchedOffsets]:
        return {
            group.group_id: FetchedOffsets(group.error_code, _partition_offsets(group))
            for group in answer.groups
        }

    # v8 takes several groups; v10 names topics by id.
    request = partial(_all_offsets, names)
    return schema_call(request, consumer_schema.OffsetFetchResponse, convert, (8, 9))


_COMMIT_KEY: Final = 8
_COMMIT_NAME: Final = "OffsetCommit"
_OLDEST_COMMIT, _NEWEST_COMMIT = 2, 9
_FLEXIBLE: Final = 8
_WITH_INSTANCE: Final = 7
_WITH_EPOCH: Final = 6
_LAST_WITH_RETENTION: Final = 4
_WITH_THROTTLE: Final = 3

_NO_GENERATION: Final = INT32.pack(-1)
_DEFAULT_RETENTION: Final = b"\xff" * 8  # -1: the broker's offsets.retention.minutes
_PARTITION: Final = Struct(">iq")
_OUTCOME: Final = Struct(">ih")

_ByTopic = Sequence[tuple[str, Sequence[OffsetToCommit]]]


def offset_commit(
    group_id: str, offsets: Sequence[OffsetToCommit]
) -> Call[tuple[PartitionOutcome, ...]]:
    """Commit offsets of a group; the broker refuses them (UNKNOWN_MEMBER_ID) while it has
    members."""
    required(group_id, "group")
    topics = by_topic((required(offset.topic, "topic"), offset) for offset in offsets)

    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        flexible = version >= _FLEXIBLE
        out = request_header(_COMMIT_KEY, version, correlation_id, client_id, flexible=flexible)
        text = compact_string if flexible else string
        # Generation -1 and no member id: a commit from outside ("simple consumer").
        out += text(group_id) + _NO_GENERATION + text("")
        # KIP-345: no group.instance.id.
        if version >= _WITH_INSTANCE:
            out += text(None)
        # KIP-211 removed the retention time of a commit.
        if version <= _LAST_WITH_RETENTION:
            out += _DEFAULT_RETENTION
        _append_topics(out, topics, version, text)
        INT32.pack_into(out, 0, len(out) - INT32.size)
        return bytes(out)

    return Call(_COMMIT_KEY, _COMMIT_NAME, _OLDEST_COMMIT, _NEWEST_COMMIT, encode, _read_outcomes)


def _append_topics(
    out: bytearray, topics: _ByTopic, version: int, text: Callable[[str | None], bytes]
) -> None:
    flexible = version >= _FLEXIBLE
    end = b"\0" if flexible else b""
    out += array_size(len(topics), flexible=flexible)
    for topic, parts in topics:
        out += text(topic) + array_size(len(parts), flexible=flexible)
        for part in parts:
            out += _PARTITION.pack(part.partition, part.offset)
            if version >= _WITH_EPOCH:
                # KIP-320.
                out += INT32.pack(part.leader_epoch)
            out += text(part.metadata) + end
        out += end
    out += end


def _read_outcomes(version: int, body: memoryview) -> tuple[PartitionOutcome, ...]:
    flexible = version >= _FLEXIBLE
    outcomes: list[PartitionOutcome] = []
    try:
        at = skip_tags(body, 0) if flexible else 0
        # KIP-124.
        at += INT32.size if version >= _WITH_THROTTLE else 0
        topics, at = _read_count(body, at, flexible=flexible)
        for _ in range(topics):
            topic, at = read_compact_string(body, at) if flexible else read_string(body, at)
            parts, at = _read_count(body, at, flexible=flexible)
            for _ in range(parts):
                partition, code = _OUTCOME.unpack_from(body, at)
                at += INT32.size + INT16.size
                at = skip_tags(body, at) if flexible else at
                outcomes.append(PartitionOutcome(topic or "", partition, code))
            at = skip_tags(body, at) if flexible else at
    except (error, IndexError, ValueError) as failure:
        raise truncated(_COMMIT_NAME, version, failure) from failure
    return tuple(outcomes)


def _read_count(body: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, at = read_unsigned(body, at)
        return count - 1, at
    return INT32.unpack_from(body, at)[0], at + INT32.size
