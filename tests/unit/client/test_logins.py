"""What logins need: OAuth tokens and Kerberos tickets, their renewal, and servers that are silent."""

import asyncio
import base64
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mm2py.client.connect.credentials import Credentials
from mm2py.client.connect.kerberos import KerberosExchange, KerberosLogin, use_java_krb5_conf
from mm2py.client.connect.oauth_tokens import TokenSource
from mm2py.config.clients import ConnectionSettings
from mm2py.config.security import KerberosSettings, OAuthSettings, SaslSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually

NOW_MS = 1_700_000_000_000
WORD = "s3cret:"


class Endpoint:
    """Gives these answers in turn; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self.speaks = threading.Event()
        """While it is not set the endpoint sends a byte now and then."""
        self.speaks.set()

    def next_answer(self) -> tuple[int, bytes]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving() -> Generator[Endpoint, None, None]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.requests.append((self.headers["Authorization"], body))
            while not endpoint.speaks.wait(0.02):
                self.wfile.write(b"H")
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
        endpoint.speaks.set()
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


@pytest.mark.parametrize("apart_s", [-600, 0, 600])
async def test_a_clock_apart_from_the_issuers_does_not_change_how_long_a_token_lasts(
    apart_s: int,
) -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(300 + apart_s), expires_in=300))]
        assert (await source.token()).expires_s == pytest.approx(clock.monotonic() + 300)


async def test_the_request_is_the_client_credentials_grant() -> None:
    async with token_source(scope="a b", header_urlencode=True) as (endpoint, source, clock):
        endpoint.answers = [(200, answer("opaque", expires_in=100))]
        token = await source.token()
        assert (token.value, token.expires_s) == ("opaque", clock.monotonic() + 100)
        (authorization, sent) = endpoint.requests[0]
        assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "c+d:s3cret%3A"
        assert sent == "grant_type=client_credentials&scope=a+b"


@pytest.mark.parametrize("never", [1e999, 10**400])
async def test_a_life_beyond_all_time_is_a_long_one_and_an_unknown_one_serves_one_login(
    never: float,
) -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer("one", expires_in=10**400)), (200, answer("two"))]
        assert (await source.token()) is (await source.token())
    claims = base64.urlsafe_b64encode(json.dumps({"exp": never}).encode()).decode()
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer(f"a.{claims}.b")), (200, answer("two"))]
        assert (await source.token()) is (await source.token())
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer("opaque"))]
        assert (await source.token()) is not (await source.token())


async def test_a_token_that_brokers_refuse_is_replaced_but_not_at_once_also_if_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(9_000, "one"))), (200, answer(jwt(9_000, "two")))]
        first = await source.token()
        source.refused()
        assert (await source.token()).value == first.value, "a broker may be wrong, and ask often"
        await clock.advance(61)
        assert (await source.token()).value == jwt(9_000, "two")
        endpoint.answers = [(200, answer("three", expires_in=1_000)), (200, answer("four"))]
        source.refused()
        await clock.advance(61)
        assert (await source.token()).value == "three"
        monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS - 7_200_000)
        await clock.advance(701)
        assert (await source.token()).value == "four", "it lives no longer"


async def test_a_token_is_renewed_though_nobody_logs_in_until_its_client_is_closed() -> None:
    with serving() as endpoint:
        endpoint.answers = [(200, answer("one", expires_in=1)), (503, b""), (200, answer("two"))]
        sasl = SaslSettings(
            mechanism="OAUTHBEARER",
            oauth=OAuthSettings(
                token_endpoint_url=endpoint.url,
                client_id="c",
                client_secret=WORD,
                refresh_min_period_s=0,
                refresh_buffer_s=0,
                refresh_window_factor=0.01,
                retry_backoff_max_ms=1,
            ),
        )
        credentials = Credentials(
            ConnectionSettings(
                bootstrap_servers=(("h", 1),), security_protocol="SASL_PLAINTEXT", sasl=sasl
            )
        )
        await credentials.prepare("h")
        await eventually(lambda: len(endpoint.requests) == 2)
        credentials.close()
        await credentials.prepare("h")
        assert len(endpoint.requests) == 2, "not so soon after a failure"


@pytest.mark.parametrize(
    ("code", "content", "said"),
    [
        (503, b"", "HTTP 503"),
        (429, b"", "HTTP 429"),
        (401, b"{}", "HTTP 401"),
        (200, b"<html>", "without an access_token"),
    ],
)
async def test_the_last_token_serves_while_it_is_valid_and_no_new_one_comes(
    code: int, content: bytes, said: str
) -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(1_000))), (code, content)]
        first = await source.token()
        await clock.advance(800)
        for asked, pause_s in ((2, 0), (2, 9), (3, 1)):
            await clock.advance(pause_s)
            assert await source.token() is first
            assert len(endpoint.requests) == asked, "not at each login"
        await clock.advance(300)
        with pytest.raises((ConnectionFailedError, AuthenticationError), match=said):
            await source.token()


async def test_a_slow_endpoint_holds_up_only_logins_without_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py.client.connect.renewal.PATIENCE_S", 0.01)
    async with token_source(read_timeout_ms=100, connect_timeout_ms=100) as (
        endpoint,
        source,
        clock,
    ):
        endpoint.answers = [(200, answer(jwt(1_000))), (200, answer(jwt(9_000, "two")))]
        first = await source.token()
        endpoint.speaks.clear()
        await clock.advance(800)
        for _ in range(20):
            assert await source.token() is first
        await eventually(lambda: len(endpoint.requests) == 2)
        await clock.advance(200)
        with pytest.raises(ConnectionFailedError, match=r"does not answer within 0\.3 s"):
            await source.token()
        endpoint.speaks.set()
        assert (await source.token()).value == jwt(9_000, "two")


async def test_logins_need_none_of_the_loops_threads(library: "Library") -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, free.wait)
    try:
        async with token_source() as (endpoint, source, _), asyncio.timeout(90):
            endpoint.answers = [(200, answer("one"))]
            await source.token()
            await library.login().prepare("broker")
    finally:
        free.set()
        await waiting


async def test_without_a_thread_a_login_fails_as_one_without_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with token_source() as (_, source, _clock):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConnectionFailedError, match=r"can't start new thread.*ulimit -u"):
            await source.token()
        monkeypatch.undo()


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
        (200, b"[" * 60_000, "without an access_token"),
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
        self.answers = threading.Event()
        self.answers.set()
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
                library.answers.wait()
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


async def test_a_ticket_is_renewed_by_the_first_login_due_and_after_a_refusal_but_not_at_once(
    library: Library,
) -> None:
    login, clock = library.login(), library.clock
    for at_s, tickets in ((0, 1), (799, 1), (800, 2), (1_599, 2), (1_601, 3)):
        await clock.advance(at_s - clock.monotonic() + 1_000)
        await login.prepare("broker")
        assert len(library.stores) == tickets, at_s
    assert library.services == ["kafka@broker"] * 5
    caches = [store["ccache"] for store in library.stores if store is not None]
    assert len(set(caches)) == 3  # the library renews none of them by itself
    login.refused()
    for pause_s, tickets in ((59, 3), (1, 4)):
        await clock.advance(pause_s)
        await login.prepare("broker")
        assert len(library.stores) == tickets


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


async def test_tickets_that_were_renewed_are_freed_but_not_under_a_login_that_has_begun(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    monkeypatch.setattr("mm2py.client.connect.kerberos.destroy_cache", freed.append)
    login, clock = await library.ready(), library.clock
    for pause_s, fails in ((800, None), (800, NO_KDC), (10, NO_KDC), (10, None), (800, None)):
        library.fails = None if fails is None else GssError(fails)
        await clock.advance(pause_s)
        await login.prepare("broker")
    one, two, failed, failed_too, three, four = (
        store["ccache"] for store in library.stores if store is not None
    )
    assert freed == [failed, failed_too, one, two]
    assert len({three, four, *freed}) == 6


async def test_a_silent_server_holds_up_only_logins_without_a_ticket(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm2py.client.connect.renewal.PATIENCE_S", 0.01)
    login = await library.ready()
    library.answers.clear()
    await library.clock.advance(900)
    async with asyncio.timeout(90):
        for _ in range(20):
            await login.prepare("broker")
    await eventually(lambda: len(library.stores) == 2)
    library.answers.set()


async def test_an_unknown_service_no_keytab_and_a_missing_package_are_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = library.login()
    library.service_fails = GssError(SERVICE_UNKNOWN)
    with pytest.raises(AuthenticationError, match=r"knows no service kafka/broker: code .* False"):
        await login.prepare("broker")
    library.keytab.write_bytes(b"text")
    with pytest.raises(ConfigError, match=r"m\.keytab is no keytab"):
        await library.login().prepare("broker")
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
