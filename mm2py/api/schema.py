"""Schemas of ordinary records (Java's ``org.apache.kafka.connect.data``), for connectors that
describe their data.

Flow: connector -> ``SourceRecord.value`` with ``value_schema`` -> a converter -> bytes. Values are
plain Python: a struct is a mapping of its fields; without a schema the value's own type counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_DATA: Final = "org.apache.kafka.connect.data."
DECIMAL: Final = _DATA + "Decimal"
"""Name of a ``bytes`` schema whose values are ``Decimal``; its parameter ``scale`` is the number of
decimals."""

DATE: Final = _DATA + "Date"
"""Name of an ``int32`` schema whose values are ``date``."""

TIME: Final = _DATA + "Time"
"""Name of an ``int32`` schema whose values are ``time``."""

TIMESTAMP: Final = _DATA + "Timestamp"
"""Name of an ``int64`` schema whose values are ``datetime`` with a time zone."""


class SchemaType(StrEnum):
    """Connect's types under the names they have in JSON."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Type of a value; ``items`` are of an array or a map's values, ``keys`` a map's keys."""

    type: SchemaType
    optional: bool = False
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    default: object = None
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    fields: tuple["Field", ...] = ()
    keys: "Schema | None" = None
    items: "Schema | None" = None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct."""

    name: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class SchemaAndValue:
    """A header's value with its schema."""

    schema: Schema | None
    value: object
