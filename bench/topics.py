"""Topics of a region as an independent client (confluent-kafka) sees them: create, count, empty.

Flow: ``Topics(bootstrap)`` -> ``create`` -> ``end_offsets`` while something copies -> ``empty``.
Writes single records; ``workloads`` fills topics.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from typing import Final, Protocol, cast, final

from confluent_kafka import (
    OFFSET_END,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # the package does not export it by name
from confluent_kafka.cimpl import NewTopic

_TIMEOUT_S: Final = 30.0
_APPEND_TIMEOUT_S: Final = 120.0  # to a thousand topics
_NOT_YET: Final = frozenset(
    {
        "_NOENT",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    }
)


class _Offset(Protocol):
    @property
    def offset(self) -> int: ...


class _Specs(Protocol):
    def latest(self) -> object: ...


class _Metadata(Protocol):
    @property
    def topics(self) -> Mapping[str, object]: ...


class _Admin(Protocol):
    """The part of AdminClient used here; its own annotations leave the futures' results open."""

    def create_topics(self, new_topics: list[NewTopic]) -> Mapping[str, Future[None]]: ...

    def delete_topics(self, topics: list[str]) -> Mapping[str, Future[None]]: ...

    def list_topics(self, *, timeout: float) -> _Metadata: ...

    def list_offsets(
        self, topic_partition_offsets: dict[TopicPartition, object]
    ) -> Mapping[TopicPartition, Future[_Offset]]: ...

    def delete_records(
        self, topic_partition_offsets: list[TopicPartition]
    ) -> Mapping[TopicPartition, Future[object]]: ...


_SPECS: Final = cast("_Specs", OffsetSpec)  # its methods carry no annotations


@final
class Topics:
    """The topics of one cluster."""

    def __init__(self, bootstrap_servers: str) -> None:
        # Log level 2: the client's remarks about brokers that were stopped are no results.
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
        }
        self._admin = cast("_Admin", AdminClient(settings))
        self._servers = bootstrap_servers
        self._seen: set[str] = set()

    def create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create one topic with a single replica."""
        self.create_all([topic], partitions, configs)

    def create_all(
        self, topics: Sequence[str], partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create topics with a single replica."""
        new = [NewTopic(topic, partitions, 1, config=dict(configs or {})) for topic in topics]
        for done in self._admin.create_topics(new).values():
            done.result(_TIMEOUT_S)

    def delete_all(self, topics: Sequence[str]) -> None:
        """Delete topics; brokers remove their logs later."""
        for done in self._admin.delete_topics(list(topics)).values():
            done.result(_TIMEOUT_S)

    def append(self, *topics: str, records: int = 1) -> None:
        """Append a few small records to each topic's first partition, and wait for the acks."""
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 0, "log_level": 2})
        for topic in topics:
            for _ in range(records):
                producer.produce(topic, b"record", partition=0)
            producer.poll(0)
        if producer.flush(_APPEND_TIMEOUT_S) > 0:
            raise RuntimeError(f"records were not taken within {_APPEND_TIMEOUT_S:.0f} s")

    def end_offsets(self, topic: str, partitions: int) -> Sequence[int]:
        """Return the log end of every partition; 0 for those that do not exist yet."""
        # librdkafka remembers for good that a topic it was asked for too often was not there.
        if topic not in self._seen:
            if not self.exists(topic):
                return [0] * partitions
            self._seen.add(topic)
        asked = {TopicPartition(topic, p): _SPECS.latest() for p in range(partitions)}
        ends = [0] * partitions
        for where, answer in self._admin.list_offsets(asked).items():
            ends[where.partition] = _offset(answer)
        return ends

    def filled(self, topics: Collection[str], *, records: int = 1) -> int:
        """Return how many of the topics have that many records in their first partition."""
        there = self.names() & set(topics)
        if not there:
            return 0
        asked = {TopicPartition(topic, 0): _SPECS.latest() for topic in there}
        return sum(
            _offset(answer) >= records for answer in self._admin.list_offsets(asked).values()
        )

    def names(self) -> Set[str]:
        """Return the topics that the cluster lists."""
        return self._admin.list_topics(timeout=_TIMEOUT_S).topics.keys()

    def count(self, topic: str, partitions: int) -> int:
        """Return how many records were ever written to a topic without compaction."""
        return sum(self.end_offsets(topic, partitions))

    def exists(self, topic: str) -> bool:
        """Whether the cluster lists ``topic``."""
        return topic in self.names()

    def empty(self, topic: str, partitions: int) -> None:
        """Delete every record; the topic and its offsets stay."""
        ends = [TopicPartition(topic, p, OFFSET_END) for p in range(partitions)]
        for done in self._admin.delete_records(ends).values():
            done.result(_TIMEOUT_S)


def _offset(answer: Future[_Offset]) -> int:
    try:
        return answer.result(_TIMEOUT_S).offset
    except KafkaException as error:
        if error.args[0].name() in _NOT_YET:
            return 0
        raise
