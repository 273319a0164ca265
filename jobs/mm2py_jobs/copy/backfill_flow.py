"""A flow as a backfill sees it: its configs, both clusters, its topics, its backfill topic.

Flow: ``FlowPlan`` (``bulk_flow``) -> ``BackfillSession``, which opens connections -> ``Survey``, ``BackfillDriver``. Nothing is
created but the backfill topic, by ``open_topic``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.client.connect.admin import Admin, ConfigOp
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.transactions import fence_producers
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.errors import ConfigError, FatalError, RetriableError, ServerError
from mm2py.flows.states import enabled
from mm2py.mirror.backfills import Job, backfill_topic, driver_id
from mm2py.mirror.failovers import Failover
from mm2py.mirror.filters import (
    TopicSelection,
    config_property_filter_from_config,
    topic_filter_from_config,
)
from mm2py.mirror.policies import policy_from_config
from mm2py.observability.logging import level_name
from mm2py.protocol.groups import DescribedGroup
from mm2py.storage.job_claim import JobClaim
from mm2py.types import LATEST, TopicPartition
from mm2py_connectors.config_sync import config_operations
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_jobs.copy.backfill_lane import BackfillLane, LaneConnections
from mm2py_jobs.copy.copy_again import cut_pages
from mm2py_jobs.copy.known_maps import known_maps
from mm2py_jobs.copy.live_flow import unfinished_failover
from mm2py_jobs.copy.restored_flows import restored_elsewhere
from mm2py_jobs.copy.survey import FlowTopics, Known, Survey, known_copies
from mm2py_workers.bulk_flow import (
    SOURCE,
    reads_committed,
    refuse_transforms,
    source_connector,
    store_positions,
)
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.internal_stores import FlowTables, HostedMaps, store_producer

_QUIET: Final = {
    "refresh.topics.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.enabled": "false",
}
"""The live flow's own jobs; here the connector only creates what is missing."""


@dataclass(frozen=True, slots=True)
class _Context:
    """Lent to the connector that creates topics."""

    clock: Clock

    def request_reconfiguration(self) -> None:
        """Nothing runs that could change."""

    def fail(self, error: Exception) -> None:
        """Loops are switched off."""
        raise error


