"""How Connect describes a connector's own keys: those of the mirror connectors as Java does.

Flow: a connector's config model -> ``own_keys`` -> validation and ``/connector-plugins/{p}/config``.
Types, defaults and texts come from the model; importance and order, and the client keys that Java
lists with the mirror connectors, from the tables here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mm2py.config.class_names import canonical_class, is_foreign_java_class
from mm2py.config.client_table import CLIENT_TABLE
from mm2py.config.connect_definitions import ConfigKey
from mm2py.config.connect_values import (
    HIDDEN,
    Check,
    Definition,
    at_least,
    compiles,
    free_list,
    items_of,
    java_type,
    one_of,
)
from mm2py.config.definitions import ConfigModel, Option, OptionInfo, options_of
from mm2py.config.framework_definitions import COMMON_KEYS
from mm2py.config.java_values import JavaType

__all__ = ["own_keys"]

_OWN_KEYS: Final = """
enabled source.cluster.alias target.cluster.alias admin.timeout.ms replication.policy.class
replication.policy.separator replication.policy.internal.topic.separator.enabled
forwarding.admin.class metric.reporters
topics topics.exclude config.properties.exclude topic.filter.class config.property.filter.class
consumer.poll.timeout.ms refresh.topics.enabled refresh.topics.interval.seconds
sync.topic.configs.enabled sync.topic.configs.interval.seconds sync.topic.acls.enabled
sync.topic.acls.interval.seconds replication.factor offset-syncs.topic.replication.factor
offset.lag.max groups groups.exclude group.filter.class refresh.groups.enabled
refresh.groups.interval.seconds emit.checkpoints.enabled emit.checkpoints.interval.seconds
sync.group.offsets.enabled sync.group.offsets.interval.seconds
checkpoints.topic.replication.factor offset-syncs.topic.location emit.offset-syncs.enabled
heartbeats.replication.enabled emit.heartbeats.enabled emit.heartbeats.interval.seconds
heartbeats.topic.replication.factor metric.names.formats
"""
"""What the mirror connectors define themselves, in Java's order."""

_HIGH: Final = frozenset(
    {
        "source.cluster.alias",
        "target.cluster.alias",
        "topics",
        "topics.exclude",
        "config.properties.exclude",
        "groups",
        "groups.exclude",
    }
)
"""Those of high importance; the others are of low importance."""

_POSITIONS: Final = {name: place for place, name in enumerate(_OWN_KEYS.split())}
_BEHIND_CLIENT_KEYS: Final = _POSITIONS["metric.reporters"] + 1
_NO_GROUP: Final = -1
"""Java's ``order_in_group`` of a key in no group."""

_CLIENT_KEYS: Final = """
security.protocol STRING PLAINTEXT MEDIUM
config.providers LIST "" LOW
ssl.protocol STRING TLSv1.3 MEDIUM
ssl.provider STRING - MEDIUM
ssl.cipher.suites LIST "" LOW
ssl.enabled.protocols LIST TLSv1.2,TLSv1.3 MEDIUM
ssl.keystore.type STRING JKS MEDIUM
ssl.keystore.location STRING - HIGH
ssl.keystore.password PASSWORD - HIGH
ssl.key.password PASSWORD - HIGH
ssl.keystore.key PASSWORD - HIGH
ssl.keystore.certificate.chain PASSWORD - HIGH
ssl.truststore.certificates PASSWORD - HIGH
ssl.truststore.type STRING JKS MEDIUM
ssl.truststore.location STRING - HIGH
ssl.truststore.password PASSWORD - HIGH
ssl.keymanager.algorithm STRING SunX509 LOW
ssl.trustmanager.algorithm STRING PKIX LOW
ssl.endpoint.identification.algorithm STRING https LOW
ssl.secure.random.implementation STRING - LOW
ssl.engine.factory.class CLASS - LOW
sasl.kerberos.service.name STRING - MEDIUM
sasl.kerberos.kinit.cmd STRING /usr/bin/kinit LOW
sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8 LOW
sasl.kerberos.ticket.renew.jitter DOUBLE 0.05 LOW
sasl.kerberos.min.time.before.relogin LONG 60000 LOW
sasl.login.refresh.window.factor DOUBLE 0.8 LOW
sasl.login.refresh.window.jitter DOUBLE 0.05 LOW
sasl.login.refresh.min.period.seconds SHORT 60 LOW
sasl.login.refresh.buffer.seconds SHORT 300 LOW
sasl.mechanism STRING GSSAPI MEDIUM
sasl.jaas.config PASSWORD - MEDIUM
sasl.client.callback.handler.class CLASS - MEDIUM
sasl.login.callback.handler.class CLASS - MEDIUM
sasl.login.class CLASS - MEDIUM
sasl.login.connect.timeout.ms INT - LOW
sasl.login.read.timeout.ms INT - LOW
sasl.login.retry.backoff.max.ms LONG 10000 LOW
sasl.login.retry.backoff.ms LONG 100 LOW
sasl.oauthbearer.jwt.retriever.class CLASS *DefaultJwtRetriever MEDIUM
sasl.oauthbearer.jwt.validator.class CLASS *DefaultJwtValidator MEDIUM
sasl.oauthbearer.scope STRING - MEDIUM
sasl.oauthbearer.client.credentials.client.id STRING - MEDIUM
sasl.oauthbearer.client.credentials.client.secret PASSWORD - MEDIUM
sasl.oauthbearer.assertion.algorithm STRING RS256 MEDIUM
sasl.oauthbearer.assertion.claim.aud STRING - MEDIUM
sasl.oauthbearer.assertion.claim.exp.seconds INT 300 LOW
sasl.oauthbearer.assertion.claim.iss STRING - MEDIUM
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false MEDIUM
sasl.oauthbearer.assertion.claim.nbf.seconds INT 60 LOW
sasl.oauthbearer.assertion.claim.sub STRING - MEDIUM
sasl.oauthbearer.assertion.file STRING - MEDIUM
sasl.oauthbearer.assertion.private.key.file STRING - MEDIUM
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD - MEDIUM
sasl.oauthbearer.assertion.template.file STRING - MEDIUM
sasl.oauthbearer.scope.claim.name STRING scope LOW
sasl.oauthbearer.sub.claim.name STRING sub LOW
sasl.oauthbearer.token.endpoint.url STRING - MEDIUM
sasl.oauthbearer.jwks.endpoint.url STRING - MEDIUM
sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000 LOW
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000 LOW
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100 LOW
sasl.oauthbearer.clock.skew.seconds INT 30 LOW
sasl.oauthbearer.expected.audience LIST "" HIGH
sasl.oauthbearer.expected.issuer STRING - HIGH
sasl.oauthbearer.header.urlencode BOOLEAN false LOW
"""
"""Name, type, default (``-``: null) and importance, in Java's order."""

