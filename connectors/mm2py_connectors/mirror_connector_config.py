"""Options that all mirror connectors share: Java's names, order and defaults, and ours where the
file is silent.

Flow: a connector or task config (texts, placeholders resolved) -> ``parse_config`` -> one frozen
model. Options of one connector are in the module beside it. Within a model the options have Java's
order, in which Connect lists them.
"""

from typing import Annotated

from mm2py.config.class_names import DEFAULT_REPLICATION_POLICY, FORWARDING_ADMIN
from mm2py.config.definitions import Effect, Option
from mm2py.config.framework import FrameworkConfig
from mm2py.config.java_values import JavaType
from mm2py.config.mirror_options import DEFAULT_SEPARATOR

_BOOLEAN, _LONG, _STRING, _LIST, _CLASS = (
    JavaType.BOOLEAN,
    JavaType.LONG,
    JavaType.STRING,
    JavaType.LIST,
    JavaType.CLASS,
)

ConsumerPollTimeout = Annotated[int, Option(_LONG, "Longest wait of one poll.", low=0, unit="ms")]
MetricNamesFormats = Annotated[
    tuple[str, ...],
    Option(
        _LIST,
        "Form of Java's metric names.",
        choices=("legacy", "new"),
        effect=Effect.WITHOUT_EFFECT,
    ),
]
OffsetSyncsLocation = Annotated[
    str,
    Option(_STRING, "Which cluster holds the offset-syncs topic.", choices=("source", "target")),
]


def replicas(what: str, kind: JavaType = JavaType.SHORT) -> Option:
    """Return the option for the replication factor of ``what``."""
    # -1 asks the broker for its default.replication.factor; 0 replicas are none.
    doc = f"Replication factor of {what}; -1 takes the target broker's default."
    return Option(kind, doc, low=-1, high=32_767, forbidden=(0,))


def seconds(doc: str, java_default: str | None = None) -> Option:
    """Return the option for an interval in seconds."""
    return Option(_LONG, doc, low=1, unit="s", java_default=java_default)


def switch(doc: str, *, ours: bool = False) -> Option:
    """Return the option of a switch; ``ours``: Java has no such property."""
    return Option(_BOOLEAN, doc, ours=ours)


class MirrorConnectorConfig(FrameworkConfig):
    """Options that all mirror connectors share (``MirrorConnectorConfig``)."""

    enabled: Annotated[bool, switch(
        "Whether the flow replicates. Not set in a mirror maker file: false, but for heartbeats.",
    )] = True  # fmt: skip
    source_cluster_alias: Annotated[
        str, Option(_STRING, "Alias of the cluster that is read.", importance="HIGH")
    ]
    target_cluster_alias: Annotated[
        str, Option(_STRING, "Alias of the cluster that is written.", importance="HIGH")
    ] = "target"
    admin_timeout_ms: Annotated[
        int, Option(_LONG, "Longest time of a connector's periodic operation.", low=1, unit="ms")
    ] = 60_000
    replication_policy_class: Annotated[str, Option(_CLASS, "How remote topics are named.")] = (
        DEFAULT_REPLICATION_POLICY
    )
    replication_policy_separator: Annotated[
        str, Option(_STRING, "Between cluster alias and topic; may be empty.")
    ] = DEFAULT_SEPARATOR
    replication_policy_internal_topic_separator_enabled: Annotated[
        bool, switch("Use the separator in internal topic names too.")
    ] = True
    forwarding_admin_class: Annotated[
        str,
        Option(_CLASS, "Only the built-in admin client is there.", effect=Effect.WITHOUT_EFFECT),
    ] = FORWARDING_ADMIN
    metric_reporters: Annotated[tuple[str, ...], Option(
        _LIST, "Java metric reporters; use GET /metrics.",
        java_default="org.apache.kafka.common.metrics.JmxReporter", effect=Effect.WITHOUT_EFFECT,
    )] = ()  # fmt: skip
