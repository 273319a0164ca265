"""Two builds in one group under load: its workers are replaced one by one, up to the present build and back down.

Flow: workers of the earlier build -> beside a load each is stopped or killed, and one of the other build takes its place -> both
clusters, record by record. What the two builds do not do together costs no record.
"""

from functools import partial
from typing import Final

import pytest

from tests.integration.active_active import check_sides, wait_until_quiet, write_pair
from tests.integration.earlier_build import PRESENT, Build, earlier_build
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.failovers import PARTITIONS, Drivers, Shop, Stage, secured_pair, values_of
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.sinks import a_flow, wait_committed
from tests.integration.traffic import (
    Load,
    assert_equal,
    assert_resumed,
    copied,
    ends,
    wait_for_copy,
)
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1_200)]

RATE: Final = 500
MARKS: Final = b"one", b"two"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Build:
    build = earlier_build(tmp_path_factory.mktemp("earlier"))
    if build is None:
        pytest.skip("the history of this checkout does not reach back to the earlier build")
    return build


def replace_each(workers: Workers, build: Build, *, killed: int = 0, topic: str = "") -> None:
    """Start one of a build in the place of each worker; the first ``killed`` of them are killed.

    With ``topic`` it waits after each one until every partition is copied on, by both builds together.
    """
    for number, old in enumerate(workers.running):
        if number < killed:
            workers.kill(old)
        else:
            workers.stop(old)
        workers.start(f"{build.name}-{old.name}", build=build)
        if topic:
            workers.wait_for_copy_everywhere(topic)


@pytest.mark.parametrize("killed", [0, 1])
def test_an_exactly_once_flow_is_upgraded_and_taken_back(
    setup: Setup, earlier: Build, killed: int
) -> None:
    topic = setup.topic("once", 4)
    flow = setup.flow(topic, {**ENABLED, "tasks.max": "2"})
    with Workers(flow) as workers, Load(setup.a, topic, 4, rate=RATE) as load:
        workers.start("one", "two", build=earlier)
        workers.wait_for_start(topic)
        for build in (PRESENT, earlier):
            replace_each(workers, build, killed=killed)
            workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert assert_each_once(workers.running[0], flow, topic) > 0


@pytest.mark.parametrize("killed", [0, 1])
def test_same_names_both_ways_stay_without_a_loop(
    setup: Setup, earlier: Build, killed: int
) -> None:
    topic = setup.topic_on_both("both-ways", 3)
    both = {
        key.replace("{target}", f"{{{side}}}"): text
        for key, text in SHORT_SESSION.items()
        for side in ("source", "target")
    }
    flow = write_pair(setup.folder, setup.a, setup.b, topic, both)
    with (
        Workers(flow) as workers,
        Load(setup.a, topic, 3, rate=RATE, mark=MARKS[0]) as first,
        Load(setup.b, topic, 3, rate=RATE, mark=MARKS[1]) as second,
    ):
        workers.start("one", "two", build=earlier)
        for build in (PRESENT, earlier):
            replace_each(workers, build, killed=killed)
            both_have = partial(_both_have, (setup.a, setup.b), topic, first.acked + second.acked)
            until(both_have, 120, "the copies of both sides", alive=workers.running[0])
        first.stop()
        second.stop()
        written = first.acked, second.acked
        one, two = wait_until_quiet(workers.running[0], setup.a, setup.b, topic, sum(written))
        sides = check_sides(one, two, MARKS, written)
        assert (sides.loops, sides.doubled) == (0, 0)
        workers.stop()


def _both_have(regions: tuple[KafkaAddress, KafkaAddress], topic: str, records: int) -> bool:
    return all(sum(ends(it, topic).values()) >= records for it in regions)


