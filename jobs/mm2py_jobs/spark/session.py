"""A Spark session, and lanes on it: one job, one task per lane, one small answer from each.

Flow: ``open_session`` -> ``run_lanes`` -> one task per lane calls a function of ours -> answers in
the order of the lanes. Only plans go out and only statistics come back: no record passes the JVM.
Lanes are few and long, because a Python task costs 50 ms. What a lane has done is known from Kafka,
never from Spark: a lane may run twice, also at the same time.

pyspark is imported when a session is opened, so that nothing needs it before.
"""

import json
import logging
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, cast, final

from mm2py.config.secret_names import secrets_in
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError, RetriableError
from mm2py.mirror.backfills import LANE_LOST
from mm2py.observability.logging import SecretMask, configure_logging, some_of
from mm2py.types import TopicPartition
from mm2py_jobs.spark.job_watch import WAIT_EXECUTORS_S, Executors, JobWatch
from mm2py_jobs.spark.jvm import JVM_ENDED, has_ended, say_it_once, unless_ended
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.login_watch import LoginRefusedError, Logins, is_refused
from mm2py_jobs.spark.spark_home import home_without_zip

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pyarrow import RecordBatch
    from pyspark.accumulators import Accumulator, AccumulatorParam
    from pyspark.sql import SparkSession

LaneFunction = Callable[[Mapping[str, object]], Mapping[str, object]]
"""What runs in a task: takes a lane, returns its answer; both are JSON. Pickled: a function of a
module, or a partial of one."""

log = logging.getLogger(__name__)


def _build() -> str:
    try:
        return version("mm2py")
    except PackageNotFoundError:
        return ""


BUILD: Final = _build()
"""Version of mm2py when this module was loaded; empty where its files lie without the package's
metadata, as from a plain zip."""

TASK_ATTEMPTS: Final = 4
"""How often a lane is tried where Spark runs in one process, which tries once without it; a
cluster's own default is 4."""

AGAIN_S: Final = 1.0
"""Pause before a lane is tried again in its last attempt."""

REACH_S: Final = 5.0
"""How long a master may take to accept a connection."""

_LOCAL_SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""A JVM in our own process tree schedules, and no record passes it: it need not be large or fast,
but start soon.

