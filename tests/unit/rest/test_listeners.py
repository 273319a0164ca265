"""Listeners on real sockets of this machine: ports, TLS, connection limits, what is on the wire."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import ssl
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.config.rest_settings import ListenerTls
from mm2py.config.security import StoreSettings, TlsSettings
from mm2py.errors import ConfigError
from mm2py.rest.answers import json_response
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.connections import ConnectionGuard, GuardedProtocol, GuardedSocket, connection_limit
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.forwarding import http_client
from mm2py.rest.listener_tls import peer_context, server_context, trusts_itself
from mm2py.rest.listening import Listener, bind
from mm2py.rest.request_body import BodyReader, replayed
from mm2py.rest.security import Gate, GateRules
from mm2py.rest.server import RestServer
from mm2py.testing.clock import FakeClock
from tests.certificates import Authority, Issued
from tests.unit.rest.rest_fakes import FakeHerder, echo, parts_of

LOCAL = "127.0.0.1"
AUTHORITY = Authority()
OWN = AUTHORITY.issue("worker-1")
TRUST = StoreSettings(name="ssl.truststore", type="PEM", certificates=AUTHORITY.pem())


def tls_of(issued: Issued | None, client_auth: str = "none") -> ListenerTls:
    own = None
    if issued is not None:
        chain, key = issued.chain_pem(), issued.key_pem()
        own = StoreSettings(name="ssl.keystore", type="PEM", certificates=chain, key=key)
    return ListenerTls(stores=TlsSettings(truststore=TRUST, keystore=own), client_auth=client_auth)


@asynccontextmanager
async def serving(
    app: ASGIApp, *listeners: Listener, connections: int | None = None
) -> AsyncGenerator[tuple[tuple[str, ...], httpx.AsyncClient]]:
    """Serve on a free port unless told where; stopping twice is stopping once."""
    server = RestServer(listeners or (Listener(LOCAL, 0),), app, connections=connections)
    urls = await server.start()
    try:
        async with http_client() as client:
            yield urls, client
    finally:
        await server.stop(0)
        await server.stop(0)


@contextmanager
def taken_port() -> Generator[int]:
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))
        taken.listen()
        yield taken.getsockname()[1]


async def test_one_application_is_served_on_several_listeners_with_encoded_names_intact() -> None:
    app = public_app(parts_of({None: FakeHerder(configs={"a/b": {"name": "a/b"}})}))
    async with serving(app, Listener(LOCAL, 0), Listener(LOCAL, 0)) as (urls, client):
        for url in urls:
            reply = await client.get(f"{url}connectors/a%2Fb/config")
            assert reply.json() == {"name": "a/b"}
            assert reply.headers["content-type"] == "application/json"
            assert "date" in reply.headers
            assert "server" not in reply.headers
            head = await client.head(f"{url}connectors/")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == "7"
            pause = await client.put(f"{url}connectors/c/pause")
            assert (pause.status_code, pause.headers["content-length"]) == (202, "0")
        assert len(set(urls)) == 2


async def test_a_taken_port_of_a_default_listener_gives_a_free_one_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mm2py.rest.listening")
    with taken_port() as port:
        listener = Listener(LOCAL, port, may_move=True)
        async with serving(public_app(parts_of()), listener) as (urls, client):
            assert (await client.get(f"{urls[0]}health")).status_code == 200
            assert not urls[0].endswith(f":{port}/")
    assert f"rest port taken listener={LOCAL}:{port}" in caplog.text


async def test_a_taken_port_that_was_asked_for_is_an_error_and_leaves_nothing_open() -> None:
    with taken_port() as port:
        server = RestServer([Listener(LOCAL, 0), Listener(LOCAL, port)], public_app(parts_of()))
        with pytest.raises(ConfigError, match=f"REST cannot listen at {LOCAL}:{port}"):
            await server.start()


async def test_a_stop_lets_a_running_request_end() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await may_end.wait()
        await json_response("done")(scope, receive, send)

    server = RestServer([Listener(LOCAL, 0)], slow)
    (url,) = await server.start()
    async with http_client() as client:
        asked = asyncio.create_task(client.get(url))
        await begun.wait()
        stopping = asyncio.create_task(server.stop(10))
        may_end.set()
        assert (await asked).json() == "done"
    await stopping
    async with http_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_arrives_in_the_turn_of_the_stop_is_closed(turns: int) -> None:
    server = RestServer([Listener(LOCAL, 0)], JSONResponse({}))
    (url,) = await server.start()
    clients = [socket.create_connection((LOCAL, httpx.URL(url).port)) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await server.stop(0)
        gc.collect()
    assert [str(it.message) for it in caught] == []
    for client in clients:
        with client, contextlib.suppress(ConnectionResetError):
            client.settimeout(90)
            assert client.recv(1) == b""


async def test_an_unencoded_arrow_in_a_name_reaches_its_connector() -> None:
    app = public_app(parts_of({None: FakeHerder(configs={"A->B": {"name": "A->B"}})}))
    head = b"GET /connectors/A->B/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serving(app) as ((url,), _):
        answer = await gone(await stranger(url, head))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"name":"A->B"}')


async def test_an_https_listener_says_so_and_locations_are_https() -> None:
    listener = Listener(LOCAL, 0, server_context(tls_of(OWN)))
    async with serving(public_app(parts_of()), listener) as ((url,), untrusting):
        assert url.startswith("https://")
        async with http_client(ssl.create_default_context(cadata=AUTHORITY.pem())) as client:
            created = await client.post(f"{url}connectors", json={"name": "n", "config": {}})
            assert created.headers["location"] == f"{url}connectors/n"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await untrusting.get(url)


async def test_a_port_is_known_before_it_is_served_and_whoever_asks_early_waits() -> None:
    bound = bind(Listener(LOCAL, 0))
    async with http_client() as client:
        early = asyncio.create_task(client.get(bound.url))
        await asyncio.sleep(0)
        server = RestServer([bound], public_app(parts_of()))
        assert await server.start() == (bound.url,)
        assert (await early).status_code == 200
    await server.stop(1)


# -- listener tls -----------------------------------------------------------------------------------


async def asked(server_tls: ListenerTls, client: ssl.SSLContext, requests: int = 1) -> str:
    """Serve with certificates that count, ask over one connection, return status and body."""
    credentials = RestCredentials({}, {}, certificates=True, read_only=["viewer"])
    gate = Gate(echo, credentials, GateRules(max_body_bytes=100))
    listener = Listener(LOCAL, 0, server_context(server_tls))
    async with serving(gate, listener) as ((url,), _), http_client(client) as http:
        answers = [await http.get(url) for _ in range(requests)]
    assert len({(a.status_code, a.text) for a in answers}) == 1
    return f"{answers[0].status_code} {answers[0].text}"


def client_context(issued: Issued | None) -> ssl.SSLContext:
    context = peer_context(tls_of(issued))
    assert context is not None
    return context


async def test_who_has_no_certificate_of_ours_is_not_known_and_not_connected_where_one_is_required() -> (
    None
):
    nobody = client_context(None)
    answer = await asked(tls_of(OWN, "requested"), nobody)
    assert answer.startswith("401 ")
    with pytest.raises(httpx.TransportError):
        await asked(tls_of(OWN, "required"), nobody)
    foreign = client_context(Authority("Other CA").issue("ann"))
    with pytest.raises(httpx.TransportError):
        await asked(tls_of(OWN, "requested"), foreign)
    operator = client_context(AUTHORITY.issue("ann"))
    assert (await asked(tls_of(OWN), operator)).startswith("401 "), "it was not asked for"


async def test_workers_speak_with_their_own_certificate_and_check_the_others() -> None:
    worker, viewer = (client_context(AUTHORITY.issue(it)) for it in ("worker-2", "viewer"))
    for context, name, operator in ((worker, "worker-2", "true"), (viewer, "viewer", "false")):
        answer = await asked(tls_of(OWN, "required"), context, requests=2)
        assert answer == f'200 {{"name":"{name}","operator":{operator},"body":0}}'
    foreign = tls_of(Authority("Other CA").issue("worker-3"))
    with pytest.raises(httpx.TransportError):
        await asked(foreign, worker)
    assert peer_context(None) is None


@pytest.mark.parametrize(
    ("protocols", "lowest", "highest"),
    [
        (("TLSv1.2", "TLSv1.3"), ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        (("TLSv1.3",), ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        (("TLSv1.2",), ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
    ],
)
def test_only_versions_that_are_asked_for_are_spoken(
    protocols: tuple[str, ...], lowest: ssl.TLSVersion, highest: ssl.TLSVersion
) -> None:
    context = server_context(replace(tls_of(OWN), protocols=protocols))
    assert (context.minimum_version, context.maximum_version) == (lowest, highest)


def test_a_store_that_cannot_be_used_refuses_the_start() -> None:
    broken = replace(TRUST, certificates="-----BEGIN CERTIFICATE-----AAAA-----END CERTIFICATE-----")
    stores = replace(tls_of(OWN, "required").stores, truststore=broken)
    for context in (server_context, peer_context):
        with pytest.raises(ConfigError, match=r"^listeners: ssl\.truststore"):
            context(ListenerTls(stores=stores, client_auth="required"))


def test_a_worker_knows_whether_its_stores_are_good_for_other_workers() -> None:
    own = tls_of(AUTHORITY.issue("worker-1"))
    for tls, host, good in (
        (own, "127.0.0.1", True),
        (replace(own, client_auth="required"), "127.0.0.1", True),
        (own, "10.1.2.3", False),
        (own, "elsewhere.example", False),
        (tls_of(Authority("Other CA").issue("worker-1")), "127.0.0.1", False),
        (replace(own, stores=replace(own.stores, truststore=None)), "127.0.0.1", False),
    ):
        assert trusts_itself(tls, host) is good


# -- rest connections -------------------------------------------------------------------------------

LIMIT = 8
WITHIN_S = 90.0
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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


def body_head(path: str, length: int) -> bytes:
    return f"PUT {path} HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Length: {length}\r\n\r\n".encode()


def lengths(reader: BodyReader) -> ASGIApp:
    """Return an application that answers how long a body was."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await reader.read(scope, receive)
        answer = body if not isinstance(body, bytes) else json_response(len(body))
        await answer(scope, replayed(b"", receive), send)

    return app


