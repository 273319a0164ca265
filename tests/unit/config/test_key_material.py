import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key
from cryptography.x509 import load_der_x509_certificate

from mm2py.config.jks import JksError, JksPasswordError, read_jks
from mm2py.config.key_material import read_identity, read_trusted
from mm2py.config.security import StoreSettings
from mm2py.errors import ConfigError
from tests.certificates import Authority, write_jks

DATA = Path(__file__).parents[2] / "data" / "security"
PASSWORD = "store-secret"  # noqa: S105 - of the fixtures, which keytool of Java 17 wrote
AUTHORITY = Authority()
OWN = AUTHORITY.issue("own")


def trust(
    location: Path | str, password: str | None = PASSWORD, kind: str = "JKS"
) -> StoreSettings:
    return StoreSettings(
        name="ssl.truststore", type=kind, location=str(location), password=password
    )


def keys(
    location: Path | str = "", password: str | None = PASSWORD, *, kind: str = "JKS",
    own: str | None = None, chain: str = "", key: str = "",
) -> StoreSettings:  # fmt: skip
    return StoreSettings(
        name="ssl.keystore", type=kind, location=str(location), password=password,
        key_password=own, certificates=chain, key=key,
    )  # fmt: skip


def subject(der: bytes) -> str:
    return load_der_x509_certificate(der).subject.rfc4514_string()


def test_a_jks_truststore_gives_its_certificates_with_and_without_password() -> None:
    for password in (PASSWORD, None):
        found = read_trusted(trust(DATA / "trust.jks", password))
        assert sorted(map(subject, found)) == ["CN=ec", "CN=rsa"]