The quick compiler alone, and plans that are interpreted, halve the CPU of a session and its first
job.
"""

_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*(\d+)\s*)?\])?")
_ADDRESSED = re.compile(r"(spark|sc)://(?P<hosts>[^/;]+)")
_CLUSTER_MODE = re.compile(r"(?:--deploy-mode|spark\.submit\.deployMode)[\s=]+cluster\b")
_DEFAULT_PORTS: Final = {"spark": 7077, "sc": 15002}
_REMEDY: Final = "pip install 'mm2py[spark]'"


_DESCRIPTION: Final = "spark.job.description"
_GROUP: Final = "spark.jobGroup.id"

_NAMED: Final = 3
"""Topics, or partitions of one lane, that the description of a job names."""


class LanesCost(NamedTuple):
    """What the functions of a job's lanes took, without Spark's own part; an argument of the log
    line that ends the job."""

    lanes: int
    seconds: float
    cpu_seconds: float


_NONE: Final = frozenset[int]()
_MASK: Final = SecretMask()
"""Of all lanes that this process of an executor has run."""


@final
class _Numbers:
    """How Spark joins what tasks add to an accumulator (``pyspark.accumulators.AccumulatorParam``):
    a lane that runs twice counts once."""

    def zero(self, value: frozenset[int]) -> frozenset[int]:
        del value
        return _NONE

    def addInPlace(self, value1: frozenset[int], value2: frozenset[int]) -> frozenset[int]:  # noqa: N802 - Spark's name
        return value1 | value2


def _numbers() -> "AccumulatorParam[frozenset[int]]":
    return cast("AccumulatorParam[frozenset[int]]", _Numbers())


class _Answer(NamedTuple):
    seconds: float
    cpu_seconds: float
    found: dict[str, object]
    cause: str


@final
class OpenSession:
    """A session, and whether it was opened here; only then ``close`` stops it.

    ``wait_executors_s``: for how long a job of it may have no executor; ``lanes``: how many the
    user wants, 0: as many as the work is worth; ``lanes_per_broker``: how many of them at a time at
    one broker, 0: any.
    """

    def __init__(
        self,
        spark: "SparkSession",
        *,
        owned: bool,
        lanes: int = 0,
        lanes_per_broker: int = 0,
    ) -> None:
        self.spark = spark
        self.owned = owned
        self.wait_executors_s: float = WAIT_EXECUTORS_S
        self.lanes = lanes
        self.lanes_per_broker = lanes_per_broker

    @property
    def slots(self) -> int:
        """How many tasks run at the same time; a guess of 2 for Spark Connect, whose server does
        not disclose it."""
        return 2 if is_connect(self.spark) else self.spark.sparkContext.defaultParallelism

    @property
    def driver_address(self) -> tuple[str, str] | None:
        """Where this process may listen, and the name by which executors know it; None for Spark
        Connect, whose driver is elsewhere."""
        if is_connect(self.spark):
            return None
        conf = self.spark.sparkContext.getConf()
        host = conf.get("spark.driver.host", "")
        return (conf.get("spark.driver.bindAddress", host) or host, host) if host else None

    def close(self) -> None:
        """Stop the session if it was opened here."""
        if self.owned:
            with unless_ended(), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of one that is gone
                self.spark.stop()

    def __enter__(self) -> "OpenSession":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def open_session(
    master: str = "",
    *,
    name: str = "mm2py",
    settings: Mapping[str, str] | None = None,
) -> OpenSession:
    """Open a session on ``master``; without one use the session that exists, else all cores of this
    machine.

    Blocks for about five seconds where a JVM is started. ``settings`` are Spark properties for a
    session that is opened here.

    Raises:
        ConfigError: pyspark or Java is missing, or the session that exists runs on another master.
        ConnectionFailedError: the master does not accept connections.
    """
    require_spark()
    say_it_once()
    from pyspark.sql import SparkSession

    existing = _existing_session()
    if existing is not None:
        _check_same_master(existing, master)
        return OpenSession(existing, owned=False)
    # Under spark-submit the JVM is there already (``PythonRunner``): its master, settings and end
    # are not ours. ``pyspark --remote`` names a Spark Connect server by the other variable.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    builder = SparkSession.builder.appName(name)
    if not submitted:
        _refuse_cluster_mode()
    master_url = _with_attempts(master or ("" if submitted else "local[*]"))
    if not master_url.startswith("sc://") and "SPARK_REMOTE" not in os.environ:
        _prepare_jvm(master_url)
    _check_reachable(master_url)
    options = dict(settings or {})
    if master_url.startswith("sc://"):
        builder = builder.remote(master_url)
    elif master_url:
        builder = builder.master(master_url).config("spark.ui.showConsoleProgress", "false")
        if master_url.startswith("local"):
            options = dict(_LOCAL_SETTINGS) | options
    for key, value in options.items():
        builder = builder.config(key, value)
    try:
        with home_without_zip() if _has_own_workers(master_url) else nullcontext():
            spark = builder.getOrCreate()
    except Exception as error:
        raise FatalError(
            f"Spark cannot be started on {master_url or 'the submitted master'}: "
            f"{_first_line(error)}"
        ) from error
    if not is_connect(spark):
        spark.sparkContext.setLogLevel("ERROR")
    return OpenSession(spark, owned=not submitted)


def run_lanes(
    opened: OpenSession,
    function: LaneFunction,
    lanes: Sequence[Mapping[str, object]],
    *,
    tag: str,
    description: str,
    follow: Callable[[Callable[[], Collection[int]]], None] = lambda _: None,
    gate: LaneGate | None = None,
    partitions: Sequence[Collection[TopicPartition]] = (),
) -> list[dict[str, object]]:
    """Call ``function`` once per lane, each in a task of one job; return the answers in the order
    of ``lanes``.

    ``follow`` is given what returns the lanes that have ended, while others run; Spark Connect does
    not tell, and it is not called. With ``gate`` each lane is a job of its own, which begins when
    that lets it; one that it is stopped before has no answer. ``partitions`` of each lane are named
    in Spark's UI.

    Blocks until all are done, also where a lane fails in its last attempt: Spark would end the
    others with it. A lane whose worker dies is run again, so ``function`` must be able to continue
    its own work. ``tag`` names the jobs for ``cancel_lanes``, from another thread; ``description``
    is shown in Spark's UI.

    Raises:
        FatalError: lanes raised in each of their attempts, the job was cancelled, Spark itself
            failed, or its cluster is gone.
    """
    if not lanes:
        return []
    texts = [json.dumps(lane) for lane in lanes]
    spark = opened.spark
    ended = None if is_connect(spark) else spark.sparkContext.accumulator(_NONE, _numbers())
    if ended is not None:
        follow(lambda: ended.value)
    attempts, outer = most_attempts(spark), _names(spark)

    def job(first: int, end: int, about: str) -> Sequence[str]:
        work = _work(function, dict(enumerate(texts[first:end], first)), attempts, ended)
        named = f"{description}: {about}" if about else description
        with _named_job(spark, tag, named, outer):
            if is_connect(spark):
                return _connect_answers(spark, work, first, end)
            # Not a frame: its first job costs 7 s of CPU for plans and for pandas in each worker.
            return (
                spark.sparkContext.parallelize(range(first, end), end - first).map(work).collect()
            )

    def lane(number: int) -> str:
        named = some_of([str(it) for it in partitions[number]], _NAMED) if partitions else ""
        return job(number, number + 1, f"lane {number + 1} of {len(texts)} {named}".rstrip())[0]

    watch = _watch(opened, tag, description)
    with watch or nullcontext():
        try:
            if gate is None:
                topics = sorted({it.topic for lane in partitions for it in lane})
                answers = job(0, len(texts), some_of(topics, _NAMED))
            else:
                answers = gate.run(len(texts), lane, lambda: cancel_lanes(spark, tag))
        except Exception as error:
            cause = (watch is not None and watch.cause) or cause_of(error)
            raise FatalError(f"{description} failed: {cause}") from error
    done = [_Answer(*json.loads(text)) for text in answers]
    cost = LanesCost(len(done), sum(it.seconds for it in done), sum(it.cpu_seconds for it in done))
    log.info("lanes ended job=%s cost=%s", description, cost)
    if causes := [it.cause for it in done if it.cause]:
        raise FatalError(
            f"{description} failed: {causes[0]} ({len(causes)} of {len(done)} lanes failed)"
        )
    return [it.found for it in done]


def _work(
    function: LaneFunction,
    texts: Mapping[int, str],
    attempts: int,
    ended: "Accumulator[frozenset[int]] | None",
) -> Callable[[int], str]:
    """Return what tasks call with the numbers of their lanes; it travels with the lanes of its job
    alone."""
    build = BUILD

    def answer(number: int) -> str:
        begun_s, cpu_s = time.monotonic(), time.process_time()
        found, cause = tried(function, json.loads(texts[number]), attempts, build)
        if ended is not None:
            ended.add(frozenset((number,)))
        return json.dumps([time.monotonic() - begun_s, time.process_time() - cpu_s, found, cause])

    return answer


def tried(
    function: LaneFunction, lane: Mapping[str, object], attempts: int, build: str
) -> tuple[Mapping[str, object], str]:
    """Call a lane's function in its task; return its answer, or why there is none in the last one
    of so many attempts.

    Raised there, Spark would end all other lanes with it. Attempts that were lost with their
    executors count: the lane may not have failed before, and what may be tried again is, here. The
    last attempt runs in a process of its own. Where that one dies, too, halves of its partitions
    are tried one after the other; for each that it dies of ``function`` is called with the cause as
    ``lost``, where the lane has a place for it. ``careful`` lanes are in their last attempt from
    the start. ``build``: the driver's; where this process has another one, nothing is called.
    """

    def checked(lane: Mapping[str, object]) -> Mapping[str, object]:
        _check_build(build)
        return function(lane)

    if not lane.get("careful") and _attempt() < attempts - 1:
        try:
            return checked(lane), ""
        except Exception as error:
            if is_refused(error):
                raise LoginRefusedError(str(error)) from error
            raise
    found = _in_child(checked, lane)
    while found.again and attempts > 1:
        attempts -= 1
        log.warning("lane is tried again in its last attempt cause=%s", found.cause)
        time.sleep(AGAIN_S)
        found = _in_child(checked, lane)
    if not found.died:
        return found.answer, found.cause
    log.warning("the process of a lane ended each time cause=%s", found.cause)
    partitions = cast("Sequence[object]", lane.get("partitions", ()))
    if len(partitions) == 1 and "lost" in lane:
        given_up = _in_child(function, {**lane, "lost": found.cause})
        return given_up.answer, given_up.cause
    if len(partitions) < 2:
        return {}, found.cause
    half = len(partitions) // 2
    each = [
        tried(function, {**lane, "partitions": part, "careful": True}, 1, build)
        for part in (partitions[:half], partitions[half:])
    ]
    return _together([answer for answer, _ in each]), next((it for _, it in each if it), "")


class _LaneOutcome(NamedTuple):
    """What a lane answered, or why it did not, and whether it may be tried again; ``died``: its
    process ended."""

    answer: Mapping[str, object]
    cause: str
    again: bool = False
    died: bool = False


def _outcome(function: LaneFunction, lane: Mapping[str, object]) -> _LaneOutcome:
    try:
        return _LaneOutcome(function(lane), "")
    except Exception as error:  # noqa: BLE001 - whatever a lane raises is of this lane
        cause = f"{type(error).__name__}: {error}"
        return _LaneOutcome({}, cause, again=isinstance(error, RetriableError))


def _in_child(function: LaneFunction, lane: Mapping[str, object]) -> _LaneOutcome:
    """Call a lane's function in a child, which ends with this process; here where there is no
    fork."""
    if not hasattr(os, "fork"):
        return _outcome(function, lane)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer_to, args=(sender, function, lane), daemon=True)
    child.start()
    sender.close()
    try:
        found: _LaneOutcome | None = receiver.recv()
    except EOFError:
        found = None
    finally:
        receiver.close()
        child.join()
    if found is not None:
        return found
    return _LaneOutcome({}, f"{LANE_LOST} (exit code {child.exitcode})", died=True)


def _answer_to(sender: "Connection", function: LaneFunction, lane: Mapping[str, object]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    sender.send(_outcome(function, lane))


def _together(answers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return one answer of a lane whose partitions ran one by one; what is no list is that of the
    first."""
    found: dict[str, object] = {}
    for answer in answers:
        for name, value in answer.items():
            if isinstance(value, (list, tuple)):
                found[name] = [*cast("list[object]", found.get(name, [])), *value]
            else:
                found.setdefault(name, value)
    return found


