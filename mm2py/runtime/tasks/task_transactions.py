"""A task's records and positions in transactions: exactly once
(``exactly.once.source.support=enabled``).

Flow: guard (earlier producers are fenced) -> InitProducerId -> guard (this task is still the right
one) -> data in a transaction -> ``commit``: what left is acknowledged -> positions -> EndTxn ->
deliveries are reported. A transaction that cannot be committed fails its task, which starts again
from the committed positions.

Invariants (tests of the same names):

1. A position is visible if and only if every record up to it is: both are in one transaction, and
   the offset map too.
2. A record is reported as delivered only after its transaction was committed.
3. No transaction is begun before the guard has confirmed the task after its InitProducerId.
4. A commit that has begun is finished or known to have failed before another one begins, also when
   its caller is cancelled.
5. A transaction with records of a partition whose loss ledger entry is not written waits for it.
6. What was written without transactions after the position (by a lane on Spark, or by the flow
   before it was exactly once) is recognised in the target's log, not sent again; what transactions
   left there is not: it was aborted, or its position is committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.owner import Announce
from mm2py.client.send.record_writer import RecordWriter
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import CopiedSoFar
from mm2py.client.send.transactions import Transactions
from mm2py.clock import Clock, cancelled, until_tick_s, wait_or_stop
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import ProducerSettings
from mm2py.errors import FatalError, ServerError
from mm2py.mirror.offset_map_pages import Page
from mm2py.protocol.columns import partition_of
from mm2py.protocol.error_codes import error_name
from mm2py.protocol.records import NewRecord
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.own_offsets import OwnTopicOffsets
from mm2py.runtime.tasks.target_sender import OnDelivered, OnDoubt, OnFailed, OnStalled
from mm2py.storage.offset_map_store import MapsOver, MapStore, page_entries
from mm2py.storage.table import Entry, batched
from mm2py.types import NO_PRODUCER_ID, TaskId, TopicPartition

log = logging.getLogger(__name__)

LEDGER_S: Final = 1.0
SLOW_S: Final = 10.0
"""A commit that takes longer is reported; usual is milliseconds."""

SAME_CAUSE: Final = 3
"""After this many failures for one cause before the first commit, thus at the same position, a task
starts in single-batch mode."""


@dataclass(slots=True)
class Starts:
    """The last starts of one task: how many in a row failed for one cause before anything was
    committed."""

    cause: int = 0
    failures: int = 0

    def ended(self, error: Exception, *, committed: bool) -> None:
        """Count the end of a task whose transaction broke."""
        cause = error.__cause__
        # Only a broker's refusal of the same batch at the same position can repeat; after a commit
        # the position has moved.
        code = cause.code if isinstance(cause, ServerError) and not committed else 0
        self.failures = self.failures + 1 if code and code == self.cause else int(code != 0)
        self.cause = code

    @property
    def remark(self) -> str:
        """Return why the next start sends one batch at a time, empty where it need not."""
        if self.failures < SAME_CAUSE:
            return ""
        return (
            f"{self.failures} starts failed for {error_name(self.cause)} before the first "
            "commit: one batch of a partition is"
            " sent at a time from now on; restart the task when the cause is gone"
        )


class StartGuard(Protocol):
    """Asked before and after a task's InitProducerId, so that neither an old nor an outdated task
    can write.

    ``fence`` alone is not enough: between it and InitProducerId a newer commit may have fenced this
    task's id already, and our InitProducerId would in turn fence the rightful owner. ``verify``
    closes that window (Connect's pre- and post-producer checks).
    """

    async def fence(self, task: TaskId) -> None: ...
    async def verify(self, task: TaskId, generation: int) -> None: ...


class Unguarded(StartGuard):
    """For tasks without transactions."""

    async def fence(self, task: TaskId) -> None:
        """Nothing to fence."""

    async def verify(self, task: TaskId, generation: int) -> None:
        """Nothing to verify."""


def committed_reads(config: Mapping[str, str]) -> Mapping[str, str]:
    """Return a task's config with ``isolation.level=read_committed`` for a mirror's source where
    the user is silent.

    Java copies aborted records then, exactly once. A value that is set counts, with a warning.
    """
    # Only mirrors read Kafka; any other source connector has no isolation level.
    if "source.cluster.alias" not in config:
        return config
    level = effective_client_properties(config, "source", "consumer").get("isolation.level")
    if level is None:
        return {**config, "source.consumer.isolation.level": "read_committed"}
    if level.strip().lower() != "read_committed":
        log.warning(
            "records of aborted transactions of the source are copied isolation.level=%s; set"
            " <source>.consumer.isolation.level=read_committed to leave them out",
            level,
        )
    return config


@final
class TaskTransactions:
    """The Sender, the offset store and the transactions of one task.

    Args:
        cluster: of this task alone; opened and closed here.
        settings: of the task's producer.
        transactional_id: ``<group.id>-<connector>-<task>``.
        store: where positions are read.
        topic: where they are written, in the transaction.
        own: takes the place of ``store`` where ``topic`` is not the worker's, which then gets a
            copy of each position; closed elsewhere.
        guard: the worker's, bound to the task.
        announce: makes each producer id known before anything is sent under it.
        interval_s: how long a transaction stays open for more records.
        starts: of this task in this process, before this one.
    """

    def __init__(  # noqa: PLR0913 - one keyword per part of a task's producer
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        transactional_id: str,
        *,
        store: OffsetStore,
        topic: str,
        own: OwnTopicOffsets | None = None,
        fence: Callable[[], Awaitable[None]],
        verify: Callable[[], Awaitable[None]],
        announce: Announce | None = None,
        interval_s: float,
        clock: Clock,
        permit: Permit = UNLIMITED,
        starts: Starts | None = None,
    ) -> None:
        self._starts = Starts() if starts is None else starts
        self.remark = self._starts.remark
        """What is to be reported of this start."""
        if self.remark:
            # One request in flight per connection, so that the refusal is about the batch that
            # caused it and not about those behind it.
            settings = settings.model_copy(update={"max_in_flight_requests_per_connection": 1})
        self._cluster, self._settings = cluster, settings
        self._store, self.topic, self._own = own or store, topic, own
        self._fence, self._verify = fence, verify
        self.interval_s = interval_s
        self._clock, self._permit = clock, permit
        self.transactions = Transactions(
            cluster,
            transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            announce=announce,
            clock=clock,
            permit=permit,
        )
        self.transactions.on_broken(self._broken)
        self._writer = RecordWriter(
            cluster, settings, clock=clock, permit=permit, transactions=self.transactions
        )
        self._last: list[tuple[TopicPartition, Sequence[NewRecord]]] = []
        self._sender: Sender | None = None
        self._partitions = 0
        self._moved = False
        """Whether a position was committed."""

    def sender(
        self,
        on_delivered: OnDelivered,
        on_failed: OnFailed,
        on_stalled: OnStalled,
        on_doubt: OnDoubt,
        copied: CopiedSoFar | None,
    ) -> Sender:
        self._sender = Sender(
            self._cluster,
            self._settings,
            clock=self._clock,
            on_delivered=on_delivered,
            on_failed=on_failed,
            on_stalled=on_stalled,
            on_doubt=on_doubt,
            permit=self._permit,
            copied=copied,
            transactions=self.transactions,
        )
        return self._sender

    def _broken(self, error: Exception) -> None:
        self._starts.ended(error, committed=self._moved)

    async def start(self) -> None:
        """Become the one producer of this task (3); may be called again after a
        ``RetriableError``."""
        assert self._sender is not None, "sender() was called"
        await self._cluster.connect()
        # After a RetriableError below: InitProducerId is done already, and a second one would only
        # raise the epoch.
        if self.transactions.producer_id == NO_PRODUCER_ID:
            # KIP-618's order, as ``ExactlyOnceWorkerSourceTask``: pre-producer check (fence),
            # initTransactions, post-producer check.
            await self._fence()
            await self.transactions.start()
        # Between fence and InitProducerId the leader may have published other tasks: without this
        # check an outdated task fences its successor.
        await self._verify()
        if not self._partitions:
            if self._own is not None:
                await self._own.get(())  # makes the topic
            topics = (await self._cluster.metadata([self.topic])).topics
            self._partitions = len(topics[0].partitions) if topics else 0
            if not self._partitions:
                raise FatalError(f"the offset topic {self.topic} is not there")
            await self._writer.start()
            await self._sender.start()

    @property
    def held_up_by(self) -> str:
        """Return why a commit takes long, as far as that is known here."""
        stalled = self._writer.stalled
        if not stalled:
            return "the target holds it up"
        target, cause = next(iter(stalled.items()))
        return (
            f"{target} cannot be written: {cause}; a worker that starts creates topics that "
            "are missing"
        )

    def check_target(self, topic: str) -> None:
        """Refuse records for the topic that holds their own positions, as Connect does."""
        # Connect's check against a deadlock: reading positions waits for open transactions on that
        # topic, the task's own among them.
        if topic == self.topic:
            raise FatalError(
                f"a record goes to {topic}, which holds the task's own source offsets",
                remedy="leave the topic out of what is copied",
            )

    def add_last(self, tp: TopicPartition, entries: Sequence[Entry]) -> None:
        """Add our own records to the transaction, after all data: ``commit`` writes them."""
        self._last += (
            (tp, [NewRecord(key, value, (), -1) for key, value in batch])
            for batch in batched(entries)
        )

    async def commit(self) -> None:
        """Write what goes last and end the transaction, after it was settled; raises as
        ``Transactions.settle``."""
        # At once: they share a request, and a quota may keep the next one waiting for long
        # (KIP-219).
        last, self._last = self._last, []
        await asyncio.gather(*(self._writer.write(tp, records) for tp, records in last))
        await self.transactions.commit()

    # ---- OffsetStore

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return await self._store.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write positions in the transaction and commit it."""
        by_partition: dict[int, list[Entry]] = {}
        for key, value in values.items():
            by_partition.setdefault(partition_of(key, self._partitions), []).append((key, value))
        for partition, entries in by_partition.items():
            self.add_last(TopicPartition(self.topic, partition), entries)
        await self.commit()
        self._moved = True
        if self._own is not None:
            self._own.copy(values)

    async def close(self) -> None:
        """Abort what is open and close the connections; the Sender is closed before."""
        await self.transactions.close()
        await self._writer.close()
        await self._cluster.close()


@final
class TransactionMaps(MapsOver):
    """The offset maps of a task, written in its transactions: they are never ahead of what is
    committed.

    Pages are removed outside of any transaction: nothing can ask for them, whether or not one is
    aborted.

    Args:
        maps: where they are read.
        transactions: the task's.
    """

    def __init__(self, maps: MapStore, transactions: TaskTransactions) -> None:
        super().__init__(maps)
        self._transactions = transactions

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        """Add pages to the transaction: where it is not committed its task ends, and they are read
        anew."""
        if self.topic:
            self._transactions.add_last(TopicPartition(self.topic, 0), page_entries(pages))


@final
class TransactionCommits:
    """When the transactions of a running task end.

    Args:
        parts: the task's transactions.
        commit: commits what is acknowledged: positions, then what was delivered, then
            ``task.commit``.
        pending: whether there are positions without data to write.
        idle_s: how long those may wait.
        report: called with the cause while a commit takes long, and with an empty text when it is
            done.
    """

    def __init__(
        self,
        parts: TaskTransactions,
        commit: Callable[[], Coroutine[object, object, None]],
        pending: Callable[[], bool],
        *,
        idle_s: float,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        self._report = report
        self._parts, self._commit_now, self._pending = parts, commit, pending
        self._idle_s, self._clock = idle_s, clock
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Commit whenever a transaction has been open for its interval, until cancelled or
        broken."""
        began = self._parts.transactions.began
        while True:
            if await wait_or_stop(self._clock, until_tick_s(self._clock, self._idle_s), began):
                await self._clock.sleep(self._parts.interval_s)
            elif not self._pending():
                continue
            await self.commit()

    async def commit(self) -> None:
        """Commit, or join the commit that is under way (4)."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._commit_now(), name="transaction commit")
        running, is_slow = self._running, False
        while not running.done():
            await asyncio.wait({running}, timeout=SLOW_S)  # which, cancelled, leaves it running
            if not running.done():
                is_slow = True
                self._report(f"a transaction is not committed yet: {self._parts.held_up_by}")
        if is_slow:
            self._report("")
        running.result()

    async def finish(self, timeout_s: float) -> None:
        """Finish the commit that is under way and commit the rest; ``TimeoutError`` when that takes
        too long."""
        async with asyncio.timeout(timeout_s):
            if self._running is not None and not self._running.done():
                await asyncio.shield(self._running)
            await self.commit()

    async def close(self) -> None:
        """End a commit that has not finished in time: whether it counts is in the target's log."""
        await cancelled(self._running)
