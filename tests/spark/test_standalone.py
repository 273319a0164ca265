"""A standalone master: lanes run there as on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.standalone import Standalone, standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

_LANES = """
import sys
from mm2py.spark.session import open_session, run_lanes
from tests.spark.lane_functions import double
with open_session(sys.argv[1]) as opened:
    lanes = [{"number": 3}, {"number": 4}]
    print([it["twice"] for it in run_lanes(opened.spark, double, lanes, tag="t", description="d")])
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path, sys.executable) as found:
        yield found


def test_lanes_run_on_a_standalone_master(cluster: Standalone) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LANES, cluster.master],
        env={**os.environ, **cluster.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.strip() == "[6, 8]", done.stderr
