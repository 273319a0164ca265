"""Transactions as a fake cluster's coordinator and partition leaders keep them.

Flow: InitProducerId, AddPartitionsToTxn, Produce, EndTxn -> ``FakeTransactions`` -> codes; what is committed can be
read with ``committed``. Both protocol generations. No time-outs by itself.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from mm2py.protocol.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)
from mm2py.types import TopicPartition

IMPLICIT: Final = 12
"""Produce that adds its partitions by itself."""
CHECKED: Final = 11
OPERATION_NOT_ATTEMPTED: Final = 55


class Stored(NamedTuple):
    """A batch in a partition's log."""

    partition: TopicPartition
    base_offset: int
    data: bytes


@dataclass(slots=True)
class _Producer:
    producer_id: int
    epoch: int = 0
    partitions: set[TopicPartition] = field(default_factory=set[TopicPartition])
    batches: list[Stored] = field(default_factory=list[Stored])
    ongoing: bool = False
    last_commit: bool | None = None
    timed_out_epoch: int = -1
    """Whose producer may still continue: only its own time-out came between (KIP-360)."""


@final
class FakeTransactions:
    """All transactional ids of one cluster."""

    def __init__(self) -> None:
        self.coordinator = -1
        """Broker that coordinates all of them; -1: every broker does."""
        self.features: dict[str, int] = {}
        """Finalized features; brokers need ``versions={18: (0, 4)}`` to name them."""
        self.refusals: dict[TopicPartition, int] = {}
        """Why partitions may not be added (old protocol); then none of the same request is."""
        self.forgets_epochs = False
        """Whether it answers a producer that it timed out as one that is fenced, as before ``transaction.version`` 2."""
        self.committed: list[Stored] = []
        self.aborted: list[Stored] = []
        self.markers: set[TopicPartition] = set()
        """Partitions whose logs grow by a marker; taken by the cluster."""
        self._by_name: dict[str, _Producer] = {}
        self._by_id: dict[int, _Producer] = {}

    def init(self, name: str, producer_id: int, epoch: int, new_id: int) -> tuple[int, int, int]:
        """Return code, producer id and epoch; aborts what is open."""
        producer = self._by_name.get(name)
        if producer is None:
            producer = self._by_name[name] = _Producer(new_id)
            self._by_id[new_id] = producer
            return NONE, producer.producer_id, producer.epoch
        known = (producer.epoch, producer.timed_out_epoch)
        if producer_id >= 0 and (producer_id != producer.producer_id or epoch not in known):
            return PRODUCER_FENCED, -1, -1
        producer.timed_out_epoch = -1
        if producer.ongoing:
            self._finish(producer, commit=False)
        producer.epoch += 1
        producer.last_commit = None
        return NONE, producer.producer_id, producer.epoch

    def add(self, name: str, epoch: int, partitions: set[TopicPartition]) -> int:
        """Add partitions to a transaction (old protocol)."""
        if not self.refusals.keys().isdisjoint(partitions):
            return OPERATION_NOT_ATTEMPTED
        producer = self._by_name.get(name)
        if producer is None:
            return INVALID_PRODUCER_ID_MAPPING
        if epoch != producer.epoch:
            return PRODUCER_FENCED
        producer.ongoing = True
        producer.last_commit = None
        producer.partitions |= partitions
        return NONE

    def end(self, name: str, epoch: int, *, commit: bool, implicit: bool) -> int:
        """End a transaction; a repeated request is answered as the first one was."""
        producer = self._by_name.get(name)
        if producer is None:
            return INVALID_PRODUCER_ID_MAPPING
        if not producer.ongoing:
            repeated = producer.last_commit is commit
            if repeated and epoch == (producer.epoch - 1 if implicit else producer.epoch):
                return NONE
            if epoch != producer.epoch:
                return PRODUCER_FENCED
            if not implicit or commit:
                return INVALID_TXN_STATE
        if epoch != producer.epoch:
            return PRODUCER_FENCED
        self._finish(producer, commit=commit)
        if implicit:
            producer.epoch += 1
        return NONE

    def time_out(self, name: str) -> None:
        """Abort what is open as the coordinator does after ``transaction.timeout.ms``."""
        producer = self._by_name.get(name)
        if producer is not None and producer.ongoing:
            self._finish(producer, commit=False)
            producer.timed_out_epoch = -1 if self.forgets_epochs else producer.epoch
            producer.epoch += 1
            producer.last_commit = None

    def current(self, name: str) -> tuple[int, int]:
        """Return id and epoch."""
        producer = self._by_name[name]
        return producer.producer_id, producer.epoch

    def check(self, producer_id: int, epoch: int, tp: TopicPartition, version: int) -> int:
        """Return why a leader refuses a transactional batch."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            return INVALID_PRODUCER_ID_MAPPING
        if epoch != producer.epoch:
            return INVALID_PRODUCER_EPOCH
        if version < IMPLICIT and tp not in producer.partitions:
            return TRANSACTION_ABORTABLE if version >= CHECKED else INVALID_TXN_STATE
        producer.ongoing = True
        producer.last_commit = None
        producer.partitions.add(tp)
        return NONE

    def stored(self, producer_id: int, batch: Stored) -> None:
        """Note a batch of the open transaction, once."""
        batches = self._by_id[producer_id].batches
        if batch not in batches:
            batches.append(batch)

    def _finish(self, producer: _Producer, *, commit: bool) -> None:
        (self.committed if commit else self.aborted).extend(producer.batches)
        self.markers |= producer.partitions
        producer.batches.clear()
        producer.partitions.clear()
        producer.ongoing = False
        producer.last_commit = commit
