"""End-to-end latency at a steady rate: send time in the record -> read on the target, by one clock.

Flow: ``measure_latency`` -> a thread that produces to the source on a schedule, and a reader of the copy ->
``Latency``. The send time is the scheduled one, so that a stall of the producer counts as latency too.
"""

import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.measure import CopyFailedError

BYTES_PER_S: Final = 2_000_000
OTHER_RATES: Final = (200_000, 20_000_000)
RECORD_BYTES: Final = 1_000
LINGER_MS: Final = 5  # default of Kafka's own producer since 4.0
TICK_S: Final = 0.005
"""How often the producer of a steady stream writes."""
_DRAIN_S: Final = 20.0
_STAMP: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the send time of a record to its arrival at a reader of the target."""

    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def measure_latency(
    source: tuple[str, str],
    target: tuple[str, str],
    *,
    begin_at: Sequence[int],
    warm_up_s: float,
    measured_s: float,
    on_measured: Callable[[], None],
    bytes_per_s: int = BYTES_PER_S,
) -> Latency:
    """Produce at a steady rate for both spans; only records of the second count.

    Args:
        source: Bootstrap servers and topic to write to.
        target: Bootstrap servers and topic to read from.
        begin_at: Log end of each of the target's partitions.
        warm_up_s: Seconds of traffic before the measured ones.
        measured_s: Seconds of traffic that count.
        on_measured: Called when the measured span begins and when it ends.
        bytes_per_s: The rate.

    Raises:
        CopyFailedError: Not all records arrived.
    """
    consumer = Consumer(
        {"bootstrap.servers": target[0], "group.id": "bench-latency", "log_level": 2}
    )
    consumer.assign([TopicPartition(target[1], p, end) for p, end in enumerate(begin_at)])
    per_tick = round(bytes_per_s / RECORD_BYTES * TICK_S)
    total = per_tick * round((warm_up_s + measured_s) / TICK_S)
    begun_ns = time.monotonic_ns()
    first_ns = begun_ns + round(warm_up_s * 1e9)
    thread = threading.Thread(
        target=produce_steadily,
        args=(source, len(begin_at), begun_ns, per_tick, total),
        daemon=True,
    )
    thread.start()
    found_ms: list[float] = []
    give_up_at = time.monotonic() + warm_up_s + measured_s + _DRAIN_S
    arrived, is_measuring = 0, False
    while arrived < total and time.monotonic() < give_up_at:
        message = consumer.poll(0.05)
        if message is None or message.error() is not None:
            continue
        now_ns = time.monotonic_ns()
        arrived += 1
        (sent_ns,) = _STAMP.unpack_from(message.value() or b"")
        if sent_ns >= first_ns:
            if not is_measuring:
                is_measuring = True
                on_measured()
            found_ms.append((now_ns - sent_ns) / 1e6)
    on_measured()
    thread.join()
    consumer.close()
    if arrived < total:
        raise CopyFailedError(f"{arrived} of {total} records of the steady stream arrived")
    found_ms.sort()
    return Latency(len(found_ms), _share(found_ms, 0.5), _share(found_ms, 0.99), found_ms[-1])


def produce_steadily(
    source: tuple[str, str], partitions: int, begun_ns: int, per_tick: int, total: int
) -> None:
    """Write ``total`` records to a topic (bootstrap servers, name), ``per_tick`` each ``TICK_S`` from ``begun_ns`` on, to its partitions in turn."""
    producer = Producer(
        {"bootstrap.servers": source[0], "linger.ms": LINGER_MS, "acks": "all", "log_level": 2}
    )
    padding = b"x" * (RECORD_BYTES - _STAMP.size)
    for index in range(total):
        due_ns = begun_ns + round(index // per_tick * TICK_S * 1e9)
        if index % per_tick == 0:
            producer.poll(0)
            time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
        producer.produce(source[1], _STAMP.pack(due_ns) + padding, partition=index % partitions)
    producer.flush(_DRAIN_S)


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
