"""The Fetcher's view of one source broker: a connection with one long-poll Fetch at a time, and
stripes besides.

Flow: cursors of this broker -> lookups of those that need one, all with one request ->
``FetchSession`` -> Fetch -> response -> ``FetchOwner.fetched`` for each partition. The next Fetch
is sent only while receive buffers are within the budget, and neither the broker's quota nor our own
byte rate forbids it.
"""

import asyncio
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
from mm2py.client.fetch.session import FetchSession, shares
from mm2py.client.fetch.stripes import NO_LEASE, Stripes
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
        self.cursors: dict[Cursor, None] = {}
        """Partitions that are fetched here."""
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
        self._backoff = Backoff(
            cluster.settings.reconnect_backoff_ms, cluster.settings.reconnect_backoff_max_ms
        )
        self._in_stripes = False
        self._answer_bytes = min(ANSWER_BYTES, settings.fetch_max_bytes)
        self._partition_bytes = settings.max_partition_fetch_bytes
        self._isolation = isolation_of(settings)
        self._session = FetchSession(enabled=False, by_name=True)
        self._connection: BrokerConnection | None = None
        self._version = 0
        self._needs_names: bool = False
        self._over: asyncio.Future[None] | None = None
        """Of rounds that follow each other without a wait."""
        self._quotas = QuotaWatch(cluster, node_id)
        self._full: dict[Cursor, None] = {}
        # Timers are up to 1 ms late. A fetch.min.bytes of the user takes the place of lingering.
        longest_ms = settings.fetch_max_wait_ms if settings.fetch_min_bytes <= 1 else 0
        self._linger_s = max(0, min(linger_ms - 1, longest_ms)) / 1000
        self._lingers_until = 0.0
        self._gathers_ms = 0
        self._most_bytes = self._oversized_bytes = 0
        self._long_poll = LongPoll(clock)
        self.asked_bytes = 0
        """Upper limit of the response that is outstanding."""
        self.stripes = Stripes(
            node_id,
            cluster,
            settings,
            clock=clock,
            owner=owner,
            throttle=self.throttle,
            rate=rate,
        )

    def add(self, cursor: Cursor) -> None:
        self.cursors[cursor] = None
        cursor.joined(self._clock.monotonic())
        self.touch(cursor)

    def remove(self, cursor: Cursor) -> None:
        """Stop fetching it from here; a response in flight is ignored."""
        if cursor in self.cursors:
            cursor.known_until(self.known_at(cursor, self._clock.monotonic()))
            del self.cursors[cursor]
            self._by_name.pop(cursor, None)
            self._unready.pop(cursor, None)
            self._full.pop(cursor, None)
            self._long_poll.release(cursor)
            self.stripes.remove(cursor)
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
        """Check again for memory, and for something to read."""
        self._wake.set()
        self.stripes.wake()

    def look_after(self) -> None:
        """Once a second: see ``Stripes.look_after``."""
        self.stripes.look_after()

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
        if self.is_blind:
            return max(cursor.known_at, self._answered_at)
        since = self._owed_since()
        return now if since is None else since

    @property
    def is_blind(self) -> bool:
        """Whether responses do not say where logs end now: the broker is asked nothing meanwhile,
        by its quota or for lack of memory, or withholds what it has."""
        if self.throttle.remaining_s() > 0 or self.throttle.withheld_s() > 0:
            return True
        return self._owed_since() is None and self._owner.room_bytes() <= 0

    def _owed_since(self) -> float | None:
        asked = [it for it in (self._asking_since, self.stripes.owed_since()) if it is not None]
        return min(asked, default=None)

    async def run(self) -> None:
        """Fetch for ever; ends by cancellation."""
        while True:
            room = await self._room()
            self._asking_since = self._clock.monotonic()
            try:
                connection = await self._cluster.connection(self.node_id, "fetch")
                if self._unready:
                    await self._look_up(connection)
                else:
                    await self._rounds(connection, room)
                self._asking_since = None
                self._backoff.reset()
            except Mm2pyError as error:
                # The partitions look their leaders up again; the pause prevents a busy loop.
                self._connection = None
                # Paused ones stay here: nothing of them is fetched that could have failed.
                lost = [c for c in self.cursors if c.fetchable or c.lookup is not Lookup.NONE]
                self._owner.lost(lost, error)
                self._asking_since = None  # only now: what is lost is known until then
                await self._clock.sleep(self._backoff.next_s())

    async def _room(self) -> int:
        """Wait until a Fetch may be sent; return the limit of its response in bytes."""
        while not self._unready:
            room, pause_s = self._room_now()
            if room <= 0:
                self._wake.clear()
                await self._wake.wait()
                continue
            if pause_s <= 0:
                return room
            if self.throttle.remaining_s() > QUOTAS_EVERY_S:
                await self._look_at_quotas()
                pause_s = min(pause_s, QUOTAS_EVERY_S)
            else:
                self._quotas.forget()
            self._lingers_until = 0.0
            await self._clock.sleep(pause_s)
        return 0

    def _room_now(self) -> tuple[int, float]:
        """Return the limit of the next response in bytes, not above 0 while nothing may be asked
        for, and after how many seconds it may be sent."""
        room = min(self._owner.room_to_ask(), self._answer_bytes) if self._anything() else 0
        if room <= 0:
            return 0, 0.0
        pause_s = self.throttle.remaining_s()
        if self._lingers_until:
            pause_s = max(pause_s, self._lingers_until - self._clock.monotonic())
        if self._rate is not None:
            pause_s = max(pause_s, self._rate.delay_s())
            # Not 0 while its pause lasts: the rate is waited for, not memory.
            room = min(room, max(1, self._rate.room_bytes()))
        return room, pause_s

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
        self.stripes.reset(reason)
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
            current=self.cursors,
        )
        for cursor in waiting:
            if cursor in self.cursors:
                self.touch(cursor)
        for cursor, error in refused:
            self._owner.lost([cursor], error)

    def _anything(self) -> bool:
        for cursor in self.cursors:
            if cursor.fetchable:
                return True
        # What is read in stripes counts while its throttle is long: quotas are looked at here.
        return self.stripes.waits_long

    async def _rounds(self, connection: BrokerConnection, room: int) -> None:
        """Fetch until something has to be waited for; each answer sends the next Fetch."""
        # The round trip decides whether lagging partitions are read in stripes.
        if connection is not self._connection:
            await connection.ping()
        self._over = over = asyncio.get_running_loop().create_future()
        self._ask(connection, room)
        try:
            await over
        finally:
            self.asked_bytes = 0

    def _ask(self, connection: BrokerConnection, room: int) -> None:
        """Send one Fetch; ``room`` limits its response."""
        session = self._session_on(connection)
        if self._full:
            self._share()
        plan = session.plan(self.cursors, self._partition_bytes)
        correlation_id = connection.next_correlation_id()
        self._most_bytes = min(room, self._answer_bytes)
        self.asked_bytes = max(self._most_bytes, self._oversized_bytes)
        self._lingers_until = 0.0
        settings = self._settings
        gathers_ms, self._gathers_ms = self._gathers_ms, 0
        frame = encode_fetch(
            self._version,
            correlation_id,
            self._cluster.settings.client_id,
            partitions=plan.partitions,
            max_wait_ms=gathers_ms or self._long_poll.wait_ms(settings.fetch_max_wait_ms),
            min_bytes=GATHER_BYTES if gathers_ms else settings.fetch_min_bytes,
            max_bytes=self._most_bytes,
            isolation_level=self._isolation,
            session_id=plan.session_id,
            session_epoch=plan.epoch,
            forgotten=plan.forgotten,
            rack_id=self._cluster.settings.client_rack,
        )
        connection.send((frame,), correlation_id, self._answered, self._lost)

    def _lost(self, error: Exception) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    def _answered(self, body: memoryview, lease: BufferLease | None) -> None:
        over, connection = self._over, self._connection
        if over is None or over.done() or connection is None:
            return  # it was stopped meanwhile
        self.asked_bytes = 0
        # A batch above the limit is returned all the same (KIP-74).
        # After one, other brokers wait for the next response.
        is_oversized = len(body) > self._most_bytes + _FRAMING_BYTES
        self._oversized_bytes = len(body) if is_oversized else 0
        if short := lease is None:
            # A short answer came in the head buffer, which the next read overwrites.
            body = memoryview(bytearray(body))
        read_bytes = self._take(decode_fetch(self._version, body), lease or NO_LEASE)
        if self._rate is not None:
            self._rate.spend(read_bytes)
        self._backoff.failures = 0
        if self._in_stripes:  # a broker that was slow once may turn out to be near
            self._measure(connection)
        if self._linger_s:
            self._linger(connection, read_bytes)
        now = self._clock.monotonic()
        if self.throttle.withheld_since is None:
            self._answered_at = now
        self._owner.answered(short=short)
        if over.done():
            return
        room, pause_s = (0, 0.0) if self._unready or connection.closed else self._room_now()
        if room <= 0 or pause_s > 0:
            over.set_result(None)
            return
        self._asking_since = now
        try:
            self._ask(connection, room)
        except Exception as error:  # noqa: BLE001 - of the request, not of the answer: for ``run``
            over.set_exception(error)

    def _measure(self, connection: BrokerConnection) -> None:
        """Set what depends on the broker's distance: whether lagging partitions are read over
        additional connections, and how much a response may have."""
        settings = self._settings
        self._in_stripes = far = (
            settings.fetch_connections_max > 1 and connection.round_trip.is_distant
        )
        partition = settings.max_partition_fetch_bytes
        self._partition_bytes = min(partition, FAR_PARTITION_BYTES) if far else partition
        self._answer_bytes = min(
            FAR_ANSWER_BYTES if far else ANSWER_BYTES, settings.fetch_max_bytes
        )

    def _session_on(self, connection: BrokerConnection) -> FetchSession:
        """Return the session, a new one after a change of the connection or of the way to name
        topics."""
        is_new, needs_names = connection is not self._connection, bool(self._by_name)
        # One topic without an id (metadata of a broker
        # before 2.8) moves the whole session to names.
        if is_new or needs_names is not self._needs_names:
            newest = TOPIC_ID_VERSION - 1 if needs_names else NEWEST
            self._version = connection.negotiated(FETCH_KEY, 4, newest, "Fetch")
            self._needs_names = needs_names
            by_name = self._version < TOPIC_ID_VERSION
            # After a lost response the broker's epoch of the session is unknown,
            # so a new connection opens a new one; the broker evicts the old one.
            if is_new or self._session.by_name is not by_name:
                self._connection = connection
                self._measure(connection)
                enabled = self._version >= SESSION_VERSION
                self._session = FetchSession(enabled=enabled, by_name=by_name)
        return self._session

    def _linger(self, connection: BrokerConnection, read_bytes: int) -> None:
        """Delay the next Fetch where records trickle, no log has more and the broker is near."""
        if (
            0 < read_bytes < GATHER_BYTES
            and not self._full
            and not connection.round_trip.is_distant
        ):
            wait_s = self._linger_s * (1.5 if read_bytes < FEW_BYTES else 1)
            if len(self.cursors) <= GATHER_PARTITIONS:
                self._gathers_ms = round(wait_s * 1000)
            else:
                self._lingers_until = self._clock.monotonic() + wait_s

    def _take(self, response: FetchResponse, lease: BufferLease) -> int:
        """Pass a response on by partition; return how many bytes of records it has."""
        # KIP-219: above its quota a broker answers at once,
        # with no partitions, and mutes the connection.
        self.throttle.honour(response.throttle_ms, withheld=not response.partitions)
        session, full = self._session, self._full
        if response.error_code:
            if response.error_code not in SESSION_CODES:
                raise server_error(response.error_code, f"Fetch to broker {self.node_id}")
            session.refused(response.error_code)
            return 0
        session.opened(response.session_id)
        cursors, fetched, read_bytes = self.cursors, self._owner.fetched, 0
        for part in response.partitions:
            asked = session.answered(part.topic or part.topic_id, part.partition)
            read_bytes += len(part.records or b"")
            # It was forgotten in this session while the Fetch was in flight.
            if asked is None:
                continue
            cursor = asked.cursor
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
            if self._in_stripes and cursor in cursors and cursor.fetchable:
                read = cursor.position - asked.wanted.position
                self.stripes.add(cursor, len(part.records or b""), read)
            if cursor.filled and not cursor.paused:
                full[cursor] = None
            elif cursor in full:
                del full[cursor]
                cursor.limit(0)
        return read_bytes

    def _share(self) -> None:
        """Divide the next response among partitions that have more data than fits."""
        limit, room = self._partition_bytes, self._answer_bytes
        for cursor in [c for c in self._full if not c.filled]:
            del self._full[cursor]
        for cursor, share in shares(self._full, limit, room, self._clock.now_ms()):
            cursor.limit(share)
            self._session.touch(cursor)
