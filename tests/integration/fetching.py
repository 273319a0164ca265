"""A Fetcher on real brokers: what it read, in order, and what it reported."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager

from mm2py.api.context import SourceGap
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.fetcher import Fetcher
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ConsumerSettings, parse_bootstrap_servers
from mm2py.protocol.records import decode_batches
from mm2py.types import TopicPartition
from tests.integration.traffic import producer
from tests.kit.fakes.batches import sealed
from tests.kit.kafka.region import KafkaAddress


class Reading:
    """Collects values per partition."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self.cluster = cluster
        self.values: dict[TopicPartition, list[str]] = {}
        self.offsets: dict[TopicPartition, list[int]] = {}
        self.gaps: list[tuple[int, int, str]] = []
        self.failed: list[Exception] = []
        self.stalled: dict[TopicPartition, Exception] = {}
        self.fetcher = Fetcher(
            cluster,
            settings,
            clock=SYSTEM_CLOCK,
            on_gap=self._gap,
            on_failed=lambda _tp, error: self.failed.append(error),
            on_stalled=self._stalled,
        )

    def _gap(self, gap: SourceGap) -> None:
        self.gaps.append((gap.first_offset, gap.last_offset, gap.cause))

    def _stalled(self, tp: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self.stalled.pop(tp, None)
        else:
            self.stalled[tp] = error

    async def take(self) -> None:
        """Take what arrives within 100 ms."""
        for tp, batches in await self.fetcher.fetch(max_wait_ms=100, max_bytes=1 << 24):
            values, offsets = self.values.setdefault(tp, []), self.offsets.setdefault(tp, [])
            for batch in batches:
                for decoded in decode_batches(sealed(batch.data)):
                    values += [(record.value or b"").decode() for record in decoded.records]
                for first, count in batch.runs:
                    offsets += range(first, first + count)
                if batch.lease is not None:
                    batch.lease.release()

    async def hold(self, tps: Collection[TopicPartition]) -> None:
        """Pause everything that is read, and wait until the Fetches that were under way are answered."""
        self.fetcher.pause(tps)
        for node_id in self.cluster.broker_ids:
            connection = await self.cluster.connection(node_id, "fetch")
            await self.until(lambda: connection.in_flight == 0)  # noqa: B023 - awaited here

    async def until(self, done: Callable[[], bool], seconds: float = 90) -> None:
        """Take what arrives until ``done``."""
        async with asyncio.timeout(seconds):
            await self.take()  # what arrived before belongs to it
            while not done():
                await self.take()


@asynccontextmanager
async def reading(
    region: KafkaAddress,
    *,
    rack: str = "",
    max_age_ms: int = 300_000,
    request_timeout_ms: int = 30_000,
) -> AsyncGenerator[Reading]:
    """Connect a Fetcher to a region."""
    connection = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(region.bootstrap_servers),
        client_id="fetcher-test",
        client_rack=rack,
        metadata_max_age_ms=max_age_ms,
        request_timeout_ms=request_timeout_ms,
    )
    cluster = Cluster(connection, alias="A")
    await cluster.connect()
    found = Reading(cluster, ConsumerSettings(connection=connection))
    try:
        yield found
    finally:
        await found.fetcher.close()
        await cluster.close()


async def produce(region: KafkaAddress, tp: TopicPartition, values: range) -> None:
    """Write numbers as values to one partition and wait for their acknowledgements."""

    def write() -> None:
        client = producer(region)
        for number in values:
            client.produce(tp.topic, str(number), partition=tp.partition)
        assert client.flush(60) == 0

    await asyncio.to_thread(write)
