"""Options of MirrorSourceConnector and of its tasks.

Flow: config texts -> ``parse_config`` -> ``mirror_source``, ``mirror_source_task``.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.config.class_names import DEFAULT_CONFIG_PROPERTY_FILTER, DEFAULT_TOPIC_FILTER
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import Option, Problem
from mm2py.config.java_values import JavaType
from mm2py_connectors.mirror_connector_config import (
    TOPICS_EXCLUDE,
    ConsumerPollTimeout,
    MetricNamesFormats,
    MirrorConnectorConfig,
    TopicFilterClass,
    replicas,
    seconds,
)

__all__ = ["MirrorSourceConfig", "MirrorSourceTaskConfig"]

_BOOLEAN, _INT, _LONG, _STRING, _LIST, _PATTERNS, _CLASS = (
    JavaType.BOOLEAN,
    JavaType.INT,
    JavaType.LONG,
    JavaType.STRING,
    JavaType.LIST,
    JavaType.PATTERNS,
    JavaType.CLASS,
)


class MirrorSourceConfig(MirrorConnectorConfig):
    """Options of MirrorSourceConnector (``MirrorSourceConfig``)."""

    topics: Annotated[
        tuple[str, ...],
        Option(
            _PATTERNS,
            "Topics to copy: names or Java patterns that match the whole name.",
            group="topics",
            importance="high",
        ),
    ] = (".*",)
    topics_exclude: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Topics not to copy; wins over topics.", group="topics"),
    ] = TOPICS_EXCLUDE
    topic_filter_class: TopicFilterClass = DEFAULT_TOPIC_FILTER
    config_properties_exclude: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Topic configs that are not copied.", group="configs"),
    ] = (
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.after.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
    )
    config_property_filter_class: Annotated[
        str, Option(_CLASS, "What decides by config.properties.exclude.", group="configs")
    ] = DEFAULT_CONFIG_PROPERTY_FILTER
    use_defaults_from: Annotated[
        str,
        Option(
            _STRING,
            "Whose topic config defaults count: source copies the source's; anything else the "
            "target's. Only with a flow prefix.",
            group="configs",
        ),
    ] = "target"
    consumer_poll_timeout_ms: ConsumerPollTimeout = 1_000
    refresh_topics_enabled: Annotated[
        bool, Option(_BOOLEAN, "Look for new topics and partitions.", group="topics")
    ] = True
    refresh_topics_interval_seconds: Annotated[
        int, seconds("How often to look for new topics and partitions.", "topics", "600")
    ] = 5
    sync_topic_configs_enabled: Annotated[
        bool, Option(_BOOLEAN, "Copy topic configs.", group="configs")
    ] = True
    sync_topic_configs_interval_seconds: Annotated[
        int, seconds("How often to copy topic configs.", "configs")
    ] = 600
    sync_topic_acls_enabled: Annotated[
        bool, Option(_BOOLEAN, "Copy topic ACLs (reading and describing).", group="configs")
    ] = True
    sync_topic_acls_interval_seconds: Annotated[
        int, seconds("How often to copy topic ACLs.", "configs")
    ] = 600
    replication_factor: Annotated[int, replicas("new remote topics", _INT)] = 2
    offset_syncs_topic_replication_factor: Annotated[int, replicas("the offset-syncs topic")] = 3
    offset_syncs_topic_location: Annotated[
        str,
        Option(
            _STRING,
            "Which cluster holds the offset-syncs topic.",
            choices=("source", "target"),
            group="offsets",
        ),
    ] = "source"
    offset_lag_max: Annotated[
        int,
        Option(_LONG, "Records between two offset syncs.", low=0, unit="records", group="offsets"),
    ] = 100
    emit_offset_syncs_enabled: Annotated[
        bool, Option(_BOOLEAN, "Write offset syncs.", group="offsets")
    ] = True
    heartbeats_replication_enabled: Annotated[
        bool, Option(_BOOLEAN, "Copy heartbeat topics whatever topics says.", group="heartbeats")
    ] = True
    metric_names_formats: MetricNamesFormats = ("legacy",)
    flow_max_bytes_per_second: Annotated[
        int,
        Option(
            _LONG,
            "Most bytes of batches, as they lie on the source, that the flow reads per second; 0 is no "
            "limit. Its tasks get equal parts.",
            low=0,
            unit="bytes/s",
            ours=True,
            java_default="no limit",
        ),
    ] = 0
    gap_policy: Annotated[
        str,
        Option(
            _STRING,
            "When records were lost before they could be copied (retention, truncation): "
            "continue behind the gap and report it, or fail the partition.",
            choices=("continue", "fail"),
            group="errors",
            ours=True,
            java_default="continue in silence",
        ),
    ] = "continue"
    recreate_policy: Annotated[
        str,
        Option(
            _STRING,
            "When a source topic was deleted and created again: copy the new one from its start "
            "and report it, or stop the partition.",
            choices=("continue", "stop"),
            group="errors",
            ours=True,
            java_default="continue in silence",
        ),
    ] = "continue"
    offsets_identical: Annotated[
        str,
        Option(
            _STRING,
            "The copies of a partition are written with one lasting producer id, so that a late write of a task that "
            "was killed or frozen doubles nothing, and offsets are the same on both clusters where the source is dense and "
            "nothing else writes to the copy. require: a partition where they cannot be the same stops; off: each "
            "task has a producer id of its own.",
            choices=("prefer", "require", "off"),
            group="offsets",
            ours=True,
            java_default="other offsets",
        ),
    ] = "prefer"
    partition_failure_policy: Annotated[
        str,
        Option(
            _STRING,
            "When one partition cannot go on: isolate it, or fail its whole task.",
            choices=("isolate", "fail"),
            group="errors",
            ours=True,
            java_default="fail",
        ),
    ] = "isolate"

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """``MirrorSourceConnector.validate``: exactly-once, offset-sync and tolerance combinations."""
        problems: list[Problem] = []
        tolerance = props.get("errors.tolerance", "")
        if tolerance.strip().lower() == "all":
            problems.append(
                Problem(
                    "errors.tolerance",
                    tolerance,
                    "drops no record here: what the target refuses stops its partition alone, with a"
                    " cause, and nothing behind it is lost",
                    "remove it, and cure the cause that the partition shows",
                )
            )
        required = props.get("exactly.once.support", "").strip().lower() == "required"
        consumer = effective_client_properties(props, "source", "consumer")
        if required and consumer.get("isolation.level") != "read_committed":
            problems.append(
                Problem(
                    "exactly.once.support",
                    "required",
                    "needs a source consumer with isolation.level=read_committed",
                    "set <source alias>.consumer.isolation.level=read_committed",
                )
            )
        if props.get("emit.offset-syncs.enabled") == "false":
            syncs = [k for k in props if k.startswith(("offset-syncs-", "offset-syncs.topic."))]
            if syncs:
                problems.append(
                    Problem(
                        "emit.offset-syncs.enabled",
                        "false",
                        f"contradicts {', '.join(sorted(syncs))}",
                        "remove either",
                    )
                )
        return problems


class MirrorSourceTaskConfig(MirrorSourceConfig):
    """Options of one MirrorSource task: the connector's and the part that is its own."""

    task_index: Annotated[int | None, Option(_INT, "Number of the task.", low=0)] = None
    task_assigned_partitions: Annotated[
        tuple[str, ...], Option(_LIST, "Source partitions as topic-partition.", importance="high")
    ]
    task_late_partitions: Annotated[
        tuple[str, ...],
        Option(
            _LIST,
            "Those of the assigned partitions that were found after the first start of the flow: they begin at the earliest "
            "offset whatever auto.offset.reset is.",
            ours=True,
        ),
    ] = ()
