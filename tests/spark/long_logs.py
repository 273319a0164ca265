"""Millions of small records, and their digests: too many to be held and compared as objects.

Flow: ``write_many`` -> the product -> ``digests``: per partition the number of records and a hash over offset, timestamp, key, value and
headers of all of them in order. Where the source has no holes and nothing else writes to the target, both sides are equal with offsets.
"""

import hashlib
import time
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from tests.integration.traffic import Sent, partitions_of, produce, producer, reader
from tests.kit.kafka.region import KafkaAddress

READ_S: Final = 300.0
_WAIT_S: Final = 0.2


class Digest(NamedTuple):
    """One partition."""

    records: int
    end: int
    content: str


def write_many(region: KafkaAddress, topic: str, counts: list[int]) -> None:
    """Write ``counts[p]`` different records to each partition p, with keys, one header, and timestamps of years ago: 288,000 a day."""
    writer = producer(region, queue_buffering_max_messages=500_000, linger_ms=50)
    padding = b"." * 60
    for number in range(max(counts)):
        for partition, count in enumerate(counts):
            if number < count:
                record = Sent(
                    partition,
                    b"%d/%d%s" % (partition, number, padding),
                    b"k%d" % (number % 1000),
                    (("n", b"%d" % number),),
                    1_600_000_000_000 + 300 * number,
                )
                produce(writer, topic, record)
    assert writer.flush(120) == 0


def digests(region: KafkaAddress, topic: str) -> dict[int, Digest]:
    """Read every partition from its start to its present end."""
    with closing(reader(region)) as consumer:
        found = {p: (hashlib.blake2b(digest_size=16), 0, 0) for p in partitions_of(consumer, topic)}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in found])
        waiting, deadline = set(found), time.monotonic() + READ_S
        while waiting:
            assert time.monotonic() < deadline, f"{topic}: cannot read {sorted(waiting)}"
            for message in consumer.consume(10_000, timeout=_WAIT_S):
                partition, error = message.partition() or 0, message.error()
                if error is None:
                    content, count, _ = found[partition]
                    offset = message.offset() or 0
                    shown = (
                        offset,
                        message.timestamp(),
                        message.key(),
                        message.value(),
                        message.headers(),
                    )
                    content.update(repr(shown).encode())
                    found[partition] = content, count + 1, offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(partition)
                elif not error.retriable():
                    raise KafkaException(error)
    return {
        partition: Digest(count, end, content.hexdigest())
        for partition, (content, count, end) in found.items()
    }
