from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

class JoinGroupRequest(ApiMessage):
    class JoinGroupRequestProtocol(DataContainer):
        name: str
        metadata: bytes
        def __init__(self, *, name: str = ..., metadata: bytes = ..., version: int | None = ...) -> None: ...
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: list[JoinGroupRequestProtocol]
    reason: str | None
    def __init__(self, *, group_id: str = ..., session_timeout_ms: int = ..., rebalance_timeout_ms: int = ..., member_id: str = ..., group_instance_id: str | None = ..., protocol_type: str = ..., protocols: list[JoinGroupRequestProtocol] = ..., reason: str | None = ..., version: int | None = ...) -> None: ...

class JoinGroupResponse(ApiMessage):
    class JoinGroupResponseMember(DataContainer):
        member_id: str
        group_instance_id: str | None
        metadata: bytes
        def __init__(self, *, member_id: str = ..., group_instance_id: str | None = ..., metadata: bytes = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: list[JoinGroupResponseMember]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., generation_id: int = ..., protocol_type: str | None = ..., protocol_name: str | None = ..., leader: str = ..., skip_assignment: bool = ..., member_id: str = ..., members: list[JoinGroupResponseMember] = ..., version: int | None = ...) -> None: ...

class SyncGroupRequest(ApiMessage):
    class SyncGroupRequestAssignment(DataContainer):
        member_id: str
        assignment: bytes
        def __init__(self, *, member_id: str = ..., assignment: bytes = ..., version: int | None = ...) -> None: ...
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: list[SyncGroupRequestAssignment]
    def __init__(self, *, group_id: str = ..., generation_id: int = ..., member_id: str = ..., group_instance_id: str | None = ..., protocol_type: str | None = ..., protocol_name: str | None = ..., assignments: list[SyncGroupRequestAssignment] = ..., version: int | None = ...) -> None: ...

class SyncGroupResponse(ApiMessage):
    throttle_time_ms: int
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., protocol_type: str | None = ..., protocol_name: str | None = ..., assignment: bytes = ..., version: int | None = ...) -> None: ...

class HeartbeatRequest(ApiMessage):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    def __init__(self, *, group_id: str = ..., generation_id: int = ..., member_id: str = ..., group_instance_id: str | None = ..., version: int | None = ...) -> None: ...

class HeartbeatResponse(ApiMessage):
    throttle_time_ms: int
    error_code: int
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., version: int | None = ...) -> None: ...

class LeaveGroupRequest(ApiMessage):
    class MemberIdentity(DataContainer):
        member_id: str
        group_instance_id: str | None
        reason: str | None
        def __init__(self, *, member_id: str = ..., group_instance_id: str | None = ..., reason: str | None = ..., version: int | None = ...) -> None: ...
    group_id: str
    member_id: str
    members: list[MemberIdentity]
    def __init__(self, *, group_id: str = ..., member_id: str = ..., members: list[MemberIdentity] = ..., version: int | None = ...) -> None: ...

class LeaveGroupResponse(ApiMessage):
    class MemberResponse(DataContainer):
        member_id: str
        group_instance_id: str | None
        error_code: int
        def __init__(self, *, member_id: str = ..., group_instance_id: str | None = ..., error_code: int = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    members: list[MemberResponse]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., members: list[MemberResponse] = ..., version: int | None = ...) -> None: ...

