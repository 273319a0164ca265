"""One flow's real objects: clusters, stores in internal topics, group membership, task host.

Flow: ``FlowPlan`` + ``NodeParts`` -> ``wire_flow`` -> ``HerderParts`` of a ``Herder``. It opens no
connection and decides nothing that a test would want to change: that is configuration.
"""

from dataclasses import dataclass
from typing import Final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator_link import CoordinatorLink
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.secret_names import names_a_secret
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.backfills import backfill_topic, driver_id
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.group.connect_membership import ConnectMembership
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.offset_editing import (
    OffsetEditor,
    OffsetEditors,
    SinkOffsetEditor,
    kafka_groups,
)
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.job_claim import JobClaim
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.storage.status_records import TopicUse
from mm2py.types import TaskId, TopicPartition
from mm2py_workers.cluster_probe import ClusterProbe
from mm2py_workers.host_wiring import task_host
from mm2py_workers.hosted_flow import HostedMaps, own_offsets
from mm2py_workers.internal_stores import FlowTables, store_producer, worker_stores
from mm2py_workers.node_parts import FlowPlan, NodeParts

_COPY: Final = ("MirrorSourceConnector", "MirrorSinkConnector")


@dataclass(frozen=True, slots=True)
class WiredFlow:
    """A herder's parts, and the store of what people changed beside the file."""

    parts: HerderParts
    overrides: FlowOverridesStore


@dataclass(frozen=True, slots=True)
class _FlowStores:
    """What the herder opens before the work and closes after it; the ledger opens beside the data."""

    offsets: KafkaOffsetBackingStore
    ledger: LedgerStore
    maps: HostedMaps

    async def start(self) -> None:
        """Read the offsets; the ledger opens beside the data, the maps where tasks live in this process."""
        await self.offsets.start()
        self.ledger.start()

    async def stop(self) -> None:
        """Close all."""
        await self.ledger.stop()
        await self.maps.close()
        await self.offsets.stop()


def wire_flow(plan: FlowPlan, node: NodeParts, meter: FlowMeter) -> WiredFlow:
    """Build the herder's parts; opens no connection.

    Raises:
        ConfigError: a derived config cannot be run.
    """
    source, target = plan.name
    clock = node.clock
    settings = connection_settings(plan.props, scope=f"worker of {plan.name}")
    cluster = Cluster(settings, alias=target, clock=clock)
    permit = Permit(clock)
    producer = store_producer(plan.props, plan.name)
    tables = FlowTables(cluster, producer, permit=permit, clock=clock)
    source_settings = _source_settings(plan)
    probe = ClusterProbe(source_settings, source, clock)
    stores = worker_stores(plan.props, plan.worker, tables)
    # As safe as the offsets are.
    ledger = tables.ledger(source, plan.worker.offset_storage_replication_factor, meter)
    # Made here, with the flow's other topics; child processes open it for themselves.
    maps = HostedMaps(
        tables,
        source,
        plan.worker.offset_storage_replication_factor,
        transactional=plan.worker.exactly_once,
    )
    overrides = _overrides(plan, tables, clock)

    backfills = BackfillStore(
        tables.own_table(
            backfill_topic(source),
            "compact",
            plan.worker.offset_storage_replication_factor,
            transactional=True,
        )
    )
    drivers = KafkaPrivilegedWriter(
        cluster,
        producer,
        driver_id(str(plan.name)),
        TopicPartition(backfill_topic(source), 0),
        permit=permit,
        clock=clock,
    )

    async def close() -> None:
        await drivers.close()
        await overrides.stop()
        await probe.close()
        await tables.close()
        await cluster.close()

    def on_topic(task: TaskId, topic: str) -> None:
        stores.status.put_topic(TopicUse(topic, task.connector, task.number, clock.now_ms()))

    parts = HerderParts(
        node=node,
        flow=plan.name,
        cluster_id=lambda: cluster.cluster_id,
        clusters={
            f"target cluster {target} at {settings.addresses}": cluster.connect,
            f"source cluster {source} at {source_settings.addresses}": probe.connect,
        },
        prepare=stores.prepare,
        config=stores.config,
        status=stores.status,
        offsets=_FlowStores(stores.offsets, ledger, maps),
        membership=membership_of(plan.worker, cluster, permit, stores.config, node),
        hosts=task_host(
            node,
            plan.name,
            plan.props,
            plan.worker,
            stores.offsets,
            FlowReports(meter=meter, events=ledger, on_topic=on_topic),
            maps=maps,
            permit=permit,
            producers=tables.producer_ids(plan.worker.offset_storage_replication_factor),
            target_name=f"target cluster {target}",
        ),
        peers=node.peers(plan.name),
        overrides=overrides,
        backfills=backfills,
        stream_claim=JobClaim(
            backfills, drivers, tables.fence_producers, name=str(plan.name), clock=clock
        ),
        resolve=plan.resolve,
        editor=OffsetEditors(
            node.plugins.find,
            OffsetEditor(
                stores.offsets,
                node.plugins.find,
                own_offsets(plan.name, plan.props, plan.worker, permit, clock)
                if plan.worker.exactly_once
                else None,
            ),
            SinkOffsetEditor(node.plugins.find, plan.props, kafka_groups(clock)),
        ),
        meter=meter,
        settings=plan.worker,
        close=close,
        fence_producers=tables.fence_producers,
    )
    return WiredFlow(parts, overrides)


def membership_of(
    worker: WorkerConfig,
    cluster: Cluster,
    permit: Permit,
    config: ConfigBackingStore,
    node: NodeParts,
) -> ConnectMembership:
    """Return the membership of a worker's group on its cluster."""
    return ConnectMembership(
        GroupMember(
            CoordinatorLink(cluster, worker.group_id),
            permit,
            session_timeout_ms=worker.session_timeout_ms,
            heartbeat_interval_ms=worker.heartbeat_interval_ms,
            rebalance_timeout_ms=worker.rebalance_timeout_ms,
            clock=node.clock,
        ),
        config,
        url=node.url,
        connect_protocol=worker.connect_protocol,
        max_delay_ms=worker.scheduled_rebalance_max_delay_ms,
        clock=node.clock,
        runnable=node.runnable,
    )


def _overrides(plan: FlowPlan, tables: FlowTables, clock: Clock) -> FlowOverridesStore:
    factor = plan.worker.offset_storage_replication_factor
    return FlowOverridesStore(
        tables.own_table(flows_topic(plan.name.source), "compact", factor, ordered=True),
        plan.connectors,
        clock=clock,
        names_a_secret=names_a_secret,
        by_file=plan.by_file,
    )


def _source_settings(plan: FlowPlan) -> ConnectionSettings:
    name = next((it for it in _COPY if it in plan.connectors), "")
    copying = plan.connectors.get(name, {})
    props = effective_client_properties(plan.resolve(copying), "source", "admin", role="probe")
    return connection_settings(props, scope=f"cluster {plan.name.source}")
