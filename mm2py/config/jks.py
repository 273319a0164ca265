"""Java's JKS key store format: bytes and password -> certificates and private keys.

The format is frozen since JDK 1.2 (``sun.security.provider.JavaKeyStore`` and ``KeyProtector``):
its integrity check and key cipher are SHA-1 constructions of its own. Opens no file.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

_MAGIC: Final = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST_BYTES: Final = 20
_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_KEY_PROTECTOR_OID: Final = bytes.fromhex("060a2b060104012a02110101")  # 1.3.6.1.4.1.42.2.17.1.1


class JksError(ValueError):
    """The bytes are not a JKS store."""


class JksPasswordError(JksError):
    """The password does not fit."""


@dataclass(frozen=True, slots=True)
class JksKey:
    """A private key entry; ``protected`` is its EncryptedPrivateKeyInfo."""

    alias: str
    protected: bytes = field(repr=False)
    chain: tuple[bytes, ...]

    def decrypt(self, password: str) -> bytes:
        """Return the key as PKCS#8 DER.

        Raises:
            JksPasswordError: it is another password.
            JksError: it is protected by something else.
        """
        return _decrypt(_protected_bytes(self.protected), password)


@dataclass(frozen=True, slots=True)
class JksStore:
    """Content of a store; certificates are DER."""

    trusted: tuple[bytes, ...]
    keys: tuple[JksKey, ...]


def is_jks(data: bytes) -> bool:
    """Whether the bytes begin as a JKS store."""
    return data[:4] == _MAGIC


def is_jceks(data: bytes) -> bool:
    """Whether the bytes begin as a JCEKS store, which is another format."""
    return data[:4] == _JCEKS_MAGIC


def read_jks(data: bytes, password: str | None) -> JksStore:
    """Read a store; without a password its integrity is not checked, as in Java.

    Raises:
        JksPasswordError: the digest at the end does not fit: another password, or a damaged file.
        JksError: not a JKS store.
    """
    if not is_jks(data):
        raise JksError("no JKS store")
    if password is not None:
        content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        # As Java hashes a char[]: two bytes per UTF-16 unit, no byte order mark.
        secret = password.encode("utf-16-be")
        found = hashlib.sha1(secret + _WHITENER + content).digest()  # noqa: S324 - JKS is made of SHA-1
        if not hmac.compare_digest(found, digest):
            raise JksPasswordError("the digest does not fit the password")
    try:
        return _StoreReader(data).store()
    except (struct.error, UnicodeDecodeError) as error:
        raise JksError(f"cut off or damaged: {error}") from error


class _StoreReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 4

    def store(self) -> JksStore:
        version, count = self._number(), self._number()
        if version not in (1, 2):
            raise JksError(f"JKS version {version} is not known")
        trusted: list[bytes] = []
        keys: list[JksKey] = []
        for _ in range(count):
            kind = self._number()
            alias = self._text()
            self._take(8)  # creation time
            if kind == _KEY_ENTRY:
                protected = self._take(self._number())
                chain = tuple(self._certificate(version) for _ in range(self._number()))
                keys.append(JksKey(alias, protected, chain))
            elif kind == _CERTIFICATE_ENTRY:
                trusted.append(self._certificate(version))
            else:
                raise JksError(f"entry {alias} is of unknown kind {kind}")
        return JksStore(tuple(trusted), tuple(keys))

    def _certificate(self, version: int) -> bytes:
        if version == 2:
            self._text()  # "X.509"
        return self._take(self._number())

    def _number(self) -> int:
        (value,) = struct.unpack(">I", self._take(4))
        return int(value)

    def _text(self) -> str:
        (size,) = struct.unpack(">H", self._take(2))
        # DataOutput.writeUTF: modified UTF-8, whose surrogates and NUL only matter for display.
        return self._take(size).decode("utf-8", errors="replace")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        # The last 20 bytes are the digest of the store.
        if end > len(self._data) - _DIGEST_BYTES:
            raise struct.error("the end comes too early")
        taken, self._at = self._data[self._at : end], end
        return taken


def _protected_bytes(der: bytes) -> bytes:
    """Return the octets inside EncryptedPrivateKeyInfo ::= SEQUENCE {algorithm, OCTET STRING}."""
    try:
        outer, _ = _element(der, 0x30)
        algorithm, rest = _element(outer, 0x30)
        if not algorithm.startswith(_KEY_PROTECTOR_OID):
            raise JksError("a key is not protected by JKS's own cipher")
        return _element(rest, 0x04)[0]
    except IndexError:
        raise JksError("a key entry is damaged") from None


def _element(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the first DER element and what follows it."""
    if data[0] != tag:
        raise JksError("a key entry is damaged")
    size, start = data[1], 2
    # DER's long form: the low bits are the number of length bytes.
    if size & 0x80:
        start = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:start], "big")
    return data[start : start + size], data[start + size :]


def _decrypt(octets: bytes, password: str) -> bytes:
    """``KeyProtector.recover``: XOR with a chain of SHA-1 digests, checked by another one."""
    secret = password.encode("utf-16-be")
    # Salt, the key XORed with the stream, and the digest of password and key.
    salt, body = octets[:_DIGEST_BYTES], octets[_DIGEST_BYTES:-_DIGEST_BYTES]
    stream = bytearray()
    digest = salt
    while len(stream) < len(body):
        digest = hashlib.sha1(secret + digest).digest()  # noqa: S324 - JKS is made of SHA-1
        stream += digest
    key = bytes(a ^ b for a, b in zip(body, stream, strict=False))
    check = hashlib.sha1(secret + key).digest()  # noqa: S324 - JKS is made of SHA-1
    if not hmac.compare_digest(check, octets[-_DIGEST_BYTES:]):
        raise JksPasswordError("the key's digest does not fit the password")
    return key
