"""Two regions that copy the same topic to each other under its own name, and what must be true of them.

Flow: ``write_pair`` -> ``Mirror`` -> ``Load`` on each side, marked -> ``wait_until_quiet`` -> ``check_sides``.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.mirror_process import READY, Flow, Mirror, Running, until, write_flow
from tests.integration.traffic import Logs, ends, read
from tests.kit.kafka.region import KafkaAddress

IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
READ_S: Final = 300.0
QUIET_S: Final = 3.0
"""A loop of two flows on one machine turns several times a second."""


def write_pair(
    folder: Path,
    one: KafkaAddress,
    two: KafkaAddress,
    topic: str,
    properties: Mapping[str, str] | None = None,
) -> Flow:
    """Write the file of both flows; the returned one is the first."""
    return write_flow(
        folder,
        one,
        two,
        topic,
        {
            "replication.policy.class": IDENTITY,
            "{target}->{source}.enabled": "true",
            "{target}->{source}.topics": topic,
            **(properties or {}),
        },
    )


def wait_both_ready(mirror: Mirror) -> None:
    """Wait until a task of each flow copies."""
    until(lambda: len(mirror.lines(READY)) >= 2, 90, "both flows to copy", alive=mirror)


def wait_until_quiet(
    mirror: Running, one: KafkaAddress, two: KafkaAddress, topic: str, records: int
) -> tuple[Logs, Logs]:
    """Wait until both sides have so many different records and their log ends do not move; return both.

    Doubles of a killed worker count in log ends, so those alone say nothing of what is missing.
    """
    seen: tuple[dict[int, int], dict[int, int]] = ({}, {})
    since = time.monotonic()
    logs: tuple[Logs, Logs] = ({}, {})

    def quiet() -> bool:
        nonlocal seen, since, logs
        now = ends(one, topic), ends(two, topic)
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since < QUIET_S:
            return False
        logs = read(one, topic, timeout_s=READ_S), read(two, topic, timeout_s=READ_S)
        since = time.monotonic()
        return all(_different(side) >= records for side in logs)

    until(
        quiet,
        4 * READ_S,
        lambda: (
            f"{records} records on both sides, at rest: {[*map(_different, logs)]}, ends {seen}"
        ),
        alive=mirror,
    )
    return logs


def _different(logs: Logs) -> int:
    return sum(len({record.value for record in log.records}) for log in logs.values())


@dataclass(frozen=True, slots=True)
class Sides:
    """What is there more than once: ``loops`` on the side that wrote it, ``doubled`` on the other."""

    loops: int
    doubled: int


def check_sides(
    one: Logs, two: Logs, marks: tuple[bytes, bytes], written: tuple[int, int]
) -> Sides:
    """Fail if a record is missing on a side, or comes before its predecessors; count what is there again."""
    loops = doubled = 0
    for logs, home in ((one, 0), (two, 1)):
        for origin in (0, 1):
            counts: Counter[bytes] = Counter()
            for log in logs.values():
                newest = -1
                for record in log.records:
                    value = record.value or b""
                    if marks[origin] not in value:
                        continue
                    number = int(value.split(b":")[1])
                    if not counts[value]:
                        assert number > newest, f"{value[:30]!r} comes too late"
                        newest = number
                    counts[value] += 1
            assert len(counts) == written[origin], (
                f"side {home}: {len(counts)} of {written[origin]}"
            )
            again = counts.total() - len(counts)
            if origin == home:
                loops += again
            else:
                doubled += again
    return Sides(loops, doubled)
