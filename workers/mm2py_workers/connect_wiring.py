"""Real objects of an ordinary Connect worker, distributed or standalone.

Flow: ``WorkerFile`` -> cluster, stores, membership, task hosts -> ``HerderParts`` -> herder -> ``Node``, which runs
as the dedicated mode's does. It opens no connection; ports of REST are bound.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from mm2py.api.context import EventSink
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.clients import connection_settings
from mm2py.config.secret_names import secrets_in
from mm2py.flows.graph import check_connectors
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter, Metrics
from mm2py.rest.credentials import Credentials
from mm2py.runtime.group.membership import SoloMembership, WorkerMembership
from mm2py.runtime.group.request_signing import check_algorithms
from mm2py.runtime.herder.api import FlowStores, HerderParts
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.offset_editing import (
    OffsetEditor,
    OffsetEditors,
    SinkOffsetEditor,
    kafka_groups,
)
from mm2py.runtime.hosts.pool import HostPool
from mm2py.runtime.hosts.process import HostStarter
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_context import NoLedger
from mm2py.runtime.tasks.task_host import TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.file_offsets import FileOffsetBackingStore
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.memory import memory_configs, memory_statuses
from mm2py.storage.offset_map_store import MapStore, NoMapStore
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.status_records import TopicUse
from mm2py.types import ClusterAlias, FlowName, TaskId
from mm2py_workers.connect_worker import ConnectWorker
from mm2py_workers.flow_wiring import membership_of
from mm2py_workers.host_wiring import host_pool, host_processes, host_starter, task_host
from mm2py_workers.hosted_flow import HostedMaps, own_offsets
from mm2py_workers.hosts_by_source import HostsBySource, SourceHost
from mm2py_workers.internal_stores import CONNECT, FlowTables, store_producer, worker_stores
from mm2py_workers.node_parts import NodeParts
from mm2py_workers.rest_node import RestNode
from mm2py_workers.worker_file import WorkerFile

DEFAULT_SOURCE_ALIAS: Final = "source"
"""Java's, where a mirror connector names none."""


class WorkerOffsets(OffsetStore, FlowStores, Protocol):
    """Source offsets of a worker: what its tasks, its herder and REST need of them."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectParts(NodeParts):
    """A worker's shared parts; what is not installed is assigned and fails visibly, as in Connect."""

    def runnable(self, connector_class: str) -> bool:
        """Take every class."""
        del connector_class
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """What the parts of one worker are made from."""

    file: WorkerFile
    node: NodeParts
    metrics: Metrics
    group: str

    @property
    def clock(self) -> Clock:
        """Time."""
        return self.node.clock

    def flow(self, source: str) -> FlowName:
        """Return the name under which one source's tasks are counted and logged."""
        return FlowName(ClusterAlias(source), ClusterAlias(self.group))

    def meter(self, source: str = CONNECT) -> FlowMeter:
        """Return the counters of one source."""
        return self.metrics.flow(self.flow(source))

    def tables(self, permit: Permit) -> FlowTables:
        """Return the tables on the worker's own cluster."""
        props, clock = self.file.props, self.clock
        settings = connection_settings(props, scope=self.file.path)
        cluster = Cluster(settings, alias=self.group, clock=clock)
        producer = store_producer(props, self.flow(CONNECT))
        return FlowTables(cluster, producer, permit=permit, clock=clock)

    def herder_parts(
        self,
        tables: FlowTables,
        *,
        config: ConfigBackingStore,
        status: StatusBackingStore,
        offsets: WorkerOffsets,
        membership: WorkerMembership,
        prepare: Callable[[], Awaitable[None]],
    ) -> HerderParts:
        """Return what the worker's herder is made of."""
        node, cluster = self.node, tables.cluster

        def on_topic(task: TaskId, topic: str) -> None:
            status.put_topic(TopicUse(topic, task.connector, task.number, self.clock.now_ms()))

        async def close() -> None:
            await tables.close()
            await cluster.close()

        return HerderParts(
            node=node,
            flow=None,
            cluster_id=lambda: cluster.cluster_id,
            clusters={f"cluster at {cluster.settings.addresses}": cluster.connect},
            prepare=prepare,
            config=config,
            status=status,
            offsets=offsets,
            membership=membership,
            hosts=lambda watcher, guard: HostsBySource(
                _source_of,
                lambda source: self._host(source, watcher, guard, tables, offsets, on_topic),
            ),
            peers=node.peers(None),
            overrides=None,
            guard=check_connectors,
            resolve=_resolver(self.file, node.mask),
            editor=OffsetEditors(
                node.plugins.find,
                OffsetEditor(
                    offsets,
                    node.plugins.find,
                    own_offsets(
                        self.flow(CONNECT),
                        self.file.props,
                        self.file.worker,
                        tables.permit,
                        self.clock,
                    )
                    if self.file.worker.exactly_once
                    else None,
                ),
                SinkOffsetEditor(node.plugins.find, self.file.props, kafka_groups(self.clock)),
            ),
            meter=self.meter(),
            settings=self.file.worker,
            close=close,
            fence_producers=tables.fence_producers,
        )

    def _host(
        self,
        source: str,
        watcher: TaskWatcher,
        guard: StartGuard,
        tables: FlowTables,
        offsets: WorkerOffsets,
        on_topic: Callable[[TaskId, str], None],
    ) -> SourceHost:
        meter = self.meter(source)
        ledger: LedgerStore | None = None
        maps: MapStore = NoMapStore()
        if source != CONNECT:
            ledger = tables.ledger(source, self._ledger_replicas(), meter)
            if self.node.pool is None and not self.file.standalone:
                maps = HostedMaps(
                    tables,
                    source,
                    self._ledger_replicas(),
                    transactional=self.file.worker.exactly_once,
                )
        events: EventSink = ledger if ledger is not None else NoLedger()
        host = task_host(
            self.node,
            self.flow(source),
            self.file.props,
            self.file.worker,
            offsets,
            FlowReports(meter=meter, events=events, on_topic=on_topic),
            maps=maps,
            permit=tables.permit,
            producers=tables.producer_ids(self._ledger_replicas()),
            target_name="the worker's cluster",
        )
        return SourceHost(host(watcher, guard), ledger)

    def _ledger_replicas(self) -> int:
        """As safe as the offsets; where those are in a file, as the broker has it."""
        if self.file.standalone and "offset.storage.replication.factor" not in self.file.props:
            return -1
        return self.file.worker.offset_storage_replication_factor


