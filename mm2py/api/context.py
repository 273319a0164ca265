"""Contexts that the runtime provides to connectors and tasks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.clock import Clock
from mm2py.observability.metrics import Forecast
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import FlowName, TopicPartition


class PartitionState(StrEnum):
    """State of one partition inside a running task."""

    RUNNING = "RUNNING"
    HELD = "HELD"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class WaitingPartition:
    """A source partition that no task has, because its copy does not exist; -1 where a number is
    not known.

    ``lag_records``: offsets that wait on the source; ``oldest_ms``: timestamp of the first of them.
    """

    cause: str
    lag_records: int = -1
    oldest_ms: int = -1


class EventKind(StrEnum):
    """Kind of an event about a range of source offsets, as in the loss ledger."""

    RETENTION = "retention"
    """Deleted on the source before it was copied."""
    TRUNCATION = "truncation"
    """Copied already, but the source lost it and writes other records under these offsets."""
    RECREATED = "recreated"
    """The topic was deleted and created again; the range is what was known and not copied."""
    POISONED = "poisoned"
    """Cannot be read: wrong CRC, unknown format or codec, damaged records."""
    TOO_LARGE = "too-large"
    """One record is larger than the target takes."""
    REFUSED = "refused"
    """The target or the source refuses it for another reason."""
    SKIPPED = "skipped"
    """The position was set past it or removed, and no program has copied it."""
    QUARANTINED = "quarantined"
    """Not copied before a failover, which was accepted; its records are in the quarantine topic."""
    TARGET_LOST = "target-lost"
    """Copied already, but the target lost it: an unclean election there, or its topic was created
    again."""
    MAY_BE_DOUBLED = "may-be-doubled"
    """Sent twice without a way to find out whether the first attempt was written."""

    @property
    def is_loss(self) -> bool:
        """Whether the range is not on the target and will not arrive there."""
        return self in (
            EventKind.RETENTION,
            EventKind.RECREATED,
            EventKind.SKIPPED,
            EventKind.QUARANTINED,
            EventKind.TARGET_LOST,
        )

    @property
    def may_repeat(self) -> bool:
        """Whether the same range may be hit again: it is noticed while it happens."""
        return self in (EventKind.TRUNCATION, EventKind.TARGET_LOST)

    @property
    def stops(self) -> bool:
        """Whether the partition waits before the range until an operator acts."""
        return self in (EventKind.POISONED, EventKind.TOO_LARGE, EventKind.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvent:
    """One event of the loss ledger: source offsets, both ends inclusive, and what was decided.

    ``last_offset`` is ``first_offset - 1`` where nothing is known to be in the range, and both are
    -1 where the offset is not known. ``policy`` is ``property=value``, empty where none applies.
    One that is reported ``again`` at a start may be in the ledger already.
    """

    kind: EventKind
    partition: TopicPartition
    first_offset: int
    last_offset: int
    policy: str
    cause: str
    task: str
    again: bool = field(default=False, compare=False)

    @property
    def count(self) -> int:
        """Number of offsets in the range."""
        return max(0, self.last_offset - self.first_offset + 1) if self.first_offset >= 0 else 0


class EventSink(Protocol):
    """Receiver of loss events: the ledger of one flow."""

    def report(self, event: LossEvent) -> bool:
        """Accept an event, and write it; False if it was reported before."""
        ...

    def unwritten(self) -> Collection[TopicPartition]:
        """Source partitions with events that are not acknowledged: their positions must wait."""
        ...

    async def flush(self, timeout_s: float) -> bool:
        """Wait until every event is acknowledged; False when that takes longer than
        ``timeout_s``."""
        ...

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        """Return which topic id stored positions belong to, as far as that is known."""
        ...

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Keep which topic id the stored position of a partition belongs to."""
        ...


class SourceGap:
    """Records of a source partition that are gone before they were copied.

    ``first_offset`` to ``last_offset`` are inclusive; ``cause`` is ``retention``, ``truncation`` or
    ``recreated`` (words of ``EventKind``); ``detail`` is for messages. Empty when nothing is known
    to be lost. ``topic_id`` is that of the incarnation that follows, zeros where it is not known.
    ``returns``: the incarnation before had no partition of this number, so that its end was
    reported and nothing is lost. ``under_way`` records that were read before it are not delivered
    yet; the task fills it in.
    """

    __slots__ = (
        "cause", "detail", "first_offset", "last_offset", "partition", "returns", "topic_id", "under_way",
    )  # fmt: skip

    def __init__(
        self,
        partition: TopicPartition,
        first_offset: int,
        last_offset: int,
        cause: str,
        detail: str,
        topic_id: bytes = NO_TOPIC_ID,
        *,
        returns: bool = False,
    ) -> None:
        self.partition = partition
        self.returns = returns
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.cause = cause
        self.detail = detail
        self.topic_id = topic_id
        self.under_way = 0

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
        """Request a new call of ``task_configs``, and a restart of the tasks that differ."""
        ...

    def fail(self, error: Exception) -> None:
        """Report an error of a background loop that nothing will cure: the connector is FAILED."""
        ...


