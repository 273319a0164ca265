"""Requests about clusters, topics, offsets and transactions; the other builders are admin_messages
and group_messages.

Flow: a builder (``metadata(...)``) -> ``Call`` -> bytes -> broker -> bytes -> one value.
Builders validate what the schema library does not. Fetch and Produce are hand-written elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2py.protocol.call import Call
from mm2py.protocol.schema import (
    admin_schema,
    by_topic,
    consumer_schema,
    metadata_schema,
    optional,
    producer_schema,
    required,
    schema_call,
    topic_id_bytes,
)
from mm2py.protocol.topics import (
    ApiVersionsResult,
    BrokerNode,
    CreatedTopic,
    EpochEnd,
    EpochQuery,
    MetadataResult,
    NamedError,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    PartitionMetadata,
    PartitionOutcome,
    ProducerIdResult,
    TopicMetadata,
)
from mm2py.types import NO_PRODUCER_ID, TopicPartition

_TIMEOUT_MS: Final = 30_000
"""How long a broker may take; the request itself may time out before."""

_SOFTWARE = ("mm2py", "0.1.0")


def api_versions() -> Call[ApiVersionsResult]:
    """Request the versions that a broker supports.

    A broker that does not know our version answers in version 0 with error 35 and its own range
    (KIP-511).
    """

    def convert(answer: metadata_schema.ApiVersionsResponse) -> ApiVersionsResult:
        return ApiVersionsResult(
            answer.error_code,
            {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys},
            {f.name: f.max_version_level for f in answer.finalized_features or ()},
            answer.throttle_time_ms,
        )

    def request() -> metadata_schema.ApiVersionsRequest:
        return metadata_schema.ApiVersionsRequest(
            # v3 (KIP-511); brokers refuse names with other than letters, digits, dots and dashes.
            client_software_name=_SOFTWARE[0],
            client_software_version=_SOFTWARE[1],
        )

    return schema_call(request, metadata_schema.ApiVersionsResponse, convert, (0, 4))


def metadata(
    topics: Sequence[str] | None,
    *,
    allow_auto_topic_creation: bool = False,
    operations: bool = False,
    cluster_operations: bool = False,
) -> Call[MetadataResult]:
    """Request brokers and topics; None means all topics, an empty sequence none.

    With ``operations`` topics carry what the principal may do with them, with
    ``cluster_operations`` the answer what it may do with the cluster (brokers from 2.3, KIP-430).
    """
    names = None if topics is None else [required(topic, "topic") for topic in topics]

    def request() -> metadata_schema.MetadataRequest:
        return metadata_schema.MetadataRequest(
            topics=None
            if names is None
            else [
                metadata_schema.MetadataRequest.MetadataRequestTopic(name=name) for name in names
            ],
            allow_auto_topic_creation=allow_auto_topic_creation,
            include_topic_authorized_operations=operations,
            include_cluster_authorized_operations=cluster_operations,
        )

    # Below v4 the request has no flag: a broker with
    # auto.create.topics.enable creates missing topics (KIP-204).
    low = 1 if allow_auto_topic_creation or names is None else 4
    low = 8 if operations or cluster_operations else low
    high = (
        10 if cluster_operations else 13
    )  # what the cluster grants went to DescribeCluster then (KIP-700)
    # v9 is flexible, v10 has topic ids (KIP-516), v12 allows
    # topics by id alone, v13 a top-level error (KIP-1102).
    return schema_call(request, metadata_schema.MetadataResponse, _metadata_result, (low, high))


def _metadata_result(answer: metadata_schema.MetadataResponse) -> MetadataResult:
    topics = tuple(
        TopicMetadata(
            topic.name or "",
            topic_id_bytes(topic.topic_id),
            topic.is_internal,
            tuple(
                PartitionMetadata(
                    part.partition_index,
                    part.leader_id,
                    part.leader_epoch,
                    part.error_code,
                    len(part.isr_nodes),
                )
                for part in topic.partitions
            ),
            topic.error_code,
            None if topic.authorized_operations is None else frozenset(topic.authorized_operations),
        )
        for topic in answer.topics
    )
    return MetadataResult(
        tuple(BrokerNode(b.node_id, b.host, b.port, b.rack) for b in answer.brokers),
        answer.cluster_id,
        answer.controller_id,
        topics,
        answer.error_code,
        answer.throttle_time_ms,
        None if answer.authorized_operations is None else frozenset(answer.authorized_operations),
    )


def list_offsets(
    queries: Iterable[OffsetQuery], *, isolation_level: int = 0
) -> Call[tuple[OffsetAnswer, ...]]:
    """Look up offsets by time; ``isolation_level`` 1 makes LATEST the last stable offset."""
    topics = by_topic((required(query.topic, "topic"), query) for query in queries)

    def request() -> consumer_schema.ListOffsetsRequest:
        kind = consumer_schema.ListOffsetsRequest.ListOffsetsTopic
        return consumer_schema.ListOffsetsRequest(
            # A consumer: replicas name themselves here.
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[
                kind(
                    name=topic,
                    partitions=[
                        kind.ListOffsetsPartition(
                            partition_index=query.partition,
                            current_leader_epoch=query.current_leader_epoch,
                            timestamp=query.timestamp,
                        )
                        for query in asked
                    ],
                )
                for topic, asked in topics
            ],
            timeout_ms=_TIMEOUT_MS,
        )

    def convert(answer: consumer_schema.ListOffsetsResponse) -> tuple[OffsetAnswer, ...]:
        return tuple(
            OffsetAnswer(
                topic.name,
                part.partition_index,
                part.error_code,
                part.timestamp,
                part.offset,
                part.leader_epoch,
            )
            for topic in answer.topics
            for part in topic.partitions
        )

    needed = {-3: 7, -4: 8, -5: 9, -6: 11}  # KIP-734, 405, 1005, 1023
    low = max((needed.get(query.timestamp, 1) for _, asked in topics for query in asked), default=1)
    return schema_call(
        request,
        consumer_schema.ListOffsetsResponse,
        convert,
        # v2 has the isolation level (KIP-98).
        (max(low, 2) if isolation_level else low, 11),
    )


def offset_for_leader_epoch(queries: Iterable[EpochQuery]) -> Call[tuple[EpochEnd, ...]]:
    """Request the ends of leader epochs (KIP-101, KIP-320).

    The end of the current epoch is the log end offset, also where ListOffsets still stops at an
    older high watermark.
    """
    topics = by_topic((required(query.topic, "topic"), query) for query in queries)

    def request() -> consumer_schema.OffsetForLeaderEpochRequest:
        kind = consumer_schema.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        return consumer_schema.OffsetForLeaderEpochRequest(
            # A consumer: replicas name themselves here (v3).
            replica_id=-1,
            topics=[
                kind(
                    topic=topic,
                    partitions=[
                        kind.OffsetForLeaderPartition(
                            partition=query.partition,
                            current_leader_epoch=query.current_leader_epoch,
                            leader_epoch=query.leader_epoch,
                        )
                        for query in asked
                    ],
                )
                for topic, asked in topics
            ],
        )

    def convert(answer: consumer_schema.OffsetForLeaderEpochResponse) -> tuple[EpochEnd, ...]:
        return tuple(
            EpochEnd(
                topic.topic, part.partition, part.error_code, part.leader_epoch, part.end_offset
            )
            for topic in answer.topics
            for part in topic.partitions
        )

    # v2 has the client's leader epoch (KIP-320); without it a deposed leader answers, too.
    return schema_call(request, consumer_schema.OffsetForLeaderEpochResponse, convert, (2, 4))


def create_topics(
    topics: Sequence[NewTopic], *, validate_only: bool = False
) -> Call[tuple[CreatedTopic, ...]]:
    """Create topics with explicit configs; counts of -1 are the broker's defaults."""
    for topic in topics:
        required(topic.name, "topic")
        for name, value in topic.configs.items():
            required(name, "config name")
            optional(value, f"value of config {name}")

    def request() -> admin_schema.CreateTopicsRequest:
        kind = admin_schema.CreateTopicsRequest.CreatableTopic
        return admin_schema.CreateTopicsRequest(
            topics=[
                kind(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    assignments=[],
                    configs=[
                        kind.CreatableTopicConfig(name=name, value=value)
                        for name, value in topic.configs.items()
                    ],
                )
                for topic in topics
            ],
            timeout_ms=_TIMEOUT_MS,
            validate_only=validate_only,
        )

    def convert(answer: admin_schema.CreateTopicsResponse) -> tuple[CreatedTopic, ...]:
        return tuple(
            CreatedTopic(
                topic.name,
                topic_id_bytes(topic.topic_id),
                topic.error_code,
                topic.error_message or "",
                topic.num_partitions,
                topic.replication_factor,
                # KIP-525, v5; null where they may not be read.
                {it.name: it.value or "" for it in topic.configs or ()},
            )
            for topic in answer.topics
        )

    defaults = any(-1 in (topic.partitions, topic.replication_factor) for topic in topics)
    # Brokers fill in -1 from v4 on (KIP-464).
    return schema_call(
        request, admin_schema.CreateTopicsResponse, convert, (4 if defaults else 2, 7)
    )


