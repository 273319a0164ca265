"""The store of connector and task states, a fold over a table (Java's ``KafkaStatusBackingStore``).

Flow: ``put`` -> ``Table`` -> read back by every worker -> ``StatusTable`` -> ``get``. Posts are not
awaited; states that were put before ``start`` are posted then. What is refused, or not acknowledged
in time, is a problem that displays name, and is posted again unless a newer state of the same work
was. Records not in form are logged once and ignored.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
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

log = logging.getLogger(__name__)

WRITE_S: Final = 30.0
"""How long a post may take, and a refused one waits for the next attempt."""


@dataclass(slots=True, eq=False)
class _Put:
    """One entry; a ``safe`` state gives way to another worker's newer one, any other one only when
    it is posted again."""

    entry: Entry
    work: str | TaskId | None = None
    status: StoredStatus | None = None
    safe: bool = False
    late: bool = False


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
        self._early: list[_Put] = []
        self._posted: dict[asyncio.Future[int], _Put] = {}
        self._unwritten: dict[bytes, tuple[_Put, str]] = {}
        """By key: what is to be posted again, and why it was not written."""
        self._uses: dict[tuple[str, str], TopicUse] = {}

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        self._started = False
        self._states = StatusTable()
        await self._table.start(self._read)
        self._started = True
        early, self._early = self._early, []
        for put in early:
            # Judged again: what was read meanwhile may be newer.
            if not put.safe or self._may_write(put):
                self._post(put)

    async def stop(self) -> None:
        """Stop reading; unacknowledged posts may be lost. Safe before ``start``, safe twice."""
        self._started = False
        self._early.clear()
        self._unwritten.clear()
        self._uses.clear()
        await self._table.stop()

    def put(self, work: str | TaskId, status: StoredStatus, *, safe: bool = False) -> None:
        """Post a state and return; DESTROYED removes it.

        ``safe``: only if no other worker has written a newer one meanwhile (Java's ``putSafe``).
        """
        put = _Put((status_key(work), status_value(status)), work, status, safe)
        if not safe or self._may_write(put):
            self._post(put)

    def problems(self) -> Mapping[str, str]:
        """Return why states that are shown may be old; empty while all are written."""
        causes = {cause: None for _, cause in self._unwritten.values()}
        return (
            {}
            if not causes
            else {
                f"topic {self._table.topic}": "states cannot be written, the states shown may be "
                f"old: {', '.join(causes)}"
            }
        )

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything posted is acknowledged; False when that takes longer."""
        if self._posted:
            await asyncio.wait(tuple(self._posted), timeout=timeout_s)
        return not self._posted and not self._early

    def get(self, work: str | TaskId) -> StoredStatus | None:
        """Return the state read last, None where there is none."""
        return self._states.get(work)

    def tasks(self, connector: str) -> Mapping[int, StoredStatus]:
        return self._states.tasks(connector)

    def connectors(self) -> frozenset[str]:
        return self._states.connectors()

    def put_topic(self, use: TopicUse) -> None:
        self._uses[use.connector, use.topic] = use
        self._post(_Put((topic_key(use.connector, use.topic), topic_value(use))))

    def topics(self, connector: str) -> Mapping[str, TopicUse]:
        return self._states.topics(connector)

    def delete_topics(self, connector: str) -> None:
        """Forget which topics a connector uses, also those not read back yet."""
        topics = dict.fromkeys(self._states.topics(connector))
        topics |= dict.fromkeys(topic for name, topic in self._uses if name == connector)
        for topic in topics:
            self._uses.pop((connector, topic), None)
            self._post(_Put((topic_key(connector, topic), None)))

    def _may_write(self, put: _Put) -> bool:
        if put.work is None or put.status is None:
            return True
        return may_write_safely(put.status, self._states.get(put.work))

    def _post(self, put: _Put) -> None:
        if not self._started:
            self._early.append(put)
            return
        answer = self._table.post([put.entry])
        self._posted[answer] = put
        timer = asyncio.get_running_loop().call_later(WRITE_S, self._take_back, answer)
        answer.add_done_callback(lambda _: timer.cancel())
        answer.add_done_callback(self._answered)

    def _take_back(self, answer: "asyncio.Future[int]") -> None:
        self._posted[answer].late = True
        answer.cancel()

    def _answered(self, answer: "asyncio.Future[int]") -> None:
        put = self._posted.pop(answer)
        key = put.entry[0]
        # A newer state of the same key is under way: it decides.
        if not self._started or any(other.entry[0] == key for other in self._posted.values()):
            return
        error = None if answer.cancelled() else answer.exception()
        self._unwritten.pop(key, None)
        if put.late:
            cause = f"not acknowledged within {WRITE_S:g} s, its partition may have no leader"
            self._unwritten[key] = put, cause
            self._post_again(put)
        elif isinstance(error, Mm2pyError):
            log.warning("state was not written topic=%s cause=%s", self._table.topic, error)
            # Otherwise the membership was lost, or the
            # writer was closed: the states of others count.
            if not isinstance(error, RetriableError):
                self._unwritten[key] = put, str(error)
                asyncio.get_running_loop().call_later(WRITE_S, self._post_again, put)

    def _post_again(self, put: _Put) -> None:
        """Post what was not written, unless something newer was written or posted meanwhile."""
        key = put.entry[0]
        if self._unwritten.get(key, (None, ""))[0] is not put:
            return
        if any(other.entry[0] == key for other in self._posted.values()):
            return
        if self._may_write(put):
            put.late = False
            self._post(put)
        else:
            del self._unwritten[key]

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
        """Take back waiting safe states of which another worker wrote newer ones."""
        for answer, put in tuple(self._posted.items()):
            if put.safe and put.work == read.work and not self._may_write(put):
                answer.cancel()
