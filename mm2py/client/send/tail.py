"""Recognises in the target's log what a predecessor wrote after the last known copy.

Flow: a lane opens -> its log ends after the last known copy -> the tail is read -> the lane's first
batches are compared with it, in order -> those in the log count as delivered, a batch that is there
in part is cut -> the rest is sent. A record is recognised by its timestamp, key, value and headers,
in any batch with the producer id of the copies; anything else in the tail is another writer's: an
id is stored together with a map that has what the one before it wrote. Where none is stored, the
copies were written in transactions, each with its map: none of the tail is a copy; or a router took
part, and which of the tail are copies of what comes next is not known. The map is written after the
records (``offset_maps``), so after a crash the log may be ahead of it.

Invariants, tests of the same names:

1. Nothing of a tail that is recognised is sent; everything else is.
2. A record is recognised only after its predecessor: order and number of equal records count.
3. Records of another writer in between are skipped and noted, never taken for a copy, whatever is
   in them: the source's record would be lost.
4. Where retention or compaction has taken copies out of the tail, those before its next record are
   known by that record: what the source has before it was copied before it. Nothing is passed over
   that is not followed by such a record.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, Protocol, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import (
    PARTITION_BYTES,
    READ_COMMITTED,
    fetch_partition,
)
from mm2py.client.send.lane import MAX_SEQUENCE, SenderLane, Writer
from mm2py.errors import PartitionError, ProtocolError
from mm2py.protocol.abort_filter import AbortFilter
from mm2py.protocol.compression import decompress
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    TRANSACTIONAL_FLAG,
    Bytes,
    Codec,
    RecordBatch,
)
from mm2py.protocol.record_bytes import walk
from mm2py.protocol.splice import rewrite
from mm2py.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)

AHEAD_BYTES: Final = 256 * 1024 * 1024
"""How far a record is looked for after records of others, those in transactions included; what is
behind that is in doubt."""

COUNTED_BYTES: Final = 32 * 1024 * 1024
"""The same while copies are counted (``behind``), for which all lanes of a broker wait."""

ALIKE: Final = 16
"""Records behind a hole that must be the same on both sides, where there are so many."""

Content = tuple[int, bytes]
"""Timestamp, and key, value and headers in their stored form."""


class Identical(StrEnum):
    """Whether offsets must be the same on both clusters (``offsets.identical``)."""

    REQUIRE = "require"
    """A partition whose offsets cannot be identical fails."""
    PREFER = "prefer"
    """They are if the source has no holes and the target no other writer; otherwise it is
    reported."""
    OFF = "off"


class LogEnd(NamedTuple):
    """End of a target partition's log, its topic's id (zeros before Kafka 2.8), and the producer id
    that writes after it; as ``KeptProducer``.

    ``follows_copies``: no record lies between it and the copies that a position was set past.
    """

    offset: int
    topic_id: bytes
    producer_id: int = NO_PRODUCER_ID
    lasts: bool = True
    follows_copies: bool = False


class KeptProducer(NamedTuple):
    """The stored producer id of a partition's copies (in transactions none), and the target offset
    where it began to write. One that does not last ends with its process."""

    producer_id: int
    began: int
    lasts: bool = True


NO_PRODUCER: Final = KeptProducer(NO_PRODUCER_ID, -1)


class Behind(NamedTuple):
    """How many copies there are behind the known ones; where that is not known, how many there may
    be."""

    records: int
    is_known: bool = True


class CopiedSoFar(Protocol):
    """Known copies of partitions, before their first batch is sent
    (``mm2py.runtime.tasks.offset_maps``)."""

    def target_end(self, source: TopicPartition, topic_id: bytes) -> int:
        """Return the target offset after the newest known copy in the topic with this id, -1 for
        none."""
        ...

    def passed_from(self, source: TopicPartition, topic_id: bytes) -> int:
        """Return the target offset after the copies that a position was set past, -1 for none."""
        ...

    @property
    def identical(self) -> Identical:
        """``offsets.identical``."""
        ...

    def producer(self, source: TopicPartition) -> KeptProducer:
        """Return the producer id that the copies of a partition were last written with."""
        ...

    def opens(self, source: TopicPartition) -> bool:
        """Note that a partition's lane begins; return whether ``count`` is wanted, before
        ``begin``."""
        ...

    def count(self, source: TopicPartition, behind: Behind) -> None:
        """Take how many copies were behind the known ones when the lane began."""
        ...

    def replace_producer(self, source: TopicPartition, producer: KeptProducer) -> Awaitable[None]:
        """Store what the next copies are written with; returns when it is durable."""
        ...

    def begin(self, ends: Mapping[TopicPartition, LogEnd]) -> Awaitable[None]:
        """Store where the target's logs end and who writes after that, by source partition; returns
        when it is durable.

        A log that ends before its newest known copy has lost it.
        """
        ...


class Recognised(NamedTuple):
    """Records of a batch that are in the target's log from ``base_offset`` on."""

    batch: RecordBatch
    base_offset: int


