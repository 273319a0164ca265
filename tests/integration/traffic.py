"""Records in, records out, compared: everything with confluent-kafka, nothing of the product.

Flow: ``write`` or ``Load`` (a thread) -> the mirror -> ``wait_for_copy`` -> ``assert_equal`` per partition, in
order, by key, value, headers and timestamp. The truth is what the source cluster holds.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.mirror_process import Flow, Running, until, until_equal
from tests.kit.kafka.region import KafkaAddress

YEAR_MS: Final = 365 * 86_400_000
READ_TIMEOUT_S: Final = 90.0
METADATA_TIMEOUT_S: Final = 30.0
FLUSH_TIMEOUT_S: Final = 90.0
WAIT_MS: Final = 50
"""A reader is at the end after one wait of the broker and one of its own, each this long."""
TICK_S: Final = 0.05
MESSAGE_TIMEOUT_MS: Final = 300_000
"""A request to a broker that is frozen is given up after a minute; two in a row must not end a record."""
LINGER_MS: Final = 50
"""A batch per record would keep the machine busy with requests, whatever the test is about."""

_ASKING: Final = dict[tuple[str, bool], Consumer]()
"""By address and isolation: what asks for ends. Tests look until there is something, and a client for each look was most of its cost."""

_OF_GROUP: Final = dict[tuple[str, str], Consumer]()
"""Likewise, by address and group: the last one that was asked for."""

_POSITIONS: Final = dict[tuple[str, str], tuple[dict[int, int], dict[tuple[str, int], list[int]]]]()
"""By address and log of positions: to which ends it was read, and what it said."""

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """What must be equal on both sides."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Sent(NamedTuple):
    """A record to write."""

    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Log:
    """One partition as a consumer sees it."""

    offsets: list[int]
    records: list[Record]


Logs = dict[int, Log]


# -- cluster ----------------------------------------------------------------------------------------


def reader(region: KafkaAddress, *, committed: bool = False) -> Consumer:
    """Return a consumer that reads from the start and reports ends; to assign, then to close."""
    return Consumer(
        {
            "bootstrap.servers": region.bootstrap_servers,
            "group.id": "reader-of-the-tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": WAIT_MS,
            "reconnect.backoff.max.ms": 500,  # a broker that was killed comes back
            "log_level": 0,
        }
    )


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """Return the partitions of a topic; none while it has no leaders."""
    found = consumer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
    return [] if found.error is not None else sorted(found.partitions)


def ends(region: KafkaAddress, topic: str, *, committed: bool = False) -> dict[int, int]:
    """Return the log end by partition, or the last stable offset; empty while the topic does not exist or has no leaders."""
    asked = region.bootstrap_servers, committed
    kept = _ASKING.get(asked)
    consumer = kept or _ASKING.setdefault(asked, reader(region, committed=committed))
    try:
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=METADATA_TIMEOUT_S
            )[1]
            for partition in partitions_of(consumer, topic)
        }
    except KafkaException:
        # What it knows of the cluster may be of another time.
        del _ASKING[asked]
        return {} if kept is None else ends(region, topic, committed=committed)


def wait_for_markers(region: KafkaAddress, topic: str) -> None:
    """Wait until no transaction is open: a broker answers its end before the markers are in the logs."""
    until(
        lambda: ends(region, topic, committed=True) == ends(region, topic) != {},
        90,
        lambda: f"markers of {topic}: {ends(region, topic, committed=True)}, {ends(region, topic)}",
    )


# -- reading ----------------------------------------------------------------------------------------


def read(
    region: KafkaAddress,
    topic: str,
    *,
    committed: bool = False,
    timeout_s: float = READ_TIMEOUT_S,
    digests: bool = False,
) -> Logs:
    """Read every partition from its start to its present end; ``digests`` of values where gigabytes do not fit."""
    with closing(reader(region, committed=committed)) as consumer:
        logs: Logs = {partition: Log([], []) for partition in partitions_of(consumer, topic)}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in logs])
        open_partitions = set(logs)
        deadline = time.monotonic() + timeout_s
        while open_partitions:
            assert time.monotonic() < deadline, f"{topic}: cannot read {sorted(open_partitions)}"
            for message in consumer.consume(2_000, timeout=WAIT_MS / 1000):
                partition = message.partition() or 0
                error = message.error()
                if error is None:
                    logs[partition].offsets.append(message.offset() or 0)
                    record = _record(message)
                    if digests:
                        digest = hashlib.blake2b(record.value or b"", digest_size=12).digest()
                        record = record._replace(value=digest)
                    logs[partition].records.append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(partition)
                elif not error.retriable():
                    raise KafkaException(error)
    return logs


