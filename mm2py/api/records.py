"""Ordinary records, for connectors that work record by record (the mirror itself moves whole batches)."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SourceOffset", "SourcePartition", "SourceRecord"]

SourcePartition = Mapping[str, str | int]
"""Where a record came from, in the connector's own terms; keys in the order Java writes them."""

SourceOffset = Mapping[str, str | int]
"""How far the source partition has been read; ``{"offset": n}`` for the mirrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record on its way to the target (Java's ``SourceRecord``), key and value already bytes.

    ``timestamp_ms`` of -1 lets the runtime stamp the record when it is sent.
    """

    source_partition: SourcePartition
    source_offset: SourceOffset
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_ms: int = -1
