"""Composition root: the one place that builds real objects from a properties file.

Flow: ``MirrorMakerConfig`` -> per flow: clusters, group, offset store, task assembly -> ``Herder`` -> all of
them in one ``MirrorMaker``. It decides nothing that a test would want to change: that is configuration.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.group_membership import SoleMembership
from mm2py.client.log_reader import LogReader
from mm2py.client.record_writer import RecordWriter
from mm2py.clock import Clock
from mm2py.config.client_properties import effective_client_properties, with_prefix
from mm2py.config.clients import (
    ConnectionSettings,
    ProducerSettings,
    connection_settings,
    producer_settings,
)
from mm2py.config.definitions import parse_config
from mm2py.config.java_values import parse_boolean_leniently
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.mirror.ledger import ledger_topic
from mm2py.observability.metrics import FlowMeter, Metrics
from mm2py.protocol.connect_group import ConnectorTasks
from mm2py.runtime.herder import FlowParts, Herder
from mm2py.runtime.mirror_maker import MirrorMaker
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.task_assembly import TaskAssembly, TaskParts
from mm2py.runtime.task_host import InProcessTaskHost, TaskWatcher
from mm2py.runtime.worker import Worker, WorkerSettings
from mm2py.storage.internal_topics import InternalTopic, ensure_topic
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.types import FlowName
from mm2py_workers.cluster_probe import ClusterProbe
from mm2py_workers.target_link import TargetLinks

__all__ = ["build_mirror_maker", "freeze_garbage_collector"]

log = logging.getLogger(__name__)

UNADVERTISED: Final = "NOTUSED"
"""What Java's dedicated mode advertises while it has no REST listener."""

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""The hot path makes no cycles; the default of 700 objects collects hundreds of times a second."""

_SOURCE: Final = "MirrorSourceConnector"


@dataclass(frozen=True, slots=True)
class _Flow:
    """One flow's configs, resolved and checked."""

    name: FlowName
    props: Mapping[str, str]
    worker: WorkerConfig
    connectors: Mapping[str, Mapping[str, str]]
    auto_restart: bool


def build_mirror_maker(
    config: MirrorMakerConfig,
    flows: tuple[FlowName, ...],
    *,
    metrics: Metrics,
    clock: Clock,
    plugins: Plugins | None = None,
) -> MirrorMaker:
    """Build every flow; opens no connection.

    Raises:
        ConfigError: a derived config cannot be run.
    """
    found = plugins or Plugins()
    herders: dict[FlowName, Herder] = {}
    for name in flows:
        flow = _derive(config, name, found)
        meter = metrics.flow(name)
        herders[name] = Herder(_parts(flow, found, meter, clock), meter=meter, clock=clock)
    return MirrorMaker(herders)


