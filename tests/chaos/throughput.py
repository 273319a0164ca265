"""Load and time: how fast a copy goes, by the target's log end, and how long a fault lasts under load."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from bench.measure import ProcessTree
from tests.integration.mirror_process import Mirror, until
from tests.integration.traffic import Load, Sent, write
from tests.kit.kafka.region import KafkaAddress

RECORD_BYTES: Final = 1024
COPY_TIMEOUT_S: Final = 100.0
SKIPPED: Final = 0.15
"""Part of the backlog that is left out at the beginning, where windows open, and at the end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What one copy reached."""

    bytes_per_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e6:.1f} MB/s, {self.cpu_s:.1f} s CPU"


def write_backlog(region: KafkaAddress, topic: str, records: int, partitions: int = 1) -> None:
    """Write records of 1 KiB that do not compress, in batches of 16 KiB."""
    write(region, topic, _records(records, partitions), batch_size=16_384, linger_ms=50)


def _records(count: int, partitions: int) -> Iterator[Sent]:
    padding = os.urandom(RECORD_BYTES)
    for number in range(count):
        mark = b"%d:" % number
        yield Sent(number % partitions, mark + padding[len(mark) :])


def pace_of_copy(
    mirror: Mirror, region: KafkaAddress, topic: str, records: int, partitions: int = 1
) -> Pace:
    """Wait until so many records are in the partitions of ``topic`` and return the pace of the middle part."""
    samples: list[tuple[float, int]] = []
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    settings = {"bootstrap.servers": region.bootstrap_servers, "group.id": "pace", "log_level": 0}
    with closing(Consumer(settings)) as consumer:

        def complete() -> bool:
            end = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
            samples.append((time.monotonic(), end))
            return end >= records

        until(complete, COPY_TIMEOUT_S, lambda: f"{records} copied: {samples[-1:]}", alive=mirror)
    low, high = records * SKIPPED, records * (1 - SKIPPED)
    middle = [sample for sample in samples if low <= sample[1] <= high]
    assert len(middle) >= 2, f"too fast to measure: {samples}"
    (began, first), (ended, last) = middle[0], middle[-1]
    return Pace((last - first) * RECORD_BYTES / (ended - began), ProcessTree(mirror.pid).cpu_s())


def wait_s(load: Load, seconds: float) -> None:
    """Let a fault last, and fail at once when nothing can be written to the source any more."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load.wait_acked(1)
