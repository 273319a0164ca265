"""The one assembly of a flow: what its stores, its tasks and its herder are made of, in whichever
process they live.

Flow: worker config -> ``FlowParts`` (a cluster, the tables on it, a permit) -> ``assembly`` of
tasks, in a worker, a task host or a lane on Spark; ``hosts``: where they live; ``herder``: what
runs them. ``wire_flow`` adds what only the dedicated mode has. It opens no connection and decides
nothing that a test would want to change: that is configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.client.send.limits import topic_limits
from mm2py.clock import Clock
from mm2py.config.class_names import COPY_NAMES, SOURCE_NAME
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.mirror.backfills import backfill_topic, driver_id
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.policies import naming
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.observability.logging import level_name
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.group.connect_membership import ConnectMembership
from mm2py.runtime.group.membership import WorkerMembership
from mm2py.runtime.herder.api import AskPeer, HerderNode, HerderParts
from mm2py.runtime.herder.offset_editing import (
    OffsetEditor,
    SinkOffsetEditor,
    editor_by_type,
    kafka_groups,
)
from mm2py.runtime.hosts.child_host import ChildTaskHost
from mm2py.runtime.hosts.pool import HostPool
from mm2py.runtime.hosts.service import FlowSpec
from mm2py.runtime.plugins.catalog import plugin_type
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.own_offsets import OwnOffsets, OwnTopicOffsets
from mm2py.runtime.tasks.record_task import Conversion
from mm2py.runtime.tasks.task_assembly import FlowReports, SinkClients, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_context import NoLedger
from mm2py.runtime.tasks.task_host import (
    InProcessTaskHost,
    TaskBuilder,
    TaskHost,
    TaskSpec,
    TaskWatcher,
)
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.internal_topics import InternalTopic
from mm2py.storage.job_claim import JobClaim
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import FileOffsetBackingStore
from mm2py.storage.offset_map_store import MapStore
from mm2py.storage.status_records import TopicUse
from mm2py.types import ClusterAlias, FlowName, TaskId
from mm2py_connectors.partition_deal import ASSIGNED_PARTITIONS
from mm2py_workers.internal_stores import (
    FlowTables,
    HostedMaps,
    HostedOffsets,
    WorkerOffsets,
    WorkerStores,
    offset_topic,
    store_producer,
    worker_stores,
)
from mm2py_workers.target_senders import TargetSenders


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """One flow's configs: resolved for the worker, raw (placeholders kept) for the connectors.

    ``resolve`` replaces placeholders of a connector's or task's config. Without ``by_file`` only a
    change over REST makes it a flow.
    """

    name: FlowName
    props: Mapping[str, str]
    worker: WorkerConfig
    connectors: Mapping[str, Mapping[str, str]]
    resolve: Callable[[ConnectorConfig], dict[str, str]]
    by_file: bool = True

    @property
    def names(self) -> FlowName:
        """The aliases that its source connector names copies and positions with."""
        return naming(self.name, self.resolve(self.connectors.get(SOURCE_NAME, {})))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts(HerderNode):
    """What a process adds to what its herders share; ``url`` is where other workers reach it.

    ``peers`` asks them. ``file_texts`` gives a connector's config as its file has it, which a
    remote config may repeat. Without a ``pool`` tasks live in this process.
    """

    url: str
    peers: Callable[[FlowName | None], AskPeer]
    file_texts: Callable[[FlowName | None, str], Mapping[str, str]]
    clock: Clock
    pool: HostPool | None = None

    def runnable(self, connector_class: str) -> bool:
        try:
            self.plugins.find(connector_class)
        except ConfigError:
            return False
        return True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """What one flow has on its target.

    ``worker`` is the parsed ``props``, which are resolved; ``replicas`` is the replication factor
    of mm2py's own topics, and ``transactional``: whether tasks write positions and maps in
    transactions. Other parts with the same ``tables`` share a producer id and a permit.
    """

    flow: FlowName
    props: Mapping[str, str]
    worker: WorkerConfig
    tables: FlowTables
    plugins: Plugins
    clock: Clock
    target_name: str
    replicas: int
    transactional: bool
    copies: bool = True
    """False of a Connect worker's tasks that copy no source cluster, whatever aliases there are."""

    @classmethod
    def of(
        cls,
        flow: FlowName,
        props: Mapping[str, str],
        *,
        plugins: Plugins,
        permit: Permit,
        clock: Clock,
        worker: WorkerConfig | None = None,
        scope: str = "",
        copies: bool = True,
    ) -> Self:
        """Build them from a worker config; ``ConfigError``: it cannot be run; ``scope`` is what the
        message names."""
        settings = connection_settings(props, scope=scope or f"worker of {flow}")
        cluster = Cluster(settings, alias=flow.target, clock=clock)
        options = worker or parse_config(WorkerConfig, props)
        return cls(
            flow=flow,
            props=props,
            worker=options,
            tables=FlowTables(cluster, store_producer(props, flow), permit=permit, clock=clock),
            plugins=plugins,
            clock=clock,
            target_name=f"target cluster {flow.target}",
            # As safe as the offsets are.
            replicas=options.offset_storage_replication_factor,
            transactional=options.exactly_once,
            copies=copies,
        )

    def of_source(self, source: str) -> Self:
        """Return the parts of a source whose tasks write to the same cluster."""
        return replace(self, flow=FlowName(ClusterAlias(source), self.flow.target), copies=True)

    async def close(self) -> None:
        """Close the tables and the connections; stores are closed before."""
        await self.tables.close()
        await self.tables.cluster.close()

    # ---- stores

    def offsets(self) -> HostedOffsets:
        topic = offset_topic(self.props, self.worker)
        return HostedOffsets(self.tables, topic, transactional=self.transactional)

    def maps(self) -> HostedMaps:
        return HostedMaps(
            self.tables, self.flow.source, self.replicas, transactional=self.transactional
        )

    def ledger(self, meter: FlowMeter) -> LedgerStore:
        return self.tables.ledger(self.flow.source, self.replicas, meter)

    def connector_offsets(self, topic: str) -> OwnOffsets:
        """Open a connector's own topic (``offsets.storage.topic``), with own connections."""
        apart = FlowParts.of(
            self.flow,
            self.props,
            worker=self.worker,
            plugins=self.plugins,
            permit=self.tables.permit,
            clock=self.clock,
        )
        return _ConnectorOffsets(apart, replace(offset_topic(self.props, self.worker), name=topic))

    def _own_offsets(self, store: OffsetStore, topic: str | None) -> OwnTopicOffsets | None:
        """Return the positions of a connector with an offset topic of its own; a standalone worker
        has all in its file, as Java's."""
        # Naming the worker's own topic changes nothing.
        if not topic or topic == self.worker.offset_storage_topic or _is_file(store):
            return None
        return OwnTopicOffsets(self.connector_offsets(topic), store)

    # ---- tasks

    def assembly(
        self,
        store: OffsetStore,
        maps: MapStore,
        reports: FlowReports,
        sinks: SinkClients | None = None,
    ) -> TaskAssembly:
        """Return what builds the flow's tasks in this process; ``sinks`` as of ``TaskParts``."""
        worker = self.worker
        links = TargetSenders(
            self.props,
            self.flow,
            self.tables.producer_ids(self.replicas),
            clock=self.clock,
            permit=self.tables.permit,
        )
        return TaskAssembly(
            TaskParts(
                plugins=self.plugins,
                store=store,
                meter=reports.meter,
                clock=self.clock,
                sender=links.sender,
                producer=links.producer,
                offset_flush_interval_ms=worker.offset_flush_interval_ms,
                offset_flush_timeout_ms=worker.offset_flush_timeout_ms,
                graceful_timeout_ms=worker.task_shutdown_graceful_timeout_ms,
                target_name=self.target_name,
                offsets_topic="" if _is_file(store) else worker.offset_storage_topic,
                events=reports.events,
                conversion=partial(Conversion.of, self.props),
                on_topic=reports.on_topic,
                permit=self.tables.permit,
                maps=maps,
                sinks=sinks,
                flow=self.flow if self.copies else None,
                transactions=(
                    (
                        lambda spec, framework, own: links.transactions(
                            spec, framework, worker, store, own, reports.guard
                        )
                    )
                    if worker.exactly_once
                    else None
                ),
                own_offsets=partial(self._own_offsets, store),
            )
        )

    def host(self, build: TaskBuilder, watcher: TaskWatcher) -> InProcessTaskHost:
        """Return the host of tasks that live in this process."""
        graceful_s = self.worker.task_shutdown_graceful_timeout_ms / 1000
        return InProcessTaskHost(build, watcher, graceful_s=graceful_s)

    def child_host(
        self, pool: HostPool, watcher: TaskWatcher, reports: FlowReports
    ) -> ChildTaskHost:
        """Return the host of tasks that live in the processes of a pool."""
        return ChildTaskHost(
            pool,
            FlowSpec(flow=self.flow, worker=self.props, log_level=level_name(), copies=self.copies),
            watcher,
            reports,
            permit=self.tables.permit,
            graceful_s=self.worker.task_shutdown_graceful_timeout_ms / 1000,
            own=lambda task: _needs_own(self.plugins, task),
            # A heartbeat each second: a process for it would cost 30 MB.
            light=lambda task: (
                not _needs_own(self.plugins, task) and ASSIGNED_PARTITIONS not in task.config
            ),
        )

    def hosts(
        self, pool: HostPool | None, store: OffsetStore, maps: MapStore, reports: FlowReports
    ) -> Callable[[TaskWatcher, StartGuard], TaskHost]:
        """Return what makes the flow's task host, in this process where there is no pool."""

        def host(watcher: TaskWatcher, guard: StartGuard) -> TaskHost:
            guarded = replace(reports, guard=guard)
            if pool is not None:
                return self.child_host(pool, watcher, guarded)
            return self.host(self.assembly(store, maps, guarded), watcher)

        return host

    # ---- their herder

    def membership(
        self, config: ConfigBackingStore, url: str, runnable: Callable[[str], bool]
    ) -> ConnectMembership:
        """Return the membership of the worker's group; arguments as of ``ConnectMembership``."""
        worker = self.worker
        return ConnectMembership(
            GroupMember(
                CoordinatorLink(self.tables.cluster, worker.group_id),
                self.tables.permit,
                session_timeout_ms=worker.session_timeout_ms,
                heartbeat_interval_ms=worker.heartbeat_interval_ms,
                rebalance_timeout_ms=worker.rebalance_timeout_ms,
                clock=self.clock,
            ),
            config,
            url=url,
            connect_protocol=worker.connect_protocol,
            max_delay_ms=worker.scheduled_rebalance_max_delay_ms,
            clock=self.clock,
            runnable=runnable,
        )

    def reports(
        self, stores: WorkerStores, meter: FlowMeter, ledger: LedgerStore | None
    ) -> FlowReports:
        """Return where tasks report to; without a ledger nothing is lost that one would list."""

        def on_topic(task: TaskId, topic: str) -> None:
            now_ms = self.clock.now_ms()
            stores.status.put_topic(TopicUse(topic, task.connector, task.number, now_ms))

        return FlowReports(meter=meter, events=ledger or NoLedger(), on_topic=on_topic)

    def herder(
        self,
        node: NodeParts,
        stores: WorkerStores,
        membership: WorkerMembership,
        hosts: Callable[[TaskWatcher, StartGuard], TaskHost],
        *,
        meter: FlowMeter,
        resolve: Callable[[ConnectorConfig], dict[str, str]],
    ) -> HerderParts:
        """Return what the herder of an ordinary worker is made of."""
        cluster = self.tables.cluster
        own = None if _is_file(stores.offsets) else self.connector_offsets
        return HerderParts(
            node=node,
            flow=None,
            cluster_id=lambda: cluster.cluster_id,
            clusters={f"cluster at {cluster.settings.addresses}": cluster.connect},
            prepare=stores.prepare,
            config=stores.config,
            status=stores.status,
            offsets=stores.offsets,
            membership=membership,
            hosts=hosts,
            overrides=None,
            resolve=resolve,
            editor=editor_by_type(
                node.plugins.find,
                OffsetEditor(stores.offsets, node.plugins.find, own),
                SinkOffsetEditor(node.plugins.find, self.props, kafka_groups(self.clock)),
            ),
            meter=meter,
            settings=self.worker,
            close=self.close,
            fence_producers=self.tables.fence_producers,
            topic_limits=partial(topic_limits, cluster),
            unfit=self.tables.topics.unfit,
        )


