"""Stored positions of a connector, read and changed by hand (KIP-875).

Flow: entries -> the connector's own check (``check_offsets``) -> records of the offset store -> the
message of the answer. The herder checks that the connector is STOPPED and that the caller may ask.
"""

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol, TypeVar, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.clock import Clock, closing
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.client_properties import sink_consumer_properties
from mm2py.config.clients import connection_settings
from mm2py.errors import ConfigError, Mm2pyError, ProtocolError, RetriableError, ServerError
from mm2py.mirror.offset_checks import hash_map_order, java_text
from mm2py.mirror.source_offsets import edited
from mm2py.observability.logging import some_of
from mm2py.protocol import error_codes as codes
from mm2py.protocol.groups import OffsetToCommit
from mm2py.runtime.errors import BadRequestError, HerderError
from mm2py.runtime.herder.api import JsonScalar, OffsetEditing, OffsetEntry
from mm2py.runtime.plugins.catalog import plugin_type
from mm2py.runtime.tasks.own_offsets import OwnOffsets
from mm2py.storage.connect_json import compact_json
from mm2py.storage.offset_backing_store import (
    Scalar,
    parse_offset_key,
    parse_offset_map,
    scalars_identity,
)
from mm2py.types import ClusterAlias, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

NOTHING_GIVEN: Final = "Partitions / offsets need to be provided for an alter offsets request"

CheckOffsets = Callable[
    [Mapping[str, str], Sequence[tuple[Mapping[str, Scalar] | None, Mapping[str, Scalar] | None]]],
    bool,
]


