"""Records of ``__consumer_offsets``: which group committed what (Kafka's ``GroupCoordinatorRecordHelpers``).

Flow: key and value bytes of one record -> ``decode_offset_commit`` -> ``GroupCommit``. Only offset commits are
read (key versions 0 and 1); members and metadata of groups (2 and above) are skipped.
"""

import struct
from typing import Final, NamedTuple

from mm2py.errors import ProtocolError
from mm2py.protocol.groups import FetchedOffset
from mm2py.types import TopicPartition

CONSUMER_OFFSETS: Final = "__consumer_offsets"

_OFFSET_KEYS: Final = (0, 1)
_NEWEST_VALUE: Final = 4
_FLEXIBLE: Final = 4

_SMALLEST: Final = 1 << 31
"""Java's smallest integer, without its sign."""

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class GroupCommit(NamedTuple):
    """What one record says of a group's offset."""

    group: str
    partition: TopicPartition
    offset: FetchedOffset | None
    """None where the offset was deleted or expired."""


def decode_offset_commit(key: bytes, value: bytes | None) -> GroupCommit | None:
    """Read a record; None for those that are no offset commits.

    Raises:
        ProtocolError: the record is short, or newer than what is known here.
    """
    if len(key) < _SHORT.size:
        raise ProtocolError(f"key of {len(key)} bytes in {CONSUMER_OFFSETS}")
    if _SHORT.unpack_from(key)[0] not in _OFFSET_KEYS:
        return None
    try:
        group, at = _text(key, _SHORT.size)
        topic, at = _text(key, at)
        (partition,) = _INT.unpack_from(key, at)
        tp = TopicPartition(topic, partition)
        return GroupCommit(group, tp, None if value is None else _offset(tp, value))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"record of {CONSUMER_OFFSETS} cannot be read: {error}") from error


def _offset(tp: TopicPartition, value: bytes) -> FetchedOffset:
    (version,) = _SHORT.unpack_from(value)
    if not 0 <= version <= _NEWEST_VALUE:
        raise ProtocolError(f"offset commit of unknown version {version}")
    (offset,) = _LONG.unpack_from(value, 2)
    epoch, at = -1, 10
    if version >= 3:
        (epoch,) = _INT.unpack_from(value, at)
        at += _INT.size
    metadata = _compact_text(value, at) if version >= _FLEXIBLE else _text(value, at)[0]
    return FetchedOffset(tp.topic, tp.partition, offset, epoch, metadata, 0)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    begin = at + _SHORT.size
    if length < 0 or begin + length > len(data):
        raise ProtocolError(f"text of length {length} at byte {at} of {len(data)}")
    return data[begin : begin + length].decode(), begin + length


def _compact_text(data: bytes, at: int) -> str:
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if not size or at + size - 1 > len(data):
        raise ProtocolError(f"compact text of length {size - 1} at byte {at} of {len(data)}")
    return data[at : at + size - 1].decode()


def offsets_partition(group: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` that a group's records are in.

    That is Java's ``Utils.abs(groupId.hashCode()) % partitions``; the ``abs`` of the smallest integer is 0.
    """
    value = 0
    units = group.encode("utf-16-be", errors="surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value == _SMALLEST:
        return 0
    return (value if value < _SMALLEST else (1 << 32) - value) % partitions