class OffsetDeleteRequest(ApiMessage):
    class OffsetDeleteRequestTopic(DataContainer):
        class OffsetDeleteRequestPartition(DataContainer):
            partition_index: int
            def __init__(self, *, partition_index: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[OffsetDeleteRequestPartition]
        def __init__(self, *, name: str = ..., partitions: list[OffsetDeleteRequestPartition] = ..., version: int | None = ...) -> None: ...
    group_id: str
    topics: list[OffsetDeleteRequestTopic]
    def __init__(self, *, group_id: str = ..., topics: list[OffsetDeleteRequestTopic] = ..., version: int | None = ...) -> None: ...

class OffsetDeleteResponse(ApiMessage):
    class OffsetDeleteResponseTopic(DataContainer):
        class OffsetDeleteResponsePartition(DataContainer):
            partition_index: int
            error_code: int
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[OffsetDeleteResponsePartition]
        def __init__(self, *, name: str = ..., partitions: list[OffsetDeleteResponsePartition] = ..., version: int | None = ...) -> None: ...
    error_code: int
    throttle_time_ms: int
    topics: list[OffsetDeleteResponseTopic]
    def __init__(self, *, error_code: int = ..., throttle_time_ms: int = ..., topics: list[OffsetDeleteResponseTopic] = ..., version: int | None = ...) -> None: ...

class OffsetFetchRequest(ApiMessage):
    class OffsetFetchRequestTopic(DataContainer):
        name: str
        partition_indexes: list[int]
        def __init__(self, *, name: str = ..., partition_indexes: list[int] = ..., version: int | None = ...) -> None: ...
    class OffsetFetchRequestGroup(DataContainer):
        class OffsetFetchRequestTopics(DataContainer):
            name: str
            topic_id: UUID | None
            partition_indexes: list[int]
            def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partition_indexes: list[int] = ..., version: int | None = ...) -> None: ...
        group_id: str
        member_id: str | None
        member_epoch: int
        topics: list[OffsetFetchRequestTopics] | None
        def __init__(self, *, group_id: str = ..., member_id: str | None = ..., member_epoch: int = ..., topics: list[OffsetFetchRequestTopics] | None = ..., version: int | None = ...) -> None: ...
    group_id: str
    topics: list[OffsetFetchRequestTopic] | None
    groups: list[OffsetFetchRequestGroup]
    require_stable: bool
    def __init__(self, *, group_id: str = ..., topics: list[OffsetFetchRequestTopic] | None = ..., groups: list[OffsetFetchRequestGroup] = ..., require_stable: bool = ..., version: int | None = ...) -> None: ...

class OffsetFetchResponse(ApiMessage):
    class OffsetFetchResponseTopic(DataContainer):
        class OffsetFetchResponsePartition(DataContainer):
            partition_index: int
            committed_offset: int
            committed_leader_epoch: int
            metadata: str | None
            error_code: int
            def __init__(self, *, partition_index: int = ..., committed_offset: int = ..., committed_leader_epoch: int = ..., metadata: str | None = ..., error_code: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[OffsetFetchResponsePartition]
        def __init__(self, *, name: str = ..., partitions: list[OffsetFetchResponsePartition] = ..., version: int | None = ...) -> None: ...
    class OffsetFetchResponseGroup(DataContainer):
        class OffsetFetchResponseTopics(DataContainer):
            class OffsetFetchResponsePartitions(DataContainer):
                partition_index: int
                committed_offset: int
                committed_leader_epoch: int
                metadata: str | None
                error_code: int
                def __init__(self, *, partition_index: int = ..., committed_offset: int = ..., committed_leader_epoch: int = ..., metadata: str | None = ..., error_code: int = ..., version: int | None = ...) -> None: ...
            name: str
            topic_id: UUID | None
            partitions: list[OffsetFetchResponsePartitions]
            def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partitions: list[OffsetFetchResponsePartitions] = ..., version: int | None = ...) -> None: ...
        group_id: str
        topics: list[OffsetFetchResponseTopics]
        error_code: int
        def __init__(self, *, group_id: str = ..., topics: list[OffsetFetchResponseTopics] = ..., error_code: int = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[OffsetFetchResponseTopic]
    error_code: int
    groups: list[OffsetFetchResponseGroup]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[OffsetFetchResponseTopic] = ..., error_code: int = ..., groups: list[OffsetFetchResponseGroup] = ..., version: int | None = ...) -> None: ...

class OffsetCommitRequest(ApiMessage):
    class OffsetCommitRequestTopic(DataContainer):
        class OffsetCommitRequestPartition(DataContainer):
            partition_index: int
            committed_offset: int
            committed_leader_epoch: int
            commit_timestamp: int
            committed_metadata: str | None
            def __init__(self, *, partition_index: int = ..., committed_offset: int = ..., committed_leader_epoch: int = ..., commit_timestamp: int = ..., committed_metadata: str | None = ..., version: int | None = ...) -> None: ...
        name: str
        topic_id: UUID | None
        partitions: list[OffsetCommitRequestPartition]
        def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partitions: list[OffsetCommitRequestPartition] = ..., version: int | None = ...) -> None: ...
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: list[OffsetCommitRequestTopic]
    def __init__(self, *, group_id: str = ..., generation_id_or_member_epoch: int = ..., member_id: str = ..., group_instance_id: str | None = ..., retention_time_ms: int = ..., topics: list[OffsetCommitRequestTopic] = ..., version: int | None = ...) -> None: ...

