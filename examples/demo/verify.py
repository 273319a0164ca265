"""Proof of the demo, in a process of its own: ``python -m examples.demo.verify``.

Flow: both regions read with confluent-kafka, each partition in order -> key, value, headers and
timestamp of every record compared -> counts per flow, or the first difference and exit code 1. Where workers
were killed a partition may step back and repeat a tail. It shares no code with the data path it checks.
"""

import argparse
import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from examples.demo.topics import TOPICS
from examples.demo.verify_groups import check_group
from examples.demo.verify_records import Difference, Fields, fields
from mm2py.types import TopicPartition

METADATA_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 20.0
BATCH: Final = 2_000
MOST_WAITING: Final = 100_000
MOST_DOUBLED: Final = 20_000
"""How far back in a partition a repeated record is looked for."""

_NAMES: Final = ("key", "value", "headers", "timestamp")


@dataclass(slots=True)
class Counts:
    """What was compared."""

    partitions: int = 0
    records: int = 0
    tombstones: int = 0
    headers: int = 0
    doubled: int = 0


@final
class Reader:
    """Reads one region."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._waiting: dict[TopicPartition, deque[tuple[int, Fields]]] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "mm2py-demo-verify",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": 16_384,
                "fetch.queue.backoff.ms": 20,
                "fetch.wait.max.ms": 50,
            }
        )

    def topics(self) -> set[str]:
        """Names of all topics."""
        return set(self._consumer.list_topics(timeout=METADATA_TIMEOUT_S).topics)

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Offset behind the last record of each partition; -1 while one does not exist."""
        ends = dict.fromkeys(partitions, -1)
        for tp in partitions:
            place = KafkaPartition(tp.topic, tp.partition)
            # A partition that does not exist yet is waited for by the caller.
            with contextlib.suppress(KafkaException):
                _, ends[tp] = self._consumer.get_watermark_offsets(
                    place, timeout=METADATA_TIMEOUT_S
                )
        return ends

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions from their first record on."""
        self._waiting = {tp: deque() for tp in partitions}
        self._consumer.assign([KafkaPartition(tp.topic, tp.partition, 0) for tp in partitions])

    def waiting(self, tp: TopicPartition) -> deque[tuple[int, Fields]]:
        """Records of one partition that were read and not yet compared, in order."""
        return self._waiting[tp]

    def read_more(self) -> int:
        """Read some records of any partition; return how many."""
        if sum(map(len, self._waiting.values())) > MOST_WAITING:
            return 0
        messages = self._consumer.consume(BATCH, timeout=0.2)
        for message in messages:
            if message.error() is not None:
                raise Difference(f"{self.name}: {message.error()}")
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            self._waiting[tp].append((message.offset() or 0, fields(message)))
        return len(messages)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def compare_flow(source: Reader, target: Reader, *, deadline: float, kills: int = 0) -> Counts:
    """Compare every demo topic of ``source`` with its copy on ``target``.

    Args:
        source: the region that was copied.
        target: the region with the copies.
        deadline: until when (monotonic) copies may still come.
        kills: how often a partition may step back.

    Raises:
        Difference: the first one.
    """
    loops = [t for t in target.topics() if t.startswith(f"{source.name}.{target.name}.")]
    if loops:
        raise Difference(f"{target.name} has {loops[0]}: its own records came back to it")
    copies = {
        TopicPartition(topic.name, partition): TopicPartition(
            f"{source.name}.{topic.name}", partition
        )
        for topic in TOPICS
        for partition in range(topic.partitions)
    }
    expected, found = _expected(source, target, copies, deadline, exactly=not kills)
    counts = Counts(partitions=len(copies))
    source.assign(list(copies))
    target.assign(list(copies.values()))
    comparisons = [
        Comparison(
            Side(source.name, tp, source.waiting(tp), expected[tp]),
            Side(target.name, copy, target.waiting(copy), found[copy]),
            counts,
            kills,
        )
        for tp, copy in copies.items()
    ]
    give_up = time.monotonic() + READ_TIMEOUT_S
    while any(each.left for each in comparisons):
        if source.read_more() + target.read_more():
            give_up = time.monotonic() + READ_TIMEOUT_S
        elif time.monotonic() > give_up:
            missing = next(each for each in comparisons if each.left)
            raise Difference(
                f"{missing} or its copy could not be read, {missing.left} records left"
            )
        for each in comparisons:
            each.compare()
    return counts


def _expected(
    source: Reader,
    target: Reader,
    copies: Mapping[TopicPartition, TopicPartition],
    deadline: float,
    *,
    exactly: bool,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the ends of all partitions and of their copies, once the copies have as many records."""
    expected = source.ends(list(copies))
    while True:
        found = target.ends(list(copies.values()))
        behind = [tp for tp, copy in copies.items() if found[copy] < expected[tp]]
        if not behind or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    for tp, copy in copies.items():
        if found[copy] < expected[tp] or (exactly and found[copy] != expected[tp]):
            raise Difference(
                f"{target.name} {copy} has {found[copy]} records,"
                f" {source.name} {tp} has {expected[tp]}"
            )
    return expected, found