def records_of(region: KafkaAddress, topic: str, *, committed: bool = False) -> list[Record]:
    """Return all records of a topic, one partition behind the other; none where it does not exist."""
    return [it for log in read(region, topic, committed=committed).values() for it in log.records]


def values_of(region: KafkaAddress, topic: str, *, committed: bool = False) -> list[bytes]:
    """Return the values of all records of a topic, one partition behind the other."""
    return [it.value or b"" for it in records_of(region, topic, committed=committed)]


def _record(message: Message) -> Record:
    given = message.headers() or []
    pairs = given.items() if isinstance(given, dict) else given
    headers = tuple((name, _bytes(value)) for name, value in pairs)
    return Record(message.key(), message.value(), headers, message.timestamp()[1])


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def wait_covered(mirror: Running, flow: Flow, topic: str) -> None:
    """Wait until the stored positions are the ends of the source's logs, whatever became of the last records."""
    wanted = {p: end - 1 for p, end in ends(flow.source, topic).items() if end}
    until_equal(lambda: committed_positions(flow, topic), wanted, alive=mirror)


def committed_positions(flow: Flow, topic: str) -> dict[int, int]:
    """Return the last committed source offset by partition, from Connect's offset topic."""
    return {number: written[-1] for number, written in written_positions(flow, topic).items()}


def written_positions(flow: Flow, topic: str) -> dict[int, list[int]]:
    """Return the positions that Connect's offset topic has of each partition, in order; all that were written while it is not compacted."""
    log = flow.target.bootstrap_servers, flow.offsets_topic
    at = ends(flow.target, flow.offsets_topic)
    read_to, written = _POSITIONS.get(log, ({}, {}))
    if not at or at != read_to:
        written = _positions(flow)
        _POSITIONS[log] = at, written
    return {number: offsets for (name, number), offsets in written.items() if name == topic}


def _positions(flow: Flow) -> dict[tuple[str, int], list[int]]:
    written: dict[tuple[str, int], list[int]] = {}
    for log in read(flow.target, flow.offsets_topic).values():
        for record in log.records:
            if record.key is None or record.value is None:
                continue
            _, partition = json.loads(record.key)
            if "topic" in partition:
                place = partition["topic"], partition["partition"]
                written.setdefault(place, []).append(json.loads(record.value)["offset"])
    return written


def copied(flow: Flow, topic: str) -> int:
    """Return how many records of a topic are on the target."""
    return sum(ends(flow.target, flow.remote(topic)).values())


def wait_for_progress(
    mirror: Running, flow: Flow, topic: str, more: int = 1, *, before: int | None = None
) -> None:
    """Wait until that many more records are on the target.

    ``before`` is how many were there before the last ones were written: what is written and copied at
    once is not waited for a second time.
    """
    first = copied(flow, topic) if before is None else before
    until(lambda: copied(flow, topic) >= first + more, 300, "the copy to go on", alive=mirror)


def wait_for_all(
    mirror: Running,
    flow: Flow,
    topic: str,
    *,
    source: KafkaAddress | None = None,
    leave_out: Collection[int] = (),
) -> float:
    """Wait until every partition is copied as far as it is written now; return the seconds.

    ``source`` is the flow's as clients see it that leave a broken node out.
    """
    began = time.monotonic()
    # None of them is known while one partition has no leader.
    written = until(lambda: ends(source or flow.source, topic), 90, "all log ends", alive=mirror)

    def copied() -> bool:
        copies = ends(flow.target, flow.remote(topic))
        return all(copies.get(p, 0) >= end for p, end in written.items() if p not in leave_out)

    until(copied, 120, lambda: f"{written}, {ends(flow.target, flow.remote(topic))}", alive=mirror)
    return time.monotonic() - began


# -- comparing --------------------------------------------------------------------------------------


