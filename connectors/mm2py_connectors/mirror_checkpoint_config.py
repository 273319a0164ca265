"""Options of MirrorCheckpointConnector and its tasks: Java's names and defaults
(``MirrorCheckpointConfig``).

Flow: config texts -> ``parse_config`` -> connector and tasks.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.config.class_names import DEFAULT_GROUP_FILTER, DEFAULT_TOPIC_FILTER
from mm2py.config.definitions import Option, Problem
from mm2py.config.java_values import JavaType, parse_boolean_leniently
from mm2py.config.mirror_options import (
    GROUPS,
    GROUPS_EXCLUDE,
    TOPICS,
    TOPICS_EXCLUDE,
    GroupFilterClass,
    Groups,
    GroupsExclude,
    TopicFilterClass,
    Topics,
    TopicsExclude,
)
from mm2py_connectors.mirror_connector_config import (
    ConsumerPollTimeout,
    MetricNamesFormats,
    MirrorConnectorConfig,
    OffsetSyncsLocation,
    replicas,
    seconds,
    switch,
)


class MirrorCheckpointConfig(MirrorConnectorConfig):
    """Options of MirrorCheckpointConnector (``MirrorCheckpointConfig``)."""

    consumer_poll_timeout_ms: ConsumerPollTimeout = 1_000
    topics: Topics = TOPICS
    topics_exclude: TopicsExclude = TOPICS_EXCLUDE
    groups: Groups = GROUPS
    groups_exclude: GroupsExclude = GROUPS_EXCLUDE
    topic_filter_class: TopicFilterClass = DEFAULT_TOPIC_FILTER
    group_filter_class: GroupFilterClass = DEFAULT_GROUP_FILTER
    refresh_groups_enabled: Annotated[bool, switch("Look for new groups.")] = True
    refresh_groups_interval_seconds: Annotated[
        int, seconds("How often to look for new groups.", "600")
    ] = 5
    emit_checkpoints_enabled: Annotated[bool, switch("Write checkpoints.")] = True
    emit_checkpoints_interval_seconds: Annotated[
        int | None,
        seconds("Least time between two checkpoints of a group; not set: at each commit.", "60"),
    ] = None
    sync_group_offsets_enabled: Annotated[
        bool, switch("Write the translated offsets of groups without members on the target.")
    ] = False
    sync_group_offsets_interval_seconds: Annotated[
        int | None,
        seconds(
            "Least time between two writes of group offsets; not set: at each checkpoint.", "60"
        ),
    ] = None
    sync_share_group_offsets_enabled: Annotated[
        bool | None,
        switch(
            "The same for start offsets of share groups; not set: as sync.group.offsets.enabled.",
            ours=True,
        ),
    ] = None
    checkpoints_topic_replication_factor: Annotated[int, replicas("the checkpoints topic")] = 3
    offset_syncs_topic_location: OffsetSyncsLocation = "source"
    metric_names_formats: MetricNamesFormats = ("legacy",)

    @property
    def syncs_share_groups(self) -> bool:
        """Whether start offsets of share groups are written."""
        chosen = self.sync_share_group_offsets_enabled
        return self.sync_group_offsets_enabled if chosen is None else chosen

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """``MirrorCheckpointConnector.validate``: it cannot work without what it writes and reads.

        In the dedicated mode Java then leaves this connector out and runs the others; ours has no
        tasks.
        """
        if props.get("enabled") == "false":
            return []
        return [
            Problem(
                name,
                "false",
                "the checkpoint connector cannot work without it and is left out",
                f"remove {name}=false if consumer groups are to fail over",
                leaves_out=True,
            )
            for name in ("emit.checkpoints.enabled", "emit.offset-syncs.enabled")
            if not parse_boolean_leniently(props.get(name), absent=True)
        ]


class MirrorCheckpointTaskConfig(MirrorCheckpointConfig):
    """Options of one MirrorCheckpoint task: the connector's and the part that is its own."""

    task_index: Annotated[int | None, Option(JavaType.INT, "Number of the task.", low=0)] = None
    task_assigned_groups: Annotated[
        tuple[str, ...],
        Option(
            JavaType.LIST,
            "Groups that a Java worker dealt to the task; our tasks find theirs by themselves.",
        ),
    ] = ()
    task_group_tasks: Annotated[
        int, Option(JavaType.INT, "Number of tasks that share the groups.", low=1, ours=True)
    ] = 1
    task_group_partitions: Annotated[
        int,
        Option(
            JavaType.INT,
            "Partitions of __consumer_offsets on the source: each task has the groups of some of "
            "them.",
            low=1,
            ours=True,
        ),
    ] = 50
