"""Our tasks, and a third party's, keep the contract of ``mm2py.testing.task_contract``; options of our connectors, and MirrorHeartbeat."""

import asyncio
from collections.abc import Mapping

import pytest

from mm2py.api.task import BatchSourceTask, SourceTask
from mm2py.clock import Clock
from mm2py.config.definitions import check_config, options_of, parse_config
from mm2py.errors import ConfigError, ConnectionFailedError
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.topics import NewTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeConnectorContext, FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, RecordTaskContract
from mm2py.types import TopicPartition
from mm2py_connectors.clients import ReaderEvents, ReaderSession, ReaderTuning
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from mm2py_connectors.mirror_heartbeat import MirrorHeartbeatConnector, MirrorHeartbeatTask
from mm2py_connectors.mirror_source_config import MirrorSourceConfig, MirrorSourceTaskConfig
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from tests.kit.fakes.batches import a_batch
from tests.kit.fakes.reader import LogsReader
from tests.plugins.counting_source import CountingSourceConnector
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.mirror_fakes import Region, flow_config
from tests.unit.connectors.test_mirror_checkpoint import CONFIG as CHECKPOINT
from tests.unit.connectors.test_mirror_checkpoint import SYNCS
from tests.unit.connectors.test_mirror_source_task import CONFIG as SOURCE

LOGS = {
    TopicPartition(topic, 0): [a_batch(first, 5) for first in range(0, 20, 5)]
    for topic in ("one", "two")
}


class LogsRegion(Region):
    """A source that holds ``LOGS``."""

    def open_reader(
        self,
        props: Mapping[str, str],
        alias: str,
        clock: Clock,
        events: ReaderEvents,
        tuning: ReaderTuning,
    ) -> ReaderSession:
        return ReaderSession(self._session(props), LogsReader(events, LOGS))


class TestCountingSource(RecordTaskContract):
    def open_task(self, context: FakeTaskContext) -> SourceTask:
        connector = CountingSourceConnector({"topic": "numbers", "count": "3"})
        return connector.open_task(connector.task_configs(1)[0], context)


class TestMirrorHeartbeat(RecordTaskContract):
    continues = False

    def open_task(self, context: FakeTaskContext) -> SourceTask:
        return MirrorHeartbeatTask(HEARTBEAT, context.clock)


class TestMirrorCheckpoint(RecordTaskContract):
    continues = False

    def open_task(self, context: FakeTaskContext) -> SourceTask:
        region = GroupRegion()
        for partition in range(self.count):
            region.log(*SYNCS).sync("t", partition, 0, 0)
        region.at_source.put("g", t_0=1, t_1=1, t_2=1)
        config = CHECKPOINT | {"task.assigned.groups": "g"}
        return MirrorCheckpointTask(
            config, context, groups=region.open_groups, logs=region.open_log, maps=region.open_map
        )


class TestMirrorSource(BatchTaskContract):
    def open_task(self, context: FakeTaskContext) -> BatchSourceTask:
        region = LogsRegion({"one": 1, "two": 1})
        config = SOURCE | {"task.assigned.partitions": "one-0,two-0"}
        return MirrorSourceTask(
            config, context, readers=region.open_reader, writers=region.open_writer
        )


# ---- options that are refused together


ALIAS = {"source.cluster.alias": "A"}


def test_task_options_do_not_leak_into_the_connectors() -> None:
    assert "task.assigned.partitions" not in options_of(MirrorSourceConfig)
    with pytest.raises(ConfigError, match=r"task\.assigned\.partitions: is missing"):
        parse_config(MirrorSourceTaskConfig, ALIAS)
    task = parse_config(
        MirrorSourceTaskConfig,
        ALIAS | {"task.assigned.partitions": "topic-1-2,topic-3-4", "task.index": "1"},
    )
    assert (task.task_assigned_partitions, task.task_index) == (("topic-1-2", "topic-3-4"), 1)


def test_minus_one_replica_takes_the_brokers_default_and_none_is_refused() -> None:
    assert (
        parse_config(MirrorSourceConfig, ALIAS | {"replication.factor": "-1"}).replication_factor
        == -1
    )
    for text in ("0", "-2", "32768"):
        assert check_config(MirrorSourceConfig, ALIAS | {"replication.factor": text})


