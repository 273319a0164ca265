"""How a worker starts its task hosts."""

import subprocess
from pathlib import Path

from mm2py_workers.host_wiring import STARTER_COMMAND


def test_a_task_host_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for module in ("pydantic", "queue", "mm2py_workers", "typing"):
        (tmp_path / f"{module}.py").write_text('raise SystemExit("code of the directory ran")\n')
    ended = subprocess.run(
        [*STARTER_COMMAND, "no-descriptor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode != 0
    assert "no-descriptor" in ended.stderr
    assert "code of the directory ran" not in ended.stderr
