"""The Fetcher's view of one source broker: a connection with one long-poll Fetch at a time, and
stripes besides.

Flow: cursors of this broker -> lookups of those that need one, all with one request ->
``FetchSession`` -> Fetch -> response -> ``FetchOwner.fetched`` for each partition. The next Fetch
is sent only while receive buffers are within the budget, and neither the broker's quota nor our own
byte rate forbids it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.fetch.cursor import Cursor, Lookup
from mm2py.client.fetch.lookups import look_up
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.owner import FetchOwner
from mm2py.client.fetch.partition_fetch import isolation_of
from mm2py.client.fetch.session import FetchPlan, FetchSession, shares
from mm2py.client.fetch.stripes import PlainLease, Stripes
from mm2py.client.pacing import QUOTAS_EVERY_S, ByteRate, LongPoll, Throttle
from mm2py.client.quota_watch import QuotaWatch
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.fetch import (
    FETCH_KEY,
    FetchResponse,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.record_batch import BufferLease

# KIP-516 (Kafka 3.1): topics by id.
TOPIC_ID_VERSION: Final = 13
# KIP-595 (Kafka 2.7): LastFetchedEpoch and DivergingEpoch.
DIVERGING_VERSION: Final = 12
"""From this version on Fetch itself reports a truncation; before, OffsetForLeaderEpoch does."""
# KIP-227 (Kafka 1.1).
SESSION_VERSION: Final = 7
NEWEST: Final = 18

_FRAMING_BYTES: Final = 64 * 1024

ANSWER_BYTES: Final = 4 * 1024 * 1024 - _FRAMING_BYTES
"""Nearby: with its framing it fills a 4 MiB buffer; larger responses gain nothing (measured on one
machine) and push the data out of the CPU's cache before it is sent on."""

FAR_ANSWER_BYTES: Final = 1024 * 1024 - _FRAMING_BYTES
FAR_PARTITION_BYTES: Final = 256 * 1024
"""Distant: lagging partitions are read in stripes, so the session's responses stay small and delay
the others little."""

GATHER_BYTES: Final = 128 * 1024
"""After a smaller response the next Fetch waits for ``linger.ms``: a round costs half a millisecond
of CPU."""

GATHER_PARTITIONS: Final = 32
"""Up to this number the wait is at the broker (``fetch.min.bytes``), which saves a wake-up. With
more we wait
ourselves: a broker checks all partitions of a waiting Fetch whenever one of them is written."""

FEW_BYTES: Final = 4 * 1024
"""After so little it waits half as long again: a reader of the copy still has records sooner than
from Java, whose producer lingers for each of them."""

