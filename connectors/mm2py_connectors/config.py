"""The connectors that a mirror maker file configures, each with the model of its options.

Flow: ``CONNECTORS`` -> ``mm2py.config`` derives and checks what a file sets for them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mm2py.config.class_names import (
    CHECKPOINT_NAME,
    HEARTBEAT_NAME,
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SINK_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
    SINK_NAME,
    SOURCE_NAME,
)
from mm2py.config.definitions import ConnectorDefinition, Problem
from mm2py.config.findings import Severity
from mm2py.errors import ConfigError
from mm2py.mirror.filters import (
    DefaultTopicFilter,
    TopicSelection,
    config_property_filter_from_config,
    group_filter_from_config,
    is_internal_name,
    topic_filter_from_config,
)
from mm2py.mirror.policies import policy_from_config
from mm2py.observability.logging import some_of
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_heartbeat_config import MirrorHeartbeatConfig
from mm2py_connectors.mirror_sink_config import MirrorSinkConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

_KINDS: Final = ("mm2-configs", "mm2-offsets", "mm2-status", "mm2py-flows", "mm2py-offset-map")


Findings = Iterator[tuple[Severity, Problem]]


def _filter_findings(
    props: Mapping[str, str], *filters: Callable[[Mapping[str, str]], object]
) -> Findings:
    """Refuse filter classes that cannot be used: the connector would fail after the start."""
    for build in filters:
        try:
            build(props)
        except ConfigError as error:
            key, _, what = error.message.partition("=")
            if key.endswith(".filter.class"):  # a pattern is another finding
                yield Severity.ERROR, Problem(key, None, what, error.remedy)


def group_findings(props: Mapping[str, str]) -> Findings:
    """Refuse a class of groups' filter that cannot be used."""
    yield from _filter_findings(props, group_filter_from_config)


def topic_findings(props: Mapping[str, str]) -> Findings:
    """Refuse filters that cannot be used; name an exclude that lets a mirror's own topics through,
    which are never copied here, but by Java; and names that are never copied."""
    yield from _filter_findings(props, topic_filter_from_config, config_property_filter_from_config)
    try:
        policy, chosen = policy_from_config(props), topic_filter_from_config(props)
    except ConfigError:
        return  # another finding
    if not isinstance(chosen, DefaultTopicFilter):
        return
    target = props.get("target.cluster.alias", "")
    names = [f"{kind}.{target}.internal" for kind in _KINDS]
    names += [policy.offset_syncs_topic(target), policy.checkpoints_topic(target)]
    through = [
        it
        for it in names
        if is_internal_name(it)
        and chosen.should_replicate_topic(it)
        and not policy.is_internal_topic(it)
    ]
    if through:
        message = (
            f"lets internal topics through, such as {some_of(through, 2)}: they are not copied, "
            "but Java's MirrorMaker 2 would copy them and the passwords in them"
        )
        remedy = r"add mm2.*internal and .*checkpoints.internal to topics.exclude"
        yield Severity.WARNING, Problem("topics.exclude", None, message, remedy)
    selection = TopicSelection(
        policy, chosen, source_alias=props.get("source.cluster.alias", ""), target_alias=target
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in selection.left_out().items():
        reasons.setdefault(reason, []).append(name)
    for reason, never in reasons.items():
        message = f"names {some_of(never, 3)}, never copied: {reason}"
        yield (
            Severity.WARNING,
            Problem("topics", None, message, "remove the name, or what leaves it out"),
        )


CONNECTORS: Final = (
    ConnectorDefinition(
        SOURCE_NAME,
        MIRROR_SOURCE_CONNECTOR,
        MirrorSourceConfig,
        extra_names=("use.defaults.from",),
        copies="source",
        findings=topic_findings,
    ),
    ConnectorDefinition(
        SINK_NAME,
        MIRROR_SINK_CONNECTOR,
        MirrorSinkConfig,
        extra_names=("use.defaults.from",),
        copies="sink",
        findings=topic_findings,
    ),
    ConnectorDefinition(HEARTBEAT_NAME, MIRROR_HEARTBEAT_CONNECTOR, MirrorHeartbeatConfig),
    ConnectorDefinition(
        CHECKPOINT_NAME,
        MIRROR_CHECKPOINT_CONNECTOR,
        MirrorCheckpointConfig,
        findings=group_findings,
    ),
)
"""The connectors that a mirror maker file configures for every flow; of those that copy one, by
``copy.connector``."""
