"""Client settings from effective properties, as librdkafka's too, and addresses; every honoured property is read and used."""

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from mm2py.config import librdkafka
from mm2py.config.broker_addresses import NETWORKS_VARIABLE, BrokerNetworks
from mm2py.config.client_options import CLIENT_KEYS, CLIENT_OPTIONS
from mm2py.config.clients import (
    connection_settings,
    consumer_settings,
    parse_bootstrap_servers,
    producer_settings,
)
from mm2py.config.definitions import Effect
from mm2py.config.security import (
    KerberosSettings,
    OAuthSettings,
    SaslSettings,
    StoreSettings,
    TlsSettings,
)
from mm2py.errors import ConfigError

SERVERS = {"bootstrap.servers": "h:1"}


def test_silence_about_compression_keeps_the_codec_and_none_does_not() -> None:
    assert producer_settings(SERVERS).compression_type == ""
    assert producer_settings(SERVERS | {"compression.type": "NONE"}).compression_type == "none"


def test_set_values_count_trimmed_and_unknown_keys_do_not_matter() -> None:
    props = SERVERS | {"request.timeout.ms": " 5 ", "poll.timeout.ms": "x", "client.id": "me"}
    settings = connection_settings(props)
    assert (settings.request_timeout_ms, settings.client_id) == (5, "me")


def test_more_than_five_requests_in_flight_are_five() -> None:
    props = SERVERS | {"max.in.flight.requests.per.connection": "9"}
    assert producer_settings(props).max_in_flight_requests_per_connection == 5


def test_a_longest_pause_is_never_shorter_than_the_first() -> None:
    settings = connection_settings(SERVERS | {"retry.backoff.ms": "3000"})
    assert settings.retry_backoff_max_ms == 3_000


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("request.timeout.ms", "0", "must be at least 1"),
        ("request.timeout.ms", "1s", "must be a whole number of 32 bits"),
        ("connections.max.idle.ms", "-2", "must be at least -1"),
        ("receive.buffer.bytes", "9999999999", "must be a whole number of 32 bits"),
    ],
)
def test_a_wrong_value_names_property_cluster_and_range(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster A: {name}={text}: {said}"):
        connection_settings(SERVERS | {name: text}, scope="cluster A")


def test_plaintext_in_any_case_connects() -> None:
    assert connection_settings(SERVERS | {"security.protocol": "plaintext"}).bootstrap_servers


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1, b:2 ,", (("a", 1), ("b", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("PLAINTEXT://h-1.x_y:9092 ", (("h-1.x_y", 9092),)),
    ],
)
def test_brokers_are_parsed_as_java_does(text: str, addresses: object) -> None:
    assert parse_bootstrap_servers(text) == addresses


@pytest.mark.parametrize(
    "text", ["", " , ", "host", "host:", "host:0", "host:70000", "<h>:1", "a b:1"]
)
def test_what_is_no_broker_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"names no broker|is not host:port"):
        parse_bootstrap_servers(text)


def test_the_table_covers_every_key_that_a_cluster_hands_on() -> None:
    assert not [key for key in CLIENT_KEYS if key not in CLIENT_OPTIONS]


# ---- broker addresses

SERVICES = """169.254.169.254 169.254.170.2 ::ffff:169.254.169.254 fe80::1%eth0 fd00:ec2::254
fd20:ce::254 100.100.100.200 168.63.129.16"""


def test_no_broker_has_an_address_of_a_machines_own_services_and_any_other_may_be_one() -> None:
    others = ["127.0.0.1", "10.1.2.3", "8.8.8.8", "::1", "fd12::7"]
    allowed = [it for it in (*SERVICES.split(), *others) if BrokerNetworks().allow(it)]
    assert allowed == others


