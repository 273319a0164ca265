"""A standalone Spark master with one worker, as processes of this machine."""

import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from mm2py.embedded.java import find_java
from mm2py.embedded.reaper import REAPER
from tests.integration.mirror_process import until

__all__ = ["Standalone", "standalone"]

_HOST: Final = "127.0.0.1"
_DEFAULTS: Final = """\
spark.executor.memory 512m
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.cores.max 2
"""


@dataclass(slots=True)
class Standalone:
    """Its address, and the environment that a driver needs."""

    master: str
    environ: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def stop(self) -> None:
        """Kill master, worker and its executors, as a cluster that goes away."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def standalone(folder: Path, python: str) -> Generator[Standalone]:
    """Start both; ``python`` runs the tasks."""
    conf = folder / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(_DEFAULTS)
    home = str(Path(pyspark.__file__).parent)
    java = find_java().executable.resolve().parent.parent
    environ = {
        "SPARK_HOME": home,
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": python,
    }
    port = _free_port()
    found = Standalone(f"spark://{_HOST}:{port}", environ)
    try:
        master = ["--host", _HOST, "--port", str(port), "--webui-port", "0"]
        _start(found, "master.Master", *master)
        until(lambda: _accepts(port), 90, "the master's port")
        worker = ["--cores", "2", "--memory", "1g", "--webui-port", "0"]
        _start(found, "worker.Worker", *worker, "--work-dir", str(folder / "work"), found.master)
        yield found
    finally:
        found.stop()


def _start(cluster: Standalone, name: str, *arguments: str) -> None:
    program = f"{cluster.environ['SPARK_HOME']}/bin/spark-class"
    process = subprocess.Popen(
        [program, f"org.apache.spark.deploy.{name}", *arguments],
        env={**os.environ, **cluster.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    REAPER.watch_process(process.pid)
    cluster.processes.append(process)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HOST, 0))
        return int(found.getsockname()[1])


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
