"""MirrorSink and third parties' sinks on real clusters: content, kills, transforms, refused records, positions over REST."""

import json
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import delete_topic
from tests.integration.connect_process import (
    DISTRIBUTED,
    Rest,
    install_plugin,
    mirror_config,
    rest_of,
    write_worker,
)
from tests.integration.mirror_process import (
    SINGLE_REPLICA,
    Flow,
    Mirror,
    run_to_end,
    running,
    until,
    until_equal,
    write_file,
)
from tests.integration.setups import Setup
from tests.integration.sinks import (
    PARTITIONS,
    TASKS,
    a_flow,
    every_kind,
    group_of,
    is_committed,
    shown,
    wait_assigned,
    wait_committed,
    wait_ready,
)
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    committed,
    copied,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.integration.transactions import kept, write_mixed
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RATE: Final = 1_500
TRANSFORMS: Final = "org.apache.kafka.connect.transforms."
LARGE: Final = (3, 301, 302, 307, 599)
PLACE_HEADERS: Final = (
    "topic", "partition", "offset", "connector.name", "task.id", "stage", "class.name",
)  # fmt: skip
CAUSE_HEADERS: Final = ("exception.class.name", "exception.message", "exception.stacktrace")
HOUR_MS: Final = 3_600_000
IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
GROUP_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("sink", PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return a_flow(setup.folder, setup.a, setup.b, topic)


@pytest.mark.java
def test_every_kind_of_record_is_copied_once_and_kafkas_own_tool_sees_the_group_at_the_end(
    flow: Flow, topic: str
) -> None:
    write(flow.source, topic, every_kind(3_000))
    with Mirror(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
        wait_committed(mirror, flow, topic)
        rest = rest_of(mirror, flow)
        rest.wait_states("MirrorSinkConnector", *["RUNNING"] * (1 + TASKS))

        def described() -> list[list[str]] | None:
            told = run_java(
                GROUP_TOOL, "--bootstrap-server", flow.source.bootstrap_servers,
                "--describe", "--group", group_of(flow),
            )  # fmt: skip
            found = [line.split() for line in told.stdout.splitlines() if topic in line]
            # A member that joins last gets its part when the others have copied everything.
            return found if len({row[6] for row in found}) == TASKS else None

        rows = until(described, 120, f"{TASKS} members", alive=mirror)
        assert len(rows) == PARTITIONS
        assert {row[5] for row in rows} == {"0"}, "lag"
        assert mirror.stop() == 0
        assert mirror.complaints() == []


def test_same_names_keep_everything_and_the_time_of_the_source(setup: Setup, topic: str) -> None:
    stamped = f"{topic}-stamped"
    setup.create_topic(
        setup.a, stamped, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
    )
    own = {"replication.policy.class": IDENTITY}
    flow = a_flow(setup.folder, setup.a, setup.b, f"{topic}.*", own)
    for name in (topic, stamped):
        write(flow.source, name, every_kind(1_200))
    with running(flow.file, ready=False) as mirror:
        for name in (topic, stamped):
            assert_equal(*wait_for_copy(mirror, flow, name, remote=name))
            wait_committed(mirror, flow, name)
    times = [it.timestamp_ms for log in read(flow.target, stamped).values() for it in log.records]
    assert min(times) > 1_600_000_000_000, "the time of the source's broker, not of the writer"


@pytest.mark.faults
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_the_markers_of_transactions_are_no_lag(setup: Setup, topic: str, level: str) -> None:
    own = {"consumer.override.isolation.level": level}
    flow = a_flow(setup.folder, setup.a, setup.b, topic, own)
    wanted = kept(10, 40) if level == "read_committed" else 400
    write_mixed(flow.source, topic, 10, 40)
    with running(flow.file, name="first", ready=False) as mirror:
        until(lambda: copied(flow, topic) == wanted, 90, lambda: f"{wanted} copies", alive=mirror)
        wait_committed(mirror, flow, topic)
        until_equal(lambda: shown(mirror, flow)["lag_records"], 0, alive=mirror)
        # Behind a quiet end markers alone: an aborted transaction, whose records nobody wants.
        write_mixed(flow.source, topic, 2, 4, turn=1)
        wait_committed(mirror, flow, topic)
    before = copied(flow, topic)
    with running(flow.file, name="second", ready=False) as mirror:
        wait_ready(mirror)
        write(flow.source, topic, [Sent(5, b"last")])
        until(lambda: copied(flow, topic) == before + 1, 90, "nothing twice", alive=mirror)
        wait_committed(mirror, flow, topic)


@pytest.mark.faults
def test_a_killed_member_loses_nothing_and_others_take_its_part(flow: Flow, topic: str) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        running(flow.file, ready=False) as mirror,
    ):
        wait_ready(mirror)
        # What came while nothing ran is behind the positions: it is not repeated.
        before = ends(flow.source, topic)
        until(lambda: is_committed(flow, topic, before), 120, "the first positions", alive=mirror)
        load.wait_acked(RATE)
        pid = int(mirror.wait_for_log("sink task started pid=").rpartition("pid=")[2])
        os.kill(pid, signal.SIGKILL)
        uncommitted = sum(ends(flow.source, topic).values()) - sum(before.values())
        mirror.wait_for_log(f"task host ended with signal 9 pid={pid}")
        load.wait_acked(3 * RATE)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        doubled = assert_resumed(truth, copy, rewinds=2)
        assert doubled <= uncommitted
        wait_committed(mirror, flow, topic)


def test_a_record_that_the_target_refuses_goes_to_the_dead_letter_queue_and_no_other(
    setup: Setup, topic: str
) -> None:
    dead = setup.unique("dead")
    own = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        "sync.topic.configs.enabled": "false",  # else the copy takes what the source takes
    }
    flow = a_flow(setup.folder, setup.a, setup.b, topic, own)
    setup.create_topic(
        setup.b, flow.remote(topic), PARTITIONS, config={"max.message.bytes": "4000"}
    )
    own_headers = (("mine", b"1"), ("mine", None))
    records = [
        Sent(
            number % PARTITIONS,
            b"%d" % number + b"." * (6_000 if number in LARGE else 10),
            b"k%d" % number,
            own_headers,
            1_500_000_000_000 + number,
        )
        for number in range(600)
    ]
    write(flow.source, topic, records, linger_ms=50)
    with running(flow.file, ready=False) as mirror:
        until(lambda: copied(flow, topic) >= 600 - len(LARGE), 90, "the others", alive=mirror)
        wait_committed(mirror, flow, topic)
        until(
            lambda: "records are left out" in str(shown(mirror, flow)["notes"]),
            120,
            lambda: str(shown(mirror, flow)),
            alive=mirror,
        )
    truth, copy = read(flow.source, topic), read(flow.target, flow.remote(topic))
    for partition, log in truth.items():
        kept = [it for it in log.records if len(it.value or b"") < 4_000]
        assert copy[partition].records == kept
    letters = sorted(read(flow.target, dead)[0].records, key=lambda it: it.timestamp_ms)
    assert [int((it.value or b"").partition(b".")[0]) for it in letters] == list(LARGE)
    for number, letter in zip(LARGE, letters, strict=True):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        original = truth[partition].records[offset]
        assert letter[:2] == original[:2]
        assert letter.headers[:2] == own_headers
        assert letter.timestamp_ms == original.timestamp_ms
        told = {name: (text or b"").decode() for name, text in letter.headers[2:]}
        assert {name: told[f"__connect.errors.{name}"] for name in PLACE_HEADERS} == {
            "topic": topic,
            "partition": str(partition),
            "offset": str(offset),
            "connector.name": "MirrorSinkConnector",
            "task.id": told["__connect.errors.task.id"],
            "stage": "TASK_PUT",
            "class.name": "org.apache.kafka.connect.sink.SinkTask",
        }
        assert int(told["__connect.errors.task.id"]) in range(TASKS)
        assert "MSG_SIZE_TOO_LARGE" in told["__connect.errors.exception.message"]
        assert {*told} == {f"__connect.errors.{name}" for name in (*PLACE_HEADERS, *CAUSE_HEADERS)}


