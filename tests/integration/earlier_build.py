"""An earlier build of the product, installed from this repository's history, to run in one group with the present one."""

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.integration.mirror_process import COMMAND, MM2PY

EARLIEST: Final = "90114ce0bd1fb6ff4f6514969feb34c351a42485"
"""The oldest build that an upgrade is held for: before the repairs of part 9."""
_ROOT: Final = Path(__file__).parent.parent.parent
_RUN: Final = "import sys\nfrom mm2py_workers.entry import {0}\nsys.exit({0}())\n"


class Build(NamedTuple):
    """How the programs of one build are run."""

    name: str
    worker: Sequence[str] = (COMMAND,)
    command: Sequence[str] = (MM2PY,)
    environ: Mapping[str, str] | None = None


PRESENT: Final = Build("present")


def earlier_build(folder: Path) -> Build | None:
    """Build the wheel of ``EARLIEST`` and unpack it; None where the history does not reach back to it.

    It runs with the packages that are installed for the present build.
    """
    tree = subprocess.run(
        ["git", "archive", EARLIEST], cwd=_ROOT, check=False, capture_output=True, timeout=90
    )
    if tree.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as files:
        files.extractall(folder / "tree", filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheel")]
    subprocess.run(build, cwd=folder / "tree", check=True, capture_output=True, timeout=180)
    (wheel,) = (folder / "wheel").glob("*.whl")
    library = folder / "library"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(library)  # noqa: S202 - our own wheel, built a moment ago

    def program(entry: str) -> Sequence[str]:
        file = folder / f"{entry}.py"
        file.write_text(_RUN.format(entry), encoding="utf-8")
        return sys.executable, "-P", str(file)

    # Spark's Python workers are started with -m, and would find the present build where they run.
    path = {"PYTHONPATH": str(library), "PYTHONSAFEPATH": "1"}
    return Build("earlier", program("connect_mirror_maker"), program("mm2py"), path)
