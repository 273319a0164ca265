"""The Java checkpoint connector translates group offsets with our offset syncs as far as with Java's own.

One flow is copied by mm2py, another by Java; both are the same records, and one JVM writes the checkpoints of
both.
"""

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from bench.mm2py_worker import start_mm2py
from bench.topics import Topics
from mm2py.mirror.offset_syncs import OffsetSync, OffsetSyncStore, decode_offset_sync
from mm2py.types import TopicPartition as Partition
from tests.integration.java_mm2 import eventually, read_all
from tests.kit.kafka.region import KafkaAddress

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(900),
]

PARTITIONS, RECORDS = 9, 500
STOPPED_AT = (0, 1, 50, 100, 101, 102, 150, 202, 250, 303, 350, 404, 450, 498, 499, 500)
"""Where the groups have got to, each in every partition."""

JAVAS_RULE = [0, 101, 202, 303, 404, 499]
"""One more than ``offset.lag.max`` apart, and the last one at the commit."""

PREFIX = "orders-"
"""Of the topic that is copied."""

TRIES = 3

Offsets = dict[tuple[str, int], int]
"""Translated offset by group and partition."""

Syncs = dict[int, list[int]]
"""Upstream offsets of the syncs by partition, in order."""


def write_file(
    path: Path, region_a: KafkaAddress, region_b: KafkaAddress, flows: list[str]
) -> None:
    aliases = [alias for flow in flows for alias in flow.split("->")]
    lines = [f"clusters = {', '.join(aliases)}", "emit.heartbeats.enabled = false"]
    for flow in flows:
        source, target = flow.split("->")
        lines += [
            f"{source}.bootstrap.servers = {region_a.bootstrap_servers}",
            f"{target}.bootstrap.servers = {region_b.bootstrap_servers}",
            # No commit falls into the backlog, whose delayed syncs would be beside those of the rule; few records
            # at a time, so that Java's ten permits suffice for all that its rule chooses.
            f"{target}.offset.flush.interval.ms = 5000",
            f"{source}.consumer.max.poll.records = 20",
            f"{flow}.enabled = true",
        ]
    internal = ["offset-syncs.topic", "checkpoints.topic"]
    internal += ["offset.storage", "status.storage", "config.storage"]
    lines += [f"{name}.replication.factor = 1" for name in internal]
    lines += ["replication.factor = 1"]
    lines += ["emit.checkpoints.interval.seconds = 1"]
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


def fill(region: KafkaAddress, topic: str) -> None:
    Topics(region.bootstrap_servers).create(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": region.bootstrap_servers, "log_level": 2})
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, b"key", partition)
    assert producer.flush(60) == 0


def commit(region: KafkaAddress, topic: str, group: str, offset: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": region.bootstrap_servers, "group.id": group, "log_level": 2}
    )
    partitions = [TopicPartition(topic, number, offset) for number in range(PARTITIONS)]
    consumer.commit(offsets=partitions, asynchronous=False)
    consumer.close()


