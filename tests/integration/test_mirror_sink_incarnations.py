"""MirrorSink where its source topics are deleted and created again, and where the source deletes what a paused flow has not read."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.cluster_changes import delete_records, delete_topic, topics_of
from tests.integration.flow_questions import Asked, path_of
from tests.integration.ledger_scenes import Entry, wait_for_entries
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.sinks import PARTITIONS, a_flow, shown, wait_committed, wait_ready
from tests.integration.traffic import Record, Sent, ends, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

BEFORE: Final = 60
"""Records of the first incarnation, per partition."""
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("sink-again")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return a_flow(tmp_path, region_a, region_b, topic, {"offset.flush.interval.ms": "500"})


def push(flow: Flow, topic: str, mark: str, count: int) -> list[Record]:
    """Write so many records into each partition, and return those of partition 0."""
    records = [Sent(n % PARTITIONS, f"{mark}{n}".encode()) for n in range(count * PARTITIONS)]
    write(flow.source, topic, records)
    return read(flow.source, topic)[0].records[-count:]


def recreate(flow: Flow, topic: str, create_topic: CreateTopic) -> None:
    delete_topic(flow.source, topic)
    until(lambda: topic not in topics_of(flow.source), 90, "deletion")
    create_topic(flow.source, topic, PARTITIONS)


def pause(mirror: Mirror, flow: Flow, **only: str) -> Asked:
    """Pause, and wait until no task reads any more."""
    ask = Asked(mirror)
    ask.done("POST", f"{path_of(flow)}/pause", **only)

    def states() -> set[str]:
        return {it["state"] for it in ask("GET", f"{path_of(flow)}/partitions")[1]}

    until(lambda: states() == {"PAUSED"}, 60, lambda: str(states()), alive=mirror)
    return ask


def wait_for_records(mirror: Mirror, flow: Flow, topic: str, count: int) -> None:
    """Wait until each partition of the copy has at least so many records."""
    until(
        lambda: all(
            ends(flow.target, flow.remote(topic)).get(p, 0) >= count for p in range(PARTITIONS)
        ),
        90,
        lambda: f"{count} records each, there are {ends(flow.target, flow.remote(topic))}",
        alive=mirror,
    )


@pytest.mark.parametrize("alone", [False, True], ids=["flow", "topic"])
@pytest.mark.parametrize("after", [BEFORE - 20, BEFORE + 40], ids=["fewer", "more"])
def test_a_topic_created_again_while_it_is_paused_is_copied_whole(
    flow: Flow, topic: str, create_topic: CreateTopic, alone: bool, after: int
) -> None:
    only = {"topic": topic} if alone else {}
    with Mirror(flow.file) as mirror:
        wait_ready(mirror)
        first = push(flow, topic, "first", BEFORE)
        wait_for_records(mirror, flow, topic, BEFORE)
        wait_committed(mirror, flow, topic)
        ask = pause(mirror, flow, **only)
        push(flow, topic, "gone", 7)
        until(
            lambda: shown(mirror, flow)["lag_records"] == 7 * PARTITIONS,
            60,
            lambda: str(shown(mirror, flow)),
            alive=mirror,
        )
        recreate(flow, topic, create_topic)
        second = push(flow, topic, "second", after)
        ask.done("POST", f"{path_of(flow)}/resume", **only)
        wait_for_records(mirror, flow, topic, BEFORE + after)
        wait_committed(mirror, flow, topic)
        copy = read(flow.target, flow.remote(topic))
        assert [it.value for it in copy[0].records] == [it.value for it in [*first, *second]]
        assert all(len(log.records) == BEFORE + after for log in copy.values())
        found = wait_for_entries(flow, PARTITIONS, mirror)
        assert {(it.kind, it.first) for it in found} == {("recreated", BEFORE)}
        assert mirror.stop() == 0


def test_a_topic_created_again_while_no_worker_runs_is_copied_whole(
    flow: Flow, topic: str, create_topic: CreateTopic
) -> None:
    first = push(flow, topic, "first", BEFORE)
    with Mirror(flow.file) as mirror:
        wait_for_records(mirror, flow, topic, BEFORE)
        wait_committed(mirror, flow, topic)
        assert mirror.stop() == 0
    recreate(flow, topic, create_topic)
    second = push(flow, topic, "second", BEFORE + 40)
    with Mirror(flow.file) as mirror:
        wait_for_records(mirror, flow, topic, 2 * BEFORE + 40)
        wait_committed(mirror, flow, topic)
        copy = read(flow.target, flow.remote(topic))
        assert [it.value for it in copy[0].records] == [it.value for it in [*first, *second]]
        found = wait_for_entries(flow, PARTITIONS, mirror)
        assert {(it.kind, it.last - it.first) for it in found} == {("recreated", -1)}
        assert mirror.stop() == 0


def test_what_retention_takes_from_a_paused_flow_is_in_the_ledger(flow: Flow, topic: str) -> None:
    with Mirror(flow.file) as mirror:
        wait_ready(mirror)
        push(flow, topic, "first", BEFORE)
        wait_for_records(mirror, flow, topic, BEFORE)
        wait_committed(mirror, flow, topic)
        ask = pause(mirror, flow)
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
        assert mirror.stop() == 0
