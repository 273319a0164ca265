"""One flow inside a task host: its own connections, Senders and offset store.

Flow: ``FlowSpec`` -> ``open_flow`` -> ``TaskAssembly`` in an ``InProcessTaskHost``; positions go to the target
from here and never cross the pipe. The store is opened beside the tasks, which wait for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from mm2py.runtime.tasks.task_assembly import FlowReports, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.runtime.tasks.worker_task import WorkerTask
from mm2py.storage.internal_topics import InternalTopic
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import FlowName
from mm2py_workers.internal_stores import FlowTables, offset_topic, store_producer
from mm2py_workers.target_senders import TargetSenders

__all__ = ["HostedOffsets", "open_flow", "task_assembly"]


@final
class HostedOffsets:
    """An offset store that opens at its first use, and is tried again at the next when that failed."""

    def __init__(self, tables: FlowTables, topic: InternalTopic) -> None:
        self._tables, self._cluster = tables, tables.cluster
        self._store = KafkaOffsetBackingStore(tables.table(topic, follow=False))
        self._turn = asyncio.Lock()
        self._open = False
        self._early: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open it beside whatever else is being opened."""
        self._early = asyncio.create_task(self._try(), name="offset store")

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        await self._ready()
        return await self._store.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values; returns when all are acknowledged."""
        await self._ready()
        await self._store.set(values)

    async def close(self) -> None:
        """Close its connections."""
        if self._early is not None:
            self._early.cancel()
            await asyncio.wait({self._early})
        await self._store.stop()
        await self._tables.close()
        await self._cluster.close()

    async def _try(self) -> None:
        # The first caller that needs it gets the error.
        with suppress(Mm2pyError):
            await self._ready()

    async def _ready(self) -> None:
        async with self._turn:
            if not self._open:
                await self._cluster.connect()
                await self._store.start()
                self._open = True


@final
class _HostedFlow:
    """Implements ``mm2py.runtime.hosts.service.HostedFlow``."""

    def __init__(self, host: InProcessTaskHost, permit: Permit, offsets: HostedOffsets) -> None:
        self.host, self.permit = host, permit
        self._offsets = offsets

    async def close(self) -> None:
        """Close the offset store."""
        await self._offsets.close()


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
    offsets = HostedOffsets(tables, offset_topic(spec.worker, worker))
    assembly = task_assembly(
        spec.flow,
        spec.worker,
        worker,
        plugins=plugins,
        store=offsets,
        reports=reports,
        permit=permit,
        producers=tables.producer_ids(worker.offset_storage_replication_factor),
        target_name=f"target cluster {spec.flow.target}",
        clock=clock,
    )

    def build(task: TaskSpec, on_status: Callable[[Status], None]) -> WorkerTask:
        # Before anything is logged about it: a connector may bring secrets that the file does not know.
        mask.add(secrets_in(task.connector_config, task.config))
        return assembly(task, on_status)

    host = InProcessTaskHost(
        build, watcher, graceful_s=worker.task_shutdown_graceful_timeout_ms / 1000
    )
    offsets.start()
    return _HostedFlow(host, permit, offsets)


def task_assembly(  # noqa: PLR0913 - one keyword per part that tasks share
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    *,
    plugins: Plugins,
    store: OffsetStore,
    reports: FlowReports,
    permit: Permit,
    producers: ProducerIdStore,
    target_name: str,
    clock: Clock,
) -> TaskAssembly:
    """Return what builds the tasks of a flow, here or in a worker; ``props`` are its worker config, resolved."""
    links = TargetSenders(props, flow, producers, clock=clock, permit=permit)
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
        )
    )
