"""MirrorSink under faults: members and tasks, kills, a target without room, topics that are created again."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, cast

import pytest

from tests.integration.cluster_changes import (
    create_led_by,
    delete_records,
    delete_topic,
    forbid_writing,
    grow,
    permit_writing,
    topics_of,
)
from tests.integration.connect_process import rest_of
from tests.integration.flow_questions import Asked, path_of, wait_for_records
from tests.integration.ledger_scenes import Entry, wait_for_entries
from tests.integration.mirror_process import (
    THREE_REPLICAS,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
)
from tests.integration.setups import Setup
from tests.integration.sinks import (
    PARTITIONS,
    SHORT_SESSIONS,
    a_flow,
    group_of,
    shown,
    wait_committed,
    wait_ready,
)
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.test_quotas import throttled
from tests.integration.traffic import (
    Load,
    Record,
    Sent,
    assert_equal,
    assert_resumed,
    committed,
    copied,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.matrix import matrix
from tests.kit.regions import ANY_SESSION, CreateTopic, NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

RATE: Final = 1_500
NAME: Final = "MirrorSinkConnector"
WIDE: Final = 12
_OWNED: Final = re.compile(
    r"\|task-(\d+)\] partitions (assigned|revoked|lost) partitions=(\S*)( and \d+ more)?"
)


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("sink", PARTITIONS)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_two_workers_share_the_group_and_one_that_ends_hands_its_part_over(
    setup: Setup, topic: str, how: str
) -> None:
    flow = a_flow(setup.folder, setup.a, setup.b, topic, sessions=SHORT_SESSIONS)
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        running(flow.file, name="stays", ready=False) as stays,
    ):
        with Mirror(flow.file, name=how) as leaves:
            until(
                lambda: stays.lines("partitions assigned") and leaves.lines("partitions assigned"),
                alive=stays,
            )
            wait_for_progress(stays, flow, topic)
            load.wait_acked(2 * RATE)
            if how == "killed":
                leaves.kill()
            else:
                assert leaves.stop() == 0
        load.wait_acked(2 * RATE)
        load.stop()
        truth, copy = wait_for_copy(stays, flow, topic)
        # A step back where members came and one where they went; what is stopped in order doubles nothing.
        doubled = assert_resumed(truth, copy, rewinds=2)
        assert how == "killed" or doubled == 0
        wait_committed(stays, flow, topic)


def test_a_target_without_room_stops_the_positions_and_gets_everything_when_it_has(
    setup: Setup, topic: str
) -> None:
    with (
        small_disk(setup.folder) as disk,
        Region(
            "full", properties=ANY_SESSION | FEW_INDEXES, folder=disk, min_free_bytes=1
        ) as target,
    ):
        flow = a_flow(setup.folder, setup.a, target, topic)
        with running(flow.file, ready=False) as mirror:
            with Load(setup.a, topic, PARTITIONS, rate=RATE, value_bytes=1_000) as load:
                wait_for_progress(mirror, flow, topic)
                ballast = disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 90, "the broker to give up")
                load.wait_acked(2 * RATE)
                behind = committed(flow.source, group_of(flow), topic)
                assert sum(behind.values()) < sum(ends(setup.a, topic).values())
                ballast.unlink()
                target.start()
                wait_for_progress(mirror, flow, topic)
            truth, copy = wait_for_copy(mirror, flow, topic, timeout_s=90)
            assert_resumed(truth, copy, rewinds=2)
            wait_committed(mirror, flow, topic)


def test_quotas_of_both_sides_double_and_skip_nothing(setup: Setup, topic: str) -> None:
    small_reads = {"consumer.override.max.partition.fetch.bytes": "100000"}
    flow = a_flow(setup.folder, setup.a, setup.b, topic, small_reads)
    records = [Sent(n % PARTITIONS, b"%d" % n + bytes(10_000)) for n in range(120)]
    write(setup.a, topic, records, batch_num_messages=5)
    with (
        throttled((setup.a, "consumer"), (setup.b, "producer"), rate=30_000),
        running(flow.file, ready=False) as mirror,
    ):
        until(lambda: copied(flow, topic) >= len(records), 240, "all", alive=mirror)
        wait_committed(mirror, flow, topic)
        assert not mirror.lines("REQTMOUT"), "nothing is asked on a connection that is held back"
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


@contextmanager
def taking_nothing(stops: str, flow: Flow, topic: str) -> Generator[int]:
    """A copy that takes nothing of one partition, whose number is returned."""
    target, remote = flow.target, flow.remote(topic)
    if stops == "no partition":
        grow(flow.source, topic, 2)
        yield 1
        grow(target, remote, 2)
    elif stops == "no right":
        forbid_writing(target, remote)
        yield 0
        permit_writing(target, remote)
    else:
        region = cast("Region", target)
        region.node(2).kill()
        yield 0
        region.start()


def a_target(stops: str, request: pytest.FixtureRequest) -> KafkaAddress:
    if stops == "no leader":
        new_region = cast("NewRegion", request.getfixturevalue("new_region"))
        return new_region("three", nodes=3)
    name = "guarded" if stops == "no right" else "region_b"
    return cast("KafkaAddress", request.getfixturevalue(name))


@pytest.mark.parametrize("stops", ["no leader", "no partition", "no right"])
def test_a_copy_that_takes_nothing_is_held_and_the_others_of_its_task_go_on(
    request: pytest.FixtureRequest, setup: Setup, stops: str
) -> None:
    target = a_target(stops, request)
    stuck, fine = setup.topic("held-stuck", 1), setup.topic("held-fine", 1)
    flow = a_flow(
        setup.folder,
        setup.a,
        target,
        f"{stuck},{fine}",
        {
            "tasks.max": "1",
            "refresh.topics.enabled": "false",
            "consumer.override.metadata.max.age.ms": "2000",
        },
    )
    if stops == "no leader":
        with flow.file.open("a") as lines:
            lines.writelines(f"{name} = {text}\n" for name, text in THREE_REPLICAS.items())
        create_led_by(target, flow.remote(stuck), [[2]])

    def state(topic: str, number: int) -> str:
        found = Asked(mirror).done("GET", f"{path_of(flow)}/partitions")
        states: dict[tuple[str, int], str] = {
            (it["topic"], it["partition"]): it["state"] for it in found
        }
        return states.get((topic, number), "")

    with running(flow.file, ready=False) as mirror:
        for name in (stuck, fine):
            write(flow.source, name, [Sent(0, b"%d" % n) for n in range(10)])
            wait_for_copy(mirror, flow, name)
            wait_committed(mirror, flow, name)
        with taking_nothing(stops, flow, stuck) as number:
            write(flow.source, stuck, [Sent(number, b"%d" % n) for n in range(1_000)])
            until(lambda: state(stuck, number) == "HELD", 180, "a held partition", alive=mirror)
            write(flow.source, stuck, [Sent(number, b"behind %d" % n) for n in range(100)])
            write(flow.source, fine, [Sent(0, b"more %d" % n) for n in range(1_000)])
            assert_equal(*wait_for_copy(mirror, flow, fine))
            wait_committed(mirror, flow, fine)
            assert state(stuck, number) == "HELD"
        assert_equal(*wait_for_copy(mirror, flow, stuck))
        wait_committed(mirror, flow, stuck)
        until(lambda: state(stuck, number) == "RUNNING", 120, "its end", alive=mirror)


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


def test_a_record_that_is_larger_than_the_buffer_is_copied(setup: Setup) -> None:
    large, name = 20_000_000, setup.unique("sink-large")
    limit = {"max.message.bytes": str(2 * large)}
    setup.create_topic(setup.a, name, PARTITIONS, config=limit)
    flow = a_flow(
        setup.folder,
        setup.a,
        setup.b,
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
    with running(flow.file, ready=False) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, name))
        wait_committed(mirror, flow, name)


@pytest.mark.parametrize(("partitions", "steps"), [(WIDE, (11, 50, 1)), (200, (11,))])
def test_as_many_members_as_tasks_share_the_partitions_evenly(
    setup: Setup, partitions: int, steps: tuple[int, ...]
) -> None:
    topic = setup.topic("wide", partitions)
    flow = a_flow(setup.folder, setup.a, setup.b, topic, {"tasks.max": str(steps[0])})
    with running(flow.file, ready=False) as mirror:
        rest = rest_of(mirror, flow)
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
        until_equal(lambda: shown(mirror, flow)["lag_records"], 0, timeout_s=120, alive=mirror)


BEFORE: Final = 60
"""Records of the first incarnation, per partition."""


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return a_flow(setup.folder, setup.a, setup.b, topic, {"offset.flush.interval.ms": "500"})


def push(flow: Flow, topic: str, mark: str, count: int) -> list[Record]:
    """Write so many records into each partition, and return those of partition 0."""
    records = [Sent(n % PARTITIONS, f"{mark}{n}".encode()) for n in range(count * PARTITIONS)]
    write(flow.source, topic, records)
    return read(flow.source, topic)[0].records[-count:]


def recreate(flow: Flow, topic: str, create_topic: CreateTopic) -> None:
    delete_topic(flow.source, topic)
    until(lambda: topic not in topics_of(flow.source), 90, "deletion")
    create_topic(flow.source, topic, PARTITIONS)


@pytest.mark.parametrize(
    ("alone", "after"),
    matrix(
        [(False, BEFORE - 20), (True, BEFORE + 40)], [(True, BEFORE - 20), (False, BEFORE + 40)]
    ),
)
def test_a_topic_created_again_while_it_is_paused_is_copied_whole(
    flow: Flow, topic: str, create_topic: CreateTopic, alone: bool, after: int
) -> None:
    only = {"topic": topic} if alone else {}
    with running(flow.file, ready=False) as mirror:
        wait_ready(mirror)
        first = push(flow, topic, "first", BEFORE)
        wait_for_records(mirror, flow, topic, BEFORE * PARTITIONS)
        wait_committed(mirror, flow, topic)
        ask = Asked(mirror)
        ask.pause(flow, **only)
        revoked = len(mirror.lines("partitions revoked"))
        push(flow, topic, "gone", 7)
        lag = 7 * PARTITIONS
        until_equal(lambda: shown(mirror, flow)["lag_records"], lag, timeout_s=120, alive=mirror)
        recreate(flow, topic, create_topic)
        second = push(flow, topic, "second", after)
        ask.done("POST", f"{path_of(flow)}/resume", **only)
        wait_for_records(mirror, flow, topic, (BEFORE + after) * PARTITIONS)
        wait_committed(mirror, flow, topic)
        copy = read(flow.target, flow.remote(topic))
        assert [it.value for it in copy[0].records] == [it.value for it in [*first, *second]]
        assert all(len(log.records) == BEFORE + after for log in copy.values())
        found = wait_for_entries(flow, PARTITIONS, mirror)
        assert {it.kind for it in found} == {"recreated"}
        # A member that sees the deletion gives its partitions back; their positions went with the topic.
        is_seen = len(mirror.lines("partitions revoked")) > revoked
        assert {it.first for it in found} <= ({0, BEFORE} if is_seen else {BEFORE})


def test_a_topic_created_again_while_no_worker_runs_is_copied_whole(
    flow: Flow, topic: str, create_topic: CreateTopic
) -> None:
    first = push(flow, topic, "first", BEFORE)
    with running(flow.file, ready=False) as mirror:
        wait_for_records(mirror, flow, topic, BEFORE * PARTITIONS)
        wait_committed(mirror, flow, topic)
    recreate(flow, topic, create_topic)
    second = push(flow, topic, "second", BEFORE + 40)
    with running(flow.file, ready=False) as mirror:
        wait_for_records(mirror, flow, topic, 2 * BEFORE + 40)
        wait_committed(mirror, flow, topic)
        copy = read(flow.target, flow.remote(topic))
        assert [it.value for it in copy[0].records] == [it.value for it in [*first, *second]]
        found = wait_for_entries(flow, PARTITIONS, mirror)
        assert {(it.kind, it.last - it.first) for it in found} == {("recreated", -1)}


def test_what_retention_takes_from_a_paused_flow_is_in_the_ledger(flow: Flow, topic: str) -> None:
    with running(flow.file, ready=False) as mirror:
        wait_ready(mirror)
        push(flow, topic, "first", BEFORE)
        wait_for_records(mirror, flow, topic, BEFORE * PARTITIONS)
        wait_committed(mirror, flow, topic)
        ask = Asked(mirror)
        ask.pause(flow)
        push(flow, topic, "second", 30)
        for partition in range(PARTITIONS):
            delete_records(flow.source, topic, partition, BEFORE + 10 + partition)
        ask.done("POST", f"{path_of(flow)}/resume")
        wait_committed(mirror, flow, topic)
        found = wait_for_entries(flow, PARTITIONS, mirror)
        policy = "gap.policy=continue"
        assert sorted(found, key=lambda it: it.partition) == [
            Entry("retention", topic, p, BEFORE, BEFORE + 9 + p, policy) for p in range(PARTITIONS)
        ]
        copy = read(flow.target, flow.remote(topic))
        assert [len(copy[p].records) for p in range(PARTITIONS)] == [
            BEFORE + 20 - p for p in range(PARTITIONS)
        ]
