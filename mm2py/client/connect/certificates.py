"""Expiry dates of the certificates that this process has seen, shared by all of its clients.

Flow: TLS handshake of a connection, or a key store that was read -> ``note`` -> ``dates`` ->
``GET /metrics``. A broker's date is that of the newest handshake with it: a certificate that it
replaced is known with the next connection.
"""

import ssl
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, cast, final

from mm2py.clock import PerClock

BROKER: Final = "broker"
CLIENT: Final = "client"
REST: Final = "rest"


class Shown(NamedTuple):
    """A certificate: a ``BROKER``'s at its address, a ``CLIENT``'s, or of ``REST`` listeners."""

    owner: str
    cluster: str = ""
    address: str = ""


@final
class CertificateDates:
    """Ends of validity in seconds since the epoch; one for each broker that is spoken to, and our
    own."""

    def __init__(self) -> None:
        self._dates: dict[Shown, float] = {}

    @property
    def dates(self) -> Mapping[Shown, float]:
        return self._dates

    def note(self, shown: Shown, expires_s: float | None) -> None:
        """Keep a date; without one nothing changes."""
        if expires_s is not None:
            self._dates[shown] = expires_s

    def forget(self, shown: Shown) -> None:
        """Drop an unreachable broker, which may have left the cluster."""
        self._dates.pop(shown, None)


certificates_of: Final = PerClock(CertificateDates)
"""The dates of all clients with a clock."""


def peer_expires_s(secured: ssl.SSLSocket) -> float | None:
    """Return until when the verified certificate of the other side is valid, None where none was
    verified."""
    # Empty where the context does not verify (CERT_NONE).
    certificate = cast("Mapping[str, object] | None", secured.getpeercert())
    until = certificate.get("notAfter") if certificate else None
    return float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None


def chain_expires_s(chain: Iterable[bytes]) -> float | None:
    """Return until when all certificates of a chain (DER) are valid, None for an empty one."""
    from cryptography.x509 import load_der_x509_certificate  # only where TLS is used

    ends = [load_der_x509_certificate(each).not_valid_after_utc.timestamp() for each in chain]
    return min(ends, default=None)