_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
_CLIENT_CHECKS: Final[Mapping[str, Check]] = {
    "security.protocol": one_of(("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"), any_case=True),
    "sasl.login.refresh.window.factor": at_least(0.5, 1.0),
    "sasl.login.refresh.window.jitter": at_least(0.0, 0.25),
    "sasl.login.refresh.min.period.seconds": at_least(0, 900),
    "sasl.login.refresh.buffer.seconds": at_least(0, 3600),
    "sasl.oauthbearer.assertion.algorithm": one_of(("ES256", "RS256"), any_case=True),
    "sasl.oauthbearer.assertion.claim.exp.seconds": at_least(0, 86400),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": at_least(0, 3600),
}


def own_keys(model: type[ConfigModel]) -> Sequence[Definition]:
    """Return the keys that a connector defines itself, Connect's own ones among them left out.

    A connector that knows both ends of a flow also lists the client keys, as in Java.
    """
    common = {definition.key.name for definition in COMMON_KEYS}
    options = options_of(model)
    found = [(_position(info.name), _own(info)) for info in options.values()]
    if "source.cluster.alias" in options:
        found += [(_BEHIND_CLIENT_KEYS - 0.5, definition) for definition in _client_keys()]
    found.sort(key=lambda placed: placed[0])
    return tuple(definition for _, definition in found if definition.key.name not in common)


def _position(name: str) -> float:
    return _POSITIONS.get(name, len(_POSITIONS))


def _plain_key(
    name: str, kind: JavaType, default: str | None, importance: str, doc: str
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=java_type(kind),
        required=False,
        default_value=HIDDEN if default and kind is JavaType.PASSWORD else default,
        importance=importance,
        documentation=doc,
        group=None,
        order_in_group=_NO_GROUP,
        width="NONE",
        display_name=name,
    )


def _own(info: OptionInfo) -> Definition:
    option = info.option
    importance = option.importance.upper()
    if info.name in _POSITIONS:
        importance = "HIGH" if info.name in _HIGH else "LOW"
    key = _plain_key(
        info.name,
        option.type,
        None if info.required else info.default,
        importance,
        _documentation(option),
    )
    if info.required:
        key = replace(key, required=True)
    return Definition(
        key=key, kind=option.type, checks=tuple(_checks(option)), classes=_class_problem
    )


def _documentation(option: Option) -> str:
    parts = [option.doc]
    if option.unit:
        parts.append(f"Unit: {option.unit}.")
    if option.java_default is not None and not option.ours:
        parts.append(f"Java's default: {option.java_default}.")
    if option.part > 1:
        parts.append(f"Has an effect from part {option.part} on.")
    return " ".join(parts)


def _checks(option: Option) -> Iterable[Check]:
    if option.type in (JavaType.LIST, JavaType.PATTERNS):
        yield items_of(*option.choices) if option.choices else free_list
        if option.type is JavaType.PATTERNS:
            yield compiles
        return
    if option.choices:
        yield one_of(option.choices, any_case=option.any_case)
    if option.low is not None or option.high is not None or option.forbidden:
        yield at_least(option.low, option.high, nullable=True, never=option.forbidden)


def _class_problem(name: str) -> str:
    """Say why a class cannot be used: it is a Java class that we have no counterpart of."""
    if not name or not is_foreign_java_class(name):
        return ""
    return f"Class {canonical_class(name)} could not be found."


def _client_keys() -> Iterable[Definition]:
    for line in _CLIENT_KEYS.split("\n"):
        if not line:
            continue
        name, word, text, importance = line.split(" ")
        default = {"-": None, '""': ""}.get(text, text.replace("*", _OAUTH_PACKAGE))
        kind = JavaType(word.lower())
        doc = "Names of config providers for ${name:...}."
        if name in CLIENT_TABLE:
            doc = CLIENT_TABLE[name].note
        check = _CLIENT_CHECKS.get(name)
        checks = (check,) if check else (free_list,) if kind is JavaType.LIST else ()
        yield Definition(
            key=_plain_key(name, kind, default, importance, doc), kind=kind, checks=checks
        )
