"""A compacted topic as a table: read to its end, followed, written in whole changes (Java's
``KafkaBasedLog``).

Flow: ``start`` -> the topic exists -> read to its end -> a task that follows -> ``handle``;
``post`` -> one batch per partition (murmur2 of the key) -> acknowledged. Config, status, offsets,
flow changes and the ledger are folds over a ``Table``; it knows nothing of what the records mean.

Invariants (tests of the same names; the first four are those of
``mm2py.client.send.record_writer``):

1. The records of one post that share a partition are stored together or not at all.
2. Each post is answered exactly once.
3. A post that is cancelled, or waits longer than its time-out, is taken back: it is not written
   later.
4. Nothing that was posted under a lost membership is ever written.
5. Records of aborted transactions are never handled.
6. A topic that was deleted is created again once a post was taken back, or has waited for
   ``WAITS_S``: posts find it then. One whose owner can write it again (``again``) does not wait
   for a post.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, final

from mm2py.client.fetch.log_reader import LogReader, Reread
from mm2py.client.parts import parts_of
from mm2py.client.send.record_writer import Post, RecordWriter
from mm2py.clock import cancelled
from mm2py.errors import ConnectionFailedError, Mm2pyError, RequestTimedOutError, ServerError
from mm2py.protocol.columns import partition_of
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.protocol.records import NewRecord, Record
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

Handler = Callable[[int, Record], None]
"""Takes ``(partition, record)``; must neither block nor raise."""

Entry = tuple[bytes, bytes | None]
"""Key and value; None deletes the key."""

BATCH_BYTES: Final = 64 * 1024
"""Far below a topic's default (``max.message.bytes``, 1 MiB), for clusters that allow less."""

WAITS_S: Final = 10.0
"""How often to look for the topic of a post that is not answered: not every caller takes back what
waits long."""


class Table(Protocol):
    """One compacted topic, Kafka's (``KafkaTable``) or in memory (``MemoryTable``)."""

    @property
    def topic(self) -> str: ...

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        """Read to the end, then follow; ``handle`` takes every record, in order per partition.

        ``again`` takes what a topic holds that was created again or has lost its end, empty where
        that is nothing; without it the records are handled as new ones.

        Raises:
            RetriableError: not now; a later call starts over.
            ConfigError: the topic cannot be used as it is.
        """
        ...

    async def stop(self) -> None:
        """Stop reading; what is not acknowledged fails. Safe before ``start`` and safe twice."""
        ...

    async def read_to_end(self, timeout_s: float) -> None:
        """Wait until all that is in the topic now was handled.

        Raises:
            RequestTimedOutError: that takes longer than ``timeout_s``.
            ConnectionFailedError: the table is not open.
        """
        ...

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        """Write entries after those posted before, as one batch per partition.

        The result is the offset of the first entry, once all are acknowledged. It need not be
        awaited; cancelled, it takes back what is not written yet.
        """
        ...


def batched(entries: Sequence[Entry], most: int = BATCH_BYTES) -> Iterator[Sequence[Entry]]:
    """Cut a list of entries that need not be stored together into batches that any topic takes, or
    of ``most`` bytes."""
    return parts_of(entries, _size_of, most)


def _size_of(entry: Entry) -> int:
    key, value = entry
    return len(key) + len(value or b"")


