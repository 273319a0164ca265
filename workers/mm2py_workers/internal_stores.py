"""Internal topics and their stores: Connect's three as a worker config describes them, and our own.

Flow: worker properties + cluster -> ``WorkerStores``: config, status and offset store, and ``prepare``, which
makes the topics. Opens no connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.log_reader import LogReader
from mm2py.client.record_writer import RecordWriter
from mm2py.clock import Clock
from mm2py.config.clients import ProducerSettings
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.ledger import ledger_topic
from mm2py.observability.metrics import FlowMeter
from mm2py.storage.config_log_store import KafkaConfigBackingStore
from mm2py.storage.internal_topics import InternalTopic, ensure_topic
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.status_log_store import KafkaStatusBackingStore
from mm2py_workers.offset_topic import offset_topic, topic_configs

__all__ = ["TopicAccess", "TopicConnections", "WorkerStores", "worker_stores"]


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """How one internal topic is made, written and read."""

    name: str
    prepare: Callable[[], Awaitable[int]]
    writer: Callable[[], RecordWriter]
    reader: Callable[[], LogReader]


@dataclass(frozen=True, slots=True)
class TopicConnections:
    """A worker's connections to the cluster that holds its internal topics."""

    cluster: Cluster
    admin: Admin
    producer: ProducerSettings
    clock: Clock

    def to(self, topic: InternalTopic) -> TopicAccess:
        """Return the access to one topic."""
        return TopicAccess(
            topic.name,
            prepare=lambda: ensure_topic(self.admin, topic, clock=self.clock),
            writer=lambda: RecordWriter(self.cluster, self.producer, clock=self.clock),
            reader=lambda: LogReader(self.cluster, topic.name, clock=self.clock),
        )

    def own_topic(self, name: str, cleanup_policy: str, replication_factor: int) -> TopicAccess:
        """Return the access to a topic that Connect does not know; ``-1`` is the broker's default."""
        return self.to(
            InternalTopic(
                name=name,
                purpose="offset.storage",
                partitions=1,
                replication_factor=replication_factor,
                configs={"retention.ms": "-1"} if cleanup_policy == "delete" else {},
                cleanup_policy=cleanup_policy,
                renamable=False,
            )
        )

    def ledger(self, source: str, replication_factor: int, meter: FlowMeter) -> LedgerStore:
        """Return the loss ledger of one source."""
        topic = self.own_topic(ledger_topic(source), "delete", replication_factor)
        return LedgerStore(
            topic.name,
            prepare=topic.prepare,
            writer=topic.writer,
            reader=topic.reader,
            meter=meter,
            clock=self.clock,
        )


@dataclass(frozen=True, slots=True)
class WorkerStores:
    """Stores over Connect's topics; ``prepare`` makes the topics."""

    config: KafkaConfigBackingStore
    status: KafkaStatusBackingStore
    offsets: KafkaOffsetBackingStore
    prepare: Callable[[], Awaitable[None]]


def worker_stores(
    props: Mapping[str, str], worker: WorkerConfig, connections: TopicConnections
) -> WorkerStores:
    """Return the three stores of one worker."""
    at_config = connections.to(_config_topic(props, worker))
    at_status = connections.to(_status_topic(props, worker))
    at_offsets = connections.to(offset_topic(props, worker))

    async def prepare() -> None:
        await asyncio.gather(*(topic.prepare() for topic in (at_config, at_status, at_offsets)))

    return WorkerStores(
        config=KafkaConfigBackingStore(
            at_config.name,
            prepare=at_config.prepare,
            writer=at_config.writer,
            reader=at_config.reader,
        ),
        status=KafkaStatusBackingStore(
            at_status.name,
            prepare=at_status.prepare,
            writer=at_status.writer,
            reader=at_status.reader,
        ),
        offsets=KafkaOffsetBackingStore(
            at_offsets.name,
            prepare=at_offsets.prepare,
            writer=at_offsets.writer,
            reader=at_offsets.reader,
        ),
        prepare=prepare,
    )


def _config_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    return InternalTopic(
        name=worker.config_storage_topic,
        purpose="config.storage",
        partitions=1,
        replication_factor=worker.config_storage_replication_factor,
        configs=topic_configs(props, "config.storage."),
    )


def _status_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    return InternalTopic(
        name=worker.status_storage_topic,
        purpose="status.storage",
        partitions=worker.status_storage_partitions,
        replication_factor=worker.status_storage_replication_factor,
        configs=topic_configs(props, "status.storage."),
    )
