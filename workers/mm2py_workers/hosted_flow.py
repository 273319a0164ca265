"""One flow inside a task host: its own connections, Senders, offset store and offset maps.

Flow: ``FlowSpec`` -> ``open_flow`` -> ``TaskAssembly`` in an ``InProcessTaskHost``; positions and maps go to the target
from here and never cross the pipe. The stores are opened beside the tasks, which wait for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.secret_names import secrets_in
from mm2py.config.worker import WorkerConfig
from mm2py.errors import Mm2pyError
from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.service import FlowSpec
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.record_task import Conversion
from mm2py.runtime.tasks.task_assembly import FlowReports, SinkClients, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_host import HostedTask, InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import OwnOffsets
from mm2py.storage.internal_topics import InternalTopic
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.offset_map_store import MapsOver, MapStore, NoMapStore
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import FlowName
from mm2py_workers.internal_stores import CONNECT, FlowTables, offset_topic, store_producer
from mm2py_workers.sink_clients import KafkaSinkClients
from mm2py_workers.target_senders import TargetSenders


@final
class _Opening:
    """Opens a store at its first use, and tries again at the next when that failed."""

    def __init__(self, cluster: Cluster, start: Callable[[], Awaitable[None]]) -> None:
        self._cluster, self._start = cluster, start
        self._turn = asyncio.Lock()
        self._open = False
        self._early: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Open it beside whatever else is being opened."""
        self._early = asyncio.create_task(self._try(), name="hosted store")

    async def done(self) -> None:
        """Wait until it is open; raises what opening it raises."""
        async with self._turn:
            if not self._open:
                await self._cluster.connect()
                await self._start()
                self._open = True

    async def end(self) -> None:
        """Stop opening it."""
        if self._early is not None:
            self._early.cancel()
            await asyncio.wait({self._early})
        self._open = False

    async def _try(self) -> None:
        # The first caller that needs it gets the error.
        with suppress(Mm2pyError):
            await self.done()


@final
class HostedOffsets:
    """The offset store of a flow in its task host."""

    def __init__(
        self, tables: FlowTables, topic: InternalTopic, *, transactional: bool = False
    ) -> None:
        table = tables.table(topic, follow=False, transactional=transactional)
        self._store = KafkaOffsetBackingStore(table)
        self.opening = _Opening(tables.cluster, self._store.start)

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        await self.opening.done()
        return await self._store.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values; returns when all are acknowledged."""
        await self.opening.done()
        await self._store.set(values)

    async def close(self) -> None:
        """Stop reading."""
        await self.opening.end()
        await self._store.stop()


@final
class HostedMaps(MapsOver):
    """The offset maps of a flow in its task host."""

    def __init__(
        self,
        tables: FlowTables,
        source: str,
        replication_factor: int,
        *,
        transactional: bool = False,
    ) -> None:
        self._store = tables.offset_map(source, replication_factor, transactional=transactional)
        super().__init__(self._store)
        self.opening = _Opening(tables.cluster, self._store.start)

    async def _ready(self) -> None:
        await self.opening.done()

    async def close(self) -> None:
        """Stop reading."""
        await self.opening.end()
        await self._store.stop()


@final
class _HostedFlow:
    """Implements ``mm2py.runtime.hosts.service.HostedFlow``."""

    def __init__(
        self,
        host: InProcessTaskHost,
        permit: Permit,
        tables: FlowTables,
        stores: tuple[HostedOffsets, HostedMaps | None],
    ) -> None:
        self.host, self.permit = host, permit
        self._tables, self._stores = tables, stores

    async def close(self) -> None:
        """Close the stores and their connections."""
        for store in self._stores:
            if store is not None:
                await store.close()
        await self._tables.close()
        await self._tables.cluster.close()


def open_flow(
    spec: FlowSpec,
    reports: FlowReports,
    watcher: TaskWatcher,
    *,
    plugins: Plugins,
    mask: SecretMask,
    clock: Clock,
) -> _HostedFlow:
    """Build a flow; connections open in the background.

    Raises:
        ConfigError: its worker config cannot be run.
    """
    mask.add(secrets_in(spec.worker))
    worker = parse_config(WorkerConfig, spec.worker)
    settings = connection_settings(spec.worker, scope=f"worker of {spec.flow}")
    cluster = Cluster(settings, alias=spec.flow.target, clock=clock)
    permit = Permit(clock)
    producer = store_producer(spec.worker, spec.flow)
    tables = FlowTables(cluster, producer, permit=permit, clock=clock)
    offsets = HostedOffsets(
        tables, offset_topic(spec.worker, worker), transactional=worker.exactly_once
    )
    maps = None
    if spec.flow.source != CONNECT:  # a worker's tasks that copy no source cluster
        maps = HostedMaps(
            tables,
            spec.flow.source,
            worker.offset_storage_replication_factor,
            transactional=worker.exactly_once,
        )
    assembly = task_assembly(
        spec.flow,
        spec.worker,
        worker,
        plugins=plugins,
        store=offsets,
        maps=maps or NoMapStore(),
        reports=reports,
        permit=permit,
        producers=tables.producer_ids(worker.offset_storage_replication_factor),
        target_name=f"target cluster {spec.flow.target}",
        clock=clock,
        sinks=KafkaSinkClients(spec.worker, spec.flow.target, clock),
    )

    def build(task: TaskSpec, on_status: Callable[[Status], None]) -> HostedTask:
        # Before anything is logged about it: a connector may bring secrets that the file does not know.
        mask.add(secrets_in(task.connector_config, task.config))
        return assembly(task, on_status)

    host = InProcessTaskHost(
        build, watcher, graceful_s=worker.task_shutdown_graceful_timeout_ms / 1000
    )
    offsets.opening.begin()
    if maps is not None:
        maps.opening.begin()
    return _HostedFlow(host, permit, tables, (offsets, maps))


@final
class _ConnectorOffsets:
    """The offset topic of one connector, with connections of its own."""

    def __init__(self, tables: FlowTables, topic: InternalTopic) -> None:
        self._tables, self._offsets = tables, HostedOffsets(tables, topic, transactional=True)

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        return await self._offsets.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values; returns when all are acknowledged."""
        await self._offsets.set(values)

    async def close(self) -> None:
        """Close its connections."""
        await self._offsets.close()
        await self._tables.close()
        await self._tables.cluster.close()