def freeze_garbage_collector() -> None:
    """Take what start-up made out of the collector's sight, and let it look rarely.

    Worth about 2 us per batch (real-broker.md 8): long-lived objects are never walked again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _derive(config: MirrorMakerConfig, name: FlowName, plugins: Plugins) -> _Flow:
    props = config.worker_config(name)
    try:
        worker = parse_config(WorkerConfig, props)
    except ConfigError as error:
        raise ConfigError(
            f"{config.path}: flow {name}: {error.message}", remedy=error.remedy
        ) from None
    connectors = {
        connector: config.resolved(raw)
        for connector, raw in config.connector_configs(name).items()
        # Connectors of later parts are named by ``later_parts`` and not started.
        if connector in plugins.names
    }
    restart = connectors.get(_SOURCE, {}).get("task.auto.restart")
    return _Flow(name, props, worker, connectors, parse_boolean_leniently(restart, absent=True))


def _parts(flow: _Flow, plugins: Plugins, meter: FlowMeter, clock: Clock) -> FlowParts:
    source, target = flow.name
    settings = connection_settings(flow.props, scope=f"worker of {flow.name}")
    cluster = Cluster(settings, alias=target, clock=clock)
    admin = Admin(cluster)
    store = _offset_store(flow, cluster, admin, clock)
    ledger = _ledger_store(flow, cluster, admin, meter, clock)
    source_settings = _source_settings(flow)
    probe = ClusterProbe(source_settings, source, clock)
    membership = SoleMembership(
        cluster,
        admin,
        flow.worker.group_id,
        url=UNADVERTISED,
        session_timeout_ms=flow.worker.session_timeout_ms,
        heartbeat_interval_ms=flow.worker.heartbeat_interval_ms,
        rebalance_timeout_ms=flow.worker.rebalance_timeout_ms,
        clock=clock,
        # -1 stands for the connector itself; its tasks are not known before it has looked around.
        work=lambda: [ConnectorTasks(name, (-1,)) for name in flow.connectors],
    )

    async def prepare() -> None:
        topics = (_config_topic(flow), _status_topic(flow), _offset_topic(flow))
        await asyncio.gather(*(ensure_topic(admin, topic, clock=clock) for topic in topics))

    async def close() -> None:
        await probe.close()
        await cluster.close()

    return FlowParts(
        clusters={
            f"target cluster {target} at {_addresses(settings)}": cluster.connect,
            f"source cluster {source} at {_addresses(source_settings)}": probe.connect,
        },
        prepare=prepare,
        membership=membership,
        store=_FlowStores(store, ledger),
        worker=_worker_factory(flow, plugins, store, ledger, meter, clock),
        connectors=flow.connectors,
        close=close,
    )


@dataclass(frozen=True, slots=True)
class _FlowStores:
    """What the herder opens before the worker and closes after it."""

    offsets: KafkaOffsetBackingStore
    ledger: LedgerStore

    async def start(self) -> None:
        """Read the offsets; the ledger opens beside the data."""
        await self.offsets.start()
        self.ledger.start()

    async def stop(self) -> None:
        """Close both."""
        await self.ledger.stop()
        await self.offsets.stop()

    def suspend(self) -> None:
        """Write no positions; a ledger record is true whoever writes it."""
        self.offsets.suspend()

    def resume(self) -> None:
        """Write positions again."""
        self.offsets.resume()


def _worker_factory(
    flow: _Flow,
    plugins: Plugins,
    store: KafkaOffsetBackingStore,
    ledger: LedgerStore,
    meter: FlowMeter,
    clock: Clock,
) -> Callable[[Callable[[], None]], Worker]:
    links = TargetLinks(flow.props, flow.name.target, clock)
    graceful_ms = flow.worker.task_shutdown_graceful_timeout_ms
    assembly = TaskAssembly(
        TaskParts(
            plugins=plugins,
            store=store,
            meter=meter,
            clock=clock,
            sender=links.sender,
            buffer_memory=links.buffer_memory,
            offset_flush_interval_ms=flow.worker.offset_flush_interval_ms,
            offset_flush_timeout_ms=flow.worker.offset_flush_timeout_ms,
            graceful_timeout_ms=graceful_ms,
            target_name=f"target cluster {flow.name.target}",
            events=ledger,
        )
    )

    def host(watcher: TaskWatcher) -> InProcessTaskHost:
        return InProcessTaskHost(assembly, watcher, graceful_s=graceful_ms / 1000)

    def make(on_change: Callable[[], None]) -> Worker:
        settings = WorkerSettings(
            graceful_timeout_ms=graceful_ms, task_auto_restart=flow.auto_restart
        )
        return Worker(plugins, host, settings=settings, clock=clock, on_change=on_change)

    return make


def _offset_store(
    flow: _Flow, cluster: Cluster, admin: Admin, clock: Clock
) -> KafkaOffsetBackingStore:
    topic = _offset_topic(flow)
    settings = _store_producer(flow)
    return KafkaOffsetBackingStore(
        topic.name,
        prepare=lambda: ensure_topic(admin, topic, clock=clock),
        writer=lambda: RecordWriter(cluster, settings, clock=clock),
        reader=lambda: LogReader(cluster, topic.name, clock=clock),
    )


def _ledger_store(
    flow: _Flow, cluster: Cluster, admin: Admin, meter: FlowMeter, clock: Clock
) -> LedgerStore:
    topic = InternalTopic(
        name=ledger_topic(flow.name.source),
        purpose="offset.storage",
        partitions=1,
        replication_factor=flow.worker.offset_storage_replication_factor,
        configs={"retention.ms": "-1"},
        cleanup_policy="delete",
        renamable=False,
    )
    settings = _store_producer(flow)
    return LedgerStore(
        topic.name,
        prepare=lambda: ensure_topic(admin, topic, clock=clock),
        writer=lambda: RecordWriter(cluster, settings, clock=clock),
        reader=lambda: LogReader(cluster, topic.name, clock=clock),
        meter=meter,
        clock=clock,
    )


def _store_producer(flow: _Flow) -> ProducerSettings:
    # Connect's stores take the worker's top-level client keys, not ``producer.*``.
    known = {
        key: flow.props[key] for key in ("bootstrap.servers", "client.id") if key in flow.props
    }
    return producer_settings(known, scope=f"offset store of {flow.name}")


def _offset_topic(flow: _Flow) -> InternalTopic:
    return InternalTopic(
        name=flow.worker.offset_storage_topic,
        purpose="offset.storage",
        partitions=flow.worker.offset_storage_partitions,
        replication_factor=flow.worker.offset_storage_replication_factor,
        configs=_topic_configs(flow.props, "offset.storage."),
    )


def _config_topic(flow: _Flow) -> InternalTopic:
    return InternalTopic(
        name=flow.worker.config_storage_topic,
        purpose="config.storage",
        partitions=1,
        replication_factor=flow.worker.config_storage_replication_factor,
        configs=_topic_configs(flow.props, "config.storage."),
    )


def _status_topic(flow: _Flow) -> InternalTopic:
    return InternalTopic(
        name=flow.worker.status_storage_topic,
        purpose="status.storage",
        partitions=flow.worker.status_storage_partitions,
        replication_factor=flow.worker.status_storage_replication_factor,
        configs=_topic_configs(flow.props, "status.storage."),
    )


def _topic_configs(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    known = ("topic", "partitions", "replication.factor")
    return {key: value for key, value in with_prefix(props, prefix).items() if key not in known}


def _source_settings(flow: _Flow) -> ConnectionSettings:
    props = effective_client_properties(
        flow.connectors.get(_SOURCE, {}), "source", "admin", role="probe"
    )
    return connection_settings(props, scope=f"cluster {flow.name.source}")


def _addresses(settings: ConnectionSettings) -> str:
    return ",".join(f"{host}:{port}" for host, port in settings.bootstrap_servers)
