"""The store of connector and task states, a fold over a table (Java's ``KafkaStatusBackingStore``).

Flow: ``put`` -> ``Table`` -> read back by every worker -> ``StatusTable`` -> ``get``. Posts are not awaited; states
that were put before ``start`` are posted then. Records not in form are logged once and ignored.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import final

from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.protocol.records import Record
from mm2py.storage.status_records import (
    StatusPut,
    StatusTable,
    StoredStatus,
    TopicPut,
    TopicUse,
    decode_status_record,
    may_write_safely,
    status_key,
    status_value,
    topic_key,
    topic_value,
)
from mm2py.storage.table import Entry, Table
from mm2py.types import TaskId

__all__ = ["StatusBackingStore"]

log = logging.getLogger(__name__)


_Safe = tuple[str | TaskId, StoredStatus]
"""A state that gives way to another worker's newer one."""


@final
class StatusBackingStore:
    """States of one group's connectors and tasks; a plain text names a connector.

    Args:
        table: the status topic.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._states = StatusTable()
        self._started = False
        self._early: list[tuple[Entry, _Safe | None]] = []
        self._posted: dict[asyncio.Future[int], _Safe | None] = {}
        self._uses: dict[tuple[str, str], TopicUse] = {}

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        self._started = False
        self._states = StatusTable()
        await self._table.start(self._read)
        self._started = True
        early, self._early = self._early, []
        for entry, safe in early:
            if safe is None or may_write_safely(safe[1], self._states.get(safe[0])):
                self._post(entry, safe)

    async def stop(self) -> None:
        """Stop reading; what is not acknowledged may be lost. Safe before ``start`` and safe twice."""
        self._started = False
        self._early.clear()
        self._uses.clear()
        await self._table.stop()

    def put(self, work: str | TaskId, status: StoredStatus, *, safe: bool = False) -> None:
        """Post a state and return; DESTROYED removes it.

        ``safe``: only if no other worker has written a newer one meanwhile (Java's ``putSafe``).
        """
        if not safe or may_write_safely(status, self._states.get(work)):
            guard = (work, status) if safe else None
            self._post((status_key(work), status_value(status)), guard)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything posted is acknowledged; False when that takes longer."""
        if self._posted:
            await asyncio.wait(tuple(self._posted), timeout=timeout_s)
        return not self._posted and not self._early

    def get(self, work: str | TaskId) -> StoredStatus | None:
        """Return the state read last, None where there is none."""
        return self._states.get(work)

    def tasks(self, connector: str) -> Mapping[int, StoredStatus]:
        """Return the states of a connector's tasks by number."""
        return self._states.tasks(connector)

    def connectors(self) -> frozenset[str]:
        """Return the connectors with a state."""
        return self._states.connectors()

    def put_topic(self, use: TopicUse) -> None:
        """Post that a connector uses a topic."""
        self._uses[use.connector, use.topic] = use
        self._post((topic_key(use.connector, use.topic), topic_value(use)))

    def topics(self, connector: str) -> Mapping[str, TopicUse]:
        """Return the topics a connector uses, by name."""
        return self._states.topics(connector)

    def delete_topics(self, connector: str) -> None:
        """Forget which topics a connector uses, also those not read back yet."""
        topics = dict.fromkeys(self._states.topics(connector))
        topics |= dict.fromkeys(topic for name, topic in self._uses if name == connector)
        for topic in topics:
            self._uses.pop((connector, topic), None)
            self._post((topic_key(connector, topic), None))

    def _post(self, entry: Entry, safe: _Safe | None = None) -> None:
        if not self._started:
            self._early.append((entry, safe))
            return
        answer = self._table.post([entry])
        self._posted[answer] = safe
        answer.add_done_callback(self._answered)

    def _answered(self, answer: "asyncio.Future[int]") -> None:
        del self._posted[answer]
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, Mm2pyError) and self._started:
            log.warning("state was not written topic=%s cause=%s", self._table.topic, error)

    def _read(self, partition: int, record: Record) -> None:
        try:
            read = decode_status_record(record.key, record.value)
            self._states.take(read)
            if isinstance(read, TopicPut):
                self._uses.pop((read.connector, read.topic), None)
            else:
                self._give_way(read)
        except ProtocolError as error:
            log.warning(
                "status record is ignored topic=%s partition=%d offset=%d cause=%s",
                self._table.topic,
                partition,
                record.offset,
                error,
            )

    def _give_way(self, read: StatusPut) -> None:
        """Take back safe states that wait for the cluster while another worker wrote a newer one."""
        for answer, safe in tuple(self._posted.items()):
            if safe is None or safe[0] != read.work:
                continue
            if not may_write_safely(safe[1], read.status):
                answer.cancel()
