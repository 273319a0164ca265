"""Which topics, topic configs and groups are replicated: Java's default filters, and third parties'.

Flow: connector config -> ``topic_filter_from_config`` / ``group_filter_from_config`` /
``config_property_filter_from_config`` -> yes or no per name. Excludes win; patterns match whole names. The complete decision on a topic is
``TopicSelection``.
"""

from collections.abc import Mapping
from typing import Final, cast

from mm2py.api.policies import ConfigPropertyFilter, GroupFilter, TopicFilter
from mm2py.config.class_names import (
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_TOPIC_FILTER,
    canonical_class,
)
from mm2py.config.java_regex import PatternList
from mm2py.errors import ConfigError
from mm2py.mirror.plugin_class import build_plugin

__all__ = [
    "DEFAULT_CONFIG_PROPERTIES_EXCLUDE",
    "DEFAULT_GROUPS_EXCLUDE",
    "DEFAULT_TOPICS",
    "DEFAULT_TOPICS_EXCLUDE",
    "DefaultConfigPropertyFilter",
    "DefaultGroupFilter",
    "DefaultTopicFilter",
    "config_property_filter_from_config",
    "group_filter_from_config",
    "topic_filter_from_config",
]

DEFAULT_TOPICS: Final = ".*"
DEFAULT_TOPICS_EXCLUDE: Final = r"mm2.*\.internal, .*\.replica, __.*"
DEFAULT_GROUPS: Final = ".*"
DEFAULT_GROUPS_EXCLUDE: Final = "console-consumer-.*, connect-.*, __.*"
DEFAULT_CONFIG_PROPERTIES_EXCLUDE: Final = (
    "follower.replication.throttled.replicas, leader.replication.throttled.replicas, "
    "message.timestamp.difference.max.ms, log.message.timestamp.before.max.ms, "
    "log.message.timestamp.after.max.ms, message.timestamp.type, "
    "unclean.leader.election.enable, min.insync.replicas"
)
"""As 4.3.1; a value of the user replaces the list."""

TOPIC_FILTER_CLASS: Final = "topic.filter.class"
GROUP_FILTER_CLASS: Final = "group.filter.class"
CONFIG_PROPERTY_FILTER_CLASS: Final = "config.property.filter.class"


class DefaultTopicFilter:
    """``topics`` without ``topics.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._include = _patterns(config, "topics", DEFAULT_TOPICS)
        self._exclude = _patterns(config, "topics.exclude", DEFAULT_TOPICS_EXCLUDE)

    def should_replicate_topic(self, topic: str) -> bool:
        """Whether the lists choose ``topic``."""
        return self._include.matches(topic) and not self._exclude.matches(topic)


class DefaultGroupFilter:
    """``groups`` without ``groups.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._include = _patterns(config, "groups", DEFAULT_GROUPS)
        self._exclude = _patterns(config, "groups.exclude", DEFAULT_GROUPS_EXCLUDE)

    def should_replicate_group(self, group: str) -> bool:
        """Whether the lists choose ``group``."""
        return self._include.matches(group) and not self._exclude.matches(group)


class DefaultConfigPropertyFilter:
    """Everything but ``config.properties.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._exclude = _patterns(
            config, "config.properties.exclude", DEFAULT_CONFIG_PROPERTIES_EXCLUDE
        )
        # Java compares the exact text; anything else means the target's defaults.
        self._source_defaults = config.get("use.defaults.from", "target") == "source"

    def should_replicate_config_property(self, name: str) -> bool:
        """Whether the topic config ``name`` is copied."""
        return not self._exclude.matches(name)

    def should_replicate_source_default(self, name: str) -> bool:
        """Whether the source's default is written to the target too."""
        return self._source_defaults


def topic_filter_from_config(config: Mapping[str, str]) -> TopicFilter:
    """Build the filter that ``topic.filter.class`` names; ``ConfigError`` if there is none."""
    plugin = _plugin(config, TOPIC_FILTER_CLASS, DEFAULT_TOPIC_FILTER, "should_replicate_topic")
    return DefaultTopicFilter(config) if plugin is None else cast("TopicFilter", plugin)


def group_filter_from_config(config: Mapping[str, str]) -> GroupFilter:
    """Build the filter that ``group.filter.class`` names; ``ConfigError`` if there is none."""
    plugin = _plugin(config, GROUP_FILTER_CLASS, DEFAULT_GROUP_FILTER, "should_replicate_group")
    return DefaultGroupFilter(config) if plugin is None else cast("GroupFilter", plugin)


def config_property_filter_from_config(config: Mapping[str, str]) -> ConfigPropertyFilter:
    """Build the filter that ``config.property.filter.class`` names; ``ConfigError`` if none."""
    plugin = _plugin(
        config,
        CONFIG_PROPERTY_FILTER_CLASS,
        DEFAULT_CONFIG_PROPERTY_FILTER,
        "should_replicate_config_property",
        "should_replicate_source_default",
    )
    return (
        DefaultConfigPropertyFilter(config)
        if plugin is None
        else cast("ConfigPropertyFilter", plugin)
    )


def _plugin(config: Mapping[str, str], key: str, default: str, *members: str) -> object | None:
    """Build what ``key`` names, None for Java's default filter."""
    name = canonical_class(config.get(key, default))
    if name == default:
        return None
    return build_plugin(name, key, config, members=members, built_in=(default.rpartition(".")[2],))


def _patterns(config: Mapping[str, str], name: str, absent: str) -> PatternList:
    try:
        return PatternList.of(config.get(name, absent))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", remedy=error.remedy) from error
