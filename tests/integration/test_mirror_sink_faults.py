"""MirrorSink where members, workers and targets fail, and with more tasks than hands: order, content, who does what."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.connect_process import Rest, rest_of
from tests.integration.mirror_process import Mirror, until
from tests.integration.sinks import (
    PARTITIONS,
    a_flow,
    group_of,
    shown,
    wait_committed,
)
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    committed,
    ends,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION, CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

RATE: Final = 1_500
NAME: Final = "MirrorSinkConnector"
WIDE: Final = 12
Unique = Callable[[str], str]
_OWNED: Final = re.compile(
    r"\|task-(\d+)\] partitions (assigned|revoked|lost) partitions=(\S*)( and \d+ more)?"
)


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("sink")
    create_topic(region_a, name, PARTITIONS)
    return name


def test_a_worker_that_is_killed_repeats_at_most_and_the_other_skips_nothing(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = a_flow(tmp_path, region_a, region_b, topic)
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="stays") as stays,
    ):
        with Mirror(flow.file, name="dies") as dies:
            until(
                lambda: stays.lines("partitions assigned") and dies.lines("partitions assigned"),
                90,
                "both have members",
                alive=stays,
            )
            wait_for_progress(stays, flow, topic)
            load.wait_acked(2 * RATE)
            dies.kill()
        load.wait_acked(2 * RATE)
        load.stop()
        truth, copy = wait_for_copy(stays, flow, topic)
        # A step back where members came and one where they went.
        assert_resumed(truth, copy, rewinds=2)
        wait_committed(stays, flow, topic)
        assert stays.stop() == 0


def test_a_target_without_room_stops_the_positions_and_gets_everything_when_it_has(
    region_a: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    with (
        small_disk(tmp_path) as disk,
        Region(
            "full", properties=ANY_SESSION | FEW_INDEXES, folder=disk, min_free_bytes=1
        ) as target,
    ):
        flow = a_flow(tmp_path, region_a, target, topic)
        with Mirror(flow.file) as mirror:
            with Load(region_a, topic, PARTITIONS, rate=RATE, value_bytes=1_000) as load:
                wait_for_progress(mirror, flow, topic)
                ballast = disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 90, "the broker to give up")
                load.wait_acked(2 * RATE)
                behind = committed(flow.source, group_of(flow), topic)
                assert sum(behind.values()) < sum(ends(region_a, topic).values())
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            truth, copy = wait_for_copy(mirror, flow, topic, timeout_s=90)
            assert_resumed(truth, copy, rewinds=2)
            wait_committed(mirror, flow, topic)
            assert mirror.stop() == 0


def spread(mirror: Mirror) -> dict[int, int]:
    """Return how many partitions each task has, as its log says."""
    counts: dict[int, int] = {}
    for line in mirror.lines(r"partitions (assigned|revoked|lost)"):
        found = _OWNED.search(line)
        assert found is not None, line
        names = [it for it in found[3].split(",") if it]
        more = int(re.sub(r"\D", "", found[4] or "") or 0)
        sign = 1 if found[2] == "assigned" else -1
        task = int(found[1])
        counts[task] = counts.get(task, 0) + sign * (len(names) + more)
    return {task: count for task, count in counts.items() if count}


def test_a_record_that_is_larger_than_the_buffer_is_copied(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    large, name = 20_000_000, unique("sink-large")
    limit = {"max.message.bytes": str(2 * large)}
    create_topic(region_a, name, PARTITIONS, config=limit)
    flow = a_flow(
        tmp_path,
        region_a,
        region_b,
        name,
        {
            "producer.override.max.request.size": str(2 * large),
            "producer.override.buffer.memory": "1000000",
        },
    )
    sizes = [100, 100, large, 100, 100, large, large, 100]
    records = [Sent(0, b"%d" % n + bytes(size)) for n, size in enumerate(sizes)]
    records += [Sent(1, b"%d" % n) for n in range(50)]
    write(flow.source, name, records, message_max_bytes=2 * large)
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, name)
        assert_equal(truth, copy)
        wait_committed(mirror, flow, name)
        assert mirror.stop() == 0


@pytest.mark.parametrize(("partitions", "steps"), [(WIDE, (11, 50, 1)), (200, (11,))])
def test_as_many_members_as_tasks_share_the_partitions_evenly(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    partitions: int,
    steps: tuple[int, ...],
) -> None:
    topic = unique("wide")
    create_topic(region_a, topic, partitions)
    flow = a_flow(tmp_path, region_a, region_b, topic, {"tasks.max": str(steps[0])})
    with Mirror(flow.file) as mirror:
        rest = Rest(rest_of(mirror).url + f"{flow.source_alias}/{flow.target_alias}/")
        for round_, asked in enumerate(steps):
            tasks = min(asked, partitions)
            if round_:
                rest.ok("PATCH", f"connectors/{NAME}/config", {"tasks.max": str(asked)})
            rest.wait_states(NAME, *["RUNNING"] * (1 + tasks))
            share = {partitions // tasks, -(-partitions // tasks)}
            until(
                lambda: len(spread(mirror)) == tasks and set(spread(mirror).values()) <= share,  # noqa: B023 - called here
                120,
                lambda: f"{tasks} members with {share}: {spread(mirror)}",  # noqa: B023 - called here
                alive=mirror,
            )
            write(
                flow.source, topic, [Sent(n, b"%d" % round_, b"%d" % n) for n in range(partitions)]
            )
            assert_equal(*wait_for_copy(mirror, flow, topic))
            wait_committed(mirror, flow, topic)
        until(
            lambda: shown(mirror, flow)["lag_records"] == 0,
            60,
            lambda: str(shown(mirror, flow)),
            alive=mirror,
        )
        assert mirror.stop() == 0
