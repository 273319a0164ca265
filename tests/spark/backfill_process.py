"""``mm2py backfill`` as its user runs it, and the processes below it.

Flow: ``command`` for what ends by itself, in this process with its Spark session; ``command_line`` as a process; ``BackfillProcess``
for a run that is killed, or whose workers are; ``attempts`` shows from the backfill topic which process copies what.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, cast

from typer.testing import CliRunner

from mm2py.errors import ProtocolError
from mm2py.mirror.backfills import Lease, LeaseState, backfill_topic, decode_backfill
from mm2py_cli.app import app
from tests.integration.earlier_build import PRESENT, Build
from tests.integration.mirror_process import MM2PY, Flow, until
from tests.integration.traffic import read
from tests.kit.kafka.reaper import REAPER

MASTER: Final = "local[2]"
END_WITHIN_S: Final = 240
SLOW_FLOW: Final = {"flow.max.bytes.per.second": "20000"}
"""The live flow gets nowhere by itself."""
CLUSTER: Final = "local-cluster[2,1,512]"
SPARK_DEFAULTS: Final = """\
spark.network.timeout 20s
spark.network.timeoutInterval 5s
spark.executor.heartbeatInterval 4s
spark.executor.memory 512m
spark.task.maxFailures 8
"""


def impatient(folder: Path) -> dict[str, str]:
    """Return the environment of a driver that takes silent processes for dead within seconds."""
    conf = folder / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    return {"SPARK_CONF_DIR": str(conf)}


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, object]:
        """The JSON on standard output, which must hold nothing else."""
        return cast("dict[str, object]", json.loads(self.out))

    @property
    def partitions(self) -> list[dict[str, int]]:
        """The report's partitions."""
        return cast("list[dict[str, int]]", self.report["partitions"])

    def rows(self, member: str) -> list[dict[str, object]]:
        """A list of the report."""
        return cast("list[dict[str, object]]", self.report[member])


def command(flow: Flow, name: str, *options: str) -> Ended:
    """Run a command of backfills to its end, in this process."""
    return here(flow, ("backfill", name), *options)


def here(flow: Flow, words: Sequence[str], *options: str) -> Ended:
    """Run any command of a flow to its end, in this process: a session that exists is used."""
    arguments = [*words, str(flow.file), "--flow", flow.name, "-o", "json"]
    done = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
    return Ended(done.exit_code, done.stdout, done.stderr)