class OffsetCommitResponse(ApiMessage):
    class OffsetCommitResponseTopic(DataContainer):
        class OffsetCommitResponsePartition(DataContainer):
            partition_index: int
            error_code: int
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., version: int | None = ...) -> None: ...
        name: str
        topic_id: UUID | None
        partitions: list[OffsetCommitResponsePartition]
        def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partitions: list[OffsetCommitResponsePartition] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[OffsetCommitResponseTopic]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[OffsetCommitResponseTopic] = ..., version: int | None = ...) -> None: ...

class ListOffsetsRequest(ApiMessage):
    class ListOffsetsTopic(DataContainer):
        class ListOffsetsPartition(DataContainer):
            partition_index: int
            current_leader_epoch: int
            timestamp: int
            max_num_offsets: int
            def __init__(self, *, partition_index: int = ..., current_leader_epoch: int = ..., timestamp: int = ..., max_num_offsets: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[ListOffsetsPartition]
        def __init__(self, *, name: str = ..., partitions: list[ListOffsetsPartition] = ..., version: int | None = ...) -> None: ...
    replica_id: int
    isolation_level: int
    topics: list[ListOffsetsTopic]
    timeout_ms: int
    def __init__(self, *, replica_id: int = ..., isolation_level: int = ..., topics: list[ListOffsetsTopic] = ..., timeout_ms: int = ..., version: int | None = ...) -> None: ...

class ListOffsetsResponse(ApiMessage):
    class ListOffsetsTopicResponse(DataContainer):
        class ListOffsetsPartitionResponse(DataContainer):
            partition_index: int
            error_code: int
            old_style_offsets: list[int]
            timestamp: int
            offset: int
            leader_epoch: int
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., old_style_offsets: list[int] = ..., timestamp: int = ..., offset: int = ..., leader_epoch: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[ListOffsetsPartitionResponse]
        def __init__(self, *, name: str = ..., partitions: list[ListOffsetsPartitionResponse] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[ListOffsetsTopicResponse]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[ListOffsetsTopicResponse] = ..., version: int | None = ...) -> None: ...

class OffsetForLeaderEpochRequest(ApiMessage):
    class OffsetForLeaderTopic(DataContainer):
        class OffsetForLeaderPartition(DataContainer):
            partition: int
            current_leader_epoch: int
            leader_epoch: int
            def __init__(self, *, partition: int = ..., current_leader_epoch: int = ..., leader_epoch: int = ..., version: int | None = ...) -> None: ...
        topic: str
        partitions: list[OffsetForLeaderPartition]
        def __init__(self, *, topic: str = ..., partitions: list[OffsetForLeaderPartition] = ..., version: int | None = ...) -> None: ...
    replica_id: int
    topics: list[OffsetForLeaderTopic]
    def __init__(self, *, replica_id: int = ..., topics: list[OffsetForLeaderTopic] = ..., version: int | None = ...) -> None: ...

class OffsetForLeaderEpochResponse(ApiMessage):
    class OffsetForLeaderTopicResult(DataContainer):
        class EpochEndOffset(DataContainer):
            error_code: int
            partition: int
            leader_epoch: int
            end_offset: int
            def __init__(self, *, error_code: int = ..., partition: int = ..., leader_epoch: int = ..., end_offset: int = ..., version: int | None = ...) -> None: ...
        topic: str
        partitions: list[EpochEndOffset]
        def __init__(self, *, topic: str = ..., partitions: list[EpochEndOffset] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[OffsetForLeaderTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[OffsetForLeaderTopicResult] = ..., version: int | None = ...) -> None: ...

class FetchRequest(ApiMessage):
    class ReplicaState(DataContainer):
        replica_id: int
        replica_epoch: int
        def __init__(self, *, replica_id: int = ..., replica_epoch: int = ..., version: int | None = ...) -> None: ...
    class FetchTopic(DataContainer):
        class FetchPartition(DataContainer):
            partition: int
            current_leader_epoch: int
            fetch_offset: int
            last_fetched_epoch: int
            log_start_offset: int
            partition_max_bytes: int
            replica_directory_id: UUID | None
            high_watermark: int
            def __init__(self, *, partition: int = ..., current_leader_epoch: int = ..., fetch_offset: int = ..., last_fetched_epoch: int = ..., log_start_offset: int = ..., partition_max_bytes: int = ..., replica_directory_id: UUID | None = ..., high_watermark: int = ..., version: int | None = ...) -> None: ...
        topic: str
        topic_id: UUID | None
        partitions: list[FetchPartition]
        def __init__(self, *, topic: str = ..., topic_id: UUID | None = ..., partitions: list[FetchPartition] = ..., version: int | None = ...) -> None: ...
    class ForgottenTopic(DataContainer):
        topic: str
        topic_id: UUID | None
        partitions: list[int]
        def __init__(self, *, topic: str = ..., topic_id: UUID | None = ..., partitions: list[int] = ..., version: int | None = ...) -> None: ...
    cluster_id: str | None
    replica_id: int
    replica_state: ReplicaState
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str
    def __init__(self, *, cluster_id: str | None = ..., replica_id: int = ..., replica_state: ReplicaState = ..., max_wait_ms: int = ..., min_bytes: int = ..., max_bytes: int = ..., isolation_level: int = ..., session_id: int = ..., session_epoch: int = ..., topics: list[FetchTopic] = ..., forgotten_topics_data: list[ForgottenTopic] = ..., rack_id: str = ..., version: int | None = ...) -> None: ...

class FetchResponse(ApiMessage):
    class FetchableTopicResponse(DataContainer):
        class PartitionData(DataContainer):
            class EpochEndOffset(DataContainer):
                epoch: int
                end_offset: int
                def __init__(self, *, epoch: int = ..., end_offset: int = ..., version: int | None = ...) -> None: ...
            class LeaderIdAndEpoch(DataContainer):
                leader_id: int
                leader_epoch: int
                def __init__(self, *, leader_id: int = ..., leader_epoch: int = ..., version: int | None = ...) -> None: ...
            class SnapshotId(DataContainer):
                end_offset: int
                epoch: int
                def __init__(self, *, end_offset: int = ..., epoch: int = ..., version: int | None = ...) -> None: ...
            class AbortedTransaction(DataContainer):
                producer_id: int
                first_offset: int
                def __init__(self, *, producer_id: int = ..., first_offset: int = ..., version: int | None = ...) -> None: ...
            partition_index: int
            error_code: int
            high_watermark: int
            last_stable_offset: int
            log_start_offset: int
            diverging_epoch: EpochEndOffset
            current_leader: LeaderIdAndEpoch
            snapshot_id: SnapshotId
            aborted_transactions: list[AbortedTransaction] | None
            preferred_read_replica: int
            records: bytes | None
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., high_watermark: int = ..., last_stable_offset: int = ..., log_start_offset: int = ..., diverging_epoch: EpochEndOffset = ..., current_leader: LeaderIdAndEpoch = ..., snapshot_id: SnapshotId = ..., aborted_transactions: list[AbortedTransaction] | None = ..., preferred_read_replica: int = ..., records: bytes | None = ..., version: int | None = ...) -> None: ...
        topic: str
        topic_id: UUID | None
        partitions: list[PartitionData]
        def __init__(self, *, topic: str = ..., topic_id: UUID | None = ..., partitions: list[PartitionData] = ..., version: int | None = ...) -> None: ...
    class NodeEndpoint(DataContainer):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(self, *, node_id: int = ..., host: str = ..., port: int = ..., rack: str | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., session_id: int = ..., responses: list[FetchableTopicResponse] = ..., node_endpoints: list[NodeEndpoint] = ..., version: int | None = ...) -> None: ...
