"""MirrorSink and third parties' sinks on real clusters: content, kills, transforms, refused records, positions over REST."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from mm2py.embedded.java import run_java
from mm2py.embedded.region import KafkaAddress
from tests.integration.cluster_changes import delete_topic
from tests.integration.conftest import CreateTopic, NewRegion
from tests.integration.connect_process import (
    DISTRIBUTED,
    Rest,
    install_plugin,
    rest_of,
    write_worker,
)
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    copied,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS: Final = 6
TASKS: Final = 3
RATE: Final = 1_500
Unique = Callable[[str], str]
TRANSFORMS: Final = "org.apache.kafka.connect.transforms."
GROUP_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("sink")
    create_topic(region_a, name, PARTITIONS)
    return name


def a_flow(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topic: str,
    more: Mapping[str, str] | None = None,
) -> Flow:
    """Write a flow that is copied by a group; a member that is killed has left it after 6 s."""
    own = "{source}->{target}."
    properties = {
        own + "copy.connector": "sink",
        own + "tasks.max": str(TASKS),
        own + "consumer.override.session.timeout.ms": "6000",
        own + "consumer.override.heartbeat.interval.ms": "1000",
        **SHORT_SESSION,
    }
    return write_flow(
        folder,
        source,
        target,
        topic,
        properties | {own + name: text for name, text in (more or {}).items()},
    )


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return a_flow(tmp_path, region_a, region_b, topic)


def group_of(flow: Flow) -> str:
    return f"connect-{flow.source_alias}->{flow.target_alias}.MirrorSinkConnector"


def wait_ready(mirror: Mirror, members: int = TASKS) -> None:
    """Wait until so many tasks have partitions."""
    until(lambda: len(mirror.lines("partitions assigned")) >= members, 90, "members", alive=mirror)


def committed(cluster: KafkaAddress, group: str, topic: str) -> dict[int, int]:
    """Return what a group has committed, asked as any lag tool does."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    try:
        wanted = [TopicPartition(topic, number) for number in ends(cluster, topic)]
        return {it.partition: it.offset for it in consumer.committed(wanted, timeout=30)}
    finally:
        consumer.close()


