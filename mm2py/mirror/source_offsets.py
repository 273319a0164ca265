"""Source offsets of connectors in Connect's JSON, byte for byte as Java writes them.

Flow: connector name + source partition <-> key; offset <-> value, of
``mm2-offsets.<source>.internal``. Java's worker looks keys up by their bytes, whose member order is
that of a ``HashMap``, so keys are written in that order and read by content. The store itself is in
mm2py.storage.
"""

import json
from collections.abc import Mapping
from typing import Final, TypeVar, cast

from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.errors import PartitionError, ProtocolError
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition

NO_EPOCH: Final = -1
_LAST_OFFSET: Final = (1 << 63) - 2
_TIED: Final = ("epoch", "topic_id")
T = TypeVar("T")
WRITE_OFFSET: Final = (
    "stop the connector, write the offset with PATCH .../offsets (null: as if "
    "none was stored), and resume it"
)

PartitionIdentity = frozenset[tuple[str, str | int]]
"""A source partition without its member order."""


def mirror_source_partition(source_alias: str, partition: TopicPartition) -> SourcePartition:
    """Return the source partition of a mirrored partition, in Java's member order."""
    # The iteration order of a HashMap with these three keys; Java's worker would not find another
    # order's bytes.
    return {"cluster": source_alias, "partition": partition.partition, "topic": partition.topic}


def mirrored_partition(partition: SourcePartition) -> TopicPartition | None:
    """Return the Kafka partition of a key, None for the key of another kind of source."""
    topic, number = partition.get("topic"), partition.get("partition")
    if isinstance(topic, str) and isinstance(number, int):
        return TopicPartition(topic, number)
    return None


def checkpoint_source_partition(group: str, partition: TopicPartition) -> SourcePartition:
    """Return the source partition of the checkpoints of a group; ``partition`` as the target names
    it."""
    return {"partition": partition.partition, "topic": partition.topic, "group": group}


def checkpoint_of(partition: SourcePartition) -> tuple[str, TopicPartition]:
    """Return group and partition of what ``checkpoint_source_partition`` made."""
    number = partition["partition"]
    assert isinstance(number, int)
    return str(partition["group"]), TopicPartition(str(partition["topic"]), number)


def heartbeat_source_partition(source_alias: str, target_alias: str) -> SourcePartition:
    """Return the source partition of the heartbeats of a flow."""
    return {"sourceClusterAlias": source_alias, "targetClusterAlias": target_alias}


def source_offset(
    offset: int, epoch: int = NO_EPOCH, topic_id: bytes = NO_TOPIC_ID
) -> SourceOffset:
    """Return the stored form of ``offset``, the last record that was copied, with its leader epoch
    and topic id.

    -1 is stored where the copy begins at offset 0 and nothing is copied yet. Java reads the
    ``offset`` alone, and takes -1 for none.
    """
    members: dict[str, str | int] = {"offset": offset}
    if epoch >= 0:
        members["epoch"] = f"{epoch}@{offset}"
    if topic_id != NO_TOPIC_ID:
        members["topic_id"] = f"{topic_id.hex()}@{offset}"
    return members


def next_offset(stored: SourceOffset | None) -> int:
    """Return the offset after the last copied one, where the copy continues; -1 where nothing
    usable is stored."""
    offset = stored.get("offset") if stored is not None else None
    # JSON's true would be offset 1 in Python.
    if not isinstance(offset, int) or isinstance(offset, bool):
        return -1
    # Java seeks only for offset >= 0 and reads from ``auto.offset.reset`` otherwise
    # (``MirrorSourceTask.isUncommitted``).
    return offset + 1 if -1 <= offset <= _LAST_OFFSET else -1


def not_a_position(partition: TopicPartition) -> PartitionError:
    """Return why a partition is not copied whose stored offset has no ``next_offset``: as if none
    was stored would double or skip records."""
    return PartitionError(
        "what is stored as its position is none",
        topic=partition.topic,
        partition=partition.partition,
        remedy=WRITE_OFFSET,
    )


def edited(offset: Mapping[str, T]) -> dict[str, T]:
    """Return a position that was set by hand, without what a task stores with its own."""
    return {name: member for name, member in offset.items() if name not in _TIED}


