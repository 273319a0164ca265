"""What a process needs while a fault lasts: its memory, sampled from /proc by a thread."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

__all__ = ["Census"]

EVERY_S: Final = 0.5
_PAGE_KB: Final = 4


@final
class Census:
    """Resident memory of a process in MiB every half second, until the ``with`` block ends."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)
        self.resident_mb: list[float] = []

    @property
    def peak_mb(self) -> float:
        """Most that was seen."""
        return max(self.resident_mb)

    def growth_mb(self) -> float:
        """How much the least-squares line through the last half of the samples rises from end to end."""
        half = self.resident_mb[len(self.resident_mb) // 2 :]
        middle = (len(half) - 1) / 2
        mean = sum(half) / len(half)
        spread = sum((index - middle) ** 2 for index in range(len(half)))
        rise = sum((index - middle) * (value - mean) for index, value in enumerate(half))
        return rise / spread * (len(half) - 1)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                pages = int(self._file.read_text(encoding="ascii").split()[1])
            except (OSError, IndexError):
                return  # it has ended
            self.resident_mb.append(pages * _PAGE_KB / 1024)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
