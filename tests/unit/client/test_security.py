"""How a connection is secured: TLS, certificates and their age, OAuth tokens and Kerberos."""

import asyncio
import base64
import json
import os
import ssl
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mm2py.client.connect.certificates import (
    BROKER,
    CLIENT,
    Shown,
    certificates_of,
    chain_expires_s,
)
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.kerberos import KerberosExchange, KerberosLogin, use_java_krb5_conf
from mm2py.client.connect.oauth_tokens import TokenSource
from mm2py.client.connect.tls import TlsContexts, tls_failure
from mm2py.config.clients import ConnectionSettings
from mm2py.config.key_material import read_identity
from mm2py.config.security import KerberosSettings, OAuthSettings, StoreSettings, TlsSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError
from mm2py.testing.clock import FakeClock
from tests.certificates import Authority, Issued
from tests.kit.fakes.broker import FakeBroker

AUTHORITY = Authority()
OWN = AUTHORITY.issue("own")
TRUST = StoreSettings(name="ssl.truststore", type="PEM", certificates=AUTHORITY.pem())


def keystore(issued: Issued, key_password: str = "") -> StoreSettings:
    return StoreSettings(
        name="ssl.keystore",
        type="PEM",
        certificates=issued.chain_pem(),
        key=issued.key_pem(key_password),
        key_password=key_password or None,
    )


def served_by(issued: Issued, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "key.pem").write_text(issued.key_pem())
    (folder / "chain.pem").write_text(issued.chain_pem())
    context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    return context


async def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Connect over loopback and return the name that the server has seen of the client."""
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert")
        seen.set_result(str(certificate["subject"]))
        writer.close()
        await writer.wait_closed()
        del reader

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="127.0.0.1"
        )
        name = await seen
        writer.close()
        await writer.wait_closed()
    return name


@pytest.mark.parametrize("key_password", ["", "secret"])
async def test_our_certificate_is_shown_and_its_key_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_password: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    server = served_by(OWN, tmp_path)
    server.load_verify_locations(cadata=AUTHORITY.pem())
    server.verify_mode = ssl.CERT_REQUIRED
    client = keystore(AUTHORITY.issue("the client"), key_password)
    contexts = TlsContexts(TlsSettings(truststore=TRUST, keystore=client))
    assert "the client" in await shake_hands(server, contexts.current())
    assert list(temporary.iterdir()) == []


def test_a_broker_certificate_in_the_truststore_is_trusted_without_its_authority() -> None:
    trust = StoreSettings(name="ssl.truststore", type="PEM", certificates=OWN.chain_pem())
    context = TlsContexts(TlsSettings(truststore=trust, check_hostname=False)).current()
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname


def test_a_context_is_made_anew_only_when_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(AUTHORITY.pem())
    trust = StoreSettings(name="ssl.truststore", type="PEM", location=str(file))
    contexts = TlsContexts(TlsSettings(truststore=trust))
    first = contexts.current()
    assert contexts.current() is first
    file.write_text(AUTHORITY.pem() + OWN.chain_pem())
    assert contexts.current() is not first
    file.unlink()
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        contexts.current()


def _ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def _distrust(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = code, "told"
    return error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (_distrust(10), AuthenticationError, "expired"),
        (_distrust(9), AuthenticationError, "clocks"),
        (_distrust(62), AuthenticationError, "ssl.endpoint.identification.algorithm"),
        (_distrust(64), AuthenticationError, "advertised.listeners"),
        (_distrust(20), AuthenticationError, r"\(told\).*ssl.truststore.location.*system"),
        (_ssl_error("WRONG_VERSION_NUMBER"), ConnectionFailedError, "without TLS"),
        (_ssl_error("TLSV1_ALERT_UNKNOWN_CA"), AuthenticationError, "ssl.keystore.location"),
        (_ssl_error("NO_SHARED_CIPHER"), ConnectionFailedError, "NO_SHARED_CIPHER"),
        (ConnectionResetError(), ConnectionFailedError, "hung up during the TLS handshake"),
        (ssl.SSLEOFError(), ConnectionFailedError, "hung up during the TLS handshake"),
        (OSError("odd"), ConnectionFailedError, "h:1 failed: odd"),
    ],
)
def test_a_failed_handshake_names_what_to_change(
    error: Exception, kind: type[Exception], said: str
) -> None:
    told = tls_failure(error, "h:1", TlsSettings())
    assert isinstance(told, kind)
    with pytest.raises(kind, match=said):
        raise told


NOW_MS = 1_700_000_000_000
WORD = "s3cret:"


class Endpoint:
    """Answers what it is told to; the last answer stays."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def next_answer(self) -> tuple[int, bytes]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving() -> Generator[Endpoint, None, None]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.requests.append((self.headers["Authorization"], body))
            code, content = endpoint.next_answer()
            self.send_response(code)
            if code == 302:
                self.send_header("Location", endpoint.url)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as declared there
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/token?tenant=hidden"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def jwt(lifetime_s: int, name: str = "mirror") -> str:
    claims = json.dumps({"sub": name, "exp": NOW_MS / 1000 + lifetime_s}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.c2ln"


def answer(token: object, **more: object) -> bytes:
    return json.dumps({"access_token": token, **more}).encode()


@asynccontextmanager
async def token_source(
    **settings: object,
) -> AsyncGenerator[tuple[Endpoint, TokenSource, FakeClock]]:
    with serving() as endpoint:
        clock = FakeClock(now_ms=NOW_MS)
        given: dict[str, object] = {
            "token_endpoint_url": endpoint.url, "client_id": "c d", "client_secret": WORD,
            "retry_backoff_max_ms": 1, **settings,
        }  # fmt: skip
        yield endpoint, TokenSource(OAuthSettings(**given), clock), clock  # type: ignore[arg-type]  # from a dict


async def test_a_token_is_kept_until_most_of_its_life_is_over() -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(1_000, "one"))), (200, answer(jwt(9_000, "two")))]
        first, again = await asyncio.gather(source.token(), source.token())
        assert first is again
        assert first.expires_s == pytest.approx(clock.monotonic() + 1_000)
        # 80 % of its life would leave less than the buffer of 300 s.
        assert first.renew_s == pytest.approx(clock.monotonic() + 700)
        await clock.advance(699)
        assert await source.token() is first
        await clock.advance(2)
        assert (await source.token()).value == jwt(9_000, "two")
        assert len(endpoint.requests) == 2
        assert first.value not in repr(first)


