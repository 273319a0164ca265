"""A connection: its greeting, frames, requests in flight, deadlines, and how it ends."""

import asyncio
import os
import random
import re
import selectors
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from mm2py.client.connect.connection import BrokerConnection, Farewell, unwelcome
from mm2py.client.connect.credentials import Credentials
from mm2py.client.connect.tls import tls_failure
from mm2py.client.connect.wire import HEAD_BYTES, FrameReceiver
from mm2py.clock import closing
from mm2py.config.clients import ConnectionSettings
from mm2py.config.security import SaslSettings, TlsSettings
from mm2py.errors import (
    ConfigError,
    ConnectionFailedError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.group_messages import list_groups
from mm2py.protocol.messages import metadata
from mm2py.protocol.record_batch import BufferLease
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker

METADATA = 3
TP = TopicPartition("t", 0)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def settings(**changes: int | str) -> ConnectionSettings:
    # Each test changes one or two fields of the defaults.
    return ConnectionSettings(bootstrap_servers=(("127.0.0.1", 1),), **changes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def opened(port: int, credentials: Credentials | None = None) -> BrokerConnection:
    return await BrokerConnection.open(
        "127.0.0.1", port, settings(), BufferPool(), credentials=credentials
    )


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[FakeBroker, BrokerConnection]]:
    async with (
        FakeBroker(topics={"t": 1}) as broker,
        closing(await opened(broker.port)) as connection,
    ):
        yield broker, connection


def post(
    connection: BrokerConnection,
    on_response: Callable[[memoryview, BufferLease | None], None],
    on_lost: Callable[[Exception], None],
) -> None:
    """Send a Metadata request with these callbacks."""
    correlation_id = connection.next_correlation_id()
    frame = metadata(()).encode(12, correlation_id, "test")
    connection.send((frame,), correlation_id, on_response, on_lost)


@asynccontextmanager
async def listening(talk: Talk) -> AsyncGenerator[int]:
    """The port of a peer that does this with each connection."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


async def test_a_request_the_broker_does_not_speak_is_refused_by_name() -> None:
    async with connected() as (broker, connection):
        assert broker.requests == [(18, 4), (18, 0)], "it falls back to version 0 of ApiVersions"
        assert connection.versions[METADATA] == (12, 13)
        with pytest.raises(UnsupportedVersionError, match=r"ListGroups not at all.*Kafka 2\.4"):
            await connection.call(list_groups())
        with pytest.raises(UnsupportedVersionError, match=r"ListGroups not at all.*Kafka 3\.8"):
            await connection.call(list_groups(["share"]))
        with pytest.raises(UnsupportedVersionError, match=r"12 to 13, mm2py 0 to 11.*newer mm2py"):
            connection.negotiated(METADATA, 0, 11, "Metadata")


async def test_a_lost_connection_fails_all_in_flight_and_names_the_address() -> None:
    async with connected() as (broker, connection):
        hold = broker.hold(METADATA)
        calls = [asyncio.create_task(connection.call(metadata(()))) for _ in range(3)]
        await hold.arrived.wait()
        await broker.disconnect()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ConnectionFailedError)
            assert f"127.0.0.1:{broker.port}" in str(error)
        assert connection.closed
        with pytest.raises(ConnectionFailedError, match="is closed"):
            await connection.call(metadata(()))


async def test_a_cancelled_call_leaves_the_connection_usable_and_an_overdue_answer_closes_it() -> (
    None
):
    async with connected() as (broker, connection):
        hold = broker.hold(METADATA)
        call = asyncio.create_task(connection.call(metadata(())))
        await hold.arrived.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        hold.release()
        assert (await connection.call(metadata(["t"]))).topics
        assert connection.in_flight == 0
        broker.hold(METADATA)
        late = asyncio.create_task(connection.call(metadata(())))
        with pytest.raises(RequestTimedOutError, match="within 20 ms"):
            await connection.call(metadata(()), timeout_ms=20)
        with pytest.raises(ConnectionFailedError, match="no answer within 20 ms"):
            await late
        assert connection.closed


async def test_an_answer_is_due_later_by_what_the_broker_throttles_the_connection() -> None:
    async with connected() as (broker, connection):
        hold = broker.hold(METADATA)
        calls = [asyncio.create_task(connection.call(metadata(()), timeout_ms=500))]
        await eventually(lambda: connection.in_flight == 1)
        connection.put_off(60_000)
        connection.put_off(1)  # a shorter one ends no longer one
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(calls[0]), 0.6)
        hold.release()
        await calls[0]
        assert connection.round_trip.least_s >= 0


async def test_an_idle_connection_closes_itself() -> None:
    closed: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    async with FakeBroker() as broker:
        using = settings(connections_max_idle_ms=10, request_timeout_ms=20)
        await BrokerConnection.open(
            "127.0.0.1",
            broker.port,
            using,
            BufferPool(),
            on_closed=lambda _, reason, in_flight: closed.put_nowait((reason, in_flight)),
        )
        async with asyncio.timeout(90):
            assert await closed.get() == ("idle", 0)


async def test_a_peer_that_is_not_kafka_is_reported() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with listening(talk) as port:
        with pytest.raises(ConnectionFailedError, match="a frame announces"):
            await opened(port)


async def test_a_peer_that_says_nothing_is_told_from_one_that_cannot_be_reached() -> None:
    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    few_ms = settings(socket_connection_setup_timeout_ms=100)
    async with listening(be_silent) as port:
        with pytest.raises(ConnectionFailedError, match="did not answer within 100 ms") as caught:
            await BrokerConnection.open("127.0.0.1", port, few_ms, BufferPool())
    assert "Kafka listener" in caught.value.remedy


async def test_other_security_protocols_are_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match=r"security\.protocol=SSL"):
        await BrokerConnection.open("127.0.0.1", 1, settings(security_protocol="SSL"), BufferPool())


async def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConnectionFailedError, match=r"no-such-host\.invalid:9092"):
        await BrokerConnection.open("no-such-host.invalid", 9092, settings(), BufferPool())


async def test_answers_too_long_for_the_head_buffer_leave_connection_and_buffers_whole() -> None:
    topics = {f"a-topic-with-a-rather-long-name-{n:05d}": 1 for n in range(500)}
    async with FakeBroker(topics=topics) as broker:
        pool = BufferPool()
        connection = await BrokerConnection.open("127.0.0.1", broker.port, settings(), pool)
        for _ in range(3):
            assert len((await connection.call(metadata(None))).topics) == len(topics)
        assert not connection.closed
        assert broker.connections == 1
        assert pool.leased_bytes == 0
        await connection.close()


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (MemoryError("no room"), "cannot be handled: MemoryError('no room')"),
        (KeyError(7), "cannot be handled: KeyError(7)"),
        (IndexError(), "cannot be handled: IndexError()"),
        (ProtocolError("cannot be read"), "cannot be read"),
    ],
)
async def test_a_defect_in_the_handling_of_an_answer_ends_the_connection_and_reaches_every_owner(
    defect: Exception, said: str
) -> None:
    async with connected() as (broker, connection):
        lost: list[Exception] = []

        def on_response(_body: memoryview, _lease: BufferLease | None) -> None:
            raise defect

        def on_lost(error: Exception) -> None:
            lost.append(error)
            raise RuntimeError("a defect in one owner keeps nothing from the others")

        hold = broker.hold(METADATA)
        post(connection, on_response, on_lost)
        post(connection, on_response, on_lost)
        other = asyncio.create_task(connection.call(metadata(())))
        await hold.arrived.wait()
        hold.release()
        with pytest.raises(ConnectionFailedError, match=re.escape(said)):
            await other
        assert connection.closed
        own, _ = lost
        assert isinstance(own, ProtocolError)
        assert said in str(own)


async def test_a_connection_closed_between_events_and_their_handling_ends_nothing_else() -> None:
    class Between(selectors.DefaultSelector):
        closes: BrokerConnection | None = None

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            events = super().select(timeout)
            ours = [key for key, _ in events if self.closes and peer_of(key.fd) == self.closes.port]
            if self.closes is not None and ours:
                self.closes.reset("a permit ended")
                self.closes = None
            return events

    selector = Between()

    async def scenario() -> None:
        async with connected() as (broker, connection):
            asking = [asyncio.create_task(connection.call(metadata(()))) for _ in range(3)]
            await asyncio.sleep(0)
            selector.closes = connection
            for ended in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(ended, ConnectionFailedError)
            assert broker.port

    await run_with(selector, scenario())


async def test_a_connection_that_the_broker_closed_in_this_turn_may_be_reset() -> None:
    class Behind(selectors.DefaultSelector):
        """Resets a connection when its end was read, and before anybody is told."""

        resets: BrokerConnection | None = None

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            events = super().select(timeout)
            resets = self.resets
            if resets is not None and any(peer_of(key.fd) == resets.port for key, _ in events):
                self.resets = None
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: loop.call_soon(reset_now, resets))
            return events

    failures: list[OSError] = []
    tried: list[bool] = []

    def reset_now(connection: BrokerConnection) -> None:
        tried.append(connection.closed)
        try:
            connection.reset("a permit ended")
        except OSError as error:
            failures.append(error)

    selector = Behind()

    async def scenario() -> None:
        async with connected() as (broker, connection):
            hold = broker.hold(METADATA)
            asking = asyncio.create_task(connection.call(metadata(())))
            await hold.arrived.wait()
            selector.resets = connection
            await broker.disconnect()
            with pytest.raises(ConnectionFailedError, match="closed by the broker"):
                await asking
            hold.release()

    await run_with(selector, scenario())
    assert tried == [True]
    assert not failures


def peer_of(fd: int) -> int:
    """Return the port at the other end, 0 where there is none."""
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            return int(sock.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return 0


async def run_with(selector: selectors.BaseSelector, work: Coroutine[None, None, None]) -> None:
    """Run this in a loop of its own, in a thread of its own."""

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(work)

    await asyncio.to_thread(run)


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def alert(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x15\x03\x03\x00\x02\x02\x46")
    writer.close()


async def half_an_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x00\x00\x40\x00\x00")
    writer.close()


async def said_by(farewell: Talk, *, known: bool = False) -> str:
    """Return the error of a connection whose peer does this after the first bytes of a request."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        await farewell(reader, writer)

    async with listening(talk) as port:
        credentials = Credentials(settings())
        if known:
            credentials.greeted.add(f"127.0.0.1:{port}")
        with pytest.raises(ConnectionFailedError) as failed:
            await opened(port, credentials)
    return str(failed.value)


@pytest.mark.parametrize(
    ("farewell", "known", "told"),
    [
        (alert, False, "is a TLS listener, spoken to without TLS"),
        (hang_up, False, "as TLS listeners do without TLS"),
        (reset, False, ""),
        (half_an_answer, False, ""),
        (hang_up, True, ""),
    ],
)
async def test_tls_is_suspected_only_where_it_may_be_the_cause(
    farewell: Talk, told: str, *, known: bool
) -> None:
    said = await said_by(farewell, known=known)
    assert (told in said, "TLS" in said, "lost: " in said) == (True, bool(told), not told)
    assert ("security.protocol to SSL" in said) is bool(told)


@pytest.mark.parametrize("served", [False, True])
async def test_sasl_is_suspected_only_of_a_listener_that_never_served_us(*, served: bool) -> None:
    credentials = Credentials(settings())
    async with FakeBroker(topics={"t": 1}) as broker:
        connection = await opened(broker.port, credentials)
        address = f"127.0.0.1:{broker.port}"
        assert (credentials.greeted, credentials.served) == ({address}, set())
        if served:
            await connection.call(metadata(()))
            await connection.close()
            assert credentials.served == {address}
            connection = await opened(broker.port, credentials)
        hold = broker.hold(METADATA)
        call = asyncio.create_task(connection.call(metadata(())))
        await hold.arrived.wait()
        await broker.disconnect()
        with pytest.raises(ConnectionFailedError) as failed:
            await call
    assert ("SASL" in str(failed.value)) is not served


def test_under_tls_a_certificate_is_asked_for_only_at_first_sight() -> None:
    tls = ConnectionSettings(
        bootstrap_servers=(("h", 1),), security_protocol="SSL", tls=TlsSettings()
    )
    for cause in (None, ConnectionResetError()):
        at_first_sight = Farewell("h:1", b"", cause, cause is None, known=False)
        assert "ssl.keystore.location" in str(unwelcome(at_first_sight, tls))
        assert unwelcome(replace(at_first_sight, known=True), tls) is None


@pytest.mark.parametrize("error", [ssl.SSLEOFError(), ConnectionResetError()])
def test_a_listener_that_spoke_tls_is_not_taken_for_one_without(error: Exception) -> None:
    told = str(tls_failure(error, "h:1", TlsSettings(), known=True))
    assert "TLS handshake with h:1 failed" in told
    assert "security.protocol" not in told


# -- frames survive any chunking, and buffers go back to their pool


class Inbox:
    """Keeps copies, and leases when asked."""

    def __init__(self, *, keep: bool = False) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.leases: list[BufferLease] = []
        self._keep = keep

    def received(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        self.frames.append((correlation_id, bytes(body)))
        if self._keep and lease is not None:
            lease.retain()
            self.leases.append(lease)


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def feed(receiver: FrameReceiver, inbox: Inbox, data: bytes, most: int) -> int:
    position = 0
    while position < len(data):
        buffer = receiver.get_buffer()
        count = min(len(buffer), len(data) - position, most)
        assert count > 0
        buffer[:count] = data[position : position + count]
        receiver.take(count, inbox.received)
        position += count
    return receiver.missing_bytes


@pytest.mark.parametrize("most", [1, 3, 4, 5, 1000, HEAD_BYTES, 10**9])
def test_frames_of_every_size_arrive_in_order_whatever_the_chunks(most: int) -> None:
    rng = random.Random(7)
    sizes = [0, 1, 5, 100, HEAD_BYTES - 8, HEAD_BYTES - 7, 20_000, 70_000, 3]
    expected = [(n, rng.randbytes(size)) for n, size in enumerate(sizes)]
    inbox, pool = Inbox(), BufferPool()
    receiver = FrameReceiver(pool)
    missing = feed(receiver, inbox, b"".join(frame(*item) for item in expected), most)
    assert inbox.frames == expected
    assert missing == 0
    assert pool.leased_bytes == 0
    # Missing bytes are counted inside of a frame alone, and the end gives its buffer back.
    data = frame(1, bytes(100_000))
    assert feed(receiver, inbox, data[:3], most) == 0
    assert feed(receiver, inbox, data[3:50_000], most) == len(data) - 50_000
    assert pool.leased_bytes > 0
    receiver.close()
    receiver.close()
    assert pool.leased_bytes == 0


def test_a_kept_lease_holds_the_whole_buffer_until_its_last_release() -> None:
    released: list[int] = []
    others: list[int] = []
    inbox, pool = Inbox(keep=True), BufferPool()
    pool.on_release.add(lambda: released.append(pool.leased_bytes))
    pool.on_release.add(lambda: others.append(pool.free_bytes))
    receiver = FrameReceiver(pool)
    feed(receiver, inbox, frame(1, bytes(100_000)), 10**9)
    assert pool.leased_bytes == 131_072
    inbox.leases[0].release()
    assert (pool.leased_bytes, pool.free_bytes, released) == (0, 131_072, [0])
    assert others == [131_072], "everybody who waits for memory is told"
    feed(receiver, inbox, frame(2, bytes(80_000)), 10**9)
    assert pool.free_bytes == 0, "the free buffer is used again"


@pytest.mark.parametrize("size", [-1, 0, 3, 512 * 1024 * 1024 + 1, 0x48545450])
def test_what_cannot_be_a_frame_or_be_handled_is_an_error_and_keeps_no_buffer(size: int) -> None:
    class Failing(Inbox):
        def received(self, correlation_id: int, body: memoryview, lease: object) -> None:
            raise ProtocolError(f"answer {correlation_id} cannot be read")

    pool = BufferPool()
    with pytest.raises(ProtocolError, match="answer 1"):
        feed(FrameReceiver(pool), Failing(), frame(1, bytes(100_000)), 10**9)
    assert pool.leased_bytes == 0
    with pytest.raises(ProtocolError, match=f"announces {size} bytes"):
        feed(FrameReceiver(pool), Inbox(), struct.pack(">i", size), 4)


PLAIN = ConnectionSettings(
    bootstrap_servers=(("127.0.0.1", 1),),
    security_protocol="SASL_PLAINTEXT",
    sasl=SaslSettings(mechanism="PLAIN", username="u", password="p"),  # noqa: S106 - of no one
)


class Sessions:
    """A listener whose sessions last ``lifetime_ms``: it answers logins and, once ``speaks`` is set, ApiVersions after the first."""

    def __init__(self, lifetime_ms: int) -> None:
        self.lifetime_ms, self.logins = lifetime_ms, 0
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = 0
        with suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, number = struct.unpack_from(">hhi", frame)
                body = struct.pack(">hi9h", 35 if version else 0, 3, 17, 1, 1, 18, 0, 0, 36, 1, 1)
                if key == 17:
                    body = struct.pack(">hih5s", 0, 1, 5, b"PLAIN")
                elif key == 36:
                    self.logins += 1
                    body = struct.pack(">hhiq", 0, -1, 0, self.lifetime_ms)
                else:
                    served += 1
                    if served > 2:  # the first two are of the opening
                        await self.speaks.wait()
                writer.write(struct.pack(">ii", len(body) + 4, number) + body)
        writer.close()


async def test_a_hundred_renewed_logins_leave_nothing_behind_and_lose_no_request() -> None:
    sessions, loop = Sessions(lifetime_ms=2), asyncio.get_running_loop()
    async with listening(sessions.talk) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, PLAIN, BufferPool())
        await connection.ping(20)
        before = len(asyncio.all_tasks()), len(_timers(loop))
        async with asyncio.timeout(90):
            while sessions.logins < 100:
                await connection.ping(1)
        assert not connection.closed
        after = len(asyncio.all_tasks()), len(_timers(loop))
        assert after[0] <= before[0] + 1
        assert after[1] <= before[1] + 3
        await connection.close()


def _timers(loop: asyncio.AbstractEventLoop) -> Sequence[asyncio.TimerHandle]:
    scheduled: Sequence[asyncio.TimerHandle] = getattr(loop, "_scheduled", ())
    return [it for it in scheduled if not it.cancelled()]


async def test_a_login_that_a_defect_keeps_from_being_renewed_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> int:
        raise ZeroDivisionError

    sessions = Sessions(lifetime_ms=50)
    async with listening(sessions.talk) as port:
        connection = await BrokerConnection.open("127.0.0.1", port, PLAIN, BufferPool())
        monkeypatch.setattr(Credentials, "log_in", broken)
        sessions.speaks.clear()
        with pytest.raises(ConnectionFailedError, match="login not renewed"):
            async with asyncio.timeout(90):
                await connection.ping(1)
        sessions.speaks.set()
