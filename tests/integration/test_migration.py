"""Old mirrors become flows that continue where those stopped.

A MirrorMaker 1 command: ``mm2py migrate mm1 --carry-positions``, then our worker or Java's on the printed file. An operator's
``KafkaMirrorMaker2``: Java's Connect as the operator runs it, then ``mm2py import strimzi --carry-positions``, or our Connect worker on
its group and topics.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import pytest
from typer.testing import Result

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from mm2py.clock import closing
from tests.integration.connect_process import DISTRIBUTED, mirror_config, rest_of, write_worker
from tests.integration.java_connect import JavaConnect
from tests.integration.mirror_maker_1 import Files, committed, start, wait_for_records, write_files
from tests.integration.mirror_process import Flow, Mirror, command_here, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Sent,
    committed_positions,
    ends,
    numbered,
    read,
    values_of,
    write,
)
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(420)]

PARTITIONS: Final = 4
COMMITS: Final = ("--offset.commit.interval.ms", "500")


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic_on_both("moved", PARTITIONS)


@pytest.fixture
def files(setup: Setup) -> Files:
    return write_files(setup.folder, setup.a, setup.b, setup.unique("group"))


@pytest.fixture
def flow(setup: Setup, files: Files) -> Flow:
    """Aliases that no other test has: positions of a flow are kept by its source's name."""
    names = setup.unique("old"), setup.unique("new")
    return Flow(files.source, files.target, *names, setup.folder / "mm2.properties")


def migrate(files: Files, flow: Flow, *words: str) -> Result:
    return command_here(
        "migrate", "mm1",
        "--consumer.config", files.consumer, "--producer.config", files.producer, *words,
        "--source", flow.source_alias, "--target", flow.target_alias, "--to", flow.file,
        "--carry-positions",
    )  # fmt: skip


def mirror_with_mm1(files: Files, topic: str, count: int) -> None:
    """Copy so many records with MirrorMaker 1 and stop it in order."""
    write(files.source, topic, numbered(0, count, PARTITIONS, keys=40))
    with start(files, "--whitelist", topic, *COMMITS) as mirror:
        wait_for_records(files.target, topic, count, mirror)
        assert mirror.stop() == 0
    assert committed(files, topic) == ends(files.source, topic)


@contextmanager
def running(engine: str, flow: Flow) -> Generator[Callable[[], int]]:
    """Run the file of a flow; yields what stops it in order."""
    if engine == "ours":
        with Mirror(flow.file) as mirror:
            yield mirror.stop
        return
    log = flow.file.with_suffix(".log")
    with start_java(
        flow.file, log, clusters=[flow.target_alias], jvm_flags=QUICK_START_FLAGS
    ) as process:
        try:
            yield process.stop
        except AssertionError as error:
            error.add_note("\n".join(process.log().splitlines()[-60:]))
            raise


@pytest.mark.parametrize("engine", ["ours", pytest.param("java", marks=pytest.mark.java)])
def test_the_flow_continues_at_the_next_record_of_the_group(
    engine: str, files: Files, flow: Flow, topic: str
) -> None:
    mirror_with_mm1(files, topic, 1_000)
    write(files.source, topic, numbered(1_000, 500, PARTITIONS, keys=40))  # while nothing copies
    done = migrate(files, flow, "--whitelist", topic, "--num.streams", "2")
    assert done.exit_code == 0, done.stderr
    assert f"{PARTITIONS} partitions of 1 topics continue at the next record" in done.stderr
    assert committed_positions(flow, topic) == dict.fromkeys(range(PARTITIONS), 249)
    with running(engine, flow) as stop:
        until(lambda: len(values_of(files.target, topic)) >= 1_500, 120, "the rest")
        write(files.source, topic, numbered(1_500, 200, PARTITIONS, keys=40))
        until(lambda: len(values_of(files.target, topic)) >= 1_700, 120, "what came later")
        assert stop() in (0, 143)
    assert sorted(values_of(files.target, topic)) == sorted(b"%d" % it for it in range(1_700))


def test_positions_are_written_in_javas_bytes(files: Files, flow: Flow, topic: str) -> None:
    mirror_with_mm1(files, topic, 40)
    assert migrate(files, flow, "--whitelist", topic).exit_code == 0
    found = {
        it.key: it.value
        for log in read(files.target, flow.offsets_topic).values()
        for it in log.records
    }
    alias = flow.source_alias.encode()
    assert found == {
        b'["MirrorSourceConnector",{"cluster":"%s","partition":%d,"topic":"%s"}]'
        % (alias, partition, topic.encode()): b'{"offset":9}'
        for partition in range(PARTITIONS)
    }


