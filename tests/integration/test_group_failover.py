"""A consumer group moves to the other cluster at any moment: no record is skipped, and few are read again.

Each moment: consumers of several groups read and commit while records come -> they stop -> what the target has for them
a second later is compared, record by record, with what they had committed.
"""

import logging
import random
import time
from functools import partial
from threading import Event, Thread
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.integration.mirror_process import Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import Load, committed, reader
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

PARTITIONS: Final = 2
SYNC_S: Final = 2.0
"""Delay of group sync, with the time that a loaded machine takes for it."""
LATE_S: Final = 20.0
"""How much longer a machine may take that was paused for seconds."""
RECORDS_PER_S: Final = 400
COMMIT_S: Final = 0.3


class Member:
    """One consumer of a group at the source, which commits now and then and remembers what."""

    def __init__(
        self, region: KafkaAddress, topic: str, group: str, protocol: str, *, per_poll: int
    ) -> None:
        self.group, self._per_poll, self._end = group, per_poll, Event()
        self.committed: dict[int, int] = {}
        self.commits: list[tuple[float, dict[int, int]]] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": region.bootstrap_servers,
                "group.id": group,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit what was read and leave."""
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic() + COMMIT_S
        while not self._end.is_set():
            self._consumer.consume(self._per_poll, 0.1)
            if time.monotonic() >= due:
                self._commit()
                due = time.monotonic() + COMMIT_S
        self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        positions = self._consumer.position(self._consumer.assignment())
        known = [it for it in positions if it.offset >= 0]
        if known:
            self._consumer.commit(offsets=known, asynchronous=False)
            self.committed |= {it.partition: it.offset for it in known}
            self.commits.append((time.monotonic(), dict(self.committed)))


def offsets_of(region: KafkaAddress, group: str, topic: str) -> dict[int, int]:
    """Return what is committed for a group; nothing while its coordinator is only being made."""
    try:
        offsets = committed(region, group, topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return {}
    return {partition: offset for partition, offset in offsets.items() if offset >= 0}


def first_read(region: KafkaAddress, topic: str, partition: int, offset: int) -> int:
    """Return the source offset of the record at a target offset, which is its number in the partition."""
    client = reader(region)
    client.assign([TopicPartition(topic, partition, offset)])
    deadline = time.monotonic() + 90
    while True:
        (*_, message) = client.consume(1, 1.0) or (None,)
        if message is not None and message.error() is None:
            client.close()
            return int((message.value() or b"").split(b":")[1]) // PARTITIONS
        assert time.monotonic() < deadline, f"no record at {partition} {offset}"


def are_synced(members: list[Member], target: KafkaAddress, copy: str) -> bool:
    """Whether all members commit, and their offsets are known at the target."""
    return all(
        member.committed.keys() == set(range(PARTITIONS))
        and len(offsets_of(target, member.group, copy)) == PARTITIONS
        for member in members
    )


def compare(member: Member, target: KafkaAddress, copy: str, stopped: float) -> list[int]:
    """Return how many records are read again; nothing may be skipped."""
    there = offsets_of(target, member.group, copy)
    # What was committed at least one interval before is on the target, on a machine that keeps up.
    earlier = [offsets for at, offsets in member.commits if at <= stopped - SYNC_S]
    reread: list[int] = []
    for partition, position in member.committed.items():
        if partition in there:
            first = first_read(target, copy, partition, there[partition])
            assert first <= position, f"{member.group} {partition} skips {first - position}"
            reread.append(position - first)
        oldest = earlier[-1].get(partition, 0) if earlier else 0
        until(partial(is_synced_to, target, member.group, copy, partition, oldest), LATE_S)
    return reread


def is_synced_to(target: KafkaAddress, group: str, copy: str, partition: int, oldest: int) -> bool:
    """Whether a group has an offset at the target, at a record that is not before this one."""
    at = offsets_of(target, group, copy).get(partition, -1)
    return not oldest or (at >= 0 and first_read(target, copy, partition, at) >= oldest)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("moments", [2, pytest.param(50, marks=pytest.mark.chaos)])
def test_groups_that_move_skip_nothing_and_read_little_again(setup: Setup, moments: int) -> None:
    a, b, topic = setup.a, setup.b, setup.topic("orders", PARTITIONS)
    flow = setup.flow(topic, {"{source}->{target}.sync.group.offsets.enabled": "true"})
    copy, chance = flow.remote(topic), random.Random(moments)
    groups = [
        (f"{kind}-{protocol}-{setup.unique('g')}", protocol, per_poll)
        for protocol in ("classic", "consumer")
        for kind, per_poll in (("tip", 1_000), ("behind", 20), ("start", 1))
    ]
    reread: list[int] = []
    load = Load(a, topic, PARTITIONS, rate=PARTITIONS * RECORDS_PER_S, value_bytes=0)
    with load, Mirror(flow.file) as worker:
        for _ in range(moments):
            members = [
                Member(a, topic, group, protocol, per_poll=per_poll)
                for group, protocol, per_poll in groups
            ]
            until(partial(are_synced, members, b, copy), 90, "offsets on the target", alive=worker)
            Event().wait(chance.uniform(0.5, 2.5))
            chance.shuffle(members)
            for member in members:
                member.stop()
            stopped = time.monotonic()
            for member in members:
                Event().wait(max(0.0, stopped + SYNC_S - time.monotonic()))
                reread += compare(member, b, copy, stopped)
        worker.check_running()
    log.warning("%d partitions moved, read again: %s", len(reread), sorted(reread)[-10:])
