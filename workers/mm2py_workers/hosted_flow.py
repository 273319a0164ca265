"""One flow inside a task host: its own connections, Senders and offset store.

Flow: ``FlowSpec`` -> ``open_flow`` -> ``TaskAssembly`` in an ``InProcessTaskHost``; positions go to the target
from here and never cross the pipe. The store is opened beside the tasks, which wait for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import final

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.log_reader import LogReader
from mm2py.client.record_writer import RecordWriter
from mm2py.clock import Clock
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.secret_names import secrets_in
from mm2py.config.worker import WorkerConfig
from mm2py.errors import Mm2pyError
from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.messages import FlowSpec
from mm2py.runtime.hosts.service import FlowPorts
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec
from mm2py.runtime.tasks.worker_task import WorkerTask
from mm2py.storage.internal_topics import ensure_topic
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py_workers.offset_topic import offset_topic, store_producer
from mm2py_workers.task_wiring import task_assembly

__all__ = ["HostedOffsets", "open_flow"]


@final
class HostedOffsets:
    """An offset store that opens at its first use, and is tried again at the next when that failed."""

    def __init__(self, store: KafkaOffsetBackingStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._turn = asyncio.Lock()
        self._open = False
        self._stands = False
        self._early: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open it beside whatever else is being opened."""
        self._early = asyncio.create_task(self._try(), name="offset store")

    def stand(self, stands: bool) -> None:  # noqa: FBT001 - a callback of the task host
        """Write nothing while the tasks are suspended."""
        self._stands = stands
        if stands:
            self._store.suspend()
        else:
            self._store.resume()

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
        await self._cluster.close()

    async def _try(self) -> None:
        # Whoever needs it first hears of the error.
        with suppress(Mm2pyError):
            await self._ready()

    async def _ready(self) -> None:
        async with self._turn:
            if not self._open:
                await self._cluster.connect()
                await self._store.start()
                self._open = True
                self.stand(self._stands)


@final
class _HostedFlow:
    """Implements ``mm2py.runtime.hosts.service.HostedFlow``."""

    def __init__(self, host: InProcessTaskHost, offsets: HostedOffsets) -> None:
        self.host = host
        self._offsets = offsets

    async def close(self) -> None:
        """Close the offset store."""
        await self._offsets.close()


def open_flow(
    spec: FlowSpec, ports: FlowPorts, *, plugins: Plugins, mask: SecretMask, clock: Clock
) -> _HostedFlow:
    """Build a flow; connections open in the background.

    Raises:
        ConfigError: its worker config cannot be run.
    """
    mask.add(secrets_in(spec.worker).union(spec.secrets))
    worker = parse_config(WorkerConfig, spec.worker)
    settings = connection_settings(spec.worker, scope=f"worker of {spec.flow}")
    cluster = Cluster(settings, alias=spec.flow.target, clock=clock)
    admin = Admin(cluster)
    topic = offset_topic(spec.worker, worker)
    producer = store_producer(spec.worker, spec.flow)
    store = KafkaOffsetBackingStore(
        topic.name,
        prepare=lambda: ensure_topic(admin, topic, clock=clock),
        writer=lambda: RecordWriter(cluster, producer, clock=clock),
        reader=lambda: LogReader(cluster, topic.name, clock=clock),
    )
    offsets = HostedOffsets(store, cluster)
    assembly = task_assembly(
        spec.flow,
        spec.worker,
        worker,
        plugins=plugins,
        store=offsets,
        reports=FlowReports(meter=ports.meter, events=ports.events, on_topic=ports.on_topic),
        target_name=f"target cluster {spec.flow.target}",
        clock=clock,
    )

    def build(task: TaskSpec, on_status: Callable[[Status], None]) -> WorkerTask:
        # Before anything is logged about it: a connector may bring secrets that the file does not know.
        mask.add(secrets_in(task.connector_config, task.config))
        return assembly(task, on_status)

    host = InProcessTaskHost(
        build,
        ports.watcher,
        graceful_s=worker.task_shutdown_graceful_timeout_ms / 1000,
        stands=offsets.stand,
    )
    offsets.start()
    return _HostedFlow(host, offsets)
