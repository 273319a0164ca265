"""The mirror connectors on two real brokers; an independent client writes the source and reads both sides."""

import asyncio

import pytest

from mm2py.client.connect.admin import ConfigOp
from mm2py.mirror.offset_syncs import decode_offset_sync
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_heartbeat import MirrorHeartbeatConnector
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from tests.integration.mirror_bench import (
    Context,
    Copier,
    admin_of,
    config_of,
    config_values,
    read,
    until,
    write,
)
from tests.integration.setups import Setup
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import Pair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def syncs_of(region: KafkaAddress, topic: str, count: int) -> list[tuple[int, int]]:
    """Return the offset syncs of one source topic, oldest first."""
    found: list[tuple[int, int]] = []
    for key, value, _, _ in read(region, "mm2-offset-syncs.B.internal", 0, count):
        sync = decode_offset_sync(key or b"", value or b"")
        if sync.partition.topic == topic:
            found.append((sync.upstream, sync.downstream))
    return found


async def test_a_topic_is_created_copied_bytewise_and_goes_on(setup: Setup, regions: Pair) -> None:
    a, b = regions
    topic = setup.topic(
        "copy-me", 2, on=a, config={"retention.ms": "-1", "min.insync.replicas": "1"}
    )
    write(a, topic, 0, 500)
    write(a, topic, 1, 300, **{"compression.type": "lz4"})
    config = config_of(regions, topic)
    first, last = TopicPartition(topic, 0), TopicPartition(topic, 1)

    context = Context()
    connector = MirrorSourceConnector(config)
    try:
        await connector.start(context)
        (task_config,) = connector.task_configs(1)
        assert task_config["task.assigned.partitions"] == f"{topic}-0,{topic}-1"
        async with admin_of(b) as admin:

            async def created() -> bool:
                # A broker may list a topic before it has the configs.
                return (await config_values(admin, f"A.{topic}")).get("retention.ms") == "-1"

            await until(created)
        async with admin_of(a) as admin:
            values = await config_values(admin, "mm2-offset-syncs.B.internal")
            assert values["cleanup.policy"] == "compact"
            described = await admin.describe_topics(["mm2-offset-syncs.B.internal"])
            assert described["mm2-offset-syncs.B.internal"].partitions == (0,)
        await Copier(connector.open_task(task_config, context), b).copy({first: 499, last: 299})
        await asyncio.to_thread(write, a, topic, 0, 10)
        resumed = Context({first: 499, last: 299})
        await Copier(MirrorSourceTask(task_config, resumed), b).copy({first: 509})
    finally:
        await connector.stop()
    assert not context.failures
    assert not context.states
    for partition, count in ((0, 510), (1, 300)):
        copied = read(b, f"A.{topic}", partition, count + 1)
        assert copied == read(a, topic, partition, count)
    syncs = syncs_of(a, topic, 1000)
    assert {(0, 0), (499, 499), (299, 299), (500, 500), (509, 509)} <= set(syncs)


async def test_a_new_topic_and_new_partitions_are_taken_up_long_before_the_refresh_interval(
    setup: Setup, regions: Pair
) -> None:
    a, b = regions
    prefix = setup.unique("late")
    setup.create_topic(a, f"{prefix}-0", 1)
    config = config_of(regions, f"{prefix}.*")

    context = Context()
    connector = MirrorSourceConnector(config)
    try:
        await connector.start(context)
        for _ in range(2):
            seen = context.reconfigurations
            if not seen:
                await asyncio.to_thread(setup.create_topic, a, f"{prefix}-1", 2)
            else:
                async with admin_of(a) as admin:
                    assert await admin.create_partitions({f"{prefix}-0": 3}) == {
                        f"{prefix}-0": None
                    }

            async def asked(before: int = seen) -> bool:
                return context.reconfigurations > before

            await until(asked)
        (task_config,) = connector.task_configs(1)
        assert sorted(task_config["task.assigned.partitions"].split(",")) == sorted(
            f"{prefix}-{end}" for end in ("0-0", "1-0", "1-1", "0-1", "0-2")
        )
        async with admin_of(b) as admin:

            async def grown() -> bool:
                found = await admin.describe_topics([f"A.{prefix}-0", f"A.{prefix}-1"])
                return [len(t.partitions) for _, t in sorted(found.items())] == [3, 2]

            await until(grown)
    finally:
        await connector.stop()