class StoredOffsets(Protocol):
    """What is needed of an offset store."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]: ...
    async def set(self, values: Mapping[bytes, bytes | None]) -> None: ...


@final
class OffsetEditor:
    """Reads, alters and resets the positions of source connectors.

    Args:
        store: where they are; started and stopped by its owner.
        find: returns the class of a connector, as ``Plugins.find``.
        own: opens the store over a connector's own topic, which counts before ``store``; None where
            the worker does not use them.
    """

    def __init__(
        self,
        store: StoredOffsets,
        find: Callable[[str], ConnectorFactory],
        own: Callable[[str], OwnOffsets] | None = None,
    ) -> None:
        self._store, self._find, self._own = store, find, own

    async def read(self, connector: str, config: Mapping[str, str], /) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector, sorted by their keys; ``HerderError``: the
        store cannot be read now."""
        entries: dict[object, OffsetEntry] = {}
        for key, value in sorted((await self._stored(connector, config)).items()):
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
        """Write positions and return the message of the answer; of two for one partition the last
        counts.

        Raises:
            BadRequestError: there is nothing to write, or the connector refuses it.
            HerderError: the store cannot be written now.
        """
        if not entries:
            raise BadRequestError(NOTHING_GIVEN)
        surely = _confirmed(self._find, config, entries)
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
        stored = await self._stored(connector, config)
        entries = [OffsetEntry(parse_offset_key(key)[1], None) for key in stored]
        surely = _confirmed(self._find, config, entries)
        await self._set(connector, config, dict.fromkeys(stored))
        log.info("positions removed connector=%s count=%d", connector, len(stored))
        return changed_text("reset", surely=surely)

    async def _set(
        self, connector: str, config: Mapping[str, str], values: Mapping[bytes, bytes | None]
    ) -> None:
        """Write to the worker's topic first: what is removed there cannot come back from it."""
        # Java's ``ConnectorOffsetBackingStore.set`` writes tombstones in this order for the same
        # reason (KAFKA-15018).
        await _now(connector, self._store.set(values))
        async with self._opened(config) as own:
            if own is not None:
                await _now(connector, own.set(values))

    async def _write(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        stored: dict[object, list[bytes]] = {}
        is_mirror = canonical_class(config.get("connector.class", "")) == MIRROR_SOURCE_CONNECTOR
        for key in await self._stored(connector, config):
            stored.setdefault(scalars_identity(parse_offset_key(key)[1]), []).append(key)
        values: dict[bytes, bytes | None] = {}
        for entry in entries:
            # The same partition in another writer's order would come back otherwise.
            values.update(dict.fromkeys(stored.get(scalars_identity(entry.partition), ())))
            offset = entry.offset
            # What was read here and is written unchanged must not look like a task's own position,
            # which does not set a copy back.
            if offset is not None and is_mirror:
                offset = edited(offset)
            values[_key(connector, entry.partition)] = (
                None if offset is None else compact_json(hash_map_order(offset))
            )
        await self._set(connector, config, values)
        # Java accepts any: a mistyped one would leave the position as it was, and say nothing.
        new = [
            java_text(it.partition)
            for it in entries
            if it.offset is not None and scalars_identity(it.partition) not in stored
        ]
        if new:
            log.warning(
                "positions were stored of partitions that had none connector=%s partitions=%s; "
                "they count where the connector has these partitions: compare cluster, topic and "
                "partition with GET .../offsets, and remove a mistyped one with offset null",
                connector,
                some_of(new, 5),
            )
        log.info("positions altered connector=%s count=%d", connector, len(entries))

    async def _stored(self, connector: str, config: Mapping[str, str]) -> Mapping[bytes, bytes]:
        stored = await _now(connector, self._store.entries(connector), "read")
        async with self._opened(config) as own:
            if own is None:
                return stored
            return {**stored, **await _now(connector, own.entries(connector), "read")}

    @asynccontextmanager
    async def _opened(self, config: Mapping[str, str]) -> AsyncGenerator[OwnOffsets | None]:
        """Open the connector's own topic, None where it has none."""
        topic = config.get("offsets.storage.topic", "").strip()
        own = self._own(topic) if topic and self._own is not None else None
        try:
            yield own
        finally:
            if own is not None:
                await own.close()


async def _now(connector: str, action: Awaitable[T], verb: str = "modify") -> T:
    try:
        return await action
    except RetriableError as error:
        raise HerderError(f"Failed to {verb} offsets for connector {connector}: {error}") from error


def _confirmed(
    find: Callable[[str], ConnectorFactory],
    config: Mapping[str, str],
    entries: Sequence[OffsetEntry],
) -> bool:
    """Ask the connector's own hook; Java's return false where they do not override it."""
    try:
        factory = find(config.get("connector.class", ""))
        check = cast("CheckOffsets | None", getattr(factory, "check_offsets", None))
        return check is not None and check(
            config, [(entry.partition, entry.offset) for entry in entries]
        )
    except ConfigError as error:
        # Java answers 500; the caller can mend it.
        raise BadRequestError(error.message, remedy=error.remedy) from error


def _key(connector: str, partition: Mapping[str, Scalar] | None) -> bytes:
    ordered = None if partition is None else hash_map_order(partition)
    return compact_json([connector, ordered])


def _check_primitive(members: Mapping[str, object] | None) -> None:
    for name, value in (members or {}).items():
        # A string is a Sequence in Python.
        if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
            kind = "MAP" if isinstance(value, Mapping) else "ARRAY"
            raise BadRequestError(
                "Offsets may only contain primitive types as values, but field"
                f" {name} contains {kind}"
            )


def changed_text(done: str, *, surely: bool) -> str:
    """Return Connect's answer; ``surely``: the connector confirms that the change takes effect."""
    if surely:
        return f"The offsets for this connector have been {done} successfully"
    return (
        f"The Connect framework-managed offsets for this connector have been {done} successfully."
        " However, if this connector manages offsets externally, they will need to be manually"
        f" {done} in the system that the connector uses."
    )


# ---- positions of sinks


TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
_DIGITS: Final = re.compile("[+-]?[0-9]{1,20}")
_HAS_MEMBERS: Final = frozenset(
    {codes.UNKNOWN_MEMBER_ID, codes.NON_EMPTY_GROUP, codes.GROUP_SUBSCRIBED_TO_TOPIC}
)

_Map = Mapping[str, JsonScalar]
Consumer = Mapping[str, str]
"""Properties of the consumer that the tasks have."""


class GroupOffsets(Protocol):
    """Administration of groups on one cluster."""

    async def offsets(self, group: str) -> Mapping[TopicPartition, int]: ...

    async def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None: ...

    async def remove(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Remove what a group has committed of these."""
        ...

    async def delete(self, group: str) -> None: ...


OpenGroups = Callable[[Consumer, str], AbstractAsyncContextManager[GroupOffsets]]
"""Opens them from a consumer's properties; the second names their owner, for messages."""


@final
class SinkOffsetEditor(OffsetEditing):
    """Implements ``OffsetEditing`` for sinks.

    Args:
        find: returns the class of a connector, as ``Plugins.find``.
        worker: config of the worker, resolved.
    """

    def __init__(
        self, find: Callable[[str], ConnectorFactory], worker: Mapping[str, str], groups: OpenGroups
    ) -> None:
        self._find, self._worker, self._groups = find, worker, groups

    async def read(self, connector: str, config: Mapping[str, str], /) -> Sequence[OffsetEntry]:
        """Return what the group has committed, sorted by topic and partition; ``HerderError``: the
        cluster cannot be asked now."""
        consumer = self._consumer(config)
        try:
            async with self._groups(consumer, connector) as groups:
                offsets = await groups.offsets(consumer["group.id"])
        except Mm2pyError as error:
            raise HerderError(
                f"Failed to list offsets for connector {connector}: {error}"
            ) from error
        return [
            OffsetEntry({TOPIC: tp.topic, PARTITION: tp.partition}, {OFFSET: offset})
            for tp, offset in sorted(offsets.items())
        ]

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> str:
        """Commit positions, or remove them, and return the message of the answer.

        Raises:
            BadRequestError: there is nothing to write, or an entry is wrong.
            HerderError: the cluster refuses it, or a task is still in the group.
        """
        if not entries:
            raise BadRequestError(NOTHING_GIVEN)
        positions = dict(map(_parsed, entries))
        negative = next(
            (position for position in positions.values() if position is not None and position < 0),
            None,
        )
        if negative is not None:
            raise HerderError(
                f"Failed to modify offsets for sink connector {connector}: {negative} is no offset"
            )
        surely = _confirmed(self._find, config, entries)
        consumer = self._consumer(config)
        group = consumer["group.id"]
        with_offset = {tp: offset for tp, offset in positions.items() if offset is not None}
        without = [tp for tp, offset in positions.items() if offset is None]
        try:
            # Commit before removal, as Java; each is one request for the group.
            async with self._groups(consumer, connector) as groups:
                if with_offset:
                    await groups.commit(group, with_offset)
                if without:
                    await groups.remove(group, without)
        except Mm2pyError as error:
            raise _failed("alter consumer group offsets", connector, error) from error
        log.info(
            "positions altered connector=%s group=%s count=%d", connector, group, len(positions)
        )
        return changed_text("altered", surely=surely)

    async def reset(self, connector: str, config: Mapping[str, str]) -> str:
        """Delete the group and return the message of the answer; errors as of ``alter``."""
        surely = _confirmed(self._find, config, ())
        consumer = self._consumer(config)
        group = consumer["group.id"]
        try:
            async with self._groups(consumer, connector) as groups:
                await groups.delete(group)
        except Mm2pyError as error:
            raise _failed("reset consumer group offsets", connector, error) from error
        log.info("positions removed connector=%s group=%s", connector, group)
        return changed_text("reset", surely=surely)

    def _consumer(self, config: Mapping[str, str]) -> Consumer:
        factory = self._find(config.get("connector.class", ""))
        own: Callable[[Mapping[str, str]], Consumer] | None = getattr(
            factory, "consumer_properties", None
        )
        return sink_consumer_properties(
            self._worker, config, source=None if own is None else own(config)
        )


def _failed(what: str, connector: str, error: Mm2pyError) -> HerderError:
    text = f"Failed to {what} for connector {connector}"
    if isinstance(error, ServerError) and error.code in _HAS_MEMBERS:
        return HerderError(
            f"{text} either because its tasks haven't stopped completely yet or the connector was "
            "resumed before the request could be successfully completed. If the connector is in a "
            "stopped state, this operation can be safely retried. If it doesn't eventually "
            "succeed, the worker with the zombie sink task has to be restarted."
        )
    return HerderError(f"{text}: {error}")


def _parsed(entry: OffsetEntry) -> tuple[TopicPartition, int | None]:
    """``SinkUtils.parseSinkConnectorOffsets``."""
    partition, offset = entry.partition, entry.offset
    if partition is None:
        raise BadRequestError("The partition for a sink connector offset cannot be null or missing")
    if TOPIC not in partition or PARTITION not in partition:
        raise BadRequestError(
            f"The partition for a sink connector offset must contain the keys '{TOPIC}' and "
            f"'{PARTITION}'"
        )
    if partition[TOPIC] is None:
        raise BadRequestError("Kafka topic names must be valid strings and may not be null")
    if partition[PARTITION] is None:
        raise BadRequestError("Kafka partitions must be valid numbers and may not be null")
    number = _integer(partition[PARTITION], "partition", "Partition", bits=32)
    tp = TopicPartition(str(partition[TOPIC]), number)
    if offset is None:
        return tp, None
    if OFFSET not in offset:
        raise BadRequestError(
            f"The offset for a sink connector should either be null or contain the key '{OFFSET}'"
        )
    return tp, _integer(offset[OFFSET], "offset", "Offset", bits=64)


def _integer(value: JsonScalar, what: str, name: str, *, bits: int) -> int:
    """``Integer.parseInt`` and ``Long.parseLong``: too large a number is none."""
    text = "null" if value is None else str(value)
    most = 1 << (bits - 1)
    if _DIGITS.fullmatch(text) and -most <= int(text) < most:
        return int(text)
    raise BadRequestError(
        f"Failed to parse the following Kafka {what} value in the provided offsets: '{text}'. "
        f"{name} values for sink connectors need to be integers."
    )


def editor_by_type(
    find: Callable[[str], ConnectorFactory], source: OffsetEditor, sink: SinkOffsetEditor
) -> Callable[[Mapping[str, str]], OffsetEditing]:
    """Return what chooses the editor of a connector by its config."""

    def editor(config: Mapping[str, str]) -> OffsetEditing:
        try:
            kind = plugin_type(find(config.get("connector.class", "")))
        except ConfigError:
            kind = "source"  # its stored positions can be read whatever is installed
        return sink if kind == "sink" else source

    return editor


@final
class _KafkaGroups(GroupOffsets):
    """Implements ``GroupOffsets`` over connections of its own."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    async def offsets(self, group: str) -> Mapping[TopicPartition, int]:
        committed = (await self._admin.committed([group]))[group]
        if isinstance(committed, Mm2pyError):
            raise committed
        # -1: no committed offset.
        return {tp: it.offset for tp, it in committed.items() if it.offset >= 0}

    async def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        commits = [OffsetToCommit(*tp, offset) for tp, offset in positions.items()]
        # Per partition: OffsetCommit answers each on its own.
        for error in (await self._admin.commit(group, commits)).values():
            if error is not None:
                raise error

    async def remove(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        await self._admin.delete_offsets(group, partitions)

    async def delete(self, group: str) -> None:
        await self._admin.delete(group)


def kafka_groups(clock: Clock) -> OpenGroups:
    """Return what opens groups on real clusters."""

    @asynccontextmanager
    async def open_groups(consumer: Consumer, connector: str) -> AsyncGenerator[GroupOffsets]:
        settings = connection_settings(consumer, scope=f"consumer of {connector}")
        async with closing(Cluster(settings, alias=ClusterAlias("source"), clock=clock)) as cluster:
            await cluster.connect()
            yield _KafkaGroups(GroupAdmin(cluster))

    return open_groups
