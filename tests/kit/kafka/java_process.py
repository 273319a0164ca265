"""A Java program that keeps running, such as the real MirrorMaker 2 beside which we are measured.

Flow: command line of ``java_command`` -> process with its output in a file -> ``stop`` or ``kill``. It ends
with its owner like the brokers do. Programs that end by themselves are for ``run_java``.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from mm2py.errors import FatalError
from tests.kit.kafka.reaper import REAPER

_POLL_S: Final = 0.05
_TAIL_LINES: Final = 30


@final
class JavaProcess:
    """One running program; leaving the context manager stops it in order."""

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        self.log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        REAPER.watch_process(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait for something that the program brings about.

        Raises:
            FatalError: It ended first, or the time is over; a note has the end of its output.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.is_running and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            ended = f"ended with {self._process.returncode}"
            error = FatalError(
                "the Java program "
                + (f"did not get there in {timeout_s:g} s" if self.is_running else ended)
            )
            error.add_note(self.output())
            raise error

    def output(self, lines: int = _TAIL_LINES) -> str:
        """Return the end of what it printed."""
        text = self.log_file.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, timeout_s: float = 30) -> int:
        """End it in order (SIGTERM) and return its exit code, 143 as a rule; killed when it takes longer."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reap()

    def kill(self) -> int:
        """End it at once (SIGKILL)."""
        self._process.kill()
        return self._reap()

    def _reap(self) -> int:
        code = self._process.wait()
        REAPER.forget_process(self._process.pid)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