@dataclass(slots=True)
class _Stored:
    """A batch of the tail."""

    base_offset: int
    count: int
    last_offset: int
    producer: tuple[int, int]
    data: Bytes
    gone_before: int
    """Offsets before it that no batch has; markers and transactions have theirs."""
    first: int
    """Offset where the tail begins in it."""

    @property
    def is_append_timed(self) -> bool:
        return bool(HEADER.unpack_from(self.data)[5] & LOG_APPEND_FLAG)

    def is_copy_of(self, batch: RecordBatch) -> bool:
        """Whether the records were forwarded unchanged: the same bytes after the header."""
        # Fast path: equal bytes need no decompression. Header fields that
        # we or the broker write (offset, producer, CRC) are left out.
        is_whole = self.first == self.base_offset
        if not is_whole or self.count != batch.count or len(self.data) != len(batch.data):
            return False
        ours, theirs = HEADER.unpack_from(batch.data), HEADER.unpack_from(self.data)
        # Same codec and first timestamp: record timestamps are deltas to it.
        same = (ours[5] ^ theirs[5]) & CODEC_MASK == 0 and ours[7] == theirs[7]
        return same and memoryview(self.data)[HEADER_BYTES:] == batch.data[HEADER_BYTES:]

    def contents(self) -> list[tuple[int, Content]]:
        """Return target offset and content of each record of the tail."""
        return [
            (self.base_offset + delta, content)
            for delta, content in _contents(self.data, timed=not self.is_append_timed)
            if self.base_offset + delta >= self.first
        ]


