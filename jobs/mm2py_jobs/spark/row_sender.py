"""Sends the rows of one task with our own Sender: each is acknowledged, or the task ends with its
row and the cause.

Flow: ``take`` an Arrow batch -> partitions of its topics -> ``SinkRows`` -> batches -> Sender ->
``finish`` when all are acknowledged. Rows of a partition stay in their order; those without a key
and a partition go to one partition after the other, a batch to each.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.sender import CODECS, Sender
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.clients import producer_settings
from mm2py.errors import (
    FatalError,
    FatalServerError,
    Mm2pyError,
    PartitionError,
    RetriableError,
    ServerError,
)
from mm2py.protocol.compression import compress
from mm2py.protocol.record_batch import HEADER_BYTES, Codec, RecordBatch, build_batch
from mm2py.types import TopicPartition
from mm2py_jobs.spark.login_watch import is_refused
from mm2py_jobs.spark.sink_rows import RowGroup, SinkRows

T = TypeVar("T")

_BATCH_BYTES: Final = 256 * 1024
"""Records of a batch before compression; the Sender cuts where a topic takes less."""
_LOOK_S: Final = 1.0
_PAUSE_MS: Final = 1000
"""The longest one between two questions to a target that does not answer them."""


class _Known(NamedTuple):
    partitions: int
    at_s: float


class _UnderWay(NamedTuple):
    """Rows of one batch: the place of the first among those of its partition, and all numbers."""

    first: int
    order: memoryview
    rows_from: int


@final
class RowSender:
    """One idempotent producer of one task, on the event loop of its caller.

    Args:
        properties: of Java's producer.
        timeout_s: how long the target may take nothing (``delivery.timeout.ms``).
        clock: time.
    """

    def __init__(
        self, properties: Mapping[str, str], timeout_s: float, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._settings = producer_settings(properties, scope='format("mm2py")')
        self._cluster = Cluster.of(
            properties, alias=properties["bootstrap.servers"], scope='format("mm2py")', clock=clock
        )
        self._sender = Sender(
            self._cluster,
            self._settings,
            clock=clock,
            on_delivered=self._delivered,
            on_failed=self._failed,
            on_stalled=self._stalled,
            shares_partitions=True,
        )
        self._clock, self._timeout_s = clock, timeout_s
        self._codec = CODECS.get(self._settings.compression_type, Codec.NONE)
        self._known: dict[str, _Known] = {}
        self._turns: dict[str, int] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._under_way: dict[TopicPartition, deque[_UnderWay]] = {}
        self._is_open = False
        self.rows = 0
        """That were taken."""
        self._acknowledged = 0
        self._failure: Mm2pyError | None = None
        self._causes: dict[str, str] = {}
        self._held_back_s = 0.0
        self._sender.watch_throttles(self._throttled)
        self._moved = asyncio.Event()
        self._since_s = clock.monotonic()

    async def take(self, rows: SinkRows) -> None:
        """Hand rows over; waits while more than ``buffer.memory`` is not acknowledged.

        Raises:
            FatalError: a row, the login or the right to write was refused, a row names no
                partition of its topic, or the target has taken nothing for ``timeout_s``.
        """
        if self._acknowledged == self.rows:
            # It had nothing to take while rows were made.
            self._since_s = self._clock.monotonic()
        self.rows += rows.count
        await self._open()
        partitions = await self._partitions(rows.topics)
        beyond = rows.beyond(partitions)
        if beyond is not None:
            # Partitions may have been added meanwhile.
            self._known.clear()
            partitions = await self._partitions(rows.topics)
            beyond = rows.beyond(partitions)
        if beyond is not None:
            row, topic, partition = beyond
            raise FatalError(
                f"row {row} of this task names partition {partition} of topic {topic}, which has "
                f"{partitions[topic]}",
                remedy="add partitions to the topic, or leave the column partition out",
            )
        for group in rows.groups(partitions):
            await self._send(rows, group, partitions[group.topic])

    async def finish(self) -> None:
        """Wait until every row is acknowledged; raises as ``take``."""
        await self._until(lambda: self._acknowledged == self.rows)

    async def close(self) -> None:
        """End at once; what is not acknowledged may be written or not."""
        await self._sender.close()
        await self._cluster.close()

    # ---- inside

    async def _open(self) -> None:
        if not self._is_open:
            await self._patiently(self._cluster.connect)
            await self._patiently(self._sender.start)
            self._is_open = True

    async def _partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Return how many partitions topics have; those that are not there are asked for, as by
        Java's producer: brokers with ``auto.create.topics.enable`` create them."""
        old_s = self._clock.monotonic() - self._settings.connection.metadata_max_age_ms / 1000
        pauses = self._pauses()
        while True:
            unknown = [it for it in topics if it not in self._known or self._known[it].at_s < old_s]
            if not unknown:
                return {it: self._known[it].partitions for it in topics}
            admin = Admin(self._cluster)
            described = await self._patiently(lambda: admin.describe_topics(unknown))  # noqa: B023 - awaited here
            for name, topic in described.items():
                if topic.error is None:
                    count = len(topic.partitions)
                    self._known[name] = _Known(count, self._clock.monotonic())
                    self._causes.pop(name, None)
                elif isinstance(topic.error, FatalServerError):
                    raise self._cluster.denied(topic.error.code, "Describe", name) or topic.error
                else:
                    self._causes[name] = topic.error.message
            missing = [it for it in unknown if it not in described]
            if missing:
                self._causes |= dict.fromkeys(missing, "the topic does not exist")
                self._sender.let_create(missing)
            if len(described) < len(unknown) or any(it.error for it in described.values()):
                self._check_idle()
                await self._clock.sleep(pauses.next_s())

    async def _send(self, rows: SinkRows, group: RowGroup, partitions: int) -> None:
        done = 0
        while done < len(group.order):
            number = group.partition
            if number < 0:
                # Begins anywhere: tasks that begin together do not all write the first one.
                turn = self._turns.get(group.topic, random.randrange(partitions))  # noqa: S311 - not a secret
                self._turns[group.topic] = turn + 1
                number = turn % partitions
            payload, count = rows.pack(group.order, done, _BATCH_BYTES)
            tp = TopicPartition(group.topic, number)
            first = self._sent.get(tp, 0)
            self._sent[tp] = first + count
            self._under_way.setdefault(tp, deque()).append(
                _UnderWay(first, group.order[done : done + count], rows.first)
            )
            self._sender.enqueue(tp, tp, (self._batch(payload, first, count),))
            done += count
            await self._until(lambda: self._sender.buffered_bytes <= self._settings.buffer_memory)
            await asyncio.sleep(0)  # what is queued leaves while the next batch is packed

    def _batch(self, payload: bytearray, first: int, count: int) -> RecordBatch:
        records = memoryview(payload)[HEADER_BYTES:]
        now_ms = self._clock.now_ms()
        data = build_batch(
            compress(self._codec, records) if self._codec else records,
            base_offset=0,
            count=count,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=int(self._codec),
        )
        # Its places among the rows of the partition are its offsets: a refusal names one of them.
        last, codec = first + count - 1, int(self._codec)
        return RecordBatch(data, first, last, count, now_ms, -1, codec, ((first, count),), None)

    def _delivered(
        self, _source: TopicPartition, target: TopicPartition, batch: RecordBatch, _base: int
    ) -> None:
        self._acknowledged += batch.count
        self._since_s = self._clock.monotonic()
        waiting = self._under_way[target]
        while waiting and waiting[0].first + len(waiting[0].order) <= batch.last_offset + 1:
            waiting.popleft()
        self._moved.set()

    def _failed(self, _source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        cause = error.message if isinstance(error, Mm2pyError) else repr(error)
        if isinstance(error, PartitionError):
            # It begins with the place among the rows of the partition, which is no offset.
            cause = cause.partition(": ")[2]
        code = error.__cause__
        if isinstance(code, ServerError) and code.message not in cause:
            cause = f"{cause}: {code.message}"
        row = self._row(target, error.offset if isinstance(error, PartitionError) else -1)
        self._fail(
            FatalError(
                f"row {row} of this task was not taken by topic {target.topic}: {cause}",
                remedy=error.remedy if isinstance(error, Mm2pyError) else "",
            )
        )

    def _row(self, target: TopicPartition, place: int | None) -> int:
        waiting = self._under_way[target]
        for it in waiting:
            if place is not None and it.first <= place < it.first + len(it.order):
                return it.rows_from + it.order[place - it.first]
        return waiting[0].rows_from + waiting[0].order[0]

    def _stalled(self, target: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self._causes.pop(target.topic, None)
            return
        self._causes[target.topic] = str(error)
        # As Java's producer: the right to write is missing, or the login is refused. The Sender
        # alone would try again without end, and each attempt of the task would wait again.
        if isinstance(error, FatalServerError) or (
            isinstance(error, Mm2pyError) and is_refused(error)
        ):
            self._fail(FatalError(f"topic {target.topic}: {error.message}", remedy=error.remedy))

    def _throttled(self, left_s: Mapping[int, float]) -> None:
        self._held_back_s = max(left_s.values(), default=0.0)

    def _fail(self, error: FatalError) -> None:
        self._failure = self._failure or error
        self._moved.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            if is_so():
                return
            self._check_idle()
            self._moved.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), min(self._left_s(), _LOOK_S))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, as long as the target may take nothing."""
        pauses, cause = self._pauses(), ""
        while True:
            try:
                return await asyncio.wait_for(ask(), max(0.0, self._left_s()))
            except RetriableError as error:
                if is_refused(error):
                    raise FatalError(error.message, remedy=error.remedy) from error
                cause = error.message
            except TimeoutError:
                # Amid a pause before its next attempt to connect, or inside a call that repeats.
                cause = self._cluster.unreached or cause
            self._check_idle(cause)
            await self._clock.sleep(pauses.next_s())

    def _pauses(self) -> Backoff:
        return Backoff(self._settings.connection.retry_backoff_ms, _PAUSE_MS)

    def _left_s(self) -> float:
        return self._since_s + self._timeout_s - self._clock.monotonic()

    def _check_idle(self, cause: str = "") -> None:
        if self._left_s() > 0:
            return
        known = [f"{topic}: {it}" for topic, it in self._causes.items()]
        if self._held_back_s:
            known.append(
                f"a quota (producer_byte_rate) holds this producer back for {self._held_back_s:.0f}"
                " s more"
            )
        raise FatalError(
            f"the target has taken nothing for {self._timeout_s:g} s (delivery.timeout.ms), "
            f"{self.rows - self._acknowledged} records wait: "
            f"{cause or next(iter(known), '') or self._cluster.unreached or 'no answer'}",
            remedy="look whether its brokers can be reached and take records",
        )
