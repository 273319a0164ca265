import re
from pathlib import Path

import pytest

from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.security import KerberosSettings
from mm2py.errors import ConfigError

SERVERS = {"bootstrap.servers": "h:1"}
SSL = {**SERVERS, "security.protocol": "SSL"}
SASL = {**SERVERS, "security.protocol": "SASL_PLAINTEXT"}
PACKAGE = "org.apache.kafka.common.security"
PLAIN = f'{PACKAGE}.plain.PlainLoginModule required username="u" password="hidden-word";'
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"
SECTION = """
/* other programs */ Client { com.example.Other required a="b"; com.example.More optional; };
KafkaClient {
    // as the guide writes it
    com.sun.security.auth.module.Krb5LoginModule required
    useKeyTab=true
    keyTab="/tmp/mirrormaker.keytab"
    storeKey=true
    useTicketCache=false
    serviceName="kafka"
    principal="mirrormaker/HOSTNAME@EXAMPLE.COM";
};
"""
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
        ({"sasl.mechanism": "GSSAPI"}, "sasl.jaas.config is missing.*KAFKA_OPTS"),
        ({"sasl.mechanism": "GSSAPI", "sasl.jaas.config": PLAIN}, "does not fit"),
        ({"sasl.jaas.config": f"{KRB5};"}, "neither a keytab nor the ticket cache"),
        ({"sasl.jaas.config": f"{KRB5} useKeyTab=true principal=m;"}, "but no keyTab"),
        ({"sasl.jaas.config": f'{KRB5} useKeyTab=true keyTab="/k";'}, "but no principal"),
        ({"sasl.jaas.config": f"{KRB5} useTicketCache=true;"}, "service.name is missing"),
        (
            {
                "sasl.jaas.config": f"{KRB5} useTicketCache=true serviceName=kafka;",
                "sasl.kerberos.service.name": "other",
            },
            "service.name is other, but serviceName of the login module kafka",
        ),
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
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{KRB5};"}, "does not fit"),
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


@pytest.mark.parametrize(
    "form", ["-Xmx1g -D{0}={1}", "-D{0}=/elsewhere -D{0}=={1}", "'-D{0}=file:{1}'"]
)
def test_the_jaas_file_of_kafka_opts_is_read_and_kerberos_needs_no_mechanism(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka_mirrormaker_jaas.conf"
    file.write_text(SECTION, encoding="utf-8")
    monkeypatch.setenv("KAFKA_OPTS", form.format("java.security.auth.login.config", file))
    sasl = connection_settings({**SASL, "sasl.kerberos.min.time.before.relogin": "1000"}).sasl
    assert sasl is not None
    assert sasl.mechanism == "GSSAPI"
    assert sasl.kerberos == KerberosSettings(
        service_name="kafka",
        principal="mirrormaker/HOSTNAME@EXAMPLE.COM",
        keytab="/tmp/mirrormaker.keytab",  # noqa: S108 - of the guide
        min_time_before_relogin_ms=1_000,
    )
    login = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN}
    own = connection_settings({**SASL, **login}).sasl
    assert own is not None
    assert own.username == "u"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no section KafkaClient"),
        ("KafkaServer { a.B required; };", "has no section KafkaClient"),
        ("KafkaClient com.x", "has no { behind KafkaClient"),
        (f"KafkaClient {{ {KRB5}; {KRB5}; }};", "more than one login module in KafkaClient"),
        ("KafkaClient { };", "no control flag"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_jaas_file_without_one_login_of_a_client_is_refused_by_its_name(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jaas.conf"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={file}")
    with pytest.raises(ConfigError, match=f"^cluster A: the JAAS file {file} .*{re.escape(said)}"):
        connection_settings({**SASL}, scope="cluster A")


def test_a_ticket_cache_needs_no_principal_and_may_stand_before_a_keytab() -> None:
    jaas = (
        f'{KRB5} useTicketCache=TRUE ticketCache="/c" useKeyTab=true keyTab="FILE:/k" principal=p;'
    )
    both = connection_settings(
        {**SASL, "sasl.jaas.config": jaas, "sasl.kerberos.service.name": "s"}
    )
    assert both.sasl is not None
    assert both.sasl.kerberos == KerberosSettings(
        service_name="s", principal="p", keytab="/k", ticket_cache="/c"
    )
    default = connection_settings(
        {**SASL, "sasl.jaas.config": f"{KRB5} useTicketCache=true serviceName=kafka;"}
    )
    assert default.sasl is not None
    assert default.sasl.kerberos == KerberosSettings(service_name="kafka", ticket_cache="")
