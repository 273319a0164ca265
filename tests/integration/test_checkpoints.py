"""Consumer groups move: checkpoints that Java's own tools read, and group offsets on the target."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint
from mm2py.mirror_client import (
    checkpoint_topics,
    heartbeat_topics,
    replication_hops,
    translate_offsets,
    upstream_clusters,
)
from tests.integration.active_active import IDENTITY
from tests.integration.java_mm2 import formatted_by_java
from tests.integration.mirror_process import GROUPS, running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, committed, records_of, write
from tests.kit.kafka.java import compile_java, run_java
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOURCE = Path(__file__).parents[1] / "java" / "MirrorClientTruth.java"
PARTITIONS, RECORDS = 2, 250


def consumer(region: KafkaAddress, group: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": region.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 2,
            **more,
        }
    )


def read(client: Consumer, records: int) -> list[bytes]:
    """Read at least so many records as a member of the group."""
    found: list[bytes] = []

    def more() -> bool:
        polled = client.consume(50, 0.5)
        found.extend(it.value() or b"" for it in polled if it.error() is None)
        return len(found) >= records

    until(more, 90, lambda: f"{len(found)} of {records} records")
    return found


def numbered(first: int, last: int) -> list[Sent]:
    return [
        Sent(partition, b"%d-%d" % (partition, number))
        for partition in range(PARTITIONS)
        for number in range(first, last)
    ]


def checkpoints_in(region: KafkaAddress, topic: str) -> list[Checkpoint]:
    """Return all that were written, oldest first."""
    return [decode_checkpoint(it.key or b"", it.value or b"") for it in records_of(region, topic)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_at_the_other_side_skipping_nothing(setup: Setup, protocol: str) -> None:
    topic, group = setup.topic("orders", PARTITIONS), setup.unique("billing")
    write(setup.a, topic, numbered(0, RECORDS))
    flow = setup.flow(topic, GROUPS)
    with running(flow.file, ready=False) as worker:
        first = consumer(setup.a, group, **{"group.protocol": protocol})
        first.subscribe([topic])
        seen = read(first, PARTITIONS * RECORDS // 2)
        first.commit(asynchronous=False)
        first.close()
        stopped_at = committed(setup.a, group, topic)

        def is_there() -> bool:
            found = committed(setup.b, group, flow.remote(topic))
            return all(found.get(it, -1) >= 0 for it, at in stopped_at.items() if at >= 0)

        until(is_there, 90, lambda: f"{stopped_at}", alive=worker)
        write(setup.a, topic, numbered(RECORDS, RECORDS + 10))
        second = consumer(setup.b, group, **{"group.protocol": protocol})
        second.subscribe([flow.remote(topic)])
        everything = {it.value for it in numbered(0, RECORDS + 10)}
        left = everything - set(seen)
        read_there: set[bytes] = set()

        def is_complete() -> bool:
            read_there.update(read(second, 1))
            return left <= read_there

        until(is_complete, 90, lambda: f"{len(left - read_there)} records were skipped")
        second.close()


@pytest.mark.java
def test_java_reads_our_checkpoints_and_offsets_on_the_target_never_go_back(setup: Setup) -> None:
    topic, tip, ahead = setup.unique("orders"), setup.unique("tip"), setup.unique("ahead")
    setup.create_topic(setup.a, topic, PARTITIONS)
    write(setup.a, topic, numbered(0, RECORDS))
    commit(setup.a, tip, topic, dict.fromkeys(range(PARTITIONS), RECORDS))
    flow = setup.flow(topic, GROUPS | {"{source}->{target}.groups": f"{tip},{ahead}"})
    remote = flow.remote(topic)
    with running(flow.file, ready=False) as worker:
        until_equal(
            lambda: committed(setup.b, tip, remote),
            dict.fromkeys(range(PARTITIONS), RECORDS),
            alive=worker,
        )
        # The group went on at the target; what it has left at the source is behind that.
        commit(setup.b, ahead, remote, dict.fromkeys(range(PARTITIONS), RECORDS))
        commit(setup.a, ahead, topic, dict.fromkeys(range(PARTITIONS), 1))
        checkpoints = f"{flow.source_alias}.checkpoints.internal"

        def has(*wanted: tuple[str, int]) -> bool:
            found = {
                (it.group, it.partition.partition, it.upstream)
                for it in checkpoints_in(setup.b, checkpoints)
            }
            return all(
                (group, number, offset) in found
                for group, offset in wanted
                for number in range(PARTITIONS)
            )

        until(lambda: has((tip, RECORDS), (ahead, 1)), alive=worker)
        commit(setup.a, tip, topic, dict.fromkeys(range(PARTITIONS), RECORDS - 1))
        until(lambda: has((tip, RECORDS - 1)), alive=worker)
    assert committed(setup.b, tip, remote) == dict.fromkeys(range(PARTITIONS), RECORDS)
    assert committed(setup.b, ahead, remote) == dict.fromkeys(range(PARTITIONS), RECORDS)
    written = len(checkpoints_in(setup.b, checkpoints))
    printed = "\n".join(formatted_by_java(setup.b, checkpoints, "CheckpointFormatter", written))
    for group in (tip, ahead):
        assert f"consumerGroupId={group}, topicPartition={remote}-0" in printed
    assert f"upstreamOffset={RECORDS}, downstreamOffset={RECORDS}" in printed
    said = java_says(setup.folder, setup.b, flow.source_alias, [tip, ahead])
    assert we_say(setup.b, flow.source_alias, [tip, ahead]) == said
    assert f"{remote}-0=" in said[-1]


def java_says(folder: Path, region: KafkaAddress, alias: str, groups: list[str]) -> list[str]:
    """Return what Java's ``RemoteClusterUtils`` says of the target."""
    compile_java([SOURCE], folder)
    servers = region.bootstrap_servers
    done = run_java("MirrorClientTruth", servers, alias, *groups, classpath=[folder], timeout_s=120)
    words = ("heartbeats ", "checkpoints ", "upstream ", "hops ", "group ")
    return [line for line in done.check().splitlines() if line.startswith(words)]


