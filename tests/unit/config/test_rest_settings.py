"""REST's properties and header rules; configs sent over REST: the allow list, config providers, and what they refuse."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mm2py.config.header_rules import HeaderRule, allowed_methods, allowed_origins, header_rules
from mm2py.config.providers import Providers
from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.config.rest_settings import (
    BASIC_AUTH_EXTENSION,
    RestSettings,
    advertised_url,
    is_loopback,
)
from mm2py.errors import ConfigError

BASIC = {"rest.basic.auth.file": "users.properties"}
STORES = Path(__file__).parents[2] / "data" / "security"
TLS = {
    "ssl.keystore.location": str(STORES / "client.p12"),
    "ssl.keystore.password": "store-secret",
    "ssl.truststore.location": str(STORES / "trust.jks"),
    "ssl.truststore.password": "store-secret",
}
OPEN = {"listeners": "http://0.0.0.0:8083"}


def shown(settings: RestSettings) -> list[tuple[str, bool, bool]]:
    return [(str(a), a.signed_only, a.or_free_port) for a in settings.listeners]


def test_without_a_word_only_this_machine_is_served_on_connects_port_or_a_free_one() -> None:
    for settings in (RestSettings.of_worker({}), RestSettings.of_flow_file({"clusters": "A, B"})):
        assert shown(settings) == [("http://127.0.0.1:8083", False, True)]
        assert str(settings.internal) == "http://:0"
        assert not settings.authenticated
        assert settings.notices == ()


def test_a_given_port_is_not_exchanged_for_another() -> None:
    settings = RestSettings.of_worker({"listeners": "http://localhost:9000, HTTP://[::1]:9001"})
    assert shown(settings) == [
        ("http://localhost:9000", False, False),
        ("http://[::1]:9001", False, False),
    ]


def test_what_only_this_machine_reaches_and_what_others_do() -> None:
    own = ("127.0.0.1", "127.8.8.8", "localhost", "::1", "::ffff:127.0.0.1")
    others = ("", "::", "10.0.0.1", "worker", "localhost.evil.org")
    assert [it for it in (*own, *others) if is_loopback(it)] == [*own]


def test_an_ordinary_worker_is_not_started_where_anybody_could_rule_it() -> None:
    with pytest.raises(ConfigError, match="no authentication is set") as caught:
        RestSettings.of_worker(OPEN, origin=lambda key: f"worker.properties:{len(key)}")
    assert str(caught.value).startswith("worker.properties:9: listeners has http://0.0.0.0:8083")
    assert "--insecure" in caught.value.remedy


@pytest.mark.parametrize("more", [BASIC, {"rest.bearer.tokens.file": "tokens"}])
def test_users_that_can_be_told_apart_may_come_from_anywhere(more: dict[str, str]) -> None:
    settings = RestSettings.of_worker({**OPEN, **more})
    assert settings.authenticated
    assert shown(settings) == [("http://0.0.0.0:8083", False, False)]
    assert "in clear" in settings.notices[0]


def test_insecure_is_said_again_at_each_start() -> None:
    by_key = RestSettings.of_worker({**OPEN, "rest.insecure": "true"})
    by_flag = RestSettings.of_worker(OPEN, insecure=True)
    assert by_key.notices == by_flag.notices
    assert "every client that reaches it" in by_flag.notices[0]
    assert by_flag.insecure


def test_an_existing_dedicated_file_serves_only_other_workers_and_says_so() -> None:
    settings = RestSettings.of_flow_file(OPEN)
    assert shown(settings) == [
        ("http://0.0.0.0:8083", True, False),
        ("http://127.0.0.1:8083", False, True),
    ]
    assert "signed requests of other workers only" in settings.notices[0]
    mixed = RestSettings.of_flow_file({"listeners": "http://127.0.0.1:1,http://:2"})
    assert shown(mixed) == [("http://127.0.0.1:1", False, False), ("http://:2", True, False)]
    assert shown(RestSettings.of_flow_file({**OPEN, **BASIC}))[0][1] is False
    assert shown(RestSettings.of_flow_file(OPEN, insecure=True)) == [
        ("http://0.0.0.0:8083", False, False)
    ]


def test_client_certificates_tell_callers_apart_on_https_only() -> None:
    required = {**TLS, "ssl.client.auth": "required"}
    settings = RestSettings.of_worker({"listeners": "https://:8443", **required})
    assert settings.certificates_count
    assert settings.notices == ()
    with pytest.raises(ConfigError, match="http://:8083, which other machines reach"):
        RestSettings.of_worker({"listeners": "https://:8443,http://:8083", **required})
    with pytest.raises(ConfigError, match="https://:8443, which other machines reach"):
        RestSettings.of_worker({"listeners": "https://:8443", **TLS})


def test_one_key_with_the_https_prefix_makes_only_those_count() -> None:
    listeners = {"listeners": "https://127.0.0.1:8443"}
    prefixed = {f"listeners.https.{key}": value for key, value in TLS.items()}
    settings = RestSettings.of_worker({**listeners, **prefixed, "ssl.client.auth": "required"})
    assert settings.tls is not None
    assert settings.tls.client_auth == "none"
    with pytest.raises(ConfigError, match=r"listeners\.https: ssl\.keystore\.location is"):
        RestSettings.of_worker({**listeners, **TLS, "listeners.https.ssl.client.auth": "none"})
    assert "store-secret" not in repr(settings)


@pytest.mark.parametrize("key", ["listeners", "internal.listener"])
def test_a_missing_key_store_is_refused_with_the_line_that_needs_it(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^mm2:{len(key)}: listeners: ssl\.keystore\.loc"):
        RestSettings.of_flow_file(
            {key: "https://127.0.0.1:0"}, origin=lambda name: f"mm2:{len(name)}"
        )


def test_only_versions_of_tls_that_are_asked_for_are_spoken() -> None:
    base = {"listeners": "https://127.0.0.1:8443", **TLS}
    tls = RestSettings.of_worker({**base, "ssl.enabled.protocols": "TLSv1.3"}).tls
    assert tls is not None
    assert tls.protocols == ("TLSv1.3",)
    with pytest.raises(ConfigError, match=r"may name TLSv1\.2, TLSv1\.3 only"):
        RestSettings.of_worker({**base, "ssl.enabled.protocols": "TLSv1.1"})
    ciphers = RestSettings.of_worker({**base, "ssl.cipher.suites": "TLS_X"})
    assert "ssl.cipher.suites has no effect" in ciphers.notices[0]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"listeners": ""}, "is empty"),
        ({"listeners": "http://a:1,,"}, "no listener"),
        ({"listeners": "8083"}, "no listener"),
        ({"listeners": "http://a:70000"}, "no listener"),
        ({"listeners": "ftp://a:1"}, "asks for ftp"),
        ({"internal.listener": "http://a b:1"}, "internal.listener has"),
        ({"listeners": "https://127.0.0.1:1"}, "ssl.keystore.location is missing"),
        ({"rest.advertised.listener": "https"}, "listeners has no such address"),
        ({"rest.advertised.listener": "ftp"}, "must be one of"),
        ({"rest.read.only.users": "bob"}, "authentication is off"),
        ({"rest.extension.classes": "com.acme.Sso"}, "com.acme.Sso: Java code"),
        ({"rest.extension.classes": BASIC_AUTH_EXTENSION}, "users stand in a file of their own"),
        ({"rest.max.body.bytes": "0"}, "must be at least 1 bytes"),
        ({"admin.listeners": "http://:9"}, "admin.listeners names addresses"),
        ({"access.control.allow.origin": "http://*.a"}, "allow.origin has 'http://*.a', which"),
        ({"access.control.allow.methods": "GET,P T"}, "allow.methods has 'P T', which is no"),
        ({"response.http.headers.config": "drop a:b"}, "headers.config has the action 'drop'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(more: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RestSettings.of_worker(more)
    assert text in str(caught.value)
    assert caught.value.remedy or "must be" in caught.value.message


def test_a_client_certificate_needs_authorities_and_a_known_word() -> None:
    base = {"listeners": "https://127.0.0.1:1", **TLS}
    with pytest.raises(
        ConfigError, match=r"ssl\.client\.auth=maybe: must be one of none, requested, required"
    ):
        RestSettings.of_worker({**base, "ssl.client.auth": "maybe"})
    del base["ssl.truststore.location"], base["ssl.truststore.password"]
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location is missing"):
        RestSettings.of_worker({**base, "ssl.client.auth": "requested"})


def test_a_dedicated_file_keeps_starting_with_keys_that_java_does_not_read_either() -> None:
    settings = RestSettings.of_flow_file({"admin.listeners": "http://:9"})
    assert settings.notices == ("admin.listeners has no effect in this version",)


def test_no_admin_listener_at_all_switches_admin_off() -> None:
    assert not RestSettings.of_worker({"admin.listeners": ""}).admin_endpoints
    assert RestSettings.of_worker({}).admin_endpoints


def test_basic_authentication_of_connect_works_with_its_file_named() -> None:
    settings = RestSettings.of_worker({"rest.extension.classes": BASIC_AUTH_EXTENSION, **BASIC})
    assert settings.authenticated


def test_other_workers_are_told_an_address_that_leads_here() -> None:
    settings = RestSettings.of_worker({**OPEN, **BASIC})
    assert advertised_url(settings, ["http://0.0.0.0:8083"], "10.0.0.7") == "http://10.0.0.7:8083/"
    assert advertised_url(settings, ["http://[::]:8083/"], "fe80::1") == "http://[fe80::1]:8083/"
    both = ["https://a:1/", "https://b:2/", "http://c:3/"]
    assert advertised_url(settings, both, "x") == "http://c:3/"
    named = RestSettings.of_worker(
        {
            "listeners": "http://127.0.0.1:1,https://127.0.0.1:2",
            **TLS,
            "rest.advertised.listener": "https",
            "rest.advertised.host.name": "Worker-1",
            "rest.advertised.port": "443",
        }
    )
    assert advertised_url(named, both, "x") == "https://Worker-1:443/"
    assert named.own_hosts == {"127.0.0.1", "worker-1"}


@pytest.mark.parametrize(
    ("provider", "bound"),
    [("FileConfigProvider", "allowed.paths"), ("DirectoryConfigProvider", "allowed.paths"),
     ("EnvVarConfigProvider", "allowlist.pattern")],
)  # fmt: skip
def test_a_provider_that_callers_may_use_has_to_be_bounded(provider: str, bound: str) -> None:
    props = {
        "config.providers": "p",
        "config.providers.p.class": f"org.apache.kafka.common.config.provider.{provider}",
        "rest.config.providers.allow": "p",
    }
    for reader in (RestSettings.of_worker, RestSettings.of_flow_file):
        with pytest.raises(ConfigError, match="callers could read everything") as refused:
            reader(props)
        assert f"config.providers.p.param.{bound}" in refused.value.remedy
        assert reader({**props, f"config.providers.p.param.{bound}": "/x"}).providers_allowed == {
            "p"
        }


# ---- header rules


def test_rules_are_read_as_connects_example_writes_them() -> None:
    text = (
        'add X-XSS-Protection: 1; mode=block, "add Cache-Control: no-cache, no-store", '
        "SETDATE Expires:31540000000,set  X-Frame-Options : DENY, add X-Empty:"
    )
    assert header_rules(text) == (
        HeaderRule("add", "X-XSS-Protection", "1; mode=block"),
        HeaderRule("add", "Cache-Control", "no-cache, no-store"),
        HeaderRule("setDate", "Expires", "31540000000"),
        HeaderRule("set", "X-Frame-Options", "DENY"),
        HeaderRule("add", "X-Empty", ""),
    )
    assert header_rules("  ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "drop a:b",
        "a:b",
        "add",
        "add a b: c",
        "add : c",
        "add a",
        "add a:b,",
        "add a:b\nadd c:d",
        "add a:b\r\nX: y",
        "add a:\u20ac",
        "add a:\u0000",
        "setDate a: soon",
        '"add a:b',
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        header_rules(text)
    assert caught.value.remedy


def test_origins_are_written_in_full() -> None:
    assert allowed_origins("https://UI.example:8443, *") == {"https://ui.example:8443", "*"}
    assert allowed_origins("") == frozenset()
    for text in ("ui.example", "http://*.example", "http://a/b", ".*", "null", "http://a b"):
        with pytest.raises(ConfigError, match="is no origin"):
            allowed_origins(text)


def test_methods_are_sent_as_given_or_as_jetty_does() -> None:
    assert allowed_methods("get, POST") == "GET,POST"
    assert allowed_methods("") == "POST,HEAD,GET"
    with pytest.raises(ConfigError, match="is no method"):
        allowed_methods("G\r\nET")


# -- configs sent over REST


CANARY = "canary-word"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="u" password="{CANARY}";'
)
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
FILE = {
    "source.cluster.alias": "A",
    "source.cluster.bootstrap.servers": "a:9092",
    "source.cluster.sasl.jaas.config": "${env:JAAS}",
    "source.cluster.ssl.truststore.location": "/etc/a.jks",
    "topics": ".*",
}


def refused(
    config: Mapping[str, str | None],
    *,
    dedicated: bool = False,
    file: Mapping[str, str] | None = None,
    providers: tuple[str, ...] = (),
) -> list[str]:
    problems = remote_problems(
        config, dedicated=dedicated, file_texts=file or {}, providers=providers
    )
    assert all(p.message and p.remedy and p.value is None for p in problems)
    assert CANARY not in (refusal_text(problems) or "")
    return [p.name for p in problems]


NATIVE_CODE = """plugin.library.paths ssl.engine.location ssl.engine.id ssl.engine.factory.class
ssl.providers ssl.provider security.providers interceptor.classes interceptors debug
sasl.kerberos.kinit.cmd sasl.login.class sasl.login.callback.handler.class
sasl.client.callback.handler.class sasl.oauthbearer.jwt.retriever.class"""
FILES_AND_URLS = """sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwks.endpoint.url.more sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file ssl.truststore.location ssl.keystore.location
ssl.ca.location"""
PREFIXES = """source.cluster. target.cluster. source.consumer. target.producer. producer.override.
admin.override. consumer. any.other."""


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("name", [*NATIVE_CODE.split(), *FILES_AND_URLS.split()])
def test_code_files_and_addresses_are_refused_under_any_prefix(name: str, dedicated: bool) -> None:
    for prefix in ("", *PREFIXES.split()):
        for key in (prefix + name, (prefix + name).upper()):
            assert refused({key: CANARY}, dedicated=dedicated) == [key]


CLASSES = """replication.policy.class topic.filter.class group.filter.class
config.property.filter.class target.topic.filter.class"""


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("name", CLASSES.split())
def test_no_request_names_a_class_to_import_but_built_in_ones(name: str, dedicated: bool) -> None:
    for value in ("sys:exit", "antigravity", "com.example.Own", "mm2py.errors:ConfigError", ""):
        assert refused({name: value}, dedicated=dedicated) == [name]
        assert refused({name: value}, dedicated=dedicated, file={name: value}) == []
    for value in (
        "DefaultTopicFilter",
        "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        " mm2py.mirror.filters:DefaultGroupFilter",
    ):
        assert refused({name: value}, dedicated=dedicated) == []


def test_what_the_file_says_itself_may_come_back() -> None:
    assert refused(FILE, dedicated=True, file=FILE) == []
    assert refused(FILE, file=FILE) == []
    changed = {**FILE, "source.cluster.ssl.truststore.location": "/proc/self/environ"}
    assert refused(changed, file=FILE) == ["source.cluster.ssl.truststore.location"]


OF_CLUSTERS = """source.cluster.bootstrap.servers target.cluster.bootstrap.servers
source.cluster.alias source.cluster.anything source.consumer.bootstrap.servers
consumer.bootstrap.servers producer.override.bootstrap.servers target.admin.security.protocol
source.consumer.sasl.mechanism target.producer.ssl.truststore.certificates
source.cluster.sasl.jaas.config admin.sasl.jaas.config"""


@pytest.mark.parametrize("key", OF_CLUSTERS.split())
def test_in_the_dedicated_mode_a_request_leads_no_flow_to_another_cluster(key: str) -> None:
    assert refused({key: CANARY}, dedicated=True, file=FILE) == [key]
    assert refused({key: None}, dedicated=True, file={key: "text"}) == [key]


@pytest.mark.parametrize("dedicated", [False, True])
def test_an_ordinary_change_of_a_flow_is_accepted(dedicated: bool) -> None:
    config = {
        "name": "MirrorSourceConnector",
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "topics": "orders.*, pay ments",
        "tasks.max": "4",
        "offset-syncs.topic.location": "target",
        "consumer.poll.timeout.ms": "1000",
        "source.consumer.isolation.level": "read_committed",
        "producer.override.max.request.size": "2097152",
        "replication.policy.separator": "$",
        "topics.exclude": None,
    }
    assert refused(config, dedicated=dedicated) == []


def test_an_ordinary_worker_takes_clusters_with_known_properties() -> None:
    config = {
        "source.cluster.alias": "A",
        "source.cluster.bootstrap.servers": "a:9092, [2001:db8::1]:9092",
        "source.cluster.security.protocol": "SASL_SSL",
        "source.cluster.sasl.mechanism": "PLAIN",
        "source.cluster.sasl.jaas.config": PLAIN,
        "source.cluster.ssl.truststore.type": "PEM",
        "source.cluster.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nAA==\n",
        "consumer.group": "a plug-in's own",
    }
    assert refused(config) == []
    for key in ("source.cluster.builtin.features", "producer.override.queue.buffering.max.ms"):
        assert refused({key: "1"}) == [key]


@pytest.mark.parametrize(
    "jaas",
    [
        'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";',
        'com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://x";',
        f'{PLAIN} com.sun.security.auth.module.JndiLoginModule required a="b";',
        f'{OAUTH} clientId="c" ssl.truststore.location="/etc/shadow";',
        f'{OAUTH} sasl.oauthbearer.token.endpoint.url="http://x";',
        'com.sun.security.auth.module.Krb5LoginModule required keyTab="/etc/krb5.keytab";',
        "",
        "${x:JAAS} com.evil.Module required;",
    ],
)
def test_login_modules_beyond_the_known_and_their_files_are_refused(jaas: str) -> None:
    for key in ("source.cluster.sasl.jaas.config", "producer.override.sasl.jaas.config"):
        assert set(refused({key: jaas}, providers=("x",))) == {key}
    assert refused({"admin.override.sasl.jaas.config": "${x:JAAS}"}, providers=("x",)) == []


def test_which_connector_copies_a_flow_is_the_files_to_say() -> None:
    """It is read when a worker starts: a change of a running connector's text would change nothing."""
    assert refused({"copy.connector": "sink"}, dedicated=True) == ["copy.connector"]
    own = {"copy.connector": "sink"}
    assert refused(own, dedicated=True, file=own) == refused(own) == []