@pytest.mark.parametrize(("name", "key_password"), [("rsa", "key-secret"), ("ec", None)])
def test_a_jks_keystore_gives_its_key_and_chain(name: str, key_password: str | None) -> None:
    found = read_identity(keys(DATA / f"{name}.jks", own=key_password))
    assert [subject(der) for der in found.chain] == [f"CN={name}"]
    load_der_private_key(found.key, None)  # read_identity has compared it with the chain


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (keys(DATA / "rsa.jks", "wrong"), "ssl.keystore.password does not open"),
        (keys(DATA / "rsa.jks"), "ssl.key.password does not open the key rsa"),
        (keys(DATA / "rsa.jks", own="x"), "ssl.key.password does not open the key rsa"),
        (keys(DATA / "trust.jks"), "holds no private key"),
        (keys(DATA / "none.jks"), "No such file"),
    ],
)
def test_a_keystore_that_cannot_be_used_names_the_property(store: StoreSettings, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        read_identity(store)
    assert "ssl.key" in refusal.value.remedy


@pytest.mark.parametrize("size", [3, 12, 40, 400])
def test_a_jks_store_that_is_cut_off_is_refused(size: int) -> None:
    content = (DATA / "ec.jks").read_bytes()[:size]
    for password in (None, PASSWORD):
        with pytest.raises(JksError):
            read_jks(content, password)


def test_an_unknown_entry_is_refused() -> None:
    content = b"\xfe\xed\xfe\xed" + bytes([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9, 0, 1, 97]) + bytes(8)
    digest = hashlib.sha1(b"\0x" + b"Mighty Aphrodite" + content).digest()  # noqa: S324 - JKS
    with pytest.raises(JksError, match="unknown kind 9"):
        read_jks(content + digest, "x")
    with pytest.raises(JksPasswordError):
        read_jks(content + digest, "y")


def test_pkcs12_stores_are_read_whatever_type_says(tmp_path: Path) -> None:
    store = AUTHORITY.truststore(tmp_path / "t.p12")
    assert [subject(der) for der in read_trusted(trust(store))] == ["CN=Test CA"]
    found = read_identity(keys(OWN.pkcs12(tmp_path / "k.p12"), kind="PKCS12"))
    assert [subject(der) for der in found.chain] == ["CN=own", "CN=Test CA"]


def test_pem_is_read_from_files_and_from_texts_whose_line_ends_are_lost(tmp_path: Path) -> None:
    file = tmp_path / "k.pem"
    file.write_text(OWN.key_pem("pw") + OWN.chain_pem())
    from_file = read_identity(keys(file, None, kind="PEM", own="pw"))
    chain, key = OWN.chain_pem().replace("\n", " "), OWN.key_pem().replace("\n", " ")
    assert read_identity(keys(kind="PEM", chain=chain, key=key)) == from_file
    (tmp_path / "ca.pem").write_text("a comment\n" + AUTHORITY.pem())
    assert len(read_trusted(trust(tmp_path / "ca.pem", None, "PEM"))) == 1


def test_broken_stores_name_the_property(tmp_path: Path) -> None:
    pem, p12 = tmp_path / "x.pem", OWN.pkcs12(tmp_path / "x.p12")
    pem.write_text(OWN.key_pem("pw") + OWN.chain_pem())
    (tmp_path / "junk").write_bytes(b"junk")
    other = AUTHORITY.issue("other")
    cases = {
        r"ssl.keystore.password does not open": keys(p12, "wrong"),
        r"set ssl.keystore.type=PEM": keys(pem),
        r"neither a JKS nor a PKCS12": keys(tmp_path / "junk"),
        r"set ssl.key.password": keys(pem, None, kind="PEM"),
        r"ssl.key.password does not open": keys(pem, None, kind="PEM", own="no"),
        r"begin with -----BEGIN": keys(tmp_path / "junk", None, kind="PEM"),
        r"ssl.keystore.certificate.chain .*does not belong": keys(
            kind="PEM", chain=other.chain_pem(), key=OWN.key_pem()
        ),
    }
    for said, store in cases.items():
        with pytest.raises(ConfigError, match=said):
            read_identity(store)
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.password is missing"):
        read_trusted(trust(AUTHORITY.truststore(tmp_path / "t.p12"), None))
    damaged = "-----BEGIN CERTIFICATE-----\nnot*base64\n-----END CERTIFICATE-----"
    broken = StoreSettings(name="ssl.truststore", type="PEM", certificates=damaged)
    with pytest.raises(ConfigError, match="damaged PEM block"):
        read_trusted(broken)


def test_a_jks_store_may_hold_both_kinds_and_the_first_key_is_ours(tmp_path: Path) -> None:
    file = tmp_path / "both.jks"
    write_jks(file, trusted=[AUTHORITY.certificate], own=OWN, key_password=PASSWORD + "-own")
    assert [subject(der) for der in read_trusted(trust(file))] == ["CN=Test CA"]
    found = read_identity(keys(file, own=PASSWORD + "-own"))
    assert [subject(der) for der in found.chain] == ["CN=own", "CN=Test CA"]


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs a JDK")
def test_keytool_reads_the_stores_that_these_tests_write(tmp_path: Path) -> None:
    file = write_jks(tmp_path / "own.jks", own=OWN)
    command = f"keytool -importkeystore -srckeystore {file} -srcstorepass {PASSWORD} -noprompt"
    command += f" -srcstoretype JKS -destkeystore {tmp_path / 'own.p12'} -deststorepass {PASSWORD}"
    subprocess.run([*command.split(), "-deststoretype", "PKCS12"], check=True, capture_output=True)
    assert subject(read_identity(keys(tmp_path / "own.p12")).chain[0]) == "CN=own"


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs a JDK")
@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "JCEKS"])
def test_stores_that_keytool_writes_today_are_read(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    command = (
        f"keytool -genkeypair -keystore {store} -storetype {kind} -storepass {PASSWORD} "
        "-alias k -keyalg EC -dname CN=today -J-XX:TieredStopAtLevel=1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    if kind == "JCEKS":
        with pytest.raises(ConfigError, match="convert it: keytool"):
            read_identity(keys(store))
        return
    assert subject(read_identity(keys(store)).chain[0]) == "CN=today"