async def test_the_request_is_the_client_credentials_grant() -> None:
    async with token_source(scope="a b", header_urlencode=True) as (endpoint, source, clock):
        endpoint.answers = [(200, answer("opaque", expires_in=100))]
        token = await source.token()
        assert (token.value, token.expires_s) == ("opaque", clock.monotonic() + 100)
        (authorization, sent) = endpoint.requests[0]
        assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "c+d:s3cret%3A"
        assert sent == "grant_type=client_credentials&scope=a+b"


async def test_a_token_of_unknown_life_serves_one_login() -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer("opaque"))]
        await source.token()
        await source.token()
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize("never", [1e999, 10**400])
async def test_a_life_beyond_all_time_is_a_long_one(never: float) -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer("one", expires_in=10**400)), (200, answer("two"))]
        assert (await source.token()) is (await source.token())
    claims = base64.urlsafe_b64encode(json.dumps({"exp": never}).encode()).decode()
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer(f"a.{claims}.b")), (200, answer("two"))]
        assert (await source.token()) is (await source.token())


async def test_an_answer_of_brackets_alone_is_no_token() -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, b"[" * 60_000)]
        with pytest.raises(AuthenticationError, match="without an access_token"):
            await source.token()


async def test_a_token_that_brokers_refuse_is_replaced_but_not_at_once() -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(9_000, "one"))), (200, answer(jwt(9_000, "two")))]
        first = await source.token()
        source.refused()
        assert (await source.token()).value == first.value, "a broker may be wrong, and ask often"
        await clock.advance(61)
        assert (await source.token()).value == jwt(9_000, "two")


