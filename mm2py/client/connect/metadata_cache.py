"""Cached metadata of one cluster: brokers, leaders, leader epochs, topic ids. No I/O.

Flow: ``MetadataResult`` -> ``update`` -> ``leader``. A broker that is cut off answers with stale
metadata, which never replaces newer: a leader is taken only if its epoch is at least the highest
one seen for the same topic id (Java's ``Metadata.updateLatestMetadata``), and not under an id that
was replaced by another one.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar, final

from mm2py.errors import Mm2pyError, RetriableServerError, ServerError
from mm2py.protocol.error_codes import (
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.topics import NO_TOPIC_ID, MetadataResult, TopicMetadata
from mm2py.types import TopicPartition

K = TypeVar("K")


class BrokerAddress(NamedTuple):
    """Address of a broker; a negative id is a bootstrap address."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Leader(NamedTuple):
    """The leader of one partition; ``topic_id`` is 16 bytes, all zero where the broker has none."""

    node_id: int
    epoch: int
    topic_id: bytes


def by_node(
    places: Mapping[K, Leader | int | Mm2pyError],
) -> tuple[dict[int, list[K]], dict[K, Mm2pyError]]:
    """Return what leaders or coordinators are asked for, by broker; and what has none, with the
    reason."""
    asked: dict[int, list[K]] = {}
    nowhere: dict[K, Mm2pyError] = {}
    for key, place in places.items():
        if isinstance(place, Mm2pyError):
            nowhere[key] = place
        else:
            node_id = place if isinstance(place, int) else place.node_id
            asked.setdefault(node_id, []).append(key)
    return asked, nowhere


class _Known(NamedTuple):
    leader: Leader
    learned_at: float


@final
class MetadataCache:
    """Leaders of the topics that were requested, and the brokers."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerAddress] = {}
        self.controller_id = -1
        self.cluster_id = ""
        self._topics: dict[str, int] = {}
        self._ids: dict[str, bytes] = {}
        self._incarnations: dict[str, list[bytes]] = {}
        self._leaders: dict[TopicPartition, _Known] = {}
        self._epochs: dict[TopicPartition, tuple[bytes, int]] = {}

    @property
    def topics(self) -> frozenset[str]:
        """Topics that were requested."""
        return frozenset(self._topics)

    def update(self, result: MetadataResult, now: float) -> None:
        """Merge a response; ``now`` is monotonic seconds."""
        # Brokers that are starting may answer without any: the old list is better than none.
        if result.brokers:
            self.brokers = {
                broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port)
                for broker in result.brokers
            }
        self.controller_id = result.controller_id
        self.cluster_id = result.cluster_id or self.cluster_id
        for topic in result.topics:
            self._topics[topic.name] = topic.error_code
            if not topic.error_code:
                if not self._is_left(topic):
                    self._update_topic(topic, now)
            # Only this error means that it is gone; all others are of the broker's or our rights.
            elif topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                self._forget(topic.name)

    def leader(self, tp: TopicPartition) -> Leader | None:
        known = self._leaders.get(tp)
        return None if known is None else known.leader

    def age_s(self, tp: TopicPartition, now: float) -> float:
        """Return the time since the leader was last confirmed."""
        known = self._leaders.get(tp)
        return float("inf") if known is None else now - known.learned_at

    def topic_id(self, topic: str) -> bytes | None:
        """Return the last known id of a topic, None where it does not exist or was not
        requested."""
        return self._ids.get(topic)

    def moved(self, tp: TopicPartition, node_id: int, epoch: int) -> None:
        """Drop a leader, or replace it by the one that a broker named (KIP-951)."""
        known = self._leaders.get(tp)
        if known is None or (node_id, epoch) == known.leader[:2]:
            return  # several responses of one broker name the same new leader
        if node_id >= 0 and node_id in self.brokers and epoch > known.leader.epoch:
            leader = Leader(node_id, epoch, known.leader.topic_id)
            # The old time: the next refresh is not put off by a broker's hint.
            self._leaders[tp] = _Known(leader, known.learned_at)
            self._epochs[tp] = (leader.topic_id, epoch)
        # A refusal under an older epoch is about a leader that was replaced here already.
        elif epoch < 0 or epoch >= known.leader.epoch:
            del self._leaders[tp]

    def no_leader(self, tp: TopicPartition) -> ServerError:
        """Return why there is no leader, as the error that a broker would return."""
        code = self._topics.get(tp.topic, UNKNOWN_TOPIC_OR_PARTITION)
        if code:
            return server_error(code, f"topic {tp.topic}")
        if tp in self._epochs:
            return RetriableServerError(
                LEADER_NOT_AVAILABLE, "LEADER_NOT_AVAILABLE", f"partition {tp} has no leader"
            )
        return server_error(UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")

    def _update_topic(self, topic: TopicMetadata, now: float) -> None:
        if self._ids.get(topic.name, topic.topic_id) != topic.topic_id:
            self._forget(topic.name)  # created again, perhaps with fewer partitions
        self._ids[topic.name] = topic.topic_id
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            topic_id, highest = self._epochs.get(tp, (topic.topic_id, -1))
            # KIP-320: epochs only rise. -1 is of brokers before 2.1, whose order is not known.
            if topic_id == topic.topic_id and -1 < partition.leader_epoch < highest:
                continue
            self._epochs[tp] = (topic.topic_id, partition.leader_epoch)
            if partition.leader < 0:
                self._leaders.pop(tp, None)
                continue
            leader = Leader(partition.leader, partition.leader_epoch, topic.topic_id)
            self._leaders[tp] = _Known(leader, now)

    def _is_left(self, topic: TopicMetadata) -> bool:
        """Whether a response has a topic id that was replaced: its broker is cut off from the
        controllers.

        Ids are never reused, so its leaders are ignored.
        """
        # KIP-516: brokers before 2.8 have no ids.
        if topic.topic_id == NO_TOPIC_ID:
            return False
        known = self._incarnations.setdefault(topic.name, [])
        if topic.topic_id not in known:
            known.append(topic.topic_id)
        return topic.topic_id != known[-1]

    def _forget(self, topic: str) -> None:
        self._ids.pop(topic, None)
        for tp in [tp for tp in self._epochs if tp.topic == topic]:
            self._leaders.pop(tp, None)
            del self._epochs[tp]
