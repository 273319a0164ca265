"""What tests of the client share: clusters on fake brokers, batches to send, and ids of mirrors."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from math import inf

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.owner import Announce, MirrorIds
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import CopiedSoFar
from mm2py.clock import SYSTEM_CLOCK, Clock, closing
from mm2py.config.clients import ConnectionSettings, ProducerSettings
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

QUICK = {
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "default_api_timeout_ms": 5_000,
}


def cluster_of(
    *at: FakeBroker | int, alias: str = "B", clock: Clock = SYSTEM_CLOCK, **changes: int
) -> Cluster:
    """Return a cluster with these brokers, or ports, as bootstrap servers, that retries at once."""
    ports = (it if isinstance(it, int) else it.port for it in at)
    servers = tuple(("127.0.0.1", port) for port in ports)
    # Each test changes one or two fields, all of them numbers.
    settings = ConnectionSettings(bootstrap_servers=servers, **(QUICK | changes))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return Cluster(settings, alias=alias, clock=clock)


@asynccontextmanager
async def connected_to(
    *at: FakeBroker | int, alias: str = "B", clock: Clock = SYSTEM_CLOCK, **changes: int
) -> AsyncGenerator[Cluster]:
    """A cluster of ``cluster_of`` that is connected."""
    async with closing(cluster_of(*at, alias=alias, clock=clock, **changes)) as cluster:
        await cluster.connect()
        yield cluster


def to_send(values: Sequence[bytes], first: int = 0, *, stamp: int = 0) -> RecordBatch:
    """Return a batch of these values with the source offsets from ``first`` on, of now or ``stamp``."""
    stamp, count = stamp or SYSTEM_CLOCK.now_ms(), len(values)
    data = encode_batch([NewRecord(None, value, (), stamp) for value in values])
    return RecordBatch(data, first, first + count - 1, count, stamp, 0, 0, ((first, count),), None)


def signed(*values: bytes) -> bytes:
    """Return a batch without a producer, as an application writes it."""
    data = encode_batch([NewRecord(b"k", value, (), 1) for value in values])
    sign(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return bytes(data)


def numbers_in(broker: FakeBroker, tp: TopicPartition) -> list[int]:
    """Return the numbers that the values of a log are, without what pads them."""
    batches = (batch for data in broker.log(tp) for batch in decode_batches(data))
    return [int((it.value or b"").rstrip(b"x ")) for batch in batches for it in batch.records]


MIRROR = 7_001


class Ids(MirrorIds):
    """One mirror is known."""

    def __init__(self, announce: Announce | None = None) -> None:
        self._announce = announce
        self.asked: list[int] = []
        self.error: Exception | None = None

    async def announce(self, producer_id: int) -> None:
        """Pass it on."""
        if self._announce is not None:
            await self._announce(producer_id)

    async def includes(self, producer_id: int) -> bool:
        """Note who was asked for."""
        self.asked.append(producer_id)
        if self.error is not None:
            raise self.error
        return producer_id == MIRROR


PRODUCE = 0
SOURCE = TopicPartition("t", 0)


class SendRig:
    """A Sender to one fake broker, and what it reported."""

    def __init__(
        self,
        broker: FakeBroker,
        cluster: Cluster,
        *,
        clock: Clock = SYSTEM_CLOCK,
        mirror_ids: MirrorIds | None = None,
        copied: CopiedSoFar | None = None,
        **settings: int | str,
    ) -> None:
        self.broker, self.cluster = broker, cluster
        self.delivered: list[tuple[TopicPartition, int, int]] = []
        self.arrived: dict[TopicPartition, list[int]] = {}
        """Source offsets of what was delivered, by target."""
        self.failed: list[tuple[TopicPartition, Exception]] = []
        self.failed_sources: list[TopicPartition] = []
        self.stalled: list[tuple[TopicPartition, bool]] = []
        self.causes: list[str] = []
        self.doubts: list[tuple[TopicPartition, int, int]] = []
        self.delivery_errors: list[Exception] = []
        self.settled = asyncio.Event()
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.sender = Sender(
            cluster,
            # Each test changes one or two fields.
            ProducerSettings(connection=cluster.settings, **settings),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            clock=clock,
            on_delivered=self._on_delivered,
            on_failed=self._on_failed,
            on_stalled=self._stall,
            on_doubt=lambda source, first, last, _: self.doubts.append((source, first, last)),
            mirror_ids=mirror_ids,
            permit=self.permit,
            copied=copied,
        )
        self._next: dict[TopicPartition, int] = {}

    def _on_delivered(
        self, _source: TopicPartition, target: TopicPartition, batch: RecordBatch, offset: int
    ) -> None:
        if self.delivery_errors:
            raise self.delivery_errors.pop()
        self.delivered.append((target, batch.base_offset, offset))
        for first, count in batch.runs:
            self.arrived.setdefault(target, []).extend(range(first, first + count))

    def _stall(self, target: TopicPartition, error: Exception | None) -> None:
        self.stalled.append((target, error is not None))
        self.causes += [] if error is None else [str(error)]

    def _on_failed(self, source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        self.failed.append((target, error))
        self.failed_sources.append(source)
        self.settled.set()

    def enqueue(
        self, target: TopicPartition, count: int = 1, *, stamp: int = 0, size: int = 10
    ) -> None:
        first = self._next.get(target, 0)
        self._next[target] = first + count
        values = [b"%d" % (first + i) + b"x" * size for i in range(count)]
        self.sender.enqueue(SOURCE, target, [to_send(values, first, stamp=stamp)])

    def go_back(self, target: TopicPartition, number: int) -> None:
        """Queue from this record on again."""
        self._next[target] = number

    def stored(self, target: TopicPartition) -> list[int]:
        """Return the numbers of the records in the target's log, in order."""
        return numbers_in(self.broker, target)

    async def flushed(self) -> None:
        assert await self.sender.flush(10)

    @asynccontextmanager
    async def backlog(self) -> AsyncGenerator[None]:
        """Let what is queued meanwhile wait for the answer to the first request."""
        hold = self.broker.hold(PRODUCE)
        yield
        await hold.arrived.wait()
        hold.release()
