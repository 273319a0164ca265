"""The checkpoint record: where a group of the source would continue on the target (Java's ``Checkpoint``).

Flow: ``Checkpoint`` <-> key and value bytes of ``<source>.checkpoints.internal``, partition 0. The record's
timestamp is the wall clock of its poll. What is written when is ``MirrorCheckpointTask``'s.
"""

import struct
from typing import Final, NamedTuple

from mm2py.errors import ProtocolError
from mm2py.mirror.kafka_struct import decode_string, encode_string
from mm2py.types import TopicPartition

CHECKPOINT_VERSION: Final = 0

_PARTITION: Final = struct.Struct(">i")
_VALUE: Final = struct.Struct(">hqq")


class Checkpoint(NamedTuple):
    """``group`` has read to ``upstream`` on the source, which is ``downstream`` of ``partition`` on the target."""

    group: str
    partition: TopicPartition
    """Of the target: its topic name there."""
    upstream: int
    downstream: int
    metadata: str


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Return key and value; ``ProtocolError`` for a text of more than 32 KiB."""
    key = encode_string(checkpoint.group) + encode_string(checkpoint.partition.topic)
    value = _VALUE.pack(CHECKPOINT_VERSION, checkpoint.upstream, checkpoint.downstream)
    return (
        key + _PARTITION.pack(checkpoint.partition.partition),
        value + encode_string(checkpoint.metadata),
    )


def decode_checkpoint(key: bytes, value: bytes) -> Checkpoint:
    """Read a checkpoint; ``ProtocolError`` for short records and unknown versions."""
    group, position = decode_string(key, 0)
    topic, position = decode_string(key, position)
    if len(key) < position + _PARTITION.size or len(value) < _VALUE.size:
        raise ProtocolError(f"checkpoint is short: key={len(key)} value={len(value)} bytes")
    (partition,) = _PARTITION.unpack_from(key, position)
    version, upstream, downstream = _VALUE.unpack_from(value)
    if version != CHECKPOINT_VERSION:
        raise ProtocolError(f"checkpoint of unknown version {version}")
    metadata, _ = decode_string(value, _VALUE.size)
    return Checkpoint(group, TopicPartition(topic, partition), upstream, downstream, metadata)
