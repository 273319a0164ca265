"""Options of MirrorCheckpointConnector and its tasks: Java's names and defaults (``MirrorCheckpointConfig``).

Flow: config texts -> ``parse_config`` -> connector and tasks.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.config.class_names import DEFAULT_GROUP_FILTER, DEFAULT_TOPIC_FILTER
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

__all__ = ["MirrorCheckpointConfig", "MirrorCheckpointTaskConfig"]

_BOOLEAN, _INT, _LIST, _STRING, _PATTERNS, _CLASS = (
    JavaType.BOOLEAN,
    JavaType.INT,
    JavaType.LIST,
    JavaType.STRING,
    JavaType.PATTERNS,
    JavaType.CLASS,
)


class MirrorCheckpointConfig(MirrorConnectorConfig):
    """Options of MirrorCheckpointConnector (``MirrorCheckpointConfig``)."""

    topics: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Topics whose group offsets are translated.", group="topics"),
    ] = (".*",)
    topics_exclude: Annotated[
        tuple[str, ...], Option(_PATTERNS, "Topics left out; wins over topics.", group="topics")
    ] = TOPICS_EXCLUDE
    topic_filter_class: TopicFilterClass = DEFAULT_TOPIC_FILTER
    groups: Annotated[
        tuple[str, ...],
        Option(
            _PATTERNS,
            "Consumer groups: names or Java patterns that match the whole name.",
            group="groups",
            importance="high",
        ),
    ] = (".*",)
    groups_exclude: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Groups left out; wins over groups.", group="groups"),
    ] = ("console-consumer-.*", "connect-.*", "__.*")
    group_filter_class: Annotated[
        str, Option(_CLASS, "What decides by groups and groups.exclude.", group="groups")
    ] = DEFAULT_GROUP_FILTER
    refresh_groups_enabled: Annotated[
        bool, Option(_BOOLEAN, "Look for new groups.", group="groups")
    ] = True
    refresh_groups_interval_seconds: Annotated[
        int, seconds("How often to look for new groups.", "groups", "600")
    ] = 5
    emit_checkpoints_enabled: Annotated[
        bool, Option(_BOOLEAN, "Write checkpoints.", group="groups")
    ] = True
    emit_checkpoints_interval_seconds: Annotated[
        int | None,
        seconds(
            "At most how often to write checkpoints; where it is not set, as soon as a group commits.",
            "groups",
            "60",
        ),
    ] = None
    sync_group_offsets_enabled: Annotated[
        bool,
        Option(_BOOLEAN, "Write translated offsets of idle groups.", group="groups"),
    ] = False
    sync_group_offsets_interval_seconds: Annotated[
        int | None,
        seconds(
            "At most how often to write group offsets; where it is not set, as soon as there is a new checkpoint.",
            "groups",
            "60",
        ),
    ] = None
    checkpoints_topic_replication_factor: Annotated[int, replicas("the checkpoints topic")] = 3
    offset_syncs_topic_location: Annotated[
        str,
        Option(
            _STRING,
            "Which cluster holds the offset-syncs topic; as for the source connector.",
            choices=("source", "target"),
            group="offsets",
        ),
    ] = "source"
    consumer_poll_timeout_ms: ConsumerPollTimeout = 1_000
    metric_names_formats: MetricNamesFormats = ("legacy",)

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """``MirrorCheckpointConnector.validate``: it cannot work without what it writes and reads.

        In the dedicated mode Java then leaves this connector out and runs the others.
        """
        if props.get("enabled") == "false":
            return []
        return [
            Problem(
                name,
                "false",
                "the checkpoint connector cannot work without it and is left out",
                f"remove {name}=false if consumer groups are to fail over",
            )
            for name in ("emit.checkpoints.enabled", "emit.offset-syncs.enabled")
            if props.get(name) == "false"
        ]


class MirrorCheckpointTaskConfig(MirrorCheckpointConfig):
    """Options of one MirrorCheckpoint task: the connector's and the part that is its own."""

    task_index: Annotated[int | None, Option(_INT, "Number of the task.", low=0)] = None
    task_assigned_groups: Annotated[
        tuple[str, ...],
        Option(
            _LIST,
            "Groups that a Java worker dealt to the task; our tasks find theirs by themselves.",
            importance="low",
        ),
    ] = ()
    task_group_tasks: Annotated[
        int, Option(_INT, "Number of tasks that share the groups.", low=1, ours=True)
    ] = 1
    task_group_partitions: Annotated[
        int,
        Option(
            _INT,
            "Partitions of __consumer_offsets on the source: each task has the groups of some of them.",
            low=1,
            ours=True,
        ),
    ] = 50