@final
class LaneTail:
    """The tail of one target partition, read piece by piece.

    Args:
        target: the partition.
        start: target offset after the newest known copy.
        end: log end offset.
        read: reads the log from a position on.
        kept: of the partition's copies.
    """

    def __init__(
        self,
        target: TopicPartition,
        start: int,
        end: int,
        read: Callable[[int], Awaitable[FetchedPartition]],
        kept: KeptProducer,
    ) -> None:
        self.target, self.start, self.end = target, start, end
        self._read, self._kept = read, kept
        self._position: int = start
        self._stored: deque[_Stored] = deque()
        self._open: deque[tuple[int, Content]] = deque()
        """Remaining records of the batch that was decoded last."""
        self._timed = True
        self.writers: dict[int, Writer] = {}
        """By producer id, the sequence after its last batch here."""
        self.others: dict[int, tuple[int, int]] = {}
        """First and last offset of other writers' records, by producer id."""
        self.recognised = self.skipped = 0
        """Records of ours that were found, and those after the last of them that were not."""
        self._passed_bytes = 0
        """Bytes that were read after the last recognised record."""
        self._markers = 0  # of transactions, and those that fence a producer
        self._opened = NO_PRODUCER_ID  # producer id of what is in ``_open``
        self.is_over = start >= end
        self.has_holes = False
        """Whether records are gone that may have been copies of what comes next."""
        self._next = self._batch_end = start
        """Offset of the next record of ours, if none is gone; end of the last batch that was
        decoded."""
        self._unread_gone = 0
        """Offsets that no batch has, before what is read next."""
        self._gone = 0
        """Records that come next and whose copies are gone."""
        self._offered: list[int] = []
        """Hashes of the records that may be the one behind the hole."""
        self._offered_batches = self._aligned_to = 0

    @property
    def is_aborted(self) -> bool:
        """Whether all that is ours in it was aborted, so that none of it is copied twice."""
        return self._kept.producer_id == NO_PRODUCER_ID

    @property
    def left(self) -> int:
        """How many of its offsets were not recognised, or not looked at."""
        if self._is_cut and not self.has_holes:
            return self.end - (self._open[0][0] if self._open else self._position)
        return self.end - self.start - self.recognised - self._markers

    @property
    def _is_cut(self) -> bool:
        """Whether it is over before its end."""
        is_far = self._passed_bytes > AHEAD_BYTES
        return is_far and bool(self._open or self._stored or self._position < self.end)

    @property
    def is_whole(self) -> bool:
        """Whether it was read to its end, and nothing of it is gone."""
        return self._position >= self.end and not self.has_holes

    @property
    def doubt(self) -> str:
        """Why records that were not recognised may be in the log all the same; empty: they are
        not."""
        if self.has_holes:
            return "retention or compaction of the target removed what a predecessor wrote last"
        text = "others wrote so much behind the last known copy that the rest was not searched"
        return text if self._is_cut else ""

    async def behind(self) -> Behind:
        """Return how many copies are in it; its own place stays as it is.

        Raises:
            FatalServerError: it may not be read.
        """
        position, records, passed_bytes = self.start, 0, 0
        is_known = True
        while position < self.end and passed_bytes <= COUNTED_BYTES:
            fetched = await self._read(position)
            before, position = position, max(position, fetched.log_start_offset)
            gone = position - before
            for header, _ in whole_batches(fetched.records):
                base, last, count = header[0], header[0] + header[6], header[12]
                if last < position or base >= self.end:
                    continue
                first = max(base, position)
                gone += first - position
                position = last + 1
                is_control = header[5] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)
                if is_control or not count or self._is_of_another(header):
                    passed_bytes += header[1]
                    continue
                records, passed_bytes = records + last + 1 - first, 0
                # What is gone of it may have been a copy.
                is_known &= count == last + 1 - base
            if position == before and fetched.high_watermark >= self.end:
                gone, position = self.end - position, self.end
            records, is_known = records + gone, is_known and not gone
        unread = max(0, self.end - position)
        return Behind(min(records + unread, self.end - self.start), is_known and not unread)

    async def hole(self) -> int:
        """Return how many offsets there are before the next record whose records are gone, as far
        as that was not settled."""
        if self._gone or self.is_over or not await self._has_records():
            return 0
        while not self._open:
            stored = self._stored[0]
            # Fewer records than offsets: compaction removed
            # some within the batch, which keeps its range.
            whole = stored.last_offset - stored.base_offset + 1 == stored.count
            if whole and not stored.gone_before and self._next >= self._batch_end:
                return 0
            self._open_next()
            # Of the batch that the tail begins in there may be none behind its start.
            if not await self._has_records():
                return 0
        return self._open[0][0] - self._next

    def align(self, batches: Sequence[RecordBatch], hole: int) -> bool:
        """Look for the record behind a hole in all batches that were offered; return whether that
        is settled."""
        wanted = [self._hash(record[1]) for record in islice(self._open, ALIKE)]
        offsets = [offset for offset, _ in islice(self._open, ALIKE)]
        # A second hole: only the records before it follow each other on the source, too.
        while offsets[-1] - offsets[0] != len(offsets) - 1:
            del offsets[-1], wanted[-1]
        for batch in islice(batches, self._offered_batches, None):
            self._offered_batches += 1
            self._offered += (
                self._hash(content) for _, content in _contents(batch.data, timed=True)
            )
        offered = self._offered
        for at in range(self._aligned_to, min(hole + 1, len(offered))):
            # At the end of what was offered fewer are compared; more may not come for long.
            there = offered[at : at + len(wanted)]
            if there == wanted[: len(there)]:
                self.has_holes = False
                self._settle(at)
                return True
        self._aligned_to = len(offered)
        # At most ``hole`` records of the source were before it, and it is none of these.
        if len(offered) > hole:
            self.give_up()
            return True
        return False

    def give_up(self) -> None:
        """Leave open which records were before the next one of the tail."""
        self.has_holes = True
        self._settle(0)

    def _settle(self, gone: int) -> None:
        self._gone = gone
        self._next = self._open[0][0] - gone
        self._offered, self._offered_batches, self._aligned_to = [], 0, 0

    def _hash(self, content: Content) -> int:
        return hash(content if self._timed else content[1])

    async def compare(self, batch: RecordBatch) -> tuple[list[Recognised], RecordBatch | None]:
        """Return the part of a batch that is in the log, and what is left to send; the batch's
        buffer is not released.

        Raises:
            FatalServerError: it may not be read.
            ProtocolError: the log or the batch is damaged.
        """
        if not self.is_over and not await self._has_records():
            self.is_over = True
        # The tail was compared to its end: everything from here on is new.
        if self.is_over:
            return [], batch
        if self._gone:
            return self._pass_over(batch)
        if not self._open and self._stored[0].is_copy_of(batch):
            stored = self._stored.popleft()
            self.recognised += stored.count
            self._passed_bytes = 0
            self._next = self._batch_end = stored.last_offset + 1
            return [Recognised(batch, stored.base_offset)], None
        return await self._by_record(batch)

    def _pass_over(self, batch: RecordBatch) -> tuple[list[Recognised], RecordBatch | None]:
        """Count records as copied whose copies are gone, from before the tail's next record."""
        records = min(self._gone, batch.count)
        part = part_of(batch, 0, records, self._next)
        self.recognised += records
        self._gone -= records
        self._next += records
        return [part], _behind(batch, records) if records < batch.count else None

    async def _by_record(self, batch: RecordBatch) -> tuple[list[Recognised], RecordBatch | None]:
        offsets: list[int] = []
        contents = _contents(batch.data, timed=True)
        while len(offsets) < len(contents):
            _, content = contents[len(offsets)]
            # The rest of the batch is aligned again before it is compared.
            if offsets and await self.hole():
                break
            offset = await self._find(content)
            if offset < 0:
                self.is_over = True
                break
            offsets.append(offset)
        self.recognised += len(offsets)
        parts = [part_of(batch, first, count, base) for first, count, base in _runs(offsets)]
        if not offsets:
            return parts, batch
        return parts, _behind(batch, len(offsets)) if len(offsets) < len(contents) else None

    async def _find(self, content: Content) -> int:
        """Return the offset of the next record with this content, -1 for none; skip the records
        before it."""
        while True:
            while self._open:
                offset, record = self._open.popleft()
                # A gap within a batch: the record may have been a copy that compaction took.
                self.has_holes |= offset != self._next
                self._next = offset + 1
                # With message.timestamp.type=LogAppendTime
                # the broker has overwritten the timestamps.
                if record[1] == content[1] and (record[0] == content[0] or not self._timed):
                    self._passed_bytes = self.skipped = 0
                    return offset
                self.skipped += 1
                first, _ = self.others.get(self._opened, (offset, offset))
                self.others[self._opened] = first, offset
            if not await self._has_records():
                return -1
            self._open_next()

    def _open_next(self) -> None:
        stored = self._stored.popleft()
        self._passed_bytes += len(stored.data)
        self._timed, self._opened = not stored.is_append_timed, stored.producer[0]
        gone = stored.gone_before + max(0, self._batch_end - self._next)
        self._next, self._batch_end = stored.first - gone, stored.last_offset + 1
        self._open.extend(stored.contents())

    async def _has_records(self) -> bool:
        """Read on until there is a record; False at the end, and where nothing of ours came for
        long."""
        while (
            not self._open
            and not self._stored
            and self._position < self.end
            # A bound: on a topic with other writers the whole log might be foreign.
            and self._passed_bytes <= AHEAD_BYTES
        ):
            fetched = await self._read(self._position)
            # Records that retention deleted meanwhile cannot be compared.
            self._unread_gone += max(0, fetched.log_start_offset - self._position)
            before = self._position = max(self._position, fetched.log_start_offset)
            self._take(fetched.records)
            if self._position == before and fetched.high_watermark >= self.end:
                self._position, self.has_holes = self.end, True  # compacted away up to the end
            # All of its end is gone, but for what is no copy: a marker.
            self.has_holes |= self._position >= self.end and self._unread_gone > 0
        return bool(self._open or self._stored) and self._passed_bytes <= AHEAD_BYTES

    def _take(self, record_set: Bytes | None) -> None:
        for fields, data in whole_batches(record_set):
            last, attributes, count = fields[0] + fields[6], fields[5], fields[12]
            # A fetch from the middle of a batch returns it whole.
            if last >= self._position and fields[0] < self.end:
                first = max(fields[0], self._position)
                self._unread_gone += first - self._position
                # A transaction of ours includes its map: after the
                # map's end a transactional batch is aborted or foreign.
                if attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG) or not count:
                    self._passed_bytes += len(data)
                    self._markers += bool(attributes & CONTROL_FLAG)
                elif self._is_of_another(fields):
                    begun, _ = self.others.get(fields[9], (fields[0], last))
                    self.others[fields[9]] = begun, last
                    self._passed_bytes += len(data)
                else:
                    self.writers[fields[9]] = _writer(fields)
                    producer = fields[9], fields[10]
                    gone, self._unread_gone = self._unread_gone, 0
                    stored = _Stored(fields[0], count, last, producer, data, gone, first)
                    self._stored.append(stored)
                self._position = last + 1

    def _is_of_another(self, header: Sequence[int]) -> bool:
        """Whether a batch is another writer's: equal contents do not make it a copy."""
        # Clients without idempotence are no mirror.
        return header[9] != self._kept.producer_id or header[9] == NO_PRODUCER_ID


