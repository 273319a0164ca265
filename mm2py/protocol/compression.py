"""The four codecs of Kafka, in exactly the framings that Java reads and writes.

Flow: payload of a batch -> ``decompress`` -> record bytes -> ``compress`` -> payload.
Output is bounded, so a small payload cannot exhaust the host's memory. Levels are Java's defaults.
"""

from struct import Struct
from typing import Final

import cramjam

from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import Bytes, Codec

MAX_DECOMPRESSED_BYTES: Final = 512 * 1024 * 1024
"""Records of one batch; brokers accept batches of about 1 MiB, so this is a guard, not a
setting."""

_FULL: Final = "whole buffer"
_FIRST_GUESS_BYTES: Final = 64 * 1024
_GZIP_LEVEL: Final = 6
_LZ4_LEVEL: Final = 1  # Java's LZ4 default is the fast compressor
_ZSTD_LEVEL: Final = 3

# Java frames snappy blocks with xerial's stream: magic, version 1, compatible with 1, then
# (int32 size, block) pairs of at most 32 KiB of input each.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SIZE: Final = Struct(">i")


def compress(codec: Codec, data: Bytes) -> bytes:
    """Return ``data`` in the framing that brokers and Java clients read."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
    if codec is Codec.SNAPPY:
        return _snappy(data)
    if codec is Codec.LZ4:
        # Java refuses frames whose blocks depend on each other (KIP-57).
        frame = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(codec: Codec, data: Bytes, *, limit: int = MAX_DECOMPRESSED_BYTES) -> Bytes:
    """Return the record bytes of a payload; uncompressed input is returned as it is.

    Raises:
        ProtocolError: the payload is damaged, or it is larger than ``limit`` bytes.
    """
    if codec is Codec.NONE:
        return data
    # The size is in no payload reliably: gzip and streamed
    # frames have none, so it is guessed and grown.
    size = min(limit, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        try:
            return _decompress(codec, data, bytearray(size))
        except cramjam.DecompressionError as error:
            # One error class for a full buffer and for
            # damaged input; only the first gets more room.
            if size >= limit or _FULL not in str(error):
                raise ProtocolError(
                    f"a {codec.name.lower()} payload of {len(data)} bytes is damaged or larger "
                    f"than {limit} bytes: {error}",
                    remedy="read the batch with Kafka's dump-log tool on the source",
                ) from error
            size = min(limit, size * 8)


def _decompress(codec: Codec, data: Bytes, out: bytearray) -> memoryview:
    view = memoryview(out)
    if codec is Codec.GZIP:
        return view[: cramjam.gzip.decompress_into(data, out)]
    if codec is Codec.LZ4:
        return view[: cramjam.lz4.decompress_into(data, out)]
    if codec is Codec.ZSTD:
        return view[: cramjam.zstd.decompress_into(data, out)]
    if bytes(data[:8]) != _XERIAL_MAGIC:
        # The length is at the front of a raw block: the buffer is grown before it is tried.
        if cramjam.snappy.decompress_raw_len(data) > len(out):
            raise cramjam.DecompressionError(f"failed to write {_FULL}")
        return view[: cramjam.snappy.decompress_raw_into(data, out)]  # librdkafka writes no frame
    return view[: _unframe(memoryview(data)[len(_XERIAL_HEADER) :], view)]


def _unframe(blocks: memoryview, out: memoryview) -> int:
    position = filled = 0
    while position + 4 <= len(blocks):
        size: int = _SIZE.unpack_from(blocks, position)[0]
        position += 4
        if size < 0 or position + size > len(blocks):
            raise cramjam.DecompressionError(f"a snappy block announces {size} bytes")
        block = blocks[position : position + size]
        if cramjam.snappy.decompress_raw_len(block) > len(out) - filled:
            raise cramjam.DecompressionError(f"failed to write {_FULL}")
        filled += cramjam.snappy.decompress_raw_into(block, out[filled:])
        position += size
    return filled


def _snappy(data: Bytes) -> bytes:
    view, parts = memoryview(data), [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)
