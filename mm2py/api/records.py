"""Ordinary records, for connectors that work record by record (the mirror itself moves whole batches)."""

from collections.abc import Mapping
from dataclasses import dataclass

from mm2py.api.schema import Schema

__all__ = ["SourceOffset", "SourcePartition", "SourceRecord"]

SourcePartition = Mapping[str, str | int]
"""Where a record came from, in the connector's own terms; keys in the order Java writes them."""

SourceOffset = Mapping[str, str | int]
"""How far the source partition has been read; ``{"offset": n}`` for the mirrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record on its way to the target (Java's ``SourceRecord``).

    Bytes without a schema are sent as they are, whatever the converters. Any other key, value or header goes
    through the converter of the connector, or else of the worker; a header's value may be a ``SchemaAndValue``.
    ``timestamp_ms`` of -1 lets the runtime stamp the record when it is sent.
    """

    source_partition: SourcePartition
    source_offset: SourceOffset
    topic: str
    partition: int
    key: object
    value: object
    headers: tuple[tuple[bytes | str, object], ...] = ()
    timestamp_ms: int = -1
    key_schema: Schema | None = None
    value_schema: Schema | None = None
