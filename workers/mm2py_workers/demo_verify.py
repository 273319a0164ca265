"""Proof of the demo, in a process of its own: ``python -m mm2py_workers.demo_verify``.

Flow: both regions read with confluent-kafka, partition by partition, in order -> key, value, headers and
timestamp of every record compared -> counts per flow, or the first difference and exit code 1.
It shares no code with the data path it checks.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from confluent_kafka import Consumer, Message, TopicPartition

from mm2py_workers.demo_topics import TOPICS, DemoTopic

__all__ = ["Difference", "Reader", "compare_flow", "main"]

METADATA_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 20.0
BATCH: Final = 2_000

Fields = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], tuple[int, int]]
"""Key, value, headers, (timestamp type, timestamp)."""

_NAMES: Final = ("key", "value", "headers", "timestamp")


class Difference(Exception):  # noqa: N818 - it is the answer of a comparison, not a failure of it
    """The first thing that is not equal."""


@dataclass(slots=True)
class Counts:
    """What was compared."""

    partitions: int = 0
    records: int = 0
    tombstones: int = 0
    headers: int = 0


@final
class Reader:
    """Reads one region."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "mm2py-demo-verify",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": 16_384,
            }
        )

    def topics(self) -> set[str]:
        """Names of all topics."""
        return set(self._consumer.list_topics(timeout=METADATA_TIMEOUT_S).topics)

    def end(self, topic: str, partition: int) -> int:
        """Offset behind the last record; 0 while the partition does not exist."""
        found = self._consumer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics.get(topic)
        if found is None or partition not in found.partitions:
            return 0
        _, end = self._consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=METADATA_TIMEOUT_S
        )
        return end

    def records(self, topic: str, partition: int, end: int) -> Iterator[tuple[int, Fields]]:
        """Yield (offset, fields) of every record before ``end``."""
        if end == 0:
            return
        self._consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + READ_TIMEOUT_S
        position = 0
        while position < end:
            messages = self._consumer.consume(min(BATCH, end - position), timeout=1.0)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise Difference(
                    f"{self.name} {topic}-{partition}: no record at offset {position} of {end}"
                )
            for message in messages:
                if message.error() is not None:
                    raise Difference(f"{self.name} {topic}-{partition}: {message.error()}")
                offset = message.offset() or 0
                position = offset + 1
                yield offset, _fields(message)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _fields(message: Message) -> Fields:
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    given = message.headers() or []
    pairs = given.items() if isinstance(given, dict) else given
    headers = tuple((name, _bytes(text)) for name, text in pairs)
    return key, value, headers, message.timestamp()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def compare_flow(source: Reader, target: Reader, *, deadline: float) -> Counts:
    """Compare every demo topic of ``source`` with its copy on ``target``.

    Raises:
        Difference: the first one.
    """
    counts = Counts()
    loops = [t for t in target.topics() if t.startswith(f"{source.name}.{target.name}.")]
    if loops:
        raise Difference(f"{target.name} has {loops[0]}: its own records came back to it")
    for topic in TOPICS:
        for partition in range(topic.partitions):
            _compare_partition(source, target, topic, partition, deadline, counts)
            counts.partitions += 1
    return counts


def _compare_partition(
    source: Reader,
    target: Reader,
    topic: DemoTopic,
    partition: int,
    deadline: float,
    counts: Counts,
) -> None:
    copy = f"{source.name}.{topic.name}"
    expected = source.end(topic.name, partition)
    while (found := target.end(copy, partition)) < expected and time.monotonic() < deadline:
        time.sleep(0.2)
    if found != expected:
        raise Difference(
            f"{target.name} {copy}-{partition} has {found} records, {source.name}"
            f" {topic.name}-{partition} has {expected}"
        )
    pairs = zip(
        source.records(topic.name, partition, expected),
        target.records(copy, partition, expected),
        strict=True,
    )
    for (offset, wanted), (_, got) in pairs:
        if wanted != got:
            field = next(n for n, a, b in zip(_NAMES, wanted, got, strict=True) if a != b)
            raise Difference(
                f"{source.name} {topic.name}-{partition} offset {offset}: {field} differs:"
                f" source {_of(wanted, field)!r}, target {copy} {_of(got, field)!r}"
            )
        counts.records += 1
        counts.tombstones += wanted[1] is None
        counts.headers += len(wanted[2])


def _of(fields: Fields, name: str) -> object:
    return fields[_NAMES.index(name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare both directions of two regions; print counts; 1 at the first difference."""
    parser = argparse.ArgumentParser(description="compares two mirrored regions")
    parser.add_argument("regions", nargs=2, metavar="ALIAS=BOOTSTRAP")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for the tail")
    options = parser.parse_args(arguments)
    named: list[list[str]] = [text.split("=", 1) for text in options.regions]
    readers = [Reader(bootstrap, name) for name, bootstrap in named]
    deadline = time.monotonic() + options.timeout
    total = 0
    try:
        for source, target in (readers, readers[::-1]):
            counts = compare_flow(source, target, deadline=deadline)
            total += counts.records
            sys.stdout.write(
                f"{source.name}->{target.name}: {counts.records} records equal in"
                f" {counts.partitions} partitions ({counts.tombstones} tombstones,"
                f" {counts.headers} headers)\n"
            )
    except Difference as error:
        sys.stdout.write(f"DIFFERENT: {error}\n")
        return 1
    finally:
        for reader in readers:
            reader.close()
    if total == 0:
        sys.stdout.write("DIFFERENT: there are no records to compare\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
