"""Both clusters of a flow for a failover: connections, topics, positions, and the failover topics
on both.

Flow: ``FlowPlan`` of the flow and of the flow back -> ``FailoverClusters`` -> ``target``,
``source()``, ``topics``, ``known``, ``store``. The source may be gone: what asks it raises
``SourceAwayError``. Creates nothing but the failover topics.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.clock import Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.definitions import parse_config
from mm2py.errors import ConnectionFailedError, RequestTimedOutError, RetriableServerError
from mm2py.mirror.failovers import Failover, failover_driver_id, failover_topic
from mm2py.mirror.filters import TopicSelection
from mm2py.mirror.policies import naming, policy_from_config
from mm2py.mirror.producer_ids import ProducerOrigins, Suppression, suppression_of
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.protocol.error_codes import NETWORK_EXCEPTION
from mm2py.types import FlowName, TopicPartition
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_jobs.copy.survey import CopiesReader, Known
from mm2py_jobs.failover.driver import FailoverStore, SourceAwayError
from mm2py_jobs.log.mirror_producers import mirror_producers
from mm2py_jobs.open_flow import admin_cluster, flow_in_force, flow_of_file, reads_committed
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.internal_stores import FlowTables, store_producer

CONNECT_S: Final = 8.0
"""How long the source may take to answer."""

_IMPATIENT: Final = {"default.api.timeout.ms": "8000", "request.timeout.ms": "5000"}
"""Client properties for the source, which may be gone."""


async def looping_ids(
    source: Cluster, target: Cluster, config: Mapping[str, str], clock: Clock
) -> frozenset[int]:
    """Return the producer ids of mirrors whose batches on ``source`` a flow drops, as
    ``loop.suppression`` in its source connector's ``config`` sets it."""
    suppression = suppression_of(config)
    if suppression is Suppression.OFF:
        return frozenset()
    origins = ProducerOrigins(
        everything=suppression is Suppression.ALL,
        target=target.alias,
        target_cluster=target.cluster_id,
    )
    for producer in await mirror_producers(source, clock):
        origins.learn(producer)
    return frozenset(origins.known.looping)