def test_with_a_list_only_its_networks_are_connected_to() -> None:
    networks = BrokerNetworks.of({NETWORKS_VARIABLE: "10.0.0.0/8, fd12::/16,169.254.7.0/24,"})
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::7", "169.254.7.9"):
        assert networks.allow(address)
    for address in ("127.0.0.1", "11.0.0.1", "::1", "169.254.169.254"):
        assert not networks.allow(address)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "kafka", "10.0.0.1/8"])
def test_a_list_that_names_no_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=NETWORKS_VARIABLE):
        BrokerNetworks.of({NETWORKS_VARIABLE: text})


# ---- honoured properties

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


def test_an_honoured_property_is_read() -> None:
    asked = asked_for()
    honoured = [it for it in CLIENT_OPTIONS.values() if it.effect is Effect.HONOURED]
    pairs = [(it.name, kind) for it in honoured for kind in it.kinds.split(", ")]
    assert len(pairs) > 100
    assert not [it for it in pairs if it[0] not in asked[it[1]]]


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


def test_what_was_read_is_used() -> None:
    settings = (TlsSettings, StoreSettings, SaslSettings, OAuthSettings, KerberosSettings)
    assert not {field.name for cls in settings for field in fields(cls)} - used_attributes()


# -- java client properties as settings of librdkafka


GROUPED = {"bootstrap.servers": "h:1", "group.id": "g"}
ASSIGNOR = "partition.assignment.strategy"
CONSUMER, PRODUCER = librdkafka.consumer_settings, librdkafka.producer_settings
JAVA = "org.apache.kafka.clients.consumer."
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p=;";',
}


def test_silent_properties_of_librdkafka_have_javas_defaults() -> None:
    consumer = CONSUMER(GROUPED, scope="c").values
    assert consumer["auto.offset.reset"] == "latest"
    assert consumer["isolation.level"] == "read_uncommitted"
    assert consumer["partition.assignment.strategy"] == "range"
    producer = PRODUCER(GROUPED, scope="p").values
    assert producer["partitioner"] == "murmur2_random"
    assert (producer["acks"], producer["enable.idempotence"]) == (-1, True)
    assert (producer["batch.size"], producer["message.max.bytes"]) == (131_072, 1_048_576)
    assert producer["queue.buffering.max.kbytes"] == 32_768
    assert producer["max.in.flight.requests.per.connection"] == 5
    for values in (consumer, producer):
        assert (values["socket.timeout.ms"], values["socket.keepalive.enable"]) == (30_000, True)
        assert (values["reconnect.backoff.ms"], values["reconnect.backoff.max.ms"]) == (50, 1_000)


def test_the_buffer_holds_the_largest_record_that_is_not_refused() -> None:
    given = {**GROUPED, "buffer.memory": "1000000", "max.request.size": "50000000"}
    producer = PRODUCER(given, scope="p").values
    assert int(producer["queue.buffering.max.kbytes"]) * 1_024 >= 50_000_000


@pytest.mark.parametrize(
    ("read", "name", "text", "key", "value"),
    [
        (CONSUMER, "fetch.max.wait.ms", "100", "fetch.wait.max.ms", 100),
        (CONSUMER, "receive.buffer.bytes", "-1", "socket.receive.buffer.bytes", 0),
        (CONSUMER, "auto.offset.reset", "none", "auto.offset.reset", "error"),
        (CONSUMER, ASSIGNOR, f"{JAVA}RoundRobinAssignor", ASSIGNOR, "roundrobin"),
        (CONSUMER, ASSIGNOR, f"{JAVA}CooperativeStickyAssignor", ASSIGNOR, "cooperative-sticky"),
        (
            CONSUMER,
            ASSIGNOR,
            f"{JAVA}CooperativeStickyAssignor,{JAVA}RangeAssignor",
            ASSIGNOR,
            "range",
        ),
        (CONSUMER, "max.poll.interval.ms", "30000", "max.poll.interval.ms", 45_000),
        (CONSUMER, "session.timeout.ms", "600000", "max.poll.interval.ms", 600_000),
        (CONSUMER, "client.dns.lookup", "default", "client.dns.lookup", "use_all_dns_ips"),
        (CONSUMER, "reconnect.backoff.ms", "20000", "reconnect.backoff.max.ms", 20_000),
        (CONSUMER, "check.crcs", "false", "check.crcs", False),
        (CONSUMER, "request.timeout.ms", "400000", "socket.timeout.ms", 300_000),
        (PRODUCER, "max.request.size", "2000000", "message.max.bytes", 2_000_000),
        (PRODUCER, "buffer.memory", "1048576", "queue.buffering.max.kbytes", 1_024),
        (PRODUCER, "batch.size", "0", "batch.size", 1),
        (PRODUCER, "acks", "ALL", "acks", -1),
        (PRODUCER, "compression.zstd.level", "22", "compression.level", 12),
    ],
)
def test_a_clients_property_has_librdkafkas_name_and_range(
    read: Callable[..., librdkafka.Settings],
    name: str,
    text: str,
    key: str,
    value: librdkafka.SettingValue,
) -> None:
    assert read({**GROUPED, name: text}, scope="c").values[key] == value