# ---- records


def not_identical(lane: SenderLane, cause: str) -> PartitionError:
    """Return the error of a partition whose offsets cannot be the same on both clusters."""
    return PartitionError(
        f"offsets.identical=require: {cause}, so {lane.target} on the target has other offsets",
        topic=lane.source.topic,
        partition=lane.source.partition,
        remedy="set offsets.identical=prefer to copy it with other offsets, which the offset map "
        "translates",
    )


async def producer_at(cluster: Cluster, tp: TopicPartition, offset: int) -> int:
    """Return the producer id of the batch at an offset; none too where it was compacted away.

    Raises:
        RetriableError: the log cannot be read now.
        FatalServerError: it may not be read, or does not have this offset any more.
    """
    fetched = await fetch_partition(cluster, tp, offset, max_bytes=HEADER_BYTES)
    writer = writer_of(fetched, offset)
    return NO_PRODUCER_ID if writer is None else writer.producer_id


async def has_no_record(cluster: Cluster, tp: TopicPartition, at: int, end: int) -> bool:
    """Whether a log has markers and aborted batches alone from one offset to another, and nothing
    of it is gone.

    Raises:
        RetriableError: it cannot be read now.
        FatalServerError: it may not be read, or its beginning was deleted.
    """
    max_bytes = 1
    while at < end:
        fetched = await fetch_partition(
            cluster, tp, at, max_bytes=max_bytes, isolation_level=READ_COMMITTED
        )
        aborts, before = AbortFilter(fetched.aborted), at
        for header, _ in whole_batches(fetched.records):
            base, last, producer_id = header[0], header[0] + header[6], header[9]
            aborts.enter(base)
            is_control = header[5] & CONTROL_FLAG
            if is_control:
                aborts.ended(producer_id)
            if last < at:
                continue
            is_aborted = header[5] & TRANSACTIONAL_FLAG and aborts.covers(producer_id)
            if base > at or not (is_control or is_aborted):
                return False
            at = last + 1
        if at == before:  # the rest is of a transaction that is open
            return False
        # What another program copied is the first thing there: one batch shows it.
        max_bytes = PARTITION_BYTES
    return True


