"""MirrorSink connector: the copy of a flow, driven by a consumer group of the source (KIP-382).

Flow: ``TopicUpkeep`` finds topics and keeps their copies in step -> ``FirstPositions`` ->
``task_configs``: every task gets all topics, the group deals the partitions -> ``MirrorSinkTask``,
which loads confluent-kafka, so it is imported where a task is built.

A task, in the runtime::

   1 herder -> hosts/child_host  a process for the task alone: only there confluent-kafka is loaded
   2 tasks/task_assembly         connector, context, errors.*; mm2py_workers/sink_clients: consumer, dead letter queue
   3 tasks/worker_sink_task      a thread with tasks/sink_loop; states and numbers come back to the event loop
   4 tasks/sink_loop             poll, put, commit what pre_commit allows. tasks/sink_places: which topic a position is in
   5 mirror_sink_task            put -> record_sender -> the target; pre_commit waits for the acknowledgements
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import SinkConnector
from mm2py.api.context import ConnectorContext, PublishedTasks, WaitingPartition
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.clock import Clock
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_SINK_CONNECTOR
from mm2py.config.client_properties import (
    client_id,
    effective_client_properties,
    sink_consumer_properties,
)
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.mirror.offset_checks import Positions
from mm2py.mirror.start_positions import FIRST_START, StartPositions, first_start_ms
from mm2py.types import TopicPartition
from mm2py_connectors.clients import (
    AdminFactory,
    GroupFactory,
    MirrorAdmin,
    open_admin,
    open_groups,
)
from mm2py_connectors.first_positions import FirstPositions
from mm2py_connectors.mirror_sink_config import MirrorSinkConfig, MirrorSinkTaskConfig
from mm2py_connectors.topic_upkeep import TopicUpkeep

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorSinkTask"
SHORTEST_METADATA_AGE_S: Final = 5


@final
class MirrorSinkConnector(SinkConnector):
    """Copies the chosen topics of one flow through a consumer group; ``enabled=false`` makes it do
    nothing at all."""

    java_class: ClassVar[str] = MIRROR_SINK_CONNECTOR
    plugin_type: ClassVar[str] = "sink"
    takes_bytes: ClassVar[bool] = True
    plugin_version: ClassVar[str] = KAFKA_RELEASE
    config_model: ClassVar[type[ConfigModel]] = MirrorSinkConfig

    def __init__(
        self,
        config: Mapping[str, str],
        *,
        admins: AdminFactory = open_admin,
        groups: GroupFactory = open_groups,
    ) -> None:
        self._props, self._groups = dict(config), groups
        self._config = parse_config(MirrorSinkConfig, config)
        self._upkeep = TopicUpkeep(
            self._props,
            self._config,
            heartbeats=self._config.heartbeats_replication_enabled,
            admins=admins,
        )
        self._topics: tuple[str, ...] = ()
        self._partitions = 0
        self._context: ConnectorContext | None = None
        self._first: FirstPositions | None = None
        # What ages are counted from, for topics that appear later too; -1 where none is asked for.
        self._first_start_ms = -1

    @staticmethod
    def consumer_properties(config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the properties of the consumer of the source; partitions of one topic go to
        different members."""
        task = parse_config(MirrorSinkTaskConfig, config)
        props = effective_client_properties(
            config, "source", "consumer", role="mirror-sink-consumer", task_index=task.task_index
        )
        # A consumer sees new partitions when it reads the metadata again.
        age_ms = 1000 * max(SHORTEST_METADATA_AGE_S, task.refresh_topics_interval_seconds)
        props.setdefault("metadata.max.age.ms", str(age_ms))
        # `RangeAssignor` deals each topic alone: the first member would get all of one.
        props.setdefault("partition.assignment.strategy", "RoundRobinAssignor")
        return props

    @staticmethod
    def check_offsets(_config: Mapping[str, str], _offsets: Positions) -> bool:
        """Accept positions of the group: the tasks continue there."""
        return True

    async def start(self, context: ConnectorContext) -> None:
        """Create what is missing, then start; ``RetriableError`` for an unreachable cluster."""
        if not self._config.enabled:
            log.info("flow is disabled, nothing is copied")
            return
        self._context = context
        try:
            source, target = await self._upkeep.open(context)
            published = context.published_tasks() if isinstance(context, PublishedTasks) else ()
            self._first_start_ms = first_start_ms(
                self._config.start_positions, published, context.clock
            )
            read = {topic for it in published for topic in it.get("topics", "").split(",")}
            self._first = self._first_positions(source.admin, context.clock, read)
            await self._upkeep.topics.refresh()
            await self._first.settle(self._upkeep.topics.ready())
            self._look()
            self._upkeep.begin(source, target, self._refresh)
        except BaseException:
            await self.stop()
            raise
        log.info(
            "sink connector started topics=%d partitions=%d", len(self._topics), self._partitions
        )

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return a config for each member of the group, none while there is nothing to copy."""
        common = self._props | {"task.class": TASK_CLASS, "topics": ",".join(self._topics)}
        if self._first_start_ms >= 0:
            common[FIRST_START] = str(self._first_start_ms)
        return [
            common | {"task.index": str(index)} for index in range(min(max_tasks, self._partitions))
        ]

    def open_sink_task(self, config: Mapping[str, str], context: SinkTaskContext) -> SinkTask:
        """Build one task; ``ConfigError`` when its config is wrong."""
        from mm2py_connectors.mirror_sink_task import MirrorSinkTask

        return MirrorSinkTask(config, context)

    async def stop(self) -> None:
        await self._upkeep.close()

    def waiting(self) -> Mapping[TopicPartition, str]:
        """Source partitions without a copy on the target, with the cause."""
        return {**self._upkeep.waiting(), **self._held}

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]:
        """Return what waits in source partitions whose copy does not exist, and those of topics
        that must not be read yet."""
        causes = {tp.topic: cause for tp, cause in self._held.items()}
        ready = self._upkeep.topics.ready() if causes else ()
        held = {tp: WaitingPartition(causes[tp.topic]) for tp in ready if tp.topic in causes}
        return {**self._upkeep.backlog(), **held}

    def notes(self) -> Mapping[str, str]:
        """What is worth knowing of the topics though nothing is wrong."""
        return self._upkeep.notes()

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed and topics that wait for their copy, with the cause."""
        waiting = {f"topic {tp.topic} waits": cause for tp, cause in self._held.items()}
        return {**self._upkeep.problems(), **waiting}

    @property
    def _held(self) -> Mapping[TopicPartition, str]:
        """Partitions whose copy is there and that must not be read, with the cause."""
        return {} if self._first is None else self._first.waiting

    def _first_positions(
        self, source: MirrorAdmin, clock: Clock, read: Collection[str]
    ) -> FirstPositions:
        consumer = sink_consumer_properties(
            {}, self._props, source=self.consumer_properties(self._props)
        )
        return FirstPositions(
            StartPositions.parse(self._config.start_positions, clock, self._first_start_ms),
            consumer,
            source,
            lambda: self._groups(
                consumer | {"client.id": client_id(self._props, "start-positions-admin")},
                self._config.source_cluster_alias,
                clock,
            ),
            read,
        )

    def _look(self) -> bool:
        """Note what there is to copy; whether tasks must know: they find new partitions."""
        held = {tp.topic for tp in self._held}
        ready = [tp for tp in self._upkeep.topics.ready() if tp.topic not in held]
        before = self._topics, self._partitions
        self._topics = tuple(sorted({partition.topic for partition in ready}))
        self._partitions = len(ready)
        return before != (self._topics, self._partitions)

    async def _refresh(self) -> None:
        if self._context is None or self._first is None:
            return
        await self._upkeep.topics.refresh()
        await self._first.settle(self._upkeep.topics.ready())
        if self._look():
            self._context.request_reconfiguration()
