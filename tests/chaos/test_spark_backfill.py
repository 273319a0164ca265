"""A backfill of two million records beside live traffic, whose processes are killed and frozen five times.

The processes are those of a cluster (``local-cluster``): a driver, executors with a JVM each, Python workers. What was frozen is thawed when
another attempt copies its partitions. The source has no holes, so both sides must be equal with their offsets.
Beside it: one huge partition over lines of 20 ms, ``make demo BACKFILL=1`` as its user runs it, and the archive of
``make dist-spark`` on a cluster of processes whose Python has no mm2py.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts.spark_archive import build
from tests.integration.far_regions import Rig
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import Load, Sent, copied, ends, read, write
from tests.kit.regions import NewRegion
from tests.spark.backfill_process import (
    CLUSTER,
    BackfillProcess,
    Ended,
    attempts,
    command_line,
    impatient,
    taken_over,
    thaw,
)
from tests.spark.long_logs import digests, write_many
from tests.spark.standalone_cluster import BARE_PATH, StandaloneCluster

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(1_800),
]

log = logging.getLogger(__name__)

RECORDS: Final = int(os.environ.get("MM2PY_CHAOS_SPARK_RECORDS", "2000000"))
PARTITIONS: Final = 4
SLOW: Final = str(RECORDS * 110 // 300)
"""Bytes per second: enough time for all faults."""

FAST: Final = "100000000"
"""Without it the limit of the flow counts, which keeps its live traffic slow."""


@pytest.fixture
def spark_conf(tmp_path: Path) -> dict[str, str]:
    return impatient(tmp_path)


def progress(flow: Flow, topic: str, share: float = 0.01) -> None:
    """Wait until more is copied."""
    before = copied(flow, topic)
    until(lambda: copied(flow, topic) > before + RECORDS * share, 180, "progress of the lanes")


def kill_and_freeze(running: BackfillProcess, flow: Flow, topic: str) -> None:
    """A worker is killed, another one frozen while its executor dies, an executor frozen while its worker continues."""
    running.wait_copying()
    progress(flow, topic)
    killed = running.signal_worker(signal.SIGKILL)
    assert killed
    taken_over(flow, killed)
    log.warning("1: worker %d was killed, copied %d", killed, copied(flow, topic))
    progress(flow, topic)
    zombie = running.orphan()
    taken_over(flow, zombie)
    log.warning("2: worker %d was frozen and its executor killed", zombie)
    progress(flow, topic)
    thaw(zombie)
    progress(flow, topic)
    executor, worker = running.freeze_executor()
    taken_over(flow, worker)
    log.warning("3: executor %d was frozen, worker %d not", executor, worker)
    progress(flow, topic)
    thaw(executor)


def test_a_backfill_that_is_killed_and_frozen_five_times_has_one_exact_seam_per_partition(
    setup: Setup, new_region: NewRegion, spark_conf: dict[str, str]
) -> None:
    source, target = new_region("bulk-a"), new_region("bulk-b")
    topic = setup.topic("bulk", PARTITIONS, on=source, config={"retention.ms": "-1"})
    write_many(source, topic, [RECORDS // PARTITIONS] * PARTITIONS)
    limits = {"flow.max.bytes.per.second": "60000"}
    flow = setup.flow(topic, limits, source=source, target=target)
    with (
        Mirror(flow.file) as mirror,
        Load(source, topic, PARTITIONS, rate=100, value_bytes=40) as load,
    ):
        mirror.wait_ready()
        options = ("--rate-limit", SLOW)
        with BackfillProcess(flow, *options, master=CLUSTER, environ=spark_conf) as first:
            kill_and_freeze(first, flow, topic)
            progress(flow, topic)
            first.send(signal.SIGKILL)
            log.warning("4: the driver was killed, copied %d", copied(flow, topic))
            with BackfillProcess(flow, *options, master=CLUSTER, environ=spark_conf) as second:
                second.wait_copying()
                progress(flow, topic, 0.02)
                frozen = second.freeze()
                holders = [pid for pid in frozen if attempts(flow, pid)]
                assert holders
                log.warning("5: everything was frozen, copied %d", copied(flow, topic))
                with BackfillProcess(flow, *options, master=CLUSTER, environ=spark_conf) as third:
                    for pid in holders:
                        taken_over(flow, pid)
                    progress(flow, topic)
                    thaw(*frozen)
                    late = second.wait()
                    assert late.code != 0
                    log.warning("thawed driver ended: %s", late.err[-300:])
                    progress(flow, topic)
                    third.send(signal.SIGTERM)
                    assert third.wait().code == 1
        ended = command_line(flow, "run", "--master", "local[2]", "--rate-limit", FAST)
        _exact(ended)
        load.stop()
        wanted = ends(source, topic)
        until(lambda: ends(target, flow.remote(topic)) == wanted, 180, "the live flow to follow")
        assert mirror.lines("partitions of a backfill are copied from here on")
        assert not mirror.lines("Traceback")
        assert mirror.stop() == 0
    truth, copy = digests(source, topic), digests(target, flow.remote(topic))
    assert sum(it.records for it in truth.values()) == RECORDS + load.acked
    assert copy == truth


def _exact(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert ended.report["state"] == "DONE"
    assert len(ended.partitions) == PARTITIONS
    for it in ended.partitions:
        assert (it["target_from"], it["target_to"]) == (it["from"], it["to"])
        assert it["to"] >= RECORDS // PARTITIONS


HUGE: Final = int(os.environ.get("MM2PY_CHAOS_SPARK_HUGE", "1000000"))
SMALL: Final = 200
ROUND_TRIP_S: Final = 0.02


def test_a_huge_partition_beside_many_small_ones_is_backfilled_over_20_ms(
    setup: Setup, rig: Rig
) -> None:
    source, target, mark = rig.source.region, rig.target.region, setup.unique("far")
    huge, small = f"{mark}-huge", f"{mark}-small"
    setup.create_topic(source, huge, 1, config={"retention.ms": "-1"})
    setup.create_topic(source, small, SMALL, config={"retention.ms": "-1"})
    write_many(source, huge, [HUGE])
    write_many(source, small, [50] * SMALL)
    flow = setup.flow(f"{mark}-.*", rig.bootstrap, source=source, target=target)
    for far in (rig.source, rig.target):
        far.line.set_round_trip(ROUND_TRIP_S)
    with BackfillProcess(flow) as running:
        until(lambda: copied(flow, huge) > HUGE // 20, 300, "progress of the huge partition")
        killed = running.signal_worker(signal.SIGKILL)
        log.warning("worker %d was killed, copied %d", killed, copied(flow, huge))
        ended = running.wait(600)
    assert ended.code == 0, ended.err
    assert len(ended.partitions) == SMALL + 1
    assert sum(it["records"] for it in ended.partitions) == HUGE + 50 * SMALL
    for topic in (huge, small):
        assert digests(source, topic) == digests(target, flow.remote(topic))


def test_the_demo_backfills_history_and_proves_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--backfill"],
        cwd=tmp_path,
        env={**os.environ, "DEMO_SECONDS": "10"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]
    assert "DONE, 200,000 records by Spark" in done.stdout
    assert "Verify: 201,000 records of history are equal" in done.stdout


DRIVER: Final = """
import json

