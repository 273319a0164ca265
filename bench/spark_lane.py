"""Loops of confluent-kafka in a Spark task: copy with timestamps, read, write; the tasks of contenders in ``bench.spark_job``.

Apart from it, so that Spark's workers import it by name.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

_CONSUME_RECORDS: Final = 10_000


def copy_lane(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Copy a lane's partitions record by record; timestamps and headers are kept."""
    producer, copy = _producer(lane), str(lane["copy"])
    for records in _consumed(lane):
        for record in records:
            at_ms = record.timestamp()[1]
            _produce(producer, copy, record.value(), record.key(), record.partition(), at_ms)
        producer.poll(0)
    producer.flush()
    return {}


def read_lane(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Read a lane's partitions record by record, and add up their bytes."""
    size, wanted = 0, sum(_ends(lane).values()) * int(cast("int", lane["value_bytes"]))
    for records in _consumed(lane):
        size += sum(len(record.value() or b"") for record in records)
    assert size == wanted
    return {}


def write_lane(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Write as many records as a lane's partitions have."""
    producer, copy = _producer(lane), str(lane["copy"])
    size = int(cast("int", lane["value_bytes"]))
    for partition, end in _ends(lane).items():
        for number in range(end):
            _produce(producer, copy, (b"%d" % number).rjust(size, b"x"), None, partition, 0)
            if number % _CONSUME_RECORDS == 0:
                producer.poll(0)
    producer.flush()
    return {}


def _ends(lane: Mapping[str, object]) -> Mapping[int, int]:
    return {int(p): end for p, end in cast("Mapping[str, int]", lane["ends"]).items()}


def _producer(lane: Mapping[str, object]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": str(lane["target"]),
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )


def _consumed(lane: Mapping[str, object]) -> Generator[Sequence[Message]]:
    """Give the records of a lane's partitions to their ends."""
    ends, topic = _ends(lane), str(lane["topic"])
    consumer = Consumer(
        {
            "bootstrap.servers": str(lane["source"]),
            "group.id": "bench-spark",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in ends])
    still_open = dict(ends)
    while still_open:
        records = consumer.consume(_CONSUME_RECORDS, 0.1)
        for record in records:
            if record.error() is not None:
                raise RuntimeError(str(record.error()))
            partition, offset = record.partition(), record.offset()
            assert partition is not None
            assert offset is not None
            if offset + 1 >= ends[partition]:
                still_open.pop(partition, None)
        yield records
    consumer.close()


def _produce(
    producer: Producer,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int | None,
    timestamp_ms: int,
) -> None:
    while True:
        try:
            assert partition is not None
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
        except BufferError:
            producer.poll(0.01)
        else:
            return
