"""Which client properties each client of a flow gets: Java's prefixes and precedence.

Flow: connector or worker config (texts) -> effective properties of one client -> ``clients``.
``MirrorConnectorConfig.sourceConsumerConfig`` and its five siblings, ``Worker.baseProducerConfigs``
and the client.id rule live here; nothing is parsed.
"""

from collections.abc import Mapping
from typing import Final, Literal

__all__ = [
    "CLIENT_KEYS",
    "ClientKind",
    "Side",
    "client_id",
    "effective_client_properties",
    "framework_producer_properties",
    "with_prefix",
]

Side = Literal["source", "target"]
ClientKind = Literal["consumer", "producer", "admin"]

_SSL: Final = (
    "protocol", "provider", "cipher.suites", "enabled.protocols", "keystore.type",
    "keystore.location", "keystore.password", "key.password", "keystore.key",
    "keystore.certificate.chain", "truststore.certificates", "truststore.type",
    "truststore.location", "truststore.password", "keymanager.algorithm", "trustmanager.algorithm",
    "endpoint.identification.algorithm", "secure.random.implementation", "engine.factory.class",
)  # fmt: skip
_SASL: Final = (
    "mechanism", "jaas.config", "client.callback.handler.class", "login.callback.handler.class",
    "login.class", "kerberos.service.name", "kerberos.kinit.cmd",
    "kerberos.ticket.renew.window.factor", "kerberos.ticket.renew.jitter",
    "kerberos.min.time.before.relogin", "login.refresh.window.factor",
    "login.refresh.window.jitter", "login.refresh.min.period.seconds",
    "login.refresh.buffer.seconds", "login.connect.timeout.ms", "login.read.timeout.ms",
    "login.retry.backoff.max.ms", "login.retry.backoff.ms", "oauthbearer.scope.claim.name",
    "oauthbearer.sub.claim.name", "oauthbearer.token.endpoint.url", "oauthbearer.jwks.endpoint.url",
    "oauthbearer.jwks.endpoint.refresh.ms", "oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "oauthbearer.jwks.endpoint.retry.backoff.ms", "oauthbearer.clock.skew.seconds",
    "oauthbearer.expected.audience", "oauthbearer.expected.issuer", "oauthbearer.header.urlencode",
    "oauthbearer.assertion.algorithm", "oauthbearer.assertion.claim.aud",
    "oauthbearer.assertion.claim.exp.seconds", "oauthbearer.assertion.claim.iss",
    "oauthbearer.assertion.claim.jti.include", "oauthbearer.assertion.claim.nbf.seconds",
    "oauthbearer.assertion.claim.sub", "oauthbearer.assertion.file",
    "oauthbearer.assertion.private.key.file", "oauthbearer.assertion.private.key.passphrase",
    "oauthbearer.assertion.template.file", "oauthbearer.client.credentials.client.id",
    "oauthbearer.client.credentials.client.secret", "oauthbearer.jwt.retriever.class",
    "oauthbearer.jwt.validator.class", "oauthbearer.scope",
)  # fmt: skip

CLIENT_KEYS: Final = (
    "bootstrap.servers",
    "security.protocol",
    *(f"ssl.{name}" for name in _SSL),
    *(f"sasl.{name}" for name in _SASL),
)
"""``MirrorClientConfig.CLIENT_CONFIG_DEF``: the keys that a cluster hands to all its clients."""

_LONG_MAX: Final = str((1 << 63) - 1)
_INT_MAX: Final = str((1 << 31) - 1)


def with_prefix(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the properties under ``prefix``, without it."""
    return {
        key[len(prefix) :]: value
        for key, value in props.items()
        if key.startswith(prefix) and len(key) > len(prefix)
    }


def effective_client_properties(
    config: Mapping[str, str],
    side: Side,
    kind: ClientKind,
    *,
    role: str = "",
    task_index: int | None = None,
) -> dict[str, str]:
    """Return what one client of a connector is given, as ``MirrorConnectorConfig`` derives it.

    ``config`` is a connector or task config with its placeholders resolved. With ``role`` the
    client.id rule is applied too. Keys that no client knows may be among the result
    (``consumer.poll.timeout.ms`` becomes ``poll.timeout.ms``), as in Java.
    """
    cluster = with_prefix(config, f"{side}.cluster.")
    props = {key: cluster[key] for key in CLIENT_KEYS if key in cluster}
    props |= with_prefix(config, f"{kind}.")
    props |= with_prefix(config, f"{side}.{kind}.")
    if kind == "consumer":
        props["enable.auto.commit"] = "false"
        props.setdefault("auto.offset.reset", "earliest")
    if role:
        props["client.id"] = client_id(config, role, task_index, user=props.get("client.id", ""))
    return props


def client_id(
    config: Mapping[str, str], role: str, task_index: int | None = None, *, user: str = ""
) -> str:
    """Return the client.id of a client, for example ``A->B|MirrorSourceConnector-0|role``.

    ``user`` is the client.id that the user set for this client; Java puts it in front.
    """
    source = config.get("source.cluster.alias", "")
    target = config.get("target.cluster.alias", "target")
    name = config.get("name", "") + ("" if task_index is None else f"-{task_index}")
    label = f"{source}->{target}|{name}|{role}"
    return f"{user}|{label}" if user else label


def framework_producer_properties(
    worker_config: Mapping[str, str], connector_config: Mapping[str, str], *, task_index: int = 0
) -> dict[str, str]:
    """Return what the producer of replicated records is given.

    A fixed base, then the worker's ``producer.*`` (``B.producer.*`` in the file), then the
    connector's ``producer.override.*``. Java's base switches idempotence off and sends one request
    at a time; ours is always idempotent, so these two are not in the base.
    """
    props = {
        "max.block.ms": _LONG_MAX,
        "delivery.timeout.ms": _INT_MAX,
        "acks": "all",
        "client.id": f"connector-producer-{connector_config.get('name', '')}-{task_index}",
    }
    if "bootstrap.servers" in worker_config:
        props["bootstrap.servers"] = worker_config["bootstrap.servers"]
    props |= with_prefix(worker_config, "producer.")
    # A worker config key `producer.override.x` is a connector setting by its name only.
    props = {key: value for key, value in props.items() if not key.startswith("override.")}
    return props | with_prefix(connector_config, "producer.override.")
