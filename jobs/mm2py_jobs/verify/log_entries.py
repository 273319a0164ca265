"""One side of a comparison: the records of some ranges of a log in order, decoded only where that
is asked for.

Flow: pieces of ``RangeReader`` -> ``LogSide``: the records of the next batch as bytes (``raw``), or
decoded ones (``entries``). ``pass_alike`` takes what both sides have alike by its bytes, whatever
their batches are: the mirror joins small batches, so those of a copy are seldom those of its
source.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, cast, final

from mm2py.errors import ProtocolError
from mm2py.protocol.compression import decompress
from mm2py.protocol.record_batch import Bytes
from mm2py.protocol.record_bytes import RecordSpan, damaged, read_varint, same, walk
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.verify.digests import SequenceDigest, record_hash


class OffsetRange(NamedTuple):
    """``first <= offset < end``."""

    first: int
    end: int


class LogEntry(NamedTuple):
    """A record: ``body`` are its key, value and headers as the batch has them."""

    offset: int
    timestamp: int
    body: bytes


class Fields(NamedTuple):
    """A body in parts; ``headers`` are their bytes."""

    key: bytes | None
    value: bytes | None
    headers: bytes


_entry: Final = cast(
    "Callable[[type[LogEntry], tuple[int, int, bytes]], LogEntry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] # of any members
)
"""Makes an entry in half the time of its constructor."""

Piece = tuple[OffsetRange, Sequence[LogBatch]]


@final
class RawRecords:
    """The records of one batch that are not taken: ``left`` of them, the next one is number
    ``index`` of the batch."""

    __slots__ = ("_payload", "_position", "batch", "index", "left")

    def __init__(self, batch: LogBatch, wanted: OffsetRange) -> None:
        self.batch = batch
        self.index, self.left = 0, batch.count
        self._payload: Bytes | None = None
        self._position = 0
        if batch.base_offset < wanted.first or wanted.end <= batch.last_offset:
            offsets = [entry.offset for entry in entries_of(batch)]
            self.index = sum(offset < wanted.first for offset in offsets)
            self.left = sum(wanted.first <= offset < wanted.end for offset in offsets)
            self._position = -1

    @property
    def payload(self) -> Bytes:
        """The decompressed records of the whole batch.

        Raises:
            ProtocolError: it is damaged; names the offset of the batch.
        """
        if self._payload is None:
            self._payload = _payload_of(self.batch)
        return self._payload

    @property
    def position(self) -> int:
        """Where the next record is in the payload; raises as ``payload``."""
        if self._position < 0:
            spans = _spans_of(self.batch, self.payload)
            self._position = spans[self.index - 1].end if self.index else 0
        return self._position

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the batch is taken or outside of the range."""
        return self.left == self.batch.count

    def take(self, count: int, position: int) -> None:
        """Take records; the next one is at a position of the payload.

        Raises:
            ProtocolError: bytes follow the last record of the batch.
        """
        self.index += count
        self.left -= count
        self._position = position
        if self.index == self.batch.count and position != len(self.payload):
            raise _of_batch(self.batch, damaged("bytes follow the last record"))

    def untake(self, left: int) -> None:
        """Let the last ``left`` records be those that are not taken."""
        self.index += self.left - left
        self.left = left
        self._position = -1

    def entries(self) -> list[LogEntry]:
        """Decode what is not taken; raises as ``entries_of``."""
        entries = entries_of(self.batch)
        return entries if self.is_whole else entries[self.index : self.index + self.left]


@final
class LogSide:
    """The records of one partition on one cluster; with ``digests`` each record that is read is
    folded into ``digest``."""

    def __init__(self, pieces: AsyncIterator[Piece], *, digests: bool) -> None:
        self._pieces = pieces
        self._batches: deque[RawRecords] = deque()
        self._decoded: deque[RawRecords] = deque()
        """Those that ``entries`` are from, the last records of the first one and all of the
        others."""
        self._decoded_count = 0
        self.entries: deque[LogEntry] = deque()
        """Decoded records that were not taken yet; those of ``raw`` come after them."""
        self.digest: SequenceDigest | None = SequenceDigest() if digests else None
        self.broker_stamped = False
        """Whether the broker stamped any of the records: their timestamps are of the copy's
        time."""

    async def raw(self) -> RawRecords | None:
        """Return the next records as bytes if nothing before them is decoded; they stay. None with
        ``digests``."""
        if self.entries or self.digest is not None or not await self._load():
            return None
        batch = self._batches[0]
        self.broker_stamped = self.broker_stamped or batch.batch.is_log_append
        return batch

    def pass_batch(self) -> None:
        """Take all records that ``raw`` returned."""
        self._batches.popleft()

    def pass_raw(self, count: int, position: int) -> None:
        """Take so many of the records that ``raw`` returned; the next one is at a position of their
        payload.

        Raises:
            ProtocolError: the batch is damaged.
        """
        first = self._batches[0]
        first.take(count, position)
        if not first.left:
            self._batches.popleft()

    def put_back(self) -> None:
        """Let ``raw`` have again what is decoded and not taken."""
        if self.digest is not None:
            return
        left = len(self.entries)
        while left:
            last = self._decoded.pop()
            if last.left > left:
                last.untake(left)
            left -= last.left
            self._batches.appendleft(last)
        self.entries.clear()
        self._decoded.clear()
        self._decoded_count = 0

    async def ensure(self, count: int) -> bool:
        """Decode until there are so many entries; False if the end comes first.

        Raises:
            ProtocolError: a record is damaged.
        """
        while len(self.entries) < count:
            if not await self._load():
                return False
            first = self._batches.popleft()
            self.broker_stamped = self.broker_stamped or first.batch.is_log_append
            self._forget_taken()
            self._decoded.append(first)
            self._decoded_count += first.left
            self.entries += first.entries()
        return True

    def take(self, count: int) -> list[LogEntry]:
        """Take the next entries, which ``ensure`` has decoded."""
        taken = self.pop(count)
        if self.digest is not None:
            self.digest = self.digest.add_all(record_hash(it.timestamp, it.body) for it in taken)
        return taken

    def pop(self, count: int) -> list[LogEntry]:
        """Take the next entries without the digest."""
        entries = self.entries
        return [entries.popleft() for _ in range(count)]

    def _forget_taken(self) -> None:
        while self._decoded and self._decoded_count - self._decoded[0].left >= len(self.entries):
            self._decoded_count -= self._decoded.popleft().left

    async def _load(self) -> bool:
        while not self._batches:
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            offsets, batches = piece
            self._batches += (it for it in (RawRecords(b, offsets) for b in batches) if it.left)
        return True


