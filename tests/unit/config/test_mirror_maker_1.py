"""Properties files of MirrorMaker 1, old names among them, and its lists of topics."""

from pathlib import Path

import pytest

from mm2py.errors import ConfigError
from mm2py_migrate.mirror_maker_1.options import consumer_file, producer_file, topic_choice


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
def test_what_may_lose_or_reorder_is_warned_about_and_kept(
    tmp_path: Path, line: str, said: str
) -> None:
    found = producer_file(written(tmp_path, f"bootstrap.servers=h:1\n{line}\n"))
    name, value = line.split("=")
    assert found.values[name] == value
    assert [it for it in found.warnings if said in it]


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


@pytest.mark.parametrize(("include", "exclude"), [("a", "b"), ("", ""), ("a(", "")])
def test_both_lists_neither_and_a_wrong_expression_are_refused(include: str, exclude: str) -> None:
    with pytest.raises(ConfigError):
        topic_choice(include, exclude)
