"""The contracts of tasks: what the runtime calls, when, and what each answer makes it do.

Flow: ``poll`` -> the worker's Sender -> ``delivered``. A batch task returns whole record batches; a
record task (third parties, heartbeats) returns records, which the runtime encodes into batches.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from mm2py.api.records import SourceOffset, SourcePartition, SourceRecord
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition


class Outgoing(NamedTuple):
    """Batches of one source partition for its target; they leave in source order."""

    source: TopicPartition
    target: TopicPartition
    batches: Sequence[RecordBatch]


class Run(NamedTuple):
    """``records`` records from ``source_offset`` on landed from ``target_offset`` on, without
    holes."""

    source_offset: int
    records: int
    target_offset: int


class Delivery(NamedTuple):
    """Acknowledgements of one partition since the last report.

    ``runs``, one per equal shift, are in source order; ``size_bytes`` counts whole batches as sent.
    ``passed``: records that have no copy there because of transforms, between the runs or, up to
    ``through``, after the last one. ``at_ms``: when the newest record was acknowledged, -1 where
    that is not known.
    """

    source: TopicPartition
    target: TopicPartition
    runs: tuple[Run, ...]
    size_bytes: int
    max_timestamp_ms: int
    passed: int = 0
    through: int = -1
    at_ms: int = -1

    @property
    def last(self) -> int:
        """Source offset of the last record that is done."""
        if self.through >= 0:
            return self.through
        run = self.runs[-1]
        return run.source_offset + run.records - 1


@runtime_checkable
class BatchSourceTask(Protocol):
    """A source task that moves whole record batches; the runtime recognises it by these methods.

    All methods are called on the task host's event loop, never two at a time except that
    ``delivered``, ``hold``, ``release`` and ``failed`` may run while ``poll`` waits.
    """

    async def start(self) -> None:
        """Take up the stored positions; called once, before the first ``poll``.

        ``RetriableError`` makes the runtime call it again after a pause; any other error fails the
        task.
        """
        ...

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        """Return the next batches, at most about ``budget_bytes``, empty when nothing came in time.

        Blocks for at most about a second. ``RetriableError`` is retried with back-off; any other
        error fails the task. A partition that cannot continue is reported through the context
        instead.
        """
        ...

    def delivered(self, delivery: Delivery) -> None:
        """Note where records landed; in source order per partition, never twice for one record."""
        ...

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these source partitions: their target cannot drain, or they are paused."""
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Read them again."""
        ...

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """The worker gave this source partition up; nothing of it will be delivered any more."""
        ...

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        """Return the key under which this partition's position is stored, in Java's member
        order."""
        ...

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        """Return what is stored for a partition: everything up to ``position`` is copied."""
        return {"offset": position}

    async def commit(self) -> None:
        """Called after positions were stored, and once more before ``stop`` (Java's ``commit``)."""
        ...

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        ...


@runtime_checkable
class TakesOver(Protocol):
    """Optional for a batch task: leaves ``TaskContext.kept_out`` out at its start."""

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        """Copy these too, from their stored positions of now; called concurrently with ``poll``,
        once at a time, and cancelled at the end.

        ``RetriableError`` makes the runtime call it again after a pause; any other error fails the
        task.
        """
        ...


@runtime_checkable
class ReadsAgain(Protocol):
    """Optional for a batch task: takes back what its target refuses, and reads it later."""

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        """Forget the newest ``records`` handed out of a held partition, from ``offset`` on; return
        whether that is possible now.

        They are read again when it is released, perhaps in other batches.
        """
        ...

    @property
    def is_short(self) -> bool:
        """Whether the last ``poll`` could not read something for lack of memory: what was handed
        out keeps more of it than the worker counts, up to whole receive buffers."""
        ...


@runtime_checkable
class Paced(Protocol):
    """Optional for a task with a byte rate: changes it at run time."""

    def pace(self, bytes_per_s: int) -> None:
        """Read so much per second from now on; of no effect where the task's config has no
        limit."""
        ...


@runtime_checkable
class CopiedLogs(Protocol):
    """Additional methods of a batch task whose source partitions are logs of which records are
    deleted."""

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where source logs begin, -1 for a partition that does not exist; without those
        that are not known now.

        Partitions of other tasks are asked for too. Called between ``start`` and ``stop``,
        concurrently with ``poll``.
        """
        ...

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        """Return where a source partition is copied to."""
        ...


LEFT_OUT: Final = -1
"""In place of a target offset: a transform has dropped the record, or ``errors.tolerance`` has left
it out (Java: no metadata)."""


class SourceTask(Protocol):
    """A source task that returns ordinary records."""

    async def start(self) -> None:
        """Take up work; errors as for ``BatchSourceTask.start``."""
        ...

    async def poll(self) -> Sequence[SourceRecord]:
        """Return the next records, empty when there are none; blocks for at most about a second."""
        ...

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        """``record``, as ``poll`` returned it, was acknowledged at ``target_offset`` (Java's
        ``commitRecord``); ``LEFT_OUT``: it is not written, or its broker has forgotten where."""
        ...

    async def commit(self) -> None:
        """Called after positions were stored."""
        ...

    async def stop(self) -> None:
        """Close what was opened; safe before ``start`` and safe twice."""
        ...