@pytest.mark.parametrize(
    "value",
    [
        "${env:AWS_SECRET_ACCESS_KEY}",
        "${file:/etc/passwd:root}",
        "${dir:/run/secrets:token}",
        "a,${env:X},b",
        "${}${env:X}",
        "${a${env:X}",
        "${vault:x}",
        "${:x}",
    ],
)
@pytest.mark.parametrize("key", ["topics", "name", "value.converter", "errors.log.enable"])
def test_no_config_provider_is_asked_for_a_stranger(key: str, value: str) -> None:
    assert refused({key: value}) == [key]
    assert refused({key: value}, file={key: value}) == []
    assert refused({key: value}, file={"other": value}) == [key]


def test_only_the_allowed_providers_may_be_used() -> None:
    assert refused({"topics": "${env:X}"}, providers=("env",)) == []
    assert refused({"topics": "${env:X}${file:/a:b}"}, providers=("env",)) == ["topics"]
    # Not a reference: no provider in it.
    assert refused({"topics": "${topic}"}) == []


@pytest.mark.parametrize(
    "key", ["config.providers", "config.providers.env.class", "config.providers.f.param.x"]
)
def test_a_request_declares_no_config_providers(key: str) -> None:
    assert refused({key: "env"}, providers=("env",)) == [key]


