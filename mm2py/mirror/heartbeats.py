"""The heartbeat record: source, target and time (Java's ``Heartbeat``).

Flow: the heartbeat connector -> key and value bytes of the ``heartbeats`` topic, partition 0. The
record's timestamp is the value's.
"""

import struct
from typing import Final

from mm2py.protocol.wire import record_string

HEARTBEAT_VERSION: Final = 0
_VALUE: Final = struct.Struct(">hq")


def encode_heartbeat(source: str, target: str, timestamp_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of one beat of the flow from ``source`` to ``target``."""
    return record_string(source) + record_string(target), _VALUE.pack(
        HEARTBEAT_VERSION, timestamp_ms
    )
