"""What a change of a flow asks for, as edits of what is in force; pure.

Flow: patches, a topic, the file -> ``Edit`` of a ``FlowPicture``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mm2py.config.java_values import parse_list
from mm2py.flows.connectors import enabled
from mm2py.flows.graph import copies
from mm2py.mirror.filters import DEFAULT_TOPICS, DEFAULT_TOPICS_EXCLUDE
from mm2py.mirror.flow_overrides import Presence
from mm2py.mirror.flow_state import FlowPicture
from mm2py.runtime.herder.errors import BadRequestError
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import Edit
from mm2py.types import FlowName, TopicPartition

__all__ = ["SOURCE", "Patches", "created", "deleted", "part_name", "patched", "without_topic"]

SOURCE: Final = "MirrorSourceConnector"
"""Name of the connector that copies, as the file derives it."""

_TOPICS: Final = "topics"
_EXCLUDE: Final = "topics.exclude"

Patches = Mapping[str, ConnectorConfig]
"""Connector -> properties; None removes one."""

Configs = Mapping[str, Mapping[str, str]]


def patched(patches: Patches) -> Edit:
    """Return the edit that changes properties of connectors; one that is gone meanwhile stays away."""

    def edit(now: FlowPicture) -> FlowPicture:
        configs = dict(now.configs)
        for name, patch in patches.items():
            if name in configs:
                kept = {key: text for key, text in configs[name].items() if key not in patch}
                given = {key: text for key, text in patch.items() if text is not None}
                configs[name] = {**kept, **given}
        return replace(now, configs=configs)

    return edit


def created(file: Configs, patches: Patches) -> Edit:
    """Return the edit that makes a flow: all connectors of the file, enabled, and the patches."""

    def edit(now: FlowPicture) -> FlowPicture:
        configs: dict[str, Mapping[str, str]] = {**file, **now.configs}
        for name in file:
            if not enabled(configs[name]):
                configs[name] = {**configs[name], "enabled": "true"}
        return patched(patches)(replace(now, presence=Presence.ADDED, configs=configs))

    return edit


def deleted(file: Configs) -> Edit:
    """Return the edit that ends a flow: what people changed of it goes too."""

    def edit(_now: FlowPicture) -> FlowPicture:
        return FlowPicture(presence=Presence.DELETED, configs=file, held=frozenset())

    return edit


def without_topic(flow: FlowName, config: Mapping[str, str], topic: str) -> ConnectorConfig:
    """Return the patch of a source connector that takes one topic out of its flow.

    Raises:
        BadRequestError: no topic would be left, or the connector's filter does not look at these lists.
    """
    literal = (topic, topic.replace(".", "\\."))
    items = parse_list(config.get(_TOPICS, DEFAULT_TOPICS))
    left = [item for item in items if item not in literal]
    if not left:
        raise BadRequestError(
            f"Flow {flow} would copy no topic without {topic}; delete or stop the flow"
        )
    patch: dict[str, str | None] = {}
    if len(left) != len(items):
        patch[_TOPICS] = ",".join(left)
    if copies(flow, {**config, **_texts(patch)}, topic):
        excluded = config.get(_EXCLUDE, DEFAULT_TOPICS_EXCLUDE)
        patch[_EXCLUDE] = f"{excluded},{literal[1]}" if excluded.strip() else literal[1]
    if copies(flow, {**config, **_texts(patch)}, topic):
        raise BadRequestError(
            f"Topic {topic} cannot be taken out of flow {flow} by its properties {_TOPICS} and"
            f" {_EXCLUDE}; pause it instead"
        )
    return patch


def part_name(part: TopicPartition) -> str:
    """Return a topic or partition as people write it."""
    return part.topic if part.partition < 0 else str(part)


def _texts(patch: ConnectorConfig) -> dict[str, str]:
    return {key: text for key, text in patch.items() if text is not None}
