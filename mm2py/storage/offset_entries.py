"""Newest value per key of an offset topic, whatever the order of a key's members.

Flow: records of the topic -> ``OffsetMap.put`` -> ``get``, ``of_connector``. A key is found by its bytes, else
by its parsed content: another writer may have ordered the members differently. No I/O.
"""

import json
import logging
from collections.abc import Mapping
from typing import Final, cast, final

from mm2py.errors import ProtocolError

log = logging.getLogger(__name__)

SHOWN_BYTES: Final = 200

Scalar = str | int | float | bool | None
"""What a member of a source partition or offset may be (Java's ``OffsetUtils``)."""

Identity = frozenset[tuple[str, str, Scalar]] | None


@final
class OffsetMap:
    """Newest value per key."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._contents: dict[bytes, tuple[str, Identity]] = {}
        self._by_content: dict[tuple[str, Identity], bytes] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """Take the next record of the topic; a malformed key is named in the log and ignored."""
        if key not in self._values:
            try:
                content = _content(key)
            except ProtocolError as error:
                log.warning("offset record is ignored cause=%s", error)
                return
            self._contents[key] = content
            self._by_content[content] = key
        self._values[key] = value

    def get(self, key: bytes) -> bytes | None:
        """Return the newest value of a key, None when there is none."""
        if key in self._values:
            return self._values[key]
        other = self._by_content.get(_content(key))
        return self._values[other] if other is not None else None

    def of_connector(self, connector: str) -> dict[bytes, bytes]:
        """Return keys and values of a connector as they are stored, tombstones left out."""
        return {
            key: value
            for key, value in self._values.items()
            if value is not None and self._contents[key][0] == connector
        }

    def __len__(self) -> int:
        return len(self._values)


def parse_offset_key(key: bytes) -> tuple[str, Mapping[str, Scalar] | None]:
    """Read connector and source partition of a key; ``ProtocolError`` if it is not such a pair."""
    parsed = _load(key, "key")
    if isinstance(parsed, list):
        items = cast("list[object]", parsed)
        if len(items) == 2 and isinstance(items[0], str):
            partition = None if items[1] is None else _flat(items[1], key, "key")
            return items[0], partition
    raise ProtocolError(f"source offset key {_shown(key)} is not a name and a partition")


def parse_offset_map(value: bytes) -> Mapping[str, Scalar] | None:
    """Read a source offset; ``ProtocolError`` if it is neither a flat map nor null."""
    parsed = _load(value, "value")
    return None if parsed is None else _flat(parsed, value, "value")


def scalars_identity(members: Mapping[str, Scalar] | None) -> Identity:
    """Return what two maps with another member order have in common; 1 and true differ."""
    if members is None:
        return None
    return frozenset((name, type(value).__name__, value) for name, value in members.items())


def _content(key: bytes) -> tuple[str, Identity]:
    connector, partition = parse_offset_key(key)
    return connector, scalars_identity(partition)


def _load(data: bytes, what: str) -> object:
    try:
        return cast("object", json.loads(data))
    except (ValueError, RecursionError):
        raise ProtocolError(f"source offset {what} {_shown(data)} is not JSON") from None


def _flat(value: object, data: bytes, what: str) -> Mapping[str, Scalar]:
    if not isinstance(value, dict):
        raise ProtocolError(f"source offset {what} {_shown(data)} is not a map")
    members = cast("dict[str, object]", value)
    for name, member in members.items():
        if isinstance(member, dict | list):
            raise ProtocolError(f"source offset {what} {_shown(data)}: {name} is no primitive")
    return cast("dict[str, Scalar]", members)


def _shown(data: bytes) -> str:
    return repr(data[:SHOWN_BYTES])
