"""Starting points of new lanes: after what predecessors wrote, under their producer id.

Flow: lanes of one broker with the ends of their logs -> known earlier copies (``CopiedSoFar``) ->
``LaneBeginning``, or a ``LaneTail`` whose records are compared with the lane's first batches ->
``LaneBeginning``.

A predecessor may have been killed, frozen or cut off, and a request of it may reach the log late.
Its successor continues the sequences of the same producer id where the log shows them. So for the
broker a late batch is a duplicate, or out of order; or it is in the log first: then the successor's
batch is refused, and the log is read again.

Invariants (the model is tests/property/test_copy_continues.py):

1. The producer id of a partition is durable before its first batch is sent; one that ends with its
   process, too: a successor knows the copies by it.
2. A producer id is continued only after its own last batch, read from the log, or where it began
   and wrote nothing; otherwise the process's own new id is used.
3. It is used with the epoch of that batch: under a new epoch a late batch of the old one would not
   collide.
4. Transactions have another producer id, with which nothing collides: the stored one is fenced on
   the partition before its log is read. Where that is not allowed, what is sent first is reported
   as possibly doubled. (Java fences transactional ids alone, KIP-618.)
5. So it is where each task has its own producer id (``offsets.identical=off``) and the one before
   did not end in order: then none is stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin, ListedOffset
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.fetch.partition_fetch import PartitionReads
from mm2py.client.send.lane import MAX_EPOCH, LaneState, SenderLane, Writer
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.tail import (
    NO_PRODUCER,
    Behind,
    CopiedSoFar,
    Identical,
    KeptProducer,
    LaneTail,
    LogEnd,
    has_no_record,
    writer_of,
)
from mm2py.clock import Clock
from mm2py.errors import (
    FatalServerError,
    Mm2pyError,
    RetriableError,
    ServerError,
    UnsupportedVersionError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import EpochQuery, named_id
from mm2py.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNT_S: Final = 10.0
"""How long the copies behind the known ones are counted; the lanes of the same broker wait."""

MORE_S: Final = 5.0
"""How long a lane waits for more records of the source where the tail of its log has a hole."""


FENCE_EPOCH: Final = MAX_EPOCH
"""Of a marker that fences a producer id without transactions: nothing is sent under a later one."""


class OtherContentsError(Mm2pyError):
    """A predecessor's last records are none of those that come next: the source has lost them, or
    they are the same records, which transforms have changed in another way."""

    def __init__(self) -> None:
        super().__init__(
            "what a predecessor wrote last has other contents than what comes next: transforms "
            "were changed, or are not deterministic"
        )


class LaneBeginning(NamedTuple):
    """Start of a lane: the end of its log, and the producer that it continues, None for its own; as
    ``LogEnd``."""

    log_end: int
    writer: Writer | None = None
    follows_copies: bool = False


@final
class LaneResume:
    """Finds the beginnings of the lanes of one Sender."""

    def __init__(
        self, cluster: Cluster, copied: CopiedSoFar, *, clock: Clock, owner: LaneOwner
    ) -> None:
        self._cluster, self._copied = cluster, copied
        self._clock, self._owner = clock, owner
        self._admin = Admin(cluster)
        self._reads = PartitionReads(cluster, owner.spawn)
        self._tails: dict[TopicPartition, asyncio.Event] = {}
        """Lanes whose first batches are being compared with the log; the event is set when more
        were offered."""
        self._unfenced: dict[TopicPartition, Mm2pyError] = {}
        """Partitions whose former producer may still write, and why (4)."""

    @property
    def identical(self) -> Identical:
        """``offsets.identical``."""
        return self._copied.identical

    def offered(self, lane: SenderLane) -> None:
        """Note that a lane in OPENING got more batches."""
        more = self._tails.get(lane.target)
        if more is not None:
            more.set()

    def needs_queue(self, lane: SenderLane) -> bool:
        """Whether its first batches are compared with the log, or must begin at the log end."""
        return lane.target in self._tails or self.identical is Identical.REQUIRE

    async def look(
        self, node_id: int, lanes: Sequence[SenderLane], ends: Mapping[TopicPartition, ListedOffset]
    ) -> dict[SenderLane, LaneBeginning | LaneTail | Mm2pyError]:
        """Return, and make durable, where each lane begins; or what has to be compared first, or an
        error of this lane alone.

        Raises:
            RetriableError: the broker does not answer, or the offset map cannot be written now.
        """
        readable = [lane for lane in lanes if ends[lane.target].error is None]
        # Before the logs are read (4).
        beginnings = dict[SenderLane, LaneBeginning | LaneTail | Mm2pyError](
            await self._fence(node_id, readable)
        )
        readable = [lane for lane in readable if lane not in beginnings]
        self._note_unfenced(readable)
        ids = {lane: self._topic_id(lane) for lane in readable}
        known = {lane: self._copied.target_end(lane.source, ids[lane]) for lane in readable}
        log_ends = await self._log_ends(node_id, [lane for lane in readable if known[lane] >= 0])
        await self._leave_unreadable(lanes, ends)
        # A stored id is sent under again, so it must be known as a mirror's, too.
        # Loop suppression may have been enabled after a predecessor got the id.
        for again in {self._continued(lane).producer_id for lane in readable} - {NO_PRODUCER_ID}:
            await self._owner.announce(again)
        for lane in readable:
            end = log_ends.get(lane, ends[lane.target].offset)
            if isinstance(end, ServerError):
                beginnings[lane] = end
            # The map is written after the records: up to a
            # map's interval of copies lies behind its end.
            elif 0 <= known[lane] < end:
                ours = self._copied.producer(lane.source)
                read = partial(self._read, lane.target)
                beginnings[lane] = LaneTail(lane.target, known[lane], end, read, ours)
            else:
                beginnings[lane] = LaneBeginning(end)
        begun = [
            lane for lane, beginning in beginnings.items() if isinstance(beginning, LaneBeginning)
        ]
        found = await asyncio.gather(*(self._beginning(lane, beginnings[lane]) for lane in begun))
        beginnings |= zip(begun, found, strict=True)
        await self._count(lanes, ends, beginnings)
        # One write for all lanes of the broker, before any of them sends (1).
        await self._copied.begin(
            {
                lane.source: self._noted_end(lane, beginning, ids[lane])
                for lane, beginning in beginnings.items()
                if not isinstance(beginning, Mm2pyError)
            }
        )
        for lane in begun:
            if isinstance(beginnings[lane], LaneBeginning):
                self._doubt_late(lane)
        return beginnings

    def _note_unfenced(self, lanes: Sequence[SenderLane]) -> None:
        """Note the lanes whose former producer may still write, and has another id than the next
        one (5)."""
        for lane in lanes:
            kept = self._copied.producer(lane.source)
            if not lane.transactional and kept.producer_id != NO_PRODUCER_ID and not kept.lasts:
                self._unfenced[lane.target] = Mm2pyError("its producer id was its own")

    async def _count(
        self,
        lanes: Sequence[SenderLane],
        ends: Mapping[TopicPartition, ListedOffset],
        beginnings: dict[SenderLane, LaneBeginning | LaneTail | Mm2pyError],
    ) -> None:
        """Say of lanes that begin, where that is asked, how many copies are behind the known
        ones."""
        for lane in lanes:
            beginning = beginnings.get(lane)
            begins = _may_begin(ends[lane.target]) and not isinstance(beginning, Mm2pyError)
            if not begins or not self._copied.opens(lane.source):
                continue
            try:
                async with asyncio.timeout(COUNT_S):
                    behind = Behind(0, is_known=beginning is not None)
                    if isinstance(beginning, LaneTail):
                        behind = await beginning.behind()
            except FatalServerError:
                behind = Behind(0, is_known=False)
            except TimeoutError:
                text = f"the end of the log of {lane.target} cannot be read now"
                beginnings[lane] = RetriableError(text)
                continue
            self._copied.count(lane.source, behind)

    async def _beginning(
        self, lane: SenderLane, beginning: LaneBeginning | LaneTail | Mm2pyError
    ) -> LaneBeginning | Mm2pyError:
        """Return a beginning with its writer, or why that is not known now: the other lanes do not
        wait for it."""
        end = _end_of(beginning)
        try:
            writer = await self._writer_before(lane, end)
            return LaneBeginning(end, writer, await self._follows_copies(lane, end))
        except Mm2pyError as error:
            return error

    async def _follows_copies(self, lane: SenderLane, end: int) -> bool:
        """As ``LogEnd``: exactly once, the commit of the last copies lies between. What cannot be
        read in time may be a record."""
        start = self._copied.passed_from(lane.source, self._topic_id(lane))
        if not 0 <= start < end:
            return False
        try:
            async with asyncio.timeout(COUNT_S):
                return await has_no_record(self._cluster, lane.target, start, end)
        except (FatalServerError, TimeoutError):
            return False

    async def compare(self, lane: SenderLane, tail: LaneTail) -> LaneBeginning:
        """Compare a lane's first batches with the tail of its log; return where it begins after
        that.

        Raises:
            ProtocolError: the tail or a batch is damaged.
        """
        more = self._tails[lane.target] = asyncio.Event()
        try:
            while lane.state is LaneState.OPENING and not tail.is_over:
                if not lane.queue:
                    more.clear()
                    await more.wait()
                    continue
                await self._compare_first(lane, tail)
        finally:
            del self._tails[lane.target]
        if tail.recognised:
            log.info(
                "records of a predecessor were found in the target's log partition=%s records=%d",
                lane.target,
                tail.recognised,
            )
        kept = self._copied.producer(lane.source).producer_id
        others = {} if self.identical is Identical.OFF else tail.others
        for producer_id, (first, last) in others.items():
            if producer_id != kept:  # else copies of what the source has no more
                # Without a stored id (a router took part, or transactions) copies are among them.
                ours = kept == NO_PRODUCER_ID
                await self._owner.name_writer(
                    lane.target, producer_id, first, last, may_be_own=ours
                )
        continued = self._continued(lane)
        writer = tail.writers.get(continued.producer_id)  # none is without an id
        began_here = continued.producer_id != NO_PRODUCER_ID and continued.began >= tail.start
        if writer is None and began_here and tail.is_whole:
            writer = Writer(continued.producer_id, 0, 0)  # as ``_writer_before``
        if writer is None:
            writer = await self._writer_behind(lane, tail.start)
        # The stored id was replaced or never wrote here: ours is stored before the first batch (1).
        if writer is None:
            await self._begin_anew(lane, tail.end)
        self._doubt_late(lane)
        return LaneBeginning(tail.end, writer)

    async def _compare_first(self, lane: SenderLane, tail: LaneTail) -> None:
        batch = lane.queue[0][1]
        try:
            if hole := await tail.hole():
                await self._align(lane, tail, hole)
            parts, rest = await tail.compare(batch)
        except FatalServerError as error:
            # The topic may be written but not read: whether a predecessor wrote this is unknowable.
            self._doubt(lane, tail, batch, error)
            tail.is_over = True
            return
        if lane.queue and lane.queue[0][1] is batch:  # else the lane was abandoned meanwhile
            if rest is not None and tail.is_over and (cause := tail.doubt):
                self._doubt(lane, tail, rest, Mm2pyError(cause))
            elif rest is not None and tail.is_over and tail.skipped:
                self._doubt(lane, tail, rest, OtherContentsError())
            self._owner.recognised(lane, parts, rest)

    def _doubt(
        self, lane: SenderLane, tail: LaneTail, first: RecordBatch, cause: Exception
    ) -> None:
        """Report as many records from a batch on as the rest of the tail may have had; of those not
        read yet the dense range."""
        if tail.is_aborted:
            return
        left, last = tail.left - first.count, first.last_offset
        for _, batch in islice(lane.queue, 1, None):
            if left <= 0:
                break
            left, last = left - batch.count, batch.last_offset
        self._owner.doubted(lane.source, first.runs[0][0], last + max(0, left), cause)

    async def _align(self, lane: SenderLane, tail: LaneTail, hole: int) -> None:
        """Look among the lane's batches, and those that come soon, for the record behind a hole of
        the tail."""
        more = self._tails[lane.target]
        while lane.state is LaneState.OPENING and lane.queue:
            more.clear()
            if tail.align([batch for _, batch in lane.queue], hole):
                return
            try:
                async with asyncio.timeout(MORE_S):
                    await more.wait()
            except TimeoutError:
                break  # the source has no more, or the buffer is full
        tail.give_up()

    # ---- producers

    async def _fence(
        self, node_id: int, lanes: Sequence[SenderLane]
    ) -> Mapping[SenderLane, Mm2pyError]:
        """Let nothing more arrive of those that wrote without transactions what these lanes
        continue with them (4); return the lanes for which that is not known now."""
        former = {
            lane.target: producer_id
            for lane in lanes
            if lane.transactional
            and (producer_id := self._copied.producer(lane.source).producer_id) != NO_PRODUCER_ID
        }
        if not former:
            return {}
        connection = await self._cluster.connection(node_id, ADMIN)
        causes: dict[TopicPartition, Mm2pyError] = {}
        try:
            for it in await connection.call(messages.abort_markers(former, FENCE_EPOCH)):
                target = TopicPartition(it.topic, it.partition)
                if it.error_code:
                    causes[target] = codes.server_error(it.error_code, f"marker in {target}")
        except UnsupportedVersionError as error:
            causes |= dict.fromkeys(former, error)
        later: dict[SenderLane, Mm2pyError] = {}
        for lane in lanes:
            cause = causes.get(lane.target)
            self._unfenced.pop(lane.target, None)
            if isinstance(cause, RetriableError):
                self._cluster.leader_moved(lane.target)
                later[lane] = cause
            elif cause is not None:
                self._unfenced[lane.target] = cause
        return later

    def _doubt_late(self, lane: SenderLane) -> None:
        """Report what is sent first where a former producer may still write it, too (4)."""
        cause = self._unfenced.pop(lane.target, None)
        if cause is not None and lane.queue:
            first, last = lane.queue[0][1].runs[0][0], lane.queue[-1][1].last_offset
            text = "what a former task sent last may arrive late, it cannot be refused"
            self._owner.doubted(lane.source, first, last, Mm2pyError(f"{text}: {cause}"))

    async def _leave_unreadable(
        self, lanes: Sequence[SenderLane], ends: Mapping[TopicPartition, ListedOffset]
    ) -> None:
        """Store the own id of lanes that are opened without Describe on their topic, where no other
        can be continued."""
        blind = [
            it for it in lanes if ends[it.target].error is not None and _may_begin(ends[it.target])
        ]
        ids = {it: _own(it) for it in blind}
        # The first write has most of them: the others find nothing to write.
        await asyncio.gather(
            *(
                self._copied.replace_producer(it.source, KeptProducer(own, -1, lasts=False))
                for it, own in ids.items()
                if self._copied.producer(it.source).producer_id != own
            )
        )

    def _continued(self, lane: SenderLane) -> KeptProducer:
        """Return the stored id where a successor continues its sequences."""
        kept = self._copied.producer(lane.source)
        return kept if kept.lasts and self.identical is not Identical.OFF else NO_PRODUCER

    def _noted_end(
        self, lane: SenderLane, beginning: LaneBeginning | LaneTail, topic_id: bytes
    ) -> LogEnd:
        """Return where a log ends, with the id to store; a tail may still show that the stored one
        continues."""
        end = _end_of(beginning)
        if isinstance(beginning, LaneTail):
            kept = self._copied.producer(lane.source)
            return LogEnd(end, topic_id, kept.producer_id, kept.lasts)
        producer_id, lasts = _own(lane), self.identical is not Identical.OFF
        if beginning.writer is not None:
            producer_id, lasts = beginning.writer.producer_id, True
        return LogEnd(end, topic_id, producer_id, lasts, beginning.follows_copies)

    async def _writer_before(self, lane: SenderLane, end: int) -> Writer | None:
        """Return the partition's producer if the batch before ``end`` is its own, or it wrote
        nothing yet; else None.

        Raises:
            Mm2pyError: the log cannot be read now.
        """
        producer_id, began, _ = self._continued(lane)
        # It wrote nothing yet: its first sequence is 0,
        # as a late first batch of the predecessor has.
        if producer_id != NO_PRODUCER_ID and end == began:
            return Writer(producer_id, 0, 0)
        if producer_id == NO_PRODUCER_ID or end <= 0:
            return None
        try:
            fetched = await self._reads.read(lane.target, end - 1)
        except FatalServerError:
            return None  # deleted, or it may not be read
        writer = writer_of(fetched, end - 1)
        # Another writer was last: our own sequence before
        # it is not known without reading on, so a new id.
        return writer if writer is not None and writer.producer_id == producer_id else None

    async def _writer_behind(self, lane: SenderLane, end: int) -> Writer | None:
        """As ``_writer_before``, retrying without end."""
        return await self._patiently(lane.target, lambda: self._writer_before(lane, end))

    async def _begin_anew(self, lane: SenderLane, end: int) -> None:
        """Store the lane's own producer id, retrying without end."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while lane.state is LaneState.OPENING:
            try:
                log_end = self._noted_end(lane, LaneBeginning(end), self._topic_id(lane))
                await self._copied.begin({lane.source: log_end})
            except Mm2pyError as error:
                self._owner.stalled(lane, error)
                await self._clock.sleep(backoff.next_s())
            else:
                return

    def _topic_id(self, lane: SenderLane) -> bytes:
        topic = lane.target.topic
        return named_id(topic, self._cluster.known_topic_id(topic))

    # ---- logs

    async def _log_ends(
        self, node_id: int, lanes: Sequence[SenderLane]
    ) -> dict[SenderLane, int | ServerError]:
        """Return log end offsets: a predecessor's batch may be above the high watermark."""
        leaders = {lane: self._cluster.known_leader(lane.target) for lane in lanes}
        queries = [
            EpochQuery(lane.target.topic, lane.target.partition, leader.epoch, leader.epoch)
            for lane, leader in leaders.items()
            if leader is not None
        ]
        if not queries:
            return {}
        connection = await self._cluster.connection(node_id, ADMIN)
        try:
            answers = await connection.call(messages.offset_for_leader_epoch(queries))
        except UnsupportedVersionError:
            return {}  # brokers before 2.0: only offsets below the high watermark can be read
        by_target = {TopicPartition(answer.topic, answer.partition): answer for answer in answers}
        log_ends: dict[SenderLane, int | ServerError] = {}
        for lane in lanes:
            end = by_target.get(lane.target)
            if end is not None and not end.error_code and end.end_offset >= 0:
                log_ends[lane] = end.end_offset
                continue
            # For an unknown epoch the result is -1 without an error: handled like a moved leader.
            self._cluster.leader_moved(lane.target)
            code = (
                end.error_code if end is not None and end.error_code else codes.FENCED_LEADER_EPOCH
            )
            log_ends[lane] = codes.server_error(code, f"log end of {lane.target}")
        return log_ends

    async def _read(self, tp: TopicPartition, position: int) -> FetchedPartition:
        """Read a piece of a target's log, retrying without end."""
        return await self._patiently(tp, lambda: self._read_once(tp, position))

    async def _patiently(self, tp: TopicPartition, read: Callable[[], Awaitable[T]]) -> T:
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while True:
            try:
                return await read()
            except FatalServerError:
                raise
            except Mm2pyError as error:
                log.debug("log of %s cannot be read yet cause=%s", tp, error)
                await self._clock.sleep(backoff.next_s())

    async def _read_once(self, tp: TopicPartition, position: int) -> FetchedPartition:
        try:
            return await self._reads.read(tp, position)
        except FatalServerError as error:
            if error.code != codes.OFFSET_OUT_OF_RANGE:
                raise
            start = (await self._admin.log_starts([tp])).get(tp, -1)
            # The position is above the log's end: the log was cut, which the caller decides about.
            if start <= position:
                raise
            return await self._reads.read(tp, start)  # retention has taken what was before it


def _may_begin(end: ListedOffset) -> bool:
    """Whether a lane can be opened: Write may be granted without Describe."""
    return end.error is None or end.error.code == codes.TOPIC_AUTHORIZATION_FAILED


def _own(lane: SenderLane) -> int:
    """Return the id to store of a lane that continues none: records of a transaction that was not
    committed with its map are aborted."""
    return NO_PRODUCER_ID if lane.transactional else lane.producer_id


def _end_of(beginning: LaneBeginning | LaneTail | Mm2pyError) -> int:
    if isinstance(beginning, LaneTail):
        return beginning.end
    assert isinstance(beginning, LaneBeginning)
    return beginning.log_end
