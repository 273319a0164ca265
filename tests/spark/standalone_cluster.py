"""Spark's own cluster manager on this machine: a master and a worker, a JVM each, ended also when a test fails.

Flow: ``StandaloneCluster`` -> ``master`` for ``--master`` -> ``kill``. Executors are children of the worker.
"""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from mm2py_jobs.spark.java import find_java
from tests.integration.mirror_process import until
from tests.kit.kafka.reaper import REAPER

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


class StandaloneCluster:
    """A master and one worker with a core.

    Args:
        folder: for logs and the worker's files.
        cores: of the worker.
    """

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self._folder = folder
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._processes = [
            self._start("master", _MASTER, "--port", str(self.port), "--webui-port", "0")
        ]
        until(self._listens, 60, "Spark's master")
        options = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
        self._processes.append(
            self._start("worker", _WORKER, *options, "--work-dir", str(folder), self.master)
        )
        until(lambda: "Successfully registered" in self._log("worker"), 60, "Spark's worker")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill both, and with the worker its executors."""
        for process in self._processes:
            # A group of its own: executors are in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, main: str, *options: str) -> "subprocess.Popen[bytes]":
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        opens = ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
        opens.append("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
        command = [str(find_java().executable), *opens, "-Xmx256m", "-cp", str(jars), main]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "SPARK_HOME": str(Path(pyspark.__file__).parent),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_SCALA_VERSION": "2.13",  # as bin/load-spark-env.sh
                },
            )
        REAPER.watch_process(process.pid)
        return process

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")
