"""Names of remote and internal topics, choice of topics, and first positions, by what Java's tests expect."""

from collections.abc import Mapping

import pytest

from mm2py.api.policies import DefaultReplicationPolicy, IdentityReplicationPolicy
from mm2py.errors import ConfigError
from mm2py.mirror.filters import (
    DefaultConfigPropertyFilter,
    DefaultTopicFilter,
    TopicSelection,
    config_property_filter_from_config,
    topic_filter_from_config,
)
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.start_positions import Boundary, StartPositions, parse_boundary
from mm2py.testing.clock import FakeClock
from mm2py.types import (
    EARLIEST,
    LATEST,
    TopicPartition,
    asked_start,
    start_at_offset,
    start_at_time,
)
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

DEFAULT = DefaultReplicationPolicy({})
IDENTITY = IdentityReplicationPolicy({"source.cluster.alias": "primary"})


class UpperPolicy(DefaultReplicationPolicy):
    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self.config = config

    def remote_topic(self, source_alias: str, topic: str) -> str:
        return topic.upper()


class NoPolicy:
    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = config


class BrokenPolicy:
    def __init__(self, config: Mapping[str, str]) -> None:
        raise KeyError(len(config))


@pytest.mark.parametrize(
    ("topic", "source", "upstream"),
    [
        ("topic", None, None),
        ("A.topic", "A", "topic"),
        ("B.A.topic", "B", "A.topic"),
        (".topic", "", "topic"),
        ("topic.", None, None),
        ("topic..", None, None),
        ("A..topic", "A", ".topic"),
        ("", None, None),
    ],
)
def test_default_policy_splits_as_java_does(
    topic: str, source: str | None, upstream: str | None
) -> None:
    assert DEFAULT.topic_source(topic) == source
    assert DEFAULT.upstream_topic(topic) == upstream


def test_default_policy_prefixes_and_finds_the_original() -> None:
    assert DEFAULT.remote_topic("A", "orders") == "A.orders"
    assert DEFAULT.original_topic("C.B.A.orders") == "orders"
    assert DEFAULT.original_topic("orders") == "orders"


@pytest.mark.parametrize(
    "topic", ["heartbeats", "source1.heartbeats", "source2.source1.heartbeats"]
)
def test_heartbeats_topics_are_known_after_any_number_of_hops(topic: str) -> None:
    assert DEFAULT.is_heartbeats_topic(topic)


@pytest.mark.parametrize(
    "topic", ["heartbeats!", "!heartbeats", "source1heartbeats", "s-heartbeats"]
)
def test_other_names_are_no_heartbeats_topics(topic: str) -> None:
    assert not DEFAULT.is_heartbeats_topic(topic)


def test_checkpoints_topics_need_a_prefix() -> None:
    assert DEFAULT.is_checkpoints_topic("source1.checkpoints.internal")
    for topic in ("checkpoints.internal", "checkpoints-internal", "source1checkpointsinternal"):
        assert not DEFAULT.is_checkpoints_topic(topic)


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("__consumer_offsets", True),
        (".hidden", True),
        ("mm2-offsets.CLUSTER.internal", True),
        ("mm2-user.internal", True),
        ("C.checkpoints.internal", True),
        ("mm2-offsets-CLUSTER-internal", False),
        ("mm2-offsets_CLUSTER_internal", False),
        ("user.internal", False),
        ("user-internal", False),
        ("z.replica", False),
    ],
)
def test_internal_topics_follow_kip_1074(topic: str, internal: bool) -> None:
    assert DEFAULT.is_internal_topic(topic) is internal


def test_internal_names_take_the_separator_only_when_enabled() -> None:
    on = DefaultReplicationPolicy({"replication.policy.separator": "__"})
    off = DefaultReplicationPolicy(
        {
            "replication.policy.separator": "__",
            "replication.policy.internal.topic.separator.enabled": "False",
        }
    )
    assert on.offset_syncs_topic("C") == "mm2-offset-syncs__C__internal"
    assert on.checkpoints_topic("C") == "C__checkpoints__internal"
    assert off.offset_syncs_topic("C") == "mm2-offset-syncs.C.internal"
    assert off.checkpoints_topic("C") == "C.checkpoints.internal"
    assert on.heartbeats_topic() == off.heartbeats_topic() == "heartbeats"
    assert on.remote_topic("A", "t") == "A__t"
    assert on.topic_source("A__B__t") == "A"


def test_an_empty_separator_means_names_without_provenance() -> None:
    policy = DefaultReplicationPolicy({"replication.policy.separator": ""})
    assert policy.remote_topic("", "orders") == "orders"
    assert policy.topic_source("orders") is None
    assert policy.detects_cycles is False
    assert DEFAULT.detects_cycles is True


