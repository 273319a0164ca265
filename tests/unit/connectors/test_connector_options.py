"""Options of the mirror connectors: Java's defaults, ours beside them, and combinations refused."""

import pytest

from mm2py.config.definitions import check_config, options_of, parse_config
from mm2py.config.mirror_options import CONFIG_PROPERTIES_EXCLUDE
from mm2py.errors import ConfigError
from mm2py_connectors.config import CONNECTORS
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig, MirrorSourceTaskConfig

ALIAS = {"source.cluster.alias": "A"}


def test_defaults_are_javas_but_for_these() -> None:
    differ = {
        (name, option.default, option.java_default)
        for d in CONNECTORS
        for name, option in options_of(d.model).items()
        if option.java_default is not None and not option.ours
    }
    excluded = ",".join(CONFIG_PROPERTIES_EXCLUDE)
    assert differ == {
        ("config.properties.exclude", excluded, excluded.removesuffix(",message.format.version")),
        ("refresh.topics.interval.seconds", "5", "600"),
        ("refresh.groups.interval.seconds", "5", "600"),
        ("emit.checkpoints.interval.seconds", None, "60"),
        ("sync.group.offsets.interval.seconds", None, "60"),
        ("metric.reporters", "", "org.apache.kafka.common.metrics.JmxReporter"),
    }


def test_task_options_do_not_leak_into_the_connectors() -> None:
    assert "task.assigned.partitions" not in options_of(MirrorSourceConfig)
    with pytest.raises(ConfigError, match=r"task\.assigned\.partitions: is missing"):
        parse_config(MirrorSourceTaskConfig, ALIAS)
    task = parse_config(
        MirrorSourceTaskConfig,
        ALIAS | {"task.assigned.partitions": "topic-1-2,topic-3-4", "task.index": "1"},
    )
    assert (task.task_assigned_partitions, task.task_index) == (("topic-1-2", "topic-3-4"), 1)


def test_minus_one_replica_takes_the_brokers_default_and_none_is_refused() -> None:
    assert (
        parse_config(MirrorSourceConfig, ALIAS | {"replication.factor": "-1"}).replication_factor
        == -1
    )
    for text in ("0", "-2", "32768"):
        assert check_config(MirrorSourceConfig, ALIAS | {"replication.factor": text})


def test_required_exactly_once_needs_read_committed() -> None:
    props = ALIAS | {"exactly.once.support": "required"}
    with pytest.raises(ConfigError, match="read_committed"):
        parse_config(MirrorSourceConfig, props)
    parse_config(MirrorSourceConfig, props | {"source.consumer.isolation.level": "read_committed"})


def test_settings_of_offset_syncs_contradict_their_being_off() -> None:
    props = ALIAS | {"emit.offset-syncs.enabled": "false"}
    parse_config(MirrorSourceConfig, props)
    with pytest.raises(ConfigError, match=r"contradicts offset-syncs\.topic\.location"):
        parse_config(MirrorSourceConfig, props | {"offset-syncs.topic.location": "source"})


@pytest.mark.parametrize("name", ["emit.checkpoints.enabled", "emit.offset-syncs.enabled"])
def test_a_checkpoint_connector_without_its_topics_is_refused_unless_disabled(name: str) -> None:
    props = ALIAS | {name: "false"}
    assert check_config(MirrorCheckpointConfig, props)[0].name == name
    assert check_config(MirrorCheckpointConfig, props | {"enabled": "false"}) == []
