"""Options of the connectors that copy records: which topics, and how their copies are kept in step.

Flow: ``MirrorSourceConfig`` and ``MirrorSinkConfig`` extend it ->
``mm2py_connectors.topic_upkeep``. Java's order.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import DEFAULT_CONFIG_PROPERTY_FILTER, DEFAULT_TOPIC_FILTER
from mm2py.config.definitions import Option, Problem
from mm2py.config.java_values import JavaType, parse_list
from mm2py.config.mirror_options import (
    CONFIG_PROPERTIES_EXCLUDE,
    TOPICS,
    TOPICS_EXCLUDE,
    ConfigPropertiesExclude,
    ConfigPropertyFilterClass,
    TopicFilterClass,
    Topics,
    TopicsExclude,
)
from mm2py.errors import ConfigError
from mm2py.mirror.start_positions import START_POSITIONS, StartPositions
from mm2py_connectors.mirror_connector_config import (
    ConsumerPollTimeout,
    MirrorConnectorConfig,
    replicas,
    seconds,
    switch,
)

HeartbeatsReplication = Annotated[bool, switch("Copy heartbeat topics whatever topics says.")]
StartRules = Annotated[
    tuple[str, ...],
    Option(
        JavaType.LIST,
        "Where a partition without a stored position begins: topic=position, "
        "topic:partition=position, or a position for all others. "
        "Positions: earliest, latest, a timestamp, `24 hours ago`, offset:N.",
        ours=True,
        java_default="auto.offset.reset",
        importance="MEDIUM",
    ),
]


def start_problems(props: Mapping[str, str]) -> list[Problem]:
    """Return what is wrong with ``start.positions``."""
    text = props.get(START_POSITIONS, "")
    try:
        StartPositions.parse(parse_list(text), SYSTEM_CLOCK)
    except ConfigError as error:
        return [Problem(START_POSITIONS, text, error.message, error.remedy)]
    return []


class MirrorTopicsConfig(MirrorConnectorConfig):
    """What MirrorSource and MirrorSink have in common."""

    topics: Topics = TOPICS
    topics_exclude: TopicsExclude = TOPICS_EXCLUDE
    config_properties_exclude: ConfigPropertiesExclude = CONFIG_PROPERTIES_EXCLUDE
    topic_filter_class: TopicFilterClass = DEFAULT_TOPIC_FILTER
    config_property_filter_class: ConfigPropertyFilterClass = DEFAULT_CONFIG_PROPERTY_FILTER
    consumer_poll_timeout_ms: ConsumerPollTimeout = 1_000
    refresh_topics_enabled: Annotated[bool, switch("Look for new topics and partitions.")] = True
    refresh_topics_interval_seconds: Annotated[
        int,
        seconds(
            "How often to look for new topics and partitions. Not set: each second where the "
            "source has at most 1,000 partitions.",
            "600",
        ),
    ] = 5
    sync_topic_configs_enabled: Annotated[bool, switch("Copy topic configs.")] = True
    sync_topic_configs_interval_seconds: Annotated[
        int, seconds("How often to copy topic configs.")
    ] = 600
    sync_topic_acls_enabled: Annotated[
        bool, switch("Copy topic ACLs (reading and describing).")
    ] = True
    sync_topic_acls_interval_seconds: Annotated[int, seconds("How often to copy topic ACLs.")] = 600
    replication_factor: Annotated[int, replicas("new remote topics", JavaType.INT)] = 2
    copy_connector: Annotated[
        str,
        Option(
            JavaType.STRING,
            "In a mirror maker file: source copies whole batches with MirrorSourceConnector. "
            "sink copies record by record "
            "with MirrorSinkConnector, through a consumer group of the source.",
            choices=("source", "sink"),
            any_case=True,
            ours=True,
            java_default="source",
            importance="MEDIUM",
        ),
    ] = "source"
