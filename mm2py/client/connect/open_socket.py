"""A tuned TCP socket to a broker, whichever address of its name answers; reading and writing it is ``wire``'s."""

import asyncio
import os
import socket
from contextlib import suppress

from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError

__all__ = ["connect_socket", "reason_of"]


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


async def connect_socket(host: str, port: int, settings: ConnectionSettings) -> socket.socket:
    """Try the addresses of ``host`` in turn (``client.dns.lookup=use_all_dns_ips``).

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
    problem = "no address"
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            _tune(sock, settings)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = reason_of(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise ConnectionFailedError(
        f"no connection to {host}:{port}: {problem}",
        remedy="check that the broker runs and that the address is right",
    )


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
