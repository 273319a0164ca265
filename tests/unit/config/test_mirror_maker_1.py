"""Files of MirrorMaker 1: what is carried over, reported and refused."""

from pathlib import Path
from typing import Any

import pytest

from mm2py.config.findings import Severity
from mm2py.config.jaas import LoginKind, LoginModule, parse_jaas
from mm2py.config.lint import lint
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py_connectors.config import CONNECTORS
from mm2py_migrate.from_mirror_maker_1 import MirrorMaker1, mirror_maker_2_file
from mm2py_migrate.mirror_maker_1.options import consumer_file, producer_file, topic_choice
from mm2py_migrate.written_file import TranslatedFile


def written(folder: Path, text: str) -> str:
    path = folder / "client.properties"
    path.write_text(text)
    return str(path)


def test_old_names_are_taken_as_todays_with_a_line_each(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "metadata.broker.list=h:1\ncompression.codec=2\nmax.message.size=10000000\nqueue.time=1000\n"
        "producer.type=async\nserializer.class=kafka.serializer.DefaultEncoder\nqueue.enqueueTimeout.ms=-1\n",
    )
    found = producer_file(path)
    assert found.values == {
        "acks": "all",
        "bootstrap.servers": "h:1",
        "compression.type": "snappy",
        "delivery.timeout.ms": "2147483647",
        "linger.ms": "1000",
        "max.in.flight.requests.per.connection": "1",
        "max.request.size": "10000000",
    }
    assert f"{path}: metadata.broker.list is taken as bootstrap.servers" in found.remarks
    assert f"{path}: compression.codec is taken as compression.type=snappy" in found.remarks
    assert f"{path}: serializer.class has no effect any more" in found.remarks
    assert found.warnings == ()


