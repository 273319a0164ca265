"""How a worker starts its task hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

from mm2py_workers.task_host import STARTER_COMMAND


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


# Says on stdout when the process forks; everything else is on stderr.
WATCHED = """
import os, sys
from mm2py_workers.{module} import main
os.register_at_fork(before=lambda: print("forks", flush=True))
main(sys.argv[1:])
"""
DEDICATED = """\
clusters = A, B
A.bootstrap.servers = 127.0.0.1:1
B.bootstrap.servers = 127.0.0.1:1
A->B.enabled = true
listeners = http://127.0.0.1:0
"""
STANDALONE = """\
bootstrap.servers = 127.0.0.1:1
key.converter = StringConverter
value.converter = StringConverter
listeners = http://127.0.0.1:0
offset.storage.file.filename = offsets
"""


@pytest.mark.parametrize(
    ("module", "text", "reached", "forks"),
    [
        ("connect_mirror_maker", DEDICATED + "task.host.processes = 0\n", "waiting for", False),
        ("connect_mirror_maker", DEDICATED + "task.host.processes = 1\n", "waiting for", True),
        ("connect_mirror_maker", "clusters = A, B\n", "bad configuration", False),
        ("connect_standalone", STANDALONE, "rest listens", False),
    ],
)
def test_a_process_is_forked_only_by_workers_whose_tasks_live_in_processes(
    tmp_path: Path, module: str, text: str, reached: str, forks: bool
) -> None:
    file = tmp_path / "worker.properties"
    file.write_text(text)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED.format(module=module), str(file)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        assert worker.stdout is not None
        try:
            assert any(reached in line for line in worker.stderr)
        finally:
            worker.kill()
        assert ("forks" in worker.stdout.read()) is forks