@pytest.mark.parametrize("encrypted", [False, True])
async def test_silent_strangers_make_room_for_one_that_asks(encrypted: bool) -> None:
    tls = tls_of(OWN)
    listener = Listener(LOCAL, 0, server_context(tls) if encrypted else None)
    async with serving(public_app(parts_of()), listener, connections=LIMIT) as ((url,), _):
        silent = [await stranger(url, b"" if encrypted else b"GET / HT") for _ in range(3 * LIMIT)]
        async with http_client(peer_context(tls) if encrypted else None) as client:
            for _ in range(3):
                assert (await client.get(f"{url}health")).status_code == 200
        for pair in silent[: 2 * LIMIT]:
            assert await gone(pair) == b""
        for _, writer in silent:
            writer.close()


async def test_connections_that_were_answered_make_room_for_one_that_asks() -> None:
    async with serving(public_app(parts_of()), connections=LIMIT) as ((url,), client):
        asked = [await stranger(url, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(LIMIT)]  # fmt: skip
        for reader, _ in asked:
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        for _ in range(3):
            assert (await client.get(f"{url}health")).status_code == 200
        for _, writer in asked:
            writer.close()


async def test_requests_under_way_are_not_closed_for_newer_connections() -> None:
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.release()
        await may_end.wait()
        await json_response("done")(scope, receive, send)

    async with serving(slow, connections=LIMIT) as ((url,), client):
        asked = [asyncio.create_task(client.get(url)) for _ in range(LIMIT)]
        for _ in range(LIMIT):
            await begun.acquire()
        with pytest.raises(httpx.TransportError):
            await client.get(url)
        may_end.set()
        assert [(await it).json() for it in asked] == ["done"] * LIMIT


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nX-Slow: ", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nG"])  # fmt: skip
async def test_a_head_that_does_not_come_ends_the_connection(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_s", 1.0)
    async with serving(public_app(parts_of())) as ((url,), _):
        answer = await gone(await stranger(url, begin))
        assert answer.startswith(b"HTTP/1.1 200" if b"health" in begin else b"")


async def test_unsigned_bodies_on_the_internal_listener_are_answered_unread() -> None:
    app = internal_app(parts_of({None: FakeHerder()}))
    async with serving(app) as ((url,), _):
        pair = await stranger(url, body_head("/connectors/c/stop", 15 * 1024 * 1024))
        assert (await gone(pair)).startswith(b"HTTP/1.1 403")


async def test_a_body_that_does_not_come_is_a_408_at_its_deadline() -> None:
    reader = BodyReader(100, at_once=1, deadline_s=0.5)

    async with serving(lengths(reader)) as ((url,), client):
        pairs = [await stranger(url, body_head("/", 100) + b"x") for _ in range(3)]
        for pair in pairs:
            assert (await gone(pair)).startswith(b"HTTP/1.1 408")
        assert (await client.put(url, content=b"x" * 100)).json() == 100
        assert (await client.put(url, content=b"x" * 101)).status_code == 413


async def test_a_small_body_waits_for_no_sender_of_a_large_one() -> None:
    """A PATCH of a flow beside connections that send a megabyte byte by byte."""
    reader = BodyReader(1_000_000, at_once=1, deadline_s=30)

    async with serving(lengths(reader)) as ((url,), client):
        pairs = [await stranger(url, body_head("/", 1_000_000) + b"x") for _ in range(3)]
        assert (await client.put(url, content=b"x" * 100)).json() == 100
        for _, writer in pairs:
            writer.close()


async def test_a_message_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    """A proxy that goes by the length would take what is behind for the next request."""
    message = (
        b"GET /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )

    async with serving(public_app(parts_of({None: FakeHerder()}))) as ((url,), _):
        answer = await gone(await stranger(url, message))
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_public_body_that_does_not_come_holds_up_no_other_request() -> None:
    app = public_app(parts_of({None: FakeHerder()}))
    async with serving(app, connections=LIMIT) as ((url,), client):
        pairs = [await stranger(url, body_head("/connectors/c/config", 1000)) for _ in range(LIMIT - 2)]  # fmt: skip
        assert (await client.get(f"{url}connectors")).status_code == 200
        for _, writer in pairs:
            writer.close()


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
