"""``ProcessWatch`` over a folder that looks like ``/proc``, and over the real one."""

import os
import subprocess
import sys
from pathlib import Path

from mm2py.observability.processes import ProcessWatch

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def put(proc: Path, pid: int, parent: int, *, cpu_s: int, start: int = 7, pages: int = 10) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["0"] * 40
    fields[1] = str(parent)
    fields[11], fields[12] = str(cpu_s * TICKS_PER_S - 1), "1"
    fields[19], fields[20], fields[21] = str(start), "4096", str(pages)
    (folder / "stat").write_text(f"{pid} (a ) b) S {' '.join(fields[1:])}\n")


def tree(tmp_path: Path) -> Path:
    """This process with a child that has a child, beside a stranger."""
    own = os.getpid()
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    put(tmp_path, own, 1, cpu_s=5, start=3 * TICKS_PER_S)
    put(tmp_path, own + 1, own, cpu_s=2)
    put(tmp_path, own + 2, own + 1, cpu_s=30, pages=20)
    put(tmp_path, own + 3, 1, cpu_s=400)
    fd = tmp_path / str(own) / "fd"
    fd.mkdir()
    for number in "0123":
        (fd / number).touch()
    limits = "Max open files            1024       4096   files\n"
    (tmp_path / str(own) / "limits").write_text(limits)
    return tmp_path


def test_a_process_and_those_below_it_are_read(tmp_path: Path) -> None:
    reading = ProcessWatch(tree(tmp_path)).read()
    assert reading is not None
    assert (reading.cpu_s, reading.resident_bytes, reading.started_s) == (5, 10 * PAGE_BYTES, 1003)
    assert (reading.open_files, reading.most_files, reading.virtual_bytes) == (3, 1024, 4096)
    assert (reading.children, reading.children_cpu_s) == (2, 32)
    assert reading.children_resident_bytes == 30 * PAGE_BYTES


def test_the_cpu_of_children_never_falls_when_one_ends_or_its_number_is_used_again(
    tmp_path: Path,
) -> None:
    proc, own = tree(tmp_path), os.getpid()
    watch = ProcessWatch(proc)
    watch.read()
    put(proc, own + 2, own + 1, cpu_s=1, start=99)
    again = watch.read()
    assert again is not None
    assert (again.children, again.children_cpu_s) == (2, 33)
    (proc / str(own + 2) / "stat").unlink()
    ended = watch.read()
    assert ended is not None
    assert (ended.children, ended.children_cpu_s) == (1, 33)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert ProcessWatch(tmp_path / "none").read() is None


def test_a_real_child_is_seen() -> None:
    watch = ProcessWatch()
    before = watch.read()
    assert before is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        during = watch.read()
        child.kill()
    assert during is not None
    assert during.children == before.children + 1
    assert during.children_cpu_s >= before.children_cpu_s