def writer_of(fetched: FetchedPartition, offset: int) -> Writer | None:
    """Return the producer of the batch at an offset; None where it was compacted away."""
    view = memoryview(fetched.records or b"")
    at = 0
    while len(view) - at >= HEADER_BYTES:
        fields = HEADER.unpack_from(view, at)
        if fields[0] <= offset <= fields[0] + fields[6]:
            return _writer(fields)
        at += fields[1] + 12
    return None


def whole_batches(record_set: Bytes | None) -> Iterator[tuple[Sequence[int], memoryview]]:
    """Return the header fields and the bytes of the whole batches of an answer: brokers cut the
    last one at the limit (KIP-74)."""
    view, at = memoryview(record_set or b""), 0
    while len(view) - at >= HEADER_BYTES:
        fields = HEADER.unpack_from(view, at)
        # The length field counts what is behind base offset and length.
        begin, at = at, at + fields[1] + 12
        if at > len(view):
            return
        yield fields, view[begin:at]


def _writer(fields: Sequence[int]) -> Writer:
    """Return the producer of the batch with these header fields."""
    return Writer(fields[9], fields[10], (fields[11] + fields[6] + 1) & MAX_SEQUENCE)


def _contents(data: Bytes, *, timed: bool) -> list[tuple[int, Content]]:
    """Return offset delta and content of each record of one batch."""
    fields = HEADER.unpack_from(data)
    payload = decompress(Codec(fields[5] & CODEC_MASK), memoryview(data)[HEADER_BYTES:])
    base = fields[7] if timed else 0
    return [
        (span.offset_delta, (base + span.timestamp_delta, bytes(payload[span.start : span.end])))
        for span in walk(payload, fields[12])
    ]


