"""Exactly once where others fail or take part: brokers that die, Connect workers with connectors of a third party, Java's MirrorMaker 2."""

import signal
from collections.abc import Mapping
from typing import Final

import pytest

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from bench.mirror_process import MirrorProcess
from tests.integration.connect_process import (
    DISTRIBUTED,
    install_plugin,
    mirror_config,
    rest_of,
    write_worker,
)
from tests.integration.exactly_once import (
    ENABLED,
    assert_each_once,
    committed_copy,
    wait_for_committed,
    wait_for_more,
)
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import (
    GROUPS,
    THREE_REPLICAS,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
)
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Log,
    Record,
    Sent,
    assert_equal,
    commit,
    copied,
    ends,
    numbered,
    offset_of,
    read,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import Region
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(500)]

PARTITIONS = 6
RATE = 1_000


def test_each_broker_is_killed_in_turn(setup: Setup, region_three: Region) -> None:
    topic = setup.topic("coordinators", PARTITIONS)
    # The session is long: a group whose coordinator dies must not take the work from its only worker.
    properties = {**ENABLED, **THREE_REPLICAS, "{target}.session.timeout.ms": "20000"}
    flow = setup.flow(topic, properties, target=region_three)
    in_sync = {"min.insync.replicas": "2"}
    setup.create_topic(region_three, flow.remote(topic), PARTITIONS, replicas=3, config=in_sync)
    with running(flow.file) as mirror:
        with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
            wait_for_more(mirror, flow, topic)
            for node in range(1, 4):
                region_three.node(node).kill()
                try:
                    load.wait_acked(RATE)
                finally:
                    region_three.start()
                wait_for_more(mirror, flow, topic)
        assert assert_each_once(mirror, flow, topic) > 3 * RATE


CONNECT_ENABLED: Final = {
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}
ENDLESS: Final = 1_000_000_000


@pytest.mark.parametrize("hosts", matrix([("1",)], [("0",)]))
def test_a_posted_mirror_copies_once_across_a_kill_and_obeys_altered_offsets(
    setup: Setup, hosts: str
) -> None:
    topic, alias = setup.topic("posted", 2), setup.unique("src")
    copy = f"{alias}.{topic}"
    write(setup.a, topic, numbered(0, 100, 2))
    file = write_worker(setup.folder, setup.b, CONNECT_ENABLED | {"task.host.processes": hosts})
    config = mirror_config(setup.a, setup.b, alias, topic) | {"exactly.once.support": "required"}

    def arrived(count: int) -> None:
        until_equal(
            lambda: sum(len(log.records) for log in read(setup.b, copy, committed=True).values()),
            count,
            f"{count} committed records",
        )

    with Mirror(file, name="killed", program=DISTRIBUTED) as worker:
        rest = rest_of(worker)
        status, answer = rest.call("POST", "connectors", {"name": "m", "config": config})
        assert (status, "isolation.level=read_committed" in str(answer)) == (400, True), answer
        config["source.consumer.isolation.level"] = "read_committed"
        rest.ok("POST", "connectors", {"name": "m", "config": config})
        rest.wait_states("m", "RUNNING", "RUNNING", "RUNNING")
        arrived(100)
        write(setup.a, topic, numbered(100, 200, 2))
        worker.kill()
    with running(file, name="successor", program=DISTRIBUTED, ready=False) as worker:
        rest = rest_of(worker)
        arrived(300)
        assert_equal(read(setup.a, topic), read(setup.b, copy, committed=True))
        rest.ok("PUT", "connectors/m/stop")
        rest.wait_states("m", "STOPPED")
        partition = {"cluster": alias, "partition": 0, "topic": topic}
        change = {"offsets": [{"partition": partition, "offset": {"offset": 139}}]}
        rest.ok("PATCH", "connectors/m/offsets", change)
        assert rest.offsets("m") == {(topic, 0): 139, (topic, 1): 149}
        rest.ok("PUT", "connectors/m/resume")
        arrived(310)


