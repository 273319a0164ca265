"""Stored positions of a connector, read and changed by hand (kcr 1.9 and 2.3).

Flow: entries -> the connector's own check (``check_offsets``) -> records of the offset store -> the message of
the answer. The herder checks that the connector is STOPPED and that the caller may ask.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.errors import ConfigError, ProtocolError, RetriableError
from mm2py.mirror.offset_checks import hash_map_order
from mm2py.runtime.errors import BadRequestError, HerderError
from mm2py.runtime.herder.api import OffsetEntry
from mm2py.runtime.tasks.task_transactions import OwnOffsets
from mm2py.storage.connect_json import compact_json
from mm2py.storage.offset_backing_store import (
    Scalar,
    parse_offset_key,
    parse_offset_map,
    scalars_identity,
)

log = logging.getLogger(__name__)

NOTHING_GIVEN: Final = "Partitions / offsets need to be provided for an alter offsets request"

CheckOffsets = Callable[
    [
        Mapping[str, str],
        Sequence[tuple[Mapping[str, Scalar] | None, Mapping[str, Scalar] | None]],
    ],
    bool,
]


class StoredOffsets(Protocol):
    """What is needed of an offset store."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out."""
        ...

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values, None as a tombstone."""
        ...


@final
class OffsetEditor:
    """Reads, alters and resets the positions of source connectors.

    Args:
        store: where they are; started and stopped by its owner.
        find: returns the class of a connector, as ``Plugins.find``.
        own: opens the store over a connector's own topic, which counts before ``store``; None where the worker
            does not use them.
    """

    def __init__(
        self,
        store: StoredOffsets,
        find: Callable[[str], ConnectorFactory],
        own: Callable[[str], OwnOffsets] | None = None,
    ) -> None:
        self._store, self._find, self._own = store, find, own

    async def read(self, connector: str, _config: Mapping[str, str], /) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector, sorted by their keys.

        Raises:
            HerderError: the store cannot be read now.
        """
        entries: dict[object, OffsetEntry] = {}
        for key, value in sorted((await self._stored(connector)).items()):
            try:
                partition, offset = parse_offset_key(key)[1], parse_offset_map(value)
            except ProtocolError as error:
                log.warning("stored position is left out connector=%s cause=%s", connector, error)
                continue
            identity = scalars_identity(partition)
            # What we write ourselves counts before the same in another writer's order.
            if identity not in entries or key == _key(connector, partition):
                entries[identity] = OffsetEntry(partition, offset)
        return list(entries.values())

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> str:
        """Write positions and return the message of the answer; of two for one partition the last counts.

        Raises:
            BadRequestError: there is nothing to write, or the connector refuses it.
            HerderError: the store cannot be written now.
        """
        if not entries:
            raise BadRequestError(NOTHING_GIVEN)
        surely = self._check(connector, config, entries)
        for entry in entries:
            _check_primitive(entry.partition)
            _check_primitive(entry.offset)
        await self._write(connector, config, entries)
        return changed_text("altered", surely=surely)

    async def reset(self, connector: str, config: Mapping[str, str]) -> str:
        """Remove all positions and return the message of the answer.

        Raises:
            BadRequestError: the connector refuses.
            HerderError: the store cannot be read or written now.
        """
        stored = await self._stored(connector)
        entries = [OffsetEntry(parse_offset_key(key)[1], None) for key in stored]
        surely = self._check(connector, config, entries)
        await self._set(connector, config, dict.fromkeys(stored))
        log.info("positions removed connector=%s count=%d", connector, len(stored))
        return changed_text("reset", surely=surely)

    def _check(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> bool:
        positions = [(entry.partition, entry.offset) for entry in entries]
        try:
            factory = self._find(config.get("connector.class", ""))
            check = cast("CheckOffsets | None", getattr(factory, "check_offsets", None))
            # Java's SourceConnector returns false where a connector does not override it.
            return check is not None and check(config, positions)
        except ConfigError as error:
            # Java answers 500; the caller can mend it.
            raise BadRequestError(error.message, remedy=error.remedy) from error

    async def _set(
        self, connector: str, config: Mapping[str, str], values: Mapping[bytes, bytes | None]
    ) -> None:
        """Write to the worker's topic first: what is removed there cannot come back from it."""
        await _now(connector, self._store.set(values))
        topic = config.get("offsets.storage.topic", "").strip()
        if topic and self._own is not None:
            own = self._own(topic)
            try:
                await _now(connector, own.set(values))
            finally:
                await own.close()

    async def _write(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        stored: dict[object, list[bytes]] = {}
        for key in await self._stored(connector):
            stored.setdefault(scalars_identity(parse_offset_key(key)[1]), []).append(key)
        values: dict[bytes, bytes | None] = {}
        for entry in entries:
            # The same partition in another writer's order would come back otherwise.
            values.update(dict.fromkeys(stored.get(scalars_identity(entry.partition), ())))
            offset = None if entry.offset is None else compact_json(hash_map_order(entry.offset))
            values[_key(connector, entry.partition)] = offset
        await self._set(connector, config, values)
        log.info("positions altered connector=%s count=%d", connector, len(entries))

    async def _stored(self, connector: str) -> Mapping[bytes, bytes]:
        found: dict[bytes, bytes] = {}

        async def read() -> None:
            found.update(await self._store.entries(connector))

        await _now(connector, read(), "read")
        return found


async def _now(connector: str, action: Awaitable[None], verb: str = "modify") -> None:
    try:
        await action
    except RetriableError as error:
        raise HerderError(f"Failed to {verb} offsets for connector {connector}: {error}") from error


def _key(connector: str, partition: Mapping[str, Scalar] | None) -> bytes:
    ordered = None if partition is None else hash_map_order(partition)
    return compact_json([connector, ordered])


def _check_primitive(members: Mapping[str, object] | None) -> None:
    for name, value in (members or {}).items():
        if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
            kind = "MAP" if isinstance(value, Mapping) else "ARRAY"
            raise BadRequestError(
                "Offsets may only contain primitive types as values, but field"
                f" {name} contains {kind}"
            )


def changed_text(done: str, *, surely: bool) -> str:
    """Return Connect's answer; ``surely``: the connector says that the change takes effect."""
    if surely:
        return f"The offsets for this connector have been {done} successfully"
    return (
        f"The Connect framework-managed offsets for this connector have been {done} successfully."
        " However, if this connector manages offsets externally, they will need to be manually"
        f" {done} in the system that the connector uses."
    )
