"""What the end of a connection tells of its listener, and what it does not."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import pytest

from mm2py.client.connect.connection import BrokerConnection, Farewell, unwelcome
from mm2py.client.connect.credentials import Credentials
from mm2py.client.connect.tls import tls_failure
from mm2py.config.clients import ConnectionSettings
from mm2py.config.security import TlsSettings
from mm2py.errors import ConnectionFailedError, Mm2pyError
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.messages import metadata
from tests.kit.fakes.broker import FakeBroker

METADATA = 3
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def settings(port: int = 1) -> ConnectionSettings:
    return ConnectionSettings(bootstrap_servers=(("127.0.0.1", port),))


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


def said_by(farewell: Talk, *, known: bool = False) -> str:
    """Return the error of a connection whose peer does this after the first bytes of a request."""

    async def run() -> str:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1_000)
            await farewell(reader, writer)

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = int(server.sockets[0].getsockname()[1])
        credentials = Credentials(settings(port))
        if known:
            credentials.greeted.add(f"127.0.0.1:{port}")
        async with server:
            with pytest.raises(ConnectionFailedError) as failed:
                await BrokerConnection.open(
                    "127.0.0.1", port, settings(port), BufferPool(), credentials=credentials
                )
        return str(failed.value)

    return asyncio.run(run())


def test_a_tls_alert_names_the_security_protocol() -> None:
    assert "is a TLS listener, spoken to without TLS" in said_by(alert)
    assert "security.protocol to SSL" in said_by(alert)


def test_a_peer_that_hangs_up_without_a_byte_may_want_tls() -> None:
    assert "as TLS listeners do without TLS" in said_by(hang_up)


@pytest.mark.parametrize(
    ("farewell", "known"), [(reset, False), (half_an_answer, False), (hang_up, True)]
)
def test_tls_is_not_suspected_where_the_end_cannot_come_from_it(
    farewell: Talk, *, known: bool
) -> None:
    said = said_by(farewell, known=known)
    assert "TLS" not in said
    assert "lost: " in said


async def test_an_address_that_answered_is_known_from_then_on() -> None:
    credentials = Credentials(settings())
    async with FakeBroker(topics={"t": 1}) as broker:
        address = f"127.0.0.1:{broker.port}"
        connection = await BrokerConnection.open(
            "127.0.0.1", broker.port, settings(), BufferPool(), credentials=credentials
        )
        assert (credentials.greeted, credentials.served) == ({address}, set())
        await connection.call(metadata(()))
        await connection.close()
        assert credentials.served == {address}


@pytest.mark.parametrize("served", [False, True])
async def test_sasl_is_suspected_only_of_a_listener_that_never_served_us(*, served: bool) -> None:
    async def run() -> str:
        credentials = Credentials(settings())
        async with FakeBroker(topics={"t": 1}) as broker:
            if served:
                credentials.served.add(f"127.0.0.1:{broker.port}")
            connection = await BrokerConnection.open(
                "127.0.0.1", broker.port, settings(), BufferPool(), credentials=credentials
            )
            hold = broker.hold(METADATA)
            call = asyncio.create_task(connection.call(metadata(())))
            await hold.arrived.wait()
            await broker.disconnect()
            with pytest.raises(ConnectionFailedError) as failed:
                await call
            return str(failed.value)

    assert ("SASL" in await run()) is not served


def test_under_tls_a_certificate_is_asked_for_only_at_first_sight() -> None:
    tls = ConnectionSettings(
        bootstrap_servers=(("h", 1),), security_protocol="SSL", tls=TlsSettings()
    )

    def end(cause: Exception | None, *, known: bool) -> Mm2pyError | None:
        return unwelcome(Farewell("h:1", b"", cause, cause is None, known), tls)

    assert "ssl.keystore.location" in str(end(None, known=False))
    assert "ssl.keystore.location" in str(end(ConnectionResetError(), known=False))
    assert end(None, known=True) is None
    assert end(ConnectionResetError(), known=True) is None


@pytest.mark.parametrize("error", [ssl.SSLEOFError(), ConnectionResetError()])
def test_a_listener_that_spoke_tls_is_not_taken_for_one_without(error: Exception) -> None:
    told = str(tls_failure(error, "h:1", TlsSettings(), known=True))
    assert "TLS handshake with h:1 failed" in told
    assert "security.protocol" not in told