def test_a_third_partys_records_are_written_once_across_a_kill(setup: Setup) -> None:
    topic = setup.topic("numbers", 1, on=setup.b)
    config = {
        "connector.class": "CountingSource",
        "topic": topic,
        "count": str(ENDLESS),
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    file = write_worker(setup.folder, setup.b, CONNECT_ENABLED)
    environ = install_plugin(setup.folder)

    def keys() -> list[bytes | None]:
        return [record.key for record in read(setup.b, topic, committed=True)[0].records]

    with Mirror(file, name="killed", program=DISTRIBUTED, environ=environ) as worker:
        rest_of(worker).ok("POST", "connectors", {"name": "n", "config": config})
        until(lambda: len(keys()) > 100, 90, "some records", alive=worker)
        worker.kill()
    at_kill = len(keys())
    with running(
        file, name="successor", program=DISTRIBUTED, environ=environ, ready=False
    ) as worker:
        rest_of(worker).wait_states("n", "RUNNING", "RUNNING")
        until(lambda: len(keys()) > at_kill + 100, 90, "more records", alive=worker)
    found = keys()
    assert found == [b"k%d" % number for number in range(1, len(found) + 1)]


JAVA_PARTITIONS = 3
JAVA_RATE = 500
JAVA_S = 180.0
COMMITTED = {
    **ENABLED,
    "{source}.consumer.isolation.level": "read_committed",
    # Java asks the leader over REST before a task starts.
    "{target}.session.timeout.ms": "6000",
    "{source}->{target}.tasks.max": "2",
    **GROUPS,
}


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("turns", JAVA_PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return setup.flow(topic, COMMITTED)


@pytest.mark.java
def test_both_are_killed_in_turns_and_nothing_is_lost_or_doubled(flow: Flow, topic: str) -> None:
    groups: dict[str, int] = {}
    with Load(flow.source, topic, JAVA_PARTITIONS, rate=JAVA_RATE) as load:
        with Mirror(flow.file, name="ours-killed") as ours:
            ours.wait_ready()
            wait_for_progress(ours, flow, topic, JAVA_RATE)
            commit_groups(flow, topic, groups)
            ours.kill()
        run_java(flow, topic, load, kills=True)
        commit_groups(flow, topic, groups)
        with running(flow.file, name="ours-stopped") as ours:
            wait_for_progress(ours, flow, topic, 2 * JAVA_RATE)
            commit_groups(flow, topic, groups)
        run_java(flow, topic, load, kills=False)
        commit_groups(flow, topic, groups)
    with running(flow.file, name="ours-last", ready=False) as ours:
        assert assert_each_once(ours, flow, topic) > 4 * JAVA_RATE
        commit_groups(flow, topic, groups)
        newest = list(groups)[-1]
        until(lambda: there(flow, topic, newest) > 0, 90, "the newest group", alive=ours)
    check_groups(flow, topic, groups)


DROPPED: Final = {
    "{source}->{target}.transforms": "drop",
    "{source}->{target}.transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "{source}->{target}.transforms.drop.predicate": "deleted",
    "{source}->{target}.predicates": "deleted",
    "{source}->{target}.predicates.deleted.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
}


@pytest.mark.java
def test_java_copies_while_we_stand_still_and_each_record_that_transforms_leave_arrives_once(
    setup: Setup, topic: str
) -> None:
    """A topic that is paused for us is none for Java; it is still paused when we are back, and continues behind Java's last copy."""
    paused = setup.topic("paused", JAVA_PARTITIONS)
    flow = setup.flow(f"{topic},{paused}", COMMITTED | DROPPED)
    groups: dict[str, int] = {}

    def delete_keys() -> None:
        for name in (topic, paused):
            write(setup.a, name, [Sent(n % JAVA_PARTITIONS, None, b"%d" % n) for n in range(30)])

    with (
        Load(setup.a, topic, JAVA_PARTITIONS, rate=JAVA_RATE) as load,
        Load(setup.a, paused, JAVA_PARTITIONS, rate=JAVA_RATE // 5) as other,
        Mirror(flow.file, name="frozen") as ours,
    ):
        for name in (paused, topic):
            wait_for_progress(ours, flow, name, JAVA_RATE // 5)
        delete_keys()
        commit_groups(flow, topic, groups)
        Asked(ours).done("POST", f"{path_of(flow)}/pause", topic=paused)
        ours.send(signal.SIGSTOP)
        log = flow.file.with_suffix(".java.log")
        with start_java(flow.file, log, jvm_flags=QUICK_START_FLAGS) as java:
            java_copies(java, flow, paused)
            java_copies(java, flow, topic)
            delete_keys()
            commit_groups(flow, topic, groups)
            ours.send(signal.SIGCONT)
            ours.wait_for_log("waiting for the other members of the group")
            java.stop()
        wait_for_progress(ours, flow, topic, JAVA_RATE)
        at = copied(flow, paused)
        other.wait_acked(JAVA_RATE)
        assert copied(flow, paused) == at
        Asked(ours).done("POST", f"{path_of(flow)}/resume", topic=paused)
        load.stop()
        other.stop()
        for name in (topic, paused):
            wait_for_committed(ours, flow, name, dropped=20)
            truth, copy = read(setup.a, name), committed_copy(flow, name)
            for partition, log_of in truth.items():
                left = [it for it in log_of.records if it.value is not None]
                assert copy[partition].records == left, f"{name}-{partition}"
        commit_groups(flow, topic, groups)
        newest = list(groups)[-1]
        until(lambda: there(flow, topic, newest) > 0, 90, "the newest group", alive=ours)
        check_groups(flow, topic, groups)


def commit_groups(flow: Flow, topic: str, groups: dict[str, int]) -> None:
    """Commit for two new groups: in the middle of what the first partition has, and at its end."""
    end = ends(flow.source, topic)[0]
    for offset in (end // 2, end):
        group = f"{topic}-{len(groups)}"
        commit(flow.source, group, topic, {0: offset})
        groups[group] = offset


def there(flow: Flow, topic: str, group: str) -> int:
    return offset_of(flow.target, flow.remote(topic), group)


def check_groups(flow: Flow, topic: str, groups: Mapping[str, int]) -> None:
    """Fail if a group has passed a record on the target that it has not read at the source."""
    truth = read(flow.source, topic, committed=True)[0]
    copy = read(flow.target, flow.remote(topic), committed=True)[0]
    for group, offset in groups.items():
        now = there(flow, topic, group)
        have_read = {it.value for it in before(truth, offset)}
        skipped = [it for it in before(copy, now) if it.value not in have_read]
        assert not skipped, f"{group} at {offset} skips {len(skipped)} records at {now}"


def before(log: Log, offset: int) -> list[Record]:
    return [it for place, it in zip(log.offsets, log.records, strict=True) if place < offset]


def run_java(flow: Flow, topic: str, load: Load, *, kills: bool) -> None:
    """Let Java copy for a while, until it is killed or stopped."""
    log = flow.file.with_suffix(".java-killed.log" if kills else ".java-stopped.log")
    with start_java(flow.file, log, jvm_flags=QUICK_START_FLAGS) as java:
        java_copies(java, flow, topic)
        load.wait_acked(JAVA_RATE)
        if kills:
            java.kill()
        else:
            java.stop()


def java_copies(java: MirrorProcess, flow: Flow, topic: str) -> None:
    before = copied(flow, topic)

    def progressed() -> bool:
        java.check_running()
        return copied(flow, topic) > before + 2 * JAVA_RATE

    until(progressed, JAVA_S, lambda: f"Java to copy:\n{java.log()[-3000:]}")