def text_at(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def checkpoints(region: KafkaAddress, source_alias: str) -> Offsets:
    """Read Java's checkpoints; the last one of a group and partition counts."""
    found: Offsets = {}
    for record in read_all(region, f"{source_alias}.checkpoints.internal", 1):
        key, value = record.key() or b"", record.value() or b""
        group, at = text_at(key, 0)
        _, at = text_at(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
        _, _, downstream = struct.unpack_from(">hqq", value)
        found[group, partition] = downstream
    return found


def is_complete(region: KafkaAddress, source_alias: str, partitions: set[int]) -> bool:
    """Whether every group has a translation in these partitions."""
    found = checkpoints(region, source_alias)
    return sum(key[1] in partitions for key in found) == len(STOPPED_AT) * len(partitions)


def is_synced(region: KafkaAddress, target_alias: str) -> bool:
    """Whether every partition has its last sync."""
    found = syncs(region, target_alias)
    return all(found.get(partition, [0])[-1] == RECORDS - 1 for partition in range(PARTITIONS))


def all_syncs(region: KafkaAddress, target_alias: str) -> list[OffsetSync]:
    """Return the syncs of our topic in order: other tests leave heartbeats in the region, also of other clusters."""
    records = read_all(region, f"mm2-offset-syncs.{target_alias}.internal", 1)
    found = [decode_offset_sync(it.key() or b"", it.value() or b"") for it in records]
    return [sync for sync in found if sync.partition.topic.startswith(PREFIX)]


def syncs(region: KafkaAddress, target_alias: str) -> Syncs:
    """Return the upstream offsets of the syncs of each partition, in order."""
    found: Syncs = {}
    for sync in all_syncs(region, target_alias):
        assert sync.upstream == sync.downstream
        found.setdefault(sync.partition.partition, []).append(sync.upstream)
    return found


def last_pass(offsets: list[int]) -> list[int]:
    """Return the syncs from the last rewind on."""
    begins = [at for at, offset in enumerate(offsets) if not at or offset < offsets[at - 1]]
    return offsets[begins[-1] :]


def until_by_rule(copy: Callable[[str], Syncs], flow: str, least: int) -> tuple[str, set[int]]:
    """Copy until at least so many partitions have the syncs of the rule alone, in a new flow each time.

    A commit that falls into the backlog of a slow machine adds delayed syncs. Returns flow and partitions.
    """
    found: Syncs = {}
    source, target = flow.split("->")
    for number in range(TRIES):
        tried = f"{source}{number}->{target}{number}"
        found = copy(tried)
        complete = {partition for partition, own in found.items() if own == JAVAS_RULE}
        if len(complete) >= least:
            return tried, complete
    raise AssertionError(found)


def test_java_translates_every_group_as_far_with_our_syncs_as_with_its_own(
    region_a: KafkaAddress, region_b: KafkaAddress, tmp_path: Path
) -> None:
    unique = token_hex(3)
    topic, prefix = f"{PREFIX}{unique}", f"group-{unique}"
    fill(region_a, topic)
    file = tmp_path / "mm2.properties"
    chosen = f"topics = {topic}\ngroups = {prefix}.*\n"

    def copy_by_us(flow: str) -> Syncs:
        write_file(file, region_a, region_b, [flow])
        file.write_text(file.read_text() + chosen)
        target = flow.split("->")[1]
        with start_mm2py(file, tmp_path / f"{target}.log") as worker:
            eventually(lambda: is_synced(region_a, target), lambda: worker.log()[-4000:])
            assert worker.stop() == 0
        # A worker that a busy machine starves for a session copies what was not committed again, from a rewind on.
        return {number: last_pass(found) for number, found in syncs(region_a, target).items()}

    def copy_by_java(flow: str) -> Syncs:
        write_file(file, region_a, region_b, [flow])
        file.write_text(file.read_text() + chosen)
        target = flow.split("->")[1]
        with start_java(file, tmp_path / f"{target}.log", jvm_flags=QUICK_START_FLAGS) as java:
            eventually(lambda: is_synced(region_a, target), lambda: java.log()[-4000:])
            java.stop()
        return syncs(region_a, target)

    ours, _ = until_by_rule(copy_by_us, f"a{unique}->b{unique}", PARTITIONS)
    # Where a busy machine made Java leave out syncs of its rule, it has no translation for some groups.
    javas, complete = until_by_rule(copy_by_java, f"c{unique}->d{unique}", 1)
    (our_source, our_target), java_source = ours.split("->"), javas.split("->")[0]

    # Only now are there groups: else checkpoints of the time before would stay, which never go back.
    for offset in STOPPED_AT:
        commit(region_a, topic, f"{prefix}-{offset:03d}", offset)
    write_file(file, region_a, region_b, [ours, javas])
    file.write_text(file.read_text() + chosen)
    with start_java(file, tmp_path / "java-2.log", jvm_flags=QUICK_START_FLAGS) as java:
        for alias in (our_source, java_source):
            eventually(
                functools.partial(is_complete, region_b, alias, complete),
                lambda: java.log()[-4000:],
            )
        found, expected = checkpoints(region_b, our_source), checkpoints(region_b, java_source)
        java.stop()
    store = OffsetSyncStore(keeps_backlog=True)
    for sync in all_syncs(region_a, our_target):
        store.add(sync)
    store.read_to_end()
    translated = {
        (f"{prefix}-{offset:03d}", number): store.translate(Partition(topic, number), offset)
        for offset in STOPPED_AT
        for number in range(PARTITIONS)
    }
    assert {key: translated[key] for key in found} == found, "our reader of syncs is not Java's"
    behind = {
        key: (found[key], offset)
        for key, offset in expected.items()
        if key[1] in complete and found[key] < offset
    }
    assert behind == {}, "(ours, Java's)"
