"""Position and state of the Fetcher in one source partition, and the effect of a leader's response
on them. No I/O.

Flow: ``led_by`` -> ``Lookup`` answered where one is needed -> ``FetchedPartition`` -> ``take`` ->
batches, or the ``Verdict`` that decides what the Fetcher does next. Only methods of the cursor
change it.

Java's consumer resets a position that is out of range (``auto.offset.reset``) and validates it
after a leader change (KIP-320). A mirror must also know *which* records are gone, so the cursor
keeps the epochs that it read and the topic id.
"""

from enum import Enum, auto
from math import inf
from typing import Final, final

from mm2py.client.connect.metadata_cache import Leader
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import Origins, ProblemKind, StageResult, classify
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition

# Fetch 13 names topics by id (KIP-516). A broker that has not learned
# of a new topic yet answers the first one, too; metadata decide.
_RECREATED: Final = frozenset({codes.UNKNOWN_TOPIC_ID, codes.INCONSISTENT_TOPIC_ID})
_REFUSED: Final = frozenset({codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED})


class Lookup(Enum):
    """The request to the leader that is needed before a partition can be fetched."""

    NONE = auto()
    START = auto()
    """The offset of EARLIEST or LATEST."""
    BEGINNING = auto()
    """The first offset of a new incarnation of the topic."""
    ENDS = auto()
    """Both ends of the log: the position is outside."""
    EPOCH = auto()
    """The end of the last epoch that was read, in the leader's log."""
    VALIDATE = auto()
    """The same after a leader change, unless Fetch itself reports a divergence (v12 on)."""


class Verdict(Enum):
    """The Fetcher's action after a response."""

    GO_ON = auto()
    MOVE = auto()
    """Look the leader up again."""
    REPLICA = auto()
    """The leader names a nearer replica to read from (KIP-392): ``replica``."""
    LEADER = auto()
    """A follower cannot serve the position: go back to the leader, which decides."""
    RESET = auto()
    """The position is outside the log: ask for its ends."""
    TRUNCATED = auto()
    """The log was cut below our position (KIP-320); ``diverged_to`` has the offset."""
    LOST = auto()
    """The batches begin after records that the source has deleted; ``lost`` is their range."""
    RECREATED = auto()
    """The topic id is unknown to the broker."""
    REFUSED = auto()
    """Not authorized; retry."""
    UNCLEAR = auto()
    """An error without a cause, for instance of a broker's storage: retry for minutes."""
    FAILED = auto()
    """Nothing of this partition can be copied any more; ``cause`` has the reason."""