def wait_committed(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Wait until the group has committed the end of each partition that has records."""
    wanted = {p: end for p, end in ends(flow.source, topic).items() if end}

    def reached() -> bool:
        now = committed(flow.source, group_of(flow), topic)
        return all(now[partition] == end for partition, end in wanted.items())

    until(
        reached,
        60,
        lambda: f"committed {committed(flow.source, group_of(flow), topic)}",
        alive=mirror,
    )


def every_kind(count: int) -> list[Sent]:
    """Keys, null values and empty ones, headers that repeat, old timestamps; all different."""
    found: list[Sent] = []
    for number in range(count):
        key = b"" if number % 10 == 0 else b"key-%d" % number
        value = None if number % 7 == 0 else b"" if number % 7 == 1 else b"value %d" % number
        headers = (("a", b"1"), ("a", None), ("b", b"")) if number % 3 == 0 else ()
        found.append(Sent(number % PARTITIONS, value, key, headers, 1_500_000_000_000 + number))
    return found


def test_every_kind_of_record_is_copied_once_and_the_group_stands_at_the_end(
    flow: Flow, topic: str
) -> None:
    write(flow.source, topic, every_kind(3_000))
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        wait_committed(mirror, flow, topic)
        rest = Rest(rest_of(mirror).url + f"{flow.source_alias}/{flow.target_alias}/")
        rest.wait_states("MirrorSinkConnector", *["RUNNING"] * (1 + TASKS))
        assert mirror.stop() == 0
        assert mirror.complaints() == []


def test_a_killed_member_loses_nothing_and_the_others_take_its_partitions(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        wait_ready(mirror)
        wait_for_progress(mirror, flow, topic)
        load.wait_acked(RATE)
        pid = int(mirror.wait_for_log("sink task started pid=").rpartition("pid=")[2])
        os.kill(pid, signal.SIGKILL)
        mirror.wait_for_log(f"task host ended with signal 9 pid={pid}")
        load.wait_acked(3 * RATE)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        doubled = assert_resumed(truth, copy, rewinds=2)
        assert doubled <= 4 * RATE
        wait_committed(mirror, flow, topic)
        assert mirror.stop() == 0


def test_a_killed_worker_is_continued_by_the_next(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        with Mirror(flow.file, name="killed") as mirror:
            wait_ready(mirror)
            wait_for_progress(mirror, flow, topic)
            load.wait_acked(RATE)
            mirror.kill()
        load.stop()
    with Mirror(flow.file, name="next") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_resumed(truth, copy, rewinds=2)
        assert mirror.stop() == 0


@pytest.mark.java
def test_the_group_is_seen_by_kafkas_own_tool(flow: Flow, topic: str) -> None:
    write(flow.source, topic, every_kind(600))
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        wait_committed(mirror, flow, topic)
        shown = run_java(
            GROUP_TOOL, "--bootstrap-server", flow.source.bootstrap_servers,
            "--describe", "--group", group_of(flow),
        )  # fmt: skip
        assert mirror.stop() == 0
    rows = [line.split() for line in shown.stdout.splitlines() if topic in line]
    assert len(rows) == PARTITIONS
    assert {row[5] for row in rows} == {"0"}, "lag"
    assert len({row[6] for row in rows}) == TASKS, "members"


def test_transforms_change_real_records(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    own = {
        "transforms": "drop,mark",
        "transforms.drop.type": TRANSFORMS + "Filter",
        "transforms.drop.predicate": "tombstone",
        "transforms.mark.type": "InsertHeader",
        "transforms.mark.header": "copied",
        "transforms.mark.value.literal": "yes",
        "predicates": "tombstone",
        "predicates.tombstone.type": TRANSFORMS + "predicates.RecordIsTombstone",
    }
    flow = a_flow(tmp_path, region_a, region_b, topic, own)
    write(flow.source, topic, every_kind(700))
    with Mirror(flow.file) as mirror:
        until(lambda: copied(flow, topic) == 600, 90, "600 copies", alive=mirror)
        wait_committed(mirror, flow, topic)
        assert mirror.stop() == 0
    truth, copy = read(flow.source, topic), read(flow.target, flow.remote(topic))
    for partition, log in truth.items():
        kept = [
            it._replace(headers=(*it.headers, ("copied", b"yes")))
            for it in log.records
            if it.value is not None
        ]
        assert copy[partition].records == kept


def test_a_record_that_the_target_refuses_goes_to_the_dead_letter_queue_and_no_other(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    dead = unique("dead")
    own = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        "sync.topic.configs.enabled": "false",  # else the copy takes what the source takes
    }
    flow = a_flow(tmp_path, region_a, region_b, topic, own)
    create_topic(region_b, flow.remote(topic), PARTITIONS, config={"max.message.bytes": "4000"})
    records = [
        Sent(number % PARTITIONS, b"%d" % number + b"." * (6_000 if number == 301 else 10))
        for number in range(600)
    ]
    write(flow.source, topic, records, linger_ms=50)
    with Mirror(flow.file) as mirror:
        until(lambda: copied(flow, topic) >= 599, 90, "599 copies", alive=mirror)
        wait_committed(mirror, flow, topic)
        assert mirror.stop() == 0
    truth, copy = read(flow.source, topic), read(flow.target, flow.remote(topic))
    for partition, log in truth.items():
        kept = [it for it in log.records if len(it.value or b"") < 4_000]
        assert copy[partition].records == kept
    (letter,) = read(flow.target, dead)[0].records
    assert (letter.value or b"").startswith(b"301...")
    told = {name: (text or b"").decode() for name, text in letter.headers}
    assert told["__connect.errors.topic"] == topic
    assert told["__connect.errors.partition"] == str(301 % PARTITIONS)
    assert told["__connect.errors.offset"] == str(301 // PARTITIONS)
    assert told["__connect.errors.stage"] == "TASK_PUT"


def test_without_tolerance_the_task_fails_with_the_place_and_commits_nothing_past_it(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    own = {"task.auto.restart": "false", "sync.topic.configs.enabled": "false"}
    flow = a_flow(tmp_path, region_a, region_b, topic, own)
    create_topic(region_b, flow.remote(topic), PARTITIONS, config={"max.message.bytes": "4000"})
    write(flow.source, topic, [Sent(0, b"a"), Sent(0, b"b" * 6_000), Sent(0, b"c")])
    with Mirror(flow.file) as mirror:
        line = mirror.wait_for_log("task failed")
        rest = Rest(rest_of(mirror).url + f"{flow.source_alias}/{flow.target_alias}/")
        until(lambda: "FAILED" in rest.states("MirrorSinkConnector"), 60, "FAILED", alive=mirror)
        answer = str(rest.ok("GET", "connectors/MirrorSinkConnector/status"))
        assert f"{topic}-0 at offset 1" in answer, line
        mirror.stop()
    assert committed(flow.source, group_of(flow), topic)[0] in (-1001, 0, 1)


def test_positions_are_read_altered_and_reset_over_rest(flow: Flow, topic: str) -> None:
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    name = "MirrorSinkConnector"
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        wait_committed(mirror, flow, topic)
        rest = Rest(rest_of(mirror).url + f"{flow.source_alias}/{flow.target_alias}/")
        shown = cast("dict[str, object]", rest.ok("GET", f"connectors/{name}/offsets"))
        assert shown["offsets"] == [
            {
                "partition": {"kafka_topic": topic, "kafka_partition": p},
                "offset": {"kafka_offset": 10},
            }
            for p in range(PARTITIONS)
        ]
        back = {"offsets": [
            {"partition": {"kafka_topic": topic, "kafka_partition": 0}, "offset": {"kafka_offset": 4}},
        ]}  # fmt: skip
        status, answer = rest.call("PATCH", f"connectors/{name}/offsets", back)
        assert (status, "STOPPED state" in str(answer)) == (400, True)
        rest.ok("PUT", f"connectors/{name}/stop")
        rest.wait_states(name, "STOPPED")
        said = until(
            lambda: answered(rest, "PATCH", f"connectors/{name}/offsets", back), 60, "altered"
        )
        assert said == {"message": "The offsets for this connector have been altered successfully"}
        rest.ok("PUT", f"connectors/{name}/resume")
        until(lambda: copied(flow, topic) == 66, 90, "six again", alive=mirror)
        rest.ok("PUT", f"connectors/{name}/stop")
        rest.wait_states(name, "STOPPED")
        until(lambda: answered(rest, "DELETE", f"connectors/{name}/offsets"), 60, "reset")
        assert rest.ok("GET", f"connectors/{name}/offsets") == {"offsets": []}
        rest.ok("PUT", f"connectors/{name}/resume")
        until(lambda: copied(flow, topic) == 126, 90, "all again", alive=mirror)
        assert mirror.stop() == 0


def answered(rest: Rest, method: str, path: str, body: object = None) -> object:
    """Ask once; None while a task is still in the group."""
    status, answer = rest.call(method, path, body)
    if status == 500 and "zombie sink task" in str(answer):
        return None
    assert status == 200, answer
    return answer


def test_a_third_partys_sink_and_transform_run_on_a_connect_worker(
    region_a: KafkaAddress, topic: str, unique: Unique, tmp_path: Path
) -> None:
    values = [b"\xff" if number == 7 else b"n%d" % number for number in range(300)]
    write(region_a, topic, [Sent(number % PARTITIONS, it) for number, it in enumerate(values)])
    name, dead, lines = unique("collect"), unique("dead"), tmp_path / "lines"
    config = {
        "connector.class": "com.example.LineSinkConnector",
        "topics.regex": topic[:-1] + ".",
        "tasks.max": "2",
        "file": str(lines),
        "transforms": "up",
        "transforms.up.type": "com.example.UpperCase",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    file = write_worker(tmp_path, region_a)
    with Mirror(file, program=DISTRIBUTED, environ=install_plugin(tmp_path)) as worker:
        rest = rest_of(worker)
        rest.ok("POST", "connectors", {"name": name, "config": config})
        rest.wait_states(name, "RUNNING", "RUNNING", "RUNNING")
        group = f"connect-{name}"
        until(
            lambda: committed(region_a, group, topic) == ends(region_a, topic),
            90,
            lambda: f"committed {committed(region_a, group, topic)}",
            alive=worker,
        )
        plugins = cast(
            "list[dict[str, str]]", rest.ok("GET", "connector-plugins?connectorsOnly=false")
        )
        assert {"class": "com.example.UpperCase", "type": "transformation"} in plugins
        assert worker.stop() == 0
    found = [
        json.loads(it) for part in tmp_path.glob("lines.*") for it in part.read_text().splitlines()
    ]
    assert sorted(it[3] for it in found) == sorted(f"N{n}" for n in range(300) if n != 7)
    (letter,) = read(region_a, dead)[0].records
    assert letter.value == b"\xff", "as it was read"


def test_a_target_that_is_away_makes_the_group_wait_and_nothing_is_lost(
    region_a: KafkaAddress, new_region: NewRegion, topic: str, tmp_path: Path
) -> None:
    own = new_region("target")
    flow = a_flow(tmp_path, region_a, own, topic, {"offset.flush.interval.ms": "500"})
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        wait_ready(mirror)
        wait_for_progress(mirror, flow, topic)
        own.freeze()
        try:
            load.wait_acked(6 * RATE)
            before = committed(flow.source, group_of(flow), topic)
        finally:
            own.thaw()
        load.wait_acked(RATE)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_resumed(truth, copy, rewinds=2)
        wait_committed(mirror, flow, topic)
        after = committed(flow.source, group_of(flow), topic)
        assert all(after[partition] >= offset for partition, offset in before.items())
        mirror.stop()


def test_a_flow_whose_target_acknowledges_nothing_is_degraded_and_its_lag_grows(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    flow = a_flow(tmp_path, region_a, region_b, topic, {"refresh.topics.interval.seconds": "600"})
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        rest = rest_of(mirror)

        def shown() -> dict[str, object]:
            path = f"flows/{flow.source_alias}-%3E{flow.target_alias}"
            return cast("dict[str, object]", rest.ok("GET", path))

        until(lambda: shown()["lag_records"] == 0, 60, lambda: str(shown()), alive=mirror)
        delete_topic(flow.target, flow.remote(topic))
        create_topic(flow.target, flow.remote(topic), 1)  # by somebody else, with one partition
        write(flow.source, topic, [Sent(1, b"%d" % number) for number in range(20)])
        found = until(
            lambda: it if (it := shown())["state"] == "DEGRADED" else None,
            90,
            lambda: str(shown()),
            alive=mirror,
        )
        assert "acknowledge" in str(found["errors"])
        assert shown()["lag_records"] == 20
        mirror.stop()


def test_a_flow_goes_from_source_to_sink_and_back_and_only_one_of_them_copies(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = a_flow(tmp_path, region_a, region_b, topic)
    by_sink = flow.file.read_text()
    flow.file.write_text(by_sink.replace("copy.connector = sink", "copy.connector = source"))
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    with Mirror(flow.file, name="source") as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
    # The group begins where it is: set it to where the other one has ended, as the guide says.
    group = Consumer(
        {"bootstrap.servers": flow.source.bootstrap_servers, "group.id": group_of(flow)}
    )
    group.commit(
        offsets=[TopicPartition(topic, p, 10) for p in range(PARTITIONS)], asynchronous=False
    )
    group.close()
    flow.file.write_text(by_sink)
    with Mirror(flow.file, name="sink") as mirror:
        mirror.wait_for_log("connector removed, another one copies the flow now")
        wait_ready(mirror)
        write(
            flow.source, topic, [Sent(number % PARTITIONS, b"s%d" % number) for number in range(60)]
        )
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        rest = Rest(rest_of(mirror).url + f"{flow.source_alias}/{flow.target_alias}/")
        names = cast("list[str]", rest.ok("GET", "connectors"))
        assert "MirrorSinkConnector" in names
        assert "MirrorSourceConnector" not in names
        assert mirror.stop() == 0


def test_two_workers_share_the_group_and_one_that_is_stopped_hands_its_part_over(
    flow: Flow, topic: str
) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="stays") as stays,
    ):
        with Mirror(flow.file, name="goes") as goes:
            until(
                lambda: stays.lines("partitions assigned") and goes.lines("partitions assigned"),
                90, "both have members", alive=stays,
            )  # fmt: skip
            wait_for_progress(stays, flow, topic)
            load.wait_acked(RATE)
            assert goes.stop() == 0
        load.wait_acked(2 * RATE)
        load.stop()
        truth, copy = wait_for_copy(stays, flow, topic)
        assert assert_resumed(truth, copy, rewinds=1) == 0, (
            "what is stopped in order doubles nothing"
        )
        wait_committed(stays, flow, topic)
        assert stays.stop() == 0
