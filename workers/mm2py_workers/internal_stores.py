"""Internal topics and their stores: Connect's three as a worker config describes them, and our own.

Flow: worker properties + cluster -> ``FlowTables`` (one writer, one permit) -> ``Table`` per topic
-> stores. It opens no connection: a herder starts the stores of its worker, tasks wait for those of
their process (``HostedOffsets``, ``HostedMaps``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.permit import Permit
from mm2py.client.send.record_writer import RecordWriter
from mm2py.client.send.transactions import check_transactions, fence_producers
from mm2py.clock import Clock
from mm2py.config.client_properties import with_prefix
from mm2py.config.clients import ProducerSettings, producer_settings
from mm2py.config.worker import WorkerConfig
from mm2py.errors import Mm2pyError
from mm2py.mirror.ledger import ledger_topic
from mm2py.mirror.offset_map_pages import offset_map_topic
from mm2py.mirror.offset_map_reader import read_page
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.herder.api import FlowStores
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.internal_topics import (
    COMPACT,
    POSITIONS,
    STATES,
    InternalTopic,
    InternalTopics,
)
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.offset_map_store import MapsOver, OffsetMapStore
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.table import KafkaTable
from mm2py.types import FlowName, TopicPartition

CONNECT: Final = "connect"
"""In place of a source, of what copies no source cluster: a worker's own topics and other
connectors' tasks."""

_KNOWN = ("topic", "partitions", "replication.factor")


@final
class FlowTables:
    """The tables of one flow on its target: one producer id for all, written only with the permit.

    Args:
        cluster: that holds the topics.
        producer: settings of the writer.
        permit: this process's right to write for the flow.
        only_reads: as of ``KafkaTable``, for all of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: ProducerSettings,
        *,
        permit: Permit,
        clock: Clock,
        only_reads: bool = False,
    ) -> None:
        self.cluster, self.permit, self._only_reads = cluster, permit, only_reads
        self._clock, self._producer = clock, producer
        self.topics = InternalTopics(Admin(cluster), clock=clock)
        self._writer = RecordWriter(cluster, producer, clock=clock, permit=permit)
        self._producer_ids: ProducerIdStore | None = None

    def table(
        self, topic: InternalTopic, *, follow: bool = True, transactional: bool = False
    ) -> KafkaTable:
        """Return the table over one topic; ``transactional``: some records are written so, by what
        is started after the table."""
        self.topics.add(topic)
        return KafkaTable(
            topic.name,
            prepare=lambda: self.topics.partitions(topic.name),
            writer=self._writer,
            reader=lambda: LogReader(
                self.cluster,
                topic.name,
                clock=self._clock,
                # Without transactions, too: a task that was killed before they were switched off
                # may be committing, and what its commit has would be unknown to the next one.
                waits_for_transactions=True,
                folds=topic.cleanup_policy == COMPACT,
            ),
            follow=follow,
            # Tasks that are not started yet end what is open.
            reads_at_start=follow or not transactional,
            restore=lambda: self.topics.restore(topic.name),
            only_reads=self._only_reads,
        )

    def privileged_writer(self, worker: WorkerConfig) -> KafkaPrivilegedWriter | None:
        """Return the leader's writer of the config topic, None without transactions."""
        # KIP-618: ``preparing`` and ``enabled`` write in transactions, ``disabled`` does not.
        if not worker.leader_writes_in_transactions:
            return None
        # Connect's transactional id, so that a Java leader fences ours and ours fences it.
        return self.writer(f"connect-cluster-{worker.group_id}", worker.config_storage_topic)

    def writer(self, transactional_id: str, topic: str) -> KafkaPrivilegedWriter:
        """Return a one-partition topic's transactional writer; its caller closes it."""
        return KafkaPrivilegedWriter(
            self.cluster,
            self._producer,
            transactional_id,
            TopicPartition(topic, 0),
            permit=self.permit,
            clock=self._clock,
        )

    async def fence_producers(self, transactional_ids: Sequence[str]) -> None:
        await fence_producers(
            self.cluster,
            transactional_ids,
            clock=self._clock,
            timeout_ms=self._producer.transaction_timeout_ms,
        )

    async def check_exactly_once(self, worker: WorkerConfig) -> None:
        """Refuse a cluster that is too old for exactly-once, or hides the leader's transactional
        id. ``ConfigError``: what is missing."""
        if worker.leader_writes_in_transactions:
            await check_transactions(self.cluster, f"connect-cluster-{worker.group_id}")

    def own_table(
        self,
        name: str,
        cleanup_policy: str,
        replication_factor: int,
        *,
        follow: bool = True,
        transactional: bool = False,
        ordered: bool = False,
    ) -> KafkaTable:
        """Return the table over a topic unknown to Connect; ``-1``: the broker's default."""
        topic = InternalTopic(
            name=name,
            purpose=POSITIONS,
            partitions=1,
            replication_factor=replication_factor,
            # A log that is not compacted would lose its oldest records to the broker's retention.
            configs={"retention.ms": "-1"} if cleanup_policy == "delete" else {},
            cleanup_policy=cleanup_policy,
            renamable=False,
            ordered=ordered,
        )
        return self.table(topic, follow=follow, transactional=transactional)

    def ledger(self, source: str, replication_factor: int, meter: FlowMeter) -> LedgerStore:
        table = self.own_table(ledger_topic(source), "delete", replication_factor, follow=False)
        return LedgerStore(table, meter=meter, clock=self._clock)

    def offset_map(
        self, source: str, replication_factor: int, *, transactional: bool = False
    ) -> OffsetMapStore:
        """Return the offset maps of one source; ``transactional`` as of ``table``."""
        topic = offset_map_topic(source)
        table = self.own_table(
            topic,
            "compact",
            replication_factor,
            follow=False,
            transactional=transactional,
            ordered=True,  # a page is found by its offset
        )
        return OffsetMapStore(table, partial(read_page, self.cluster, topic))

    def producer_ids(self, replication_factor: int) -> ProducerIdStore:
        """Return what publishes the producer ids of the flow's tasks, always the same."""
        if self._producer_ids is None:
            table = self.own_table(PRODUCERS_TOPIC, "compact", replication_factor, follow=False)
            self._producer_ids = ProducerIdStore(table)
        return self._producer_ids

    async def prepare(self, *names: str) -> None:
        """Make sure that topics exist; see ``InternalTopics.partitions``."""
        await asyncio.gather(*(self.topics.partitions(name) for name in names))

    async def close(self) -> None:
        """Close the writer; the cluster is its owner's."""
        if self._producer_ids is not None:
            await self._producer_ids.close()
        await self._writer.close()