def create_partitions(totals: Mapping[str, int]) -> Call[tuple[NamedError, ...]]:
    """Raise topics to the given total number of partitions."""
    named = [(required(topic, "topic"), total) for topic, total in totals.items()]

    def request() -> admin_schema.CreatePartitionsRequest:
        return admin_schema.CreatePartitionsRequest(
            topics=[
                admin_schema.CreatePartitionsRequest.CreatePartitionsTopic(
                    name=topic, count=total, assignments=None
                )
                for topic, total in named
            ],
            timeout_ms=_TIMEOUT_MS,
            validate_only=False,
        )

    def convert(answer: admin_schema.CreatePartitionsResponse) -> tuple[NamedError, ...]:
        return tuple(
            NamedError(topic.name, topic.error_code, topic.error_message or "")
            for topic in answer.results
        )

    # v3 answers THROTTLING_QUOTA_EXCEEDED (KIP-599); below, the connection is throttled instead.
    return schema_call(request, admin_schema.CreatePartitionsResponse, convert, (0, 3))


def delete_records(before: Mapping[TopicPartition, int]) -> Call[tuple[PartitionOutcome, ...]]:
    """Delete records below an offset per partition; -1 means up to the high watermark."""
    topics = by_topic((required(tp.topic, "topic"), (tp, low)) for tp, low in before.items())

    def request() -> admin_schema.DeleteRecordsRequest:
        kind = admin_schema.DeleteRecordsRequest.DeleteRecordsTopic
        return admin_schema.DeleteRecordsRequest(
            topics=[
                kind(
                    name=topic,
                    partitions=[
                        kind.DeleteRecordsPartition(partition_index=tp.partition, offset=low)
                        for tp, low in parts
                    ],
                )
                for topic, parts in topics
            ],
            timeout_ms=_TIMEOUT_MS,
        )

    def convert(answer: admin_schema.DeleteRecordsResponse) -> tuple[PartitionOutcome, ...]:
        return tuple(
            PartitionOutcome(topic.name, part.partition_index, part.error_code)
            for topic in answer.topics
            for part in topic.partitions
        )

    return schema_call(request, admin_schema.DeleteRecordsResponse, convert, (0, 2))


