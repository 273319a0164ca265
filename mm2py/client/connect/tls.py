"""TLS of one cluster's connections: stores -> SSL context, and what a failed handshake means.

Flow: ``TlsSettings`` -> ``TlsContexts.current`` -> ``BrokerConnection.open``. A private key never
reaches a disk in clear: OpenSSL reads it from memory, or encrypted from a file that is gone at
once.
"""

import os
import secrets
import ssl
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast, final

from mm2py.client.connect.certificates import chain_expires_s
from mm2py.client.connect.open_socket import reason_of
from mm2py.config.key_material import Identity, read_identity, read_trusted
from mm2py.config.security import TlsSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError, Mm2pyError
from mm2py.observability.logging import some_of

NO_TLS_REMEDY: Final = (
    "set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or name the TLS "
    "port in bootstrap.servers"
)
_NAMES: Final = 10
"""Names of a certificate in an error."""

_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAMES: Final = (62, 64)
"""Of another host, of another IP address."""
_PLAIN_REASONS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


@final
class TlsContexts:
    """The SSL context of some settings, rebuilt when one of its files has changed."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._files = tuple(
            Path(store.location)
            for store in (tls.truststore, tls.keystore)
            if store is not None and store.location
        )
        self._seen: tuple[object, ...] = ()
        self._context: ssl.SSLContext | None = None
        self.own_expires_s: float | None = None
        """Expiry of our own chain; None before ``current``, and without one."""

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection.

        Raises:
            ConfigError: a store cannot be used.
        """
        versions = tuple(map(_version, self._files))
        # Certificates are renewed in place (cert-manager): each new connection uses the newest.
        if self._context is None or versions != self._seen:
            identity = None if self._tls.keystore is None else read_identity(self._tls.keystore)
            self._context = _build(self._tls, identity)
            self.own_expires_s = None if identity is None else chain_expires_s(identity.chain)
            self._seen = versions
        return self._context


def _version(path: Path) -> object:
    try:
        state = path.stat()
    except OSError:
        return None
    # Kubernetes replaces a symbolic link: the inode changes, the time may not.
    return state.st_ino, state.st_size, state.st_mtime_ns


def _build(tls: TlsSettings, identity: Identity | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    # Java trusts what is in the truststore, be it a root, an intermediate or the broker's own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.truststore is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=b"".join(read_trusted(tls.truststore)))
        except ssl.SSLError as error:
            raise ConfigError(
                f"{tls.truststore.name} holds a certificate that cannot be read: {error.reason}",
                remedy=f"correct {tls.truststore.name}",
            ) from None
    if identity is not None:
        load_identity(context, identity)
    return context


def load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """Load ``identity`` into ``context``; its key is never on a disk in clear.

    Raises:
        ConfigError: key and chain cannot be used.
    """
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_der_private_key,
    )

    password = secrets.token_bytes(32).hex().encode()
    key = load_der_private_key(identity.key, None)
    chain = "".join(map(ssl.DER_cert_to_PEM_cert, identity.chain)).encode()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    with _readable(chain + pem) as path:
        try:
            context.load_cert_chain(path, password=password)
        except ssl.SSLError as error:
            raise ConfigError(
                f"ssl.keystore: key and certificate chain cannot be used: {error.reason}",
                remedy="check that the private key belongs to the first certificate of the chain",
            ) from None


@contextmanager
def _readable(content: bytes) -> Generator[str, None, None]:
    """Provide a path from which ``content`` can be read until the block ends."""
    if sys.platform == "linux" and Path("/proc/self/fd").is_dir():
        # ``load_cert_chain`` only takes paths; this one is memory.
        fd = os.memfd_create("mm2py-identity")
        path = f"/proc/self/fd/{fd}"
    else:
        fd, path = tempfile.mkstemp(prefix="mm2py-")  # 0600, and the key in it is encrypted
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(content)
        yield path
    finally:
        os.close(fd)
        if not path.startswith("/proc/"):
            Path(path).unlink()


def is_for_another_host(error: Exception) -> bool:
    """Whether a handshake failed by the names of the certificate alone."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OTHER_NAMES


def names_of(certificate: Mapping[str, object]) -> str:
    """Return for which hosts a certificate (``getpeercert``) is, as openssl prints it; without
    alternative names by its subject."""
    names = cast("Sequence[tuple[str, str]]", certificate.get("subjectAltName", ()))
    if not names:
        subject = cast("Sequence[Sequence[tuple[str, str]]]", certificate.get("subject", ()))
        names = [("CN", value) for part in subject for key, value in part if key == "commonName"]
    shown = [f"{'IP' if kind == 'IP Address' else kind}:{value}" for kind, value in names]
    return some_of(shown, _NAMES) if shown else "no name"


def tls_failure(
    error: Exception, address: str, tls: TlsSettings, *, known: bool = False, names: str = ""
) -> Mm2pyError:
    """Return the error to raise for a failed handshake; it names the property to change.

    ``known``: an earlier TLS handshake with this address succeeded. ``names``: ``names_of`` the
    certificate, where it is for another host.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, address, tls, names)
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    # OpenSSL's names for bytes that are no TLS record; they differ between its releases.
    if any(word in reason for word in _PLAIN_REASONS):
        return ConnectionFailedError(f"{address} answers without TLS", remedy=NO_TLS_REMEDY)
    # The broker ended the handshake: it wants another certificate, or one at all.
    if "ALERT" in reason:
        who = "no certificate" if tls.keystore is None else "our certificate"
        return AuthenticationError(
            f"{address} refused the TLS handshake with {who} ({reason})",
            remedy="set ssl.keystore.location to a key whose certificate the brokers trust",
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionError) and not known:
        return ConnectionFailedError(
            f"{address} hung up during the TLS handshake, as listeners without TLS do",
            remedy=NO_TLS_REMEDY,
        )
    return ConnectionFailedError(
        f"TLS handshake with {address} failed: {reason or reason_of(error)}"
    )


def _distrust(
    error: ssl.SSLCertVerificationError, address: str, tls: TlsSettings, names: str
) -> Mm2pyError:
    if error.verify_code == _EXPIRED:
        problem, remedy = (
            "has expired",
            "renew the brokers' certificate, their ssl.keystore.location",
        )
    elif error.verify_code == _NOT_YET_VALID:
        problem, remedy = "is not valid yet", "check the clocks of both machines"
    elif is_for_another_host(error):
        problem = "is not for this host name"
        if names:
            problem += f": expected {address.rpartition(':')[0]}, the certificate is for {names}"
        remedy = (
            "use a name of the certificate in bootstrap.servers and the brokers' "
            "advertised.listeners, or set ssl.endpoint.identification.algorithm to nothing"
        )
    else:
        problem = f"is not trusted ({error.verify_message})"
        remedy = "put the certificate of the brokers' authority into ssl.truststore.location"
        if tls.truststore is None:
            remedy = f"{remedy}; without it only the system's authorities are trusted"
    return AuthenticationError(f"the certificate of {address} {problem}", remedy=remedy)
