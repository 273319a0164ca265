"""Signing and the choice of the CRC."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from mm2py.errors import FatalError
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import (
    Codec,
    RecordBatch,
    build_batch,
    choose_crc,
    crc32c,
    crc_matches,
)
from mm2py.protocol.records import NewRecord, encode_batch


def foreign_batch() -> bytearray:
    raw = encode_batch([NewRecord(b"k", b"v", (), 9), NewRecord(None, b"w", (), 8)], Codec.GZIP)
    struct.pack_into(">q", raw, 0, 4711)
    struct.pack_into(">i", raw, 12, 99)
    struct.pack_into(">h", raw, 21, 0x7FF0 | Codec.GZIP)
    struct.pack_into(">qhi", raw, 43, 5, 6, 7)
    struct.pack_into(">I", raw, 17, crc32c(memoryview(raw)[21:]))
    return raw


@pytest.mark.parametrize("transactional", [False, True])
def test_sign_makes_a_batch_ours_and_keeps_its_records(transactional: bool) -> None:
    raw = foreign_batch()
    payload = bytes(raw[61:])
    sign(
        memoryview(raw),
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        transactional=transactional,
    )
    assert crc_matches(raw)
    theirs = DefaultRecordBatch(bytes(raw))
    assert theirs.validate_crc()
    assert (theirs.base_offset, struct.unpack_from(">i", raw, 12)[0]) == (0, -1)
    assert struct.unpack_from(">i", raw, 8)[0] == len(raw) - 12
    assert theirs.attributes == Codec.GZIP | (0x10 if transactional else 0)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (1, 2, 3)
    assert raw[61:] == payload
    assert [r.value for r in theirs] == [b"v", b"w"]


def test_a_transactional_batch_without_a_producer_is_never_signed() -> None:
    with pytest.raises(ValueError, match="needs a producer id"):
        sign(
            foreign_batch(), producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=True
        )


def test_crc_mismatch_shows_in_every_byte_behind_it() -> None:
    raw = foreign_batch()
    assert crc_matches(raw)
    for position in (17, 21, 43, 60, len(raw) - 1):
        raw[position] ^= 0x40
        assert not crc_matches(raw)
        raw[position] ^= 0x40


@pytest.mark.parametrize("module", [("fastcrc.crc32", "iscsi"), ("awscrt.checksums", "crc32c")])
def test_both_crc_libraries_give_the_known_answer_without_a_copy(module: tuple[str, str]) -> None:
    crc = choose_crc((module,))
    assert crc(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283


def test_a_missing_or_wrong_crc_library_is_skipped() -> None:
    crc = choose_crc(
        (("no_such_module", "x"), ("fastcrc.crc32", "bzip2"), ("fastcrc.crc32", "iscsi"))
    )
    assert crc(b"123456789") == 0xE3069283


def test_without_any_crc_nothing_is_forwarded() -> None:
    with pytest.raises(FatalError, match=r"fastcrc.crc32 gives a wrong answer.*install fastcrc"):
        choose_crc((("fastcrc.crc32", "bzip2"), ("fastcrc", "no_such_name")))


def test_a_batch_tells_its_size_codec_and_offsets() -> None:
    data = build_batch(
        b"xy", base_offset=5, count=2, base_timestamp=1, max_timestamp=2, attributes=4
    )
    batch = RecordBatch(data, 5, 9, 2, 2, 0, 4, ((5, 2),), None)
    assert (batch.size, batch.codec) == (63, Codec.ZSTD)
    assert repr(batch) == "RecordBatch(offsets=5..9, count=2, size=63)"
    batch.detach()
    assert batch.data is data, "what is not leased is not copied"
