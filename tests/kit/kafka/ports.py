"""Free ports of the loopback interface, and the question whether a broker answers on one.

Ports are taken below the range from which the kernel gives out ports for outgoing connections: a client
that keeps trying the port of a dead broker could otherwise be given that very port, and block it.
"""

import random
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from mm2py.errors import ConfigError

HOST: Final = "127.0.0.1"
_LOWEST: Final = 14_000
_DEFAULT_EPHEMERAL: Final = 32_768
_API_VERSIONS: Final = 18
_METADATA: Final = 3
_CORRELATION_ID: Final = 7
_CLIENT_ID: Final = b"mm2py-embedded"
_ANSWER_TIMEOUT_S: Final = 5.0

_given_lock = threading.Lock()
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, never one given out before by this process."""
    found: list[int] = []
    with _given_lock:
        for _ in range(1_000):
            # No secret: the choice only keeps two test runs on one machine apart.
            port = random.SystemRandom().randrange(_LOWEST, _first_ephemeral_port())
            if port not in _given and _can_bind(port):
                _given.add(port)
                found.append(port)
                if len(found) == count:
                    return found
    raise ConfigError(f"no {count} free ports on {HOST}", remedy="end some of what listens there")


def brokers_listed(port: int, cluster_id: str, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> int:
    """Return how many brokers the broker at ``port`` lists; 0 while it does not answer requests.

    An open port is not enough: a starting broker accepts connections before it serves them, lists
    itself only when the controller has let it in, and the port may be another cluster's (not asked with ``""``).
    """
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            api_versions = _ask(connection, _API_VERSIONS, 0, b"")
            if len(api_versions) < 2 or struct.unpack_from(">h", api_versions)[0] != 0:
                return 0
            # Metadata v2 with no topics.
            found, count = _cluster(_ask(connection, _METADATA, 2, struct.pack(">i", 0)))
            return count if cluster_id in ("", found) else 0
    except (OSError, struct.error):
        return 0


def _cluster(answer: bytes) -> tuple[str, int]:
    """Return cluster id and number of brokers of a Metadata v2 response."""
    (count,) = struct.unpack_from(">i", answer)
    position = 4
    for _ in range(count):
        position += 4  # node id
        _, position = _string(answer, position)  # host
        position += 4  # port
        _, position = _string(answer, position)  # rack
    return _string(answer, position)[0], count


def _string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    start = position + 2
    end = start + max(size, 0)  # -1: null
    return data[start:end].decode(), end


def _ask(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    request = header + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size)[4:]


def _receive(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("closed in mid-answer")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return max(int(text.split()[0]), _LOWEST + 1_000)
    except (OSError, ValueError, IndexError):
        return _DEFAULT_EPHEMERAL
