"""Sessions and lanes: one task per lane, retried when its worker dies, cancelled by tag; errors name what to do.

At the end a cluster of Spark's own manager, which stops in a run.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pyspark
import pytest

import mm2py_cli
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.mirror.backfills import LANE_LOST
from mm2py.testing.waiting import eventually
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.session import LanesCost, OpenSession, cancel_lanes, open_session, run_lanes
from tests.spark import lane_functions
from tests.spark.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_answers_come_in_the_order_of_the_lanes(lanes_session: OpenSession) -> None:
    lanes = [{"number": number} for number in range(5)]
    answers = run_lanes(
        lanes_session, lane_functions.double, lanes, tag="double", description="doubles"
    )
    assert [answer["twice"] for answer in answers] == [0, 2, 4, 6, 8]


def test_what_lanes_took_is_in_the_line_that_ends_their_job(
    lanes_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    lanes: list[dict[str, object]] = [{"number": number} for number in range(3)]
    with caplog.at_level(logging.INFO, "mm2py_jobs.spark.session"):
        run_lanes(lanes_session, lane_functions.double, lanes, tag="c", description="d")
    (line,) = [it for it in caplog.records if it.name == "mm2py_jobs.spark.session"]
    assert isinstance(line.args, tuple)
    (cost,) = [it for it in line.args if isinstance(it, LanesCost)]
    assert cost.lanes == 3
    assert cost.cpu_seconds > 0
    assert cost.seconds > 0


def test_workers_of_our_session_load_pyspark_that_is_compiled(lanes_session: OpenSession) -> None:
    """Not from the archive that Spark puts first on their path."""
    (answer,) = run_lanes(
        lanes_session, lane_functions.where_pyspark_is, [{}], tag="where", description="where"
    )
    assert Path(str(answer["file"])).is_file()


def test_lanes_spill_to_spark_s_local_folders(lanes_session: OpenSession) -> None:
    """Those of its block manager, which Spark removes."""
    (answer,) = run_lanes(
        lanes_session, lane_functions.where_it_spills, [{}], tag="spill", description="spill"
    )
    assert "blockmgr-" in str(answer["folders"])


def test_no_lanes_run_no_job(lanes_session: OpenSession) -> None:
    assert run_lanes(lanes_session, lane_functions.double, [], tag="t", description="d") == []


def test_a_lane_runs_again_when_its_worker_dies(lanes_session: OpenSession, tmp_path: Path) -> None:
    answers = run_lanes(
        lanes_session,
        lane_functions.die_once,
        [{"mark": str(tmp_path / "died")}],
        tag="die",
        description="dies once",
    )
    assert answers == [{"attempt": "second"}]


def test_a_partition_that_each_process_dies_of_stops_no_other(lanes_session: OpenSession) -> None:
    lanes = [{"partitions": it, "lost": ""} for it in ([1, 2, 3, 4], [5])]
    answers = run_lanes(
        lanes_session, lane_functions.die_of_three, lanes, tag="lost", description="dies"
    )
    lost = f"{LANE_LOST} (exit code -9)"
    assert [it["partitions"] for it in answers] == [[1, 2, lost, 4], [5]]


def test_ended_lanes_are_told_while_others_run(lanes_session: OpenSession, tmp_path: Path) -> None:
    """The last lane waits for a file, which is made once the other two are known to have ended."""
    mark = tmp_path / "mark"

    def follow(ended: Callable[[], Collection[int]]) -> None:
        def watch() -> None:
            asyncio.run(eventually(lambda: set(ended()) == {0, 1}, within_s=90))
            mark.touch()

        threading.Thread(target=watch, daemon=True).start()

    lanes = [{"mark": it} for it in ("", "", str(mark))]
    run_lanes(
        lanes_session,
        lane_functions.until_there,
        lanes,
        tag="told",
        description="told",
        follow=follow,
    )
    assert mark.exists()


def test_an_error_of_a_lane_is_named(lanes_session: OpenSession) -> None:
    with pytest.raises(FatalError, match="the job failed: ValueError: lane is wrong"):
        run_lanes(lanes_session, lane_functions.fail, [{}], tag="f", description="the job")


REFUSED = "no broker of cluster A can be reached: b1:9092 refused the login of user mm"


@pytest.mark.parametrize("gate", [None, LaneGate(1, lambda numbers: [(str(it),) for it in numbers])], ids=["one job", "a job each"])  # fmt: skip
def test_a_job_of_which_each_lane_s_login_is_refused_ends_without_more_attempts(
    lanes_session: OpenSession, tmp_path: Path, gate: LaneGate | None
) -> None:
    """Their second attempts would wait for a file that nobody makes."""
    lanes = [{"refused": str(tmp_path / it), "mark": str(tmp_path / "never")} for it in "ab"]
    with pytest.raises(FatalError, match=f"logins failed: the login of each lane is refused: {REFUSED}$"):  # fmt: skip
        run_lanes(lanes_session, lane_functions.refused, lanes, tag=str(tmp_path), description="logins", gate=gate)  # fmt: skip


def test_the_first_refusal_of_a_lane_s_login_is_told_and_the_others_go_on(
    lanes_session: OpenSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other lane waits for a file, which is made once the line is there."""
    mark, lines = tmp_path / "mark", list[str]()

    def watch() -> None:
        def told() -> bool:
            lines[:] = [it.getMessage() for it in caplog.records if "refused" in it.getMessage()]
            return bool(lines)

        asyncio.run(eventually(told, within_s=90))
        mark.touch()

    threading.Thread(target=watch, daemon=True).start()
    lanes = [{"refused": it, "mark": str(mark)} for it in ("", str(tmp_path / "first"))]
    run_lanes(lanes_session, lane_functions.refused, lanes, tag=str(tmp_path), description="one")
    assert lines == [f"login of a lane is refused job=one cause={REFUSED}"]
    assert mark.exists()


