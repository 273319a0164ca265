"""Which topics, topic configs and groups are replicated: Java's default filters, and third parties'.

Flow: connector config -> ``topic_filter_from_config`` / ``group_filter_from_config`` /
``config_property_filter_from_config`` -> yes or no per name. Excludes win; patterns match whole names. The complete decision on a topic is
``TopicSelection``.
"""

from collections.abc import Mapping
from typing import cast

from mm2py.api.policies import ConfigPropertyFilter, GroupFilter, TopicFilter
from mm2py.config.class_names import (
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_TOPIC_FILTER,
    canonical_class,
)
from mm2py.config.definitions import parse_config
from mm2py.config.java_regex import PatternList
from mm2py.config.mirror_options import (
    ConfigPropertyFilterConfig,
    GroupFilterConfig,
    TopicFilterConfig,
)
from mm2py.errors import ConfigError
from mm2py.mirror.plugin_class import build_plugin


class DefaultTopicFilter:
    """``topics`` without ``topics.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(TopicFilterConfig, config)
        self._include = _patterns("topics", read.topics)
        self._exclude = _patterns("topics.exclude", read.topics_exclude)

    def should_replicate_topic(self, topic: str) -> bool:
        """Whether the lists choose ``topic``."""
        return self._include.matches(topic) and not self._exclude.matches(topic)


class DefaultGroupFilter:
    """``groups`` without ``groups.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(GroupFilterConfig, config)
        self._include = _patterns("groups", read.groups)
        self._exclude = _patterns("groups.exclude", read.groups_exclude)

    def should_replicate_group(self, group: str) -> bool:
        """Whether the lists choose ``group``."""
        return self._include.matches(group) and not self._exclude.matches(group)


class DefaultConfigPropertyFilter:
    """Everything but ``config.properties.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(ConfigPropertyFilterConfig, config)
        self._exclude = _patterns("config.properties.exclude", read.config_properties_exclude)
        # Java compares the exact text; anything else means the target's defaults.
        self._source_defaults = read.use_defaults_from == "source"

    def should_replicate_config_property(self, name: str) -> bool:
        """Whether the topic config ``name`` is copied."""
        return not self._exclude.matches(name)

    def should_replicate_source_default(self, name: str) -> bool:
        """Whether the source's default is written to the target too."""
        return self._source_defaults


def topic_filter_from_config(config: Mapping[str, str]) -> TopicFilter:
    """Build the filter that ``topic.filter.class`` names; ``ConfigError`` if there is none."""
    name = parse_config(TopicFilterConfig, config).topic_filter_class
    plugin = _plugin(
        config, "topic.filter.class", name, DEFAULT_TOPIC_FILTER, "should_replicate_topic"
    )
    return DefaultTopicFilter(config) if plugin is None else cast("TopicFilter", plugin)


def group_filter_from_config(config: Mapping[str, str]) -> GroupFilter:
    """Build the filter that ``group.filter.class`` names; ``ConfigError`` if there is none."""
    name = parse_config(GroupFilterConfig, config).group_filter_class
    plugin = _plugin(
        config, "group.filter.class", name, DEFAULT_GROUP_FILTER, "should_replicate_group"
    )
    return DefaultGroupFilter(config) if plugin is None else cast("GroupFilter", plugin)


def config_property_filter_from_config(config: Mapping[str, str]) -> ConfigPropertyFilter:
    """Build the filter that ``config.property.filter.class`` names; ``ConfigError`` if none."""
    plugin = _plugin(
        config,
        "config.property.filter.class",
        parse_config(ConfigPropertyFilterConfig, config).config_property_filter_class,
        DEFAULT_CONFIG_PROPERTY_FILTER,
        "should_replicate_config_property",
        "should_replicate_source_default",
    )
    return (
        DefaultConfigPropertyFilter(config)
        if plugin is None
        else cast("ConfigPropertyFilter", plugin)
    )


def _plugin(
    config: Mapping[str, str], key: str, given: str, default: str, *members: str
) -> object | None:
    """Build what ``key`` names, None for Java's default filter."""
    name = canonical_class(given)
    if name == default:
        return None
    return build_plugin(name, key, config, members=members, built_in=(default.rpartition(".")[2],))


def _patterns(name: str, items: tuple[str, ...]) -> PatternList:
    try:
        return PatternList(items)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", remedy=error.remedy) from error
