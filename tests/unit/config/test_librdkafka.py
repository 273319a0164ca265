"""Java client properties as settings of librdkafka."""

from collections.abc import Callable

import pytest

from mm2py.config.librdkafka import Settings, Value, consumer_settings, producer_settings
from mm2py.errors import ConfigError

SERVERS = {"bootstrap.servers": "h:1", "group.id": "g"}
JAVA = "org.apache.kafka.clients.consumer."
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p=;";',
}


def test_silent_properties_have_javas_defaults() -> None:
    consumer = consumer_settings(SERVERS, scope="c").values
    assert consumer["auto.offset.reset"] == "latest"
    assert consumer["isolation.level"] == "read_uncommitted"
    assert consumer["partition.assignment.strategy"] == "range"
    producer = producer_settings(SERVERS, scope="p").values
    assert producer["partitioner"] == "murmur2_random"
    assert (producer["acks"], producer["enable.idempotence"]) == (-1, True)
    assert (producer["batch.size"], producer["message.max.bytes"]) == (131_072, 1_048_576)
    assert producer["queue.buffering.max.kbytes"] == 32_768


def test_the_buffer_holds_the_largest_record_that_is_not_refused() -> None:
    given = {**SERVERS, "buffer.memory": "1000000", "max.request.size": "50000000"}
    producer = producer_settings(given, scope="p").values
    assert int(producer["queue.buffering.max.kbytes"]) * 1_024 >= 50_000_000


ASSIGNOR = "partition.assignment.strategy"


@pytest.mark.parametrize(
    ("read", "name", "text", "key", "value"),
    [
        (consumer_settings, "fetch.max.wait.ms", "100", "fetch.wait.max.ms", 100),
        (consumer_settings, "receive.buffer.bytes", "-1", "socket.receive.buffer.bytes", 0),
        (consumer_settings, "auto.offset.reset", "none", "auto.offset.reset", "error"),
        (consumer_settings, ASSIGNOR, f"{JAVA}RoundRobinAssignor", ASSIGNOR, "roundrobin"),
        (consumer_settings, "check.crcs", "false", "check.crcs", False),
        (consumer_settings, "request.timeout.ms", "400000", "socket.timeout.ms", 300_000),
        (producer_settings, "max.request.size", "2000000", "message.max.bytes", 2_000_000),
        (producer_settings, "buffer.memory", "1048576", "queue.buffering.max.kbytes", 1_024),
        (producer_settings, "batch.size", "0", "batch.size", 1),
        (producer_settings, "acks", "ALL", "acks", -1),
        (producer_settings, "compression.zstd.level", "22", "compression.level", 12),
    ],
)
def test_a_clients_property_has_librdkafkas_name_and_range(
    read: Callable[..., Settings], name: str, text: str, key: str, value: Value
) -> None:
    assert read({**SERVERS, name: text}, scope="c").values[key] == value


@pytest.mark.parametrize(
    "given", [{"acks": "1"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_a_producer_is_idempotent_where_its_properties_allow_it(given: dict[str, str]) -> None:
    assert producer_settings({**SERVERS, **given}, scope="p").values["enable.idempotence"] is False
    with pytest.raises(ConfigError, match=r"enable\.idempotence=true"):
        producer_settings({**SERVERS, **given, "enable.idempotence": "true"}, scope="p")


def test_a_login_and_the_check_of_host_names_are_set() -> None:
    values = consumer_settings(
        {**SERVERS, **LOGIN, "ssl.endpoint.identification.algorithm": ""}, scope="c"
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
        producer_settings({**SERVERS, **given}, scope="p")


def test_a_property_without_counterpart_is_said_once() -> None:
    found = consumer_settings(
        {**SERVERS, "interceptor.classes": "x", "key.deserializer": "y"}, scope="c"
    )
    assert found.remarks == ("c: interceptor.classes has no effect here",)


def test_a_keytab_is_used_by_kinit_and_a_ticket_cache_as_it_is() -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule required serviceName=kafka"
    given = {"bootstrap.servers": "h:1", "group.id": "g", "security.protocol": "SASL_PLAINTEXT"}
    keytab = f'{module} useKeyTab=true keyTab="/k.keytab" principal="m/h@R";'
    values = consumer_settings({**given, "sasl.jaas.config": keytab}, scope="C").values
    assert values["sasl.mechanism"] == "GSSAPI"
    assert {k: v for k, v in values.items() if k.startswith("sasl.kerberos.")} == {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "m/h@R",
        "sasl.kerberos.keytab": "/k.keytab",
        "sasl.kerberos.kinit.cmd": '/usr/bin/kinit -t "%{sasl.kerberos.keytab}" -k "%{sasl.kerberos.principal}"',
        "sasl.kerberos.min.time.before.relogin": 60_000,
    }
    cache = {**given, "sasl.jaas.config": f"{module} useTicketCache=true;"}
    values = consumer_settings(cache, scope="C").values
    assert values["sasl.kerberos.min.time.before.relogin"] == 0
    assert "sasl.kerberos.keytab" not in values