async def test_a_job_is_cancelled_by_its_tag(lanes_session: OpenSession, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    job = asyncio.create_task(
        asyncio.to_thread(
            run_lanes,
            lanes_session,
            lane_functions.until_killed,
            [{"mark": str(mark)}],
            tag="long",
            description="long",
        )
    )
    await eventually(mark.exists, within_s=90)
    cancel_lanes(lanes_session.spark, "long")
    with pytest.raises(FatalError, match="long failed"):
        await job


def test_the_session_that_exists_is_used_and_stays_open(lanes_session: OpenSession) -> None:
    with open_session() as second:
        assert second.spark is lanes_session.spark
    assert lanes_session.slots == 2


def test_another_master_than_that_of_the_session_is_refused(lanes_session: OpenSession) -> None:
    assert lanes_session.owned
    with pytest.raises(ConfigError, match=r"--master local\[7\].*local\[2,4\]"):
        open_session("local[7]")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError, match=r"Spark is not installed.*mm2py\[spark\]"):
        open_session()


async def errors_of(code: str, env: Mapping[str, str]) -> bytes:
    """Run a program, and return what it says on stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=env, stderr=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[1]


async def test_no_java_is_named_before_anything_is_started(tmp_path: Path) -> None:
    code = "from mm2py_jobs.spark.session import open_session; open_session('local[1]')"
    errors = await errors_of(code, {"PATH": str(tmp_path), "MM2PY_JAVA": str(tmp_path / "java")})
    assert b"ConfigError: no Java 17 or newer" in errors


@pytest.mark.parametrize(
    "text", ["--deploy-mode cluster", "--conf spark.submit.deployMode=cluster"]
)
async def test_a_driver_elsewhere_is_refused_where_this_process_is_it(text: str) -> None:
    code = "from mm2py_jobs.spark.session import open_session; open_session('spark://127.0.0.1:1')"
    errors = await errors_of(code, {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{text} pyspark-shell"})
    assert b"ConfigError: PYSPARK_SUBMIT_ARGS asks for --deploy-mode cluster, but this" in errors


async def test_a_standalone_cluster_takes_no_driver_in_python() -> None:
    """As docs/reference/jobs.md has it: Spark's own refusal, before it connects."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    main = Path(mm2py_cli.__path__[0], "__main__.py")
    process = await asyncio.create_subprocess_exec(
        submit,
        *("--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", main, "version"),
        env={**os.environ, "SPARK_HOME": str(submit.parents[1])},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert (
        b"Cluster deploy mode is currently not supported for python applications on standalone"
        in errors
    )


@pytest.mark.parametrize("scheme", ["spark", "sc"])
async def test_a_master_that_does_not_run_is_named(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    code = f"from mm2py_jobs.spark.session import open_session; open_session('{scheme}://127.0.0.1:{port}')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert (
        f"Spark master {scheme}://127.0.0.1:{port} does not accept connections".encode() in errors
    )
    assert ConnectionFailedError.__name__.encode() in errors


DRIVER = """
import sys
from mm2py_jobs.spark.place import SparkPlace
from mm2py_jobs.spark.session import run_lanes
from tests.spark import lane_functions
with SparkPlace(sys.argv[1], wait_executors_s=6).open() as opened:
    numbers = [{"number": number} for number in range(3)]
    answers = run_lanes(opened, lane_functions.double, numbers, tag="a", description="double")
    print([it["twice"] for it in answers], flush=True)
    run_lanes(opened, lane_functions.until_killed, [{"mark": sys.argv[2]}], tag="b", description="long")
"""


DYING = """
import sys
from mm2py_jobs.spark.session import open_session, run_lanes
from tests.spark import lane_functions
with open_session(sys.argv[1], settings={"spark.executor.memory": "512m"}) as opened:
    run_lanes(opened, lane_functions.kill_executor, [{}], tag="dying", description="dying")
"""


async def driver(master: str, mark: Path, program: str = DRIVER) -> asyncio.subprocess.Process:
    """Start a program with a Spark session on a master; other tests have theirs in this process."""
    here: Mapping[str, str] = {"PYTHONPATH": str(Path.cwd()), "PYSPARK_PYTHON": sys.executable}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        master,
        str(mark),
        env={**os.environ, **here},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_lanes_run_on_executors_and_a_cluster_that_stops_ends_the_run(tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    with await asyncio.to_thread(StandaloneCluster, tmp_path) as cluster:
        running = await driver(cluster.master, mark)
        try:
            await eventually(mark.exists, within_s=200)
            cluster.kill()
            out, err = await asyncio.wait_for(running.communicate(), 90)
        finally:
            if running.returncode is None:
                running.kill()
    assert b"[0, 2, 4]" in out
    assert running.returncode == 1
    assert f"FatalError: long failed: Spark on {cluster.master} has had no executor".encode() in err


@pytest.mark.chaos
async def test_why_spark_gave_a_lane_up_is_named_where_executors_die(tmp_path: Path) -> None:
    running = await driver("local-cluster[1,1,512]", tmp_path, DYING)
    try:
        _, err = await asyncio.wait_for(running.communicate(), 300)
    finally:
        if running.returncode is None:
            running.kill()
    assert (
        b"FatalError: dying failed: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times"
        in err
    )
    assert b"ExecutorLostFailure" in err.splitlines()[-1]
