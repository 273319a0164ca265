"""MirrorSource connector: finds topics, keeps their copies in step, deals partitions to tasks.

Flow: two admin clients -> scheduler jobs (create, ACLs, configs, refresh) -> ``ready`` partitions ->
``task_configs`` -> ``MirrorSourceTask``. A partition without a copy on the target waits here and is given
to no task. Records are moved by the task, not here.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import Connector
from mm2py.api.context import (
    ConnectorContext,
    KeptOutPartitions,
    PartitionRates,
    PublishedTasks,
    TaskContext,
)
from mm2py.api.task import BatchSourceTask
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_SOURCE_CONNECTOR
from mm2py.config.client_properties import Side, effective_client_properties
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.mirror.failovers import failover_topic
from mm2py.mirror.filters import config_property_filter_from_config, topic_filter_from_config
from mm2py.mirror.offset_checks import Positions, check_mirror_offsets
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import (
    LOOP_SUPPRESSION,
    SOURCE_CLUSTER_ID,
    TARGET_CLUSTER_ID,
    Suppression,
)
from mm2py.mirror.start_positions import StartPositions
from mm2py.mirror.topic_selection import TopicSelection
from mm2py.protocol.acls import Acl
from mm2py.types import TopicPartition
from mm2py_connectors.acl_sync import AclSync, read_fence
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    MirrorAdmin,
    ReaderFactory,
    WriterFactory,
    open_admin,
    open_log,
    open_reader,
    open_writer,
)
from mm2py_connectors.config_sync import ConfigSync
from mm2py_connectors.internal_topics import create_compacted_topic
from mm2py_connectors.loop_suppression import find_suppression
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from mm2py_connectors.partition_deal import (
    ASSIGNED_PARTITIONS,
    LATE_PARTITIONS,
    PartitionDeal,
    format_partitions,
    parse_partitions,
)
from mm2py_connectors.remote_topics import FlowTopics, RemoteTopics
from mm2py_connectors.scheduler import Scheduler

__all__ = ["MirrorSourceConnector"]

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorSourceTask"
"""Stands in task configs (``task.class``), so that a Java worker can start them."""

REFRESH_HEAD_START_S: Final = 2
"""A new topic has to be copied, not only seen, within the refresh interval that nobody set."""

OFFSET_SYNCS_RETRY_S: Final = 30.0

LONGEST_COLLECTION_S: Final = 30.0
"""New deals restart tasks: while topics keep appearing they are collected for longer and longer, up to this."""


@final
class MirrorSourceConnector(Connector):
    """Copies the chosen topics of one flow; ``enabled=false`` makes it do nothing at all."""

    java_class: ClassVar[str] = MIRROR_SOURCE_CONNECTOR
    exactly_once_support: ClassVar[bool] = True
    plugin_version: ClassVar[str] = KAFKA_RELEASE
    config_model: ClassVar[type[ConfigModel]] = MirrorSourceConfig

    def __init__(
        self,
        config: Mapping[str, str],
        *,
        admins: AdminFactory = open_admin,
        readers: ReaderFactory = open_reader,
        writers: WriterFactory = open_writer,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorSourceConfig, config)
        self._admins, self._readers, self._writers = admins, readers, writers
        self._policy = policy_from_config(config)
        self._flow = FlowTopics(
            selection=TopicSelection(
                self._policy,
                topic_filter_from_config(config),
                source_alias=self._config.source_cluster_alias,
                target_alias=self._config.target_cluster_alias,
                replicate_heartbeats=self._config.heartbeats_replication_enabled,
            ),
            policy=self._policy,
            property_filter=config_property_filter_from_config(config),
            source_alias=self._config.source_cluster_alias,
            target_alias=self._config.target_cluster_alias,
            replication_factor=self._config.replication_factor,
        )
        self._deal = PartitionDeal()
        # Where partitions begin at latest: those that the first start of the flow found.
        self._early: frozenset[TopicPartition] | None = None
        # A connector that came here from another worker knows rates of this one alone: weighing its first deal
        # by them would restart tasks that nobody touched.
        self._came = True
        self._dealt_anew = False
        self._collection_s = self._collects_until = 0.0
        self._sessions: list[AdminSession] = []
        self._scheduler: Scheduler | None = None
        self._topics: RemoteTopics | None = None
        self._context: ConnectorContext | None = None
        # What tasks must know to suppress loops; and why loops are not suppressed, though they might be.
        self._suppression: dict[str, str] = {}
        self._not_suppressed = ""

    @staticmethod
    def check_offsets(_config: Mapping[str, str], offsets: Positions) -> bool:
        """Check positions that are to be stored; ``ConfigError`` refuses them."""
        return check_mirror_offsets(offsets)

    async def start(self, context: ConnectorContext) -> None:
        """Create what is missing, then start the loops; ``RetriableError`` while a cluster is away."""
        config = self._config
        if not config.enabled:
            log.info("flow is disabled, nothing is copied")
            return
        self._context = context
        try:
            source = await self._open("source", "replication-source-admin", context)
            target = await self._open("target", "replication-target-admin", context)
            topics = RemoteTopics(source.admin, target.admin, self._flow, clock=context.clock)
            scheduler = Scheduler(
                context.clock, timeout_ms=config.admin_timeout_ms, fail=context.fail
            )
            self._topics, self._scheduler = topics, scheduler
            if config.emit_offset_syncs_enabled:
                await scheduler.ensure(
                    "create offset-syncs topic",
                    self._create_offset_syncs_topic,
                    OFFSET_SYNCS_RETRY_S,
                )
            await self._suppress_loops(source, target)
            await topics.refresh()
            self._deal.update(topics.ready())
            if self._begins_at_end():
                found = self._deal.partitions.union(topics.waiting())
                early = _early(context)
                self._early = found if early is None else early
            self._start_loops(source, target, topics, scheduler)
        except BaseException:
            await self.stop()
            raise
        log.info(
            "source connector started topics=%d partitions=%d waiting=%d",
            len(topics.remote_topics),
            len(self._deal.partitions),
            len(topics.waiting()),
        )

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Deal the known partitions as Java, unless one task has far more to copy than another."""
        context: object = self._context
        rates = context.partition_rates() if isinstance(context, PartitionRates) else None
        if self._came and rates and not self._deal.partitions <= rates.keys():
            rates = None
        hands = self._deal.deal(max_tasks, rates)
        props = self._props | self._suppression
        if self._config.flow_max_bytes_per_second and hands:
            share = max(1, self._config.flow_max_bytes_per_second // len(hands))
            props = props | {"flow.max.bytes.per.second": str(share)}
        return [
            props
            | {
                "task.class": TASK_CLASS,
                ASSIGNED_PARTITIONS: format_partitions(partitions),
                "task.index": str(index),
            }
            | self._late(partitions)
            for index, partitions in enumerate(hands)
        ]

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> BatchSourceTask:
        """Build one task; ``ConfigError`` when its config is wrong."""
        return MirrorSourceTask(config, context, readers=self._readers, writers=self._writers)

    async def stop(self) -> None:
        """End the loops and close the admin clients."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        sessions, self._sessions = self._sessions, []
        for opened in sessions:
            await opened.session.close()

    def waiting(self) -> Mapping[TopicPartition, str]:
        """Source partitions that no task has, because their copy does not exist, with the cause."""
        return {} if self._topics is None else self._topics.waiting()

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed and topics that wait for their copy, with the cause."""
        found = {f"topic {tp.topic} waits": cause for tp, cause in self.waiting().items()}
        if self._scheduler is not None:
            found.update(self._scheduler.problems)
        if self._not_suppressed:
            found["loop suppression"] = self._not_suppressed
        return found

    async def _suppress_loops(self, source: AdminSession, target: AdminSession) -> None:
        found, self._not_suppressed = await find_suppression(
            self._props,
            source.admin,
            replication_factor=self._config.offset_syncs_topic_replication_factor,
        )
        if found is Suppression.OFF and not self._not_suppressed:
            return  # the tasks' configs stay as Java makes them
        self._suppression = {
            LOOP_SUPPRESSION: found,
            SOURCE_CLUSTER_ID: source.session.cluster_id,
            TARGET_CLUSTER_ID: target.session.cluster_id,
        }
        log.info(
            "batches of mirrors on the source loop.suppression=%s policy=%s",
            found,
            type(self._policy).__name__,
        )

    def _begins_at_end(self) -> bool:
        props = effective_client_properties(
            self._props, "source", "consumer", role="replication-consumer"
        )
        starts = StartPositions.parse(self._config.start_positions, SYSTEM_CLOCK)
        return props["auto.offset.reset"] == "latest" or starts.has_latest

    def _late(self, partitions: Sequence[TopicPartition]) -> dict[str, str]:
        """Name the partitions that begin at the earliest offset though they are to begin at ``latest``."""
        if self._early is None:
            return {}
        late = [partition for partition in partitions if partition not in self._early]
        return {LATE_PARTITIONS: format_partitions(late)} if late else {}

    def _start_loops(
        self,
        source: AdminSession,
        target: AdminSession,
        topics: RemoteTopics,
        scheduler: Scheduler,
    ) -> None:
        config = self._config
        if config.sync_topic_acls_enabled:
            acls = AclSync(
                source.admin,
                target.admin,
                fence=lambda: self._fence(source.admin),
                selection=self._flow.selection,
                policy=self._policy,
                source_alias=config.source_cluster_alias,
                target_alias=config.target_cluster_alias,
            )
            scheduler.repeat("sync topic ACLs", acls.run, config.sync_topic_acls_interval_seconds)
        if config.sync_topic_configs_enabled:
            configs = ConfigSync(
                source.admin,
                target.admin,
                self._flow.property_filter,
                target_alias=config.target_cluster_alias,
            )
            scheduler.repeat(
                "sync topic configs",
                lambda: configs.run(self._not_in_backfill(topics.remote_topics)),
                config.sync_topic_configs_interval_seconds,
            )
        if config.refresh_topics_enabled:
            scheduler.repeat("refresh topics", self._refresh, self._refresh_s(), delayed=True)

    def _not_in_backfill(self, remote_topics: Mapping[str, str]) -> Mapping[str, str]:
        """Return the topics whose configs follow the source's: a backfill changes some and puts them back."""
        context: object = self._context
        kept_out = context.kept_out if isinstance(context, KeptOutPartitions) else ()
        in_backfill = {partition.topic for partition in kept_out}
        return {it: remote for it, remote in remote_topics.items() if it not in in_backfill}

    def _refresh_s(self) -> int:
        seconds = self._config.refresh_topics_interval_seconds
        if "refresh.topics.interval.seconds" in self._props:
            return seconds
        return max(1, seconds - REFRESH_HEAD_START_S)

    async def _refresh(self) -> None:
        if self._topics is None or self._context is None:
            return
        if await self._topics.refresh():
            self._dealt_anew |= self._deal.update(self._topics.ready())
        now = self._context.clock.monotonic()
        if now < self._collects_until:
            return
        if not self._dealt_anew:
            self._collection_s = 0.0
            return
        self._dealt_anew = self._came = False
        self._collects_until = now + self._collection_s
        self._collection_s = min(
            LONGEST_COLLECTION_S, 2 * (self._collection_s or self._refresh_s())
        )
        self._context.request_reconfiguration()

    async def _create_offset_syncs_topic(self) -> None:
        if self._context is None:
            return
        config = self._config
        at_source = config.offset_syncs_topic_location == "source"
        host, other = config.source_cluster_alias, config.target_cluster_alias
        if not at_source:
            host, other = other, host
        side: Side = "source" if at_source else "target"
        opened = await self._open(side, f"offset-syncs-{side}-admin", self._context)
        try:
            await create_compacted_topic(
                opened.admin,
                self._policy.offset_syncs_topic(other),
                replication_factor=config.offset_syncs_topic_replication_factor,
                factor_property="offset-syncs.topic.replication.factor",
                cluster=host,
            )
        finally:
            self._sessions.remove(opened)
            await opened.session.close()

    async def _fence(self, source: MirrorAdmin) -> Collection[Acl]:
        """Return the rules by which a failover keeps writers from the source; none where there never was one."""
        assert self._context is not None
        topic = failover_topic(self._config.target_cluster_alias)
        if topic not in await source.list_topics():
            return ()
        alias = self._config.source_cluster_alias
        props = effective_client_properties(self._props, "source", "consumer", role="fence")
        return await read_fence(open_log(props, alias, topic, self._context.clock))

    async def _open(self, side: Side, role: str, context: ConnectorContext) -> AdminSession:
        config = self._config
        alias = config.source_cluster_alias if side == "source" else config.target_cluster_alias
        props = effective_client_properties(self._props, side, "admin", role=role)
        opened = self._admins(props, alias, context.clock)
        self._sessions.append(opened)
        await opened.session.connect()
        return opened


def _early(context: object) -> frozenset[TopicPartition] | None:
    """Return the partitions that the first start of the flow found, None where this is the first start."""
    published = context.published_tasks() if isinstance(context, PublishedTasks) else ()
    if not published:
        return None
    dealt, late = (
        {tp for config in published for tp in parse_partitions(_items(config.get(key, "")))}
        for key in (ASSIGNED_PARTITIONS, LATE_PARTITIONS)
    )
    return frozenset(dealt - late)


def _items(text: str) -> list[str]:
    return text.split(",") if text else []