def test_a_consumers_old_names(tmp_path: Path) -> None:
    found = consumer_file(
        written(
            tmp_path,
            "bootstrap.servers=h:1\ngroupid=dp-MirrorMaker\nauto.offset.reset=smallest\nconsumer.timeout.ms=-1\n"
            "shallow.iterator.enable=true\nmirror.topics.whitelist=app_log\nzk.connectiontimeout.ms=1000000\n",
        )
    )
    assert found.values == {
        "bootstrap.servers": "h:1",
        "group.id": "dp-MirrorMaker",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    assert found.include == "app_log"


@pytest.mark.parametrize("name", ["zookeeper.connect", "zk.connect"])
def test_leftover_zookeeper_beside_brokers_is_named_and_ignored(tmp_path: Path, name: str) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(f"bootstrap.servers=h:9092\ngroup.id=g\n{name}=zk:2181\n")
    found = consumer_file(str(file))
    assert found.values["bootstrap.servers"] == "h:9092"
    assert name not in found.values
    assert found.warnings == (f"{file}: {name} is ignored, bootstrap.servers counts: remove it",)


@pytest.mark.parametrize("name", ["zookeeper.connect", "zk.connect"])
def test_zookeeper_is_refused_with_what_to_write_instead(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=f":2: {name} names ZooKeeper.*bootstrap.servers=HOST:9092"
    ):
        consumer_file(written(tmp_path, f"group.id=g\n{name}=zk:2181\n"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("acks=1", "acks=1, not all"),
        ("max.in.flight.requests.per.connection=5", "reorder"),
        ("retries=0", "retries=0"),
    ],
)
def test_what_may_lose_or_reorder_is_told_and_kept(tmp_path: Path, line: str, said: str) -> None:
    found = producer_file(written(tmp_path, f"bootstrap.servers=h:1\n{line}\n"))
    name, value = line.split("=")
    assert found.values[name] == value
    assert [it for it in found.warnings if said in it]


def test_a_partitioner_of_java_is_told_and_one_of_scala_has_no_effect(tmp_path: Path) -> None:
    file = "bootstrap.servers=h:1\npartitioner.class="
    warned = producer_file(written(tmp_path, file + "com.example.ByCustomer\n")).warnings
    assert warned[0].endswith("ByCustomer is not loaded: the key chooses the partition")
    assert not producer_file(
        written(tmp_path, file + "kafka.producer.DefaultPartitioner\n")
    ).warnings


@pytest.mark.parametrize("line", ["acks=-1", "request.required.acks=-1"])
def test_minus_one_is_all(tmp_path: Path, line: str) -> None:
    assert producer_file(written(tmp_path, f"bootstrap.servers=h:1\n{line}\n")).warnings == ()


def test_todays_name_wins_over_an_old_one(tmp_path: Path) -> None:
    found = producer_file(written(tmp_path, "bootstrap.servers=h:1\nbroker.list=old:1\n"))
    assert found.values["bootstrap.servers"] == "h:1"
    assert "broker.list is ignored, bootstrap.servers is set too" in found.remarks[0]


@pytest.mark.parametrize(
    ("include", "exclude", "matching", "other"),
    [
        ("another_topic,new.*,foo", "", "new-topic", "old-topic"),
        ('"topic1, topic2"', "", "topic2", "topic22"),
        ("", "__consumer.*,left", "right", "left"),
        (".*", "", "any", None),
    ],
)
def test_lists_of_topics_are_read_as_javas(
    include: str, exclude: str, matching: str, other: str | None
) -> None:
    choice = topic_choice(include, exclude)
    assert choice.matches(matching)
    assert other is None or not choice.matches(other)


# ---- from mirror maker 1

CONSUMER = "bootstrap.servers=a:9092\ngroup.id=mirror\n"
PRODUCER = "bootstrap.servers=b:9092\n"


def translated(
    folder: Path, consumer: str = CONSUMER, producer: str = PRODUCER, **options: Any
) -> TranslatedFile:
    files = folder / "consumer.properties", folder / "producer.properties"
    for file, text in zip(files, (consumer, producer), strict=True):
        file.write_text(text)
    given: dict[str, Any] = {"include": "orders", "exclude": "", "without_equivalent": {}}
    command = MirrorMaker1(
        consumer=consumer_file(str(files[0])),
        producer=producer_file(str(files[1])),
        consumer_path=files[0],
        producer_path=files[1],
        **(given | options),
    )
    return mirror_maker_2_file(command, "A", "B")


def values_of(found: TranslatedFile) -> dict[str, str]:
    return dict(parse(found.text.encode("latin-1")).values)


def test_one_flow_keeps_names_and_does_no_more_than_before(tmp_path: Path) -> None:
    values = values_of(translated(tmp_path, streams=4))
    assert values["clusters"] == "A, B"
    assert values["A->B.enabled"] == "true"
    assert values["A->B.topics"] == "orders"
    assert values["replication.policy.class"].endswith(".IdentityReplicationPolicy")
    assert values["tasks.max"] == "4"
    for name in ("emit.heartbeats.enabled", "emit.checkpoints.enabled", "sync.topic.acls.enabled"):
        assert values[name] == "false"
    assert values["offset-syncs.topic.location"] == "target", "nothing is written to the source"


@pytest.mark.parametrize(
    ("include", "exclude", "topics", "excluded"),
    [
        ('"topic1, topic2"', "", "topic1|topic2", None),
        (r"a\.b.*", "", r"a\.b.*", None),
        ("", "left, out", ".*", r"left|out,mm2.*\.internal,.*\.replica,__.*"),
    ],
)
def test_lists_of_topics_are_those_of_the_command(
    tmp_path: Path, include: str, exclude: str, topics: str, excluded: str | None
) -> None:
    values = values_of(translated(tmp_path, include=include, exclude=exclude))
    assert values["A->B.topics"] == topics
    assert values.get("A->B.topics.exclude") == excluded


def test_client_settings_are_carried_over_under_todays_names(tmp_path: Path) -> None:
    consumer = CONSUMER + "fetch.size=4096\nssl.protocol=TLSv1.3\nmax.poll.interval.ms=9\n"
    producer = PRODUCER + "compression.codec=2\nqueue.time=100\nproducer.type=sync\nacks=1\n"
    found = translated(tmp_path, consumer, producer)
    values = values_of(found)
    assert values["A.consumer.max.partition.fetch.bytes"] == "4096"
    assert values["A.ssl.protocol"] == "TLSv1.3"
    assert values["B.producer.compression.type"] == "snappy"
    assert values["B.producer.linger.ms"] == "100"
    assert values["B.producer.acks"] == "1"
    assert not [name for name in values if "group.id" in name or "producer.type" in name]
    assert [it for it in found.remarks if "max.poll.interval.ms has no property" in it]


@pytest.mark.parametrize(
    ("line", "reset"), [("", "latest"), ("auto.offset.reset=smallest\n", "earliest")]
)
def test_a_start_without_position_is_the_commands(tmp_path: Path, line: str, reset: str) -> None:
    values = values_of(translated(tmp_path, CONSUMER + line))
    assert values["A.consumer.auto.offset.reset"] == reset


def test_secrets_are_not_printed_but_read_from_their_file(tmp_path: Path) -> None:
    login = 'sasl.jaas.config=org.x.PlainLoginModule required username="u" password="pw";\n'
    found = translated(tmp_path, CONSUMER + login, PRODUCER + "ssl.key.password=hidden\n")
    assert "pw" not in found.text.replace("password", "")
    assert "hidden" not in found.text
    values = values_of(found)
    where = tmp_path / "consumer.properties"
    assert values["A.sasl.jaas.config"] == f"${{file:{where}:sasl.jaas.config}}"
    assert values["config.providers"] == "file"
    assert values["config.providers.file.class"].endswith(".FileConfigProvider")


def test_placeholders_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hidden")
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    declared = f"config.providers=file\nconfig.providers.file.class={provider}\n"
    found = translated(tmp_path, CONSUMER + declared + "ssl.key.password=${file:PW}\nssl.keystore.key=k\n")  # fmt: skip
    values = values_of(found)
    assert values["A.ssl.key.password"] == "${file:PW}"
    assert values["config.providers"] == "file,mirrormaker1"
    assert values["config.providers.file.class"] == provider
    assert values["A.ssl.keystore.key"].startswith("${mirrormaker1:")


def test_providers_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    package = "org.apache.kafka.common.config.provider"
    of = "config.providers=p\nconfig.providers.p.class={}.{}ConfigProvider\n"
    with pytest.raises(ConfigError, match=r"config\.providers\.p\.class would have two values"):
        translated(
            tmp_path, CONSUMER + of.format(package, "File"), PRODUCER + of.format(package, "EnvVar")
        )


def test_options_without_a_property_are_said(tmp_path: Path) -> None:
    found = translated(tmp_path, without_equivalent={"--queue.size": "buffer.memory limits it"})
    assert found.remarks == ("--queue.size has no property: buffer.memory limits it",)


@pytest.mark.parametrize(("include", "exclude"), [("", ""), ("a", "b"), ("a(", "")])
def test_what_the_command_refuses_is_refused(tmp_path: Path, include: str, exclude: str) -> None:
    with pytest.raises(ConfigError):
        translated(tmp_path, include=include, exclude=exclude)


def test_lint_accepts_what_is_printed(tmp_path: Path) -> None:
    login = 'security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";\n'
    file = tmp_path / "mm2.properties"
    file.write_text(translated(tmp_path, CONSUMER + login, include=r"a\d+,b").text)
    errors = [it for it in lint(file, CONNECTORS) if it.severity is Severity.ERROR]
    assert errors == []


KERBEROS = LoginModule(
    LoginKind.KERBEROS,
    "com.sun.security.auth.module.Krb5LoginModule",
    {"useKeyTab": "true", "keyTab": '/etc/a "b".keytab', "principal": "mirror/host@EXAMPLE.COM"},
)
PASSWORD = LoginModule(
    LoginKind.PASSWORD,
    "org.apache.kafka.common.security.plain.PlainLoginModule",
    {"username": "mirror", "password": "word-of-mirror"},
)
SASL = "security.protocol=SASL_PLAINTEXT\nsasl.kerberos.service.name=kafka\n"


def test_the_login_of_the_jaas_file_becomes_that_of_each_side_that_uses_it(tmp_path: Path) -> None:
    found = translated(tmp_path, CONSUMER + SASL, PRODUCER + SASL, login=KERBEROS)
    values = values_of(found)
    for side in ("A", "B"):
        assert parse_jaas(values[f"{side}.sasl.jaas.config"]) == KERBEROS
        assert values[f"{side}.sasl.kerberos.service.name"] == "kafka"
    assert not found.remarks
    file = tmp_path / "mm2.properties"
    file.write_text(found.text)
    assert [it for it in lint(file, CONNECTORS) if it.severity is Severity.ERROR] == []


def test_a_login_with_a_password_stays_in_the_jaas_file(tmp_path: Path) -> None:
    found = translated(tmp_path, CONSUMER + SASL, PRODUCER + SASL, login=PASSWORD)
    assert "word-of-mirror" not in found.text
    assert not [it for it in values_of(found) if it.endswith("sasl.jaas.config")]
    assert [it.split(" ")[0] for it in found.remarks] == [
        f"{side}.sasl.jaas.config" for side in ("A", "B")
    ]
    assert all("same KAFKA_OPTS" in it for it in found.remarks)


def test_a_side_without_sasl_or_with_its_own_login_gets_no_other(tmp_path: Path) -> None:
    own = "sasl.jaas.config=a.Module required;\n"
    values = values_of(translated(tmp_path, CONSUMER + SASL + own, PRODUCER, login=KERBEROS))
    assert values["A.sasl.jaas.config"].startswith("${file:")
    assert "B.sasl.jaas.config" not in values
