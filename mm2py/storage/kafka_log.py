"""A compacted topic as a log that everybody follows (Java's ``KafkaBasedLog``).

Flow: ``start`` -> ``prepare`` (the topic exists) -> read to the end -> a task that follows -> ``handle``;
``post`` -> partition by murmur2 of the key -> acknowledged; ``read_to_end`` waits until the follower is there.
It knows nothing of what the records mean.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, final

from mm2py.errors import ConnectionFailedError, RequestTimedOutError
from mm2py.protocol.records import NewRecord, Record
from mm2py.storage.offset_backing_store import LogEnd, partition_of
from mm2py.types import TopicPartition

__all__ = ["Handler", "KafkaLog", "LogTail", "LogWriter"]

log = logging.getLogger(__name__)

Handler = Callable[[int, Record], None]
"""Takes ``(partition, record)``; must neither block nor raise."""


class LogTail(LogEnd, Protocol):
    """What is needed of ``mm2py.client.log_reader.LogReader``."""

    async def tail(self, handle: Handler) -> None:
        """Hand on every record as soon as it is there, until cancelled."""
        ...

    async def reach_end(self) -> None:
        """Wait until a running ``tail`` has handed on all that is there now."""
        ...


class LogWriter(Protocol):
    """What is needed of ``mm2py.client.record_writer.RecordWriter``."""

    async def start(self) -> None:
        """Get a producer id."""
        ...

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> None:
        """Write one batch behind those before; ``done`` gets its first offset or the error."""
        ...

    async def close(self) -> None:
        """Close at once."""
        ...


@final
class KafkaLog:
    """Implements ``RecordLog`` over Kafka.

    Args:
        topic: its name.
        prepare: makes sure that it exists, compacted, and returns its number of partitions.
        writer: makes the producer.
        reader: makes the reader, which starts at the beginning.
        handle: takes every record, in order per partition.
    """

    def __init__(
        self,
        topic: str,
        *,
        prepare: Callable[[], Awaitable[int]],
        writer: Callable[[], LogWriter],
        reader: Callable[[], LogTail],
        handle: Handler,
    ) -> None:
        self._topic = topic
        self._prepare, self._new_writer, self._new_reader = prepare, writer, reader
        self._handle = handle
        self._partitions = 0
        self._writer: LogWriter | None = None
        self._reader: LogTail | None = None
        self._tail: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """Name of the topic, for messages."""
        return self._topic

    async def start(self) -> None:
        """Read the whole topic, then follow it.

        Raises:
            RetriableError: not now; a later call begins anew.
            ConfigError: the topic cannot be used as it is.
        """
        await self.stop()
        self._partitions = await self._prepare()
        self._reader, self._writer = self._new_reader(), self._new_writer()
        try:
            await self._writer.start()
            await self._reader.read_to_end(self._handle)
        except BaseException:
            await self.stop()
            raise
        self._tail = asyncio.create_task(
            self._reader.tail(self._handle), name=f"follow {self._topic}"
        )
        self._tail.add_done_callback(self._tail_ended)

    async def stop(self) -> None:
        """Close both ends; what is not acknowledged is reported as lost. Safe twice."""
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if reader is not None:
            await reader.close()
        if writer is not None:
            await writer.close()

    async def read_to_end(self, timeout_s: float) -> None:
        """Wait until all that is in the topic now was handled.

        Raises:
            RequestTimedOutError: that takes longer than ``timeout_s``.
            ConnectionFailedError: the log is not open.
        """
        if self._reader is None or self._tail is None or self._tail.done():
            raise self._closed()
        try:
            async with asyncio.timeout(timeout_s):
                await self._reader.reach_end()
        except TimeoutError:
            raise RequestTimedOutError(
                f"topic {self._topic} was not read to its end within {timeout_s:g} s",
                remedy="check that the brokers that lead it can be reached",
            ) from None

    def post(self, key: bytes, value: bytes | None) -> "asyncio.Future[int]":
        """Write a record; the result is its offset, once acknowledged."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_look_at)
        if self._writer is None:
            answer.set_exception(self._closed())
            return answer

        def done(result: int | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, int):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        tp = TopicPartition(self._topic, partition_of(key, self._partitions))
        self._writer.post(tp, [NewRecord(key, value, (), -1)], done)
        return answer

    async def send(self, key: bytes, value: bytes | None, timeout_s: float) -> int:
        """Write a record and return its offset.

        Raises:
            RequestTimedOutError: no acknowledgement within ``timeout_s``; the outcome is unknown.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.post(key, value)
        except TimeoutError:
            raise RequestTimedOutError(
                f"topic {self._topic} did not acknowledge a record within {timeout_s:g} s; whether it"
                " was written is unknown"
            ) from None

    def _closed(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"the log of topic {self._topic} is not open")

    def _tail_ended(self, tail: "asyncio.Task[None]") -> None:
        if not tail.cancelled() and (error := tail.exception()) is not None:
            log.error("topic is followed no longer topic=%s", self._topic, exc_info=error)


def _look_at(answer: "asyncio.Future[int]") -> None:
    """Whoever posts need not wait, so an error that nobody asks for is none."""
    if not answer.cancelled():
        answer.exception()
