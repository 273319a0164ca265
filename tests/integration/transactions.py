"""Transactions for a source topic: ended either way, left open by a process that was killed, ended by a successor."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import Producer

from tests.integration.traffic import producer, wait_for_markers
from tests.kit.kafka.region import KafkaAddress

ABORTED: Final = b"aborted"
PARTITIONS: Final = 2
TIMEOUT_S: Final = 60.0
_ABORTS: Final = (1, 4, 7)
"""Of every ten transactions."""

_KILLED: Final = """
import sys
from confluent_kafka import Producer
servers, topic, name, timeout_ms = sys.argv[1:]
client = Producer(
    {"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": int(timeout_ms)}
)
client.init_transactions(30)
client.begin_transaction()
for number in range(100):
    client.produce(topic, b"aborted open %d" % number, partition=0)
client.flush(30)
print("written", flush=True)
sys.stdin.read()
"""


def is_aborted(value: bytes | None) -> bool:
    """Whether a record was written by a transaction that is not committed."""
    return (value or b"").startswith(ABORTED)


def kept(transactions: int, each: int) -> int:
    """Return how many records of ``write_mixed`` are committed."""
    ended = sum(number % 10 not in _ABORTS for number in range(transactions))
    return ended * each


def write_mixed(
    region: KafkaAddress,
    topic: str,
    transactions: int,
    each: int,
    *,
    turn: int = 0,
    beside_open: bool = False,
) -> None:
    """Write to partitions 0 and 1 in turns; three of ten transactions are aborted. Values differ between turns.

    ``beside_open``: another transaction is open, so that the last markers cannot be waited for.
    """
    client = producer(region, transactional_id=f"{topic}-mixed", linger_ms=2)
    client.init_transactions(TIMEOUT_S)
    for number in range(transactions):
        aborts = number % 10 in _ABORTS
        word = ABORTED if aborts else b"kept"
        values = (b"%s %d %d %d" % (word, turn, number, record) for record in range(each))
        write_one(client, topic, values, commit=not aborts)
    if not beside_open:
        wait_for_markers(region, topic)


def write_one(
    client: Producer,
    topic: str,
    values: Iterable[bytes],
    *,
    commit: bool,
    partitions: Sequence[int] = range(PARTITIONS),
) -> None:
    """One transaction of an initialised producer, to the end."""
    client.begin_transaction()
    for number, value in enumerate(values):
        while True:
            try:
                client.produce(topic, value, partition=partitions[number % len(partitions)])
            except BufferError:
                client.poll(0.1)
            else:
                break
    # Without it the client drops what is aborted, and the broker never sees it.
    assert client.flush(TIMEOUT_S) == 0
    if commit:
        client.commit_transaction(TIMEOUT_S)
    else:
        client.abort_transaction(TIMEOUT_S)


def abandon(region: KafkaAddress, topic: str, name: str, timeout_ms: int) -> None:
    """Leave a transaction of 100 records open on partition 0: its producer is killed."""
    arguments = [region.bootstrap_servers, topic, name, str(timeout_ms)]
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
        finally:
            process.kill()


def take_over(region: KafkaAddress, name: str) -> None:
    """Abort what the last producer of that transactional id left open, as its restart does."""
    producer(region, transactional_id=name).init_transactions(TIMEOUT_S)
