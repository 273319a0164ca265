"""Key stores and trust stores: JKS, PKCS12 and PEM -> certificates and one private key in memory.

Flow: ``StoreSettings`` -> file or text -> ``read_trusted`` / ``read_identity`` -> a TLS context
(``client.tls``). JKS and PKCS12 are distinguished by content, as Java's dual format stores do.
Every refusal names the property to change; nothing is written.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mm2py.config.jks import JksError, JksPasswordError, JksStore, is_jceks, is_jks, read_jks
from mm2py.config.security import StoreSettings, TlsSettings
from mm2py.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

# Java's PemParser too takes texts whose line ends were lost in a properties file.
_PEM_BLOCK: Final = re.compile(r"-+BEGIN\s+([A-Z0-9 ]+?)\s*-+(.*?)-+END\s+\1\s*-+", re.DOTALL)
_DER_SEQUENCE: Final = 0x30
_KEYTOOL: Final = "keytool -importkeystore -deststoretype PKCS12"


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate chain and its private key, both DER (the key PKCS#8)."""

    chain: tuple[bytes, ...]
    key: bytes = field(repr=False)


@lru_cache(maxsize=64)
def check_stores(tls: TlsSettings) -> None:
    """Read the stores once, so that a start is refused and not the first connection;
    ``ConfigError``: see ``read_trusted`` and ``read_identity``."""
    if tls.truststore is not None:
        read_trusted(tls.truststore)
    if tls.keystore is not None:
        read_identity(tls.keystore)


def read_trusted(store: StoreSettings) -> tuple[bytes, ...]:
    """Return the trusted certificates of a truststore as DER; ``ConfigError``: the file is missing,
    unreadable or no store, or its password is wrong."""
    if store.type == "PEM":
        certificates = _pem_certificates(store)
    else:
        data = _bytes_of(store)
        certificates = _jks(store, data).trusted if is_jks(data) else _pkcs12_trusted(store, data)
    if not certificates:
        raise _wrong(store, "location", "holds no trusted certificate", _remedy_empty(store))
    return certificates


def read_identity(store: StoreSettings) -> Identity:
    """Return the first private key of a keystore with its chain; ``ConfigError``: as
    ``read_trusted``, or there is no key, or its own password is wrong."""
    if store.type == "PEM":
        identity = _pem_identity(store)
    else:
        data = _bytes_of(store)
        # ``ssl.keystore.type`` may say JKS of a PKCS12 file
        # and the other way round: since Java 8 both work.
        identity = _jks_identity(store, data) if is_jks(data) else _pkcs12_identity(store, data)
    _check_pair(store, identity)
    return identity


def _check_pair(store: StoreSettings, identity: Identity) -> None:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_der_private_key,
    )
    from cryptography.x509 import load_der_x509_certificate

    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        certificate = load_der_x509_certificate(identity.chain[0])
        certified = certificate.public_key().public_bytes(*form)
    except (ValueError, IndexError):
        raise _wrong(store, _place_name(store), "holds a certificate that cannot be read") from None
    # OpenSSL would fail with KEY_VALUES_MISMATCH at each connection; here the start is refused.
    if load_der_private_key(identity.key, None).public_key().public_bytes(*form) != certified:
        raise _wrong(
            store, _place_name(store), "holds a key that does not belong to its first certificate",
            "put the key's own certificate first in the chain",
        )  # fmt: skip


def _jks(store: StoreSettings, data: bytes) -> JksStore:
    try:
        return read_jks(data, store.password)
    except JksPasswordError:
        raise _wrong_password(store) from None
    except JksError as error:
        raise _wrong(store, "location", f"is damaged: {error}") from None


def _jks_identity(store: StoreSettings, data: bytes) -> Identity:
    keys = _jks(store, data).keys
    if not keys:
        raise _wrong(store, "location", "holds no private key")
    own = store.key_password
    try:
        return Identity(keys[0].chain, keys[0].decrypt(own or store.password or ""))
    except JksPasswordError:
        raise ConfigError(
            f"ssl.key.password does not open the key {keys[0].alias} in {store.location}",
            remedy="set ssl.key.password to the key's password"
            + ("" if own else "; it is not that of the store"),
        ) from None
    except JksError as error:
        raise _wrong(store, "location", f"cannot be used: {error}") from None


def _pkcs12_trusted(store: StoreSettings, data: bytes) -> tuple[bytes, ...]:
    from cryptography.hazmat.primitives.serialization import Encoding

    held = _pkcs12(store, data)
    every = [*([held.cert] if held.cert else []), *held.additional_certs]
    return tuple(entry.certificate.public_bytes(Encoding.DER) for entry in every)


def _pkcs12_identity(store: StoreSettings, data: bytes) -> Identity:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    held = _pkcs12(store, data)
    if held.key is None or held.cert is None:
        raise _wrong(store, "location", "holds no private key")
    chain = [held.cert.certificate]
    rest = [entry.certificate for entry in held.additional_certs]
    while rest:  # the file keeps no order; TLS requires each one to be followed by its issuer
        issuer = next((c for c in rest if c.subject == chain[-1].issuer), None)
        if issuer is None:
            break
        rest.remove(issuer)
        chain.append(issuer)
    key = held.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return Identity(tuple(c.public_bytes(Encoding.DER) for c in chain), key)


