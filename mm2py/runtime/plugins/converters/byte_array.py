"""``ByteArrayConverter``: bytes stay bytes, anything else is refused."""

from typing import final

from mm2py.api.schema import Schema, SchemaType
from mm2py.runtime.plugins.converters.converter import DataError, type_name


@final
class ByteArrayConverter:
    """Implements ``Converter``."""

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the value."""
        if schema is not None and schema.type is not SchemaType.BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.name}")
        if value is None or isinstance(value, bytes):
            return value
        raise DataError(
            f"ByteArrayConverter is not compatible with values of type {type_name(value)}",
            remedy="name another converter in key.converter, value.converter or header.converter",
        )

    def from_bytes(self, data: bytes | None) -> bytes | None:
        """Return the bytes."""
        return data