def test_required_exactly_once_needs_read_committed() -> None:
    props = ALIAS | {"exactly.once.support": "required"}
    with pytest.raises(ConfigError, match="read_committed"):
        parse_config(MirrorSourceConfig, props)
    parse_config(MirrorSourceConfig, props | {"source.consumer.isolation.level": "read_committed"})


def test_settings_of_offset_syncs_contradict_their_being_off() -> None:
    props = ALIAS | {"emit.offset-syncs.enabled": "false"}
    parse_config(MirrorSourceConfig, props)
    with pytest.raises(ConfigError, match=r"contradicts offset-syncs\.topic\.location"):
        parse_config(MirrorSourceConfig, props | {"offset-syncs.topic.location": "source"})


@pytest.mark.parametrize("name", ["emit.checkpoints.enabled", "emit.offset-syncs.enabled"])
def test_a_checkpoint_connector_without_its_topics_is_refused_unless_disabled(name: str) -> None:
    props = ALIAS | {name: "false"}
    assert check_config(MirrorCheckpointConfig, props)[0].name == name
    assert check_config(MirrorCheckpointConfig, props | {"enabled": "false"}) == []


# ---- MirrorHeartbeat: its topic, its one task, its record


HEARTBEAT = flow_config(
    "MirrorHeartbeatConnector", enabled="false", heartbeats_topic_replication_factor="1"
)


async def test_it_works_for_a_disabled_flow_and_has_one_task() -> None:
    region, context = Region({}), FakeConnectorContext()
    connector = MirrorHeartbeatConnector(HEARTBEAT, admins=region.open_admin)
    await connector.start(context)
    assert region.target.created == [NewTopic("heartbeats", 1, 1, {"cleanup.policy": "compact"})]
    (config,) = connector.task_configs(5)
    assert config == HEARTBEAT | {
        "task.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"
    }
    await connector.stop()
    assert region.client_ids == ["A->B|MirrorHeartbeatConnector|heartbeats-target-admin"]
    assert region.all_closed


async def test_without_emission_there_is_no_task_and_no_topic() -> None:
    region = Region({})
    config = HEARTBEAT | {"emit.heartbeats.enabled": "false"}
    connector = MirrorHeartbeatConnector(config, admins=region.open_admin)
    await connector.start(FakeConnectorContext())
    await connector.stop()
    assert list(connector.task_configs(1)) == []
    assert region.sessions == []


async def test_no_task_runs_before_the_topic_exists(caplog: pytest.LogCaptureFixture) -> None:
    region, context = Region({}), FakeConnectorContext()
    region.target.refuse["heartbeats"] = server_error(38, "1 broker")
    config = {"heartbeats.topic.replication.factor": "3", "target.cluster.alias": ""}
    connector = MirrorHeartbeatConnector(HEARTBEAT | config, admins=region.open_admin)

    await connector.start(context)
    assert list(connector.task_configs(1)) == []
    await context.clock.advance(60)
    assert caplog.text.count("set heartbeats.topic.replication.factor (now 3)") == 1
    assert "cannot be created on target: " in caplog.text, "an alias may be empty"
    region.target.refuse.clear()
    await context.clock.advance(11)
    assert len(connector.task_configs(1)) == 1
    assert context.reconfigurations == 1
    created = len(region.target.created)
    await context.clock.advance(60)
    assert len(region.target.created) == created + 1, "it may have been deleted"
    assert context.reconfigurations == 1
    await connector.stop()


async def test_one_record_comes_after_each_interval_with_javas_bytes() -> None:
    clock = FakeClock(1_700_000_000_000 - 2_000)
    config = HEARTBEAT | {"emit.heartbeats.interval.seconds": "2"}
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


async def test_an_unreachable_target_is_tried_again_by_the_runtime() -> None:
    region = Region({})
    region.refuse_connect = 1
    connector = MirrorHeartbeatConnector(HEARTBEAT, admins=region.open_admin)

    with pytest.raises(ConnectionFailedError):
        await connector.start(FakeConnectorContext())
    assert region.all_closed
    await connector.start(FakeConnectorContext())
    assert len(connector.task_configs(1)) == 1
    await connector.stop()
