"""Java client properties as settings of librdkafka, for what copies through a consumer group.

Flow: properties as a Java consumer or producer reads them -> our own reading of addresses, TLS and
login (``clients``, ``key_material``), so that one file gives one refusal in all engines -> the
table below -> ``Settings``: what confluent-kafka takes, and a line for each property that has no
counterpart. Where Java and librdkafka have different defaults, Java's is set. Keys are passed as
PEM texts in memory, never written to disk.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.key_material import read_identity, read_trusted
from mm2py.config.security import KerberosSettings, OAuthSettings, SaslSettings, TlsSettings
from mm2py.errors import ConfigError

SettingValue = str | int | float | bool
T = TypeVar("T")

KEYTAB: Final = "sasl.kerberos.keytab"
PRINCIPAL: Final = "sasl.kerberos.principal"
"""Names of librdkafka's own."""

_CLIENT_ID: Final = "client.id"
_BACKOFF: Final = "reconnect.backoff.ms"
_LONGEST_BACKOFF: Final = "reconnect.backoff.max.ms"
_LONGEST_MS: Final = 2**31 - 1
_LONGEST_SOCKET_MS: Final = 300_000
_LONGEST_KINIT_MS: Final = 86_400_000
_KIB: Final = 1 << 10
_MOST_KIB: Final = 2_097_151
_PEM_LINE: Final = 64
_ASSIGNORS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    # librdkafka has no eager sticky assignor; range is the protocol that Java members also know.
    "StickyAssignor": "range",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_TOKENS: Final = "sasl.oauthbearer."


@dataclass(frozen=True, slots=True)
class Settings:
    """``values`` for confluent-kafka; ``connection`` is the same cluster for our own client;
    ``remarks`` one line each."""

    values: Mapping[str, SettingValue]
    connection: ConnectionSettings
    remarks: tuple[str, ...]


Convert = Callable[[str, str], SettingValue]
"""Property name and text to a value; ConfigError where the text is none."""


def _number(name: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ConfigError(
            f"{name}={text} is not a whole number", remedy=f"correct {name}"
        ) from None


def _between(low: int, high: int) -> Convert:
    return lambda name, text: min(max(_number(name, text), low), high)


def _text(_name: str, text: str) -> str:
    return text.strip()


def _lower(_name: str, text: str) -> str:
    return text.strip().lower()


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name}={text} is neither true nor false", remedy=f"correct {name}")
    return text.strip().lower() == "true"


