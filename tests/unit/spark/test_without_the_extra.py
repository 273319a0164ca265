"""What people do with a backfill on a machine without Spark: watch it, pause it, cancel it."""

import subprocess
import sys

import pytest

from mm2py.errors import ConfigError
from mm2py_jobs.spark.session import require_spark

_CODE = """
import sys
for name in ("pyspark", "pyarrow", "pandas"):
    sys.modules[name] = None
import mm2py_jobs.copy.backfill_runs
"""


def test_status_and_cancel_of_a_backfill_load_neither_pyspark_nor_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "pandas"])
def test_a_module_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"no module named {module}") as refused:
        require_spark()
    assert "mm2py[spark]" in str(refused.value.remedy)
