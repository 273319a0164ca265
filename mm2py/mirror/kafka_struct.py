"""Kafka's STRING primitive: INT16 length and UTF-8 bytes, as MirrorMaker's own records use it.

Flow: text <-> bytes at a position. Fixed-size fields are packed by the callers.
"""

import struct
from typing import Final

from mm2py.errors import ProtocolError

_LENGTH: Final = struct.Struct(">h")
_MAX_BYTES: Final = 32767


def encode_string(text: str) -> bytes:
    """Return length and UTF-8 bytes of ``text``."""
    data = text.encode()
    if len(data) > _MAX_BYTES:
        raise ProtocolError(f"text of {len(data)} bytes is longer than {_MAX_BYTES}")
    return _LENGTH.pack(len(data)) + data


def decode_string(data: bytes, position: int) -> tuple[str, int]:
    """Read a text at ``position``; return it and the position behind it."""
    start = position + _LENGTH.size
    if start > len(data):
        raise ProtocolError(f"record ends at byte {len(data)} inside a text's length")
    (length,) = _LENGTH.unpack_from(data, position)
    end = start + length
    if length < 0 or end > len(data):
        raise ProtocolError(f"text of length {length} at byte {position} of {len(data)}")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise ProtocolError(f"text at byte {position} is not UTF-8") from error
