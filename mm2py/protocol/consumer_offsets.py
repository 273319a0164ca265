"""Records of ``__consumer_offsets``: committed offsets of groups (Kafka's
``GroupCoordinatorRecordHelpers``).

Flow: key and value bytes of one record -> ``decode_offset_commit`` -> ``GroupCommit``. Only offset
commits are read (key versions 0 and 1); members and metadata of groups (2 and above) are skipped.
"""

import struct
from typing import Final, NamedTuple

from mm2py.errors import ProtocolError
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.wire import INT16, INT32, read_compact_string, read_record_string
from mm2py.types import TopicPartition

CONSUMER_OFFSETS: Final = "__consumer_offsets"

_OFFSET_KEYS: Final = (0, 1)
_NEWEST_VALUE: Final = 4
_FLEXIBLE: Final = 4

_SMALLEST: Final = 1 << 31
"""Java's smallest integer, without its sign."""

_LONG: Final = struct.Struct(">q")


class GroupCommit(NamedTuple):
    """One record: the offset that a group committed."""

    group: str
    partition: TopicPartition
    offset: FetchedOffset | None
    """None where the offset was deleted or expired."""


def decode_offset_commit(key: bytes, value: bytes | None) -> GroupCommit | None:
    """Read a record; None for those that are not offset commits.

    Raises:
        ProtocolError: the record is short, or of a newer version than this program reads.
    """
    if len(key) < INT16.size:
        raise ProtocolError(f"key of {len(key)} bytes in {CONSUMER_OFFSETS}")
    # Key version 2 and above: metadata of groups, and those of KIP-848.
    if INT16.unpack_from(key)[0] not in _OFFSET_KEYS:
        return None
    try:
        group, at = read_record_string(key, INT16.size)
        topic, at = read_record_string(key, at)
        (partition,) = INT32.unpack_from(key, at)
        tp = TopicPartition(topic, partition)
        # A tombstone: the coordinator expired or deleted the offset.
        return GroupCommit(group, tp, None if value is None else _offset(tp, value))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"record of {CONSUMER_OFFSETS} cannot be read: {error}") from error


def _offset(tp: TopicPartition, value: bytes) -> FetchedOffset:
    (version,) = INT16.unpack_from(value)
    if not 0 <= version <= _NEWEST_VALUE:
        raise ProtocolError(f"offset commit of unknown version {version}")
    (offset,) = _LONG.unpack_from(value, 2)
    epoch, at = -1, 10
    # v3 has the leader epoch (KIP-320); the times follow behind what is read.
    if version >= 3:
        (epoch,) = INT32.unpack_from(value, at)
        at += INT32.size
    if version < _FLEXIBLE:
        metadata: str | None = read_record_string(value, at)[0]
    else:
        metadata, _ = read_compact_string(memoryview(value), at)
    if metadata is None:
        raise ProtocolError(f"offset commit of {tp} has no metadata")
    return FetchedOffset(tp.topic, tp.partition, offset, epoch, metadata, 0)


def offsets_partition(group: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` that a group's records are in.

    That is Java's ``Utils.abs(groupId.hashCode()) % partitions``; the ``abs`` of the smallest
    integer is 0.
    """
    value = java_hash(group)
    if value == _SMALLEST:
        return 0
    return (value if value < _SMALLEST else (1 << 32) - value) % partitions


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` as an unsigned number: over UTF-16 units, not code
    points."""
    value = 0
    units = text.encode("utf-16-be", errors="surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value
