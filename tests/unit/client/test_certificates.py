"""Until when certificates are valid, as far as connections and key stores show it."""

import ssl
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
from mm2py.config.clients import ConnectionSettings
from mm2py.config.key_material import read_identity
from mm2py.config.security import StoreSettings, TlsSettings
from mm2py.errors import ConnectionFailedError
from mm2py.testing.clock import FakeClock
from tests.certificates import Authority, Issued
from tests.kit.fakes.broker import FakeBroker

AUTHORITY = Authority()


def served_by(issued: Issued, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "key.pem").write_text(issued.key_pem())
    (folder / "chain.pem").write_text(issued.chain_pem())
    context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    return context


def store(issued: Issued) -> StoreSettings:
    return StoreSettings(
        name="ssl.keystore", type="PEM", certificates=issued.chain_pem(), key=issued.key_pem()
    )


def ends(issued: Issued) -> tuple[float, float]:
    both = (issued.certificate, issued.issuer)
    first, second = (it.not_valid_after_utc.timestamp() for it in both)
    return first, second


async def test_the_certificates_of_a_broker_and_our_own_are_known_with_the_connection(
    tmp_path: Path,
) -> None:
    brokers, ours = AUTHORITY.issue("broker", days=20), AUTHORITY.issue("the client", days=10)
    trust = StoreSettings(name="ssl.truststore", type="PEM", certificates=AUTHORITY.pem())
    clock = FakeClock()
    async with FakeBroker(tls=served_by(brokers, tmp_path)) as broker:
        settings = ConnectionSettings(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            tls=TlsSettings(truststore=trust, keystore=store(ours)),
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
    chain = read_identity(store(issued)).chain
    assert len(chain) == 2
    assert chain_expires_s(chain) == chain_expires_s(reversed(chain)) == min(ends(issued))
    assert chain_expires_s(()) is None
