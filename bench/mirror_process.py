"""A mirror as a child process, Java's or ours: command -> process with a log -> SIGTERM -> exit code.

Knows nothing of Kafka; ``java_mm2`` and ``mm2py_worker`` build the commands.
"""

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, final

from tests.kit.kafka.reaper import REAPER

STOP_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 25


@final
class MirrorProcess:
    """A running mirror; as a context manager it is stopped at the end, killed if it does not stop."""

    def __init__(
        self, name: str, command: Sequence[str], log_file: Path, *, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                start_new_session=True,
            )
        REAPER.watch_process(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id, also after its end."""
        return self._process.pid

    def log(self) -> str:
        """Return everything that was logged so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def counting(self, count: Callable[[], int]) -> Callable[[], int]:
        """Return ``count`` guarded: it raises with the end of the log once the process is gone."""

        def guarded() -> int:
            self.check_running()
            return count()

        return guarded

    def check_running(self) -> None:
        """Raise if the process has ended."""
        if (code := self._process.poll()) is not None:
            tail = "\n".join(self.log().splitlines()[-_TAIL_LINES:])
            raise RuntimeError(f"{self.name} ended with {code}:\n{tail}")

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit code."""
        code = self._process.wait(timeout_s)
        REAPER.forget_process(self.pid)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self.wait(STOP_TIMEOUT_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.terminate()
        return self.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is not None:
            return
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.wait(STOP_TIMEOUT_S)
