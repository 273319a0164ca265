"""Logins, key stores and secret names: what is read, and the line of each refusal."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key
from cryptography.x509 import load_der_x509_certificate

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.definitions import options_of
from mm2py.config.jaas import LoginKind, LoginModule, file_secrets, jaas_secrets, parse_jaas
from mm2py.config.java_values import JavaType
from mm2py.config.jks import JksError, JksPasswordError, read_jks
from mm2py.config.key_material import read_identity, read_trusted
from mm2py.config.secret_names import names_a_secret, secrets_in
from mm2py.config.security import KerberosSettings, StoreSettings
from mm2py.config.worker import RestOptions, WorkerConfig
from mm2py.errors import ConfigError
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from tests.certificates import Authority, write_jks

SERVERS = {"bootstrap.servers": "h:1"}
SSL = {**SERVERS, "security.protocol": "SSL"}
SASL = {**SERVERS, "security.protocol": "SASL_PLAINTEXT"}
PACKAGE = "org.apache.kafka.common.security"
PLAIN = f'{PACKAGE}.plain.PlainLoginModule required username="u" password="hidden-word";'
STORE = "ssl.truststore."
CHECK = "ssl.endpoint.identification.algorithm"
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
    off = connection_settings({**SSL, CHECK: " "})
    assert off.tls is not None
    assert not off.tls.check_hostname
    same = connection_settings({**SSL, CHECK: "HTTPS"})
    assert same.tls == connection_settings(SSL).tls


def test_settings_made_by_hand_cannot_connect_with_less_than_their_protocol() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        ConnectionSettings(bootstrap_servers=(("h", 1),), security_protocol="SSL")


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({CHECK: "ldap"}, CHECK),
        ({"ssl.truststore.type": "BCFKS"}, "ssl.truststore.type is BCFKS"),
        ({"ssl.truststore.certificates": "x"}, "set ssl.truststore.type=PEM"),
        ({"ssl.truststore.password": "x"}, "set ssl.truststore.location"),
        ({"ssl.keystore.password": "x"}, "set ssl.keystore.location"),
        ({"ssl.keystore.location": "x"}, "set ssl.keystore.password"),
        ({"ssl.keystore.key": "x"}, "set ssl.keystore.certificate.chain"),
        ({"ssl.keystore.certificate.chain": "x"}, "set ssl.keystore.key"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "x"}, "ssl.keystore.type=PEM"),
        ({f"{STORE}type": "pem", f"{STORE}certificates": "x", f"{STORE}location": "x"}, "both set"),
    ],
)
def test_stores_that_java_would_refuse_are_refused(props: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^cluster A: .*{said}"):
        connection_settings({**SSL, **props}, scope="cluster A")


@pytest.mark.parametrize(
    ("mechanism", "jaas", "more", "said"),
    [
        ("", "", {}, "sasl.mechanism is missing"),
        ("GSSAPI", "", {}, "sasl.jaas.config is missing.*KAFKA_OPTS"),
        ("GSSAPI", PLAIN, {}, "does not fit"),
        ("", f"{KRB5};", {}, "neither a keytab nor the ticket cache"),
        ("", f"{KRB5} useKeyTab=true principal=m;", {}, "but no keyTab"),
        ("", f'{KRB5} useKeyTab=true keyTab="/k";', {}, "but no principal"),
        ("", f"{KRB5} useTicketCache=true;", {}, "service.name is missing"),
        (
            "",
            f"{KRB5} useTicketCache=true serviceName=kafka;",
            {"sasl.kerberos.service.name": "other"},
            "service.name is other, but serviceName of the login module kafka",
        ),
        ("plain", "", {}, "sasl.mechanism is plain"),
        ("AWS_MSK_IAM", "", {}, "is not known here"),
        ("PLAIN", "", {}, "sasl.jaas.config is missing"),
        ("PLAIN", "x", {}, "sasl.jaas.config does not begin with the class"),
        ("OAUTHBEARER", PLAIN, {}, "does not fit"),
        ("PLAIN", f"{OAUTH};", {}, "does not fit"),
        ("PLAIN", PLAIN.replace('"hidden-word"', '""'), {}, "has no password"),
        ("PLAIN", PLAIN, {"sasl.login.class": "x.Y"}, "sasl.login.class is Java code"),
        ("SCRAM-SHA-256", PLAIN.replace(";", " tokenauth=true;"), {}, "delegation token"),
        ("PLAIN", f"{KRB5};", {}, "does not fit"),
    ],
)
def test_logins_that_are_incomplete_are_refused(
    mechanism: str, jaas: str, more: dict[str, str], said: str
) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    given = {key: value for key, value in login.items() if value}
    with pytest.raises(ConfigError, match=said) as refusal:
        connection_settings({**SASL, **given, **more})
    assert "hidden-word" not in str(refusal.value)


URL = {"sasl.oauthbearer.token.endpoint.url": "https://login/token"}
ID = "sasl.oauthbearer.client.credentials.client.id"


@pytest.mark.parametrize(
    ("jaas", "props", "said"),
    [
        ("", {}, "token.endpoint.url is missing"),
        ('clientId="c"', URL, r"client\.secret is missing"),
        ('clientId="c" clientSecret="s"', {next(iter(URL)): "file:///x"}, "no http or https"),
        ("", {"sasl.login.callback.handler.class": "my.Handler"}, "my.Handler"),
        ('clientId="c" clientSecret="s" extension_auth="x"', URL, "extension 'auth'"),
        ('unsecuredLoginStringClaim_sub="u" unsecuredLoginLifetimeSeconds="x"', {}, "no number"),
        ('clientId="c" clientSecret="s" ssl.truststore.location="/no/file"', URL, "/no/file"),
    ],
)
def test_incomplete_token_sources_are_refused(jaas: str, props: dict[str, str], said: str) -> None:
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
        ("KafkaClient com.x", "has no { after the name of section 1"),
        (f"KafkaClient {{ {KRB5}; {KRB5}; }};", "more than one login module in KafkaClient"),
        ("KafkaClient { };", "does not begin with the class"),
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


# ---- jaas

JAAS_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ('password="a b";', "a b"),
        ("password='a\"b';", 'a"b'),
        (r'password="a\"b\\c";', r'a"b\c'),
        ('password="x=y;z,#";', "x=y;z,#"),
        (r'password="\101\n\t";', "A\n\t"),
        ("password=word-1.x_$y;", "word-1.x_$y"),
        ('password = "p" ;  // a comment', "p"),
        ('/* a\ncomment */ password="/* p */";', "/* p */"),
        ('\n  password="pässword"\n;', "pässword"),
        ('password="";', ""),
    ],
)
def test_values_are_read_as_the_jvm_reads_them(text: str, password: str) -> None:
    found = parse_jaas(f"{JAAS_PLAIN} required {text}")
    assert found.kind is LoginKind.PASSWORD
    assert found.options == {"password": password}


def test_every_known_module_and_flag_is_taken() -> None:
    assert parse_jaas(f"{OAUTH};".replace("required", "Sufficient")).kind is LoginKind.OAUTH
    optional = KRB5.replace("required", "optional")
    assert parse_jaas(f"{optional} useKeyTab=true;").kind is LoginKind.KERBEROS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no login module"),
        (JAAS_PLAIN, "no control flag"),
        (f'{JAAS_PLAIN} username="a";', "no control flag"),
        (f'{JAAS_PLAIN} required username="a"', "does not end with a semicolon"),
        (f'{JAAS_PLAIN} required password=1234; other="s3cret";', "no value for option 1"),
        (f"{JAAS_PLAIN} required password;", "no value for option 1"),
        (f'{JAAS_PLAIN} required password="s3cret', "does not end with a semicolon"),
        (f"{JAAS_PLAIN} required password=s3c//ret;", 'with "/" has to be in double quotes'),
        (f'{JAAS_PLAIN} required password="s3cret;', "behind the closing quote"),
        (f"{JAAS_PLAIN} required; {JAAS_PLAIN} required;", "more than one login module"),
        (f"{JAAS_PLAIN} required password=s3cret;x;", 'put a password with ";" in double quotes'),
        (f'{JAAS_PLAIN} required password=""s3cret"";', "in one pair of double quotes"),
        ("s3cret", "does not begin with the class of a login module"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "is not known here"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "is not known here"),
    ],
)
def test_what_is_no_single_known_entry_is_refused_without_its_values(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        parse_jaas(text)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.remedy


def test_secrets_inside_are_known_to_the_log_mask() -> None:
    text = f'{JAAS_PLAIN} required username="u" password="p1" clientSecret="p2";'
    assert jaas_secrets(text) == {"p1", "p2"}
    assert jaas_secrets("no jaas") == frozenset()
    assert jaas_secrets(f'{JAAS_PLAIN} required username="u" password=""p123"";') == {"p123"}
    assert "p1" not in repr(parse_jaas(text))


def test_the_secrets_of_a_jaas_file_are_known_for_masking(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    environ = {"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"}
    assert file_secrets({}) == file_secrets(environ) == frozenset()
    file.write_text(f'KafkaClient {{ {JAAS_PLAIN} required username="u" password="hidden"; }};')
    assert file_secrets(environ) == {"hidden"}


@pytest.mark.parametrize(
    "value", ["word", "", "two words", 'a "b"', "back\\slash", "line\nend\t", "ümläut", "a;b=c//d"]
)
def test_a_login_is_written_as_it_is_read(value: str) -> None:
    login = LoginModule(
        LoginKind.KERBEROS,
        "com.sun.security.auth.module.Krb5LoginModule",
        {"useKeyTab": "true", "keyTab": value},
    )
    assert parse_jaas(login.text()) == login


# ---- key material

PASSWORD = "store-secret"  # noqa: S105 - of the fixtures, which keytool of Java 17 wrote
AUTHORITY = Authority()
OWN = AUTHORITY.issue("own")


def trust(
    location: Path | str, password: str | None = PASSWORD, kind: str = "JKS"
) -> StoreSettings:
    return StoreSettings(
        name="ssl.truststore", type=kind, location=str(location), password=password
    )


def keys(
    location: Path | str = "", password: str | None = PASSWORD, *, kind: str = "JKS",
    own: str | None = None, chain: str = "", key: str = "",
) -> StoreSettings:  # fmt: skip
    return StoreSettings(
        name="ssl.keystore", type=kind, location=str(location), password=password,
        key_password=own, certificates=chain, key=key,
    )  # fmt: skip


def subject(der: bytes) -> str:
    return load_der_x509_certificate(der).subject.rfc4514_string()


def test_a_jks_truststore_gives_its_certificates_with_and_without_password() -> None:
    for password in (PASSWORD, None):
        found = read_trusted(trust(DATA / "trust.jks", password))
        assert sorted(map(subject, found)) == ["CN=ec", "CN=rsa"]


@pytest.mark.parametrize(("name", "key_password"), [("rsa", "key-secret"), ("ec", None)])
def test_a_jks_keystore_gives_its_key_and_chain(name: str, key_password: str | None) -> None:
    found = read_identity(keys(DATA / f"{name}.jks", own=key_password))
    assert [subject(der) for der in found.chain] == [f"CN={name}"]
    load_der_private_key(found.key, None)  # read_identity has compared it with the chain


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (keys(DATA / "rsa.jks", "wrong"), "ssl.keystore.password does not open"),
        (keys(DATA / "rsa.jks"), "ssl.key.password does not open the key rsa"),
        (keys(DATA / "rsa.jks", own="x"), "ssl.key.password does not open the key rsa"),
        (keys(DATA / "trust.jks"), "holds no private key"),
        (keys(DATA / "none.jks"), "No such file"),
    ],
)
def test_a_keystore_that_cannot_be_used_names_the_property(store: StoreSettings, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        read_identity(store)
    assert "ssl.key" in refusal.value.remedy


@pytest.mark.parametrize("size", [3, 12, 40, 400])
def test_a_jks_store_that_is_cut_off_is_refused(size: int) -> None:
    content = (DATA / "ec.jks").read_bytes()[:size]
    for password in (None, PASSWORD):
        with pytest.raises(JksError):
            read_jks(content, password)


def test_an_unknown_entry_is_refused() -> None:
    content = b"\xfe\xed\xfe\xed" + bytes([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9, 0, 1, 97]) + bytes(8)
    digest = hashlib.sha1(b"\0x" + b"Mighty Aphrodite" + content).digest()  # noqa: S324 - JKS
    with pytest.raises(JksError, match="unknown kind 9"):
        read_jks(content + digest, "x")
    with pytest.raises(JksPasswordError):
        read_jks(content + digest, "y")


def test_pkcs12_stores_are_read_whatever_type_says(tmp_path: Path) -> None:
    store = AUTHORITY.truststore(tmp_path / "t.p12")
    assert [subject(der) for der in read_trusted(trust(store))] == ["CN=Test CA"]
    found = read_identity(keys(OWN.pkcs12(tmp_path / "k.p12"), kind="PKCS12"))
    assert [subject(der) for der in found.chain] == ["CN=own", "CN=Test CA"]


def test_pem_is_read_from_files_and_from_texts_whose_line_ends_are_lost(tmp_path: Path) -> None:
    file = tmp_path / "k.pem"
    file.write_text(OWN.key_pem("pw") + OWN.chain_pem())
    from_file = read_identity(keys(file, None, kind="PEM", own="pw"))
    chain, key = OWN.chain_pem().replace("\n", " "), OWN.key_pem().replace("\n", " ")
    assert read_identity(keys(kind="PEM", chain=chain, key=key)) == from_file
    (tmp_path / "ca.pem").write_text("a comment\n" + AUTHORITY.pem())
    assert len(read_trusted(trust(tmp_path / "ca.pem", None, "PEM"))) == 1


def test_broken_stores_name_the_property(tmp_path: Path) -> None:
    pem, p12 = tmp_path / "x.pem", OWN.pkcs12(tmp_path / "x.p12")
    pem.write_text(OWN.key_pem("pw") + OWN.chain_pem())
    (tmp_path / "junk").write_bytes(b"junk")
    other = AUTHORITY.issue("other")
    cases = {
        r"ssl.keystore.password does not open": keys(p12, "wrong"),
        r"set ssl.keystore.type=PEM": keys(pem),
        r"neither a JKS nor a PKCS12": keys(tmp_path / "junk"),
        r"set ssl.key.password": keys(pem, None, kind="PEM"),
        r"ssl.key.password does not open": keys(pem, None, kind="PEM", own="no"),
        r"begin with -----BEGIN": keys(tmp_path / "junk", None, kind="PEM"),
        r"ssl.keystore.certificate.chain .*does not belong": keys(
            kind="PEM", chain=other.chain_pem(), key=OWN.key_pem()
        ),
    }
    for said, store in cases.items():
        with pytest.raises(ConfigError, match=said):
            read_identity(store)
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.password is missing"):
        read_trusted(trust(AUTHORITY.truststore(tmp_path / "t.p12"), None))
    damaged = "-----BEGIN CERTIFICATE-----\nnot*base64\n-----END CERTIFICATE-----"
    broken = StoreSettings(name="ssl.truststore", type="PEM", certificates=damaged)
    with pytest.raises(ConfigError, match="damaged PEM block"):
        read_trusted(broken)


def test_a_jks_store_may_hold_both_kinds_and_the_first_key_is_ours(tmp_path: Path) -> None:
    file = tmp_path / "both.jks"
    write_jks(file, trusted=[AUTHORITY.certificate], own=OWN, key_password=PASSWORD + "-own")
    assert [subject(der) for der in read_trusted(trust(file))] == ["CN=Test CA"]
    found = read_identity(keys(file, own=PASSWORD + "-own"))
    assert [subject(der) for der in found.chain] == ["CN=own", "CN=Test CA"]


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs a JDK")
def test_keytool_reads_the_stores_that_these_tests_write(tmp_path: Path) -> None:
    file = write_jks(tmp_path / "own.jks", own=OWN)
    command = f"keytool -importkeystore -srckeystore {file} -srcstorepass {PASSWORD} -noprompt"
    command += f" -srcstoretype JKS -destkeystore {tmp_path / 'own.p12'} -deststorepass {PASSWORD}"
    subprocess.run([*command.split(), "-deststoretype", "PKCS12"], check=True, capture_output=True)
    assert subject(read_identity(keys(tmp_path / "own.p12")).chain[0]) == "CN=own"


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs a JDK")
@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "JCEKS"])
def test_stores_that_keytool_writes_today_are_read(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    command = (
        f"keytool -genkeypair -keystore {store} -storetype {kind} -storepass {PASSWORD} "
        "-alias k -keyalg EC -dname CN=today -J-XX:TieredStopAtLevel=1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    if kind == "JCEKS":
        with pytest.raises(ConfigError, match="convert it: keytool"):
            read_identity(keys(store))
        return
    assert subject(read_identity(keys(store)).chain[0]) == "CN=today"


# ---- secret names

OF_SECRETS = """github.access.token api.key apikey aws_access_key google.credentials
schema.registry.basic.auth.user.info http.headers.authorization private.key.pem db.passwd
DB.Password connection.password.encrypted source.cluster.sasl.jaas.config
producer.override.ssl.keystore.key oauth.bearer aws.secret.access.key"""
SHOWN = """key.converter message.key transforms.route.key sasl.oauthbearer.token.endpoint.url
basic.auth.credentials.source rest.bearer.tokens.file access.token.lifetime.ms
inter.worker.key.size tokenizer.class monkey pemberton connection.url topics"""


def test_keys_of_secrets_are_known_by_their_words_and_keys_about_secrets_are_shown() -> None:
    keys = [*OF_SECRETS.split(), *SHOWN.split()]
    assert [it for it in keys if names_a_secret(it)] == OF_SECRETS.split()


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
