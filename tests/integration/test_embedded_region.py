"""Embedded brokers start, die, freeze and come back with their records; long-running Java programs of the jars."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mm2py.errors import FatalError
from tests.integration.setups import Setup
from tests.kit.kafka.broker import StartFailedError
from tests.kit.kafka.java import compile_java, java_command, run_java
from tests.kit.kafka.java_process import JavaProcess
from tests.kit.kafka.region import Region, start_regions
from tests.kit.regions import CreateTopic, NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LONG_AGO_MS = 1_000_000_000_000  # 2001: Kafka's default retention would delete such a record


def produce(servers: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value=value, partition=0, timestamp=LONG_AGO_MS)
    assert producer.flush(60) == 0


def consume(servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        deadline = time.monotonic() + 90
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                value = message.value()
                values.append("" if value is None else bytes(value).decode())
        return values
    finally:
        consumer.close()


@pytest.mark.faults
def test_old_records_survive_a_restart_and_a_kill_on_the_same_ports(
    new_region: NewRegion, create_topic: CreateTopic
) -> None:
    region = new_region("durable")
    servers = region.bootstrap_servers
    create_topic(region, "t")
    produce(servers, "t", ["one"])
    region.restart()
    assert region.bootstrap_servers == servers
    produce(servers, "t", ["two"])
    region.kill()
    assert region.node(1).pid is None
    region.start()
    assert consume(servers, "t", 2) == ["one", "two"]


@pytest.mark.faults
def test_a_frozen_region_keeps_silent_and_a_thawed_one_answers(new_region: NewRegion) -> None:
    region = new_region("frozen")
    region.freeze()
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    region.thaw()
    assert admin.list_topics(timeout=90).brokers


@pytest.mark.faults
def test_a_three_node_region_goes_on_without_one_node(setup: Setup, region_three: Region) -> None:
    topic = setup.topic("replicated", on=region_three, replicas=3)
    region_three.node(2).kill()
    try:
        produce(region_three.bootstrap_servers, topic, ["kept"])
    finally:
        region_three.start()
    assert consume(region_three.bootstrap_servers, topic, 1) == ["kept"]
    assert len(region_three.nodes) == len(region_three.bootstrap_servers.split(","))


def test_a_node_that_cannot_start_shows_the_end_of_its_output() -> None:
    region = Region("broken", properties={"num.network.threads": "many"})
    try:
        with pytest.raises(
            StartFailedError, match=r"Kafka node broken-1: .*num\.network\.threads"
        ) as e:
            region.start()
        assert "num.network.threads" in "".join(e.value.__notes__)
    finally:
        region.close()


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


@pytest.mark.java
def test_java_programs_compile_and_run_against_the_jars_without_a_jdk(tmp_path: Path) -> None:
    source = tmp_path / "Probe.java"
    source.write_text(
        "public class Probe { public static void main(String[] a) throws Exception {"
        'System.out.print(org.apache.kafka.common.utils.AppInfoParser.getVersion() + " é "'
        '+ new String(System.in.readAllBytes(), "UTF-8")); } }',
        encoding="utf-8",
    )
    compile_java([source], tmp_path / "classes")
    done = run_java("Probe", classpath=[tmp_path / "classes"], stdin="ü")
    assert done.check() == "4.3.1 é ü"
    assert "SLF4J" not in done.stderr


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