@pytest.mark.parametrize(
    "key", ["", "a b", "a=b", "a:b", "a\nb", "a\u0000", "a\u2028b", "a\u00a0b", "a\u202eb"]
)
def test_a_key_cannot_smuggle_a_second_property(key: str) -> None:
    problems = remote_problems({key: "x"}, dedicated=False, file_texts={}, providers=())
    assert [p.name for p in problems] == [key]
    text = refusal_text(problems)
    assert text is not None
    assert text.isprintable()


def test_values_hold_no_control_characters_but_those_of_texts() -> None:
    assert refused({"topics": "a\u0000b"}) == ["topics"]
    assert refused({"topics": "a\u001b[2J"}) == ["topics"]
    assert refused({"a.pem": "line\r\n\tline"}) == []


SERVICES = """169.254.169.254:80 [fe80::1]:9092 [::ffff:169.254.169.254]:80 [fd00:ec2::254]:80
100.100.100.200:80 PLAINTEXT://169.254.169.254:80 169.254.169.254.:80 0xa9fea9fe:80 2852039166:80
0251.0376.0251.0376:80 metadata.google.internal:80 METADATA:80 instance-data.ec2.internal:80
169-254-169-254.nip.io:80 app.169.254.169.254.nip.io:80 a9fea9fe.nip.io:80"""
BROKERS = """kafka-169.example:9092 metadatabase.example:9092 broker-1.metadata-team.example:9092
localhost:9092"""