from mm2py_jobs.spark.session import open_session, run_lanes


def where(lane):
    import pyarrow
    from mm2py.protocol import _kernel
    from mm2py.runtime.plugins.plugins import Plugins
    from mm2py_jobs.copy import backfill_lane

    Plugins().find("MirrorSourceConnector")
    return {"files": [it.__file__ for it in (_kernel, backfill_lane, pyarrow)]}


with open_session("local-cluster[1,1,512]", settings={"spark.executor.memory": "512m"}) as opened:
    print(json.dumps(run_lanes(opened, where, [{}], tag="where", description="where")))
"""


def test_tasks_find_mm2py_its_kernel_and_connectors_in_the_archive(tmp_path: Path) -> None:
    archive = build(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER],
        env={
            **os.environ,
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--archives {archive}#environment pyspark-shell",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    (answer,) = json.loads(ended.stdout.splitlines()[-1])
    assert all("/environment/lib/" in file for file in answer["files"]), answer


FRAMES: Final = """
import sys
from pyspark.sql import SparkSession
servers, source, target = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("mm2py").option("kafka.bootstrap.servers", servers).option("subscribe", source).load()
out = rows.select("key", "value").write.format("mm2py").option("kafka.bootstrap.servers", servers)
out.option("topic", target).mode("append").save()
print(rows.count())
"""


def test_a_program_reads_and_writes_topics_where_machines_have_the_archive_alone(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page has it: the archive is shipped to executors, and unpacked where the program begins."""
    source, target = setup.topic("framed", 2), setup.topic("frames", 2)
    write(setup.a, source, [Sent(n % 2, b"%d" % n) for n in range(300)])
    archive, program = build(tmp_path / "dist"), tmp_path / "program"
    shutil.unpack_archive(archive, program / "environment")
    monkeypatch.setenv("PATH", BARE_PATH)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    submit = f"--archives {archive}#environment --conf spark.executor.memory=512m pyspark-shell"
    with StandaloneCluster(tmp_path) as cluster:
        ended = subprocess.run(
            [sys.executable, "-c", FRAMES, setup.a.bootstrap_servers, source, target],
            env={
                **os.environ,
                "PYSPARK_PYTHON": "./environment/bin/python",
                "PYSPARK_SUBMIT_ARGS": f"--master {cluster.master} {submit}",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=program,
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert ended.stdout.splitlines()[-1] == "300"
    found = [it.value or b"" for log in read(setup.a, target).values() for it in log.records]
    assert sorted(found) == sorted(b"%d" % n for n in range(300))
