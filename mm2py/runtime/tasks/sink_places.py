"""Which incarnation of its topic a position of a consumer group belongs to, and what the source
lost before it.

Flow: ``assigned``, ``doubt`` -> not read before ``check`` -> topic ids and committed positions ->
``seek`` where the topic is another one; ``follows`` for each offset that is read -> a jump ->
``check`` -> a named loss. librdkafka and Java's consumer identify a position by its offset alone:
paused while its topic is deleted and recreated, they continue in the middle of the new one. A
commit carries the topic id as metadata, so that the next member knows it too, with the id of the
cluster: a sync of groups copies metadata to another one. No thread and no Kafka client of its own.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, Protocol, Self, final

from mm2py.api.context import EventKind, SourceGap
from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.mirror.ledger import topic_id_of, topic_id_text
from mm2py.observability.logging import cause_text
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.types import EARLIEST, TopicPartition

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""How often the topic ids of partitions that are read are asked for; records of another incarnation
may come meanwhile."""
RETRY_S: Final = 0.5
LATE: Final = 20
"""After this many failures in a row the cause is logged."""
_PREFIX: Final = "topic-id="


class StoredPosition(NamedTuple):
    """A committed position and the topic id that it was committed with, ``NO_TOPIC_ID`` where
    another program committed it."""

    offset: int
    topic_id: bytes = NO_TOPIC_ID

    def metadata(self, cluster_id: str) -> str:
        """Return the text beside the offset in a group of this cluster."""
        if self.topic_id == NO_TOPIC_ID:
            return ""
        return f"{_PREFIX}{topic_id_text(self.topic_id)}@{cluster_id}"

    @classmethod
    def committed_with(cls, offset: int, metadata: str | None, cluster_id: str) -> Self:
        """Read what a coordinator of this cluster has; text of other programs, and that of another
        cluster, names no topic."""
        text, _, of_cluster = (metadata or "").partition("@")
        # Another cluster's id: a group sync has copied offset and metadata, and the topic there has
        # an id of its own.
        is_ours = text.startswith(_PREFIX) and of_cluster == cluster_id
        topic_id = topic_id_of(text.removeprefix(_PREFIX)) if is_ours else b""
        return cls(offset, topic_id or NO_TOPIC_ID)


class PlacedConsumer(Protocol):
    """What is called of a group member."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        """Return the ids of those that exist, ``NO_TOPIC_ID`` from brokers before 2.8;
        ``RetriableError``: not now."""
        ...

    def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredPosition]:
        """Return the group's positions, of partitions that have one; ``RetriableError``: not
        now."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset, or at ``EARLIEST``; ``RetriableError``: the partition is not read
        yet."""
        ...

    def start(self, partition: TopicPartition) -> int:
        """Return the log start offset of the last Fetch response, -1 before one."""
        ...


class PlaceObserver(Protocol):
    """Keeps which topics were read, and what they have lost."""

    def lost(self, gap: SourceGap) -> None:
        """The source has lost records before they were read."""
        ...

    def incarnations(self) -> Mapping[TopicPartition, bytes]:
        """Return the topics that were read last, by any member; ``RetriableError``: not now. May
        block for seconds."""
        ...

    def began(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Positions are of this topic from now on."""
        ...


class _FormerOffsets(NamedTuple):
    """Offsets of a former topic that were read and are not known to be delivered.

    That ``next_id`` began is reported once they are settled: a member that is killed before leaves
    the former topic on record.
    """

    first: int
    end: int
    next_id: bytes = NO_TOPIC_ID


