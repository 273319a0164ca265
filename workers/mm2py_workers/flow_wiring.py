"""One flow's real objects: clusters, stores in internal topics, group membership, task host.

Flow: ``FlowPlan`` + ``NodeParts`` -> ``flow_parts`` -> ``HerderParts`` of a ``DistributedHerder``. It opens no
connection and decides nothing that a test would want to change: that is configuration.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.coordinator_link import CoordinatorLink
from mm2py.client.group_member import GroupMember
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
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.mirror.ledger import ledger_topic
from mm2py.observability.loggers import LoggerRegistry
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.connect_membership import ConnectMembership
from mm2py.runtime.herder_api import HerderParts, Overrides, PeerClient, Validator
from mm2py.runtime.herder_errors import ForbiddenError
from mm2py.runtime.offset_editing import OffsetEditor
from mm2py.runtime.plugin_catalog import PluginCatalog
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.task_assembly import TaskAssembly, TaskParts
from mm2py.runtime.task_host import InProcessTaskHost, TaskWatcher
from mm2py.storage.config_log_store import KafkaConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.internal_topics import InternalTopic, ensure_topic
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.status_log_store import KafkaStatusBackingStore
from mm2py.storage.status_records import TopicUse
from mm2py.types import FlowName, TaskId, TopicPartition
from mm2py_workers.cluster_probe import ClusterProbe
from mm2py_workers.target_link import TargetLinks

__all__ = ["FileConfigs", "FlowPlan", "NodeParts", "flow_parts"]

_SOURCE: Final = "MirrorSourceConnector"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """One flow's configs: resolved for the worker, raw (placeholders kept) for the connectors.

    ``resolve`` replaces placeholders of a connector's or task's config.
    """

    name: FlowName
    props: Mapping[str, str]
    worker: WorkerConfig
    connectors: Mapping[str, Mapping[str, str]]
    resolve: Callable[[ConnectorConfig], dict[str, str]]
    auto_restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What all flows of a process share; ``url`` is where other workers reach it, ``peers`` asks them.

    ``file_texts`` gives a connector's config as its file says it, which a remote config may repeat.
    """

    url: str
    worker_id: str
    plugins: Plugins
    catalog: PluginCatalog
    validator: Validator
    loggers: LoggerRegistry
    mask: SecretMask
    peers: Callable[[FlowName | None], PeerClient]
    file_texts: Callable[[FlowName | None, str], Mapping[str, str]]
    clock: Clock

    def runnable(self, connector_class: str) -> bool:
        """Tell whether a connector class is installed here."""
        try:
            self.plugins.find(connector_class)
        except ConfigError:
            return False
        return True


@final
class FileConfigs:
    """``Overrides`` of a flow that has only its file: nothing can be changed beside it."""

    def __init__(self, connectors: Mapping[str, Mapping[str, str]]) -> None:
        self._connectors = connectors

    async def start(self) -> None:
        """Nothing has to be read."""

    def effective(self) -> Mapping[str, Mapping[str, str]]:
        """Return the file's configs."""
        return self._connectors

    async def record(
        self,
        name: str,
        before: Mapping[str, str] | None,
        after: Mapping[str, str] | None,
        *,
        actor: str,
    ) -> None:
        """Refuse: the leader would write the file's config again."""
        del before, after, actor
        raise ForbiddenError(
            f"Connector {name} is configured by the properties file of this flow; change the file"
        )

    def held(self) -> frozenset[TopicPartition]:
        """Return nothing: topics are paused over REST only."""
        return frozenset()

    def listen(self, changed: Callable[[], None]) -> None:
        """The file is read once."""


@dataclass(frozen=True, slots=True)
class _TopicAccess:
    """How one internal topic is made, written and read."""

    name: str
    prepare: Callable[[], Awaitable[int]]
    writer: Callable[[], RecordWriter]
    reader: Callable[[], LogReader]


