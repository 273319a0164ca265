"""When Kerberos tickets are renewed, and what the exchange takes from a broker; a real server is in tests/integration."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mm2py.client.connect.kerberos import KerberosExchange, KerberosLogin, use_java_krb5_conf
from mm2py.config.security import KerberosSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError
from mm2py.testing.clock import FakeClock

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

    def __init__(self) -> None:
        self.fails: GssError | None = None
        self.service_fails: GssError | None = None
        self.life_s = LIFE_S
        self.stores: list[Mapping[str, str] | None] = []
        self.services: list[str] = []

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
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setitem(sys.modules, "gssapi", found.module())
    return found


@pytest.fixture
def keytab(tmp_path: Path) -> Path:
    path = tmp_path / "m.keytab"
    path.write_bytes(b"\x05\x02")
    return path


def by_keytab(keytab: Path, clock: FakeClock, **more: float) -> KerberosLogin:
    settings = KerberosSettings(
        service_name="kafka",
        principal="m@R",
        keytab=str(keytab),
        renew_jitter=0.0,
        renew_window_factor=more.get("factor", 0.8),
        min_time_before_relogin_ms=int(more.get("least_ms", 60_000)),
    )
    return KerberosLogin(settings, clock)


async def test_a_ticket_is_renewed_by_the_first_login_in_its_window(
    library: Library, keytab: Path
) -> None:
    clock = FakeClock()
    login = by_keytab(keytab, clock)
    for at_s, tickets in ((0, 1), (799, 1), (800, 2), (1_599, 2), (1_601, 3)):
        await clock.advance(at_s - clock.monotonic() + 1_000)
        await login.prepare("broker")
        assert len(library.stores) == tickets, at_s
    assert library.services == ["kafka@broker"] * 5
    caches = [store["ccache"] for store in library.stores if store is not None]
    assert len(set(caches)) == 3  # the library renews none of them by itself


async def test_the_least_pause_between_logins_is_kept_unless_the_ticket_ends_before(
    library: Library, keytab: Path
) -> None:
    for least_ms, again_s in ((900_000, 900), (1_000_000, 500)):
        clock = FakeClock()
        library.stores.clear()
        login = by_keytab(keytab, clock, factor=0.5, least_ms=least_ms)
        await login.prepare("broker")
        await clock.advance(again_s - 1)
        await login.prepare("broker")
        assert len(library.stores) == 1
        await clock.advance(1)
        await login.prepare("broker")
        assert len(library.stores) == 2


async def test_while_no_server_answers_a_valid_ticket_counts_and_an_ended_one_does_not(
    library: Library, keytab: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    login = by_keytab(keytab, clock)
    await login.prepare("broker")
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
    library: Library, keytab: Path
) -> None:
    clock = FakeClock()
    login = by_keytab(keytab, clock)
    await login.prepare("broker")
    login.refused()
    await login.prepare("broker")
    assert len(library.stores) == 1
    await clock.advance(60)
    await login.prepare("broker")
    assert len(library.stores) == 2


async def test_a_ticket_cache_is_tried_before_the_keytab(library: Library, keytab: Path) -> None:
    settings = KerberosSettings(
        service_name="kafka", principal="m@R", keytab=str(keytab), ticket_cache="/cache"
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


async def test_an_unknown_service_and_what_is_no_keytab_are_named(
    library: Library, keytab: Path
) -> None:
    login = by_keytab(keytab, FakeClock())
    library.service_fails = GssError(SERVICE_UNKNOWN)
    with pytest.raises(AuthenticationError, match=r"knows no service kafka/broker: code .* False"):
        await login.prepare("broker")
    keytab.write_bytes(b"text")
    with pytest.raises(ConfigError, match=r"m\.keytab is no keytab"):
        await by_keytab(keytab, FakeClock()).prepare("broker")


async def test_a_missing_package_is_named_with_how_to_get_it(
    keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"package gssapi.*mm2py\[kerberos\].*libkrb5-dev"):
        await by_keytab(keytab, FakeClock()).prepare("broker")


async def test_the_exchange_ends_without_a_security_layer(library: Library, keytab: Path) -> None:
    login = by_keytab(keytab, FakeClock())
    await login.prepare("broker")
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
async def test_a_broker_that_wants_a_security_layer_is_refused(
    library: Library, keytab: Path, offered: bytes
) -> None:
    del library
    login = by_keytab(keytab, FakeClock())
    await login.prepare("broker")
    exchange: KerberosExchange = await login.exchange("broker")
    exchange.take(b"proof")
    with pytest.raises(AuthenticationError, match="asks for a security layer"):
        exchange.take(offered)


def test_the_krb5_conf_of_java_counts_where_no_other_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Djava.security.krb5.conf=/java.conf")
    monkeypatch.setenv("KRB5_CONFIG", "/own.conf")
    use_java_krb5_conf()
    assert os.environ["KRB5_CONFIG"] == "/own.conf"
    monkeypatch.setenv("KRB5_CONFIG", "")
    use_java_krb5_conf()
    assert os.environ["KRB5_CONFIG"] == "/java.conf"
