"""Kafka's client properties: which of them this product reads, and what becomes of the others.

One declaration serves consumer, producer and admin clients: the models here are read (``clients``,
``security``), the table ``_UNREAD`` names what has no value here. Lint answers by ``effect`` and
``doc``, docs/reference/config.md prints them, and Connect describes overrides with them.
``java_default`` is the default of Java's producer or admin client where ours is another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Final

from mm2py.config.definitions import ConfigModel, Effect, Option, options_of
from mm2py.config.java_values import JavaType

MAX_IN_FLIGHT: Final = 5
"""Requests per connection that an idempotent producer may have under way (KIP-360)."""

CONNECTIONS: Final = 24
"""Each carries 1.5 MB/s over 80 ms where a broker has its default socket buffers."""

_BOOLEAN, _SHORT, _INT, _LONG, _DOUBLE, _STRING, _LIST, _CLASS, _PASSWORD = (
    JavaType.BOOLEAN,
    JavaType.SHORT,
    JavaType.INT,
    JavaType.LONG,
    JavaType.DOUBLE,
    JavaType.STRING,
    JavaType.LIST,
    JavaType.CLASS,
    JavaType.PASSWORD,
)
_HIGH, _MEDIUM, _LOW = "HIGH", "MEDIUM", "LOW"
_ALL: Final = "consumer, producer, admin"
_N, _W, _X = Effect.WITHOUT_EFFECT, Effect.WARNED, Effect.REFUSED


def _bytes(kind: JavaType, doc: str, java_default: str | None, importance: str = _MEDIUM) -> Option:
    return Option(kind, doc, low=0, java_default=java_default, importance=importance)


def _pause(doc: str = "first and longest pause; doubles, with jitter") -> Option:
    return Option(_LONG, doc, low=0, importance=_LOW)


class ConnectionOptions(ConfigModel):
    """How every client reaches its brokers."""

    client_id: Annotated[
        str, Option(_STRING, "put in front of the client.id that Java forms", importance=_MEDIUM)
    ] = ""
    client_rack: Annotated[str, Option(
        _STRING, "reads from a follower in the same rack (KIP-392)", kinds="consumer",
        importance=_MEDIUM,
    )] = ""  # fmt: skip
    request_timeout_ms: Annotated[
        int, Option(_INT, "longest wait for one answer", low=1, importance=_MEDIUM)
    ] = 30_000
    default_api_timeout_ms: Annotated[
        int, Option(_INT, "longest time for one call with its retries", low=1, importance=_MEDIUM)
    ] = 60_000
    connections_max_idle_ms: Annotated[
        int, Option(_LONG, "idle connections are closed; -1: never", low=-1, importance=_MEDIUM)
    ] = 540_000
    reconnect_backoff_ms: Annotated[int, _pause()] = 50
    reconnect_backoff_max_ms: Annotated[int, _pause()] = 1_000
    retry_backoff_ms: Annotated[int, _pause()] = 100
    retry_backoff_max_ms: Annotated[int, _pause()] = 1_000
    socket_connection_setup_timeout_ms: Annotated[
        int, Option(_LONG, "longest time for a TCP connection", low=1, importance=_MEDIUM)
    ] = 10_000
    metadata_max_age_ms: Annotated[
        int, Option(_LONG, "oldest metadata before it is fetched again", low=0)
    ] = 300_000
    receive_buffer_bytes: Annotated[int, Option(
        _INT, "socket buffer; -1: the system decides", low=-1, java_default="32768",
        importance=_MEDIUM,
    )] = -1  # fmt: skip
    send_buffer_bytes: Annotated[int, Option(
        _INT, "socket buffer; -1: the system decides", low=-1, java_default="131072",
        importance=_MEDIUM,
    )] = -1  # fmt: skip


class ConsumerOptions(ConfigModel):
    """How a cluster is read; the fetch limits have Java's meaning and defaults."""

    auto_offset_reset: Annotated[str, Option(
        _STRING,
        "where a partition without a stored position starts; latest means the flow's first start, "
        "later partitions start at their beginning; by_duration: is refused",
        choices=("earliest", "latest", "none"), any_case=True, java_default="latest",
        importance=_MEDIUM,
    )] = "earliest"  # fmt: skip
    isolation_level: Annotated[str, Option(
        _STRING, "Java's default, read_uncommitted, is ours",
        choices=("read_uncommitted", "read_committed"), any_case=True, importance=_MEDIUM,
    )] = "read_uncommitted"  # fmt: skip
    fetch_min_bytes: Annotated[int, _bytes(_INT, "bytes a broker waits for", None, _HIGH)] = 1
    fetch_max_bytes: Annotated[int, _bytes(_INT, "bytes of one answer", None)] = 52_428_800
    max_partition_fetch_bytes: Annotated[int, _bytes(
        _INT,
        "bytes of one partition in one answer; the first batch is always returned whole; less "
        "over fetch.connections.max connections",
        None, _HIGH,
    )] = 1_048_576  # fmt: skip
    fetch_connections_max: Annotated[
        int,
        Option(
            _INT, "ours, default 24: connections of a task to a source broker 10 ms or more away, for lagging "
            "partitions; 1: one, as in Java",
            low=1, ours=True, importance=_MEDIUM,
        ),
    ] = CONNECTIONS  # fmt: skip
    fetch_max_wait_ms: Annotated[
        int, Option(_INT, "longest wait of a broker", low=0, importance=_LOW)
    ] = 500


