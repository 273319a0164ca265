"""Java client properties as settings of our own connections, fetcher and sender.

Flow: effective client properties (``client_properties``) -> frozen settings. Field names are Java's
names with underscores. Keys that our engine does not use are ignored here; ``client_table`` says of
each one what happens to it, and lint says it with the line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.config.client_table import ClientProperty
from mm2py.config.java_values import parse_list
from mm2py.config.key_material import check_stores
from mm2py.config.property_reader import PropertyReader, checked_value
from mm2py.config.security import SaslSettings, TlsSettings, sasl_settings, tls_settings
from mm2py.errors import ConfigError

__all__ = [
    "CONNECTIONS",
    "MAX_IN_FLIGHT",
    "ConnectionSettings",
    "ConsumerSettings",
    "ProducerSettings",
    "check_security",
    "client_value_problem",
    "connection_settings",
    "consumer_settings",
    "parse_bootstrap_servers",
    "producer_settings",
]

MAX_IN_FLIGHT: Final = 5
"""Requests per connection that an idempotent producer may have under way (KIP-360)."""

CONNECTIONS: Final = 24
"""Each carries 1.5 MB/s over 80 ms where a broker has its default socket buffers."""

# ClientUtils.parseAndValidateAddresses: an optional listener name, a host, a port.
_ADDRESS: Final = re.compile(r"(?:[^/\s]*://)?\[?([0-9a-zA-Z\-%._:]+?)\]?:([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach one cluster; ``tls`` and ``sasl`` are there where the protocol asks for them."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = ""
    client_rack: str = ""
    security_protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    connections_max_idle_ms: int = 540_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    receive_buffer_bytes: int = -1
    send_buffer_bytes: int = -1

    @property
    def addresses(self) -> str:
        """Bootstrap servers as one text, to be shown."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap_servers)

    def __post_init__(self) -> None:
        """Refuse settings that would connect with less security than their protocol says."""
        wants = self.security_protocol.endswith("SSL"), self.security_protocol.startswith("SASL_")
        if wants != (self.tls is not None, self.sasl is not None):
            raise ConfigError(
                f"security.protocol={self.security_protocol} does not fit the TLS and SASL settings"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How to read from a cluster; the fetch limits have Java's meaning and defaults.

    ``max_partition_fetch_bytes_set``: the file names it, so no stripe over a long round trip is larger.
    """

    connection: ConnectionSettings
    auto_offset_reset: str = "earliest"
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    max_partition_fetch_bytes_set: bool = False
    fetch_max_wait_ms: int = 500
    fetch_connections_max: int = CONNECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How to write to a cluster; always idempotent, always ``acks=all``, retried without end.

    Where the file is silent, ``compression_type`` is empty: batches keep the source's codec, and
    ``max_request_size`` 0: the target's own limits count.
    """

    connection: ConnectionSettings
    compression_type: str = ""
    max_request_size: int = 0
    max_in_flight_requests_per_connection: int = MAX_IN_FLIGHT
    buffer_memory: int = 33_554_432
    produce_connections_max: int = CONNECTIONS
    transaction_timeout_ms: int = 60_000


def connection_settings(props: Mapping[str, str], *, scope: str = "") -> ConnectionSettings:
    """Build the settings of connections from effective client properties.

    ``scope`` says whose they are in messages (``"cluster A"``).

    Raises:
        ConfigError: a value is wrong, a login is incomplete, or a key store cannot be opened.
    """
    read = PropertyReader(props, scope)
    protocol, tls, sasl = _security(read)
    servers = props.get("bootstrap.servers", "")
    try:
        addresses = parse_bootstrap_servers(servers)
    except ConfigError as error:
        raise ConfigError(
            read.place(f"bootstrap.servers={servers}: {error.message}"), remedy=error.remedy
        ) from None
    backoff = read.number("reconnect.backoff.ms", 50)
    retry = read.number("retry.backoff.ms", 100)
    return ConnectionSettings(
        bootstrap_servers=addresses,
        client_id=props.get("client.id", ""),
        client_rack=props.get("client.rack", ""),
        security_protocol=protocol,
        tls=tls,
        sasl=sasl,
        request_timeout_ms=read.number("request.timeout.ms", 30_000),
        default_api_timeout_ms=read.number("default.api.timeout.ms", 60_000),
        connections_max_idle_ms=read.number("connections.max.idle.ms", 540_000),
        reconnect_backoff_ms=backoff,
        # As in Java a first pause above the longest one raises the longest one.
        reconnect_backoff_max_ms=max(backoff, read.number("reconnect.backoff.max.ms", 1_000)),
        retry_backoff_ms=retry,
        retry_backoff_max_ms=max(retry, read.number("retry.backoff.max.ms", 1_000)),
        socket_connection_setup_timeout_ms=read.number(
            "socket.connection.setup.timeout.ms", 10_000
        ),
        metadata_max_age_ms=read.number("metadata.max.age.ms", 300_000),
        receive_buffer_bytes=read.number("receive.buffer.bytes", -1),
        send_buffer_bytes=read.number("send.buffer.bytes", -1),
    )


def consumer_settings(props: Mapping[str, str], *, scope: str = "") -> ConsumerSettings:
    """Build the settings of a reader from effective consumer properties."""
    read = PropertyReader(props, scope)
    return ConsumerSettings(
        connection=connection_settings(props, scope=scope),
        auto_offset_reset=read.text("auto.offset.reset", "earliest"),
        isolation_level=read.text("isolation.level", "read_uncommitted"),
        fetch_min_bytes=read.number("fetch.min.bytes", 1),
        fetch_max_bytes=read.number("fetch.max.bytes", 52_428_800),
        max_partition_fetch_bytes=read.number("max.partition.fetch.bytes", 1_048_576),
        max_partition_fetch_bytes_set=read.raw("max.partition.fetch.bytes") is not None,
        fetch_max_wait_ms=read.number("fetch.max.wait.ms", 500),
        fetch_connections_max=read.number("fetch.connections.max", CONNECTIONS),
    )


def producer_settings(props: Mapping[str, str], *, scope: str = "") -> ProducerSettings:
    """Build the settings of a writer from effective producer properties."""
    read = PropertyReader(props, scope)
    in_flight = read.number("max.in.flight.requests.per.connection", MAX_IN_FLIGHT)
    return ProducerSettings(
        connection=connection_settings(props, scope=scope),
        compression_type=read.text("compression.type", ""),
        max_request_size=read.number("max.request.size", 0),
        max_in_flight_requests_per_connection=min(in_flight, MAX_IN_FLIGHT),
        buffer_memory=read.number("buffer.memory", 33_554_432),
        produce_connections_max=read.number("produce.connections.max", CONNECTIONS),
        transaction_timeout_ms=read.number("transaction.timeout.ms", 60_000),
    )


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``host:port,[v6]:port``.

    Raises:
        ConfigError: no address, or one that is not ``host:port``; does not name the property.
    """
    found: list[tuple[str, int]] = []
    for item in parse_list(text):
        if not item:
            continue
        match = _ADDRESS.fullmatch(item)
        if match is None or not 0 < int(match[2]) < 65_536:
            raise ConfigError(f"{item!r} is not host:port", remedy="write host1:9092,host2:9092")
        found.append((match[1], int(match[2])))
    if not found:
        raise ConfigError("names no broker", remedy="write host1:9092,host2:9092")
    return tuple(found)


def client_value_problem(entry: ClientProperty, text: str) -> str:
    """Return what is wrong with the value of a client property, empty if nothing is."""
    try:
        checked_value(entry, text)
    except ConfigError as error:
        return error.message
    return ""


def check_security(props: Mapping[str, str]) -> None:
    """Check what ``connection_settings`` takes from ``security.protocol``, ``ssl.*`` and ``sasl.*``.

    Raises:
        ConfigError: its message begins with the name of the property.
    """
    _security(PropertyReader(props))


def _security(read: PropertyReader) -> tuple[str, TlsSettings | None, SaslSettings | None]:
    protocol = read.text("security.protocol", "plaintext").upper()
    tls = tls_settings(read) if protocol.endswith("SSL") else None
    sasl = sasl_settings(read) if protocol.startswith("SASL_") else None
    for each in (tls, sasl.oauth.tls if sasl is not None and sasl.oauth is not None else None):
        if each is not None:
            _check_stores(read, each)
    return protocol, tls, sasl


def _check_stores(read: PropertyReader, tls: TlsSettings) -> None:
    try:
        check_stores(tls)
    except ConfigError as error:
        raise ConfigError(read.place(error.message), remedy=error.remedy) from None
