"""One source broker as the Fetcher sees it: a connection with one long-poll Fetch open at a time.

Flow: cursors of this leader -> Fetch -> answer -> ``on_fetched(cursor, partition, lease)`` for each.
The next Fetch leaves only while receive buffers are within the budget.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.cluster import Cluster
from mm2py.client.connection import BrokerConnection
from mm2py.client.fetch_cursor import NO_TOPIC_ID, Cursor
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError
from mm2py.protocol.fetch import (
    FETCH_KEY,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.record_batch import BufferLease

__all__ = ["FetchNode"]

RESPONSE_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024
"""Asked for per Fetch: with its framing it fills a 4 MiB buffer; larger answers gain nothing
(real-broker.md 8) and push the data out of the CPU's cache before it is sent on."""

TOPIC_ID_VERSION: Final = 13
NEWEST: Final = 17
SESSIONLESS: Final = (0, -1)

OnFetched = Callable[[Cursor, FetchedPartition, BufferLease], None]
OnLost = Callable[[list[Cursor], Exception], None]


@final
class PlainLease:
    """Stands in for a pooled buffer where a short answer was copied out of the head buffer."""

    __slots__ = ()

    def retain(self) -> None:
        """Nothing is shared."""

    def release(self) -> None:
        """Nothing to give back."""


@final
class FetchNode:
    """Fetches from one broker until it is stopped."""

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        room: Callable[[], int],
        on_fetched: OnFetched,
        on_lost: OnLost,
    ) -> None:
        self.node_id = node_id
        self.cursors: dict[Cursor, None] = {}
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._room = room
        self._on_fetched = on_fetched
        self._on_lost = on_lost
        self._wake = asyncio.Event()
        self._turn = 0
        self._isolation = 1 if settings.isolation_level == "read_committed" else 0

    def wake(self) -> None:
        """Something changed: cursors, pauses, memory."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch for ever; ends by cancellation."""
        backoff = Backoff(
            self._cluster.settings.reconnect_backoff_ms,
            self._cluster.settings.reconnect_backoff_max_ms,
        )
        while True:
            asked = [cursor for cursor in self.cursors if cursor.fetchable]
            room = self._room()
            if not asked or room <= 0:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                connection = await self._cluster.connection(self.node_id, "fetch")
                await self._round(connection, asked, min(room, RESPONSE_BYTES))
                backoff.reset()
            except Mm2pyError as error:
                # Not lost for good: leaders are looked up again, the pause keeps that from spinning.
                self._on_lost([cursor for cursor in asked if cursor in self.cursors], error)
                await self._clock.sleep(backoff.next_s())

    async def _round(
        self, connection: BrokerConnection, asked: list[Cursor], max_bytes: int
    ) -> None:
        with_ids = all(cursor.topic_id != NO_TOPIC_ID for cursor in asked)
        newest = NEWEST if with_ids else TOPIC_ID_VERSION - 1
        version = connection.negotiated(FETCH_KEY, 4, newest, "Fetch")
        self._turn = (self._turn + 1) % len(asked)
        asked = asked[self._turn :] + asked[: self._turn]  # nobody is last for ever
        correlation_id = connection.next_correlation_id()
        frame = encode_fetch(
            version,
            correlation_id,
            self._cluster.settings.client_id,
            partitions=[self._wanted(cursor) for cursor in _by_topic(asked)],
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=min(max_bytes, self._settings.fetch_max_bytes),
            isolation_level=self._isolation,
            session_id=SESSIONLESS[0],
            session_epoch=SESSIONLESS[1],
        )
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_response(body: memoryview, lease: BufferLease | None) -> None:
            if answered.done():
                return
            if lease is None:
                body, lease = memoryview(bytearray(body)), PlainLease()
            self._take(decode_fetch(version, body), asked, lease)
            answered.set_result(None)

        def on_lost(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        connection.send([frame], correlation_id, on_response, on_lost)
        await answered

    def _wanted(self, cursor: Cursor) -> FetchPartition:
        return FetchPartition(
            topic=cursor.tp.topic,
            topic_id=cursor.topic_id,
            partition=cursor.tp.partition,
            position=cursor.position,
            current_leader_epoch=cursor.leader_epoch,
            last_fetched_epoch=cursor.last_epoch,
            max_bytes=self._settings.max_partition_fetch_bytes,
        )

    def _take(self, response: FetchResponse, asked: list[Cursor], lease: BufferLease) -> None:
        by_name = {(c.tp.topic, c.tp.partition): c for c in asked}
        by_id = {(c.topic_id, c.tp.partition): c for c in asked}
        for part in response.partitions:
            if part.topic:
                cursor = by_name[part.topic, part.partition]
            else:
                cursor = by_id[part.topic_id, part.partition]
            if cursor in self.cursors and cursor.fetchable:
                self._on_fetched(cursor, part, lease)


def _by_topic(cursors: list[Cursor]) -> list[Cursor]:
    """Keep the rotation of topics but put partitions of one topic side by side, as the wire wants."""
    topics: dict[str, list[Cursor]] = {}
    for cursor in cursors:
        topics.setdefault(cursor.tp.topic, []).append(cursor)
    return [cursor for group in topics.values() for cursor in group]
