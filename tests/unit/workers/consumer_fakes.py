"""What a scripted consumer of the library returns: messages, and a cluster without topic ids."""

from collections.abc import Collection, Mapping

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError

from mm2py.errors import RetriableError
from mm2py.types import TopicPartition
from mm2py_workers.group_consumer import AskSource


class Read:
    """A message, as the library's; ``error`` is a code of ``KafkaError``, ``text`` what it says."""

    def __init__(
        self, place: TopicPartition, offset: int, error: int | None = None, text: str = ""
    ) -> None:
        self.place, self._offset, self._error, self._text = place, offset, error, text

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error, self._text or None)

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 0

    def headers(self) -> None: ...

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def __len__(self) -> int:
        return 1


class NoSource(AskSource):
    """A cluster without topics."""

    def __init__(self, cluster_id: str = "here") -> None:
        self._cluster_id = cluster_id
        self.hides: Collection[str] = ()

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        del topics
        return {}

    def log_ends(
        self, partitions: Collection[TopicPartition], *, read_committed: bool
    ) -> Mapping[TopicPartition, int]:
        del partitions, read_committed
        raise RetriableError("a scripted consumer has no cluster")

    def hidden(self, topics: Collection[str]) -> Collection[str]:
        del topics
        return self.hides

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def close(self) -> None: ...
