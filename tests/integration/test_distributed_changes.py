"""Changes over REST while the group is not calm: they are made whole or not at all, wherever they were asked for.

Flow: load -> three processes -> a change through any of them, while one dies or joins -> what every worker says.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.several_workers import CALM, Answer, Workers, assert_nothing_lost
from tests.integration.traffic import Load
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(480)]

PARTITIONS: Final = 6
RATE: Final = 500
NAMES: Final = ("one", "two", "three")
MARK: Final = "refresh.topics.interval.seconds"
"""A property whose change starts the connector and its tasks anew."""

GONE: Final = "IO Error trying to forward REST request"


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Callable[[str], str], create_topic: CreateTopic) -> str:
    name = unique("changed")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic, {"tasks.max": "3", **CALM})


def test_every_worker_takes_changes_for_the_leader_and_the_owners(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE), Workers(flow) as workers:
        workers.settle(*NAMES)
        for number, worker in enumerate(workers.running, 11):
            assert workers.ask(worker, "/pause", "PUT")[0] == 202
            workers.until_states("PAUSED")
            assert workers.ask(worker, "/resume", "PUT")[0] == 202
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


def test_a_change_whose_leader_is_killed_is_made_whole_or_not_at_all(
    flow: Flow, topic: str
) -> None:
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
            until_same_config(workers)
            now = workers.config(asked)["tasks.max"]
            assert now in ({tasks} if answers == [200] else {tasks, before})
            workers.until_spread(tasks=int(now))
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
    """Wait until every worker tells the same config."""
    until(
        lambda: len({tuple(workers.config(worker).items()) for worker in workers.running}) == 1,
        90,
        "every worker to have read the same config",
    )
