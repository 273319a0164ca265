"""Names of remote and internal topics, choice of topics, and first positions, by what Java's tests expect."""

import sys
from collections.abc import Mapping
from pathlib import Path

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
    ClusterAlias,
    FlowName,
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


class RulelessPolicy(DefaultReplicationPolicy):
    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self._rule = config["rule"]

    def remote_topic(self, source_alias: str, topic: str) -> str:
        if self._rule == "raises":
            raise LookupError(topic)
        return {"shares": "all", "illegal": f"{source_alias}/{topic}", "lies": f"x.{topic}"}[
            self._rule
        ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("raises", r"for topic orders of source it raises LookupError\('orders'\)"),
        ("shares", "orders and order-items of source share the copy all"),
        ("illegal", "'source/orders', the copy of orders of source, is no legal name"),
        ("lies", r"topic_source\('x.orders'\) is 'x', of a copy from source"),
    ],
)
def test_a_policy_whose_names_break_a_rule_is_refused(rule: str, said: str) -> None:
    name = f"{__name__}:RulelessPolicy"
    with pytest.raises(ConfigError, match=said):
        policy_from_config({"replication.policy.class": name, "rule": rule})


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
def test_names_are_split_as_java_does(topic: str, source: str | None, upstream: str | None) -> None:
    assert DEFAULT.topic_source(topic) == source
    assert DEFAULT.upstream_topic(topic) == upstream


@pytest.mark.parametrize(
    ("names", "heartbeats", "checkpoints"),
    [
        ("heartbeats source1.heartbeats source2.source1.heartbeats", True, False),
        ("heartbeats! !heartbeats source1heartbeats s-heartbeats", False, False),
        ("source1.checkpoints.internal", False, True),
        ("checkpoints.internal checkpoints-internal source1checkpointsinternal", False, False),
    ],
)
def test_heartbeats_are_known_after_any_number_of_hops_and_checkpoints_need_a_prefix(
    names: str, heartbeats: bool, checkpoints: bool
) -> None:
    for topic in names.split():
        assert DEFAULT.is_heartbeats_topic(topic) is heartbeats
        assert DEFAULT.is_checkpoints_topic(topic) is checkpoints


@pytest.mark.parametrize(
    ("names", "internal"),
    [
        ("__consumer_offsets .hidden mm2-offsets.CLUSTER.internal mm2-user.internal", True),
        ("C.checkpoints.internal", True),
        ("mm2-offsets-CLUSTER-internal mm2-offsets_CLUSTER_internal user.internal", False),
        ("user-internal z.replica", False),
    ],
)
def test_internal_topics_follow_kip_1074(names: str, internal: bool) -> None:
    assert all(DEFAULT.is_internal_topic(topic) is internal for topic in names.split())


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


