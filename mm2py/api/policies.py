"""Pluggable policies: how remote topics are named, and what is replicated.

Java counterparts: ``ReplicationPolicy``, ``TopicFilter``, ``GroupFilter``,
``ConfigPropertyFilter``, and the two policies of 4.x (KIP-382, KIP-720, KIP-1074), which a policy
of one's own may extend.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from mm2py.config.mirror_options import DEFAULT_SEPARATOR

SEPARATOR: Final = "replication.policy.separator"
INTERNAL_SEPARATOR_ENABLED: Final = "replication.policy.internal.topic.separator.enabled"

HEARTBEATS: Final = "heartbeats"


class ReplicationPolicy(Protocol):
    """Maps topics to remote topics and back."""

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """Name of ``topic`` of cluster ``source_alias`` on the target (``formatRemoteTopic``)."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """Alias of the cluster a remote topic was copied from; None for a local topic."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """Name of a remote topic on the cluster it was copied from; None for a local topic."""
        ...

    def original_topic(self, topic: str) -> str:
        """Name of the topic where it was first written, following all hops."""
        ...

    def heartbeats_topic(self) -> str:
        """Name of the heartbeats topic."""
        ...

    def offset_syncs_topic(self, alias: str) -> str:
        """Name of the offset-syncs topic; ``alias`` is the cluster that does not host it."""
        ...

    def checkpoints_topic(self, source_alias: str) -> str:
        """Name of the checkpoints topic on the target."""
        ...

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether ``topic`` is a heartbeats topic, local or copied."""
        ...

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether ``topic`` is a checkpoints topic."""
        ...

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether ``topic`` belongs to a MirrorMaker (KIP-1074 rule of 4.0)."""
        ...

    def is_internal_topic(self, topic: str) -> bool:
        """Whether ``topic`` is never replicated."""
        ...

    @property
    def detects_cycles(self) -> bool:
        """Whether names carry their provenance, so that a copy cannot come back unnoticed."""
        ...


class TopicFilter(Protocol):
    """Selects the topics that are replicated."""

    def should_replicate_topic(self, topic: str) -> bool:
        """Whether the user chose ``topic``."""
        ...


class GroupFilter(Protocol):
    """Selects the consumer groups that are checkpointed."""

    def should_replicate_group(self, group: str) -> bool:
        """Whether the user chose ``group``."""
        ...


class ConfigPropertyFilter(Protocol):
    """Selects the topic configs that are replicated."""

    def should_replicate_config_property(self, name: str) -> bool:
        """Whether a topic config is copied."""
        ...

    def should_replicate_source_default(self, name: str) -> bool:
        """Whether the source's default is copied too (``use.defaults.from=source``)."""
        ...


class DefaultReplicationPolicy:
    """Prefixes the source alias: ``orders`` of ``A`` becomes ``A.orders``.

    An empty separator (identity-like naming of some migration guides) makes names without
    provenance: no topic has a source then, and cycles cannot be seen.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._separator = config.get(SEPARATOR, DEFAULT_SEPARATOR)
        self._internal_separator = DEFAULT_SEPARATOR
        # Java reads the flag only where a separator is set, and only "true" is true.
        if config.get(INTERNAL_SEPARATOR_ENABLED, "true").strip().lower() == "true":
            self._internal_separator = self._separator

    @property
    def detects_cycles(self) -> bool:
        return bool(self._separator)

    def remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{source_alias}{self._separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the part before the first separator; None where a split gives one part."""
        separator = self._separator
        if not separator or separator not in topic:
            return None
        # Java's split drops trailing empty parts, so "a." has one part and no source.
        parts = topic.split(separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """Remove one hop."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self._separator) :]

    def original_topic(self, topic: str) -> str:
        """Remove all hops."""
        while True:
            upstream = self.upstream_topic(topic)
            # Identity returns the same name for ever; Java has the same check.
            if upstream is None or upstream == topic:
                return topic
            topic = upstream

    def heartbeats_topic(self) -> str:
        """Return ``heartbeats``, with any separator."""
        return HEARTBEATS

    def offset_syncs_topic(self, alias: str) -> str:
        """Name the offset-syncs topic after the cluster that does not host it."""
        separator = self._internal_separator
        return f"mm2-offset-syncs{separator}{alias}{separator}internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        return source_alias + self._checkpoints_suffix()

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether ``topic`` is ``heartbeats``, after any number of hops."""
        return self.original_topic(topic) == self.heartbeats_topic()

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether ``topic`` is a checkpoints topic of any flow."""
        return topic.endswith(self._checkpoints_suffix())

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """KIP-1074: ``mm2`` ... ``internal``, or a checkpoints topic."""
        suffix = f"{self._internal_separator}internal"
        return (topic.startswith("mm2") and topic.endswith(suffix)) or self.is_checkpoints_topic(
            topic
        )

    def is_internal_topic(self, topic: str) -> bool:
        """KIP-1074: MirrorMaker's own, ``__`` and hidden topics; ``user.internal`` is not."""
        return topic.startswith(("__", ".")) or self.is_mm2_internal_topic(topic)

    def _checkpoints_suffix(self) -> str:
        separator = self._internal_separator
        return f"{separator}checkpoints{separator}internal"


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Keeps names; only names that end with ``heartbeats`` are prefixed, so that they never
    loop."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self._source_alias = config.get("source.cluster.alias")

    @property
    def detects_cycles(self) -> bool:
        """False: ordinary names do not show their source."""
        return False

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the same name, except for heartbeats."""
        # By the end of the name: ``A.heartbeats`` is a
        # copy, and must get another prefix on its way.
        if self._looks_like_heartbeat(topic):
            return super().remote_topic(source_alias, topic)
        return topic

    def topic_source(self, topic: str) -> str | None:
        """Return the flow's source for every ordinary name."""
        if self._looks_like_heartbeat(topic):
            return super().topic_source(topic)
        return self._source_alias

    def upstream_topic(self, topic: str) -> str | None:
        """Return the same name, except for heartbeats."""
        if self._looks_like_heartbeat(topic):
            return super().upstream_topic(topic)
        return topic

    def _looks_like_heartbeat(self, topic: str) -> bool:
        return topic.endswith(self.heartbeats_topic())


LegacyReplicationPolicy = IdentityReplicationPolicy
"""Identity under the name that migration guides from MirrorMaker 1 use."""
