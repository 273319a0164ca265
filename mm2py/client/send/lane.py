"""One target partition of the idempotent Sender, as a table: states, outcomes and what follows. No
I/O.

Flow: ``offer`` -> ``take`` (one batch to send now) -> ``acknowledged`` | ``refused`` | ``lost`` ->
delivered.

::

    state      waits for                      event and next state
    OPENING    leader and log end             opened -> FLOWING
    FLOWING    batches and responses          error or lost response -> DRAINING
    DRAINING   responses still outstanding    last one -> RESOLVING, REPAIRING, FAILED or BACKOFF
    BACKOFF    a pause, then the leader       resumed -> RETRYING; unknown outcome and forgotten -> RESOLVING
    RESOLVING  a read of the target's log     resolved -> RETRYING
    REPAIRING  the batch in another form      replaced -> RETRYING, or FAILED
    RETRYING   each unsettled batch, alone    all settled -> FLOWING; error or lost response -> DRAINING
    FAILED     a restart                      (end)

Invariants, the sender rules; the tests carry these numbers:

1. At most one batch is in flight until the first acknowledgement after OPENING, BACKOFF, RESOLVING,
   a new epoch, a new connection or a rest; then at most ``max_in_flight``. Retries go one by one,
   oldest first.
2. The first batch under a new producer id or epoch has sequence 0: a broker takes any first
   sequence of a producer that it does not know, so a later batch of ours could be stored without an
   earlier, refused one (1 prevents that).
3. An error is definite only if no earlier attempt of the same bytes has an unknown outcome.
4. A sequence range is used for other bytes only after a definite error for it.
5. A batch of unknown outcome is resent blindly only if the target still remembers its producer
   state (``producer.id.expiration.ms``, KIP-854), as it does while a transaction is open: then a
   broker answers a resend with the offset of the first copy, because ``ProducerStateManager`` keeps
   the sequences of the last five batches.
6. Otherwise the target's log is read first.
7. Where the log may not be read, the batch is sent again and its source offsets are reported as
   possibly doubled.
8. Batches are delivered in the order they were offered, each exactly once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import islice, repeat
from typing import Final, NamedTuple, final

from mm2py.errors import ProtocolError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import CODEC_MASK, RecordBatch
from mm2py.protocol.splice import merge
from mm2py.types import TopicPartition

# Both are limits of the batch header. Sequences wrap to 0; after the last epoch a new id is needed.
MAX_SEQUENCE: Final = 0x7FFFFFFF
MAX_EPOCH: Final = 32767

UNKNOWN_OUTCOME: Final = frozenset(
    {
        # Also from DelayedProduce: appended, then deposed before the replicas had it.
        codes.NOT_LEADER_OR_FOLLOWER,
        # DelayedProduce gives every entry this status
        # until its replicas confirm; the append is done.
        codes.REQUEST_TIMED_OUT,
        # The ISR shrank below min.insync.replicas while the batch waited for its replicas.
        codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        # A log directory went offline, perhaps after the append.
        codes.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the batch may or may not be in the log.

The leader appends before it waits for replicas and before it notices that it was deposed: a
time-out or NOT_LEADER_OR_FOLLOWER may follow an append that survives. Java's ``Sender`` treats them
all as "not written, retry" and relies on the broker's duplicate check alone.
"""

