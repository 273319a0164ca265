"""The archive of ``make dist-spark`` on a Spark cluster of processes whose Python has no mm2py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts.spark_archive import build

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(600)]

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
