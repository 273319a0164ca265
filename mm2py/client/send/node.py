"""The Sender's view of one connection to a target broker: the lanes that can send, the requests in
flight.

Flow: ready lanes -> one Produce request with one batch per partition -> response ->
``LaneOwner.answered`` per batch. When the connection is lost, every batch in flight is reported as
lost, oldest request first.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.pacing import QUOTAS_EVERY_S, Throttle
from mm2py.client.quota_watch import QuotaWatch
from mm2py.client.send.lane import MergePlan, SenderLane, Sent
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.transactions import Transactions
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.kernel import native
from mm2py.protocol.produce import (
    PRODUCE_KEY,
    acknowledgements,
    decode_produce,
    encode_produce,
)
from mm2py.protocol.record_batch import BufferLease

log = logging.getLogger(__name__)

OLDEST: Final = 3
NEWEST: Final = 12
"""Produce 13 names topics by id: after a target topic was recreated it would be refused until
metadata are refreshed."""

EXPLICIT_NEWEST: Final = 11
"""In the old transaction protocol; 12 adds partitions to the transaction implicitly (KIP-890)."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A request closes at this size: far below ``socket.request.max.bytes``, enough to amortise its
cost."""

UNSENT_BYTES: Final = 2 * 1024 * 1024
"""No further request while the kernel has not taken this much of the earlier ones."""

LOCAL: Final = MergePlan(
    target=256 * 1024, small=8 * 1024 if native is None else 64 * 1024, small_compressed=2 * 1024
)
"""Nearby target: only batches so small that their fixed cost is higher than that of joining them.
The C kernel joins batches of 16 KiB for a tenth of the cost of sending them one by one; in Python
that pays only for tiny ones."""

DISTANT: Final = MergePlan(target=1_000_000, small=1_000_000, small_compressed=1_000_000)
"""Five batches in flight are all that moves in a round trip: over a WAN they must be large."""

ASKED: Final = DISTANT._replace(small_compressed=LOCAL.small_compressed)
"""While the distance of a broker is measured: recompression keeps the loop so busy that any
response would be read late."""

CALM_ANSWERS: Final = 20
"""After so many answers without a throttle a transaction may have several requests in flight.

