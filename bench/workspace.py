"""Where a bench runs: room on the disk, a quiet machine, and a folder that is removed.

Flow: ``room_and_load`` before anything is started -> ``bench_folder``, whose logs are kept when a run fails.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.kit.kafka.reaper import REAPER

RESULTS: Final = Path(__file__).parent / "results"
QUIET_LOAD: Final = 1.0


def room_and_load(console: Console, free_bytes: int) -> float | None:
    """Return the load average before the run, which is named where figures will suffer; None where the disk has no room, which is printed."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < free_bytes:
        console.print(
            f"the bench needs {free_bytes >> 30} GiB in the temporary folder, {free >> 30} GiB are free;"
            " free some, or set TMPDIR to a larger disk"
        )
        return None
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        console.print(f"load average {load:.1f}: wait for a quiet machine to get clean figures")
    return load


@contextmanager
def bench_folder(console: Console) -> Generator[Path]:
    """Give a folder for files and logs; the logs of a run that failed are kept."""
    with tempfile.TemporaryDirectory(prefix="mm2py-bench-") as name:
        REAPER.watch_folder(Path(name))
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
            # A process that compiles its modules starts slower and needs 20 MB more than an installed one.
            os.environ["PYTHONPYCACHEPREFIX"] = str(Path(name) / "pycache")
        try:
            yield Path(name)
        except BaseException:
            RESULTS.mkdir(exist_ok=True)
            for log in Path(name).glob("*.log"):
                shutil.copyfile(log, RESULTS / f"{log.name}.tmp")
                console.print(f"kept: bench/results/{log.name}.tmp")
            raise
        finally:
            REAPER.forget_folder(Path(name))
