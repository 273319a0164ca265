"""Spark's own cluster manager on this machine: a master and workers, a JVM each, ended also when a test fails.

Flow: ``StandaloneCluster`` -> ``master`` for ``--master`` -> ``workers``, each killed, decommissioned and started alone -> ``kill``. Executors
are children of their worker, and of its process group: a worker that is killed is a machine that dies.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, final

import pyspark

from mm2py_jobs.spark.java import find_java
from tests.integration.mirror_process import until
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.reaper import REAPER
from tests.spark.backfill_process import executors_below, signal_process, spark_workers

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
START_S: Final = 400.0
HOME: Final = Path(pyspark.__file__).parent
BARE_PATH: Final = os.pathsep.join((f"{sys.base_prefix}/bin", os.defpath))
"""Of a machine with the Python that this environment was made from, but without the environment."""
QUICK_JVM: Final = "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"
"""Of what schedules for minutes: the quick compiler alone is half of its start."""


@final
class StandaloneWorker:
    """One worker, which runs from the start.

    Args:
        folder: for its log and the files of its executors.
        cores: that executors may have.
    """

    def __init__(self, folder: Path, master: str, cores: int) -> None:
        folder.mkdir()
        self.folder = folder
        self._options = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
        self._options += ["--work-dir", str(folder), master]
        self.start()

    def start(self) -> None:
        """Start it; ``wait_ready`` waits until the master has it."""
        self._process = _started(self.folder / "worker.log", _WORKER, *self._options)

    def wait_ready(self) -> None:
        """Wait until the master has it."""
        self.wait_log("Successfully registered")

    def kill(self) -> None:
        """Kill it and its executors, as a machine that dies; safe twice."""
        _kill(self._process)

    def kill_alone(self) -> None:
        """Kill it, but not its executors, which end when they notice."""
        signal_process(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_executor(self) -> int:
        """Kill one of its executors, which it starts again; return how many there were."""
        executors = self.executors()
        for pid in executors[:1]:
            signal_process(pid, signal.SIGKILL)
        return len(executors)

    def decommission(self) -> None:
        """Tell it that its machine will go away: its executors end when their tasks have."""
        signal_process(self._process.pid, signal.SIGPWR)
        self.wait_log("Decommission worker")

    def executors(self) -> list[int]:
        """Return the JVMs of its executors."""
        return executors_below(self._process.pid)

    def lanes(self) -> list[int]:
        """Return the Python processes of its executors."""
        return spark_workers(self._process.pid)

    def wait_log(self, text: str) -> None:
        """Wait until it has logged a text since its start."""
        log = self.folder / "worker.log"
        until(lambda: text in log.read_text(errors="replace"), START_S, f"{text} in {log}")


@final
class StandaloneCluster:
    """A master and workers.

    Args:
        folder: for logs and files.
        cores: of each worker.
        workers: how many.
    """

    def __init__(self, folder: Path, cores: int = 1, workers: int = 1) -> None:
        (self.port,) = free_ports(1)
        self.master = f"spark://127.0.0.1:{self.port}"
        self.workers: Sequence[StandaloneWorker] = ()
        options = "--port", str(self.port), "--webui-port", "0"
        self._master = _started(folder / "master.log", _MASTER, *options)
        until(self._listens, START_S, "Spark's master")
        self.workers = [
            StandaloneWorker(folder / f"worker-{it}", self.master, cores) for it in range(workers)
        ]
        for worker in self.workers:
            worker.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill all, and with the workers their executors."""
        for worker in self.workers:
            worker.kill()
        _kill(self._master)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False


def _started(log: Path, main: str, *options: str) -> "subprocess.Popen[bytes]":
    java = [
        str(find_java().executable),
        *QUICK_JVM,
        "-Xmx256m",
        "-Dspark.decommission.enabled=true",
    ]
    java.append("--add-opens=java.base/java.nio=ALL-UNNAMED")
    java.append("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*java, "-cp", str(HOME / "jars" / "*"), main, "--host", "127.0.0.1", *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={
                **os.environ,
                "SPARK_HOME": str(HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SCALA_VERSION": "2.13",  # as bin/load-spark-env.sh
            },
        )
    REAPER.watch_process(process.pid)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # A group of its own: executors are in it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
