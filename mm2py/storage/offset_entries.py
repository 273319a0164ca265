"""Newest value per key of an offset topic, whatever the order of a key's members.

Flow: records of the topic -> ``OffsetMap.put`` -> ``get``. A key is found by its bytes, else by its parsed
content: another writer may have ordered the members differently. No I/O.
"""

import logging
from typing import final

from mm2py.errors import ProtocolError
from mm2py.mirror.source_offsets import (
    PartitionIdentity,
    parse_source_offset_key,
    partition_identity,
)

__all__ = ["OffsetMap"]

log = logging.getLogger(__name__)


@final
class OffsetMap:
    """Newest value per key."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._by_content: dict[tuple[str, PartitionIdentity], bytes] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """Take the next record of the topic; a malformed key is named in the log and ignored."""
        if key not in self._values:
            try:
                self._by_content[_content(key)] = key
            except ProtocolError as error:
                log.warning("offset record is ignored cause=%s", error)
                return
        self._values[key] = value

    def get(self, key: bytes) -> bytes | None:
        """Return the newest value of a key, None when there is none."""
        if key in self._values:
            return self._values[key]
        other = self._by_content.get(_content(key))
        return self._values[other] if other is not None else None

    def __len__(self) -> int:
        return len(self._values)


def _content(key: bytes) -> tuple[str, PartitionIdentity]:
    connector, partition = parse_source_offset_key(key)
    return connector, partition_identity(partition)
