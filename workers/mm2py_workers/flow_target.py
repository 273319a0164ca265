"""The target of a flow with the stores of jobs: what a driver and its lanes in Spark tasks have in
common.

Flow: properties of the worker -> ``FlowTarget.open`` -> the job topic, its writers, tables with a
permit. Loads no more than a lane needs.
"""

from collections.abc import Callable, Mapping
from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.backfills import backfill_topic
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.types import FlowName, TopicPartition
from mm2py_workers.internal_stores import FlowTables, store_producer


@final
class FlowTarget:
    """The target of a flow by the properties of its worker, with the job topic; what it writes
    needs no permit.

    Lanes in Spark tasks have this alone.
    """

    def __init__(self, flow: FlowName, worker: Mapping[str, str], clock: Clock) -> None:
        self.cluster = Cluster.of(worker, alias=flow.target, scope=f"worker of {flow}", clock=clock)
        self._producer = store_producer(worker, flow)
        self._flow, self._clock = flow, clock
        self.tables = FlowTables(
            self.cluster, self._producer, permit=UNLIMITED, clock=clock, only_reads=True
        )
        self._factor = parse_config(WorkerConfig, worker).offset_storage_replication_factor
        self.jobs = BackfillStore(
            self.tables.own_table(
                backfill_topic(flow.source),
                "compact",
                self._factor,
                transactional=True,
                ordered=True,
            )
        )
        self._overrides: FlowOverridesStore | None = None
        self._writers: list[KafkaPrivilegedWriter] = []
        self._permitted: list[FlowTables] = []

    async def open(self) -> None:
        """Connect and read the job topic to its end; it is created where it does not exist."""
        await self.cluster.connect()
        await self.jobs.start()

    async def follow_pauses(self, hold: Callable[[frozenset[TopicPartition]], None]) -> None:
        """Call ``hold`` with the topics and partitions paused over REST, now and later."""
        topic = flows_topic(self._flow.source)
        # Only what is paused is asked of it: that needs no config of a file.
        overrides = self._overrides = FlowOverridesStore(
            self.tables.own_table(topic, "compact", self._factor, ordered=True),
            {},
            clock=self._clock,
        )
        overrides.listen(lambda: hold(overrides.held()))
        await overrides.start()
        hold(overrides.held())

    def writer(self, transactional_id: str) -> KafkaPrivilegedWriter:
        writer = self.tables.writer(transactional_id, backfill_topic(self._flow.source))
        self._writers.append(writer)
        return writer

    def permitted_tables(self, permit: Permit) -> FlowTables:
        """Return tables of its own for what is written only with a permit; closed with this."""
        tables = FlowTables(self.cluster, self._producer, permit=permit, clock=self._clock)
        self._permitted.append(tables)
        return tables

    async def close(self) -> None:
        for writer in self._writers:
            await writer.close()
        if self._overrides is not None:
            await self._overrides.stop()
        await self.jobs.stop()
        for tables in (*self._permitted, self.tables):
            await tables.close()
        await self.cluster.close()
