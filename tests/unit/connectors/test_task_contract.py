"""Our tasks, and a third party's, keep the contract that ``mm2py.testing.task_contract`` states."""

from collections.abc import Mapping

from mm2py.api.task import BatchSourceTask, SourceTask
from mm2py.clock import Clock
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, RecordTaskContract
from mm2py.types import TopicPartition
from mm2py_connectors.clients import ReaderEvents, ReaderLimits, ReaderSession
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from mm2py_connectors.mirror_heartbeat import MirrorHeartbeatTask
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from tests.kit.fakes.reader import LogsReader, a_batch
from tests.plugins.counting_source import CountingSourceConnector
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.mirror_fakes import Region
from tests.unit.connectors.test_mirror_checkpoint import CONFIG as CHECKPOINT
from tests.unit.connectors.test_mirror_checkpoint import SYNCS
from tests.unit.connectors.test_mirror_heartbeat import CONFIG as HEARTBEAT
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
        limits: ReaderLimits,
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
