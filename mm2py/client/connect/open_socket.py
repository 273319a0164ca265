"""The way to a broker: a tuned TCP socket, and the two ways to write to it.

Flow: ``connect_socket`` -> ``BrokerConnection`` -> ``SocketWriter`` (``sendmsg``, nothing copied) or,
under TLS, ``TransportWriter`` -> broker. Frames and answers are ``connection``'s.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol, final

from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError

__all__ = [
    "AddressTurn",
    "Buffer",
    "SocketWriter",
    "TransportWriter",
    "Writer",
    "connect_socket",
    "reason_of",
]

Buffer = bytes | bytearray | memoryview

_IOVEC_PARTS: Final = 512
"""Buffers per ``sendmsg``; Linux refuses more than 1024 (``IOV_MAX``)."""


class Writer(Protocol):
    """Takes framed requests; what the peer does not take at once waits inside."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        ...

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write; the parts must stay unchanged until the request is answered."""
        ...

    def close(self) -> None:
        """Forget what waits."""
        ...


@final
class SocketWriter:
    """Writes iovecs through a second descriptor of the socket that the transport reads from.

    A transport of Python 3.11 joins what ``writelines`` gets into one copy.
    """

    def __init__(self, sock: socket.socket, on_error: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = os.dup(sock.fileno())
        self._on_error = on_error
        self._unsent: deque[Buffer] = deque()
        self._closed = self._broken = False

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self._unsent))

    def write(self, parts: Sequence[Buffer]) -> None:
        """Hand as much as possible to the kernel and queue the rest."""
        if self._unsent:
            self._unsent.extend(parts)
            return
        if len(parts) <= _IOVEC_PARTS:
            sent = self._sendmsg(parts)
            if sent == sum(map(len, parts)):
                return
            self._unsent.extend(parts)
            self._consume(sent)
        else:
            self._unsent.extend(parts)
        if not self._broken and not self._closed:
            self._loop.add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Forget what waits and close the descriptor; safe twice."""
        if not self._closed:
            self._closed = True
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
        self._unsent.clear()

    def _flush(self) -> None:
        self._consume(self._sendmsg(tuple(islice(self._unsent, _IOVEC_PARTS))))
        if not self._unsent and not self._broken:
            self._loop.remove_writer(self._fd)

    def _sendmsg(self, parts: Sequence[Buffer]) -> int:
        try:
            return self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            # The connection ends in the next loop round at the latest; until then nothing is tried.
            if not self._broken:
                self._broken = True
                self._loop.remove_writer(self._fd)
            self._on_error(reason_of(error))
            return 0

    def _consume(self, sent: int) -> None:
        unsent = self._unsent
        while sent:
            size = len(unsent[0])
            if sent < size:
                unsent[0] = memoryview(unsent[0])[sent:]
                return
            sent -= size
            unsent.popleft()
        while unsent and not len(unsent[0]):
            unsent.popleft()


@final
class TransportWriter:
    """Writes through a TLS transport; parts are joined, for each one would become a record of its own."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def write(self, parts: Sequence[Buffer]) -> None:
        """Encrypt and write."""
        self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """The transport forgets by itself."""


def reason_of(error: Exception | None) -> str:
    """Say in a few words why a connection ended, without its address."""
    if error is None:
        return "closed by the broker"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and error.errno and not hasattr(error, "reason"):
        # asyncio puts the address into the text that the caller has already.
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


@final
class AddressTurn:
    """Which address of a host name the next attempt begins with; kept between attempts."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed = 0

    def pass_on(self) -> None:
        """The present address failed."""
        self._passed += 1

    def index(self, count: int) -> int:
        """Return the present one of ``count`` addresses."""
        return self._passed % count


async def connect_socket(
    host: str, port: int, settings: ConnectionSettings, turn: AddressTurn
) -> socket.socket:
    """Try the addresses of ``host`` in turn (``client.dns.lookup=use_all_dns_ips``).

    Each gets its part of ``socket.connection.setup.timeout.ms``: one that drops packets must not use all
    of it. The first one tried is the one that worked last.

    Raises:
        ConnectionFailedError: none of them accepts.
    """
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionFailedError(
            f"{host}:{port} cannot be resolved: {reason_of(error)}",
            remedy="check bootstrap.servers and the brokers' advertised.listeners",
        ) from None
    count = len(addresses)
    part_s = settings.socket_connection_setup_timeout_ms / 1000 / count if count > 1 else None
    problem = "no address"
    for _ in addresses:
        family, kind, protocol, _, address = addresses[turn.index(count)]
        try:
            async with asyncio.timeout(part_s):
                return await _connected(family, kind, protocol, address, settings)
        except TimeoutError:
            problem = f"no answer within {1000 * (part_s or 0):.0f} ms"
        except OSError as error:
            problem = reason_of(error)
        turn.pass_on()
    raise ConnectionFailedError(
        f"no connection to {host}:{port}: {problem}",
        remedy="check that the broker runs and that the address is right",
    )


async def _connected(
    family: int,
    kind: int,
    protocol: int,
    address: tuple[str | int, ...] | tuple[int, bytes],
    settings: ConnectionSettings,
) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        _tune(sock, settings)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket, settings: ConnectionSettings) -> None:
    sock.setblocking(False)  # noqa: FBT003 - the signature of socket
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # -1 leaves the kernel's autotuning on, which suits long routes better than any fixed size.
    with suppress(OSError):
        if settings.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        if settings.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