def test_a_clouds_own_services_are_no_brokers_and_names_like_theirs_may_be() -> None:
    key = "source.cluster.bootstrap.servers"
    servers = [*SERVICES.split(), *BROKERS.split()]
    assert [it for it in servers if refused({key: f"a:9092,{it}"}) == [key]] == SERVICES.split()
    assert not any(refused({key: f"a:9092,{it}"}) for it in BROKERS.split())


def test_the_answer_names_keys_and_remedies_and_no_value() -> None:
    problems = remote_problems(
        {"debug": CANARY, "topics": f"${{env:{CANARY}}}"},
        dedicated=True,
        file_texts={},
        providers=(),
    )
    text = refusal_text(problems)
    assert text is not None
    assert text.startswith("Configuration may not be set over REST: debug would log")
    assert "topics uses a config provider: write the value" in text
    assert CANARY not in text
    assert refusal_text([]) is None


# ---- providers

PACKAGE = "org.apache.kafka.common.config.provider."


def providers(environ: dict[str, str] | None = None, **parameters: str) -> Providers:
    props = {
        "config.providers": "file, env,dir",
        "config.providers.file.class": PACKAGE + "FileConfigProvider",
        "config.providers.env.class": PACKAGE + "EnvVarConfigProvider",
        "config.providers.dir.class": PACKAGE + "DirectoryConfigProvider",
    }
    for name, value in parameters.items():
        provider, _, parameter = name.partition("_")
        props[f"config.providers.{provider}.param.{parameter.replace('_', '.')}"] = value
    return Providers.of(props, environ or {})