SESSION_CODES: Final = frozenset(
    {
        codes.FETCH_SESSION_ID_NOT_FOUND,
        codes.INVALID_FETCH_SESSION_EPOCH,
        # Names and ids were mixed in a session: a topic got its id, or lost it in a downgrade.
        codes.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


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
        owner: FetchOwner,
        losses: FetchLosses,
        rate: ByteRate | None = None,
        linger_ms: int = 0,
    ) -> None:
        self.node_id = node_id
        self.throttle = Throttle(clock)
        self._cursors: dict[Cursor, None] = {}
        self._by_name: dict[Cursor, None] = {}
        self._unready: dict[Cursor, None] = {}
        self._asking_since: float | None = None
        self._answered_at = -inf
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._owner = owner
        self._losses = losses
        self._rate = rate
        self._wake = asyncio.Event()
        self._isolation = isolation_of(settings)
        self._session = FetchSession(enabled=False, by_name=True)
        self._connection: BrokerConnection | None = None
        self._quotas = QuotaWatch(cluster, node_id)
        self._full: dict[Cursor, None] = {}
        # Timers are up to 1 ms late. A fetch.min.bytes of the user takes the place of lingering.
        longest_ms = settings.fetch_max_wait_ms if settings.fetch_min_bytes <= 1 else 0
        self._linger_s = max(0, min(linger_ms - 1, longest_ms)) / 1000
        self._lingers_until = 0.0
        self._gathers_ms = 0
        self._asked_bytes = self._oversized_bytes = 0
        self._long_poll = LongPoll(clock)
        self._stripes = Stripes(
            node_id,
            cluster,
            settings,
            clock=clock,
            owner=owner,
            throttle=self.throttle,
            rate=rate,
        )

    @property
    def cursors(self) -> Mapping[Cursor, None]:
        """Partitions that are fetched here."""
        return self._cursors

    @property
    def asked_bytes(self) -> int:
        """Upper limit of the responses that are outstanding."""
        return self._asked_bytes + self._stripes.asked_bytes

    def add(self, cursor: Cursor) -> None:
        """Fetch a partition from here."""
        self._cursors[cursor] = None
        cursor.joined(self._clock.monotonic())
        self.touch(cursor)

    def remove(self, cursor: Cursor) -> None:
        """Stop fetching it from here; a response in flight is ignored."""
        if cursor in self._cursors:
            cursor.known_until(self.known_at(cursor, self._clock.monotonic()))
            del self._cursors[cursor]
            self._by_name.pop(cursor, None)
            self._unready.pop(cursor, None)
            self._full.pop(cursor, None)
            self._long_poll.release(cursor)
            self._stripes.remove(cursor)
            self._session.touch(cursor)

    def touch(self, cursor: Cursor) -> None:
        """Note that a partition of this broker was paused, resumed or moved."""
        self._session.touch(cursor)
        if cursor.by_name:
            self._by_name[cursor] = None
        else:
            self._by_name.pop(cursor, None)
        if cursor.lookup is not Lookup.NONE:
            self._unready[cursor] = None
        if cursor.paused:
            self._long_poll.hold(cursor)
            if cursor in self._full:
                del self._full[cursor]
                cursor.limit(0)
        else:
            self._long_poll.release(cursor)
        self.wake()

    def wake(self) -> None:
        """Check for memory again."""
        self._wake.set()
        self._stripes.wake()

    def look_after(self) -> None:
        """Once a second: see ``Stripes.look_after``."""
        self._stripes.look_after()

    def silent_s(self, now: float) -> float:
        """Return for how long a response or connection has been overdue; ``now`` is monotonic."""
        since = self._owed_since()
        return 0.0 if since is None else now - since - self._settings.fetch_max_wait_ms / 1000

    def known_at(self, cursor: Cursor, now: float) -> float:
        """Return when the end of a partition's log was last known; ``now``, while this broker owes
        no response.

        An incremental response leaves out what has not changed, so it is about all partitions.
        """
        # An answer to a request without this partition has no information about it.
        if cursor.paused or self._answered_at <= cursor.joined_at:
            return cursor.known_at
        if self.is_throttled:
            return max(cursor.known_at, self._answered_at)
        since = self._owed_since()
        return now if since is None else since

    @property
    def is_throttled(self) -> bool:
        """Whether responses do not say where logs end now: the broker is asked nothing meanwhile,
        or withholds what it has."""
        return self.throttle.remaining_s() > 0 or self.throttle.withheld_s() > 0

    def _owed_since(self) -> float | None:
        asked = [it for it in (self._asking_since, self._stripes.owed_since()) if it is not None]
        return min(asked, default=None)

    async def run(self) -> None:
        """Fetch for ever; ends by cancellation."""
        backoff = Backoff(
            self._cluster.settings.reconnect_backoff_ms,
            self._cluster.settings.reconnect_backoff_max_ms,
        )
        while True:
            room = await self._room()
            self._asking_since = self._clock.monotonic()
            try:
                connection = await self._cluster.connection(self.node_id, "fetch")
                if self._unready:
                    await self._look_up(connection)
                else:
                    await self._round(connection, room)
                    if not self.throttle.withheld_s():
                        self._answered_at = self._clock.monotonic()
                self._asking_since = None
                backoff.reset()
            except Mm2pyError as error:
                # The partitions look their leaders up again; the pause prevents a busy loop.
                self._connection = None
                # Paused ones stay here: nothing of them is fetched that could have failed.
                lost = [c for c in self._cursors if c.fetchable or c.lookup is not Lookup.NONE]
                self._owner.lost(lost, error)
                self._asking_since = None  # only now: what is lost is known until then
                await self._clock.sleep(backoff.next_s())

    async def _room(self) -> int:
        """Wait until a Fetch may be sent; return the limit of its response in bytes."""
        while not self._unready:
            most = min(self._answer_bytes(), self._owner.most_bytes())
            room = min(self._owner.room_bytes(), most)
            if room <= 0 or not self._anything():
                self._wake.clear()
                await self._wake.wait()
                continue
            pause_s = self.throttle.remaining_s()
            if self._lingers_until:
                pause_s = max(pause_s, self._lingers_until - self._clock.monotonic())
                self._lingers_until = 0.0
            if self._rate is not None:
                pause_s = max(pause_s, self._rate.delay_s())
                room = min(room, self._rate.room_bytes())
            if pause_s <= 0:
                return room
            if self.throttle.remaining_s() > QUOTAS_EVERY_S:
                await self._look_at_quotas()
                pause_s = min(pause_s, QUOTAS_EVERY_S)
            else:
                self._quotas.forget()
            await self._clock.sleep(pause_s)
        return 0

    async def _look_at_quotas(self) -> None:
        """Reconnect after a change of quotas: a muted connection is read only after its time."""
        changed = False
        with suppress(TimeoutError):  # no answer: the announced time is waited for
            async with asyncio.timeout(QUOTAS_EVERY_S):
                changed = await self._quotas.is_changed(self.throttle.remaining_s())
        if not changed:
            return
        self.throttle.lift()
        reason = "a quota of the cluster was changed"
        if self._connection is not None:
            self._connection.reset(reason, on_purpose=True)
        self._stripes.reset(reason)
        self._quotas.forget()

    async def _look_up(self, connection: BrokerConnection) -> None:
        """Do the lookups of all partitions that need one, with one request of each kind."""
        waiting = list(self._unready)
        self._unready.clear()
        # The next Fetch validates the position itself;
        # OffsetForLeaderEpoch would cost a round trip.
        if connection.negotiated(FETCH_KEY, 4, NEWEST, "Fetch") >= DIVERGING_VERSION:
            for cursor in waiting:
                if cursor.lookup is Lookup.VALIDATE:
                    cursor.validated()
                    self.touch(cursor)
        refused = await look_up(
            connection,
            [cursor for cursor in waiting if cursor.lookup is not Lookup.NONE],
            self._losses,
            isolation_level=self._isolation,
            current=self._cursors,
        )
        for cursor in waiting:
            if cursor in self._cursors:
                self.touch(cursor)
        for cursor, error in refused:
            self._owner.lost([cursor], error)

    def _anything(self) -> bool:
        # What is read in stripes counts while its throttle is long: quotas are looked at here.
        return self._stripes.waits_long or any(cursor.fetchable for cursor in self._cursors)

    async def _round(self, connection: BrokerConnection, max_bytes: int) -> None:
        # The round trip decides whether lagging partitions are read in stripes.
        if connection is not self._connection:
            await connection.ping()
        # One topic without an id (metadata of a broker
        # before 2.8) moves the whole session to names.
        newest = TOPIC_ID_VERSION - 1 if self._by_name else NEWEST
        version = connection.negotiated(FETCH_KEY, 4, newest, "Fetch")
        session = self._session_on(connection, version)
        if self._full:
            self._share()
        plan = session.plan(self._cursors, self._partition_bytes())
        correlation_id = connection.next_correlation_id()
        max_bytes = min(max_bytes, self._answer_bytes())
        frame = self._frame(version, correlation_id, plan, max_bytes)

        def take(body: memoryview, lease: BufferLease | None) -> None:
            self._asked_bytes = 0
            # A batch above the limit is returned all the same (KIP-74).
            # After one, other brokers wait for the next response.
            self._oversized_bytes = len(body) if len(body) > max_bytes + _FRAMING_BYTES else 0
            if lease is None:
                # A short answer came in the head buffer, which the next read overwrites.
                body, lease = memoryview(bytearray(body)), PlainLease()
            response = decode_fetch(version, body)
            self._take(response, lease)
            if self._linger_s:
                parts = response.partitions
                self._linger(connection, sum(len(it.records) for it in parts if it.records))

        self._asked_bytes = max(max_bytes, self._oversized_bytes)
        try:
            await connection.exchange((frame,), correlation_id, take)
        finally:
            self._asked_bytes = 0
        self._owner.wake()

    def _reads_in_stripes(self) -> bool:
        """Whether lagging partitions are read over additional connections."""
        connection = self._connection
        return (
            self._settings.fetch_connections_max > 1
            and connection is not None
            and connection.round_trip.is_distant
        )

    def _partition_bytes(self) -> int:
        most = self._settings.max_partition_fetch_bytes
        return min(most, FAR_PARTITION_BYTES) if self._reads_in_stripes() else most

    def _answer_bytes(self) -> int:
        most = FAR_ANSWER_BYTES if self._reads_in_stripes() else ANSWER_BYTES
        return min(most, self._settings.fetch_max_bytes)

    def _session_on(self, connection: BrokerConnection, version: int) -> FetchSession:
        """Return the session, a new one after a change of the connection or of the way to name
        topics."""
        by_name = version < TOPIC_ID_VERSION
        # After a lost response the broker's epoch of the session is unknown,
        # so a new connection opens a new one; the broker evicts the old one.
        if connection is not self._connection or self._session.by_name is not by_name:
            self._connection = connection
            self._session = FetchSession(enabled=version >= SESSION_VERSION, by_name=by_name)
        return self._session

    def _frame(self, version: int, correlation_id: int, plan: FetchPlan, max_bytes: int) -> bytes:
        settings = self._settings
        gathers_ms, self._gathers_ms = self._gathers_ms, 0
        return encode_fetch(
            version,
            correlation_id,
            self._cluster.settings.client_id,
            partitions=plan.partitions,
            max_wait_ms=gathers_ms or self._long_poll.wait_ms(settings.fetch_max_wait_ms),
            min_bytes=GATHER_BYTES if gathers_ms else settings.fetch_min_bytes,
            max_bytes=max_bytes,
            isolation_level=self._isolation,
            session_id=plan.session_id,
            session_epoch=plan.epoch,
            forgotten=plan.forgotten,
            rack_id=self._cluster.settings.client_rack,
        )

    def _linger(self, connection: BrokerConnection, read_bytes: int) -> None:
        """Delay the next Fetch where records trickle, no log has more and the broker is near."""
        if (
            0 < read_bytes < GATHER_BYTES
            and not self._full
            and not connection.round_trip.is_distant
        ):
            wait_s = self._linger_s * (1.5 if read_bytes < FEW_BYTES else 1)
            if len(self._cursors) <= GATHER_PARTITIONS:
                self._gathers_ms = round(wait_s * 1000)
            else:
                self._lingers_until = self._clock.monotonic() + wait_s

    def _take(self, response: FetchResponse, lease: BufferLease) -> None:
        # KIP-219: above its quota a broker answers at once,
        # with no partitions, and mutes the connection.
        self.throttle.honour(response.throttle_ms, withheld=not response.partitions)
        session, full = self._session, self._full
        if response.error_code:
            if response.error_code not in SESSION_CODES:
                raise server_error(response.error_code, f"Fetch to broker {self.node_id}")
            session.refused(response.error_code)
            return
        session.opened(response.session_id)
        asked_for, touch = session.asked, session.touch
        cursors, fetched = self._cursors, self._owner.fetched
        in_stripes = self._reads_in_stripes()
        for part in response.partitions:
            asked = asked_for(part.topic or part.topic_id, part.partition)
            # It was forgotten in this session while the Fetch was in flight.
            if asked is None:
                continue
            cursor = asked.cursor
            touch(cursor)
            if self._rate is not None and part.records:
                self._rate.spend(len(part.records))
            # The response is stale if the cursor was moved while the Fetch was in flight.
            if (
                cursor not in cursors
                or cursor.failed
                or cursor.position != asked.wanted.position
                or cursor.topic_id != asked.wanted.topic_id
                or cursor.lookup is not Lookup.NONE
                or (cursor.paused and not part.records)
            ):
                continue
            fetched(cursor, part, lease)
            # ``fetched`` may have moved, paused or failed it.
            if in_stripes and cursor in cursors and cursor.fetchable:
                read = cursor.position - asked.wanted.position
                self._stripes.add(cursor, len(part.records or b""), read)
            if cursor.filled and not cursor.paused:
                full[cursor] = None
            elif cursor in full:
                del full[cursor]
                cursor.limit(0)

    def _share(self) -> None:
        """Divide the next response among partitions that have more data than fits."""
        limit, room = self._partition_bytes(), self._answer_bytes()
        for cursor in [c for c in self._full if not c.filled]:
            del self._full[cursor]
        for cursor, share in shares(self._full, limit, room, self._clock.now_ms()):
            cursor.limit(share)
            self._session.touch(cursor)
