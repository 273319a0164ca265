"""What is copied: sizes, codecs and counts; and the producer that fills a topic with it.

Flow: ``WORKLOADS[name]`` -> ``fill(bootstrap, topic, workload, records)`` -> ``batch_shape`` of the log.
Batches are those of a producer under load: full up to ``batch.size``, or of ``batch_records`` records.
"""

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

PARTITIONS: Final = 8
BATCH_BYTES: Final = 16_384
_CHUNK: Final = 2_000  # records handed to the producer at once
_BUFFERED_RECORDS: Final = 100_000
_FLUSH_TIMEOUT_S: Final = 120.0
_HEADER_BYTES: Final = 61
_WORDS: Final = ("order", "customer", "payment", "shipped", "refund", "invoice", "address", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One line of the result table."""

    name: str
    title: str
    value_bytes: int
    codec: str
    records: int
    quick_records: int
    warm_up_records: int  # per round
    goal_ratio: int | None = None  # of design.md 7
    batch_bytes: int = BATCH_BYTES
    batch_records: int | None = None  # None: as many as go into batch_bytes
    is_tls: bool = False
    partitions: int = PARTITIONS

    @property
    def topic(self) -> str:
        """Topic to copy; each of the two Java mirrors has its own family."""
        return f"{'tls-bench' if self.is_tls else 'bench'}.{self.name}"


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload(
            name="1k",
            title="1 KB",
            value_bytes=1_000,
            codec="none",
            records=600_000,
            quick_records=200_000,
            warm_up_records=80_000,
            goal_ratio=10,
        ),
        Workload(
            name="1k-lz4",
            title="1 KB, lz4",
            value_bytes=1_000,
            codec="lz4",
            records=600_000,
            quick_records=200_000,
            warm_up_records=80_000,
            goal_ratio=15,
        ),
        Workload(
            name="100b",
            title="100 B",
            value_bytes=100,
            codec="none",
            records=2_400_000,
            quick_records=600_000,
            warm_up_records=400_000,
            goal_ratio=15,
        ),
        Workload(
            name="100b-lz4",
            title="100 B, lz4",
            value_bytes=100,
            codec="lz4",
            records=2_400_000,
            quick_records=600_000,
            warm_up_records=400_000,
            goal_ratio=22,
        ),
        Workload(
            name="1k-zstd",
            title="1 KB, zstd, 64 KiB batches",
            value_bytes=1_000,
            codec="zstd",
            records=600_000,
            quick_records=200_000,
            warm_up_records=80_000,
            batch_bytes=65_536,
        ),
        Workload(
            name="1k-single",
            title="1 KB, one a batch",
            value_bytes=1_000,
            codec="none",
            records=300_000,
            quick_records=150_000,
            warm_up_records=20_000,
            batch_records=1,
        ),
        Workload(
            name="100b-single",
            title="100 B, one a batch",
            value_bytes=100,
            codec="none",
            records=300_000,
            quick_records=150_000,
            warm_up_records=20_000,
            batch_records=1,
        ),
        Workload(
            name="1k-tls",
            title="1 KB, TLS both sides",
            value_bytes=1_000,
            codec="none",
            records=600_000,
            quick_records=200_000,
            warm_up_records=80_000,
            is_tls=True,
        ),
        Workload(
            name="1k-lz4-tls",
            title="1 KB, lz4, TLS both sides",
            value_bytes=1_000,
            codec="lz4",
            records=600_000,
            quick_records=200_000,
            warm_up_records=80_000,
            is_tls=True,
        ),
    )
}


def fill(bootstrap_servers: str, topic: str, workload: Workload, records: int) -> None:
    """Append ``records`` records, the same number to every partition, and wait for the last ack."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "compression.codec": workload.codec,
        "batch.size": workload.batch_bytes,
        "linger.ms": 1_000,  # long enough that only full batches leave
        "queue.buffering.max.messages": 2 * _BUFFERED_RECORDS,
        "queue.buffering.max.kbytes": 1 << 20,
        "acks": "all",
        "log_level": 2,
    }
    if workload.batch_records is not None:
        settings |= {"batch.num.messages": workload.batch_records, "linger.ms": 0}
    producer = Producer(settings)
    messages = _messages(workload.value_bytes)
    per_partition = records // workload.partitions
    for begin in range(0, per_partition, _CHUNK):
        part = messages[: min(_CHUNK, per_partition - begin)]
        for partition in range(workload.partitions):
            if producer.produce_batch(topic, part, partition=partition) != len(part):
                raise RuntimeError(f"the producer's queue overran while filling {topic}")
            while len(producer) > _BUFFERED_RECORDS:
                producer.poll(0.01)
    if producer.flush(_FLUSH_TIMEOUT_S) > 0:
        raise RuntimeError(f"{topic} was not filled within {_FLUSH_TIMEOUT_S:.0f} s")


def _messages(value_bytes: int) -> list[dict[str, Any]]:
    """Return JSON documents of exactly ``value_bytes``, as compressible as business events are."""
    chance = random.Random(value_bytes)
    return [
        {"key": b"customer-%06d" % chance.randrange(100_000), "value": _value(value_bytes, chance)}
        for _ in range(_CHUNK)
    ]


def _value(value_bytes: int, chance: random.Random) -> bytes:
    event: dict[str, object] = {"id": f"{chance.getrandbits(64):016x}", "sum": chance.random()}
    text = json.dumps(event)[:-1] + ', "t": "'
    while len(text) < value_bytes:
        text += f"{chance.choice(_WORDS)} {chance.randrange(10_000)} "
    return (text[: value_bytes - 2] + '"}').encode()


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The batches of a topic as they lie in the broker's log."""

    batches: int
    records: int
    size_bytes: int

    @property
    def mean_bytes(self) -> float:
        """Bytes of a batch as stored, headers included."""
        return self.size_bytes / max(self.batches, 1)

    @property
    def mean_records(self) -> float:
        """Records per batch."""
        return self.records / max(self.batches, 1)


def batch_shape(data_dir: Path, topic: str) -> BatchShape:
    """Walk the batch headers of every segment of ``topic`` in a broker's data folder."""
    batches = records = size_bytes = 0
    for segment in data_dir.glob(f"{topic}-*/*.log"):
        with segment.open("rb") as log:
            while len(header := log.read(_HEADER_BYTES)) == _HEADER_BYTES:
                (length,) = struct.unpack_from(">i", header, 8)
                batches += 1
                records += struct.unpack_from(">i", header, 57)[0]
                size_bytes += length + 12
                log.seek(length + 12 - _HEADER_BYTES, 1)
    return BatchShape(batches, records, size_bytes)