@final
class SinkPlaces:
    """The partitions of one member; every method is called by its thread."""

    def __init__(self, observer: PlaceObserver, clock: Clock) -> None:
        self._observer, self._clock = observer, clock
        self.ids: dict[TopicPartition, bytes] = {}
        """The topic that the position of a partition belongs to."""
        self.unsure: set[TopicPartition] = set()
        """Partitions that must not be read before they are checked."""
        self._owned: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}
        """The offset after the last record that was read, where that is known."""
        self._jumps: dict[TopicPartition, int] = {}
        """The offset that came in place of the next one."""
        self._ends: dict[TopicPartition, int] = {}
        self._proved_ends: dict[TopicPartition, int] = {}
        """Ends that were noted before a check that found the same topic."""
        self._acknowledged: dict[TopicPartition, int] = {}
        """The offset below which the target has everything that was read, by the last commit or
        where reading began."""
        self._pending: dict[TopicPartition, _FormerOffsets] = {}
        """What the target has not acknowledged of former topics, as far as known."""
        self._past: set[bytes] = set()
        """Ids that another one has followed: a broker that is cut off from its controllers still
        answers with them."""
        self._check_at = -inf
        self._failures = 0
        self.cause = ""
        """Why those that are ``unsure`` stay so; empty while they do not for long."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._owned.update(partitions)
        self.doubt(partitions)

    def left(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions have gone, and what waited of them was given up: of a former topic it cannot
        be read again."""
        self._owned.difference_update(partitions)
        self.unsure.difference_update(partitions)
        # What was read of a former topic and not acknowledged is gone with this owner: named as
        # lost.
        for partition in partitions:
            self._name_pending(partition)
        self.acknowledged(partitions)  # after the loss: both are written in this order
        for by_partition in (
            *(self.ids, self._next, self._jumps, self._ends, self._proved_ends),
            self._acknowledged,
        ):
            for partition in partitions:
                by_partition.pop(partition, None)

    def doubt(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were not read for a while: their topic may be another one."""
        self.unsure.update(partitions)
        self._check_at = -inf

    def read_to(self, partition: TopicPartition, offset: int) -> None:
        """All before ``offset`` was read, or skipped by request."""
        self._next[partition] = offset

    def ends_at(self, partition: TopicPartition, end: int) -> None:
        """The log ended there when it was asked."""
        self._ends[partition] = end

    @property
    def pending(self) -> Mapping[TopicPartition, int]:
        """Ends of former topics whose last records the target has not acknowledged, as far as known
        (``acknowledged``)."""
        return {partition: it.end for partition, it in self._pending.items()}

    def acknowledged(self, partitions: Collection[TopicPartition]) -> None:
        """The target has what was read of the former topics of partitions."""
        for partition in partitions:
            pending = self._pending.pop(partition, None)
            if pending is not None and pending.next_id != NO_TOPIC_ID:
                self._observer.began(partition, pending.next_id)

    def committed_to(self, partition: TopicPartition, offset: int) -> None:
        """The target has all below ``offset`` of the topic that is read."""
        self._acknowledged[partition] = offset

    def next_offset(self, partition: TopicPartition, otherwise: int) -> int:
        # The first record after a start without a position: whatever comes is the beginning.
        expected = self._next.get(partition, otherwise)
        self._acknowledged.setdefault(partition, expected)
        return expected

    def follows(
        self, consumer: PlacedConsumer, partition: TopicPartition, expected: int, offset: int
    ) -> bool:
        """Return whether a record may be taken: after ``expected``, with nothing between but what
        compaction and transactions leave.

        Else the partition must be checked, and the record is read again.
        """
        # The log began at or below it when this was fetched, so the gap was never a record that
        # retention deleted.
        if offset > expected and consumer.start(partition) <= expected:
            return True
        self._next[partition] = expected
        self._jumps[partition] = offset
        self.doubt((partition,))
        return False

    def check(
        self, consumer: PlacedConsumer, among: Collection[TopicPartition] | None = None
    ) -> Sequence[TopicPartition]:
        """Ask for topic ids where that is due; return partitions that continue elsewhere: what was
        read is no position any more.

        ``among``: these at once, and no others: within a poll, which may return what was read of
        others before.
        """
        now = self._clock.monotonic()
        owned = self._owned if among is None else self._owned.intersection(among)
        # ``among`` comes from a rebalance and cannot wait for the interval.
        if not owned or (among is None and now < self._check_at):
            return ()
        # Taken before the question: only an end that was known before it is proved by an unchanged
        # id.
        ends = dict(self._ends)
        try:
            ids = consumer.topic_ids({it.topic for it in owned})
            self._learn(consumer, ids)
        except RetriableError as error:
            self._failures += 1
            is_late = bool(self.unsure) and self._failures % LATE == 0
            cause = cause_text(error)
            self.cause = cause if is_late else self.cause
            log.log(
                logging.WARNING if is_late else logging.DEBUG,
                "topic ids are not known yet, partitions are read behind that partitions=%d "
                "cause=%s",
                len(self.unsure),
                cause,
            )
            # Counted from now on: each question holds the thread up.
            self._check_at = self._clock.monotonic() + (RETRY_S if self.unsure else CHECK_S)
            return ()
        self._failures, self.cause = 0, ""
        moved: list[TopicPartition] = []
        for partition in sorted(owned & self.ids.keys()):
            topic_id = ids.get(partition.topic)
            # A topic never returns under a former id: a broker that lags may still answer with it.
            if topic_id is None or topic_id in self._past:
                continue  # deleted, or not visible yet
            try:
                is_moved = self._settle(consumer, partition, topic_id)
            except RetriableError:
                continue  # just assigned
            if is_moved:
                moved.append(partition)
            elif partition in ends:
                self._proved_ends[partition] = ends[partition]
            # Told once per incarnation, not at each check.
            if topic_id != NO_TOPIC_ID and (is_moved or partition in self.unsure):
                self._begin(partition, topic_id)
            self.ids[partition] = topic_id
            self.unsure.discard(partition)
        # A check of a few must not postpone that of all.
        if owned == self._owned:
            self._check_at = now + (RETRY_S if self.unsure else CHECK_S)
        return moved

    def _begin(self, partition: TopicPartition, topic_id: bytes) -> None:
        pending = self._pending.get(partition)
        if pending is None:
            self._observer.began(partition, topic_id)
        else:
            self._pending[partition] = pending._replace(next_id=topic_id)

    def _name_pending(self, partition: TopicPartition) -> None:
        pending = self._pending.get(partition)
        if pending is not None:
            self._observer.lost(_not_delivered(partition, pending.first, pending.end))

    def _learn(self, consumer: PlacedConsumer, ids: Mapping[str, bytes]) -> None:
        """Determine which topic incarnation the positions of new partitions belong to."""
        new = {it for it in self._owned - self.ids.keys() if it.topic in ids}
        if not new:
            return
        stored, former = consumer.committed(new), dict[TopicPartition, bytes]()
        # Then only the ledger knows which topic was read before.
        if not new <= stored.keys():  # a broker deletes the positions of a topic with it
            former.update(self._observer.incarnations())
        for partition in new:
            position = stored.get(partition)
            if position is None:
                # No position and no record of another topic: the present one counts.
                self.ids[partition] = former.get(partition, ids[partition.topic])
            else:
                self.ids[partition] = position.topic_id
                self._next.setdefault(partition, position.offset)

    def _settle(self, consumer: PlacedConsumer, partition: TopicPartition, topic_id: bytes) -> bool:
        """Move the consumer where its position is of another topic, or outside of the log; return
        whether it was moved."""
        read_id = self.ids[partition]
        expected = self._next.get(partition, -1)
        if is_another_topic(read_id, topic_id):
            # Before anything is noted: it may raise, and the whole step is then tried again.
            consumer.seek(partition, EARLIEST)
            self._past.add(read_id)
            # The highest offset that the former topic is known to have had.
            end = self._proved_ends.pop(partition, -1)
            # Also where its log begins later: what it has lost by then was not copied.
            self._next[partition] = 0
            self._jumps.pop(partition, None)
            self._ends.pop(partition, None)
            first = self._acknowledged.pop(partition, expected)
            if first < expected:
                self._name_pending(partition)  # created again twice: one range is kept
                self._pending[partition] = _FormerOffsets(first, expected)
            self._observer.lost(_old_tail(partition, expected, end))
            return True
        offset = self._jumps.get(partition)
        if offset is None:
            return False
        start = consumer.start(partition)
        # Retention has deleted up to the log start; what lies above it is read, not lost.
        if offset > expected:
            offset = min(offset, max(start, expected))
        consumer.seek(partition, offset)
        del self._jumps[partition]
        self._next[partition] = offset
        if offset != expected:
            # A position above the log's end in the same topic: the log was cut (unclean election).
            # With another id it is a new one.
            is_same = NO_TOPIC_ID not in (read_id, topic_id)
            self._observer.lost(_outside(partition, expected, offset, is_same=is_same))
        return True


def _old_tail(partition: TopicPartition, first: int, end: int) -> SourceGap:
    detail = (
        f"the topic was deleted and created again; what lay behind offset {first} of the old one "
        "is gone, the new one is copied from its beginning"
    )
    if first < 0:
        first = end = 0
        detail = (
            "the topic was deleted and created again, and the group's position with it: what was "
            "not read of the old one is not known, the new one is copied from its beginning"
        )
    return SourceGap(partition, first, max(first, end) - 1, EventKind.RECREATED.value, detail)


def _not_delivered(partition: TopicPartition, first: int, end: int) -> SourceGap:
    return SourceGap(
        partition,
        first,
        end - 1,
        EventKind.RECREATED.value,
        "read before the topic was deleted and created again, and not acknowledged by the target "
        "when the partition was given up; some of it may have been delivered",
    )


def _outside(partition: TopicPartition, expected: int, offset: int, *, is_same: bool) -> SourceGap:
    if offset > expected:
        cause, detail = EventKind.RETENTION, "deleted before it was copied"
        return SourceGap(partition, expected, offset - 1, cause.value, detail)
    # What lies below the position was copied; what was above it is unknown.
    cause = EventKind.TRUNCATION if is_same else EventKind.RECREATED
    detail = (
        f"the source log was cut before offset {expected}, it is copied again from offset "
        f"{offset} on"
    )
    return SourceGap(partition, expected, expected - 1, cause.value, detail)