def own_offsets(
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    permit: Permit,
    clock: Clock,
) -> Callable[[str], OwnOffsets]:
    """Return what opens the offset topic of one connector, by its name (``offsets.storage.topic``)."""

    def own(topic: str) -> OwnOffsets:
        settings = connection_settings(props, scope=f"worker of {flow}")
        cluster = Cluster(settings, alias=flow.target, clock=clock)
        tables = FlowTables(cluster, store_producer(props, flow), permit=permit, clock=clock)
        return _ConnectorOffsets(tables, replace(offset_topic(props, worker), name=topic))

    return own


def task_assembly(  # noqa: PLR0913 - one keyword per part that tasks share
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    *,
    plugins: Plugins,
    store: OffsetStore,
    maps: MapStore,
    reports: FlowReports,
    permit: Permit,
    producers: ProducerIdStore,
    target_name: str,
    clock: Clock,
    sinks: SinkClients | None = None,
) -> TaskAssembly:
    """Return what builds the tasks of a flow, here or in a worker; ``props`` are its worker config, resolved."""
    links = TargetSenders(props, flow, producers, clock=clock, permit=permit)
    own = own_offsets(flow, props, worker, permit, clock)
    return TaskAssembly(
        TaskParts(
            plugins=plugins,
            store=store,
            meter=reports.meter,
            clock=clock,
            sender=links.sender,
            buffer_memory=links.buffer_memory,
            offset_flush_interval_ms=worker.offset_flush_interval_ms,
            offset_flush_timeout_ms=worker.offset_flush_timeout_ms,
            graceful_timeout_ms=worker.task_shutdown_graceful_timeout_ms,
            target_name=target_name,
            events=reports.events,
            conversion=partial(Conversion.of, props),
            on_topic=reports.on_topic,
            permit=permit,
            maps=maps,
            sinks=sinks,
            transactions=(
                (
                    lambda spec, framework: links.transactions(
                        spec, framework, worker, store, own, reports.guard
                    )
                )
                if worker.exactly_once
                else None
            ),
        )
    )
