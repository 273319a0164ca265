"""Who has written to a partition, as its leader remembers it (DescribeProducers, KIP-664)."""

from dataclasses import dataclass

from mm2py.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One idempotent or transactional producer; ``last_timestamp`` (ms) is of its last batch, -1 unknown.

    ``transaction_start`` is the offset where its open transaction begins, -1 for none. Producers without idempotence leave no trace.
    """

    producer_id: int
    epoch: int
    last_timestamp: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class ProducersOfPartition:
    """What one leader answers about one partition."""

    partition: TopicPartition
    error_code: int
    producers: tuple[ActiveProducer, ...]
