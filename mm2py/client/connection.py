"""One broker connection: TCP, version negotiation, requests in order, answers by correlation id.

Flow: ``send`` / ``call`` -> ``sendmsg`` -> broker -> ``FrameReceiver`` -> the request's callback.
Record bytes are copied on neither side: requests leave as an iovec, large answers arrive in pooled
buffers. Knows nothing of clusters, retries or leaders; a lost connection is never reopened here.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple, TypeVar, final

from mm2py.config.clients import ConnectionSettings
from mm2py.errors import (
    ConfigError,
    ConnectionFailedError,
    Mm2pyError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from mm2py.protocol.call import Call
from mm2py.protocol.error_codes import UNSUPPORTED_VERSION, server_error
from mm2py.protocol.framing import BufferPool, FrameReceiver
from mm2py.protocol.messages import api_versions
from mm2py.protocol.record_batch import BufferLease

__all__ = ["BrokerConnection", "Buffer", "LostHandler", "ResponseHandler"]

R = TypeVar("R")
Buffer = bytes | bytearray | memoryview
ResponseHandler = Callable[[memoryview, BufferLease | None], None]
LostHandler = Callable[[Exception], None]

_RCVLOWAT_FLOOR_BYTES: Final = 64 * 1024
"""Below this a wake-up more costs less than waiting for the rest of the frame."""

_RCVLOWAT_CAP_BYTES: Final = 512 * 1024
"""Waiting for more than this would idle the CPU while the kernel's receive window fills."""

_IOVEC_PARTS: Final = 512
"""Buffers per ``sendmsg``; Linux refuses more than 1024 (``IOV_MAX``)."""

_UNLIMITED_MS: Final = 2**31 - 1


class _InFlight(NamedTuple):
    on_response: ResponseHandler
    on_lost: LostHandler
    deadline: float
    timeout_ms: int