def _pkcs12(store: StoreSettings, data: bytes) -> "PKCS12KeyAndCertificates":
    # Loaded where it is needed: a flow over PLAINTEXT does without it.
    from cryptography.hazmat.primitives.serialization import pkcs12

    if is_jceks(data):
        raise _wrong(store, "location", "is a JCEKS store", f"convert it: {_KEYTOOL}")
    if not data or data[0] != _DER_SEQUENCE:
        if b"-----BEGIN" in data:
            raise _wrong(store, "type", f"is {store.type}, but {store.location} is PEM",
                         f"set {store.name}.type=PEM")  # fmt: skip
        raise _wrong(store, "location", "is neither a JKS nor a PKCS12 store")
    password = store.password.encode() if store.password is not None else None
    try:
        return pkcs12.load_pkcs12(data, password)
    except ValueError:
        raise _wrong_password(store) from None


def _pem_certificates(store: StoreSettings) -> tuple[bytes, ...]:
    blocks = _pem_blocks(store, store.certificates or _text_of(store), "certificates")
    return tuple(der for label, der in blocks if "CERT" in label)


def _pem_identity(store: StoreSettings) -> Identity:
    if store.key:
        chain = _pem_blocks(store, store.certificates, "certificate.chain")
        keys = _pem_blocks(store, store.key, "key")
    else:
        chain = keys = _pem_blocks(store, _text_of(store), "location")
    certificates = tuple(der for label, der in chain if "CERT" in label)
    if not certificates:
        name = "certificate.chain" if store.key else "location"
        raise _wrong(store, name, "holds no certificate")
    private_keys = [(label, der) for label, der in keys if label.endswith("PRIVATE KEY")]
    if not private_keys:
        raise _wrong(store, "key" if store.key else "location", "holds no private key")
    return Identity(certificates, _pem_key(store, *private_keys[0]))


def _pem_key(store: StoreSettings, label: str, der: bytes) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_der_private_key,
    )

    encrypted = label.startswith("ENCRYPTED")
    if encrypted and not store.key_password:
        raise ConfigError(
            f"ssl.key.password is missing for the encrypted private key of {_place(store)}",
            remedy="set ssl.key.password",
        )
    # With a password for a key that has none, cryptography raises TypeError.
    password = (store.key_password or "").encode() if encrypted else None
    try:
        key = load_der_private_key(der, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if encrypted:
            raise ConfigError(
                f"ssl.key.password does not open the private key of {_place(store)}",
                remedy="set ssl.key.password to the key's password",
            ) from None
        raise _wrong(
            store, "key" if store.key else "location", "holds a private key that cannot be read",
            "write it as PKCS#8: openssl pkcs8 -topk8",
        ) from None  # fmt: skip
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def _pem_blocks(store: StoreSettings, text: str, name: str) -> list[tuple[str, bytes]]:
    blocks: list[tuple[str, bytes]] = []
    for label, body in _PEM_BLOCK.findall(text):
        # Attributes in front of the data ("friendlyName: x") and lost line ends are tolerated.
        data = "".join(line for line in body.splitlines() if ":" not in line)
        try:
            der = base64.b64decode("".join(data.split()), validate=True)
        except binascii.Error:
            raise _wrong(
                store, name, f"holds a damaged PEM block {label}",
                "check its line ends: in a properties file write them as \\n",
            ) from None  # fmt: skip
        blocks.append((label, der))
    if not blocks:
        raise _wrong(store, name, "is no PEM", "begin with -----BEGIN ...-----")
    return blocks


def _bytes_of(store: StoreSettings) -> bytes:
    try:
        return Path(store.location).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{store.name}.location: {store.location} cannot be read: {error.strerror}",
            remedy=f"correct {store.name}.location or the file's permissions",
        ) from None


def _text_of(store: StoreSettings) -> str:
    return _bytes_of(store).decode("latin-1")


def _place_name(store: StoreSettings) -> str:
    return "location" if store.location else "certificate.chain"


def _place(store: StoreSettings) -> str:
    return store.location or f"{store.name}.key"


def _wrong(store: StoreSettings, name: str, problem: str, remedy: str = "") -> ConfigError:
    file = f": {store.location}" if name == "location" else ""
    return ConfigError(
        f"{store.name}.{name}{file} {problem}", remedy=remedy or f"correct {store.name}.{name}"
    )


def _wrong_password(store: StoreSettings) -> ConfigError:
    name = f"{store.name}.password"
    if store.password is None:
        return ConfigError(f"{name} is missing for {store.location}", remedy=f"set {name}")
    return ConfigError(
        f"{name} does not open {store.location}, or the file is damaged", remedy=f"correct {name}"
    )


def _remedy_empty(store: StoreSettings) -> str:
    if store.type == "PEM":
        return "add the certificate of the brokers' authority"
    return (
        "import the certificate of the brokers' authority: keytool -importcert -keystore "
        f"{store.location}"
    )