def test_a_mirror_that_runs_is_refused_without_output(files: Files, flow: Flow, topic: str) -> None:
    write(files.source, topic, numbered(0, 40, PARTITIONS, keys=40))
    with start(files, "--whitelist", topic, *COMMITS) as mirror:
        wait_for_records(files.target, topic, 40, mirror)
        done = migrate(files, flow, "--whitelist", topic)
        assert done.exit_code == 1
        assert f"group {files.group} has members: {files.group}-0; stop it in order" in done.stderr
        assert mirror.stop() == 0
    assert not flow.file.exists()
    assert ends(files.target, flow.offsets_topic) == {}


def test_it_may_be_repeated_until_the_flow_has_other_positions(
    files: Files, flow: Flow, topic: str
) -> None:
    mirror_with_mm1(files, topic, 40)
    for _ in range(2):
        assert migrate(files, flow, "--whitelist", topic).exit_code == 0
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        running = migrate(files, flow, "--whitelist", topic)
        assert (running.exit_code, "runs: " in running.stderr) == (1, True)
        write(files.source, topic, numbered(40, 40, PARTITIONS, keys=40))
        wanted = dict.fromkeys(range(PARTITIONS), 19)
        until_equal(lambda: committed_positions(flow, topic), wanted, alive=mirror)
        assert mirror.stop() == 0
    done = migrate(files, flow, "--whitelist", topic)
    assert done.exit_code == 1
    assert "has other positions of" in done.stderr
    assert committed_positions(flow, topic) == wanted


def test_a_group_without_offsets_of_these_topics_is_refused(
    files: Files, flow: Flow, topic: str
) -> None:
    done = migrate(files, flow, "--whitelist", topic)
    assert done.exit_code == 1
    assert f"group {files.group} has committed no offset of these topics" in done.stderr


def test_topics_with_other_partition_counts_and_other_topics_of_the_group_are_named(
    setup: Setup, files: Files, flow: Flow
) -> None:
    wide, other = setup.topic("wide", PARTITIONS, on=files.source), setup.unique("other")
    setup.create_topic(files.target, wide, PARTITIONS + 2)
    setup.create_topic(files.source, other, 1)
    write(files.source, wide, numbered(0, 40, PARTITIONS, keys=40))
    write(files.source, other, [Sent(0, b"x")])
    with start(files, "--whitelist", f"{wide},{other}", *COMMITS) as mirror:
        until(lambda: sum(committed(files, wide).values()) == 40, 90, "commits", alive=mirror)
        until(lambda: committed(files, other) == {0: 1}, 90, "commits", alive=mirror)
        assert mirror.stop() == 0
    done = migrate(files, flow, "--whitelist", wide)
    assert done.exit_code == 0, done.stderr
    assert f"{wide} has 4 partitions on the source and 6 on the target" in done.stderr
    assert f"{other}-0 of the group is none of these topics" in done.stderr
    assert committed_positions(flow, other) == {}


RESOURCE: Final = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
spec:
  target:
    alias: {target}
    groupId: {group}
    configStorageTopic: {group}-configs
    offsetStorageTopic: {group}-offsets
    statusStorageTopic: {group}-statuses
    bootstrapServers: "{target_servers}"
    config:
      config.storage.replication.factor: 1
      offset.storage.replication.factor: 1
      status.storage.replication.factor: 1
  mirrors:
    - source: {{alias: {source}, bootstrapServers: "{source_servers}"}}
      topicsPattern: {topic}
      sourceConnector:
        tasksMax: 2
        config: {{replication.factor: 1, offset-syncs.topic.replication.factor: 1}}
