"""Checkpoints: where a group of the source would continue on the target (Java's ``Checkpoint``).

Flow: ``Checkpoint`` <-> key and value bytes of ``<source>.checkpoints.internal``, partition 0;
``read_checkpoints`` -> the newest by group and partition. The record's timestamp is the wall clock
of its poll. ``MirrorCheckpointTask`` decides when one is written.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from mm2py.client.fetch.log_reader import LogReader
from mm2py.errors import ProtocolError
from mm2py.protocol.records import Record
from mm2py.protocol.wire import read_record_string, record_string
from mm2py.types import TopicPartition

CHECKPOINT_VERSION: Final = 0
GROUP_STATES: Final = ("SYNCED", "BEHIND", "IN_USE", "NOT_SYNCED")
"""Of a group with a checkpoint, on the target: it is there; a newer one waits for its round; the
group has members; it is refused."""

_PARTITION: Final = struct.Struct(">i")
_VALUE: Final = struct.Struct(">hqq")


class Checkpoint(NamedTuple):
    """``group`` is at ``upstream`` on the source, which is ``downstream`` in ``partition`` on the
    target."""

    group: str
    partition: TopicPartition
    """Of the target: its topic name there."""
    upstream: int
    downstream: int
    metadata: str


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Return key and value; ``ProtocolError`` for a text of more than 32 KiB."""
    # Java's ``Checkpoint``: key group, topic, partition; value version, upstream, downstream,
    # metadata.
    key = record_string(checkpoint.group) + record_string(checkpoint.partition.topic)
    value = _VALUE.pack(CHECKPOINT_VERSION, checkpoint.upstream, checkpoint.downstream)
    return (
        key + _PARTITION.pack(checkpoint.partition.partition),
        value + record_string(checkpoint.metadata),
    )


def decode_checkpoint(key: bytes, value: bytes) -> Checkpoint:
    """Read a checkpoint; ``ProtocolError`` for short records and unknown versions."""
    group, position = read_record_string(key, 0)
    topic, position = read_record_string(key, position)
    if len(key) < position + _PARTITION.size or len(value) < _VALUE.size:
        raise ProtocolError(f"checkpoint is short: key={len(key)} value={len(value)} bytes")
    (partition,) = _PARTITION.unpack_from(key, position)
    version, upstream, downstream = _VALUE.unpack_from(value)
    if version != CHECKPOINT_VERSION:
        raise ProtocolError(f"checkpoint of unknown version {version}")
    metadata, _ = read_record_string(value, _VALUE.size)
    return Checkpoint(group, TopicPartition(topic, partition), upstream, downstream, metadata)


async def read_checkpoints(
    log: LogReader, is_read: Callable[[str], bool] = lambda _: True
) -> dict[str, dict[TopicPartition, Checkpoint]]:
    """Return the newest checkpoints by group and partition of the target, of the groups that
    ``is_read`` selects; damaged records are skipped.

    Raises:
        RetriableError, ServerError: as ``LogReader.read_to_end``.
    """
    # The topic is compacted, with several versions of a key until the cleaner has run: the last one
    # read counts.
    newest: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def take(_partition: int, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        try:
            checkpoint = decode_checkpoint(record.key, record.value)
        except ProtocolError:
            return
        if is_read(checkpoint.group):
            newest.setdefault(checkpoint.group, {})[checkpoint.partition] = checkpoint

    await log.read_to_end(take)
    return newest
