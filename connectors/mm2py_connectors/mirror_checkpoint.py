"""MirrorCheckpoint connector: finds consumer groups of the source and deals them to tasks.

Flow: admin client -> the checkpoints topic on the target; group client -> ``GroupDiscovery`` -> ``task_configs`` ->
``MirrorCheckpointTask``. Offsets are translated by the task, not here.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import Connector
from mm2py.api.context import ConnectorContext, TaskContext
from mm2py.api.task import SourceTask
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_CHECKPOINT_CONNECTOR
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.mirror.filters import group_filter_from_config, topic_filter_from_config
from mm2py.mirror.offset_checks import Positions, check_checkpoint_offsets
from mm2py.mirror.policies import policy_from_config
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    GroupFactory,
    LogFactory,
    MirrorAdmin,
    Session,
    open_admin,
    open_groups,
    open_log,
)
from mm2py_connectors.group_discovery import GroupDiscovery
from mm2py_connectors.internal_topics import create_compacted_topic
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from mm2py_connectors.scheduler import Scheduler

__all__ = ["MirrorCheckpointConnector"]

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorCheckpointTask"
ASSIGNED_GROUPS: Final = "task.assigned.groups"
TOPIC_RETRY_S: Final = 10.0


@final
class MirrorCheckpointConnector(Connector):
    """Checkpoints the chosen groups of one flow; ``enabled=false`` makes it do nothing at all."""

    java_class: ClassVar[str] = MIRROR_CHECKPOINT_CONNECTOR
    plugin_version: ClassVar[str] = KAFKA_RELEASE
    config_model: ClassVar[type[ConfigModel]] = MirrorCheckpointConfig

    def __init__(
        self,
        config: Mapping[str, str],
        *,
        admins: AdminFactory = open_admin,
        groups: GroupFactory = open_groups,
        logs: LogFactory = open_log,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorCheckpointConfig, config)
        self._topic = policy_from_config(config).checkpoints_topic(
            self._config.source_cluster_alias
        )
        self._admins, self._groups, self._logs = admins, groups, logs
        self._group_filter = group_filter_from_config(config)
        self._topic_filter = topic_filter_from_config(config)
        self._found: GroupDiscovery | None = None
        self._scheduler: Scheduler | None = None
        self._context: ConnectorContext | None = None
        self._sessions: list[Session] = []
        self._topic_ready = False
        self._is_new = False  # the choice has to be dealt, at the earliest at:
        self._deal_due = 0.0

    @staticmethod
    def check_offsets(_config: Mapping[str, str], offsets: Positions) -> bool:
        """Check positions that are to be stored; ``ConfigError`` refuses them."""
        return check_checkpoint_offsets(offsets)

    async def start(self, context: ConnectorContext) -> None:
        """Create the topic and find the groups; ``RetriableError`` while a cluster is away."""
        config = self._config
        if not config.enabled:
            log.info("flow is disabled, no group is checkpointed")
            return
        self._context = context
        try:
            target = await self._open_admin(context)
            source = self._groups(
                effective_client_properties(
                    self._props, "source", "admin", role="checkpoint-source-admin"
                ),
                config.source_cluster_alias,
                context.clock,
            )
            self._sessions.append(source.session)
            await source.session.connect()
            self._found = GroupDiscovery(source.groups, self._group_filter, self._topic_filter)
            scheduler = Scheduler(
                context.clock, timeout_ms=config.admin_timeout_ms, fail=context.fail
            )
            self._scheduler = scheduler
            await scheduler.ensure(
                "create checkpoints topic", lambda: self._create(target.admin), TOPIC_RETRY_S
            )
            await self._found.refresh()
            if config.refresh_groups_enabled:
                scheduler.repeat(
                    "refresh groups",
                    self._refresh,
                    config.refresh_groups_interval_seconds,
                    delayed=True,
                )
        except BaseException:
            await self.stop()
            raise
        log.info("checkpoint connector started groups=%d", len(self._found.chosen()))

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Split the groups as Java does: in order, the first parts one longer where it does not go out even."""
        groups = [] if self._found is None or not self._topic_ready else self._found.chosen()
        tasks = min(max_tasks, len(groups))
        size, longer = divmod(len(groups), tasks) if tasks else (0, 0)
        ends = [(index + 1) * size + min(index + 1, longer) for index in range(tasks)]
        return [
            self._props
            | {
                "task.class": TASK_CLASS,
                "task.index": str(index),
                ASSIGNED_GROUPS: ",".join(groups[begin:end]),
            }
            for index, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
        ]

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> SourceTask:
        """Build one task; ``ConfigError`` when its config is wrong."""
        return MirrorCheckpointTask(config, context, groups=self._groups, logs=self._logs)

    async def stop(self) -> None:
        """End the loops and close the clients."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed, with the cause."""
        return {} if self._scheduler is None else dict(self._scheduler.problems)

    async def _open_admin(self, context: ConnectorContext) -> AdminSession:
        props = effective_client_properties(
            self._props, "target", "admin", role="checkpoint-target-admin"
        )
        opened = self._admins(props, self._config.target_cluster_alias, context.clock)
        self._sessions.append(opened.session)
        await opened.session.connect()
        return opened

    async def _create(self, admin: MirrorAdmin) -> None:
        if self._context is None:
            return
        await create_compacted_topic(
            admin,
            self._topic,
            replication_factor=self._config.checkpoints_topic_replication_factor,
            factor_property="checkpoints.topic.replication.factor",
            cluster=self._config.target_cluster_alias,
        )
        self._topic_ready = True
        self._context.request_reconfiguration()

    async def _refresh(self) -> None:
        if self._found is None or self._context is None:
            return
        self._is_new = await self._found.refresh() or self._is_new
        now = self._context.clock.monotonic()
        if self._is_new and now >= self._deal_due:
            # New configs start all tasks anew: they last long enough to read all offset syncs and write checkpoints.
            self._is_new = False
            self._deal_due = now + self._config.emit_checkpoints_interval_seconds
            self._context.request_reconfiguration()