async def test_a_wall_clock_that_is_set_back_makes_no_token_live_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer("one", expires_in=1_000)), (200, answer("two"))]
        await source.token()
        monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS - 7_200_000)
        await clock.advance(701)
        assert (await source.token()).value == "two"


async def test_the_last_token_serves_while_it_is_valid_and_no_new_one_comes() -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(1_000))), (503, b"")]
        first = await source.token()
        await clock.advance(800)
        assert await source.token() is first
        await clock.advance(300)
        with pytest.raises(ConnectionFailedError, match="HTTP 503"):
            await source.token()


@pytest.mark.parametrize(
    ("code", "content", "said"),
    [
        (401, b'{"error": "invalid_client"}', "HTTP 401: invalid_client; check clientId"),
        (400, b'{"error": "x", "error_description": "no\\nscope"}', "HTTP 400: no scope"),
        (404, b"<html>", "HTTP 404; check sasl.oauthbearer.token.endpoint.url"),
        (302, b"", "HTTP 302"),
        (200, b"<html>", "without an access_token"),
        (200, b"[1]", "without an access_token"),
        (200, answer(5), "without an access_token"),
        (200, answer("a\nb"), "without an access_token"),
    ],
)
async def test_an_answer_without_a_token_is_an_error_that_names_the_cause(
    code: int, content: bytes, said: str
) -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(code, content)]
        with pytest.raises(AuthenticationError, match=said) as refusal:
            await source.token()
        assert len(endpoint.requests) == 1
        assert "hidden" not in str(refusal.value)
        assert WORD not in str(refusal.value)


async def test_an_endpoint_that_comes_back_is_asked_again() -> None:
    async with token_source(retry_backoff_max_ms=60_000) as (endpoint, source, clock):
        endpoint.answers = [(503, b""), (200, answer("late"))]
        asking = asyncio.create_task(source.token())
        while not endpoint.requests or not clock.sleepers:
            await clock.settle()  # the request runs in a thread
        await clock.advance(10)
        assert (await asking).value == "late"


async def test_claims_without_signature_need_no_endpoint() -> None:
    settings = OAuthSettings(claims=(("sub", "bob"),), lifetime_s=60)
    token = await TokenSource(settings, FakeClock(now_ms=NOW_MS)).token()
    head, claims, signature = token.value.split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == {
        "sub": "bob", "iat": NOW_MS // 1000, "exp": NOW_MS // 1000 + 60,
    }  # fmt: skip
    assert signature == ""


LIFE_S = 1_000
NO_KDC = (1 << 32) - 1765328228
SERVICE_UNKNOWN = (1 << 32) - 1765328377


class GssError(Exception):
    """Stands for ``gssapi.exceptions.GSSError``."""

    def __init__(self, min_code: int) -> None:
        super().__init__(min_code)
        self.min_code = min_code

    def get_all_statuses(self, code: int, is_maj: bool) -> list[str]:
        return [f"code {code}\n", str(is_maj)]


class ExpiredError(GssError):
    """Stands for ``gssapi.exceptions.ExpiredCredentialsError``."""


