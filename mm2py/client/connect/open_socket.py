"""Opens a tuned TCP socket to a broker, at whichever address of its name answers; ``wire`` reads
and writes it."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Final, TypeAlias, final
from weakref import WeakKeyDictionary

from mm2py.config.broker_addresses import NETWORKS_VARIABLE, broker_networks
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import NO_CONNECTION, ConnectionFailedError

_Addresses: TypeAlias = Sequence[
    tuple[
        socket.AddressFamily,
        socket.SocketKind,
        int,
        str,
        tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
    ]
]

_under_way: Final[
    "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[_Addresses]]]"
] = WeakKeyDictionary()


@cache
def _resolvers(_process: int) -> ThreadPoolExecutor:
    """Return threads of their own, as many as there are slow names: the loop's few are needed for
    logins and transforms.

    Those of one process: a fork has none of its parent's, and its look-ups would never end.
    """
    return ThreadPoolExecutor(64, thread_name_prefix="resolve")


async def _resolved(host: str, port: int) -> _Addresses:
    """Resolve a name, with one look-up for all waiters: silent name servers hold it for 10 s."""
    loop = asyncio.get_running_loop()
    lookups = _under_way.setdefault(loop, {})
    name = f"{host}:{port}"
    lookup = lookups.get(name)
    if lookup is None:
        resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        lookup = lookups[name] = loop.run_in_executor(_resolvers(os.getpid()), resolve)

        def over(done: "asyncio.Future[_Addresses]") -> None:
            del lookups[name]
            if not done.cancelled():
                done.exception()  # all waiters may have been cancelled: mark it as retrieved

        lookup.add_done_callback(over)
    return await asyncio.shield(lookup)


def reason_of(error: Exception | None) -> str:
    """Return in a few words why a connection ended, without its address."""
    if error is None:
        return "closed by the broker"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and error.errno and not hasattr(error, "reason"):
        # asyncio adds the address, which the caller's text has already.
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


@final
class AddressTurn:
    """The address of a host name that the next attempt begins with; kept between attempts."""

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed = 0

    def pass_on(self) -> None:
        """Advance to the next address after a failure."""
        self._passed += 1

    def index(self, count: int) -> int:
        """Return the index of the current one of ``count`` addresses."""
        return self._passed % count


async def connect_socket(
    host: str, port: int, settings: ConnectionSettings, turn: AddressTurn
) -> socket.socket:
    """Try the addresses of ``host`` in turn (``client.dns.lookup=use_all_dns_ips``).

    Each gets its share of ``socket.connection.setup.timeout.ms``: one that drops packets must not
    use all of it. The first one tried is the one that worked last.

    Raises:
        ConnectionFailedError: none of them accepts.
    """
    try:
        addresses = await _resolved(host, port)
    except OSError as error:
        raise ConnectionFailedError(
            f"{host}:{port} cannot be resolved: {reason_of(error)}",
            remedy="check bootstrap.servers and the brokers' advertised.listeners",
        ) from None
    # After the resolution, for each address: a name may lead anywhere, advertised.listeners too.
    networks = broker_networks()
    addresses = [it for it in addresses if networks.allow(str(it[4][0]))]
    if not addresses:
        raise ConnectionFailedError(
            f"{host}:{port} leads to no address that brokers may have here",
            remedy=f"name brokers, or allow their networks in {NETWORKS_VARIABLE}",
        )
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
            # No other address helps, and "connection refused" would mislead.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ConnectionFailedError(
                    f"{NO_CONNECTION} {host}:{port}: this process has too many open files",
                    remedy="raise its limit (ulimit -n), or use fewer tasks (tasks.max)",
                ) from None
            problem = reason_of(error)
        turn.pass_on()
    raise ConnectionFailedError(
        f"{NO_CONNECTION} {host}:{port}: {problem}",
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
    # As Java's Selector: Nagle would hold small requests back for a delayed ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # -1 keeps the kernel's autotuning, which suits long round trips better than any fixed size.
    with suppress(OSError):
        if settings.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        if settings.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