@dataclass(slots=True)
class Side:
    """One partition of one region: what was read of it and not compared yet, and how much is left."""

    region: str
    tp: TopicPartition
    waiting: deque[tuple[int, Fields]]
    left: int


@final
class Comparison:
    """One partition beside its copy, which may step back once per kill and repeat a tail."""

    def __init__(self, ours: Side, theirs: Side, counts: Counts, kills: int = 0) -> None:
        self._ours, self._theirs, self._counts = ours, theirs, counts
        self._steps_left = kills
        self._behind: deque[tuple[int, Fields]] = deque(maxlen=MOST_DOUBLED if kills else 0)
        self._again: deque[tuple[int, Fields]] = deque()

    def __str__(self) -> str:
        return str(self._ours.tp)

    @property
    def left(self) -> int:
        """How many records are still to be compared, on the side that has more of them."""
        return max(self._ours.left, self._theirs.left)

    def compare(self) -> None:
        """Compare what was read of both.

        Raises:
            Difference: they are not equal.
        """
        ours, theirs, counts = self._ours, self._theirs, self._counts
        while theirs.waiting:
            expected = self._again or ours.waiting
            if not expected and ours.left:
                return  # the source is read more slowly
            _, got = theirs.waiting[0]
            if not expected or expected[0][1] != got:
                self._step_back(expected, got)
                continue
            theirs.waiting.popleft()
            theirs.left -= 1
            if self._again:
                self._again.popleft()
                counts.doubled += 1
                continue
            wanted = ours.waiting.popleft()
            ours.left -= 1
            self._behind.append(wanted)
            counts.records += 1
            counts.tombstones += wanted[1][1] is None
            counts.headers += len(wanted[1][2])

    def _step_back(self, expected: deque[tuple[int, Fields]], got: Fields) -> None:
        """Go on from the last earlier record that is equal."""
        earlier = list(self._behind)
        at = next((i for i in reversed(range(len(earlier))) if earlier[i][1] == got), None)
        if at is not None and self._steps_left:
            self._steps_left -= 1
            self._again = deque(earlier[at:])
            return
        source, target = self._ours, self._theirs
        if not expected:
            raise Difference(
                f"{target.region} {target.tp} goes on behind the end of {source.region} {source.tp}"
            )
        offset, wanted = expected[0]
        which = next(
            i for i, pair in enumerate(zip(wanted, got, strict=True)) if pair[0] != pair[1]
        )
        raise Difference(
            f"{source.region} {source.tp} offset {offset}: {_NAMES[which]} differs:"
            f" source {wanted[which]!r}, target {target.tp} {got[which]!r}"
        )


def _compare(
    source_address: list[str], target_address: list[str], deadline: float, kills: int
) -> int:
    """Compare one flow with readers of its own; print what was compared and return the count."""
    source, target = (Reader(address, name) for name, address in (source_address, target_address))
    try:
        counts = compare_flow(source, target, deadline=deadline, kills=kills)
    finally:
        source.close()
        target.close()
    sys.stdout.write(
        f"{source.name}->{target.name}: {counts.records} records equal in {counts.partitions}"
        f" partitions ({counts.tombstones} tombstones, {counts.headers} headers)"
        + (f", {counts.doubled} doubled by a killed worker\n" if kills else "\n")
    )
    sys.stdout.flush()
    return counts.records


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare both directions of two regions; print counts; 1 at the first difference."""
    parser = argparse.ArgumentParser(description="compares two mirrored regions")
    parser.add_argument("regions", nargs=2, metavar="ALIAS=BOOTSTRAP")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for the tail")
    parser.add_argument("--kills", type=int, default=0, help="workers that were killed meanwhile")
    parser.add_argument("--groups", action="store_true", help="check the consumer groups too")
    options = parser.parse_args(arguments)
    named: list[list[str]] = [text.split("=", 1) for text in options.regions]
    deadline = time.monotonic() + options.timeout
    total = 0
    try:
        for source, target in (named, named[::-1]):
            total += _compare(source, target, deadline, options.kills)
        for source, target in (named, named[::-1]) if options.groups else ():
            until = time.monotonic() + options.timeout
            line = check_group((source[0], source[1]), (target[0], target[1]), until)
            sys.stdout.write(f"{line}\n")
    except Difference as error:
        sys.stdout.write(f"DIFFERENT: {error}\n")
        return 1
    if total == 0:
        sys.stdout.write("DIFFERENT: there are no records to compare\n")
        return 1
    sys.stdout.write(f"EQUAL: {total} records in both regions\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