async def pass_alike(source: LogSide, target: LogSide) -> int:
    """Take the next records that both sides have alike by their bytes, at most to the end of a
    batch; return how many.

    0 where the next ones have to be decoded: they differ, cannot be read, are decoded already, or a
    digest is wanted.

    Raises:
        ProtocolError: a batch is damaged.
        Mm2pyError: a side cannot be read.
    """
    ours = await source.raw()
    theirs = await target.raw() if ours is not None else None
    if ours is None or theirs is None:
        return 0
    one, other = ours.batch, theirs.batch
    if ours.is_whole and theirs.is_whole and _same_bytes(one, other):
        source.pass_batch()
        target.pass_batch()
        return one.count
    stamp, other_stamp = _stamp_of(one), _stamp_of(other)
    untimed = one.is_log_append | other.is_log_append << 1
    if target.broker_stamped:
        stamp, other_stamp, untimed = 0, 0, 3
    count, position, other_position = same(
        ours.payload,
        ours.position,
        stamp,
        theirs.payload,
        theirs.position,
        other_stamp,
        min(ours.left, theirs.left),
        untimed,
    )
    if count:
        source.pass_raw(count, position)
        target.pass_raw(count, other_position)
    return count


def _stamp_of(batch: LogBatch) -> int:
    # With LogAppendTime a broker writes its time as the batch's maximum alone: that counts for each
    # record, whatever its delta is.
    return batch.max_timestamp if batch.is_log_append else batch.base_timestamp


def _same_bytes(one: LogBatch, other: LogBatch) -> bool:
    """Whether two batches have the same records by their bytes; False may be the same all the
    same."""
    return (
        one.count == other.count
        and len(one.data) == len(other.data)
        and one.codec == other.codec
        and not one.is_log_append
        and not other.is_log_append
        and one.base_timestamp == other.base_timestamp
        # Twenty times as fast as the comparison of views, which is byte by byte.
        and bytes(one.payload) == bytes(other.payload)
    )


def pass_equal(one: LogSide, other: LogSide, count: int, *, same_stamps: bool) -> None:
    """Take entries that are equal; where their timestamps are too, each is hashed once for both
    digests."""
    if one.digest is None or other.digest is None or not same_stamps:
        one.take(count)
        other.take(count)
        return
    other.pop(count)
    hashes = [record_hash(it.timestamp, it.body) for it in one.pop(count)]
    one.digest, other.digest = one.digest.add_all(hashes), other.digest.add_all(hashes)


def entries_of(batch: LogBatch) -> list[LogEntry]:
    """Return the records of a batch.

    Raises:
        ProtocolError: one is damaged; names the offset of the batch.
    """
    payload = bytes(_payload_of(batch))
    base, first = batch.base_offset, batch.base_timestamp
    # A converted batch is dense; its runs know where its records really were.
    offsets = [at for start, count in batch.runs for at in range(start, start + count)]
    stamp = batch.max_timestamp if batch.is_log_append else None
    return [
        _entry(
            LogEntry,
            (
                offsets[delta] if offsets else base + delta,
                first + stamp_delta if stamp is None else stamp,
                payload[start:end],
            ),
        )
        for stamp_delta, delta, start, end in _spans_of(batch, payload)
    ]


def _payload_of(batch: LogBatch) -> Bytes:
    try:
        return decompress(batch.codec, batch.payload)
    except ProtocolError as error:
        raise _of_batch(batch, error) from error


def _spans_of(batch: LogBatch, payload: Bytes) -> list[RecordSpan]:
    try:
        return walk(payload, batch.count)
    except ProtocolError as error:
        raise _of_batch(batch, error) from error


def _of_batch(batch: LogBatch, error: ProtocolError) -> ProtocolError:
    return ProtocolError(f"the batch at offset {batch.base_offset}: {error.message}")


def fields_of(body: bytes) -> Fields:
    """Return the parts of a record.

    Raises:
        ProtocolError: it is damaged.
    """
    try:
        key, position = _sized(body, 0)
        value, position = _sized(body, position)
    except IndexError:
        raise damaged("a record is cut off") from None
    return Fields(key, value, body[position:])


def _sized(body: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(body, position)
    return (None, position) if size < 0 else (body[position : position + size], position + size)
