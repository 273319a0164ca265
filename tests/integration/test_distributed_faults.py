"""Three workers on one file: what happens to one of them moves its work only, and costs no record.

Flow: load -> three processes -> SIGKILL, SIGSTOP or a rolling restart -> who runs what, and the copy.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.mirror_process import Flow, write_flow
from tests.integration.several_workers import CALM, Workers, assert_nothing_lost
from tests.integration.traffic import Load, assert_equal, committed_positions, wait_for_copy
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(480)]

log = logging.getLogger(__name__)

PARTITIONS: Final = 6
RATE: Final = 500
NAMES: Final = ("one", "two", "three")


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Callable[[str], str], create_topic: CreateTopic) -> str:
    name = unique("shared")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic, {"tasks.max": "3", **CALM})


@pytest.mark.parametrize("killed", ["the leader", "a follower"])
def test_only_the_tasks_of_a_killed_worker_move_and_one_that_comes_back_stops_no_other(
    killed: str, flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        owners = workers.settle(*NAMES)
        workers.wait_for_copy_everywhere(topic)
        leader = workers.leader()
        victim = next(w for w in workers.running if (w is leader) == (killed == "the leader"))
        (lost,) = [task for task, owner in owners.items() if owner is victim]
        started = {worker.name: workers.starts(worker) for worker in workers.running}
        stopped = {worker.name: workers.stops(worker) for worker in workers.running}
        workers.kill(victim)
        committed = committed_positions(flow, topic)
        resumed_s = workers.wait_for_copy_everywhere(topic)
        log.info("every partition is copied on %.1f s after SIGKILL of %s", resumed_s, killed)
        now = workers.until_spread()
        assert now == owners | {lost: now[lost]}, "only the killed one's task moved"
        started[now[lost].name].append(lost)
        assert_history(workers, started, stopped)
        workers.start("again")
        last = workers.until_spread()
        (moved,) = [task for task in now if last[task] is not now[task]]
        started["again"], stopped["again"] = [moved], []
        stopped[now[moved].name].append(moved)
        assert_history(workers, started, stopped)
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        for partition, steps in assert_nothing_lost(flow, topic, now[lost]).items():
            # What was not committed is there twice, where the killed one copied; nothing else.
            assert steps in ([], [committed.get(partition, -1) + 1])
        workers.stop()


def test_a_frozen_worker_gives_its_task_up_and_comes_back_without_a_second_owner(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        owners = workers.settle(*NAMES)
        workers.wait_for_copy_everywhere(topic)
        frozen = next(worker for worker in workers.running if worker is not workers.leader())
        (lost,) = [task for task, owner in owners.items() if owner is frozen]
        with workers.frozen(frozen):
            committed = committed_positions(flow, topic)
            now = workers.until_spread()
            assert now == owners | {lost: now[lost]}, "only the frozen one's task moved"
            workers.wait_for_copy_everywhere(topic)
        workers.until_spread()
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        for partition, steps in assert_nothing_lost(flow, topic, now[lost]).items():
            assert steps in ([], [committed.get(partition, -1) + 1])
        workers.stop()


def test_a_rolling_restart_doubles_nothing(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        for old in workers.running:
            workers.stop(old)
            workers.start(f"{old.name}-new")
            workers.until_spread()
            workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert_equal(*wait_for_copy(workers.running[-1], flow, topic))
        complaints = {worker.name: worker.complaints() for worker in workers.running}
        assert not any(complaints.values()), complaints
        workers.stop()


def assert_history(
    workers: Workers, started: dict[str, list[int]], stopped: dict[str, list[int]]
) -> None:
    """The running workers have started and given up exactly these tasks."""
    running = workers.running
    assert {w.name: workers.starts(w) for w in running} == {
        w.name: started[w.name] for w in running
    }
    assert {w.name: workers.stops(w) for w in running} == {w.name: stopped[w.name] for w in running}
