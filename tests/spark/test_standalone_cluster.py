"""Lanes on Spark's own cluster manager: shipped to executors, and a cluster that stops in a run ends it with its name."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mm2py.testing.waiting import eventually
from tests.spark.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(400)]

DRIVER = """
import sys
from mm2py_jobs.spark.session import SparkPlace, run_lanes
from tests.spark import lane_functions
with SparkPlace(sys.argv[1], wait_executors_s=6).open() as opened:
    numbers = [{"number": number} for number in range(3)]
    answers = run_lanes(opened, lane_functions.double, numbers, tag="a", description="double")
    print([it["twice"] for it in answers], flush=True)
    run_lanes(opened, lane_functions.until_killed, [{"mark": sys.argv[2]}], tag="b", description="long")
"""


async def driver(master: str, mark: Path) -> asyncio.subprocess.Process:
    """Start a program with a Spark session on a master; other tests have theirs in this process."""
    here: Mapping[str, str] = {"PYTHONPATH": str(Path.cwd()), "PYSPARK_PYTHON": sys.executable}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        DRIVER,
        master,
        str(mark),
        env={**os.environ, **here},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


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
