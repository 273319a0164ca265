"""Options of the mirror connectors: Java's names and defaults, and ours where the file is silent.

Flow: a connector or task config (texts, placeholders resolved) -> ``parse_config`` -> one frozen
model. A field's Java name is its name with ``_`` as ``.``. The checkpoint connector's options are
accepted now; the connector comes with part 4.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from mm2py.config.class_names import (
    BYTE_ARRAY_CONVERTER,
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_REPLICATION_POLICY,
    DEFAULT_TOPIC_FILTER,
    FORWARDING_ADMIN,
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
)
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import ConfigModel, ConnectorDefinition, Option, Problem
from mm2py.config.java_values import JavaType

__all__ = [
    "CONNECTORS",
    "MirrorCheckpointConfig",
    "MirrorConnectorConfig",
    "MirrorHeartbeatConfig",
    "MirrorSourceConfig",
    "MirrorSourceTaskConfig",
]

_BOOLEAN, _SHORT, _INT, _LONG = JavaType.BOOLEAN, JavaType.SHORT, JavaType.INT, JavaType.LONG
_STRING, _LIST, _PATTERNS, _CLASS = (
    JavaType.STRING,
    JavaType.LIST,
    JavaType.PATTERNS,
    JavaType.CLASS,
)
# -1 asks the broker for its default.replication.factor; 0 replicas are none.
_REPLICAS_DOC: Final = "Replication factor of {}; -1 takes the target broker's default."


_NO_VERSIONS: Final = Option(
    _STRING, "Without effect: plug-ins have one version.", importance="low"
)


def _replicas(what: str, kind: JavaType = _SHORT) -> Option:
    doc = _REPLICAS_DOC.format(what)
    return Option(kind, doc, low=-1, high=32_767, forbidden=(0,), group="topics")


def _seconds(doc: str, group: str, java_default: str | None = None) -> Option:
    return Option(_LONG, doc, low=1, unit="s", group=group, java_default=java_default)


class MirrorConnectorConfig(ConfigModel):
    """Options that all mirror connectors share (``MirrorConnectorConfig``, ``ConnectorConfig``)."""

    name: Annotated[str, Option(_STRING, "Name of the connector.")] = ""
    connector_class: Annotated[str, Option(_CLASS, "Class of the connector.")] = ""
    enabled: Annotated[
        bool,
        Option(
            _BOOLEAN,
            "Whether the flow replicates. In a mirror maker file a flow that does not set it is "
            "not replicated; its heartbeat connector works all the same.",
            importance="high",
        ),
    ] = True
    tasks_max: Annotated[
        int, Option(_INT, "Most tasks of the connector.", low=1, importance="high")
    ] = 1
    tasks_max_enforce: Annotated[
        bool, Option(_BOOLEAN, "Refuse more tasks than tasks.max.", importance="low")
    ] = True
    source_cluster_alias: Annotated[
        str, Option(_STRING, "Alias of the cluster that is read.", importance="high")
    ]
    target_cluster_alias: Annotated[
        str, Option(_STRING, "Alias of the cluster that is written.", importance="high")
    ] = "target"
    admin_timeout_ms: Annotated[
        int, Option(_LONG, "Bound of each periodic job of a connector.", low=1, unit="ms")
    ] = 60_000
    replication_policy_class: Annotated[
        str, Option(_CLASS, "How remote topics are named.", group="naming")
    ] = DEFAULT_REPLICATION_POLICY
    replication_policy_separator: Annotated[
        str,
        Option(_STRING, "Between cluster alias and topic; may be empty.", group="naming"),
    ] = "."
    replication_policy_internal_topic_separator_enabled: Annotated[
        bool, Option(_BOOLEAN, "Use the separator in internal topic names too.", group="naming")
    ] = True
    forwarding_admin_class: Annotated[
        str, Option(_CLASS, "Admin client; only the built-in one.", importance="low")
    ] = FORWARDING_ADMIN
    metric_reporters: Annotated[
        tuple[str, ...],
        Option(
            _LIST,
            "Java metric reporters; without effect, this product has its own exporter.",
            java_default="org.apache.kafka.common.metrics.JmxReporter",
            importance="low",
        ),
    ] = ()
    key_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    value_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    header_converter: Annotated[str, Option(_CLASS, "Without effect: bytes stay bytes.")] = (
        BYTE_ARRAY_CONVERTER
    )
    connector_plugin_version: Annotated[str, _NO_VERSIONS] = ""
    key_converter_plugin_version: Annotated[str, _NO_VERSIONS] = ""
    value_converter_plugin_version: Annotated[str, _NO_VERSIONS] = ""
    header_converter_plugin_version: Annotated[str, _NO_VERSIONS] = ""
    transforms: Annotated[tuple[str, ...], Option(_LIST, "Aliases of transforms.", part=5)] = ()
    predicates: Annotated[tuple[str, ...], Option(_LIST, "Aliases of predicates.", part=5)] = ()
    config_action_reload: Annotated[
        str,
        Option(
            _STRING,
            "Whether a changed config provider value restarts the connector.",
            choices=("none", "restart"),
            any_case=True,
            importance="low",
        ),
    ] = "restart"
    errors_retry_timeout: Annotated[
        int,
        Option(
            _LONG,
            "Longest time a failed operation of a transform is retried; -1 without end.",
            low=-1,
            unit="ms",
            group="errors",
            part=5,
        ),
    ] = 0
    errors_retry_delay_max_ms: Annotated[
        int,
        Option(
            _LONG,
            "Longest pause between two restarts of a failed task.",
            low=1,
            unit="ms",
            group="errors",
        ),
    ] = 60_000
    errors_tolerance: Annotated[
        str,
        Option(
            _STRING,
            "Records that a transform fails on.",
            choices=("none", "all"),
            any_case=True,
            group="errors",
            part=5,
        ),
    ] = "none"
    errors_log_enable: Annotated[
        bool, Option(_BOOLEAN, "Log each error of a transform.", group="errors", part=5)
    ] = False
    errors_log_include_messages: Annotated[
        bool, Option(_BOOLEAN, "Log the failing record too.", group="errors", part=5)
    ] = False
    task_auto_restart: Annotated[
        bool,
        Option(
            _BOOLEAN,
            "Start a failed task again, with growing pauses.",
            ours=True,
            group="errors",
            java_default="never",
        ),
    ] = True


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
    ] = (r"mm2.*\.internal", r".*\.replica", "__.*")
    topic_filter_class: Annotated[
        str, Option(_CLASS, "What decides by topics and topics.exclude.", group="topics")
    ] = DEFAULT_TOPIC_FILTER
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
    consumer_poll_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait of one poll.", low=0, unit="ms", importance="low")
    ] = 1_000
    refresh_topics_enabled: Annotated[
        bool, Option(_BOOLEAN, "Look for new topics and partitions.", group="topics")
    ] = True
    refresh_topics_interval_seconds: Annotated[
        int, _seconds("How often to look for new topics and partitions.", "topics", "600")
    ] = 5
    sync_topic_configs_enabled: Annotated[
        bool, Option(_BOOLEAN, "Copy topic configs.", group="configs")
    ] = True
    sync_topic_configs_interval_seconds: Annotated[
        int, _seconds("How often to copy topic configs.", "configs")
    ] = 600
    sync_topic_acls_enabled: Annotated[
        bool, Option(_BOOLEAN, "Copy topic ACLs (reading and describing).", group="configs")
    ] = True
    sync_topic_acls_interval_seconds: Annotated[
        int, _seconds("How often to copy topic ACLs.", "configs")
    ] = 600
    replication_factor: Annotated[int, _replicas("new remote topics", _INT)] = 2
    offset_syncs_topic_replication_factor: Annotated[int, _replicas("the offset-syncs topic")] = 3
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
    metric_names_formats: Annotated[
        tuple[str, ...],
        Option(
            _LIST,
            "Form of the Java metric names; both are exported from part 7 on.",
            choices=("legacy", "new"),
            importance="low",
            part=7,
        ),
    ] = ("legacy",)
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
        """``MirrorSourceConnector.validate``: exactly-once and offset-sync combinations."""
        problems: list[Problem] = []
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


class MirrorCheckpointConfig(MirrorConnectorConfig):
    """Options of MirrorCheckpointConnector (``MirrorCheckpointConfig``)."""

    topics: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Topics whose group offsets are translated.", group="topics"),
    ] = (".*",)
    topics_exclude: Annotated[
        tuple[str, ...], Option(_PATTERNS, "Topics left out; wins over topics.", group="topics")
    ] = (r"mm2.*\.internal", r".*\.replica", "__.*")
    topic_filter_class: Annotated[
        str, Option(_CLASS, "What decides by topics and topics.exclude.", group="topics")
    ] = DEFAULT_TOPIC_FILTER
    groups: Annotated[
        tuple[str, ...],
        Option(
            _PATTERNS,
            "Consumer groups: names or Java patterns that match the whole name.",
            group="groups",
            importance="high",
            part=4,
        ),
    ] = (".*",)
    groups_exclude: Annotated[
        tuple[str, ...],
        Option(_PATTERNS, "Groups left out; wins over groups.", group="groups", part=4),
    ] = ("console-consumer-.*", "connect-.*", "__.*")
    group_filter_class: Annotated[
        str, Option(_CLASS, "What decides by groups and groups.exclude.", group="groups", part=4)
    ] = DEFAULT_GROUP_FILTER
    refresh_groups_enabled: Annotated[
        bool, Option(_BOOLEAN, "Look for new groups.", group="groups", part=4)
    ] = True
    refresh_groups_interval_seconds: Annotated[
        int,
        Option(
            _LONG,
            "How often to look for new groups.",
            low=1,
            unit="s",
            group="groups",
            java_default="600",
            part=4,
        ),
    ] = 5
    emit_checkpoints_enabled: Annotated[
        bool, Option(_BOOLEAN, "Write checkpoints.", group="groups", part=4)
    ] = True
    emit_checkpoints_interval_seconds: Annotated[
        int,
        Option(_LONG, "How often to write checkpoints.", low=1, unit="s", group="groups", part=4),
    ] = 60
    sync_group_offsets_enabled: Annotated[
        bool,
        Option(_BOOLEAN, "Write translated offsets of idle groups.", group="groups", part=4),
    ] = False
    sync_group_offsets_interval_seconds: Annotated[
        int,
        Option(_LONG, "How often to write group offsets.", low=1, unit="s", group="groups", part=4),
    ] = 60
    checkpoints_topic_replication_factor: Annotated[
        int,
        Option(
            _SHORT,
            _REPLICAS_DOC.format("the checkpoints topic"),
            low=-1,
            forbidden=(0,),
            group="topics",
            part=4,
        ),
    ] = 3
    offset_syncs_topic_location: Annotated[
        str,
        Option(
            _STRING,
            "Which cluster holds the offset-syncs topic; as for the source connector.",
            choices=("source", "target"),
            group="offsets",
        ),
    ] = "source"
    consumer_poll_timeout_ms: Annotated[
        int, Option(_LONG, "Longest wait of one poll.", low=0, unit="ms", importance="low")
    ] = 1_000
    metric_names_formats: Annotated[
        tuple[str, ...],
        Option(
            _LIST,
            "Form of the Java metric names; both are exported from part 7 on.",
            choices=("legacy", "new"),
            importance="low",
            part=7,
        ),
    ] = ("legacy",)

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


class MirrorHeartbeatConfig(MirrorConnectorConfig):
    """Options of MirrorHeartbeatConnector (``MirrorHeartbeatConfig``)."""

    emit_heartbeats_enabled: Annotated[
        bool, Option(_BOOLEAN, "Write heartbeats to the target.", group="heartbeats")
    ] = True
    emit_heartbeats_interval_seconds: Annotated[
        int, _seconds("How often to write a heartbeat.", "heartbeats")
    ] = 1
    heartbeats_topic_replication_factor: Annotated[int, _replicas("the heartbeats topic")] = 3


CONNECTORS: Final = (
    ConnectorDefinition(
        "MirrorSourceConnector",
        MIRROR_SOURCE_CONNECTOR,
        MirrorSourceConfig,
        extra_names=("use.defaults.from",),
    ),
    ConnectorDefinition(
        "MirrorHeartbeatConnector", MIRROR_HEARTBEAT_CONNECTOR, MirrorHeartbeatConfig
    ),
    ConnectorDefinition(
        "MirrorCheckpointConnector", MIRROR_CHECKPOINT_CONNECTOR, MirrorCheckpointConfig
    ),
)
"""The three connectors that a mirror maker file configures for every flow."""
