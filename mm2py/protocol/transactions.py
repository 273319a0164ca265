"""Requests to a transaction coordinator: partitions of a transaction (old protocol only), and its end.

Flow: a builder (``end_txn(...)``) -> ``Call`` -> bytes -> coordinator -> bytes -> one value. ``init_producer_id``
and ``find_coordinator`` are in ``messages`` and ``group_messages``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mm2py.protocol.brokers import ProducerIdResult
from mm2py.protocol.call import Call
from mm2py.protocol.schema import by_topic, producer_schema, required, schema_call
from mm2py.types import TopicPartition

IMPLICIT_END = 5
"""EndTxn of the second protocol generation (KIP-890): it answers with the next epoch."""


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """A transactional id with the producer id and epoch that it has now."""

    transactional_id: str
    producer_id: int
    epoch: int


def add_partitions_to_txn(
    producer: TransactionalProducer, partitions: Iterable[TopicPartition]
) -> Call[Mapping[TopicPartition, int]]:
    """Add partitions to the open transaction, or begin one; answers a code per partition."""
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

    # From v4 on the request is for brokers alone.
    return schema_call(request, producer_schema.AddPartitionsToTxnResponse, convert, (0, 3))


def end_txn(
    producer: TransactionalProducer, *, commit: bool, implicit: bool
) -> Call[ProducerIdResult]:
    """End the open transaction; with ``implicit`` the answer has the id and epoch of the next one."""
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

    versions = (IMPLICIT_END, IMPLICIT_END) if implicit else (0, IMPLICIT_END - 1)
    return schema_call(request, producer_schema.EndTxnResponse, convert, versions)
