"""How a connection is secured: TLS, certificates and their age."""

import asyncio
import ssl
import tempfile
from pathlib import Path

import pytest

from mm2py.client.connect.certificates import (
    BROKER,
    CLIENT,
    Shown,
    certificates_of,
    chain_expires_s,
)
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.tls import TlsContexts, tls_failure
from mm2py.config.clients import ConnectionSettings
from mm2py.config.key_material import read_identity
from mm2py.config.security import StoreSettings, TlsSettings
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


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        (("kafka.example.com", "10.1.2.3"), "DNS:kafka.example.com, IP:10.1.2.3"),
        ((), "CN:broker"),
        (
            tuple(f"kafka-{it}" for it in range(12)),
            ", ".join(f"DNS:kafka-{it}" for it in range(10)) + " and 2 more",
        ),
    ],
)
async def test_a_certificate_of_another_host_is_refused_with_the_names_that_it_has(
    tmp_path: Path, hosts: tuple[str, ...], names: str
) -> None:
    issued = AUTHORITY.issue("broker", hosts=hosts)
    async with FakeBroker(tls=served_by(issued, tmp_path)) as broker:
        settings = ConnectionSettings(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            tls=TlsSettings(truststore=TRUST),
        )
        cluster = Cluster(settings, alias="B", clock=FakeClock())
        told = f"name: expected 127.0.0.1, the certificate is for {names}; use a name of the"
        with pytest.raises(ConnectionFailedError, match=told):
            await cluster.connect()
        await cluster.close()


# -- until when certificates are valid, as far as connections and key stores show it


def ends(issued: Issued) -> tuple[float, float]:
    both = (issued.certificate, issued.issuer)
    first, second = (it.not_valid_after_utc.timestamp() for it in both)
    return first, second


async def test_certificates_of_both_sides_are_known_with_the_connection(tmp_path: Path) -> None:
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