@final
class FailoverClusters:
    """A flow and the flow back with open connections; an asynchronous context manager.

    Args:
        plan: of the flow.
        back: of the flow from its target to its source.
    """

    def __init__(self, plan: FlowPlan, back: FlowPlan, clock: Clock) -> None:
        self.plan, self.back, self.clock = plan, back, clock
        self.back_policy = policy_from_config(back.resolve(back.connectors[SOURCE_NAME]))
        """The names that the flow back gives its copies."""
        self.name: FlowName = plan.name
        self.config: Mapping[str, str] = plan.resolve(plan.connectors[SOURCE_NAME])
        self.checkpoints: Mapping[str, str] | None = flow_of_file(plan).checkpoints
        """Config of the checkpoint connector, None where the flow has none."""
        self._connected = False
        self.target = admin_cluster(
            self.config, "target", plan.name.target, role="failover", clock=clock
        )
        self._source = admin_cluster(
            self.config,
            "source",
            plan.name.source,
            role="failover",
            clock=clock,
            more=_IMPATIENT,
        )
        self.target_tables = self._tables(self.target, plan)
        self.source_tables = self._tables(self._source, back)
        self._read_config()
        self.store = self._store(self.target_tables, plan, drives=True)
        self._source_store: FailoverStore | None = None
        self._copies = self._reader(self.target, plan)
        self._copies_back = self._reader(self._source, back)
        self.source_ids: dict[str, bytes] = {}
        """Topic ids on the source, as of the last call of ``topics``."""

    def _read_config(self) -> None:
        options = parse_config(MirrorSourceConfig, self.config)
        self.policy = policy_from_config(self.config)
        self.keeps_names = not self.policy.detects_cycles
        self.selection = TopicSelection.of(self.name, self.config)
        self.names = naming(self.name, self.config)
        """The aliases that its copies are named with."""
        self.read_committed = reads_committed(self.plan, self.config)
        self.replication_factor = options.replication_factor

    @property
    def of_groups(self) -> Mapping[str, str]:
        """Config by which groups are chosen and synced: changes over REST reach the checkpoint
        connector alone."""
        return self.config if self.checkpoints is None else self.checkpoints

    def counts(self, topic: str) -> bool:
        """Whether a failover waits for a topic: not for heartbeats, which are written continuously
        and harm no consumer."""
        return not self.policy.is_heartbeats_topic(topic)

    async def __aenter__(self) -> "FailoverClusters":
        """Connect to the target and read changes made over REST; ``RetriableError``: the target
        does not answer."""
        try:
            await self.target.connect()
            now = await flow_in_force(self.plan, self.target, self.clock)
            if now.connector is not None:
                self.config, self.checkpoints = now.connector, now.checkpoints
                self._read_config()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._copies_back.close()
        await self._copies.close()
        for store in (self.store, self._source_store):
            if store is not None:
                await store.stop()
        for tables in (self.source_tables, self.target_tables):
            await tables.close()
        await self._source.close()
        await self.target.close()

    # ---- the source, which may be gone

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[Cluster]:
        """Lend the source, connected.

        Raises:
            SourceAwayError: it does not answer.
            ConfigError: it is the target.
        """
        try:
            if not self._connected:
                async with asyncio.timeout(CONNECT_S):
                    await self._source.connect()
                refuse_one_cluster(ClusterEnd.of(self._source), ClusterEnd.of(self.target))
                self._connected = True
            yield self._source
        except TimeoutError as error:
            raise self._away(f"not within {CONNECT_S:g} s") from error
        except (ConnectionFailedError, RequestTimedOutError) as error:
            raise self._away(error.message) from error
        except RetriableServerError as error:
            if error.code != NETWORK_EXCEPTION:
                raise
            raise self._away(error.message) from error

    def _away(self, why: str) -> SourceAwayError:
        self._connected = False
        return SourceAwayError(f"cluster {self.name.source} does not answer: {why}")

    async def is_source_there(self) -> bool:
        try:
            async with self.source() as cluster:
                await cluster.metadata([])
        except SourceAwayError:
            return False
        return True

    async def source_store(self) -> FailoverStore:
        """Return the failover topic of the source: the fence on it, and the newest failover of the
        flow back."""
        async with self.source():
            if self._source_store is None:
                store = self._store(self.source_tables, self.back, drives=False)
                await store.start()
                self._source_store = store
            await self._source_store.refresh()
            return self._source_store

    async def seen_source_store(self) -> FailoverStore | None:
        """Return the failover topic of the source if it exists: a reader does not create it."""
        topic = failover_topic(self.back.name.source)
        async with self.source() as cluster:
            is_there = topic in await Admin(cluster).describe_topics([topic])
        return await self.source_store() if is_there else None

    # ---- topics and copies

    async def topics(
        self, chosen: Callable[[str], bool] | None = None
    ) -> Mapping[str, Sequence[int]]:
        """Return the source topics of the flow, or those that are ``chosen``, with their
        partitions; no heartbeats.

        Raises:
            SourceAwayError: it does not answer.
            ServerError: one may not be described: what of it is not copied is not known.
        """
        chosen = chosen or self.selection.replicate
        known = await self._copies.read()
        async with self.source() as cluster:
            topics = await Admin(cluster).list_topics()
            unlisted = self.selection.unlisted(topics, {tp.topic for tp in known.pages})
            for error in (await Admin(cluster).denied_topics(unlisted)).values():
                raise error
        self.source_ids = {name: topic.topic_id for name, topic in topics.items()}
        return {
            name: topic.partitions
            for name, topic in sorted(topics.items())
            if self.counts(name) and chosen(name)
        }

    def copy_of(self, partition: TopicPartition) -> TopicPartition:
        return partition._replace(
            topic=self.policy.remote_topic(self.names.source, partition.topic)
        )

    def comes_back(self, copy: TopicPartition, tp: TopicPartition) -> bool:
        """Whether the flow back writes what it copies of a target partition into this source
        partition."""
        return self.back_policy.remote_topic(self.back.names.source, copy.topic) == tp.topic

    async def partitions(self) -> list[TopicPartition]:
        topics = await self.topics()
        return [TopicPartition(it, number) for it, numbers in topics.items() for number in numbers]

    async def copied(self) -> Mapping[TopicPartition, int]:
        """Return the source offset below which everything is copied, for each partition that has
        copies; asks only the target."""
        copies = await self._copies.read()
        return {tp: copies.resume(tp) for tp in copies.positions.keys() | copies.pages.keys()}

    async def known(self) -> Known:
        """Return how far the flow has copied; asks only the target."""
        return await self._copies.read()

    async def known_back(self) -> Known:
        """Return how far the flow back has copied."""
        async with self.source():
            return await self._copies_back.read()

    async def source_looping(self) -> frozenset[int]:
        """Return the producer ids on the source whose batches the flow drops."""
        return await looping_ids(self._source, self.target, self.config, self.clock)

    async def target_looping(self) -> frozenset[int]:
        """Return the producer ids on the target whose batches the flow back drops; the source is
        connected."""
        config = self.back.resolve(self.back.connectors[SOURCE_NAME])
        return await looping_ids(self.target, self._source, config, self.clock)

    # ---- stores

    def _reader(self, cluster: Cluster, plan: FlowPlan) -> CopiesReader:
        topic = plan.worker.offset_storage_topic
        return CopiesReader(
            Admin(cluster), plan.name, topic, self.clock, names=plan.names, whole=True
        )

    def _tables(self, cluster: Cluster, plan: FlowPlan) -> FlowTables:
        producer = store_producer(plan.props, plan.name)
        return FlowTables(cluster, producer, permit=UNLIMITED, clock=self.clock, only_reads=True)

    def _store(self, tables: FlowTables, plan: FlowPlan, *, drives: bool) -> FailoverStore:
        topic = failover_topic(plan.name.source)
        factor = plan.worker.offset_storage_replication_factor
        table = tables.own_table(
            topic, "compact", factor, follow=drives, transactional=True, ordered=True
        )
        writer = tables.writer(failover_driver_id(str(plan.name)), topic) if drives else None
        return FailoverStore(table, writer)


def ends_first(back: FlowName, other: Failover | None) -> str:
    """Return that a failover of the flow back has to end first, empty if it is over."""
    if other is None or other.step.is_over:
        return ""
    cancels = "" if other.step.is_switched else ", or --cancel it"
    return f"{other.kind} {other.id} of {back} is at {other.step}: --execute it to its end{cancels}"