@final
class BackfillSession:
    """One flow with open connections; implements ``mm2py_jobs.copy.live_flow.BackfillFlow``.

    What changes the flow or its target leaves only with the permit of ``claim``, which the driver has that was built over it.
    """

    def __init__(self, plan: FlowPlan, clock: Clock = SYSTEM_CLOCK) -> None:
        self.plan, self._clock = plan, clock
        self.name = plan.name
        self.connector: Mapping[str, str] = {}
        self._copies = False
        self.connections = LaneConnections(plan.name, plan.props, clock)
        self._target = self.connections.cluster
        self.claim = JobClaim(
            self.connections.store,
            self.connections.writer(driver_id(str(plan.name))),
            self.fence,
            name=str(plan.name),
            clock=clock,
        )
        self._tables = FlowTables(
            self._target,
            store_producer(plan.props, plan.name),
            permit=self.claim.permit,
            clock=clock,
        )
        self._source: Cluster | None = None
        self._target_admin: Cluster | None = None

    async def __aenter__(self) -> "BackfillSession":
        """Connect to the target.

        Raises:
            RetriableError: it does not answer.
        """
        await self._target.connect()
        connector = await source_connector(self.plan, self.connections.tables, self._clock)
        self._copies = connector is not None and enabled(connector)
        self.connector = connector or self._of_file()
        self._target_admin = await self._admin_cluster("target", self.name.target)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        for cluster in (self._source, self._target_admin):
            if cluster is not None:
                await cluster.close()
        self.claim.permit.abandon()
        await self._tables.close()
        await self.connections.close()

    async def current_connector(self) -> Mapping[str, str]:
        """Return the config of the source connector as it is now."""
        found = await source_connector(self.plan, self.connections.tables, self._clock)
        return found or self._of_file()

    def _of_file(self) -> Mapping[str, str]:
        return self.plan.resolve(self.plan.connectors[SOURCE])

    # ---- what is there

    async def survey(self) -> Survey:
        """Return what plans; connects to the source and reads which topics the flow copies.

        Raises:
            ConfigError: it does not copy.
            RetriableError: the source does not answer.
        """
        if not self._copies:
            raise ConfigError(
                f"flow {self.name} is not enabled, or was deleted over REST",
                remedy=f"set {self.name}.enabled = true, or create it with POST /flows",
            )
        refuse_transforms(
            self.name, self.connector, "Spark copies whole batches, which would arrive as they are"
        )
        if self._source is None:
            self._source = await self._admin_cluster("source", self.name.source)
        source = self._admin("source")
        config = self.connector
        options = parse_config(MirrorSourceConfig, config)
        policy = policy_from_config(config)
        selection = TopicSelection(
            policy,
            topic_filter_from_config(config),
            source_alias=self.name.source,
            target_alias=self.name.target,
            replicate_heartbeats=options.heartbeats_replication_enabled,
        )
        copies = {
            topic: policy.remote_topic(self.name.source, topic)
            for topic in sorted(await source.list_topics())
            if selection.replicate(topic)
        }
        return Survey(source, self._admin("target"), self._topics(copies), clock=self._clock)

    async def open_topic(self) -> None:
        """Read the backfill topic; it is created where it does not exist."""
        store = self.connections.store
        await (store.refresh() if store.live else store.start())

    async def has_topic(self) -> bool:
        """Whether there ever was a backfill of the flow."""
        topic = backfill_topic(self.name.source)
        return topic in await Admin(self._target).describe_topics([topic])

    def lane(self, job: Job, task: Mapping[str, str]) -> BackfillLane:
        """Return what all lanes of a run have in common."""
        return BackfillLane(
            source=self.name.source,
            target=self.name.target,
            job=job.id,
            run=job.run,
            worker=self.plan.props,
            connector=self.connector,
            task=task,
            log_level=level_name(),
        )

    async def prepare_topics(self) -> Mapping[str, str]:
        """Create missing copies as the live flow does; return the config of its tasks.

        Raises:
            FatalError: the flow has nothing to copy.
        """
        connector = MirrorSourceConnector({**self.connector, **_QUIET})
        try:
            await connector.start(_Context(self._clock))
            configs = connector.task_configs(1)
        finally:
            await connector.stop()
        if not configs:
            raise FatalError(f"the flow {self.name} has no partition that can be copied")
        return configs[0]

    # ---- BackfillFlow

    async def group(self) -> DescribedGroup:
        """Return the group of the live flow's workers."""
        return await Admin(self._target).describe_group(self.plan.worker.group_id)

    async def known(self, partitions: Collection[TopicPartition]) -> Known:
        """Return stored positions and maps."""
        return await known_copies(Admin(self._target), self._topics({}), partitions, self._clock)

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store where copies begin, as ``PUT /connectors/<name>/offsets`` does; -1 for nowhere."""
        await store_positions(self._tables, self.plan, positions)

    async def unfinished_failover(self) -> Failover | None:
        """Return the failover of the flow that is under way."""
        return await unfinished_failover(self._target, self.name, self._clock)

    async def restored_elsewhere(self) -> Mapping[str, str]:
        """Return topics that unfinished restores of other flows write, with what to call each restore."""
        return await restored_elsewhere(self._admin("target"), self.name, self._clock)

    async def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers on the target."""
        await fence_producers(self._target, transactional_ids, clock=self._clock, timeout_ms=10_000)

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]:
        """Change topic configs of the target."""
        self._check_permit()
        return await self._admin("target").alter_topic_configs(changes)

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return where the logs of target partitions end."""
        found = await self._admin("target").list_offsets(dict.fromkeys(copies, LATEST))
        for answer in found.values():
            if answer.error is not None:
                raise answer.error
        return {tp: answer.offset for tp, answer in found.items()}

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        """Delete the records of target partitions below offsets."""
        self._check_permit()
        await self._admin("target").delete_records(ends)

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Let the maps of source partitions end at (target offset, source offset)."""
        worker = self.plan.worker
        maps = HostedMaps(
            self._tables,
            self.name.source,
            worker.offset_storage_replication_factor,
            transactional=worker.exactly_once,
        )
        known = await known_maps(self._target, self.name.source)
        try:
            for partition, (target_end, source) in places.items():
                if partition not in known:
                    continue
                page, removed = cut_pages(known[partition].pages, target_end, source)
                if page is not None:
                    await maps.write({partition: [page]})
                if removed:
                    await maps.remove({partition: removed})
        finally:
            await maps.close()

    # ---- inside

    def _check_permit(self) -> None:
        if not self.claim.permit.valid:
            raise RetriableError(
                "the driver's records are not confirmed, another one may take over"
            )

    def _topics(self, copies: Mapping[str, str]) -> FlowTopics:
        filtered = config_property_filter_from_config(self.connector)
        syncs = parse_config(MirrorSourceConfig, self.connector).sync_topic_configs_enabled
        return FlowTopics(
            self.name,
            copies,
            self.plan.worker.offset_storage_topic,
            read_committed=reads_committed(self.plan, self.connector),
            synced=lambda entries: config_operations(entries, filtered) if syncs else (),
        )

    @property
    def target(self) -> Admin:
        """Administration of the target."""
        return self._admin("target")

    def _admin(self, side: str) -> Admin:
        cluster = self._source if side == "source" else self._target_admin
        assert cluster is not None
        return Admin(cluster)

    async def _admin_cluster(self, side: str, alias: str) -> Cluster:
        props = effective_client_properties(
            self.connector, "source" if side == "source" else "target", "admin", role="backfill"
        )
        settings = connection_settings(props, scope=f"cluster {alias}")
        cluster = Cluster(settings, alias=alias, clock=self._clock)
        try:
            await cluster.connect()
        except RetriableError:
            await cluster.close()
            raise
        return cluster
