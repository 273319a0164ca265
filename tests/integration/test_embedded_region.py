"""Embedded brokers start, die, freeze and come back with their records; long-running Java programs of the jars."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from mm2py.errors import FatalError
from tests.integration.setups import Setup
from tests.kit.kafka.broker import StartFailedError
from tests.kit.kafka.java import java_command
from tests.kit.kafka.java_process import JavaProcess
from tests.kit.kafka.region import Region, start_regions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_node_that_cannot_start_shows_the_end_of_its_output() -> None:
    with closing(Region("broken", properties={"num.network.threads": "many"})) as region:
        with pytest.raises(
            StartFailedError, match=r"Kafka node broken-1: .*num\.network\.threads"
        ) as e:
            region.start()
        assert "num.network.threads" in "".join(e.value.__notes__)


@pytest.mark.faults
def test_a_region_moves_to_other_ports_when_someone_took_its_own() -> None:
    first, second = Region("first"), Region("second")
    try:
        first.start()
        second.prepare()
        # The second region is told to use the first one's ports, as if both had found them free.
        taken = first.node(1).port
        text = (second.node(1).data_dir.parent / "server.properties").read_text(encoding="latin-1")
        old = second.node(1).port
        second.node(1).configure(text.replace(f":{old}", f":{taken}"), taken)
        start_regions(second)
        assert second.bootstrap_servers != first.bootstrap_servers
        assert (
            AdminClient({"bootstrap.servers": second.bootstrap_servers})
            .list_topics(timeout=90)
            .brokers
        )
    finally:
        first.close()
        second.close()


@pytest.mark.faults
def test_brokers_and_data_disappear_with_a_killed_owner(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from tests.kit.kafka.region import Region\n"
        "region = Region('orphan', folder=pathlib.Path(sys.argv[1])); region.start()\n"
        "sys.stdout.write(f'{region.node(1).pid}\\n'); sys.stdout.flush(); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    ) as owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        os.kill(broker, 0)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    deadline = time.monotonic() + 90
    while list(tmp_path.iterdir()) or Path(f"/proc/{broker}/cmdline").exists():
        assert time.monotonic() < deadline, "the broker or its data is still there"
        time.sleep(0.05)


@pytest.mark.faults
@pytest.mark.java
def test_a_running_program_is_waited_for_and_stopped(setup: Setup) -> None:
    command = java_command(
        "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server",
        setup.a.bootstrap_servers,
        "--topic",
        "unused",
        "--reader-property",
        "parse.key=false",
    )
    with (
        pytest.raises(FatalError, match=r"ended with 0") as ended,
        JavaProcess(command, setup.folder / "log") as process,
    ):
        process.wait_until(lambda: False, timeout_s=90)
    assert "SLF4J" not in "".join(ended.value.__notes__)
