"""Consumer group of one region of the demo, in a process of its own: ``python -m examples.demo.consumer``.

Flow: the region's ``GROUP_TOPICS`` -> read -> committed twice a second -> SIGTERM -> last commit -> count as one JSON
line on standard output.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from examples.demo.topics import GROUP_TOPICS, group_of

COMMIT_S: Final = 0.5
BATCH: Final = 500
POLL_S: Final = 0.1
_NOTHING_TO_COMMIT: Final = "_NO_OFFSET"


def consume(client: Consumer, stopped: Callable[[], bool]) -> int:
    """Read until ``stopped()``, committing what was read; return how many records that were."""
    read, due = 0, time.monotonic()
    while not stopped():
        messages = client.consume(BATCH, timeout=POLL_S)
        read += sum(message.error() is None for message in messages)
        if time.monotonic() >= due:
            due = time.monotonic() + COMMIT_S
            _commit(client)
    _commit(client)
    return read


def _commit(client: Consumer) -> None:
    try:
        client.commit(asynchronous=False)
    except KafkaException as error:
        cause: object = error.args[0]
        if not isinstance(cause, KafkaError) or cause.name() != _NOTHING_TO_COMMIT:
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Read until SIGTERM or SIGINT; print the count."""
    parser = argparse.ArgumentParser(description="consumer group of the demo")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--region", required=True)
    options = parser.parse_args(arguments)
    stop = threading.Event()

    def caught(_number: int, _frame: object) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, caught)
    client = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": group_of(options.region),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 2,
        }
    )
    client.subscribe(list(GROUP_TOPICS))
    # The parent of the demo may be killed: without it nothing would ever stop this process.
    parent = os.getppid()
    try:
        read = consume(client, lambda: stop.is_set() or os.getppid() != parent)
    finally:
        client.close()
    sys.stdout.write(json.dumps({"region": options.region, "read": read}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
