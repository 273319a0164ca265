"""One target partition of the idempotent Sender, as a table: states, outcomes and what follows. No I/O.

Flow: ``offer`` -> ``take`` (one batch to send now) -> ``acknowledged`` | ``refused`` | ``lost`` -> delivered.

::

    state      what it waits for            event and next state
    OPENING    leader and log end           opened -> FLOWING
    FLOWING    batches and answers          answer that is not an ack, lost -> DRAINING
    DRAINING   answers still under way      last one in -> RESOLVING, REPAIRING, FAILED or BACKOFF
    BACKOFF    a pause, then the leader     resumed -> RETRYING; in doubt and forgotten -> RESOLVING
    RESOLVING  the target's log was read    resolved -> RETRYING
    REPAIRING  the batch in another form    replaced -> RETRYING, or FAILED
    RETRYING   each unsettled batch, alone  all settled -> FLOWING; not an ack -> DRAINING
    FAILED     a restart                    (end)

Invariants (design.md 3, sender rules; the tests carry these numbers):

1. At most one batch is under way until the first acknowledgement after OPENING, BACKOFF, RESOLVING, a new
   epoch, a new connection or a rest; then at most ``max_in_flight``. Retries go one by one, oldest first.
3. A refusal is definite only if no earlier attempt of the same bytes has an unknown outcome.
4. A sequence range is used for other bytes only after a definite refusal of it.
5. A batch of unknown outcome is resent blindly only if the target still remembers its producer state, as it does
   while a transaction is open.
6. Otherwise the target's log is read first.
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

MAX_SEQUENCE: Final = 0x7FFFFFFF
MAX_EPOCH: Final = 32767

UNKNOWN_OUTCOME: Final = frozenset(
    {
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.REQUEST_TIMED_OUT,
        codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        codes.KAFKA_STORAGE_ERROR,
    }
)
"""Answers after which the batch may or may not be in the log (real-broker.md 1.3)."""

DEFINITE_RETRIABLE: Final = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.REPLICA_NOT_AVAILABLE,
        codes.NOT_ENOUGH_REPLICAS,
        codes.UNKNOWN_TOPIC_ID,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.THROTTLING_QUOTA_EXCEEDED,
        codes.CONCURRENT_TRANSACTIONS,
    }
)
"""Answers that say "not written, ask again": nothing of the batch is in the log."""

TOO_LARGE: Final = frozenset({codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE})

UNREADABLE: Final = frozenset(
    {codes.CORRUPT_MESSAGE, codes.INVALID_RECORD, codes.UNKNOWN_SERVER_ERROR}
)
"""Refusals that another encoding of the same records may cure, once (data-plane.md 4)."""

REPAIRABLE: Final = (
    TOO_LARGE | {codes.UNSUPPORTED_COMPRESSION_TYPE, codes.INVALID_TIMESTAMP} | UNREADABLE
)

STATE_LOST: Final = frozenset(
    {
        codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        codes.DUPLICATE_SEQUENCE_NUMBER,
        codes.INVALID_PRODUCER_EPOCH,
        codes.UNKNOWN_PRODUCER_ID,
    }
)


class LaneState(Enum):
    """What a lane is waiting for; the table in the module docstring."""

    OPENING = auto()
    FLOWING = auto()
    DRAINING = auto()
    BACKOFF = auto()
    RESOLVING = auto()
    REPAIRING = auto()
    RETRYING = auto()
    FAILED = auto()


class Outcome(Enum):
    """What is known of one attempt."""

    WAITING = auto()
    UNDER_WAY = auto()
    ACKED = auto()
    NOT_WRITTEN = auto()
    UNKNOWN = auto()


class Writer(NamedTuple):
    """Who wrote a batch, and the sequence that follows it."""

    producer_id: int
    epoch: int
    sequence: int


TINY_COMPRESSED_BYTES: Final = 2 * 1024

GROWTH_BYTES: Final = 8
"""By which a joined record grows: 5 for the time since the batch's first record (up to half a year), 2 for its number, 1 for
its length. Packed records may grow too, which shows only when they are."""


class MergePlan(NamedTuple):
    """When waiting batches are joined before they are first sent (data-plane.md 7), sizes in bytes."""

    target: int
    """A joined batch grows to about this."""
    small: int
    """Uncompressed batches below this are joined."""
    small_compressed: int
    """Compressed ones, whose records must be packed anew, only below this, and only tiny ones while the batches in
    flight are not what limits the partition: then it is the CPU."""


@final
class Sent:
    """One batch with its sequence range and what is known of it.

    What the ordinary batch never changes is kept once, in the class.
    """

    outcome: Outcome = Outcome.UNDER_WAY
    signed: bool = True
    """Its bytes carry ``base_sequence`` under the lane's present id and epoch."""
    repaired: bool = False
    unknown_before: bool = False
    """Some attempt of these bytes may have been written."""
    base_offset: int = -1
    bad_record: int = -1
    """Index in the batch, where the broker named one."""
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
    """The state machine of one target partition; the Sender feeds it and carries out what it asks."""

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
        self.admitted = not transactional  # whether it may begin to send what waits
        self.source = target  # whose batches were offered last
        self.producer_id = producer_id
        self.epoch = epoch
        self.next_sequence = 0
        self.state = LaneState.OPENING
        self.leader = -1
        self.acked_end = -1  # target offset behind our last known record; where a look-up starts
        self.limit_bytes = (
            0  # the target topic's max.message.bytes once it refused a size, 0 unknown
        )
        self.progress = 0  # counts acknowledgements, so that a standstill is seen
        self.retries = 0
        self.error: tuple[int, str] = (0, "")
        self.bump_wanted = False
        self.connection: object = None
        self.channel = 0  # which of the connections to its leader it is dealt to
        self.queue: deque[tuple[TopicPartition, RecordBatch]] = deque()
        self.queued_bytes = 0
        self.unsettled: deque[Sent] = deque()
        self._apart = 0  # of the queue's first batches, which are not joined: one is damaged
        self._under_way = 0
        self._max_in_flight = max_in_flight
        self.next_source = -1  # source offset behind what was offered, where it is followed
        self.lasting = False  # a successor continues under its producer id
        self.foreign: tuple[int, int] | None = None  # target offsets that another writer took
        # As of the last ``look_after``: acknowledgements, and the newest batch that waited, by its id: it must not be kept.
        self._seen: tuple[int, int] = (0, 0)
        self._was_full = False  # as many batches as may be were under way before the last answer
        self._confirmed = False

    # -- what the Sender asks ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is queued, under way or waiting for a retry."""
        return not self.queue and not self.unsettled

    @property
    def resting(self) -> bool:
        """Idle, and known to ``look_after`` to be so."""
        return not self._confirmed and self.idle

    @property
    def under_way(self) -> int:
        """Number of batches whose answer is outstanding."""
        return self._under_way

    def can_send(self) -> bool:
        """Whether ``take`` would return a batch now (invariant 1)."""
        if self.state is LaneState.FLOWING:
            limit = self._max_in_flight if self._confirmed else 1
            return self._under_way < limit and self.admitted and bool(self.queue)
        return self.state is LaneState.RETRYING and self._under_way == 0

    def travels_by(self, connection: object) -> None:
        """What is sent from now on leaves by ``connection``; behind a new one nothing is confirmed (1).

        The broker may have been restarted unnoticed by a lane that had nothing under way, and have forgotten
        our sequences: then it takes any batch first, a later one too when an earlier one is refused.
        """
        if connection is not self.connection:
            self.connection = connection
            self._confirmed = False

    def deal(self, channel: int) -> None:
        """Leave by another connection to its leader, once what is under way by the present one is answered."""
        self.channel = channel

    def offer(self, source: TopicPartition, batches: Sequence[RecordBatch]) -> int:
        """Queue batches behind the others; return their size in bytes."""
        size = 0
        for batch in batches:
            size += len(batch.data)
        self.source = source
        self.queue.extend(zip(repeat(source), batches, strict=False))
        self.queued_bytes += size
        return size

    def hole_before(self, batches: Sequence[RecordBatch]) -> int | None:
        """Return the first source offset that is missing before or in batches to be offered; None if none is."""
        for batch in batches:
            for first, count in batch.runs:
                if self.next_source >= 0 and first != self.next_source:
                    return self.next_source
                self.next_source = first + count
        return None

    def next_bytes(self) -> int:
        """Return the size of what ``take`` would return if it joined nothing; only after ``can_send``."""
        if self.state is LaneState.RETRYING:
            return len(self.first_unsettled().batch.data)
        return len(self.queue[0][1].data)

    def take(self, plan: MergePlan | None = None) -> Sent:
        """Return the next batch to send, signed; only after ``can_send``.

        With ``plan`` small batches are joined while a backlog waits; never one that was sent before.
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
        """Return the oldest batch that is not acknowledged; the same bytes unless its sequence changed."""
        sent = self.first_unsettled()
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
        """The producer id outlives the process: continue a predecessor's, or begin with our own. Only in OPENING."""
        self.lasting = True
        if writer is not None:
            self.producer_id, self.epoch, self.next_sequence = writer

    def opened(self, leader: int, log_end: int) -> None:
        """The leader is known, and where the log ended before our first batch (-1: may not be read)."""
        self.leader = leader
        self.acked_end = log_end
        self.state = LaneState.FLOWING

    def recognised(self, rest: RecordBatch | None) -> RecordBatch:
        """The first waiting batch is in the log, but for ``rest``; return it. Only in OPENING."""
        source, batch = self.queue.popleft()
        self.queued_bytes -= len(batch.data)
        if rest is not None:
            self.queue.appendleft((source, rest))
            self.queued_bytes += len(rest.data)
        return batch

    def acknowledged(self, sent: Sent, base_offset: int) -> Sequence[Sent]:
        """One batch is in the log; return the batches that are now delivered, oldest first (8)."""
        self._was_full = self._under_way >= self._max_in_flight
        self._under_way -= 1
        self.progress += 1
        unsettled = self.unsettled
        if (
            self.state is LaneState.FLOWING
            and unsettled[0] is sent
            and (len(unsettled) == 1 or unsettled[1].outcome is not Outcome.ACKED)
        ):
            # The ordinary answer: of the oldest batch, and the ones behind it are still under way.
            unsettled.popleft()
            sent.base_offset = base_offset
            self.queued_bytes -= sent.counted
            if base_offset >= 0:
                if self.lasting and base_offset > self.acked_end >= 0:
                    self.foreign = self.acked_end, base_offset
                self.acked_end = base_offset + sent.batch.count
            self._confirmed = True
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
        """The broker answered with an error code for this batch, perhaps naming a record of it."""
        self._under_way -= 1
        sent.code, sent.message, sent.bad_record = code, message, bad_record
        if code in UNKNOWN_OUTCOME:
            sent.outcome = Outcome.UNKNOWN
            sent.unknown_before = True
        else:
            sent.outcome = Outcome.NOT_WRITTEN
        self._stop_flow()

    def lost(self, sent: Sent, reason: str) -> None:
        """There is no answer, mostly because the connection went away before it."""
        self._under_way -= 1
        sent.code, sent.message = codes.NETWORK_EXCEPTION, reason
        sent.outcome = Outcome.UNKNOWN
        sent.unknown_before = True
        self._stop_flow()

    def retry(self) -> int:
        """Count another attempt to get out of BACKOFF or RESOLVING; return how many there were before."""
        self.retries += 1
        return self.retries - 1

    def admit(self, producer_id: int, epoch: int) -> None:
        """Let it send in the transaction that is open, under the id and epoch of it."""
        self.admitted = True
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.new_epoch(producer_id, epoch)

    def must_resolve(self) -> None:
        """The target's log has to be read before anything is resent."""
        self.state = LaneState.RESOLVING

    def moved(self, leader: int) -> None:
        """Another broker leads the partition; nothing is under way."""
        self.leader = leader

    def limit(
        self, limit_bytes: int, cut: Callable[[Sequence[RecordBatch], int], Sequence[RecordBatch]]
    ) -> int:
        """``cut`` what waits for its first sending by a limit; return by how many bytes it grew."""
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
        """The pause is over and the leader is known again."""
        self.leader = leader
        if self.unsettled:
            self.state = LaneState.RETRYING
        else:
            self._flow()

    def resolved(self, found: dict[int, int]) -> list[Sent]:
        """The target's log was read: ``found`` maps base sequences of ours to base offsets.

        Batches that are there count as acknowledged; the others were not written. Raises ``ValueError`` when
        what is there is not a prefix of what was sent: then order is broken and nothing may be sent any more.
        """
        missing = False
        for sent in self.unsettled:
            if sent.outcome is Outcome.ACKED:
                continue
            offset = found.get(sent.base_sequence)
            if offset is None:
                missing = True
                sent.outcome = Outcome.NOT_WRITTEN
                sent.unknown_before = False
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

        ``remembered_since_ms``: a broker still knows the producer state of batches whose newest record is
        not older. One forgotten batch is enough: its state is all that protects the ones before it.
        """
        return self.has_unknown() and any(
            sent.batch.max_timestamp < remembered_since_ms for sent in self.unsettled
        )

    def new_epoch(self, producer_id: int, epoch: int) -> None:
        """Start over at sequence 0 under a new id or epoch; only when nothing is of unknown outcome (4)."""
        self.producer_id, self.epoch = producer_id, epoch
        self.bump_wanted = False
        self._confirmed = False
        self.next_sequence = 0
        for sent in self.unsettled:
            sent.base_sequence = self.next_sequence
            sent.signed = False
            self.next_sequence = (self.next_sequence + sent.batch.count) & MAX_SEQUENCE

    def replaced(self, sent: Sent, batches: list[RecordBatch], limit_bytes: int = 0) -> None:
        """Put smaller or recompressed batches of the same records in the place of a refused one.

        The record count stays, so later sequence ranges stay as they are. ``limit_bytes`` is what the batches
        behind may measure, where that was the matter.
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
        parts[-1].counted = sent.counted
        items[at : at + 1] = parts
        self.unsettled = deque(items)
        self.state = LaneState.RETRYING

    def fail(self) -> list[RecordBatch]:
        """Give the partition up; return the batches whose buffers may be released now.

        A batch under way stays: its buffer may still wait in the socket. ``forget`` hands it out later.
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
        """Whether some attempt may or may not have been written."""
        return any(s.unknown_before and s.outcome is not Outcome.ACKED for s in self.unsettled)

    def returnable(self) -> list[RecordBatch]:
        """Return the newest of its batches, oldest first, that nothing may be in the log of or on its way there."""
        waiting = [batch for _, batch in self.queue]
        if self.state is LaneState.BACKOFF and not self.transactional:
            refused = [it for it in self.unsettled if it.outcome is Outcome.NOT_WRITTEN]
            if len(refused) == len(self.unsettled) and not self.has_unknown():
                return [sent.batch for sent in refused] + waiting
        return waiting

    def give_back(self) -> list[RecordBatch]:
        """Forget what is ``returnable`` and return it: it will be offered again, perhaps cut in another way (4)."""
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

    def look_after(self) -> None:
        """Called once a second: what waits since the last call gets bytes of its own; a rest ends trust (1).

        One partition that cannot drain, or a slow target broker, would otherwise pin the receive buffers of all
        the others. And during a rest the broker may have forgotten our sequences.
        """
        queue, progress = self.queue, self.progress
        stood_still, newest = progress == self._seen[0], self._seen[1]
        if stood_still:
            self._confirmed = self._confirmed and not self.idle
            for sent in self.unsettled:
                if sent.outcome is not Outcome.UNDER_WAY:  # the kernel may not have taken those yet
                    sent.batch.detach()
        waiting = next((n for n, (_, batch) in enumerate(queue, 1) if id(batch) == newest), 0)
        for _, batch in islice(queue, waiting):
            batch.detach()
        self._seen = progress, id(queue[-1][1]) if queue else 0

    def _joined(
        self, source: TopicPartition, batch: RecordBatch, target: int, small: int
    ) -> tuple[RecordBatch, int]:
        """Join ``batch`` with those below ``small`` behind it, up to ``target``, never above the topic's limit."""
        most = self.limit_bytes or MAX_SEQUENCE
        parts, counted, records = [batch], len(batch.data), batch.count
        for waiting_source, waiting in self.queue:
            size = len(waiting.data)
            records += waiting.count
            if (
                waiting_source != source
                or size >= small
                or counted + size > target
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
            # One of them is damaged, or packed anew they are larger: each goes as it is, and the target judges it alone.
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
        """Decide what follows once every answer is in (the DRAINING row of the table)."""
        if self._under_way or self.state is not LaneState.DRAINING:
            return
        sent = self.first_unsettled()
        self.error = (sent.code, sent.message)
        code = sent.code
        if code in UNKNOWN_OUTCOME or code == codes.NETWORK_EXCEPTION or code in DEFINITE_RETRIABLE:
            self.state = LaneState.BACKOFF
        elif code in STATE_LOST:
            self.bump_wanted = True
            self.state = LaneState.RESOLVING
        elif sent.unknown_before:
            self.state = LaneState.RESOLVING  # invariant 3: not definite, read the log first
        elif code in TOO_LARGE or (code in REPAIRABLE and not sent.repaired):
            self.state = LaneState.REPAIRING
        else:
            self.state = LaneState.FAILED
