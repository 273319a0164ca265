"""Exactly once on real brokers: kills, freezes and stops under load lose nothing and double nothing."""

import random
from collections.abc import Iterator
from typing import Final

import pytest

from tests.integration.cluster_changes import set_config
from tests.integration.exactly_once import (
    ENABLED,
    SMALL_LIMIT,
    assert_each_once,
    committed_copy,
    first_start,
    make_exactly_once,
    write_small_batches,
)
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import (
    SHORT_SESSION,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
)
from tests.integration.other_releases import region_of
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.traffic import (
    Load,
    Sent,
    committed_positions,
    copied,
    ends,
    read,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import Region, started
from tests.kit.matrix import matrix
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS = 4
RATE = 1_500
ENDS: Final = ("kill", "stop", "kill")
LONG_S: Final = 1_800


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("once", PARTITIONS)


def of_protocol(version: int) -> Region:
    """Return a cluster whose producers commit by that version of the transaction protocol (KIP-890), to be started."""
    options = ("--feature", f"transaction.version={version}")
    return Region("own", properties=ANY_SESSION, format_options=options)


@pytest.fixture
def flow(request: pytest.FixtureRequest, setup: Setup, topic: str) -> Iterator[Flow]:
    """To the target of the session, which has version 2, or to one of version 1 where a row names that."""
    if getattr(request, "param", 2) == 2:
        yield setup.flow(topic, ENABLED)
    else:
        with of_protocol(1) as target:
            yield setup.flow(topic, ENABLED, target=target)


@pytest.mark.faults
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(
    ("turns", "flow"),
    matrix([(ENDS, 2)], [(ENDS * 7, 1), (ENDS * 7, 2)]),
    ids=["three", "21-v1", "21"],
    indirect=["flow"],
)
def test_kills_and_stops_under_load_double_nothing(
    flow: Flow, topic: str, turns: tuple[str, ...]
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn, ends_by in enumerate(turns):
            with Mirror(flow.file, name=f"{ends_by}-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                if ends_by == "kill":
                    mirror.kill()
                else:
                    assert mirror.stop() == 0, mirror.tail()
    with running(flow.file, name="last", ready=False) as mirror:
        assert assert_each_once(mirror, flow, topic) > 4 * RATE
        mirror.check_defects()


@pytest.mark.chaos
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("flow", [1, 2], indirect=True)
def test_twenty_ends_of_one_of_two_workers_double_nothing(flow: Flow, topic: str) -> None:
    chance = random.Random(topic)
    with Workers(flow) as workers, Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        workers.start("one", "two")
        workers.wait_for_start(topic)
        for turn in range(20):
            end = workers.kill if chance.random() < 0.6 else workers.stop
            end(chance.choice(workers.running))
            workers.wait_for_copy_everywhere(topic)
            workers.start(f"turn-{turn}")
            load.wait_acked(chance.randrange(RATE))
        load.stop()
        assert assert_each_once(workers.running[0], flow, topic) > 5 * RATE


@pytest.mark.parametrize("partitions", [1, pytest.param(12, marks=pytest.mark.faults)])
def test_first_starts_over_topics_that_take_less_than_joined_batches_restart_no_task(
    setup: Setup, partitions: int
) -> None:
    for turn in range(3):
        topic = setup.topic("limited", partitions, config=SMALL_LIMIT)
        write_small_batches(setup.a, topic, partitions, 24_000)
        flow = setup.flow(topic, ENABLED)
        assert first_start(flow, topic, name=f"turn-{turn}", killed=turn == 1) == 24_000


@pytest.mark.chaos
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("brokers", ["v1", "v2", "2.4.1", "2.8.2"])
def test_first_starts_beside_brokers_of_either_transaction_protocol_restart_no_task(
    setup: Setup, brokers: str
) -> None:
    """2.4.1 is a source alone."""
    chance = random.Random(brokers)
    source, target = (
        region_of(brokers) if brokers in there else of_protocol(1 if brokers == "v1" else 2)
        for there in (("2.4.1", "2.8.2"), ("2.8.2",))
    )
    with started(source, target):
        for turn in range(25):
            topic, partitions = setup.unique("limited"), chance.choice((1, 2, 4, 12))
            setup.create_topic(source, topic, partitions, config=SMALL_LIMIT)
            write_small_batches(source, topic, partitions, 24_000)
            flow = setup.flow(topic, ENABLED, source=source, target=target)
            killed = chance.random() < 0.3
            assert first_start(flow, topic, name=f"start-{turn}", killed=killed) == 24_000


def test_what_precedes_a_record_that_is_too_large_is_committed_also_where_no_partition_is_left(
    setup: Setup,
) -> None:
    topic = setup.topic("alone", config={"max.message.bytes": "2000000"})
    flow = setup.flow(topic, {**ENABLED, "sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    setup.create_topic(setup.b, remote, 1, config={"max.message.bytes": "100000"})
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(300)])
    write(setup.a, topic, [Sent(0, bytes(200_000))], message_max_bytes=2_000_000)
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(300, 600)])
    with running(flow.file) as mirror:
        asked = Asked(mirror)
        until(lambda: asked.done("GET", path_of(flow))["state"] == "FAILED", 90, "the failure")
        until_equal(lambda: len(committed_copy(flow, topic)[0].records), 300)
        assert committed_positions(flow, topic) == {0: 299}
        set_config(setup.b, remote, "max.message.bytes", "2000000")
        asked.done("POST", f"{path_of(flow)}/restart")
        assert assert_each_once(mirror, flow, topic) == 601


@pytest.mark.faults
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(("rounds", "flow"), matrix([(1, 2)], [(5, 1), (5, 2)]), indirect=["flow"])
def test_a_worker_that_was_frozen_writes_nothing_when_it_wakes(
    flow: Flow, topic: str, rounds: int
) -> None:
    with Workers(flow) as workers, Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        first, second = workers.start("one", "two")
        workers.wait_for_start(topic)
        for frozen in (first, second) * rounds:
            with workers.frozen(frozen):
                workers.wait_for_copy_everywhere(topic)
            load.wait_acked(RATE)
        load.stop()
        assert assert_each_once(first, flow, topic) > 0


def test_what_a_killed_worker_left_open_is_aborted_when_its_successor_starts(
    flow: Flow, topic: str
) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE),
        Mirror(flow.file, name="killed") as mirror,
    ):
        mirror.wait_ready()
        wait_for_progress(mirror, flow, topic)
        mirror.kill()
    with Mirror(flow.file, name="successor") as mirror:
        assert_each_once(mirror, flow, topic)
        remote = flow.remote(topic)
        # Markers take offsets, and an aborted tail may: the log is longer than what readers get.
        held = {p: len(log.records) for p, log in read(flow.target, remote, committed=True).items()}
        assert all(end > held[p] for p, end in ends(flow.target, remote).items())