def test_a_value_may_have_several_placeholders(tmp_path: Path) -> None:
    secrets = tmp_path / "s.properties"
    secrets.write_text("user = me\npassword: p=1\n")
    (tmp_path / "host").write_text("h:1")
    found = providers({"PORT": "9"}).resolve_text(
        f"${{file:{secrets}:user}}/${{file:{secrets}:password}}@${{dir:{tmp_path}:host}}/${{env:PORT}}"
    )
    assert found == "me/p=1@h:1/9"


def test_a_file_of_secrets_is_read_in_utf_8_as_java_reads_it(tmp_path: Path) -> None:
    """``FileConfigProvider`` gives ``Properties`` a reader; the mirror's own file is ISO-8859-1."""
    secrets = tmp_path / "s.properties"
    secrets.write_bytes("# schlüssel\npassword = grün\\u00df\n".encode())
    assert providers().resolve_text(f"${{file:{secrets}:password}}") == "grünß"
    secrets.write_bytes("a = 1\npassword = grün\n".encode("iso-8859-1"))
    with pytest.raises(ConfigError, match=r"s\.properties:2: the file is no text in UTF-8") as told:
        providers().resolve_text(f"${{file:{secrets}:password}}")
    assert "gr" not in str(told.value).rpartition("properties:2")[2]


