"""The data batches of a log: markers, empty and aborted ones left out, the others as the log has them."""

import struct

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.abort_filter import marker_type
from mm2py.protocol.log_batches import log_batch, walk_log
from mm2py.protocol.record_batch import crc32c
from mm2py.protocol.records import NewRecord, encode_batch

CONTROL, TRANSACTIONAL = 0x20, 0x10
ABORT, COMMIT = 0, 1


def batch(base: int, count: int, *, flags: int = 0, producer: int = -1, key: bytes = b"k") -> bytes:
    data = encode_batch([NewRecord(key, b"%d" % (base + n), timestamp=n) for n in range(count)])
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">h", data, 21, flags)
    struct.pack_into(">q", data, 43, producer)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def marker(base: int, producer: int, kind: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    return batch(base, 1, flags=CONTROL | TRANSACTIONAL, producer=producer, key=key)


def test_markers_and_aborted_batches_are_left_out_and_the_position_passes_them() -> None:
    log = b"".join(
        (
            batch(0, 3),
            batch(3, 2, flags=TRANSACTIONAL, producer=7),
            batch(5, 1, flags=TRANSACTIONAL, producer=8),
            marker(6, 7, ABORT),
            batch(7, 2, flags=TRANSACTIONAL, producer=7),
            marker(9, 8, COMMIT),
            marker(10, 7, COMMIT),
        )
    )
    committed = walk_log(memoryview(log), 0, [(7, 3)])
    assert [it.base_offset for it in committed.batches] == [0, 5, 7]
    assert committed.next_offset == 11
    everything = walk_log(memoryview(log), 0)
    assert [it.base_offset for it in everything.batches] == [0, 3, 5, 7]
    marked = [it for it in walk_log(memoryview(log), 0, markers=True).batches if it.is_marker]
    kinds = [(it.base_offset, marker_type(it.data, it.count)) for it in marked]
    assert kinds == [(6, ABORT), (9, COMMIT), (10, COMMIT)]


def test_an_abort_marker_below_the_wanted_offset_ends_its_span() -> None:
    log = b"".join(
        (
            batch(0, 1, flags=TRANSACTIONAL, producer=7),
            marker(1, 7, ABORT),
            batch(2, 1, flags=TRANSACTIONAL, producer=7),
        )
    )
    assert [it.base_offset for it in walk_log(memoryview(log), 2, [(7, 0)]).batches] == [2]


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    log = batch(0, 3) + batch(3, 3)[:-1]
    walk = walk_log(memoryview(log), 0)
    assert [it.base_offset for it in walk.batches] == [0]
    assert walk.next_offset == 3


def test_a_flipped_byte_is_an_error_that_names_the_offset() -> None:
    damaged = bytearray(batch(40, 2))
    damaged[-1] ^= 1
    with pytest.raises(ProtocolError, match="offset 40 does not match its CRC"):
        walk_log(memoryview(damaged), 40)
    with pytest.raises(ProtocolError, match="no batch of magic 2"):
        log_batch(memoryview(b"abc"))