class Library:
    """What of the package gssapi is used, scripted: ``fails`` is raised by the next requests for a ticket."""

    def __init__(self, keytab: Path) -> None:
        self.keytab, self.clock = keytab, FakeClock()
        keytab.write_bytes(b"\x05\x02")
        self.fails: GssError | None = None
        self.service_fails: GssError | None = None
        self.life_s = LIFE_S
        self.stores: list[Mapping[str, str] | None] = []
        self.services: list[str] = []

    def login(self, *, factor: float = 0.8, least_ms: int = 60_000) -> KerberosLogin:
        settings = KerberosSettings(
            service_name="kafka",
            principal="m@R",
            keytab=str(self.keytab),
            renew_jitter=0.0,
            renew_window_factor=factor,
            min_time_before_relogin_ms=least_ms,
        )
        return KerberosLogin(settings, self.clock)

    async def ready(self) -> KerberosLogin:
        """Return a login that has a ticket."""
        login = self.login()
        await login.prepare("broker")
        return login

    def module(self) -> ModuleType:
        library = self

        class Credentials:
            def __init__(
                self, *, name: object, usage: str, store: Mapping[str, str] | None
            ) -> None:
                assert usage == "initiate"
                del name
                library.stores.append(store)
                if library.fails is not None:
                    raise library.fails
                self.lifetime = library.life_s

        class Context:
            complete = False

            def __init__(self, *, name: str, creds: object, flags: object, usage: str) -> None:
                assert creds is not None
                assert flags
                assert usage == "initiate"
                library.services.append(name)

            def step(self, token: bytes | None = None) -> bytes:
                if library.service_fails is not None:
                    raise library.service_fails
                self.complete = token is not None
                return b"" if token else b"first"

            def unwrap(self, message: bytes) -> SimpleNamespace:
                return SimpleNamespace(message=message)

            def wrap(self, message: bytes, encrypt: bool) -> SimpleNamespace:
                assert not encrypt
                return SimpleNamespace(message=b"wrapped " + message)

        def name(base: str, kind: int) -> str:
            assert kind
            return base

        found = ModuleType("gssapi")
        found.__dict__.update(
            Credentials=Credentials,
            SecurityContext=Context,
            Name=name,
            NameType=SimpleNamespace(hostbased_service=1, kerberos_principal=2),
            RequirementFlag=SimpleNamespace(mutual_authentication=2, integrity=32),
            exceptions=SimpleNamespace(GSSError=GssError, ExpiredCredentialsError=ExpiredError),
        )
        return found


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    found = Library(tmp_path / "m.keytab")
    monkeypatch.setitem(sys.modules, "gssapi", found.module())
    return found


async def test_a_ticket_is_renewed_by_the_first_login_due(library: Library) -> None:
    login, clock = library.login(), library.clock
    for at_s, tickets in ((0, 1), (799, 1), (800, 2), (1_599, 2), (1_601, 3)):
        await clock.advance(at_s - clock.monotonic() + 1_000)
        await login.prepare("broker")
        assert len(library.stores) == tickets, at_s
    assert library.services == ["kafka@broker"] * 5
    caches = [store["ccache"] for store in library.stores if store is not None]
    assert len(set(caches)) == 3  # the library renews none of them by itself


async def test_the_least_pause_is_kept_if_the_ticket_lasts(library: Library) -> None:
    for least_ms, again_s in ((900_000, 900), (1_000_000, 500)):
        login, clock = library.login(factor=0.5, least_ms=least_ms), library.clock
        library.stores.clear()
        await login.prepare("broker")
        await clock.advance(again_s - 1)
        await login.prepare("broker")
        assert len(library.stores) == 1
        await clock.advance(1)
        await login.prepare("broker")
        assert len(library.stores) == 2


