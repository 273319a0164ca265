"""Quotas of brokers (KIP-219) and the flow's own byte rate: kept, without an error, a doubled or a lost record."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.census import Census
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import Region, start_regions
from tests.kit.regions import CreateTopic

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(300),
]

log = logging.getLogger(__name__)

Unique = Callable[[str], str]
Regions = tuple[Region, Region]

VALUE_BYTES = 10_000
RECORDS = 600
RATE = 500_000
WINDOWS = {"quota.window.num": "3"}
"""Of a second each; by default ten seconds' worth of bytes are free."""

HELD_PARTITIONS = 60
LARGE_BYTES = 900_000
MEMORY_MB = 4
SLACK_MB = 20
"""One batch beyond it, and what the first records of a process load; without the bound it was 60 and more."""

LIMITS = {
    "producer": "connector-producer-MirrorSourceConnector-0",
    "consumer": "quota|{source}->{target}|MirrorSourceConnector-0|replication-consumer",
    "flow": "",
}


@pytest.fixture(scope="module")
def two_regions() -> Iterator[Regions]:
    source, target = Region("quota-a", properties=WINDOWS), Region("quota-b", properties=WINDOWS)
    try:
        start_regions(source, target)
        yield source, target
    finally:
        source.close()
        target.close()


def set_quota(region: Region, kind: str, client_id: str, rate: int = RATE) -> None:
    """Set a quota in bytes per second, or with 0 take it away."""
    name = f"{kind}_byte_rate"
    change = ["--add-config", f"{name}={rate}"] if rate else ["--delete-config", name]
    done = run_java(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        region.bootstrap_servers,
        "--alter",
        "--entity-type",
        "clients",
        "--entity-name",
        client_id,
        *change,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("limit", LIMITS)
def test_a_byte_rate_is_kept_without_an_error(
    two_regions: Regions, unique: Unique, create_topic: CreateTopic, tmp_path: Path, limit: str
) -> None:
    source, target = two_regions
    topic = unique("quota")
    create_topic(source, topic, 2)
    properties = {"{source}.consumer.client.id": "quota"}
    if limit == "flow":
        properties["{source}->{target}.flow.max.bytes.per.second"] = str(RATE)
    flow = write_flow(tmp_path, source, target, topic, properties)
    client_id = LIMITS[limit].format(source=flow.source_alias, target=flow.target_alias)
    if client_id:
        set_quota(target if limit == "producer" else source, limit, client_id)
    records = [Sent(n % 2, os.urandom(VALUE_BYTES)) for n in range(RECORDS)]
    write(source, topic, records, linger_ms=5)
    with Mirror(flow.file) as mirror:
        until(lambda: copied(flow, topic) >= RECORDS // 3, 90, "a third", alive=mirror)
        began, first = time.monotonic(), copied(flow, topic)
        until(lambda: copied(flow, topic) == RECORDS, 90, "the rest", alive=mirror)
        rate = (RECORDS - first) * VALUE_BYTES / (time.monotonic() - began)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
        assert not mirror.complaints()
        assert not mirror.lines("connection (lost|closed)|reconnect")
    assert rate / RATE < 1.6, f"{rate / 1e3:.0f} KB/s, allowed are {RATE / 1e3:.0f}"


def test_the_memory_of_a_task_is_bounded_while_a_quota_of_the_target_holds_all_partitions_back(
    two_regions: Regions, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    source, target = two_regions
    topic = unique("held")
    create_topic(source, topic, HELD_PARTITIONS)
    flow = write_flow(
        tmp_path, source, target, topic, {"{target}.producer.buffer.memory": str(MEMORY_MB << 20)}
    )
    create_topic(target, flow.remote(topic), HELD_PARTITIONS)  # so many leaders take a moment
    set_quota(target, "producer", LIMITS["producer"])
    value = os.urandom(LARGE_BYTES)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Census(mirror.pid, every_s=0.1) as census:
            write(source, topic, [Sent(partition, value) for partition in range(HELD_PARTITIONS)])
            until(lambda: copied(flow, topic) >= 6, 120, "six of them", alive=mirror)
            set_quota(target, "producer", LIMITS["producer"], rate=0)
            until(lambda: copied(flow, topic) == HELD_PARTITIONS, 120, "all", alive=mirror)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
        assert not mirror.complaints()
        assert not mirror.lines("connection (lost|closed)|reconnect")
    grown = max(max(used) - used[0] for used in census.by_process.values())
    log.warning("memory of the task grew by %.0f MiB", grown)
    assert grown < MEMORY_MB + SLACK_MB
