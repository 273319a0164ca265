"""What a change makes of a flow: edits of what is in force, without I/O.

Flow: ``FlowChanges`` -> ``Edit`` (a ``FlowPicture`` -> the one that shall be in force) ->
``FlowOverridesStore.edit``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from mm2py.config.class_names import CHECKPOINT_NAME, SINK_NAME
from mm2py.config.definitions import parse_config
from mm2py.config.mirror_options import TopicFilterConfig
from mm2py.flows.graph import copies
from mm2py.mirror.flow_overrides import Presence
from mm2py.mirror.flow_state import Configs, FlowPicture, enabled
from mm2py.runtime.errors import BadRequestError
from mm2py.storage.config_state import ConnectorConfig, texts_of
from mm2py.storage.flow_overrides_store import Edit
from mm2py.types import FlowName

Patches = Mapping[str, ConnectorConfig]
"""Connector -> properties; None returns one to what the file has."""

ENABLED: Final = "enabled"
_TOPICS: Final = "topics"
_EXCLUDE: Final = "topics.exclude"


def patched(patches: Patches, file: Configs) -> Edit:
    """Return the edit that changes properties of existing connectors; None: as in ``file``."""

    def edit(now: FlowPicture) -> FlowPicture:
        for name, patch in patches.items():
            if name in now.configs:
                own = file.get(name, {})
                given = {key: own.get(key) if it is None else it for key, it in patch.items()}
                now = now.with_config(name, texts_of({**now.configs[name], **given}), file)
                returned = {(name, key) for key, it in patch.items() if it is None}
                now = replace(now, own=now.own - returned)
        return now

    return edit


def switched(file: Configs) -> list[str]:
    """Return the connectors that ``A->B.enabled`` of a file switches.

    Offsets of MirrorSink's copies are not known, so groups stay.
    """
    return [name for name in file if name != CHECKPOINT_NAME or SINK_NAME not in file]


def created(file: Configs, patches: Patches) -> Edit:
    """Return the edit that makes a flow: all connectors of the file, enabled, and the patches."""

    def edit(now: FlowPicture) -> FlowPicture:
        # A connector that is there keeps its config, the file only adds those that are missing.
        now = replace(now, presence=Presence.ADDED, configs={**file, **now.configs})
        for name in switched(file):
            if not enabled(now.configs[name]):
                now = now.with_config(name, {**now.configs[name], ENABLED: "true"}, file)
        return patched(patches, file)(now)

    return edit


def deleted(file: Configs) -> Edit:
    """Return the edit that ends a flow; its other changes end with it."""

    def edit(_now: FlowPicture) -> FlowPicture:
        return FlowPicture(presence=Presence.DELETED, configs=file, held=frozenset())

    return edit


def nothing_held(now: FlowPicture) -> FlowPicture:
    """Edit: no topic and no partition is paused alone any more."""
    return replace(now, held=frozenset())


def without_topic(
    flow: FlowName,
    config: Mapping[str, str],
    topic: str,
    resolve: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> dict[str, str]:
    """Return the patch of a source connector that takes one topic out of its flow; ``resolve``
    replaces placeholders.

    Raises:
        BadRequestError: no topic would be left, or the connector's filter does not look at these
            lists.
    """
    # Items are patterns (KIP-382). Of a topic's characters only the dot means more in a pattern.
    literal = (topic, topic.replace(".", "\\."))
    read = parse_config(TopicFilterConfig, config)
    items = read.topics
    left = [item for item in items if item not in literal]
    if not left:
        raise BadRequestError(
            f"Flow {flow} would copy no topic without {topic}; delete or stop the flow"
        )
    patch: dict[str, str] = {}
    if len(left) != len(items):
        patch[_TOPICS] = ",".join(left)
    # Another item still matches it.
    if copies(flow, resolve({**config, **patch}), topic):
        patch[_EXCLUDE] = ",".join((*read.topics_exclude, literal[1]))
    # A `topic.filter.class` of its own may not look at these lists.
    if copies(flow, resolve({**config, **patch}), topic):
        raise BadRequestError(
            f"Topic {topic} cannot be taken out of flow {flow} by its properties {_TOPICS} and"
            f" {_EXCLUDE}; pause it instead"
        )
    return patch