def _check_build(driver: str) -> None:
    if driver and BUILD and driver != BUILD:
        raise FatalError(
            f"the executor on {socket.gethostname()} has mm2py {BUILD}, the driver {driver}",
            remedy="install the driver's version on every executor, and start executors anew "
            "that have loaded another",
        )


def log_without_secrets(*configs: Mapping[str, str], level: str = "WARNING") -> None:
    """Let a lane with these configs write its log as workers do: what an executor writes is in
    Spark's UI."""
    _MASK.add(secrets_in(*configs))
    if not logging.getLogger().handlers:
        configure_logging(sys.stderr, _MASK, level=level)


def require_spark() -> None:
    """Refuse where the extra is not installed; imports nothing.

    Raises:
        ConfigError: names the module that is missing.
    """
    for module in ("pyspark", "pyarrow", "pandas"):
        if find_spec(module) is None:
            raise ConfigError(f"Spark is not installed: no module named {module}", remedy=_REMEDY)


def cancel_lanes(spark: "SparkSession", tag: str) -> None:
    """Cancel the job of that tag: its workers are killed two seconds later, without a chance to
    clean up."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def most_attempts(spark: "SparkSession") -> int:
    """Return how often Spark tries a task."""
    if not is_connect(spark):
        # Local masters do not read spark.task.maxFailures: ``local[N,F]`` has the number in its
        # name, and the others try once (``SparkContext.createTaskScheduler``).
        match = _LOCAL.fullmatch(spark.sparkContext.master or "")
        if match is not None:
            return int(match[2] or 1)
    return int(spark.conf.get("spark.task.maxFailures", "4") or 4)


def _attempt() -> int:
    """Return which attempt of its task this process runs, from 0 on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _connect_answers(
    spark: "SparkSession", answer: Callable[[int], str], first: int, end: int
) -> Sequence[str]:
    """Run one task per lane through Spark Connect, which has frames alone."""

    def work(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        from pyarrow import RecordBatch

        for batch in batches:
            for number in batch.column(0).to_pylist():
                assert isinstance(number, int)
                yield RecordBatch.from_pydict({"lane": [number], "answer": [answer(number)]})

    frame = spark.range(first, end, 1, end - first).mapInArrow(work, "lane long, answer string")
    rows = {int(row["lane"]): str(row["answer"]) for row in frame.collect()}
    return [rows[number] for number in range(first, end)]


class _JobNames(NamedTuple):
    """What the jobs of a thread are known by, and cancelled: a notebook's names, for lanes that are
    jobs of their own in other threads."""

    group: str | None
    tags: frozenset[str]


def _names(spark: "SparkSession") -> _JobNames:
    if is_connect(spark):
        return _JobNames(None, frozenset(spark.getTags()))
    context = spark.sparkContext
    return _JobNames(context.getLocalProperty(_GROUP), frozenset(context.getJobTags()))


@contextmanager
def _named_job(
    spark: "SparkSession", tag: str, description: str, outer: _JobNames
) -> Generator[None]:
    """Tag and describe the jobs of this thread, and name them as those of the one that began
    them."""
    mine = _names(spark)
    tags = {tag, *outer.tags} - mine.tags
    if is_connect(spark):
        for it in tags:
            spark.addTag(it)
        try:
            yield
        finally:
            for it in tags:
                spark.removeTag(it)
        return
    context = spark.sparkContext
    former = context.getLocalProperty(_DESCRIPTION)
    for it in tags:
        context.addJobTag(it)
    context.setLocalProperty(_DESCRIPTION, description)
    context.setLocalProperty(_GROUP, outer.group or tag)  # that of a notebook cancels what it began
    try:
        yield
    finally:
        with unless_ended():
            for it in tags:
                context.removeJobTag(it)
            # What was there before; None removes it.
            context.setLocalProperty(_DESCRIPTION, former)  # type: ignore[arg-type]
            context.setLocalProperty(_GROUP, mine.group)  # type: ignore[arg-type]


def _watch(opened: OpenSession, tag: str, description: str) -> JobWatch | None:
    """Return what watches a job: its lanes, and its executors where there are any."""
    if is_connect(opened.spark):
        return None
    context = opened.spark.sparkContext
    logins = Logins(context, tag, description)
    if _LOCAL.fullmatch(context.master or ""):
        return JobWatch(context, tag, [logins])
    return JobWatch(context, tag, [Executors(context, opened.wait_executors_s), logins])


def is_connect(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect, whose driver is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


# ---- before a session is there


def _existing_session() -> "SparkSession | None":
    """Return the session of this process, which only the thread that opened it has as its active
    one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _check_same_master(spark: "SparkSession", master: str) -> None:
    if not master:
        return
    running = "Spark Connect" if is_connect(spark) else spark.sparkContext.master
    if running not in (master, _with_attempts(master)):
        raise ConfigError(
            f"--master {master}: this process has a session on {running}",
            remedy="leave --master out to use that session, or stop it first",
        )


def _with_attempts(master: str) -> str:
    """Return the master, with attempts for one that runs in this process tree: ``local[2]`` runs
    each task once."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return master
    cores, attempts = match.groups()
    return f"local[{cores or 1},{attempts or TASK_ATTEMPTS}]"


def _refuse_cluster_mode() -> None:
    """Refuse at once: Spark's launcher ends with "not applicable to Spark shells" and the exit of
    its JVM alone."""
    if _CLUSTER_MODE.search(os.environ.get("PYSPARK_SUBMIT_ARGS", "")):
        raise ConfigError(
            "PYSPARK_SUBMIT_ARGS asks for --deploy-mode cluster, but this process is the driver",
            remedy="leave it out; spark-submit --deploy-mode cluster runs the command on YARN or "
            "Kubernetes, a standalone cluster runs Python in client mode alone",
        )


def _prepare_jvm(master: str) -> None:
    """Set what Spark's launcher reads from the environment."""
    # Not in tasks, which load this module too: rich, which it brings, is a seventh of what a worker
    # loads.
    from mm2py_jobs.spark.java import find_java

    java = find_java()
    os.environ.setdefault("JAVA_HOME", str(java.executable.resolve().parent.parent))
    if master.startswith("local"):
        # Without it workers are the first python3 on PATH; a cluster's workers have their own.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # its web page, too


def _has_own_workers(master: str) -> bool:
    """Whether Python workers are of this Python: not those of ``local-cluster`` or another
    ``PYSPARK_PYTHON``."""
    is_local = _LOCAL.fullmatch(master) is not None
    return is_local and os.environ.get("PYSPARK_PYTHON") == sys.executable


def _check_reachable(master: str) -> None:
    """Refuse at once: Spark itself tries for a minute and then ends with a stack trace."""
    match = _ADDRESSED.match(master)
    if match is None:
        return
    causes: list[str] = []
    for address in match["hosts"].split(","):
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
        try:
            number = int(port or _DEFAULT_PORTS[match[1]])
            socket.create_connection((host, number), timeout=REACH_S).close()
        except (OSError, ValueError) as error:
            causes.append(f"{address}: {error}")
        else:
            return
    raise ConnectionFailedError(
        f"Spark master {master} does not accept connections ({'; '.join(causes)})",
        remedy="start it, or name another one with --master; --master 'local[*]' uses this machine",
    )


# ---- errors


def cause_of(error: Exception) -> str:
    """Return what a lane raised: the last line of its Python traceback, else what Spark raised,
    else the first line of its message."""
    if has_ended(error):
        return JVM_ENDED
    text = str(error)
    if "No module named 'mm2py" in text:
        return (
            "mm2py is not installed where Spark runs tasks; ship it with --archives, or "
            "install it there"
        )
    inner = re.findall(
        r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): .+$", text, re.MULTILINE
    )
    # What py4j puts before it only names the call.
    of_java = re.search(r"^: [\w.$]+: (.+)$", text, re.MULTILINE)
    return str(inner[-1]) if inner else of_java[1] if of_java else _first_line(error)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
