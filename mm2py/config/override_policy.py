"""Which client properties a connector config may set (``connector.client.config.override.policy``).

Flow: worker property -> ``override_policy`` -> ``refusal`` of one property; ``override_key`` describes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.config.client_table import CLIENT_TABLE
from mm2py.config.connect_definitions import ConfigKey
from mm2py.config.connect_values import Check, Definition, at_least, java_type, one_of
from mm2py.config.java_values import JavaType
from mm2py.errors import ConfigError

__all__ = ["ALL_OVERRIDES", "OverridePolicy", "override_key", "override_policy"]

_PRINCIPAL: Final = frozenset({"security.protocol", "sasl.jaas.config", "sasl.mechanism"})
_ENDING: Final = "ConnectorClientConfigOverridePolicy"


@dataclass(frozen=True, slots=True)
class OverridePolicy:
    """What may be overridden; ``allowed`` None allows everything."""

    name: str
    allowed: frozenset[str] | None

    def refusal(self, name: str) -> str:
        """Return why a client property (without prefix) may not be set, empty where it may."""
        if self.allowed is None or name in self.allowed:
            return ""
        return (
            f"The '{self.name}' policy does not allow '{name}' to be overridden in the connector"
            " configuration."
        )


_JMX: Final = "org.apache.kafka.common.metrics.JmxReporter"
_PRODUCER: Final[Mapping[str, tuple[str | None, str]]] = {
    "acks": ("all", "LOW"),
    "batch.size": ("16384", "MEDIUM"),
    "bootstrap.servers": (None, "HIGH"),
    "buffer.memory": ("33554432", "HIGH"),
    "client.dns.lookup": ("use_all_dns_ips", "MEDIUM"),
    "client.id": ("", "MEDIUM"),
    "compression.gzip.level": ("-1", "MEDIUM"),
    "compression.lz4.level": ("9", "MEDIUM"),
    "compression.type": ("none", "HIGH"),
    "compression.zstd.level": ("3", "MEDIUM"),
    "connections.max.idle.ms": ("540000", "MEDIUM"),
    "delivery.timeout.ms": ("120000", "MEDIUM"),
    "enable.idempotence": ("true", "LOW"),
    "interceptor.classes": ("", "LOW"),
    "linger.ms": ("5", "MEDIUM"),
    "max.block.ms": ("60000", "MEDIUM"),
    "max.in.flight.requests.per.connection": ("5", "LOW"),
    "max.request.size": ("1048576", "MEDIUM"),
    "metadata.max.age.ms": ("300000", "LOW"),
    "metadata.max.idle.ms": ("300000", "LOW"),
    "metric.reporters": (_JMX, "LOW"),
    "metrics.num.samples": ("2", "LOW"),
    "metrics.recording.level": ("INFO", "LOW"),
    "metrics.sample.window.ms": ("30000", "LOW"),
    "receive.buffer.bytes": ("32768", "MEDIUM"),
    "reconnect.backoff.max.ms": ("1000", "LOW"),
    "reconnect.backoff.ms": ("50", "LOW"),
    "request.timeout.ms": ("30000", "MEDIUM"),
    "retries": ("2147483647", "HIGH"),
    "retry.backoff.max.ms": ("1000", "LOW"),
    "retry.backoff.ms": ("100", "LOW"),
    "sasl.mechanism": ("GSSAPI", "MEDIUM"),
    "security.protocol": ("PLAINTEXT", "MEDIUM"),
    "send.buffer.bytes": ("131072", "MEDIUM"),
    "socket.connection.setup.timeout.max.ms": ("30000", "MEDIUM"),
    "socket.connection.setup.timeout.ms": ("10000", "MEDIUM"),
    "transaction.timeout.ms": ("60000", "LOW"),
    "transactional.id": (None, "LOW"),
}
"""Default and importance in Java's ``ProducerConfig``; every other key is MEDIUM without a default."""

_KINDS: Final = {
    "retries": JavaType.INT,
    "delivery.timeout.ms": JavaType.INT,
    "metric.reporters": JavaType.LIST,
    "metrics.num.samples": JavaType.INT,
    "metrics.sample.window.ms": JavaType.LONG,
    "transaction.timeout.ms": JavaType.INT,
}
"""Types in Java's ``ProducerConfig`` where our clients read more, or nothing."""

ALL_OVERRIDES: Final = OverridePolicy("All", None)
"""Java's default since 3.0."""


def override_policy(name: str, allowlist: tuple[str, ...] = ()) -> OverridePolicy:
    """Return the policy of a worker; ``name`` is the property's text, a short name or Java's class.

    Raises:
        ConfigError: there is no such policy.
    """
    simple = name.strip().rpartition(".")[2].removesuffix(_ENDING)
    allowed: dict[str, frozenset[str] | None] = {
        "All": None,
        "None": frozenset(),
        "Principal": _PRINCIPAL,
        "Allowlist": frozenset(allowlist),
    }
    if simple not in allowed:
        raise ConfigError(
            f"connector.client.config.override.policy={name}: no such policy",
            remedy=f"use one of {', '.join(allowed)}",
        )
    return OverridePolicy(simple, allowed[simple])


def override_key(prefix: str, name: str) -> Definition | None:
    """Describe an overridden client property, None where no client has it."""
    row = CLIENT_TABLE.get(name)
    if row is None:
        return None
    default, importance = _PRODUCER.get(name, (None, "MEDIUM"))
    kind = _KINDS.get(name, row.type)
    key = ConfigKey(
        name=prefix + name,
        type=java_type(kind),
        required=name == "bootstrap.servers",
        default_value=default,
        importance=importance,
        documentation=row.note,
        group=None,
        order_in_group=-1,
        width="NONE",
        display_name=name,
    )
    checks: list[Check] = []
    if row.choices:
        checks.append(one_of(row.choices))
    if row.low is not None or row.high is not None:
        checks.append(at_least(row.low, row.high))
    return Definition(key=key, kind=kind, checks=tuple(checks))
