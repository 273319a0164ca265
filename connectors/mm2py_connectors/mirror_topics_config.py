"""Options of the connectors that copy records: which topics, and how their copies are kept in step.

Flow: ``MirrorSourceConfig`` and ``MirrorSinkConfig`` extend it -> ``mm2py_connectors.topic_upkeep``. Java's order.
"""

from typing import Annotated

from mm2py.config.class_names import DEFAULT_CONFIG_PROPERTY_FILTER, DEFAULT_TOPIC_FILTER
from mm2py.config.definitions import Option
from mm2py.config.java_values import JavaType
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
from mm2py_connectors.mirror_connector_config import (
    ConsumerPollTimeout,
    MirrorConnectorConfig,
    replicas,
    seconds,
    switch,
)

__all__ = ["HeartbeatsReplication", "MirrorTopicsConfig"]

HeartbeatsReplication = Annotated[bool, switch("Copy heartbeat topics whatever topics says.")]


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
        int, seconds("How often to look for new topics and partitions.", "600")
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
            "In a mirror maker file: what copies the records of the flow. source: MirrorSourceConnector, whole batches with "
            "positions of its own. sink: MirrorSinkConnector, record by record, through a consumer group of the source that "
            "every lag tool sees, with transforms and a dead letter queue; it starts where that group is.",
            choices=("source", "sink"),
            any_case=True,
            ours=True,
            java_default="source",
            importance="MEDIUM",
        ),
    ] = "source"
