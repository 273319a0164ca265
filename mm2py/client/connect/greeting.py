"""Why a broker did not even answer ApiVersions: what the end of the connection tells of its listener.

Flow: a failed first request -> ``unwelcome`` -> the error to raise, with the property to change.
"""

import ssl
from dataclasses import dataclass
from typing import Final

from mm2py.client.connect.tls import tls_failure
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError, Mm2pyError

_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""How an alert or a handshake record begins: a frame of more than 350 MB, were it Kafka's."""

_TLS_REMEDY: Final = (
    "set security.protocol to SSL or SASL_SSL, or name a port without TLS in bootstrap.servers"
)


@dataclass(frozen=True, slots=True)
class Farewell:
    """How a connection ended before its first answer.

    ``by_peer``: in order, by the broker. ``known``: this address has answered us before, so that
    neither TLS nor its absence is to blame.
    """

    address: str
    first_bytes: bytes
    cause: Exception | None
    by_peer: bool
    known: bool


def is_tls_record(first_bytes: bytes) -> bool:
    """Whether an answer begins as TLS does."""
    return first_bytes[:2] in _TLS_RECORDS


def unwelcome(end: Farewell, settings: ConnectionSettings) -> Mm2pyError | None:
    """Return the error where the end tells its reason, else None."""
    if settings.tls is not None:
        # TLS 1.3: the broker looks at our certificate after our side of the handshake.
        if isinstance(end.cause, ssl.SSLError):
            return tls_failure(end.cause, end.address, settings.tls)
        if not end.known and (end.by_peer or isinstance(end.cause, ConnectionError)):
            return ConnectionFailedError(
                f"{end.address} hung up right after the TLS handshake",
                remedy="if its listener asks for client certificates, set ssl.keystore.location",
            )
        return None
    if is_tls_record(end.first_bytes):
        return ConnectionFailedError(
            f"{end.address} is a TLS listener, spoken to without TLS", remedy=_TLS_REMEDY
        )
    # Brokers say it in a TLS alert; what ends TLS before them may just close, which is no reset.
    if end.by_peer and not end.first_bytes and not end.known:
        return ConnectionFailedError(
            f"{end.address} hung up on the first request, as TLS listeners do without TLS",
            remedy=_TLS_REMEDY,
        )
    return None
