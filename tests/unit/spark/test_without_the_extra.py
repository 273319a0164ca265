"""What people do with a backfill on a machine without Spark: watch it, pause it, cancel it."""

import subprocess
import sys

_CODE = """
import sys
for name in ("pyspark", "pyarrow", "pandas"):
    sys.modules[name] = None
import mm2py_workers.backfill_runs
"""


def test_status_and_cancel_of_a_backfill_load_neither_pyspark_nor_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
