"""The complete decision whether a source topic is replicated; one rule for data, configs and ACLs.

Flow: topic name -> filter, heartbeats, internal names, cycles -> yes or no
(``MirrorSourceConnector.shouldReplicateTopic``). Listing topics is not done here.
"""

from typing import final

from mm2py.api.policies import ReplicationPolicy, TopicFilter


@final
class TopicSelection:
    """Decides for one flow."""

    def __init__(
        self,
        policy: ReplicationPolicy,
        topic_filter: TopicFilter,
        *,
        source_alias: str,
        target_alias: str,
        replicate_heartbeats: bool = True,
    ) -> None:
        self._policy = policy
        self._filter = topic_filter
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._replicate_heartbeats = replicate_heartbeats

    def replicate(self, topic: str) -> bool:
        """Whether ``topic`` of the source is copied."""
        return (
            self._chosen(topic)
            and not self._policy.is_internal_topic(topic)
            and not self.is_cycle(topic)
            and not self._feeds_itself(topic)
        )

    def is_cycle(self, topic: str) -> bool:
        """Whether the target stands anywhere on the topic's chain of sources.

        As 4.3.1: a name that begins with the flow's own *source* alias is no cycle (KAFKA-9914 came later).
        """
        seen = topic
        while True:
            source = self._policy.topic_source(seen)
            if source is None:
                return False
            if source == self._target_alias:
                return True
            upstream = self._policy.upstream_topic(seen)
            if upstream is None or upstream == seen:
                return False
            seen = upstream

    def _chosen(self, topic: str) -> bool:
        return self._filter.should_replicate_topic(topic) or (
            self._replicate_heartbeats and self._policy.is_heartbeats_topic(topic)
        )

    def _feeds_itself(self, topic: str) -> bool:
        # Only names without provenance (empty separator and alias) get here: two flows would copy the
        # same heartbeats back and forth for ever.
        heartbeats = self._policy.heartbeats_topic()
        return (
            topic == heartbeats
            and self._policy.remote_topic(self._source_alias, topic) == heartbeats
        )