def command_line(flow: Flow, name: str, *options: str) -> Ended:
    """Run a command to its end in a process of its own, which starts its own Spark."""
    done = subprocess.run(
        [MM2PY, "backfill", name, str(flow.file), "--flow", flow.name, "-o", "json", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_WITHIN_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class BackfillProcess:
    """``mm2py backfill run``, or the command of other ``words``, in the background."""

    def __init__(
        self,
        flow: Flow,
        *options: str,
        master: str = MASTER,
        environ: Mapping[str, str] | None = None,
        words: Sequence[str] = ("backfill", "run"),
        build: Build = PRESENT,
    ) -> None:
        self.flow = flow
        self._orphans: list[int] = []
        arguments = [str(flow.file), "--flow", flow.name, "-o", "json", "--master", master]
        # A pipe would not be read while it runs, and Spark writes many lines about a cluster that changes.
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the pipe
        self._process = subprocess.Popen(
            [*build.command, *words, *arguments, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environ or {}), **(build.environ or {})},
        )
        REAPER.watch_process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process.poll() is None:
            self.kill()
        for pid in self._orphans:
            signal_process(pid, signal.SIGKILL)
        self._close_pipes()

    @property
    def pid(self) -> int:
        """Of the driver."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def check_running(self) -> None:
        """Fail where it has ended, with what it wrote."""
        if not self.is_running:
            raise AssertionError(f"the run has ended: {self.wait()}")

    def wait(self, within_s: float = END_WITHIN_S) -> Ended:
        """Wait for its end."""
        out, _ = self._process.communicate(timeout=within_s)
        self._err.seek(0)
        return Ended(self._process.returncode, out, self._err.read())

    def said(self) -> list[str]:
        """Return the lines that it has written on standard error so far."""
        return os.pread(self._err.fileno(), 2**24, 0).decode(errors="replace").splitlines()

    def send(self, number: signal.Signals) -> None:
        """Signal the driver alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the driver and everything below it but frozen workers, as a machine that dies."""
        for pid in [*_below(self._process.pid), self._process.pid]:
            signal_process(pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()

    def kill_jvm(self) -> None:
        """Kill the JVM of the driver alone."""
        (jvm,) = (it for it in _below(self._process.pid) if "SparkSubmit" in _words(it))
        signal_process(jvm, signal.SIGKILL)

    def _close_pipes(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._err.close()

    def workers(self) -> list[int]:
        """Return the Python processes that run lanes: children of Spark's daemon."""
        return spark_workers(self._process.pid)

    def wait_copying(self, timeout_s: float = 400.0) -> None:
        """Wait until a worker has claimed partitions."""

        def copies() -> bool:
            assert self.is_running, self.wait().err
            return any(attempts(self.flow, pid) for pid in self.workers())

        until(copies, timeout_s, "a lane that copies")

    def signal_worker(self, number: signal.Signals) -> int:
        """Signal a worker that copies; return its pid, 0 where none does."""
        for pid in self.workers():
            if attempts(self.flow, pid) and signal_process(pid, number):
                return pid
        return 0

    def orphan(self) -> int:
        """Freeze a worker that copies, and kill what started it, so that Spark runs its lane again; return its pid."""
        frozen = orphan_worker(self.flow, self._process.pid)
        self._orphans.append(frozen)
        return frozen

    def freeze_executor(self) -> tuple[int, int]:
        """Freeze an executor, but not its worker, which copies; return both."""
        for pid in self.workers():
            executor = _parent(_parent(pid))
            if attempts(self.flow, pid) and signal_process(executor, signal.SIGSTOP):
                self._orphans.append(pid)
                return executor, pid
        raise AssertionError("no worker copies")

    def freeze(self) -> list[int]:
        """Freeze the driver and everything below it, as a machine that sleeps; return all of them."""
        frozen = freeze_tree(self._process.pid)
        self._orphans += frozen[1:]
        return frozen


class RestoreProcess:
    """``mm2py restore`` in the background."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        REAPER.watch_process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it with everything below; safe twice."""
        for pid in [*_below(self._process.pid), self._process.pid]:
            signal_process(pid, signal.SIGKILL)
        self._process.wait()


def attempts(flow: Flow, pid: int) -> list[Lease]:
    """Return the partitions that a process copies by the newest records of the backfill topic."""
    return [
        it
        for it in leases_of(flow)
        if it.attempt.split("/")[1:2] == [str(pid)] and it.state is LeaseState.COPYING
    ]


def taken_over(flow: Flow, pid: int, timeout_s: float = 400.0) -> None:
    """Wait until another process has each partition that this one had, or has handed it over."""
    until(lambda: not attempts(flow, pid), timeout_s, f"another attempt than process {pid}")


def leases_of(flow: Flow) -> list[Lease]:
    """Return the partitions of the newest job by their newest records."""
    newest: dict[bytes, Lease] = {}
    for log in read(flow.target, backfill_topic(flow.source_alias), committed=True).values():
        for record in log.records:
            with contextlib.suppress(ProtocolError):
                found = decode_backfill(record.key, record.value or b"")
                if isinstance(found, Lease):
                    newest[record.key or b""] = found
    return list(newest.values())


def orphan_worker(flow: Flow, driver: int) -> int:
    """Freeze a worker below a driver that copies, and kill what started it, so that Spark runs its lane again; return its pid."""
    copying = (it for it in spark_workers(driver) if attempts(flow, it))
    frozen = next((it for it in copying if signal_process(it, signal.SIGSTOP)), 0)
    assert frozen, "no worker copies"
    daemon = _parent(frozen)
    jvm = _parent(daemon)
    signal_process(daemon, signal.SIGKILL)  # in order it would end its workers
    if "CoarseGrainedExecutorBackend" in _words(jvm):
        signal_process(jvm, signal.SIGKILL)
    return frozen


def freeze_tree(driver: int) -> list[int]:
    """Freeze a driver and everything below it, as a machine that sleeps; return all of them."""
    frozen = [driver, *_below(driver)]
    for pid in frozen:
        signal_process(pid, signal.SIGSTOP)
    return frozen


def kill_all(pids: Sequence[int]) -> None:
    """Kill what is left of processes."""
    for pid in pids:
        signal_process(pid, signal.SIGKILL)


def thaw(*pids: int) -> None:
    """Let frozen processes run."""
    for pid in pids:
        signal_process(pid, signal.SIGCONT)


def drivers_of(flow: Flow) -> list[int]:
    """Return the processes that run ``mm2py backfill`` on the file of a flow, by their own words."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [
        pid
        for pid in pids
        if "\0backfill\0" in _words(pid) and str(flow.file) in _words(pid).split("\0")
    ]


def spark_workers(pid: int) -> list[int]:
    """Return the Python processes below a driver that run tasks: children of Spark's daemon."""
    daemons = [it for it in _below(pid) if "pyspark.daemon" in _words(it)]
    return [it for it in daemons if _parent(it) in daemons]


def executors_below(pid: int) -> list[int]:
    """Return the JVMs of Spark's executors below a process."""
    return [it for it in _below(pid) if "CoarseGrainedExecutorBackend" in _words(it)]


def signal_process(pid: int, number: signal.Signals) -> bool:
    """Signal a process; return whether it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, 0 where it is gone."""
    try:
        spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found: list[int] = []
    open_pids = [pid]
    while open_pids:
        for child in children.get(open_pids.pop(), []):
            found.append(child)
            open_pids.append(child)
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