def _source_of(spec: TaskSpec) -> str:
    """Return the alias that names the source of a mirror task; only those keep a ledger."""
    config = spec.connector_config
    if canonical_class(config.get("connector.class", "")) != MIRROR_SOURCE_CONNECTOR:
        return CONNECT
    return config.get("source.cluster.alias", "").strip() or DEFAULT_SOURCE_ALIAS


def build_distributed(
    file: WorkerFile,
    *,
    metrics: Metrics,
    clock: Clock,
    mask: SecretMask,
    plugins: Plugins | None = None,
    starter: HostStarter | None = None,
) -> ConnectWorker:
    """Build a worker of a group; binds its listeners.

    Raises:
        ConfigError: a listener, or a file that REST needs, cannot be used.
    """
    rest, pool = _rest(file), host_pool(host_processes(file.props), starter or host_starter(clock))
    node = _node(file, rest, plugins or Plugins(), mask=mask, clock=clock, pool=pool)
    worker = _Worker(file=file, node=node, metrics=metrics, group=file.worker.group_id)
    tables = worker.tables(Permit(clock))
    stores = worker_stores(file.props, file.worker, tables)
    parts = worker.herder_parts(
        tables,
        config=stores.config,
        status=stores.status,
        offsets=stores.offsets,
        membership=membership_of(file.worker, tables.cluster, tables.permit, stores.config, node),
        prepare=stores.prepare,
    )
    return ConnectWorker(Herder(parts, clock=clock), rest, node, metrics)


def build_standalone(
    file: WorkerFile,
    *,
    metrics: Metrics,
    clock: Clock,
    mask: SecretMask,
    plugins: Plugins | None = None,
) -> ConnectWorker:
    """Build a worker on its own: nothing but its offsets is kept, in its file; binds its listeners.

    Raises:
        ConfigError: a listener, or a file that REST needs, cannot be used.
    """
    rest = _rest(file)
    node = _node(file, rest, plugins or Plugins(), mask=mask, clock=clock, pool=None)
    worker = _Worker(file=file, node=node, metrics=metrics, group=file.worker.group_id)
    config = memory_configs()
    parts = worker.herder_parts(
        worker.tables(UNLIMITED),
        config=config,
        status=memory_statuses(),
        offsets=FileOffsetBackingStore(file.offsets),
        membership=SoloMembership(config, url=node.url),
        prepare=_nothing,
    )
    return ConnectWorker(Herder(parts, clock=clock), rest, node, metrics)


async def _nothing() -> None:
    return


def _resolver(file: WorkerFile, mask: SecretMask) -> Callable[[ConnectorConfig], dict[str, str]]:
    """Return what replaces placeholders of what runs; its secrets are hidden from then on."""

    def resolve(config: ConnectorConfig) -> dict[str, str]:
        resolved = file.resolve(config)
        mask.add(file.providers.secrets | secrets_in(resolved))
        return resolved

    return resolve


def _rest(file: WorkerFile) -> RestNode:
    check_algorithms(
        file.worker.inter_worker_signature_algorithm,
        file.worker.inter_worker_verification_algorithms,
    )
    # What REST would refuse later, when it is too late to end the process.
    Credentials.read(file.rest)
    if file.rest.tls is not None:
        from mm2py.rest.listener_tls import server_context  # brings the libraries for key stores

        server_context(file.rest.tls)
    settings = connection_settings(file.props, scope=file.path)
    return RestNode.bind_worker(file.rest, settings.bootstrap_servers)


def _node(
    file: WorkerFile,
    rest: RestNode,
    plugins: Plugins,
    *,
    mask: SecretMask,
    clock: Clock,
    pool: HostPool | None,
) -> NodeParts:
    return _ConnectParts(
        url=rest.url,
        worker_id=rest.worker_id,
        plugins=plugins,
        catalog=InstalledPlugins(plugins),
        validator=ConfigValidator(
            plugins,
            resolve=file.resolve,
            policy=file.policy,
            mask=mask,
            # A standalone worker has no exactly-once support, whatever its file says.
            worker=lambda _: {
                **file.props,
                "exactly.once.source.support": file.worker.exactly_once_source_support,
            },
        ),
        loggers=ProcessLoggers(clock, None if pool is None else pool.set_level),
        mask=mask,
        peers=rest.peers,
        file_texts=lambda _flow, _connector: file.file.values,
        clock=clock,
        pool=pool,
    )
