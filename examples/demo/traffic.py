"""Producers of the demo, in a process of their own: ``python -m examples.demo.traffic``.

Flow: topics created -> records at a steady rate, one producer per codec -> SIGTERM -> flush -> counts as
one JSON line on standard output. The worker process never loads confluent-kafka; this one does.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from confluent_kafka import KafkaError, Producer
from confluent_kafka.cimpl import NewTopic

from examples.demo.admin import create_topics
from examples.demo.topics import TOPICS, DemoTopic
from mm2py.clock import SYSTEM_CLOCK

YEAR_MS: Final = 365 * 86_400_000
TICK_S: Final = 0.02
TRICKLE: Final = 0.01
"""Part of the rate that is kept when the disk budget is used up: the table stays alive."""

FLUSH_TIMEOUT_S: Final = 15.0

Headers = list[tuple[str, str | bytes | None]]


@final
class Traffic:
    """Writes the demo's records to one region until it is stopped.

    Args:
        bootstrap: the region's address.
        region: its alias, a part of each record.
        rate: records per second over all topics.
        budget_bytes: values written before the rate falls to a trickle.
        seed: makes two runs equal.
    """

    def __init__(
        self, bootstrap: str, region: str, *, rate: int, budget_bytes: int, seed: int = 0
    ) -> None:
        self._region = region
        self._rate = rate
        self._budget = budget_bytes
        self._random = random.Random(seed)  # noqa: S311 - test data, not a secret
        self._producers = {topic.name: _producer(bootstrap, topic.codec) for topic in TOPICS}
        self._owed = {topic.name: 0.0 for topic in TOPICS}
        self._noise = os.urandom(1 << 16).hex().encode()
        self.written = {topic.name: 0 for topic in TOPICS}
        self.failed = 0

    def run(self, stopped: Callable[[], bool]) -> None:
        """Write until ``stopped()``; flush it afterwards."""
        before = time.monotonic()
        while not stopped():
            time.sleep(TICK_S)
            now = time.monotonic()
            elapsed, before = min(now - before, 1.0), now
            rate = self._rate if self._budget > 0 else self._rate * TRICKLE
            for topic in TOPICS:
                self._owed[topic.name] += elapsed * rate * topic.share
                count = int(self._owed[topic.name])
                self._owed[topic.name] -= count
                self._write(topic, count)

    def flush(self) -> None:
        """Wait for the last acknowledgements; what has none counts as failed."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        for producer in self._producers.values():
            self.failed += producer.flush(max(0.0, deadline - time.monotonic()))

    def _write(self, topic: DemoTopic, count: int) -> None:
        producer = self._producers[topic.name]
        for _ in range(count):
            value = self._value(topic)
            number = self.written[topic.name]
            key = f"{self._region}-{number % 5_000}".encode() if topic.keyed else None
            try:
                producer.produce(
                    topic.name,
                    value=value,
                    key=key,
                    timestamp=SYSTEM_CLOCK.now_ms() - topic.years_old * YEAR_MS,
                    headers=self._headers(topic),
                    on_delivery=self._answered,
                )
            except BufferError:
                producer.poll(0.05)
                break
            self.written[topic.name] += 1
            self._budget -= len(value or b"")
        producer.poll(0)

    def _value(self, topic: DemoTopic) -> bytes | None:
        if topic.tombstones and self._random.random() < 0.05:
            return None
        length = self._random.randrange(topic.value_bytes // 2, topic.value_bytes * 3 // 2)
        start = self._random.randrange(len(self._noise) - length)
        # Half noise, half blanks: compressible as real records are.
        return self._noise[start : start + length // 2].ljust(length)

    def _headers(self, topic: DemoTopic) -> Headers:
        if not topic.headers:
            return []
        number = self.written[topic.name]
        headers: Headers = [("trace", f"{number:08x}".encode()), ("region", self._region.encode())]
        if number % 3 == 0:
            headers += [("attempt", b"1"), ("attempt", b"2")]
        if number % 4 == 0:
            headers.append(("note", None))
        return headers

    def _answered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.failed += 1


def _producer(bootstrap: str, codec: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 20,
            # A record that is not acknowledged is counted; start-up chatter of the client is not ours.
            "log_level": 2,
            "queue.buffering.max.kbytes": 16_384,
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write until SIGTERM or SIGINT; print counts; 1 if a record was not acknowledged."""
    parser = argparse.ArgumentParser(description="traffic of the demo")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--rate", type=int, default=3_000, help="records per second")
    parser.add_argument("--budget-mb", type=int, default=300, help="values written at full rate")
    options = parser.parse_args(arguments)
    stop = threading.Event()

    def caught(_number: int, _frame: object) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, caught)
    bootstrap: str = options.bootstrap
    region: str = options.region
    topics = [
        NewTopic(it.name, num_partitions=it.partitions, replication_factor=1) for it in TOPICS
    ]
    create_topics(bootstrap, topics)
    traffic = Traffic(
        bootstrap, region, rate=options.rate, budget_bytes=options.budget_mb << 20, seed=len(region)
    )
    # The parent of the demo may be killed: without it nobody would ever stop this process.
    parent = os.getppid()
    traffic.run(lambda: stop.is_set() or os.getppid() != parent)
    if not stop.is_set():
        return 1
    traffic.flush()
    answer = {"region": region, "written": traffic.written, "failed": traffic.failed}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if traffic.failed else 0


if __name__ == "__main__":
    sys.exit(main())
