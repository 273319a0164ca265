"""A Fetcher on scripted brokers, and what it read and reported."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from mm2py.api.context import SourceGap
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.fetcher import BUFFER_BYTES, Fetcher
from mm2py.client.fetch.owner import BatchOrigins
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.client_options import CONNECTIONS
from mm2py.config.clients import ConnectionSettings, ConsumerSettings
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.testing.waiting import quoted
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import sealed
from tests.kit.fakes.broker import FakeBroker
from tests.kit.lines.delay_proxy import DelayProxy

FETCH = 1
_WITHIN_S = 90
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Rig:
    """A Fetcher on one fake broker, and what it reported."""

    def __init__(
        self,
        broker: FakeBroker,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        bytes_per_s: int = 0,
        buffer_bytes: int = BUFFER_BYTES,
        origins: BatchOrigins | None = None,
        linger_ms: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.broker = broker
        self.cluster = cluster
        self.gaps: list[tuple[TopicPartition, int, int, str]] = []
        self.returned: list[tuple[TopicPartition, bytes]] = []
        self.failed: list[tuple[TopicPartition, Exception]] = []
        self.stalled: list[tuple[TopicPartition, Exception]] = []
        self.read_again: list[TopicPartition] = []
        self.read: dict[TopicPartition, list[int]] = {}
        self.on_gap: Callable[[TopicPartition], None] = lambda _tp: None
        self.fetcher = Fetcher(
            cluster,
            settings,
            clock=clock,
            linger_ms=linger_ms,
            bytes_per_s=bytes_per_s,
            buffer_bytes=buffer_bytes,
            on_gap=self._gap,
            on_failed=lambda tp, error: self.failed.append((tp, error)),
            on_stalled=self._stalled,
            origins=origins,
        )
        self._sequences: dict[tuple[TopicPartition, int], int] = {}

    def _gap(self, gap: SourceGap) -> None:
        if gap.returns:
            self.returned.append((gap.partition, gap.topic_id))
        else:
            self.gaps.append((gap.partition, gap.first_offset, gap.last_offset, gap.cause))
        self.on_gap(gap.partition)

    def _stalled(self, tp: TopicPartition, error: Exception | None) -> None:
        if error is not None:
            self.stalled.append((tp, error))
        else:
            self.read_again.append(tp)

    def fill(
        self,
        tp: TopicPartition,
        numbers: range,
        *,
        pad: int = 0,
        timestamp_ms: int = 1_000,
        producer: int = -1,
    ) -> None:
        """Append one batch with these numbers as values, of this producer if it is given."""
        records = [NewRecord(None, (b"%d" % n).ljust(pad), (), timestamp_ms) for n in numbers]
        data = encode_batch(records)
        if producer >= 0:
            sequence = self._sequences.get((tp, producer), 0)
            self._sequences[tp, producer] = sequence + len(numbers)
            sign(data, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        self.broker.append(tp, bytes(data))

    async def take(self) -> None:
        """Take what arrives within 50 ms."""
        for tp, batches in await self.fetcher.fetch(max_wait_ms=50, max_bytes=1 << 24):
            for batch in batches:
                (decoded,) = decode_batches(sealed(batch.data))
                values = self.read.setdefault(tp, [])
                values += [int(record.value or b"") for record in decoded.records]
                if batch.lease is not None:
                    batch.lease.release()

    async def until(self, done: Callable[[], bool]) -> None:
        """Take what arrives until ``done``."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self.take()  # what arrived before belongs to it
                while not done():
                    await self.take()
        except TimeoutError:
            read = {tp: (len(values), values[-3:]) for tp, values in self.read.items()}
            text = f"not within {_WITHIN_S} s: {quoted(done)}; read, and the last of it: {read}"
            raise AssertionError(text) from None


@asynccontextmanager
async def fetching(
    *,
    reset: str = "earliest",
    isolation: str = "read_uncommitted",
    versions: Mapping[int, tuple[int, int]] | None = None,
    rack: str = "",
    max_age_ms: int = 300_000,
    partitions: int = 2,
    bytes_per_s: int = 0,
    partition_bytes: int = 1 << 20,
    max_wait_ms: int = 50,
    buffer_bytes: int = BUFFER_BYTES,
    reconnect_ms: int = 1,
    line: DelayProxy | None = None,
    connections: int = CONNECTIONS,
    partition_bytes_set: bool = False,
    origins: BatchOrigins | None = None,
    linger_ms: int = 0,
    min_bytes: int = 1,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[Rig]:
    """A Fetcher that reads topic ``t`` of one broker, over ``line`` if given."""
    async with FakeBroker(topics={"t": partitions}, versions=versions) as broker:
        port = broker.port if line is None else line.front(broker.port)
        broker.cluster.brokers[broker.node_id] = ("127.0.0.1", port)
        connection = ConnectionSettings(
            bootstrap_servers=(("127.0.0.1", port),),
            client_rack=rack,
            reconnect_backoff_ms=reconnect_ms,
            reconnect_backoff_max_ms=max(5, reconnect_ms),
            retry_backoff_ms=1,
            retry_backoff_max_ms=5,
            default_api_timeout_ms=5000,
            metadata_max_age_ms=max_age_ms,
        )
        cluster = Cluster(connection, alias="A")
        await cluster.connect()
        settings = ConsumerSettings(
            connection=connection,
            fetch_max_wait_ms=max_wait_ms,
            fetch_min_bytes=min_bytes,
            auto_offset_reset=reset,
            isolation_level=isolation,
            max_partition_fetch_bytes=partition_bytes,
            fetch_connections_max=connections,
            max_partition_fetch_bytes_set=partition_bytes_set,
        )
        rig = Rig(
            broker,
            cluster,
            settings,
            bytes_per_s=bytes_per_s,
            buffer_bytes=buffer_bytes,
            origins=origins,
            linger_ms=linger_ms,
            clock=clock,
        )
        try:
            yield rig
        finally:
            await rig.fetcher.close()
            await cluster.close()