def committed_epoch(stored: SourceOffset | None) -> int:
    """Return the leader epoch of the last copied record, ``NO_EPOCH`` where it is not known.

    It names its offset: a position that was edited, or written by Java, has none.
    """
    epoch = _of_offset(stored, "epoch")
    return int(epoch) if epoch.isdecimal() else NO_EPOCH


def committed_topic_id(stored: SourceOffset | None) -> bytes:
    """Return the id of the topic that the last copied record is in, ``NO_TOPIC_ID`` where it is not
    known; as the epoch."""
    try:
        return bytes.fromhex(_of_offset(stored, "topic_id")) or NO_TOPIC_ID
    except ValueError:
        return NO_TOPIC_ID


def _of_offset(stored: SourceOffset | None, member: str) -> str:
    """Return what is stored of the offset that is stored beside it; empty for nothing."""
    text = str(stored.get(member, "")) if stored is not None else ""
    value, _, offset = text.partition("@")
    # Edited over REST (KIP-875) or by a Java worker: the offset moved, the member beside it did
    # not, so it is not about this record.
    return value if offset.isdecimal() and int(offset) + 1 == next_offset(stored) else ""


def source_offset_key(connector: str, partition: SourcePartition) -> bytes:
    """Return the record key: ``["name",{...}]`` without blanks."""
    return _dump([connector, dict(partition)])


def source_offset_value(offset: SourceOffset | None) -> bytes | None:
    """Return the record value; None is a tombstone (reset)."""
    return None if offset is None else _dump(dict(offset))


def parse_source_offset_key(key: bytes) -> tuple[str, SourcePartition]:
    """Read a key; ``ProtocolError`` if it is not a name and a flat map."""
    # Connectors of others share the topic: their partitions may be any flat map.
    connector, partition = offset_key_parts(key)
    return connector, _flat(partition, key, "key")


def offset_key_parts(key: bytes) -> tuple[str, object]:
    """Read a key of any connector: its name, and its partition as JSON has it; ``ProtocolError``:
    it is no such pair."""
    parsed = offset_json(key, "key")
    if isinstance(parsed, list):
        items = cast("list[object]", parsed)
        if len(items) == 2 and isinstance(items[0], str):
            return items[0], items[1]
    raise ProtocolError(f"source offset key {_shown(key)} is not a name and a partition")


def parse_source_offset_value(value: bytes | None) -> SourceOffset | None:
    """Read a value; None for a tombstone. What is no primitive in it is left out: a later version
    may have written it. ``ProtocolError``: it is no JSON object."""
    parsed = None if value is None else offset_json(value, "value")
    if value is None or parsed is None:
        return None
    members = offset_members(parsed, value, "value").items()
    return cast(
        "SourceOffset",
        {name: member for name, member in members if not isinstance(member, dict | list)},
    )


def partition_identity(partition: SourcePartition) -> PartitionIdentity:
    """Return what two keys with another member order have in common."""
    return frozenset(partition.items())


def _dump(value: object) -> bytes:
    # No blanks and no escapes of non-ASCII text: what Jackson writes.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def offset_json(data: bytes, what: str) -> object:
    """Read the key or value (``what``) of a source offset; ``ProtocolError``: it is no JSON."""
    try:
        return cast("object", json.loads(data))
    # Deeply nested JSON ends in a RecursionError, which is no ValueError.
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"source offset {what} {_shown(data)} is not JSON") from error


def offset_members(value: object, data: bytes, what: str) -> dict[str, object]:
    """Return the members of what ``offset_json`` read of ``data``; ``ProtocolError``: it is no
    map."""
    if not isinstance(value, dict):
        raise ProtocolError(f"source offset {what} {_shown(data)} is not a map")
    return cast("dict[str, object]", value)


def _flat(value: object, data: bytes, what: str) -> dict[str, str | int]:
    flat: dict[str, str | int] = {}
    for name, member in offset_members(value, data, what).items():
        # Python's bool is an int; Java's Boolean is no number.
        if isinstance(member, bool) or not isinstance(member, str | int):
            raise ProtocolError(
                f"source offset {what} {_shown(data)}: {name} is no text or integer"
            )
        flat[name] = member
    return flat


def _shown(data: bytes) -> str:
    return repr(data[:200])
