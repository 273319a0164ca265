"""Two builds in one group under load: its workers are replaced one by one, up to the present build and back down.

Flow: workers of the earlier build -> beside a load each is stopped or killed, and one of the other build takes its place -> both
clusters, record by record. What the two builds do not do together costs no record.
"""

import threading
from functools import partial
from typing import Final

import pytest

from tests.integration.active_active import check_sides, wait_until_quiet, write_pair
from tests.integration.earlier_build import PRESENT, Build, earlier_build
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.failovers import PARTITIONS, Drivers, Shop, Stage, secured_pair, values_of
from tests.integration.members import KIP_848, read_next
from tests.integration.mirror_process import (
    GROUPS,
    SHORT_SESSION,
    SHORT_SESSION_S,
    Flow,
    Mirror,
    running,
    until,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.sinks import a_flow, wait_committed
from tests.integration.test_take_over_groups import Scene, grow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    copied,
    ends,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.spark.backfill_process import BackfillProcess, freeze_tree, kill_all
from tests.spark.test_stream import BEGUN, ON_SPARK, stream_of

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
        until(lambda: ask(url, "POST")[0] in (200, 202), alive=worker)

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


HISTORY: Final = 20_000
SLOW_FLOW: Final = "flow.max.bytes.per.second = 20000\n"
"""The live flow gets nowhere by itself, nor does a repair, which has no limit of its own."""
SLOW: Final = ("--rate-limit", "60000")
FAST: Final = ("--rate-limit", "100000000")


def killed_amid(
    flow: Flow, topic: str, build: Build, words: tuple[str, ...], *options: str
) -> None:
    """Run a job until its lanes copy, then kill it as a machine that dies."""
    with BackfillProcess(flow, *options, words=words, build=build) as run:
        run.wait_copying()
        before = copied(flow, topic)

        def goes_on() -> bool:
            run.check_running()
            return copied(flow, topic) > before + 300

        until(goes_on, 120, lambda: f"progress of the lanes: {run.said()[-9:]}")
        run.kill()


def ended(flow: Flow, build: Build, words: tuple[str, ...], *options: str) -> None:
    """Run a job to its end."""
    with BackfillProcess(flow, *options, words=words, build=build) as run:
        done = run.wait()
    assert done.code == 0, done.err


@pytest.mark.spark
@pytest.mark.parametrize("job", ["backfill", "restore", "repair"])
def test_a_job_is_continued_by_drivers_and_workers_of_either_build(
    setup: Setup, earlier: Build, job: str
) -> None:
    """Each killed driver is followed by one of the other build, beside workers of both."""
    topic = setup.topic("history", 2, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(n % 2, b"%d" % n + bytes(200)) for n in range(HISTORY)])
    flow = setup.flow(topic, SHORT_SESSION)
    drivers = {"restore": (earlier, PRESENT), "repair": (PRESENT, earlier)}
    first: tuple[str, ...] = ("backfill", "run")
    again: tuple[str, ...] = first
    asked = options = tuple[str, ...]()
    if job == "restore":
        folder = str(setup.folder / "archive")
        ended(flow, earlier, ("archive",), "--topics", topic, "--to", folder)
        first = again = ("restore",)
        asked = options = ("--from", folder, "--topics", topic)
    if job == "repair":
        with running(flow.file) as mirror:
            wait_for_copy(mirror, flow, topic)
        write(setup.b, flow.remote(topic), [Sent(0, b"foreign")])
        first, asked = ("verify",), ("--repair", "--delete-copies")
    with flow.file.open("a", encoding="latin-1") as file:
        file.write(SLOW_FLOW)
    with Workers(flow) as workers:
        workers.start("one", "two", build=earlier)
        *killed, last = drivers.get(job, (earlier, PRESENT, earlier))
        for number, build in enumerate(killed):
            words, given = (again, options) if number else (first, asked)
            killed_amid(flow, topic, build, words, *given, *(() if words == ("verify",) else SLOW))
            workers.stop(workers.running[0])
            workers.start(f"present-{number}")
        ended(flow, last, again, *options, *FAST)
        write(setup.a, topic, [Sent(n % 2, b"later %d" % n) for n in range(100)])
        assert_equal(*wait_for_copy(workers.running[0], flow, topic))
        workers.stop()


@pytest.mark.spark
def test_a_stream_is_continued_by_drivers_and_workers_of_either_build(
    setup: Setup, earlier: Build
) -> None:
    topic = setup.topic("streamed", 3, config={})
    flow = setup.flow(topic, {**SHORT_SESSION, **ON_SPARK})
    with Workers(flow) as workers, Load(setup.a, topic, 3, rate=RATE) as load:
        workers.start("one", build=earlier)
        workers.start("two")
        for build in (earlier, PRESENT):
            with stream_of(flow, "--term", "6", name=f"stream-{build.name}", build=build) as stream:
                stream.wait_for_log(BEGUN, 300)
                wait_for_progress(stream, flow, topic, 1_000)
                if build is earlier:
                    kill_all(freeze_tree(stream.pid))
                else:
                    assert stream.stop() == 0, stream.tail()
        wait_for_progress(workers.running[0], flow, topic, 500)
        load.stop()
        assert_equal(*wait_for_copy(workers.running[0], flow, topic))
        workers.stop()


def test_groups_of_each_kind_are_placed_by_either_build(setup: Setup, earlier: Build) -> None:
    topic = setup.unique("grouped")
    setup.create_topic(setup.a, topic, 1)
    flow = setup.flow(topic, {**SHORT_SESSION, **GROUPS})
    scene = Scene(flow, {topic: 0})  # nothing was copied by another program: each place is exact
    with Workers(flow) as workers:
        workers.start("one", "two", build=earlier)
        for turn, build in enumerate((earlier, PRESENT, earlier)):
            if turn:
                replace_each(workers, build, killed=1)
            grow(workers.running[0], scene, 60)
            scene.commit(f"lags-{turn}", topic, 60 * turn + 20)
            scene.commit("moves", topic, 60 * turn + 40)
            scene.read_some(f"kip848-{turn}", topic, 30 + turn, **KIP_848)
            group = f"share-{turn}-{topic}"
            scene.shares[group, topic] = len(read_next(setup.a, topic, group, "share", 5))
            scene.check(workers.running[0], turn)
        workers.stop()


def test_a_worker_that_stands_still_or_is_cut_off_doubles_nothing_beside_the_other_build(
    setup: Setup, own_regions: tuple[Region, Region], earlier: Build
) -> None:
    a, b = own_regions
    topic = setup.topic("still", 4, on=a)
    flow = setup.flow(topic, {**SHORT_SESSION, "tasks.max": "2"}, source=a, target=b)
    with Workers(flow) as workers, Load(a, topic, 4, rate=RATE) as load:
        workers.start("one", build=earlier)
        workers.start("two")
        workers.wait_for_start(topic)
        workers.wait_for_copy_everywhere(topic)
        for worker in workers.running:
            with workers.frozen(worker):
                workers.wait_for_copy_everywhere(topic)
            workers.wait_for_copy_everywhere(topic)
        for region in (a, b):
            region.freeze()
            try:
                # Longer than a session; the load continues where it can.
                threading.Event().wait(3 * SHORT_SESSION_S)
            finally:
                region.thaw()
            workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert_equal(*wait_for_copy(workers.running[0], flow, topic))
        workers.stop()
