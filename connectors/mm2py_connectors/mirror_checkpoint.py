"""MirrorCheckpoint connector: the topic of the checkpoints, and how many tasks share the groups of
the source.

Flow: admin client -> the checkpoints topic on the target; number of groups -> ``task_configs`` ->
``MirrorCheckpointTask``. Tasks find their groups by themselves, so a new group starts no task anew.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import Connector
from mm2py.api.context import ConnectorContext, TaskContext
from mm2py.api.task import SourceTask
from mm2py.client.connect.group_admin import Committed
from mm2py.client.connect.share_positions import STREAMS_TYPE
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_CHECKPOINT_CONNECTOR
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.errors import FatalError
from mm2py.mirror.filters import group_filter_from_config, topic_filter_from_config
from mm2py.mirror.offset_checks import Positions, check_checkpoint_offsets, hash_map_order
from mm2py.mirror.policies import policy_from_config
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    GroupFactory,
    LogFactory,
    MapFactory,
    MirrorAdmin,
    MirrorGroups,
    Session,
    check_two_clusters,
    open_admin,
    open_groups,
    open_log,
    open_map,
)
from mm2py_connectors.internal_topics import create_compacted_topic
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from mm2py_connectors.scheduler import Scheduler

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorCheckpointTask"
_OF_GROUPS: Final = ("task.assigned.groups", "task.group.tasks", "task.group.partitions")
GROUPS_PER_TASK: Final = 1_000
"""One task has so many groups before a second one is worth its connections."""
COUNTED_EVERY_S: Final = 600
CHECKED_EVERY_S: Final = 60


@final
class MirrorCheckpointConnector(Connector):
    """Checkpoints the chosen groups of one flow; does nothing with ``enabled=false`` or without
    what it writes."""

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
        maps: MapFactory = open_map,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorCheckpointConfig, config)
        self._topic = policy_from_config(config).checkpoints_topic(
            self._config.source_cluster_alias
        )
        self._admins, self._groups, self._logs, self._maps = admins, groups, logs, maps
        self._group_filter = group_filter_from_config(config)
        self._topic_filter = topic_filter_from_config(config)
        self._tasks_wanted = 1
        self._offsets_partitions = 0
        self._scheduler: Scheduler | None = None
        self._context: ConnectorContext | None = None
        self._sessions: list[Session] = []
        self._source: MirrorGroups | None = None
        self._topic_ready = False

    @staticmethod
    def check_offsets(_config: Mapping[str, str], offsets: Positions) -> bool:
        return check_checkpoint_offsets(offsets)

    async def start(self, context: ConnectorContext) -> None:
        """Create the topic and find the groups; ``RetriableError`` for an unreachable cluster."""
        config = self._config
        if not config.enabled:
            log.info("flow is disabled, no group is checkpointed")
            return
        left_out = MirrorCheckpointConfig.cross_check(self._props)
        if left_out:
            log.warning("no group is checkpointed cause=%s", left_out[0].name + "=false")
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
            self._source = source.groups
            check_two_clusters(self._props, source.session, target.session)
            self._offsets_partitions = await source.groups.offsets_partitions()
            scheduler = self._scheduler = Scheduler(
                context.clock, timeout_ms=config.admin_timeout_ms, fail=context.fail
            )
            await scheduler.ensure("create checkpoints topic", lambda: self._create(target.admin))
            await self._count(source.groups)
            if config.refresh_groups_enabled:
                scheduler.repeat(
                    "count groups",
                    lambda: self._count(source.groups),
                    COUNTED_EVERY_S,
                    delayed=True,
                )
            scheduler.repeat(
                "check checkpoints topic", lambda: self._check(target.admin), CHECKED_EVERY_S
            )
        except BaseException:
            await self.stop()
            raise
        log.info("checkpoint connector started tasks=%d", self._tasks_wanted)

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return one config for each thousand groups, all with the same share of them."""
        tasks = min(max_tasks, self._tasks_wanted, self._offsets_partitions)
        # A task before the topic would have its first records refused.
        tasks = tasks if self._topic_ready else 0
        return [
            self._props
            | {
                "task.class": TASK_CLASS,
                "task.index": str(index),
                "task.group.tasks": str(tasks),
                "task.group.partitions": str(self._offsets_partitions),
            }
            for index in range(tasks)
        ]

    async def java_task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]] | None:
        """Deal the groups as Java's at its start; None where it wants another number of tasks."""
        configs = self.task_configs(max_tasks)
        if self._source is None or not configs:
            return None
        listed = (await self._source.list_groups()).groups
        chosen = [
            name
            for name, group in listed.items()
            # KIP-1071: groups of Streams' own protocol are none that Java's connector lists.
            if group.group_type != STREAMS_TYPE and self._group_filter.should_replicate_group(name)
        ]
        offsets = await self._source.committed(chosen)
        groups = [
            # Java collects the groups in a set before it deals them
            # (``ConnectorUtils.groupPartitions``).
            *hash_map_order(dict.fromkeys(it for it in chosen if self._counts(offsets.get(it))))
        ]
        # Another number of tasks: a Java worker would start all of them again in any case.
        if min(max_tasks, len(groups)) != len(configs):
            return None
        # ``ConnectorUtils.groupPartitions``: contiguous parts, the first ones longer by one.
        each, more = divmod(len(groups), len(configs))
        ends = [each * it + min(it, more) for it in range(len(configs) + 1)]
        return [
            {
                **self.java_task_config(config, {}),
                "task.assigned.groups": ",".join(groups[begin:end]),
            }
            for config, begin, end in zip(configs, ends[:-1], ends[1:], strict=True)
        ]

    def _counts(self, committed: Committed | None) -> bool:
        """Whether Java's connector counts a group: one of its topics is chosen."""
        return isinstance(committed, Mapping) and any(
            self._topic_filter.should_replicate_topic(it.topic) for it in committed
        )

    @staticmethod
    def java_task_config(
        config: Mapping[str, str], _connector: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Leave out which groups a task has: ours find theirs, and Java's are dealt anew as soon as
        one comes or goes."""
        return {name: text for name, text in config.items() if name not in _OF_GROUPS}

    @staticmethod
    def task_config_in_force(
        config: Mapping[str, str],
        _connector: Mapping[str, str],
        tasks: int,
        _clusters: tuple[str, str],
    ) -> Mapping[str, str]:
        """Add how many tasks share the groups; the number of partitions is asked of the source."""
        own = {name: text for name, text in config.items() if name != "task.assigned.groups"}
        return {**own, "task.group.tasks": str(tasks)}

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> SourceTask:
        """Build one task; ``ConfigError`` when its config is wrong."""
        return MirrorCheckpointTask(
            config, context, groups=self._groups, logs=self._logs, maps=self._maps
        )

    async def stop(self) -> None:
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
        await self._make_topic(admin)
        self._topic_ready = True
        self._context.request_reconfiguration()

    async def _make_topic(self, admin: MirrorAdmin) -> None:
        await create_compacted_topic(
            admin,
            self._topic,
            replication_factor=self._config.checkpoints_topic_replication_factor,
            factor_property="checkpoints.topic.replication.factor",
            side="target",
            alias=self._config.target_cluster_alias,
        )

    async def _check(self, admin: MirrorAdmin) -> None:
        """Create a deleted topic again; one that is not compacted loses its checkpoints."""
        if not self._topic_ready:
            return
        await self._make_topic(admin)
        entries = (await admin.describe_topic_configs([self._topic])).get(self._topic, ())
        policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
        # Asked with each check: a topic that a user made by hand has the broker's default, delete.
        if policy is not None and policy.split(",") != ["compact"]:
            raise FatalError(
                f"topic {self._topic} has cleanup.policy={policy}: old checkpoints are deleted, "
                "and their groups could not fail over",
                remedy=f"set cleanup.policy=compact on {self._topic} of "
                f"{self._config.target_cluster_alias}",
            )

    async def _count(self, groups: MirrorGroups) -> None:
        """Have a task for each thousand groups; never fewer, which would restart all of them."""
        listed = (await groups.list_groups()).groups
        chosen = sum(map(self._group_filter.should_replicate_group, listed))
        count = max(self._tasks_wanted, -(-chosen // GROUPS_PER_TASK))
        if count != self._tasks_wanted and self._context is not None:
            self._tasks_wanted = count
            self._context.request_reconfiguration()
