"""Lanes of a job over a Spark that tries each task one after the other, as its scheduler with one slot; and lanes that wait for room at their brokers: never more at one, all of them in the end, and none after a failure."""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast, final

import pytest

from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import LANE_LOST
from mm2py_jobs.copy.stream import PlannedTerm
from mm2py_jobs.copy.stream_copy import failure_of
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.session import OpenSession, cause_of, run_lanes, tried
from mm2py_jobs.spark.stream_query import TermReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@final
class OneSlot:
    """A session and its context: a task that raises in each of its three attempts ends the job."""

    master = "local[1,3]"
    defaultParallelism = 1  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.attempt = 0
        self._items: Iterable[int] = ()
        self._function: Callable[[int], str] = str

    @property
    def sparkContext(self) -> "OneSlot":  # noqa: N802 - Spark's name
        return self

    def accumulator(self, _value: object, _param: object) -> "Ended":
        return Ended()

    def parallelize(self, items: Iterable[int], _slices: int) -> "OneSlot":
        self._items = items
        return self

    def map(self, function: Callable[[int], str]) -> "OneSlot":
        self._function = function
        return self

    def collect(self) -> list[str]:
        return [self._tried(it) for it in self._items]

    def _tried(self, item: int) -> str:
        for self.attempt in range(2):
            try:
                return self._function(item)
            except ValueError:
                continue
        self.attempt = 2
        return self._function(item)

    def ignore(self, *_: object) -> None: ...

    addJobTag = removeJobTag = setLocalProperty = getLocalProperty = ignore  # noqa: N815 - Spark's names


class Ended:
    value = frozenset[int]()

    def add(self, value: frozenset[int]) -> None:
        self.value |= value


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run last attempts in this process, as where there is no fork."""
    monkeypatch.delattr("os.fork")


@pytest.mark.usefixtures("_here")
def test_a_lane_that_fails_in_each_attempt_keeps_no_other_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, ran = OneSlot(), list[int]()
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: spark.attempt)

    def copy(lane: Mapping[str, object]) -> Mapping[str, object]:
        number = int(str(lane["number"]))
        ran.append(number)
        if not number:
            raise ValueError("lane is wrong")
        return {}

    opened = OpenSession(cast("SparkSession", spark), owned=False)
    lanes = [{"number": number} for number in range(3)]
    with pytest.raises(FatalError, match=r"copies failed: ValueError: lane is wrong \(1 of 3"):
        run_lanes(opened, copy, lanes, tag="t", description="copies")
    assert ran == [0, 0, 0, 1, 2]


@pytest.mark.usefixtures("_here")
def test_a_lane_whose_attempts_were_lost_with_executors_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark counts them among the attempts, and takes none of them for a failure of the lane."""
    spark, ran = OneSlot(), list[int]()
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: 5)
    monkeypatch.setattr("mm2py_jobs.spark.session.AGAIN_S", 0)

    def copy(lane: Mapping[str, object]) -> Mapping[str, object]:
        number = int(str(lane["number"]))
        ran.append(number)
        if ran == [0]:
            raise RetriableError("the leader moves")
        if number == 1:
            raise FatalError("no way")
        return {}

    opened = OpenSession(cast("SparkSession", spark), owned=False)
    lanes = [{"number": number} for number in range(3)]
    with pytest.raises(FatalError, match=r"no way \(1 of 3"):
        run_lanes(opened, copy, lanes, tag="t", description="copies")
    assert ran == [0, 0, 1, 2]


def test_a_lane_on_an_executor_of_another_build_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: 5)
    for there, driver, called in (("2", "1", False), ("1", "1", True), ("", "1", True)):
        monkeypatch.setattr("mm2py_jobs.spark.session.BUILD", there)
        answer, cause = tried(lambda _: {"called": True}, {}, 1, driver)
        assert ("called" in answer, "has mm2py 2, the driver 1" in cause) == (called, not called)


@pytest.mark.usefixtures("_here")
def test_a_lane_of_a_term_that_fails_in_each_attempt_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = 0
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: attempt)

    def run_lane(_lane: Mapping[str, object]) -> Mapping[str, object]:
        raise FatalError("no keystore here")

    lane = {"partitions": [["t", 0], ["t", 1]]}

    def plan(_term: int, _most_bytes: int) -> PlannedTerm:
        return PlannedTerm([lane])

    reader = TermReader(plan, run_lane, 0, attempts=4)
    (task,) = reader.partitions(reader.initialOffset(), {"term": 1})
    while attempt < 3:
        with pytest.raises(FatalError):
            list(reader.read(task))
        attempt += 1
    rows = list(reader.read(task))
    assert [row[:2] for row in rows] == [("t", 0), ("t", 1)]
    assert all("no keystore here" in str(row[-2]) and row[-1] is True for row in rows)


@pytest.mark.parametrize(("failed", "ends"), [(0, False), (1, False), (2, True)])
def test_a_term_of_which_every_lane_failed_ends_its_query(failed: int, *, ends: bool) -> None:
    progress = {"partitions": 2, "failed_partitions": failed, "failure": "no keystore here"}
    if ends:
        with pytest.raises(FatalError, match="every lane failed: no keystore here"):
            failure_of(progress)
    else:
        assert ("no keystore here" in failure_of(progress)) is bool(failed)


def dies_of_three(lane: Mapping[str, object]) -> Mapping[str, object]:
    if lane.get("lost"):
        return {"lane": lane["number"], "parts": [str(lane["lost"])]}
    partitions = cast("list[int]", lane["partitions"])
    if 3 in partitions:
        os._exit(9)
    return {"lane": lane["number"], "parts": partitions}


# From Python 3.12 on, where a test before has left a thread.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_partition_that_a_process_dies_of_keeps_no_other_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: 5)
    opened = OpenSession(cast("SparkSession", OneSlot()), owned=False)
    given = ([1, 2, 3, 4, 5], [6])
    lanes = [{"number": it, "partitions": of, "lost": ""} for it, of in enumerate(given)]
    answers = run_lanes(opened, dies_of_three, lanes, tag="t", description="copies")
    lost = f"{LANE_LOST} (exit code 9)"
    assert [it["lane"] for it in answers] == [0, 1]
    assert [it["parts"] for it in answers] == [[1, 2, lost, 4, 5], [6]]


ABORTED = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3)"
LOST = "(127.0.0.1 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (f": org.apache.spark.SparkException: {ABORTED} {LOST}", f"{ABORTED} {LOST}"),
        (f": org.apache.spark.SparkException: {ABORTED}\nValueError: wrong", "ValueError: wrong"),
        ("something else", "An error occurred while calling z:org.PythonRDD.collectAndServe."),
    ],
)
def test_the_cause_is_what_a_lane_raised_or_else_what_spark_did(said: str, cause: str) -> None:
    text = f"An error occurred while calling z:org.PythonRDD.collectAndServe.\n{said}\nDriver stacktrace:\n\tat x"
    assert cause_of(FatalError(text)) == cause


# ---- lanes that wait for room at their brokers

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
