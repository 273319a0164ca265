"""Properties of the REST listeners, and their header rules."""

from pathlib import Path

import pytest

from mm2py.config.header_rules import HeaderRule, allowed_methods, allowed_origins, header_rules
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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "::ffff:127.0.0.1"])
def test_what_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "::", "10.0.0.1", "worker", "localhost.evil.org"])
def test_what_others_reach(host: str) -> None:
    assert not is_loopback(host)


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
