"""Ports of the REST listeners, bound before the application is loaded.

Flow: ``Listener`` -> ``bind`` -> a listening socket and its URL, which may be published at once. A
listener that may move takes a free port where its own is taken, and logs it. Imports no HTTP
library.
"""

import logging
import socket
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final

from mm2py.errors import ConfigError

log = logging.getLogger(__name__)

BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen; an empty host is every address, port 0 a free one.

    ``may_move``: take a free port where this one is taken (the default port); else that is an
    error. ``key`` is the property of the listener.
    """

    host: str
    port: int
    ssl: SSLContext | None = None
    may_move: bool = False
    key: str = "listeners"


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A socket that listens, and its base URL (``http://127.0.0.1:8083/``)."""

    sock: socket.socket
    url: str
    ssl: SSLContext | None = None


def bind(listener: Listener) -> BoundListener:
    """Take the port and accept connections; they wait until a ``RestServer`` serves them.
    ``ConfigError``: the address cannot be used."""
    bound = _moved_or_bound(listener)
    return BoundListener(bound, _url(listener, bound), listener.ssl)


def _moved_or_bound(listener: Listener) -> socket.socket:
    try:
        return _bind(listener, listener.port)
    except OSError as error:
        if not listener.may_move:
            raise ConfigError(
                f"REST cannot listen at {listener.host}:{listener.port}: {error.strerror}",
                remedy=f"choose another port in `{listener.key}`",
            ) from error
    moved = _bind(listener, 0)
    log.info(
        "rest port taken listener=%s:%d using=%d",
        listener.host,
        listener.port,
        moved.getsockname()[1],
    )
    return moved


def _bind(listener: Listener, port: int) -> socket.socket:
    host = listener.host or "0.0.0.0"  # noqa: S104 - an empty host in `listeners` means every address
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of the former worker in TIME_WAIT would keep the port of a restarted one.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.settimeout(0)
    return bound


def _url(listener: Listener, bound: socket.socket) -> str:
    scheme = "http" if listener.ssl is None else "https"
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}/"
