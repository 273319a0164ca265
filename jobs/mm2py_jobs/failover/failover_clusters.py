"""Both clusters of a flow for a failover: connections, topics, how far the copy is, and the failover topics on both.

Flow: ``FlowPlan`` of the flow and of the way back -> ``FailoverClusters`` -> ``pairs``, ``progress``, ``positions`` of either way. The source
may be gone: what asks it raises ``SourceAwayError``. Creates nothing but the failover topics.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.fetch.partition_fetch import fetch_partition
from mm2py.client.fetch.range_reader import LogEnds, RangeReader, log_ends
from mm2py.client.permit import UNLIMITED
from mm2py.clock import Clock
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.errors import (
    ConnectionFailedError,
    ProtocolError,
    RequestTimedOutError,
    RetriableServerError,
    UnsupportedVersionError,
)
from mm2py.mirror.failovers import OpenTransaction, failover_driver_id, failover_topic
from mm2py.mirror.filters import TopicSelection, topic_filter_from_config
from mm2py.mirror.ledger import IncarnationRecord, encode_incarnation, ledger_topic
from mm2py.mirror.offset_map import Page, PartitionMap
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import (
    PRODUCERS_TOPIC,
    ProducerOrigins,
    Suppression,
    decode_producer,
    suppression_of,
)
from mm2py.protocol.admin_messages import ActiveProducer
from mm2py.protocol.error_codes import NETWORK_EXCEPTION
from mm2py.protocol.log_batches import LogBatch
from mm2py.protocol.record_batch import HEADER
from mm2py.protocol.records import Record, decode_batches
from mm2py.protocol.topics import NO_TOPIC_ID, EpochEnd
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_jobs.copy.survey import CopiesReader, Known, is_another
from mm2py_jobs.failover.failover import Progress, SourceAwayError
from mm2py_jobs.failover.failover_store import FailoverStore
from mm2py_workers.bulk_flow import SOURCE, reads_committed, source_connector
from mm2py_workers.hosted_flow import HostedMaps
from mm2py_workers.internal_stores import FlowTables, store_producer
from mm2py_workers.node_parts import FlowPlan

CONNECT_S: Final = 8.0
"""How long the source may take to answer at all."""

_IMPATIENT: Final = {"default.api.timeout.ms": "8000", "request.timeout.ms": "5000"}
"""Of what asks the source, which may be gone."""

_FIRST_BYTES: Final = 64 * 1024
_PRODUCER_ID: Final = 9
"""Field of ``HEADER``."""


def producer_of(batch: LogBatch) -> int:
    """Return the producer id of a batch, -1 for a producer without one."""
    return int(HEADER.unpack_from(batch.data)[_PRODUCER_ID])


@final
class LoopingIds:
    """Producer ids on a cluster whose batches a flow from it does not copy: those of mirrors of its target, as ``loop.suppression`` says.

    Args:
        source, target: of the flow.
        config: of its source connector.
    """

    def __init__(
        self, source: Cluster, target: Cluster, config: Mapping[str, str], clock: Clock
    ) -> None:
        self._source, self._target, self._clock = source, target, clock
        self._suppression = suppression_of(config)
        self._reader: LogReader | None = None
        self._origins: ProducerOrigins | None = None

    async def read(self) -> frozenset[int]:
        """Return those that are known now; both clusters are connected."""
        if self._suppression is Suppression.OFF:
            return frozenset()
        if self._reader is None or self._origins is None:
            if PRODUCERS_TOPIC not in await Admin(self._source).describe_topics([PRODUCERS_TOPIC]):
                return frozenset()
            self._reader = LogReader(self._source, PRODUCERS_TOPIC, clock=self._clock)
            self._origins = ProducerOrigins(
                everything=self._suppression is Suppression.ALL,
                target=self._target.alias,
                target_cluster=self._target.cluster_id,
            )
        await self._reader.read_to_end(self._take)
        return frozenset(self._origins.known.looping)

    async def aclose(self) -> None:
        """End a read that is under way."""
        if self._reader is not None:
            await self._reader.close()

    def _take(self, _partition: int, record: Record) -> None:
        assert self._origins is not None
        if record.value is not None:
            with suppress(ProtocolError):  # the flow's task logs it
                self._origins.learn(decode_producer(record.key, bytes(record.value)))


@final
class FailoverClusters:
    """A flow and its way back with open connections; an asynchronous context manager.

    Args:
        plan: of the flow.
        back: of the flow from its target to its source.
    """

    def __init__(self, plan: FlowPlan, back: FlowPlan, clock: Clock) -> None:
        self.plan, self.back, self.clock = plan, back, clock
        self.name: FlowName = plan.name
        self.config: Mapping[str, str] = plan.resolve(plan.connectors[SOURCE])
        self._connected = False
        self.target = _cluster(self.config, "target", plan.name.target, clock)
        self._source = _cluster(self.config, "source", plan.name.source, clock)
        self.target_tables = self._tables(self.target, plan)
        self.source_tables = self._tables(self._source, back)
        # Of their own: a table that is opened creates all topics of its kind, and a plan creates none.
        self._store_tables = self._tables(self.target, plan), self._tables(self._source, back)
        self._read_config()
        self.store = self._store(self.target, self._store_tables[0], plan, drives=True)
        self._source_store: FailoverStore | None = None
        self._copies = CopiesReader(
            Admin(self.target), plan.name, plan.worker.offset_storage_topic, clock
        )
        self._looping = LoopingIds(self._source, self.target, self.config, clock)
        self.source_ids: dict[str, bytes] = {}
        """Topic ids on the source, as ``topics`` has found them last."""
        self._ends: dict[TopicPartition, int] = {}
        self._counted: dict[TopicPartition, int] = {}

    def _read_config(self) -> None:
        options = parse_config(MirrorSourceConfig, self.config)
        self.policy = policy_from_config(self.config)
        self.keeps_names = not self.policy.detects_cycles
        self.selection = self.selection_of(self.name, self.config)
        self.read_committed = reads_committed(self.plan, self.config)
        self.replication_factor = options.replication_factor

    def selection_of(self, name: FlowName, config: Mapping[str, str]) -> TopicSelection:
        """Return which topics a flow with this source connector copies."""
        return TopicSelection(
            policy_from_config(config),  # it knows the flow's aliases
            topic_filter_from_config(config),
            source_alias=name.source,
            target_alias=name.target,
            # The heartbeats topic grows without end, and what is lost at its end is missed by nobody.
            replicate_heartbeats=False,
        )

    async def __aenter__(self) -> "FailoverClusters":
        """Reach the target and learn what was changed over REST.

        Raises:
            RetriableError: the target does not answer.
        """
        try:
            await self.target.connect()
            found = await source_connector(self.plan, self.target_tables, self.clock)
            if found is not None:
                self.config = found
                self._read_config()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._copies.close()
        await self._looping.aclose()
        for store in (self.store, self._source_store):
            if store is not None:
                await store.stop()
        for tables in (*self._store_tables, self.source_tables, self.target_tables):
            await tables.close()
        await self._source.close()
        await self.target.close()

    # ---- the source, which may be gone

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[Cluster]:
        """Lend the source, connected.

        Raises:
            SourceAwayError: it does not answer.
        """
        try:
            if not self._connected:
                async with asyncio.timeout(CONNECT_S):
                    await self._source.connect()
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
        """Whether the source answers."""
        try:
            async with self.source() as cluster:
                await cluster.metadata([])
        except SourceAwayError:
            return False
        return True

    async def source_store(self) -> FailoverStore:
        """Return the failover topic of the source: the fence on it, and the newest failover of the way back."""
        async with self.source() as cluster:
            if self._source_store is None:
                store = self._store(cluster, self._store_tables[1], self.back, drives=False)
                await store.start()
                self._source_store = store
            await self._source_store.refresh()
            return self._source_store

    async def seen_source_store(self) -> FailoverStore | None:
        """Return it where it is there: what only reads does not create it."""
        topic = failover_topic(self.back.name.source)
        async with self.source() as cluster:
            is_there = topic in await Admin(cluster).describe_topics([topic])
        return await self.source_store() if is_there else None

    # ---- what is copied, and how far

    async def topics(
        self, chosen: Callable[[str], bool] | None = None
    ) -> Mapping[str, Sequence[int]]:
        """Return the source topics of the flow, or those that are ``chosen``, with their partitions."""
        chosen = chosen or self.selection.replicate
        async with self.source() as cluster:
            found = await Admin(cluster).list_topics()
        self.source_ids = {name: it.topic_id for name, it in found.items()}
        return {name: it.partitions for name, it in sorted(found.items()) if chosen(name)}

    def copy_of(self, partition: TopicPartition) -> TopicPartition:
        """Return the copy of a source partition."""
        return partition._replace(topic=self.policy.remote_topic(self.name.source, partition.topic))

    async def partitions(self) -> list[TopicPartition]:
        """Return the source partitions of the flow."""
        topics = await self.topics()
        return [TopicPartition(it, number) for it, numbers in topics.items() for number in numbers]

    async def progress(self) -> Progress:
        """Return how far the copy is; ends do not count what mirrors alone have written since the last call."""
        partitions = await self.partitions()
        async with self.source() as cluster:
            found = await log_ends(cluster, partitions, read_committed=False)
            stable = await log_ends(cluster, partitions, read_committed=True)
            ends = {tp: await self._end_of_others(cluster, tp, it.end) for tp, it in found.items()}
            copied = await self._copied_of(cluster, found)
        return Progress(ends, copied, {tp: it.end for tp, it in stable.items()})

    async def _copied_of(
        self, cluster: Cluster, logs: Mapping[TopicPartition, LogEnds]
    ) -> Mapping[TopicPartition, int]:
        """Return below which offsets the logs of the source, as they are now, are copied."""
        known, ids = await self._copies.read(), self.source_ids
        epochs = {
            tp: epoch
            for tp in logs
            if (epoch := known.epoch(tp, known.resume_in(tp, ids[tp.topic]))) >= 0
        }
        ended: Mapping[TopicPartition, EpochEnd] = {}
        with suppress(UnsupportedVersionError):  # before 2.0
            ended = await Admin(cluster).epoch_ends(epochs)
        return {tp: known.copied(tp, ids[tp.topic], it, ended.get(tp)) for tp, it in logs.items()}

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        """Name the transactions that hold back last stable offsets, but those of mirrors, as far as the source's brokers disclose them."""
        if not held:
            return ()
        found: list[OpenTransaction] = []
        async with self.source() as cluster:
            looping, admin = await self.source_looping(), Admin(cluster)
            known: Mapping[TopicPartition, Sequence[ActiveProducer]] = {}
            with suppress(UnsupportedVersionError):  # before 2.8
                known = await admin.describe_producers(held)
            ids = {
                it.producer_id
                for producers in known.values()
                for it in producers
                if it.transaction_start >= 0
            }
            names = await admin.transactional_ids(ids)
            for tp, stable in sorted(held.items()):
                for it in known.get(tp, (ActiveProducer(-1, -1, -1, stable),)):
                    if it.transaction_start < 0 or it.producer_id in looping:
                        continue
                    name, coordinator = names.get(it.producer_id, ("", -1))
                    stamp = await first_stamp(cluster, tp, it.transaction_start)
                    found.append(
                        OpenTransaction(
                            topic=tp.topic,
                            partition=tp.partition,
                            offset=it.transaction_start,
                            producer_id=it.producer_id,
                            epoch=it.epoch,
                            transactional_id=name,
                            coordinator=coordinator,
                            since_ms=-1 if stamp is None else stamp,
                        )
                    )
        return found

    async def copied(self) -> Mapping[TopicPartition, int]:
        """Return below which source offset everything is copied, for each partition that has copies; asks the target alone."""
        known = await self._copies.read()
        return {tp: known.resume(tp) for tp in known.positions.keys() | known.pages.keys()}

    async def begin_incarnations(self, partitions: Collection[TopicPartition]) -> None:
        """Let stored positions and maps belong to the source's topics of now; the flow, which is stopped, would begin new ones again.

        The ledger is written last: until then everything counts as of the former incarnation, and is done again.
        """
        known, ids = await self._copies.read(), self.source_ids
        maps: dict[TopicPartition, list[Page]] = {}
        for tp in partitions:
            if (page := known.pages.get(tp)) and is_another(page.source_id, ids[tp.topic]):
                begun = PartitionMap(page)
                begun.identify(ids[tp.topic])
                maps[tp] = begun.take()
        worker = self.plan.worker
        factor = worker.offset_storage_replication_factor
        if maps:
            hosted = HostedMaps(
                self.target_tables,
                self.name.source,
                factor,
                transactional=worker.exactly_once,
            )
            try:
                await hosted.write(maps)
            finally:
                await hosted.close()
        records = [
            IncarnationRecord(
                partition=tp,
                topic_id=ids[tp.topic],
                flow=str(self.name),
                time_ms=self.clock.now_ms(),
            )
            for tp in partitions
            if is_another(known.incarnations.get(tp, NO_TOPIC_ID), ids[tp.topic])
        ]
        if not records:
            return
        table = self.target_tables.own_table(
            ledger_topic(self.name.source), "delete", factor, follow=False
        )
        await table.start(lambda _partition, _record: None)
        try:
            await table.post([encode_incarnation(it) for it in records])
        finally:
            await table.stop()

    async def known(self) -> Known:
        """Return how far the flow has copied; asks the target alone."""
        return await self._copies.read()

    async def known_back(self) -> Known:
        """Return how far the flow back has copied."""
        topic = self.back.worker.offset_storage_topic
        async with self.source() as source:
            reader = CopiesReader(Admin(source), self.back.name, topic, self.clock)
            try:
                return await reader.read()
            finally:
                await reader.close()

    async def copies_end(self, partition: TopicPartition) -> int:
        """Return the target offset behind the newest copy of a source partition, -1 where that is not known."""
        return (await self._copies.read()).target_end(partition)

    async def _end_of_others(self, cluster: Cluster, tp: TopicPartition, end: int) -> int:
        """Return the end of a log, or the one before where only what the flow leaves out was written since."""
        before = self._ends.get(tp)
        self._ends[tp] = end
        if before is None:
            self._counted[tp] = end
        elif end != before:
            looping = await self.source_looping()
            reader = RangeReader(cluster, read_committed=False)
            written = (
                [producer_of(it) async for part in reader.read(tp, before, end) for it in part]
                if looping
                else ()
            )
            if not looping or not looping.issuperset(written):
                self._counted[tp] = end
        return self._counted[tp]

    async def source_looping(self) -> frozenset[int]:
        """Return the producer ids on the source whose batches the flow leaves out."""
        return await self._looping.read()

    def target_looping(self) -> LoopingIds:
        """Return those on the target whose batches the flow back leaves out; the source is connected."""
        config = self.back.resolve(self.back.connectors[SOURCE])
        return LoopingIds(self.target, self._source, config, self.clock)

    # ---- inside

    def _tables(self, cluster: Cluster, plan: FlowPlan) -> FlowTables:
        producer = store_producer(plan.props, plan.name)
        return FlowTables(cluster, producer, permit=UNLIMITED, clock=self.clock)

    def _store(
        self, cluster: Cluster, tables: FlowTables, plan: FlowPlan, *, drives: bool
    ) -> FailoverStore:
        topic = failover_topic(plan.name.source)
        factor = plan.worker.offset_storage_replication_factor
        table = tables.own_table(topic, "compact", factor, follow=drives, transactional=True)
        if not drives:
            return FailoverStore(table)
        writer = KafkaPrivilegedWriter(
            cluster,
            store_producer(plan.props, plan.name),
            failover_driver_id(str(plan.name)),
            TopicPartition(topic, 0),
            permit=UNLIMITED,
            clock=self.clock,
        )
        return FailoverStore(table, writer)


async def first_stamp(source: Cluster, tp: TopicPartition, start: int) -> int | None:
    """Return the time of the first record from an offset on; None where it is not known."""
    fetched = await fetch_partition(source, tp, start, max_bytes=_FIRST_BYTES)
    for batch in decode_batches(fetched.records) if fetched.records is not None else ():
        for record in batch.records:
            if record.offset >= start and not batch.is_control:
                return record.timestamp if record.timestamp >= 0 else None
    return None


def _cluster(config: Mapping[str, str], side: str, alias: ClusterAlias, clock: Clock) -> Cluster:
    props = effective_client_properties(
        config, "source" if side == "source" else "target", "admin", role="failover"
    )
    if side == "source":
        props |= _IMPATIENT
    return Cluster(connection_settings(props, scope=f"cluster {alias}"), alias=alias, clock=clock)