@final
class _ConnectorOffsets(HostedOffsets):
    """The offset topic of one connector; implements ``OwnOffsets``."""

    def __init__(self, parts: FlowParts, topic: InternalTopic) -> None:
        super().__init__(parts.tables, topic, transactional=True)
        self._parts = parts

    async def close(self) -> None:
        await super().close()
        await self._parts.close()


def _is_file(store: OffsetStore) -> bool:
    return isinstance(store, FileOffsetBackingStore)


def _needs_own(plugins: Plugins, task: TaskSpec) -> bool:
    """Return whether a task needs a process: a third party's plug-in, or a sink, whose client
    aborts processes."""
    try:
        factory = plugins.find(task.connector_config.get("connector.class", ""))
    except ConfigError:
        return False  # the host refuses it
    ours = str(getattr(factory, "__module__", "")).startswith("mm2py")
    return not ours or plugin_type(factory) == "sink"


# ---- the dedicated mode: a source cluster of its own, changes and backfills


def wire_flow(
    plan: FlowPlan, node: NodeParts, meter: FlowMeter
) -> tuple[HerderParts, FlowOverridesStore]:
    """Build the herder's parts of a flow of a mirror maker file, and the store of its changes.
    ``ConfigError``: a derived config cannot be run."""
    clock, (source, target) = node.clock, plan.name
    permit = Permit(clock)
    flow = FlowParts.of(
        plan.name, plan.props, worker=plan.worker, plugins=node.plugins, permit=permit, clock=clock
    )
    tables, cluster = flow.tables, flow.tables.cluster
    source_settings = _source_settings(plan)
    probe = _SourceProbe(source_settings, source, clock)
    stores = worker_stores(plan.props, plan.worker, tables)
    ledger = flow.ledger(meter)
    # Made here, with the flow's other topics; child processes open it for themselves.
    maps = flow.maps()
    overrides = FlowOverridesStore(
        tables.own_table(flows_topic(source), "compact", flow.replicas, ordered=True),
        plan.connectors,
        clock=clock,
        by_file=plan.by_file,
    )
    backfills = BackfillStore(
        tables.own_table(
            backfill_topic(source), "compact", flow.replicas, transactional=True, ordered=True
        )
    )
    drivers = tables.writer(driver_id(str(plan.name)), backfill_topic(source))
    parts = flow.herder(
        node,
        stores,
        flow.membership(stores.config, node.url, node.runnable),
        flow.hosts(node.pool, stores.offsets, maps, flow.reports(stores, meter, ledger)),
        meter=meter,
        resolve=plan.resolve,
    )

    async def connect_source() -> None:
        # The target is connected before; nothing was created or copied yet.
        refuse_one_cluster(await probe.connect(), ClusterEnd.of(cluster))

    async def close() -> None:
        await drivers.close()
        await overrides.stop()
        await probe.close()
        await flow.close()

    parts = replace(
        parts,
        flow=plan.name,
        cluster_ids=lambda: (probe.cluster_id, cluster.cluster_id),
        clusters={
            f"target cluster {target} at {cluster.settings.addresses}": cluster.connect,
            f"source cluster {source} at {source_settings.addresses}": connect_source,
        },
        offsets=_SourceStores(stores.offsets, ledger, maps),
        overrides=overrides,
        backfills=backfills,
        take_back=JobClaim(
            backfills, drivers, tables.fence_producers, name=str(plan.name), clock=clock
        ).take_back,
        close=close,
    )
    return parts, overrides


