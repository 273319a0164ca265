"""Which topics are copied: filters, heartbeats, internal names and cycles together."""

import pytest

from mm2py.errors import ConfigError
from mm2py.mirror.filters import (
    DefaultConfigPropertyFilter,
    DefaultTopicFilter,
    TopicSelection,
    config_property_filter_from_config,
    topic_filter_from_config,
)
from mm2py.mirror.policies import policy_from_config


class Everything:
    def should_replicate_topic(self, topic: str) -> bool:
        return bool(topic)


class Nothing:
    def should_replicate_topic(self, topic: str) -> bool:
        return not topic


def selection(
    config: dict[str, str] | None = None,
    *,
    accept: bool = True,
    heartbeats: bool = True,
    source: str = "source",
    target: str = "target",
) -> TopicSelection:
    return TopicSelection(
        policy_from_config({"source.cluster.alias": source} | (config or {})),
        Everything() if accept else Nothing(),
        source_alias=source,
        target_alias=target,
        replicate_heartbeats=heartbeats,
    )


def test_heartbeats_are_copied_whatever_the_filter_says() -> None:
    refusing = selection(accept=False)
    assert refusing.replicate("heartbeats")
    assert refusing.replicate("us-west.heartbeats")
    assert not refusing.replicate("orders")
    other_separator = selection({"replication.policy.separator": "_"}, accept=False)
    assert not other_separator.replicate("us-west.heartbeats")


def test_heartbeats_are_left_to_the_filter_when_their_replication_is_off() -> None:
    assert not selection(accept=False, heartbeats=False).replicate("heartbeats")
    assert selection(accept=True, heartbeats=False).replicate("us-west.heartbeats")


@pytest.mark.parametrize(
    "topic",
    [
        "target.topic1",
        "target.source.topic1",
        "source.target.topic1",
        "target.source.target.topic1",
        "source.target.source.topic1",
    ],
)
def test_a_topic_that_came_from_the_target_is_not_sent_back(topic: str) -> None:
    assert not selection().replicate(topic)


@pytest.mark.parametrize("topic", ["topic1", "source.topic1", "other.topic1"])
def test_other_topics_are_no_cycles(topic: str) -> None:
    """``source.topic1`` is copied as by 4.3.1; KAFKA-9914 is not in it."""
    assert selection().replicate(topic)


@pytest.mark.parametrize(
    ("topic", "copied"),
    [
        ("target.topic1", True),
        ("source.target.topic1", True),
        ("othersource.topic1", True),
        ("heartbeats", True),
        ("othersource.heartbeats", True),
        ("target.heartbeats", False),
        ("target.source.heartbeats", False),
        ("source.target.heartbeats", False),
    ],
)
def test_identity_names_cannot_tell_cycles_except_for_heartbeats(topic: str, copied: bool) -> None:
    config = {"replication.policy.class": "IdentityReplicationPolicy"}
    assert selection(config).replicate(topic) is copied


@pytest.mark.parametrize(
    ("topic", "copied"),
    [
        ("A.odd", True),
        ("B.odd", False),
        ("C.B.odd", False),
        ("user.internal", True),
        ("user-internal", True),
        ("my-heartbeats", True),
        ("C.heartbeats", True),
        ("mm2-user.internal", False),
        ("z.replica", False),
        (".hidden", False),
        ("C.checkpoints.internal", False),
    ],
)
def test_the_flow_a_to_b_chooses_what_4_3_1_chose(topic: str, copied: bool) -> None:
    chosen = TopicSelection(
        policy_from_config({}), DefaultTopicFilter({}), source_alias="A", target_alias="B"
    )
    assert chosen.replicate(topic) is copied


def test_heartbeats_that_would_keep_their_name_are_not_copied() -> None:
    loop = selection({"replication.policy.separator": ""}, source="")
    assert not loop.replicate("heartbeats")
    assert loop.replicate("orders")


def test_topic_lists_match_whole_names_and_excludes_win() -> None:
    chosen = DefaultTopicFilter({"topics": "topic1, t.*", "topics.exclude": "tx"})
    assert chosen.should_replicate_topic("topic1")
    assert chosen.should_replicate_topic("tea")
    assert not chosen.should_replicate_topic("tx")
    assert not chosen.should_replicate_topic("a-topic1")


def test_an_empty_topic_list_matches_nothing() -> None:
    assert not DefaultTopicFilter({"topics": ""}).should_replicate_topic("topic1")
    assert not DefaultTopicFilter({"topics": ""}).should_replicate_topic("")


def test_config_properties_exclude_replaces_the_defaults() -> None:
    default = DefaultConfigPropertyFilter({})
    assert not default.should_replicate_config_property("min.insync.replicas")
    assert not default.should_replicate_config_property("message.format.version")
    assert default.should_replicate_config_property("message.timestamp.after.max.ms")
    custom = DefaultConfigPropertyFilter({"config.properties.exclude": "prop2"})
    assert custom.should_replicate_config_property("min.insync.replicas")
    assert not custom.should_replicate_config_property("prop2")


def test_source_defaults_count_only_for_the_exact_word() -> None:
    source = DefaultConfigPropertyFilter({"use.defaults.from": "source"})
    assert source.should_replicate_source_default("retention.ms")
    other = DefaultConfigPropertyFilter({"use.defaults.from": "Source"})
    assert not other.should_replicate_source_default("retention.ms")


def test_a_pattern_that_is_none_names_its_property() -> None:
    with pytest.raises(ConfigError, match=r"^topics: "):
        topic_filter_from_config({"topics": "[a"})
    with pytest.raises(ConfigError, match=r"^config\.property\.filter\.class=com\.acme\.F"):
        config_property_filter_from_config({"config.property.filter.class": "com.acme.F"})


def test_java_names_of_the_filters_are_ours() -> None:
    name = "org.apache.kafka.connect.mirror.DefaultTopicFilter"
    assert isinstance(topic_filter_from_config({"topic.filter.class": name}), DefaultTopicFilter)
