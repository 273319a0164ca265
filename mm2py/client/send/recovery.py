"""Recovers lanes after an error or a lost connection: a pause, the leader, a read of the log,
another form of the batch.

Flow: ``BACKOFF``, ``RESOLVING`` or ``REPAIRING`` -> reads the target's log (here) or changes the
batch (repair.py) -> the lane's next state -> ``LaneOwner``. lane.py decides which of them is
needed.
"""

import logging
from typing import Final, NamedTuple, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import fetch_partition
from mm2py.client.send.lane import MAX_EPOCH, TOO_LARGE, LaneState, SenderLane
from mm2py.client.send.limits import LaneLimits
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.repair import refusal, repaired
from mm2py.client.send.tail import CopiedSoFar, KeptProducer, whole_batches
from mm2py.clock import Clock
from mm2py.errors import (
    FatalServerError,
    Mm2pyError,
    PartitionError,
    ProtocolError,
    TargetMovedError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.record_batch import Bytes, RecordBatch
from mm2py.protocol.topics import EpochQuery, OffsetQuery
from mm2py.types import EARLIEST, TopicPartition

log = logging.getLogger(__name__)

FETCH_BYTES: Final = 4 * 1024 * 1024
PATIENT_RETRIES: Final = 3
"""Transient refusals are reported only after this many."""


class Landed(NamedTuple):
    """A batch in the target's log."""

    offset: int
    records: int


@final
class LaneRecovery:
    """Recovers the lanes of one Sender."""

    def __init__(
        self,
        cluster: Cluster,
        limits: LaneLimits,
        *,
        clock: Clock,
        owner: LaneOwner,
        copied: CopiedSoFar | None = None,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._copied = copied
        self._repaired: set[TopicPartition] = set()

    async def revive(self, lane: SenderLane) -> None:
        """Pause, find the leader, and read its log where needed."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        # The pause grows over rounds of BACKOFF, each of which has a back-off of its own.
        backoff.failures = lane.retry()
        code, text = lane.error
        if code and lane.retries > PATIENT_RETRIES:
            denied = self._cluster.denied(code, "Write", lane.target.topic)
            self._owner.stalled(lane, denied or codes.server_error(code, text))
        while lane.state in (LaneState.BACKOFF, LaneState.RESOLVING):
            await self._clock.sleep(backoff.next_s())
            try:
                cached = self._cluster.known_leader(lane.target)
                # Only if the cache still has the leader that
                # refused: a newer entry must not be thrown away.
                if cached is not None and cached.node_id == lane.leader:
                    self._cluster.leader_moved(lane.target)  # the response named no other (KIP-951)
                leader = await self._cluster.leader(lane.target)
                if lane.state is LaneState.RESOLVING or await self._forgotten(lane, leader.node_id):
                    lane.must_resolve()
                    await self._resolve(lane)
                if lane.state in (LaneState.BACKOFF, LaneState.RESOLVING, LaneState.RETRYING):
                    lane.resumed(leader.node_id)
            except Mm2pyError as error:
                lane.retry()  # a topic that is gone has no leader: nothing refuses it again
                self._owner.stalled(lane, error)
        self._owner.follow(lane)

    async def repair(self, lane: SenderLane) -> None:
        """Send the records of a definitely refused batch in another form."""
        if not lane.unsettled:
            return  # abandoned meanwhile
        sent = lane.first_unsettled()
        # Whole batches (the mirror's own records) are written together or not at all.
        if not self._limits.cuts and (sent.code in TOO_LARGE or sent.bad_record > 0):
            self._owner.failed(lane, refusal(sent, lane.target))
            return
        try:
            repair = await repaired(sent, lane.target, self._limits.max_message_bytes)
        except (PartitionError, ProtocolError) as error:
            if lane.state is LaneState.REPAIRING:
                self._owner.failed(lane, error)
            return
        if lane.state is not LaneState.REPAIRING:
            return  # failed or abandoned while the limit was requested
        if lane.target not in self._repaired:
            self._repaired.add(lane.target)
            log.info(
                "batches are refused and sent in another form partition=%s cause=%s %s bytes=%d records=%d limit=%d"
                " batches=%d (the first one is named)",
                lane.target, codes.error_name(sent.code), sent.message, len(sent.batch.data), sent.batch.count,
                repair.limit_bytes, len(repair.batches),
            )  # fmt: skip
        lane.replaced(sent, repair.batches, repair.limit_bytes)
        lease, sent.batch.lease = sent.batch.lease, None
        if lease is not None:
            lease.release()
        self._owner.ready(lane)

    async def _forgotten(self, lane: SenderLane, node_id: int) -> bool:
        """Whether a resend could be stored twice, because the leader may have forgotten the batch
        (5)."""
        if lane.transactional or not lane.has_unknown():
            return False
        remembered_ms = await self._limits.remembered_ms(node_id)
        return lane.must_read_first(self._clock.now_ms() - remembered_ms)

    async def _resolve(self, lane: SenderLane) -> None:
        """Determine from the target's log which batches of unknown outcome are in it (rules 6 and
        7)."""
        found: dict[int, Landed] = {}
        # A lasting id is read even without an unknown
        # outcome: a predecessor's late batch may be there.
        if lane.has_unknown() or lane.lasting:
            try:
                # Unclean election: acknowledged records are gone, and the
                # offset map names offsets that the log will give to others.
                if lane.lasting and await _log_end(self._cluster, lane.target) < lane.acked_end:
                    self._owner.failed(lane, cut_back(lane.target, lane.acked_end))
                    return
                found = await batches_of_producer(
                    self._cluster,
                    lane.target,
                    lane.producer_id,
                    lane.epoch,
                    lane.acked_end,
                    doubtful=sum(sent.batch.count for sent in lane.unsettled),
                )
            except FatalServerError as error:
                # No right to read: it is sent again, and its
                # range reported as possibly doubled (7).
                self._doubt(lane, error)
        if lane.lasting and not _all_ours(lane, found):
            self._owner.failed(lane, late_write(lane.target))
            return
        if lane.state is not LaneState.RESOLVING:
            return  # failed or abandoned meanwhile
        try:
            offsets = {sequence: landed.offset for sequence, landed in found.items()}
            delivered = lane.resolved(offsets)
        except ValueError as error:
            self._owner.failed(lane, Mm2pyError(f"order on the target is broken: {error}"))
            return
        if lane.bump_wanted:
            lane.must_resolve()  # nothing can be sent under the old id
        self._owner.delivered(lane, delivered)
        if lane.bump_wanted:
            await self._renew(lane)

    async def _renew(self, lane: SenderLane) -> None:
        """Change the producer id or epoch of a lane in RESOLVING, whose outcomes are all known."""
        writer = await self._next_writer(lane)
        if lane.state is not LaneState.RESOLVING:
            return  # failed or abandoned meanwhile
        lane.lasting = False
        lane.new_epoch(*writer)
        log.info(
            "producer state renewed partition=%s producer=%d epoch=%d cause=%s",
            lane.target, lane.producer_id, lane.epoch, codes.error_name(lane.error[0]),
        )  # fmt: skip

    def _doubt(self, lane: SenderLane, cause: Exception) -> None:
        """Report what is sent again although it may be in the log."""
        doubtful: dict[TopicPartition, list[RecordBatch]] = {}
        for sent in lane.unsettled:
            if sent.unknown_before:
                doubtful.setdefault(sent.source, []).append(sent.batch)
        for source, batches in doubtful.items():
            self._owner.doubted(source, batches[0].base_offset, batches[-1].last_offset, cause)

    async def _next_writer(self, lane: SenderLane) -> tuple[int, int]:
        """Return the producer id and epoch that follow where the target does not know our
        sequences.

        A lasting id is used only with its first epoch: a predecessor's late write must collide with
        our sequences.
        """
        # Someone has used a higher epoch of this id; the one after ours may be taken, too.
        fenced = lane.error[0] == codes.INVALID_PRODUCER_EPOCH
        if lane.lasting or lane.epoch >= MAX_EPOCH or fenced:
            writer = await self._owner.new_producer()
            # Before its first batch, and with a map of what the id before it wrote: a successor
            # takes another id's records for another writer's (``LaneTail``).
            if self._copied is not None:
                kept = await self._beginning(lane, writer[0])
                await self._copied.replace_producer(lane.source, kept)
            return writer
        return lane.producer_id, lane.epoch + 1

    async def _beginning(self, lane: SenderLane, producer_id: int) -> KeptProducer:
        """Return where an id begins to write: what is before it in the log was read already."""
        try:
            end = await _log_end(self._cluster, lane.target)
        except FatalServerError:
            end = -1  # no right to describe the topic
        return KeptProducer(producer_id, end, lasts=False)


def _all_ours(lane: SenderLane, found: dict[int, Landed]) -> bool:
    """Whether the batches of the lane's producer id after its last acknowledged one are its own."""
    sent = {it.base_sequence: it.batch.count for it in lane.unsettled}
    return all(sent.get(sequence) == landed.records for sequence, landed in found.items())


def late_write(target: TopicPartition) -> TargetMovedError:
    """Return the error of a lane in whose log a predecessor wrote late."""
    return TargetMovedError(
        f"a late write of an earlier task is in {target} on the target; the task reads the log "
        "again"
    )


def cut_back(target: TopicPartition, acknowledged: int) -> TargetMovedError:
    """Return the error of a lane whose log ends before acknowledged records."""
    return TargetMovedError(
        f"{target} on the target ends below offset {acknowledged}, up to which it had acknowledged "
        "records: it lost them (unclean leader election); the task reads the log again"
    )


# ---- the tail of a target partition (rules 5-7); headers only


async def batches_of_producer(
    cluster: Cluster,
    tp: TopicPartition,
    producer_id: int,
    epoch: int,
    from_offset: int,
    *,
    doubtful: int = 0,
) -> dict[int, Landed]:
    """Return base sequence -> offset and records of every batch of (``producer_id``, ``epoch``) in
    the log.

    Reads from ``from_offset`` (the log end before our first batch, or the offset after our last
    acknowledged one; from the log start if that is not in the log any more) to the log end at the
    time of the call. Only headers are decoded. If the target lost acknowledged records, the
    ``doubtful`` records in flight can only be the last ones of the log.

    Raises:
        RetriableError: the leader is unreachable or changed; retry.
        FatalServerError: the partition may not be read.
    """
    landed: dict[int, Landed] = {}
    end = await _log_end(cluster, tp)
    # After a truncation below our last record only the last ``doubtful`` offsets can be ours.
    position = from_offset if from_offset <= end else end - doubtful
    position = max(position, await _log_start(cluster, tp))
    while position < end:
        fetched = await fetch_partition(cluster, tp, position, max_bytes=FETCH_BYTES)
        position = max(position, fetched.log_start_offset)
        position = _note_ours(fetched.records, position, (producer_id, epoch), landed)
    return landed


async def _log_end(cluster: Cluster, tp: TopicPartition) -> int:
    """Return the log end by OffsetForLeaderEpoch: ListOffsets and Fetch stop at the high watermark,
    which may lag."""
    leader = await cluster.leader(tp)
    # The end of the current epoch is the log end (Partition.lastOffsetForLeaderEpoch).
    query = EpochQuery(tp.topic, tp.partition, leader.epoch, leader.epoch)
    (end,) = await cluster.call_leader(tp, messages.offset_for_leader_epoch([query]))
    if end.error_code or end.end_offset < 0:
        # For an unknown epoch the result is -1 without an error: handled like a moved leader.
        cluster.leader_moved(tp)
        raise codes.server_error(end.error_code or codes.FENCED_LEADER_EPOCH, f"log end of {tp}")
    return end.end_offset


async def _log_start(cluster: Cluster, tp: TopicPartition) -> int:
    leader = await cluster.leader(tp)
    query = OffsetQuery(tp.topic, tp.partition, EARLIEST, leader.epoch)
    (start,) = await cluster.call_leader(tp, messages.list_offsets([query]))
    if start.error_code:
        cluster.leader_moved(tp)
        raise codes.server_error(start.error_code, f"log start of {tp}")
    return start.offset


def _note_ours(
    record_set: Bytes | None, position: int, producer: tuple[int, int], landed: dict[int, Landed]
) -> int:
    """Add the batches of ``producer`` to ``landed``; return the offset after the last whole
    batch."""
    for fields, _ in whole_batches(record_set):
        if fields[9:11] == producer:
            landed[fields[11]] = Landed(fields[0], fields[12])
        position = fields[0] + fields[6] + 1
    return position
