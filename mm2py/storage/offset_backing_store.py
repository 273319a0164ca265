"""Source offsets of one flow: in Connect's offset topic (``mm2-offsets.<source>.internal``), or in
a file (standalone mode).

Flow: ``set`` -> one batch per partition -> acknowledged; ``get`` -> topic read to its end ->
``OffsetMap`` -> newest value. The newest record of a key wins, a tombstone included. A key is found
by its bytes, else by its parsed content: another writer may have ordered the members differently.
The file (``offset.storage.file.filename``) is JSON, replaced as a whole at each ``set``; Java's
file is a serialised Java map, so the two cannot take over from each other.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast, final

from mm2py.errors import ConfigError, ProtocolError, RetriableError
from mm2py.mirror.source_offsets import offset_json, offset_key_parts, offset_members
from mm2py.protocol.records import Record
from mm2py.storage.table import Table, batched

SHOWN_BYTES: Final = 200

Scalar = str | int | float | bool | None
"""Type of a member of a source partition or offset (Java's ``OffsetUtils``)."""

MapIdentity = frozenset[tuple[str, str, Scalar]] | None


@final
class OffsetMap:
    """Newest value per key."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._contents: dict[bytes, tuple[str, MapIdentity]] = {}
        self._by_content: dict[tuple[str, MapIdentity], bytes] = {}

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
        # Java's JsonConverter writes members in the order
        # of the task's map, which differs by class.
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
    connector, partition = offset_key_parts(key)
    return connector, None if partition is None else _flat(partition, key, "key")


def parse_offset_map(value: bytes) -> Mapping[str, Scalar] | None:
    """Read a source offset; ``ProtocolError`` if it is neither a flat map nor null."""
    parsed = offset_json(value, "value")
    return None if parsed is None else _flat(parsed, value, "value")


def scalars_identity(members: Mapping[str, Scalar] | None) -> MapIdentity:
    """Return what two maps with another member order have in common; 1 and true differ."""
    if members is None:
        return None
    # With the type: in Python ``1 == True == 1.0``, in JSON they are three values.
    return frozenset((name, type(value).__name__, value) for name, value in members.items())


def _content(key: bytes) -> tuple[str, MapIdentity]:
    connector, partition = parse_offset_key(key)
    return connector, scalars_identity(partition)


def _flat(value: object, data: bytes, what: str) -> Mapping[str, Scalar]:
    members = offset_members(value, data, what)
    for name, member in members.items():
        if isinstance(member, dict | list):
            raise ProtocolError(
                f"source offset {what} {data[:SHOWN_BYTES]!r}: {name} is no primitive"
            )
    return cast("dict[str, Scalar]", members)


log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""Longest read to the end of the topic (``default.api.timeout.ms``)."""


@final
class KafkaOffsetBackingStore:
    """The offset topic of one flow (Java's class of the same name).

    Args:
        table: the offset topic.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._offsets = OffsetMap()

    async def start(self) -> None:
        self._offsets = OffsetMap()
        await self._table.start(self._take)
        log.info("source offsets ready topic=%s entries=%d", self._table.topic, len(self._offsets))

    async def stop(self) -> None:
        await self._table.stop()

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        await self._table.read_to_end(READ_S)
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values, None as a tombstone; returns when all are acknowledged.

        Cancelled, it takes back what is not written yet.

        Raises:
            RetriableError: the membership was lost meanwhile, nothing of it will be written.
            PartitionError: the topic refused a record; a retry does not help.
        """
        await asyncio.gather(
            *(self._table.post(batch) for batch in batched(tuple(values.items())) if batch)
        )

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Read to the end; return a connector's stored keys and values without tombstones."""
        await self._table.read_to_end(READ_S)
        return self._offsets.of_connector(connector)

    def _take(self, _partition: int, record: Record) -> None:
        if record.key is not None:
            value = None if record.value is None else bytes(record.value)
            self._offsets.put(bytes(record.key), value)


FORMAT: Final = "mm2py-offsets-1"
PRIVATE: Final = 0o600


@final
class FileOffsetBackingStore:
    """Newest value per key, in a file that is never half written.

    Args:
        path: the file; its folder must exist, the file itself is made by the first ``set``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = OffsetMap()
        self._stored: dict[bytes, bytes] = {}

    async def start(self) -> None:
        """Read the file; ``ConfigError``: it cannot be read, or is no such file."""
        self._offsets, self._stored = OffsetMap(), {}
        for key, value in self._read().items():
            self._put(key.encode(), value.encode())
        log.info("offsets read file=%s count=%d", self._path, len(self._stored))

    async def stop(self) -> None:
        """Nothing to close: every ``set`` is in the file."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Store values, None as a tombstone; returns when they are on disk. ``RetriableError``: the
        file cannot be written now; what it held stays."""
        # The file first, then memory: after a failure both have what was stored last.
        stored = {**self._stored, **values}
        self._write({key: value for key, value in stored.items() if value is not None})
        for key, value in values.items():
            self._put(key, value)

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out."""
        return self._offsets.of_connector(connector)

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._offsets.put(key, value)
        if value is None:
            self._stored.pop(key, None)
        else:
            self._stored[key] = value

    def _read(self) -> Mapping[str, str]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(
                f"offset.storage.file.filename={self._path} cannot be read: {error.strerror}",
                remedy="name a file that this user may read and write",
            ) from error
        try:
            return _checked(cast("object", json.loads(data)))
        except (ValueError, RecursionError):
            raise ConfigError(
                f"offset.storage.file.filename={self._path} is no offset file of mm2py",
                remedy="name another file; a file of Java's standalone worker cannot be taken over",
            ) from None

    def _write(self, stored: Mapping[bytes, bytes]) -> None:
        content = {
            "format": FORMAT,
            "offsets": {key.decode(): value.decode() for key, value in sorted(stored.items())},
        }
        # In the same folder: a rename is atomic within one file system only.
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            # Private from the start: offsets of third parties' sources may hold secrets.
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False, indent=1)
                file.flush()
                # Before the rename: a crash could leave the new name with none of its bytes.
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise RetriableError(
                f"offsets cannot be written to {self._path}: {error.strerror}",
                remedy="make room on the disk, and let this user write to the folder",
            ) from error


def _checked(content: object) -> Mapping[str, str]:
    members = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    offsets = members.get("offsets")
    if members.get("format") != FORMAT or not isinstance(offsets, dict):
        raise ValueError("another format")
    texts = cast("dict[str, object]", offsets)
    if not all(isinstance(value, str) for value in texts.values()):
        raise ValueError("a value is no text")
    return cast("dict[str, str]", texts)
