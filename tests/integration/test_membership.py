"""The group's coordinator is silent, frozen or has expired a member: nothing is written under a membership that may have ended."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK
from mm2py.protocol.connect_group import WorkerMetadata, offers
from tests.integration.clients import connected
from tests.integration.exactly_once import assert_each_once, make_exactly_once
from tests.integration.mirror_process import (
    SHORT_SESSION,
    SHORT_SESSION_S,
    Flow,
    Mirror,
    running,
    until,
    write_flow,
)
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM, Workers, assert_nothing_lost
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    copied,
    wait_for_all,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.delay_proxy import DelayProxy, Way
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

log = logging.getLogger(__name__)
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
    with (
        DelayProxy() as line,
        closing(
            Region(
                "expired",
                listeners=[Listener("FAR", "PLAINTEXT", advertise=line.front)],
                properties=ANY_SESSION,
            )
        ) as region,
    ):
        region.start()
        yield FarTarget(region, line)


@pytest.fixture
def far_target(shared_target: FarTarget) -> Iterator[FarTarget]:
    """A target that runs, and whose line is whole, when a test begins."""
    shared_target.region.start()
    yield shared_target
    shared_target.line.heal()


def run_for(load: Load, seconds: float) -> None:
    began = time.monotonic()
    load.wait_acked(int(seconds * RATE), timeout_s=seconds * 4 + 60)
    # A load that was held up itself makes up for it.
    until(lambda: time.monotonic() - began >= seconds, 90, f"{seconds} s")


async def be_member(target: KafkaAddress, group: str) -> None:
    """Be a member as another worker is: wait for the empty group, join, take the work, leave."""
    async with connected(target) as cluster:
        link = CoordinatorLink(cluster, group)
        member = GroupMember(
            link,
            Permit(SYSTEM_CLOCK),
            session_timeout_ms=int(SHORT_SESSION_S * 1000),
            heartbeat_interval_ms=200,
            rebalance_timeout_ms=10_000,
            clock=SYSTEM_CLOCK,
        )
        async with asyncio.timeout(120):
            for _ in range(600):
                if (await link.describe()).state == "Empty":
                    break
                await asyncio.sleep(0.1)
            joined = await member.join(offers("sessioned", WorkerMetadata(2, "http://other:0/", 0)))
            assert joined.leads
            await member.sync(joined, {joined.member_id: b""})
        await member.leave()


def test_a_target_away_for_longer_than_a_session_gets_everything_once_from_the_same_tasks(
    setup: Setup, far_target: FarTarget
) -> None:
    target, topic = far_target.region, setup.topic("away", PARTITIONS)
    flow = setup.flow(topic, SHORT_SESSION, target=target)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            frozen, down = (target.freeze, target.thaw), (target.kill, target.start)
            for leaves, returns in (frozen, frozen, down, (target.stop, target.start)):
                outage = 1 + len(mirror.lines("the flow continues"))
                leaves()
                try:
                    run_for(load, 2 * SHORT_SESSION_S)
                finally:
                    returns()
                # A broker that was frozen expires us, or takes a heartbeat that waited first: it says which.
                _wait_for_lines(mirror, "the flow continues", outage)
                wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.lines(f"{LOST}|it will be copied again") == []
        assert len(mirror.lines("source task started")) == 1
        log.info("joined again %d times of 4", len(mirror.lines(AGAIN)))


def test_two_workers_keep_their_tasks_when_the_target_was_frozen_for_longer_than_a_session(
    setup: Setup, far_target: FarTarget
) -> None:
    target, topic = far_target.region, setup.topic("frozen-two", PARTITIONS)
    flow = setup.flow(topic, {**CALM, **SHORT_SESSION, "tasks.max": "2"}, target=target)
    with Load(setup.a, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.start("one", "two")
        workers.stop_checkpoints(workers.running[0])
        owners = workers.until_spread(tasks=2)
        workers.wait_for_copy_everywhere(topic)
        target.freeze()
        try:
            for worker in workers.running:
                worker.wait_for_log("flow is suspended")
            run_for(load, 2 * SHORT_SESSION_S)
        finally:
            target.thaw()
        now = workers.until_spread(tasks=2)
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        # A heartbeat that lay in the broker's socket may have been read before its member was
        # expired: that member is kept, the other expired, and the work may have been given away.
        lost = [worker for worker in workers.running if worker.lines(LOST)]
        assert len(lost) <= 1
        steps = assert_nothing_lost(flow, topic, workers.running[0])
        if not lost:
            assert now == owners
            assert not any(steps.values())
        workers.stop()


def test_an_expired_flow_joins_again_and_sends_what_it_had_in_flight_once(
    setup: Setup, far_target: FarTarget
) -> None:
    topic = setup.topic("expired", PARTITIONS)
    flow = far_flow(setup.folder, setup.a, far_target, topic)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_progress(mirror, flow, topic)
            far_target.line.stall()
            run_for(load, 2 * SHORT_SESSION_S)
            far_target.line.heal()
            mirror.wait_for_log(AGAIN, 90)
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.lines(LOST) == []


async def test_an_expired_flow_is_torn_down_when_another_worker_was_a_member_meanwhile(
    setup: Setup, far_target: FarTarget
) -> None:
    topic = setup.topic("replaced", PARTITIONS)
    flow = far_flow(setup.folder, setup.a, far_target, topic)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE):
            wait_for_progress(mirror, flow, topic)
            far_target.line.stall()
            await be_member(far_target.region, f"{flow.source_alias}-mm2")
            far_target.line.heal()
            mirror.wait_for_log(LOST, 90)
            until(lambda: len(mirror.lines("source task started")) >= 2, 90, "the next term")
            wait_for_progress(mirror, flow, topic)
        wait_for_all(mirror, flow, topic)


def test_what_a_task_sent_before_exactly_once_is_refused_when_it_arrives_late(
    setup: Setup, far_target: FarTarget
) -> None:
    line, region, topic = far_target.line, far_target.region, setup.topic("switched")
    by_line = {**CALM, "{target}.bootstrap.servers": line.bootstrap_servers}
    flow = write_flow(setup.folder, setup.a, region, topic, by_line)
    write(setup.a, topic, [Sent(0, b"%d" % number) for number in range(100)])
    with Mirror(flow.file, name="at-least-once") as mirror:
        until(lambda: copied(flow, topic) == 100, 90, "the first copies", alive=mirror)
        line.stall(Way.REQUESTS)
        write(setup.a, topic, [Sent(0, os.urandom(1_000)) for _ in range(50)])
        until(lambda: line.held_bytes(Way.REQUESTS) > 50_000, 90, "a request that is under way")
        mirror.kill()
    with flow.file.open("a", encoding="latin-1") as file:
        file.write(f"{flow.target_alias}.bootstrap.servers = {region.bootstrap_servers}\n")
    make_exactly_once(flow)
    with running(flow.file, name="exactly-once", ready=False) as mirror:
        assert assert_each_once(mirror, flow, topic) == 150
        assert line.held_bytes(Way.REQUESTS) > 50_000
        line.heal()
        until(lambda: not line.held_bytes(Way.REQUESTS), 90, "the late request to arrive")
        write(setup.a, topic, [Sent(0, b"behind")])
        assert assert_each_once(mirror, flow, topic) == 151


def far_flow(folder: Path, source: KafkaAddress, target: FarTarget, topic: str) -> Flow:
    line = {"{target}.bootstrap.servers": target.line.bootstrap_servers}
    return write_flow(folder, source, target.region, topic, {**SHORT_SESSION, **line})


def _wait_for_lines(mirror: Mirror, text: str, count: int) -> None:
    until(lambda: len(mirror.lines(text)) >= count, 90, f"{count} times {text!r}", alive=mirror)


def test_a_stop_while_suspended_is_quick(setup: Setup, far_target: FarTarget) -> None:
    target, topic = far_target.region, setup.topic("suspend-stop")
    flow = setup.flow(topic, SHORT_SESSION, target=target)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(setup.a, topic, 1, rate=100):
            wait_for_progress(mirror, flow, topic)
            target.kill()
            mirror.wait_for_log("flow is suspended")
            assert mirror.stop() == 0
            assert mirror.lines("cut off") == []
