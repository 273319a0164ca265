"""Which positions somebody may store for a mirror connector by hand (Java's ``MirrorUtils.validate...``).

Flow: partitions and offsets of a request -> the first that is wrong as ``ConfigError``, in Java's words.
A removal is always fine, whatever its partition looks like: rubbish must be removable.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mm2py.errors import ConfigError
from mm2py.mirror.java_maps import java_text

Positions = Sequence[tuple[Mapping[str, object] | None, Mapping[str, object] | None]]
"""Source partitions with the offsets to be stored; no offset removes one."""

INT32_MAX: Final = 2**31 - 1


def check_mirror_offsets(positions: Positions) -> bool:
    """Check positions of a MirrorSourceConnector; they take effect for certain.

    Raises:
        ConfigError: one has the wrong form.
    """
    return _check(positions, "cluster", "topic", of_partition=True, only_zero=False)


def check_checkpoint_offsets(positions: Positions) -> bool:
    """Check positions of a MirrorCheckpointConnector, whose offset is always 0.

    Raises:
        ConfigError: one has the wrong form.
    """
    return _check(positions, "group", "topic", of_partition=True, only_zero=True)


def check_heartbeat_offsets(positions: Positions) -> bool:
    """Check positions of a MirrorHeartbeatConnector, whose offset is always 0.

    Raises:
        ConfigError: one has the wrong form.
    """
    texts = ("sourceClusterAlias", "targetClusterAlias")
    return _check(positions, *texts, of_partition=False, only_zero=True)


def _check(positions: Positions, *texts: str, of_partition: bool, only_zero: bool) -> bool:
    for partition, offset in _to_store(positions):
        for key in texts:
            _check_text(partition, key)
        if of_partition:
            _check_partition_number(partition)
        _check_offset(partition, offset, only_zero=only_zero)
    return True


def _to_store(
    positions: Positions,
) -> Iterator[tuple[Mapping[str, object], Mapping[str, object]]]:
    for partition, offset in positions:
        if offset is None:
            continue
        if partition is None:
            raise ConfigError("Source partitions may not be null")
        yield partition, offset


def _check_text(partition: Mapping[str, object], key: str) -> None:
    if not isinstance(_member(partition, key), str):
        raise _invalid_partition(partition, key, "which must be a string")


def _check_partition_number(partition: Mapping[str, object]) -> None:
    value = _member(partition, "partition")
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
        f"Source partition {java_text(partition)} has an invalid value {java_text(partition[key])} for"
        f" the '{key}' key, {must}"
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
