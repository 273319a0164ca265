"""A coordinator that expired the flow's membership: joined again where nobody else was a member, else given up.

Flow: load -> freeze the target or stall the line to it for longer than a session -> thaw, heal -> compare.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.protocol.connect_group import WorkerMetadata, offers
from tests.integration.mirror_process import (
    SHORT_SESSION,
    SHORT_SESSION_S,
    Flow,
    Mirror,
    until,
    write_flow,
)
from tests.integration.traffic import (
    Load,
    assert_equal,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.delay_proxy import DelayProxy
from tests.kit.regions import ANY_SESSION, CreateTopic

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 2_000
AGAIN = "the coordinator expired the membership"
LOST = "membership lost"


@dataclass(frozen=True, slots=True)
class FarTarget:
    """A target whose flow comes over a line; its plain listener is the way of others."""

    region: Region
    line: DelayProxy


@pytest.fixture(scope="module")
def shared_target() -> Iterator[FarTarget]:
    with DelayProxy() as line:
        region = Region(
            "expired",
            listeners=[Listener("FAR", "PLAINTEXT", advertise=line.front)],
            properties=ANY_SESSION,
        )
        try:
            region.start()
            yield FarTarget(region, line)
        finally:
            region.close()


@pytest.fixture
def far_target(shared_target: FarTarget) -> Iterator[FarTarget]:
    """A target whose line is whole when a test begins."""
    yield shared_target
    shared_target.line.heal()


def run_for(load: Load, seconds: float) -> None:
    load.wait_acked(int(seconds * RATE), timeout_s=seconds * 4 + 20)


async def be_member(target: KafkaAddress, group: str) -> None:
    """Be a member as another worker is: wait for the empty group, join, take the work, leave."""
    settings = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(target.bootstrap_servers), client_id="other"
    )
    cluster = Cluster(settings, alias="t")
    link = CoordinatorLink(cluster, group)
    member = GroupMember(
        link,
        Permit(SYSTEM_CLOCK),
        session_timeout_ms=int(SHORT_SESSION_S * 1000),
        heartbeat_interval_ms=200,
        rebalance_timeout_ms=10_000,
        clock=SYSTEM_CLOCK,
    )
    try:
        await cluster.connect()
        async with asyncio.timeout(60):
            for _ in range(600):
                if (await link.describe()).state == "Empty":
                    break
                await asyncio.sleep(0.1)
            joined = await member.join(offers("sessioned", WorkerMetadata(2, "http://other:0/", 0)))
            assert joined.leads
            await member.sync(joined, {joined.member_id: b""})
    finally:
        await member.leave()
        await cluster.close()


def test_a_target_frozen_for_longer_than_a_session_gets_everything_once_and_in_order(
    region_a: KafkaAddress,
    far_target: FarTarget,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    target = far_target.region
    topic = unique("frozen")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, target, topic, SHORT_SESSION)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            for again in range(2):
                target.freeze()
                try:
                    run_for(load, 2 * SHORT_SESSION_S)
                finally:
                    target.thaw()
                # The broker expires us, or takes a heartbeat that waited first: it says which.
                until(
                    lambda: len(mirror.lines("the flow continues")) > again,  # noqa: B023 - called now
                    90,
                    "the flow to go on",
                    alive=mirror,
                )
                wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.lines(LOST) == []
        assert mirror.lines("it will be copied again") == []
        log.info("joined again %d times of 2", len(mirror.lines(AGAIN)))
        assert mirror.stop() == 0


def test_an_expired_flow_joins_again_and_sends_what_it_had_in_flight_once(
    region_a: KafkaAddress,
    far_target: FarTarget,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("expired")
    create_topic(region_a, topic, PARTITIONS)
    flow = far_flow(tmp_path, region_a, far_target, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            far_target.line.stall()
            run_for(load, 2 * SHORT_SESSION_S)
            far_target.line.heal()
            mirror.wait_for_log(AGAIN, 90)
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.lines(LOST) == []
        assert mirror.stop() == 0


async def test_an_expired_flow_is_torn_down_when_another_worker_was_a_member_meanwhile(
    region_a: KafkaAddress,
    far_target: FarTarget,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("replaced")
    create_topic(region_a, topic, PARTITIONS)
    flow = far_flow(tmp_path, region_a, far_target, topic)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE):
            wait_for_progress(mirror, flow, topic)
            far_target.line.stall()
            await be_member(far_target.region, f"{flow.source_alias}-mm2")
            far_target.line.heal()
            mirror.wait_for_log(LOST, 90)
            until(lambda: len(mirror.lines("source task started")) == 2, 90, "the next term")
            wait_for_progress(mirror, flow, topic)
        wanted = {p: len(log.records) for p, log in read(region_a, topic).items()}
        until(
            lambda: all(
                ends(flow.target, flow.remote(topic)).get(p, 0) >= n for p, n in wanted.items()
            ),
            90,
            "everything, if not only once",
            alive=mirror,
        )
        assert mirror.stop() == 0


def far_flow(folder: Path, source: KafkaAddress, target: FarTarget, topic: str) -> Flow:
    line = {"{target}.bootstrap.servers": target.line.bootstrap_servers}
    return write_flow(folder, source, target.region, topic, {**SHORT_SESSION, **line})
