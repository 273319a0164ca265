"""The mirror's own process dies, stops, or is started twice: nothing is lost, nothing is doubled."""

import signal

import pytest

from tests.integration.main_job import processes, the_tasks_of_a_killed_worker_run_in_the_other
from tests.integration.mirror_process import Flow, Mirror, running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    assert_equal,
    committed_positions,
    wait_for_copy,
    wait_for_progress,
)

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_500


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("process", PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return setup.flow(topic)


def test_a_kill_under_load_loses_nothing_and_doubles_nothing(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(2):
            with Mirror(flow.file, name=f"killed-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(2 * RATE)
                until_equal(
                    lambda: sorted(committed_positions(flow, topic)),
                    list(range(PARTITIONS)),
                    "positions of all partitions",
                    alive=mirror,
                )
                mirror.kill()
    with running(flow.file, name="last", ready=False) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))


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
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
        assert not mirror.complaints()


@pytest.fixture
def shared_flow(setup: Setup, topic: str) -> Flow:
    """A flow of two tasks, one for each of two processes (a checkpoint task could be all that one of them has)."""
    properties = {"tasks.max": "2", "emit.checkpoints.enabled": "false"}
    return setup.flow(topic, properties)


def test_a_second_process_takes_half_of_the_work_and_all_of_it_when_the_first_ends(
    shared_flow: Flow, topic: str
) -> None:
    flow = shared_flow
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="first") as first,
    ):
        first.wait_ready()
        with running(flow.file, name="second") as second:
            load.wait_acked(RATE)
            # The first gave one of its two tasks up; the other ran on.
            until(lambda: _ended_tasks(first) == 1, 120, "the first to give one up", alive=first)
            assert first.stop() == 0
            until(lambda: _begun_tasks(second) == 2, 90, "both tasks in the second", alive=second)
            with Mirror(flow.file, name="third") as third:
                third.wait_ready()
                assert third.stop() == 0
            until(lambda: _begun_tasks(second) == 3, 90, "the third's task", alive=second)
            load.stop()
            assert_equal(*wait_for_copy(second, flow, topic))


def test_the_tasks_of_a_killed_process_run_in_the_other(shared_flow: Flow, topic: str) -> None:
    the_tasks_of_a_killed_worker_run_in_the_other(shared_flow, topic, processes)


def _begun_tasks(mirror: Mirror) -> int:
    return len(mirror.lines("source task started"))


def _ended_tasks(mirror: Mirror) -> int:
    return len(mirror.lines(r"MirrorSourceConnector\|task-\d+\] task state=UNASSIGNED"))
