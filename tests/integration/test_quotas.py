"""Quotas of brokers (KIP-219) and the flow's own byte rate: kept, without an error, a doubled or a lost record."""

import logging
import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from tests.integration.cluster_changes import set_quota
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.flow_questions import path_of, wait_for_records
from tests.integration.memory_census import Census
from tests.integration.mirror_process import SHORT_SESSION, Mirror, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, copied, read, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress, Region, started

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(300),
]

log = logging.getLogger(__name__)

Regions = tuple[Region, Region]

VALUE_BYTES = 10_000
RECORDS = 600
RATE = 500_000
SHARED_RATE = 150_000
"""Of each client of the shared regions, where ten seconds' worth is free."""
TINY_RATE, LONG_S = 2_000, 200
"""What is sent at once is worth many minutes of it."""

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
    with started(source, target):
        yield source, target


@contextmanager
def throttled(*sides: tuple[KafkaAddress, str], rate: int = SHARED_RATE) -> Generator[None]:
    """Regions throttle each consumer or producer meanwhile."""
    try:
        for region, kind in sides:
            set_quota(region, kind, "", rate)
        yield
    finally:
        for region, kind in sides:
            set_quota(region, kind, "", 0)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_byte_rate_is_kept_without_error(setup: Setup, two_regions: Regions, limit: str) -> None:
    source, target = two_regions
    topic = setup.topic("quota", 2, on=source)
    properties = {"{source}.consumer.client.id": "quota"}
    if limit == "flow":
        properties["{source}->{target}.flow.max.bytes.per.second"] = str(RATE)
    flow = setup.flow(topic, properties, source=source, target=target)
    client_id = LIMITS[limit].format(source=flow.source_alias, target=flow.target_alias)
    if client_id:
        set_quota(target if limit == "producer" else source, limit, client_id, RATE)
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


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("producer", {}),
        ("producer", {"{target}.exactly.once.source.support": "enabled"}),
        ("consumer", {"{source}.consumer.client.id": "quota"}),
    ],
    ids=["plain", "exactly once", "source"],
)
def test_a_quota_that_was_lifted_is_not_waited_for(
    setup: Setup, two_regions: Regions, kind: str, properties: dict[str, str]
) -> None:
    """The broker reads nothing of a muted connection until the time that it announced, here many minutes, is over."""
    source, target = two_regions
    topic = setup.topic("lifted", 2, on=source)
    flow = setup.flow(topic, properties, source=source, target=target)
    client_id = LIMITS[kind].format(source=flow.source_alias, target=flow.target_alias)
    records = [Sent(n % 2, os.urandom(VALUE_BYTES)) for n in range(RECORDS)]
    limited = target if kind == "producer" else source
    # Before the mirror starts: its first Fetch has enough for a long time.
    write(source, topic, records, linger_ms=5)
    set_quota(limited, kind, client_id, TINY_RATE)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        path = public_url(mirror) + path_of(flow).removeprefix("/")

        def notes() -> str:
            return str(ask(path)[1]["notes"])

        shown = r"holds back what is (?:written|read); time left: broker 1: (\d+) s"
        until(lambda: re.search(shown, notes()), 90, notes, alive=mirror)
        left = [int(it) for it in re.findall(shown, notes())]
        until(
            lambda: (now := re.findall(shown, notes())) and int(now[0]) < left[0],
            90,
            notes,
            alive=mirror,
        )
        assert left[0] > LONG_S
        set_quota(limited, kind, client_id, 0)
        said = mirror.wait_for_log("a quota was changed, the connection is opened anew")
        assert float(said.rpartition("remaining_s=")[2].split()[0]) > LONG_S
        assert_equal(*wait_for_copy(mirror, flow, topic))
        until(lambda: "holds back" not in notes(), 90, notes, alive=mirror)
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


def test_transactions_end_in_time_under_a_quota(setup: Setup) -> None:
    """One request is in flight then, so that a commit waits for the throttle of few requests, not of all that was read."""
    topic, records = setup.topic("once", 2), 600
    properties = {
        **ENABLED,
        "{target}.producer.transaction.timeout.ms": "10000",
        "{target}.session.timeout.ms": "20000",
    }
    flow = setup.flow(topic, properties)
    values = [Sent(n % 2, os.urandom(VALUE_BYTES)) for n in range(records)]
    write(setup.a, topic, values, linger_ms=5)
    with throttled((setup.b, "producer")), Mirror(flow.file) as mirror:
        assert assert_each_once(mirror, flow, topic) == records
        assert len(mirror.lines("source task started")) == 1, "it did not fail"


@pytest.mark.chaos
def test_a_take_over_waits_for_what_quotas_hold_back_and_doubles_nothing(setup: Setup) -> None:
    """What a killed worker has written is read from the target's log, which a quota of its own holds back."""
    topic, records = setup.topic("taken", 2), 400
    flow = setup.flow(topic, SHORT_SESSION)
    values = [Sent(n % 2, os.urandom(VALUE_BYTES)) for n in range(records)]
    write(setup.a, topic, values, linger_ms=5)
    sides = (setup.a, "consumer"), (setup.b, "consumer"), (setup.b, "producer")
    with throttled(*sides):
        for name, least in ("first", 1), ("second", records // 2):
            with Mirror(flow.file, name=name) as killed:
                wait_for_records(killed, flow, topic, least, 120)
                killed.kill()
        with Mirror(flow.file, name="last") as mirror:
            wait_for_records(mirror, flow, topic, records, 120)
            assert not mirror.complaints()
            assert mirror.stop() == 0
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


def test_the_memory_of_a_task_is_bounded_while_a_quota_of_the_target_holds_all_partitions_back(
    setup: Setup, two_regions: Regions
) -> None:
    source, target = two_regions
    topic = setup.topic("held", HELD_PARTITIONS, on=source)
    flow = setup.flow(
        topic,
        {"{target}.producer.buffer.memory": str(MEMORY_MB << 20)},
        source=source,
        target=target,
    )
    setup.create_topic(target, flow.remote(topic), HELD_PARTITIONS)  # so many leaders take a moment
    set_quota(target, "producer", LIMITS["producer"], RATE)
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
