"""A Sender on real brokers: what it delivered and what it reported."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.sender import Sender
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings, parse_bootstrap_servers
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition

SOURCE = TopicPartition("source", 0)


class Sending:
    """Sends batches of one record per value and collects what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.delivered: list[tuple[int, int]] = []
        """(first source offset, target offset) of each batch."""
        self.failed: list[Exception] = []
        self.doubts: list[tuple[int, int]] = []
        self.sender = Sender(
            cluster,
            ProducerSettings(connection=cluster.settings),
            clock=SYSTEM_CLOCK,
            on_delivered=lambda _source, _target, batch, offset: self.delivered.append(
                (batch.base_offset, offset)
            ),
            on_failed=lambda _source, _target, error: self.failed.append(error),
            on_doubt=lambda _source, first, last, _error: self.doubts.append((first, last)),
        )
        self._next: dict[TopicPartition, int] = {}

    def enqueue(self, target: TopicPartition, values: Sequence[bytes], *, stamp_ms: int) -> None:
        """Send one batch."""
        first, count = self._next.get(target, 0), len(values)
        self._next[target] = first + count
        data = encode_batch([NewRecord(None, value, (), stamp_ms) for value in values])
        runs = ((first, count),)
        batch = RecordBatch(data, first, first + count - 1, count, stamp_ms, 0, 0, runs, None)
        self.sender.enqueue(SOURCE, target, [batch])

    async def flushed(self, timeout_s: float = 30) -> None:
        """Wait until everything is delivered or given up."""
        assert await self.sender.flush(timeout_s)


@asynccontextmanager
async def sending(bootstrap_servers: str) -> AsyncGenerator[Sending]:
    """Connect a Sender to a cluster."""
    connection = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="sender-test"
    )
    cluster = Cluster(connection, alias="B")
    await cluster.connect()
    found = Sending(cluster)
    try:
        await found.sender.start()
        yield found
    finally:
        await found.sender.close()
        await cluster.close()