class ProducerOptions(ConfigModel):
    """How a cluster is written; always idempotent, always ``acks=all``, retried without end."""

    max_in_flight_requests_per_connection: Annotated[int, Option(
        _INT, "1 to 5; more is taken as 5, the most an idempotent producer may have under way",
        low=1,
    )] = MAX_IN_FLIGHT  # fmt: skip
    compression_type: Annotated[str, Option(
        _STRING,
        "not set: the source's codec (Java: uncompressed); set: other batches are recompressed",
        choices=("none", "gzip", "snappy", "lz4", "zstd"), any_case=True, java_default="none",
        importance=_HIGH,
    )] = ""  # fmt: skip
    max_request_size: Annotated[int, _bytes(
        _INT, "most bytes of one request; larger batches are split, a larger record is sent alone; "
        "not set: 4 MiB, and what the target topic takes",
        "1048576",
    )] = 0  # fmt: skip
    buffer_memory: Annotated[
        int,
        _bytes(
            _LONG, "most bytes read and not acknowledged, per task, whatever the number of partitions; one larger batch "
            "is admitted alone", None, _HIGH,
        ),
    ] = 33_554_432  # fmt: skip
    produce_connections_max: Annotated[
        int,
        Option(
            _INT, "ours, default 24: connections of a task to a target broker 10 ms or more away, each partition on "
            "one; 1: one, as in Java",
            low=1, ours=True, importance=_MEDIUM,
        ),
    ] = CONNECTIONS  # fmt: skip
    linger_ms: Annotated[
        int,
        Option(
            _LONG, "where few records come, how long one may wait at the source for others (Java: in the producer); half as "
            "long again for less than 4 KiB at a time, not for more than 128 KiB; 0 or 1: not at all",
            low=0, unit="ms", importance=_MEDIUM,
        ),
    ] = 5  # fmt: skip
    transaction_timeout_ms: Annotated[int, Option(
        _INT, "exactly-once: the target aborts a transaction that was not ended after this time",
        unit="ms", java_default="60000",
    )] = 60_000  # fmt: skip


_OPENSSL: Final = "names of Java's security providers; OpenSSL decides here"
_NO_ASSERTIONS: Final = "tokens come by client id and secret, not by signed assertions"
_NO_CLASSES: Final = "Java classes cannot be loaded"
_BROKERS: Final = "checked by brokers, not by clients"
_AS_IT_COMES: Final = (
    "a token is passed on as it comes; one is fetched per client, and renewed "
    "by `sasl.login.refresh.*` without jitter"
)
_RENEWAL: Final = "a ticket is renewed when a login needs it"
_TRUST: Final = (
    "trusted certificates, default: the system's; a changed file is read at the next connection"
)
_IDENTITY: Final = "our certificate; a changed file is read at the next connection"
_STORE: Final = "JKS, PKCS12 or PEM; JKS and PKCS12 are distinguished by content"
_SECRET: Final = "never logged; a private key is never written to disk in clear"  # noqa: S105 -- a text
_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."

_Text = str | None


def _option(
    doc: str,
    importance: str = _MEDIUM,
    kind: JavaType = _STRING,
    *,
    effect: Effect = Effect.HONOURED,
) -> Option:
    return Option(kind, doc, importance=importance, effect=effect)


