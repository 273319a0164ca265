"""The few primitives that the hand-written messages and Kafka's record formats share: varints,
strings, request headers.

Flow: value -> bytes, and (buffer, position) -> (value, next position).
Reads may raise ``struct.error`` or ``IndexError`` on truncated input; the messages turn both into
``ProtocolError``. No schema here: the messages know their layouts.
"""

from functools import lru_cache
from struct import Struct, error
from typing import Final

from mm2py.errors import ProtocolError, UnsendableError

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
_REQUEST: Final = Struct(">ihhih")  # size, api key, version, correlation id, client id length
_CORRELATION_ID_OFFSET: Final = 8
_LONGEST_STRING: Final = 0x7FFF
"""Kafka's limit of every text, compact ones too: a broker closes the connection on a longer one."""
_KNOWN_TEXTS: Final = 4096
"""Texts that are kept encoded: names of topics are the same in every request."""
_SHOWN_OF_TEXT: Final = 60


def unsigned(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=512)
def array_size(count: int, *, flexible: bool) -> bytes:
    """Encode the number of elements of an array, compact or not (KIP-482)."""
    return unsigned(count + 1) if flexible else INT32.pack(count)


def read_unsigned(body: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    byte = body[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    # Five bytes of seven bits hold 32 bits.
    while shift < 35:
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise ProtocolError("a varint is longer than five bytes")


def sendable(value: str, what: str = "text") -> bytes:
    """Return a text as a request carries it.

    Raises:
        UnsendableError: it is longer than Kafka's limit, or has no form in UTF-8.
    """
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise UnsendableError(
            f"a request cannot carry the {what} {_some_of(value)}: {error.reason}"
        ) from None
    if len(data) > _LONGEST_STRING:
        raise UnsendableError(
            f"a request cannot carry the {what} {_some_of(value)}: it has {len(data)} bytes, at "
            f"most {_LONGEST_STRING} are possible"
        )
    return data


def _some_of(value: str) -> str:
    return ascii(value if len(value) <= _SHOWN_OF_TEXT else value[:_SHOWN_OF_TEXT] + "...")


def string(value: str | None) -> bytes:
    """Encode a nullable string with an int16 length; ``UnsendableError`` as of ``sendable``."""
    if value is None:
        return b"\xff\xff"
    data = sendable(value)
    return INT16.pack(len(data)) + data


def compact_string(value: str | None) -> bytes:
    """Encode a nullable string with a varint length plus one (KIP-482); ``UnsendableError`` as of
    ``sendable``."""
    if value is None:
        return b"\x00"
    data = sendable(value)
    return unsigned(len(data) + 1) + data


@lru_cache(maxsize=_KNOWN_TEXTS)
def known_text(value: str | None, *, flexible: bool) -> bytes:
    """Encode a text that is sent again and again, as ``compact_string`` or ``string``."""
    return compact_string(value) if flexible else string(value)


def read_string(body: memoryview, position: int) -> tuple[str | None, int]:
    """Read a nullable string with an int16 length."""
    size = INT16.unpack_from(body, position)[0]
    return _text(body, position + 2, size)


def read_compact_string(body: memoryview, position: int) -> tuple[str | None, int]:
    """Read a nullable string with a varint length plus one."""
    size, position = body[position], position + 1
    if size >= 0x80:
        size, position = read_unsigned(body, position - 1)
    return _text(body, position, size - 1)


def _text(body: memoryview, position: int, size: int) -> tuple[str | None, int]:
    # -1, or a compact length of 0: null.
    if size < 0:
        return None, position
    end = position + size
    if end > len(body):
        raise IndexError("a string runs over the end of its message")
    return str(body[position:end], "utf-8"), end


def record_string(text: str) -> bytes:
    """Encode a string of a record, which has at most 32 KiB; ``UnsendableError`` as of
    ``sendable``."""
    data = sendable(text)
    return INT16.pack(len(data)) + data


def read_record_string(data: bytes, position: int) -> tuple[str, int]:
    """Read a string of a record, which is never null; ``ProtocolError`` where it is damaged."""
    start = position + INT16.size
    if start > len(data):
        raise ProtocolError(f"record ends at byte {len(data)} inside a text's length")
    (length,) = INT16.unpack_from(data, position)
    end = start + length
    if length < 0 or end > len(data):
        raise ProtocolError(f"text of length {length} at byte {position} of {len(data)}")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"text at byte {position} is not UTF-8") from cause


def skip_tags(body: memoryview, position: int) -> int:
    """Return the position after a section of tagged fields (KIP-482)."""
    if body[position] == 0:
        return position + 1
    return read_tags(body, position)[1]


def read_tags(body: memoryview, position: int) -> tuple[dict[int, memoryview], int]:
    """Read a section of tagged fields as views by tag."""
    count, position = read_unsigned(body, position)
    tags: dict[int, memoryview] = {}
    for _ in range(count):
        tag, position = read_unsigned(body, position)
        size, position = read_unsigned(body, position)
        tags[tag] = body[position : position + size]
        position += size
    # A slice of a memoryview beyond its end is shorter, not an error: checked here.
    if position > len(body):
        raise IndexError("a tagged field runs over the end of its message")
    return tags, position


def request_header(
    api_key: int, version: int, correlation_id: int, client_id: str, *, flexible: bool
) -> bytearray:
    """Start a framed request; its first four bytes are the size, to be filled in at the end."""
    out = bytearray(_header(api_key, version, client_id, flexible=flexible))
    INT32.pack_into(out, _CORRELATION_ID_OFFSET, correlation_id)
    return out


@lru_cache(maxsize=512)
def _header(api_key: int, version: int, client_id: str, *, flexible: bool) -> bytes:
    name = sendable(client_id, "client id")
    # Behind it no tagged fields. The client id before them
    # stays a string with an int16 length (header v2).
    return _REQUEST.pack(0, api_key, version, 0, len(name)) + name + b"\0" * flexible


def truncated(what: str, version: int, cause: error | IndexError | ValueError) -> ProtocolError:
    """Return the error of a response that cannot be read."""
    return ProtocolError(
        f"the answer to {what} v{version} cannot be read: {cause}",
        remedy="the connection is closed and the request sent again",
    )
