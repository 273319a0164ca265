"""The leader's writer of the config topic: a transactional producer that fences the leader before
it.

Flow: ``claim`` (InitProducerId of ``connect-cluster-<group.id>``) -> ``write``: each change is one
transaction. After a failure nothing is written until the next ``claim``. As Java's
``KafkaConfigBackingStore`` with exactly-once sources (KIP-618).

Both end as soon as the membership is in doubt. The herder waits for them, and only the herder can
join the group again: work that waited for the permit here would wait without end, and the flow with
it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final, Protocol, TypeVar, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.record_writer import RecordWriter
from mm2py.client.send.transactions import Transactions
from mm2py.clock import Clock, or_stop
from mm2py.config.clients import ProducerSettings
from mm2py.config.limits import MAX_CONFIG_BYTES
from mm2py.errors import ConfigError, FatalServerError, Mm2pyError, RetriableError
from mm2py.protocol.records import NewRecord
from mm2py.storage.table import Entry, batched
from mm2py.types import TopicPartition

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
"""A leader that is killed in a write holds up the next start, which reads past it, so long."""

FAILED: Final = (
    "Failed to write to config topic; this may be due to a transient error and the request can be "
    "safely retried"
)
"""Connect's text."""


class PrivilegedWriter(Protocol):
    """Writer of the records that only the leader may write."""

    @property
    def claimed(self) -> bool:
        """Whether it may write."""
        ...

    async def claim(self) -> None:
        """Take the right to write over from the previous leader."""
        ...

    async def write(self, entries: Sequence[Entry]) -> None:
        """Write entries in one transaction; ``RetriableError``: it failed, the right is lost."""
        ...

    async def close(self) -> None:
        """Give the right up; safe twice."""
        ...


@final
class Claim:
    """A claim that counts only once everything written before it has been read: its holder decides
    by that what it may write."""

    def __init__(self, writer: PrivilegedWriter) -> None:
        self._writer = writer
        self._is_read = False

    @property
    def holds(self) -> bool:
        """Whether the claim is current, as far as known, and what was written before it is read."""
        return self._is_read and self._writer.claimed

    async def take(self, read: Callable[[], Awaitable[T]]) -> T:
        """Claim, and return what ``read`` then returns; where either fails, there is no claim."""
        self._is_read = False
        await self._writer.claim()
        newest = await read()
        self._is_read = True
        return newest


@final
class KafkaPrivilegedWriter(PrivilegedWriter):
    """Implements ``PrivilegedWriter`` over one partition.

    Args:
        cluster: that holds the topic; its owner closes it.
        transactional_id: of the group's leader.
        partition: the only one of the config topic.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        transactional_id: str,
        partition: TopicPartition,
        *,
        permit: Permit,
        clock: Clock,
    ) -> None:
        self._partition = partition
        self._permit = permit
        self._new: Callable[[], tuple[Transactions, RecordWriter]] = lambda: _producer(
            cluster, settings, transactional_id, permit, clock
        )
        self._producer: tuple[Transactions, RecordWriter] | None = None
        self._term = -1
        self._turn = asyncio.Lock()

    @property
    def claimed(self) -> bool:
        return self._producer is not None and self._term == self._permit.term

    async def claim(self) -> None:
        """Fence the previous leader and abort what it left open."""
        async with self._turn:
            # A new producer each time: InitProducerId with
            # id -1 is what fences the one before (KIP-618).
            await self._drop()
            transactions, writer = self._new()
            # Before the request: a claim that was answered under the next membership is none.
            self._term = self._permit.term
            try:
                await self._while_permitted(writer.start())
            except BaseException:
                await transactions.close()
                await writer.close()
                raise
            self._producer = transactions, writer

    async def write(self, entries: Sequence[Entry]) -> None:
        async with self._turn:
            # The term changed: the membership ended, and another worker may lead by now.
            if self._producer is None or not self.claimed:
                raise RetriableError(FAILED)
            transactions, writer = self._producer
            try:
                await self._while_permitted(self._write(transactions, writer, entries))
            except (ConfigError, FatalServerError):
                await self._drop()
                raise
            except Mm2pyError as error:
                await self._drop()
                # The outcome of the transaction is unknown: read
                # on, claim again, and decide by what is there.
                raise RetriableError(f"{FAILED}: {error}") from error
            except BaseException:
                await self._drop()
                raise

    async def _write(
        self, transactions: Transactions, writer: RecordWriter, entries: Sequence[Entry]
    ) -> None:
        # The records go last in their transaction: there is no data before them.
        await transactions.settle()
        # The leases of thousands of partitions are more than a batch may have.
        for batch in batched(entries, MAX_CONFIG_BYTES):
            records = [NewRecord(key, value, (), -1) for key, value in batch]
            await writer.write(self._partition, records)
        await transactions.commit()

    async def _while_permitted(self, work: Coroutine[object, object, None]) -> None:
        """Do ``work``; cancelled, with ``RetriableError``, once writing is not permitted."""
        doubted = asyncio.Event()

        def look() -> None:
            if not self._permit.valid:
                doubted.set()

        end_watch = self._permit.watch(look)
        try:
            look()
            await or_stop(work, doubted)
        finally:
            end_watch()
        if doubted.is_set():
            raise RetriableError(f"{FAILED}: the membership of the group is in doubt")

    async def close(self) -> None:
        async with self._turn:
            await self._drop()

    async def _drop(self) -> None:
        if self._producer is not None:
            (transactions, writer), self._producer = self._producer, None
            await transactions.close()
            await writer.close()


def _producer(
    cluster: Cluster,
    settings: ProducerSettings,
    transactional_id: str,
    permit: Permit,
    clock: Clock,
) -> tuple[Transactions, RecordWriter]:
    transactions = Transactions(
        cluster,
        transactional_id,
        timeout_ms=min(settings.transaction_timeout_ms, TIMEOUT_MS),
        clock=clock,
        permit=permit,
    )
    writer = RecordWriter(cluster, settings, clock=clock, permit=permit, transactions=transactions)
    return transactions, writer
