"""Small records: written by us and read by aiokafka, written by others and read by us."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import Codec, build_batch, crc_matches
from mm2py.protocol.record_bytes import read_varint, varint, walk
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch

ROWS = [
    NewRecord(b"k", b"v", [(b"h", b"1"), (b"h", None)], 1_700_000_000_000),
    NewRecord(None, None, (), 5),
    NewRecord(b"", b"", [(b"", b"")], 1_700_000_000_001),
    NewRecord(b"k" * 70, b"v" * 40_000, (), 1_700_000_000_000),
]


@pytest.mark.parametrize("codec", Codec)
def test_our_batches_are_read_by_another_library(codec: Codec) -> None:
    raw = encode_batch(ROWS, codec)
    theirs = DefaultRecordBatch(bytes(raw))
    assert theirs.validate_crc()
    assert theirs.compression_type == codec
    assert theirs.max_timestamp == 1_700_000_000_001
    assert [
        (r.offset, r.timestamp, r.key, r.value, [(k.encode(), v) for k, v in r.headers])
        for r in theirs
    ] == [(n, r.timestamp, r.key, r.value, list(r.headers)) for n, r in enumerate(ROWS)]


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_another_library_are_read(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), 1, 77, 6, 5, 10**6)
    builder.append(0, 1000, b"k" * 200, b"v" * 200, [("h", b"1")])
    builder.append(1, 900, None, None, [])
    (batch,) = decode_batches(builder.build())
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (0, 1, -1)
    assert (batch.is_transactional, batch.is_control) == (True, False)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 6, 5)
    assert batch.records == (
        Record(0, 1000, b"k" * 200, b"v" * 200, ((b"h", b"1"),)),
        Record(1, 900, None, None),
    )


def test_records_without_a_time_keep_minus_one() -> None:
    (batch,) = decode_batches(encode_batch([NewRecord(b"k", None), NewRecord(None, b"v")]))
    assert [record.timestamp for record in batch.records] == [-1, -1]


def test_header_keys_that_are_not_utf8_survive() -> None:
    headers = ((b"\xff\xfe", b"x"), (b"\xff\xfe", None))
    (batch,) = decode_batches(encode_batch([NewRecord(None, b"v", headers)]))
    assert batch.records[0].headers == headers


def test_several_batches_are_read_and_a_partial_one_is_left() -> None:
    one = encode_batch(ROWS[:1])
    for size in range(len(one)):
        assert len(list(decode_batches(one + one + one[:size]))) == 2


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


def test_a_damaged_batch_raises_and_names_its_offset() -> None:
    raw = encode_batch(ROWS)
    raw[-1] ^= 1
    assert not crc_matches(raw)
    with pytest.raises(ProtocolError, match="wrong CRC at offset 0"):
        list(decode_batches(raw))


def hand_made(record: bytes) -> bytearray:
    return build_batch(record, base_offset=9, count=1, base_timestamp=0, max_timestamp=0)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"\x10\x00\x00\x00\x01\x01\x00\x00\x00", "does not end where its length says"),
        (b"\x0a\x00\x00\x00\x01", "announces 5 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x04", "is cut off"),
        (b"\x0a\x00\x00\x00\x01\x14", "announces 10 bytes"),
        (b"\x0a\x00\x00\x01\x01\x01", "offset delta -1 follows -1"),
        (b"\x0a" + b"\x80" * 12, "longer than 64 bits"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes follow the last record"),
        (b"\x80", "cut off"),
    ],
)
def test_damaged_records_say_what_is_wrong(record: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        list(decode_batches(hand_made(record)))


def test_a_batch_of_an_unknown_codec_or_format_is_refused() -> None:
    raw = build_batch(b"", base_offset=9, count=0, base_timestamp=0, max_timestamp=0, attributes=6)
    with pytest.raises(ProtocolError, match="codec 6 at offset 9"):
        list(decode_batches(raw))
    raw[16] = 3
    with pytest.raises(ProtocolError, match="magic 3"):
        list(decode_batches(raw))


def test_varints_are_javas() -> None:
    assert [varint(n) for n in (0, -1, 1, -64, 64, 2**31 - 1)] == [
        b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80\x01", b"\xfe\xff\xff\xff\x0f",
    ]  # fmt: skip
    assert read_varint(b"\x00\x80\x01", 1) == (64, 3)
    assert walk(b"", 0) == []
