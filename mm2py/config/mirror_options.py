"""Options of replication policies and filters, with Java's defaults.

Flow: connector config -> ``mm2py.mirror.filters``, ``mm2py.mirror.policies``; the same declarations
are fields of the connectors' configs, because Java lists them there.
"""

from typing import Annotated, Final

from mm2py.config.class_names import (
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_TOPIC_FILTER,
)
from mm2py.config.definitions import ConfigModel, Option
from mm2py.config.java_values import JavaType

_STRING, _PATTERNS, _CLASS = JavaType.STRING, JavaType.PATTERNS, JavaType.CLASS
_Texts = tuple[str, ...]

DEFAULT_SEPARATOR: Final = "."
"""Between the parts of a remote topic's name. As in Java a policy reads the text of its options
itself, untrimmed."""

Topics = Annotated[
    _Texts,
    Option(
        _PATTERNS,
        "Topics to copy, and whose group offsets are translated: names or Java patterns for the "
        "whole name.",
        importance="HIGH",
    ),
]
TOPICS: Final = (".*",)
TopicsExclude = Annotated[
    _Texts, Option(_PATTERNS, "Topics left out; wins over topics.", importance="HIGH")
]
TOPICS_EXCLUDE: Final = (r"mm2.*\.internal", r".*\.replica", "__.*")
TopicFilterClass = Annotated[str, Option(_CLASS, "Class that selects topics.")]

Groups = Annotated[
    _Texts,
    Option(
        _PATTERNS, "Consumer groups: names or Java patterns for the whole name.", importance="HIGH"
    ),
]
GROUPS: Final = (".*",)
GroupsExclude = Annotated[
    _Texts, Option(_PATTERNS, "Groups left out; wins over groups.", importance="HIGH")
]
GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
GroupFilterClass = Annotated[str, Option(_CLASS, "Class that selects groups.")]

_JAVA_CONFIG_PROPERTIES_EXCLUDE: Final = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.timestamp.difference.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    "min.insync.replicas",
)
CONFIG_PROPERTIES_EXCLUDE: Final = (*_JAVA_CONFIG_PROPERTIES_EXCLUDE, "message.format.version")
"""As 4.3.1, and what brokers ignore from 3.0 on and refuse from 4.0 on; a value of the user
replaces the list."""
ConfigPropertiesExclude = Annotated[
    _Texts,
    Option(
        _PATTERNS,
        "Topic configs that are not copied.",
        importance="HIGH",
        java_default=",".join(_JAVA_CONFIG_PROPERTIES_EXCLUDE),
    ),
]

ConfigPropertyFilterClass = Annotated[str, Option(_CLASS, "Class that selects topic configs.")]
UseDefaultsFrom = Annotated[
    str,
    Option(
        _STRING,
        "Whose topic config defaults apply: source, or the target's. Only with a flow prefix.",
    ),
]


class TopicFilterConfig(ConfigModel):
    """Java's ``TopicFilterConfig``, and which filter reads it."""

    topics: Topics = TOPICS
    topics_exclude: TopicsExclude = TOPICS_EXCLUDE
    topic_filter_class: TopicFilterClass = DEFAULT_TOPIC_FILTER


class GroupFilterConfig(ConfigModel):
    """Java's ``GroupFilterConfig``, and which filter reads it."""

    groups: Groups = GROUPS
    groups_exclude: GroupsExclude = GROUPS_EXCLUDE
    group_filter_class: GroupFilterClass = DEFAULT_GROUP_FILTER


class ConfigPropertyFilterConfig(ConfigModel):
    """Java's ``ConfigPropertyFilterConfig``, and which filter reads it."""

    config_properties_exclude: ConfigPropertiesExclude = CONFIG_PROPERTIES_EXCLUDE
    config_property_filter_class: ConfigPropertyFilterClass = DEFAULT_CONFIG_PROPERTY_FILTER
    use_defaults_from: UseDefaultsFrom = "target"