@pytest.mark.parametrize(
    "given", [{"acks": "1"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_a_producer_is_idempotent_where_its_properties_allow_it(given: dict[str, str]) -> None:
    assert PRODUCER({**GROUPED, **given}, scope="p").values["enable.idempotence"] is False
    with pytest.raises(ConfigError, match=r"enable\.idempotence=true"):
        PRODUCER({**GROUPED, **given, "enable.idempotence": "true"}, scope="p")


def test_a_login_and_the_check_of_host_names_are_set() -> None:
    values = CONSUMER(
        {**GROUPED, **LOGIN, "ssl.endpoint.identification.algorithm": ""}, scope="c"
    ).values
    assert (values["security.protocol"], values["sasl.mechanism"]) == ("sasl_ssl", "SCRAM-SHA-512")
    assert (values["sasl.username"], values["sasl.password"]) == ("u", "p=;")
    assert values["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"linger.ms": "x"}, "p: linger.ms=x is not a whole number"),
        ({"acks": "7"}, "acks=7 is none of all, -1, 0, 1"),
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
        ({"enable.idempotence": "yes"}, "neither true nor false"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PRODUCER({**GROUPED, **given}, scope="p")


def test_a_property_without_counterpart_is_said_once() -> None:
    found = CONSUMER({**GROUPED, "interceptor.classes": "x", "key.deserializer": "y"}, scope="c")
    assert found.remarks == ("c: interceptor.classes has no effect here",)
    (remark,) = CONSUMER({**GROUPED, ASSIGNOR: f"{JAVA}StickyAssignor"}, scope="c").remarks
    assert remark.startswith("c: StickyAssignor is taken as RangeAssignor")


def test_a_keytab_is_used_by_kinit_and_a_ticket_cache_as_it_is() -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule required serviceName=kafka"
    given = {"bootstrap.servers": "h:1", "group.id": "g", "security.protocol": "SASL_PLAINTEXT"}
    keytab = f'{module} useKeyTab=true keyTab="/k.keytab" principal="m/h@R";'
    values = CONSUMER({**given, "sasl.jaas.config": keytab}, scope="C").values
    assert values["sasl.mechanism"] == "GSSAPI"
    assert {k: v for k, v in values.items() if k.startswith("sasl.kerberos.")} == {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "m/h@R",
        "sasl.kerberos.keytab": "/k.keytab",
        "sasl.kerberos.kinit.cmd": '/usr/bin/kinit -t "%{sasl.kerberos.keytab}" -k "%{sasl.kerberos.principal}"',
        "sasl.kerberos.min.time.before.relogin": 60_000,
    }
    cache = {**given, "sasl.jaas.config": f"{module} useTicketCache=true;"}
    values = CONSUMER(cache, scope="C").values
    assert values["sasl.kerberos.min.time.before.relogin"] == 0
    assert "sasl.kerberos.keytab" not in values