def _counted(
    doc: str, kind: JavaType, low: float, high: float | None = None, *, effect: Effect = Effect.HONOURED
) -> Option:  # fmt: skip
    return Option(
        kind, doc, low=low, high=high, nullable=False, importance=_LOW, effect=effect
    )  # fmt: skip


_UNUSED_ASSERTION: Final = _option(_NO_ASSERTIONS, effect=_W)
_TAKEN_AS_IT_COMES: Final = _option(_AS_IT_COMES, _LOW, effect=_N)
_PAUSE_OF_BROKERS: Final = _option(_BROKERS, _LOW, _LONG, effect=_N)
_NO_JAVA_CODE: Final = _option(
    "refused under a SASL protocol: Java code cannot be loaded here", _MEDIUM, _CLASS
)
_TOKEN_WAIT: Final = Option(
    _INT, "longest wait for the token endpoint, default 10 s; the longer of both applies", low=1
)


class SecurityOptions(ConfigModel):
    """Protocol, certificates and login (``MirrorClientConfig.CLIENT_CONFIG_DEF``), in the order of
    Java's mirror connectors."""

    security_protocol: Annotated[str, Option(
        _STRING, "how to reach every broker of the cluster",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), any_case=True,
        importance=_MEDIUM,
    )] = "PLAINTEXT"  # fmt: skip
    ssl_protocol: Annotated[_Text, _option(_OPENSSL, effect=_W)] = "TLSv1.3"
    ssl_provider: Annotated[_Text, _option(_OPENSSL, effect=_W)] = None
    ssl_cipher_suites: Annotated[tuple[str, ...], _option(_OPENSSL, _LOW, _LIST, effect=_W)] = ()
    ssl_enabled_protocols: Annotated[
        tuple[str, ...], _option(f"{_OPENSSL}; https listeners obey it", _MEDIUM, _LIST, effect=_W)
    ] = ("TLSv1.2", "TLSv1.3")
    ssl_keystore_type: Annotated[str, _option(_STORE)] = "JKS"
    ssl_keystore_location: Annotated[_Text, _option(_IDENTITY, _HIGH)] = None
    ssl_keystore_password: Annotated[_Text, _option(_SECRET, _HIGH, _PASSWORD)] = None
    ssl_key_password: Annotated[_Text, _option(_SECRET, _HIGH, _PASSWORD)] = None
    ssl_keystore_key: Annotated[_Text, _option(_SECRET, _HIGH, _PASSWORD)] = None
    ssl_keystore_certificate_chain: Annotated[_Text, _option(_IDENTITY, _HIGH, _PASSWORD)] = None
    ssl_truststore_certificates: Annotated[_Text, _option(_TRUST, _HIGH, _PASSWORD)] = None
    ssl_truststore_type: Annotated[str, _option(_STORE)] = "JKS"
    ssl_truststore_location: Annotated[_Text, _option(_TRUST, _HIGH)] = None
    ssl_truststore_password: Annotated[_Text, _option(_SECRET, _HIGH, _PASSWORD)] = None
    ssl_keymanager_algorithm: Annotated[_Text, _option(_OPENSSL, _LOW, effect=_W)] = "SunX509"
    ssl_trustmanager_algorithm: Annotated[_Text, _option(_OPENSSL, _LOW, effect=_W)] = "PKIX"
    ssl_endpoint_identification_algorithm: Annotated[
        str, _option("https, the default, checks the host name; an empty value does not", _LOW)
    ] = "https"
    ssl_secure_random_implementation: Annotated[_Text, _option(_OPENSSL, _LOW, effect=_W)] = None
    ssl_engine_factory_class: Annotated[
        _Text, _option("Java code cannot be loaded here", _LOW, _CLASS, effect=_X)
    ] = None
    sasl_kerberos_service_name: Annotated[
        _Text, _option("first part of the brokers' principal; or serviceName of the login module")
    ] = None
    sasl_kerberos_kinit_cmd: Annotated[
        _Text, _option("command that renews tickets of a cache, called with -R", _LOW)
    ] = "/usr/bin/kinit"
    sasl_kerberos_ticket_renew_window_factor: Annotated[
        float,
        _option(f"part of a ticket's life after which it is renewed; {_RENEWAL}", _LOW, _DOUBLE),
    ] = 0.8
    sasl_kerberos_ticket_renew_jitter: Annotated[
        float, _option("largest random part of a ticket's life that is added", _LOW, _DOUBLE)
    ] = 0.05
    sasl_kerberos_min_time_before_relogin: Annotated[
        int, _option("least ms between two renewals, unless the ticket ends before", _LOW, _LONG)
    ] = 60_000
    sasl_login_refresh_window_factor: Annotated[
        float,
        _counted("part of a token's life after which a new one is fetched", _DOUBLE, 0.5, 1.0),
    ] = 0.8
    sasl_login_refresh_window_jitter: Annotated[
        float, _counted(_AS_IT_COMES, _DOUBLE, 0.0, 0.25, effect=_N)
    ] = 0.05
    sasl_login_refresh_min_period_seconds: Annotated[
        int, _counted("least age of a token before the fetch of a new one", _SHORT, 0, 900)
    ] = 60
    sasl_login_refresh_buffer_seconds: Annotated[
        int, _counted("least rest of a token's life at the fetch of a new one", _SHORT, 0, 3600)
    ] = 300
    sasl_mechanism: Annotated[
        _Text,
        Option(
            _STRING, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI, the default with Kerberos' login module",
            java_default="GSSAPI", importance=_MEDIUM,
        ),
    ] = None  # fmt: skip
    sasl_jaas_config: Annotated[
        _Text,
        _option(
            "PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule or Krb5LoginModule; not set: section "
            "KafkaClient of the file named by KAFKA_OPTS=-Djava.security.auth.login.config=FILE",
            _MEDIUM, _PASSWORD,
        ),
    ] = None  # fmt: skip
    sasl_client_callback_handler_class: Annotated[_Text, _NO_JAVA_CODE] = None
    sasl_login_callback_handler_class: Annotated[_Text, _option(
        "OAuthBearerLoginCallbackHandler; other Java classes are refused", _MEDIUM, _CLASS,
    )] = None  # fmt: skip
    sasl_login_class: Annotated[_Text, _NO_JAVA_CODE] = None
    sasl_login_connect_timeout_ms: Annotated[int | None, _TOKEN_WAIT] = None
    sasl_login_read_timeout_ms: Annotated[int | None, _TOKEN_WAIT] = None
    sasl_login_retry_backoff_max_ms: Annotated[int, Option(
        _LONG, "longest pause between requests to a token endpoint that does not answer", low=1,
    )] = 10_000  # fmt: skip
    sasl_login_retry_backoff_ms: Annotated[int, Option(
        _LONG, "first pause between requests to a token endpoint that does not answer", low=1,
    )] = 100  # fmt: skip
    sasl_oauthbearer_jwt_retriever_class: Annotated[
        _Text, _option(_NO_CLASSES, _MEDIUM, _CLASS, effect=_W)
    ] = f"{_OAUTH_PACKAGE}DefaultJwtRetriever"
    sasl_oauthbearer_jwt_validator_class: Annotated[
        _Text, _option(_NO_CLASSES, _MEDIUM, _CLASS, effect=_W)
    ] = f"{_OAUTH_PACKAGE}DefaultJwtValidator"
    sasl_oauthbearer_scope: Annotated[_Text, _option("wins over scope of the login module")] = None
    sasl_oauthbearer_client_credentials_client_id: Annotated[
        _Text, _option("wins over clientId of the login module")
    ] = None
    sasl_oauthbearer_client_credentials_client_secret: Annotated[
        _Text, _option("wins over clientSecret of the login module", _MEDIUM, _PASSWORD)
    ] = None
    sasl_oauthbearer_assertion_algorithm: Annotated[_Text, Option(
        _STRING, _NO_ASSERTIONS, effect=_W, choices=("ES256", "RS256"), any_case=True,
        importance=_MEDIUM,
    )] = "RS256"  # fmt: skip
    sasl_oauthbearer_assertion_claim_aud: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_assertion_claim_exp_seconds: Annotated[
        int, _counted(_NO_ASSERTIONS, _INT, 0, 86_400, effect=_W)
    ] = 300
    sasl_oauthbearer_assertion_claim_iss: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_assertion_claim_jti_include: Annotated[
        bool, _option(_NO_ASSERTIONS, _MEDIUM, _BOOLEAN, effect=_W)
    ] = False
    sasl_oauthbearer_assertion_claim_nbf_seconds: Annotated[
        int, _counted(_NO_ASSERTIONS, _INT, 0, 3_600, effect=_W)
    ] = 60
    sasl_oauthbearer_assertion_claim_sub: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_assertion_file: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_assertion_private_key_file: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_assertion_private_key_passphrase: Annotated[
        _Text, _option(_NO_ASSERTIONS, _MEDIUM, _PASSWORD, effect=_W)
    ] = None
    sasl_oauthbearer_assertion_template_file: Annotated[_Text, _UNUSED_ASSERTION] = None
    sasl_oauthbearer_scope_claim_name: Annotated[_Text, _TAKEN_AS_IT_COMES] = "scope"
    sasl_oauthbearer_sub_claim_name: Annotated[_Text, _TAKEN_AS_IT_COMES] = "sub"
    sasl_oauthbearer_token_endpoint_url: Annotated[
        _Text, _option("http or https, for the client credentials grant")
    ] = None
    sasl_oauthbearer_jwks_endpoint_url: Annotated[_Text, _option(_BROKERS, effect=_N)] = None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[int, _PAUSE_OF_BROKERS] = 3_600_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Annotated[int, _PAUSE_OF_BROKERS] = 10_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Annotated[int, _PAUSE_OF_BROKERS] = 100
    sasl_oauthbearer_clock_skew_seconds: Annotated[
        int, _option(_BROKERS, _LOW, _INT, effect=_N)
    ] = 30
    sasl_oauthbearer_expected_audience: Annotated[
        tuple[str, ...], _option(_BROKERS, _HIGH, _LIST, effect=_N)
    ] = ()
    sasl_oauthbearer_expected_issuer: Annotated[_Text, _option(_BROKERS, _HIGH, effect=_N)] = None
    sasl_oauthbearer_header_urlencode: Annotated[
        bool, _option("for clientId and clientSecret", _LOW, _BOOLEAN)
    ] = False


