"""What a poll returns when the group changes in the middle of it."""

from collections.abc import Callable, Collection
from typing import Final

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TopicPartition

from mm2py.runtime.tasks.sink_loop import AssignmentListener
from mm2py.types import TopicPartition as Partition
from mm2py_workers import group_consumer
from mm2py_workers.group_consumer import ConfluentConsumer

PLACE: Final = Partition("orders", 0)


class Read:
    """A message, as the library's."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None: ...

    def topic(self) -> str:
        return PLACE.topic

    def partition(self) -> int:
        return PLACE.partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 0

    def headers(self) -> None: ...

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


class Moving:
    """A consumer whose partition goes and comes back while it is asked for more."""

    moves = True

    def __init__(self, _values: object) -> None:
        self._assign: Callable[..., None]
        self._revoke: Callable[..., None]

    def subscribe(
        self,
        _topics: list[str],
        on_assign: Callable[..., None],
        on_revoke: Callable[..., None],
        on_lost: Callable[..., None],
    ) -> None:
        del on_lost
        self._assign, self._revoke = on_assign, on_revoke

    def assign(self, _partitions: list[TopicPartition]) -> None: ...

    def poll(self, _timeout_s: float) -> Read:
        return Read(5)

    def consume(self, _most: int, timeout: float) -> list[Read]:
        assert not timeout
        if not self.moves:
            return [Read(6)]
        places = [TopicPartition(*PLACE)]
        self._revoke(self, places)
        self._assign(self, places)
        return [Read(3), Read(4), Read(5)]


class Listener(AssignmentListener):
    def assigned(self, partitions: Collection[Partition]) -> None: ...

    def revoked(self, partitions: Collection[Partition]) -> None: ...

    def lost(self, partitions: Collection[Partition]) -> None: ...


@pytest.mark.parametrize(("moves", "offsets"), [(True, [3, 4, 5]), (False, [5, 6])])
def test_a_record_of_before_a_partition_went_is_not_returned_in_front_of_what_is_read_again(
    monkeypatch: pytest.MonkeyPatch, moves: bool, offsets: list[int]
) -> None:
    monkeypatch.setattr(group_consumer, "Consumer", Moving)
    monkeypatch.setattr(Moving, "moves", moves)
    consumer = ConfluentConsumer({}, 10, Listener())
    consumer.subscribe(["orders"])
    assert [it.offset for it in consumer.poll(0.0)] == offsets