def wait_for_copy(
    mirror: Running,
    flow: Flow,
    topic: str,
    *,
    timeout_s: float = 90.0,
    remote: str = "",
    committed: bool = False,
    once: bool = False,
    dropped: int = 0,
) -> tuple[Logs, Logs]:
    """Wait until the last record of every source partition is the last one on the target; both logs.

    ``committed`` reads the source so, ``once`` the copy, as of a flow that is exactly once. ``dropped``:
    how many records of each partition the flow leaves out.
    """
    remote = remote or flow.remote(topic)
    truth = read(flow.source, topic, committed=committed)
    wanted = {p: len(log.records) - dropped for p, log in truth.items()}
    copy: Logs = {}
    seen: dict[int, int] = {}

    def arrived() -> bool:
        nonlocal copy, seen, truth
        now = ends(flow.target, remote, committed=once)
        if now == seen or any(now.get(p, 0) < count for p, count in wanted.items()):
            return False
        seen = now
        copy = read(flow.target, remote, committed=once)
        if committed and is_longer(copy, truth):
            truth = read(flow.source, topic, committed=True)
        return all(
            copy[p].records[-1:] == log.records[-1:] for p, log in truth.items() if log.records
        )

    until(
        arrived,
        timeout_s,
        lambda: f"copy of {topic}: wanted {wanted}, there are {ends(flow.target, remote)}",
        alive=mirror,
    )
    return truth, copy


def is_longer(copy: Logs, truth: Logs) -> bool:
    """Whether a copy has more than what was read of the source, where a commit was just answered: its markers come later."""
    return any(len(log.records) > len(truth[p].records) for p, log in copy.items() if p in truth)


def assert_equal(truth: Logs, copy: Logs) -> None:
    """Every partition holds the same records in the same order, each once."""
    assert sorted(copy) == sorted(truth)
    for partition, log in truth.items():
        got = copy[partition].records
        for index, (wanted, found) in enumerate(zip(log.records, got, strict=False)):
            assert found == wanted, f"partition {partition}, record {index}"
        assert len(got) == len(log.records), f"partition {partition}"


def assert_resumed(truth: Logs, copy: Logs, rewinds: int) -> int:
    """No loss and kept order, but after a kill a tail may be there again; return the doubled records.

    ``rewinds`` is how often per partition the copy may step back.
    """
    doubled = 0
    for partition, log in truth.items():
        index = {record: number for number, record in enumerate(log.records)}
        assert len(index) == len(log.records), "the test's records must differ"
        last, steps_back = -1, 0
        for found in copy[partition].records:
            number = index[found]
            if number != last + 1:
                assert number <= last, f"partition {partition}: records {last + 1}-{number} lost"
                steps_back += 1
            last = number
        assert steps_back <= rewinds, f"partition {partition} steps back {steps_back} times"
        assert last == len(log.records) - 1, f"partition {partition} ends at record {last}"
        doubled += len(copy[partition].records) - len(log.records)
    return doubled


# -- writing ----------------------------------------------------------------------------------------


def commit(region: KafkaAddress, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets for a group without members."""
    wanted = [TopicPartition(topic, number, at) for number, at in offsets.items()]

    def is_done() -> bool:
        try:
            with _without_members(region, group) as client:
                client.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            # The coordinator knows a new topic a moment after the broker's metadata.
            (cause,) = error.args
            if cause.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        return True

    until(is_done, 90, f"a commit of {group}")


@contextmanager
def member(region: KafkaAddress, group: str, topic: str) -> Generator[None]:
    """Have one member in a group, which has its partitions."""
    client = Consumer({"bootstrap.servers": region.bootstrap_servers, "group.id": group})
    client.subscribe([topic])
    until(lambda: client.poll(0.1) is None and client.assignment(), 90, f"a member of {group}")
    try:
        yield
    finally:
        client.close()


def committed(region: KafkaAddress, group: str, topic: str) -> dict[int, int]:
    """Return what a group has committed, asked as any lag tool does; -1001 for nothing."""
    wanted = [TopicPartition(topic, number) for number in ends(region, topic)]
    with _without_members(region, group) as client:
        return {it.partition: it.offset for it in client.committed(wanted, timeout=90)}


def offset_of(region: KafkaAddress, topic: str, group: str) -> int:
    """Return where a group is in partition 0; negative for nowhere, and while its coordinator is only being made."""
    try:
        return committed(region, group, topic).get(0, -1)
    except KafkaException:
        return -1


@contextmanager
def _without_members(region: KafkaAddress, group: str) -> Generator[Consumer]:
    """Lend a client of a group, that of the last look where it was of the same one."""
    asked = region.bootstrap_servers, group
    client = _OF_GROUP.get(asked)
    if client is None:
        client = Consumer(
            {"bootstrap.servers": asked[0], "group.id": group, "log_level": 0}
            | {"reconnect.backoff.max.ms": 500}
        )
        _OF_GROUP.clear()
        _OF_GROUP[asked] = client
    try:
        yield client
    except KafkaException:
        _OF_GROUP.clear()
        raise


def producer(region: KafkaAddress, **settings: str | float | bool) -> Producer:
    """Return a producer that waits for all replicas and keeps the order; keyword ``linger_ms`` is ``linger.ms``."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    base = {
        "bootstrap.servers": region.bootstrap_servers,
        "acks": "all",
        "linger.ms": 5,
        # Without idempotence a record that is sent again, as the first of a new topic may be, is overtaken.
        "max.in.flight": 1,
        "log_level": 0,
    }
    return Producer({**base, **given})


