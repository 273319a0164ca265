"""What the runtime lends to connectors and tasks, and nothing more."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.clock import Clock
from mm2py.types import TopicPartition

__all__ = ["ConnectorContext", "PartitionState", "SourceGap", "TaskContext"]


class PartitionState(StrEnum):
    """State of one partition inside a running task."""

    RUNNING = "RUNNING"
    HELD = "HELD"
    FAILED = "FAILED"


class SourceGap:
    """Records of a source partition that are gone before they were copied.

    ``first_offset`` to ``last_offset`` are inclusive; ``cause`` is one of ``retention``, ``truncation``,
    ``recreated``, ``unknown``; ``detail`` is for people.
    """

    __slots__ = ("cause", "detail", "first_offset", "last_offset", "partition")

    def __init__(
        self,
        partition: TopicPartition,
        first_offset: int,
        last_offset: int,
        cause: str,
        detail: str,
    ) -> None:
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.cause = cause
        self.detail = detail

    @property
    def count(self) -> int:
        """Number of offsets in the gap."""
        return max(0, self.last_offset - self.first_offset + 1)


class ConnectorContext(Protocol):
    """Lent to a connector's ``start``."""

    @property
    def clock(self) -> Clock:
        """Time."""
        ...

    def request_reconfiguration(self) -> None:
        """Ask the runtime to call ``task_configs`` again and restart what differs."""
        ...

    def fail(self, error: Exception) -> None:
        """Report an error of a background loop that nothing will cure: the connector is FAILED."""
        ...


class TaskContext(Protocol):
    """Lent to a task."""

    @property
    def clock(self) -> Clock:
        """Time."""
        ...

    @property
    def task_id(self) -> str:
        """``<connector>-<index>``, for logs and client ids."""
        ...

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        """Return the stored offset of each partition, None where nothing is stored, in order."""
        ...

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        """Report a state change of one source partition; FAILED needs its cause."""
        ...

    def report_gap(self, gap: SourceGap) -> None:
        """Report records that were lost before they could be copied."""
        ...

    def report_lag(self, partition: TopicPartition, lag_records: int, newest_ms: int) -> None:
        """Report how far behind the source end a partition is, and its newest copied timestamp."""
        ...
