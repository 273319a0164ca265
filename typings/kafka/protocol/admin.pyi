from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

class CreateTopicsRequest(ApiMessage):
    class CreatableTopic(DataContainer):
        class CreatableReplicaAssignment(DataContainer):
            partition_index: int
            broker_ids: list[int]
            def __init__(self, *, partition_index: int = ..., broker_ids: list[int] = ..., version: int | None = ...) -> None: ...
        class CreatableTopicConfig(DataContainer):
            name: str
            value: str | None
            def __init__(self, *, name: str = ..., value: str | None = ..., version: int | None = ...) -> None: ...
        name: str
        num_partitions: int
        replication_factor: int
        assignments: list[CreatableReplicaAssignment]
        configs: list[CreatableTopicConfig]
        def __init__(self, *, name: str = ..., num_partitions: int = ..., replication_factor: int = ..., assignments: list[CreatableReplicaAssignment] = ..., configs: list[CreatableTopicConfig] = ..., version: int | None = ...) -> None: ...
    topics: list[CreatableTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(self, *, topics: list[CreatableTopic] = ..., timeout_ms: int = ..., validate_only: bool = ..., version: int | None = ...) -> None: ...

class CreateTopicsResponse(ApiMessage):
    class CreatableTopicResult(DataContainer):
        class CreatableTopicConfigs(DataContainer):
            name: str
            value: str | None
            read_only: bool
            config_source: int
            is_sensitive: bool
            def __init__(self, *, name: str = ..., value: str | None = ..., read_only: bool = ..., config_source: int = ..., is_sensitive: bool = ..., version: int | None = ...) -> None: ...
        name: str
        topic_id: UUID | None
        error_code: int
        error_message: str | None
        topic_config_error_code: int
        num_partitions: int
        replication_factor: int
        configs: list[CreatableTopicConfigs] | None
        def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., error_code: int = ..., error_message: str | None = ..., topic_config_error_code: int = ..., num_partitions: int = ..., replication_factor: int = ..., configs: list[CreatableTopicConfigs] | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[CreatableTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[CreatableTopicResult] = ..., version: int | None = ...) -> None: ...

class CreatePartitionsRequest(ApiMessage):
    class CreatePartitionsTopic(DataContainer):
        class CreatePartitionsAssignment(DataContainer):
            broker_ids: list[int]
            def __init__(self, *, broker_ids: list[int] = ..., version: int | None = ...) -> None: ...
        name: str
        count: int
        assignments: list[CreatePartitionsAssignment] | None
        def __init__(self, *, name: str = ..., count: int = ..., assignments: list[CreatePartitionsAssignment] | None = ..., version: int | None = ...) -> None: ...
    topics: list[CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(self, *, topics: list[CreatePartitionsTopic] = ..., timeout_ms: int = ..., validate_only: bool = ..., version: int | None = ...) -> None: ...

class CreatePartitionsResponse(ApiMessage):
    class CreatePartitionsTopicResult(DataContainer):
        name: str
        error_code: int
        error_message: str | None
        def __init__(self, *, name: str = ..., error_code: int = ..., error_message: str | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    results: list[CreatePartitionsTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., results: list[CreatePartitionsTopicResult] = ..., version: int | None = ...) -> None: ...

class DeleteTopicsRequest(ApiMessage):
    class DeleteTopicState(DataContainer):
        name: str | None
        topic_id: UUID | None
        def __init__(self, *, name: str | None = ..., topic_id: UUID | None = ..., version: int | None = ...) -> None: ...
    topics: list[DeleteTopicState]
    topic_names: list[str]
    timeout_ms: int
    def __init__(self, *, topics: list[DeleteTopicState] = ..., topic_names: list[str] = ..., timeout_ms: int = ..., version: int | None = ...) -> None: ...

class DeleteTopicsResponse(ApiMessage):
    class DeletableTopicResult(DataContainer):
        name: str | None
        topic_id: UUID | None
        error_code: int
        error_message: str | None
        def __init__(self, *, name: str | None = ..., topic_id: UUID | None = ..., error_code: int = ..., error_message: str | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    responses: list[DeletableTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., responses: list[DeletableTopicResult] = ..., version: int | None = ...) -> None: ...

class DeleteRecordsRequest(ApiMessage):
    class DeleteRecordsTopic(DataContainer):
        class DeleteRecordsPartition(DataContainer):
            partition_index: int
            offset: int
            def __init__(self, *, partition_index: int = ..., offset: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[DeleteRecordsPartition]
        def __init__(self, *, name: str = ..., partitions: list[DeleteRecordsPartition] = ..., version: int | None = ...) -> None: ...
    topics: list[DeleteRecordsTopic]
    timeout_ms: int
    def __init__(self, *, topics: list[DeleteRecordsTopic] = ..., timeout_ms: int = ..., version: int | None = ...) -> None: ...

class DeleteRecordsResponse(ApiMessage):
    class DeleteRecordsTopicResult(DataContainer):
        class DeleteRecordsPartitionResult(DataContainer):
            partition_index: int
            low_watermark: int
            error_code: int
            def __init__(self, *, partition_index: int = ..., low_watermark: int = ..., error_code: int = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[DeleteRecordsPartitionResult]
        def __init__(self, *, name: str = ..., partitions: list[DeleteRecordsPartitionResult] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[DeleteRecordsTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[DeleteRecordsTopicResult] = ..., version: int | None = ...) -> None: ...

class DescribeConfigsRequest(ApiMessage):
    class DescribeConfigsResource(DataContainer):
        resource_type: int
        resource_name: str
        configuration_keys: list[str] | None
        def __init__(self, *, resource_type: int = ..., resource_name: str = ..., configuration_keys: list[str] | None = ..., version: int | None = ...) -> None: ...
    resources: list[DescribeConfigsResource]
    include_synonyms: bool
    include_documentation: bool
    def __init__(self, *, resources: list[DescribeConfigsResource] = ..., include_synonyms: bool = ..., include_documentation: bool = ..., version: int | None = ...) -> None: ...

class DescribeConfigsResponse(ApiMessage):
    class DescribeConfigsResult(DataContainer):
        class DescribeConfigsResourceResult(DataContainer):
            class DescribeConfigsSynonym(DataContainer):
                name: str
                value: str | None
                source: int
                def __init__(self, *, name: str = ..., value: str | None = ..., source: int = ..., version: int | None = ...) -> None: ...
            name: str
            value: str | None
            read_only: bool
            config_source: int
            is_default: bool
            is_sensitive: bool
            synonyms: list[DescribeConfigsSynonym]
            config_type: int
            documentation: str | None
            def __init__(self, *, name: str = ..., value: str | None = ..., read_only: bool = ..., config_source: int = ..., is_default: bool = ..., is_sensitive: bool = ..., synonyms: list[DescribeConfigsSynonym] = ..., config_type: int = ..., documentation: str | None = ..., version: int | None = ...) -> None: ...
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        configs: list[DescribeConfigsResourceResult]
        def __init__(self, *, error_code: int = ..., error_message: str | None = ..., resource_type: int = ..., resource_name: str = ..., configs: list[DescribeConfigsResourceResult] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    results: list[DescribeConfigsResult]
    def __init__(self, *, throttle_time_ms: int = ..., results: list[DescribeConfigsResult] = ..., version: int | None = ...) -> None: ...

class IncrementalAlterConfigsRequest(ApiMessage):
    class AlterConfigsResource(DataContainer):
        class AlterableConfig(DataContainer):
            name: str
            config_operation: int
            value: str | None
            def __init__(self, *, name: str = ..., config_operation: int = ..., value: str | None = ..., version: int | None = ...) -> None: ...
        resource_type: int
        resource_name: str
        configs: list[AlterableConfig]
        def __init__(self, *, resource_type: int = ..., resource_name: str = ..., configs: list[AlterableConfig] = ..., version: int | None = ...) -> None: ...
    resources: list[AlterConfigsResource]
    validate_only: bool
    def __init__(self, *, resources: list[AlterConfigsResource] = ..., validate_only: bool = ..., version: int | None = ...) -> None: ...

class IncrementalAlterConfigsResponse(ApiMessage):
    class AlterConfigsResourceResponse(DataContainer):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        def __init__(self, *, error_code: int = ..., error_message: str | None = ..., resource_type: int = ..., resource_name: str = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    responses: list[AlterConfigsResourceResponse]
    def __init__(self, *, throttle_time_ms: int = ..., responses: list[AlterConfigsResourceResponse] = ..., version: int | None = ...) -> None: ...

class DescribeAclsRequest(ApiMessage):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int
    def __init__(self, *, resource_type_filter: int = ..., resource_name_filter: str | None = ..., pattern_type_filter: int = ..., principal_filter: str | None = ..., host_filter: str | None = ..., operation: int = ..., permission_type: int = ..., version: int | None = ...) -> None: ...

class DescribeAclsResponse(ApiMessage):
    class DescribeAclsResource(DataContainer):
        class AclDescription(DataContainer):
            principal: str
            host: str
            operation: int
            permission_type: int
            def __init__(self, *, principal: str = ..., host: str = ..., operation: int = ..., permission_type: int = ..., version: int | None = ...) -> None: ...
        resource_type: int
        resource_name: str
        pattern_type: int
        acls: list[AclDescription]
        def __init__(self, *, resource_type: int = ..., resource_name: str = ..., pattern_type: int = ..., acls: list[AclDescription] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: list[DescribeAclsResource]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., error_message: str | None = ..., resources: list[DescribeAclsResource] = ..., version: int | None = ...) -> None: ...

class CreateAclsRequest(ApiMessage):
    class AclCreation(DataContainer):
        resource_type: int
        resource_name: str
        resource_pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(self, *, resource_type: int = ..., resource_name: str = ..., resource_pattern_type: int = ..., principal: str = ..., host: str = ..., operation: int = ..., permission_type: int = ..., version: int | None = ...) -> None: ...
    creations: list[AclCreation]
    def __init__(self, *, creations: list[AclCreation] = ..., version: int | None = ...) -> None: ...

class CreateAclsResponse(ApiMessage):
    class AclCreationResult(DataContainer):
        error_code: int
        error_message: str | None
        def __init__(self, *, error_code: int = ..., error_message: str | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    results: list[AclCreationResult]
    def __init__(self, *, throttle_time_ms: int = ..., results: list[AclCreationResult] = ..., version: int | None = ...) -> None: ...

class DeleteAclsRequest(ApiMessage):
    class DeleteAclsFilter(DataContainer):
        resource_type_filter: int
        resource_name_filter: str | None
        pattern_type_filter: int
        principal_filter: str | None
        host_filter: str | None
        operation: int
        permission_type: int
        def __init__(self, *, resource_type_filter: int = ..., resource_name_filter: str | None = ..., pattern_type_filter: int = ..., principal_filter: str | None = ..., host_filter: str | None = ..., operation: int = ..., permission_type: int = ..., version: int | None = ...) -> None: ...
    filters: list[DeleteAclsFilter]
    def __init__(self, *, filters: list[DeleteAclsFilter] = ..., version: int | None = ...) -> None: ...

class DeleteAclsResponse(ApiMessage):
    class DeleteAclsFilterResult(DataContainer):
        class DeleteAclsMatchingAcl(DataContainer):
            error_code: int
            error_message: str | None
        error_code: int
        error_message: str | None
        matching_acls: list[DeleteAclsMatchingAcl]
        def __init__(self, *, error_code: int = ..., error_message: str | None = ..., matching_acls: list[DeleteAclsMatchingAcl] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    filter_results: list[DeleteAclsFilterResult]
    def __init__(self, *, throttle_time_ms: int = ..., filter_results: list[DeleteAclsFilterResult] = ..., version: int | None = ...) -> None: ...

class DescribeProducersRequest(ApiMessage):
    class TopicRequest(DataContainer):
        name: str
        partition_indexes: list[int]
        def __init__(self, *, name: str = ..., partition_indexes: list[int] = ..., version: int | None = ...) -> None: ...
    topics: list[TopicRequest]
    def __init__(self, *, topics: list[TopicRequest] = ..., version: int | None = ...) -> None: ...

class DescribeProducersResponse(ApiMessage):
    class TopicResponse(DataContainer):
        class PartitionResponse(DataContainer):
            class ProducerState(DataContainer):
                producer_id: int
                producer_epoch: int
                last_sequence: int
                last_timestamp: int
                coordinator_epoch: int
                current_txn_start_offset: int
                def __init__(self, *, producer_id: int = ..., producer_epoch: int = ..., last_sequence: int = ..., last_timestamp: int = ..., coordinator_epoch: int = ..., current_txn_start_offset: int = ..., version: int | None = ...) -> None: ...
            partition_index: int
            error_code: int
            error_message: str | None
            active_producers: list[ProducerState]
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., error_message: str | None = ..., active_producers: list[ProducerState] = ..., version: int | None = ...) -> None: ...
        name: str
        partitions: list[PartitionResponse]
        def __init__(self, *, name: str = ..., partitions: list[PartitionResponse] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    topics: list[TopicResponse]
    def __init__(self, *, throttle_time_ms: int = ..., topics: list[TopicResponse] = ..., version: int | None = ...) -> None: ...

class DescribeQuorumRequest(ApiMessage):
    class TopicData(DataContainer):
        class PartitionData(DataContainer):
            partition_index: int
            def __init__(self, *, partition_index: int = ..., version: int | None = ...) -> None: ...
        topic_name: str
        partitions: list[PartitionData]
        def __init__(self, *, topic_name: str = ..., partitions: list[PartitionData] = ..., version: int | None = ...) -> None: ...
    topics: list[TopicData]
    def __init__(self, *, topics: list[TopicData] = ..., version: int | None = ...) -> None: ...

class DescribeQuorumResponse(ApiMessage):
    class TopicData(DataContainer):
        class PartitionData(DataContainer):
            class ReplicaState(DataContainer):
                replica_id: int
                log_end_offset: int
                last_fetch_timestamp: int
                last_caught_up_timestamp: int
                def __init__(self, *, replica_id: int = ..., log_end_offset: int = ..., last_fetch_timestamp: int = ..., last_caught_up_timestamp: int = ..., version: int | None = ...) -> None: ...
            partition_index: int
            error_code: int
            leader_id: int
            leader_epoch: int
            high_watermark: int
            current_voters: list[ReplicaState]
            observers: list[ReplicaState]
            def __init__(self, *, partition_index: int = ..., error_code: int = ..., leader_id: int = ..., leader_epoch: int = ..., high_watermark: int = ..., current_voters: list[ReplicaState] = ..., observers: list[ReplicaState] = ..., version: int | None = ...) -> None: ...
        topic_name: str
        partitions: list[PartitionData]
        def __init__(self, *, topic_name: str = ..., partitions: list[PartitionData] = ..., version: int | None = ...) -> None: ...
    error_code: int
    topics: list[TopicData]
    def __init__(self, *, error_code: int = ..., topics: list[TopicData] = ..., version: int | None = ...) -> None: ...

class ListTransactionsRequest(ApiMessage):
    state_filters: list[str]
    producer_id_filters: list[int]
    def __init__(self, *, state_filters: list[str] = ..., producer_id_filters: list[int] = ..., version: int | None = ...) -> None: ...

class ListTransactionsResponse(ApiMessage):
    class TransactionState(DataContainer):
        transactional_id: str
        producer_id: int
        transaction_state: str
        def __init__(self, *, transactional_id: str = ..., producer_id: int = ..., transaction_state: str = ..., version: int | None = ...) -> None: ...
    error_code: int
    transaction_states: list[TransactionState]
    def __init__(self, *, error_code: int = ..., transaction_states: list[TransactionState] = ..., version: int | None = ...) -> None: ...

class DescribeClusterRequest(ApiMessage):
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool
    def __init__(self, *, include_cluster_authorized_operations: bool = ..., endpoint_type: int = ..., include_fenced_brokers: bool = ..., version: int | None = ...) -> None: ...

class DescribeClusterResponse(ApiMessage):
    class DescribeClusterBroker(DataContainer):
        broker_id: int
        host: str
        port: int
        rack: str | None
        is_fenced: bool
        def __init__(self, *, broker_id: int = ..., host: str = ..., port: int = ..., rack: str | None = ..., is_fenced: bool = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: list[DescribeClusterBroker]
    authorized_operations: set[int] | None
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., error_message: str | None = ..., endpoint_type: int = ..., cluster_id: str = ..., controller_id: int = ..., brokers: list[DescribeClusterBroker] = ..., authorized_operations: set[int] | None = ..., version: int | None = ...) -> None: ...

class DeleteGroupsRequest(ApiMessage):
    groups_names: list[str]
    def __init__(self, *, groups_names: list[str] = ..., version: int | None = ...) -> None: ...

class DeleteGroupsResponse(ApiMessage):
    class DeletableGroupResult(DataContainer):
        group_id: str
        error_code: int
        def __init__(self, *, group_id: str = ..., error_code: int = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    results: list[DeletableGroupResult]
    def __init__(self, *, throttle_time_ms: int = ..., results: list[DeletableGroupResult] = ..., version: int | None = ...) -> None: ...

class DescribeGroupsRequest(ApiMessage):
    groups: list[str]
    include_authorized_operations: bool
    def __init__(self, *, groups: list[str] = ..., include_authorized_operations: bool = ..., version: int | None = ...) -> None: ...

class DescribeGroupsResponse(ApiMessage):
    class DescribedGroup(DataContainer):
        class DescribedGroupMember(DataContainer):
            member_id: str
            group_instance_id: str | None
            client_id: str
            client_host: str
            member_metadata: bytes
            member_assignment: bytes
            def __init__(self, *, member_id: str = ..., group_instance_id: str | None = ..., client_id: str = ..., client_host: str = ..., member_metadata: bytes = ..., member_assignment: bytes = ..., version: int | None = ...) -> None: ...
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        protocol_type: str
        protocol_data: str
        members: list[DescribedGroupMember]
        authorized_operations: set[int] | None
        def __init__(self, *, error_code: int = ..., error_message: str | None = ..., group_id: str = ..., group_state: str = ..., protocol_type: str = ..., protocol_data: str = ..., members: list[DescribedGroupMember] = ..., authorized_operations: set[int] | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    groups: list[DescribedGroup]
    def __init__(self, *, throttle_time_ms: int = ..., groups: list[DescribedGroup] = ..., version: int | None = ...) -> None: ...

class ListGroupsRequest(ApiMessage):
    states_filter: list[str]
    types_filter: list[str]
    def __init__(self, *, states_filter: list[str] = ..., types_filter: list[str] = ..., version: int | None = ...) -> None: ...

class ListGroupsResponse(ApiMessage):
    class ListedGroup(DataContainer):
        group_id: str
        protocol_type: str
        group_state: str
        group_type: str
        def __init__(self, *, group_id: str = ..., protocol_type: str = ..., group_state: str = ..., group_type: str = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    groups: list[ListedGroup]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., groups: list[ListedGroup] = ..., version: int | None = ...) -> None: ...

class DescribeLogDirsRequest(ApiMessage):
    class DescribableLogDirTopic(DataContainer):
        topic: str
        partitions: list[int]
        def __init__(self, *, topic: str = ..., partitions: list[int] = ..., version: int | None = ...) -> None: ...
    topics: list[DescribableLogDirTopic] | None
    def __init__(self, *, topics: list[DescribableLogDirTopic] | None = ..., version: int | None = ...) -> None: ...

class DescribeLogDirsResponse(ApiMessage):
    class DescribeLogDirsResult(DataContainer):
        class DescribeLogDirsTopic(DataContainer):
            class DescribeLogDirsPartition(DataContainer):
                partition_index: int
                partition_size: int
                offset_lag: int
                is_future_key: bool
            name: str
            partitions: list[DescribeLogDirsPartition]
        error_code: int
        log_dir: str
        topics: list[DescribeLogDirsTopic]
        usable_bytes: int | None
    error_code: int
    results: list[DescribeLogDirsResult]

class DescribeClientQuotasRequest(ApiMessage):
    class ComponentData(DataContainer): ...
    def __init__(self, *, components: list[ComponentData] = ..., strict: bool = ..., version: int | None = ...) -> None: ...

class DescribeClientQuotasResponse(ApiMessage):
    class EntryData(DataContainer):
        class EntityData(DataContainer):
            entity_type: str
            entity_name: str | None
        class ValueData(DataContainer):
            key: str
            value: float
        entity: list[EntityData]
        values: list[ValueData]
    error_code: int
    error_message: str | None
    entries: list[EntryData] | None
