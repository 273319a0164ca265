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
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar, final

from typer.testing import CliRunner, Result

from mm2py.testing.waiting import quoted
from mm2py_cli.app import app
from tests.kit.fork_server import FORKS, Forked
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import KafkaAddress

COMMAND: Final = str(Path(sys.executable).parent / "connect-mirror-maker-py")
CONNECT_COMMAND: Final = COMMAND.replace("mirror-maker", "distributed")
MIRROR_MAKER_1_COMMAND: Final = COMMAND.replace("connect-mirror-maker", "mirror-maker")
MM2PY: Final = COMMAND.replace("connect-mirror-maker-py", "mm2py")
ENTRIES: Final = {
    MM2PY: "mm2py_cli.entry:mm2py",
    COMMAND: "mm2py_workers.entry:connect_mirror_maker",
    CONNECT_COMMAND: "mm2py_workers.entry:connect_distributed",
    MIRROR_MAKER_1_COMMAND: "mm2py_migrate.entry:mirror_maker",
}
READY: Final = "source task started"
STOP_TIMEOUT_S: Final = 90.0
REFUSAL_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 0.4
"""A condition that takes long is looked at less often: each look is work for what it waits for."""
_TAIL_LINES: Final = 60
_HELD_UP: Final = "heartbeats failed|expired the membership|coordinator is silent|membership lost"

SHORT_SESSION: Final = {
    "{target}.session.timeout.ms": "4000",
    "{target}.heartbeat.interval.ms": "1000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
"""Properties of a flow whose test waits until a worker counts as dead."""
SHORT_SESSION_S: Final = 4.0
PROMPT: Final = {"{target}.offset.flush.interval.ms": "200"}
"""Of a flow whose test waits for stored positions: those of few records wait for five intervals."""

GROUPS: Final = {
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.sync.group.offsets.interval.seconds": "1",
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}
"""Of a flow whose test waits for groups on the target."""

FEW_PARTITIONS: Final = {"offset.storage.partitions": "2", "status.storage.partitions": "1"}
"""Of a flow's stores: Java's 30 are half of what a flow's start costs its target, and stay there with those of all tests before."""

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
THREE_REPLICAS: Final = {name: "3" for name in SINGLE_REPLICA if "topic" not in name}
"""Of the copies and the stores of a flow to a target of three."""


def until(
    condition: Callable[[], T | None],
    timeout_s: float = 90.0,
    what: str | Callable[[], str] = "",
    *,
    alive: "Running | None" = None,
) -> T:
    """Return the first result that is true; fails after ``timeout_s``, or when ``alive`` has ended, with ``what`` or its code."""
    deadline = time.monotonic() + timeout_s
    pause, pause_s = threading.Event(), POLL_S
    while True:
        found = condition()
        if found:
            return found
        if alive is not None:
            alive.check_running()
        if time.monotonic() > deadline:
            text = (what if isinstance(what, str) else what()) or quoted(condition)
            raise AssertionError(f"not within {timeout_s:.0f} s: {text}")
        pause.wait(pause_s)
        pause_s = min(pause_s * 1.1, LONGEST_POLL_S)


def until_equal(
    current: Callable[[], object],
    wanted: object,
    what: str = "",
    *,
    timeout_s: float = 90.0,
    alive: "Running | None" = None,
) -> None:
    """Wait until a value is the wanted one; fails as ``until``, with the value that is there."""
    text = f"{what}: wanted {wanted}, there is "
    until(lambda: current() == wanted, timeout_s, lambda: f"{text}{current()}", alive=alive)


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
    def name(self) -> str:
        """As users name the flow."""
        return f"{self.source_alias}->{self.target_alias}"

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
        # A stop in order waits for the end of a poll.
        "consumer.poll.timeout.ms": "100",
        **FEW_PARTITIONS,
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
        """Return warnings and errors, but those of a worker that the machine held up for a session."""
        return [it for it in self.lines("WARNING|ERROR") if not re.search(_HELD_UP, it)]

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
    """One process on a file; leaving the ``with`` block ends it in any case.

    A worker is forked from a process that has loaded it, which takes a tenth of the CPU, but where it is ``fresh`` or has an
    environment of its own.
    """

    FORKED = True
    """False: all are fresh, as where they run for minutes."""

    def __init__(
        self,
        file: Path,
        *arguments: str,
        name: str = "mirror",
        program: Sequence[str] = (COMMAND,),
        environ: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        super().__init__(name)
        self._log_file = file.with_name(f"{file.stem}-{name}-{secrets.token_hex(2)}.log")
        words = [*program, str(file), *arguments]
        forked = self.FORKED and not fresh and environ is None
        self._process = self._start(words, environ, ENTRIES.get(program[0]) if forked else None)
        REAPER.watch_process(self._process.pid)

    def _start(
        self, words: Sequence[str], environ: Mapping[str, str] | None, entry: str | None
    ) -> subprocess.Popen[bytes] | Forked:
        with self._log_file.open("wb") as log:
            if entry is not None:
                return FORKS.start(entry, words, self._log_file)
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                env=None if environ is None else {**os.environ, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

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
    file: Path,
    *,
    name: str = "mirror",
    program: Sequence[str] = (COMMAND,),
    environ: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Generator[Mirror]:
    """Run a worker, at first until it copies (``ready``); what ends without an error has to stop in order."""
    with Mirror(file, name=name, program=program, environ=environ) as mirror:
        if ready:
            mirror.wait_ready()
        yield mirror
        assert mirror.stop() == 0, mirror.tail()


def command_here(*words: str | Path, environ: Mapping[str, str] | None = None) -> Result:
    """Run a command of ``mm2py`` to its end in this process: one of its own needs two seconds of CPU to load it."""
    return CliRunner().invoke(app, list(map(str, words)), env=environ)


def run_to_end(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command with something that it should refuse."""
    words = [COMMAND, *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="mm2py-refused-") as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = FORKS.start(ENTRIES[COMMAND], words, errors, out)
        try:
            code = process.wait(REFUSAL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(words, code, out.read_text(), errors.read_text())