def we_say(region: KafkaAddress, alias: str, groups: list[str]) -> list[str]:
    """Return what ``mm2py.mirror_client`` says of it, in the same words."""
    props = {"bootstrap.servers": region.bootstrap_servers}
    lines = [
        f"{word} [{', '.join(sorted(found))}]"
        for word, found in (
            ("heartbeats", heartbeat_topics(props)),
            ("checkpoints", checkpoint_topics(props)),
            ("upstream", upstream_clusters(props)),
        )
    ]
    lines.append(f"hops {replication_hops(props, alias)}")
    for group in groups:
        offsets = translate_offsets(props, alias, group)
        shown = sorted(f"{tp}={it.offset}/{it.metadata}" for tp, it in offsets.items())
        lines.append(f"group {group} {{{', '.join(shown)}}}")
    return lines


def test_a_group_of_a_one_way_flow_that_keeps_names_is_synced_though_there_is_no_flow_back(
    setup: Setup,
) -> None:
    topic, group = setup.topic("orders", PARTITIONS), setup.unique("billing")
    write(setup.a, topic, numbered(0, RECORDS))
    commit(setup.a, group, topic, dict.fromkeys(range(PARTITIONS), 100))
    # So long the reader of a topic that must be there would wait.
    patient = {f"{it}.default.api.timeout.ms": "600000" for it in ("{source}", "{target}")}
    flow = setup.flow(topic, {**GROUPS, **patient, "replication.policy.class": IDENTITY})
    with running(flow.file) as worker:
        wanted = dict.fromkeys(range(PARTITIONS), 100)
        until_equal(lambda: committed(setup.b, group, topic), wanted, alive=worker)
        assert not worker.lines("offset map of the flow back")