@final
class KafkaTable:
    """Implements ``Table`` over Kafka.

    Args:
        topic: its name.
        prepare: makes sure that it exists, compacted, and returns its number of partitions.
        writer: the flow's writer; its owner closes it.
        reader: makes the reader, which starts at the beginning.
        follow: whether records are handled as they come; else at each ``read_to_end``.
        reads_at_start: whether ``start`` reads to the end; False where that may have to wait for a
            transaction that only a task ends which is started later.
        restore: creates the topic again where it was deleted; None: its owner does.
        only_reads: whether most who open it only read: ``start`` needs no right to write then, the
            first post does.
    """

    def __init__(
        self,
        topic: str,
        *,
        prepare: Callable[[], Awaitable[int]],
        writer: RecordWriter,
        reader: Callable[[], LogReader],
        follow: bool = True,
        reads_at_start: bool = True,
        restore: Callable[[], Awaitable[None]] | None = None,
        only_reads: bool = False,
    ) -> None:
        self._topic, self._restore, self._only_reads = topic, restore, only_reads
        self._prepare, self._writer, self._new_reader = prepare, writer, reader
        self._follow, self._reads_at_start = follow, reads_at_start
        self._handle: Handler | None = None
        self._partitions = 0
        self._reader: LogReader | None = None
        self._tail: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._unanswered: dict[asyncio.Future[int], asyncio.TimerHandle] = {}
        """Posts, and when their topic is looked for."""
        self._restoring: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        """The next look for a topic that is gone."""

    @property
    def topic(self) -> str:
        return self._topic

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        await self.stop()
        self._partitions = await self._prepare()
        self._reader, self._handle = self._new_reader(), handle
        self._reader.on_again = again
        try:
            if not self._only_reads:
                await self._writer.start()
            if self._reads_at_start:
                await self._reader.read_to_end(handle)
        # Cancelled as well: a reader that was started half would continue following.
        except BaseException:
            await self.stop()
            raise
        if self._follow:
            tail = self._reader.tail(handle, on_trouble=self._troubled if again else None)
            self._tail = asyncio.create_task(tail, name=f"follow {self._topic}")
            self._tail.add_done_callback(self._tail_ended)

    async def stop(self) -> None:
        tail, self._tail = self._tail, None
        reader, self._reader = self._reader, None
        self._look_no_more()
        restoring, self._restoring = self._restoring, None
        await cancelled(restoring)
        for answer in tuple(self._unanswered):
            if not answer.done():
                answer.set_exception(self._closed())
        await cancelled(tail)
        if reader is not None:
            await reader.close()

    async def read_to_end(self, timeout_s: float) -> None:
        reader, handle = self._reader, self._handle
        # A tail only ends by a defect, which was logged: without it the end would never be reached.
        lost = self._tail is None or self._tail.done()
        if reader is None or handle is None or (self._follow and lost):
            raise self._closed()
        try:
            async with asyncio.timeout(timeout_s):
                if self._follow:
                    await reader.reach_end()
                else:
                    # A reader has one position per partition: two
                    # reads at once would hand records on twice.
                    async with self._reading:
                        await reader.read_to_end(handle)
        except TimeoutError:
            raise RequestTimedOutError(
                f"topic {self._topic} was not read to its end within {timeout_s:g} s",
                remedy="check that the brokers that lead it can be reached",
            ) from None

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(self._answered)
        if self._reader is None:
            answer.set_exception(self._closed())
            return answer
        self._watch(answer)
        batches = self._by_partition(entries)
        # The first entry's partition: its batch has the offset of the result.
        first, left = next(iter(batches)), len(batches)
        first_offset = -1

        def done(partition: int, result: int | Exception) -> None:
            nonlocal left, first_offset
            left -= 1
            # Failed by another partition, or taken back: the answer is given already.
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
                return
            if partition == first:
                first_offset = result
            if not left:
                answer.set_result(first_offset)

        posts = [
            self._writer.post(
                TopicPartition(self._topic, partition), records, partial(done, partition)
            )
            for partition, records in batches.items()
        ]
        answer.add_done_callback(partial(self._ended, posts))
        return answer

    def _watch(self, answer: "asyncio.Future[int]") -> None:
        loop = asyncio.get_running_loop()
        self._unanswered[answer] = loop.call_later(WAITS_S, self._waits, answer)

    def _waits(self, answer: "asyncio.Future[int]") -> None:
        self._look_for_topic()
        self._watch(answer)

    def _ended(self, posts: Sequence[Post], answer: "asyncio.Future[int]") -> None:
        """Take back what is not written."""
        if answer.cancelled() or answer.exception() is not None:
            for post in posts:
                self._writer.take_back(post)
        if answer.cancelled():
            self._look_for_topic()

    def _troubled(self, error: Mm2pyError | None) -> None:
        self._look_no_more()
        if isinstance(error, ServerError) and error.code == UNKNOWN_TOPIC_OR_PARTITION:
            self._look_while_gone()

    def _look_while_gone(self) -> None:
        self._look_for_topic()
        self._looking = asyncio.get_running_loop().call_later(WAITS_S, self._look_while_gone)

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look_for_topic(self) -> None:
        if self._restore is None or self._reader is None:
            return
        # One look for all posts that wait.
        if self._restoring is None or self._restoring.done():
            restoring = self._restore_topic(self._restore)
            self._restoring = asyncio.create_task(restoring, name=f"restore {self._topic}")

    async def _restore_topic(self, restore: Callable[[], Awaitable[None]]) -> None:
        """Create the topic if it is gone: a post to it would wait without end (invariant 6)."""
        try:
            await restore()
        except Mm2pyError as error:
            log.warning("topic cannot be used now topic=%s cause=%s", self._topic, error)

    def _by_partition(self, entries: Sequence[Entry]) -> dict[int, list[NewRecord]]:
        batches: dict[int, list[NewRecord]] = {}
        for key, value in entries:
            record = NewRecord(key, value, (), -1)
            batches.setdefault(partition_of(key, self._partitions), []).append(record)
        return batches

    def _answered(self, answer: "asyncio.Future[int]") -> None:
        timer = self._unanswered.pop(answer, None)
        if timer is not None:
            timer.cancel()
        if not answer.cancelled():
            answer.exception()  # a caller that does not wait has no use for the error

    def _closed(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"the table of topic {self._topic} is not open")

    def _tail_ended(self, tail: "asyncio.Task[None]") -> None:
        if not tail.cancelled() and (error := tail.exception()) is not None:
            log.error("topic is followed no longer topic=%s", self._topic, exc_info=error)
