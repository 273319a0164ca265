import asyncio
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mm2py.config.rest_settings import ListenerTls
from mm2py.config.security import StoreSettings, TlsSettings
from mm2py.errors import ConfigError
from mm2py.rest.credentials import Credentials
from mm2py.rest.listener_tls import (
    CertifiedProtocol,
    peer_context,
    server_context,
    trusts_itself,
)
from mm2py.rest.security import Gate, GateRules
from tests.certificates import Authority, Issued

AUTHORITY = Authority()
OWN = AUTHORITY.issue("worker-1")
TRUST = StoreSettings(name="ssl.truststore", type="PEM", certificates=AUTHORITY.pem())


def tls_of(issued: Issued | None, client_auth: str = "none") -> ListenerTls:
    own = None
    if issued is not None:
        chain, key = issued.chain_pem(), issued.key_pem()
        own = StoreSettings(name="ssl.keystore", type="PEM", certificates=chain, key=key)
    return ListenerTls(stores=TlsSettings(truststore=TRUST, keystore=own), client_auth=client_auth)


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def who(scope: Scope, receive: Receive, send: Send) -> None:
    caller = scope["mm2py.caller"]
    answer = {"name": caller.name, "operator": caller.operator}
    await Request(scope, receive).body()
    await JSONResponse(answer)(scope, receive, send)


async def asked(server_tls: ListenerTls, client: ssl.SSLContext, requests: int = 1) -> str:
    """Serve with certificates that count, ask over one connection, return status and body."""
    credentials = Credentials({}, {}, certificates=True, read_only=["viewer"])
    gate = Gate(who, credentials, GateRules(max_body_bytes=100))
    config = uvicorn.Config(
        gate, host="127.0.0.1", port=0, http=CertifiedProtocol, loop="none", ws="none",
        lifespan="off", log_config=None, access_log=False,
    )  # fmt: skip
    config.load()
    config.ssl = server_context(server_tls)
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(verify=client, timeout=10) as http:
            answers = [await http.get(f"https://127.0.0.1:{port}/") for _ in range(requests)]
        assert len({(a.status_code, a.text) for a in answers}) == 1
        return f"{answers[0].status_code} {answers[0].text}"
    finally:
        server.should_exit = True
        await serving


def client_context(issued: Issued | None) -> ssl.SSLContext:
    context = peer_context(tls_of(issued))
    assert context is not None
    return context


async def test_the_certificate_says_who_asks_on_every_request_of_its_connection() -> None:
    viewer = client_context(AUTHORITY.issue("viewer"))
    answer = await asked(tls_of(OWN, "required"), viewer, requests=2)
    assert answer == '200 {"name":"viewer","operator":false}'


async def test_without_a_certificate_requested_is_a_401_and_required_no_connection() -> None:
    nobody = client_context(None)
    answer = await asked(tls_of(OWN, "requested"), nobody)
    assert answer.startswith("401 ")
    with pytest.raises(httpx.TransportError):
        await asked(tls_of(OWN, "required"), nobody)


async def test_a_certificate_of_a_foreign_authority_is_nobodys() -> None:
    stranger = client_context(Authority("Other CA").issue("ann"))
    with pytest.raises(httpx.TransportError):
        await asked(tls_of(OWN, "requested"), stranger)


async def test_a_certificate_that_was_not_asked_for_does_not_count() -> None:
    operator = client_context(AUTHORITY.issue("ann"))
    assert (await asked(tls_of(OWN), operator)).startswith("401 ")


async def test_workers_speak_with_their_own_certificate_and_check_the_others() -> None:
    worker = client_context(AUTHORITY.issue("worker-2"))
    answer = await asked(tls_of(OWN, "required"), worker)
    assert answer == '200 {"name":"worker-2","operator":true}'
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
