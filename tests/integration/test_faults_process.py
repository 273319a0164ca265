"""The mirror's own process dies, stops, or is started twice: nothing is lost, nothing is doubled."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.main_job import processes, the_tasks_of_a_killed_worker_run_in_the_other
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    assert_equal,
    committed_positions,
    wait_for_copy,
    wait_for_progress,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_500
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("process")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic)


def test_a_kill_under_load_loses_nothing_and_doubles_nothing(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(2):
            with Mirror(flow.file, name=f"killed-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(2 * RATE)
                mirror.kill()
            assert sorted(committed_positions(flow, topic)) == list(range(PARTITIONS))
    with Mirror(flow.file, name="last") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0


def test_a_stop_under_load_ends_with_0_and_the_next_start_doubles_nothing(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for number in (signal.SIGTERM, signal.SIGINT):
            with Mirror(flow.file, name=number.name) as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                mirror.send(number)
                assert mirror.wait() == 0
    with Mirror(flow.file, name="last") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
        assert not mirror.complaints()


@pytest.fixture
def shared_flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    """A flow of two tasks, one for each of two processes (a checkpoint task could be all that one of them has)."""
    properties = {"tasks.max": "2", "emit.checkpoints.enabled": "false"}
    return write_flow(tmp_path, region_a, region_b, topic, properties)


def test_a_second_process_takes_half_of_the_work_and_all_of_it_when_the_first_ends(
    shared_flow: Flow, topic: str
) -> None:
    flow = shared_flow
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="first") as first,
    ):
        first.wait_ready()
        with Mirror(flow.file, name="second") as second:
            second.wait_ready()
            load.wait_acked(RATE)
            # The first gave one of its two tasks up; the other ran on.
            until(
                lambda: _ended_tasks(first) == 1, 20, "the first to give one task up", alive=first
            )
            assert first.stop() == 0
            until(lambda: _begun_tasks(second) == 2, 90, "both tasks in the second", alive=second)
            with Mirror(flow.file, name="third") as third:
                third.wait_ready()
                assert third.stop() == 0
            until(lambda: _begun_tasks(second) == 3, 90, "the third's task", alive=second)
            load.stop()
            truth, copy = wait_for_copy(second, flow, topic)
            assert_equal(truth, copy)
            assert second.stop() == 0


def test_the_tasks_of_a_killed_process_run_in_the_other(shared_flow: Flow, topic: str) -> None:
    the_tasks_of_a_killed_worker_run_in_the_other(shared_flow, topic, processes)


def _begun_tasks(mirror: Mirror) -> int:
    return len(mirror.lines("source task started"))


def _ended_tasks(mirror: Mirror) -> int:
    return len(mirror.lines(r"MirrorSourceConnector\|task-\d+\] task state=UNASSIGNED"))
