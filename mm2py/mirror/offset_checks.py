"""Validates source offsets that are set over REST for a mirror connector (Java's
``MirrorUtils.validate...``).

Flow: partitions and offsets of a request -> the first invalid one as ``ConfigError``, in Java's
words. A removal is always valid, for any partition: malformed entries must be removable. Maps are
ordered and printed as Java does: Java's workers find stored offsets by the bytes of their keys, so
the order of a ``HashMap`` is part of the format.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar, cast

from mm2py.errors import ConfigError
from mm2py.protocol.consumer_offsets import java_hash

V = TypeVar("V")


def hash_map_order(members: Mapping[str, V]) -> dict[str, V]:
    """Return the members in the iteration order of a ``HashMap``."""
    return {name: members[name] for name in _by_bucket(members, _grown(16, len(members)))}


def described_order(listed: Sequence[str], chosen: Callable[[str], bool]) -> list[str]:
    """Return topics in the order in which ``MirrorSourceConnector.findSourceTopicPartitions`` deals
    them (Java 17).

    Java puts them through five hash tables, each of which sorts by the low bits of the names'
    hashes and keeps the order before where these are equal: ``listTopics``, ``Collectors.toSet``,
    the futures of ``describeTopics``, their copy, ``DescribeTopicsResult.allTopicNames``. A bucket
    that ever has eight names becomes a tree in Java, which may order these eight differently; of a
    thousand numbered names that is one list in twenty.

    Args:
        listed: all topics, in the order of the Metadata response.
        chosen: whether one is replicated.
    """
    names = _by_bucket(listed, _grown(16, len(listed)))
    names = [it for it in names if chosen(it)]
    sized = _grown(_power_of_two(len(names)), len(names))
    # ``HashMap(Map)`` sizes its table by size / 0.75 + 1, one that grows by puts doubles from 16.
    copied = _power_of_two(int(len(names) / 0.75 + 1))
    for capacity in (_grown(16, len(names)), sized, copied, sized):
        names = _by_bucket(names, capacity)
    return names


def java_text(value: object) -> str:
    """Return a value as ``String.valueOf`` prints it; maps in the order of a ``HashMap``."""
    if value is None:
        return "null"
    # Before ``int``, of which Python's bool is a subclass.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return _members_text(cast("Mapping[object, object]", value).items())
    return str(value)


def _members_text(members: Iterable[tuple[object, object]]) -> str:
    by_name = hash_map_order({str(name): value for name, value in members})
    return "{" + ", ".join(f"{name}={java_text(value)}" for name, value in by_name.items()) + "}"


def _by_bucket(names: Iterable[str], capacity: int) -> list[str]:
    """Return names in the order of a ``HashMap``'s buckets; within one, as they were put in."""

    def bucket(name: str) -> int:
        value = java_hash(name)
        # ``HashMap.hash`` spreads the upper half into the bucket index; ``java_hash`` is unsigned
        # here, so >> is Java's >>>.
        return (value ^ (value >> 16)) & (capacity - 1)

    return sorted(names, key=bucket)


def _grown(capacity: int, size: int) -> int:
    """Return the capacity of a table that had ``capacity`` and took ``size`` members."""
    while size > capacity * 3 // 4:
        capacity *= 2
    return capacity


def _power_of_two(size: int) -> int:
    """``HashMap.tableSizeFor``."""
    return 1 << max(0, size - 1).bit_length()


Positions = Sequence[tuple[Mapping[str, object] | None, Mapping[str, object] | None]]
"""Source partitions with the offsets to be stored; no offset removes one."""

INT32_MAX: Final = 2**31 - 1


def _check(
    positions: Positions, *, texts: Sequence[str], of_partition: bool, only_zero: bool
) -> bool:
    """Return True, which means that they take effect; ``ConfigError``: one has the wrong form."""
    for partition, offset in positions:
        if offset is None:
            continue
        if partition is None:
            raise ConfigError("Source partitions may not be null")
        for key in texts:
            if not isinstance(_member(partition, key), str):
                raise _invalid_partition(partition, key, "which must be a string")
        if of_partition:
            _check_partition_number(partition)
        _check_offset(partition, offset, only_zero=only_zero)
    return True


check_mirror_offsets: Final = partial(
    _check, texts=("cluster", "topic"), of_partition=True, only_zero=False
)
check_checkpoint_offsets: Final = partial(
    _check, texts=("group", "topic"), of_partition=True, only_zero=True
)
check_heartbeat_offsets: Final = partial(
    _check, texts=("sourceClusterAlias", "targetClusterAlias"), of_partition=False, only_zero=True
)


def _check_partition_number(partition: Mapping[str, object]) -> None:
    value = _member(partition, "partition")
    # JSON's true is no integer in Java; it would be one in Python.
    if isinstance(value, bool) or not isinstance(value, int) or value > INT32_MAX:
        raise _invalid_partition(partition, "partition", "which must be an integer")
    if value < 0:
        raise _invalid_partition(partition, "partition", "which cannot be negative")


def _member(partition: Mapping[str, object], key: str) -> object:
    if key not in partition:
        raise ConfigError(
            f"Source partition {java_text(partition)} is missing the '{key}' key, which is required"
        )
    return partition[key]


def _invalid_partition(partition: Mapping[str, object], key: str, must: str) -> ConfigError:
    return ConfigError(
        f"Source partition {java_text(partition)} has an invalid value {java_text(partition[key])} "
        f"for the '{key}' key, {must}"
    )


def _check_offset(
    partition: Mapping[str, object], offset: Mapping[str, object], *, only_zero: bool
) -> None:
    subject = f"Source offset {java_text(offset)} for source partition {java_text(partition)}"
    if "offset" not in offset:
        raise ConfigError(f"{subject} is missing the 'offset' key, which is required")
    value = offset["offset"]
    invalid = f"{subject} has an invalid value {java_text(value)} for the 'offset' key"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{invalid}, which must be an integer")
    if only_zero and value != 0:
        raise ConfigError(f"{invalid}; the only accepted value is 0")
    if value < 0:
        raise ConfigError(f"{invalid}, which cannot be negative")
