"""Source offsets of standalone mode, in one JSON file (``offset.storage.file.filename``).

Flow: ``set`` -> dict -> a new file beside the old one -> renamed over it; ``start`` -> the file -> ``get``.
Java's file is a serialised Java map, so the two cannot take over from each other.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast, final

from mm2py.errors import ConfigError, RetriableError
from mm2py.storage.offset_entries import OffsetMap

log = logging.getLogger(__name__)

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
        """Read the file.

        Raises:
            ConfigError: it cannot be read, or is no such file.
        """
        self._offsets, self._stored = OffsetMap(), {}
        for key, value in self._read().items():
            self._put(key.encode(), value.encode())
        log.info("offsets read file=%s count=%d", self._path, len(self._stored))

    async def stop(self) -> None:
        """Nothing to close: every ``set`` is in the file."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key."""
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Store values, None as a tombstone; returns when they are on disk.

        Raises:
            RetriableError: the file cannot be written now; what it held stays.
        """
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
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False, indent=1)
                file.flush()
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
