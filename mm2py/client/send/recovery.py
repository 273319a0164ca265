"""What a lane needs after a refusal or a lost connection: a pause, its leader, its log read, another form.

Flow: ``BACKOFF``, ``RESOLVING`` or ``REPAIRING`` -> asks the target (resolve.py, repair.py) ->
the lane's next state -> ``RecoveryEvents``. When to do which is decided in lane.py.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.lane import MAX_EPOCH, TOO_LARGE, LaneState, SenderLane, Sent
from mm2py.client.send.limits import LaneLimits
from mm2py.client.send.repair import refusal, repaired
from mm2py.client.send.resolve import batches_of_producer
from mm2py.clock import Clock
from mm2py.errors import (
    FatalServerError,
    Mm2pyError,
    PartitionError,
    ProtocolError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.types import TopicPartition

__all__ = ["LaneRecovery", "RecoveryEvents"]

log = logging.getLogger(__name__)

_PATIENT_RETRIES: Final = 3
"""Refusals that pass by themselves are not worth a word before that many."""


class RecoveryEvents(NamedTuple):
    """What the Sender does with the outcome."""

    delivered: Callable[[SenderLane, Sequence[Sent]], None]
    failed: Callable[[SenderLane, Exception], None]
    stalled: Callable[[SenderLane, Exception], None]
    ready: Callable[[SenderLane], None]
    follow: Callable[[SenderLane], None]
    doubt: Callable[[TopicPartition, int, int, Exception], None]


@final
class LaneRecovery:
    """Brings lanes of one Sender back to work."""

    def __init__(
        self, cluster: Cluster, limits: LaneLimits, *, clock: Clock, events: RecoveryEvents
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._events = events

    async def revive(self, lane: SenderLane) -> None:
        """After a refusal or a lost connection: pause, find the leader, read its log where needed."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        backoff.failures = lane.retry()
        code, text = lane.error
        if code and lane.retries > _PATIENT_RETRIES:
            self._events.stalled(lane, codes.server_error(code, text))
        while lane.state in (LaneState.BACKOFF, LaneState.RESOLVING):
            await self._clock.sleep(backoff.next_s())
            try:
                known = self._cluster.known_leader(lane.target)
                if known is not None and known.node_id == lane.leader:
                    self._cluster.leader_moved(lane.target)  # it named no other (KIP-951)
                leader = await self._cluster.leader(lane.target)
                if lane.state is LaneState.RESOLVING or await self._forgotten(lane, leader.node_id):
                    lane.must_resolve()
                    await self._resolve(lane)
                if lane.state in (LaneState.BACKOFF, LaneState.RESOLVING, LaneState.RETRYING):
                    lane.resumed(leader.node_id)
            except Mm2pyError as error:
                self._events.stalled(lane, error)
        self._events.follow(lane)

    async def repair(self, lane: SenderLane) -> None:
        """The target definitely refused this form of the records: send them in another."""
        if not lane.unsettled:
            return  # abandoned before this began
        sent = lane.first_unsettled()
        if not self._limits.cuts and (sent.code in TOO_LARGE or sent.bad_record > 0):
            self._events.failed(lane, refusal(sent, lane.target))
            return
        try:
            repair = await repaired(sent, lane.target, self._limits.max_message_bytes)
        except (PartitionError, ProtocolError) as error:
            if lane.state is LaneState.REPAIRING:
                self._events.failed(lane, error)
            return
        if lane.state is not LaneState.REPAIRING:
            return  # given up while the limit was asked for
        lane.replaced(sent, repair.batches, repair.limit_bytes)
        lease, sent.batch.lease = sent.batch.lease, None
        if lease is not None:
            lease.release()
        self._events.ready(lane)

    async def _forgotten(self, lane: SenderLane, node_id: int) -> bool:
        """Whether a resend would be stored again, because the leader need not know the batch any more (5)."""
        if not lane.has_unknown():
            return False
        remembered_ms = await self._limits.remembered_ms(node_id)
        return lane.must_read_first(self._clock.now_ms() - remembered_ms)

    async def _resolve(self, lane: SenderLane) -> None:
        """Find out from the target's log which batches of unknown outcome are in it (rules 6 and 7)."""
        found: dict[int, int] = {}
        if lane.has_unknown():
            try:
                found = await batches_of_producer(
                    self._cluster, lane.target, lane.producer_id, lane.epoch, lane.acked_end
                )
            except FatalServerError as error:
                doubtful = [sent for sent in lane.unsettled if sent.unknown_before]
                first, last = doubtful[0].batch.base_offset, doubtful[-1].batch.last_offset
                self._events.doubt(doubtful[0].source, first, last, error)
        try:
            self._events.delivered(lane, lane.resolved(found))
        except ValueError as error:
            self._events.failed(lane, Mm2pyError(f"order on the target is broken: {error}"))
            return
        if lane.bump_wanted:
            await self._bump(lane)

    async def _bump(self, lane: SenderLane) -> None:
        if lane.epoch < MAX_EPOCH and lane.error[0] != codes.INVALID_PRODUCER_EPOCH:
            lane.new_epoch(lane.producer_id, lane.epoch + 1)
        else:
            answer = await self._cluster.call_any(messages.init_producer_id())
            lane.new_epoch(answer.producer_id, answer.producer_epoch)
        log.info(
            "producer state renewed partition=%s producer=%d epoch=%d cause=%s",
            lane.target, lane.producer_id, lane.epoch, codes.error_name(lane.error[0]),
        )  # fmt: skip
