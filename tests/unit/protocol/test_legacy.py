"""Old message sets, written by aiokafka's legacy builder, come out as v2 with exact offsets."""

import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from mm2py.errors import ProtocolError
from mm2py.protocol.batch_stage import ProblemKind, classify
from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.legacy import legacy_to_v2, with_right_checksum
from mm2py.protocol.record_batch import Codec, RecordBatch, crc32c, crc_matches
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch

ROWS = [(1000, b"k", b"v" * 100), (900, None, b"w" * 100), (1100, b"k" * 50, None)]


def legacy(
    magic: int, codec: Codec = Codec.NONE, base: int = 0, *, append_time: int | None = None
) -> bytearray:
    """Write the rows and give the wrapper, or each message, the offset that a broker gives."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 10**6)
    for n, (timestamp, key, value) in enumerate(ROWS):
        offset = n if codec and magic == 1 else base + n
        builder.append(offset, timestamp if magic else None, key, value)
    raw = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", raw, 0, base + len(ROWS) - 1)
    if append_time is not None:
        raw[17] |= 0x08
        struct.pack_into(">q", raw, 18, append_time)
        struct.pack_into(">I", raw, 12, zlib.crc32(raw[16:]))
    return raw


def expected(base: int, *, magic: int = 1, timestamp: int | None = None) -> list[Record]:
    return [
        Record(base + n, (stamp if magic else -1) if timestamp is None else timestamp, key, value)
        for n, (stamp, key, value) in enumerate(ROWS)
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