@dataclass(frozen=True, slots=True)
class _SourceStores:
    """What the herder opens before the work and closes after it; implements ``FlowStores``."""

    offsets: WorkerOffsets
    ledger: LedgerStore
    maps: HostedMaps

    async def start(self) -> None:
        """Read the offsets; the ledger opens beside, and the maps of tasks in this process."""
        await self.offsets.start()
        self.ledger.start()

    async def stop(self) -> None:
        await self.ledger.stop()
        await self.maps.close()
        await self.offsets.stop()


@final
class _SourceProbe:
    """Finds out whether the source answers, without keeping a connection to it.

    Failed attempts share one object, so that the client logs once that a broker is unreachable.
    """

    def __init__(self, settings: ConnectionSettings, alias: str, clock: Clock) -> None:
        self._settings, self._alias, self._clock = settings, alias, clock
        self._cluster: Cluster | None = None
        self.cluster_id = ""
        """Kafka's id of the source; empty until it answered."""

    async def connect(self) -> ClusterEnd:
        """Return what answered; ``ConnectionFailedError`` when it does not."""
        if self._cluster is None:
            self._cluster = Cluster(self._settings, alias=self._alias, clock=self._clock)
        await self._cluster.connect()
        end = ClusterEnd.of(self._cluster)
        self.cluster_id = end.cluster_id
        # Only the answer counts: tasks have connections of their own, in other processes.
        await self.close()
        return end

    async def close(self) -> None:
        """Close what an attempt left; safe twice."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()


def _source_settings(plan: FlowPlan) -> ConnectionSettings:
    name = next((each for each in COPY_NAMES if each in plan.connectors), "")
    copying = plan.connectors.get(name, {})
    props = effective_client_properties(plan.resolve(copying), "source", "admin", role="probe")
    return connection_settings(props, scope=f"cluster {plan.name.source}")
