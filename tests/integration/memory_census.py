"""What a process and its children need while a fault lasts: their memory, sampled from /proc by a thread."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, final

EVERY_S: Final = 0.5


@final
class Census:
    """Proportional set size (PSS) of a process tree in MiB, sampled until the ``with`` block ends."""

    def __init__(self, pid: int, *, every_s: float = EVERY_S) -> None:
        self._pid, self._every_s = pid, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)
        self.used_mb: list[float] = []
        self.by_process: dict[int, list[float]] = {}
        """The same for each process by its id; a process that started later has fewer samples."""

    @property
    def peak_mb(self) -> float:
        """Most that was seen."""
        return max(self.used_mb)

    def growth_mb(self) -> float:
        """How much memory rises over the last half of the samples."""
        return rise(self.used_mb[len(self.used_mb) // 2 :])

    def mb_per_hour(self) -> float:
        """The same, as a slope."""
        half = len(self.used_mb) - len(self.used_mb) // 2
        return self.growth_mb() / (half * self._every_s) * 3600

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            used = {pid: kb / 1024 for pid in _tree(self._pid) if (kb := _pss_kb(pid))}
            if not used:
                return  # it has ended
            self.used_mb.append(sum(used.values()))
            for pid, used_mb in used.items():
                self.by_process.setdefault(pid, []).append(used_mb)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def rise(values: Sequence[float]) -> float:
    """Return how much the least-squares line through equidistant values rises from end to end."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    spread = sum((index - middle) ** 2 for index in range(len(values)))
    slope = sum((index - middle) * (value - mean) for index, value in enumerate(values)) / spread
    return slope * (len(values) - 1)


def _tree(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text(encoding="ascii").split())
            except OSError:
                continue
    return found


def _pss_kb(pid: int) -> int:
    """Return what is a process's own and its share of what is not; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1])
