"""Options that all mirror connectors share: Java's names and defaults, and ours where the file is silent.

Flow: a connector or task config (texts, placeholders resolved) -> ``parse_config`` -> one frozen
model. A field's Java name is its name with ``_`` as ``.``. Options of one connector are in the
module beside it.
"""

from typing import Annotated, Final

from mm2py.config.class_names import (
    BYTE_ARRAY_CONVERTER,
    DEFAULT_REPLICATION_POLICY,
    FORWARDING_ADMIN,
)
from mm2py.config.definitions import ConfigModel, Option
from mm2py.config.java_values import JavaType

__all__ = [
    "TOPICS_EXCLUDE",
    "ConsumerPollTimeout",
    "MetricNamesFormats",
    "MirrorConnectorConfig",
    "TopicFilterClass",
    "replicas",
    "seconds",
]

_BOOLEAN, _INT, _LONG, _STRING, _LIST, _CLASS = (
    JavaType.BOOLEAN,
    JavaType.INT,
    JavaType.LONG,
    JavaType.STRING,
    JavaType.LIST,
    JavaType.CLASS,
)


_NO_VERSIONS: Final = Option(
    _STRING, "Without effect: plug-ins have one version.", importance="low"
)


TOPICS_EXCLUDE: Final = (r"mm2.*\.internal", r".*\.replica", "__.*")
"""Java's default of ``topics.exclude``."""

TopicFilterClass = Annotated[
    str, Option(_CLASS, "What decides by topics and topics.exclude.", group="topics")
]
ConsumerPollTimeout = Annotated[
    int, Option(_LONG, "Longest wait of one poll.", low=0, unit="ms", importance="low")
]
MetricNamesFormats = Annotated[
    tuple[str, ...],
    Option(
        _LIST,
        "Form of the Java metric names; both are exported from part 7 on.",
        choices=("legacy", "new"),
        importance="low",
        part=7,
    ),
]


def replicas(what: str, kind: JavaType = JavaType.SHORT, *, part: int = 1) -> Option:
    """Return the option for the replication factor of ``what``."""
    # -1 asks the broker for its default.replication.factor; 0 replicas are none.
    return Option(
        kind,
        f"Replication factor of {what}; -1 takes the target broker's default.",
        low=-1,
        high=32_767,
        forbidden=(0,),
        group="topics",
        part=part,
    )


def seconds(doc: str, group: str, java_default: str | None = None, *, part: int = 1) -> Option:
    """Return the option for an interval in seconds."""
    return Option(
        JavaType.LONG, doc, low=1, unit="s", group=group, java_default=java_default, part=part
    )


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
