"""``make demo BACKFILL=1`` as its user runs it: Spark copies history while the flows run, and all of it is equal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(900)]


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
