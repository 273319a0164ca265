"""Java client properties as settings of our own connections, fetcher and sender.

Flow: effective client properties (``client_properties``) -> frozen settings. Field names are Java's
names with underscores (``client_options``). Keys that our engine does not use are ignored here;
lint reports them with their lines.
"""

import re
from collections.abc import Mapping
from typing import Final, Self

from pydantic import model_validator

from mm2py.config.client_options import (
    MAX_IN_FLIGHT,
    ConnectionOptions,
    ConsumerOptions,
    ProducerOptions,
    SecurityOptions,
)
from mm2py.config.definitions import parse_config
from mm2py.config.java_values import parse_list
from mm2py.config.key_material import check_stores
from mm2py.config.security import (
    SaslSettings,
    SecurityProperties,
    TlsSettings,
    sasl_settings,
    tls_settings,
)
from mm2py.errors import ConfigError

# ClientUtils.parseAndValidateAddresses: an optional listener name, a host, a port.
_ADDRESS: Final = re.compile(r"(?:[^/\s]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]+)")


class ConnectionSettings(ConnectionOptions):
    """How to reach one cluster; ``tls`` and ``sasl`` are there where the protocol asks for them."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    security_protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None

    @property
    def addresses(self) -> str:
        """Bootstrap servers as one text, to be shown."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap_servers)

    @model_validator(mode="after")
    def _as_secure_as_asked(self) -> Self:
        """Refuse settings that would connect with less security than their protocol asks for."""
        wants = self.security_protocol.endswith("SSL"), self.security_protocol.startswith("SASL_")
        if wants != (self.tls is not None, self.sasl is not None):
            raise ConfigError(
                f"security.protocol={self.security_protocol} does not fit the TLS and SASL settings"
            )
        return self


class ConsumerSettings(ConsumerOptions):
    """How to read from a cluster.

    ``max_partition_fetch_bytes_set``: the file names it, so no stripe over a long round trip is
    larger.
    """

    connection: ConnectionSettings
    max_partition_fetch_bytes_set: bool = False


class ProducerSettings(ProducerOptions):
    """How to write to a cluster.

    Where the file is silent, ``compression_type`` is empty: batches keep the source's codec, and
    ``max_request_size`` 0: the target's own limits count.
    """

    connection: ConnectionSettings


def connection_settings(props: Mapping[str, str], *, scope: str = "") -> ConnectionSettings:
    """Build the settings of connections from effective client properties.

    ``scope`` names their owner in messages (``"cluster A"``). ``ConfigError``: a value is wrong, a
    login is incomplete, or a key store cannot be opened.
    """
    protocol, tls, sasl = _security(props, scope)
    servers = props.get("bootstrap.servers", "")
    try:
        addresses = parse_bootstrap_servers(servers)
    except ConfigError as error:
        text = f"bootstrap.servers={servers}: {error.message}"
        raise ConfigError(f"{scope}: {text}" if scope else text, remedy=error.remedy) from None
    settings = parse_config(
        ConnectionSettings,
        props,
        lambda _: scope,
        bootstrap_servers=addresses,
        security_protocol=protocol,
        tls=tls,
        sasl=sasl,
    )
    # As in Java a first pause above the longest one raises the longest one.
    longest = {
        "reconnect_backoff_max_ms": max(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms
        ),
        "retry_backoff_max_ms": max(settings.retry_backoff_ms, settings.retry_backoff_max_ms),
    }
    return settings.model_copy(update=longest)


def consumer_settings(props: Mapping[str, str], *, scope: str = "") -> ConsumerSettings:
    """Build the settings of a reader from effective consumer properties."""
    return parse_config(
        ConsumerSettings,
        props,
        lambda _: scope,
        connection=connection_settings(props, scope=scope),
        max_partition_fetch_bytes_set="max.partition.fetch.bytes" in props,
    )


def producer_settings(props: Mapping[str, str], *, scope: str = "") -> ProducerSettings:
    """Build the settings of a writer from effective producer properties."""
    settings = parse_config(
        ProducerSettings, props, lambda _: scope, connection=connection_settings(props, scope=scope)
    )
    # Five: as many batches as a broker remembers of an idempotent producer.
    in_flight = min(settings.max_in_flight_requests_per_connection, MAX_IN_FLIGHT)
    return settings.model_copy(update={"max_in_flight_requests_per_connection": in_flight})


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``host:port,[v6]:port``. ``ConfigError``: no address, or one that is not ``host:port``;
    does not name the property."""
    addresses: list[tuple[str, int]] = []
    for item in parse_list(text):
        if not item:
            continue
        match = _ADDRESS.fullmatch(item)
        if match is None or not 0 < int(match[2]) < 65_536:
            raise ConfigError(f"{item!r} is not host:port", remedy="write host1:9092,host2:9092")
        addresses.append((match[1], int(match[2])))
    if not addresses:
        raise ConfigError("names no broker", remedy="write host1:9092,host2:9092")
    return tuple(addresses)


def check_security(props: Mapping[str, str]) -> None:
    """Check what ``connection_settings`` takes from ``security.protocol``, ``ssl.*`` and
    ``sasl.*``. ``ConfigError``: its message begins with the name of the property."""
    _security(props, "")


def _security(
    props: Mapping[str, str], scope: str
) -> tuple[str, TlsSettings | None, SaslSettings | None]:
    read = SecurityProperties(parse_config(SecurityOptions, props, lambda _: scope), scope)
    protocol = read.options.security_protocol.upper()
    # SSL and SASL_SSL.
    tls = tls_settings(read) if protocol.endswith("SSL") else None
    sasl = sasl_settings(read) if protocol.startswith("SASL_") else None
    # Opened once now: a wrong store refuses the start, not each connection later.
    for each in (tls, sasl.oauth.tls if sasl is not None and sasl.oauth is not None else None):
        if each is not None:
            _check_stores(read, each)
    return protocol, tls, sasl


def _check_stores(read: SecurityProperties, tls: TlsSettings) -> None:
    try:
        check_stores(tls)
    except ConfigError as error:
        raise ConfigError(read.place(error.message), remedy=error.remedy) from None
