"""Contracts of the pluggable policies: how remote topics are named and what is replicated.

Java counterparts: ``ReplicationPolicy``, ``TopicFilter``, ``GroupFilter``, ``ConfigPropertyFilter``.
"""

from typing import Protocol


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
    """Which topics are replicated."""

    def should_replicate_topic(self, topic: str) -> bool:
        """Whether the user chose ``topic``."""
        ...


class GroupFilter(Protocol):
    """Which consumer groups are checkpointed."""

    def should_replicate_group(self, group: str) -> bool:
        """Whether the user chose ``group``."""
        ...


class ConfigPropertyFilter(Protocol):
    """Which topic configs are replicated."""

    def should_replicate_config_property(self, name: str) -> bool:
        """Whether a topic config is copied."""
        ...

    def should_replicate_source_default(self, name: str) -> bool:
        """Whether the source's default is copied too (``use.defaults.from=source``)."""
        ...