def test_without_tolerance_the_task_fails_with_the_place_and_commits_nothing_past_it(
    setup: Setup, topic: str
) -> None:
    flow = a_flow(setup.folder, setup.a, setup.b, topic, {"sync.topic.configs.enabled": "false"})
    setup.create_topic(
        setup.b, flow.remote(topic), PARTITIONS, config={"max.message.bytes": "4000"}
    )
    write(flow.source, topic, [Sent(0, b"a"), Sent(0, b"b" * 6_000), Sent(0, b"c")])
    with Mirror(flow.file) as mirror:
        line = mirror.wait_for_log("task failed")
        rest = rest_of(mirror, flow)
        until(lambda: "FAILED" in rest.states("MirrorSinkConnector"), 120, "FAILED", alive=mirror)
        answer = str(rest.ok("GET", "connectors/MirrorSinkConnector/status"))
        assert f"{topic}-0 at offset 1" in answer, line
        # Each start would send once more what has no position yet.
        assert mirror.lines("task will be restarted") == []
        mirror.stop()
    assert committed(flow.source, group_of(flow), topic)[0] in (-1001, 0, 1)


def test_positions_are_read_altered_and_reset_over_rest(flow: Flow, topic: str) -> None:
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    name = "MirrorSinkConnector"
    with running(flow.file, ready=False) as mirror:
        wait_for_copy(mirror, flow, topic)
        wait_committed(mirror, flow, topic)
        rest = rest_of(mirror, flow)
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
        said = until(lambda: answered(rest, "PATCH", f"connectors/{name}/offsets", back))
        assert said == {"message": "The offsets for this connector have been altered successfully"}
        rest.ok("PUT", f"connectors/{name}/resume")
        until(lambda: copied(flow, topic) == 66, 90, "six again", alive=mirror)
        rest.ok("PUT", f"connectors/{name}/stop")
        rest.wait_states(name, "STOPPED")
        until(lambda: answered(rest, "DELETE", f"connectors/{name}/offsets"), 120, "reset")
        assert rest.ok("GET", f"connectors/{name}/offsets") == {"offsets": []}
        rest.ok("PUT", f"connectors/{name}/resume")
        until(lambda: copied(flow, topic) == 126, 90, "all again", alive=mirror)


