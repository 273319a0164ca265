"""Naming of remote and internal topics, by the expectations of Java's own tests."""

from collections.abc import Mapping

import pytest

from mm2py.api.policies import DefaultReplicationPolicy, IdentityReplicationPolicy
from mm2py.errors import ConfigError
from mm2py.mirror.policies import policy_from_config

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
