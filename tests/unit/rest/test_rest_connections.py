"""What strangers on real connections can hold up: nothing, within small limits."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.rest.answers import json_response
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.connections import ConnectionGuard, GuardedProtocol, GuardedSocket, connection_limit
from mm2py.rest.forwarding import http_client
from mm2py.rest.listener_tls import peer_context, server_context
from mm2py.rest.listening import Listener
from mm2py.rest.request_body import BodyReader, replayed
from mm2py.rest.server import RestServer
from mm2py.testing.clock import FakeClock
from tests.unit.rest.rest_fakes import FakeHerder, parts_of
from tests.unit.rest.test_listener_tls import OWN, tls_of

LOCAL = "127.0.0.1"
LIMIT = 8
WITHIN_S = 10.0
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(app: ASGIApp, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    server = RestServer([Listener(LOCAL, 0, tls)], app, connections=LIMIT)
    (url,) = await server.start()
    try:
        yield url
    finally:
        await server.stop(0)


async def stranger(url: str, sent: bytes = b"") -> Pair:
    reader, writer = await asyncio.open_connection(LOCAL, httpx.URL(url).port)
    writer.write(sent)
    return reader, writer


async def gone(pair: Pair) -> bytes:
    """Return what a stranger got before its connection was closed."""
    reader, writer = pair
    try:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), WITHIN_S)
        return b""
    finally:
        writer.close()


def body_head(path: str, length: int, headers: str = "") -> bytes:
    return f"PUT {path} HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Length: {length}\r\n{headers}\r\n".encode()


@pytest.mark.parametrize("encrypted", [False, True])
def test_silent_strangers_make_room_for_one_that_asks(encrypted: bool) -> None:
    tls = tls_of(OWN)

    async def run() -> None:
        async with serving(
            public_app(parts_of()), server_context(tls) if encrypted else None
        ) as url:
            silent = [
                await stranger(url, b"" if encrypted else b"GET / HT") for _ in range(3 * LIMIT)
            ]
            async with http_client(peer_context(tls) if encrypted else None) as client:
                for _ in range(3):
                    assert (await client.get(f"{url}health")).status_code == 200
            for pair in silent[: 2 * LIMIT]:
                assert await gone(pair) == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_requests_under_way_are_not_closed_for_newer_connections() -> None:
    async def run() -> None:
        begun, may_end = asyncio.Semaphore(0), asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            begun.release()
            await may_end.wait()
            await json_response("done")(scope, receive, send)

        async with serving(slow) as url, http_client() as client:
            asked = [asyncio.create_task(client.get(url)) for _ in range(LIMIT)]
            for _ in range(LIMIT):
                await begun.acquire()
            with pytest.raises(httpx.TransportError):
                await client.get(url)
            may_end.set()
            assert [(await it).json() for it in asked] == ["done"] * LIMIT

    asyncio.run(run())


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nX-Slow: ", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nG"])  # fmt: skip
def test_a_head_that_does_not_come_ends_the_connection(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_s", 0.05)

    async def run() -> None:
        async with serving(public_app(parts_of())) as url:
            answer = await gone(await stranger(url, begin))
            assert answer.startswith(b"HTTP/1.1 200" if b"health" in begin else b"")

    asyncio.run(run())


def test_unsigned_bodies_on_the_internal_listener_are_answered_unread() -> None:
    async def run() -> None:
        app = internal_app(parts_of({None: FakeHerder()}))
        async with serving(app) as url:
            pair = await stranger(url, body_head("/connectors/c/stop", 15 * 1024 * 1024))
            assert (await gone(pair)).startswith(b"HTTP/1.1 403")

    asyncio.run(run())


def test_a_body_that_does_not_come_is_a_408_and_waits_for_no_longer_than_its_deadline() -> None:
    reader = BodyReader(100, at_once=1, deadline_s=0.05)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await reader.read(scope, receive)
        answer = body if not isinstance(body, bytes) else json_response(len(body))
        await answer(scope, replayed(b"", receive), send)

    async def run() -> None:
        async with serving(app) as url, http_client() as client:
            pairs = [await stranger(url, body_head("/", 100) + b"x") for _ in range(3)]
            for pair in pairs:
                assert (await gone(pair)).startswith(b"HTTP/1.1 408")
            assert (await client.put(url, content=b"x" * 100)).json() == 100
            assert (await client.put(url, content=b"x" * 101)).status_code == 413

    asyncio.run(run())


def test_a_small_body_waits_for_no_sender_of_a_large_one() -> None:
    """A PATCH of a flow beside connections that send a megabyte byte by byte."""
    reader = BodyReader(1_000_000, at_once=1, deadline_s=30)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await reader.read(scope, receive)
        answer = body if not isinstance(body, bytes) else json_response(len(body))
        await answer(scope, replayed(b"", receive), send)

    async def run() -> None:
        async with serving(app) as url, http_client() as client:
            pairs = [await stranger(url, body_head("/", 1_000_000) + b"x") for _ in range(3)]
            assert (await client.put(url, content=b"x" * 100)).json() == 100
            for _, writer in pairs:
                writer.close()

    asyncio.run(run())


def test_a_message_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    """A proxy that goes by the length would take what is behind for the next request."""
    message = (
        b"GET /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )

    async def run() -> None:
        async with serving(public_app(parts_of({None: FakeHerder()}))) as url:
            answer = await gone(await stranger(url, message))
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1

    asyncio.run(run())


def test_a_public_body_that_does_not_come_holds_up_no_other_request() -> None:
    async def run() -> None:
        async with (
            serving(public_app(parts_of({None: FakeHerder()}))) as url,
            http_client() as client,
        ):
            pairs = [await stranger(url, body_head("/connectors/c/config", 1000)) for _ in range(LIMIT - 2)]  # fmt: skip
            assert (await client.get(f"{url}connectors")).status_code == 200
            for _, writer in pairs:
                writer.close()

    asyncio.run(run())


def test_a_connection_is_turned_away_when_no_descriptor_is_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    guard = ConnectionGuard(1000, FakeClock())
    listening = socket.create_server((LOCAL, 0))
    guarded = GuardedSocket(listening, guard)
    held: list[int] = []
    with socket.create_connection(guarded.getsockname()) as client:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (guarded.fileno() + 40, hard))
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            with pytest.raises(ConnectionAbortedError):
                guarded.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in held:
                os.close(descriptor)
        assert client.recv(1) == b""
    with socket.create_connection(guarded.getsockname()):
        accepted, _ = guarded.accept()
        accepted.close()
    guarded.close()
    guard.close()


@pytest.mark.parametrize(("soft", "limit"), [(160, 20), (1024, 128), (1_048_576, 256), (32, 8)])
def test_connections_take_a_small_share_of_the_descriptors(
    soft: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return soft, soft

    monkeypatch.setattr(resource, "getrlimit", limits)
    assert connection_limit() == limit
