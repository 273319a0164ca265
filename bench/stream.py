"""A steady stream of records into the source, and a reader of its copy that says how late each one is.

Flow: ``Stream`` (a thread that produces) -> the mirror -> ``Arrivals`` (a thread that reads the copy). A record's age is
the wall clock minus its CreateTime, both of this machine.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final, Self, final

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.measure import CopyFailedError
from mm2py.clock import SYSTEM_CLOCK

TICK_S: Final = 0.005
FLUSH_S: Final = 20.0
_PADDING: Final = b"x" * 200


@final
class Stream:
    """Writes ``rate`` records per second, as a context manager."""

    def __init__(self, servers: str, topic: str, partitions: int, rate: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 5, "acks": "all", "log_level": 2}
        )
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stream-{topic}", daemon=True)

    def _run(self) -> None:
        begun, written = time.monotonic(), 0
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - begun) * self._rate)
            for number in range(written, due):
                self._producer.produce(
                    self._topic,
                    b"%d:%s" % (number, _PADDING),
                    partition=number % self._partitions,
                    timestamp=SYSTEM_CLOCK.now_ms(),
                )
            written = due
            self._producer.poll(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(FLUSH_S)


@final
class Arrivals:
    """Reads a copy from its end of now on, as a context manager."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench-arrivals",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in range(partitions)])
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._last_s = dict.fromkeys(range(partitions), 0.0)
        self._ages_ms: list[int] = []
        self._gap_s, self._taken_s = 0.0, time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"arrivals-{topic}", daemon=True)

    def last_s(self) -> dict[int, float]:
        """Return when (monotonic) the last record of each partition arrived, 0 before the first."""
        with self._lock:
            return dict(self._last_s)

    def take_ages_ms(self) -> Sequence[int]:
        """Return the ages of what arrived since the last call, sorted."""
        with self._lock:
            ages_ms, self._ages_ms = self._ages_ms, []
        return sorted(ages_ms)

    def take_longest_gap_s(self) -> float:
        """Return the longest time without a record of one of the partitions since the last call, one that lasts included."""
        with self._lock:
            now = time.monotonic()
            gap_s = max(
                self._gap_s, *(now - max(it, self._taken_s) for it in self._last_s.values())
            )
            self._gap_s, self._taken_s = 0.0, now
        return gap_s

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until every partition gets records.

        Raises:
            CopyFailedError: one does not.
        """
        began = time.monotonic()
        while min(self.last_s().values()) < began:
            if time.monotonic() > began + timeout_s:
                raise CopyFailedError(f"not every partition is copied within {timeout_s:.0f} s")
            time.sleep(TICK_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, timeout=0.02):
                if message.error() is None:
                    age_ms = SYSTEM_CLOCK.now_ms() - message.timestamp()[1]
                    with self._lock:
                        partition, now = message.partition() or 0, time.monotonic()
                        begun_s = max(self._last_s[partition], self._taken_s)
                        self._gap_s = max(self._gap_s, now - begun_s)
                        self._last_s[partition] = now
                        self._ages_ms.append(age_ms)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
