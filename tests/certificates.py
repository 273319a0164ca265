"""Certificates for the tests: an authority, and key stores of what it signed, in every format.

Flow: ``Authority`` -> ``issue`` -> ``Issued`` -> PEM texts, PKCS12 files. Written files hold test keys only.
"""

import datetime
import hashlib
import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from mm2py.clock import SYSTEM_CLOCK

PASSWORD: Final = "store-secret"  # noqa: S105 - of test stores
_DAY: Final = datetime.timedelta(days=1)
_SIGNS: Final = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key and its issuer."""

    certificate: x509.Certificate
    key: Key
    issuer: x509.Certificate

    def chain_pem(self) -> str:
        """Return the certificate and its issuer."""
        both = (self.certificate, self.issuer)
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in both)

    def key_pem(self, password: str = "") -> str:
        """Return the key as PKCS#8."""
        how = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how).decode()

    def pkcs12(self, file: Path) -> Path:
        """Write a key store."""
        how = BestAvailableEncryption(PASSWORD.encode())
        file.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own", self.key, self.certificate, [self.issuer], how
            )
        )
        return file


def write_jks(
    file: Path,
    *,
    trusted: Sequence[x509.Certificate] = (),
    own: Issued | None = None,
    key_password: str = PASSWORD,
) -> Path:
    """Write a JKS store as ``keytool -storetype JKS`` does."""
    entries = [
        struct.pack(">I", 2) + _head(f"ca{n}") + _jks_certificate(one)
        for n, one in enumerate(trusted)
    ]
    if own is not None:
        protected = _protected(own, key_password.encode("utf-16-be"))
        chain = _jks_certificate(own.certificate) + _jks_certificate(own.issuer)
        entry = struct.pack(">I", 1) + _head("own") + _sized(protected)
        entries.append(entry + struct.pack(">I", 2) + chain)
    content = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    secret = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    file.write_bytes(content + _sha1(secret + content))
    return file


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()  # noqa: S324 - JKS is made of it


def _head(alias: str) -> bytes:
    return struct.pack(">H", len(alias)) + alias.encode() + bytes(8)


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _jks_certificate(one: x509.Certificate) -> bytes:
    return struct.pack(">H", 5) + b"X.509" + _sized(one.public_bytes(Encoding.DER))


def _protected(own: Issued, secret: bytes) -> bytes:
    key = own.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    digest = salt = bytes(range(20))
    stream = b""
    while len(stream) < len(key):
        digest = _sha1(secret + digest)
        stream += digest
    hidden = bytes(a ^ b for a, b in zip(key, stream, strict=False))
    octets = salt + hidden + _sha1(secret + key)
    algorithm = bytes.fromhex("300e060a2b060104012a021101010500")
    inner = algorithm + b"\x04\x82" + struct.pack(">H", len(octets)) + octets
    return b"\x30\x82" + struct.pack(">H", len(inner)) + inner


@final
class Authority:
    """A certificate authority that lives as long as this object."""

    def __init__(self, name: str = "Test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        self._by = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
        self.certificate = (
            _builder(self._name, self._name, self._key, days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def pem(self) -> str:
        """Return the authority's certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def truststore(self, file: Path, password: str = PASSWORD) -> Path:
        """Write the authority's certificate as a PKCS12 truststore that Java takes as one."""
        trusted = pkcs12.PKCS12Certificate(self.certificate, b"ca")
        how = BestAvailableEncryption(password.encode())
        file.write_bytes(pkcs12.serialize_java_truststore([trusted], how))
        return file

    def issue(
        self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), days: int = 30
    ) -> Issued:
        """Sign a certificate; a negative number of days is one that has expired."""
        own = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, own, days=days)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        signed = builder.add_extension(self._by, critical=False).sign(self._key, hashes.SHA256())
        return Issued(signed, own, self.certificate)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, tz=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 60 * _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
