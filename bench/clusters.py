"""The two one-node regions of a bench, each with a plain and a TLS listener, and the way mirrors reach them.

Flow: ``Clusters(folder)`` as a context manager -> ``source_endpoint(tls=…)`` -> a flow's properties file. The
bench's own clients always use the plain listener. Certificates live as long as the folder.
"""

import datetime
import ipaddress
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from bench.flow_file import Endpoint
from mm2py.clock import SYSTEM_CLOCK
from tests.kit.kafka.ports import HOST
from tests.kit.kafka.region import Region, start_regions
from tests.kit.kafka.server_properties import Listener

TLS_LISTENER: Final = "TLS"
_DAY: Final = datetime.timedelta(days=1)
# The data of a workload must be gone soon after it was deleted, not after the broker's five minutes.
_BROKER_PROPERTIES: Final = {
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    # One that makes thousands of partitions on a busy machine is late with its heartbeats.
    "broker.session.timeout.ms": "60000",
}


@final
class Clusters:
    """Source and target; as a context manager they run, and are removed at the end."""

    def __init__(self, folder: Path, *, heap_mb: int = 512) -> None:
        key, certificate = _self_signed()
        trusted = folder / "bench-ca.pem"
        trusted.write_text(certificate, encoding="ascii")
        self._tls_properties = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
        }
        listener = Listener(
            TLS_LISTENER,
            "SSL",
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": key,
                "ssl.keystore.certificate.chain": certificate,
            },
        )
        self.source, self.target = (
            Region(name, properties=_BROKER_PROPERTIES, heap_mb=heap_mb, listeners=[listener])
            for name in ("bench-source", "bench-target")
        )
        self._stack = ExitStack()

    def source_endpoint(self, *, tls: bool = False) -> Endpoint:
        """Return how mirrors reach the source."""
        return self._endpoint(self.source, tls=tls)

    def target_endpoint(self, *, tls: bool = False) -> Endpoint:
        """Return how mirrors reach the target."""
        return self._endpoint(self.target, tls=tls)

    def _endpoint(self, region: Region, *, tls: bool) -> Endpoint:
        if tls:
            return Endpoint(region.listener_servers(TLS_LISTENER), self._tls_properties)
        return Endpoint(region.bootstrap_servers)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.source.close)
            stack.callback(self.target.close)
            start_regions(self.source, self.target)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _self_signed() -> tuple[str, str]:
    """Return the PEM texts of a key and of a certificate for this host, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, tz=datetime.UTC)
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(hosts, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return pem, certificate.public_bytes(Encoding.PEM).decode()
