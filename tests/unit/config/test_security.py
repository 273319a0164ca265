from pathlib import Path

import pytest

from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.errors import ConfigError

SERVERS = {"bootstrap.servers": "h:1"}
SSL = {**SERVERS, "security.protocol": "SSL"}
SASL = {**SERVERS, "security.protocol": "SASL_PLAINTEXT"}
PACKAGE = "org.apache.kafka.common.security"
PLAIN = f'{PACKAGE}.plain.PlainLoginModule required username="u" password="hidden-word";'
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required"
DATA = Path(__file__).parents[2] / "data" / "security"


def test_each_protocol_brings_its_settings() -> None:
    plain = connection_settings(SERVERS)
    assert (plain.tls, plain.sasl) == (None, None)
    tls = connection_settings(SSL)
    assert tls.tls is not None
    assert tls.tls.check_hostname
    assert tls.sasl is None
    login = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN}
    both = connection_settings({**SERVERS, "security.protocol": "sasl_ssl", **login})
    assert both.tls is not None
    assert both.sasl is not None
    assert (both.sasl.mechanism, both.sasl.username) == ("PLAIN", "u")
    assert connection_settings({**SASL, **login}).tls is None


def test_secrets_are_not_in_the_text_of_settings() -> None:
    settings = connection_settings(
        {
            **SERVERS,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": PLAIN,
            "ssl.truststore.location": str(DATA / "trust.jks"),
            "ssl.truststore.password": "store-secret",
        }
    )
    assert "hidden-word" not in repr(settings)
    assert "store-secret" not in repr(settings)


def test_blanks_around_a_password_are_left_out_as_kafka_does() -> None:
    store = {**SSL, "ssl.truststore.location": str(DATA / "trust.jks")}
    bare = connection_settings({**store, "ssl.truststore.password": "store-secret"})
    assert connection_settings({**store, "ssl.truststore.password": "store-secret "}) == bare


def test_an_empty_identification_algorithm_switches_the_host_name_check_off() -> None:
    off = connection_settings({**SSL, "ssl.endpoint.identification.algorithm": " "})
    assert off.tls is not None
    assert not off.tls.check_hostname
    same = connection_settings({**SSL, "ssl.endpoint.identification.algorithm": "HTTPS"})
    assert same.tls == connection_settings(SSL).tls


def test_settings_made_by_hand_cannot_connect_with_less_than_their_protocol() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        ConnectionSettings(bootstrap_servers=(("h", 1),), security_protocol="SSL")


@pytest.mark.parametrize(
    ("props", "said"),
    [
        (
            {"ssl.endpoint.identification.algorithm": "ldap"},
            "ssl.endpoint.identification.algorithm",
        ),
        ({"ssl.truststore.type": "BCFKS"}, "ssl.truststore.type is BCFKS"),
        ({"ssl.truststore.certificates": "x"}, "set ssl.truststore.type=PEM"),
        ({"ssl.truststore.password": "x"}, "set ssl.truststore.location"),
        ({"ssl.keystore.password": "x"}, "set ssl.keystore.location"),
        ({"ssl.keystore.location": "x"}, "set ssl.keystore.password"),
        ({"ssl.keystore.key": "x"}, "set ssl.keystore.certificate.chain"),
        ({"ssl.keystore.certificate.chain": "x"}, "set ssl.keystore.key"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "x"}, "ssl.keystore.type=PEM"),
        (
            {
                "ssl.truststore.type": "pem",
                "ssl.truststore.certificates": "x",
                "ssl.truststore.location": "x",
            },
            "are both set",
        ),
    ],
)
def test_stores_that_java_would_refuse_are_refused(props: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^cluster A: .*{said}"):
        connection_settings({**SSL, **props}, scope="cluster A")


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({}, "sasl.mechanism is missing"),
        ({"sasl.mechanism": "GSSAPI"}, "part 7"),
        ({"sasl.mechanism": "plain"}, "sasl.mechanism is plain"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "is not known here"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.jaas.config is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "x"}, "sasl.jaas.config has no control"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": PLAIN}, "does not fit"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{OAUTH};"}, "does not fit"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN.replace('"hidden-word"', '""')},
            "has no password",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN, "sasl.login.class": "x.Y"},
            "sasl.login.class is Java code",
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": PLAIN.replace(";", " tokenauth=true;"),
            },
            "delegation token",
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;",
            },
            "part 7",
        ),
    ],
)
def test_logins_that_are_incomplete_are_refused(props: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        connection_settings({**SASL, **props})
    assert "hidden-word" not in str(refusal.value)


URL = {"sasl.oauthbearer.token.endpoint.url": "https://login/token"}
ID = "sasl.oauthbearer.client.credentials.client.id"


@pytest.mark.parametrize(
    ("jaas", "props", "said"),
    [
        ("", {}, "token.endpoint.url is missing"),
        ('clientId="c"', URL, r"client\.secret is missing"),
        (
            'clientId="c" clientSecret="s"',
            {**URL, next(iter(URL)): "file:///x"},
            "no http or https",
        ),
        ("", {"sasl.login.callback.handler.class": "my.Handler"}, "my.Handler"),
        ('clientId="c" clientSecret="s" extension_auth="x"', URL, "extension 'auth'"),
        ('unsecuredLoginStringClaim_sub="u" unsecuredLoginLifetimeSeconds="x"', {}, "no number"),
        ('clientId="c" clientSecret="s" ssl.truststore.location="/no/file"', URL, "/no/file"),
    ],
)
def test_token_sources_that_are_incomplete_are_refused(
    jaas: str, props: dict[str, str], said: str
) -> None:
    text = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH} {jaas};"}
    with pytest.raises(ConfigError, match=said):
        connection_settings({**SASL, **text, **props})


def test_client_credentials_come_from_properties_or_the_login_module() -> None:
    jaas = 'clientId="c" clientSecret="s" scope="read" extension_logicalCluster="lkc"'
    props = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH} {jaas};", **URL}
    sasl = connection_settings({**SASL, **props, ID: "other"}).sasl
    assert sasl is not None
    assert sasl.oauth is not None
    oauth = sasl.oauth
    assert (oauth.client_id, oauth.client_secret, oauth.scope) == ("other", "s", "read")
    assert oauth.extensions == (("logicalCluster", "lkc"),)