@final
class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection to one broker; built by ``open``.

    Brokers answer the requests of one connection in order. All methods are for the loop's thread.
    """

    def __init__(
        self,
        address: tuple[str, int],
        sock: socket.socket,
        settings: ConnectionSettings,
        pool: BufferPool,
        on_closed: Callable[["BrokerConnection", str, int], None] | None = None,
    ) -> None:
        self.host, self.port = address
        self.versions: Mapping[int, tuple[int, int]] = {}
        self._settings = settings
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        # The transport reads and closes; we write, through a second descriptor of the same socket,
        # because a transport of Python 3.11 joins what writelines gets into one copy.
        self._write_fd = os.dup(sock.fileno())
        self._receiver = FrameReceiver(pool, self._deliver)
        self._rcvlowat = 1
        self._transport: asyncio.BaseTransport | None = None
        self._unsent: deque[Buffer] = deque()
        self._in_flight: dict[int, _InFlight] = {}
        self._correlation_id = 0
        self._closed_reason = ""
        self._discarded = False
        self._lost = self._loop.create_future()
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._last_seen_id = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        settings: ConnectionSettings,
        pool: BufferPool,
        *,
        on_closed: Callable[["BrokerConnection", str, int], None] | None = None,
    ) -> "BrokerConnection":
        """Connect and negotiate versions.

        ``on_closed(connection, reason, requests in flight)`` is called once when it ends, unless
        ``open`` itself fails.

        Raises:
            ConnectionFailedError: no address of ``host`` accepted within
                ``socket_connection_setup_timeout_ms``, or the broker hung up.
            ConfigError: the security protocol is not supported.
        """
        if settings.security_protocol != "PLAINTEXT":
            raise ConfigError(
                f"security.protocol={settings.security_protocol} is not supported yet",
                remedy="use a PLAINTEXT listener",
            )
        setup_ms = settings.socket_connection_setup_timeout_ms
        try:
            async with asyncio.timeout(setup_ms / 1000):
                sock = await _connect(host, port, settings)
                # A TLS context is handed to create_connection here; a SASL exchange follows
                # ApiVersions, as in Java's SaslClientAuthenticator.
                connection = cls((host, port), sock, settings, pool)
                try:
                    await connection._start()
                except BaseException:
                    await connection.close()
                    raise
        except TimeoutError:
            raise ConnectionFailedError(
                f"no connection to {host}:{port} within {setup_ms} ms"
            ) from None
        connection._on_closed = on_closed
        return connection

    async def _start(self) -> None:
        try:
            await self._loop.create_connection(lambda: self, sock=self._sock)
        except BaseException:
            self._sock.close()
            raise
        found = await self._call_at(api_versions(), api_versions().max_version)
        if found.error_code == UNSUPPORTED_VERSION:
            # KIP-511: an older broker answers in version 0 and says what it knows.
            found = await self._call_at(api_versions(), 0)
        if found.error_code:
            raise server_error(found.error_code, f"ApiVersions to {self.address}")
        self.versions = found.versions

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether requests can no longer be sent."""
        return self._closed_reason != "" or self._lost.done()

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self._unsent))

    def next_correlation_id(self) -> int:
        """Return the id for the next request."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def negotiated(self, api_key: int, lowest: int, highest: int, name: str) -> int:
        """Return the newest version of a request that both sides speak.

        Raises:
            UnsupportedVersionError: there is none between ``lowest`` and ``highest``.
        """
        offered = self.versions.get(api_key)
        if offered is not None:
            version = min(highest, offered[1])
            if version >= max(lowest, offered[0]):
                return version
        spoken = "not at all" if offered is None else f"in versions {offered[0]} to {offered[1]}"
        raise UnsupportedVersionError(
            f"broker {self.address} speaks {name} {spoken}, mm2py {lowest} to {highest}",
            remedy="use a broker of Kafka 2.1 or newer",
        )

    def send(
        self,
        parts: Sequence[Buffer],
        correlation_id: int,
        on_response: ResponseHandler,
        on_lost: LostHandler,
        *,
        timeout_ms: int = 0,
    ) -> None:
        """Send one framed request; exactly one of the two callbacks follows.

        The parts must stay unchanged until then. ``on_response`` gets the body behind the
        correlation id; without a lease the view is valid only during the call. ``on_lost`` means that
        the outcome is unknown. An answer that takes longer than ``timeout_ms`` (default
        ``request.timeout.ms``) closes the connection.

        Raises:
            ConnectionFailedError: the connection is closed; nothing was sent, no callback follows.
        """
        if self._closed_reason or self._lost.done():
            raise ConnectionFailedError(
                f"connection to {self.address} is closed: {self._closed_reason}"
            )
        timeout_ms = timeout_ms or self._settings.request_timeout_ms
        deadline = self._loop.time() + timeout_ms / 1000
        self._in_flight[correlation_id] = _InFlight(on_response, on_lost, deadline, timeout_ms)
        if self._watch is None or deadline < self._watch_at:
            self._watch_until(deadline)
        if self._unsent:
            self._unsent.extend(parts)
            return
        self._write(parts)

    async def call(self, call: Call[R], *, timeout_ms: int | None = None) -> R:
        """Send one schema message and return its decoded answer.

        Raises:
            ConnectionFailedError: the connection was lost; the outcome is unknown.
            RequestTimedOutError: no answer within ``timeout_ms``; the connection was closed.
            UnsupportedVersionError: the broker speaks no version that we can use.
        """
        version = self.negotiated(call.api_key, call.min_version, call.max_version, call.name)
        return await self._call_at(call, version, timeout_ms)

    async def _call_at(self, call: Call[R], version: int, timeout_ms: int | None = None) -> R:
        answer: asyncio.Future[R] = self._loop.create_future()

        def on_response(body: memoryview, lease: BufferLease | None) -> None:
            try:
                if not answer.done():
                    answer.set_result(call.decode(version, body))
            finally:
                if lease is not None:
                    lease.release()

        def on_lost(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        correlation_id = self.next_correlation_id()
        frame = call.encode(version, correlation_id, self._settings.client_id)
        self.send((frame,), correlation_id, on_response, on_lost, timeout_ms=timeout_ms or 0)
        return await answer

    async def close(self) -> None:
        """Close at once; what is in flight is reported lost. Safe twice."""
        self.discard("closed by us")
        if not self._lost.done():
            await asyncio.shield(self._lost)

    def discard(self, reason: str) -> None:
        """Close on purpose: as ``abort``, but ``on_closed`` is not told of requests in flight."""
        self._discarded = True
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close without waiting; callbacks of what is in flight follow in the next loop round."""
        if self.closed:
            return
        self._closed_reason = reason
        if self._transport is None:
            self.connection_lost(None)
        else:
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.abort()

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up reading."""
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take ``nbytes`` received bytes."""
        try:
            missing = self._receiver.buffer_updated(nbytes)
        except Mm2pyError as error:
            self.abort(str(error))
            return
        # A fixed value strands the tail of the stream (libraries.md 8), so it follows each frame.
        wanted = min(missing, _RCVLOWAT_CAP_BYTES) if missing > _RCVLOWAT_FLOOR_BYTES else 1
        if wanted != self._rcvlowat and not self._closed_reason:
            self._rcvlowat = wanted
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report everything in flight as lost."""
        if self._lost.done():
            return
        self._closed_reason = self._closed_reason or _reason(exc)
        self._loop.remove_writer(self._write_fd)
        os.close(self._write_fd)
        if self._watch is not None:
            self._watch.cancel()
        self._unsent.clear()
        self._receiver.close()
        lost, self._in_flight = self._in_flight, {}
        self._lost.set_result(None)
        if self._on_closed is not None:
            self._on_closed(self, self._closed_reason, 0 if self._discarded else len(lost))
        now = self._loop.time()
        for request in lost.values():
            request.on_lost(self._error_for(request, now))

    # ---- inside ----

    def _error_for(self, request: _InFlight, now: float) -> Mm2pyError:
        if request.deadline <= now:
            return RequestTimedOutError(
                f"{self.address} did not answer within {request.timeout_ms} ms"
            )
        return ConnectionFailedError(f"connection to {self.address} lost: {self._closed_reason}")

    def _deliver(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        request = self._in_flight.pop(correlation_id, None)
        if request is None:
            raise ProtocolError(f"{self.address} answered request {correlation_id}, never sent")
        try:
            request.on_response(body, lease)
        except Mm2pyError as error:
            # Undecodable: this request learns it here, the others when the connection ends.
            request.on_lost(error)
            raise

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Hand as much as possible to the kernel and queue the rest."""
        if len(parts) <= _IOVEC_PARTS:
            sent = self._sendmsg(parts)
            if sent == sum(map(len, parts)):
                return
            self._unsent.extend(parts)
            self._consume(sent)
        else:
            self._unsent.extend(parts)
        if not self._closed_reason:
            self._loop.add_writer(self._write_fd, self._flush)

    def _flush(self) -> None:
        self._consume(self._sendmsg(tuple(islice(self._unsent, _IOVEC_PARTS))))
        if not self._unsent or self._closed_reason:
            self._loop.remove_writer(self._write_fd)

    def _sendmsg(self, parts: Sequence[Buffer]) -> int:
        try:
            return self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.abort(_reason(error))
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

    def _watch_until(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at = deadline
        self._watch = self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        """Close when a request is overdue or nothing was sent for ``connections.max.idle.ms``."""
        self._watch = None
        now = self._loop.time()
        if self._in_flight:
            first = min(self._in_flight.values(), key=lambda request: request.deadline)
            if first.deadline <= now:
                self.abort(f"no answer within {first.timeout_ms} ms")
                return
            self._watch_until(first.deadline)
        elif self._last_seen_id == self._correlation_id:
            self.abort("idle")
        else:
            idle_ms = self._settings.connections_max_idle_ms
            if idle_ms >= 0:
                self._watch_until(now + min(idle_ms, _UNLIMITED_MS) / 1000)
        self._last_seen_id = self._correlation_id


def _reason(error: Exception | None) -> str:
    if error is None:
        return "closed by the broker"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and error.errno:
        # asyncio puts the address into the text that the caller has already.
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


async def _connect(host: str, port: int, settings: ConnectionSettings) -> socket.socket:
    """Try the addresses of ``host`` in turn (``client.dns.lookup=use_all_dns_ips``)."""
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionFailedError(
            f"{host}:{port} cannot be resolved: {_reason(error)}",
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
            problem = _reason(error)
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
