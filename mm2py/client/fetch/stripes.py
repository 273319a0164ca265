"""Reads lagging partitions of a distant broker in stripes over several connections, in order.

A broker's ``socket.send.buffer.bytes`` (100 KiB by default) limits what one connection carries per
round trip, regardless of the request. Flow: ``add`` -> ranges of offsets requested ahead, spread
over the connections -> responses wait for earlier ones -> ``FetchOwner.fetched`` in order ->
``caught_up``: the ``FetchNode`` reads it in its session.

Stripe borders are estimates from the bytes per offset read last. They need not be borders of
batches: a broker answers from the batch that contains the offset, and ``Cursor.take`` drops the
offsets below its position. A response that ends early leaves a hole, which is requested when its
turn comes; a response is applied only when the position has reached its start offset, so nothing is
skipped. Errors count only for a request at the position itself.
"""

from collections import deque
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.owner import FetchOwner
from mm2py.client.fetch.partition_fetch import isolation_of
from mm2py.client.pacing import QUOTAS_EVERY_S, ByteRate, Throttle
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.fetch import (
    FETCH_KEY,
    FETCH_VERSIONS,
    FetchedPartition,
    FetchPartition,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.record_batch import BufferLease

_MARGIN_BYTES: Final = 8 * 1024
"""Left for an answer's framing: receive buffers are powers of two, one byte more costs double."""

_STRIPE_BYTES: Final = 512 * 1024 - _MARGIN_BYTES
"""With the 1.5 MB/s that a default send buffer allows over 80 ms it takes a third of a second."""

_LARGEST_STRIPE_BYTES: Final = 4 * 1024 * 1024 - _MARGIN_BYTES
_BATCHES: Final = 4
"""Least number of batches in a stripe, since its first one may repeat the last one of the previous
stripe."""

_PER_CONNECTION: Final = 2
"""Requests in flight per connection: the broker has the next one while a response is
transferred."""

_FIRST_WIDTH: Final = 4
_TOO_LONG_S: Final = 2.0
"""From this response time on fewer stripes are requested concurrently: the line is full."""

_REST_MS: Final = 1_000
_LONGEST_REST_MS: Final = 60_000
"""A connection that failed pauses, so that a broker's limit of connections is not tried all the
time."""

_LAST_BY_NAME: Final = 12
_OUTSIDE_SESSIONS: Final = -1


@final
class PlainLease:
    """Lease of a short response, which was copied out of the head buffer."""

    __slots__ = ()

    held_bytes = 0

    def retain(self) -> None:
        """Nothing is shared."""

    def release(self) -> None:
        """Nothing to give back."""

    def copied(self, size_bytes: int) -> "PlainLease":
        return self


NO_LEASE: Final = PlainLease()


@final
class _Stripe:
    """One range of offsets, from its request until it is applied."""

    __slots__ = ("asked_at", "end", "first", "lease", "part", "size", "start")

    def __init__(self, start: int, end: int, size: int, *, first: bool) -> None:
        self.start, self.end, self.size = start, end, size
        self.first = first  # begins at the position: its errors count
        self.asked_at: float | None = None
        self.part: FetchedPartition | None = None
        self.lease: BufferLease | None = None

    def release(self) -> None:
        """Give its buffer back."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


@final
class _Reading:
    """One partition: its stripes by offset, and its bytes per offset."""

    __slots__ = ("cursor", "density", "stripes")

    def __init__(self, cursor: Cursor, density: float) -> None:
        self.cursor = cursor
        self.density = density  # bytes per offset, 0 while unknown
        self.stripes: deque[_Stripe] = deque()

    def learn(self, size_bytes: int, offsets: int) -> None:
        """Update the bytes per offset."""
        offset_bytes = size_bytes / offsets
        self.density = offset_bytes if not self.density else (self.density + offset_bytes) / 2

    def next(self, log_end: int, limit_bytes: int) -> _Stripe | None:
        """Return the next stripe to request, None for none.

        With a ``log_end`` of 0 only a stripe at the position, which can be applied at once.
        """
        for stripe in self.stripes:
            if stripe.asked_at is None and stripe.part is None:
                return stripe  # its connection was lost
        position, batch = self.cursor.position, self.cursor.batch_bytes
        size = min(limit_bytes, max(_STRIPE_BYTES, _BATCHES * batch), _LARGEST_STRIPE_BYTES)
        # The last batch of a response may be cut, and the first one may begin before the stripe.
        span = int(max(size - 2 * batch, batch, 1) / self.density) + 1 if self.density else 1
        hole = self.stripes[0].start - position if self.stripes else span
        if hole > 0:
            span = min(hole, span)
            size = min(size, int(span * self.density) + 2 * batch) if self.density else size
            made = _Stripe(position, position + span, size, first=True)
            self.stripes.appendleft(made)
            return made
        start = self.stripes[-1].end
        # Where a stripe holds few batches most of its bytes would repeat those of its neighbour.
        if not self.density or start >= log_end or size < (_BATCHES - 1) * batch:
            return None
        made = _Stripe(start, start + span, size, first=False)
        self.stripes.append(made)
        return made


@final
class _Channel:
    """One connection and its requests in flight."""

    __slots__ = ("backoff", "connection", "not_before", "purpose", "under_way")

    def __init__(self, number: int) -> None:
        self.connection: BrokerConnection | None = None
        self.purpose = f"fetch-{number}"
        self.under_way = 0
        self.backoff = Backoff(_REST_MS, _LONGEST_REST_MS)
        self.not_before = 0.0


@final
class Stripes:
    """Reads partitions of one broker over ``fetch.connections.max`` - 1 additional connections."""

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        owner: FetchOwner,
        throttle: Throttle,
        rate: ByteRate | None,
    ) -> None:
        self._node_id, self._cluster, self._settings = node_id, cluster, settings
        self._clock, self._owner, self._throttle, self._rate = clock, owner, throttle, rate
        self._isolation = isolation_of(settings)
        limit = _LARGEST_STRIPE_BYTES
        if settings.max_partition_fetch_bytes_set:
            limit = settings.max_partition_fetch_bytes
        self._limit_bytes = min(limit, settings.fetch_max_bytes)
        self._channels = [_Channel(n) for n in range(1, settings.fetch_connections_max)]
        self._readings: dict[Cursor, _Reading] = {}
        self.asked_bytes = 0
        """Upper limit of the responses in flight."""
        self._asked: dict[_Stripe, None] = {}
        self._held_bytes = 0  # of stripes that were asked for and not applied
        self._width = _FIRST_WIDTH
        self._applying = self._resting = False
        self._paused: set[Cursor] = set()

    def add(self, cursor: Cursor, size_bytes: int, offsets: int) -> None:
        """Read a partition in stripes, if by the last response it lags by more than one stripe."""
        density = size_bytes / offsets if offsets > 0 else 0.0
        lag = self._end(cursor) - cursor.position
        if cursor in self._readings or lag <= 0 or (density and lag * density < _STRIPE_BYTES):
            return
        if self._all_rest():
            return
        cursor.spread(over_several=True)
        self._readings[cursor] = _Reading(cursor, density)
        self.wake()

    def remove(self, cursor: Cursor) -> None:
        """Stop reading a partition in stripes; responses in flight are ignored."""
        reading = self._readings.pop(cursor, None)
        if reading is not None:
            cursor.spread(over_several=False)
            for stripe in reading.stripes:
                self._drop(stripe)
            reading.stripes.clear()

    def look_after(self) -> None:
        """Once a second: free buffers that were read ahead of partitions that stay paused, and use
        connections again that have rested."""
        paused = {cursor for cursor in self._readings if cursor.paused}
        for cursor in paused & self._paused:
            self._hand_back(cursor)
        self._paused = paused
        self.wake()

    def reset(self, reason: str) -> None:
        """Reset the connections; their requests are sent again over new ones."""
        for channel in self._channels:
            if channel.connection is not None:
                channel.connection.reset(reason, on_purpose=True)
                channel.connection = None

    def owed_since(self) -> float | None:
        """Return when the oldest request in flight was sent."""
        return next(iter(self._asked)).asked_at if self._asked else None

    @property
    def waits_long(self) -> bool:
        """Whether a throttle, announced for longer than quotas stay unwatched, holds back what is
        read here."""
        return bool(self._readings) and self._throttle.remaining_s() > QUOTAS_EVERY_S

    def wake(self) -> None:
        """Send the requests for which there are memory, a partition and a connection."""
        # ``fetched`` releases buffers, which calls back into here while responses are applied.
        if self._applying or self._resting or not self._readings:
            return
        pause_s = self._throttle.remaining_s()
        if self._rate is not None:
            pause_s = max(pause_s, self._rate.delay_s())
        if pause_s > 0:
            self._resting = True
            self._owner.spawn(self._rest(pause_s))
            return
        while len(self._asked) < self._width:
            channel = self._free_channel()
            spare = None if channel is None else self._next()
            if channel is None or spare is None:
                return
            reading, stripe = spare
            stripe.asked_at = self._clock.monotonic()
            self._asked[stripe] = None
            self.asked_bytes += stripe.size
            channel.under_way += 1
            self._owner.spawn(self._read(reading, stripe, channel))

    # -- what is asked ----------------------------------------------------------------------------

    async def _rest(self, pause_s: float) -> None:
        if self.waits_long:
            self._owner.wake()  # the node looks whether the quota was changed, also with nothing else to read
        await self._clock.sleep(min(pause_s, QUOTAS_EVERY_S))
        self._resting = False
        self.wake()

    def _free_channel(self) -> _Channel | None:
        now = self._clock.monotonic()
        free = [
            channel
            for channel in self._channels
            if channel.under_way < _PER_CONNECTION and channel.not_before <= now
        ]
        return min(free, key=lambda channel: channel.under_way) if free else None

    def _next(self) -> tuple[_Reading, _Stripe] | None:
        """Return the next stripe that there is room for: of the partition with the fewest, in turn.

        Stripes that wait must never use up the room of the stripes that they wait for.
        """
        most, under_way = self._owner.most_bytes(), self.asked_bytes
        room = min(self._owner.room_to_ask(), most - under_way)
        if self._rate is not None:
            room = min(room, self._rate.room_bytes() - under_way)
        if room <= 0:
            return None
        is_room_ahead = self._held_bytes < most
        for reading in sorted(self._readings.values(), key=lambda it: len(it.stripes)):
            cursor, known = reading.cursor, len(reading.stripes)
            if cursor.paused:
                continue
            stripe = reading.next(self._end(cursor) if is_room_ahead else 0, self._limit_bytes)
            if stripe is not None:
                if len(reading.stripes) > known:
                    self._held_bytes += stripe.size
                # To the end: partitions with as many stripes take turns (``sorted`` is stable).
                self._readings[cursor] = self._readings.pop(cursor)
                return reading, stripe
        return None

    def _all_rest(self) -> bool:
        now = self._clock.monotonic()
        return all(channel.not_before > now for channel in self._channels)

    def _end(self, cursor: Cursor) -> int:
        return cursor.last_stable_offset if self._isolation else cursor.high_watermark

    async def _read(self, reading: _Reading, stripe: _Stripe, channel: _Channel) -> None:
        try:
            connection = await self._cluster.connection(self._node_id, channel.purpose)
            channel.connection = connection
            if self._waits_for(reading, stripe):
                await self._exchange(connection, reading, stripe)
            channel.backoff.reset()
        except Mm2pyError:
            # No error of the partition: the first connection still works, or reports why not.
            channel.not_before = self._clock.monotonic() + channel.backoff.next_s()
            stripe.asked_at = None
        finally:
            channel.under_way -= 1
            del self._asked[stripe]
            self.asked_bytes -= stripe.size
        if self._all_rest():
            for cursor in list(self._readings):  # the first connection shows the cause
                self._hand_back(cursor)
        self.wake()

    async def _exchange(
        self, connection: BrokerConnection, reading: _Reading, stripe: _Stripe
    ) -> None:
        cursor, settings = reading.cursor, self._settings
        newest = _LAST_BY_NAME if cursor.by_name else FETCH_VERSIONS[1]
        version = connection.negotiated(FETCH_KEY, FETCH_VERSIONS[0], newest, "Fetch")
        correlation_id = connection.next_correlation_id()
        part = FetchPartition(
            topic=cursor.tp.topic,
            topic_id=cursor.topic_id,
            partition=cursor.tp.partition,
            position=stripe.start,
            current_leader_epoch=cursor.leader_epoch,
            # Ahead of the position the epoch of the previous record is unknown.
            last_fetched_epoch=cursor.last_epoch if stripe.start == cursor.position else -1,
            max_bytes=stripe.size,
        )
        frame = encode_fetch(
            version,
            correlation_id,
            self._cluster.settings.client_id,
            partitions=[part],
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=stripe.size,
            isolation_level=self._isolation,
            session_id=0,
            # A session has one position per partition; stripes have several.
            session_epoch=_OUTSIDE_SESSIONS,
            rack_id=self._cluster.settings.client_rack,
        )

        def take(body: memoryview, lease: BufferLease | None) -> tuple[int, int]:
            if lease is None:
                body = memoryview(bytearray(body))
            answer = decode_fetch(version, body)
            self._throttle.honour(answer.throttle_ms, withheld=not answer.partitions)
            connection.put_off(answer.throttle_ms)
            if not answer.error_code and answer.partitions and self._waits_for(reading, stripe):
                stripe.part = answer.partitions[0]
                if lease is not None:
                    lease.retain()
                    stripe.lease = lease
                self._apply(reading)
            if self._rate is not None:
                self._rate.spend(len(body))
            self._owner.answered(short=lease is None)
            return answer.error_code, answer.throttle_ms

        asked_at = self._clock.monotonic()
        code, throttle_ms = await connection.exchange([frame], correlation_id, take)
        if code:
            raise server_error(code, f"Fetch to broker {self._node_id}")
        if stripe.part is None and self._waits_for(reading, stripe):
            if throttle_ms > 0:  # an answer of a broker whose quota is exceeded has no partitions
                stripe.asked_at = None
                return
            raise ProtocolError(f"broker {self._node_id} left {cursor.tp} out of its answer")
        took_s = (
            self._clock.monotonic() - asked_at - _PER_CONNECTION * connection.round_trip.least_s
        )
        # Additive increase, halved when the line is full, as TCP does with its window.
        is_slow = took_s > _TOO_LONG_S
        width = self._width // 2 if is_slow else self._width + 1
        self._width = max(1, min(width, _PER_CONNECTION * len(self._channels)))
        if not connection.round_trip.is_distant and self._readings.get(cursor) is reading:
            self._hand_back(cursor)  # the broker is not distant, it was only slow

    def _waits_for(self, reading: _Reading, stripe: _Stripe) -> bool:
        return self._readings.get(reading.cursor) is reading and stripe in reading.stripes

    # -- what has come ----------------------------------------------------------------------------

    def _apply(self, reading: _Reading) -> None:
        """Apply the responses whose turn it is."""
        cursor, stripes = reading.cursor, reading.stripes
        self._applying = True
        try:
            while stripes and (part := stripes[0].part) and stripes[0].start <= cursor.position:
                stripe = stripes.popleft()
                before = cursor.position
                try:
                    # An empty or refused answer ahead of the position
                    # proves nothing: the log may grow until then.
                    if part.records or (stripe.first and stripe.start == before):
                        self._owner.fetched(cursor, part, stripe.lease or NO_LEASE)
                finally:
                    self._drop(stripe)
                if self._readings.get(cursor) is not reading:
                    return
                if cursor.position > before:
                    reading.learn(len(part.records or b""), cursor.position - stripe.start)
                elif cursor.position < before or stripe.start == before:
                    self._hand_back(cursor)  # truncated, held, damaged or refused
                    return
            if cursor.position >= self._end(cursor) and not stripes:
                self._hand_back(cursor)
        finally:
            self._applying = False

    def _hand_back(self, cursor: Cursor) -> None:
        self.remove(cursor)
        self._owner.caught_up(cursor)

    def _drop(self, stripe: _Stripe) -> None:
        self._held_bytes -= stripe.size
        stripe.release()