def test_what_was_put_in_is_remembered_as_secret() -> None:
    some = providers({"A": "hunter2", "B": ""})
    some.resolve({"x": "${env:A}", "y": "${env:B}", "z": "plain"})
    assert some.secrets == {"hunter2"}


@pytest.mark.parametrize("text", ["${env:NONE}", "${vault:a:b}", "${X}", "${env}", "$X", "{env:X}"])
def test_what_cannot_be_resolved_or_is_not_declared_stays_as_it_is(text: str) -> None:
    assert providers().resolve_text(text) == text
    assert Providers.of({}, {"A": "x"}).resolve_text("${env:A}") == "${env:A}"


def test_a_placeholder_is_replaced_once_and_not_again() -> None:
    assert providers({"A": "${env:B}", "B": "x"}).resolve_text("${env:A}") == "${env:B}"


def test_the_environment_has_no_paths_and_an_allow_list() -> None:
    some = providers({"KAFKA_A": "1", "OTHER": "2"}, env_allowlist_pattern="KAFKA_.*")
    assert some.resolve_text("${env:KAFKA_A} ${env:OTHER}") == "1 ${env:OTHER}"
    with pytest.raises(ConfigError, match="no paths"):
        some.resolve_text("${env:p:KAFKA_A}")
    with pytest.raises(ConfigError, match=r"allowlist\.pattern=\(: pattern"):
        providers(env_allowlist_pattern="(")


