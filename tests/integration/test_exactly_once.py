"""Exactly once on real brokers: kills, freezes and stops under load lose nothing and double nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.exactly_once import (
    ENABLED,
    SMALL_LIMIT,
    assert_each_once,
    first_start,
    make_exactly_once,
    write_small_batches,
)
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
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
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS = 4
RATE = 1_500
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("once")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic, ENABLED)


def test_kills_and_stops_under_load_double_nothing(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn, ends_by in enumerate(("kill", "stop", "kill")):
            with Mirror(flow.file, name=f"{ends_by}-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                if ends_by == "kill":
                    mirror.kill()
                else:
                    assert mirror.stop() == 0, mirror.tail()
    with Mirror(flow.file, name="last") as mirror:
        assert assert_each_once(mirror, flow, topic) > 4 * RATE
        mirror.check_defects()
        assert mirror.stop() == 0


@pytest.mark.parametrize("partitions", [1, 12])
def test_first_starts_over_topics_that_take_less_than_joined_batches_restart_no_task(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    partitions: int,
) -> None:
    for turn in range(3):
        topic = unique("limited")
        create_topic(region_a, topic, partitions, config=SMALL_LIMIT)
        write_small_batches(region_a, topic, partitions, 24_000)
        flow = write_flow(tmp_path, region_a, region_b, topic, ENABLED)
        assert first_start(flow, topic, name=f"turn-{turn}", killed=turn == 1) == 24_000


def test_a_worker_that_was_frozen_writes_nothing_when_it_wakes(flow: Flow, topic: str) -> None:
    with Workers(flow) as workers, Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        first, second = workers.start("one", "two")
        workers.wait_for_start(topic)
        for frozen in (first, second):
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


def test_what_a_flow_wrote_before_it_was_exactly_once_is_not_written_again(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    tmp_path: Path,
) -> None:
    """Killed before its first position, at least once: all that it wrote lies behind what is stored."""
    write(region_a, topic, (Sent(number % PARTITIONS, b"%d" % number) for number in range(20_000)))
    late = {"{target}.offset.flush.interval.ms": "600000"}
    flow = write_flow(tmp_path, region_a, region_b, topic, {**SHORT_SESSION, **late})
    with Mirror(flow.file, name="at-least-once") as mirror:
        mirror.wait_ready()
        until(lambda: copied(flow, topic) > 0, 90, "a copy", alive=mirror)
        mirror.kill()
    assert not committed_positions(flow, topic)
    left = sum(ends(flow.target, flow.remote(topic)).values())
    make_exactly_once(flow)
    with Mirror(flow.file, name="exactly-once") as mirror:
        write(region_a, topic, (Sent(number % PARTITIONS, b"behind") for number in range(40)))
        assert assert_each_once(mirror, flow, topic) == 20_040 > left
        assert mirror.lines("records of a predecessor were found in the target's log")
        mirror.check_defects()
        assert mirror.stop() == 0


def test_a_connector_may_have_an_offset_topic_of_its_own(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    own = f"offsets-of-{topic}"
    flow = write_flow(
        tmp_path,
        region_a,
        region_b,
        topic,
        {**ENABLED, "{source}->{target}.offsets.storage.topic": own},
    )
    records = (Sent(number % PARTITIONS, b"%d" % number) for number in range(400))
    write(region_a, topic, records)
    for turn in range(2):
        with Mirror(flow.file, name=f"turn-{turn}") as mirror:
            mirror.wait_ready()
            assert assert_each_once(mirror, flow, topic) == 400
            assert mirror.stop() == 0
    stored = [r for log in read(region_b, own, committed=True).values() for r in log.records]
    assert {r.value for r in stored if b'"topic":"%s"' % topic.encode() in (r.key or b"")}
    assert sorted(committed_positions(flow, topic)) == list(range(PARTITIONS)), "a copy of them"
