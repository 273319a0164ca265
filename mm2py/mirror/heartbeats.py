"""The heartbeat record: source, target and time (Java's ``Heartbeat``).

Flow: ``Heartbeat`` -> key and value bytes of the ``heartbeats`` topic, partition 0. The record's
timestamp is the value's. Writing it is the heartbeat connector's job.
"""

import struct
from dataclasses import dataclass
from typing import Final

from mm2py.protocol.wire import record_string

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
    key = record_string(heartbeat.source_alias) + record_string(heartbeat.target_alias)
    return key, _VALUE.pack(HEARTBEAT_VERSION, heartbeat.timestamp_ms)
