"""Ordinary records, for connectors that work record by record (the mirror itself moves whole
batches)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, cast

from mm2py.api.schema import Schema

SourcePartition = Mapping[str, str | int]
"""Origin of a record, in the connector's own terms; keys in the order Java writes them."""

SourceOffset = Mapping[str, str | int]
"""How far the source partition has been read; ``{"offset": n}`` for the mirrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record on its way to the target (Java's ``SourceRecord``).

    Bytes without a schema are sent as they are, whatever the converters. Any other key, value or
    header goes through the converter of the connector, or else of the worker; a header's value may
    be a ``SchemaAndValue``. ``timestamp_ms`` of -1 lets the runtime stamp the record when it is
    sent.
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


class SinkRecord(NamedTuple):
    """One record on its way to a sink task, or through transforms (Java's ``SinkRecord``); a tuple,
    because there is one per record.

    Key, value and header values are what the connector's converters made of the bytes; with
    ``ByteArrayConverter`` they are the bytes themselves. ``timestamp_ms`` is -1 where the record
    has none. ``topic`` and ``partition`` are those that transforms left; ``original_topic`` and
    ``original_partition`` with ``offset`` are where it was read. ``raw`` is the record as it was
    read, None where this is it.
    """

    topic: str
    partition: int
    key: object
    value: object
    headers: Sequence[tuple[str, object]]
    timestamp_ms: int
    offset: int
    original_topic: str
    original_partition: int
    raw: "SinkRecord | None" = None


quick_record: Final = partial(
    cast(
        "Callable[[type[SinkRecord], tuple[object, ...]], SinkRecord]",
        tuple.__new__,  # pyright: ignore[reportUnknownMemberType] # of any members
    ),
    SinkRecord,
)
"""Makes a record of all its fields in half the time of the constructor, and a third of that of
``_replace``."""
