"""Lanes that wait for room at their brokers: never more at one, all of them in the end, and none after a failure."""

import random
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from mm2py_jobs.spark.lane_gate import LaneGate

WITHIN_S = 60.0


class Seen:
    """Counts lanes at each broker."""

    def __init__(self, brokers: Sequence[frozenset[str]]) -> None:
        self.brokers = brokers
        self.most = Counter[str]()
        self.begun: list[int] = []
        self._now = Counter[str]()
        self._lock = threading.Lock()

    def work(self, number: int) -> str:
        mine = self.brokers[number]
        with self._lock:
            self.begun.append(number)
            self._now.update(mine)
            for it in mine:
                self.most[it] = max(self.most[it], self._now[it])
        with self._lock:
            self._now.subtract(mine)
        return f"lane {number}"

    def of(self, numbers: Sequence[int]) -> list[frozenset[str]]:
        return [self.brokers[it] for it in numbers]


def never() -> None:
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("seed", range(20))
def test_no_broker_has_more_lanes_than_it_may_and_all_lanes_run(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.randint(1, 3)
    names = [f"b{it}" for it in range(chance.randint(1, 4))]
    seen = Seen([frozenset(chance.choices(names, k=chance.randint(0, 2))) for _ in range(30)])
    answers = LaneGate(most, seen.of).run(30, seen.work, never)
    assert answers == [f"lane {it}" for it in range(30)]
    assert max(seen.most.values()) <= most


def test_lanes_of_other_brokers_pass_by_one_that_waits() -> None:
    """The second lane of a waits for the first, which waits for the lane of b."""
    seen, passed = Seen([frozenset("a"), frozenset("a"), frozenset("b")]), threading.Event()

    def work(number: int) -> str:
        if number == 0:
            assert passed.wait(WITHIN_S)
        answer = seen.work(number)
        if number == 2:
            passed.set()
        return answer

    assert len(LaneGate(1, seen.of).run(3, work, never)) == 3
    assert seen.begun.index(1) > seen.begun.index(0)


def test_a_lane_counts_where_its_leader_is_when_it_begins() -> None:
    """Both leaders have moved to b while lane 0 ran: of the other two one runs at a time."""
    seen, asked = Seen([frozenset("a"), frozenset("b"), frozenset("b")]), list[Sequence[int]]()

    def brokers(numbers: Sequence[int]) -> list[frozenset[str]]:
        asked.append(list(numbers))
        return [frozenset("a")] * len(numbers) if len(numbers) == 3 else seen.of(numbers)

    assert len(LaneGate(1, brokers).run(3, seen.work, never)) == 3
    assert seen.most["b"] == 1
    assert asked[0] == [0, 1, 2]


def test_after_a_failure_no_lane_begins_and_those_that_run_are_given_up() -> None:
    given_up = threading.Event()
    seen = Seen([frozenset("a"), frozenset("b"), frozenset("a")])

    def work(number: int) -> str:
        seen.work(number)
        if number == 0:
            raise ValueError("lost")
        assert given_up.wait(WITHIN_S), "as Spark ends a job that is cancelled"
        return ""

    with pytest.raises(ValueError, match="lost"):
        LaneGate(1, seen.of).run(3, work, given_up.set)
    assert sorted(seen.begun) == [0, 1]


def test_after_a_stop_no_lane_begins_and_those_that_run_go_on_to_their_end() -> None:
    seen = Seen([frozenset("a"), frozenset("a"), frozenset("b"), frozenset("b")])
    gate, both = LaneGate(1, seen.of), threading.Barrier(2)

    def work(number: int) -> str:
        both.wait(WITHIN_S)
        gate.stop()
        return seen.work(number)

    assert gate.run(4, work, never) == ["lane 0", "lane 2"]
    assert sorted(seen.begun) == [0, 2]
