"""Fills a topic with old records: ``python -m examples.demo.history --bootstrap HOST:PORT --topic T --records N``.

Flow: topic of four partitions that keeps everything -> N records with timestamps from two years ago on -> last ack.
Run again it appends.
"""

import argparse
import sys
from typing import Final, cast

from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from examples.demo.admin import create_topics
from mm2py.clock import SYSTEM_CLOCK

PARTITIONS: Final = 4
AGE_MS: Final = 2 * 365 * 86_400_000
TIMEOUT_S: Final = 60.0


def main() -> int:
    """Create the topic where it is missing and append the records."""
    parser = argparse.ArgumentParser(prog="demo_history")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    servers, topic = cast("str", options.bootstrap), cast("str", options.topic)
    new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    create_topics(servers, [new])
    producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20})
    deadline = SYSTEM_CLOCK.monotonic() + TIMEOUT_S
    while len(producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) < PARTITIONS:
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise RuntimeError(f"the topic {topic} has no {PARTITIONS} partitions")
        producer.poll(0.05)
    began_ms = SYSTEM_CLOCK.now_ms() - AGE_MS
    for number in range(cast("int", options.records)):
        producer.produce(
            topic,
            b'{"event": %d, "text": "%s"}' % (number, b"history " * 20),
            key=b"customer-%d" % (number % 1_000),
            partition=number % PARTITIONS,
            timestamp=began_ms + number,
        )
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.05)
    return 1 if producer.flush(TIMEOUT_S) else 0


if __name__ == "__main__":
    sys.exit(main())
