"""YARN on this machine: a ResourceManager and a NodeManager from the jars of Hadoop's mini cluster, ended also when a test fails.

Flow: committed list of jars -> the user's jar cache, every hash checked -> ``YarnCluster`` writes ``conf`` for ``HADOOP_CONF_DIR`` and starts
both -> ``submit`` runs a command of ours by Spark's own ``spark-submit`` -> ``kill``. Files lie on the local file system, there is no HDFS.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self, cast, final

import pytest

import mm2py_cli
from mm2py.errors import RetriableError
from mm2py_jobs.spark.java import find_java
from tests.integration.mirror_process import until
from tests.kit.kafka.jars import Jar, cache_dir, fetch
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.reaper import REAPER
from tests.spark.standalone_cluster import BARE_PATH, HOME, QUICK_JVM, START_S

_JARS: Final = {
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0": "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    "org.bouncycastle:bcpkix-jdk18on:1.80": "4f4ba6a92617ea19dc183f0fa5db492eee426fdde2a0a2d6c94777ffd1af6413",
    "org.bouncycastle:bcprov-jdk18on:1.80": "e8ad209f8c58d291a37ca9750e9e9fac60596956c983e49dd8282381dd8b3249",
    "org.bouncycastle:bcutil-jdk18on:1.80": "22eca687f7955411f456af33e6ea8e68fc73cd80cb8b32aa5f7a8b1827d7c678",
}
"""Of the Hadoop whose client pyspark brings."""
_MANAGERS: Final = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
_ADDRESSES: Final = {
    "resourcemanager": ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address"),
    "nodemanager": ("address", "localizer.address", "webapp.address"),
}  # fmt: skip
_SETTINGS: Final = {
    "resourcemanager.hostname": "127.0.0.1",
    "resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler",
    "nodemanager.hostname": "127.0.0.1",
    "nodemanager.resource.memory-mb": "4096",
    "nodemanager.resource.cpu-vcores": "4",
    "nodemanager.pmem-check-enabled": "false",
    "nodemanager.vmem-check-enabled": "false",
    "nodemanager.disk-health-checker.enable": "false",
    "nodemanager.env-whitelist": "JAVA_HOME,HADOOP_CONF_DIR,PATH",
    "scheduler.minimum-allocation-mb": "64",
}
_SHIPPED: Final = "./environment/bin/python"
_OURS: Final = ("PYSPARK_PYTHON", "PYTHONPATH")
"""Spark would hand them on to containers."""
MAIN: Final = Path(mm2py_cli.__path__[0], "__main__.py")


def fetch_yarn() -> list[Path]:
    """Return the jars; skips the test where the repository cannot be reached."""
    jars = [Jar(coordinate, digest) for coordinate, digest in _JARS.items()]
    try:
        return fetch(jars, cache_dir() / "jars", os.environ.get("MM2PY_MAVEN_URL", ""))
    except RetriableError as error:
        pytest.skip(f"YARN's jars cannot be fetched: {error}")


@final
class YarnCluster:
    """One ResourceManager and one NodeManager.

    Args:
        folder: for configuration, logs and the files of containers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.conf = folder, folder / "conf"
        self.conf.mkdir()
        jars = fetch_yarn()
        names = [f"{manager}.{it}" for manager, all_of in _ADDRESSES.items() for it in all_of]
        places = {
            name: f"127.0.0.1:{port}"
            for name, port in zip(names, free_ports(len(names)), strict=True)
        }
        self._page = places["resourcemanager.webapp.address"]
        folders = {f"nodemanager.{it}-dirs": str(folder / it) for it in ("local", "log")}
        yarn = {f"yarn.{name}": text for name, text in (_SETTINGS | places | folders).items()}
        self._write("yarn-site.xml", yarn)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")}
        self._write("core-site.xml", core)
        path = [self.conf, *jars, HOME / "jars" / "*"]
        self._processes = [
            self._started(name, os.pathsep.join(map(str, path))) for name in _MANAGERS
        ]

    def __enter__(self) -> Self:
        until(lambda: self._nodes() == 1, START_S, f"a node of YARN, see {self._folder}")
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()

    def submit(
        self, mode: str, words: Sequence[str], archive: Path, **settings: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of ours on it in a mode of ``--deploy-mode``, until it has ended.

        Containers have the Python that this one was made from, and of ours what is in ``archive``.
        """
        python = str(Path(sys.executable).absolute())
        here = {"spark.pyspark.driver.python": python, "spark.pyspark.python": _SHIPPED}
        conf = {
            "spark.yarn.jars": f"local:{HOME}/jars/*",  # else each run copies 400 MB of them
            "spark.yarn.stagingDir": (self._folder / "staging").as_uri(),
            "spark.yarn.am.memory": "256m",
            "spark.driver.memory": "512m",
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PATH": BARE_PATH,
            "spark.yarn.appMasterEnv.PATH": BARE_PATH,
            **(here if mode == "client" else {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": _SHIPPED}),
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
        options = [word for it in conf.items() for word in ("--conf", "=".join(it))]
        command = [HOME / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", mode]
        command += ["--archives", f"{archive}#environment"]
        return subprocess.run(
            [*map(str, command), *options, str(MAIN), *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=START_S,
            env={
                **{name: text for name, text in os.environ.items() if name not in _OURS},
                "HADOOP_CONF_DIR": str(self.conf),
                "SPARK_HOME": str(HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JAVA_HOME": str(find_java().executable.resolve().parent.parent),
            },
        )

    def said(self) -> str:
        """Return what containers have written on standard output."""
        found = (self._folder / "log").glob("*/*/stdout")
        return "".join(it.read_text(errors="replace") for it in found)

    def kill(self) -> None:
        """Kill both and every container."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in _below(self._folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _nodes(self) -> int:
        for process in self._processes:
            assert process.poll() is None, f"a manager has ended, see {self._folder}"
        try:
            with urllib.request.urlopen(f"http://{self._page}/ws/v1/cluster/metrics", timeout=5) as answer:  # fmt: skip
                found: Mapping[str, Mapping[str, object]] = json.load(answer)
        except OSError:
            return 0
        return cast("int", found["clusterMetrics"]["activeNodes"])

    def _started(self, name: str, path: str) -> "subprocess.Popen[bytes]":
        java = [str(find_java().executable), *QUICK_JVM, "-Xmx256m"]
        java += [f"--add-opens=java.base/java.{it}=ALL-UNNAMED" for it in ("lang", "util")]
        with (self._folder / f"{name}.log").open("wb") as out:
            process = subprocess.Popen(
                [*java, "-cp", path, f"org.apache.hadoop.yarn.server.{name}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        REAPER.watch_process(process.pid)
        return process

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        rows = (f"<property><name>{key}</name><value>{text}</value></property>" for key, text in settings.items())  # fmt: skip
        (self.conf / name).write_text(f"<configuration>{''.join(rows)}</configuration>")


def _below(folder: Path) -> list[int]:
    """Return the processes that work in a folder: containers have sessions of their own."""
    found = list[int]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cwd").resolve().is_relative_to(folder):
                found.append(int(entry.name))
    return found