@final
class Cursor:
    """One assigned partition: position, leader, and the facts of the last answer."""

    __slots__ = (
        "absent",
        "attempts",
        "batch_bytes",
        "by_name",
        "cause",
        "damaged",
        "denied",
        "diverged_to",
        "epochs",
        "failed",
        "filled",
        "high_watermark",
        "identified",
        "joined_at",
        "known_at",
        "last_epoch",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "lookup",
        "lost",
        "newest_ms",
        "next_id",
        "node",
        "paused",
        "position",
        "replica",
        "replica_until",
        "share_bytes",
        "spread_out",
        "started_at",
        "suspect",
        "topic_id",
        "tp",
        "unclear_since",
        "validated_epoch",
    )

    def __init__(
        self,
        tp: TopicPartition,
        position: int,
        topic_id: bytes = NO_TOPIC_ID,
        epoch: int = -1,
    ) -> None:
        self.tp = tp
        self.position = position  # next offset to fetch; EARLIEST or LATEST until it is looked up
        self.leader = -1
        self.leader_epoch = -1
        self.node = -1  # broker it is fetched from: the leader or a nearer replica
        self.replica = -1  # what the leader named last (KIP-392), -1 for itself
        self.replica_until = 0.0  # when the leader is asked again
        self.epochs: list[tuple[int, int]] = []  # (leader epoch, first offset read under it)
        if epoch >= 0:
            # One record back, so that ``seek`` to this position keeps the epoch.
            self.epochs.append((epoch, position - 1))
        self.last_epoch = epoch  # of the record before the position, for LastFetchedEpoch (KIP-320)
        self.started_at = -1  # offset after EARLIEST or LATEST
        self.validated_epoch = -1  # leader epoch the position was last checked under (before v12)
        self.lookup = Lookup.NONE
        self.topic_id = topic_id
        self.next_id = topic_id  # of the incarnation that follows, while its BEGINNING is looked up
        self.by_name = True  # the leader's metadata have no topic id
        self.identified = topic_id != NO_TOPIC_ID  # the position is known to belong to topic_id
        self.absent = False  # the topic is there, without a partition of this number
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.known_at = -inf  # when the end of the log was last known; its node may know of later
        self.joined_at = -inf  # since when its node answers for it
        self.denied = False  # its broker has refused the read: where the log ends now is not known
        self.paused = False
        self.spread_out = False  # read in stripes over several connections
        self.failed = False  # failed or replaced; final
        self.attempts = 0  # refusals and lost brokers since the last good answer
        self.filled = False  # its last answer had data and did not reach the end
        self.share_bytes = 0  # of an answer while many compete; 0 for the configured limit
        self.batch_bytes = 0  # size of the batch read last
        self.newest_ms = -1  # timestamp of what was read last
        self.suspect = -1  # offset of a batch whose CRC did not match once
        self.diverged_to = -1
        self.unclear_since: float | None = None  # when the first of its unclear errors came
        self.lost = (-1, -1)
        self.cause = ""
        self.damaged = False  # the cause lies in the source's bytes, not in an answer of the broker

    @property
    def fetchable(self) -> bool:
        """Whether it is part of the next Fetch of its broker's session."""
        return (
            not self.paused
            and not self.failed
            and not self.spread_out
            and self.position >= 0
            and self.lookup is Lookup.NONE
        )

    # -- by the Fetcher ---------------------------------------------------------------------------

    def fail(self) -> None:
        """Stop reading permanently: it failed, or its assignment ended."""
        self.failed = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def spread(self, *, over_several: bool) -> None:
        """Read it over several connections, or in the session of the first one again."""
        self.spread_out = over_several

    def refused(self) -> None:
        """Count a failed response or connection; the next pause grows."""
        self.attempts += 1

    def unclear_for_s(self, now: float) -> float:
        """Return the time since the first unclear error without data since; ``now`` is monotonic
        seconds."""
        if self.unclear_since is None:
            self.unclear_since = now
        return now - self.unclear_since

    def ends_at(self, offset: int, now: float) -> None:
        """Set the end of the log of a partition that is not fetched, as it is ``now``."""
        self.high_watermark = offset
        self.known_until(now)

    def known_until(self, instant_s: float) -> None:
        """Note that the end of its log was known at ``instant_s``; an earlier instant changes
        nothing."""
        self.known_at = max(self.known_at, instant_s)

    def joined(self, now: float) -> None:
        """Note that its node answers for it from ``now`` on."""
        self.joined_at = now

    def limit(self, share_bytes: int) -> None:
        """Set its share of the next responses, 0 for the configured limit."""
        self.share_bytes = share_bytes

    # -- where it is read -------------------------------------------------------------------------

    def led_by(self, leader: Leader) -> None:
        """Set the leader, and decide which lookup is needed before the next Fetch.

        Without a topic id the incarnation is unknown: clusters during an upgrade or after an
        old proxy have none for a while. The last id stays, and the partition is fetched by name.
        """
        self.leader, self.leader_epoch = leader.node_id, leader.epoch
        self.by_name = leader.topic_id == NO_TOPIC_ID
        # The leader may have a newer incarnation by now: decided again below.
        if self.lookup is Lookup.BEGINNING:
            self.lookup = Lookup.NONE
        # Nothing was read of it yet, so any incarnation is the right one.
        if not self.by_name and (self.topic_id == NO_TOPIC_ID or self.position < 0):
            self.topic_id = leader.topic_id
        if not self.by_name and self.topic_id != leader.topic_id:
            self.next_id = leader.topic_id
            self.lookup = Lookup.BEGINNING
        elif self.position < 0:
            self.lookup = Lookup.START
        # KIP-320: a new leader may have truncated what we read (Java:
        # SubscriptionState.maybeValidatePositionForCurrentLeader).
        elif self.lookup is Lookup.NONE and self.last_epoch > -1 and self._unvalidated:
            self.lookup = Lookup.VALIDATE
        if self.lookup is not Lookup.BEGINNING:
            self.absent = False

    def placed(self, node_id: int) -> None:
        """Set the broker it is fetched from: the leader or a nearer replica."""
        self.node = node_id

    def follow_until(self, instant_s: float) -> None:
        """Read from a follower until ``instant_s``."""
        self.replica_until = instant_s

    def left(self) -> None:
        """Note that it is not fetched from any broker."""
        self.node = self.leader = -1

    # -- look-ups ---------------------------------------------------------------------------------

    def start_at(self, position: int) -> None:
        """Set the offset of EARLIEST or LATEST."""
        self.position = self.started_at = position
        self.lookup = Lookup.NONE

    def out_of_range(self) -> None:
        """Look up both ends of the log, because the position is outside of it."""
        self.lookup = Lookup.ENDS

    def compare(self) -> None:
        """Compare the last epoch read with the leader's log; the position is inside of it."""
        self.lookup = Lookup.EPOCH if self.last_epoch >= 0 else Lookup.NONE

    def validated(self) -> None:
        """Note that the epochs read match the leader's log."""
        self.validated_epoch = self.leader_epoch
        self.lookup = Lookup.NONE

    # -- answers ----------------------------------------------------------------------------------

    def take(
        self, fetched: FetchedPartition, lease: BufferLease, origins: Origins | None = None
    ) -> tuple[Verdict, StageResult | None]:
        """Apply one response; each returned batch holds a reference to ``lease``."""
        # A leader that names a replica returns no records with it (ReplicaManager.readFromLog).
        if fetched.error_code or fetched.preferred_read_replica >= 0 or fetched.diverging:
            return self._without_data(fetched), None
        self.attempts = 0
        self.unclear_since = None
        self.high_watermark = fetched.high_watermark
        self.denied = False
        self.last_stable_offset = fetched.last_stable_offset
        self.identified |= not self.by_name  # an incarnation whose log has the position
        if not fetched.records:
            # Empty below the end: the share was too small
            # for a batch, or a quota withheld the data.
            self.filled = self.position < fetched.last_stable_offset
            return Verdict.GO_ON, None
        asked_for = self.position
        result = classify(
            fetched.records, asked_for, lease, aborted=fetched.aborted, origins=origins
        )
        if result.next_offset > asked_for:
            self.position = result.next_offset
            self.identified = True
            self.suspect = -1
            self.filled = result.next_offset < fetched.last_stable_offset
        # Epochs never go down within a log.
        if result.last_epoch > self.last_epoch:
            self._learn_epochs(result, asked_for)
        verdict = Verdict.GO_ON
        if result.batches:
            newest = result.batches[-1]
            self.newest_ms = newest.max_timestamp
            self.batch_bytes = len(newest.data)
        # The log start moved between the request and the read. Holes above it are compaction.
        if asked_for < fetched.log_start_offset and (result.batches or result.dropped):
            first = _first_offset(result)
            if asked_for < first:
                self.lost = (asked_for, min(first, fetched.log_start_offset) - 1)
                verdict = Verdict.LOST
        # A loss is reported first; the next response begins with the problem.
        if result.problem is None or verdict is Verdict.LOST:
            return verdict, result
        if result.problem.kind is ProblemKind.CRC and self.suspect != result.problem.offset:
            # Fetch it once more: memory or network may be the reason.
            self.suspect = result.problem.offset
            return verdict, result
        self.cause = result.problem.text
        self.damaged = True
        return Verdict.FAILED, result

    def seek(self, position: int) -> None:
        """Set the position; epochs from there on are forgotten.

        A leader whose log was cut may have other records from the start of any later epoch that we
        read, so the point of a divergence is limited by our own epochs.
        """
        self.position = position
        self.lookup = Lookup.NONE
        self.filled = False
        self.suspect = -1
        while self.epochs and self.epochs[-1][1] >= position:
            self.epochs.pop()
        self.last_epoch = self.epochs[-1][0] if self.epochs else -1

    def restart(self, position: int, topic_id: bytes, *, absent: bool = False) -> None:
        """Start with another incarnation of the topic; all state of the old one is dropped.

        ``absent``: it has no partition of this number, so nothing is lost if it is recreated in
        turn.
        """
        self.topic_id = topic_id
        self.identified = topic_id != NO_TOPIC_ID
        self.absent = absent
        self.epochs.clear()
        self.high_watermark = self.last_stable_offset = self.newest_ms = -1
        self.replica = self.validated_epoch = -1
        self.seek(position)

    def forget_epochs(self) -> None:
        """Drop the epochs, because the leader does not know the last one: nothing can be compared
        until more is read."""
        self.epochs.clear()
        self.last_epoch = -1

    def diverged(self, epoch: int, end_offset: int) -> int:
        """Return the offset where our log diverges from the leader's, in which ``epoch`` ends at
        ``end_offset``.

        If we read later epochs, the logs diverge at the first of them at the latest (KIP-320). The
        Java consumer keeps no epochs and would skip the records in between.
        """
        cut = max(end_offset, 0)
        for own, start in self.epochs:
            # The leader's log has none of the records that we read under later epochs (KIP-320).
            if own > epoch:
                return min(cut, start, self.position)
        return min(cut, self.position)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that the record at ``offset`` was read under, -1 while
        unknown."""
        return next((epoch for epoch, start in reversed(self.epochs) if start <= offset), -1)

    @property
    def _unvalidated(self) -> bool:
        return self.validated_epoch != self.leader_epoch

    def _learn_epochs(self, result: StageResult, asked_for: int) -> None:
        last = self.last_epoch
        for batch in result.batches:
            if batch.leader_epoch > last:
                last = batch.leader_epoch
                self.epochs.append((last, batch.base_offset))
        if result.last_epoch > last:  # only control batches carry it
            self.epochs.append((result.last_epoch, asked_for))
        self.last_epoch = result.last_epoch

    def _without_data(self, fetched: FetchedPartition) -> Verdict:
        code = fetched.error_code
        if not code and fetched.preferred_read_replica >= 0:
            self.replica = fetched.preferred_read_replica
            return Verdict.REPLICA if self.replica != self.node else Verdict.GO_ON
        # Followers lag: what they lack, or call out of range, the leader may
        # have (KIP-392). Java's consumer clears its preferred replica likewise.
        if self.node != self.leader and (fetched.diverging or code not in _REFUSED):
            return Verdict.LEADER
        if fetched.diverging and not code:
            self.diverged_to = self.diverged(*fetched.diverging)
            return Verdict.TRUNCATED
        return self._refusal(code)

    def _refusal(self, code: int) -> Verdict:
        if code == codes.OFFSET_OUT_OF_RANGE:
            return Verdict.RESET
        if code in _RECREATED:
            return Verdict.RECREATED
        if code in _REFUSED:
            return Verdict.REFUSED
        # Also FENCED_LEADER_EPOCH (ours is older) and UNKNOWN_LEADER_EPOCH (the broker's is older).
        if code in codes.RETRIABLE and code != codes.CORRUPT_MESSAGE:
            return Verdict.MOVE
        # The broker found its own log damaged; Java's consumer throws a KafkaException for it.
        self.damaged = code == codes.CORRUPT_MESSAGE
        self.cause = f"the source answered {codes.error_name(code)} ({code})"
        return Verdict.UNCLEAR if codes.is_unclear(code) else Verdict.FAILED


def _first_offset(result: StageResult) -> int:
    """Return the first offset of anything in a response, including markers and aborted data."""
    first = [batch.base_offset for batch in result.batches[:1]]
    return min(first + [each.first_offset for each in result.dropped[:1]])
