"""Exactly once for minutes: kills, orderly stops and zombies under load, with one and with two workers."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.exactly_once import (
    ENABLED,
    SMALL_LIMIT,
    assert_each_once,
    first_start,
    wait_for_more,
    write_small_batches,
)
from tests.integration.mirror_process import Flow, Mirror, write_flow
from tests.integration.other_releases import region_of
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.traffic import Load
from tests.kit.kafka.region import Region, started
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1_800)]

PARTITIONS = 8
RATE = 2_000
ROUNDS = 20
ZOMBIES = 10
STARTS = 100


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def regions(request: pytest.FixtureRequest) -> Iterator[tuple[Region, Region]]:
    """A source, and a target that speaks the old or the new transaction protocol; an old source; or both of an old release."""
    if request.param == "2.8.2":
        source, target = region_of(request.param), region_of(request.param)
    else:
        old = isinstance(request.param, str)
        version = 2 if old else request.param
        options = ("--feature", f"transaction.version={version}")
        source = region_of(request.param) if old else Region("source", properties=ANY_SESSION)
        target = Region("target", properties=ANY_SESSION, format_options=options)
    with started(source, target):
        yield source, target


@pytest.fixture
def topic(setup: Setup, regions: tuple[Region, Region]) -> str:
    return setup.topic("once", PARTITIONS, on=regions[0])


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


@pytest.mark.parametrize(
    "regions", [1, 2, "2.4.1", "2.8.2"], ids=["v1", "v2", "2.4.1", "2.8.2"], indirect=True
)
def test_a_hundred_first_starts_over_topics_that_take_less_than_joined_batches(
    setup: Setup, regions: tuple[Region, Region]
) -> None:
    chance = random.Random(STARTS)
    for turn in range(STARTS // 4 + 1):  # and as many beside the other brokers
        topic, partitions = setup.unique("limited"), chance.choice((1, 2, 4, 12))
        setup.create_topic(regions[0], topic, partitions, config=SMALL_LIMIT)
        write_small_batches(regions[0], topic, partitions, 24_000)
        flow = write_flow(setup.folder, *regions, topic, {**ENABLED, "tasks.max": "3"})
        killed = chance.random() < 0.3
        assert first_start(flow, topic, name=f"start-{turn}", killed=killed) == 24_000


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
