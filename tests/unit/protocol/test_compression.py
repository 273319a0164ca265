"""Codec framings as Java writes and reads them, and a bound on what comes out."""

import random

import cramjam
import pytest
from aiokafka import codec as theirs

from mm2py.errors import ProtocolError
from mm2py.protocol.compression import compress, decompress
from mm2py.protocol.record_batch import Codec

RNG = random.Random(3)
SAMPLES = [b"x", b"abc" * 40_000, RNG.randbytes(100_000), b""]
READERS = {
    Codec.GZIP: theirs.gzip_decode,
    Codec.SNAPPY: theirs.snappy_decode,
    Codec.LZ4: theirs.lz4_decode,
    Codec.ZSTD: theirs.zstd_decode,
}
WRITERS = {
    Codec.GZIP: theirs.gzip_encode,
    Codec.SNAPPY: theirs.snappy_encode,
    Codec.LZ4: theirs.lz4_encode,
    Codec.ZSTD: theirs.zstd_encode,
}


@pytest.mark.parametrize("codec", READERS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_payloads_go_both_ways_with_another_library(codec: Codec, sample: bytes) -> None:
    ours = compress(codec, bytearray(sample))
    assert decompress(codec, memoryview(ours)) == sample
    if sample:
        assert READERS[codec](ours) == sample
        assert decompress(codec, memoryview(WRITERS[codec](sample))) == sample


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


@pytest.mark.parametrize("codec", READERS)
def test_more_than_the_limit_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(1_000_001))
    assert len(decompress(codec, bomb, limit=1_000_001)) == 1_000_001
    with pytest.raises(ProtocolError, match="larger than 1000000 bytes"):
        decompress(codec, bomb, limit=1_000_000)


@pytest.mark.parametrize("codec", READERS)
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
