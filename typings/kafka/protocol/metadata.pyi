from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

class ApiVersionsRequest(ApiMessage):
    client_software_name: str
    client_software_version: str
    def __init__(self, *, client_software_name: str = ..., client_software_version: str = ..., version: int | None = ...) -> None: ...

class ApiVersionsResponse(ApiMessage):
    class ApiVersion(DataContainer):
        api_key: int
        min_version: int
        max_version: int
        def __init__(self, *, api_key: int = ..., min_version: int = ..., max_version: int = ..., version: int | None = ...) -> None: ...
    class SupportedFeatureKey(DataContainer):
        name: str
        min_version: int
        max_version: int
        def __init__(self, *, name: str = ..., min_version: int = ..., max_version: int = ..., version: int | None = ...) -> None: ...
    class FinalizedFeatureKey(DataContainer):
        name: str
        max_version_level: int
        min_version_level: int
        def __init__(self, *, name: str = ..., max_version_level: int = ..., min_version_level: int = ..., version: int | None = ...) -> None: ...
    error_code: int
    api_keys: list[ApiVersion]
    throttle_time_ms: int
    supported_features: list[SupportedFeatureKey]
    finalized_features_epoch: int
    finalized_features: list[FinalizedFeatureKey]
    zk_migration_ready: bool
    def __init__(self, *, error_code: int = ..., api_keys: list[ApiVersion] = ..., throttle_time_ms: int = ..., supported_features: list[SupportedFeatureKey] = ..., finalized_features_epoch: int = ..., finalized_features: list[FinalizedFeatureKey] = ..., zk_migration_ready: bool = ..., version: int | None = ...) -> None: ...

class MetadataRequest(ApiMessage):
    class MetadataRequestTopic(DataContainer):
        topic_id: UUID | None
        name: str | None
        def __init__(self, *, topic_id: UUID | None = ..., name: str | None = ..., version: int | None = ...) -> None: ...
    topics: list[MetadataRequestTopic] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool
    def __init__(self, *, topics: list[MetadataRequestTopic] | None = ..., allow_auto_topic_creation: bool = ..., include_cluster_authorized_operations: bool = ..., include_topic_authorized_operations: bool = ..., version: int | None = ...) -> None: ...

class MetadataResponse(ApiMessage):
    class MetadataResponseBroker(DataContainer):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(self, *, node_id: int = ..., host: str = ..., port: int = ..., rack: str | None = ..., version: int | None = ...) -> None: ...
    class MetadataResponseTopic(DataContainer):
        class MetadataResponsePartition(DataContainer):
            error_code: int
            partition_index: int
            leader_id: int
            leader_epoch: int
            replica_nodes: list[int]
            isr_nodes: list[int]
            offline_replicas: list[int]
            def __init__(self, *, error_code: int = ..., partition_index: int = ..., leader_id: int = ..., leader_epoch: int = ..., replica_nodes: list[int] = ..., isr_nodes: list[int] = ..., offline_replicas: list[int] = ..., version: int | None = ...) -> None: ...
        error_code: int
        name: str | None
        topic_id: UUID | None
        is_internal: bool
        partitions: list[MetadataResponsePartition]
        authorized_operations: set[int] | None
        def __init__(self, *, error_code: int = ..., name: str | None = ..., topic_id: UUID | None = ..., is_internal: bool = ..., partitions: list[MetadataResponsePartition] = ..., authorized_operations: set[int] | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    brokers: list[MetadataResponseBroker]
    cluster_id: str | None
    controller_id: int
    topics: list[MetadataResponseTopic]
    authorized_operations: set[int] | None
    error_code: int
    def __init__(self, *, throttle_time_ms: int = ..., brokers: list[MetadataResponseBroker] = ..., cluster_id: str | None = ..., controller_id: int = ..., topics: list[MetadataResponseTopic] = ..., authorized_operations: set[int] | None = ..., error_code: int = ..., version: int | None = ...) -> None: ...

class FindCoordinatorRequest(ApiMessage):
    key: str
    key_type: int
    coordinator_keys: list[str]
    def __init__(self, *, key: str = ..., key_type: int = ..., coordinator_keys: list[str] = ..., version: int | None = ...) -> None: ...

class FindCoordinatorResponse(ApiMessage):
    class Coordinator(DataContainer):
        key: str
        node_id: int
        host: str
        port: int
        error_code: int
        error_message: str | None
        def __init__(self, *, key: str = ..., node_id: int = ..., host: str = ..., port: int = ..., error_code: int = ..., error_message: str | None = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int
    coordinators: list[Coordinator]
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., error_message: str | None = ..., node_id: int = ..., host: str = ..., port: int = ..., coordinators: list[Coordinator] = ..., version: int | None = ...) -> None: ...
