"""The least that a mirror through a consumer group can be: consume, produce, flush, commit, with confluent-kafka alone.

``python -m bench.plain_loop SOURCE TARGET TOPIC COPY GROUP``: runs until SIGTERM. What MirrorSink is measured beside.
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, cast

from confluent_kafka import Consumer, Producer

BATCH: Final = 500
COMMIT_S: Final = 1.0
FLUSH_S: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy until the end is asked for; return the exit code."""
    source, target, topic, copy, group = sys.argv[1:] if arguments is None else arguments
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: ended.set())
    consumer = Consumer(
        {
            "bootstrap.servers": source,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "queued.max.messages.kbytes": 16_384,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": target,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 16_384,
            "queue.buffering.max.kbytes": 32_768,
            "delivery.report.only.error": True,
        }
    )
    consumer.subscribe([topic])
    due_s = time.monotonic() + COMMIT_S
    while not ended.is_set():
        _copy(consumer, producer, copy)
        if time.monotonic() >= due_s:
            assert producer.flush(FLUSH_S) == 0
            if any(it.offset >= 0 for it in consumer.position(consumer.assignment())):
                consumer.commit(
                    offsets=consumer.position(consumer.assignment()), asynchronous=False
                )
            due_s = time.monotonic() + COMMIT_S
    consumer.close()
    return 0


def _copy(consumer: Consumer, producer: Producer, topic: str) -> None:
    first = consumer.poll(0.5)
    if first is None:
        return
    for message in (first, *consumer.consume(BATCH - 1, timeout=0)):
        assert message.error() is None, message.error()
        headers = cast("list[tuple[str, str | bytes | None]] | None", message.headers())
        while True:
            try:
                producer.produce(
                    topic,
                    message.value(),
                    message.key(),
                    partition=message.partition() or 0,
                    timestamp=message.timestamp()[1],
                    headers=headers,
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.poll(0)


if __name__ == "__main__":
    sys.exit(main())