def _kib(name: str, text: str) -> int:
    # Bytes in Java, kibibytes here, up to what fits its int.
    return min(max(1, _number(name, text) // _KIB), _MOST_KIB)


def _acks(name: str, text: str) -> int:
    return _one_of({"all": -1, "-1": -1, "0": 0, "1": 1}, name, text)


def _reset(name: str, text: str) -> str:
    known = {"earliest": "earliest", "latest": "latest", "none": "error"}
    return _one_of(known, name, text)


def _one_of(known: Mapping[str, T], name: str, text: str) -> T:
    given = text.strip().lower()
    if given not in known:
        raise ConfigError(f"{name}={text} is none of {', '.join(known)}", remedy=f"correct {name}")
    return known[given]


def _lookup(_name: str, text: str) -> str:
    known = text.strip().lower()
    # Of clients before 3.0, for one address of a name.
    return "use_all_dns_ips" if known == "default" else known


def _assignors(name: str, text: str) -> str:
    names: list[str] = []
    for item in filter(None, map(str.strip, text.split(","))):
        short = _ASSIGNORS.get(item.rsplit(".", 1)[-1])
        if short is None:
            raise ConfigError(
                f"{name} names {item}, which cannot be loaded here",
                remedy=f"use one of {', '.join(_ASSIGNORS)}",
            )
        if short not in names:
            names.append(short)
    # Both kinds are for a group that is moved from one to the
    # other, member by member: as in Java, it is eager meanwhile.
    eager = [it for it in names if it != "cooperative-sticky"]
    return ",".join(eager or names) or "range"


_NOT_NEGATIVE: Final = _between(0, _LONGEST_MS)
_LEVEL: Final = _between(-1, 12)

_COMMON: Final[Mapping[str, tuple[tuple[str, ...], Convert]]] = {
    "client.rack": (("client.rack",), _text),
    "client.dns.lookup": (("client.dns.lookup",), _lookup),
    "connections.max.idle.ms": (("connections.max.idle.ms",), _NOT_NEGATIVE),
    "metadata.max.age.ms": (("topic.metadata.refresh.interval.ms",), _between(10, 3_600_000)),
    "receive.buffer.bytes": (("socket.receive.buffer.bytes",), _between(0, 100_000_000)),
    "reconnect.backoff.max.ms": (("reconnect.backoff.max.ms",), _between(0, 3_600_000)),
    "reconnect.backoff.ms": (("reconnect.backoff.ms",), _between(0, 3_600_000)),
    "retry.backoff.max.ms": (("retry.backoff.max.ms",), _between(1, 300_000)),
    "retry.backoff.ms": (("retry.backoff.ms",), _between(1, 300_000)),
    "send.buffer.bytes": (("socket.send.buffer.bytes",), _between(0, 100_000_000)),
    "socket.connection.setup.timeout.ms": (
        ("socket.connection.setup.timeout.ms",),
        _between(1_000, _LONGEST_MS),
    ),
}
_CONSUMER: Final[Mapping[str, tuple[tuple[str, ...], Convert]]] = {
    **_COMMON,
    "auto.commit.interval.ms": (("auto.commit.interval.ms",), _NOT_NEGATIVE),
    "auto.offset.reset": (("auto.offset.reset",), _reset),
    "check.crcs": (("check.crcs",), _flag),
    "enable.auto.commit": (("enable.auto.commit",), _flag),
    "fetch.max.bytes": (("fetch.max.bytes",), _between(0, 2_147_483_135)),
    "fetch.max.wait.ms": (("fetch.wait.max.ms",), _between(0, 300_000)),
    "fetch.min.bytes": (("fetch.min.bytes",), _between(1, 100_000_000)),
    "group.id": (("group.id",), _text),
    "group.instance.id": (("group.instance.id",), _text),
    "heartbeat.interval.ms": (("heartbeat.interval.ms",), _between(1, 3_600_000)),
    "isolation.level": (("isolation.level",), _lower),
    "max.partition.fetch.bytes": (("max.partition.fetch.bytes",), _between(1, 1_000_000_000)),
    "max.poll.interval.ms": (("max.poll.interval.ms",), _between(1, 86_400_000)),
    "partition.assignment.strategy": (("partition.assignment.strategy",), _assignors),
    "request.timeout.ms": (("socket.timeout.ms",), _between(1_000, _LONGEST_SOCKET_MS)),
    "session.timeout.ms": (("session.timeout.ms",), _between(1, 3_600_000)),
}
_PRODUCER: Final[Mapping[str, tuple[tuple[str, ...], Convert]]] = {
    **_COMMON,
    "acks": (("acks",), _acks),
    "batch.size": (("batch.size",), _between(1, _LONGEST_MS)),
    "buffer.memory": (("queue.buffering.max.kbytes",), _kib),
    "compression.gzip.level": (("compression.level",), _LEVEL),
    "compression.lz4.level": (("compression.level",), _LEVEL),
    "compression.type": (("compression.type",), _lower),
    "compression.zstd.level": (("compression.level",), _LEVEL),
    "delivery.timeout.ms": (("delivery.timeout.ms",), _NOT_NEGATIVE),
    "enable.idempotence": (("enable.idempotence",), _flag),
    "linger.ms": (("linger.ms",), _between(0, 900_000)),
    "max.in.flight.requests.per.connection": (
        ("max.in.flight.requests.per.connection",),
        _between(1, 1_000_000),
    ),
    "max.request.size": (("message.max.bytes",), _between(1_000, 1_000_000_000)),
    "request.timeout.ms": (
        ("request.timeout.ms", "socket.timeout.ms"),
        _between(1_000, _LONGEST_SOCKET_MS),
    ),
    "retries": (("retries",), _NOT_NEGATIVE),
}
_COMMON_DEFAULTS: Final[Mapping[str, SettingValue]] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.connection.setup.timeout.ms": 10_000,
    # Java sets SO_KEEPALIVE on every socket (Selector.configureSocketChannel).
    "socket.keepalive.enable": True,
    # Java's request.timeout.ms: so long a broker that stands
    # still keeps what was asked of it from the next leader.
    "socket.timeout.ms": 30_000,
    "topic.metadata.refresh.interval.ms": 300_000,
}
_CONSUMER_DEFAULTS: Final[Mapping[str, SettingValue]] = {
    **_COMMON_DEFAULTS,
    "auto.offset.reset": "latest",
    "check.crcs": True,
    "fetch.max.bytes": 52_428_800,
    "isolation.level": "read_uncommitted",
    "max.poll.interval.ms": 300_000,
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 45_000,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    # Java's has no limit but that of the protocol: a batch above it would be asked for without end.
    "receive.message.max.bytes": 2_147_483_647,
    # What has been read ahead: librdkafka would keep 64 MiB for each partition.
    "queued.max.messages.kbytes": 16_384,
    # By default it waits a second once so much is there: most of it idle.
    "fetch.queue.backoff.ms": 10,
}
_PRODUCER_DEFAULTS: Final[Mapping[str, SettingValue]] = {
    **_COMMON_DEFAULTS,
    "acks": -1,
    # Java's 16 KiB are of each partition, and a request has
    # one batch of many; librdkafka's requests have one.
    "batch.size": 131_072,
    "linger.ms": 5,
    "max.in.flight.requests.per.connection": 5,
    "message.max.bytes": 1_048_576,
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 32_768,
    "request.timeout.ms": 30_000,
}
"""``murmur2_random`` is Java's default partitioner; librdkafka's deals keys otherwise."""

_SILENT: Final = re.compile(
    r"bootstrap\.servers|client\.id|security\.protocol|(ssl|sasl)\..*|config\.providers.*|max\.poll\.records|"
    r"default\.api\.timeout\.ms|max\.block\.ms|(key|value)\.(de)?serializer|exclude\.internal\.topics"
)
"""Read by our own code, or without a meaning where records are passed on as bytes."""


def consumer_settings(props: Mapping[str, str], *, scope: str) -> Settings:
    """Return the settings of a consumer; ``scope`` names their owner in messages. ``ConfigError``:
    a value is wrong, a login is incomplete, or a key store cannot be opened."""
    settings = _settings(props, _CONSUMER, _CONSUMER_DEFAULTS, scope)
    values, remarks = dict(settings.values), list(settings.remarks)
    session, longest = (
        _CONSUMER["session.timeout.ms"][0][0],
        _CONSUMER["max.poll.interval.ms"][0][0],
    )
    # librdkafka refuses max.poll.interval.ms below session.timeout.ms, Java does not.
    values[longest] = max(int(values[longest]), int(values[session]))
    assignors = props.get("partition.assignment.strategy", "")
    if ".StickyAssignor" in assignors:
        remarks.append(
            f"{scope}: StickyAssignor is taken as RangeAssignor: Java's members of the group "
            "need that too"
        )
    return Settings(values, settings.connection, tuple(remarks))


def producer_settings(props: Mapping[str, str], *, scope: str) -> Settings:
    """Return the settings of a producer, idempotent where the other properties allow it, as Java's.
    ``ConfigError``: see ``consumer_settings``; also idempotence that is asked for and cannot be."""
    settings = _settings(props, _PRODUCER, _PRODUCER_DEFAULTS, scope)
    values = dict(settings.values)
    # A record above the limit of the queue never finds room, whereas Java refuses it.
    buffer, largest = _PRODUCER["buffer.memory"][0][0], _PRODUCER["max.request.size"][0][0]
    needed = min(-(-int(values[largest]) // _KIB), _MOST_KIB)
    values[buffer] = max(int(values[buffer]), needed)
    possible = (
        values["acks"] == -1
        # As in Java's ProducerConfig idempotence gives
        # way to other settings, unless it is asked for.
        and int(values["max.in.flight.requests.per.connection"]) <= 5
        and values.get("retries") != 0
    )
    if values.get("enable.idempotence") and not possible:
        raise ConfigError(
            f"{scope}: enable.idempotence=true needs acks=all, retries above 0 and at most 5 "
            "requests in flight",
            remedy="remove enable.idempotence or what contradicts it",
        )
    values.setdefault("enable.idempotence", possible)
    return Settings(values, settings.connection, settings.remarks)


def without_end(props: Mapping[str, str]) -> dict[str, str]:
    """Return a producer's properties with which each record is tried until the target takes it.

    With an end the target's outage would refuse records, which ``errors.tolerance=all`` leaves out.
    ``retries=0`` stays: it asks for no second try.
    """
    kept = {name: text for name, text in props.items() if name != "retries" or text.strip() == "0"}
    return kept | {"delivery.timeout.ms": str(_LONGEST_MS)}


def _settings(
    props: Mapping[str, str],
    table: Mapping[str, tuple[tuple[str, ...], Convert]],
    defaults: Mapping[str, SettingValue],
    scope: str,
) -> Settings:
    connection = connection_settings(props, scope=scope)
    values = dict(defaults) | _secured(connection)
    remarks: list[str] = []
    for name, text in props.items():
        known = table.get(name)
        if known is not None:
            names, convert = known
            try:
                values |= dict.fromkeys(names, convert(name, text))
            except ConfigError as error:
                raise ConfigError(f"{scope}: {error.message}", remedy=error.remedy) from None
        elif not _SILENT.fullmatch(name):
            remarks.append(f"{scope}: {name} has no effect here")
    if props.get(_CLIENT_ID):
        values[_CLIENT_ID] = props[_CLIENT_ID]
    # As Java's: a longest pause is never shorter than the first.
    values[_LONGEST_BACKOFF] = max(int(values[_BACKOFF]), int(values[_LONGEST_BACKOFF]))
    return Settings(values, connection, tuple(remarks))


def _secured(settings: ConnectionSettings) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {
        "bootstrap.servers": settings.addresses,
        "security.protocol": settings.security_protocol.lower(),
    }
    if settings.tls is not None:
        values |= _tls(settings.tls)
    if settings.sasl is not None:
        values |= _sasl(settings.sasl)
    return values


def _tls(tls: TlsSettings) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {
        "ssl.endpoint.identification.algorithm": "https" if tls.check_hostname else "none"
    }
    if tls.truststore is None:
        # The system's certificates, wherever the distribution has them.
        values["ssl.ca.location"] = "probe"
    else:
        values["ssl.ca.pem"] = _pem("CERTIFICATE", read_trusted(tls.truststore))
    if tls.keystore is not None:
        identity = read_identity(tls.keystore)
        values["ssl.certificate.pem"] = _pem("CERTIFICATE", identity.chain)
        values["ssl.key.pem"] = _pem("PRIVATE KEY", (identity.key,))
    return values


def _pem(label: str, blocks: Sequence[bytes]) -> str:
    lines: list[str] = []
    for der in blocks:
        text = base64.b64encode(der).decode()
        lines.append(f"-----BEGIN {label}-----")
        lines += [text[at : at + _PEM_LINE] for at in range(0, len(text), _PEM_LINE)]
        lines.append(f"-----END {label}-----")
    return "\n".join(lines) + "\n"


def _sasl(sasl: SaslSettings) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {"sasl.mechanism": sasl.mechanism}
    if sasl.oauth is not None:
        return values | _tokens(sasl.oauth)
    if sasl.kerberos is not None:
        return values | _tickets(sasl.kerberos)
    return values | {"sasl.username": sasl.username, "sasl.password": sasl.password}


def _tickets(kerberos: KerberosSettings) -> dict[str, SettingValue]:
    """Tickets of the user's cache: the library reads no other, kinit fills it from the keytab."""
    values: dict[str, SettingValue] = {"sasl.kerberos.service.name": kerberos.service_name}
    if kerberos.principal:
        values[PRINCIPAL] = kerberos.principal
    if not kerberos.keytab:
        # A period of 0: never run kinit.
        return values | {"sasl.kerberos.min.time.before.relogin": 0}
    return values | {
        KEYTAB: kerberos.keytab,
        "sasl.kerberos.kinit.cmd": f'{kerberos.kinit_cmd} -t "%{{sasl.kerberos.keytab}}" -k '
        '"%{sasl.kerberos.principal}"',
        "sasl.kerberos.min.time.before.relogin": min(
            max(kerberos.min_time_before_relogin_ms, 1_000), _LONGEST_KINIT_MS
        ),
    }


def _tokens(oauth: OAuthSettings) -> dict[str, SettingValue]:
    if not oauth.token_endpoint_url:
        claims = dict(oauth.claims)
        config = f"principal={claims.get('sub', '')} lifeSeconds={oauth.lifetime_s}"
        return {"enable.sasl.oauthbearer.unsecure.jwt": True, f"{_TOKENS}config": config}
    values: dict[str, SettingValue] = {
        f"{_TOKENS}method": "oidc",
        f"{_TOKENS}token.endpoint.url": oauth.token_endpoint_url,
        f"{_TOKENS}client.id": oauth.client_id,
        f"{_TOKENS}client.secret": oauth.client_secret,
    }
    if oauth.scope:
        values[f"{_TOKENS}scope"] = oauth.scope
    if oauth.extensions:
        values[f"{_TOKENS}extensions"] = ",".join(f"{k}={v}" for k, v in oauth.extensions)
    return values
