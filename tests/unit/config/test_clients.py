"""Client settings from effective properties, and the table that says what each property does."""

import pytest

from mm2py.config.client_options import CLIENT_KEYS, CLIENT_OPTIONS
from mm2py.config.clients import (
    connection_settings,
    consumer_settings,
    parse_bootstrap_servers,
    producer_settings,
)
from mm2py.config.definitions import Effect
from mm2py.errors import ConfigError

SERVERS = {"bootstrap.servers": "h:1"}


def test_silent_properties_have_javas_defaults() -> None:
    consumer = consumer_settings(SERVERS)
    assert (consumer.fetch_max_bytes, consumer.max_partition_fetch_bytes) == (52_428_800, 1_048_576)
    assert (consumer.fetch_max_wait_ms, consumer.fetch_min_bytes) == (500, 1)
    assert (consumer.isolation_level, consumer.auto_offset_reset) == (
        "read_uncommitted",
        "earliest",
    )
    producer = producer_settings(SERVERS)
    assert (producer.buffer_memory, producer.max_request_size) == (33_554_432, 0)
    connection = consumer.connection
    assert (connection.request_timeout_ms, connection.metadata_max_age_ms) == (30_000, 300_000)


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
def test_a_wrong_value_names_property_cluster_and_what_is_allowed(
    name: str, text: str, said: str
) -> None:
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


@pytest.mark.parametrize(
    ("names", "effect"),
    [
        ("bootstrap.servers client.id client.rack reconnect.backoff.ms retry.backoff.max.ms "
         "fetch.min.bytes fetch.max.bytes max.partition.fetch.bytes fetch.max.wait.ms "
         "compression.type connections.max.idle.ms receive.buffer.bytes send.buffer.bytes "
         "max.request.size buffer.memory request.timeout.ms default.api.timeout.ms "
         "auto.offset.reset isolation.level max.in.flight.requests.per.connection "
         "metadata.max.age.ms security.protocol socket.connection.setup.timeout.ms "
         "sasl.mechanism sasl.jaas.config ssl.truststore.location ssl.keystore.type "
         "ssl.key.password ssl.truststore.certificates ssl.keystore.certificate.chain "
         "ssl.endpoint.identification.algorithm sasl.oauthbearer.token.endpoint.url",
         Effect.HONOURED),
        ("client.dns.lookup metadata.recovery.strategy group.id session.timeout.ms "
         "heartbeat.interval.ms max.poll.interval.ms enable.auto.commit delivery.timeout.ms retries "
         "linger.ms batch.size compression.gzip.level compression.lz4.level compression.zstd.level "
         "max.block.ms max.poll.records check.crcs partition.assignment.strategy partitioner.class "
         "key.serializer value.deserializer exclude.internal.topics enable.metrics.push "
         "sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.expected.audience "
         "sasl.login.refresh.window.jitter",
         Effect.WITHOUT_EFFECT),
        ("acks enable.idempotence interceptor.classes metric.reporters metrics.num.samples "
         "ssl.cipher.suites ssl.enabled.protocols ssl.protocol ssl.provider security.providers "
         "ssl.keymanager.algorithm ssl.secure.random.implementation", Effect.WARNED),
        ("ssl.engine.factory.class", Effect.REFUSED),
        ("sasl.kerberos.service.name sasl.kerberos.kinit.cmd", Effect.HONOURED),
    ],
)  # fmt: skip
def test_every_property_people_use_has_its_effect(names: str, effect: Effect) -> None:
    assert {CLIENT_OPTIONS[name].effect for name in names.split()} == {effect}