DEFINITE_RETRIABLE: Final = frozenset(
    {
        # Before the append; after it only where the topic was deleted, and its log with it.
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.REPLICA_NOT_AVAILABLE,
        # Checked before the append (Partition.appendRecordsToLeader). For Produce below
        # 12 brokers also translate a failed check of the transaction into it (KIP-890).
        codes.NOT_ENOUGH_REPLICAS,
        codes.UNKNOWN_TOPIC_ID,
        # Fatal in Java's producer; a mirror waits for
        # the grant and reports the partition as stalled.
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.THROTTLING_QUOTA_EXCEEDED,
        codes.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors that mean "not written, retry": nothing of the batch is in the log."""

TOO_LARGE: Final = frozenset({codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE})

UNREADABLE: Final = frozenset(
    {codes.CORRUPT_MESSAGE, codes.INVALID_RECORD, codes.UNKNOWN_SERVER_ERROR}
)
"""Errors that another encoding of the same records may cure, once: a codec level, or a header that
an old client wrote."""

REPAIRABLE: Final = (
    TOO_LARGE | {codes.UNSUPPORTED_COMPRESSION_TYPE, codes.INVALID_TIMESTAMP} | UNREADABLE
)

STATE_LOST: Final = frozenset(
    {
        # ProducerAppendInfo.checkSequence: not the successor
        # of the last sequence of this id and epoch.
        codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        # Older than the batches that the broker remembers, so it cannot name the
        # offset. Java completes the batch without one; the offset map needs it.
        codes.DUPLICATE_SEQUENCE_NUMBER,
        # ProducerAppendInfo.checkProducerEpoch: the log knows a newer epoch of this id.
        codes.INVALID_PRODUCER_EPOCH,
        # Older brokers only: they forgot an id with the
        # last record of it, and refused it then (KIP-360).
        codes.UNKNOWN_PRODUCER_ID,
    }
)


class LaneState(Enum):
    """State of a lane; see the table in the module docstring."""

    OPENING = auto()
    FLOWING = auto()
    DRAINING = auto()
    BACKOFF = auto()
    RESOLVING = auto()
    REPAIRING = auto()
    RETRYING = auto()
    FAILED = auto()


class Outcome(Enum):
    """Outcome of one attempt, as far as it is known."""

    WAITING = auto()
    UNDER_WAY = auto()
    ACKED = auto()
    NOT_WRITTEN = auto()
    UNKNOWN = auto()


class Writer(NamedTuple):
    """The producer of a batch, and the sequence that follows it."""

    producer_id: int
    epoch: int
    sequence: int


TINY_COMPRESSED_BYTES: Final = 2 * 1024

GROWTH_BYTES: Final = 8
"""Growth of a record by joining: 5 for its timestamp delta (up to half a year), 2 for its offset
delta, 1 for its length. Compressed records may grow too, which is known only afterwards."""


class MergePlan(NamedTuple):
    """Limits, in bytes, for joining waiting batches before they are first sent.

    At most five batches of a partition are in flight, so over a long round trip their size limits
    the throughput.
    """

    target: int
    """Size up to which batches are joined."""
    small: int
    """Uncompressed batches below this are joined."""
    small_compressed: int
    """The same for compressed ones, which must be recompressed; only tiny ones while fewer batches
    than allowed are in flight, since then the CPU is the bottleneck."""


@final
class Sent:
    """One batch with its sequence range and outcome.

    Defaults that most batches never change are class attributes, which saves memory and time per
    batch.
    """

    outcome: Outcome = Outcome.UNDER_WAY
    signed: bool = True
    """Its bytes have ``base_sequence`` under the lane's current producer id and epoch."""
    repaired: bool = False
    unknown_before: bool = False
    """An earlier attempt of these bytes may have been written."""
    base_offset: int = -1
    bad_record: int = -1
    """Index of the record that the broker named (KIP-467), -1 for none."""
    code: int = 0
    message: str = ""

    def __init__(
        self, source: TopicPartition, batch: RecordBatch, base_sequence: int, counted: int
    ) -> None:
        self.source = source
        self.batch = batch
        self.counted = counted  # bytes it was offered as; joining and repairs change its own size
        self.base_sequence = base_sequence


@final
class SenderLane:
    """The state machine of one target partition; the Sender passes events to it and acts on its
    state."""

    __slots__ = (
        "_apart",
        "_confirmed",
        "_max_in_flight",
        "_seen",
        "_under_way",
        "_was_full",
        "acked_end",
        "admitted",
        "bump_wanted",
        "channel",
        "connection",
        "epoch",
        "error",
        "foreign",
        "lasting",
        "leader",
        "limit_bytes",
        "next_sequence",
        "next_source",
        "producer_id",
        "progress",
        "queue",
        "queued_bytes",
        "retries",
        "source",
        "state",
        "target",
        "transactional",
        "unsettled",
    )

    def __init__(
        self,
        target: TopicPartition,
        *,
        producer_id: int,
        epoch: int,
        max_in_flight: int,
        transactional: bool = False,
    ) -> None:
        self.target = target
        self.transactional = transactional
        self.admitted = not transactional  # whether it may start to send what waits
        self.source = target  # source partition of the batches offered last
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.state = LaneState.OPENING
        self.leader = -1
        self.acked_end = (
            -1
        )  # target offset after our last known record; where a read of the log starts
        self.limit_bytes = 0  # max.message.bytes of the target topic, 0 while unknown
        self.progress = 0  # number of acknowledgements, to detect a standstill
        self.retries = 0
        self.error: tuple[int, str] = (0, "")
        self.bump_wanted = False
        self.connection: object = None
        self.channel = 0  # number of the connection to its leader that it uses
        self.queue: deque[tuple[TopicPartition, RecordBatch]] = deque()
        self.queued_bytes = 0
        self.unsettled: deque[Sent] = deque()
        self._apart = (
            0  # number of batches at the head of the queue that are not joined: one is damaged
        )
        self._under_way = 0
        self._max_in_flight = max_in_flight
        self.next_source = -1  # source offset after what was offered, for offsets.identical=require
        self.lasting = False  # a successor continues under its producer id
        # Target offsets of another writer's records. They show in the next answer
        # to a batch of ours, and not before; an open transaction hides none. A lane
        # with transactions notes none: their markers lie between its batches, too.
        self.foreign: tuple[int, int] | None = None
        # At the last ``look_after``: acknowledgements, and the newest
        # waiting batch by ``id()``: a reference would keep it.
        self._seen: tuple[int, int] = (0, 0)
        self._was_full = False  # the maximum of batches was in flight before the last response
        self._confirmed = False

    # -- what the Sender asks ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in flight or waiting for a retry."""
        return not self.queue and not self.unsettled

    @property
    def resting(self) -> bool:
        """Whether it is idle and ``look_after`` has noticed it."""
        return not self._confirmed and self.idle

    @property
    def under_way(self) -> int:
        """Number of batches in flight."""
        return self._under_way

    def can_send(self) -> bool:
        """Whether ``take`` would return a batch now (invariant 1)."""
        if self.state is LaneState.FLOWING:
            limit = self._max_in_flight if self._confirmed else 1
            return self._under_way < limit and self.admitted and bool(self.queue)
        return self.state is LaneState.RETRYING and self._under_way == 0

    def travels_by(self, connection: object) -> None:
        """Use ``connection`` from now on; after a change nothing is confirmed (1).

        A lane without batches in flight does not notice that the broker was restarted and has
        forgotten its sequences: then the broker accepts any batch first, also a later one when an
        earlier one is refused.
        """
        # Also for the same broker: a new connection is the only sign of its restart.
        if connection is not self.connection:
            self.connection = connection
            self._confirmed = False

    def deal(self, channel: int) -> None:
        """Use another connection to the leader, once all batches in flight on the current one are
        answered."""
        self.channel = channel

    def offer(self, source: TopicPartition, batches: Sequence[RecordBatch]) -> int:
        """Append batches to the queue; return their size in bytes."""
        size = 0
        for batch in batches:
            size += len(batch.data)
        self.source = source
        self.queue.extend(zip(repeat(source), batches, strict=False))
        self.queued_bytes += size
        return size

    def hole_before(self, batches: Sequence[RecordBatch]) -> int | None:
        """Return the first source offset that is missing before or within batches to be offered,
        None for none."""
        for batch in batches:
            for first, count in batch.runs:
                if self.next_source >= 0 and first != self.next_source:
                    return self.next_source
                self.next_source = first + count
        return None

    def next_bytes(self) -> int:
        """Return the size of the batch that ``take`` would return without joining; only after
        ``can_send``."""
        if self.state is LaneState.RETRYING:
            return len(self.first_unsettled().batch.data)
        return len(self.queue[0][1].data)

    def take(self, plan: MergePlan | None = None) -> Sent:
        """Return the next batch to send, signed; only after ``can_send``.

        With ``plan`` small batches are joined while a backlog waits; never one that was sent
        before.
        """
        if self.state is LaneState.RETRYING:
            self._under_way += 1
            return self._again()
        queue = self.queue
        source, batch = queue.popleft()
        data = batch.data
        counted = len(data)
        if self._apart:
            self._apart -= 1
        # Joining pays only under a backlog: an idle lane sends at once, like linger.ms=0.
        elif plan is not None and len(queue) >= 2 * self._max_in_flight:
            small = plan.small
            if batch.attributes & CODEC_MASK:
                small = plan.small_compressed
                if not self._was_full:
                    small = min(small, TINY_COMPRESSED_BYTES)
            if counted < small:
                batch, counted = self._joined(source, batch, plan.target, small)
                data = batch.data
        self._under_way += 1
        sequence = self.next_sequence
        sent = Sent(source, batch, sequence, counted)
        # LogValidator refuses a batch whose count differs from its
        # offset range, so the count is the number of sequences, too.
        self.next_sequence = (sequence + batch.count) & MAX_SEQUENCE
        self.unsettled.append(sent)
        sign(
            data,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=self.transactional,
        )
        return sent

    def _again(self) -> Sent:
        """Return the oldest batch that is not acknowledged; the same bytes unless its sequence
        changed."""
        # The oldest one decides: an OUT_OF_ORDER_SEQUENCE_NUMBER of a later batch may just
        # follow from its refusal (Java: TransactionManager.canRetry, isNextSequence).
        sent = self.first_unsettled()
        # Otherwise the same bytes again: ProducerStateEntry.findDuplicateBatch
        # compares the epoch and the first and last sequence.
        if not sent.signed:
            sign(
                sent.batch.data,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sent.base_sequence,
                transactional=self.transactional,
            )
            sent.signed = True
        sent.outcome = Outcome.UNDER_WAY
        return sent

    # -- events -----------------------------------------------------------------------------------

    def keeps_producer(self, writer: Writer | None) -> None:
        """Use a producer id that outlives the process: a predecessor's, or our own. Only in
        OPENING."""
        self.lasting = True
        if writer is not None:
            self.producer_id, self.epoch, self.next_sequence = writer

    def opened(self, leader: int, log_end: int) -> None:
        """Start to flow: the leader is known, and the log end before our first batch (-1: may not
        be read)."""
        self.leader = leader
        self.acked_end = log_end
        self.state = LaneState.FLOWING

    def recognised(self, rest: RecordBatch | None) -> RecordBatch:
        """Remove the first waiting batch, which is in the log except for ``rest``; return it. Only
        in OPENING."""
        source, batch = self.queue.popleft()
        self.queued_bytes -= len(batch.data)
        if rest is not None:
            self.queue.appendleft((source, rest))
            self.queued_bytes += len(rest.data)
        return batch

    def acknowledged(self, sent: Sent, base_offset: int) -> Sequence[Sent]:
        """Settle a batch that is in the log; return the batches that are now delivered, oldest
        first (8)."""
        self._was_full = self._under_way >= self._max_in_flight
        self._under_way -= 1
        self.progress += 1
        unsettled = self.unsettled
        if (
            self.state is LaneState.FLOWING
            and unsettled[0] is sent
            and (len(unsettled) == 1 or unsettled[1].outcome is not Outcome.ACKED)
        ):
            # The common case, first for speed: the oldest
            # batch, and the ones after it are still in flight.
            unsettled.popleft()
            sent.base_offset = base_offset
            self.queued_bytes -= sent.counted
            if base_offset >= 0:
                # Not the offset after our last record: another writer is in between.
                if self.lasting and base_offset > self.acked_end >= 0:
                    self.foreign = self.acked_end, base_offset
                self.acked_end = base_offset + sent.batch.count
            self._confirmed = True
            self.retries = 0
            return (sent,)
        sent.outcome = Outcome.ACKED
        sent.base_offset = base_offset
        delivered = self._settle()
        if self.state is LaneState.FLOWING:
            self._confirmed = True
        elif self.state is LaneState.RETRYING:
            if not self.unsettled:
                self._flow()
        else:
            self._maybe_drained()
        return delivered

    def refused(self, sent: Sent, code: int, message: str, bad_record: int = -1) -> None:
        """Take the broker's error for a batch, and the record that it named, if any."""
        self._under_way -= 1
        sent.code, sent.message, sent.bad_record = code, message, bad_record
        if code in UNKNOWN_OUTCOME:
            sent.outcome = Outcome.UNKNOWN
            sent.unknown_before = True
        else:
            sent.outcome = Outcome.NOT_WRITTEN
        self._stop_flow()

    def lost(self, sent: Sent, reason: str) -> None:
        """Take a lost response, in most cases because the connection was lost."""
        self._under_way -= 1
        sent.code, sent.message = codes.NETWORK_EXCEPTION, reason
        sent.outcome = Outcome.UNKNOWN
        sent.unknown_before = True
        self._stop_flow()

    def retry(self) -> int:
        """Count another attempt to leave BACKOFF or RESOLVING; return the number of earlier
        ones."""
        self.retries += 1
        return self.retries - 1

    def admit(self, producer_id: int, epoch: int) -> None:
        """Allow sending in the open transaction, under its producer id and epoch."""
        self.admitted = True
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.new_epoch(producer_id, epoch)

    def must_resolve(self) -> None:
        """Require a read of the target's log before anything is resent."""
        self.state = LaneState.RESOLVING

    def moved(self, leader: int) -> None:
        """Change the leader; nothing is in flight."""
        self.leader = leader

    def limit(
        self, limit_bytes: int, cut: Callable[[Sequence[RecordBatch], int], Sequence[RecordBatch]]
    ) -> int:
        """Let ``cut`` split batches that were never sent to fit a limit; return by how many bytes
        the queue grew."""
        self.limit_bytes = limit_bytes
        if not limit_bytes or all(len(batch.data) <= limit_bytes for _, batch in self.queue):
            return 0
        waiting, before = list(self.queue), self.queued_bytes
        self.queue.clear()
        for source, batch in waiting:
            self.queued_bytes -= len(batch.data)
            self.offer(source, cut([batch], limit_bytes))
        return self.queued_bytes - before

    def resumed(self, leader: int) -> None:
        """Continue after the pause, with the current leader."""
        self.leader = leader
        if self.unsettled:
            self.state = LaneState.RETRYING
        else:
            retries = self.retries
            self._flow()
            self.retries = retries  # what was taken back may be refused again

    def resolved(self, landed: dict[int, int]) -> list[Sent]:
        """Settle batches by a read of the target's log; ``landed`` maps our base sequences to base
        offsets.

        Batches in the log count as acknowledged; the others were not written. Raises ``ValueError``
        if the log does not have a prefix of what was sent: then the order is broken and nothing may
        be sent any more.
        """
        missing = False
        for sent in self.unsettled:
            if sent.outcome is Outcome.ACKED:
                continue
            offset = landed.get(sent.base_sequence)
            if offset is None:
                missing = True
                sent.outcome = Outcome.NOT_WRITTEN
                # Nothing is in flight and the log was read to
                # its end: no earlier attempt can land any more.
                sent.unknown_before = False
            # A broker that knows the producer refuses a sequence behind a gap
            # (checkSequence). The log was cut or the state forgotten in between.
            elif missing:
                raise ValueError(
                    f"sequence {sent.base_sequence} is in the log, an earlier one is not"
                )
            else:
                sent.outcome = Outcome.ACKED
                sent.base_offset = offset
        delivered = self._settle()
        if self.unsettled:
            self.state = LaneState.RETRYING
        else:
            self._flow()
        return delivered

    def must_read_first(self, remembered_since_ms: int) -> bool:
        """Whether the target's log must be read before anything is resent (invariants 5 and 6).

        ``remembered_since_ms``: a broker still has the producer state of batches whose newest
        record is not older. One forgotten batch is enough: its state is all that protects the ones
        before it.
        """
        # By the records' time: ProducerStateManager.isProducerExpired compares the last batch's
        # maxTimestamp, so the state of a copy of old records may expire as soon as it is written.
        return self.has_unknown() and any(
            sent.batch.max_timestamp < remembered_since_ms for sent in self.unsettled
        )

    def new_epoch(self, producer_id: int, epoch: int) -> None:
        """Restart at sequence 0 under a new id or epoch (2); only if no outcome is unknown (4)."""
        self.producer_id, self.epoch = producer_id, epoch
        self.bump_wanted = False
        self._confirmed = False
        self.next_sequence = 0
        for sent in self.unsettled:
            sent.base_sequence = self.next_sequence
            sent.signed = False
            self.next_sequence = (self.next_sequence + sent.batch.count) & MAX_SEQUENCE

    def replaced(self, sent: Sent, batches: list[RecordBatch], limit_bytes: int = 0) -> None:
        """Replace a refused batch by smaller or recompressed batches of the same records.

        The record count stays, so later sequence ranges stay valid. ``limit_bytes`` is the limit
        for the batches after it, if the size was the reason.
        """
        self.limit_bytes = limit_bytes or self.limit_bytes
        at = self.unsettled.index(sent)
        sequence = sent.base_sequence
        parts: list[Sent] = []
        for batch in batches:
            part = Sent(sent.source, batch, sequence, 0)
            part.outcome, part.signed = Outcome.WAITING, False
            part.repaired = True
            parts.append(part)
            sequence = (sequence + batch.count) & MAX_SEQUENCE
        items = list(self.unsettled)
        # The memory is given back with the last part; the others share it.
        parts[-1].counted = sent.counted
        # The parts take the range of the refused batch, none of which is in the log (4).
        items[at : at + 1] = parts
        self.unsettled = deque(items)
        self.state = LaneState.RETRYING

    def fail(self) -> list[RecordBatch]:
        """Fail the partition; return the batches whose buffers may be released now.

        The buffer of a batch in flight may still be queued in the socket: the Sender releases it
        with the response.
        """
        self.state = LaneState.FAILED
        dropped = [s.batch for s in self.unsettled if s.outcome is not Outcome.UNDER_WAY]
        dropped.extend(batch for _, batch in self.queue)
        self.unsettled.clear()
        self.queue.clear()
        self.queued_bytes = 0
        return dropped

    def first_unsettled(self) -> Sent:
        """Return the oldest batch that is not acknowledged."""
        return next(s for s in self.unsettled if s.outcome is not Outcome.ACKED)

    def has_unknown(self) -> bool:
        """Whether the outcome of some attempt is unknown."""
        return any(s.unknown_before and s.outcome is not Outcome.ACKED for s in self.unsettled)

    def returnable(self) -> list[RecordBatch]:
        """Return the newest batches, oldest first, that are certainly neither in the log nor in
        flight."""
        waiting = [batch for _, batch in self.queue]
        if self.state is LaneState.BACKOFF and not self.transactional:
            refused = [it for it in self.unsettled if it.outcome is Outcome.NOT_WRITTEN]
            # All or none: behind a gap in the sequences the rest would be out of order.
            if len(refused) == len(self.unsettled) and not self.has_unknown():
                return [sent.batch for sent in refused] + waiting
        return waiting

    def give_back(self) -> list[RecordBatch]:
        """Remove and return the ``returnable`` batches: they will be offered again, perhaps cut
        differently (4)."""
        given = self.returnable()
        if len(given) > len(self.queue):
            self.next_sequence = self.unsettled[0].base_sequence
            self.queued_bytes -= sum(sent.counted for sent in self.unsettled)
            self.unsettled.clear()
        self.queued_bytes -= sum(len(batch.data) for _, batch in self.queue)
        self.queue.clear()
        self._apart = 0
        if self.next_source >= 0 and given:
            self.next_source = given[0].runs[0][0]
        return given

    def withdraw(self) -> int:
        """Requeue what was definitely refused (4); return by how many bytes the queue grew."""
        refused = self.unsettled
        certain = (Outcome.NOT_WRITTEN, Outcome.WAITING)
        if (
            self.state is not LaneState.BACKOFF
            or not refused
            or any(it.unknown_before or it.outcome not in certain for it in refused)
        ):
            return 0
        grown = sum(len(it.batch.data) - it.counted for it in refused)
        self.next_sequence = refused[0].base_sequence
        self.queue.extendleft((it.source, it.batch) for it in reversed(refused))
        # Not joined again: a damaged batch would have its neighbours refused with it.
        self._apart += len(refused)
        self.queued_bytes += grown
        refused.clear()
        return grown

    def look_after(self) -> None:
        """Copy batches that have waited since the last call, once a second, out of their receive
        buffers.

        Otherwise one partition that cannot drain, or a slow target broker, would pin the receive
        buffers of all the others. Also ends the trust in the broker's state after a rest: it may
        have forgotten our sequences (1).
        """
        queue, progress = self.queue, self.progress
        stood_still, newest = progress == self._seen[0], self._seen[1]
        if stood_still:
            self._confirmed = self._confirmed and not self.idle
            for sent in self.unsettled:
                if (
                    sent.outcome is not Outcome.UNDER_WAY
                ):  # else the kernel may not have taken the bytes yet
                    sent.batch.detach()
        # All up to the batch that was the newest one at the last call.
        waiting = next((n for n, (_, batch) in enumerate(queue, 1) if id(batch) == newest), 0)
        for _, batch in islice(queue, waiting):
            batch.detach()
        self._seen = progress, id(queue[-1][1]) if queue else 0

    def _joined(
        self, source: TopicPartition, batch: RecordBatch, target: int, small: int
    ) -> tuple[RecordBatch, int]:
        """Join ``batch`` with those below ``small`` after it, up to ``target``, never above the
        topic's limit."""
        most = self.limit_bytes or MAX_SEQUENCE
        parts, counted, records = [batch], len(batch.data), batch.count
        for waiting_source, waiting in self.queue:
            size = len(waiting.data)
            records += waiting.count
            if (
                waiting_source != source
                or size >= small
                or counted + size > target
                # Above max.message.bytes it would be refused and cut again.
                or counted + size + GROWTH_BYTES * records > most
            ):
                break
            counted += size
            parts.append(waiting)
        if len(parts) == 1:
            return batch, counted
        joined = None
        with suppress(ProtocolError, MemoryError):
            joined = merge(parts)
        if joined is None or len(joined.data) > most:
            # One is damaged, or the joined batch is larger: send each
            # unchanged, so that the target accepts or refuses it alone.
            self._apart = len(parts) - 1
            return batch, len(batch.data)
        for _ in range(len(parts) - 1):
            self.queue.popleft()
        if batch.lease is not None:
            joined.lease = batch.lease.copied(len(joined.data))
        for part in parts:
            if part.lease is not None:
                part.lease.release()
        return joined, counted

    # -- transitions ------------------------------------------------------------------------------

    def _flow(self) -> None:
        self.state = LaneState.FLOWING
        self._confirmed = False
        self.retries = 0

    def _settle(self) -> list[Sent]:
        """Remove the acknowledged prefix and return it."""
        delivered: list[Sent] = []
        unsettled = self.unsettled
        while unsettled and unsettled[0].outcome is Outcome.ACKED:
            sent = unsettled.popleft()
            self.queued_bytes -= sent.counted
            if sent.base_offset >= 0:
                self.acked_end = sent.base_offset + sent.batch.count
            delivered.append(sent)
        return delivered

    def _stop_flow(self) -> None:
        self.state = LaneState.DRAINING
        self._confirmed = False
        self._maybe_drained()

    def _maybe_drained(self) -> None:
        """Choose the next state once nothing is in flight (the DRAINING row of the table)."""
        if self._under_way or self.state is not LaneState.DRAINING:
            return
        sent = self.first_unsettled()
        self.error = (sent.code, sent.message)
        code = sent.code
        if code in UNKNOWN_OUTCOME or code == codes.NETWORK_EXCEPTION or code in DEFINITE_RETRIABLE:
            self.state = LaneState.BACKOFF
        elif code in STATE_LOST:
            # Java bumps the epoch and resends (KIP-360). An earlier
            # attempt may be in the log under the old epoch, where a resend
            # under the new one is no duplicate: the log is read first.
            self.bump_wanted = True
            self.state = LaneState.RESOLVING
        elif sent.unknown_before:
            self.state = LaneState.RESOLVING  # invariant 3: not definite, read the log first
        elif code in TOO_LARGE or (code in REPAIRABLE and not sent.repaired):
            self.state = LaneState.REPAIRING
        else:
            self.state = LaneState.FAILED
