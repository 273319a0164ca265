"""Keeps the copies of a flow's topics in step, whichever connector moves the records.

Flow: two admin clients -> ``RemoteTopics`` (created, grown) -> scheduler jobs (ACLs, configs,
refresh). Dealing partitions and moving records is the connectors' own.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, final

from mm2py.api.context import ConnectorContext, KeptOutPartitions, WaitingPartition
from mm2py.api.policies import ReplicationPolicy
from mm2py.config.client_properties import Side, effective_client_properties
from mm2py.mirror.failovers import failover_topic
from mm2py.mirror.filters import (
    DefaultTopicFilter,
    TopicSelection,
    config_property_filter_from_config,
    topic_filter_from_config,
)
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.start_positions import START_POSITIONS
from mm2py.protocol.acls import Acl
from mm2py.types import EARLIEST, LATEST, TopicPartition
from mm2py_connectors.acl_sync import AclSync, own_principals, read_fence
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    MirrorAdmin,
    check_two_clusters,
    open_log,
)
from mm2py_connectors.config_sync import ConfigSync
from mm2py_connectors.mirror_topics_config import MirrorTopicsConfig
from mm2py_connectors.remote_topics import FlowTopics, RemoteTopics
from mm2py_connectors.scheduler import Scheduler

MEASURE_S: Final = 5
"""How often topics without a copy are measured: three requests to each of their leaders."""

REFRESH_HEAD_START_S: Final = 2
"""A new topic is to be copied within the refresh interval, where that is not set."""

LOOK_S: Final = 1
"""How often few topics are listed, and looked whether many are due, where no interval is set: an
answer that is the same is compared as bytes."""


SILENT_S: Final = 5
"""A cluster that has not answered for this long is a problem; the job that asked it fails after
``admin.timeout.ms``."""


@final
class TopicUpkeep:
    """Sessions, topics and jobs of one running connector; ``close`` ends all of them.

    Args:
        props: the connector's complete config, and ``config`` what was read from it.
        heartbeats: ``heartbeats.replication.enabled``.
    """

    def __init__(
        self,
        props: Mapping[str, str],
        config: MirrorTopicsConfig,
        *,
        heartbeats: bool,
        admins: AdminFactory,
    ) -> None:
        self._props, self._config, self._admins = props, config, admins
        self.policy: ReplicationPolicy = policy_from_config(props)
        chosen = topic_filter_from_config(props)
        self._flow = FlowTopics(
            selection=TopicSelection(
                self.policy,
                chosen,
                source_alias=config.source_cluster_alias,
                target_alias=config.target_cluster_alias,
                replicate_heartbeats=heartbeats,
            ),
            policy=self.policy,
            property_filter=config_property_filter_from_config(props),
            source_alias=config.source_cluster_alias,
            target_alias=config.target_cluster_alias,
            replication_factor=config.replication_factor,
            # A filter of another class does not read `topics`.
            wanted=config.topics if isinstance(chosen, DefaultTopicFilter) else (),
        )
        self._sessions: list[AdminSession] = []
        self._scheduler: Scheduler | None = None
        self._topics: RemoteTopics | None = None
        self._configs: ConfigSync | None = None
        self._acls: AclSync | None = None
        self._backlog: dict[TopicPartition, WaitingPartition] = {}
        self._context: ConnectorContext | None = None

    @property
    def topics(self) -> RemoteTopics:
        """Source topics and their copies; there between ``open`` and ``close``."""
        assert self._topics is not None
        return self._topics

    @property
    def scheduler(self) -> Scheduler:
        """Runs the jobs; there between ``open`` and ``close``."""
        assert self._scheduler is not None
        return self._scheduler

    @property
    def refresh_s(self) -> int:
        """Seconds between two checks of many topics."""
        seconds = self._config.refresh_topics_interval_seconds
        return seconds if self._is_set else max(1, seconds - REFRESH_HEAD_START_S)

    @property
    def _is_set(self) -> bool:
        return "refresh.topics.interval.seconds" in self._props

    async def open(self, context: ConnectorContext) -> tuple[AdminSession, AdminSession]:
        """Open the sessions of source and target.

        Raises:
            RetriableError: a cluster is unreachable.
            ConfigError: both are one cluster.
        """
        self._context = context
        source = await self.session("source", "replication-source-admin")
        target = await self.session("target", "replication-target-admin")
        check_two_clusters(self._props, source.session, target.session)
        many_s = 0 if self._is_set else self.refresh_s
        self._topics = RemoteTopics(
            source.admin,
            target.admin,
            self._flow,
            many_s=many_s,
            # With the lists a refresh takes less than its job may.
            patience_s=self._config.admin_timeout_ms / 3_000,
            looks=self._config.refresh_topics_enabled,
            clock=context.clock,
        )
        self._scheduler = Scheduler(
            context.clock, timeout_ms=self._config.admin_timeout_ms, fail=context.fail
        )
        return source, target

    def begin(
        self, source: AdminSession, target: AdminSession, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """Start the jobs of the config; ``refresh`` lists the connector's topics again."""
        config, scheduler, topics = self._config, self.scheduler, self.topics
        if config.sync_topic_acls_enabled:
            self._acls = acls = AclSync(
                source.admin,
                target.admin,
                fence=lambda: self._fence(source.admin),
                selection=self._flow.selection,
                policy=self.policy,
                source_alias=config.source_cluster_alias,
                target_alias=config.target_cluster_alias,
                own=own_principals(self._props),
            )
            scheduler.repeat("sync topic ACLs", acls.run, config.sync_topic_acls_interval_seconds)
        if config.sync_topic_configs_enabled:
            self._configs = configs = ConfigSync(
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
        scheduler.repeat("measure what waits", lambda: self._measure(source.admin), MEASURE_S)
        # Without refresh.topics.enabled too: what waits for its copy is tried again.
        look_s = self.refresh_s if self._is_set else LOOK_S
        scheduler.repeat("refresh topics", refresh, look_s, delayed=True)

    async def _fence(self, source: MirrorAdmin) -> Collection[Acl]:
        """Return the rules with which a failover stops the source's writers, if any."""
        assert self._context is not None
        topic = failover_topic(self._config.target_cluster_alias)
        # Without a failover there is nothing to read, and no reader to connect.
        if topic not in await source.list_topics():
            return ()
        alias = self._config.source_cluster_alias
        props = effective_client_properties(self._props, "source", "consumer", role="fence")
        return await read_fence(open_log(props, alias, topic, self._context.clock))

    async def session(self, side: Side, role: str) -> AdminSession:
        """Open one more session; it ends with ``close``, or with ``end``."""
        assert self._context is not None
        config = self._config
        alias = config.source_cluster_alias if side == "source" else config.target_cluster_alias
        props = effective_client_properties(self._props, side, "admin", role=role)
        opened = self._admins(props, alias, self._context.clock)
        self._sessions.append(opened)
        await opened.session.connect()
        return opened

    async def end(self, opened: AdminSession) -> None:
        self._sessions.remove(opened)
        await opened.session.close()

    async def close(self) -> None:
        """End the jobs and close the sessions; safe before ``open`` and safe twice."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        sessions, self._sessions = self._sessions, []
        for opened in sessions:
            await opened.session.close()

    def waiting(self) -> Mapping[TopicPartition, str]:
        """Source partitions whose copy does not exist, with the cause."""
        return {} if self._topics is None else self._topics.waiting()

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]:
        """Source partitions without a copy, and what waits there as of a few seconds ago."""
        return {
            partition: replace(self._backlog.get(partition, WaitingPartition("")), cause=cause)
            for partition, cause in self.waiting().items()
        }

    async def _measure(self, source: MirrorAdmin) -> None:
        """Ask how much waits; unknown where a flow does not begin at its logs' beginning."""
        waiting, backlog = self.waiting(), dict[TopicPartition, WaitingPartition]()
        if not waiting or self._begins_late:
            self._backlog = backlog
            return
        # ListOffsets tells a record's time only where asked by time: 0 finds the first.
        ends, starts, oldest = [
            await source.list_offsets(dict.fromkeys(waiting, at)) for at in (LATEST, EARLIEST, 0)
        ]
        for partition in waiting:
            end, start, first = ends[partition], starts[partition], oldest[partition]
            if end.error is None and start.error is None:
                known = WaitingPartition("", max(0, end.offset - start.offset), first.timestamp)
                backlog[partition] = known
        self._backlog = backlog

    @property
    def _begins_late(self) -> bool:
        props = effective_client_properties(
            self._props, "source", "consumer", role="replication-consumer"
        )
        return props["auto.offset.reset"] != "earliest" or bool(self._props.get(START_POSITIONS))

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed, topics that wait for their copy and configs that the target
        refuses, with the cause."""
        found = {f"topic {tp.topic} waits": cause for tp, cause in self.waiting().items()}
        if self._topics is not None:
            found |= {f"topic {it} is not visible": why for it, why in self._topics.hidden.items()}
        if self._configs is not None:
            found |= {f"configs of {it}": why for it, why in self._configs.refusals.items()}
        if self._scheduler is not None:
            found.update(self._scheduler.problems)
        silent = {opened.session.unanswered(SILENT_S) for opened in self._sessions} - {""}
        if silent:
            found["connections"] = "; ".join(sorted(silent))
        return found

    def notes(self) -> Mapping[str, str]:
        """What is worth knowing of the topics though nothing is wrong."""
        found = {} if self._topics is None else dict(self._topics.notes())
        if self._acls is not None and (refused := self._acls.refusals):
            name, cause = next(iter(refused.items()))
            found["ACLs"] = f"{len(refused)} not copied, such as {name}: {cause}"
        return found

    def _not_in_backfill(self, remote_topics: Mapping[str, str]) -> Mapping[str, str]:
        """Return the topics with followed configs: a backfill changes some, then restores them."""
        context: object = self._context
        kept_out: Collection[TopicPartition] = (
            context.kept_out if isinstance(context, KeptOutPartitions) else ()
        )
        in_backfill = {partition.topic for partition in kept_out}
        return {it: remote for it, remote in remote_topics.items() if it not in in_backfill}
