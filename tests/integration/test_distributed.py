"""Several workers of a flow: who has what, changes while leaders die, kills, freezes and rolling restarts."""

import json
import logging
import threading
from typing import Final

import pytest

from tests.integration.mirror_process import Flow, Mirror, until, until_equal
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM, TASKS, Answer, Workers, assert_nothing_lost
from tests.integration.traffic import Load, assert_equal, committed_positions, read, wait_for_copy

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(480)]

PARTITIONS: Final = 6
RATE: Final = 500
NAMES: Final = ("one", "two", "three")
MARK: Final = "refresh.topics.interval.seconds"
"""A property whose change starts the connector and its tasks anew."""
GONE: Final = "IO Error trying to forward REST request"


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("changed", PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return setup.flow(topic, {"tasks.max": "3", **CALM})


def test_every_worker_takes_changes_for_the_leader_and_the_owners(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE), Workers(flow) as workers:
        workers.settle(*NAMES)
        for number, worker in enumerate(workers.running, 11):
            assert workers.calmly(worker, "/pause", "PUT") == 202
            workers.until_states("PAUSED")
            assert workers.calmly(worker, "/resume", "PUT") == 202
            workers.until_states("RUNNING")
            change = {MARK: str(number)}
            assert workers.calmly(worker, "/config", "PATCH", change) == 200
            until_marked(workers, str(number))
            assert workers.calmly(worker, "/restart?includeTasks=true", "POST") == 202
            workers.until_spread()
            for task in range(3):  # one of them is the asked worker's own
                assert workers.calmly(worker, f"/tasks/{task}/restart", "POST") == 204
            workers.until_spread()
        workers.wait_for_copy_everywhere(topic)
        for worker in workers.running:
            assert not worker.complaints()
        workers.stop()


def test_a_change_whose_leader_is_killed_is_made_whole_or_never(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        for tasks, accepted_first in (("6", True), ("4", False)):
            leader = workers.leader()
            asked = next(worker for worker in workers.running if worker is not leader)
            before = workers.config(asked)["tasks.max"]
            answers: list[int] = []
            change = threading.Thread(
                target=lambda: answers.append(  # noqa: B023 - joined in this round
                    workers.patch(asked, {"tasks.max": tasks})  # noqa: B023
                )
            )
            change.start()
            if accepted_first:  # the tasks of the new config are still to be made
                change.join()
                assert answers == [200]
            workers.kill(leader)
            change.join()
            # The round without the leader begins with what the config topic holds by then.
            workers.until_spread(tasks=lambda: int(workers.config(asked)["tasks.max"]))  # noqa: B023 - called here
            until_same_config(workers)
            now = workers.config(asked)["tasks.max"]
            assert now in ({tasks} if answers == [200] else {tasks, before})
            workers.wait_for_copy_everywhere(topic)
        (asked,) = workers.running
        assert workers.patch(asked, {"tasks.max": "2"}) == 200
        workers.until_spread(tasks=2)
        load.stop()
        assert_nothing_lost(flow, topic, asked)
        workers.stop()


def test_a_change_during_a_rebalance_is_answered_409_or_made(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        changes = Changes(workers)
        changes.make(3)
        assert changes.refused == []
        workers.kill(workers.leader())
        changes.make(8)
        workers.start("again")
        changes.make(8)
        workers.stop(workers.running[0])
        changes.make(8)
        workers.until_spread()
        until_marked(workers, changes.last)
        # As in Connect: no answer of a leader that is gone is 500 until the others know it.
        unexpected = [it for it in changes.refused if it[0] != 409 and GONE not in str(it[1])]
        assert not unexpected, unexpected
        changes.refused.clear()
        changes.make(3)
        assert changes.refused == [], "a calm group takes every change"
        until_marked(workers, changes.last)
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert_nothing_lost(flow, topic, workers.running[0])
        workers.stop()


class Changes:
    """Asks one worker after the other for a change, and knows the last one that was accepted."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._number = 100
        self.last = workers.config(workers.running[0]).get(MARK, "")
        self.refused: list[Answer] = []

    def make(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            asked = self._workers.running[self._number % len(self._workers.running)]
            answer = self._workers.ask(asked, "/config", "PATCH", {MARK: str(self._number)})
            if answer[0] == 200:
                self.last = str(self._number)
                self._until_seen_by(asked)
            else:
                self.refused.append(answer)
                assert not self._seen_by(asked, str(self._number)), "a refused change was made"

    def _until_seen_by(self, worker: Mirror) -> None:
        until(lambda: self._seen_by(worker), 90, f"{worker.name} to see {self.last}")

    def _seen_by(self, worker: Mirror, value: str | None = None) -> bool:
        return self._workers.config(worker).get(MARK, "") == (value or self.last)


def until_marked(workers: Workers, value: str) -> None:
    """Wait until every worker has read a change."""
    until(
        lambda: all(workers.config(worker).get(MARK) == value for worker in workers.running),
        90,
        lambda: f"{value} everywhere: {[workers.config(w).get(MARK) for w in workers.running]}",
    )


def until_same_config(workers: Workers) -> None:
    """Wait until every worker returns the same config."""
    until_equal(
        lambda: len({tuple(workers.config(worker).items()) for worker in workers.running}), 1
    )


log = logging.getLogger(__name__)


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


def test_a_frozen_worker_gives_its_task_up_and_is_no_second_owner(flow: Flow, topic: str) -> None:
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


def test_a_leader_that_stops_right_after_the_others_leaves_javas_task_configs(setup: Setup) -> None:
    """Within one heartbeat its last plan has the others still."""
    topic, rate = setup.topic("left", PARTITIONS), 3_000_000
    limit = {"{source}->{target}.flow.max.bytes.per.second": str(rate)}
    flow = setup.flow(topic, CALM | limit | {"tasks.max": str(TASKS)})
    name = f"mm2-configs.{flow.source_alias}.internal"

    def published() -> list[str]:
        keys = {b"task-MirrorSourceConnector-%d" % number for number in range(TASKS)}
        records = read(flow.target, name)[0].records
        values = {it.key: it.value for it in records if it.key in keys}
        configs = [json.loads(value or b"{}")["properties"] for value in values.values()]
        return [it["flow.max.bytes.per.second"] for it in configs]

    with Workers(flow) as workers:
        workers.settle("one", "two")
        assert published() == [str(rate // TASKS)] * TASKS
        leaders = [it for it in workers.running if it.lines("this worker leads the group")]
        workers.stop(*(it for it in workers.running if it not in leaders), leaders[-1])
    assert published() == [str(rate)] * TASKS
