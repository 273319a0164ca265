"""Batches as a broker has them in its log and as a reader of a source hands them out, their CRC, and a share in a receive buffer."""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Final

from mm2py.protocol.record_batch import (
    ATTRIBUTES_OFFSET,
    BufferLease,
    Bytes,
    Codec,
    RecordBatch,
    crc32c,
)
from mm2py.protocol.records import NewRecord, encode_batch

_CRC: Final = Struct(">I")
_CRC_OFFSET: Final = 17


def sealed(batch: Bytes) -> bytearray:
    """Return a copy of one batch with the right CRC."""
    data = bytearray(batch)
    _CRC.pack_into(data, _CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return data


LOG_APPEND, TRANSACTIONAL, CONTROL, HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT: Final = 0
COMMIT: Final = 1


def stored_batch(
    base: int,
    count: int = 1,
    *,
    codec: Codec = Codec.NONE,
    flags: int = 0,
    producer: int = -1,
    sequence: int = -1,
    epoch: int = 3,
    key: bytes = b"k",
    pad: int = 0,
) -> bytearray:
    """Return a batch whose values are the offsets of its records, of at least ``pad`` bytes each."""
    values = [(b"%d" % (base + n)).ljust(pad) for n in range(count)]
    rows = [NewRecord(key, value, timestamp=1_000 + n) for n, value in enumerate(values)]
    data = encode_batch(rows, codec)
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 12, epoch)
    data[22] |= flags
    struct.pack_into(">qhi", data, 43, producer, 0 if producer >= 0 else -1, sequence)
    return sealed(data)


def marker(base: int, producer: int, kind: int) -> bytearray:
    """Return the batch that ends a transaction."""
    key = struct.pack(">hh", 0, kind)
    return stored_batch(base, flags=CONTROL | TRANSACTIONAL, producer=producer, key=key)


def empty_batch(base: int, producer: int = -1) -> bytearray:
    """Return a batch without a record, as compaction leaves it."""
    data = stored_batch(base, producer=producer)[:61]
    struct.pack_into(">i", data, 8, 49)
    struct.pack_into(">i", data, 57, 0)
    return sealed(data)


def source_batch(
    offsets: Sequence[int],
    records: Sequence[NewRecord],
    codec: Codec = Codec.NONE,
    *,
    leader_epoch: int = 0,
) -> RecordBatch:
    """Return a batch of records that have these offsets at the source."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((offset, 1))
    data, newest = encode_batch(records, codec), max(it.timestamp for it in records)
    ends, count = (offsets[0], offsets[-1]), len(offsets)
    return RecordBatch(data, *ends, count, newest, leader_epoch, int(codec), tuple(runs), None)


def a_batch(
    first: int,
    count: int = 1,
    *,
    size: int = 100,
    runs: tuple[tuple[int, int], ...] | None = None,
    lease: BufferLease | None = None,
) -> RecordBatch:
    """Return a batch with these offsets whose bytes mean nothing."""
    ends, runs = (first, first + count - 1), runs or ((first, count),)
    return RecordBatch(bytearray(size), *ends, count, 5_000 + first, 0, 0, runs, lease)


class CountedLease:
    """Counts the references to a large receive buffer."""

    held_bytes = 1 << 22

    def __init__(self) -> None:
        self.count = 1

    def retain(self) -> None:
        """Take one more."""
        self.count += 1

    def release(self) -> None:
        """Give one back."""
        self.count -= 1

    def copied(self, size_bytes: int) -> "CountedLease":
        """Return the lease of a copy."""
        return CountedLease()
