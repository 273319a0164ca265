"""Lanes of a job over a Spark that tries each task one after the other, as its scheduler with one slot."""

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast, final

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.errors import AuthenticationError, ConnectionFailedError, FatalError, RetriableError
from mm2py.mirror.backfills import LANE_LOST
from mm2py.types import TopicPartition
from mm2py_jobs.copy.stream import PlannedTerm
from mm2py_jobs.copy.stream_copy import failure_of
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_jobs.spark.gauges import Figures, gauges
from mm2py_jobs.spark.jvm import say_it_once
from mm2py_jobs.spark.login_watch import Attempts, Lane, LoginRefusals, is_refused
from mm2py_jobs.spark.session import OpenSession, cause_of, run_lanes, tried
from mm2py_jobs.spark.stream_query import TermReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION = TopicPartition("t", 0)


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

    def getJobTags(self) -> set[str]:  # noqa: N802 - Spark's name
        return set()

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
def test_a_lane_that_fails_in_each_attempt_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_lane_lost_with_its_executors_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_lane_on_another_builds_executor_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: 5)
    for there, driver, called in (("2", "1", False), ("1", "1", True), ("", "1", True)):
        monkeypatch.setattr("mm2py_jobs.spark.session.BUILD", there)
        answer, cause = tried(lambda _: {"called": True}, {}, 1, driver)
        assert ("called" in answer, "has mm2py 2, the driver 1" in cause) == (called, not called)


@pytest.mark.usefixtures("_here")
def test_a_term_s_lane_that_fails_each_time_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_partition_that_a_process_dies_of_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
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


READS: Mapping[str, Callable[[Cluster], Awaitable[object]]] = {
    "connects": lambda cluster: cluster.connect(),
    "asks": lambda cluster: Admin(cluster).list_topics(),
    "reads": lambda cluster: anext(RangeReader(cluster, read_committed=True).read(PARTITION, 0, 9)),
}


@pytest.mark.parametrize("read", READS)
async def test_a_refused_login_is_known_however_the_lane_has_met_it(
    monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    async def refuse(*_: object, **_named: object) -> BrokerConnection:
        raise AuthenticationError("b1:9092 refused the login of user mm")

    monkeypatch.setattr(BrokerConnection, "open", refuse)
    patience = {"default.api.timeout.ms": "50", "request.timeout.ms": "50"}
    cluster = Cluster.of({"bootstrap.servers": "b1:9092", **patience}, alias="A")
    with pytest.raises(RetriableError) as failure:
        await READS[read](cluster)
    await cluster.close()
    assert is_refused(failure.value)
    assert not is_refused(ConnectionFailedError("b1:9092 does not answer"))


X, Y = (0, 0), (0, 1)
REFUSED = "b1:9092 refused the login of user mm"


Looks = Sequence[tuple[list[Lane], dict[int, Lane], int]]
"""Lanes that run, refused attempts, how many lanes have ended."""

LOOKS: Mapping[str, tuple[bool, Looks]] = {
    "none is refused": (False, [([X, Y], {}, 0)]),
    "one of two": (False, [([X, Y], {1: X}, 0)]),
    "both": (True, [([X, Y], {1: X}, 0), ([X, Y], {1: X, 2: Y}, 0)]),
    "the only one that has begun": (True, [([], {1: X}, 0)]),
    "before another had an answer": (False, [([X], {1: X}, 1)]),
    "again after it": (True, [([X], {1: X}, 1), ([X], {1: X, 3: X}, 1)]),
    "one of two, twice": (False, [([X, Y], {1: X, 2: X}, 0)]),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_job_ends_when_no_lane_that_runs_has_another_end_than_a_refusal(name: str) -> None:
    ends, looks = LOOKS[name]
    refusals, found = LoginRefusals(), list[tuple[list[str], bool]]()
    for running, refused, ended in looks:
        causes = {attempt: (lane, REFUSED) for attempt, lane in refused.items()}
        found.append(refusals.look(Attempts(frozenset(running), causes, ended)))
    assert [it for _, it in found] == [False] * (len(looks) - 1) + [ends]
    assert [it for news, _ in found for it in news] == [REFUSED] * any(it for _, it, _ in looks)


@pytest.mark.parametrize(("sent", "is_told"), [(b"token", False), (b"other", True)])
def test_a_connection_that_ends_with_the_jvm_is_no_traceback(
    capsys: pytest.CaptureFixture[str], sent: bytes, *, is_told: bool
) -> None:
    """Over it the JVM tells pyspark which tasks have ended."""
    say_it_once()
    with AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "token") as server:
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as jvm:
            jvm.sendall(sent)
        server.handle_request()
    assert ("Traceback" in capsys.readouterr().err) is is_told


@final
class JvmGone:
    """A session and its context whose JVM has ended."""

    @property
    def sparkContext(self) -> "JvmGone":  # noqa: N802 - Spark's name
        return self

    @property
    def applicationId(self) -> str:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError


def test_figures_for_a_jvm_that_has_ended_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with gauges(OpenSession(cast("SparkSession", JvmGone()), owned=False), Figures):
        pass
    assert not caplog.records
