"""Long-running Java programs of the jars, as the benches and compatibility tests run them."""

import signal
from pathlib import Path

import pytest

from mm2py.errors import FatalError
from tests.kit.kafka.java import java_command
from tests.kit.kafka.java_process import JavaProcess
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(300)]


def test_a_running_program_is_waited_for_and_stopped(
    tmp_path: Path, region_a: KafkaAddress
) -> None:
    command = java_command(
        "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server",
        region_a.bootstrap_servers,
        "--topic",
        "unused",
        "--reader-property",
        "parse.key=false",
    )
    with (
        pytest.raises(FatalError, match=r"ended with 0") as ended,
        JavaProcess(command, tmp_path / "log") as process,
    ):
        process.wait_until(lambda: False, timeout_s=90)
    assert "SLF4J" not in "".join(ended.value.__notes__)


def test_the_real_mirror_maker_starts_from_the_jars(
    tmp_path: Path, region_a: KafkaAddress, region_b: KafkaAddress
) -> None:
    properties = tmp_path / "mm2.properties"
    properties.write_text(
        f"clusters=a,b\na.bootstrap.servers={region_a.bootstrap_servers}\n"
        f"b.bootstrap.servers={region_b.bootstrap_servers}\n"
        "a->b.enabled=false\nb->a.enabled=false\nreplication.factor=1\n"
        "a->b.emit.heartbeats.enabled=false\nb->a.emit.heartbeats.enabled=false\n",
        encoding="utf-8",
    )
    command = java_command(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
        jvm_args=["-Dlog4j2.level=INFO"],
    )
    with JavaProcess(command, tmp_path / "log") as process:
        process.wait_until(lambda: "Kafka MirrorMaker" in process.output(10_000), timeout_s=90)
        assert process.stop() in {0, 128 + signal.SIGTERM, -signal.SIGTERM}
