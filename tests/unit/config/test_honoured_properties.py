"""Every client property that docs/reference/config.md calls honoured is read by the clients that it is listed for, and used."""

import ast
import functools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.clients import connection_settings, consumer_settings, producer_settings
from mm2py.config.definitions import Effect
from mm2py.config.security import (
    KerberosSettings,
    OAuthSettings,
    SaslSettings,
    StoreSettings,
    TlsSettings,
)
from mm2py.errors import ConfigError

ROOT = Path(__file__).parents[3]
SETTER = ROOT / "mm2py/config/security.py"
PRODUCT = ("mm2py", "connectors/mm2py_connectors", "workers/mm2py_workers")

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required username=u password=p;"
OAUTH = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=a "
    "clientSecret=b;"
)
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
PLACES: Mapping[str, Mapping[str, str]] = {
    "a plain connection": {},
    "stores in files": {
        "security.protocol": "SSL",
        "ssl.truststore.location": "/nowhere/trust.jks",
        "ssl.truststore.password": "p",
        "ssl.keystore.location": "/nowhere/key.jks",
        "ssl.keystore.password": "p",
        "ssl.key.password": "p",
    },
    "stores as text": {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "text",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "text",
        "ssl.keystore.key": "text",
    },
    "a password": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN,
    },
    "tokens": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": OAUTH,
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1/token",
    },
    "tickets": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
        "sasl.kerberos.service.name": "kafka",
    },
}
"""Security properties count in the place that they are made for."""


class Asked(dict[str, str]):
    """Notes which properties were asked for."""

    def __init__(self, content: Mapping[str, str]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.names.add(key)
        return super().get(key, default)


@functools.cache
def asked_for() -> Mapping[str, frozenset[str]]:
    """Return the properties that are read, by kind of client."""
    kinds = {
        "consumer": consumer_settings,
        "producer": producer_settings,
        "admin": connection_settings,
    }
    found: dict[str, frozenset[str]] = {}
    for kind, read in kinds.items():
        names: set[str] = set()
        for place in PLACES.values():
            props = Asked({"bootstrap.servers": "127.0.0.1:9", **place})
            with suppress(ConfigError):  # a store cannot be opened, after everything else was read
                read(props)
            names |= props.names
        found[kind] = frozenset(names)
    return found


HONOURED = [
    (entry.name, kind)
    for entry in CLIENT_OPTIONS.values()
    if entry.effect is Effect.HONOURED
    for kind in entry.kinds.split(", ")
]


@pytest.mark.parametrize(("name", "kind"), HONOURED)
def test_an_honoured_property_is_read(name: str, kind: str) -> None:
    assert name in asked_for()[kind]


@functools.cache
def used_attributes() -> frozenset[str]:
    """Return the names of all attributes that the product reads, but where settings are made."""
    names: set[str] = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if path == SETTER:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
    return frozenset(names)


SETTINGS = (TlsSettings, StoreSettings, SaslSettings, OAuthSettings, KerberosSettings)
FIELDS = {f"{cls.__name__}.{field.name}" for cls in SETTINGS for field in fields(cls)}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_what_was_read_is_used(field: str) -> None:
    _, name = field.split(".")
    assert name in used_attributes()
