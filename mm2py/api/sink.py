"""The contract of sink tasks: what the runtime calls, when, and what each answer makes it do.

Flow: consumer group -> converters, transforms -> ``put`` -> ``pre_commit`` -> committed positions
of the group (Java's ``SinkTask``, ``WorkerSinkTask``).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mm2py.api.records import SinkRecord
from mm2py.clock import Clock
from mm2py.types import TopicPartition


class SinkTaskContext(Protocol):
    """Lent to a sink task; its methods are called on the task's thread, from inside the task's own
    methods."""

    @property
    def clock(self) -> Clock:
        """Time."""
        ...

    @property
    def task_id(self) -> str:
        """``<connector>-<index>``, for logs and client ids."""
        ...

    @property
    def assignment(self) -> Collection[TopicPartition]:
        """Source partitions that the task has now."""
        ...

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets after this call (Java's ``offset``)."""
        ...

    def hold(self, partitions: Collection[TopicPartition], cause: str = "") -> None:
        """Read none of these until ``release`` (Java's ``pause``); a new assignment forgets it.
        With a cause they are shown as HELD."""
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again (Java's ``resume``)."""
        ...

    def retry_after(self, delay_ms: int) -> None:
        """Call ``put`` again so soon after a ``RetriableError`` of now (Java's ``timeout``)."""
        ...

    def request_commit(self) -> None:
        """Commit as soon as the present call has ended."""
        ...

    def report(self, record: SinkRecord, error: Exception) -> None:
        """Report a record that cannot be delivered (Java's ``ErrantRecordReporter``).

        It is logged and sent to the dead letter queue as ``errors.*`` say, and counts as delivered
        then.

        Raises:
            FatalError: ``errors.tolerance=none``.
        """
        ...


class SinkTask(Protocol):
    """A task that takes records (Java's ``SinkTask``).

    All methods are called on one thread that the task has for itself, in a process of its own, and
    may block; while one blocks for longer than the consumer's ``max.poll.interval.ms``, the group
    takes its partitions away.
    """

    def start(self) -> None:
        """Take up work; called once, before anything else.

        ``RetriableError`` makes the runtime call it again after a pause; any other error fails the
        task.
        """
        ...

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions were assigned; called before the first of their records. An error fails
        the task."""
        ...

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Take records, in the order of each partition; also called without any, at least every
        half second.

        ``RetriableError``: nothing more is read, and the same records are put again, without those
        of partitions that were revoked meanwhile. Any other error fails the task.
        """
        ...

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return what may be committed, given the offset after the last record that was put, by
        partition.

        Java's ``preCommit``, whose default calls ``flush``. What the answer leaves out stays as it
        was committed. ``RetriableError``: partitions are read again from what was committed; any
        other error fails the task.
        """
        ...

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are revoked, lost, or the task ends; what ``pre_commit`` allowed is
        committed."""
        ...

    def stop(self) -> None:
        """Close what was opened; called once when ``start`` was tried, after the last ``close``."""
        ...
