"""A confluent-kafka loop in a Spark task: consume, produce, with timestamps; the task of a contender in ``bench.spark_job``.

Apart from it, so that Spark's workers import it by name.
"""

from collections.abc import Mapping
from typing import Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

_CONSUME_RECORDS: Final = 10_000


def copy_lane(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Copy a lane's partitions record by record; timestamps and headers are kept."""
    ends = {int(p): end for p, end in cast("Mapping[str, int]", lane["ends"]).items()}
    topic, copy = str(lane["topic"]), str(lane["copy"])
    consumer = Consumer(
        {
            "bootstrap.servers": str(lane["source"]),
            "group.id": "bench-spark",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": str(lane["target"]),
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in ends])
    open_ends = dict(ends)
    while open_ends:
        for record in consumer.consume(_CONSUME_RECORDS, 0.1):
            if record.error() is not None:
                raise RuntimeError(str(record.error()))
            partition, offset = record.partition(), record.offset()
            assert partition is not None
            assert offset is not None
            _produce(producer, copy, record.value(), record.key(), partition, record.timestamp()[1])
            if offset + 1 >= ends[partition]:
                open_ends.pop(partition, None)
        producer.poll(0)
    producer.flush()
    consumer.close()
    return {}


def _produce(
    producer: Producer,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int,
    timestamp_ms: int,
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
        except BufferError:
            producer.poll(0.01)
        else:
            return