def numbered(first: int, count: int, partitions: int = 1, *, keys: int = 0) -> list[Sent]:
    """Return records whose values are numbers, in turns over partitions and, where there are some, keys."""
    return [
        Sent(n % partitions, b"%d" % n, b"%d" % (n % keys) if keys else None)
        for n in range(first, first + count)
    ]


def write(region: KafkaAddress, topic: str, records: Iterable[Sent], **settings: str | int) -> int:
    """Write records and wait for their acknowledgement; return how many."""
    client = producer(region, **settings)
    failed: list[KafkaError] = []

    def answered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    count = 0
    for record in records:
        produce(client, topic, record, answered)
        count += 1
    assert client.flush(FLUSH_TIMEOUT_S) == 0
    assert not failed, failed[0]
    return count


def produce(
    client: Producer,
    topic: str,
    record: Sent,
    answered: Callable[[KafkaError | None, Message], None] | None = None,
) -> None:
    """Send one record; waits while the producer's queue is full."""
    while True:
        try:
            client.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or SYSTEM_CLOCK.now_ms(),
                on_delivery=answered,
            )
        except BufferError:
            client.poll(0.1)
        else:
            client.poll(0)
            return


@final
class Load:
    """A steady stream of different records into one topic, from a thread; ends with the ``with`` block.

    ``age_ms`` is how far in the past the timestamps lie; ``mark`` is in every value, so that two loads differ; ``trickles``
    sends each record by itself, so that readers reach the end of the log again and again.
    """

    def __init__(
        self,
        region: KafkaAddress,
        topic: str,
        partitions: int,
        *,
        rate: int = 1_500,
        age_ms: int = 0,
        value_bytes: int = 200,
        mark: bytes = b"",
        trickles: bool = False,
    ) -> None:
        # A broker forgets the idempotent state of old records when it dies; the truth is the source's log.
        settings: dict[str, str | float | bool] = {
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            "linger.ms": 0 if trickles else LINGER_MS,
        }
        self._tick_s = 1 / rate if trickles else TICK_S
        self._producer = producer(region, **settings)
        self._topic, self._partitions = topic, partitions
        self._rate, self._age_ms, self._padding = rate, age_ms, mark + b"." * value_bytes
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.acked = 0
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def wait_acked(self, more: int, timeout_s: float = 90.0) -> None:
        """Wait until so many more records are on the source."""
        goal = self.acked + more
        until(lambda: self.acked >= goal, timeout_s, lambda: f"{goal} records, {self.acked} acked")

    def stop(self) -> None:
        """Write nothing more and wait until all is acknowledged; safe twice."""
        self._stop.set()
        self._thread.join(FLUSH_TIMEOUT_S)
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        assert left == 0, f"{left} records were not acknowledged"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        number, begun, written = 0, time.monotonic(), 0
        while not self._stop.wait(self._tick_s):
            due = int((time.monotonic() - begun) * self._rate) - written
            for _ in range(min(due, self._rate)):
                partition = number % self._partitions
                value = b"%d:%d:%s" % (partition, number, self._padding)
                timestamp = SYSTEM_CLOCK.now_ms() - self._age_ms
                record = Sent(partition, value, timestamp_ms=timestamp)
                produce(self._producer, self._topic, record, self._answered)
                number += 1
            written += max(due, 0)
            self._producer.poll(0)

    def _answered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._error = KafkaException(error)
        else:
            self.acked += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.stop()
        self._stop.set()
