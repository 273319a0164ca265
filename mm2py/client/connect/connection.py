"""One broker connection: TCP or TLS, version negotiation, login, requests in order, responses by
correlation id.

Flow: ``send`` / ``call`` -> ``Wire`` -> broker -> ``received`` -> the request's callback. Without
TLS record bytes are copied on neither side: requests are sent as an iovec, large responses arrive
in pooled buffers. Knows nothing of clusters, retries or leaders; a lost connection is never
reopened. Where a broker does not even answer ApiVersions, ``unwelcome`` infers from the end of the
connection which property is wrong.
"""

import asyncio
import logging
import random
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar, cast, final

from mm2py.client.connect.certificates import peer_expires_s
from mm2py.client.connect.credentials import Credentials
from mm2py.client.connect.open_socket import AddressTurn, connect_socket, reason_of
from mm2py.client.connect.round_trip import FIRST_PINGS, RoundTrip
from mm2py.client.connect.tls import TlsContexts, is_for_another_host, names_of, tls_failure
from mm2py.client.connect.wire import Buffer, Wire, start_tls
from mm2py.client.pacing import RequestPace
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import (
    NO_CONNECTION,
    ConnectionFailedError,
    Mm2pyError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.call import Call
from mm2py.protocol.error_codes import UNSUPPORTED_VERSION, server_error
from mm2py.protocol.messages import api_versions
from mm2py.protocol.record_batch import BufferLease

log = logging.getLogger(__name__)

R = TypeVar("R")
ResponseHandler = Callable[[memoryview, BufferLease | None], None]
LostHandler = Callable[[Exception], None]
Taker = Callable[[memoryview, BufferLease | None], R]

_UNLIMITED_MS: Final = 2**31 - 1

_LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends a reset and drops what waits in the socket."""

_FIRST_RELEASE: Final = {
    ("InitProducerId", 3): "2.5",
    ("OffsetFetch", 7): "2.5",
    ("ListGroups", 4): "2.6",
    ("DescribeProducers", 0): "2.8",
    ("FindCoordinator", 4): "3.0",
    ("OffsetFetch", 8): "3.0",
    ("DescribeQuorum", 1): "3.3",
    ("ListGroups", 5): "3.8",
    ("DescribeShareGroupOffsets", 0): "4.1",
    ("AlterShareGroupOffsets", 0): "4.1",
}
"""First Kafka release with a request in that version, if newer than the oldest supported
release."""
_NAMES_S: Final = 2.0
"""How long to look at the names of a certificate that was refused."""
_SASL_HINT: Final = (
    " on the first request, as SASL listeners do without a login: check security.protocol"
)


class _InFlight(NamedTuple):
    on_response: ResponseHandler
    on_lost: LostHandler
    sent_at: float
    deadline: float
    timeout_ms: int


@final
class BrokerConnection:
    """An open connection to one broker; built by ``open``.

    Brokers answer the requests of one connection in order. All methods are for the loop's thread.
    """

    def __init__(
        self,
        address: tuple[str, int],
        sock: socket.socket,
        settings: ConnectionSettings,
        pool: BufferPool,
        credentials: Credentials,
        round_trip: RoundTrip,
    ) -> None:
        self.host, self.port = address
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        """Finalized level of each feature of the cluster when the connection was opened
        (KIP-584)."""
        self.round_trip = round_trip
        self.certificate_expires_s: float | None = None
        """Expiry of the broker's certificate; None without TLS."""
        self.closed = False
        """Whether requests can no longer be sent."""
        self.pace: RequestPace | None = None
        """Paces ``call``; negotiation, logins and ``exchange`` do not wait for it."""
        self._settings = settings
        self._credentials = credentials
        self._on_closed: Callable[[BrokerConnection, str, int], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._pool = pool
        self._wire: Wire | None = None
        self._held: list[Sequence[Buffer]] | None = None
        self._first_bytes = b""
        self._in_flight: dict[int, _InFlight] = {}
        self._correlation_id = 0
        self._opened_id = 0
        self._closed_reason = ""
        self._cause: Exception | None = None
        self._discarded = False
        self._lost = self._loop.create_future()
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._last_seen_id = 0
        self._session: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        settings: ConnectionSettings,
        pool: BufferPool,
        *,
        credentials: Credentials | None = None,
        turn: AddressTurn | None = None,
        round_trip: RoundTrip | None = None,
        on_closed: Callable[["BrokerConnection", str, int], None] | None = None,
    ) -> "BrokerConnection":
        """Connect, negotiate versions and log in.

        ``credentials`` are shared by the connections of a cluster, ``turn`` by the attempts to
        connect to ``host`` (the caller advances it after a failure), ``round_trip`` by the
        connections to one address. ``on_closed(connection, reason, requests in flight)`` is called
        once when it ends, unless ``open`` itself fails.

        Raises:
            ConnectionFailedError: no address of ``host`` accepted within
                ``socket_connection_setup_timeout_ms``, or the broker hung up.
            AuthenticationError: a certificate or login was refused, by either side.
            ConfigError: a key store cannot be used.
        """
        credentials = credentials or Credentials(settings)
        context = credentials.tls_context()
        # Before the socket is open: a silent token endpoint or KDC would use up its setup time.
        await credentials.prepare(host)
        setup_ms = settings.socket_connection_setup_timeout_ms
        connected = False
        try:
            async with asyncio.timeout(setup_ms / 1000):
                sock = await connect_socket(host, port, settings, turn or AddressTurn())
                connected = True
                connection = cls(
                    (host, port), sock, settings, pool, credentials, round_trip or RoundTrip()
                )
                try:
                    await connection._start(context)
                # Cancelled as well: the socket would stay open with a reader in the loop.
                except BaseException:
                    await connection.close()
                    raise
        except TimeoutError:
            if connected:
                raise ConnectionFailedError(
                    f"{host}:{port} accepted the connection but did not answer within {setup_ms} "
                    "ms",
                    remedy="check that it is a Kafka listener, and security.protocol",
                ) from None
            raise ConnectionFailedError(
                f"{NO_CONNECTION} {host}:{port} within {setup_ms} ms"
            ) from None
        connection._on_closed = on_closed
        return connection

    async def _start(self, context: ssl.SSLContext | None) -> None:
        if context is not None:
            assert self._settings.tls is not None
            peer = self._sock.getpeername()[0]
            try:
                self._sock = secured = await start_tls(self._sock, context, self.host)
            except OSError as error:
                # An address that answered before speaks this
                # protocol: its end is an outage, no wrong property.
                known = self.address in self._credentials.greeted
                names = await self._names_shown(peer) if is_for_another_host(error) else ""
                raise tls_failure(
                    error, self.address, self._settings.tls, known=known, names=names
                ) from None
            self.certificate_expires_s = peer_expires_s(secured)
        self._wire = Wire(self._sock, self, self._pool)
        try:
            await self._negotiate()
        except ConnectionFailedError as error:
            by_peer = self._closed_reason == reason_of(None)
            known = self.address in self._credentials.greeted
            end = Farewell(self.address, self._first_bytes, self._cause, by_peer, known)
            raise unwelcome(end, self._settings) or error from None
        self._credentials.greeted.add(self.address)
        # A SASL exchange follows ApiVersions, as in Java's SaslClientAuthenticator.
        await self._log_in()
        self._opened_id = self._correlation_id

    async def _names_shown(self, peer: str) -> str:
        """Return the hosts that the certificate at an IP address is for, empty if it cannot be
        seen.

        OpenSSL shows none that it refused: one more handshake, with the host's name unchecked, and
        nothing is said after it.
        """
        assert self._settings.tls is not None
        context = TlsContexts(replace(self._settings.tls, check_hostname=False)).current()
        with suppress(OSError, Mm2pyError):
            async with asyncio.timeout(_NAMES_S):
                sock = await connect_socket(peer, self.port, self._settings, AddressTurn())
                with await start_tls(sock, context, self.host) as secured:
                    return names_of(cast("Mapping[str, object]", secured.getpeercert()))
        return ""

    async def _negotiate(self) -> None:
        # The newest version first, without knowing what the
        # broker supports: versions come with the answer.
        answer = await self._call_at(api_versions(), api_versions().max_version)
        if answer.error_code == UNSUPPORTED_VERSION:
            # KIP-511: an older broker answers in version 0 with the versions that it supports.
            answer = await self._call_at(api_versions(), 0)
        if answer.error_code:
            raise server_error(answer.error_code, f"ApiVersions to {self.address}")
        self.versions = answer.versions
        self.features = answer.features

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature, 0 for none."""
        return self.features.get(name, 0)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    @property
    def waits_s(self) -> float:
        """For how long the oldest request in flight has waited, 0 for none."""
        oldest = next(iter(self._in_flight.values()), None)
        return 0.0 if oldest is None else self._loop.time() - oldest.sent_at

    def takes_more(self, most_bytes: int) -> bool:
        """Whether it is open and the kernel has taken all but ``most_bytes`` of the requests."""
        return not self.closed and (self._wire is None or self._wire.pending_bytes < most_bytes)

    def next_correlation_id(self) -> int:
        """Return the id for the next request."""
        # Wraps at the end of int32, its type on the wire.
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def negotiated(self, api_key: int, lowest: int, highest: int, name: str) -> int:
        """Return the newest version of a request that both sides support.

        Raises:
            UnsupportedVersionError: there is none between ``lowest`` and ``highest``.
        """
        offered = self.versions.get(api_key)
        if offered is not None:
            version = min(highest, offered[1])
            # Kafka 4.0 removed old versions (KIP-896), so the lower bound counts as well.
            if version >= max(lowest, offered[0]):
                return version
        spoken = "not at all" if offered is None else f"in versions {offered[0]} to {offered[1]}"
        is_newer = offered is not None and offered[0] > highest
        release = _FIRST_RELEASE.get((name, lowest), "2.4")
        raise UnsupportedVersionError(
            f"broker {self.address} speaks {name} {spoken}, mm2py {lowest} to {highest}",
            remedy="use a newer mm2py" if is_newer else f"this needs Kafka {release} or newer",
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
        """Send one framed request; one of the two callbacks follows.

        The parts must stay unchanged until then. ``on_response`` gets the body after the
        correlation id; without a lease the view is valid only during the call. ``on_lost`` means
        that the outcome is unknown; if ``on_response`` raises, ``on_lost`` follows and the
        connection ends. A response that takes longer than ``timeout_ms`` (default
        ``request.timeout.ms``) closes the connection. Callers that wait for one answer use
        ``exchange``.

        Raises:
            ConnectionFailedError: the connection is closed; nothing was sent, no callback follows.
        """
        if self._closed_reason or self._lost.done():
            raise ConnectionFailedError(
                f"connection to {self.address} is closed: {self._closed_reason}"
            )
        timeout_ms = timeout_ms or self._settings.request_timeout_ms
        now = self._loop.time()
        deadline = now + timeout_ms / 1000
        # Before the write: it may find the connection closed, which reports all that is in flight.
        self._in_flight[correlation_id] = _InFlight(on_response, on_lost, now, deadline, timeout_ms)
        if self._watch is None or deadline < self._watch_at:
            self._watch_until(deadline)
        if self._held is None:
            assert self._wire is not None
            self._wire.write(parts)
        else:
            self._held.append(parts)

    def exchange(
        self, parts: Sequence[Buffer], correlation_id: int, take: Taker[R], *, timeout_ms: int = 0
    ) -> "asyncio.Future[R]":
        """Send one framed request; the result is what ``take`` returns for the response.

        ``take`` is called like ``on_response`` of ``send``, in the loop iteration in which the
        response arrives, so that nothing has to be copied out of the buffer; not at all when the
        result was cancelled. The result's errors are those of ``call``.
        """
        answer: asyncio.Future[R] = self._loop.create_future()

        def on_response(body: memoryview, lease: BufferLease | None) -> None:
            # The caller was cancelled; its response still has to be read off the stream.
            if not answer.done():
                answer.set_result(take(body, lease))

        def on_lost(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.send(parts, correlation_id, on_response, on_lost, timeout_ms=timeout_ms)
        return answer

    async def call(self, call: Call[R], *, timeout_ms: int | None = None) -> R:
        """Send one schema message and return its decoded answer.

        Raises:
            ConnectionFailedError: the connection was lost; the outcome is unknown.
            RequestTimedOutError: no answer within ``timeout_ms``; the connection was closed.
            UnsupportedVersionError: the broker supports no version that we can use.
        """
        version = self.negotiated(call.api_key, call.min_version, call.max_version, call.name)
        if self.pace is not None:
            await self.pace.turn(self.address)
        return await self._call_at(call, version, timeout_ms)

    async def ping(self, times: int = FIRST_PINGS) -> None:
        """Request the API versions, an empty request, a few times."""
        for _ in range(times):
            await self.call(api_versions())

    async def _call_at(self, call: Call[R], version: int, timeout_ms: int | None = None) -> R:
        return await self._begin(call, version, timeout_ms or 0)

    def _begin(self, call: Call[R], version: int, timeout_ms: int = 0) -> asyncio.Future[R]:
        correlation_id = self.next_correlation_id()
        frame = call.encode(version, correlation_id, self._settings.client_id)
        return self.exchange(
            (frame,),
            correlation_id,
            lambda body, _: call.decode(version, body),
            timeout_ms=timeout_ms,
        )

    def put_off(self, throttle_ms: int) -> None:
        """Extend the deadlines of requests in flight by a throttle time: until then the broker
        reads nothing (KIP-219)."""
        if throttle_ms <= 0:
            return
        due = self._loop.time() + throttle_ms / 1000
        for correlation_id, it in self._in_flight.items():
            later = max(it.deadline, due + it.timeout_ms / 1000)
            self._in_flight[correlation_id] = it._replace(deadline=later)

    async def close(self) -> None:
        """Close at once; requests in flight are reported as lost. Safe twice."""
        self.discard("closed by us")
        if not self._lost.done():
            await asyncio.shield(self._lost)

    def discard(self, reason: str) -> None:
        """Close on purpose: as ``abort``, but ``on_closed`` gets no requests in flight."""
        self._discarded = True
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close without waiting; callbacks of requests in flight follow in the next loop
        iteration."""
        if self.closed:
            return
        self._closed_reason = reason
        if self._wire is None:
            self.closed = True
            self._sock.close()
            self.connection_lost(None)
        else:
            self._wire.close()

    def reset(self, reason: str, *, on_purpose: bool = False) -> None:
        """Abort so that the kernel drops what it has not delivered: a restored network must not
        deliver it later.

        ``on_purpose``: as ``discard``, nothing is wrong with the broker.
        """
        if not self.closed:
            self._discarded = on_purpose
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            self.abort(reason)

    # ---- wire.Peer ----

    def began(self, first_bytes: bytes) -> None:
        """Close if the broker answers a plain request in TLS: those bytes are not a frame."""
        self._first_bytes = first_bytes
        if self._settings.tls is None and is_tls_record(first_bytes):
            self.abort("answered by TLS")

    def received(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        request = self._in_flight.pop(correlation_id, None)
        if request is None:
            # The stream is out of step: no later frame could be attributed.
            raise ProtocolError(f"{self.address} answered request {correlation_id}, never sent")
        # Once it is near nothing depends on how near.
        if self.round_trip.is_distant:
            self.round_trip.took(self._loop.time() - request.sent_at)
        try:
            request.on_response(body, lease)
        except Exception as error:
            # Report it to the request's owner here; owners of
            # other requests are notified when the connection ends.
            failure = error
            if not isinstance(error, Mm2pyError):
                log.exception("answer cannot be handled broker=%s", self.address)
                failure = ProtocolError(
                    f"the answer of {self.address} cannot be handled: {error!r}"
                )
            self._report_lost(request, failure)
            raise failure from error

    def connection_lost(self, cause: Exception | None) -> None:
        if self._lost.done():
            return
        self._cause = cause
        lost, self._in_flight = self._in_flight, {}
        hint = self._hint(lost)
        self._closed_reason = self._closed_reason or reason_of(cause) + hint
        for timer in (self._watch, self._session):
            if timer is not None:
                timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        self._held = None
        self._lost.set_result(None)
        if self._on_closed is not None:
            # First the pool, then the requests: their owners ask
            # for a connection at once, and must get a new one.
            self._on_closed(self, self._closed_reason, 0 if self._discarded else len(lost))
        now = self._loop.time()
        for request in lost.values():
            self._report_lost(request, self._error_for(request, now))

    # ---- inside ----

    def _report_lost(self, request: _InFlight, error: Exception) -> None:
        """Report one request as lost; a defect in its owner must not affect the others."""
        try:
            request.on_lost(error)
        except Exception:
            log.exception("lost request cannot be handled broker=%s", self.address)

    def _error_for(self, request: _InFlight, now: float) -> Mm2pyError:
        # The request that was overdue ended the connection; the others were lost with it.
        if request.deadline <= now:
            return RequestTimedOutError(
                f"{self.address} did not answer within {request.timeout_ms} ms"
            )
        return ConnectionFailedError(f"connection to {self.address} lost: {self._closed_reason}")

    def _hint(self, lost: Mapping[int, object]) -> str:
        """Suggest SASL where a broker answers ApiVersions and closes the connection at the next
        request."""
        if self._settings.sasl is not None or not self._opened_id:
            return ""
        served = self._credentials.served
        if self._correlation_id > self._opened_id and self._opened_id + 1 not in lost:
            served.add(self.address)
        return _SASL_HINT if self._opened_id + 1 in lost and self.address not in served else ""

    # ---- login (KIP-43, KIP-368) ----

    async def _log_in(self) -> None:
        lifetime_ms = await self._credentials.log_in(self._ask, self.host, self.address)
        if lifetime_ms > 0:
            # Before the session ends, as in Java's SaslClientAuthenticator; spread, so that the
            # connections of a process do not renew theirs all at once.
            pause_s = lifetime_ms / 1000 * random.uniform(0.85, 0.95)  # noqa: S311 - no secret
            self._session = self._loop.call_later(pause_s, self._renew)

    async def _ask(self, call: Call[R], /) -> R:
        """Send one message of a login ahead of the requests that wait for its end."""
        version = self.negotiated(call.api_key, call.min_version, call.max_version, call.name)
        # Its own frames must pass while all others are held.
        held, self._held = self._held, None
        try:
            answer = self._begin(call, version)
        finally:
            self._held = held
        return await answer

    def _renew(self) -> None:
        # Nothing was sent since the last login: a new connection is opened when one is needed.
        if self._correlation_id == self._opened_id and not self._in_flight:
            self.discard("idle for a whole session")
        elif not self.closed:
            self._renewal = self._loop.create_task(self._log_in_again())

    async def _log_in_again(self) -> None:
        """Log in again on the open connection (KIP-368): requests in flight are answered, new ones
        wait."""
        try:
            await self._credentials.prepare(self.host)
            # The broker accepts nothing else until the exchange is over.
            self._held = []
            await self._log_in()
        except Exception as error:  # what it holds would wait for its deadlines
            if not isinstance(error, Mm2pyError):
                log.exception("login cannot be renewed broker=%s", self.address)
            self.abort(f"login not renewed: {error}")
            return
        held, self._held = self._held, None
        self._opened_id = self._correlation_id - len(held)  # those are of the new session
        assert self._wire is not None
        for parts in held:
            self._wire.write(parts)

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
            # Not the oldest one: ``put_off`` and shorter time-outs change the order.
            first = min(self._in_flight.values(), key=lambda request: request.deadline)
            if first.deadline <= now:
                # Brokers answer in order: nothing behind an overdue
                # request is answered sooner (Java disconnects, too).
                self.abort(f"no answer within {first.timeout_ms} ms")
                return
            self._watch_until(first.deadline)
        elif self._last_seen_id == self._correlation_id:
            self.abort("idle")
        else:
            idle_ms = self._settings.connections_max_idle_ms
            # -1 is for ever, as in Java.
            if idle_ms >= 0:
                self._watch_until(now + min(idle_ms, _UNLIMITED_MS) / 1000)
        self._last_seen_id = self._correlation_id


_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""First bytes of an alert or a handshake record; as a Kafka frame that would be more than 350
MB."""

_TLS_REMEDY: Final = (
    "set security.protocol to SSL or SASL_SSL, or name a port without TLS in bootstrap.servers"
)


@dataclass(frozen=True, slots=True)
class Farewell:
    """How a connection ended before its first response.

    ``by_peer``: closed in order by the broker. ``known``: this address has answered before, so
    neither TLS nor its absence is the reason.
    """

    address: str
    first_bytes: bytes
    cause: Exception | None
    by_peer: bool
    known: bool


def is_tls_record(first_bytes: bytes) -> bool:
    """Whether a response begins like a TLS record."""
    return first_bytes[:2] in _TLS_RECORDS


def unwelcome(end: Farewell, settings: ConnectionSettings) -> Mm2pyError | None:
    """Return an error that names the wrong property if the end of the connection shows it, else
    None."""
    if settings.tls is not None:
        # TLS 1.3: the broker verifies our certificate after our side of the handshake.
        if isinstance(end.cause, ssl.SSLError):
            return tls_failure(end.cause, end.address, settings.tls)
        if not end.known and (end.by_peer or isinstance(end.cause, ConnectionError)):
            return ConnectionFailedError(
                f"{end.address} hung up right after the TLS handshake",
                remedy="if its listener asks for client certificates, set ssl.keystore.location",
            )
        return None
    if is_tls_record(end.first_bytes):
        return ConnectionFailedError(
            f"{end.address} is a TLS listener, spoken to without TLS", remedy=_TLS_REMEDY
        )
    # Brokers send a TLS alert; a TLS proxy before them
    # may just close the connection, without a reset.
    if end.by_peer and not end.first_bytes and not end.known:
        return ConnectionFailedError(
            f"{end.address} hung up on the first request, as TLS listeners do without TLS",
            remedy=_TLS_REMEDY,
        )
    return None
