"""Listeners on real sockets of this machine: ports, ends, what is on the wire."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.errors import ConfigError
from mm2py.rest.answers import json_response
from mm2py.rest.app import public_app
from mm2py.rest.forwarding import http_client
from mm2py.rest.listening import Listener, bind
from mm2py.rest.server import RestServer
from tests.certificates import Authority
from tests.unit.rest.rest_fakes import FakeHerder, parts_of

LOCAL = "127.0.0.1"


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listeners: list[Listener],
) -> AsyncGenerator[tuple[tuple[str, ...], httpx.AsyncClient]]:
    server = RestServer(listeners, app)
    urls = await server.start()
    try:
        async with http_client() as client:
            yield urls, client
    finally:
        await server.stop(1)
        await server.stop(1)


async def test_one_application_is_served_on_several_listeners_with_encoded_names_intact() -> None:
    app = public_app(parts_of({None: FakeHerder(configs={"a/b": {"name": "a/b"}})}))

    async with serving(app, [Listener(LOCAL, 0), Listener(LOCAL, 0)]) as (urls, client):
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
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener = Listener(LOCAL, port, may_move=True)
        with caplog.at_level(logging.INFO, "mm2py.rest.listening"):
            async with serving(public_app(parts_of()), [listener]) as (urls, client):
                assert (await client.get(f"{urls[0]}health")).status_code == 200
                assert not urls[0].endswith(f":{port}/")
    assert f"rest port taken listener={LOCAL}:{port}" in caplog.text


async def test_a_taken_port_that_was_asked_for_is_an_error_and_leaves_nothing_open() -> None:
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))
        taken.listen()
        port = taken.getsockname()[1]
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


async def test_an_unencoded_arrow_in_a_name_reaches_its_connector() -> None:
    app = public_app(parts_of({None: FakeHerder(configs={"A->B": {"name": "A->B"}})}))
    server = RestServer([Listener(LOCAL, 0)], app)
    (url,) = await server.start()
    reader, writer = await asyncio.open_connection(LOCAL, int(url.split(":")[2].strip("/")))
    writer.write(b"GET /connectors/A->B/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    await server.stop(1)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"name":"A->B"}')


async def test_an_https_listener_says_so_and_locations_are_https(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("worker")
    pem = tmp_path / "worker.pem"
    pem.write_text(issued.chain_pem() + issued.key_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    server = RestServer([Listener(LOCAL, 0, context)], public_app(parts_of()))
    (url,) = await server.start()
    assert url.startswith("https://")
    trusting = ssl.create_default_context(cadata=authority.pem())
    async with http_client(trusting) as client:
        created = await client.post(f"{url}connectors", json={"name": "n", "config": {}})
        assert created.headers["location"] == f"{url}connectors/n"
    async with http_client() as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(url)
    await server.stop(1)


async def test_a_port_is_known_before_it_is_served_and_whoever_asks_early_waits() -> None:
    bound = bind(Listener(LOCAL, 0))
    async with http_client() as client:
        early = asyncio.create_task(client.get(bound.url))
        await asyncio.sleep(0)
        server = RestServer([bound], public_app(parts_of()))
        assert await server.start() == (bound.url,)
        assert (await early).status_code == 200
    await server.stop(1)