def test_a_failover_is_continued_by_drivers_and_workers_of_either_build(
    setup: Setup, earlier: Build
) -> None:
    topic = setup.unique("orders")
    with secured_pair("rolling") as sides:
        a, b = sides
        stage = Stage(*sides, setup.unique, setup.create_topic, setup.folder)
        flow = stage.same_names(topic, SHORT_SESSION)
        with Workers(flow) as workers:
            workers.start("one", "two", build=earlier)
            with Shop(flow, topic, PARTITIONS) as shop:
                shop.wait_acked(50)
                for kind, side, builds in (
                    ("failover", "target", (earlier, PRESENT)),
                    ("failback", "source", (PRESENT, earlier)),
                ):
                    drivers = Drivers(flow, workers.running[0])
                    given = ("--execute", "--settle", "1", "-o", "json")
                    drivers.run(kind, *given, kill_at="DRAIN", build=builds[0])
                    replace_each(workers, builds[1])
                    drivers = Drivers(flow, workers.running[0])
                    drivers.run(kind, *given, kill_at="REVERSE", build=builds[1])
                    ended = drivers.run(kind, *given, build=builds[0])
                    assert ended.code == 0, "\n".join(drivers.said)
                    assert ended.document["step"] == "DONE"
                    shop.wait_acked(30)
                    assert shop.side == side

            until(
                partial(_both_have, sides, topic, shop.acked),
                120,
                lambda: f"{shop.acked}: {ends(a, topic)} {ends(b, topic)}",
                alive=workers.running[0],
            )
            for region in sides:
                for partition, values in enumerate(values_of(region, topic)):
                    assert values == list(range(partition, shop.acked, PARTITIONS)), region.name
            workers.stop()


def test_a_topic_that_is_paused_stays_so_until_it_is_resumed(setup: Setup, earlier: Build) -> None:
    paused, other = setup.unique("paused"), setup.unique("other")
    for topic in (paused, other):
        setup.create_topic(setup.a, topic, 2)
    flow = setup.flow(f"{paused},{other}", {**SHORT_SESSION, "tasks.max": "2"})
    path = f"flows/{flow.source_alias}-%3E{flow.target_alias}"

    def change(worker: Mirror, what: str) -> None:
        url = f"{public_url(worker)}{path}/{what}?topic={paused}"
        until(
            lambda: ask(url, "POST")[0] in (200, 202), 60, f"{what} beside rebalances", alive=worker
        )

    with (
        Workers(flow) as workers,
        Load(setup.a, paused, 2, rate=RATE) as first,
        Load(setup.a, other, 2, rate=RATE) as second,
    ):
        workers.start("one", "two", build=earlier)
        workers.wait_for_start(paused)
        for build in (PRESENT, earlier):
            change(workers.running[0], "pause")
            until(lambda: _rests(flow, paused, first), 60, "the pause", alive=workers.running[0])
            stopped = copied(flow, paused)
            replace_each(workers, build, killed=1, topic=other)
            assert copied(flow, paused) == stopped, build.name
            change(workers.running[0], "resume")
            workers.wait_for_copy_everywhere(paused)
        for load in (first, second):
            load.stop()
        for topic in (paused, other):
            assert_equal(*wait_for_copy(workers.running[0], flow, topic))
        workers.stop()


def _rests(flow: Flow, topic: str, load: Load) -> bool:
    """Whether nothing of a topic was copied while records came."""
    before = copied(flow, topic)
    load.wait_acked(2 * RATE)
    return copied(flow, topic) == before


def test_a_flow_that_a_group_copies_is_upgraded_and_taken_back(
    setup: Setup, earlier: Build
) -> None:
    topic = setup.topic("sunk", 6)
    flow = a_flow(setup.folder, setup.a, setup.b, topic)
    with Workers(flow) as workers, Load(setup.a, topic, 6, rate=RATE) as load:
        workers.start("one", "two", build=earlier)
        workers.wait_for_start(topic)
        for build in (PRESENT, earlier):
            replace_each(workers, build, topic=topic)
        load.stop()
        truth, copy = wait_for_copy(workers.running[0], flow, topic)
        assert assert_resumed(truth, copy, rewinds=0) == 0, (
            "what is stopped in order doubles nothing"
        )
        wait_committed(workers.running[0], flow, topic)
        workers.stop()
