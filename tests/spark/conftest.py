"""One Spark session for all tests of this folder, small, closed at the end; brokers as in tests/integration."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2py_jobs.spark.java import find_java
from mm2py_jobs.spark.session import OpenSession, open_session
from scripts.spark_archive import build
from tests.integration import setups
from tests.integration.mirror_process import until
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.reaper import REAPER
from tests.spark.standalone_cluster import BARE_PATH, HOME

setup = setups.setup


@pytest.fixture(scope="session")
def lanes_session() -> Iterator[OpenSession]:
    """A session on this machine with two slots and four attempts."""
    with open_session("local[2]", name="mm2py-tests", settings={"spark.ui.port": "0"}) as opened:
        yield opened


def shipped(folder: Path) -> dict[str, str]:
    """Return the environment of a machine that has of ours what ``make dist-spark`` ships, unpacked."""
    shutil.unpack_archive(build(folder / "dist"), folder / "mm2py")
    bare = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    python = str(folder / "mm2py" / "bin" / "python")
    return {**bare, "PATH": BARE_PATH, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": python}


@pytest.fixture
def connect(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of Spark Connect from the jars of pyspark, with two slots; its URL.

    Its Python is this one. With the parameter ``archive`` it has of ours what ``make dist-spark`` ships.
    """
    pytest.importorskip("grpc", reason="Spark Connect: pip install 'pyspark[connect]'")
    pytest.importorskip("grpc_status")
    (port,) = free_ports(1)
    conf = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false"}
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    jars = str(HOME / "jars" / "*")
    command_line = [str(find_java().executable), "-Xmx512m", "-cp", jars]
    command_line += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    command_line += ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
    command_line += ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", *options]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    if getattr(request, "param", "") == "archive":
        environ = shipped(tmp_path)
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command_line, "--class", server, "spark-internal"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
    REAPER.watch_process(process.pid)

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "server.log").read_text()[-2_000:]
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers, 200, "the server of Spark Connect")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