@runtime_checkable
class PartitionRates(Protocol):
    """Optional for a ``ConnectorContext``: check with ``isinstance``."""

    def partition_rates(self) -> Mapping[TopicPartition, float]:
        """Return bytes per second by source partition, without partitions that are not measured
        yet."""
        ...


@runtime_checkable
class PublishedTasks(Protocol):
    """Optional for a ``ConnectorContext``: check with ``isinstance``."""

    def published_tasks(self) -> Sequence[Mapping[str, str]]:
        """Return the connector's task configs that are in force, after a stop those before it, and
        what streams of a flow had: none at its first start."""
        ...


@runtime_checkable
class KeptOutPartitions(Protocol):
    """Optional for a ``ConnectorContext``: check with ``isinstance``."""

    @property
    def kept_out(self) -> Collection[TopicPartition]:
        """Source partitions that a backfill copies: the configs of their copies are its own
        meanwhile."""
        ...


@runtime_checkable
class TaskOfFlow(Protocol):
    """Optional for a ``TaskContext``: check with ``isinstance``."""

    @property
    def flow(self) -> FlowName | None:
        """The flow whose aliases our own topics have, such as the offset map: a file may give its
        connectors others. None where configs alone name clusters, on a Connect worker."""
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

    @property
    def kept_out(self) -> Collection[TopicPartition]:
        """Source partitions that the task must not copy now: a backfill does."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """``buffer.memory``: what the task may have read that is not delivered, in receive buffers
        or copies."""
        ...

    @property
    def linger_ms(self) -> int:
        """``linger.ms``: how long a record may wait for others, so that one request carries
        them."""
        ...

    @property
    def commit_s(self) -> float:
        """How long a record waits by right until it is delivered, because its transaction stays
        open for others (``transaction.boundary``); 0 without transactions."""
        ...

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        """Report which of its partitions the task has left out at its start; see ``TakesOver``."""
        ...

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        """Return the stored offset of each partition, in order; None where nothing is stored.

        What cannot be read fails the task; of the offset of a Kafka partition it is empty, so that
        the partition can fail alone.
        """
        ...

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        """Report a state change of one source partition; FAILED needs its cause."""
        ...

    def shows_cause(self, partition: TopicPartition) -> bool:
        """Whether users see why nothing of a source partition is copied now: it is paused, held
        with a cause, or has failed."""
        ...

    def report_gap(self, gap: SourceGap) -> None:
        """Report records that were lost before they could be copied; goes into the loss ledger."""
        ...

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        """Return which topic id positions belong to that are stored without one, as far as that is
        known."""
        ...

    def report_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Report which topic id the stored position belongs to, where it was not known."""
        ...

    def report_covered(
        self, partition: TopicPartition, offset: int, *, begins: bool = False
    ) -> None:
        """Report that everything up to ``offset`` is delivered or needs no copy (markers, aborted
        data).

        ``begins``: it has neither; the copy begins after it (``latest``, an age).
        """
        ...

    def report_looped(self, partition: TopicPartition, records: int, conflicts: int) -> None:
        """Report records that are not copied because another mirror wrote them to the source.

        ``conflicts``: how many of them are in conflict with a local record of the same key.
        """
        ...

    def report_lag(
        self, partition: TopicPartition, lag_records: int, newest_ms: int, end: int = -1
    ) -> None:
        """Report how far behind the source's end a partition is, its newest copied timestamp, and
        where that end is now."""
        ...

    def report_forecast(self, partition: TopicPartition, forecast: Forecast | None) -> None:
        """Report when the source deletes what is not copied; None where that is not in sight."""
        ...

    def report_finding(self, what: str, text: str, *, count: int = 1, harms: bool = True) -> None:
        """Report something about the task that is no failure of a partition; an empty ``text``
        withdraws it.

        ``what`` names it, from a small set of names; ``text`` has the cause and what to do;
        ``count`` is how many things it is about. One that ``harms`` makes the flow DEGRADED, any
        other is a note.
        """
        ...

    def report_figure(self, name: str, value: int) -> None:
        """Report a number of the task for ``GET /metrics``, from a small set of names; it lasts
        until the next one."""
        ...

    def report_checkpoint(self, group: str, partition: TopicPartition, latency_ms: int) -> None:
        """Report that a checkpoint is on the target: of ``partition`` there, ``latency_ms`` after
        it was made."""
        ...
