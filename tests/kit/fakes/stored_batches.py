"""Batches as a broker has them in its log: with offsets, an epoch, flags and a producer."""

import struct
from typing import Final

from mm2py.protocol.record_batch import Codec
from mm2py.protocol.records import NewRecord, encode_batch
from tests.kit.fakes.seal import sealed

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
