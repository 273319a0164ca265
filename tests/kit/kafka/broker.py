"""One real Kafka node: a folder with its data, properties and log, and the process that runs on it.

Flow: ``configure`` -> ``begin_format``/``finish_format`` -> ``launch`` -> ``wait_ready`` -> ``stop`` or ``kill``,
then again from ``launch`` on the same data. Knows nothing of the other nodes; ``Region`` does.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from mm2py.errors import FatalError
from mm2py_jobs.spark.java import Java
from tests.kit.kafka.class_archive import ClassArchive
from tests.kit.kafka.formatted import FormattedFolder
from tests.kit.kafka.ports import brokers_listed
from tests.kit.kafka.reaper import REAPER

STOP_TIMEOUT_S: Final = 30.0
FORMAT_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.02
_STOPS_S: Final = 5.0
_TAIL_LINES: Final = 30
_JVM: Final = (
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.level=WARN",
)
_NODE_ID = re.compile(r"(?m)^node\.id=(\d+)$")
_ADDRESS_IN_USE = re.compile(r"Address already in use|BindException")


class StartFailedError(FatalError):
    """A node ended, or did not serve requests in time; a note has the end of its output."""

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(message, remedy="see the node's output below the error, or with --debug")
        self.address_in_use = _ADDRESS_IN_USE.search(output) is not None
        self.still_registered = "NodeExists" in output
        """ZooKeeper still has the session of its former process, which was killed."""
        self.add_note(output)


@final
class Broker:
    """One node; every method may be called in any state."""

    def __init__(
        self, name: str, *, folder: Path, java: Java, jars: Sequence[Path], heap_mb: int
    ) -> None:
        self.name = name
        self.data_dir = folder / "data"
        self.log_file = folder / "kafka.log"
        self.port = 0
        self.has_served = False
        self._folder = folder
        self._properties = folder / "server.properties"
        self._java = java
        self._classpath = os.pathsep.join(str(jar) for jar in jars)
        self._heap_mb = heap_mb
        self._archive = ClassArchive.of(java, jars)
        self._cluster_id = ""
        self._formatted: FormattedFolder | None = None
        self._formatting: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, None while it does not run."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def configure(self, properties: str, port: int) -> None:
        """Write server.properties; counts from the next ``launch``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(properties, encoding="latin-1")
        self.port = port

    def begin_format(self, cluster_id: str, options: Sequence[str] = ()) -> None:
        """Begin to write the cluster's identity into the data folder."""
        self._cluster_id = cluster_id
        self._formatted = FormattedFolder(self._archive.name, options)
        if self._formatting is not None or self.data_dir.exists():
            return
        node_id = _NODE_ID.search(self._properties.read_text("latin-1"))
        if node_id is None or not self._formatted.copy_to(self.data_dir, cluster_id, node_id[1]):
            self._formatting = self._spawn(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster_id}",
                "--config",
                str(self._properties),
                *options,
                jvm=(f"-Xmx{self._heap_mb}m", *self._archive.use()),
            )

    def finish_format(self) -> None:
        """Wait for ``begin_format``."""
        process, self._formatting = self._formatting, None
        if process is None:
            return
        code = _waited(process, FORMAT_TIMEOUT_S)
        if code != 0:
            raise self._failed(f"formatting the data folder ended with {code}")
        if self._formatted is not None:
            self._formatted.keep(self.data_dir)

    def clone(self, other: "Broker") -> None:
        """Take the data of another node, and the id in it."""
        shutil.rmtree(self.data_dir)
        shutil.copytree(other.data_dir, self.data_dir)
        self._cluster_id = other._cluster_id

    def take_id(self, cluster_id: str) -> None:
        """Write another cluster id into ``meta.properties`` of its data."""
        file = self.data_dir / "meta.properties"
        text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={cluster_id}", file.read_text("ascii"))
        file.write_text(text, "ascii")
        self._cluster_id = cluster_id

    def launch(self) -> None:
        """Start the process if it does not run; does not wait."""
        if self.is_running:
            return
        self._reap()
        self._process = self._spawn(
            "kafka.Kafka",
            str(self._properties),
            jvm=(f"-Xmx{self._heap_mb}m", *self._archive.use_or_record()),
        )

    def start(self) -> None:
        """Start on the data that is there and wait until this node serves requests."""
        self.launch()
        self.wait_ready()

    def wait_ready(self, *, brokers: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until this node answers requests and lists at least ``brokers`` nodes."""
        deadline = time.monotonic() + timeout_s
        while brokers_listed(self.port, self._cluster_id) < brokers:
            if not self.is_running:
                code = None if self._process is None else self._process.returncode
                raise self._failed(f"the process ended with {code} before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"not ready on port {self.port} after {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        self.has_served = True

    def terminate(self) -> None:
        """Ask the process to end, without waiting."""
        self.thaw()
        if self._process is not None and self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """End in order (SIGTERM) and wait; killed when it does not end in 30 s."""
        self.terminate()
        if self._process is not None:
            code = _waited(self._process, STOP_TIMEOUT_S)
            self._archive.recorded(complete=code == 128 + signal.SIGTERM)
        self._reap()

    def kill(self) -> None:
        """End at once (SIGKILL), frozen or not."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def close(self) -> None:
        """End whatever runs; the data need not survive, so only a recording is ended in order."""
        if self._formatting is not None:
            self._formatting.kill()
            self._formatting.wait()
            REAPER.forget_process(self._formatting.pid)
            self._formatting = None
        if self._archive.is_recording:
            self.stop()
        else:
            self.kill()

    def freeze(self) -> None:
        """Hold the process (SIGSTOP): its connections stay open and nothing answers."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGSTOP)
            # On a loaded machine its threads run on for a moment.
            deadline = time.monotonic() + _STOPS_S
            flags = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
            while os.waitid(os.P_PID, self._process.pid, flags) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGCONT)

    def output(self, lines: int = _TAIL_LINES) -> str:
        """Return the end of what the node printed."""
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _spawn(self, main_class: str, *args: str, jvm: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [str(self._java.executable), *_JVM, *jvm, "-cp", self._classpath, main_class]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [*command, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the mirror, which stops the brokers last
            )
        REAPER.watch_process(process.pid)
        return process

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            REAPER.forget_process(process.pid)
        self._archive.recorded(complete=False)

    def _failed(self, what: str) -> StartFailedError:
        output = self.output()
        told = [
            line
            for line in output.splitlines()
            if re.search(r"\b(ERROR|FATAL|\w*Exception)\b", line)
        ]
        cause = f": {told[-1].strip()}" if told else ""
        return StartFailedError(f"Kafka node {self.name}: {what}{cause}", output=output)


def _waited(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        REAPER.forget_process(process.pid)
