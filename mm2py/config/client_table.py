"""What happens to each Java client property: honoured, without effect, warned or refused.

One table for consumer, producer and admin clients (operations.md 2.3 for our engine). ``clients``
parses by it, lint speaks by it, docs/config.md prints it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mm2py.config.java_values import JavaType

__all__ = ["CLIENT_TABLE", "ClientProperty", "Effect"]

_INT32: Final = (1 << 31) - 1


class Effect(StrEnum):
    """What our engine does with a property."""

    HONOURED = "honoured"
    WITHOUT_EFFECT = "without effect"
    WARNED = "warned"
    REFUSED = "refused"
    LATER = "later part"


@dataclass(frozen=True, slots=True)
class ClientProperty:
    """One Java client property and what becomes of it."""

    name: str
    type: JavaType
    effect: Effect
    note: str
    kinds: str = "consumer, producer, admin"
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()


_ALL: Final = "consumer, producer, admin"
_ROWS: list[ClientProperty] = []


def _add(
    effect: Effect,
    kinds: str,
    names: str,
    note: str,
    kind: JavaType = JavaType.STRING,
    bounds: tuple[int | None, int | None] = (None, None),
    choices: tuple[str, ...] = (),
) -> None:
    _ROWS.extend(
        ClientProperty(name, kind, effect, note, kinds, bounds[0], bounds[1], choices)
        for name in names.split()
    )


_H, _N, _W, _X, _L = (
    Effect.HONOURED,
    Effect.WITHOUT_EFFECT,
    Effect.WARNED,
    Effect.REFUSED,
    Effect.LATER,
)
_NATURAL: Final = (0, None)
_POSITIVE: Final = (1, None)

# Connections
_add(_H, _ALL, "bootstrap.servers", "the brokers to ask first", JavaType.LIST)
_add(_H, _ALL, "client.id", "put in front of the client.id that Java forms")
_add(_H, "consumer", "client.rack", "reads from a follower in the same rack (KIP-392)")
_add(_H, _ALL, "request.timeout.ms", "longest wait for one answer", JavaType.INT, (1, _INT32))
_add(
    _H, _ALL, "default.api.timeout.ms", "longest time for one call with its retries",
    JavaType.INT, (1, _INT32),
)  # fmt: skip
_add(
    _H, _ALL, "connections.max.idle.ms", "idle connections are closed; -1: never",
    JavaType.LONG, (-1, None),
)  # fmt: skip
_add(
    _H, _ALL, "reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms",
    "first and longest pause; doubles, with jitter", JavaType.LONG, _NATURAL,
)  # fmt: skip
_add(
    _H, _ALL, "socket.connection.setup.timeout.ms", "longest time for a TCP connection",
    JavaType.LONG, _POSITIVE,
)  # fmt: skip
_add(
    _N, _ALL, "socket.connection.setup.timeout.max.ms",
    "the timeout of one attempt does not grow; the pause between attempts does",
    JavaType.LONG, _POSITIVE,
)  # fmt: skip
_add(
    _H, _ALL, "metadata.max.age.ms", "oldest metadata before it is fetched again",
    JavaType.LONG, _NATURAL,
)  # fmt: skip
_add(
    _N, "producer", "metadata.max.idle.ms", "metadata covers exactly the mirrored topics",
    JavaType.LONG, (5_000, None),
)  # fmt: skip
_add(
    _H, _ALL, "receive.buffer.bytes send.buffer.bytes", "socket buffers; -1: the system decides",
    JavaType.INT, (-1, None),
)  # fmt: skip
_add(
    _N, _ALL, "client.dns.lookup",
    "every address of a name is tried, as with use_all_dns_ips",
    JavaType.STRING, choices=("default", "use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
)  # fmt: skip
_add(
    _N, _ALL,
    "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
    "the bootstrap list is always asked again when no known broker answers",
)  # fmt: skip
_add(_N, _ALL, "enable.metrics.push", "no client telemetry is sent (KIP-714)", JavaType.BOOLEAN)
# Reading
_add(
    _H, "consumer", "auto.offset.reset",
    "where a partition without a stored position starts; latest counts from the first start of the flow, "
    "partitions found while it runs start at their beginning; by_duration: is refused",
    choices=("earliest", "latest", "none"),
)  # fmt: skip
_add(
    _H, "consumer", "isolation.level", "Java's default, read_uncommitted, is ours",
    choices=("read_uncommitted", "read_committed"),
)  # fmt: skip
_add(_H, "consumer", "fetch.min.bytes", "bytes a broker waits for", JavaType.INT, _NATURAL)
_add(_H, "consumer", "fetch.max.bytes", "bytes of one answer", JavaType.INT, _NATURAL)
_add(
    _H, "consumer", "max.partition.fetch.bytes", "bytes of one partition in one answer; the first "
    "batch is always returned whole. A source 10 ms away or more is asked for less at a time, over several "
    "connections (fetch.connections.max)",
    JavaType.INT, _NATURAL,
)  # fmt: skip
_add(
    _H, "consumer", "fetch.connections.max", "ours, default 24: connections of a task to a broker that is "
    "10 ms away or more, over which partitions that lag are read side by side and in stripes; each carries only "
    "what the broker's socket.send.buffer.bytes allows per round trip (100 KiB by default). 1: one, as in Java",
    JavaType.INT, _POSITIVE,
)  # fmt: skip
_add(
    _H, "producer", "produce.connections.max", "ours, default 24: connections of a task to a broker that is "
    "10 ms away or more, over which partitions that lag are dealt; each partition stays on one, which carries only "
    "what the broker's socket.receive.buffer.bytes allows per round trip (100 KiB by default). 1: one, as in Java",
    JavaType.INT, _POSITIVE,
)  # fmt: skip
_add(_H, "consumer", "fetch.max.wait.ms", "longest wait of a broker", JavaType.INT, _NATURAL)
_add(
    _N, "consumer", "max.poll.records", "whole batches are forwarded; buffer.memory is the limit",
    JavaType.INT, _POSITIVE,
)  # fmt: skip
_add(
    _N, "consumer",
    "group.id group.instance.id group.protocol group.remote.assignor session.timeout.ms "
    "heartbeat.interval.ms max.poll.interval.ms partition.assignment.strategy",
    "MirrorMaker 2 reads with assigned partitions and no consumer group",
)  # fmt: skip
_add(
    _N, "consumer", "enable.auto.commit",
    "positions are kept in the Connect offsets topic; always false", JavaType.BOOLEAN,
)  # fmt: skip
_add(
    _N, "consumer", "auto.commit.interval.ms", "see offset.flush.interval.ms", JavaType.INT,
    _NATURAL,
)  # fmt: skip
_add(
    _N, "consumer", "check.crcs", "the CRC of every batch is checked, always", JavaType.BOOLEAN,
)  # fmt: skip
_add(
    _N, "consumer", "exclude.internal.topics allow.auto.create.topics",
    "topics are chosen by topics and topics.exclude; none is created on the source",
    JavaType.BOOLEAN,
)  # fmt: skip
# Writing
_add(
    _W, "producer", "acks", "always all: less could lose records that are counted as copied",
    choices=("all", "-1", "0", "1"),
)  # fmt: skip
_add(
    _W, "producer", "enable.idempotence",
    "always true: a retry without it doubles or reorders records", JavaType.BOOLEAN,
)  # fmt: skip
_add(
    _H, "producer", "max.in.flight.requests.per.connection",
    "1 to 5; more is taken as 5, the most an idempotent producer may have under way",
    JavaType.INT, _POSITIVE,
)  # fmt: skip
_add(
    _H, "producer", "compression.type",
    "silent: batches keep the source's codec (Java writes uncompressed); set: batches of another "
    "codec are recompressed",
    choices=("none", "gzip", "snappy", "lz4", "zstd"),
)  # fmt: skip
_add(
    _N, "producer", "compression.gzip.level compression.lz4.level compression.zstd.level",
    "recompression uses a fast level", JavaType.INT,
)  # fmt: skip
_add(
    _H, "producer", "max.request.size", "most bytes of the batches of one request; larger batches are "
    "split, a larger record goes alone. Where it is not set, 4 MiB, and what the target topic takes",
    JavaType.INT, _NATURAL,
)  # fmt: skip
_add(
    _H, "producer", "buffer.memory",
        "bytes of batches read and not yet acknowledged, per task; partitions that fill it are held, "
        "and the others may have half as much",
    JavaType.LONG, _NATURAL,
)  # fmt: skip
_add(
    _N, "producer", "batch.size", "the source's batches are forwarded as they are", JavaType.INT,
    _NATURAL,
)  # fmt: skip
_add(
    _N, "producer", "linger.ms", "whole batches are forwarded at once", JavaType.LONG, _NATURAL,
)  # fmt: skip
_add(
    _N, "producer", "delivery.timeout.ms retries max.block.ms",
    "a batch is retried without end: giving up would lose it", JavaType.LONG, _NATURAL,
)  # fmt: skip
_add(
    _H, "producer", "transaction.timeout.ms",
    "exactly-once: after this time the target aborts a transaction that was not ended", JavaType.INT,
)  # fmt: skip
_add(
    _N, "producer", "transactional.id", "exactly-once names it <group.id>-<connector>-<task>, as Connect does",
)  # fmt: skip
_add(
    _N, "producer", "transaction.two.phase.commit.enable", "a transaction ends within its task",
)  # fmt: skip
_add(
    _N, "producer", "partitioner.class partitioner.ignore.keys partitioner.adaptive.partitioning."
    "enable partitioner.availability.timeout.ms", "a record keeps its partition",
)  # fmt: skip
_add(
    _N, "consumer, producer",
    "key.deserializer value.deserializer key.serializer value.serializer",
    "bytes are copied unchanged",
)  # fmt: skip
# Plug-ins and metrics of the Java client
_add(
    _W, "consumer, producer", "interceptor.classes",
    "Java interceptors cannot run here; no record passes one", JavaType.LIST,
)  # fmt: skip
_add(
    _W, _ALL, "metric.reporters metrics.num.samples metrics.recording.level "
    "metrics.sample.window.ms auto.include.jmx.reporter",
    "metrics are exported by this product's own exporter",
)  # fmt: skip
# Security
_add(
    _H, _ALL, "security.protocol", "how to reach every broker of the cluster",
    choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
)  # fmt: skip
_add(
    _H, _ALL, "ssl.truststore.type ssl.keystore.type",
    "JKS, PKCS12 or PEM; JKS and PKCS12 are told apart by content",
)  # fmt: skip
_add(
    _H, _ALL, "ssl.truststore.location ssl.truststore.certificates",
    "whom to trust; without both: the system's certificates. A changed file counts from the next "
    "connection",
)  # fmt: skip
_add(
    _H, _ALL, "ssl.keystore.location ssl.keystore.certificate.chain",
    "the certificate that brokers see of us; a changed file counts from the next connection",
)  # fmt: skip
_add(
    _H, _ALL, "ssl.truststore.password ssl.keystore.password ssl.key.password ssl.keystore.key",
    "never logged; a private key is never written to disk in clear", JavaType.PASSWORD,
)  # fmt: skip
_add(
    _H, _ALL, "ssl.endpoint.identification.algorithm",
    "https, the default, checks the host name; an empty value does not",
)  # fmt: skip
_add(
    _W, _ALL, "ssl.cipher.suites ssl.enabled.protocols ssl.protocol ssl.provider "
    "ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation "
    "security.providers", "names of Java's security providers; OpenSSL decides here",
)  # fmt: skip
_add(_X, _ALL, "ssl.engine.factory.class", "Java code cannot be loaded here", JavaType.CLASS)
_add(
    _H, _ALL, "sasl.mechanism",
    "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; GSSAPI comes with part 7",
)  # fmt: skip
_add(
    _H, _ALL, "sasl.jaas.config",
    "PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule with its options",
    JavaType.PASSWORD,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.login.callback.handler.class",
    "OAuthBearerLoginCallbackHandler; other Java classes are refused", JavaType.CLASS,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.client.callback.handler.class sasl.login.class",
    "refused under a SASL protocol: Java code cannot be loaded here", JavaType.CLASS,
)  # fmt: skip
_add(
    _L, _ALL,
    "sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.window.factor "
    "sasl.kerberos.ticket.renew.jitter sasl.kerberos.min.time.before.relogin",
    "Kerberos comes with part 7",
)  # fmt: skip
_add(
    _H, _ALL, "sasl.oauthbearer.token.endpoint.url",
    "http or https, for the client credentials grant",
)  # fmt: skip
_add(
    _H, _ALL, "sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.scope",
    "win over clientId and scope of the login module",
)  # fmt: skip
_add(
    _H, _ALL, "sasl.oauthbearer.client.credentials.client.secret",
    "wins over clientSecret of the login module", JavaType.PASSWORD,
)  # fmt: skip
_add(
    _W, _ALL,
    "sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud "
    "sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss "
    "sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds "
    "sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file "
    "sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.template.file",
    "tokens come by client id and secret, not by signed assertions",
)  # fmt: skip
_add(
    _W, _ALL, "sasl.oauthbearer.assertion.private.key.passphrase",
    "tokens come by client id and secret, not by signed assertions", JavaType.PASSWORD,
)  # fmt: skip
_add(
    _W, _ALL, "sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class",
    "Java classes cannot be loaded; tokens are fetched by this product's own client",
    JavaType.CLASS,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.oauthbearer.header.urlencode", "for clientId and clientSecret",
    JavaType.BOOLEAN,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.login.refresh.window.factor", "part of a token's life after which a new one is "
    "fetched", JavaType.DOUBLE,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.login.refresh.min.period.seconds sasl.login.refresh.buffer.seconds",
    "least age of a token before, and least rest of its life at, the fetch of a new one",
    JavaType.SHORT, _NATURAL,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms",
    "longest wait for the token endpoint; the longer of both counts", JavaType.INT, _POSITIVE,
)  # fmt: skip
_add(
    _H, _ALL, "sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms",
    "pauses between requests to a token endpoint that does not answer", JavaType.LONG, _POSITIVE,
)  # fmt: skip
_add(
    _N, _ALL,
    "sasl.login.refresh.window.jitter sasl.oauthbearer.scope.claim.name "
    "sasl.oauthbearer.sub.claim.name",
    "a token is passed on as it comes; one is fetched per client, when it is needed",
)  # fmt: skip
_add(
    _N, _ALL,
    "sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwks.endpoint.refresh.ms "
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.clock.skew.seconds "
    "sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer",
    "checked by brokers, not by clients",
)  # fmt: skip

CLIENT_TABLE: Final = {row.name: row for row in _ROWS}
"""By property name."""
