"""The MirrorHeartbeat connector: its topic, its one task, its record."""

import asyncio

import pytest

from mm2py.errors import ConnectionFailedError
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.topics import NewTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeConnectorContext
from mm2py_connectors.mirror_heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from tests.unit.connectors.mirror_fakes import MirrorTaskContext, Region, flow_config

CONFIG = flow_config(
    "MirrorHeartbeatConnector", enabled="false", heartbeats_topic_replication_factor="1"
)


async def test_it_works_for_a_disabled_flow_and_has_one_task() -> None:
    region, context = Region({}), FakeConnectorContext()
    connector = MirrorHeartbeatConnector(CONFIG, admins=region.open_admin)
    await connector.start(context)
    assert region.target.created == [NewTopic("heartbeats", 1, 1, {"cleanup.policy": "compact"})]
    (config,) = connector.task_configs(5)
    assert config == CONFIG | {"task.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"}
    await connector.stop()
    assert region.client_ids == ["A->B|MirrorHeartbeatConnector|heartbeats-target-admin"]
    assert region.all_closed


async def test_without_emission_there_is_no_task_and_no_topic() -> None:
    region = Region({})
    config = CONFIG | {"emit.heartbeats.enabled": "false"}
    connector = MirrorHeartbeatConnector(config, admins=region.open_admin)
    await connector.start(FakeConnectorContext())
    await connector.stop()
    assert list(connector.task_configs(1)) == []
    assert region.sessions == []


async def test_no_task_runs_before_the_topic_exists(caplog: pytest.LogCaptureFixture) -> None:
    region, context = Region({}), FakeConnectorContext()
    region.target.refuse["heartbeats"] = server_error(38, "1 broker")
    connector = MirrorHeartbeatConnector(
        CONFIG | {"heartbeats.topic.replication.factor": "3"}, admins=region.open_admin
    )

    await connector.start(context)
    assert list(connector.task_configs(1)) == []
    await context.clock.advance(60)
    assert caplog.text.count("set heartbeats.topic.replication.factor (now 3)") == 1
    region.target.refuse.clear()
    await context.clock.advance(11)
    assert len(connector.task_configs(1)) == 1
    assert context.reconfigurations == 1
    await connector.stop()


async def test_an_unreachable_target_is_tried_again_by_the_runtime() -> None:
    region = Region({})
    region.refuse_connect = 1
    connector = MirrorHeartbeatConnector(CONFIG, admins=region.open_admin)

    with pytest.raises(ConnectionFailedError):
        await connector.start(FakeConnectorContext())
    assert region.all_closed
    await connector.start(FakeConnectorContext())
    assert len(connector.task_configs(1)) == 1
    await connector.stop()


async def test_one_record_comes_after_each_interval_with_javas_bytes() -> None:
    clock = FakeClock(1_700_000_000_000 - 2_000)
    config = CONFIG | {"emit.heartbeats.interval.seconds": "2"}
    task = MirrorHeartbeatTask(config, clock)
    await task.start()
    first = asyncio.create_task(task.poll())
    await clock.advance(1)
    assert await first == (), "it does not block longer than a second"
    second = asyncio.create_task(task.poll())
    await clock.advance(1)
    (record,) = await second
    assert record.key == bytes.fromhex("00 01 41 00 01 42")
    assert record.value == bytes.fromhex("00 00 00 00 01 8b cf e5 68 00")
    assert record.timestamp_ms == 1_700_000_000_000
    assert (record.topic, record.partition) == ("heartbeats", 0)
    assert list(record.source_partition.items()) == [
        ("sourceClusterAlias", "A"),
        ("targetClusterAlias", "B"),
    ]
    assert record.source_offset == {"offset": 0}
    third = asyncio.create_task(task.poll())
    await clock.advance(0.9)
    assert not third.done()
    third.cancel()


async def test_stop_ends_the_wait() -> None:
    connector = MirrorHeartbeatConnector(CONFIG)
    context = MirrorTaskContext()
    task = connector.open_task(CONFIG, context)
    assert isinstance(task, MirrorHeartbeatTask)

    await task.start()
    polling = asyncio.create_task(task.poll())
    await context.clock.settle()
    await task.stop()
    assert await polling == ()
    assert await task.poll() == ()
