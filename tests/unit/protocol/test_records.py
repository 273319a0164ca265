"""Records and batches: written by us and read by aiokafka, written by others and read by us."""

import random
import struct

import cramjam
import pytest
from aiokafka import codec as theirs
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from mm2py.errors import FatalError, ProtocolError
from mm2py.protocol.abort_filter import marker_type
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.record_batch import (
    Codec,
    RecordBatch,
    build_batch,
    choose_crc,
    crc_matches,
)
from mm2py.protocol.record_bytes import read_varint, varint, walk
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch
from mm2py_jobs.log.log_batches import log_batch, walk_log
from tests.kit.fakes.batches import ABORT, COMMIT, TRANSACTIONAL, marker, sealed, stored_batch

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


def foreign_batch() -> bytearray:
    raw = encode_batch([NewRecord(b"k", b"v", (), 9), NewRecord(None, b"w", (), 8)], Codec.GZIP)
    struct.pack_into(">q", raw, 0, 4711)
    struct.pack_into(">i", raw, 12, 99)
    struct.pack_into(">h", raw, 21, 0x7FF0 | Codec.GZIP)
    struct.pack_into(">qhi", raw, 43, 5, 6, 7)
    return sealed(raw)


@pytest.mark.parametrize("transactional", [False, True])
def test_sign_makes_a_batch_ours_and_keeps_its_records(transactional: bool) -> None:
    raw = foreign_batch()
    payload = bytes(raw[61:])
    ours = {"producer_id": 1, "producer_epoch": 2, "base_sequence": 3}
    sign(memoryview(raw), **ours, transactional=transactional)
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


RNG = random.Random(3)
SAMPLES = [b"x", b"abc" * 40_000, RNG.randbytes(100_000), b""]
LIBRARY = {
    Codec.GZIP: (theirs.gzip_decode, theirs.gzip_encode),
    Codec.SNAPPY: (theirs.snappy_decode, theirs.snappy_encode),
    Codec.LZ4: (theirs.lz4_decode, theirs.lz4_encode),
    Codec.ZSTD: (theirs.zstd_decode, theirs.zstd_encode),
}


@pytest.mark.parametrize("codec", LIBRARY)
@pytest.mark.parametrize("sample", SAMPLES)
def test_payloads_go_both_ways_with_another_library(codec: Codec, sample: bytes) -> None:
    ours = compress(codec, bytearray(sample))
    assert decompress(codec, memoryview(ours)) == sample
    if sample:
        read, write = LIBRARY[codec]
        assert read(ours) == sample
        assert decompress(codec, memoryview(write(sample))) == sample


def test_uncompressed_payloads_are_returned_as_they_are() -> None:
    data = memoryview(b"abc")
    assert decompress(Codec.NONE, data) is data
    assert compress(Codec.NONE, data) == b"abc"


def test_lz4_blocks_do_not_depend_on_each_other_because_java_refuses_that() -> None:
    frame = compress(Codec.LZ4, b"abc" * 100_000)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b1110_0000 == 0b0110_0000, "version 1, independent blocks"


def test_snappy_has_the_header_of_javas_stream() -> None:
    framed = compress(Codec.SNAPPY, b"abc" * 30_000)
    assert framed[:16] == b"\x82SNAPPY\0" + bytes([0, 0, 0, 1, 0, 0, 0, 1])


def test_snappy_without_a_frame_is_read_as_librdkafka_writes_it() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"abc" * 30_000))
    assert decompress(Codec.SNAPPY, raw) == b"abc" * 30_000


@pytest.mark.parametrize("codec", LIBRARY)
def test_more_than_the_limit_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(1_000_001))
    assert len(decompress(codec, bomb, limit=1_000_001)) == 1_000_001
    with pytest.raises(ProtocolError, match="larger than 1000000 bytes"):
        decompress(codec, bomb, limit=1_000_000)


@pytest.mark.parametrize("codec", LIBRARY)
@pytest.mark.parametrize("cut", [3, 10, 20, 40])
def test_damaged_payloads_are_refused(codec: Codec, cut: int) -> None:
    data = compress(codec, RNG.randbytes(1000))
    with pytest.raises(ProtocolError, match="damaged"):
        decompress(codec, data[:-cut], limit=100_000)


def test_a_snappy_block_that_announces_nonsense_is_refused() -> None:
    framed = bytearray(compress(Codec.SNAPPY, b"abc"))
    framed[16] = 0xFF
    with pytest.raises(ProtocolError, match="announces"):
        decompress(Codec.SNAPPY, framed, limit=1000)


def test_markers_and_aborted_batches_are_left_out_and_the_position_passes_them() -> None:
    log = b"".join(
        (
            stored_batch(0, 3),
            stored_batch(3, 2, flags=TRANSACTIONAL, producer=7),
            stored_batch(5, 1, flags=TRANSACTIONAL, producer=8),
            marker(6, 7, ABORT),
            stored_batch(7, 2, flags=TRANSACTIONAL, producer=7),
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
            stored_batch(0, 1, flags=TRANSACTIONAL, producer=7),
            marker(1, 7, ABORT),
            stored_batch(2, 1, flags=TRANSACTIONAL, producer=7),
        )
    )
    assert [it.base_offset for it in walk_log(memoryview(log), 2, [(7, 0)]).batches] == [2]


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    log = stored_batch(0, 3) + stored_batch(3, 3)[:-1]
    walk = walk_log(memoryview(log), 0)
    assert [it.base_offset for it in walk.batches] == [0]
    assert walk.next_offset == 3


def test_a_flipped_byte_is_an_error_that_names_the_offset() -> None:
    damaged = stored_batch(40, 2)
    damaged[-1] ^= 1
    with pytest.raises(ProtocolError, match="offset 40 does not match its CRC"):
        walk_log(memoryview(damaged), 40)
    with pytest.raises(ProtocolError, match="no batch of magic 2"):
        log_batch(memoryview(b"abc"))
