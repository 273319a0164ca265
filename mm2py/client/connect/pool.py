"""Connections of one cluster, one per broker and purpose, opened when needed.

Flow: ``get`` -> wait out the address's back-off -> ``BrokerConnection.open``. Concurrent callers
share one attempt. Logs when an address becomes reachable, is lost, and every 10 s while it stays
away, with one line for all clients of the process (``OutageLines``).
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.broker_errors import BrokerError, Trouble, errors_of
from mm2py.client.connect.certificates import BROKER, CLIENT, Shown, certificates_of
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.connect.credentials import Credentials
from mm2py.client.connect.metadata_cache import BrokerAddress
from mm2py.client.connect.open_socket import AddressTurn
from mm2py.client.connect.round_trip import RoundTrip
from mm2py.client.pacing import RequestPace
from mm2py.clock import Clock, PerClock, cancelled
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError, RetriableError
from mm2py.protocol.buffers import BufferPool

log = logging.getLogger(__name__)

REPEAT_S: Final = 10.0
"""Interval at which an unreachable broker is logged again."""
_FORGET_S: Final = 60.0
"""An outage that no client has met for longer is over: its clients were closed."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of one cluster's clients at one address; ``refusal`` of a login, or empty."""

    cluster: str
    host: str
    port: int
    refusal: str = ""


@dataclass(slots=True)
class _Course:
    since: float
    seen_at: float
    due_at: float


@final
class OutageLines:
    """Times at which outages were logged; instants are ``Clock.monotonic``."""

    def __init__(self) -> None:
        self._courses: dict[Outage, _Course] = {}

    def outage_s(self, outage: Outage, lost_at: float, now: float) -> float | None:
        """Return for how long it lasts, None where the line of another client is younger than 10
        s."""
        self._courses = {
            it: each for it, each in self._courses.items() if now - each.seen_at < _FORGET_S
        }
        course = self._courses.setdefault(outage, _Course(lost_at, now, now))
        course.since, course.seen_at = min(course.since, lost_at), now
        if now < course.due_at:
            return None
        course.due_at = now + REPEAT_S
        return now - course.since

    def due_at(self, outage: Outage) -> float:
        return self._courses[outage].due_at

    def back(self, outage: Outage) -> None:
        """End an outage: the next one is logged at once."""
        self._courses.pop(outage, None)


lines_of: Final = PerClock(OutageLines)
"""Shared by all clients with a clock."""


class _Reachability:
    """State of one address, shared by the connections of all purposes."""

    __slots__ = (
        "backoff",
        "lost_at",
        "not_before",
        "refused",
        "repeat_at",
        "round_trip",
        "turn",
        "unsaid",
        "up",
    )

    def __init__(self, settings: ConnectionSettings) -> None:
        self.backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self.turn = AddressTurn()
        self.round_trip = RoundTrip()
        self.up: bool | None = None
        self.refused = False
        self.unsaid: RetriableError | None = None
        self.not_before = 0.0
        self.lost_at = 0.0
        self.repeat_at = 0.0


