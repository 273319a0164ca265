"""One Spark session for all tests of this folder, small, closed at the end; brokers as in tests/integration."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from mm2py_jobs.spark.java import find_java
from mm2py_jobs.spark.session import OpenSession, open_session
from tests.integration import setups
from tests.integration.mirror_process import until
from tests.kit.kafka.reaper import REAPER
from tests.spark.standalone_cluster import free_port

setup = setups.setup


@pytest.fixture(scope="session")
def lanes_session() -> Iterator[OpenSession]:
    """A session on this machine with two slots and four attempts."""
    with open_session("local[2]", name="mm2py-tests", settings={"spark.ui.port": "0"}) as opened:
        yield opened


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """A server of Spark Connect from the jars of pyspark, with two slots; its URL."""
    pytest.importorskip("grpc", reason="Spark Connect: pip install 'pyspark[connect]'")
    pytest.importorskip("grpc_status")
    port = free_port()
    conf = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false"}
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    jars = str(Path(pyspark.__path__[0]) / "jars" / "*")
    command_line = [str(find_java().executable), "-Xmx512m", "-cp", jars]
    command_line += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    command_line += ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
    command_line += ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", *options]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command_line, "--class", server, "spark-internal"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
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
