"""What goes wrong with one topic or partition stays there, is named, and goes on when it is cured."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster_changes import (
    delete_records,
    delete_topic,
    forbid_writing,
    permit_writing,
    set_config,
    topics_of,
)
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import (
    Sent,
    assert_equal,
    committed_positions,
    ends,
    read,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic, NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]


def numbered(first: int, count: int, partitions: int = 1) -> list[Sent]:
    return [Sent(n % partitions, b"%d" % n) for n in range(first, first + count)]


def test_a_record_too_large_for_the_target_fails_its_partition_alone_until_it_is_cured(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("too-large")
    create_topic(region_a, topic, 3)
    flow = write_flow(tmp_path, region_a, region_b, topic, {"sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    create_topic(region_b, remote, 3, config={"max.message.bytes": "5000"})
    write(region_a, topic, numbered(0, 300, 3))
    # In one batch with small ones, which have to be cut out.
    poisoned = [Sent(1, b"before"), Sent(1, os.urandom(20_000)), Sent(1, b"behind")]
    write(region_a, topic, poisoned, linger_ms=200)
    with Mirror(flow.file) as mirror:
        said = mirror.wait_for_log("ERROR .*partition failed")
        assert f"partition={topic}-1" in said
        assert f"{topic}-1 at offset 101" in said
        assert "MESSAGE_TOO_LARGE" in said or "max.message.bytes" in said
        write(region_a, topic, numbered(300, 300, 3))
        until(
            lambda: [ends(region_b, remote).get(p, 0) for p in (0, 2)] == [200, 200],
            90,
            lambda: f"the other partitions, {ends(region_b, remote)}",
            alive=mirror,
        )
        assert mirror.stop() == 0
        assert len(mirror.lines("ERROR")) == 1
    # The record before it came in the same batch and may have been kept back with it.
    copied = ends(region_b, remote)[1]
    assert copied in (100, 101)
    assert committed_positions(flow, topic) == {0: 199, 1: copied - 1, 2: 199}
    set_config(region_b, remote, "max.message.bytes", "100000")
    with Mirror(flow.file, name="cured") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
        assert not mirror.complaints()


def test_ten_partitions_that_the_target_does_not_take_leave_ten_others_flowing(
    region_a: KafkaAddress,
    new_region: NewRegion,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    target = new_region("guarded", properties={"super.users": "User:nobody"})
    prefix = unique("full")
    stuck, flowing = f"{prefix}-stuck", f"{prefix}-flowing"
    memory = {"{target}.producer.buffer.memory": str(8 << 20)}
    flow = write_flow(
        tmp_path,
        region_a,
        target,
        f"{prefix}-.*",
        {"sync.topic.configs.enabled": "false", **memory},
    )
    for topic in (stuck, flowing):
        create_topic(region_a, topic, 10)
        # Each partition has more than its share, all of them more than the memory.
        write(region_a, topic, (Sent(n % 10, b"%d:" % n + bytes(1_000)) for n in range(20_000)))
    create_topic(target, flow.remote(stuck), 10)
    forbid_writing(target, flow.remote(stuck))
    with Mirror(flow.file) as mirror:
        mirror.wait_for_log("TOPIC_AUTHORIZATION_FAILED")
        truth, copy = wait_for_copy(mirror, flow, flowing)
        assert_equal(truth, copy)
        write(region_a, flowing, numbered(20_000, 100, 10))
        wait_for_copy(mirror, flow, flowing)
        assert sum(ends(target, flow.remote(stuck)).values()) == 0
        permit_writing(target, flow.remote(stuck))
        truth, copy = wait_for_copy(mirror, flow, stuck)
        assert_equal(truth, copy)
        assert mirror.stop() == 0


def test_a_topic_that_may_not_be_written_stalls_alone_and_recovers(
    region_a: KafkaAddress,
    new_region: NewRegion,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    # Where nobody is a superuser, rules of a topic count for us too.
    target = new_region("guarded", properties={"super.users": "User:nobody"})
    prefix = unique("acl")
    closed, open_ = f"{prefix}-closed", f"{prefix}-open"
    for topic in (closed, open_):
        create_topic(region_a, topic, 2)
    flow = write_flow(tmp_path, region_a, target, f"{prefix}-.*")
    with Mirror(flow.file) as mirror:
        write(region_a, closed, numbered(0, 100, 2))
        wait_for_copy(mirror, flow, closed)
        forbid_writing(target, flow.remote(closed))
        write(region_a, closed, numbered(100, 100, 2))
        said = mirror.wait_for_log("TOPIC_AUTHORIZATION_FAILED")
        assert f"may not Write topic {flow.remote(closed)} of cluster" in said
        assert f"--operation Write --topic {flow.remote(closed)}" in said
        write(region_a, open_, numbered(0, 200, 2))
        truth, copy = wait_for_copy(mirror, flow, open_)
        assert_equal(truth, copy)
        assert sum(ends(target, flow.remote(closed)).values()) == 100
        permit_writing(target, flow.remote(closed))
        truth, copy = wait_for_copy(mirror, flow, closed)
        assert_equal(truth, copy)
        mirror.wait_for_log("target takes")
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


def test_a_target_that_refuses_to_create_a_topic_is_quoted_with_topic_and_property(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    prefix = unique("refused")
    for name in ("new", "old"):
        create_topic(region_a, f"{prefix}-{name}")
        write(region_a, f"{prefix}-{name}", numbered(0, 100))
    properties = {"replication.factor": "2", "refresh.topics.interval.seconds": "1"}
    flow = write_flow(tmp_path, region_a, region_b, f"{prefix}-.*", properties)
    create_topic(region_b, flow.remote(f"{prefix}-old"))
    with Mirror(flow.file) as mirror:
        remote = flow.remote(f"{prefix}-new")
        said = mirror.wait_for_log(re.escape(remote))
        assert "WARNING" in said or "ERROR" in said
        assert "replication.factor (now 2)" in said
        truth, copy = wait_for_copy(mirror, flow, f"{prefix}-old")
        assert_equal(truth, copy)
        # An operator creates it by hand; until then it was said once, not at every refresh.
        create_topic(region_b, remote)
        truth, copy = wait_for_copy(mirror, flow, f"{prefix}-new", timeout_s=90)
        assert_equal(truth, copy)
        assert len(mirror.lines(f"WARNING .*cannot be created.* name={remote} ")) == 1
        assert mirror.stop() == 0


def test_internal_topics_that_cannot_be_created_are_named_with_their_property(
    region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, tmp_path: Path
) -> None:
    properties = {"offset.storage.replication.factor": "3"}
    flow = write_flow(tmp_path, region_a, region_b, unique("none"), properties)
    with Mirror(flow.file) as mirror:
        # Not the end: brokers that are only away come back.
        said = mirror.wait_for_log("cannot be created")
        assert flow.offsets_topic in said
        assert "offset.storage.replication.factor" in said
        assert mirror.stop() == 0
        assert "Traceback" not in mirror.log()


def test_records_deleted_before_they_were_copied_are_named_with_their_range(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("deleted")
    create_topic(region_a, topic, 2)
    flow = write_flow(tmp_path, region_a, region_b, topic)
    write(region_a, topic, numbered(0, 200, 2))
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
    write(region_a, topic, numbered(200, 200, 2))
    delete_records(region_a, topic, 1, 150)
    with Mirror(flow.file, name="second") as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
        (said,) = mirror.lines("records lost")
        assert f"partition={topic}-1 first_offset=100 last_offset=149 offsets=50" in said
        assert mirror.lines("ERROR") == [said]
    copy = read(region_b, flow.remote(topic))
    values = [[int(record.value or b"") for record in copy[p].records] for p in (0, 1)]
    assert values == [list(range(0, 400, 2)), [*range(1, 200, 2), *range(301, 400, 2)]]


@pytest.mark.parametrize("records", [50, 300], ids=["shorter", "longer"])
def test_a_topic_that_is_deleted_and_created_again_is_copied_from_its_beginning(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    records: int,
) -> None:
    topic = unique("recreated")
    create_topic(region_a, topic)
    flow = write_flow(tmp_path, region_a, region_b, topic)
    write(region_a, topic, numbered(0, 100))
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        delete_topic(region_a, topic)
        until(lambda: topic not in topics_of(region_a), 90, "the deletion")
        create_topic(region_a, topic)
        write(region_a, topic, numbered(1_000, records))
        wait_for_copy(mirror, flow, topic)
        mirror.wait_for_log(f"{topic}-0 .*cause=recreated")
        assert mirror.stop() == 0
    write(region_a, topic, numbered(1_000 + records, 50))
    with Mirror(flow.file, name="restarted") as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
        assert not mirror.complaints()
    (log,) = read(region_b, flow.remote(topic)).values()
    values = [int(record.value or b"") for record in log.records]
    assert values == [*range(100), *range(1_000, 1_050 + records)]
