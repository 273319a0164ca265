"""Real objects of an ordinary Connect worker, distributed or standalone, and the worker that they
make.

Flow: ``WorkerFile`` -> ``FlowParts``, stores, membership -> herder -> ``ConnectWorker.run`` until a
stop is asked for. Its tasks run in one task host per source cluster (``HostsBySource``): two
clusters may have topics of the same name, so each has its own meters and its own loss ledger.
Building it opens no connection; ports of REST are bound.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self, final

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.clients import connection_settings
from mm2py.config.secret_names import secrets_in
from mm2py.flows.graph import check_connectors
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.rest.credentials import RestCredentials
from mm2py.runtime.group.membership import SoloMembership, WorkerMembership
from mm2py.runtime.group.request_signing import check_algorithms
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.hosts.pool import HostPool
from mm2py.runtime.hosts.process import HostStarter
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_host import TaskHost, TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.memory import memory_configs, memory_statuses
from mm2py.storage.offset_backing_store import FileOffsetBackingStore
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import ClusterAlias, FlowName, TaskId, TopicPartition
from mm2py_workers.flow_parts import FlowParts, NodeParts
from mm2py_workers.internal_stores import CONNECT, WorkerStores, worker_stores
from mm2py_workers.rest_node import RestNode
from mm2py_workers.served import Served
from mm2py_workers.signals import DRAIN_TIMEOUT_S, StopSignal
from mm2py_workers.task_host import host_pool, host_processes, host_starter
from mm2py_workers.worker_file import WorkerFile

log = logging.getLogger(__name__)

DEFAULT_SOURCE_ALIAS: Final = "source"
"""Java's, where a mirror connector names none."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """What the parts of one worker are made from."""

    file: WorkerFile
    node: NodeParts
    metrics: Metrics
    parts: FlowParts
    """Of what copies no source cluster; those of a source have the same cluster and tables."""

    @classmethod
    def of(cls, file: WorkerFile, node: NodeParts, metrics: Metrics, permit: Permit) -> Self:
        """Build it; opens no connection."""
        parts = FlowParts.of(
            FlowName(ClusterAlias(CONNECT), ClusterAlias(file.worker.group_id)),
            file.props,
            worker=file.worker,
            plugins=node.plugins,
            permit=permit,
            clock=node.clock,
            scope=file.path,
            copies=False,
        )
        # As safe as the offsets; where those are in a file, as the broker has it.
        by_broker = file.standalone and "offset.storage.replication.factor" not in file.props
        replicas = -1 if by_broker else parts.replicas
        parts = replace(parts, target_name="the worker's cluster", replicas=replicas)
        return cls(file, node, metrics, parts)

    def worker(
        self, rest: RestNode, stores: WorkerStores, membership: WorkerMembership
    ) -> "ConnectWorker":
        resolve = _resolver(self.file, self.node.mask)
        parts = self.parts.herder(
            self.node,
            stores,
            membership,
            lambda watcher, guard: HostsBySource(
                _source_of, lambda source: self._host(stores, source, watcher, guard)
            ),
            meter=self.metrics.flow(self.parts.flow),
            resolve=resolve,
        )
        guard = partial(check_connectors, resolve=resolve)
        herder = Herder(replace(parts, guard=guard), clock=self.node.clock)
        return ConnectWorker(herder, rest, self.node, self.metrics)

    def _host(
        self, stores: WorkerStores, source: str, watcher: TaskWatcher, guard: StartGuard
    ) -> "SourceHost":
        """Return the host of the tasks of one source, or with an empty one of all others."""
        parts = self.parts.of_source(source) if source else self.parts
        meter = self.metrics.flow(parts.flow)
        ledger = parts.ledger(meter) if parts.copies else None
        in_process = self.node.pool is None and not self.file.standalone
        maps = parts.maps() if ledger is not None and in_process else NoMapStore()
        reports = parts.reports(stores, meter, ledger)
        host = parts.hosts(self.node.pool, stores.offsets, maps, reports)
        return SourceHost(host(watcher, guard), ledger)


def _source_of(spec: TaskSpec) -> str:
    """Return the alias that names the source of a mirror task; only those keep a ledger. Empty:
    it is none."""
    config = spec.connector_config
    if canonical_class(config.get("connector.class", "")) != MIRROR_SOURCE_CONNECTOR:
        return ""
    return config.get("source.cluster.alias", "").strip() or DEFAULT_SOURCE_ALIAS


def build_distributed(
    file: WorkerFile,
    *,
    metrics: Metrics,
    clock: Clock,
    mask: SecretMask,
    starter: HostStarter | None = None,
) -> "ConnectWorker":
    """Build a worker of a group; binds its listeners. ``ConfigError``: a listener, or a file that
    REST needs, cannot be used."""
    rest, pool = _rest(file), host_pool(host_processes(file.props), starter or host_starter(clock))
    node = _node(file, rest, mask=mask, clock=clock, pool=pool)
    worker = _Worker.of(file, node, metrics, Permit(clock))
    stores = worker_stores(file.props, file.worker, worker.parts.tables)
    # What is not installed is assigned and fails visibly, as in Connect.
    membership = worker.parts.membership(stores.config, node.url, lambda _: True)
    return worker.worker(rest, stores, membership)