def answered(rest: Rest, method: str, path: str, body: object = None) -> object:
    """Ask once; None while a task is still in the group."""
    status, answer = rest.call(method, path, body)
    if status == 500 and "zombie sink task" in str(answer):
        return None
    assert status == 200, answer
    return answer


def test_a_third_partys_sink_and_transform_run_on_a_worker(setup: Setup, topic: str) -> None:
    values = [b"\xff" if number == 7 else b"n%d" % number for number in range(300)]
    write(setup.a, topic, [Sent(number % PARTITIONS, it) for number, it in enumerate(values)])
    name, dead, lines = setup.unique("collect"), setup.unique("dead"), setup.folder / "lines"
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
    file = write_worker(setup.folder, setup.a)
    with running(
        file, program=DISTRIBUTED, environ=install_plugin(setup.folder), ready=False
    ) as worker:
        rest = rest_of(worker)
        rest.ok("POST", "connectors", {"name": name, "config": config})
        rest.wait_states(name, "RUNNING", "RUNNING", "RUNNING")
        group = f"connect-{name}"
        until(
            lambda: committed(setup.a, group, topic) == ends(setup.a, topic),
            90,
            lambda: f"committed {committed(setup.a, group, topic)}",
            alive=worker,
        )
        plugins = cast(
            "list[dict[str, str]]", rest.ok("GET", "connector-plugins?connectorsOnly=false")
        )
        assert {"class": "com.example.UpperCase", "type": "transformation"} in plugins
    found = [
        json.loads(it)
        for part in setup.folder.glob("lines.*")
        for it in part.read_text().splitlines()
    ]
    assert sorted(it[3] for it in found) == sorted(f"N{n}" for n in range(300) if n != 7)
    (letter,) = read(setup.a, dead)[0].records
    assert letter.value == b"\xff", "as it was read"


@pytest.mark.faults
def test_a_target_that_is_away_makes_the_group_wait_and_nothing_is_lost(
    setup: Setup, new_region: NewRegion, topic: str
) -> None:
    own = new_region("target")
    # An outage refuses nothing that may be left out, however long it lasts.
    short = {"errors.tolerance": "all", "producer.override.delivery.timeout.ms": "1500"}
    more = {"offset.flush.interval.ms": "500", **short}
    flow = a_flow(setup.folder, setup.a, own, topic, more)
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


@pytest.mark.faults
def test_a_flow_that_gets_no_acknowledgement_degrades_and_lags(setup: Setup, topic: str) -> None:
    flow = a_flow(setup.folder, setup.a, setup.b, topic, {"refresh.topics.interval.seconds": "600"})
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)

        def now() -> dict[str, object]:
            return shown(mirror, flow)

        until(lambda: now()["lag_records"] == 0, 120, lambda: str(now()), alive=mirror)
        delete_topic(flow.target, flow.remote(topic))
        setup.create_topic(
            flow.target, flow.remote(topic), 1
        )  # by somebody else, with one partition
        write(flow.source, topic, [Sent(1, b"%d" % number) for number in range(20)])
        found = until(
            lambda: (
                it if (it := now())["state"] == "DEGRADED" and it["lag_records"] == 20 else None
            ),
            90,
            lambda: str(now()),
            alive=mirror,
        )
        assert "acknowledge" in str(found["errors"])
        mirror.stop()


