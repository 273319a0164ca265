"""What a task's loop calls of a Sender, and the callbacks that it passes to one.

Flow: loop -> ``TaskSender`` -> target; acknowledgements, refusals, stalls and doubts -> the
callbacks that ``SenderFactory`` was given, with what is known of earlier copies. Types only: the
Sender is ``mm2py.client.send.sender``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from mm2py.api.task import Outgoing
from mm2py.client.send.tail import CopiedSoFar
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

OnDelivered = Callable[[TopicPartition, TopicPartition, RecordBatch, int], None]
OnFailed = Callable[[TopicPartition, TopicPartition, Exception], None]
OnStalled = Callable[[TopicPartition, Exception | None], None]
OnDoubt = Callable[[TopicPartition, int, int, Exception], None]
"""Source partition, first and last source offset that may be doubled, and why that cannot be
determined."""


class TaskSender(Protocol):
    """What the loop needs of ``mm2py.client.send.sender.Sender``."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes waiting or in flight."""
        ...

    async def start(self) -> None: ...
    def enqueue_all(self, handed_over: Sequence[Outgoing], /) -> None:
        """Take batches over, of each partition in source order, and send at once what may be
        sent."""
        ...

    def backlog_bytes(self, target: TopicPartition) -> int: ...
    def returnable(self, target: TopicPartition, /) -> tuple[int, int] | None: ...
    def give_back(self, target: TopicPartition, /) -> None: ...
    async def log_starts(
        self, targets: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]: ...
    def let_create(self, topics: Collection[str]) -> None: ...
    def watch_throttles(self, changed: Callable[[Mapping[int, float]], None], /) -> None:
        """Call ``changed`` with the seconds for which brokers take nothing because of a quota, by
        node id, while that is long and once after it."""
        ...

    def drop_unopened(self) -> None: ...
    async def flush(self, timeout_s: float) -> bool: ...
    async def close(self) -> None: ...


SenderFactory = Callable[
    [OnDelivered, OnFailed, OnStalled, OnDoubt, CopiedSoFar | None], TaskSender
]
