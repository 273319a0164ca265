"""What a converter is, and what it does with data that it cannot convert.

Flow: value and schema of a record -> ``Converter`` -> bytes, or ``DataError``; for sinks the way back.
"""

from typing import Protocol

from mm2py.api.schema import Schema
from mm2py.errors import FatalError


class DataError(FatalError):
    """A value that a converter cannot turn into bytes, or bytes that it cannot read (Java's ``DataException``)."""


class Converter(Protocol):
    """Turns data into bytes, in the role of a key, value or header converter."""

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value.

        Raises:
            DataError: it cannot be converted.
        """
        ...

    def from_bytes(self, data: bytes | None) -> object:
        """Return the value of a record's bytes (Java's ``toConnectData``, without the schema).

        Raises:
            DataError: they are not what this converter writes.
        """
        ...


def type_name(value: object) -> str:
    """Return the type of a value, for messages: never the value itself."""
    return type(value).__name__
