"""``make dist-spark``: mm2py and what it needs where Spark runs tasks, as one archive for ``spark-submit --archives``.

Flow: wheel of mm2py (with its C kernel) + files of the installed packages that it requires -> ``lib`` -> dist/mm2py-spark.tar.gz.
``bin/python`` in it starts the Python of the executor with that ``lib``, so the archive works wherever it is unpacked. pyspark is
left out: executors have Spark's own. pandas is for the driver, which is a container of YARN in cluster mode.
"""

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[1]
ARCHIVE: Final = "mm2py-spark.tar.gz"
_OF_SPARK: Final = "pyspark"

_START: Final = """\
#!/bin/sh
# Starts {python} of this machine with the packages of this archive.
home=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="$home/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec {python} "$@"
"""


def build(folder: Path) -> Path:
    """Write the archive into ``folder`` and return its path.

    Raises:
        PackageNotFoundError: a package that mm2py requires is not installed; ``make setup`` installs all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        library = home / "lib"
        _add_wheel(home, library)
        for found in _required("mm2py"):
            _add_files(found, library)
        start = home / "bin" / "python"
        start.parent.mkdir()
        major, minor, _ = platform.python_version_tuple()
        start.write_text(_START.format(python=f"python{major}.{minor}"), encoding="ascii")
        start.chmod(0o755)
        archive = folder / ARCHIVE
        with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
            for part in ("bin", "lib"):
                tar.add(home / part, part)
    return archive


def _add_wheel(home: Path, library: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home / "wheel")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (home / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(library)  # noqa: S202 - our own wheel, built a moment ago


def _required(root: str) -> list[Distribution]:
    """Return what a package requires here with extra ``spark``, without what Spark has itself."""
    found: dict[str, Distribution] = {}
    pending = [(root, "spark")]
    while pending:
        name, extra = pending.pop()
        for text in distribution(name).requires or ():
            needed = Requirement(text)
            key = re.sub(r"[-_.]+", "-", needed.name).lower()
            wanted = needed.marker is None or needed.marker.evaluate({"extra": extra})
            if key in found or key == _OF_SPARK or not wanted:
                continue
            found[key] = distribution(key)
            pending += [(key, each) for each in ("", *needed.extras)]
    return list(found.values())


def _add_files(package: Distribution, library: Path) -> None:
    for file in package.files or ():
        if ".." in file.parts or "__pycache__" in file.parts or "tests" in file.parts:
            continue  # scripts beside the library, and what no task imports
        source, target = Path(str(file.locate())), library / Path(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _main() -> int:
    try:
        archive = build(ROOT / "dist")
    except PackageNotFoundError as error:
        sys.stderr.write(f"dist-spark: {error} is not installed; run make setup\n")
        return 1
    sys.stdout.write(f"{archive.relative_to(ROOT)}: {archive.stat().st_size >> 20} MiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