@pytest.mark.faults
def test_what_a_flow_wrote_before_exactly_once_is_never_twice(setup: Setup, topic: str) -> None:
    """Killed before its first position, at least once: all that it wrote lies behind what is stored."""
    write(setup.a, topic, (Sent(number % PARTITIONS, b"%d" % number) for number in range(20_000)))
    late = {"{target}.offset.flush.interval.ms": "600000"}
    flow = setup.flow(topic, {**SHORT_SESSION, **late})
    with Mirror(flow.file, name="at-least-once") as mirror:
        mirror.wait_ready()
        until(lambda: copied(flow, topic) > 0, 90, "a copy", alive=mirror)
        mirror.kill()
    assert not committed_positions(flow, topic)
    left = copied(flow, topic)
    make_exactly_once(flow)
    with running(flow.file, name="exactly-once", ready=False) as mirror:
        write(setup.a, topic, (Sent(number % PARTITIONS, b"behind") for number in range(40)))
        assert assert_each_once(mirror, flow, topic) == 20_040 > left
        assert mirror.lines("records of a predecessor were found in the target's log")
        mirror.check_defects()


def test_a_connector_may_have_an_offset_topic_of_its_own(setup: Setup, topic: str) -> None:
    own = f"offsets-of-{topic}"
    flow = setup.flow(topic, {**ENABLED, "{source}->{target}.offsets.storage.topic": own})
    records = (Sent(number % PARTITIONS, b"%d" % number) for number in range(400))
    write(setup.a, topic, records)
    for turn in range(2):
        with running(flow.file, name=f"turn-{turn}") as mirror:
            assert assert_each_once(mirror, flow, topic) == 400
    stored = [r for log in read(setup.b, own, committed=True).values() for r in log.records]
    assert {r.value for r in stored if b'"topic":"%s"' % topic.encode() in (r.key or b"")}
    assert sorted(committed_positions(flow, topic)) == list(range(PARTITIONS)), "a copy of them"
