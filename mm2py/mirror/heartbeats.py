"""The heartbeat record: who mirrors to whom, and when (Java's ``Heartbeat``).

Flow: ``Heartbeat`` <-> key and value bytes of the ``heartbeats`` topic, partition 0. The record's
timestamp is the value's. Writing it is the heartbeat connector's job.
"""

import struct
from dataclasses import dataclass
from typing import Final

from mm2py.errors import ProtocolError
from mm2py.mirror.kafka_struct import decode_string, encode_string

HEARTBEAT_VERSION: Final = 0
_VALUE: Final = struct.Struct(">hq")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One beat of the flow ``source_alias`` to ``target_alias``."""

    source_alias: str
    target_alias: str
    timestamp_ms: int


def encode_heartbeat(heartbeat: Heartbeat) -> tuple[bytes, bytes]:
    """Return key and value."""
    key = encode_string(heartbeat.source_alias) + encode_string(heartbeat.target_alias)
    return key, _VALUE.pack(HEARTBEAT_VERSION, heartbeat.timestamp_ms)


def decode_heartbeat(key: bytes, value: bytes) -> Heartbeat:
    """Read a heartbeat; ``ProtocolError`` for short records and unknown versions."""
    source_alias, position = decode_string(key, 0)
    target_alias, _ = decode_string(key, position)
    if len(value) < _VALUE.size:
        raise ProtocolError(f"heartbeat value has {len(value)} bytes, expected {_VALUE.size}")
    version, timestamp_ms = _VALUE.unpack_from(value)
    if version != HEARTBEAT_VERSION:
        raise ProtocolError(f"heartbeat of unknown version {version}")
    return Heartbeat(source_alias, target_alias, timestamp_ms)
