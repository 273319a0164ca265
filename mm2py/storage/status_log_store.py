"""Status store over one topic: states are posted in order and read back by every worker.

Flow: ``put`` -> queue -> ``RecordLog`` in order -> read back -> ``StatusTable`` -> ``get`` (Java:
``KafkaStatusBackingStore``). A safe put is looked at again just before it is written, so that one that waited
for a cluster gives way to another worker's newer state. Records not in form are named once and ignored.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import final

from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.protocol.records import Record
from mm2py.storage.kafka_log import KafkaLog, LogTail, LogWriter
from mm2py.storage.record_log import RecordLog
from mm2py.storage.status_records import (
    StatusTable,
    StoredStatus,
    TopicUse,
    decode_status_record,
    may_write_safely,
    status_key,
    status_value,
    topic_key,
    topic_value,
)
from mm2py.types import TaskId

__all__ = ["KafkaStatusBackingStore", "LogStatusBackingStore"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Posted:
    """A record on its way; ``safe`` holds the state that may have to give way."""

    key: bytes
    value: bytes | None
    safe: tuple[str | TaskId, StoredStatus] | None = None
    use: TopicUse | None = None


class LogStatusBackingStore:
    """Implements ``StatusBackingStore`` over a ``RecordLog``.

    Args:
        open_log: makes the log; it is given the handler of records, called in order per partition.
    """

    def __init__(self, open_log: Callable[[Callable[[int, Record], None]], RecordLog]) -> None:
        self._log = open_log(self._read)
        self._table = StatusTable()
        self._queue: deque[_Posted] = deque()
        self._in_flight: list[_Posted] = []
        self._pump: asyncio.Task[None] | None = None
        self._started = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Read the topic to its end; states put before are written now."""
        self._table = StatusTable()
        await self._log.start()
        self._started = True
        self._wake()

    async def stop(self) -> None:
        """Close connections; what is not acknowledged may be lost. Safe before ``start`` and safe twice."""
        self._started = False
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        self._queue.clear()
        self._idle.set()
        await self._log.stop()

    def put(self, work: str | TaskId, status: StoredStatus, *, safe: bool = False) -> None:
        """Post a state and return; DESTROYED removes it. ``safe``: see ``may_write_safely``."""
        guard = (work, status) if safe else None
        self._post(_Posted(status_key(work), status_value(status), guard))

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything posted is acknowledged; False when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def get(self, work: str | TaskId) -> StoredStatus | None:
        """Return the state read last, None where there is none."""
        return self._table.get(work)

    def tasks(self, connector: str) -> Mapping[int, StoredStatus]:
        """Return the states of a connector's tasks by number."""
        return self._table.tasks(connector)

    def connectors(self) -> frozenset[str]:
        """Return the connectors with a state."""
        return self._table.connectors()

    def put_topic(self, use: TopicUse) -> None:
        """Post that a connector uses a topic."""
        self._post(_Posted(topic_key(use.connector, use.topic), topic_value(use), use=use))

    def topics(self, connector: str) -> Mapping[str, TopicUse]:
        """Return the topics a connector uses, by name."""
        return self._table.topics(connector)

    def delete_topics(self, connector: str) -> None:
        """Forget which topics a connector uses, also those not read back yet."""
        topics = dict.fromkeys(self._table.topics(connector))
        for posted in (*self._in_flight, *self._queue):
            if posted.use is not None and posted.use.connector == connector:
                topics[posted.use.topic] = None
        for topic in topics:
            self._post(_Posted(topic_key(connector, topic), None))

    def _post(self, posted: _Posted) -> None:
        self._queue.append(posted)
        self._idle.clear()
        self._wake()

    def _wake(self) -> None:
        if self._started and self._queue and self._pump is None:
            self._pump = asyncio.create_task(self._write(), name=f"status {self._log.topic}")

    async def _write(self) -> None:
        try:
            while self._queue:
                self._in_flight = [posted for posted in self._queue if self._still_wanted(posted)]
                self._queue.clear()
                answers = [self._log.post(posted.key, posted.value) for posted in self._in_flight]
                for answer in await asyncio.gather(*answers, return_exceptions=True):
                    if isinstance(answer, Mm2pyError):
                        log.warning(
                            "state was not written topic=%s cause=%s", self._log.topic, answer
                        )
            self._idle.set()
        finally:
            self._in_flight = []
            if asyncio.current_task() is self._pump:
                self._pump = None

    def _still_wanted(self, posted: _Posted) -> bool:
        if posted.safe is None:
            return True
        work, status = posted.safe
        return may_write_safely(status, self._table.get(work))

    def _read(self, partition: int, record: Record) -> None:
        try:
            self._table.take(decode_status_record(record.key, record.value))
        except ProtocolError as error:
            log.warning(
                "status record is ignored topic=%s partition=%d offset=%d cause=%s",
                self._log.topic,
                partition,
                record.offset,
                error,
            )


@final
class KafkaStatusBackingStore(LogStatusBackingStore):
    """The status topic of one group; arguments as of ``KafkaLog``."""

    def __init__(
        self,
        topic: str,
        *,
        prepare: Callable[[], Awaitable[int]],
        writer: Callable[[], LogWriter],
        reader: Callable[[], LogTail],
    ) -> None:
        super().__init__(
            lambda handle: KafkaLog(
                topic, prepare=prepare, writer=writer, reader=reader, handle=handle
            )
        )
