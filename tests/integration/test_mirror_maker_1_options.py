"""Options of ``mirror-maker-py`` whose effect only brokers show: producers, queue, sync, plug-ins; and the checker beside Java's tool."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bench.workloads import batch_shape
from tests.integration.mirror_maker_1 import (
    Files,
    committed,
    install_plugins,
    order_by_key,
    start,
    wait_for_records,
    write_files,
)
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, ends, read, write
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]
PARTITIONS: Final = 4
COMMITS: Final = ("--offset.commit.interval.ms", "500")
PLUGINS: Final = Path(__file__).parents[1] / "plugins" / "mirror_plugins.py"
ENTRY_POINTS: Final = """\
[mm2py.message_handlers]
com.acme.Marker = mirror_plugins:Marker
[mm2py.rebalance_listeners]
com.acme.Notes = mirror_plugins:Notes
"""


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("options")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def files(region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, tmp_path: Path) -> Files:
    return write_files(tmp_path, region_a, region_b, unique("group"))


def numbered(count: int) -> list[Sent]:
    return [
        Sent(number % PARTITIONS, b"%d" % number, b"%d" % (number % 40)) for number in range(count)
    ]


def test_several_producers_with_a_short_queue_lose_nothing_and_keep_the_order_of_each_key(
    files: Files, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(files.target, topic, PARTITIONS - 1)
    write(files.source, topic, numbered(4_000))
    words = ("--num.streams", "4", "--num.producers", "2", "--queue.size", "10")
    with start(files, "--whitelist", topic, *words) as mirror:
        mirror.wait_for_log(r"streams=4 producers=2 ")
        wait_for_records(files.target, topic, 4_000, mirror)
        assert mirror.stop() == 0
    assert order_by_key(files.target, topic) == order_by_key(files.source, topic)
    assert committed(files, topic) == ends(files.source, topic)


def batches(region: KafkaAddress, topic: str) -> int:
    assert isinstance(region, Region)
    return batch_shape(region.nodes[0].data_dir, topic).batches


def test_producer_type_sync_waits_for_each_record(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    topic: str,
    tmp_path: Path,
) -> None:
    if not isinstance(region_b, Region):
        pytest.skip("needs the files of an embedded broker")
    sync = {"producer.type": "sync", "linger.ms": "0"}
    files = write_files(tmp_path, region_a, region_b, unique("sync"), producer=sync)
    write(files.source, topic, numbered(200))
    with start(files, "--whitelist", topic) as mirror:
        wait_for_records(files.target, topic, 200, mirror)
        assert mirror.stop() == 0
    assert batches(region_b, topic) == 200, "no record left before the one before was acknowledged"


def test_a_message_handler_and_a_rebalance_listener_are_found_by_entry_point(
    files: Files, topic: str, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    second, notes = unique("second"), tmp_path / "notes.txt"
    for name in (topic, second):
        create_topic(files.target, name, PARTITIONS)
    kept = [
        Sent(0, b"%d" % number, b"k", (("h", b"1"),), 1_600_000_000_000) for number in range(50)
    ]
    write(files.source, topic, [*kept, Sent(0, None, b"k")])
    with start(
        files,
        "--whitelist", topic,
        "--message.handler", "com.acme.Marker",
        "--message.handler.args", second,
        "--consumer.rebalance.listener", "com.acme.Notes",
        "--rebalance.listener.args", str(notes),
        environ=install_plugins(tmp_path / "site", PLUGINS, ENTRY_POINTS),
    ) as mirror:  # fmt: skip
        wait_for_records(files.target, second, 50, mirror)
        assert mirror.stop() == 0
        assert mirror.lines("mirrored 51 records in .* dropped 0")
    copies = [it for log in read(files.target, topic).values() for it in log.records]
    assert copies == read(files.source, topic)[0].records[:50]
    marked = read(files.target, second)
    assert [it.key for it in marked[0].records] == [b"0-%d" % at for at in range(50)]
    assert committed(files, topic) == {0: 51}, "a record that the handler drops is read for good"
    everything = " ".join(f"{topic}-{partition}" for partition in range(PARTITIONS))
    assert notes.read_text().splitlines() == [f"assigned {everything}", f"revoked {everything}"]


def checker_rows(files: Files) -> set[tuple[str, ...]]:
    """Return group, topic, partition, offset, log end, lag, client and host of each row."""
    command = str(Path(sys.executable).parent / "mm2py")
    done = subprocess.run(
        [command, "consumer-offset-checker", "--bootstrap-server", files.source.bootstrap_servers,
         "--group", files.group],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    rows: set[tuple[str, ...]] = set()
    for line in done.stdout.splitlines()[1:]:
        *numbers, owner = line.split()
        client, _, host = owner.rpartition("_")
        rows.add((*numbers, client or "-", host if client else "-"))
    return rows


def java_rows(files: Files) -> set[tuple[str, ...]]:
    """Return the same of ``kafka-consumer-groups.sh --describe``."""
    printed = run_java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", files.source.bootstrap_servers,
        "--describe", "--group", files.group,
        timeout_s=90,
    ).check()  # fmt: skip
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    titles = next(it for it in lines if "CURRENT-OFFSET" in it)
    wanted = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CLIENT-ID", "HOST")  # fmt: skip
    at = [titles.index(name) for name in wanted]
    return {
        tuple(line[position] for position in at)
        for line in lines
        if line[0] == files.group and line is not titles
    }


@pytest.mark.java
def test_the_checker_agrees_with_the_java_group_tool(files: Files, topic: str) -> None:
    write(files.source, topic, numbered(100))
    with start(files, "--whitelist", topic, "--num.streams", "2", *COMMITS) as mirror:
        until(
            lambda: committed(files, topic) == ends(files.source, topic),
            90,
            "the commit",
            alive=mirror,
        )
        both = {f"{files.group}-0", f"{files.group}-1"}
        until(
            lambda: {row[6] for row in checker_rows(files)} == both,
            90,
            "a partition for each stream",
            alive=mirror,
        )
        assert checker_rows(files) == java_rows(files)
        assert mirror.stop() == 0
    write(files.source, topic, [Sent(1, b"more", b"k")] * 3)
    ours, java = checker_rows(files), java_rows(files)
    assert ours == java
    assert {row[5] for row in ours} == {"0", "3"}
