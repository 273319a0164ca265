"""A disk that can be full: a tmpfs of some MiB, and ballast that takes all the room."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.kit.kafka.reaper import REAPER

SIZE_MB: Final = 64

FEW_INDEXES: Final = {"log.segment.bytes": "4194304", "log.index.size.max.bytes": "65536"}
"""For a broker on it: sparse indexes of 10 MB per partition would count when they are written to a tmpfs."""


@contextmanager
def small_disk(folder: Path, size_mb: int = SIZE_MB) -> Generator[Path]:
    """Mount it below ``folder``; gone at the end, whatever still uses it. Skips the test where that is refused."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    REAPER.watch_folder(place)
    try:
        yield place
    finally:
        REAPER.forget_folder(place)
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    """Take all the room there is but for some KiB."""
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(65_536))
        except OSError:
            return
