"""The broker's side of the wire format: read requests, write answers, flexible or not (KIP-482).

Flow: request bytes -> ``RequestReader`` -> broker -> ``AnswerWriter`` -> bytes. Independent of
``mm2py.protocol`` on purpose: a mistake there must not be mirrored here.
"""

from struct import Struct, unpack_from
from typing import Final, Self, final

_INT32: Final = Struct(">i")


@final
class RequestReader:
    """Reads one request field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def _number(self, layout: str, size: int) -> int:
        (value,) = unpack_from(layout, self._data, self._position)
        self._position += size
        return int(value)

    def int8(self) -> int:
        """Read a signed byte."""
        return self._number(">b", 1)

    def int16(self) -> int:
        """Read two bytes."""
        return self._number(">h", 2)

    def int32(self) -> int:
        """Read four bytes."""
        return self._number(">i", 4)

    def int64(self) -> int:
        """Read eight bytes."""
        return self._number(">q", 8)

    def raw(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        self._position += size
        return self._data[self._position - size : self._position]

    def unsigned(self) -> int:
        """Read an unsigned varint."""
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """Read the length of an array, -1 for null."""
        return self.unsigned() - 1 if self.flexible else self.int32()

    def string(self) -> str | None:
        """Read a nullable string."""
        size = self.unsigned() - 1 if self.flexible else self.int16()
        return None if size < 0 else self.raw(size).decode()

    def text(self) -> str:
        """Read a string that is not null."""
        return self.string() or ""

    def data(self) -> bytes | None:
        """Read nullable bytes."""
        size = self.count()
        return None if size < 0 else self.raw(size)

    def tags(self) -> None:
        """Skip tagged fields, if the version has them."""
        if self.flexible:
            for _ in range(self.unsigned()):
                self.unsigned()
                self.raw(self.unsigned())


@final
class AnswerWriter:
    """Writes one answer field by field; every method returns the writer."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._out = bytearray()
        self._flexible = flexible

    def _number(self, value: int, size: int) -> Self:
        self._out += value.to_bytes(size, "big", signed=True)
        return self

    def int8(self, value: int) -> Self:
        """Write a signed byte."""
        return self._number(value, 1)

    def int16(self, value: int) -> Self:
        """Write two bytes."""
        return self._number(value, 2)

    def int32(self, value: int) -> Self:
        """Write four bytes."""
        return self._number(value, 4)

    def int64(self, value: int) -> Self:
        """Write eight bytes."""
        return self._number(value, 8)

    def raw(self, data: bytes) -> Self:
        """Write bytes as they are."""
        self._out += data
        return self

    def unsigned(self, value: int) -> Self:
        """Write an unsigned varint."""
        while value >= 0x80:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)
        return self

    def count(self, count: int) -> Self:
        """Write the length of an array, -1 for null."""
        return self.unsigned(count + 1) if self._flexible else self.int32(count)

    def string(self, value: str | None) -> Self:
        """Write a nullable string."""
        data = b"" if value is None else value.encode()
        size = -1 if value is None else len(data)
        if self._flexible:
            self.unsigned(size + 1)
        else:
            self.int16(size)
        return self.raw(data)

    def data(self, value: bytes | None) -> Self:
        """Write nullable bytes."""
        return self.count(-1 if value is None else len(value)).raw(value or b"")

    def ints(self, values: tuple[int, ...]) -> Self:
        """Write an array of int32."""
        self.count(len(values))
        for value in values:
            self.int32(value)
        return self

    def tags(self, tagged: dict[int, bytes] | None = None) -> Self:
        """End a structure: its tagged fields, if the version has them."""
        if self._flexible:
            self.unsigned(len(tagged or ()))
            for tag, data in (tagged or {}).items():
                self.unsigned(tag).unsigned(len(data)).raw(data)
        return self

    def taken(self) -> bytes:
        """Return what was written, for a tagged field."""
        return bytes(self._out)

    def frame(self, correlation_id: int, *, flexible_header: bool) -> bytes:
        """Return the framed answer."""
        head = _INT32.pack(correlation_id) + (b"\x00" if flexible_header else b"")
        return _INT32.pack(len(head) + len(self._out)) + head + bytes(self._out)