def _runs(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (index of the first record, records, first offset) per stretch without a hole."""
    runs: list[tuple[int, int, int]] = []
    for index, offset in enumerate(offsets):
        if runs and offset == runs[-1][2] + runs[-1][1]:
            first, count, base = runs[-1]
            runs[-1] = first, count + 1, base
        else:
            runs.append((index, 1, offset))
    return runs


def _sources(batch: RecordBatch, first: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of source offsets of ``count`` records from index ``first`` on."""
    runs: list[tuple[int, int]] = []
    for source, records in batch.runs:
        begin, end = max(first, 0), min(first + count, records)
        if begin < end:
            runs.append((source + begin, end - begin))
        first -= records
    return tuple(runs)


def part_of(batch: RecordBatch, first: int, count: int, base_offset: int) -> Recognised:
    """Return a stretch of a batch's records, without their bytes."""
    runs = _sources(batch, first, count)
    last = runs[-1][0] + runs[-1][1] - 1
    part = RecordBatch(
        bytearray(),
        runs[0][0],
        last,
        count,
        batch.max_timestamp,
        batch.leader_epoch,
        batch.attributes,
        runs,
        None,
    )
    return Recognised(part, base_offset)


def _behind(batch: RecordBatch, records: int) -> RecordBatch:
    """Return a batch without the first ``records`` records."""
    contents = _contents(batch.data, timed=True)
    base = HEADER.unpack_from(batch.data)[0]
    cut = rewrite(batch.data, base + contents[records][0])
    if cut is None:
        raise ProtocolError("a batch could not be cut behind the records that were copied")
    runs = _sources(batch, records, batch.count - records)
    return RecordBatch(
        cut.data,
        runs[0][0],
        batch.last_offset,
        batch.count - records,
        cut.max_timestamp,
        batch.leader_epoch,
        cut.attributes,
        runs,
        None,
    )