def test_a_flow_goes_from_source_to_sink_and_back_and_only_one_of_them_copies(
    setup: Setup, topic: str
) -> None:
    flow = a_flow(setup.folder, setup.a, setup.b, topic)
    by_sink = flow.file.read_text()
    flow.file.write_text(by_sink.replace("copy.connector = sink", "copy.connector = source"))
    write(flow.source, topic, [Sent(number % PARTITIONS, b"%d" % number) for number in range(60)])
    with running(flow.file, name="source", ready=False) as mirror:
        wait_for_copy(mirror, flow, topic)
    # The group begins where it is: set it to where the other one has ended, as the guide says.
    group = Consumer(
        {"bootstrap.servers": flow.source.bootstrap_servers, "group.id": group_of(flow)}
    )
    group.commit(
        offsets=[TopicPartition(topic, p, 10) for p in range(PARTITIONS)], asynchronous=False
    )
    group.close()
    flow.file.write_text(by_sink)
    with running(flow.file, name="sink", ready=False) as mirror:
        mirror.wait_for_log("connector removed, another one copies the flow now")
        wait_ready(mirror)
        write(
            flow.source, topic, [Sent(number % PARTITIONS, b"s%d" % number) for number in range(60)]
        )
        assert_equal(*wait_for_copy(mirror, flow, topic))
        rest = rest_of(mirror, flow)
        names = cast("list[str]", rest.ok("GET", "connectors"))
        assert "MirrorSinkConnector" in names
        assert "MirrorSourceConnector" not in names


