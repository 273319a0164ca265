"""Proof of the demo's groups: each would continue on the other side with its next record, or some before it.

Flow: committed offsets of a group here and there -> its next record here -> read there from its position until that
record comes -> records that it would read again, or the first record that it would skip.
"""

import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from examples.demo.topics import GROUP_TOPICS, TOPICS, copy_of, group_of
from examples.demo.verify_records import Difference, Fields, fields

TIMEOUT_S: Final = 10.0
REST_S: Final = 3.0
"""Positions that have not moved for so long are what a failover would find: two intervals of the flow and one more."""

_Positions = dict[tuple[str, int], int]


def check_group(source: tuple[str, str], target: tuple[str, str], deadline: float) -> str:
    """Return one line about a region's group, or raise.

    Args:
        source: name and address of the region whose group it is.
        target: the other region.
        deadline: until when (monotonic) positions may still come.

    Raises:
        Difference: it would skip a record, or is not there.
    """
    group = group_of(source[0])
    here, there = (_consumer(address, group) for _, address in (source, target))
    try:
        own = _committed(here, GROUP_TOPICS)
        copies = [copy_of(source[0], topic) for topic in GROUP_TOPICS]
        moved = _settled(there, copies, deadline)
        again = 0
        for (topic, number), offset in own.items():
            copy = copy_of(source[0], topic)
            at = moved.get((copy, number), -1)
            if at < 0:
                raise Difference(f"group {group} has no position in {copy}-{number} of {target[0]}")
            again += _read_again(here, there, (topic, number, offset), (copy, number, at))
    finally:
        here.close()
        there.close()
    if not own:
        raise Difference(f"group {group} of {source[0]} has committed nothing")
    return (
        f"group {group} of {source[0]}: would continue on {target[0]} with its next record in"
        f" {len(own)} partitions, 0 skipped, {again} read again"
    )


def _consumer(address: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )


def _committed(client: Consumer, topics: Sequence[str]) -> _Positions:
    counts = {topic.name: topic.partitions for topic in TOPICS}
    partitions = [
        KafkaPartition(topic, number)
        for topic in topics
        for number in range(counts[topic.rpartition(".")[2]])
    ]
    found = client.committed(partitions, timeout=TIMEOUT_S)
    return {(it.topic, it.partition): it.offset for it in found if it.offset >= 0}


def _settled(client: Consumer, topics: Sequence[str], deadline: float) -> _Positions:
    """Return the positions once they rest."""
    seen, since = _committed(client, topics), time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < REST_S:
        time.sleep(0.2)
        now = _committed(client, topics)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def _read_again(
    here: Consumer, there: Consumer, own: tuple[str, int, int], copy: tuple[str, int, int]
) -> int:
    """Return how many records come on the other side before the next one of this side."""
    wanted = _from(here, own, 1)
    if not wanted:  # it has read all of them
        _, end = there.get_watermark_offsets(KafkaPartition(*copy[:2]), timeout=TIMEOUT_S)
        if copy[2] > end:
            raise Difference(f"{copy[0]}-{copy[1]}: position {copy[2]} is behind the end, {end}")
        return end - copy[2]
    records = _from(there, copy, None)
    if wanted[0] not in records:
        raise Difference(
            f"{own[0]}-{own[1]}: the record at offset {own[2]} is not in {copy[0]} from offset"
            f" {copy[2]} on: it would be skipped"
        )
    return records.index(wanted[0])


def _from(client: Consumer, place: tuple[str, int, int], most: int | None) -> list[Fields]:
    """Read from an offset to the end, or ``most`` records."""
    partition = KafkaPartition(*place)
    _, end = client.get_watermark_offsets(partition, timeout=TIMEOUT_S)
    found: list[Fields] = []
    if place[2] >= end:
        return found
    client.assign([partition])
    deadline = time.monotonic() + TIMEOUT_S
    last = place[2] - 1
    while last < end - 1 and (most is None or len(found) < most):
        if time.monotonic() > deadline:
            raise Difference(f"{place[0]}-{place[1]} could not be read from offset {place[2]}")
        for message in client.consume(500, timeout=0.2):
            if message.error() is not None:
                raise Difference(f"{place[0]}-{place[1]}: {message.error()}")
            last = message.offset() or 0
            found.append(fields(message))
    client.unassign()
    return found[:most]
