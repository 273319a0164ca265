"""A broker of the target is cut off from its controllers and answers clients: it stays the group's coordinator beside the new one.

A worker leaves it when another broker's metadata no longer lists it: it asks for topics every few seconds, also where no request fails.
"""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from tests.integration.cluster_changes import create_led_by, leader_of
from tests.integration.mirror_process import SHORT_SESSION, SINGLE_REPLICA, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.traffic import Load, assert_equal, wait_for_copy, wait_for_progress
from tests.kit.kafka.region import ForeignRegion, Region
from tests.kit.lines.delay_proxy import DelayProxy
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(300)]

CONSUMER_OFFSETS = "__consumer_offsets"
APART = 3
"""The node that is a broker alone; its way to the controllers, which the other two are, is a line."""
PARTITIONS = 4
RATE = 1_000
EVERYWHERE = {name: "3" for name in SINGLE_REPLICA if not name.startswith("offset-syncs")}


@contextmanager
def apart(line: DelayProxy) -> Generator[Region]:
    """Start a cluster of three whose node ``APART`` has the group coordinator and reaches its controllers over ``line``."""
    with closing(Region("apart", nodes=3, properties=ANY_SESSION)) as region:
        region.prepare()
        controllers = ports_of(region)
        for node_id, broker in enumerate(region.nodes, 1):
            file = broker.data_dir.parent / "server.properties"
            text = file.read_text(encoding="latin-1")
            lines = [
                it for it in text.splitlines() if not it.startswith("controller.quorum.voters")
            ]
            voters = [(number, controllers[number]) for number in (1, 2)]
            if node_id == APART:
                voters = [(number, line.front(port)) for number, port in voters]
                lines = [without_controller(it) for it in lines]
            lines.append(
                "controller.quorum.voters="
                + ",".join(f"{number}@127.0.0.1:{port}" for number, port in voters)
            )
            broker.configure("\n".join(lines) + "\n", broker.port)
        region.start()
        create_led_by(region, CONSUMER_OFFSETS, [[APART, 1, 2]], {"cleanup.policy": "compact"})
        yield region


def ports_of(region: Region) -> dict[int, int]:
    """Return the ports of the nodes' controllers."""
    text = (region.node(1).data_dir.parent / "server.properties").read_text(encoding="latin-1")
    (voters,) = [it for it in text.splitlines() if it.startswith("controller.quorum.voters")]
    pairs = (it.split("@") for it in voters.partition("=")[2].split(","))
    return {int(number): int(place.rpartition(":")[2]) for number, place in pairs}


def without_controller(line: str) -> str:
    if line.startswith("process.roles="):
        return "process.roles=broker"
    if line.startswith("listeners="):
        places = line.partition("=")[2].split(",")
        return "listeners=" + ",".join(it for it in places if not it.startswith("CONTROLLER"))
    return line


@pytest.mark.parametrize("copies", ["everywhere", "on others"])
def test_two_workers_of_two_coordinators_never_write_the_same_partition(
    setup: Setup, copies: str
) -> None:
    """Where all copies are led by other brokers, no error of a request says that something is wrong."""
    topic = setup.topic("apart", PARTITIONS)
    with DelayProxy() as line, apart(line) as target:
        late = {"{target}.offset.flush.interval.ms": "600000"} if copies == "on others" else {}
        # Asked first, and after that as long as it answers.
        first_apart = ",".join(reversed(target.bootstrap_servers.split(",")))
        properties = SHORT_SESSION | EVERYWHERE | late
        properties |= {"{target}.bootstrap.servers": first_apart}
        flow = setup.flow(topic, properties, target=target)
        if copies == "on others":
            create_led_by(target, flow.remote(topic), [[1, 2, APART], [2, 1, APART]] * 2)
        with Mirror(flow.file, name="first") as first:
            first.wait_ready()
            with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
                wait_for_progress(first, flow, topic)
                line.stall()
                until(lambda: is_fenced(target), 60, "another coordinator")
                others = others_of(target)
                text = flow.file.read_text(encoding="latin-1")
                second_file = setup.folder / "second.properties"
                second_file.write_text(
                    text.replace(first_apart, others.bootstrap_servers), encoding="latin-1"
                )
                whole = replace(flow, target=others)
                with running(second_file, name="second", ready=False) as second:
                    second.wait_for_log("group joined")
                    load.wait_acked(15 * RATE, timeout_s=90)
                    load.stop()
                    assert_equal(*wait_for_copy(second, whole, topic))
            first.kill()


def others_of(target: Region) -> ForeignRegion:
    """Return the brokers that are not apart."""
    return ForeignRegion("others", ",".join(target.bootstrap_servers.split(",")[: APART - 1]))


def is_fenced(target: Region) -> bool:
    """Whether the other brokers have a coordinator of their own."""
    return leader_of(others_of(target), CONSUMER_OFFSETS, 0) in (1, 2)
