from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

class InitProducerIdRequest(ApiMessage):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable2_pc: bool
    keep_prepared_txn: bool
    def __init__(self, *, transactional_id: str | None = ..., transaction_timeout_ms: int = ..., producer_id: int = ..., producer_epoch: int = ..., enable2_pc: bool = ..., keep_prepared_txn: bool = ..., version: int | None = ...) -> None: ...

class InitProducerIdResponse(ApiMessage):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int
    ongoing_txn_producer_epoch: int
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., producer_id: int = ..., producer_epoch: int = ..., ongoing_txn_producer_id: int = ..., ongoing_txn_producer_epoch: int = ..., version: int | None = ...) -> None: ...

class AddPartitionsToTxnRequest(ApiMessage):
    class AddPartitionsToTxnTopic(DataContainer):
        name: str
        partitions: list[int]
        def __init__(self, *, name: str = ..., partitions: list[int] = ..., version: int | None = ...) -> None: ...
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: list[AddPartitionsToTxnTopic]
    def __init__(self, *, v3_and_below_transactional_id: str = ..., v3_and_below_producer_id: int = ..., v3_and_below_producer_epoch: int = ..., v3_and_below_topics: list[AddPartitionsToTxnTopic] = ..., version: int | None = ...) -> None: ...

class AddPartitionsToTxnResponse(ApiMessage):
    class AddPartitionsToTxnTopicResult(DataContainer):
        class AddPartitionsToTxnPartitionResult(DataContainer):
            partition_index: int
            partition_error_code: int
            def __init__(self, *, partition_index: int = ..., partition_error_code: int = ..., version: int | None = ...) -> None: ...
        name: str
        results_by_partition: list[AddPartitionsToTxnPartitionResult]
        def __init__(self, *, name: str = ..., results_by_partition: list[AddPartitionsToTxnPartitionResult] = ..., version: int | None = ...) -> None: ...
    throttle_time_ms: int
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult]
    def __init__(self, *, throttle_time_ms: int = ..., results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = ..., version: int | None = ...) -> None: ...

class EndTxnRequest(ApiMessage):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    def __init__(self, *, transactional_id: str = ..., producer_id: int = ..., producer_epoch: int = ..., committed: bool = ..., version: int | None = ...) -> None: ...

class EndTxnResponse(ApiMessage):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    def __init__(self, *, throttle_time_ms: int = ..., error_code: int = ..., producer_id: int = ..., producer_epoch: int = ..., version: int | None = ...) -> None: ...

class WriteTxnMarkersRequest(ApiMessage):
    class WritableTxnMarker(DataContainer):
        class WritableTxnMarkerTopic(DataContainer):
            name: str
            partition_indexes: list[int]
            def __init__(self, *, name: str = ..., partition_indexes: list[int] = ..., version: int | None = ...) -> None: ...
        producer_id: int
        producer_epoch: int
        transaction_result: bool
        topics: list[WritableTxnMarkerTopic]
        coordinator_epoch: int
        transaction_version: int
        def __init__(self, *, producer_id: int = ..., producer_epoch: int = ..., transaction_result: bool = ..., topics: list[WritableTxnMarkerTopic] = ..., coordinator_epoch: int = ..., transaction_version: int = ..., version: int | None = ...) -> None: ...
    markers: list[WritableTxnMarker]
    def __init__(self, *, markers: list[WritableTxnMarker] = ..., version: int | None = ...) -> None: ...

class WriteTxnMarkersResponse(ApiMessage):
    class WritableTxnMarkerResult(DataContainer):
        class WritableTxnMarkerTopicResult(DataContainer):
            class WritableTxnMarkerPartitionResult(DataContainer):
                partition_index: int
                error_code: int
                def __init__(self, *, partition_index: int = ..., error_code: int = ..., version: int | None = ...) -> None: ...
            name: str
            partitions: list[WritableTxnMarkerPartitionResult]
            def __init__(self, *, name: str = ..., partitions: list[WritableTxnMarkerPartitionResult] = ..., version: int | None = ...) -> None: ...
        producer_id: int
        topics: list[WritableTxnMarkerTopicResult]
        def __init__(self, *, producer_id: int = ..., topics: list[WritableTxnMarkerTopicResult] = ..., version: int | None = ...) -> None: ...
    markers: list[WritableTxnMarkerResult]
    def __init__(self, *, markers: list[WritableTxnMarkerResult] = ..., version: int | None = ...) -> None: ...

class ProduceRequest(ApiMessage):
    class TopicProduceData(DataContainer):
        class PartitionProduceData(DataContainer):
            index: int
            records: bytes | None
            def __init__(self, *, index: int = ..., records: bytes | None = ..., version: int | None = ...) -> None: ...
        name: str
        topic_id: UUID | None
        partition_data: list[PartitionProduceData]
        def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partition_data: list[PartitionProduceData] = ..., version: int | None = ...) -> None: ...
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[TopicProduceData]
    def __init__(self, *, transactional_id: str | None = ..., acks: int = ..., timeout_ms: int = ..., topic_data: list[TopicProduceData] = ..., version: int | None = ...) -> None: ...

class ProduceResponse(ApiMessage):
    class TopicProduceResponse(DataContainer):
        class PartitionProduceResponse(DataContainer):
            class BatchIndexAndErrorMessage(DataContainer):
                batch_index: int
                batch_index_error_message: str | None
                def __init__(self, *, batch_index: int = ..., batch_index_error_message: str | None = ..., version: int | None = ...) -> None: ...
            class LeaderIdAndEpoch(DataContainer):
                leader_id: int
                leader_epoch: int
                def __init__(self, *, leader_id: int = ..., leader_epoch: int = ..., version: int | None = ...) -> None: ...
            index: int
            error_code: int
            base_offset: int
            log_append_time_ms: int
            log_start_offset: int
            record_errors: list[BatchIndexAndErrorMessage]
            error_message: str | None
            current_leader: LeaderIdAndEpoch
            def __init__(self, *, index: int = ..., error_code: int = ..., base_offset: int = ..., log_append_time_ms: int = ..., log_start_offset: int = ..., record_errors: list[BatchIndexAndErrorMessage] = ..., error_message: str | None = ..., current_leader: LeaderIdAndEpoch = ..., version: int | None = ...) -> None: ...
        name: str
        topic_id: UUID | None
        partition_responses: list[PartitionProduceResponse]
        def __init__(self, *, name: str = ..., topic_id: UUID | None = ..., partition_responses: list[PartitionProduceResponse] = ..., version: int | None = ...) -> None: ...
    class NodeEndpoint(DataContainer):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(self, *, node_id: int = ..., host: str = ..., port: int = ..., rack: str | None = ..., version: int | None = ...) -> None: ...
    responses: list[TopicProduceResponse]
    throttle_time_ms: int
    node_endpoints: list[NodeEndpoint]
    def __init__(self, *, responses: list[TopicProduceResponse] = ..., throttle_time_ms: int = ..., node_endpoints: list[NodeEndpoint] = ..., version: int | None = ...) -> None: ...
