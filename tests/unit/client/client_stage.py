"""What tests of the client share: clusters on fake brokers, batches to send, and ids of mirrors."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.owner import Announce, MirrorIds
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.clients import ConnectionSettings
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
    cluster = cluster_of(*at, alias=alias, clock=clock, **changes)
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()


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