def _unread(
    effect: Effect,
    kinds: str,
    names: str,
    doc: str,
    kind: JavaType = _STRING,
    *,
    low: float | None = None,
    choices: tuple[str, ...] = (),
    java: tuple[str | None, str] = (None, _MEDIUM),
) -> Iterable[Option]:
    """Yield one option per name; ``java`` is the default and importance in Java's producer."""
    for name in names.split():
        yield Option(
            kind, doc, name=name, default=java[0], importance=java[1], effect=effect, kinds=kinds,
            low=low, nullable=False, choices=choices, any_case=True,
        )  # fmt: skip


_BOTH: Final = "consumer, producer"
_SERIALIZERS: Final = "bytes are copied unchanged"
_EXPORTER: Final = "use GET /metrics"
_WITHOUT_END: Final = "a batch is retried forever: giving up would lose it"
_NO_GROUP: Final = "no consumer group, except with copy.connector=sink"
_REBOOTSTRAP: Final = "the bootstrap list is always asked again when no known broker answers"
_SAME_PARTITION: Final = "a record keeps its partition"
_LEVEL: Final = "recompression uses a fast level"
_JMX: Final = "org.apache.kafka.common.metrics.JmxReporter"

_BOOTSTRAP: Final = Option(
    _LIST, "the brokers to ask first", name="bootstrap.servers", required=True, kinds=_ALL,
    importance=_HIGH,
)  # fmt: skip
_UNREAD: Final = (
    *_unread(_N, _ALL, "socket.connection.setup.timeout.max.ms",
             "the timeout of one attempt does not grow; the pause between attempts does",
             _LONG, low=1, java=("30000", _MEDIUM)),
    *_unread(_N, "producer", "metadata.max.idle.ms", "metadata covers exactly the mirrored topics",
             _LONG, low=5_000, java=("300000", _LOW)),
    *_unread(_N, _ALL, "client.dns.lookup", "every address of a name is tried, as with use_all_dns_ips",
             choices=("default", "use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
             java=("use_all_dns_ips", _MEDIUM)),
    *_unread(_N, _ALL, "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms", _REBOOTSTRAP),
    *_unread(_N, _ALL, "enable.metrics.push", "no client telemetry is sent (KIP-714)", _BOOLEAN),
    *_unread(_N, "consumer", "max.poll.records",
             "whole batches are forwarded; buffer.memory is the limit", _INT, low=1),
    *_unread(_N, "consumer",
             "group.id group.instance.id group.protocol group.remote.assignor session.timeout.ms "
             "heartbeat.interval.ms max.poll.interval.ms partition.assignment.strategy", _NO_GROUP),
    *_unread(_N, "consumer", "enable.auto.commit",
             "positions are kept in the Connect offsets topic; always false", _BOOLEAN),
    *_unread(_N, "consumer", "auto.commit.interval.ms", "see offset.flush.interval.ms", _INT, low=0),
    *_unread(_N, "consumer", "check.crcs", "the CRC of every batch is checked, always", _BOOLEAN),
    *_unread(_N, "consumer", "exclude.internal.topics allow.auto.create.topics",
             "see topics and topics.exclude; none is created on the source", _BOOLEAN),
    *_unread(_W, "producer", "acks", "always all: less could lose records that are counted as copied",
             choices=("all", "-1", "0", "1"), java=("all", _LOW)),
    *_unread(_W, "producer", "enable.idempotence",
             "always true: a retry without it doubles or reorders records", _BOOLEAN, java=("true", _LOW)),
    *_unread(_N, "producer", "compression.gzip.level", _LEVEL, _INT, java=("-1", _MEDIUM)),
    *_unread(_N, "producer", "compression.lz4.level", _LEVEL, _INT, java=("9", _MEDIUM)),
    *_unread(_N, "producer", "compression.zstd.level", _LEVEL, _INT, java=("3", _MEDIUM)),
    *_unread(_N, "producer", "batch.size", "the source's batches are forwarded as they are",
             _INT, low=0, java=("16384", _MEDIUM)),
    *_unread(_N, "producer", "delivery.timeout.ms", _WITHOUT_END, _INT, low=0, java=("120000", _MEDIUM)),
    *_unread(_N, "producer", "retries", _WITHOUT_END, _INT, low=0, java=("2147483647", _HIGH)),
    *_unread(_N, "producer", "max.block.ms", _WITHOUT_END, _LONG, low=0, java=("60000", _MEDIUM)),
    *_unread(_N, "producer", "transactional.id",
             "exactly-once names it <group.id>-<connector>-<task>, as Connect does", java=(None, _LOW)),
    *_unread(_N, "producer", "transaction.two.phase.commit.enable", "a transaction ends within its task"),
    *_unread(_N, "producer", "partitioner.class partitioner.ignore.keys partitioner.adaptive.partitioning."
             "enable partitioner.availability.timeout.ms", _SAME_PARTITION),
    *_unread(_N, _BOTH, "key.deserializer value.deserializer key.serializer value.serializer", _SERIALIZERS),
    *_unread(_W, _BOTH, "interceptor.classes",
             "Java interceptors cannot run here; no record passes one", _LIST, java=("", _LOW)),
    *_unread(_W, _ALL, "metric.reporters", _EXPORTER, _LIST, java=(_JMX, _LOW)),
    *_unread(_W, _ALL, "metrics.num.samples", _EXPORTER, _INT, java=("2", _LOW)),
    *_unread(_W, _ALL, "metrics.recording.level", _EXPORTER, java=("INFO", _LOW)),
    *_unread(_W, _ALL, "metrics.sample.window.ms", _EXPORTER, _LONG, java=("30000", _LOW)),
    *_unread(_W, _ALL, "auto.include.jmx.reporter", _EXPORTER),
    *_unread(_W, _ALL, "security.providers", _OPENSSL),
)  # fmt: skip


def _of(model: type[ConfigModel], kinds: str) -> dict[str, Option]:
    return {
        name: replace(option, kinds=option.kinds or kinds)
        for name, option in options_of(model).items()
    }


SECURITY_OPTIONS: Final[Mapping[str, Option]] = _of(SecurityOptions, _ALL)
"""Options that a cluster passes to all its clients, besides its brokers; in Java's order."""

CLIENT_KEYS: Final = ("bootstrap.servers", *SECURITY_OPTIONS)
"""``MirrorClientConfig.CLIENT_CONFIG_DEF``: the keys that a cluster hands to all its clients."""

CLIENT_OPTIONS: Final[Mapping[str, Option]] = {
    _BOOTSTRAP.name: _BOOTSTRAP,
    **_of(ConnectionOptions, _ALL),
    **_of(ConsumerOptions, "consumer"),
    **_of(ProducerOptions, "producer"),
    **{option.name: option for option in _UNREAD},
    **SECURITY_OPTIONS,
}
"""Every client property by name."""
