"""Exactly once for minutes: kills, orderly stops and zombies under load, with one and with two workers."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2py.embedded.region import Region, start_regions
from tests.chaos.conftest import CreateTopic, Unique
from tests.integration.exactly_once import ENABLED, assert_each_once, wait_for_more
from tests.integration.mirror_process import Flow, Mirror, write_flow
from tests.integration.several_workers import Workers
from tests.integration.traffic import Load

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1_800)]

PARTITIONS = 8
RATE = 2_000
ROUNDS = 20
ZOMBIES = 10


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def regions(request: pytest.FixtureRequest) -> Iterator[tuple[Region, Region]]:
    """A source, and a target that speaks the old or the new transaction protocol."""
    options = ("--feature", f"transaction.version={request.param}")
    session = {"group.min.session.timeout.ms": "500"}
    source, target = (
        Region("source", properties=session),
        Region("target", properties=session, format_options=options),
    )
    try:
        start_regions(source, target)
        yield source, target
    finally:
        source.close()
        target.close()


@pytest.fixture
def topic(regions: tuple[Region, Region], unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("once")
    create_topic(regions[0], name, PARTITIONS)
    return name


@pytest.fixture
def flow(regions: tuple[Region, Region], topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, *regions, topic, {**ENABLED, "tasks.max": "3"})


def test_twenty_ends_of_one_worker(flow: Flow, topic: str) -> None:
    chance = random.Random(topic)
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(ROUNDS):
            with Mirror(flow.file, name=f"turn-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_more(mirror, flow, topic)
                load.wait_acked(chance.randrange(RATE))
                if chance.random() < 0.6:
                    mirror.kill()
                else:
                    assert mirror.stop() == 0, mirror.tail()
    with Mirror(flow.file, name="last") as mirror:
        assert assert_each_once(mirror, flow, topic) > ROUNDS * RATE / 4


def test_twenty_ends_of_one_of_two_workers(flow: Flow, topic: str) -> None:
    chance = random.Random(topic)
    with Workers(flow) as workers, Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        workers.start("one", "two")
        workers.wait_for_start(topic)
        for turn in range(ROUNDS):
            victim = chance.choice(workers.running)
            if chance.random() < 0.6:
                workers.kill(victim)
            else:
                workers.stop(victim)
            workers.wait_for_copy_everywhere(topic)
            workers.start(f"turn-{turn}")
            load.wait_acked(chance.randrange(RATE))
        load.stop()
        assert assert_each_once(workers.running[0], flow, topic) > ROUNDS * RATE / 4


def test_ten_zombies(flow: Flow, topic: str) -> None:
    chance = random.Random(topic)
    with Workers(flow) as workers, Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        workers.start("one", "two")
        workers.wait_for_start(topic)
        for _ in range(ZOMBIES):
            with workers.frozen(chance.choice(workers.running)):
                workers.wait_for_copy_everywhere(topic)
            load.wait_acked(chance.randrange(2 * RATE))
        load.stop()
        assert assert_each_once(workers.running[0], flow, topic) > ZOMBIES * RATE