async def test_while_no_server_answers_a_valid_ticket_counts_and_an_ended_one_does_not(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    login, clock = await library.ready(), library.clock
    library.fails = GssError(NO_KDC)
    await clock.advance(900)
    await login.prepare("broker")
    await login.prepare("broker")
    assert len(library.stores) == 2  # not at each login
    assert [it for it in caplog.messages if "the old one is valid for_s=100" in it]
    await clock.advance(100)
    for _ in range(2):
        with pytest.raises(ConnectionFailedError, match="no Kerberos server answers: code"):
            await login.prepare("broker")
    library.fails = None
    await login.prepare("broker")
    assert len(library.stores) == 5


async def test_after_a_refusal_by_a_broker_the_next_login_has_a_new_ticket_but_not_at_once(
    library: Library,
) -> None:
    login, clock = await library.ready(), library.clock
    login.refused()
    await login.prepare("broker")
    assert len(library.stores) == 1
    await clock.advance(60)
    await login.prepare("broker")
    assert len(library.stores) == 2


async def test_a_ticket_cache_is_tried_before_the_keytab(library: Library) -> None:
    settings = KerberosSettings(
        service_name="kafka", principal="m@R", keytab=str(library.keytab), ticket_cache="/cache"
    )
    await KerberosLogin(settings, FakeClock()).prepare("broker")
    assert library.stores == [{"ccache": "/cache"}]
    library.life_s = 0
    alone = KerberosLogin(KerberosSettings(service_name="s", ticket_cache=""), FakeClock())
    with pytest.raises(AuthenticationError, match=r"the user's ticket cache has expired.*kinit"):
        await alone.prepare("broker")
    assert library.stores[-1] is None
    library.fails = ExpiredError(0)
    with pytest.raises(AuthenticationError, match="has expired"):
        await alone.prepare("broker")


async def test_an_unknown_service_and_what_is_no_keytab_are_named(library: Library) -> None:
    login = library.login()
    library.service_fails = GssError(SERVICE_UNKNOWN)
    with pytest.raises(AuthenticationError, match=r"knows no service kafka/broker: code .* False"):
        await login.prepare("broker")
    library.keytab.write_bytes(b"text")
    with pytest.raises(ConfigError, match=r"m\.keytab is no keytab"):
        await library.login().prepare("broker")


async def test_a_missing_package_is_named_with_how_to_get_it(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"package gssapi.*mm2py\[kerberos\].*libkrb5-dev"):
        await library.login().prepare("broker")


async def test_the_exchange_ends_without_a_security_layer(library: Library) -> None:
    login = await library.ready()
    exchange = await login.exchange("broker")
    assert exchange.message() == b"first"
    exchange.take(b"proof")
    assert exchange.message() == b""
    exchange.take(b"\x07\xff\xff\xff")
    assert exchange.message() == b"wrapped \x01\0\0\0"
    before = exchange.is_done
    exchange.take(b"")
    assert (before, exchange.is_done) == (False, True)
    assert library.services == ["kafka@broker"] * 2


@pytest.mark.parametrize("offered", [b"", b"\x06\0\0\0", b"\x01\0\0\0\0"])
async def test_a_security_layer_is_refused(library: Library, offered: bytes) -> None:
    login = await library.ready()
    exchange: KerberosExchange = await login.exchange("broker")
    exchange.take(b"proof")
    with pytest.raises(AuthenticationError, match="asks for a security layer"):
        exchange.take(offered)


def test_the_krb5_conf_of_java_counts_if_no_other_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Djava.security.krb5.conf=/java.conf")
    monkeypatch.setenv("KRB5_CONFIG", "/own.conf")
    use_java_krb5_conf()
    assert os.environ["KRB5_CONFIG"] == "/own.conf"
    monkeypatch.setenv("KRB5_CONFIG", "")
    use_java_krb5_conf()
    assert os.environ["KRB5_CONFIG"] == "/java.conf"


# -- until when certificates are valid, as far as connections and key stores show it


def ends(issued: Issued) -> tuple[float, float]:
    both = (issued.certificate, issued.issuer)
    first, second = (it.not_valid_after_utc.timestamp() for it in both)
    return first, second


async def test_the_certificates_of_a_broker_and_our_own_are_known_with_the_connection(
    tmp_path: Path,
) -> None:
    brokers, ours = AUTHORITY.issue("broker", days=20), AUTHORITY.issue("the client", days=10)
    clock = FakeClock()
    async with FakeBroker(tls=served_by(brokers, tmp_path)) as broker:
        settings = ConnectionSettings(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            tls=TlsSettings(truststore=TRUST, keystore=keystore(ours)),
        )
        async with Cluster(settings, alias="B", clock=clock) as cluster:
            dates = certificates_of(clock).dates
            address = f"127.0.0.1:{broker.port}"
            assert dict(dates) == {
                Shown(BROKER, "B", address): ends(brokers)[0],
                Shown(CLIENT, "B"): min(ends(ours)),
            }
            await broker.stop()
            with pytest.raises(ConnectionFailedError):
                await cluster.connection(1, "fetch")
            assert list(dates) == [Shown(CLIENT, "B")], "a broker that is gone shows none"


def test_a_chain_is_valid_as_long_as_each_of_its_certificates() -> None:
    issued = AUTHORITY.issue("x", days=10)
    chain = read_identity(keystore(issued)).chain
    assert len(chain) == 2
    assert chain_expires_s(chain) == chain_expires_s(reversed(chain)) == min(ends(issued))
    assert chain_expires_s(()) is None