def test_allowed_paths_cannot_be_left_by_dots_or_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "s").write_text("k=v")
    (inside / "link").symlink_to(outside / "s")
    some = providers(file_allowed_paths=str(inside), dir_allowed_paths=str(inside))
    assert some.resolve_text(f"${{file:{inside}/s:k}}") == "v"
    for text in (
        f"${{file:{outside}/s:k}}",
        f"${{file:{inside}/../out/s:k}}",
        f"${{file:{inside}/link:k}}",
        f"${{dir:{outside}:s}}",
        f"${{dir:{inside}:../out/s}}",
    ):
        with pytest.raises(ConfigError, match="outside"):
            some.resolve_text(text)


def test_a_missing_secrets_file_is_an_error_and_a_missing_key_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        providers().resolve_text(f"${{file:{tmp_path}/no:k}}")
    (tmp_path / "s").write_text("a=1")
    text = f"${{file:{tmp_path}/s:k}}"
    assert providers().resolve_text(text) == text
    assert providers().resolve_or_explain(text) == (text, f"{text} is not found")
    assert providers().resolve_text(f"${{dir:{tmp_path}:no}}").startswith("${dir:")


def test_a_class_that_is_not_built_in_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"config\.providers\.x\.class=a\.B: not a config provider"
    ):
        Providers.of({"config.providers": "x", "config.providers.x.class": "a.B"}, {})
    with pytest.raises(ConfigError, match=r"config\.providers\.x\.class is missing"):
        Providers.of({"config.providers": "x"}, {})