def test_the_group_begins_where_rules_say_and_later_topics_at_their_start(setup: Setup) -> None:
    prefix = setup.unique("starts")
    aged, placed, latest, rest = names = [
        f"{prefix}-{it}" for it in ("aged", "placed", "latest", "rest")
    ]
    now_ms = SYSTEM_CLOCK.now_ms()

    def fill(name: str) -> None:
        setup.create_topic(setup.a, name, 2)
        # Records of four hours, the newest an hour old.
        write(
            setup.a, name,
            [Sent(n % 2, b"%d" % (n // 2), timestamp_ms=now_ms - (4 - n // 2) * HOUR_MS) for n in range(8)],
        )  # fmt: skip

    for name in names:
        fill(name)
    rules = f"{placed}:0=offset:3, {placed}:1=offset:99, {prefix}-a.*=150 minutes ago, {rest}=earliest, latest"
    own = {"start.positions": rules, "refresh.topics.interval.seconds": "2"}
    flow = a_flow(setup.folder, setup.a, setup.b, f"{prefix}.*", own)

    def copies(name: str) -> list[list[bytes | None]]:
        logs = read(setup.b, flow.remote(name))
        return [[it.value for it in logs[number].records] for number in sorted(logs)]

    def wait(name: str, *values: list[bytes]) -> None:
        until_equal(lambda: copies(name), list(values), alive=mirror)

    four = [b"0", b"1", b"2", b"3"]
    with running(flow.file, name="first", ready=False) as mirror:
        wait(rest, four, four)
        wait(aged, four[2:], four[2:])
        wait(placed, four[3:], [])
        wait(latest, [], [])
        for name in names:
            wait_committed(mirror, flow, name)
        later = f"{prefix}-later"
        fill(later)
        wait(later, four, four)
        wait_assigned(mirror, flow, later)
        # The group has members: an old topic cannot begin in the middle, and waits for a restart.
        late = f"{prefix}-a-late"
        fill(late)
        mirror_rest = rest_of(mirror, flow)
        until(
            lambda: "stop the connector, and resume it" in str(shown(mirror, flow)),
            120,
            lambda: str(shown(mirror, flow)),
            alive=mirror,
        )
        wait(late, [], [])
        mirror_rest.ok("PUT", "connectors/MirrorSinkConnector/stop")
        mirror_rest.wait_states("MirrorSinkConnector", "STOPPED")
        mirror_rest.ok("PUT", "connectors/MirrorSinkConnector/resume")
        wait(late, four[2:], four[2:])
    for name in names:
        # Too old for the rules: what comes behind the start counts, not its age.
        write(setup.a, name, [Sent(n, b"new", timestamp_ms=now_ms - 9 * HOUR_MS) for n in range(2)])
    with running(flow.file, name="second", ready=False) as mirror:
        wait(latest, [b"new"], [b"new"])
        wait(placed, [b"3", b"new"], [b"new"])
        wait(aged, [*four[2:], b"new"], [*four[2:], b"new"])


@pytest.mark.parametrize("back", ["sink", "source"])
def test_a_circle_through_a_group_is_refused_with_help(setup: Setup, topic: str, back: str) -> None:
    done = run_to_end(both_ways(setup.folder, setup.a, setup.b, topic, {"copy.connector": back}))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "records would be copied in a circle" in said
    assert "set copy.connector=source for one" in said
    assert "\n  File " not in said, "no trace"


def test_a_connect_worker_refuses_the_second_half_of_a_circle(setup: Setup, topic: str) -> None:
    def body(source: KafkaAddress, target: KafkaAddress, way: str) -> dict[str, object]:
        config = mirror_config(source, target, way[0], topic) | {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSinkConnector",
            "target.cluster.alias": way[1],
            "replication.policy.class": IDENTITY,
        }
        return {"name": setup.unique(way), "config": config}

    with running(write_worker(setup.folder, setup.a), program=DISTRIBUTED, ready=False) as worker:
        rest = rest_of(worker)
        rest.ok("POST", "connectors", body(setup.a, setup.b, "AB"))
        status, answer = rest.call("POST", "connectors", body(setup.b, setup.a, "BA"))
        assert status == 400, answer
        assert "in a circle: A->B, B->A" in str(answer)


def test_two_groups_copy_both_ways_under_one_name_where_headers_mark_the_copies(
    setup: Setup, topic: str
) -> None:
    marks = {
        "transforms": "drop,mark",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "copied",
        "transforms.mark.type": "InsertHeader",
        "transforms.mark.header": "mirrored",
        "transforms.mark.value.literal": "yes",
        "predicates": "copied",
        "predicates.copied.type": "HasHeaderKey",
        "predicates.copied.name": "mirrored",
        "copy.connector": "sink",
    }
    file = both_ways(setup.folder, setup.a, setup.b, topic, marks)
    write(setup.a, topic, every_kind(120))

    def values(region: KafkaAddress) -> list[bytes]:
        return sorted(it.value or b"" for log in read(region, topic).values() for it in log.records)

    with running(file, ready=False) as mirror:
        until(lambda: len(values(setup.b)) >= 120, 90, "A's records on B", alive=mirror)
        write(setup.b, topic, [Sent(n % PARTITIONS, b"b%d" % n) for n in range(120)])
        until(lambda: len(values(setup.a)) >= 240, 90, "B's records on A", alive=mirror)
        write(setup.a, topic, [Sent(n, b"end") for n in range(PARTITIONS)])
        until(lambda: len(values(setup.b)) >= 240 + PARTITIONS, 90, "the last on B", alive=mirror)
    assert values(setup.a) == values(setup.b)
    assert len(values(setup.a)) == 240 + PARTITIONS
    logs, mark = (read(setup.a, topic), read(setup.b, topic)), ("mirrored", b"yes")
    for here, there in (logs, logs[::-1]):
        for partition, log in here.items():
            own = [it for it in log.records if mark not in it.headers]
            copies = [it for it in there[partition].records if mark in it.headers]
            assert copies == [it._replace(headers=(*it.headers, mark)) for it in own]


def both_ways(
    folder: Path, region_a: KafkaAddress, region_b: KafkaAddress, topic: str, way: Mapping[str, str]
) -> Path:
    """Write two flows under the same names, of which a group copies the first; ``way``: properties of both."""
    one, two = (f"{name}{secrets.token_hex(3)}" for name in ("one", "two"))
    there, back = f"{one}->{two}.", f"{two}->{one}."
    lines = {
        "clusters": f"{one}, {two}",
        f"{one}.bootstrap.servers": region_a.bootstrap_servers,
        f"{two}.bootstrap.servers": region_b.bootstrap_servers,
        f"{there}enabled": "true",
        f"{back}enabled": "true",
        "topics": topic,
        "replication.policy.class": IDENTITY,
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
        **{start + name: text for start in (there, back) for name, text in way.items()},
        f"{there}copy.connector": "sink",
    }
    file = folder / "both.properties"
    write_file(file, lines)
    return file