@dataclass(frozen=True, slots=True)
class _Access:
    """The flow's connections to its target, for internal topics."""

    cluster: Cluster
    admin: Admin
    producer: ProducerSettings
    clock: Clock

    def to(self, topic: InternalTopic) -> _TopicAccess:
        """Return the access to one topic."""
        return _TopicAccess(
            topic.name,
            prepare=lambda: ensure_topic(self.admin, topic, clock=self.clock),
            writer=lambda: RecordWriter(self.cluster, self.producer, clock=self.clock),
            reader=lambda: LogReader(self.cluster, topic.name, clock=self.clock),
        )


@dataclass(frozen=True, slots=True)
class _FlowStores:
    """What the herder opens before the work and closes after it."""

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


def flow_parts(
    plan: FlowPlan, node: NodeParts, meter: FlowMeter, overrides: Overrides | None = None
) -> HerderParts:
    """Build the herder's parts; opens no connection.

    Raises:
        ConfigError: a derived config cannot be run.
    """
    source, target = plan.name
    clock = node.clock
    settings = connection_settings(plan.props, scope=f"worker of {plan.name}")
    cluster = Cluster(settings, alias=target, clock=clock)
    admin = Admin(cluster)
    access = _Access(cluster, admin, _store_producer(plan), clock)
    source_settings = _source_settings(plan)
    probe = ClusterProbe(source_settings, source, clock)
    config_topic, status_topic = access.to(_config_topic(plan)), access.to(_status_topic(plan))
    config = KafkaConfigBackingStore(
        config_topic.name,
        prepare=config_topic.prepare,
        writer=config_topic.writer,
        reader=config_topic.reader,
    )
    status = KafkaStatusBackingStore(
        status_topic.name,
        prepare=status_topic.prepare,
        writer=status_topic.writer,
        reader=status_topic.reader,
    )
    offset_topic, ledger_at = access.to(_offset_topic(plan)), access.to(_ledger_topic(plan))
    offsets = KafkaOffsetBackingStore(
        offset_topic.name,
        prepare=offset_topic.prepare,
        writer=offset_topic.writer,
        reader=offset_topic.reader,
    )
    ledger = LedgerStore(
        ledger_at.name,
        prepare=ledger_at.prepare,
        writer=ledger_at.writer,
        reader=ledger_at.reader,
        meter=meter,
        clock=clock,
    )
    membership = ConnectMembership(
        GroupMember(
            CoordinatorLink(cluster, plan.worker.group_id),
            session_timeout_ms=plan.worker.session_timeout_ms,
            heartbeat_interval_ms=plan.worker.heartbeat_interval_ms,
            rebalance_timeout_ms=plan.worker.rebalance_timeout_ms,
            clock=clock,
        ),
        config,
        url=node.url,
        connect_protocol=plan.worker.connect_protocol,
        max_delay_ms=plan.worker.scheduled_rebalance_max_delay_ms,
        clock=clock,
        runnable=node.runnable,
    )

    async def prepare() -> None:
        await asyncio.gather(
            *(topic.prepare() for topic in (config_topic, status_topic, offset_topic))
        )

    async def close() -> None:
        await probe.close()
        await cluster.close()

    def on_topic(task: TaskId, topic: str) -> None:
        status.put_topic(TopicUse(topic, task.connector, task.number, clock.now_ms()))

    return HerderParts(
        flow=plan.name,
        worker_id=node.worker_id,
        cluster_id=lambda: cluster.cluster_id,
        clusters={
            f"target cluster {target} at {_addresses(settings)}": cluster.connect,
            f"source cluster {source} at {_addresses(source_settings)}": probe.connect,
        },
        prepare=prepare,
        config=config,
        status=status,
        offsets=_FlowStores(offsets, ledger),
        membership=membership,
        hosts=_task_host(plan, node, offsets, ledger, meter, on_topic),
        plugins=node.plugins,
        catalog=node.catalog,
        validator=node.validator,
        peers=node.peers(plan.name),
        overrides=overrides or FileConfigs(plan.connectors),
        resolve=plan.resolve,
        editor=OffsetEditor(offsets, node.plugins.find),
        meter=meter,
        loggers=node.loggers,
        settings=plan.worker,
        auto_restart=plan.auto_restart,
        close=close,
        mask=node.mask,
    )


