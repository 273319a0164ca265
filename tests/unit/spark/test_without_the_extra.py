"""What people do with jobs on a machine without Spark: watch them, pause them, cancel them; what needs it says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from mm2py.errors import ConfigError
from mm2py_jobs.spark.session import require_spark

_CODE = """
import sys
for name in ("pyspark", "pyarrow", "pandas"):
    sys.modules[name] = None
"""


def _without_spark(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CODE + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_status_and_cancel_of_jobs_load_neither_pyspark_nor_pyarrow() -> None:
    done = _without_spark(
        "import mm2py_jobs.copy.backfill_runs\nimport mm2py_jobs.copy.stream_runs\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["stream", "archive"])
def test_a_command_that_needs_spark_names_the_extra(tmp_path: Path, command: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n")
    given = [command, str(file), "--flow", "A->B"]
    if command == "archive":
        given += ["--to", str(tmp_path)]
    done = _without_spark("from mm2py_cli.entry import mm2py\nmm2py()\n", *given)
    assert done.returncode == 1
    assert "mm2py[spark]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "pandas"])
def test_a_module_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"no module named {module}") as refused:
        require_spark()
    assert "mm2py[spark]" in str(refused.value.remedy)