def build_standalone(
    file: WorkerFile, *, metrics: Metrics, clock: Clock, mask: SecretMask
) -> "ConnectWorker":
    """Build a worker on its own: nothing but its offsets is kept, in its file; binds its listeners.
    ``ConfigError``: a listener, or a file that REST needs, cannot be used."""
    rest = _rest(file)
    node = _node(file, rest, mask=mask, clock=clock, pool=None)
    config, offsets = memory_configs(), FileOffsetBackingStore(file.offsets)
    stores = WorkerStores(config, memory_statuses(), offsets, prepare=_nothing)
    worker = _Worker.of(file, node, metrics, UNLIMITED)
    return worker.worker(rest, stores, SoloMembership(config, url=node.url))


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
    RestCredentials.read(file.rest)
    if file.rest.tls is not None:
        from mm2py.rest.listener_tls import server_context  # brings the libraries for key stores

        server_context(file.rest.tls)
    settings = connection_settings(file.props, scope=file.path)
    return RestNode.bind_worker(file.rest, settings.bootstrap_servers)


def _node(
    file: WorkerFile, rest: RestNode, *, mask: SecretMask, clock: Clock, pool: HostPool | None
) -> NodeParts:
    plugins = Plugins()
    return NodeParts(
        url=rest.url,
        worker_id=rest.worker_id,
        plugins=plugins,
        catalog=InstalledPlugins(plugins),
        validator=ConfigValidator(
            plugins,
            resolve=file.resolve,
            policy=file.policy,
            mask=mask,
            # A standalone worker has no exactly-once support, whatever its file sets.
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


# ---- the worker as it runs


@final
class ConnectWorker:
    """One ordinary worker as a process runs it: its herder, task hosts and REST."""

    def __init__(self, herder: Herder, rest: RestNode, node: NodeParts, metrics: Metrics) -> None:
        self.herder = herder
        self._rest = rest
        self._pool = node.pool
        self._served = Served(herders={None: herder}, parts=node, meters=metrics.meters)
        self.validator = node.validator

    async def run(
        self, stop: StopSignal, begin: Callable[[], Awaitable[None]] | None = None
    ) -> int:
        """Run until a stop or a failure of herder or ``begin``; return the exit code."""
        if self._pool is not None:
            self._pool.start()
        herding = asyncio.create_task(self.herder.run(), name="worker")
        serving = asyncio.create_task(self._serve_and(begin), name="rest")
        asked = asyncio.create_task(stop.wait())
        # What begins with the worker and fails, ends it.
        serving.add_done_callback(lambda done: stop.ask() if _failed(done) else None)
        await asyncio.wait({herding, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        log.info("stopping: polling ends, what is under way is written and committed")
        serving.cancel()
        await asyncio.wait({serving})
        self.herder.stop()
        _, late = await asyncio.wait({herding}, timeout=DRAIN_TIMEOUT_S)
        if late:
            log.error("the worker did not stop in time and is cut off")
            herding.cancel()
            await asyncio.wait(late, timeout=1.0)
        await self._rest.stop()
        if self._pool is not None:
            await self._pool.close()
        if _failed(serving):
            await serving  # with the reason
        return 1 if late or (self.herder.failure is not None and not stop.asked) else 0

    async def abandon(self) -> None:
        await self._rest.stop(timeout_s=0)

    async def _serve_and(self, begin: Callable[[], Awaitable[None]] | None) -> None:
        await self._rest.serve(self._served)
        if begin is not None:
            await begin()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


@dataclass(frozen=True, slots=True)
class SourceHost:
    """The task host of one source, and its ledger where its tasks copy partitions."""

    host: TaskHost
    ledger: LedgerStore | None


@final
class HostsBySource:
    """Implements ``TaskHost``.

    Args:
        source_of: names the source of a task.
        opened: makes the host of a source.
    """

    def __init__(
        self, source_of: Callable[[TaskSpec], str], opened: Callable[[str], SourceHost]
    ) -> None:
        self._source_of = source_of
        self._opened = opened
        self._hosts: dict[str, SourceHost] = {}
        self._place: dict[TaskId, TaskHost] = {}
        self._held: frozenset[TopicPartition] = frozenset()

    async def start_task(self, spec: TaskSpec) -> None:
        host = self._host(self._source_of(spec))
        before = self._place.get(spec.id)
        if before is not None and before is not host:
            await before.stop_task(spec.id, 0)
        self._place[spec.id] = host
        await host.start_task(spec)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        host = self._place.pop(task, None)
        if host is not None:
            await host.stop_task(task, timeout_s)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        host = self._place.get(task)
        if host is not None:
            await host.pause_task(task, paused=paused)

    def status(self, task: TaskId) -> Status | None:
        host = self._place.get(task)
        return None if host is None else host.status(task)

    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self._place)

    def problems(self) -> Mapping[str, str]:
        return {
            what: why for each in self._hosts.values() for what, why in each.host.problems().items()
        }

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self._held = partitions
        for each in self._hosts.values():
            each.host.hold(partitions)

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        await asyncio.gather(*(each.host.keep_out(partitions) for each in self._hosts.values()))

    async def close(self) -> None:
        hosts = tuple(self._hosts.values())
        await asyncio.gather(*(each.host.close() for each in hosts))
        # What tasks report to ends after them.
        await asyncio.gather(*(each.ledger.stop() for each in hosts if each.ledger is not None))

    def _host(self, source: str) -> TaskHost:
        opened = self._hosts.get(source)
        if opened is None:
            opened = self._hosts[source] = self._opened(source)
            if opened.ledger is not None:
                opened.ledger.start()
            if self._held:
                opened.host.hold(self._held)
        return opened.host
