"""Brokers of other releases on either side: the oldest that are supported, with ZooKeeper, and the newest.

Only what a version changes is tried here: creation and configs of topics, copies, groups, a kill, exactly-once.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from mm2py.client.connect.admin import Admin
from tests.integration.active_active import IDENTITY
from tests.integration.clients import connected
from tests.integration.cluster_changes import configs_of, grow, topics_of
from tests.integration.exactly_once import (
    ENABLED,
    SMALL_LIMIT,
    assert_each_once,
    assert_no_cause_twice,
    write_small_batches,
)
from tests.integration.failovers import Drivers, values_of
from tests.integration.mirror_process import Flow, Mirror, running, until, until_equal
from tests.integration.other_releases import region_of
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.sinks import PARTITIONS as SUNK
from tests.integration.sinks import SHORT_SESSIONS, a_flow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    commit,
    committed,
    committed_positions,
    producer,
    wait_for_copy,
    wait_for_markers,
    wait_for_progress,
    write,
)
from tests.integration.transactions import write_one
from tests.kit.kafka.region import KafkaAddress, Region
from tests.spark.backfill_process import command

RELEASES: Final = ("2.4.1", "2.8.2", "4.4.0")
ONCE: Final = (("2.8.2", "source"), ("2.8.2", "target"), ("2.4.1", "target"))
SYNCED: Final = 150
FLOW: Final = {
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}.consumer.isolation.level": "read_committed",
}

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def other(release: str) -> Iterator[Region]:
    """A cluster of that release, which a test leaves running."""
    with region_of(release) as region:
        yield region


@pytest.mark.parametrize("side", ["source", "target"])
def test_brokers_of_other_releases_are_mirrored_with_groups_and_configs_and_may_die(
    setup: Setup, other: Region, side: str
) -> None:
    source, target = (other, setup.b) if side == "source" else (setup.b, other)
    topic, group = setup.unique("old"), setup.unique("group")
    setup.create_topic(
        source, topic, 2, config={"max.message.bytes": "70000", "retention.ms": "-1"}
    )
    for codec in ("none", "gzip", "lz4", "zstd"):
        records = [Sent(n % 2, b"%s %d" % (codec.encode(), n)) for n in range(200)]
        write(source, topic, records, compression_type=codec)
    commit(source, group, topic, {0: SYNCED})
    flow = setup.flow(topic, FLOW, source=source, target=target)
    with running(flow.file, ready=False) as mirror:
        wait_for_copy(mirror, flow, topic)
        grow(source, topic, 4)
        until(lambda: topics_of(target)[flow.remote(topic)] == 4, 90, "partitions", alive=mirror)
        assert configs_of(target, flow.remote(topic))["max.message.bytes"] == "70000"
        client = producer(source, transactional_id=topic)
        client.init_transactions(60)
        write_one(client, topic, [b"aborted"] * 2, commit=False)
        write_one(client, topic, [b"kept"] * 2, commit=True)
        wait_for_markers(source, topic)
        wait_for_copy(mirror, flow, topic, committed=True)
        _wait_synced(mirror, flow, topic, group, SYNCED)
        path = f"flows/{flow.source_alias}-%3E{flow.target_alias}/groups"

        def shown() -> list[tuple[str, ...]]:
            (listed,) = [it for it in ask(f"{public_url(mirror)}{path}")[1] if it["group"] == group]
            both = listed, ask(f"{public_url(mirror)}{path}/{group}")[1]
            return [(it["state"], it["state_there"], it["not_synced"]) for it in both]

        until_equal(shown, [("Empty", "Empty", "")] * 2, "the group", alive=mirror)
        assert asyncio.run(_sizes_known(source, topic))
        assert not mirror.complaints()
    write(source, topic, [Sent(n % 4, b"later %d" % n) for n in range(200)])
    other.kill()
    other.start()
    commit(source, group, topic, {0: SYNCED + 20})
    with running(flow.file, name="restarted", ready=False) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic, committed=True))
        _wait_synced(mirror, flow, topic, group, SYNCED + 20)


def test_a_target_with_an_old_message_format_gets_topics_of_a_newer_one(setup: Setup) -> None:
    topic = setup.topic("format", 2)
    write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(200)])
    with region_of("2.4.1", {"log.message.format.version": "0.10.2"}) as target:
        flow = setup.flow(topic, {}, target=target)
        with Mirror(flow.file) as mirror:
            assert_equal(*wait_for_copy(mirror, flow, topic))
            # A slow broker may not acknowledge positions within the time of a stop, which is a complaint.
            until_equal(lambda: committed_positions(flow, topic), {0: 99, 1: 99}, "positions")
            assert mirror.stop() == 0
            assert not mirror.complaints()
        refused = setup.flow(topic, {}, target=target)
        # Made by an administrator, with the brokers' format.
        setup.create_topic(
            target,
            f"mm2-configs.{refused.source_alias}.internal",
            config={"cleanup.policy": "compact"},
        )
        with Mirror(refused.file) as mirror:
            url = public_url(mirror)
            path = f"{url}flows/{refused.source_alias}-%3E{refused.target_alias}"
            found = until(
                lambda: ask(path)[1] if ask(path)[1].get("state") == "FAILED" else None,
                90,
                lambda: str(ask(path)),
                alive=mirror,
            )
            assert "set its message.format.version to 0.11.0" in str(found["errors"])
            until_equal(lambda: ask(f"{url}health")[0], 500, "health", alive=mirror)
            assert ask(f"{url}health")[1]["status"] == "unhealthy"


@pytest.mark.parametrize(("release", "side"), ONCE, indirect=["release"])
def test_exactly_once_copies_each_record_once_behind_a_kill_and_refuses_a_target_before_2_5(
    setup: Setup, other: Region, release: str, side: str
) -> None:
    source, target = (other, setup.b) if side == "source" else (setup.b, other)
    topic = setup.topic("once", 2, on=source, config=SMALL_LIMIT)
    write_small_batches(source, topic, 2, 24_000)
    flow = setup.flow(topic, ENABLED, source=source, target=target)
    with Mirror(flow.file) as mirror:
        if release == "2.4.1":
            mirror.wait_for_log("exactly-once needs brokers of Kafka 2.5 or newer")
            refused = command(flow, "run")
            assert refused.code == 1
            assert "Kafka 2.5 or newer, and so do jobs that write" in refused.err
            return
        assert_each_once(mirror, flow, topic)
        assert_no_cause_twice(mirror)
        write(source, topic, [Sent(n % 2, b"more %d" % n) for n in range(2_000)])
        mirror.kill()
    with running(flow.file, name="restarted", ready=False) as mirror:
        assert assert_each_once(mirror, flow, topic) == 26_000


@pytest.mark.parametrize(
    ("release", "side"), [("2.4.1", "source"), ("2.4.1", "target")], indirect=["release"]
)
def test_a_flow_that_a_group_copies_is_continued_behind_a_kill_and_a_broker_that_died(
    setup: Setup, other: Region, side: str
) -> None:
    source, target = (other, setup.b) if side == "source" else (setup.b, other)
    topic = setup.topic("sunk", SUNK, on=source)
    committed_only = {"consumer.override.isolation.level": "read_committed"}
    flow = a_flow(setup.folder, source, target, topic, committed_only, SHORT_SESSIONS)
    with Load(source, topic, SUNK, rate=400) as load:
        with Mirror(flow.file, name="first") as first:
            wait_for_progress(first, flow, topic, 500)
            client = producer(source, transactional_id=topic)
            client.init_transactions(60)
            write_one(client, topic, [b"aborted"] * 2, commit=False)
            first.kill()
        with running(flow.file, name="second", ready=False) as second:
            wait_for_progress(second, flow, topic, 500)
            other.kill()
            other.start()
            wait_for_progress(second, flow, topic, 500)
            load.stop()
            assert_resumed(*wait_for_copy(second, flow, topic, committed=True), rewinds=SUNK)


@pytest.mark.parametrize(
    ("release", "side"), [("2.8.2", "source"), ("2.8.2", "target")], indirect=["release"]
)
def test_clients_move_to_another_release_and_back_and_a_transaction_is_waited_for(
    setup: Setup, other: Region, side: str
) -> None:
    a, b = (other, setup.b) if side == "source" else (setup.b, other)
    topic, group = setup.unique("orders"), setup.unique("billing")
    for region in (a, b):
        setup.create_topic(region, topic, 1)
    committed_only = {
        f"{{{it}}}.consumer.isolation.level": "read_committed" for it in ("source", "target")
    }
    flow = setup.flow(
        topic, {"replication.policy.class": IDENTITY, **committed_only}, source=a, target=b
    )
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        write(a, topic, [Sent(0, b"%d" % n) for n in range(20)])
        commit(a, group, topic, {0: 7})
        client = producer(a, transactional_id=topic, transaction_timeout_ms=600_000)
        client.init_transactions(60)
        client.begin_transaction()
        client.produce(topic, b"20", partition=0)
        assert client.flush(60) == 0
        drivers.run("failover", "--execute", "--settle", "1", "-o", "json", kill_at="DRAIN")
        client.commit_transaction(60)
        drivers.execute("failover")
        assert committed(b, group, topic) == {0: 7}
        write(b, topic, [Sent(0, b"21")])
        commit(b, group, topic, {0: 9})
        drivers.execute("failback")
        assert committed(a, group, topic) == {0: 9}
        write(a, topic, [Sent(0, b"22")])
        values = [[*range(23)]]
        until_equal(lambda: [values_of(it, topic) for it in (a, b)], [values] * 2, alive=mirror)


async def _sizes_known(region: KafkaAddress, topic: str) -> bool:
    async with connected(region) as cluster:
        sizes = await Admin(cluster).partition_sizes({topic: range(4)})
    return len(sizes) == 4 and sum(sizes.values()) > 0


def _wait_synced(mirror: Mirror, flow: Flow, topic: str, group: str, offset: int) -> None:
    until_equal(lambda: committed(flow.target, group, flow.remote(topic))[0], offset, alive=mirror)
