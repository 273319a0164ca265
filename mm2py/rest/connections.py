"""Connections of the REST listeners: how many, and how long one may take to ask something.

Flow: ``GuardedSocket.accept`` -> ``ConnectionGuard`` (room, or the oldest that asks nothing is
closed) -> asyncio -> ``GuardedProtocol`` (deadline of a request's head). A share of the process's
descriptors stays free for clusters and task hosts, even under a connection flood.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from typing import Final, cast, final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mm2py.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

HEAD_S: Final = 10.0
"""From the accept, or the last answer, to the end of the next request's head."""

LOG_EVERY_S: Final = 60.0
_MOST: Final = 256
_LEAST: Final = 8
_SHARE: Final = 8
_ANSWERING: Final = (h11.SEND_RESPONSE, h11.SEND_BODY)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connection_limit() -> int:
    """Return how many connections an application may hold: 8 to 256, an eighth of all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The rest is for clusters: a broker without a descriptor for it stops a flow.
    return max(_LEAST, min(_MOST, soft // _SHARE if soft > 0 else _MOST))


@final
class ConnectionGuard:
    """Counts the connections of one application and decides which goes when there are too many."""

    def __init__(self, limit: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._limit, self._clock = limit, clock
        self._open: dict[int, socket.socket] = {}
        self._silent: dict[int, socket.socket] = {}  # oldest first
        # Given up for a moment without other descriptors, so that the backlog is emptied.
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._turned_away = 0
        self._logged_at: float | None = None

    def admitted(self, accepted: socket.socket) -> socket.socket | None:
        """Return the connection for asyncio, None where there is no room for it."""
        # The oldest silent one goes: a flood of them must not keep out one that asks.
        if len(self._open) >= self._limit:
            self._log_turned_away()
            if not self._close_oldest_silent():
                accepted.close()
                return None
        connection = _Connection(accepted, self)
        self._open[connection.fileno()] = connection
        self._silent[connection.fileno()] = connection
        return connection

    def asked(self, descriptor: int) -> None:
        """Note that a connection has sent the head of a request: it makes room for no other until
        that is answered."""
        self._silent.pop(descriptor, None)

    def answered(self, descriptor: int) -> None:
        """Note that a connection is idle: one refused request per ten seconds must hold no slot."""
        if descriptor in self._open:
            # Re-inserted at the end: the order of the dict is that of silence.
            self._silent[descriptor] = self._open[descriptor]

    def closed(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._silent.pop(descriptor, None)

    @contextmanager
    def spare_released(self) -> Generator[None]:
        """Have one descriptor free inside."""
        self._log_turned_away()
        # The reserve: without a descriptor ``accept`` fails, and the backlog stays.
        self.close()
        try:
            yield
        finally:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Return the spare descriptor; called when the listeners are closed."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _close_oldest_silent(self) -> bool:
        if not self._silent:
            return False
        descriptor, connection = next(iter(self._silent.items()))
        self.closed(descriptor)
        with suppress(OSError):
            # asyncio, also in the middle of a TLS handshake, reads the end and closes it.
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def _log_turned_away(self) -> None:
        self._turned_away += 1
        now = self._clock.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "rest connections at their limit, the oldest silent ones are closed limit=%d "
                "closed=%d",
                self._limit,
                self._turned_away,
            )


@final
class _Connection(socket.socket):
    """An accepted socket that reports its close."""

    def __init__(self, accepted: socket.socket, guard: ConnectionGuard) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._guard = guard

    def close(self) -> None:
        if self.fileno() >= 0:
            self._guard.closed(self.fileno())
        super().close()


@final
class GuardedSocket(socket.socket):
    """A listening socket with guarded connections; takes over the descriptor of ``listening``."""

    def __init__(self, listening: socket.socket, guard: ConnectionGuard) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._guard = guard

    def accept(self) -> tuple[socket.socket, object]:
        """Accept one connection; ``ConnectionAbortedError``: it was closed; asyncio comes back for
        the next."""
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            # Accepted and closed: at EMFILE asyncio would pause for a second and log.
            with self._guard.spare_released(), suppress(OSError):
                super().accept()[0].close()
            raise ConnectionAbortedError from error
        connection = self._guard.admitted(accepted)
        if connection is None:
            raise ConnectionAbortedError
        return connection, address


class GuardedConfig(uvicorn.Config):
    """uvicorn's settings, and the guard of the application's connections."""

    guard: ConnectionGuard | None = None


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a deadline for the head of each request."""

    head_s = HEAD_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._await_head()

    def handle_events(self) -> None:
        """Serve what has arrived; uvicorn's own ``Date`` is renewed ten times a second, always."""
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().handle_events()
        if self._head_timer is not None and self.conn.our_state in _ANSWERING:
            self._end_wait()
            self._tell(ConnectionGuard.asked)

    def on_response_complete(self) -> None:
        self._await_head()
        self._tell(ConnectionGuard.answered)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def _tell(self, note: Callable[[ConnectionGuard, int], None]) -> None:
        guard = self.config.guard if isinstance(self.config, GuardedConfig) else None
        if guard is not None:
            end = cast("socket.socket", self.transport.get_extra_info("socket"))
            note(guard, end.fileno())

    def _await_head(self) -> None:
        self._end_wait()
        # Against slow headers (Slowloris): uvicorn has a deadline only between requests.
        self._head_timer = self.loop.call_later(self.head_s, self.transport.abort)

    def _end_wait(self) -> None:
        if self._head_timer is None:
            return
        self._head_timer.cancel()
        self._head_timer = None