def test_a_policy_whose_module_is_wrong_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_policy.py").write_text("class Policy(")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match="importing wrong_policy failed: SyntaxError"):
        policy_from_config({"replication.policy.class": "wrong_policy:Policy"})


class Everything:
    def __init__(self, *, accept: bool) -> None:
        self._accept = accept

    def should_replicate_topic(self, topic: str) -> bool:
        return self._accept


def selection(
    config: dict[str, str] | None = None,
    *,
    accept: bool = True,
    heartbeats: bool = True,
    source: str = "source",
) -> TopicSelection:
    return TopicSelection(
        policy_from_config({"source.cluster.alias": source} | (config or {})),
        Everything(accept=accept),
        source_alias=source,
        target_alias="target",
        replicate_heartbeats=heartbeats,
    )


IDENTICAL = {"replication.policy.class": "IdentityReplicationPolicy"}
UNDERSCORE = {"replication.policy.separator": "_"}
REFUSING, AS_FILTERED = selection(accept=False), selection(accept=False, heartbeats=False)
NAMELESS = selection({"replication.policy.separator": ""}, source="")


@pytest.mark.parametrize(
    ("chosen", "copied", "left"),
    [
        pytest.param(
            REFUSING,
            "heartbeats us-west.heartbeats",
            "orders",
            id="heartbeats whatever the filter says",
        ),
        pytest.param(
            selection(UNDERSCORE, accept=False), "", "us-west.heartbeats", id="of another separator"
        ),
        # Another flow, with other aliases for the same clusters, brings them back: each round would be a new topic.
        pytest.param(
            REFUSING, "", "other.source.heartbeats", id="heartbeats that have left the source"
        ),
        pytest.param(AS_FILTERED, "", "heartbeats", id="heartbeats are off and refused"),
        pytest.param(selection(heartbeats=False), "us-west.heartbeats", "", id="off and accepted"),
        # KAFKA-9914: as Kafka 4.4, not as 4.3.1.
        pytest.param(
            selection(),
            "topic1 other.topic1 sources.topic1 source- source",
            "source.topic1 other.source.topic1 source.source.topic1"
            " source.heartbeats target.topic1 target.source.topic1 source.target.topic1"
            " target.source.target.topic1 source.target.source.topic1",
            id="what came from the target is not sent back",
        ),
        pytest.param(
            selection(IDENTICAL),
            "target.topic1 source.target.topic1 othersource.topic1 heartbeats othersource.heartbeats",
            "target.heartbeats target.source.heartbeats source.target.heartbeats",
            id="names that are kept tell no cycles but of heartbeats",
        ),
        pytest.param(NAMELESS, "orders", "heartbeats", id="heartbeats that would keep their name"),
    ],
)
def test_a_flow_copies(chosen: TopicSelection, copied: str, left: str) -> None:
    assert [it for it in copied.split() if not chosen.replicate(it)] == []
    assert [it for it in left.split() if chosen.replicate(it)] == []


@pytest.mark.parametrize("separator", [".", "_", "-"])
def test_the_checkpoints_of_a_flow_are_no_copy_of_a_topic_that_is_gone(separator: str) -> None:
    """The doctor gives a command that deletes such copies."""
    chosen = selection({"replication.policy.separator": separator})
    copies = [separator.join(("source", it)) for it in ("checkpoints", "orders")]
    own = f"{copies[0]}{separator}internal"
    assert chosen.gone([], [own, copies[1]]) == {"orders": copies[1]}


def test_a_flow_names_copies_by_the_aliases_that_its_file_gives_the_connectors() -> None:
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    nameless = {"replication.policy.separator": "", "source.cluster.alias": ""}
    assert TopicSelection.of(flow, nameless).copy_of("orders") == "orders"
    assert TopicSelection.of(flow, {}).copy_of("orders") == "A.orders"
    renamed = TopicSelection.of(flow, {"target.cluster.alias": "dr"})
    assert renamed.is_cycle("dr.orders")
    assert not renamed.is_cycle("B.orders")


@pytest.mark.parametrize("separator", [".", "_", "-", "--", "", "x"])
@pytest.mark.parametrize("policy", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"])
def test_internal_topics_are_never_copied_whatever_the_separator_and_the_excludes(
    separator: str, policy: str
) -> None:
    config = {
        "replication.policy.class": policy,
        "replication.policy.separator": separator,
        "topics": ".*",
        "topics.exclude": "nothing",
        "source.cluster.alias": "A",
    }
    names = policy_from_config(config)
    chosen = TopicSelection(names, DefaultTopicFilter(config), source_alias="A", target_alias="B")
    internal = [f"mm2-{kind}.B.internal" for kind in ("configs", "offsets", "status")]
    internal += [f"mm2py-{kind}.B.internal" for kind in ("ledger", "offset-map", "flows")]
    internal += ["mm2py-producers.internal", names.offset_syncs_topic("C")]
    internal += [names.checkpoints_topic("C"), "C.checkpoints.internal", "B_checkpoints_internal"]
    internal += ["mm2-offset-syncs_C_internal", "C-checkpoints-internal"]
    internal += ["C-mm2-configs.D.internal", "C_mm2py-ledger.D.internal", "Cxmm2-status.D.internal"]
    assert [it for it in internal if chosen.replicate(it)] == []
    if policy == "DefaultReplicationPolicy" and separator:
        copies = [names.remote_topic("C", it) for it in internal]
        assert [it for it in copies if chosen.replicate(it)] == []
    users = "orders mm2-orders user.internal checkpoints.internal my-internal"
    if separator in {".", "-"}:  # with "_" Java's own rule takes them for internal
        users += " flink_checkpoints_internal mm2py-billing_internal mm2-status_board_internal"
    for topic in users.split():
        assert chosen.replicate(topic)


def test_checkpoints_of_another_mirror_are_known_by_its_other_topics() -> None:
    chosen = TopicSelection(
        policy_from_config({"replication.policy.separator": "-"}),
        DefaultTopicFilter({"topics.exclude": "nothing"}),
        source_alias="A",
        target_alias="B",
    )
    listed = ["X_checkpoints_internal", "flink_checkpoints_internal", "mm2-configs.X.internal"]
    assert chosen.replicate("X_checkpoints_internal")
    chosen.learn(listed)
    assert [it for it in listed if chosen.replicate(it)] == ["flink_checkpoints_internal"]


def test_the_flow_a_to_b_chooses_what_4_3_1_chose_but_names_that_came_from_a() -> None:
    names = "A.odd B.odd C.B.odd user.internal user-internal my-heartbeats C.heartbeats z.replica"
    names += " mm2-user.internal .hidden C.checkpoints.internal"
    chosen = TopicSelection(
        policy_from_config({}), DefaultTopicFilter({}), source_alias="A", target_alias="B"
    )
    copied = "user.internal user-internal my-heartbeats C.heartbeats"
    assert [it for it in names.split() if chosen.replicate(it)] == copied.split()
    assert chosen.returned(names.split()) == ["A.odd"]


@pytest.mark.parametrize("left", ["A.heartbeats", "A.B.odd", "A.checkpoints.internal", "A.secret"])
def test_what_is_left_out_for_another_reason_is_no_topic_that_came_back(left: str) -> None:
    chosen = TopicSelection(
        policy_from_config({}),
        DefaultTopicFilter({"topics.exclude": "A.secret, .*[-.]internal"}),
        source_alias="A",
        target_alias="B",
    )
    assert not chosen.replicate(left)
    assert chosen.returned([left]) == []


def test_topic_lists_match_whole_names_and_excludes_win() -> None:
    chosen = DefaultTopicFilter({"topics": "topic1, t.*", "topics.exclude": "tx"})
    assert chosen.should_replicate_topic("topic1")
    assert chosen.should_replicate_topic("tea")
    assert not chosen.should_replicate_topic("tx")
    assert not chosen.should_replicate_topic("a-topic1")


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