async def test_configs_follow_the_source_and_fall_back_to_the_targets_default(
    setup: Setup, regions: Pair
) -> None:
    a, b = regions
    topic = setup.topic("configs", 1, on=a, config={"delete.retention.ms": "1000000"})

    connector = MirrorSourceConnector(config_of(regions, topic))
    remote = f"A.{topic}"
    async with admin_of(a) as source, admin_of(b) as target:
        try:
            await connector.start(Context())
            changes = [
                ConfigOp("delete.retention.ms", "DELETE"),
                ConfigOp("max.message.bytes", "SET", "2000000"),
            ]
            await source.alter_topic_configs({topic: changes})
            by_hand = [ConfigOp("segment.ms", "SET", "77777777")]
            await target.alter_topic_configs({remote: by_hand})

            async def followed() -> bool:
                values = await config_values(target, remote)
                return (
                    values["max.message.bytes"] == "2000000"
                    and values["delete.retention.ms"] == "86400000"
                    and values["segment.ms"] != "77777777"
                )

            await until(followed)
            assert connector.problems() == {}
        finally:
            await connector.stop()


async def test_a_replication_factor_above_the_brokers_is_named_and_nothing_is_sent(
    setup: Setup, regions: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    topic = setup.topic("factor", 1, on=regions[0])
    config = config_of(regions, topic) | {"replication.factor": "3"}

    connector = MirrorSourceConnector(config)
    try:
        await connector.start(Context())
        assert list(connector.task_configs(1)) == []
        (cause,) = connector.waiting().values()
        assert "INVALID_REPLICATION_FACTOR" in cause
        assert "set replication.factor (now 3)" in cause
    finally:
        await connector.stop()
    assert caplog.text.count("set replication.factor (now 3)") == 1


async def test_the_heartbeats_topic_is_created_as_java_does(regions: Pair) -> None:
    config = config_of(regions, "x") | {"name": "MirrorHeartbeatConnector"}

    connector = MirrorHeartbeatConnector(config)
    try:
        await connector.start(Context())
        assert len(connector.task_configs(1)) == 1
    finally:
        await connector.stop()
    async with admin_of(regions[1]) as admin:

        async def there() -> bool:
            values = await config_values(admin, "heartbeats")
            return values.get("cleanup.policy") == "compact"

        await until(there)


def acl(topic: str, operation: AclOperation, permission: AclPermission) -> Acl:
    return Acl(
        AclResourceType.TOPIC, topic, PatternType.LITERAL, "User:app", "*", operation, permission
    )


async def test_acls_of_topics_become_read_rights_on_the_copies(setup: Setup, regions: Pair) -> None:
    source, target = regions
    topic, other_topic = setup.topic("ruled"), setup.topic("other")
    allow, deny = AclPermission.ALLOW, AclPermission.DENY
    given = [
        acl(topic, AclOperation.ALL, allow),
        acl(topic, AclOperation.WRITE, allow),
        acl(topic, AclOperation.DELETE, deny),
        acl(other_topic, AclOperation.READ, allow),
    ]
    copy = f"A.{topic}"
    wanted = {acl(copy, AclOperation.READ, allow), acl(copy, AclOperation.DELETE, deny)}

    connector = MirrorSourceConnector(config_of(regions, topic))
    async with admin_of(source) as admin, admin_of(target) as other:
        assert await admin.create_acls(given) == [None] * 4
        try:
            await connector.start(Context())

            async def copied() -> bool:
                rules = await other.describe_topic_acls() or ()
                names = {topic, other_topic, copy, f"A.{other_topic}"}
                return {it for it in rules if it.resource_name in names} == wanted

            await until(copied)
            assert connector.problems() == {}
        finally:
            await connector.stop()