def init_producer_id(
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
) -> Call[ProducerIdResult]:
    """Get a producer id, or increase the epoch of the one given (v3+, KIP-360)."""
    if transactional_id is not None:
        required(transactional_id, "transactional id")

    def request() -> producer_schema.InitProducerIdRequest:
        return producer_schema.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    def convert(answer: producer_schema.InitProducerIdResponse) -> ProducerIdResult:
        return ProducerIdResult(answer.error_code, answer.producer_id, answer.producer_epoch)

    return schema_call(
        request,
        producer_schema.InitProducerIdResponse,
        convert,
        # Below v3 the request has no id and epoch: brokers would answer as to a new producer.
        (0 if producer_id == NO_PRODUCER_ID else 3, 5),
    )


IMPLICIT_END = 5
"""EndTxn of the second protocol generation (KIP-890): it answers with the next epoch."""


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """A transactional id with its current producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


def add_partitions_to_txn(
    producer: TransactionalProducer, partitions: Iterable[TopicPartition]
) -> Call[Mapping[TopicPartition, int]]:
    """Add partitions to the open transaction, or begin one; returns an error code per partition."""
    required(producer.transactional_id, "transactional id")
    topics = by_topic((tp.topic, tp.partition) for tp in partitions)

    def request() -> producer_schema.AddPartitionsToTxnRequest:
        kind = producer_schema.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        return producer_schema.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[kind(name=topic, partitions=indexes) for topic, indexes in topics],
        )

    def convert(
        answer: producer_schema.AddPartitionsToTxnResponse,
    ) -> Mapping[TopicPartition, int]:
        return {
            TopicPartition(topic.name, part.partition_index): part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }

    # From v4 on the request is for brokers alone (KIP-890).
    return schema_call(request, producer_schema.AddPartitionsToTxnResponse, convert, (0, 3))


def end_txn(
    producer: TransactionalProducer, *, commit: bool, implicit: bool
) -> Call[ProducerIdResult]:
    """End the open transaction; with ``implicit`` (KIP-890) the result has the id and epoch of the
    next one."""
    required(producer.transactional_id, "transactional id")

    def request() -> producer_schema.EndTxnRequest:
        return producer_schema.EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    def convert(answer: producer_schema.EndTxnResponse) -> ProducerIdResult:
        return ProducerIdResult(answer.error_code, answer.producer_id, answer.producer_epoch)

    # v5 bumps the epoch at each end: both sides must
    # agree on the protocol, so it is never negotiated.
    versions = (IMPLICIT_END, IMPLICIT_END) if implicit else (0, IMPLICIT_END - 1)
    return schema_call(request, producer_schema.EndTxnResponse, convert, versions)


def abort_markers(
    producers: Mapping[TopicPartition, int], epoch: int
) -> Call[tuple[PartitionOutcome, ...]]:
    """Write a marker of ``epoch`` for one producer id per partition: its leader takes nothing of
    that id under an earlier epoch any more. An open transaction of it is aborted there (KIP-664).

    Brokers allow it with ClusterAction on the cluster, from Kafka 3.8 on also with Alter
    (KIP-1037).
    """
    by_id: dict[int, list[TopicPartition]] = {}
    for tp, producer_id in producers.items():
        by_id.setdefault(producer_id, []).append(tp)

    def request() -> producer_schema.WriteTxnMarkersRequest:
        kind = producer_schema.WriteTxnMarkersRequest.WritableTxnMarker
        return producer_schema.WriteTxnMarkersRequest(
            markers=[
                kind(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transaction_result=False,
                    topics=[
                        kind.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in by_topic((tp.topic, tp.partition) for tp in tps)
                    ],
                    coordinator_epoch=0,
                )
                for producer_id, tps in by_id.items()
            ]
        )

    def convert(answer: producer_schema.WriteTxnMarkersResponse) -> tuple[PartitionOutcome, ...]:
        return tuple(
            PartitionOutcome(topic.name, part.partition_index, part.error_code)
            for marker in answer.markers
            for topic in marker.topics
            for part in topic.partitions
        )

    # v2 names the transaction's version: from 2 on the
    # epoch of a marker may not be there yet (KIP-1228).
    return schema_call(request, producer_schema.WriteTxnMarkersResponse, convert, (1, 1))
