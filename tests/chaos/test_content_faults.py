"""T15, T16, T18, T19: poisoned records, a full disk, topics that appear, aborted transactions."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mm2py.embedded.region import Region
from tests.chaos.conftest import CreateTopic, Rig, Unique
from tests.integration.cluster_changes import grow
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Load, Sent, assert_equal, ends, read, wait_for_copy, write

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS = 8
TOPICS = 50
TRANSACTIONS = 200
IN_TRANSACTION = 50
DISK_MB = 64


def test_poisoned_records_stop_their_partition_and_no_other(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("poison")
    source, target = rig.source.region, rig.target.region
    create_topic(source, topic, PARTITIONS, config={"max.message.bytes": "20000000"})
    flow = write_flow(tmp_path, source, target, topic, {"sync.topic.configs.enabled": "false"})
    create_topic(target, flow.remote(topic), PARTITIONS)
    poisoned = 3
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(source, topic, PARTITIONS, rate=1_000) as load:
            load.wait_acked(2_000)
            write(
                source,
                topic,
                [Sent(poisoned, os.urandom(10 << 20))],
                message_max_bytes=20_000_000,
            )
            mirror.wait_for_log(f"ERROR .*{topic}-{poisoned}", 40)
            behind = ends(target, flow.remote(topic))[poisoned]
            load.wait_acked(5_000)
        truth = read(source, topic)
        healthy = {p: log for p, log in truth.items() if p != poisoned}

        def others_arrived() -> bool:
            now = ends(target, flow.remote(topic))
            return all(now[p] == len(log.records) for p, log in healthy.items())

        until(others_arrived, 60, lambda: f"{ends(target, flow.remote(topic))}", alive=mirror)
        copy = read(target, flow.remote(topic))
        assert ends(target, flow.remote(topic))[poisoned] == behind
        wanted = truth[poisoned].records[: len(copy[poisoned].records)]
        assert copy.pop(poisoned).records == wanted
        assert_equal(healthy, copy)
        assert len(mirror.lines("ERROR")) == 1
        assert mirror.stop() == 0


def has_partitions(region: Region, topic: str, count: int) -> bool:
    return len(ends(region, topic)) == count


def test_what_was_written_before_a_topic_or_partition_was_detected_arrives(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    prefix = unique("fresh")
    source, target = rig.source.region, rig.target.region
    properties = {"refresh.topics.interval.seconds": "1"}
    flow = write_flow(tmp_path, source, target, f"{prefix}-.*", properties)
    names = [f"{prefix}-{number}" for number in range(TOPICS)]
    with Mirror(flow.file) as mirror:
        # Ready is a task that copies, and before the first topic there is none.
        create_topic(source, names[0])
        for number, name in enumerate(names):
            if number:
                create_topic(source, name, 1 + number % 3)
            write(source, name, [Sent(0, b"early %d" % n) for n in range(20)])
            if number % 5 == 0:
                grow(source, name, 5)
                until(partial(has_partitions, source, name, 5), 10, f"partitions of {name}")
                write(source, name, [Sent(4, b"grown %d" % n) for n in range(20)])
        for name in names:
            assert_equal(*wait_for_copy(mirror, flow, name, timeout_s=60))
        assert mirror.stop() == 0
        assert not mirror.lines("ERROR")


def test_no_aborted_record_reaches_the_target(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("transactions")
    source, target = rig.source.region, rig.target.region
    create_topic(source, topic, 2)
    committed = {"{source}.consumer.isolation.level": "read_committed"}
    flow = write_flow(tmp_path, source, target, topic, committed)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        client = Producer(
            {
                "bootstrap.servers": source.bootstrap_servers,
                "transactional.id": topic,
                "linger.ms": 2,
            }
        )
        client.init_transactions(30)
        for number in range(TRANSACTIONS):
            aborts = number % 10 in (1, 4, 7)
            client.begin_transaction()
            for record in range(IN_TRANSACTION):
                word = b"aborted" if aborts else b"kept"
                client.produce(topic, b"%s %d %d" % (word, number, record), partition=record % 2)
            if aborts:
                client.flush(30)  # else the client drops them and the broker never sees them
                client.abort_transaction(30)
            else:
                client.commit_transaction(30)
        truth, copy = wait_for_copy(mirror, flow, topic, committed=True, timeout_s=60)
        assert_equal(truth, copy)
        values = [record.value or b"" for log in copy.values() for record in log.records]
        assert len(values) == TRANSACTIONS * IN_TRANSACTION * 7 // 10
        assert not any(value.startswith(b"aborted") for value in values)
        assert mirror.stop() == 0
        assert not mirror.complaints()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_target_whose_disk_was_full_gets_everything_when_there_is_room_again(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path, small_disk: Path
) -> None:
    topic = unique("full")
    source = rig.source.region
    create_topic(source, topic, 2)
    # Sparse indexes of 10 MB per partition would count when they are written to a tmpfs.
    properties = {"log.segment.bytes": "4194304", "log.index.size.max.bytes": "65536"}
    with Region("full", properties=properties, folder=small_disk, min_free_bytes=1) as target:
        flow = write_flow(tmp_path, source, target, topic)
        with Mirror(flow.file) as mirror:
            with Load(source, topic, 2, rate=1_000, value_bytes=1_000) as load:
                wait_for_copy_to_begin(mirror, target, flow.remote(topic))
                ballast = small_disk / "ballast"
                fill(ballast)
                until(lambda: not target.node(1).is_running, 60, "the broker to give up")
                load.wait_acked(5_000)
                ballast.unlink()
                target.start()
            assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
            assert mirror.stop() == 0


def wait_for_copy_to_begin(mirror: Mirror, target: Region, remote: str) -> None:
    until(lambda: sum(ends(target, remote).values()) > 0, 60, "the first record", alive=mirror)


def fill(file: Path) -> None:
    """Take all the room there is but for some KiB."""
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(65_536))
        except OSError:
            return
