"""Quotas of brokers (KIP-219) and the flow's own byte rate: kept, without an error, a doubled or a lost record."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mm2py.embedded.java import run_java
from mm2py.embedded.region import Region, start_regions
from tests.integration.conftest import CreateTopic
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(300)]

Unique = Callable[[str], str]
Regions = tuple[Region, Region]

VALUE_BYTES = 10_000
RECORDS = 600
RATE = 500_000
WINDOWS = {"quota.window.num": "3"}
"""Of a second each; by default ten seconds' worth of bytes are free."""

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


def set_quota(region: Region, kind: str, client_id: str) -> None:
    done = run_java(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        region.bootstrap_servers,
        "--alter",
        "--entity-type",
        "clients",
        "--entity-name",
        client_id,
        "--add-config",
        f"{kind}_byte_rate={RATE}",
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