A quota lets a broker acknowledge one request at once and read the next one much later (KIP-219),
and what is in flight cannot be taken back: a commit would wait for it, until the coordinator aborts
what is open for longer than ``transaction.timeout.ms``."""

REST_S: Final = 60.0
"""For how long an additional connection that could not be opened gets no partitions."""

SILENT_S: Final = 5.0
"""After so long without an answer other brokers may lead: one that is frozen keeps its connections,
and Java waits for ``request.timeout.ms``."""

FIRST_PAUSE_S: Final = 0.05
MOST_PAUSE_S: Final = 8.0
"""Pauses between the first and between later pings to a broker that seems distant."""

QUIET_FAILURES: Final = 3
"""Failed attempts to connect before the stall is reported: brokers restart."""

Entries = dict[tuple[str, int], tuple[SenderLane, Sent]]
"""The batches of one Produce request by (topic, partition): the response may have any order."""

Parts = dict[tuple[str, int], bytearray | memoryview]
"""The same as bytes."""


@final
class ProduceNode:
    """Sends the batches of the lanes that use one connection to one leader; lives as long as the
    Sender."""

    def __init__(  # noqa: PLR0913 - one keyword per rule of sending
        self,
        node_id: int,
        channel: int,
        cluster: Cluster,
        *,
        purpose: str,
        clock: Clock,
        owner: LaneOwner,
        merges: bool,
        most_bytes: int,
        transactions: Transactions | None = None,
    ) -> None:
        self._node_id, self._channel = node_id, channel
        self._purpose = f"{purpose}-{channel}" if channel else purpose
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._owner = owner
        self._ready: dict[SenderLane, None] = {}
        self._connection: BrokerConnection | None = None
        self._connecting = False
        self._scheduled = False
        self._version = 0
        self._transactional_id = None if transactions is None else transactions.transactional_id
        self._oldest, self._newest = _versions(transactions)
        self._merges = merges
        self._pinging = self._asks = self._searching = False
        self._most_bytes = most_bytes  # of one request, as configured; 0: no limit but ours
        self._throttle = Throttle(clock)
        self._calm = 0 if transactions is not None else CALM_ANSWERS
        self._asked = 0  # requests that are not answered
        self._muted: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self._rests_until = 0.0

    @property
    def is_distant(self) -> bool:
        """Whether the round trip is so long that one connection may not be enough; False while
        unknown."""
        return self._connection is not None and self._connection.round_trip.is_distant

    @property
    def node_id(self) -> int:
        """Id of the broker."""
        return self._node_id

    @property
    def throttled_s(self) -> float:
        """For how long nothing is sent because of a quota, 0 when not throttled."""
        return self._throttle.remaining_s()

    @property
    def rests(self) -> bool:
        """Whether the connection could not be opened recently."""
        return self._rests_until > self._loop.time()

    def carries(self, lane: SenderLane) -> bool:
        """Whether batches of ``lane`` in flight were sent over this connection."""
        return self._connection is not None and lane.connection is self._connection

    def permitted(self) -> None:
        """Send what became ready while sending was not allowed."""
        if self._ready:
            self._schedule()

    def reset(self, reason: str) -> None:
        """Drop what the kernel has not delivered; batches in flight are reported as lost."""
        if self._connection is not None and self._connection.in_flight:
            self._connection.reset(reason, on_purpose=True)

    def ready(self, lane: SenderLane, *, later: bool = True) -> None:
        """Send what ``lane`` has: ``later`` at the end of this loop iteration, else with
        ``pump``."""
        self._ready[lane] = None
        if later and not self._scheduled:
            self._schedule()

    def look_after(self, lanes: Iterable[SenderLane] = ()) -> None:
        """Each second: measure a distant broker again, which may only have been slow; look for
        others that lead ``lanes`` while it is silent."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        if not self._searching and connection.waits_s > SILENT_S:
            waiting = [lane for lane in lanes if lane.under_way and self.carries(lane)]
            self._searching = True
            self._owner.spawn(self._find_leaders(connection, waiting))
        if self._merges and not self._pinging and connection.round_trip.is_distant:
            self._pinging = True
            self._owner.spawn(self._ping(connection))

    async def _find_leaders(
        self, connection: BrokerConnection, waiting: Sequence[SenderLane]
    ) -> None:
        """End a connection to a broker that leads nothing of what waits there; the new leaders know
        what they have of it, as after any lost connection (5, 6)."""
        try:
            for lane in waiting:
                self._cluster.leader_moved(lane.target)
            with suppress(Mm2pyError):  # repeated by the next ``look_after``
                leaders = await self._cluster.leaders(lane.target for lane in waiting)
                nodes = {
                    self._node_id if isinstance(it, Mm2pyError) else it.node_id
                    for it in leaders.values()
                }
                if nodes and self._node_id not in nodes:
                    connection.reset("it is silent, and other brokers lead what it was sent")
            # What a muted connection carries is answered late by right (KIP-219).
            if self.throttled_s:
                await self._clock.sleep(SILENT_S)
        finally:
            self._searching = False

    async def _ping(self, connection: BrokerConnection) -> None:
        """Ping over a connection without data, soon and then rarely.

        Until the response the plan is ``ASKED``; otherwise a broker that was slow once would seem
        distant for as long as there is enough to send.
        """
        pause_s = FIRST_PAUSE_S
        try:
            with suppress(Mm2pyError):  # repeated by the next ``look_after``
                while connection.round_trip.is_distant and not connection.closed:
                    asked = await self._cluster.connection(self._node_id, ADMIN)
                    self._asks = True
                    await asked.ping(1)
                    self._asks = False
                    await self._clock.sleep(pause_s)
                    pause_s = min(MOST_PAUSE_S, 4 * pause_s)
        finally:
            self._pinging = self._asks = False

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send what is ready, as far as that is possible now."""
        self._scheduled = False
        connection = self._connection
        # Ready lanes wait here until ``permitted``.
        if not self._ready or not self._owner.allowed():
            return
        muted_s = self._throttle.remaining_s()
        if muted_s > 0:
            if self._muted is None:
                self._muted = self._loop.call_later(muted_s, self._unmuted)
            return
        if connection is None or connection.closed:
            if not self._connecting:
                self._connecting = True
                self._owner.spawn(self._connect())
            return
        while (
            self._ready
            and (self._calm >= CALM_ANSWERS or self._asked <= 0)
            and connection.takes_more(UNSENT_BYTES)
        ):
            entries, parts = self._collect(connection)
            if entries:
                self._send(connection, entries, parts)

    def _collect(self, connection: BrokerConnection) -> tuple[Entries, Parts]:
        """Take one batch of every lane that can send, up to the size of a request."""
        entries: Entries = {}
        parts: Parts = {}
        size = 0
        ready = self._ready
        node_id, channel, limit = self._node_id, self._channel, self._most_bytes
        plan = self._plan(connection) if self._merges else None
        for lane in list(ready):
            # It moved while it waited here; ``Sender.ready`` finds its node.
            if lane.leader != node_id or lane.channel != channel:
                del ready[lane]
                self._owner.ready(lane)
                continue
            # Batches in flight on another connection are
            # answered first: two connections keep no order.
            if lane.connection is not connection and not lane.under_way:
                lane.travels_by(connection)
            if lane.connection is not connection or not lane.can_send():
                del ready[lane]  # becomes ready again with its next response or batch
                continue
            if limit:
                if entries and size + lane.next_bytes() > limit:
                    break
                plan = plan and plan._replace(target=min(plan.target, limit - size))
            sent = lane.take(plan)
            entries[lane.target] = (lane, sent)
            data = parts[lane.target] = sent.batch.data
            if not lane.queue:
                del ready[lane]
            size += len(data)
            if size >= REQUEST_BYTES:
                break
        return entries, parts

    def _plan(self, connection: BrokerConnection) -> MergePlan:
        if connection.round_trip.is_distant:
            return ASKED if self._asks else DISTANT
        return LOCAL

    def _send(self, connection: BrokerConnection, entries: Entries, parts: Parts) -> None:
        correlation_id = connection.next_correlation_id()
        self._asked += 1
        try:
            frame = encode_produce(
                self._version,
                correlation_id,
                self._cluster.settings.client_id,
                parts,
                transactional_id=self._transactional_id,
                timeout_ms=self._cluster.settings.request_timeout_ms,
            )
            connection.send(
                frame, correlation_id, partial(self._answer, entries), partial(self._lose, entries)
            )
        except Exception as error:  # noqa: BLE001 - the lanes report it, and try again
            self._lose(
                entries, error
            )  # usually the connection closed while the previous request was written

    def _answer(self, entries: Entries, body: memoryview, _lease: BufferLease | None) -> None:
        self._asked -= 1
        self._calm += 1
        answered = self._owner.answered
        # Fast path: all batches were accepted, so only offsets are read.
        acknowledged = acknowledgements(self._version, body)
        if acknowledged is not None:
            for key, base_offset in acknowledged:
                try:
                    lane, sent = entries.pop(key)
                except KeyError:
                    raise self._never_sent(key) from None
                answered(lane, sent, 0, base_offset)
            if entries or self._ready:
                self._answered(entries)
            return
        answer = decode_produce(self._version, body)
        if answer.throttle_ms > 0:
            self._throttled(answer.throttle_ms)
        for part in answer.partitions:
            key = (part.topic, part.partition)
            try:
                lane, sent = entries.pop(key)
            except KeyError:
                raise self._never_sent(key) from None
            if part.error_code == 0:
                answered(lane, sent, 0, part.base_offset)
                continue
            # KIP-951 (Produce 10): the next attempt needs no metadata request.
            if part.current_leader is not None:
                self._cluster.leader_moved(lane.target, *part.current_leader)
            bad = part.record_errors[0] if part.record_errors else None
            text = f"{part.error_message}: {bad.message}" if bad else part.error_message
            index = bad.index if bad else -1
            answered(lane, sent, part.error_code, -1, text.strip(": "), index)
        self._answered(entries)

    def _answered(self, missing: Entries) -> None:
        for lane, sent in missing.values():
            # Unknown, not refused: a partition that the broker left out may be written.
            self._owner.answered(lane, sent, codes.REQUEST_TIMED_OUT, -1, "missing in the answer")
        if self._ready:
            self._schedule()
        # Not pumped at once: responses that arrive
        # together make lanes ready for one larger request.

    def _throttled(self, throttle_ms: int) -> None:
        """Pause for the throttle time of a quota, during which the broker reads nothing
        (KIP-219)."""
        self._throttle.honour(throttle_ms)
        if self._transactional_id is not None:
            self._calm = 0
        if self._connection is not None:
            # Requests in flight time out later: a muted connection answers them only then.
            self._connection.put_off(throttle_ms)
        is_followed = self._following is not None and not self._following.done()
        if not is_followed and self._throttle.remaining_s() > QUOTAS_EVERY_S:
            self._following = self._owner.spawn(self._follow_throttle())

    async def _follow_throttle(self) -> None:
        """Report a long throttle, and reconnect when a quota was changed.

        The broker reads a muted connection only when the announced time is over, even if the quota
        is gone by then (4.3), and Java's producer waits for it. Over a new connection one request
        is sent above a quota that is still there.
        """
        quotas = QuotaWatch(self._cluster, self._node_id)
        while (left_s := self._throttle.remaining_s()) > 0:
            self._owner.throttled()
            if await quotas.is_changed(left_s):
                self._throttle.lift()
                if self._connection is not None:
                    self._connection.reset("a quota of the cluster was changed", on_purpose=True)
                if self._muted is not None:
                    self._muted.cancel()
                    self._unmuted()
                break
            await self._clock.sleep(min(QUOTAS_EVERY_S, left_s))
        self._owner.throttled()

    def _unmuted(self) -> None:
        self._muted = None
        self._schedule()

    def _never_sent(self, key: tuple[str, int]) -> ProtocolError:
        return ProtocolError(
            f"broker {self._node_id} answers for {key[0]}-{key[1]}, which it was not sent"
        )

    def _lose(self, entries: Entries, error: Exception) -> None:
        self._asked -= 1
        while entries:
            _, (lane, sent) = entries.popitem()
            self._owner.lost(lane, sent, error)

    async def _connect(self) -> None:
        """Open the connection while the lanes wait; lanes whose leader moves go to its node."""
        backoff = Backoff(
            self._cluster.settings.reconnect_backoff_ms,
            self._cluster.settings.reconnect_backoff_max_ms,
        )
        try:
            while self._ready:
                try:
                    connection = await self._cluster.connection(self._node_id, self._purpose)
                    self._asked = 0
                    self._version = connection.negotiated(
                        PRODUCE_KEY, self._oldest, self._newest, "Produce"
                    )
                    if self._merges:
                        # Measures the round trip before the first batch:
                        # it decides whether small batches are joined.
                        await connection.ping()
                except Mm2pyError as error:
                    # An additional connection is an optimisation:
                    # brokers limit them (max.connections.per.ip).
                    if self._channel:
                        self._hand_back()
                        return
                    if backoff.failures >= QUIET_FAILURES:
                        for lane in self._ready:
                            self._owner.stalled(lane, error)
                    await self._clock.sleep(backoff.next_s())
                    await self._move_lanes()
                    continue
                self._connection = connection
                break
        finally:
            self._connecting = False
        self.pump()
        self.look_after()

    def _hand_back(self) -> None:
        """Return the lanes to the first connection, because this one failed: a broker may limit
        their number."""
        self._rests_until = self._loop.time() + REST_S
        waiting, self._ready = self._ready, {}
        for lane in waiting:
            lane.deal(0)
            self._owner.ready(lane)

    async def _move_lanes(self) -> None:
        """Move lanes to their new leaders while the broker is unreachable, with one request for all
        of them."""
        waiting = list(self._ready)
        for lane in waiting:
            known = self._cluster.known_leader(lane.target)
            if known is not None and known.node_id == self._node_id:
                self._cluster.leader_moved(lane.target)
        leaders = await self._cluster.leaders(lane.target for lane in waiting)
        for lane in waiting:
            leader = leaders[lane.target]  # without one now, the next round asks again
            if isinstance(leader, Mm2pyError) or leader.node_id == self._node_id:
                continue
            if lane in self._ready:
                del self._ready[lane]
                lane.moved(leader.node_id)
                self._owner.ready(lane)


def _versions(transactions: Transactions | None) -> tuple[int, int]:
    """Return the oldest and newest version of Produce that may be used."""
    if transactions is None:
        return OLDEST, NEWEST
    # Produce 12 is for transaction.version 2 alone: the broker adds the partition itself (KIP-890).
    return (NEWEST, NEWEST) if transactions.implicit else (OLDEST, EXPLICIT_NEWEST)
