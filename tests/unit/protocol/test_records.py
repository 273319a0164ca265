"""Records and batches: written by us and read by aiokafka, written by others and read by us."""

import random
import struct
import zlib

import cramjam
import pytest
from aiokafka import codec as theirs
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from mm2py.errors import FatalError, ProtocolError
from mm2py.protocol.abort_filter import marker_type
from mm2py.protocol.batch_stage import ProblemKind, classify, sign
from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.legacy import legacy_to_v2, with_right_checksum
from mm2py.protocol.record_batch import (
    Codec,
    RecordBatch,
    build_batch,
    choose_crc,
    crc32c,
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


# -- old message sets, written by aiokafka's legacy builder, come out as v2 with exact offsets


OLD_ROWS = [(1000, b"k", b"v" * 100), (900, None, b"w" * 100), (1100, b"k" * 50, None)]


def legacy(
    magic: int, codec: Codec = Codec.NONE, base: int = 0, *, append_time: int | None = None
) -> bytearray:
    """Write the rows and give the wrapper, or each message, the offset that a broker gives."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 10**6)
    for n, (timestamp, key, value) in enumerate(OLD_ROWS):
        offset = n if codec and magic == 1 else base + n
        builder.append(offset, timestamp if magic else None, key, value)
    raw = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", raw, 0, base + len(OLD_ROWS) - 1)
    if append_time is not None:
        raw[17] |= 0x08
        struct.pack_into(">q", raw, 18, append_time)
        struct.pack_into(">I", raw, 12, zlib.crc32(raw[16:]))
    return raw


def expected(base: int, *, magic: int = 1, timestamp: int | None = None) -> list[Record]:
    return [
        Record(base + n, (stamp if magic else -1) if timestamp is None else timestamp, key, value)
        for n, (stamp, key, value) in enumerate(OLD_ROWS)
    ]


def read(batches: list[RecordBatch]) -> list[Record]:
    found: list[Record] = []
    for batch in batches:
        assert crc_matches(batch.data)
        offsets = [offset for first, n in batch.runs for offset in range(first, first + n)]
        (decoded,) = decode_batches(batch.data)
        assert [r.offset - batch.base_offset for r in decoded.records] == list(range(batch.count))
        assert max(r.timestamp for r in decoded.records) == batch.max_timestamp
        found += [
            Record(offset, r.timestamp, r.key, r.value)
            for offset, r in zip(offsets, decoded.records, strict=True)
        ]
    return found


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(magic, codec) for magic in (0, 1) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY)]
    + [(1, Codec.LZ4)],
)
def test_old_messages_become_a_v2_batch_of_the_same_codec(magic: int, codec: Codec) -> None:
    result = classify(memoryview(legacy(magic, codec, base=500)), 500, None)
    assert result.problem is None
    assert [batch.codec for batch in result.batches] == [codec]
    assert read(result.batches) == expected(500, magic=magic)
    assert (result.batches[0].runs, result.next_offset) == (((500, 3),), 503)


JAVA_LZ4 = (
    # MemoryRecordsBuilder of kafka-clients 4.3.1, magic 0 and 1, base offset 500.
    "00000000000001f6000000749f9436580003ffffffff0000006604224d1860401a5700000011000100a101f4000000230f"
    "58f7ab0f00d8026b300000001376616c75652006000017005000000001f52f0041f97aa21a0f003f026b312f0003001700"
    "002f0010f62f0041386d5a880f003e026b322f00506c7565203200000000",
    "00000000000001f600000086b890d42f010300000000000003eaffffffff0000007004224d186040826100000016000100"
    "632b4beee13f011000f80303e8000000026b300000001376616c7565200600001700000200002e00502b81ac5786090000"
    "02002103e937001f3137000300170000020095020000002b041a8a0c370011ea37001e323700506c7565203200000000",
)


@pytest.mark.parametrize("magic", [0, 1])
def test_lz4_frames_of_old_clients_are_read_as_java_reads_them(magic: int) -> None:
    raw = memoryview(bytes.fromhex(JAVA_LZ4[magic]))
    result = classify(raw, 500, None)
    assert result.problem is None
    assert [batch.codec for batch in result.batches] == [Codec.LZ4]
    assert read(result.batches) == [
        Record(500 + n, -1 if magic == 0 else 1000 + n, b"k%d" % n, b"value value value %d" % n)
        for n in range(3)
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrong_lz4_header_checksum_is_damage_only_where_it_was_ever_right(magic: int) -> None:
    raw = bytearray.fromhex(JAVA_LZ4[magic])
    raw[raw.index(b"\x04\x22\x4d\x18") + 6] ^= 0x55
    struct.pack_into(">I", raw, 12, zlib.crc32(raw[16:]))
    result = classify(memoryview(raw), 500, None)
    assert (result.problem is None) is (magic == 0)


def test_lz4_frames_with_their_content_size_are_repaired_too() -> None:
    payload = b"value " * 40
    plain = compress(Codec.LZ4, payload)
    size = struct.pack("<q", len(payload))
    frame = memoryview(plain[:4] + bytes((plain[4] | 8, plain[5])) + size + b"?" + plain[7:])
    with pytest.raises(ProtocolError):
        decompress(Codec.LZ4, frame)
    assert bytes(decompress(Codec.LZ4, with_right_checksum(frame))) == payload
    for cut in range(16):
        assert len(with_right_checksum(frame[:cut])) == cut


def test_a_wrapper_with_log_append_time_gives_its_time_to_all() -> None:
    result = classify(memoryview(legacy(1, Codec.GZIP, base=7, append_time=5555)), 7, None)
    assert read(result.batches) == expected(7, timestamp=5555)


def test_messages_below_the_wanted_offset_are_left_out() -> None:
    for codec in (Codec.NONE, Codec.GZIP):
        result = classify(memoryview(legacy(1, codec, base=10)), 11, None)
        assert read(result.batches) == expected(10)[1:]
        assert result.batches[0].base_offset == 11


def test_holes_between_old_messages_stay_in_the_runs() -> None:
    raw = legacy(1, base=10) + legacy(1, base=20)
    (batch,) = classify(memoryview(raw), 10, None).batches
    assert batch.runs == ((10, 3), (20, 3))
    assert read([batch]) == expected(10) + expected(20)


def test_a_segment_that_changes_formats_is_read_through() -> None:
    modern = encode_batch([NewRecord(b"k", b"v", (), 1)])
    struct.pack_into(">q", modern, 0, 30)
    struct.pack_into(">I", modern, 17, crc32c(memoryview(modern)[21:]))
    raw = legacy(0, base=10) + legacy(1, Codec.GZIP, base=20) + modern
    result = classify(memoryview(raw), 10, None)
    assert [batch.base_offset for batch in result.batches] == [10, 20, 30]
    assert (result.next_offset, result.problem) == (31, None)
    assert [r.offset for one in decode_batches(raw) for r in one.records] == [
        10, 11, 12, 20, 21, 22, 30,
    ]  # fmt: skip


def test_a_partial_old_message_at_the_end_is_ignored() -> None:
    whole = legacy(1, base=10)
    for size in range(len(whole)):
        batches, end = legacy_to_v2(memoryview(whole[:size]), 0)
        assert end == size
        assert len(read(batches)) < 3


def test_many_single_messages_are_gathered_in_batches_of_bounded_size() -> None:
    raw = b"".join(legacy(1, base=n * 3) for n in range(3000))
    batches, _ = legacy_to_v2(memoryview(bytearray(raw)), 0)
    assert len(batches) > 1
    assert max(batch.size for batch in batches) < 600_000
    assert sum(batch.count for batch in batches) == 9000


def test_a_wrapper_around_nonsense_is_a_problem() -> None:
    for inside in (b"nonsense", b"", bytes(legacy(0))):
        value = compress(Codec.GZIP, inside)
        body = struct.pack(">bbqi", 1, 1, 5, -1) + struct.pack(">i", len(value)) + value
        raw = struct.pack(">qiI", 5, len(body) + 4, zlib.crc32(body)) + body
        result = classify(memoryview(bytearray(raw)), 0, None)
        assert (result.problem is None) == (inside == b"")
        assert result.batches == []


def old_message(fields: bytes, attributes: int = 0) -> bytearray:
    body = struct.pack(">bbq", 1, attributes, 5) + fields
    return bytearray(struct.pack(">qiI", 5, len(body) + 4, zlib.crc32(body)) + body)


def changed(raw: bytearray, position: int, value: int) -> bytearray:
    raw[position] = value
    return raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (changed(legacy(1), -1, 0), "wrong CRC"),
        (changed(legacy(1, Codec.GZIP), -1, 0xFF), "wrong CRC"),
        (changed(legacy(1), 11, 5), ""),  # a size of nonsense
        (changed(legacy(1), 17, 4), ""),  # a codec of nonsense
        (legacy(1, base=5) + legacy(1, base=4), "offset 4 follows 7"),
        (old_message(struct.pack(">ii", -1, -1), Codec.GZIP), "an empty wrapper"),
        (old_message(struct.pack(">ii", -1, -1) + b"x"), "does not end where its size says"),
        (old_message(struct.pack(">ii", -1, 7)), "announces 7 bytes"),
        (old_message(struct.pack(">i", -1) + b"xx"), "announces"),
    ],
)
def test_an_old_message_that_cannot_be_read_is_a_problem(raw: bytearray, text: str) -> None:
    problem = classify(memoryview(raw), 0, None).problem
    assert problem is not None
    assert problem.kind is ProblemKind.RECORDS
    assert text in problem.text
