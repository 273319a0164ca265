"""The product as its user runs it: a properties file, the console script, its log, signals.

Flow: ``write_flow`` -> ``Mirror(flow)`` as a context manager -> ``wait_for_log`` / ``until`` -> ``stop`` or
``kill``. An error that leaves the ``with`` block carries the end of the log. Knows nothing of records.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar, final

from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import KafkaAddress

COMMAND: Final = str(Path(sys.executable).parent / "connect-mirror-maker-py")
READY: Final = "source task started"
STOP_TIMEOUT_S: Final = 90.0
REFUSAL_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 0.4
"""A condition that takes long is looked at less often: each look is work for what it waits for."""
_TAIL_LINES: Final = 60

SHORT_SESSION: Final = {
    "{target}.session.timeout.ms": "4000",
    "{target}.heartbeat.interval.ms": "1000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
"""Properties of a flow whose test waits until a worker counts as dead."""
SHORT_SESSION_S: Final = 4.0

T = TypeVar("T")

SINGLE_REPLICA: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)


def until(
    condition: Callable[[], T | None],
    timeout_s: float,
    what: str | Callable[[], str],
    *,
    alive: "Running | None" = None,
) -> T:
    """Return the first result that is true; fails after ``timeout_s``, or when ``alive`` has ended."""
    deadline = time.monotonic() + timeout_s
    pause, pause_s = threading.Event(), POLL_S
    while True:
        found = condition()
        if found:
            return found
        if alive is not None:
            alive.check_running()
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s:.0f} s: {text}")
        pause.wait(pause_s)
        pause_s = min(pause_s * 1.1, LONGEST_POLL_S)


@dataclass(frozen=True, slots=True)
class Flow:
    """One replication flow: two clusters under aliases of its own, and the file that says so."""

    source: KafkaAddress
    target: KafkaAddress
    source_alias: str
    target_alias: str
    file: Path
    keeps_names: bool = False

    def remote(self, topic: str) -> str:
        """Return the name of the copy."""
        return topic if self.keeps_names else f"{self.source_alias}.{topic}"

    @property
    def offsets_topic(self) -> str:
        """Where positions are committed, on the target."""
        return f"mm2-offsets.{self.source_alias}.internal"


def write_flow(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topics: str,
    properties: Mapping[str, str] | None = None,
) -> Flow:
    """Write the file of one flow; its aliases are new, so nothing of another test is in its way.

    ``{source}`` and ``{target}`` in a property's name stand for the aliases.
    """
    mark = secrets.token_hex(3)
    one, two = f"src{mark}", f"dst{mark}"
    lines = {
        "clusters": f"{one}, {two}",
        f"{one}.bootstrap.servers": source.bootstrap_servers,
        f"{two}.bootstrap.servers": target.bootstrap_servers,
        f"{one}->{two}.enabled": "true",
        f"{one}->{two}.topics": topics,
        # Without it the way back is a second flow, only for heartbeats.
        "emit.heartbeats.enabled": "false",
        # The regions are shared: another test's heartbeats would be one more topic of this flow.
        "heartbeats.replication.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
    }
    for name, value in (properties or {}).items():
        lines[name.format(source=one, target=two)] = value
    file = folder / f"mm2-{mark}.properties"
    write_file(file, lines)
    return Flow(source, target, one, two, file)


def write_file(file: Path, properties: Mapping[str, str]) -> None:
    """Write a properties file."""
    text = "".join(f"{key} = {value}\n" for key, value in properties.items())
    file.write_text(text.replace("\\", "\\\\"), encoding="latin-1")


class Running(ABC):
    """A worker that runs, wherever it does: its log, its end."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def log(self) -> str:
        """Return everything that was logged so far."""

    @abstractmethod
    def check_running(self) -> None:
        """Fail if it has ended or met a defect of its own."""

    @abstractmethod
    def stop(self) -> int:
        """SIGTERM; return the exit code."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL."""

    def tail(self) -> str:
        """Return the end of the log."""
        lines = self.log().splitlines()[-_TAIL_LINES:]
        return f"--- end of the log of {self.name} ---\n" + "\n".join(lines)

    def lines(self, pattern: str) -> list[str]:
        """Return the log lines in which the pattern is found."""
        return [line for line in self.log().splitlines() if re.search(pattern, line)]

    def complaints(self) -> list[str]:
        """Return warnings and errors."""
        return self.lines("WARNING|ERROR")

    def wait_for_log(self, pattern: str, timeout_s: float = 90.0) -> str:
        """Wait until a line contains the pattern and return it."""

        def found() -> str | None:
            lines = self.lines(pattern)
            return lines[0] if lines else None

        return until(found, timeout_s, f"log line {pattern!r}", alive=self)

    def wait_ready(self, timeout_s: float = 90.0) -> None:
        """Wait until a task copies."""
        self.wait_for_log(READY, timeout_s)

    def check_defects(self) -> None:
        """Fail if it has met a defect of its own."""
        defects = self.lines("internal error|by a defect")
        assert not defects, defects[0]


@final
class Mirror(Running):
    """One process on a file; leaving the ``with`` block ends it in any case."""

    def __init__(
        self,
        file: Path,
        *arguments: str,
        name: str = "mirror",
        program: Sequence[str] = (COMMAND,),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name)
        self._log_file = file.with_name(f"{file.stem}-{name}-{secrets.token_hex(2)}.log")
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, str(file), *arguments],
                stdin=subprocess.DEVNULL,
                env=None if environ is None else {**os.environ, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        REAPER.watch_process(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def log(self) -> str:
        """Return everything that was logged so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def check_running(self) -> None:
        """Fail if the process has ended or met a defect of its own."""
        code = self._process.poll()
        assert code is None, f"{self.name} ended with {code}"
        self.check_defects()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, without waiting: to stop it in order as its user does, else to all of its processes."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self._process.send_signal(number)
        elif self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end and return the exit code."""
        code = self._process.wait(timeout_s)
        REAPER.forget_process(self.pid)
        return code

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.send(signal.SIGKILL)
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.tail())
        if self._process.poll() is None:
            self.kill()


@contextmanager
def running(
    file: Path, *, name: str = "mirror", environ: Mapping[str, str] | None = None
) -> Generator[Mirror]:
    """Run a worker that copies; what ends without an error has to stop in order."""
    with Mirror(file, name=name, environ=environ) as mirror:
        mirror.wait_ready()
        yield mirror
        assert mirror.stop() == 0, mirror.tail()


def run_to_end(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with something that it should refuse."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=REFUSAL_TIMEOUT_S,
    )
