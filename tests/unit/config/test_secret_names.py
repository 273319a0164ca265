"""Which keys hold secrets."""

import pytest

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.definitions import options_of
from mm2py.config.java_values import JavaType
from mm2py.config.secret_names import names_a_secret, secrets_in
from mm2py.config.worker import RestOptions, WorkerConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig


@pytest.mark.parametrize(
    "key",
    [
        "github.access.token",
        "api.key",
        "apiKey".lower(),
        "aws_access_key",
        "google.credentials",
        "schema.registry.basic.auth.user.info",
        "http.headers.authorization",
        "private.key.pem",
        "db.passwd",
        "DB.Password",
        "connection.password.encrypted",
        "source.cluster.sasl.jaas.config",
        "producer.override.ssl.keystore.key",
        "oauth.bearer",
        "aws.secret.access.key",
    ],
)
def test_keys_of_secrets_are_known_by_their_words(key: str) -> None:
    assert names_a_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "key.converter",
        "message.key",
        "transforms.route.key",
        "sasl.oauthbearer.token.endpoint.url",
        "basic.auth.credentials.source",
        "rest.bearer.tokens.file",
        "access.token.lifetime.ms",
        "inter.worker.key.size",
        "tokenizer.class",
        "monkey",
        "pemberton",
        "connection.url",
        "topics",
    ],
)
def test_keys_about_secrets_are_shown(key: str) -> None:
    assert not names_a_secret(key)


def test_of_our_own_and_of_the_clients_properties_only_passwords_are_secret() -> None:
    names = {it.name for model in (WorkerConfig, RestOptions, MirrorSourceConfig) for it in options_of(model).values()}  # fmt: skip
    assert not {name for name in names if names_a_secret(name)}
    plain = {name for name, row in CLIENT_OPTIONS.items() if row.type is not JavaType.PASSWORD}
    assert {name for name in plain if names_a_secret(name)} == {
        name for name in plain if "jaas" in name or "secret" in name
    }


def test_secrets_inside_a_jaas_text_are_found_too() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="canary-in";'
    assert secrets_in({"sasl.jaas.config": jaas, "topics": "a"}) == {jaas, "canary-in"}
