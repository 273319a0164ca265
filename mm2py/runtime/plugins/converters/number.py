"""``BooleanConverter`` and the five of numbers: fixed widths, big-endian (Kafka's serializers)."""

import struct
from typing import Final, cast, final

from mm2py.api.schema import Schema, SchemaType
from mm2py.runtime.plugins.converters.converter import DataError, type_name

NUMBER_FORMATS: Final = {
    "Boolean": (SchemaType.BOOLEAN, ">?"),
    "Short": (SchemaType.INT16, ">h"),
    "Integer": (SchemaType.INT32, ">i"),
    "Long": (SchemaType.INT64, ">q"),
    "Float": (SchemaType.FLOAT32, ">f"),
    "Double": (SchemaType.FLOAT64, ">d"),
}
"""Name before ``Converter`` -> what it converts, and how."""


@final
class NumberConverter:
    """Implements ``Converter`` for one width.

    Args:
        kind: a key of ``NUMBER_FORMATS``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._type, self._format = NUMBER_FORMATS[kind]

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the number's bytes."""
        if schema is not None and schema.type is not self._type:
            raise DataError(f"Invalid schema type for {self._kind}Converter: {schema.type.name}")
        if value is None:
            return None
        wanted = (bool,) if self._kind == "Boolean" else (int, float)
        if isinstance(value, bool) is not (self._kind == "Boolean") or not isinstance(
            value, wanted
        ):
            raise DataError(f"{self._kind}Converter cannot convert {type_name(value)}")
        try:
            return struct.pack(self._format, value)
        except (struct.error, OverflowError):
            raise DataError(
                f"{self._kind}Converter cannot convert this {type_name(value)}: it is out of range or"
                " no whole number"
            ) from None

    def from_bytes(self, data: bytes | None) -> bool | int | float | None:
        """Return the number."""
        if data is None:
            return None
        try:
            (value,) = struct.unpack(self._format, data)
        except struct.error:
            raise DataError(
                f"{self._kind}Converter cannot read {len(data)} bytes, it has {struct.calcsize(self._format)}"
            ) from None
        return cast("bool | int | float", value)
