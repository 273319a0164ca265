"""Stores in memory: for tests, and for standalone mode.

Flow: ``post`` -> a list -> ``handle``. The contract is that of the Kafka stores; nothing survives
the process. Stores that share a ``MemoryTopic`` see each other's records, as workers do.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, final

from mm2py.client.fetch.log_reader import Reread
from mm2py.protocol.records import Record
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.table import Entry, Handler

FIRST_COMPACTION: Final = 1_000
"""Records that a topic may hold before the older ones of its keys are dropped."""


@final
class MemoryTopic:
    """One compacted partition; its followers are notified on the next loop iteration."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: list[Record] = []
        self.followers: list[MemoryTable] = []
        self._next_offset = 0
        self._compact_at = FIRST_COMPACTION

    def append(self, key: bytes | None, value: bytes | None) -> int:
        """Add a record and return its offset."""
        offset = self._next_offset
        self._next_offset += 1
        self.records.append(Record(offset, -1, key, value))
        for follower in self.followers:
            # As over Kafka: a handler never runs inside the caller's ``post``.
            asyncio.get_running_loop().call_soon(follower.catch_up)
        if len(self.records) > self._compact_at:
            self._compact()
        return offset

    def recreate(self, kept: int = 0) -> None:
        """Delete the topic and create it again, or take its end away behind so many records."""
        self.records = self.records[:kept]
        self._next_offset = self.records[-1].offset + 1 if self.records else 0
        newest = {record.key: record for record in self.records}
        for follower in self.followers:
            follower.position = self._next_offset
            if follower.again is not None:
                follower.again(0, tuple(newest.values()))

    def from_offset(self, offset: int) -> Sequence[Record]:
        return self.records[bisect_left(self.records, offset, key=lambda it: it.offset) :]

    def _compact(self) -> None:
        """Keep the newest record per key, and what a reader has yet to read."""
        unread = min((follower.position for follower in self.followers), default=0)
        newest = {record.key: record.offset for record in self.records}
        self.records = [
            record
            for record in self.records
            if record.offset >= unread or newest[record.key] == record.offset
        ]
        self._compact_at = 2 * len(self.records) + FIRST_COMPACTION


@final
class MemoryTable:
    """Implements ``Table`` over a ``MemoryTopic``; tables of one topic see each other's records."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self._handle: Handler | None = None
        self.again: Reread | None = None
        self.position = 0

    @property
    def topic(self) -> str:
        return self._topic.name

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        await self.stop()
        self.position, self._handle, self.again = 0, handle, again
        self._topic.followers.append(self)
        self.catch_up()

    async def stop(self) -> None:
        if self in self._topic.followers:
            self._topic.followers.remove(self)

    async def read_to_end(self, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self.catch_up()

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        offsets = [self._topic.append(*entry) for entry in entries]
        answer.set_result(offsets[0])
        return answer

    def catch_up(self) -> None:
        """Pass on all new records."""
        for record in self._topic.from_offset(self.position):
            # A handler may stop this table.
            following = self in self._topic.followers
            if self._handle is not None and following and record.offset >= self.position:
                self.position = record.offset + 1
                self._handle(0, record)


def memory_configs(topic: MemoryTopic | None = None) -> ConfigBackingStore:
    """Return configs in memory; stores of several workers share a topic."""
    return ConfigBackingStore(MemoryTable(topic or MemoryTopic("configs")))


def memory_statuses(topic: MemoryTopic | None = None) -> StatusBackingStore:
    """Return states in memory; stores of several workers share a topic."""
    return StatusBackingStore(MemoryTable(topic or MemoryTopic("statuses")))