"""


def resource_of(setup: Setup, source: str, target: str, group: str, topic: str) -> str:
    a, b = setup.a.bootstrap_servers, setup.b.bootstrap_servers
    names = {"source": source, "target": target, "group": group, "topic": topic}
    return RESOURCE.format(**names, source_servers=a, target_servers=b)


def written(a: KafkaAddress, copy_on: KafkaAddress, topic: str, copy: str, count: int) -> None:
    """Every number has arrived once, each partition in its order."""
    until(lambda: sum(ends(copy_on, copy).values()) >= count, 120, f"{count} copies")
    logs = read(copy_on, copy)
    assert sum(len(it.records) for it in logs.values()) == count
    for partition, log in read(a, topic).items():
        assert [it.value for it in logs[partition].records] == [it.value for it in log.records]


async def positions_are(java: JavaConnect, connector: str, offsets: list[int]) -> None:
    """Wait until a connector of Java has stored these."""
    path = f"/connectors/{quote(connector, safe='')}/offsets"
    async with asyncio.timeout(90):
        while True:
            found: Any = await java.call("GET", path)
            if sorted(it["offset"]["offset"] for it in found["offsets"]) == offsets:
                return
            await asyncio.sleep(0.2)


@pytest.mark.java
@pytest.mark.parametrize("way", ["carried", "same group"])
async def test_a_flow_continues_where_the_operators_one_stopped(setup: Setup, way: str) -> None:
    topic, group = setup.topic("orders", 2), setup.unique("mirror")
    source, target = setup.unique("west"), setup.unique("east")
    copy, name = f"{source}.{topic}", f"{source}->{target}.MirrorSourceConnector"
    write(setup.a, topic, [Sent(it % 2, b"%d" % it) for it in range(200)])
    resource, file = setup.folder / "mirror.yaml", setup.folder / "mm2.properties"
    resource.write_text(resource_of(setup, source, target, group, topic))

    async def carry() -> Result:
        words = ["import", "strimzi", str(resource), "--carry-positions", "--to", str(file)]
        return await asyncio.to_thread(command_here, *words)

    async with closing(JavaConnect(setup.b.bootstrap_servers, group, setup.folder)) as java:
        await java.ready()
        config = mirror_config(setup.a, setup.b, source, topic) | {"target.cluster.alias": target}
        await java.call("POST", "/connectors", {"name": name, "config": config}, expected=201)
        await positions_are(java, name, [99, 99])
        running = await carry()
        assert running.exit_code == 1
        assert f"the Connect cluster {group} runs: " in running.stderr
        assert not file.exists()
        java.process.stop()
    write(setup.a, topic, [Sent(it % 2, b"%d" % it) for it in range(200, 300)])
    if way == "carried":
        done = await carry()
        assert done.exit_code == 0, done.stderr
        assert f"2 partitions of 1 topics continue at the next record of {name}" in done.stderr
        with Mirror(file) as mirror:
            written(setup.a, setup.b, topic, copy, 300)
            assert mirror.stop() == 0
        again = await carry()
        assert again.exit_code == 1
        assert "has other positions of" in again.stderr
        return
    own = {"group.id": group, "config.storage.topic": f"{group}-configs"}
    own |= {
        f"{it}.storage.topic": f"{group}-{name}"
        for it, name in (("offset", "offsets"), ("status", "statuses"))
    }
    worker_file = write_worker(setup.folder, setup.b, own)
    with Mirror(worker_file, name="worker", program=DISTRIBUTED) as worker:
        rest_of(worker).wait_states(quote(name, safe=""), *["RUNNING"] * 3)
        written(setup.a, setup.b, topic, copy, 300)
        assert worker.stop() == 0


def test_positions_in_a_topic_of_the_connectors_own_count_first(setup: Setup) -> None:
    """The worker's topic has a copy, which may be of the commit before."""
    topic, group, own = (setup.unique(it) for it in ("orders", "mirror", "own-offsets"))
    flow = Flow(setup.a, setup.b, setup.unique("west"), setup.unique("east"), setup.folder / "f")
    for name, offset in ((f"{group}-offsets", 5), (own, 9)):
        setup.create_topic(setup.b, name, 1)
        key = b'["%s.MirrorSourceConnector",{"cluster":"%s","partition":0,"topic":"%s"}]' % (
            flow.name.encode(), flow.source_alias.encode(), topic.encode(),
        )  # fmt: skip
        write(setup.b, name, [Sent(0, b'{"offset":%d}' % offset, key)])
    resource = resource_of(setup, flow.source_alias, flow.target_alias, group, topic)
    file = setup.folder / "mirror.yaml"
    named = f"config: {{offsets.storage.topic: {own}, replication.factor: 1"
    file.write_text(resource.replace("config: {replication.factor: 1", named))
    done = command_here("import", "strimzi", file, "--carry-positions", "--to", flow.file)
    assert done.exit_code == 0, done.stderr
    assert committed_positions(flow, topic) == {0: 9}
