"""TLS of the REST listeners, and the user of a client's certificate.

Flow: ``ListenerTls`` -> ``server_context`` -> uvicorn; the same stores -> ``peer_context`` ->
httpx, for requests to other workers. ``CertifiedProtocol`` puts the client's name into the scope
for the gate. Stores are read once, at start.
"""

import asyncio
import ssl
from typing import Final, cast, final

from mm2py.client.connect.tls import TlsContexts, load_identity
from mm2py.config.key_material import read_identity, read_trusted
from mm2py.config.rest_settings import ListenerTls
from mm2py.errors import ConfigError
from mm2py.rest.connections import GuardedProtocol

CERTIFICATE_NAME: Final = "mm2py.certificate"
"""Key in ``scope["state"]``: the common name of the certificate that the client proved to own."""

_HANDSHAKE_TURNS: Final = 8
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(tls: ListenerTls) -> ssl.SSLContext:
    """Return the context of an https listener; ``ConfigError``: a store cannot be used."""
    try:
        return _context(tls)
    except ConfigError as error:
        raise _of_listeners(error) from None


def _context(tls: ListenerTls) -> ssl.SSLContext:
    keystore, truststore = tls.stores.keystore, tls.stores.truststore
    assert keystore is not None, "rest_settings refuses https without a keystore"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in tls.protocols else ssl.TLSVersion.TLSv1_3
    )
    if "TLSv1.3" not in tls.protocols:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    load_identity(context, read_identity(keystore))
    context.verify_mode = _VERIFY[tls.client_auth]
    if context.verify_mode is not ssl.CERT_NONE and truststore is not None:
        # Java trusts what is in the truststore, be it a root, an intermediate or the client's own.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=b"".join(read_trusted(truststore)))
        except ssl.SSLError as error:
            raise ConfigError(
                f"{truststore.name} holds a certificate that cannot be read: {error.reason}",
                remedy=f"correct {truststore.name}",
            ) from None
    return context


def peer_context(tls: ListenerTls | None) -> ssl.SSLContext | None:
    """Return how other workers are asked, with our own certificate; None without https.
    ``ConfigError``: a store cannot be used."""
    if tls is None:
        return None
    try:
        return TlsContexts(tls.stores).current()
    except ConfigError as error:
        raise _of_listeners(error) from None


def trusts_itself(tls: ListenerTls, host: str) -> bool:
    """Whether a worker with these stores accepts the certificate of another that is reached at
    ``host``.

    A handshake of both contexts in memory; stores that cannot be used are reported when they are
    served.
    """
    try:
        server_side, client_side = server_context(tls), peer_context(tls)
    except ConfigError:
        return False
    assert client_side is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(_HANDSHAKE_TURNS):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return not waiting


def _of_listeners(error: ConfigError) -> ConfigError:
    # Every cluster of the file may have stores of its own under the same names.
    return ConfigError(f"listeners: {error.message}", remedy=error.remedy)


@final
class CertifiedProtocol(GuardedProtocol):
    """HTTP/1.1 that hands the application the name of the client's certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take note of the name; a request's state is a copy of the connection's."""
        super().connection_made(transport)
        name = _common_name(transport)
        if name is not None:
            self.app_state = {**self.app_state, CERTIFICATE_NAME: name}


def _common_name(transport: asyncio.Transport) -> str | None:
    # Empty where no certificate was asked for or shown; OpenSSL has verified any other.
    certificate = cast("dict[str, object] | None", transport.get_extra_info("peercert"))
    if not certificate:
        return None
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if names else "certificate"