def _task_host(
    plan: FlowPlan,
    node: NodeParts,
    offsets: KafkaOffsetBackingStore,
    ledger: LedgerStore,
    meter: FlowMeter,
    on_topic: Callable[[TaskId, str], None],
) -> Callable[[TaskWatcher], InProcessTaskHost]:
    links = TargetLinks(plan.props, plan.name.target, node.clock)
    graceful_ms = plan.worker.task_shutdown_graceful_timeout_ms
    assembly = TaskAssembly(
        TaskParts(
            plugins=node.plugins,
            store=offsets,
            meter=meter,
            clock=node.clock,
            sender=links.sender,
            buffer_memory=links.buffer_memory,
            offset_flush_interval_ms=plan.worker.offset_flush_interval_ms,
            offset_flush_timeout_ms=plan.worker.offset_flush_timeout_ms,
            graceful_timeout_ms=graceful_ms,
            target_name=f"target cluster {plan.name.target}",
            events=ledger,
            on_topic=on_topic,
        )
    )

    def host(watcher: TaskWatcher) -> InProcessTaskHost:
        return InProcessTaskHost(assembly, watcher, graceful_s=graceful_ms / 1000)

    return host


def _store_producer(plan: FlowPlan) -> ProducerSettings:
    # Connect's stores take the worker's top-level client keys, not ``producer.*``.
    known = {
        key: plan.props[key] for key in ("bootstrap.servers", "client.id") if key in plan.props
    }
    return producer_settings(known, scope=f"offset store of {plan.name}")


def _offset_topic(plan: FlowPlan) -> InternalTopic:
    return InternalTopic(
        name=plan.worker.offset_storage_topic,
        purpose="offset.storage",
        partitions=plan.worker.offset_storage_partitions,
        replication_factor=plan.worker.offset_storage_replication_factor,
        configs=_topic_configs(plan.props, "offset.storage."),
    )


def _config_topic(plan: FlowPlan) -> InternalTopic:
    return InternalTopic(
        name=plan.worker.config_storage_topic,
        purpose="config.storage",
        partitions=1,
        replication_factor=plan.worker.config_storage_replication_factor,
        configs=_topic_configs(plan.props, "config.storage."),
    )


def _status_topic(plan: FlowPlan) -> InternalTopic:
    return InternalTopic(
        name=plan.worker.status_storage_topic,
        purpose="status.storage",
        partitions=plan.worker.status_storage_partitions,
        replication_factor=plan.worker.status_storage_replication_factor,
        configs=_topic_configs(plan.props, "status.storage."),
    )


def _ledger_topic(plan: FlowPlan) -> InternalTopic:
    return InternalTopic(
        name=ledger_topic(plan.name.source),
        purpose="offset.storage",
        partitions=1,
        replication_factor=plan.worker.offset_storage_replication_factor,
        configs={"retention.ms": "-1"},
        cleanup_policy="delete",
        renamable=False,
    )


def _topic_configs(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    known = ("topic", "partitions", "replication.factor")
    return {key: value for key, value in with_prefix(props, prefix).items() if key not in known}


def _source_settings(plan: FlowPlan) -> ConnectionSettings:
    props = effective_client_properties(
        plan.resolve(plan.connectors.get(_SOURCE, {})), "source", "admin", role="probe"
    )
    return connection_settings(props, scope=f"cluster {plan.name.source}")


def _addresses(settings: ConnectionSettings) -> str:
    return ",".join(f"{host}:{port}" for host, port in settings.bootstrap_servers)
