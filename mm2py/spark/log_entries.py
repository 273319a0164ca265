"""One side of a comparison: the records of some ranges of a log in order, decoded only where that is asked for.

Flow: pieces of ``RangeReader`` -> ``LogSide``: the next batch as it is (``batch``), or its records (``entries``). A batch that is taken
whole was never decoded.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, cast, final

from mm2py.errors import ProtocolError
from mm2py.protocol.compression import decompress
from mm2py.protocol.log_batches import LogBatch
from mm2py.protocol.record_bytes import damaged, read_varint, walk
from mm2py.spark.digests import SequenceDigest, record_hash

__all__ = [
    "Entry",
    "Fields",
    "LogSide",
    "OffsetRange",
    "entries_of",
    "fields_of",
    "pass_equal",
    "same_bytes",
]


class OffsetRange(NamedTuple):
    """``first <= offset < end``."""

    first: int
    end: int


class Entry(NamedTuple):
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
    "Callable[[type[Entry], tuple[int, int, bytes]], Entry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] # of any members
)
"""Makes an entry in half the time of its constructor."""

Piece = tuple[OffsetRange, Sequence[LogBatch]]


@final
class LogSide:
    """The records of one partition on one cluster; with ``digests`` each record that is read is folded into ``digest``."""

    def __init__(self, pieces: AsyncIterator[Piece], *, digests: bool) -> None:
        self._pieces = pieces
        self._batches: deque[tuple[OffsetRange, LogBatch]] = deque()
        self.entries: deque[Entry] = deque()
        """Decoded records that were not taken yet; the batches of ``batch`` are behind them."""
        self.digest: SequenceDigest | None = SequenceDigest() if digests else None
        self.broker_stamped = False
        """Whether the broker stamped any of the records: their timestamps are of the copy's time."""

    async def batch(self) -> LogBatch | None:
        """Return the next batch if it is wholly inside its range and nothing before it is decoded; it stays."""
        if self.entries or self.digest is not None or not await self._load():
            return None
        wanted, batch = self._batches[0]
        inside = wanted.first <= batch.base_offset and batch.last_offset < wanted.end
        return batch if inside else None

    def pass_batch(self) -> None:
        """Take the batch that ``batch`` returned."""
        self._batches.popleft()

    async def ensure(self, count: int) -> bool:
        """Decode until there are so many entries; False if the end comes first.

        Raises:
            ProtocolError: a record is damaged.
        """
        while len(self.entries) < count:
            if not await self._load():
                return False
            wanted, batch = self._batches.popleft()
            self.broker_stamped = self.broker_stamped or batch.is_log_append
            first, end = wanted
            entries = entries_of(batch)
            if batch.base_offset < first or end <= batch.last_offset:
                entries = [it for it in entries if first <= it.offset < end]
            self.entries += entries
        return True

    def take(self, count: int) -> list[Entry]:
        """Take the next entries, which ``ensure`` has decoded."""
        taken = self.pop(count)
        if self.digest is not None:
            self.digest = self.digest.add_all(record_hash(it.timestamp, it.body) for it in taken)
        return taken

    def pop(self, count: int) -> list[Entry]:
        """Take the next entries without the digest."""
        entries = self.entries
        return [entries.popleft() for _ in range(count)]

    async def _load(self) -> bool:
        while not self._batches:
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            wanted, batches = piece
            self._batches += ((wanted, batch) for batch in batches)
        return True


def pass_equal(one: LogSide, other: LogSide, count: int, *, same_stamps: bool) -> None:
    """Take entries that are equal; where their timestamps are too, each is hashed once for both digests."""
    if one.digest is None or other.digest is None or not same_stamps:
        one.take(count)
        other.take(count)
        return
    other.pop(count)
    hashes = [record_hash(it.timestamp, it.body) for it in one.pop(count)]
    one.digest, other.digest = one.digest.add_all(hashes), other.digest.add_all(hashes)


def entries_of(batch: LogBatch) -> list[Entry]:
    """Return the records of a batch.

    Raises:
        ProtocolError: one is damaged; names the offset of the batch.
    """
    try:
        payload = bytes(decompress(batch.codec, batch.payload))
        spans = walk(payload, batch.count)
    except ProtocolError as error:
        raise ProtocolError(f"the batch at offset {batch.base_offset}: {error.message}") from error
    base, first = batch.base_offset, batch.base_timestamp
    # A converted batch is dense; its runs know where its records really were.
    offsets = [at for start, count in batch.runs for at in range(start, start + count)]
    stamp = batch.max_timestamp if batch.is_log_append else None
    return [
        _entry(
            Entry,
            (
                offsets[delta] if offsets else base + delta,
                first + stamp_delta if stamp is None else stamp,
                payload[start:end],
            ),
        )
        for stamp_delta, delta, start, end in spans
    ]


def same_bytes(one: LogBatch, other: LogBatch) -> bool:
    """Whether two batches have the same records by their bytes; False may be the same all the same."""
    return (
        one.count == other.count
        and one.codec == other.codec
        and not one.is_log_append
        and not other.is_log_append
        and one.base_timestamp == other.base_timestamp
        and not one.runs
        and not other.runs
        and one.payload == other.payload
    )


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