@final
class ConnectionPool:
    """Open connections and attempts under way."""

    def __init__(
        self, settings: ConnectionSettings, buffers: BufferPool, *, alias: str, clock: Clock
    ) -> None:
        self._settings, self._buffers = settings, buffers
        self._alias, self._clock = alias, clock
        self._lines = lines_of(clock)
        self._certificates = certificates_of(clock)
        self._errors = errors_of(clock)
        self._credentials = Credentials(settings, clock)
        self._open: dict[tuple[int, str], BrokerConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[BrokerConnection]] = {}
        self._addresses: dict[tuple[str, int], _Reachability] = {}
        self._closed = False
        self.pace: RequestPace | None = None
        """Paces connections that are opened from now on."""

    async def get(self, broker: BrokerAddress, purpose: str) -> BrokerConnection:
        """Return the open connection to a broker for a purpose, opening it if necessary.

        Raises:
            ConnectionFailedError: one attempt, after waiting out the back-off, did not succeed.
        """
        if self._closed:
            raise ConnectionFailedError(f"the client of cluster {self._alias} is closed")
        key = (broker.node_id, purpose)
        connection = self._open.get(key)
        if connection is not None and not connection.closed:
            # A broker may keep its id and change its address (a pod that moved).
            if (connection.host, connection.port) == (broker.host, broker.port):
                return connection
            connection.abort(f"broker {broker.node_id} moved to {broker}")
        attempt = self._opening.get(key)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(broker, key))
            self._opening[key] = attempt
            # By callback, not by the awaiting caller: it may be cancelled before the attempt ends.
            attempt.add_done_callback(lambda task: self._attempted(key, task))
        # Shared by several callers: the cancellation of one must not end it.
        return await asyncio.shield(attempt)

    def is_open(self, broker: BrokerAddress, purpose: str) -> bool:
        connection = self._open.get((broker.node_id, purpose))
        return connection is not None and not connection.closed

    def is_backing_off(self, broker: BrokerAddress) -> bool:
        """Whether the last attempt failed and the next one has to wait."""
        state = self._addresses.get((broker.host, broker.port))
        return state is not None and state.not_before > self._clock.monotonic()

    async def close(self) -> None:
        """End attempts and close everything; safe twice."""
        self._closed = True
        self._credentials.close()
        await cancelled(*self._opening.values())
        for connection in tuple(self._open.values()):
            await connection.close()
        self._open.clear()

    async def _connect(self, broker: BrokerAddress, key: tuple[int, str]) -> BrokerConnection:
        address = (broker.host, broker.port)
        state = self._addresses.setdefault(address, _Reachability(self._settings))
        # The back-off is the address's: connections of all purposes share it.
        pause_s = state.not_before - self._clock.monotonic()
        if pause_s > 0:
            await self._clock.sleep(pause_s)
        try:
            connection = await BrokerConnection.open(
                broker.host,
                broker.port,
                self._settings,
                self._buffers,
                credentials=self._credentials,
                turn=state.turn,
                round_trip=state.round_trip,
                on_closed=self._on_closed,
            )
        except (AuthenticationError, ConfigError) as error:
            # Java tries again too: users, certificates and key stores are repaired while it runs.
            refused = ConnectionFailedError(error.message, remedy=error.remedy)
            self._failed(broker, state, refused, refused=True)
            raise refused from error
        except RetriableError as error:
            self._failed(broker, state, error)
            self._certificates.forget(Shown(BROKER, self._alias, str(broker)))
            raise
        connection.pace = self.pace
        self._open[key] = connection
        self._certificates.note(
            Shown(BROKER, self._alias, str(broker)), connection.certificate_expires_s
        )
        self._certificates.note(Shown(CLIENT, self._alias), self._credentials.own_expires_s)
        self._succeeded(broker, state)
        return connection

    def _attempted(self, key: tuple[int, str], task: "asyncio.Task[BrokerConnection]") -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # every waiter may have been cancelled: mark the error as retrieved

    def _failed(
        self,
        broker: BrokerAddress,
        state: _Reachability,
        error: RetriableError,
        *,
        refused: bool = False,
    ) -> None:
        now = self._clock.monotonic()
        trouble = Trouble.REFUSED if refused else Trouble.UNREACHABLE
        self._errors.add(BrokerError(self._alias, str(broker), trouble))
        state.turn.pass_on()
        state.round_trip = RoundTrip()  # the next machine at this address may be another one
        state.not_before = now + state.backoff.next_s()
        newly_refused = refused and not state.refused
        state.refused = refused
        if state.up is None and broker.node_id < 0 and not refused:
            # If no address answers, the cluster's user logs
            # that; else this one is logged once another works.
            state.lost_at = state.lost_at or now
            state.unsaid = error
            return
        if state.up is not False:
            state.lost_at = now
        elif not newly_refused and now < state.repeat_at:
            return  # but a broker that is back and refuses the login is logged at once
        self._say(broker.host, broker.port, state, error)

    def _say(self, host: str, port: int, state: _Reachability, error: RetriableError) -> None:
        now = self._clock.monotonic()
        state.up = False
        state.unsaid = None
        outage = Outage(self._alias, host, port, refusal=str(error) if state.refused else "")
        lasts_s = self._lines.outage_s(outage, state.lost_at, now)
        state.repeat_at = self._lines.due_at(outage)
        if lasts_s is not None:
            log.warning(
                "broker unreachable, trying again cluster=%s address=%s:%d for_s=%d cause=%s",
                self._alias,
                host,
                port,
                lasts_s,
                error,
            )

    def _succeeded(self, broker: BrokerAddress, state: _Reachability) -> None:
        state.backoff.reset()
        state.not_before = 0.0
        state.refused = False
        if state.up is not True:
            self._lines.back(Outage(self._alias, broker.host, broker.port))
            log.debug("broker connected cluster=%s address=%s", self._alias, broker)
        state.up = True
        state.unsaid = None
        for (host, port), other in self._addresses.items():
            if other.unsaid is not None:
                self._say(host, port, other, other.unsaid)

    def _on_closed(self, connection: BrokerConnection, reason: str, in_flight: int) -> None:
        for key in [key for key, held in self._open.items() if held is connection]:
            del self._open[key]
        state = self._addresses[connection.host, connection.port]
        # A connection that ends without requests in flight was idle: brokers drop those.
        if self._closed or not in_flight or not state.up:
            return
        now = self._clock.monotonic()
        self._errors.add(BrokerError(self._alias, connection.address, Trouble.LOST))
        state.up = False
        state.lost_at, state.repeat_at = now, now + REPEAT_S
        state.not_before = now + state.backoff.next_s()
        log.warning(
            "broker connection lost cluster=%s address=%s in_flight=%d cause=%s",
            self._alias,
            connection.address,
            in_flight,
            reason,
        )