@final
class _Opening:
    """Opens a store at its first use, and tries again at the next when that failed."""

    def __init__(self, cluster: Cluster, start: Callable[[], Awaitable[None]]) -> None:
        self._cluster, self._start = cluster, start
        self._turn = asyncio.Lock()
        self._open = False
        self._early: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._early = asyncio.create_task(self._try(), name="hosted store")

    async def done(self) -> None:
        """Wait until it is open; raises what opening it raises."""
        async with self._turn:
            if not self._open:
                await self._cluster.connect()
                await self._start()
                self._open = True

    async def end(self) -> None:
        if self._early is not None:
            self._early.cancel()
            # A store that is closed while it opens would leave its reader running.
            await asyncio.wait({self._early})
        self._open = False

    async def _try(self) -> None:
        # The first caller that needs it gets the error.
        with suppress(Mm2pyError):
            await self.done()


class HostedOffsets:
    """The offset store of a flow in its task host."""

    def __init__(
        self, tables: FlowTables, topic: InternalTopic, *, transactional: bool = False
    ) -> None:
        table = tables.table(topic, follow=False, transactional=transactional)
        self._store = KafkaOffsetBackingStore(table)
        self.opening = _Opening(tables.cluster, self._store.start)

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        await self.opening.done()
        return await self._store.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        await self.opening.done()
        await self._store.set(values)

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out."""
        await self.opening.done()
        return await self._store.entries(connector)

    async def close(self) -> None:
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
        await self.opening.end()
        await self._store.stop()


class WorkerOffsets(OffsetStore, FlowStores, Protocol):
    """Source offsets of a worker: what its tasks, its herder and REST need of them."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]: ...


@dataclass(frozen=True, slots=True)
class WorkerStores:
    """Connect's three stores; ``prepare`` makes their topics."""

    config: ConfigBackingStore
    status: StatusBackingStore
    offsets: WorkerOffsets
    prepare: Callable[[], Awaitable[None]]


def worker_stores(
    props: Mapping[str, str], worker: WorkerConfig, tables: FlowTables
) -> WorkerStores:
    """Return the three stores of one worker."""
    config, status = config_topic(props, worker), _status_topic(props, worker)
    offsets = offset_topic(props, worker)

    async def prepare() -> None:
        await tables.check_exactly_once(worker)
        await tables.prepare(config.name, status.name, offsets.name)

    return WorkerStores(
        config=ConfigBackingStore(
            tables.table(config, transactional=worker.leader_writes_in_transactions),
            privileged=tables.privileged_writer(worker),
        ),
        status=StatusBackingStore(tables.table(status)),
        offsets=KafkaOffsetBackingStore(
            tables.table(offsets, follow=False, transactional=worker.exactly_once)
        ),
        prepare=prepare,
    )


def offset_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    """Return the offset topic as the worker config describes it."""
    return InternalTopic(
        name=worker.offset_storage_topic,
        purpose=POSITIONS,
        partitions=worker.offset_storage_partitions,
        replication_factor=worker.offset_storage_replication_factor,
        configs=_topic_configs(props, "offset.storage."),
    )


def store_producer(props: Mapping[str, str], flow: FlowName) -> ProducerSettings:
    """Return the producer of Connect's stores, of top-level client keys, not ``producer.*``."""
    known = {key: props[key] for key in ("bootstrap.servers", "client.id") if key in props}
    return producer_settings(known, scope=f"internal topics of {flow}")


def config_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    """Return the config topic as the worker config describes it."""
    return InternalTopic(
        name=worker.config_storage_topic,
        purpose="config.storage",
        partitions=1,
        replication_factor=worker.config_storage_replication_factor,
        configs=_topic_configs(props, "config.storage."),
        ordered=True,
    )


def _status_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    return InternalTopic(
        name=worker.status_storage_topic,
        purpose=STATES,
        partitions=worker.status_storage_partitions,
        replication_factor=worker.status_storage_replication_factor,
        configs=_topic_configs(props, "status.storage."),
    )


def _topic_configs(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return a topic's configs (``config.storage.``, ``offset.storage.``, ...)."""
    return {key: value for key, value in with_prefix(props, prefix).items() if key not in _KNOWN}