def test_identity_policy_keeps_names_but_prefixes_heartbeats() -> None:
    assert IDENTITY.remote_topic("primary", "topic1") == "topic1"
    assert IDENTITY.topic_source("topic1") == "primary"
    assert IDENTITY.upstream_topic("topic1") == "topic1"
    assert IDENTITY.remote_topic("backup", "heartbeats") == "backup.heartbeats"
    assert IDENTITY.topic_source("backup.heartbeats") == "backup"
    assert IDENTITY.topic_source("heartbeats") is None
    assert IDENTITY.remote_topic("backup", "my-heartbeats") == "backup.my-heartbeats"
    assert IDENTITY.original_topic("x.topic1") == "x.topic1"
    assert IDENTITY.detects_cycles is False


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.apache.kafka.connect.mirror.DefaultReplicationPolicy", DefaultReplicationPolicy),
        ("org.apache.kafka.connect.mirror.IdentityReplicationPolicy", IdentityReplicationPolicy),
        ("IdentityReplicationPolicy", IdentityReplicationPolicy),
        ("LegacyReplicationPolicy", IdentityReplicationPolicy),
    ],
)
def test_built_in_policies_are_found_by_java_and_short_names(name: str, kind: type) -> None:
    assert type(policy_from_config({"replication.policy.class": name})) is kind


def test_no_policy_class_means_the_default_one() -> None:
    assert type(policy_from_config({})) is DefaultReplicationPolicy


@pytest.mark.parametrize("name", [f"{__name__}:UpperPolicy", f"{__name__}.UpperPolicy"])
def test_a_python_policy_is_loaded_and_given_the_config(name: str) -> None:
    config = {"replication.policy.class": name}
    policy = policy_from_config(config)
    assert policy.remote_topic("A", "orders") == "ORDERS"
    assert isinstance(policy, UpperPolicy)
    assert policy.config == config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("com.acme.OurPolicy", "unknown class"),
        ("OurPolicy", "unknown class"),
        ("json:OurPolicy", "module json has no class OurPolicy"),
        (f"{__name__}:NoPolicy", "it lacks checkpoints_topic"),
        (f"{__name__}:BrokenPolicy", "building it failed: KeyError(1)"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_refused_with_a_remedy(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        policy_from_config({"replication.policy.class": name})
    assert text in refused.value.message
    assert refused.value.message.startswith(f"replication.policy.class={name}")
    assert refused.value.remedy


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


HOUR_MS = 3_600_000


@pytest.mark.parametrize("number", [0, 1, 99, 1 << 62])
def test_a_start_position_carries_its_time_or_offset_and_no_other_does(number: int) -> None:
    assert asked_start(start_at_time(number)) == (number, None)
    assert asked_start(start_at_offset(number)) == (None, number)
    for position in (number, EARLIEST, LATEST, -6):
        assert asked_start(position) == (None, None)


def test_the_first_item_about_a_partition_counts() -> None:
    clock = FakeClock()
    now_ms = clock.now_ms()
    starts = StartPositions.parse(
        [
            "orders:1 = offset:5",
            "orders=latest",
            "clicks.*=2 Hours ago",
            "a[.=]b=earliest",
            "1970-01-01T00:00:01Z",
        ],
        clock,
    )
    found = {
        ("orders", 1): start_at_offset(5),
        ("orders", 0): LATEST,
        ("clicks-eu", 3): start_at_time(now_ms - 2 * HOUR_MS),
        ("my-orders", 0): start_at_time(1_000),
        ("a=b", 0): EARLIEST,
    }
    assert {key: starts.of(TopicPartition(*key)) for key in found} == found
    assert starts.has_latest
    alone = StartPositions.parse(["orders=10 minutes ago"], clock)
    assert alone.of(TopicPartition("other", 0)) is None
    assert not alone.has_latest


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("orders=soon", "position 'soon' is not understood"),
        ("orders=", "position '' is not understood"),
        ("=latest", "names no topic"),
        ("orders:x=latest", "names no partition"),
        ("orders(=latest", "orders"),
        ("-5 hours ago", "is not understood"),
    ],
)
def test_an_item_that_is_none_is_refused_with_what_to_write(item: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        StartPositions.parse([item], FakeClock())
    assert refusal.value.remedy
    problems = MirrorSourceConfig.cross_check({"start.positions": item})
    assert [it.name for it in problems] == ["start.positions"]


def test_a_backfill_takes_ages_too() -> None:
    clock = FakeClock()
    found = parse_boundary("1 day ago", "--from", "earliest", clock=clock)
    assert found == Boundary(timestamp=clock.now_ms() - 24 * HOUR_MS)
